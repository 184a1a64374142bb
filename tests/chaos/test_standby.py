"""A synchronous standby is promoted while the old primary stays reachable, finally read-only: all clients switch over.

Clients with a URL of both hosts look for the writable one, so nothing is reconfigured or restarted. Jobs acknowledged
before, during and after are on the new primary. Jobs that were not acknowledged may be missing.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from headway import Headway
from headway.core.clock import Clock
from headway.core.errors import StoreUnavailable
from headway.core.nodes import Node
from headway.core.settings import Settings
from headway.operations.store_trouble import AWAY, READ_ONLY, examine
from headway.store import Store, postgres
from headway.store.postgres import PostgresDriver
from tests.chaos.arena import Arena, migrate
from tests.chaos.ledger import check_audit, check_ledger, put_schedules, query, wait_until_decided
from tests.chaos.worker_arena import WorkerArena
from tests.support.postgres import PostgresServer
from tests.support.proxy import BLACK_HOLE, Proxies
from tests.support.server import ServerMissing
from tests.support.standby import StandbyServer, configure, several_hosts
from tests.support.waiting import DEADLINE_S, async_wait_until, wait_until

CLIENTS = 3
PAUSE_S = 0.05
EACH = 5  # The number of jobs of each client in one phase.
OLD_PRIMARY_S = 2.0  # How long the old server still believes that it is the primary.
JOBS = "select count(*) from headway_jobs where task = 'nothing'"
COMPLETED = "select count(*) from headway_jobs where task = 'nothing' and status = 'COMPLETED'"
IDS = "select id from headway_jobs where task = 'nothing'"


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, StandbyServer]]:
    """Start a primary, and a standby that has every commit that the primary has acknowledged."""
    try:
        primary = PostgresServer()
    except ServerMissing as missing:
        pytest.skip(f"missing: {missing}")
    with primary, StandbyServer(primary) as standby:
        yield primary, standby


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    """Provide proxies to servers, which can inject network faults."""
    with Proxies() as proxies:
        yield proxies


class Clients:
    """Programs that enqueue all the time and remember the acknowledged jobs."""

    def __init__(self, store: str) -> None:
        self._app = Headway(settings=Settings(store=store), name="clients")
        self._tasks = [asyncio.create_task(self._enqueue(number)) for number in range(CLIENTS)]
        self._counts: Counter[int] = Counter()
        self.acknowledged: list[str] = []
        self.refused = 0

    async def get_through(self) -> None:
        """Wait until each of them has enqueued a few more."""
        wanted = {number: self._counts[number] + EACH for number in range(CLIENTS)}

        def is_so() -> bool:
            assert not any(task.done() for task in self._tasks), self._tasks
            return all(self._counts[number] >= count for number, count in wanted.items())

        await async_wait_until(is_so, f"each client to enqueue {EACH} jobs")

    async def close(self) -> None:
        """Stop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._app.close()

    async def _enqueue(self, number: int) -> None:
        while True:
            try:
                self.acknowledged.append((await self._app.enqueue("nothing")).id)
                self._counts[number] += 1
            except StoreUnavailable:
                self.refused += 1
            await asyncio.sleep(PAUSE_S)


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_writers_follow_the_primary(pair: tuple[PostgresServer, StandbyServer], tmp_path: Path) -> None:
    old, new = pair
    database = old.create_database()
    there = new.url(database.rpartition("/")[2])
    store = several_hosts([old, new], database)
    await asyncio.to_thread(migrate, store)
    await asyncio.to_thread(put_schedules, store)
    schedulers, workers = Arena(store, tmp_path, seed=0), WorkerArena(store, tmp_path)
    clients = Clients(store)
    began = time.monotonic()
    try:
        schedulers.start()
        schedulers.start()
        await asyncio.to_thread(workers.start, HEADWAY_WORKER_LEASE="5s")
        await clients.get_through()
        await asyncio.to_thread(wait_until_decided, database, time.time_ns() // 1_000)
        promoted = time.monotonic()
        await asyncio.to_thread(new.promote)
        await asyncio.sleep(OLD_PRIMARY_S)  # Commits there wait for a standby that has been promoted.
        await asyncio.to_thread(configure, old, "default_transaction_read_only", "on")
        await asyncio.to_thread(wait_until_decided, there, time.time_ns() // 1_000)
        decided_s = time.monotonic() - promoted
        completed = await count(there, COMPLETED)
        await asyncio.to_thread(wait_until, lambda: query(there, COMPLETED) > [(completed,)], "the worker to come over")
        worked_s = time.monotonic() - promoted
        await clients.get_through()
        left_behind = await count(database, JOBS)
        await clients.get_through()
        assert await count(database, JOBS) == left_behind, "a client still writes to the old primary"
        seconds = time.monotonic() - began
        await asyncio.to_thread(wait_until_decided, there, time.time_ns() // 1_000)
    finally:
        await clients.close()
        await asyncio.to_thread(schedulers.stop)
        await asyncio.to_thread(workers.stop)
    kept = {row[0] for row in await asyncio.to_thread(query, there, IDS)}
    assert {*clients.acknowledged} <= kept, "an acknowledged job is lost"
    print(f"decided again after {decided_s:.1f} s, worked after {worked_s:.1f} s, {clients.refused} calls refused")
    await asyncio.to_thread(check_ledger, there, seconds)
    await asyncio.to_thread(check_audit, there)


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_no_client_waits_for_the_old_primary(
    pair: tuple[PostgresServer, StandbyServer], proxies: Proxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pending calls to the old primary end at once, and readers that never write leave it although it answers them.

    A client whose link to the old primary has become a black hole switches over as well.
    """
    monkeypatch.setattr(postgres, "STATEMENT_S_MAX", 10 * DEADLINE_S)  # So that no timeout ends what hangs.
    old, new = pair
    database = old.create_database()
    url = several_hosts([old, new], database)
    await asyncio.to_thread(migrate, url)
    writer, reader, late = [await Store.open(url, Clock(node=name)) for name in ("writer", "reader", "late")]
    alone = await Store.open(database, Clock(node="alone"))  # This one knows only the old primary.
    link = proxies.to(old.port)
    cut = await Store.open(url.replace(f":{old.port},", f":{link.port},"), Clock(node="cut"))
    try:
        assert {await port(store) for store in (writer, reader, late, alone, cut)} == {old.port}
        await asyncio.to_thread(link.set, BLACK_HOLE)
        await asyncio.to_thread(new.promote)
        hanging = [asyncio.create_task(beat(writer, f"n{number}")) for number in range(3)]
        for ended in await asyncio.gather(*hanging, return_exceptions=True):
            assert isinstance(ended, StoreUnavailable), "no standby confirms its writes"
        await beat(writer, "again")
        assert await port(writer) == new.port
        await moved(reader, new.port)
        await moved(cut, new.port)
        assert (await examine(alone))[0] == AWAY, "no standby confirms its commits"
        await asyncio.to_thread(configure, old, "default_transaction_read_only", "on")
        await moved(late, new.port)
        await async_wait_until(partial(is_read_only, alone), "the client with a single host to be read-only")
    finally:
        for store in (writer, reader, late, alone, cut):
            await store.close()


async def port(store: Store) -> int:
    """Return the server that a store reads from."""
    assert isinstance(store.driver, PostgresDriver)
    async with store.driver._connection() as connection:
        return int(await connection.fetchval("select current_setting('port')"))


async def moved(store: Store, there: int) -> None:
    async def is_there() -> bool:
        with contextlib.suppress(StoreUnavailable):  # The call that was sent to the old one.
            return await port(store) == there
        return False

    await async_wait_until(is_there, "a reader to leave the old primary")


async def beat(store: Store, name: str) -> None:
    await store.nodes.beat(Node(id=name, name=name, roles=("worker",)))


async def is_read_only(store: Store) -> bool:
    return (await examine(store))[0] == READ_ONLY


async def count(store: str, sql: str) -> int:
    """Query one server, whichever of the two it is."""
    [(number,)] = await asyncio.to_thread(query, store, sql)
    return int(number)
