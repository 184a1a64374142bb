"""Claims by lanes in stores of different sizes, a part of `limits`.

Three stores: 10,000 ready jobs of 1,000 tenants; 1,000,000; and 1,000,000 of which 900,000 wait behind a full limit. In
turn in all of them, jobs are claimed and settled in batches of 100. The other side is the small store, and the ratio is
the slowdown of the 95th percentile.
"""

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from bench.copies import copy_job
from bench.figures import Figure, Target, compared, percentile
from bench.flat import CLAIM, new_job, success
from bench.places import Place, Run, database, opened
from headway.core.clock import Clock
from headway.core.instants import HOUR
from headway.core.jobs import Claimed
from headway.core.limits import Limit
from headway.store import Store

TENANTS: Final = 1_000
CLAIMS: Final = 10  # Of each store in one turn.
FULL: Final = "full"
TARGET: Final = Target("<=", 1.3, of_ratio=True)


@dataclass(slots=True)
class _Side:
    """One store, and how long claims took in it."""

    store: Store
    clock: Clock
    claim_ms: list[float] = field(default_factory=list)


async def measure(place: Place, run: Run) -> list[Figure]:
    """Measure one database."""
    small, large = run.size(10_000, 3_000), run.size(1_000_000, 6_000)
    async with AsyncExitStack() as stack:
        few = await _side(stack, place, small, 0)
        many = await _side(stack, place, large, 0)
        held = await _side(stack, place, large, large * 9 // 10)
        sides = (few, many, held)
        for side in sides:  # The first claims open all lanes, and are not the usual case.
            await _turn(side)
            side.claim_ms.clear()
        for _ in range(run.size(8, 1)):
            for side in sides:
                await _turn(side)
    p95 = {name: [percentile(side.claim_ms, 95)] for name, side in (("few", few), ("many", many), ("held", held))}
    what = f"claim {CLAIM} of {TENANTS:,} tenants, p95"
    return [
        compared("limits", place.name, f"{what}, {large:,} ready", p95["many"], p95["few"], "ms", TARGET),
        compared("limits", place.name, f"{what}, 90% behind a full limit", p95["held"], p95["few"], "ms", TARGET),
    ]


async def _side(stack: AsyncExitStack, place: Place, ready: int, held: int) -> _Side:
    url = await stack.enter_async_context(database(place))
    store, clock = await stack.enter_async_context(opened(url))
    side = _Side(store, clock)
    bare = await place.bare(url)
    try:
        if held:
            await store.limits.put(Limit.build(FULL, concurrency=1), author="bench")
            await store.queue.enqueue([new_job(clock, limit_key=FULL)])
            assert await _claimed(side)
        [source] = await store.queue.enqueue([new_job(clock)])
        tenant = {"tenant": f"'t' || n % {TENANTS}"}
        await copy_job(bare, source.id, {**tenant, "id": "'job_00000' || n"}, ready - held)
        if held:
            of_limit = {**tenant, "id": "'job_00001' || n", "limit_key": f"'{FULL}'"}
            await copy_job(bare, source.id, of_limit, held)
        await bare.execute(f"delete from headway_jobs where id = '{source.id}'")
        for statement in ("vacuum analyze", "checkpoint") if place.name == "postgresql" else ("analyze",):
            await bare.execute(statement)
    finally:
        await bare.close()
    return side


async def _turn(side: _Side) -> None:
    for _ in range(CLAIMS):
        started = time.perf_counter()
        jobs = await _claimed(side)
        side.claim_ms.append((time.perf_counter() - started) * 1e3)
        await side.store.work.settle([success(job) for job in jobs])


async def _claimed(side: _Side) -> list[Claimed]:
    claim = await side.store.work.claim_lanes("default", node=side.clock.node, lease=HOUR, limit=CLAIM)
    return list(claim.jobs)
