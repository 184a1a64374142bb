"""flat: does it matter how many jobs have ended or lie in the future, when few of them are ready?

Two databases: one empty, one with a million finished and a hundred thousand scheduled jobs, loaded by bulk SQL. In turn
in both: enqueue one by one and in bulk, and claim. The other side is the empty one, and the ratio is the slowdown.
Then claims are measured while a whole backlog is drained, since dead entries pile up at the head of its index.
"""

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from bench.copies import copy_job
from bench.figures import Figure, Target, compared
from bench.places import Place, Run, database, opened
from headway.core.clock import Clock
from headway.core.instants import DAY, HOUR
from headway.core.jobs import Claimed, NewJob
from headway.core.lifecycle import Settlement, Status
from headway.store import Store

CLAIM: Final = 100
SINGLES: Final = 20
BULK: Final = 100
BULKS: Final = 10
TARGET: Final = Target("<=", 1.2, of_ratio=True)

FINISHED: Final = {
    "id": "'job_00000' || n",
    "status": "'COMPLETED'",
    "attempt": "1",
    "version": "3",
    "node": "'node_0'",
    "progress": "100",
    "created_at": "created_at - n * 1000",
    "run_at": "run_at - n * 1000",
    "ready_at": "ready_at - n * 1000",
    "started_at": "created_at - n * 1000",
    "finished_at": "created_at - n * 1000",
    "updated_at": "created_at - n * 1000",
}
FUTURE: Final = {
    "id": "'job_00001' || n",
    "status": "'SCHEDULED'",
    "run_at": f"run_at + {DAY} + n * 1000",
    "ready_at": "null",
}


@dataclass(slots=True)
class _Side:
    """One database and what was measured in it, in milliseconds."""

    store: Store
    clock: Clock
    single_ms: list[float] = field(default_factory=list)
    bulk_ms: list[float] = field(default_factory=list)
    claim_ms: list[float] = field(default_factory=list)


async def measure(run: Run) -> list[Figure]:
    """Measure both databases."""
    figures = []
    for place in run.places:
        figures += await _load(place, run)
        figures += await _drain(place, run.size(100_000, 1_000))
    return figures


async def _load(place: Place, run: Run) -> list[Figure]:
    finished, future = run.size(1_000_000, 2_000), run.size(100_000, 500)
    async with AsyncExitStack() as stack:
        empty = await _side(stack, place, 0, 0)
        loaded = await _side(stack, place, finished, future)
        for side in (empty, loaded):  # Warm-up: connections, prepared statements, caches.
            await _round(side)
            side.single_ms.clear()
            side.bulk_ms.clear()
            side.claim_ms.clear()
        for _ in range(2 * run.repetitions):
            for side in (empty, loaded):
                await _round(side)
    what = f"with {finished:,} finished and {future:,} future jobs"
    return [
        compared("flat", place.name, f"enqueue one, {what}", loaded.single_ms, empty.single_ms, "ms", TARGET),
        compared("flat", place.name, f"enqueue {BULK}, {what}", loaded.bulk_ms, empty.bulk_ms, "ms", TARGET),
        compared("flat", place.name, f"claim {CLAIM}, {what}", loaded.claim_ms, empty.claim_ms, "ms", TARGET),
    ]


async def _side(stack: AsyncExitStack, place: Place, finished: int, future: int) -> _Side:
    url = await stack.enter_async_context(database(place))
    store, clock = await stack.enter_async_context(opened(url))
    bare = await place.bare(url)
    try:
        if finished:
            [source] = await store.queue.enqueue([new_job(clock)])
            await copy_job(bare, source.id, FINISHED, finished)
            await copy_job(bare, source.id, FUTURE, future)
            await bare.execute(f"delete from headway_jobs where id = '{source.id}'")
        # In PostgreSQL also VACUUM and CHECKPOINT, so that they do not run during the measurement.
        for statement in ("vacuum analyze", "checkpoint") if place.name == "postgresql" else ("analyze",):
            await bare.execute(statement)
    finally:
        await bare.close()
    return _Side(store, clock)


async def _round(side: _Side) -> None:
    """Enqueue jobs one by one and in bulk, then claim and settle them all."""
    store = side.store
    side.single_ms.append(median([await _enqueued_ms(side, 1) for _ in range(SINGLES)]))
    side.bulk_ms.append(median([await _enqueued_ms(side, BULK) for _ in range(BULKS)]))
    times = []
    while True:
        started = time.perf_counter()
        jobs = await _claim(side.store, side.clock)
        took_ms = (time.perf_counter() - started) * 1e3
        if len(jobs) < CLAIM:
            break
        times.append(took_ms)
        await store.work.settle([success(job) for job in jobs])
    await store.work.settle([success(job) for job in jobs])
    side.claim_ms.append(median(times))


async def _enqueued_ms(side: _Side, count: int) -> float:
    jobs = [new_job(side.clock) for _ in range(count)]
    started = time.perf_counter()
    await side.store.queue.enqueue(jobs)
    return (time.perf_counter() - started) * 1e3


async def _drain(place: Place, backlog: int) -> list[Figure]:
    """Claim and settle a whole backlog; compare the claims of its last tenth with those of its first."""
    times = []
    async with database(place) as url, opened(url) as (store, clock):
        for _ in range(backlog // 1_000):
            await store.queue.enqueue([new_job(clock) for _ in range(1_000)])
        while True:
            started = time.perf_counter()
            jobs = await _claim(store, clock)
            if not jobs:
                break
            times.append((time.perf_counter() - started) * 1e3)
            await store.work.settle([success(job) for job in jobs])
    tenth = max(1, len(times) // 10)
    first, last = median(times[:tenth]), median(times[-tenth:])
    what = f"claim {CLAIM}, the last tenth of {backlog:,} against the first"
    return [compared("flat", place.name, what, [last], [first], "ms")]


async def _claim(store: Store, clock: Clock) -> list[Claimed]:
    return await store.work.claim("default", node=clock.node, lease=HOUR, limit=CLAIM)


def new_job(clock: Clock, limit_key: str = "") -> NewJob:
    """Make a job with small arguments."""
    args = '{"tenant_id":1,"day":"2027-01-31"}'
    return NewJob(id=clock.new_id("job"), task="report", args=args, limit_key=limit_key)


def success(job: Claimed) -> Settlement:
    """Complete an attempt."""
    return Settlement(
        job_id=job.job_id,
        attempt=job.attempt,
        status=Status.COMPLETED,
        outcome="completed",
        reason="",
        failures=job.failures,
    )
