"""transports: measure the benefit of waking one worker per job instead of all workers.

Run 1, 8 and 32 worker processes on PostgreSQL, woken by the store, by Redis and by RabbitMQ. Enqueue jobs one by one,
then many at once. Count the queue polls (claims) and the empty ones, and measure the CPU time of the database and the
latency from the enqueue call to the start of the job. The workers are real except for their child pool, which does
nothing: two cores could not run that many children.

python -m bench.transports URL TRANSPORT      run one such worker: print counts on SIGUSR1, stop on SIGTERM
"""

import asyncio
import contextlib
import json
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.figures import Figure, percentile, plain
from bench.places import Run, opened
from bench.watch import Bystanders, Watched, family
from headway.app import Headway
from headway.core.events import EngineEvent, Timed, subscribed
from headway.core.jobs import Claimed
from headway.core.lifecycle import AttemptOutcome, Succeeded
from headway.core.settings import Settings
from headway.store import open_driver
from headway.store.migrations import migrate
from headway.tasks.options import Options
from headway.wiring.roles import worker_node
from headway.worker.child_pool_port import SupervisorPort
from headway.worker.ipc import TaskInfo
from tests.support.postgres import PostgresServer
from tests.support.rabbitmq import RabbitServer
from tests.support.redis import RedisServer

POOLS: Final = (1, 8, 32)
GAP_S: Final = 0.05
BATCH: Final = 1_000
WIDTH: Final = 20
START_S_MAX: Final = 120.0
DRAIN_S_MAX: Final = 120.0
QUIET_S: Final = 2.0


# --- benchmark process: enqueues jobs and collects the counts


async def measure(run: Run) -> list[Figure]:
    """Measure every transport with every number of workers."""
    if "postgresql" not in {place.name for place in run.places}:
        return []
    figures: list[Figure] = []
    with contextlib.ExitStack() as servers:
        options = {"max_connections": "600"}
        postgres = servers.enter_context(PostgresServer(durable=True, folder=run.folder, options=options))
        transports = {"store": "store", "redis": servers.enter_context(RedisServer()).url()}
        if not run.is_quick:
            transports["rabbitmq"] = servers.enter_context(RabbitServer()).url()
        for count in POOLS[: run.size(len(POOLS), 1)]:
            for name, transport in transports.items():
                found = await _measure_with(postgres, transport, count, run)
                figures += [
                    plain("transports", "postgresql", f"{name}, {count} workers: {what}", [value], unit)
                    for what, value, unit in found
                ]
                for figure in figures[-len(found) :]:
                    print(f"{figure.what}: {figure.value:.2f} {figure.unit}", file=sys.stderr)
    return figures


async def _measure_with(postgres: PostgresServer, transport: str, count: int, run: Run) -> list[tuple[str, float, str]]:
    url = postgres.create_database()
    driver = open_driver(url)
    await migrate(driver)
    await driver.close()
    singles, many = run.size(200, 20), run.size(5_000, 200)
    settings = Settings(store=url, transport=transport, node="bench")
    bystanders = Bystanders()
    try:
        async with _workers(url, transport, count) as workers, Headway(settings=settings, name="bench") as app:
            await _all_started(workers, [(await app.enqueue("nothing")).id for _ in range(10)])
            await asyncio.sleep(QUIET_S)
            await _Sum().ask(workers)
            database_s, trickle, late_ms = await _one_by_one(app, workers, postgres, singles)
            burst, took_s = await _all_at_once(app, workers, many)
            print(f"others used {bystanders.share():.0%} of the machine", file=sys.stderr)
    finally:
        postgres.drop(url)
    return [
        ("pick-up, p50", percentile(late_ms, 50), "ms"),
        ("pick-up, p99", percentile(late_ms, 99), "ms"),
        ("claims per job that comes alone", trickle.claims / singles, ""),
        ("of these in vain", (trickle.claims - trickle.hits) / singles, ""),
        ("processor of the database per job that comes alone", database_s / singles * 1e3, "ms"),
        ("a burst of jobs, started", many / took_s, "/s"),
        ("claims per 1000 jobs of a burst", burst.claims / many * 1e3, ""),
        ("workers that took part in the burst", burst.workers, ""),
    ]


async def _one_by_one(
    app: Headway, workers: Sequence[Process], postgres: PostgresServer, count: int
) -> tuple[float, "_Sum", list[float]]:
    """Enqueue jobs one by one; return the CPU time of the database, the counts and the latency of each job."""
    counts, sent, before = _Sum(), {}, _cpu_s(postgres)
    for _ in range(count):
        now = time.monotonic_ns()
        sent[(await app.enqueue("nothing")).id] = now
        await asyncio.sleep(GAP_S)
    started = await _all_started(workers, list(sent), counts)
    return _cpu_s(postgres) - before, counts, [(started[job_id] - at) / 1e6 for job_id, at in sent.items()]


async def _all_at_once(app: Headway, workers: Sequence[Process], count: int) -> tuple["_Sum", float]:
    """Enqueue many jobs at once; return the counts and the seconds until the last job started."""
    counts, begun, job_ids = _Sum(), time.monotonic_ns(), list[str]()
    for _ in range(0, count, BATCH):
        jobs = [app.new_job("nothing", {}, Options()) for _ in range(min(BATCH, count))]
        job_ids += [handle.id for handle in await app.enqueue_jobs(jobs)]
    started = await _all_started(workers, job_ids, counts)
    return counts, (max(started.values()) - begun) / 1e9


