"""decide: very many schedules are due at one instant. How long until every one of them is decided?

Headway: an idle scheduler node reaches the instant; time counts from the instant itself until the last
decision is committed. Bare: the same rows (schedules advanced, decisions, jobs), in the same batches.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from bench import crowd
from bench.bare import Bare, Batch, Rows
from bench.figures import Figure, Pair, Target, seconds
from bench.places import Place, Run, database, opened
from headway.core.clock import Clock
from headway.core.events import EngineEvent, SchedulesDecided, subscribed
from headway.core.instants import SECOND, Instant
from headway.core.settings import Settings
from headway.store import Store
from headway.wiring.roles import scheduler_node

PATIENCE_S: Final = 60.0
LEAD_S_PER_SCHEDULE: Final = 0.0005
NODE: Final = Settings(node="bench")


async def measure(run: Run) -> list[Figure]:
    """Measure both databases."""
    count = run.size(10_000, 300)
    return [figure for place in run.places for figure in await _measure_on(place, run, count)]


async def _measure_on(place: Place, run: Run, count: int) -> list[Figure]:
    pairs = [await _repetition(place, count) for _ in range(run.repetitions)]
    what = f"{count:,} schedules due at one instant"
    figures = [seconds("decide", place.name, what, pairs, Target(">=", 0.25, of_ratio=True))]
    if place.name == "postgresql":
        figures.append(replace(figures[0], other=None, ratio=None, target=Target("<", 2)))
    return figures


async def _repetition(place: Place, count: int) -> Pair:
    async def decide(lead_s: float) -> tuple[float, list[Batch]]:
        async with database(place) as url:
            took_s, names = await _headway(url, count, lead_s)
            return took_s, await _written(place, url, names)

    headway_s, batches = await crowd.in_time(decide, 1.0 + count * LEAD_S_PER_SCHEDULE)
    bare_s = [await _bare(place, batches, way) for way in place.ways]
    return Pair(headway_s, min(bare_s))


async def _headway(url: str, count: int, lead_s: float) -> tuple[float, list[list[str]]]:
    """Let a node decide a crowd; return the seconds since its instant, and the names in each transaction."""
    async with opened(url) as (store, clock):
        at = await crowd.gather(store, count, lead_s=lead_s)
        return await decided_by_node(store, clock, count, at)


async def decided_by_node(
    store: Store, clock: Clock, count: int, since: Instant, settings: Settings = NODE
) -> tuple[float, list[list[str]]]:
    """Run a scheduler node until it has decided this many schedules; return the seconds since an instant."""
    names: list[list[str]] = []
    done = asyncio.Event()
    finished = 0.0

    def hear(event: EngineEvent) -> None:
        nonlocal finished
        if isinstance(event, SchedulesDecided):
            names.append([plan.schedule.name for plan in event.plans])
            if sum(map(len, names)) >= count:
                finished = time.time()
                done.set()

    node = scheduler_node(store, settings, clock)
    with subscribed(hear):
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            group.create_task(node.run())
            await done.wait()
            node.stop()
    return finished - since / SECOND, names


async def _written(place: Place, url: str, names: Sequence[Sequence[str]]) -> list[Batch]:
    """Read back what each transaction wrote."""
    bare = await place.bare(url)
    try:
        schedules = await bare.read("headway_schedules", "name")
        occurrences = await bare.read("headway_occurrences", "schedule")
        jobs = await bare.read("headway_jobs", "id")
    finally:
        await bare.close()
    assert len(occurrences.records) == len(jobs.records) == sum(map(len, names)), "every schedule fires once"
    return [
        Batch(
            schedules=_chosen(schedules, "name", set(batch)),
            occurrences=_chosen(occurrences, "schedule", set(batch)),
            jobs=_chosen(jobs, "schedule", set(batch)),
        )
        for batch in names
    ]


def _chosen(rows: Rows, column: str, names: set[str]) -> Rows:
    place = rows.column(column)
    return replace(rows, records=tuple(record for record in rows.records if record[place] in names))


async def _bare(place: Place, batches: Sequence[Batch], way: str) -> float:
    """Write the same rows in the same batches into a fresh database with the same schedules."""
    async with database(place) as url:
        bare = await place.bare(url)
        try:
            await _prepare(bare, batches, way)
            started = time.perf_counter()
            for batch in batches:
                await bare.decide(batch, way)
            return time.perf_counter() - started
        finally:
            await bare.close()


async def _prepare(bare: Bare, batches: Sequence[Batch], way: str) -> None:
    """Insert the schedules as they were before they were decided."""
    await bare.know("headway_schedules", "headway_occurrences", "headway_jobs")
    for batch in batches:
        rows = batch.schedules
        next_at, through = rows.column("next_at"), rows.column("decided_through")
        instant = batch.occurrences.records[0][batch.occurrences.column("instant")]
        records = []
        for record in rows.records:
            values = list(record)
            values[next_at], values[through] = instant, instant - 1
            records.append(tuple(values))
        await bare.insert(replace(rows, records=tuple(records)), way)
