"""idle: the cost of an idle scheduler, and its lateness when an instant comes due.

The cost is the processor time of a scheduler process, not of the database server. Lateness is the time from an instant
to the store's time in the statement that records its decision, for single instants at odd times.
"""

import asyncio
import random
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final

from bench.figures import Figure, Target, percentile, plain
from bench.places import Place, Run, database, opened
from bench.process import scheduler_process
from headway.core.clock import wall_now
from headway.core.instants import SECOND, to_datetime
from headway.core.schedule_names import ScheduleRef
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import At, Cron, Every
from headway.store.schedules import in_pieces

SETTLE_S: Final = 3.0
LEAD_S: Final = 3.0
FAR: Final = ScheduleSpec.build(task="report", trigger=Cron("0 6 1 1 *", "Europe/Berlin"))
SOON: Final = ScheduleSpec.build(task="report", trigger=Every("10s"), overlap="allow")


async def measure(run: Run) -> list[Figure]:
    """Measure both databases."""
    figures = []
    for place in run.places:
        figures += await _cost(place, run.size(30, 2))
        figures += await _lateness(place, run.size(300, 20), run.size(30, 2))
    return figures


async def _cost(place: Place, watch_s: int) -> list[Figure]:
    """Watch two schedulers at once: one with nothing to do, one with a decision every ten seconds."""
    quiet, busy = await asyncio.gather(
        _cpu_percent(place, watch_s, {}), _cpu_percent(place, watch_s, {ScheduleRef("default", "soon"): SOON})
    )
    target = Target("<", 1)
    return [
        plain("idle", place.name, "processor, 100 schedules far ahead", [quiet], "%", target),
        plain("idle", place.name, "processor, and one every 10 s", [busy], "%", target),
    ]


async def _cpu_percent(place: Place, watch_s: int, more: dict[ScheduleRef, ScheduleSpec]) -> float:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(database(place))
        async with opened(url) as (store, _):
            await store.schedules.put_many(
                {ScheduleRef("default", f"far-{number}"): FAR for number in range(100)} | more
            )
        process = await stack.enter_async_context(scheduler_process(url))
        await asyncio.sleep(SETTLE_S)
        before = process.cpu_s()
        await asyncio.sleep(watch_s)
        return (process.cpu_s() - before) / watch_s * 100


async def _lateness(place: Place, count: int, over_s: int) -> list[Figure]:
    """Decide single instants at odd times, each of its own schedule."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(database(place))
        store, _ = await stack.enter_async_context(opened(url))
        await stack.enter_async_context(scheduler_process(url))
        for piece in in_pieces(_single_instants(count, over_s)):
            await store.schedules.put_many(piece)
        await asyncio.sleep(LEAD_S + over_s + SETTLE_S)
        late_ms = await _late_ms(place, url)
    assert len(late_ms) == count, f"{len(late_ms)} of {count} instants were decided"
    target = Target("<", 100) if place.name == "postgresql" else None
    return [
        plain("idle", place.name, "lateness, p50", [percentile(late_ms, 50)], "ms"),
        plain("idle", place.name, "lateness, p99", [percentile(late_ms, 99)], "ms", target),
        plain("idle", place.name, "lateness, worst", [max(late_ms)], "ms"),
    ]


def _single_instants(count: int, over_s: int) -> dict[ScheduleRef, ScheduleSpec]:
    chance = random.Random(7)
    start = to_datetime(wall_now() + round(LEAD_S * SECOND))
    moments = [start + timedelta(microseconds=chance.randrange(over_s * SECOND)) for _ in range(count)]
    return {
        ScheduleRef("default", f"once-{number}"): ScheduleSpec.build(task="report", trigger=At(moment))
        for number, moment in enumerate(moments)
    }


async def _late_ms(place: Place, url: str) -> list[float]:
    bare = await place.bare(url)
    try:
        rows = await bare.read("headway_occurrences", "instant")
    finally:
        await bare.close()
    instant, decided_at = rows.column("instant"), rows.column("decided_at")
    return [(record[decided_at] - record[instant]) / 1_000 for record in rows.records]
