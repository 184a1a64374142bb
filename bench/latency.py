"""latency: the time from the call that enqueues a job to the start of its body, with an idle worker.

Headway and each peer run side by side: one worker each, alternating, one job every 50 ms, so that each finds its worker
idle and both have the same conditions. A job needs at least two commits before it starts, and a disk that is sometimes
slow dominates the 99th percentile; so every third turn measures a bare commit, to observe the disk. A round in which
bare commits or the CPUs were disturbed is repeated, and the calmest one counts, whichever side was faster in it.
Percentiles are of all rounds together. The better side has the smaller figure: a ratio above 1 is in our favour.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from bench.bare import Bare
from bench.figures import Figure, Target, percentile, plain
from bench.peers.catalogue import ROOT, Contestant, headway
from bench.peers.stage import Failed, Grounds, Stage, rivals, stage
from bench.places import Place, Run, database
from bench.watch import TRIES_MAX, Bystanders, calm

GAP_S: Final = 0.05
START_S: Final = 3.0  # The sender is ready by then.
WARM_UPS: Final = 10  # The warm-up jobs of drive.py, which do not count.
ROUNDS_MAX: Final = 8  # The p99 is of few values: more rounds make it depend less on disturbances.
DISTURBED_MAX: Final = 0.01  # Stricter than elsewhere: a disturbance in one of a hundred moments determines the p99.
ROUGH_MAX: Final = 5.0  # The slowest bare commits relative to most of them; above this the disk was disturbed.
PERCENTILES: Final = (50, 99)


@dataclass(frozen=True, slots=True)
class Turns:
    """The result of one round, in milliseconds."""

    of_contestants: list[list[float]]
    of_bare_commits: list[float]
    disturbed: float  # The share of the machine that other processes used meanwhile.

    @property
    def rough(self) -> float:
        """The slowest bare commits relative to most of them."""
        return percentile(self.of_bare_commits, 99) / percentile(self.of_bare_commits, 50)

    @property
    def weather(self) -> float:
        """The disturbance; up to 1 is acceptable."""
        return max(self.disturbed / DISTURBED_MAX, self.rough / ROUGH_MAX)


async def measure(run: Run) -> list[Figure]:
    """Measure both databases."""
    figures = []
    for place in run.places:
        with Grounds.of(run, place) as grounds:
            figures += await _measure_on(place, run, grounds)
    return figures


async def _measure_on(place: Place, run: Run, grounds: Grounds) -> list[Figure]:
    own = headway(place.name)
    pairs: list[tuple[Contestant, ...]] = [(own, rival) for rival in rivals(run, place)]
    rounds: dict[tuple[Contestant, ...], list[Turns]] = {pair: [] for pair in pairs or [(own,)]}
    for _ in range(min(run.repetitions, ROUNDS_MAX)):
        for pair, found in rounds.items():
            try:
                found.append(await _round(pair, place, grounds, run))
            except Failed as error:
                if len(pair) == 1:
                    raise
                print(f"{pair[-1].name}: {error}", file=sys.stderr)
    everything = [turns for found in rounds.values() for turns in found]
    if not everything:
        raise Failed("no round came to its end")
    bare_ms = [late for turns in everything for late in turns.of_bare_commits]
    figures = [
        plain("latency", place.name, f"{what}, p{percent}", [percentile(late_ms, percent)], "ms")
        for what, late_ms in (("pick-up", _together(everything, 0)), ("a bare insert and its commit", bare_ms))
        for percent in PERCENTILES
    ]
    for pair, found in rounds.items():
        for rival in pair[1:] if found else ():
            ours, theirs = _together(found, 0), _together(found, 1)
            figures += [_against(place, rival, ours, theirs, percent) for percent in PERCENTILES]
    return figures


def _together(rounds: list[Turns], place: int) -> list[float]:
    return [late for turns in rounds for late in turns.of_contestants[place]]


async def picked_up_ms(
    contestants: tuple[Contestant, ...], place: Place, grounds: Grounds, run: Run
) -> list[list[float]]:
    """Measure contestants in turn; return the milliseconds of each."""
    return (await _round(contestants, place, grounds, run)).of_contestants


async def _round(contestants: tuple[Contestant, ...], place: Place, grounds: Grounds, run: Run) -> Turns:
    """Measure all sides alternately; repeat, a few times at most, if disturbed."""
    found: list[Turns] = []
    while len(found) < run.size(TRIES_MAX, 1) and not (found and found[-1].weather <= 1):
        if not run.is_quick:
            await calm()
        found.append(await _turns(contestants, place, grounds, run.size(200, 20)))
    best = min(found, key=lambda turns: turns.weather)
    told = [
        f"{who} {percentile(late_ms, 50):.2f}, {percentile(late_ms, 99):.2f} ms"
        for who, late_ms in zip([each.name for each in contestants], best.of_contestants, strict=True)
    ]
    weather = f"others used {best.disturbed:.1%} of the machine, commits at worst {best.rough:.1f} times as long"
    print("; ".join([*told, weather]), file=sys.stderr)
    return best


async def _turns(contestants: tuple[Contestant, ...], place: Place, grounds: Grounds, count: int) -> Turns:
    async with contextlib.AsyncExitStack() as stack:
        bare = await stack.enter_async_context(_bare(place))
        stages = [await stack.enter_async_context(stage(contestant, grounds)) for contestant in contestants]
        for its in stages:
            await its.start_worker()
            await its.run("spaced", 0, GAP_S, time.time())
            await its.bodies(WARM_UPS)  # Now it is ready.
        gap_s = GAP_S * (len(stages) + 1)
        start = time.time() + START_S
        bystanders = Bystanders()
        committing = asyncio.ensure_future(_bare_commits(bare, count, gap_s, start))
        sending = [
            asyncio.ensure_future(its.run("spaced", count, gap_s, start + GAP_S * turn))
            for turn, its in enumerate(stages, 1)
        ]
        try:
            await asyncio.gather(committing, *sending)
        finally:
            for task in (committing, *sending):
                task.cancel()
            await asyncio.wait([committing, *sending])
        for its in stages:
            await its.bodies(2 * WARM_UPS + count)
        return Turns([_late_ms(its) for its in stages], committing.result(), bystanders.share())


@contextlib.asynccontextmanager
async def _bare(place: Place) -> AsyncIterator[Bare]:
    """Create a database with a table without an index."""
    async with database(place) as url:
        bare = await place.bare(url)
        try:
            await bare.execute("create table bare_commits (number integer)")
            yield bare
        finally:
            await bare.close()


async def _bare_commits(bare: Bare, count: int, gap_s: float, start: float) -> list[float]:
    """Insert rows in our turns; return the milliseconds of each."""
    took_ms = []
    for number in range(count):
        await asyncio.sleep(max(0.0, start + number * gap_s - time.time()))
        started = time.perf_counter()
        await bare.execute(f"insert into bare_commits values ({number})")
        took_ms.append((time.perf_counter() - started) * 1_000)
    return took_ms


def _late_ms(its: Stage) -> list[float]:
    return [(hit.started_ns - hit.sent_ns) / 1e6 for hit in its.hits()]


def _against(place: Place, rival: Contestant, ours: list[float], theirs: list[float], percent: int) -> Figure:
    mine, other = percentile(ours, percent), percentile(theirs, percent)
    return Figure(
        bench="latency",
        store=place.name,
        what=f"pick-up, p{percent}, against {rival.name}",
        value=mine,
        unit="ms",
        other=other,
        ratio=other / mine,
        target=Target(">", 1, of_ratio=True) if rival.store == place.name and rival.root == ROOT else None,
    )
