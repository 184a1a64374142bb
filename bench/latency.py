"""latency: a worker has nothing to do. How long from the call that enqueues a job to the start of its body?

One worker, one job every 50 ms, so that each finds the worker idle. All contestants have their turn in each round, what
was measured while others used the machine is measured again, and the percentiles are of all rounds together. The better
side has the smaller figure: a ratio above 1 is in our favour. Nobody starts a job before two commits, so what a bare
one takes in the same minutes is told too: a disk that is slow now and then makes the 99th percentile of all of them.
"""

import asyncio
import sys
import time
from collections import defaultdict
from typing import Final

from bench.figures import Figure, Target, percentile, plain
from bench.peers.catalogue import Contestant, headway
from bench.peers.stage import Failed, Grounds, rivals, stage
from bench.places import Place, Run, database
from bench.watch import TRIES_MAX, Bystanders, calm

GAP_S: Final = 0.05
WARM_UPS: Final = 10  # As many as drive.py sends ahead, which do not count.
ROUNDS_MAX: Final = 8  # The 99th percentile is of few: the more rounds, the less it depends on who disturbed whom.
DISTURBED_MAX: Final = 0.01  # Stricter than elsewhere: who has the machine for one moment in a hundred makes the p99.
PERCENTILES: Final = (50, 99)


async def measure(run: Run) -> list[Figure]:
    """Measure both databases."""
    figures = []
    for place in run.places:
        with Grounds.of(run, place) as grounds:
            figures += await _measure_on(place, run, grounds)
    return figures


async def _measure_on(place: Place, run: Run, grounds: Grounds) -> list[Figure]:
    own = headway(place.name)
    late_ms: dict[str, list[float]] = defaultdict(list)
    bare_ms: list[float] = []
    for _ in range(min(run.repetitions, ROUNDS_MAX)):
        bare_ms += await _bare_commits(place, run)
        for contestant in (own, *rivals(run, place)):
            try:
                late_ms[contestant.name] += await _pick_ups(contestant, grounds, run)
            except Failed as error:
                if contestant is own:
                    raise
                print(f"{contestant.name}: {error}", file=sys.stderr)
    figures = [
        plain("latency", place.name, f"pick-up, p{percent}", [percentile(late_ms[own.name], percent)], "ms")
        for percent in PERCENTILES
    ]
    figures += [
        plain("latency", place.name, f"a bare insert and its commit, p{percent}", [percentile(bare_ms, percent)], "ms")
        for percent in PERCENTILES
    ]
    for rival in rivals(run, place):
        if late_ms[rival.name]:
            figures += [
                _against(place, rival, late_ms[own.name], late_ms[rival.name], percent) for percent in PERCENTILES
            ]
    return figures


async def _bare_commits(place: Place, run: Run) -> list[float]:
    """Insert rows into a table without an index, spaced as the jobs are; return the milliseconds of each."""
    took_ms = []
    async with database(place) as url:
        bare = await place.bare(url)
        try:
            await bare.execute("create table bare_commits (number integer)")
            for number in range(run.size(200, 20)):
                await asyncio.sleep(GAP_S)
                started = time.perf_counter()
                await bare.execute(f"insert into bare_commits values ({number})")
                took_ms.append((time.perf_counter() - started) * 1_000)
        finally:
            await bare.close()
    return took_ms


async def _pick_ups(contestant: Contestant, grounds: Grounds, run: Run) -> list[float]:
    """Measure once; again, a few times at most, while others use the machine. Return the milliseconds of each job."""
    found: list[tuple[float, list[float]]] = []
    while len(found) < run.size(TRIES_MAX, 1) and not (found and found[-1][0] <= DISTURBED_MAX):
        if not run.is_quick:
            await calm()
        found.append(await _picked_up(contestant, grounds, run.size(200, 20)))
    disturbed, late_ms = min(found)
    middle = percentile(late_ms, 50)
    late = percentile(late_ms, 99)
    print(
        f"{contestant.name}: {middle:.2f}, {late:.2f} ms; others used {disturbed:.1%} of the machine", file=sys.stderr
    )
    return late_ms


async def _picked_up(contestant: Contestant, grounds: Grounds, count: int) -> tuple[float, list[float]]:
    """Let an idle worker pick up spaced jobs; return what others used of the machine, and the milliseconds."""
    async with stage(contestant, grounds) as its:
        await its.start_worker()
        await its.run("spaced", 0, GAP_S)
        await its.bodies(WARM_UPS)  # Now it is up.
        bystanders = Bystanders()
        await its.run("spaced", count, GAP_S)
        await its.bodies(2 * WARM_UPS + count)
        return bystanders.share(), [(hit.started_ns - hit.sent_ns) / 1e6 for hit in its.hits()]


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
        target=Target(">", 1, of_ratio=True) if rival.store == place.name else None,
    )
