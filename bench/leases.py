"""leases: the cost of a coordination engine, and how soon another scheduler leads after the leader was killed.

    round trips   acquiring and releasing a lease, and renewing it, by the store alone and through each engine
    fail-over     three schedulers in processes of their own; the leader is killed with SIGKILL, and the time counts
                  until another leads. Then a new one is started, and so on: as many kills as asked for (--kills)

The leases of the fail-over are 2 s long. Every engine is one server on this machine, private and without other work. An
engine whose server is not installed is left out.
"""

import asyncio
import contextlib
import importlib
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Final

from bench.figures import Figure, compared, percentile, plain
from bench.places import Place, Run, database, opened
from bench.process import node_name
from headway.core.clock import Clock
from headway.core.instants import SECOND
from headway.core.ports import Leases
from headway.core.settings import Settings
from headway.store import Store
from headway.wiring.engines import admission_of
from tests.support.server import ServerMissing

ENGINES: Final = {
    "redis": "tests.support.redis:RedisServer",
    "etcd": "tests.support.etcd:EtcdServer",
    "zookeeper": "tests.support.zookeeper:ZookeeperServer",
    "consul": "tests.support.consul:ConsulServer",
}
LEASE: Final = 60 * SECOND
FAIL_OVER_LEASE_S: Final = 2
SCHEDULERS: Final = 3
PATIENCE_S: Final = 60.0
SETTLE_S: Final = 0.5
LOOK_S: Final = 0.1


async def measure(run: Run) -> list[Figure]:
    """Measure both databases; the fail-over on the first of them."""
    with _servers() as urls:
        figures = [figure for place in run.places for figure in await _round_trips(place, run, urls)]
        kills = run.kills or run.size(10, 2)
        for name, url in {"store": "store", **urls}.items():
            figures += await _fail_over(run.places[0], name, url, kills)
    return figures


@contextlib.contextmanager
def _servers() -> Iterator[dict[str, str]]:
    """Start every engine that is installed; yield their addresses."""
    urls: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for name, where in ENGINES.items():
            module, _, kind = where.partition(":")
            try:
                server = stack.enter_context(getattr(importlib.import_module(module), kind)())
            except ServerMissing as missing:
                print(f"left out: {name}: {missing}", file=sys.stderr)
                continue
            urls[name] = server.url(prefix="bench/")
        yield urls


# Round trips ------------------------------------------------------------------------------------------------


async def _round_trips(place: Place, run: Run, urls: dict[str, str]) -> list[Figure]:
    """Measure every engine in turn, in each repetition."""
    times = run.size(200, 10)
    took: dict[tuple[str, str], list[float]] = {}
    async with database(place) as url, opened(url) as (store, clock), AsyncExitStack() as stack:
        ways = {"store": store.leases, **{name: _through(stack, store, clock, urls[name]) for name in urls}}
        for leases in ways.values():  # Warm-up: connections, prepared statements.
            await _take_and_give_back(leases)
        for _ in range(run.repetitions):
            for name, leases in ways.items():
                for what, operation in OPERATIONS.items():
                    took.setdefault((what, name), []).append(await operation(leases, times))
    figures = []
    for what in OPERATIONS:
        alone = took[what, "store"]
        figures.append(plain("leases", place.name, f"{what}, by the store alone", alone, "ms"))
        figures += [
            compared("leases", place.name, f"{what}, {name}", took[what, name], alone, "ms") for name in sorted(urls)
        ]
    return figures


def _through(stack: AsyncExitStack, store: Store, clock: Clock, url: str) -> Leases:
    admitted = admission_of(store, Settings(coordination=url, coordination_fallback="stop"), clock)
    assert admitted is not None
    stack.push_async_callback(admitted.close)
    return admitted


async def _take_and_give_back(leases: Leases) -> None:
    held = await leases.acquire(["bench"], holder="bench", holder_name="bench", duration=LEASE)
    assert held, "nobody else wants it"
    await leases.release(held)


