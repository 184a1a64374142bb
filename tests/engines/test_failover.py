"""Real schedulers with leases from an engine: one is killed, one stops, and the next one takes over."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from headway.core.clock import Clock
from headway.core.errors import EngineUnavailable
from headway.core.instants import SECOND
from headway.core.nodes import Lease
from headway.core.occurrences import Occurrence
from headway.core.ports import Engine
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import Every
from headway.scheduling.audit import audit
from headway.store import Store
from tests.chaos.arena import environment
from tests.engines.conftest import OpenEngine
from tests.support import evidence
from tests.support.waiting import DEADLINE_S, async_wait_until

LONG_S = 1_800.0  # No effect that a test sees comes from the end of such a lease.
SHORT_S = 2.0


class Schedulers:
    """Processes of `headway scheduler` on one store."""

    def __init__(self, url: str, folder: Path, lease_s: float, **variables: str) -> None:
        self._url = url
        self._folder = folder
        self._variables = {"HEADWAY_LEADER_LEASE": f"{lease_s:g}s", **variables}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start a process."""
        env = environment(
            self._url,
            HEADWAY_NODE=name,
            HEADWAY_SQLITE_SYNCHRONOUS="normal",
            **self._variables,
        )
        path = self._folder / f"{name}.log"
        with path.open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "headway", "scheduler"], env=env, stdout=log, stderr=log, cwd=self._folder
            )
        evidence.watch(f"scheduler {name}", path)

    def end(self, name: str, number: signal.Signals) -> None:
        """Send a process a signal and wait until it has exited."""
        process = self.processes.pop(name)
        process.send_signal(number)
        try:
            process.wait(DEADLINE_S)
        finally:
            process.kill()

    def log(self) -> str:
        """Return their logs."""
        return "\n".join(file.read_text() for file in sorted(self._folder.glob("*.log")))


@contextlib.contextmanager
def schedulers(url: str, folder: Path, lease_s: float, **variables: str) -> Iterator[Schedulers]:
    """Run schedulers, and stop all of them afterwards."""
    started = Schedulers(url, folder, lease_s, **variables)
    try:
        yield started
    finally:
        for process in started.processes.values():
            process.send_signal(signal.SIGTERM)
        for name in tuple(started.processes):
            started.end(name, signal.SIGTERM)


@asynccontextmanager
async def store_with_frequent_schedule(url: str, interval: str) -> AsyncIterator[Store]:
    """Open a store with a schedule that is due often."""
    store = await Store.open(url, Clock(node="operator"))
    try:
        await store.schedules.put("beat", ScheduleSpec.build(task="beat", trigger=Every(interval), overlap="allow"))
        yield store
    finally:
        await store.close()


async def leader(store: Store) -> Lease | None:
    """Return the current leader's lease."""
    held = await store.leases.held("scheduler/")
    return next((lease for lease, runs in held if runs), None)


async def last_decision(store: Store) -> Occurrence | None:
    """Return the most recent decision."""
    found = await store.ledger.occurrences("beat", limit=1)
    return found[0] if found else None


async def _decider(store: Store, *names: str) -> Lease:
    """Wait until one of these nodes leads and has made a decision; return its lease."""

    async def decides() -> Lease | None:
        lease, decision = await leader(store), await last_decision(store)
        if lease is None or lease.holder_name not in names or decision is None or decision.token != lease.token:
            return None
        return lease

    found = await async_wait_until(decides, f"a decision of {' or '.join(sorted(names))}")
    assert found is not None
    return found


async def check_audit(store: Store) -> None:
    """Audit the whole ledger."""
    report = (await audit(store.ledger)).to_dict()
    assert report["ok"], report
    assert report["recorded"] == report["expected"] > 0


async def test_next_node_takes_over(kind: str, url: str, tmp_path: Path, open_at: OpenEngine) -> None:
    """At once after SIGTERM, and after SIGKILL when the lock is gone; each instant has exactly one decision.

    The leases are too long to expire. `test_contract.py` and `test_zookeeper.py` show that the lock of a dead holder
    expires; here the test removes it.
    """
    store_url = f"sqlite:///{tmp_path}/headway.db"
    async with store_with_frequent_schedule(store_url, "200ms") as store:
        with schedulers(store_url, tmp_path, LONG_S, HEADWAY_COORDINATION=url) as nodes:
            for name in ("one", "two", "three"):
                nodes.start(name)
            await async_wait_until(lambda: _are_alive(store, 3), "all to be alive")
            first = await _decider(store, "one", "two", "three")
            assert await _engines(store) == {kind}
            nodes.end(first.holder_name, signal.SIGTERM)
            second = await _decider(store, *nodes.processes)
            nodes.end(second.holder_name, signal.SIGKILL)
            (last,) = nodes.processes
            await _end_lock(store, open_at(url), second)
            await store.leases.release([second])  # The last node may have just missed the engine's notification.
            third = await _decider(store, last)
            assert first.token < second.token < third.token
        await check_audit(store)


async def _end_lock(store: Store, engine: Engine, lease: Lease) -> None:
    """Remove the lock of a dead holder: acquire it again in its name, and release it.

    The engine may have removed it without answering in time. Then the next node has the lock.
    """

    async def is_gone() -> bool:
        with suppress(EngineUnavailable):
            if await engine.acquire(lease.name, holder=lease.holder, duration=round(LONG_S * SECOND)) is not None:
                await engine.release([lease.name], holder=lease.holder)
                return True
        now = await leader(store)
        return now is not None and now.holder != lease.holder

    await async_wait_until(is_gone, "the engine to drop the lock of the dead node")


async def test_lock_mode(kind: str, url: str, tmp_path: Path) -> None:
    """Two nodes decide everything; one is killed, and no instant is decided twice or missed.

    The lease is short: the killed node may have held a lock, and what it locked is decided when that lock has expired.
    """
    store_url = f"sqlite:///{tmp_path}/headway.db"
    async with store_with_frequent_schedule(store_url, "200ms") as store:
        variables = {"HEADWAY_COORDINATION": url, "HEADWAY_COORDINATION_MODE": "lock"}
        with schedulers(store_url, tmp_path, SHORT_S, **variables) as nodes:
            nodes.start("one")
            nodes.start("two")
            await async_wait_until(lambda: _are_alive(store, 2), "both to be alive")
            both_live_at = Clock().now()
            await async_wait_until(lambda: _is_decided(store, both_live_at + SECOND // 2), "decisions of both")
            nodes.end("one", signal.SIGKILL)
            now = Clock().now()
            await async_wait_until(lambda: _is_decided(store, now + SECOND // 2), "decisions of the other")
            assert await _engines(store) == {kind}
        await check_audit(store)


async def _are_alive(store: Store, number: int) -> bool:
    return len(await store.nodes.alive(round(LONG_S * SECOND))) >= number


async def _engines(store: Store) -> set[str]:
    """Return the engines that grant leases to the live nodes."""
    return {node.state["coordination"]["engine"] for node in await store.nodes.alive(round(LONG_S * SECOND))}


async def _is_decided(store: Store, until_at: int) -> bool:
    decision = await last_decision(store)
    return decision is not None and decision.instant >= until_at
