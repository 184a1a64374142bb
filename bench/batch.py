"""batch: what it costs that jobs belong to a batch.

In one database, in turn in every round: add 10,000 jobs in one call and settle them 200 at a time on four connections,
without a batch and as one batch. Housekeeping folds the counts meanwhile, as it does in production. Claims happen
between the measurements. The ratio is the rate with a batch to the rate without.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bench.figures import Figure, Target, compared, plain
from bench.flat import new_job, success
from bench.places import Place, Run, database, opened
from headway.core.clock import Clock
from headway.core.groups import NewGroup
from headway.core.instants import HOUR
from headway.core.jobs import Claimed
from headway.store import Store

JOBS: Final = 10_000
CLAIM: Final = 500
SETTLE: Final = 200
CONNECTIONS: Final = 4
FOLD_REST_S: Final = 0.05  # Twenty times as often as a node does.
ROUNDS_MIN: Final = 3
ADDING: Final = Target(">=", 0.80, of_ratio=True)
SETTLING: Final = Target(">=", 0.85, of_ratio=True)


@dataclass(slots=True)
class _Rates:
    """Jobs per second, round by round."""

    added: list[float] = field(default_factory=list)
    settled: list[float] = field(default_factory=list)


async def measure(run: Run) -> list[Figure]:
    """Measure both databases."""
    figures = []
    for place in run.places:
        figures += await _measure_on(place, run)
    return figures


async def _measure_on(place: Place, run: Run) -> list[Figure]:
    alone, grouped, reads = _Rates(), _Rates(), list[float]()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(database(place))
        stores = [await stack.enter_async_context(opened(url)) for _ in range(CONNECTIONS)]
        count = run.size(JOBS, 400)
        for number in range(max(ROUNDS_MIN, run.repetitions)):
            await _round(stores, alone, None, count)
            store, clock = stores[0]
            new = NewGroup(id=clock.new_id("batch"), name=f"batch {number}", tenant="default")
            group, _ = await store.groups.open(new)
            await _round(stores, grouped, group.id, count)
            started = time.perf_counter()
            assert (await store.groups.get(group.id)).counts.completed == count
            reads.append((time.perf_counter() - started) * 1e3)
    return [
        compared("batch", place.name, f"add {count:,} jobs in one call", grouped.added, alone.added, "/s", ADDING),
        compared("batch", place.name, "settle jobs of one batch", grouped.settled, alone.settled, "/s", SETTLING),
        plain("batch", place.name, f"read the counts of {count:,} jobs", reads, "ms"),
    ]


async def _round(stores: Sequence[tuple[Store, Clock]], rates: _Rates, group_id: str | None, count: int) -> None:
    store, clock = stores[0]
    jobs = [msgspec.structs.replace(new_job(clock), group_id=group_id) for _ in range(count)]
    started = time.perf_counter()
    await store.queue.enqueue(jobs)
    rates.added.append(count / (time.perf_counter() - started))
    claimed: list[Claimed] = []
    while len(claimed) < count:
        claimed += await store.work.claim("default", node=clock.node, lease=HOUR, limit=CLAIM)
    folding = asyncio.create_task(_fold(store))
    parts = [claimed[start : start + SETTLE] for start in range(0, count, SETTLE)]
    started = time.perf_counter()
    await asyncio.gather(*(_settle(one, parts[number::CONNECTIONS]) for number, (one, _) in enumerate(stores)))
    rates.settled.append(count / (time.perf_counter() - started))
    folding.cancel()
    with suppress(asyncio.CancelledError):
        await folding


async def _settle(store: Store, parts: Sequence[Sequence[Claimed]]) -> None:
    for part in parts:
        assert not await store.work.settle([success(job) for job in part])


async def _fold(store: Store) -> None:
    while True:
        await store.groups.keep_going()
        await asyncio.sleep(FOLD_REST_S)