async def _renew(leases: Leases, times: int) -> float:
    """Renew one lease again and again; return the milliseconds of one renewal."""
    held = await leases.acquire(["bench"], holder="bench", holder_name="bench", duration=LEASE)
    started = time.perf_counter()
    for _ in range(times):
        held = await leases.renew(held, duration=LEASE)
        assert held, "it is kept"
    took_ms = (time.perf_counter() - started) / times * 1e3
    await leases.release(held)
    return took_ms


async def _take(leases: Leases, times: int) -> float:
    """Acquire and release a lease; return the milliseconds of both together."""
    started = time.perf_counter()
    for _ in range(times):
        await _take_and_give_back(leases)
    return (time.perf_counter() - started) / times * 1e3


OPERATIONS: Final = {"a lease taken and given back": _take, "a lease renewed": _renew}


# Fail-over --------------------------------------------------------------------------------------------------


class _Schedulers:
    """Schedulers in their own processes, which print when they lead."""

    def __init__(self, url: str, coordination: str) -> None:
        self._url = url
        self._environment = {
            **os.environ,
            "HEADWAY_COORDINATION": coordination,
            "HEADWAY_LEADER_LEASE": f"{FAIL_OVER_LEASE_S}s",
        }
        self._said: asyncio.Queue[tuple[Process, float]] = asyncio.Queue()
        self._listening: set[asyncio.Task[None]] = set()
        self._alive: list[Process] = []

    async def start(self) -> None:
        """Start one more."""
        command = (sys.executable, "-m", "bench.process", self._url)
        process = await asyncio.create_subprocess_exec(*command, env=self._environment, stdout=PIPE)
        self._alive.append(process)
        self._listening.add(asyncio.create_task(self._listen(process)))

    async def won_after(self, when: float) -> float:
        """Wait until one prints that it leads, after the given time; return when that was."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                process, at = await self._said.get()
                if process in self._alive and at > when:
                    return at

    async def kill_leader(self, store: Store) -> float:
        """Kill the one that leads by the store's own record; return when."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                names = {lease.holder_name for lease, runs in await store.leases.held("scheduler/") if runs}
                for process in self._alive:
                    if node_name(process.pid) in names:
                        return await self._kill(process)
                await asyncio.sleep(LOOK_S)  # No leader at this moment: on a busy machine leaders lose leases too.

    async def _kill(self, process: Process) -> float:
        self._alive.remove(process)
        at = time.perf_counter()
        process.kill()
        await process.wait()
        return at

    async def stop(self) -> None:
        """End all."""
        for process in tuple(self._alive):
            await self._kill(process)
        await asyncio.gather(*self._listening)

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        while await process.stdout.readline():
            self._said.put_nowait((process, time.perf_counter()))


@contextlib.asynccontextmanager
async def _schedulers(url: str, coordination: str) -> AsyncIterator[_Schedulers]:
    schedulers = _Schedulers(url, coordination)
    try:
        yield schedulers
    finally:
        await schedulers.stop()


async def _fail_over(place: Place, name: str, coordination: str, kills: int) -> list[Figure]:
    """Kill the leader repeatedly; return the times without a leader."""
    gaps_s: list[float] = []
    async with database(place) as url, opened(url) as (store, _), _schedulers(url, coordination) as schedulers:
        for _ in range(SCHEDULERS):
            await schedulers.start()
        for _ in range(kills):
            await _all_alive(store)
            killed_at = await schedulers.kill_leader(store)
            gaps_s.append(await schedulers.won_after(killed_at) - killed_at)
            await schedulers.start()
    what = f"leaderless after a kill, lease {FAIL_OVER_LEASE_S} s, {name}"
    return [
        plain("leases", place.name, f"{what}, median of {kills}", gaps_s, "s"),
        plain("leases", place.name, f"{what}, p95", [percentile(gaps_s, 95)], "s"),
    ]


async def _all_alive(store: Store) -> None:
    """Wait until all schedulers have sent a heartbeat, and have had time to queue for the lease."""
    async with asyncio.timeout(PATIENCE_S):
        while len(await store.nodes.alive(FAIL_OVER_LEASE_S * SECOND)) < SCHEDULERS:
            await asyncio.sleep(LOOK_S)
    await asyncio.sleep(SETTLE_S)