@dataclass(slots=True)
class _Sum:
    """The counts of all workers since the last request."""

    claims: int = 0
    hits: int = 0
    started: dict[str, int] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)

    @property
    def workers(self) -> int:
        """Return the number of workers that started a job."""
        return len(self.busy)

    async def ask(self, workers: Sequence[Process]) -> None:
        """Request the counts of all workers and add them."""
        for worker in workers:
            worker.send_signal(signal.SIGUSR1)
        for worker in workers:
            assert worker.stdout is not None
            told = json.loads(await worker.stdout.readline())
            self.claims += told["claims"]
            self.hits += told["hits"]
            self.started |= told["started"]
            if told["started"]:
                self.busy.add(worker.pid)


async def _all_started(
    workers: Sequence[Process], job_ids: Sequence[str], counts: _Sum | None = None
) -> dict[str, int]:
    """Wait until all jobs have started; return the start time of each."""
    counts = counts or _Sum()
    async with asyncio.timeout(DRAIN_S_MAX):
        while not counts.started.keys() >= set(job_ids):
            await asyncio.sleep(0.3)
            await counts.ask(workers)
    return counts.started


def _cpu_s(server: PostgresServer) -> float:
    assert server.pid is not None
    found = 0.0
    for pid in family(server.pid):
        with contextlib.suppress(OSError):
            found += Watched(pid).cpu_s()
    return found


@contextlib.asynccontextmanager
async def _workers(url: str, transport: str, count: int) -> AsyncIterator[list[Process]]:
    found: list[Process] = []
    try:
        for _ in range(count):
            command = (sys.executable, "-m", "bench.transports", url, transport)
            found.append(await asyncio.create_subprocess_exec(*command, stdout=PIPE, limit=1 << 24))
        async with asyncio.timeout(START_S_MAX):
            for worker in found:
                assert worker.stdout is not None
                assert await worker.stdout.readline() == b"ready\n"
        yield found
    finally:
        for worker in found:
            with contextlib.suppress(ProcessLookupError):
                worker.terminate()
        for worker in found:
            try:
                async with asyncio.timeout(10):
                    await worker.wait()
            except TimeoutError:
                worker.kill()
                await worker.wait()


# --- worker process


class _Instant:
    """A child pool whose jobs take no time; it records when each job started."""

    def __init__(self) -> None:
        info = TaskInfo(name="nothing", isolation="loop")
        self.tasks: Mapping[str, TaskInfo] = {"nothing": info}
        self.kinds: dict[str, frozenset[str]] = {"loop": frozenset({"nothing"})}
        self.supervisor: SupervisorPort | None = None
        self.hits = 0
        self.started: dict[str, int] = {}
        self._running = 0

    def report_to(self, supervisor_port: SupervisorPort) -> None:
        """Report the outcome of each job to this supervisor."""
        self.supervisor = supervisor_port

    def room(self, kind: str) -> int:
        """Return the number of free slots."""
        return WIDTH - self._running

    def slots(self, kind: str | None = None) -> int:
        """Return the number of slots."""
        return WIDTH

    def busy(self, kind: str | None = None) -> int:
        """Return the number of running jobs."""
        return self._running

    def count(self) -> int:
        """Return 0: there are no children."""
        return 0

    def start(self, jobs: Sequence[Claimed], kept: Mapping[str, dict[str, str]] | None = None) -> None:
        """Record the start of the jobs and finish them at once."""
        now = time.monotonic_ns()
        self.hits += 1
        self._running += len(jobs)
        for job in jobs:
            self.started[job.job_id] = now
            asyncio.get_running_loop().call_soon(self._end, job)

    def _end(self, job: Claimed) -> None:
        assert self.supervisor is not None
        self._running -= 1
        self.supervisor.ended(job, Succeeded())
        self.supervisor.has_room()

    def stop(self, job_id: str, attempt: int, outcome: AttemptOutcome) -> None:
        """Do nothing: no job runs long enough to be stopped."""

    def abandon(self, job_id: str, attempt: int) -> None:
        """Do nothing: no job runs long enough to be abandoned."""

    def is_stopping(self, job_id: str, attempt: int) -> bool:
        """Return that no abandoned job runs."""
        return False

    def release_waiting(self, reason: str) -> None:
        """Do nothing: no job waits."""

    def release_all(self, reason: str) -> None:
        """Do nothing: no job is held."""

    def watch(self) -> None:
        """Do nothing: there are no children to watch."""


async def _work(url: str, transport: str) -> None:
    child_pool, claims = _Instant(), 0

    def count(event: EngineEvent) -> None:
        nonlocal claims
        if isinstance(event, Timed) and event.what == "claim":
            claims += 1

    def tell() -> None:
        nonlocal claims
        print(json.dumps({"claims": claims, "hits": child_pool.hits, "started": child_pool.started}), flush=True)
        claims, child_pool.hits, child_pool.started = 0, 0, {}

    async with opened(url) as (store, clock):
        settings = Settings(store=url, transport=transport, node="bench")
        node = worker_node(store, settings, clock, child_pool, schedules=False)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, node.stop)
        loop.add_signal_handler(signal.SIGUSR1, tell)
        print("ready", flush=True)
        with subscribed(count):
            await node.run()


if __name__ == "__main__":
    asyncio.run(_work(*sys.argv[1:3]))
