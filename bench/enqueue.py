"""enqueue: jobs enqueued one by one and in bulk, as a user's program does it.

Headway: `task.enqueue` and `task.enqueue_many`, from Python arguments to an acknowledged commit. Bare: rows made
beforehand, inserted into the same table with the same indexes; one by one by a prepared statement, in bulk by COPY or
`unnest` (`executemany` on SQLite), whichever is faster.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Final

from bench.bare import Bare, Rows
from bench.figures import Figure, Pair, Target, rate
from bench.places import Place, Run, database
from headway import Headway
from headway.core.clock import Clock
from headway.core.settings import Settings
from headway.tasks.task import Task

ROUNDS_PER_REPETITION: Final = 3
SINGLES_IN_TURN: Final = 10


async def measure(run: Run) -> list[Figure]:
    """Measure both databases."""
    return [figure for place in run.places for figure in await _measure_on(place, run)]


async def _measure_on(place: Place, run: Run) -> list[Figure]:
    singles = run.size(300, 50)
    rounds = run.repetitions * run.size(ROUNDS_PER_REPETITION, 1)
    figures = []
    async with database(place) as url, Headway(settings=Settings(store=url, node="bench"), name="bench") as app:

        @app.task
        def report(tenant_id: int, day: str) -> None:
            """Never runs."""

        bare = await place.bare(url)
        try:
            await bare.know("headway_jobs")
            side = _Sides(place, report, bare)
            await side.warm_up()
            for what, single in (("awaited", side.single), ("blocking", side.single_sync)):
                pairs = [await single(singles) for _ in range(rounds)]
                target = Target(">=", 0.70, of_ratio=True)
                figures.append(rate("enqueue", place.name, f"one by one, {what}", singles, pairs, target))
            for size in (run.size(1_000, 100), run.size(10_000, 1_000)):
                pairs = [await side.bulk(size) for _ in range(rounds)]
                what = f"in bulk, {size:,} at once"
                figures.append(rate("enqueue", place.name, what, size, pairs, Target(">=", 0.30, of_ratio=True)))
        finally:
            await bare.close()
    return figures


class _Sides:
    """The two sides of the comparison, on one database."""

    def __init__(self, place: Place, task: Task[..., None], bare: Bare) -> None:
        self._place = place
        self._task = task
        self._bare = bare
        self._clock = Clock()

    async def warm_up(self) -> None:
        """Let both sides connect and prepare."""
        await self.bulk(100)
        await self.single(2 * SINGLES_IN_TURN)
        await self.single_sync(2 * SINGLES_IN_TURN)

    async def single(self, count: int) -> Pair:
        """Enqueue one by one, each committed by itself."""

        async def enqueue() -> None:
            for given in _arguments(SINGLES_IN_TURN):
                await self._task.enqueue(**given)

        return await self._in_turn(count, enqueue)

    async def single_sync(self, count: int) -> Pair:
        """Enqueue one by one with the blocking twin."""

        async def enqueue() -> None:
            for given in _arguments(SINGLES_IN_TURN):
                self._task.enqueue_sync(**given)

        return await self._in_turn(count, enqueue)

    async def _in_turn(self, count: int, enqueue: Callable[[], Awaitable[None]]) -> Pair:
        """Measure both sides alternately in small batches, since the speed of a disk varies."""
        headway_s = bare_s = 0.0
        for _ in range(count // SINGLES_IN_TURN):
            rows = await self._like_the_last(SINGLES_IN_TURN)
            started = time.perf_counter()
            await enqueue()
            turned = time.perf_counter()
            await self._bare.insert_one(rows)
            headway_s += turned - started
            bare_s += time.perf_counter() - turned
        return Pair(headway_s, bare_s)

    async def bulk(self, size: int) -> Pair:
        """Enqueue many at once."""
        arguments = list(_arguments(size))
        started = time.perf_counter()
        await self._task.enqueue_many(arguments)
        headway_s = time.perf_counter() - started
        bare_s = []
        for way in self._place.ways:
            rows = await self._like_the_last(size)
            started = time.perf_counter()
            await self._bare.insert(rows, way)
            bare_s.append(time.perf_counter() - started)
        return Pair(headway_s, min(bare_s))

    async def _like_the_last(self, count: int) -> Rows:
        """Return the newest rows with new ids."""
        rows = await self._bare.read("headway_jobs", f"id desc limit {count}")
        place = rows.column("id")
        records = [
            (*record[:place], self._clock.new_id("job"), *record[place + 1 :]) for record in reversed(rows.records)
        ]
        return replace(rows, records=tuple(records))


def _arguments(count: int) -> Iterator[dict[str, object]]:
    for number in range(count):
        yield {"tenant_id": number, "day": "2027-01-31"}
