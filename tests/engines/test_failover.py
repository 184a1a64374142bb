"""Real schedulers whose leases an engine grants: one is killed, one leaves, and the next one decides in its place."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headway.clock import Clock
from headway.instants import SECOND
from headway.model import Lease, Occurrence, ScheduleSpec
from headway.scheduling.audit import audit
from headway.scheduling.triggers import Every
from headway.store import Store
from tests.chaos.arena import environment

LEASE_S = 2.0
FAIL_OVER_S_MAX = LEASE_S + 2.0 + 4.0  # What is promised, and what a busy machine may add.
HAND_OVER_S_MAX = 3.0
START_S_MAX = 30.0
STOP_S_MAX = 20.0


class Schedulers:
    """Processes of `headway scheduler` on one store."""

    def __init__(self, url: str, folder: Path, **variables: str) -> None:
        self._url = url
        self._folder = folder
        self._variables = variables
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start one."""
        env = environment(
            self._url,
            HEADWAY_LEADER_LEASE=f"{LEASE_S:g}s",
            HEADWAY_NODE=name,
            HEADWAY_SQLITE_SYNCHRONOUS="normal",
            **self._variables,
        )
        with (self._folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "headway", "scheduler"], env=env, stdout=log, stderr=log, cwd=self._folder
            )

    def end(self, name: str, number: signal.Signals) -> None:
        """Send one a signal and wait until it has ended."""
        process = self.processes.pop(name)
        process.send_signal(number)
        try:
            process.wait(STOP_S_MAX)
        finally:
            process.kill()

    def log(self) -> str:
        """Return what they said."""
        return "\n".join(file.read_text() for file in sorted(self._folder.glob("*.log")))


@contextlib.contextmanager
def schedulers(url: str, folder: Path, **variables: str) -> Iterator[Schedulers]:
    """Run schedulers, and end all of them afterwards."""
    started = Schedulers(url, folder, **variables)
    try:
        yield started
    except BaseException:
        print(started.log())
        raise
    finally:
        for name in tuple(started.processes):
            started.end(name, signal.SIGTERM)


@asynccontextmanager
async def beating(url: str, interval: str) -> AsyncIterator[Store]:
    """Open a store with a schedule that is due often."""
    store = await Store.open(url, Clock(node="operator"))
    try:
        await store.schedules.put("beat", ScheduleSpec.build(task="beat", trigger=Every(interval), overlap="allow"))
        yield store
    finally:
        await store.close()


async def until(find: Callable[[], Awaitable[bool]], limit_s: float, what: str) -> float:
    """Wait until something is so; return how long it took."""
    began = time.monotonic()
    while not await find():
        assert time.monotonic() - began < limit_s, f"{what}: not within {limit_s:g} s"
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def leader(store: Store) -> Lease | None:
    """Return who leads now."""
    held = await store.leases.held("scheduler/")
    return next((lease for lease, runs in held if runs), None)


async def last_decision(store: Store) -> Occurrence | None:
    """Return the last decision."""
    found = await store.ledger.occurrences("beat", limit=1)
    return found[0] if found else None


async def _somebody_decides(store: Store, *names: str) -> bool:
    """Say whether one of these leads, and has decided since."""
    lease, decision = await leader(store), await last_decision(store)
    return lease is not None and lease.holder_name in names and decision is not None and decision.token == lease.token


async def check_audit(store: Store) -> None:
    """Compare the whole ledger with what should be in it."""
    report = (await audit(store.ledger)).to_dict()
    assert report["ok"], report
    assert report["recorded"] == report["expected"] > 0


@pytest.mark.timeout(150)
async def test_the_next_one_decides(kind: str, url: str, tmp_path: Path) -> None:
    """After SIGTERM at once, after SIGKILL within the lease and a bit; and each instant has its one decision."""
    store_url = f"sqlite:///{tmp_path}/headway.db"
    async with beating(store_url, "200ms") as store:
        with schedulers(store_url, tmp_path, HEADWAY_COORDINATION=url) as nodes:
            for name in ("one", "two", "three"):
                nodes.start(name)
            await until(lambda: _are_alive(store, 3), START_S_MAX, "all are alive")
            await until(lambda: _somebody_decides(store, "one", "two", "three"), START_S_MAX, "one of them decides")
            assert await _engines(store) == {kind}
            first = await leader(store)
            assert first is not None
            nodes.processes[first.holder_name].send_signal(signal.SIGTERM)
            others = {*nodes.processes} - {first.holder_name}
            handed_over_s = await until(lambda: _somebody_decides(store, *others), HAND_OVER_S_MAX, "hand-over")
            nodes.end(first.holder_name, signal.SIGTERM)
            second = await leader(store)
            assert second is not None
            nodes.end(second.holder_name, signal.SIGKILL)
            (last,) = nodes.processes
            failed_over_s = await until(lambda: _somebody_decides(store, last), FAIL_OVER_S_MAX, "fail-over")
            third = await leader(store)
            assert third is not None
            assert first.token < second.token < third.token
        print(f"{kind}: fail-over {failed_over_s:.2f} s, hand-over {handed_over_s:.2f} s")
        await check_audit(store)


@pytest.mark.timeout(150)
async def test_lock_mode(kind: str, url: str, tmp_path: Path) -> None:
    """Two who both decide everything: one is killed, and no instant is decided twice or left out."""
    store_url = f"sqlite:///{tmp_path}/headway.db"
    async with beating(store_url, "200ms") as store:
        variables = {"HEADWAY_COORDINATION": url, "HEADWAY_COORDINATION_MODE": "lock"}
        with schedulers(store_url, tmp_path, **variables) as nodes:
            nodes.start("one")
            nodes.start("two")
            await until(lambda: _are_alive(store, 2), START_S_MAX, "both are alive")
            await asyncio.sleep(1.0)
            nodes.end("one", signal.SIGKILL)
            now = Clock().now()
            await until(lambda: _is_decided(store, now + SECOND // 2), FAIL_OVER_S_MAX, "the other goes on")
            assert await _engines(store) == {kind}
        await check_audit(store)


async def _are_alive(store: Store, number: int) -> bool:
    return len(await store.nodes.alive(round(LEASE_S * SECOND))) >= number


async def _engines(store: Store) -> set[str]:
    """Return who grants leases to those who are alive."""
    return {node.state["coordination"]["engine"] for node in await store.nodes.alive(round(LEASE_S * SECOND))}


async def _is_decided(store: Store, until_at: int) -> bool:
    decision = await last_decision(store)
    return decision is not None and decision.instant >= until_at
