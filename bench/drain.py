"""drain: a backlog of no-op jobs is worked off. How many a second, all completions committed?

Jobs are enqueued first, then the workers start. The time counts from the start of the first body, so that starting
interpreters is left out, until an outside look at the store finds every completion committed; a peer whose store keeps
no completions ends with the start of its last body. Every contestant runs with one and with two worker processes (for
Headway: worker commands, each a supervisor with its children), and the better number counts. In each round all of
them have their turn, so that the ratios are of one stretch of time. The bare side is the batch limit.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Final

from bench.figures import Figure, Target, compared
from bench.limit import batch_limit
from bench.peers.catalogue import Contestant, headway
from bench.peers.stage import Drained, Failed, Grounds, rivals, stage
from bench.places import Place, Run

WORKERS: Final = (1, 2)
LENGTH_S: Final = 5
JOBS_MAX: Final = 100_000
ROUNDS_MAX: Final = 3

Rates = dict[tuple[str, int], list[float]]


async def measure(run: Run) -> list[Figure]:
    """Measure both databases."""
    figures = []
    for place in run.places:
        with Grounds.of(run, place) as grounds:
            figures += await _measure_on(place, run, grounds)
    return figures


async def _measure_on(place: Place, run: Run, grounds: Grounds) -> list[Figure]:
    own = headway(place.name)
    others = rivals(run, place)
    bare: list[float] = []
    rates: Rates = defaultdict(list)
    for _ in range(min(run.repetitions, ROUNDS_MAX)):
        bare.append(await batch_limit(place, run.size(JOBS_MAX, 1_000)))
        for contestant in (own, *others):
            for workers in WORKERS:
                try:
                    drained = await drain(contestant, grounds, _jobs(contestant, run), workers)
                except Failed as error:
                    if contestant is own:
                        raise
                    print(f"{contestant.name} with {workers}: {error}", file=sys.stderr)
                    continue
                rates[contestant.name, workers].append(drained.rate)
    return [*_own_figures(place, own, rates, bare), *_rival_figures(place, own, others, rates)]


async def drain(contestant: Contestant, grounds: Grounds, jobs: int, workers: int) -> Drained:
    """Let a contestant work off a backlog, with so many worker processes."""
    async with stage(contestant, grounds) as its:
        await its.run("enqueue", jobs)
        for _ in range(workers):
            await its.start_worker()
        return await its.drained(jobs)


def _jobs(contestant: Contestant, run: Run) -> int:
    return min(JOBS_MAX, run.size(contestant.pace * LENGTH_S, 200))


def _own_figures(place: Place, own: Contestant, rates: Rates, bare: Sequence[float]) -> list[Figure]:
    return [
        compared("drain", place.name, f"no-op jobs, {_workers(workers)}", rates[own.name, workers], bare, "/s")
        for workers in WORKERS
    ]


def _rival_figures(place: Place, own: Contestant, others: Sequence[Contestant], rates: Rates) -> list[Figure]:
    """Compare the best of Headway with the best of each peer; only whole rounds count."""
    figures = []
    mine = rates[own.name, _best(own, rates)]
    for rival in others:
        theirs = rates[rival.name, _best(rival, rates)]
        what = f"against {rival.name}, {_workers(_best(rival, rates))}"
        if len(theirs) < len(mine):
            continue
        figures.append(compared("drain", place.name, what, mine, theirs, "/s", _target(place, rival)))
    return figures


def _target(place: Place, rival: Contestant) -> Target:
    if rival.environment == "node":
        return Target(">=", 1, of_ratio=True)
    if place.name == "sqlite" and rival.name == "huey-sqlite":
        return Target(">=", 5, of_ratio=True)
    return Target(">=", 1.5, of_ratio=True)


def _best(contestant: Contestant, rates: Rates) -> int:
    return max(WORKERS, key=lambda workers: median(rates[contestant.name, workers] or [0.0]))


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
