"""outage: after a long outage, how soon is everything decided, once a scheduler is back?

A day of many schedules, a year of one that is due every second, and thousands of instants that are all caught up.
"""

from typing import Final

from bench import crowd
from bench.decide import decided_by_node
from bench.figures import Figure, Target, plain
from bench.places import Place, Run, database, opened
from headway.core.clock import wall_now
from headway.core.instants import DAY, Duration
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import Every

PREFETCH_S: Final = 600.0  # Nothing comes due by itself while the outage is prepared.
MANY: Final = 10_000

# As if the last decision had been made that long ago.
SET_BACK: Final = """
update headway_schedules
set decided_through = {since}, next_at = {since} + 1, created_at = {since}
"""


async def measure(run: Run) -> list[Figure]:
    """Measure both databases."""
    figures = []
    for place in run.places:
        figures += [await _day(place, run), await _year(place, run), await _catch_up(place, run)]
    return figures


async def _day(place: Place, run: Run) -> Figure:
    count = run.size(MANY, 300)
    values = [await _recover(place, count, None, DAY) for _ in range(run.repetitions)]
    return plain("outage", place.name, f"a day, {count:,} schedules", values, "s", Target("<", 30))


async def _year(place: Place, run: Run) -> Figure:
    spec = ScheduleSpec.build(task="report", trigger=Every("1s"))
    values = [await _recover(place, 1, spec, 365 * DAY) for _ in range(run.repetitions)]
    return plain("outage", place.name, "a year, one schedule every second", values, "s", Target("<", 10))


async def _catch_up(place: Place, run: Run) -> Figure:
    count = run.size(MANY, 300)
    spec = ScheduleSpec.build(
        task="report", trigger=Every("1s"), missed="all", overlap="allow", catch_up_limit=count, grace="1s"
    )
    values = [await _recover(place, 1, spec, DAY) for _ in range(run.repetitions)]
    return plain("outage", place.name, f"{count:,} instants of one schedule, all run", values, "s", Target("<", 30))


async def _recover(place: Place, count: int, spec: ScheduleSpec | None, ago: Duration) -> float:
    """Set schedules back in time, start a scheduler, and return the seconds until all are decided."""
    async with database(place) as url, opened(url) as (store, clock):
        if spec is None:
            await crowd.gather(store, count, lead_s=PREFETCH_S)
        else:
            await store.schedules.put("one", spec)
        bare = await place.bare(url)
        try:
            await bare.execute(SET_BACK.format(since=wall_now() - ago))
        finally:
            await bare.close()
        took_s, _ = await decided_by_node(store, clock, count, wall_now())
    return took_s
