"""A synchronous standby is promoted, the old primary stays reachable, at last read-only: everybody finds the new one.

Whoever has the address of both looks for the one that can be written to, so nothing is configured or restarted. What
was acknowledged before, during and after is on the new primary. Of what was not, nobody knows, as it must be.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import Headway
from headway.errors import StoreUnavailable
from headway.settings import Settings
from tests.chaos.arena import Arena, headway
from tests.chaos.ledger import check_audit, check_ledger, put_schedules, query, wait_until_decided
from tests.chaos.worker_arena import WorkerArena
from tests.support.postgres import PostgresServer
from tests.support.server import ServerMissing
from tests.support.standby import StandbyServer, configure, several_hosts

CLIENTS = 3
PAUSE_S = 0.05
LEAVE_S_MAX = 30.0
OLD_PRIMARY_S = 2.0  # For so long the old one still believes that it is one.
JOBS = "select count(*) from headway_jobs where task = 'nothing'"
COMPLETED = "select count(*) from headway_jobs where task = 'nothing' and status = 'COMPLETED'"
IDS = "select id from headway_jobs where task = 'nothing'"


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, StandbyServer]]:
    """A primary, and a standby that has everything that the primary has acknowledged."""
    try:
        primary = PostgresServer()
    except ServerMissing as missing:
        pytest.skip(f"missing: {missing}")
    with primary, StandbyServer(primary) as standby:
        yield primary, standby


class Clients:
    """Programs that enqueue all the time and remember what they were promised."""

    def __init__(self, store: str) -> None:
        self._app = Headway(settings=Settings(store=store), name="clients")
        self.acknowledged: list[str] = []
        self.refused = 0

    async def run(self, seconds: float) -> None:
        """Enqueue for so long."""
        until = time.monotonic() + seconds
        await asyncio.gather(*(self._enqueue(until) for _ in range(CLIENTS)))

    async def close(self) -> None:
        """End."""
        await self._app.close()

    async def _enqueue(self, until: float) -> None:
        while time.monotonic() < until:
            try:
                self.acknowledged.append((await self._app.enqueue("nothing")).id)
            except StoreUnavailable:
                self.refused += 1
            await asyncio.sleep(PAUSE_S)


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_writers_follow_the_primary(pair: tuple[PostgresServer, StandbyServer], tmp_path: Path) -> None:
    old, new = pair
    database = old.create_database()
    there = new.url(database.rpartition("/")[2])
    store = several_hosts([old, new], database)
    assert headway("migrate", store=store).returncode == 0
    put_schedules(store, tmp_path)
    schedulers, workers = Arena(store, tmp_path, seed=0), WorkerArena(store, tmp_path)
    clients = Clients(store)
    try:
        schedulers.start()
        schedulers.start()
        workers.start(HEADWAY_WORKER_LEASE="5s")
        await clients.run(3.0)
        before = len(clients.acknowledged)
        assert before > 0
        enqueuing = asyncio.create_task(clients.run(LEAVE_S_MAX / 2))
        promoted = time.monotonic()
        await asyncio.to_thread(new.promote)
        await asyncio.sleep(OLD_PRIMARY_S)  # Commits there wait for a standby that is none any more.
        configure(old, "default_transaction_read_only", "on")
        await asyncio.to_thread(wait_until_decided, there, time.time_ns() // 1_000, LEAVE_S_MAX)
        decided_s = time.monotonic() - promoted
        completed = await count(there, COMPLETED)
        while await count(there, COMPLETED) <= completed:
            assert time.monotonic() - promoted < LEAVE_S_MAX, "the worker has not come over"
            await asyncio.sleep(0.2)
        worked_s = time.monotonic() - promoted
        left_behind = await count(database, JOBS)
        await enqueuing
        assert await count(database, JOBS) == left_behind, "somebody still writes to the old primary"
        assert len(clients.acknowledged) > before, "the clients have not come over"
    finally:
        await clients.close()
        schedulers.stop()
        workers.stop()
    kept = {row[0] for row in await asyncio.to_thread(query, there, IDS)}
    assert {*clients.acknowledged} <= kept, "something acknowledged is lost"
    print(f"decided again after {decided_s:.1f} s, worked after {worked_s:.1f} s, {clients.refused} calls refused")
    await asyncio.to_thread(check_ledger, there, 10.0)
    await asyncio.to_thread(check_audit, there)


async def count(store: str, sql: str) -> int:
    """Ask one server, whichever of the two it is."""
    [(number,)] = await asyncio.to_thread(query, store, sql)
    return int(number)
