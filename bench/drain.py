"""drain: throughput of a backlog of no-op jobs, with all completions committed.

Jobs are enqueued first, then the workers start. The time counts from the start of the first body, so that starting
interpreters is left out, until a separate connection finds every completion committed; for a peer whose store keeps no
completions, until the start of its last body. Every contestant runs with one and with two worker processes (for
Headway: worker commands, each a supervisor with its children), and the better result counts. The speed of a machine
varies: Headway is measured before and after each peer, and the mean is compared with the peer; rounds during which
other processes used the machine are repeated. The bare side is the batch limit.
"""

import sys
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from bench.figures import Figure, Target, compared
from bench.limit import batch_limit
from bench.peers.catalogue import ROOT, Contestant, headway
from bench.peers.stage import Drained, Failed, Grounds, rivals, stage
from bench.places import Place, Run
from bench.watch import DISTURBED_MAX, TRIES_MAX, calm

WORKERS: Final = (1, 2)
LENGTH_S: Final = 5
JOBS_MAX: Final = 100_000
ROUNDS_MAX: Final = 3


@dataclass(slots=True)
class _Against:
    """A peer and the rates of the rounds: its own by number of workers, and Headway's just before and after."""

    rival: Contestant
    ours: list[float] = field(default_factory=list)
    theirs: dict[int, list[float]] = field(default_factory=lambda: {workers: [] for workers in WORKERS})


async def measure(run: Run) -> list[Figure]:
    """Measure both databases."""
    figures = []
    for place in run.places:
        with Grounds.of(run, place) as grounds:
            figures += await _measure_on(place, run, grounds)
    return figures


async def _measure_on(place: Place, run: Run, grounds: Grounds) -> list[Figure]:
    own = headway(place.name)
    bare: list[float] = []
    rates: dict[int, list[float]] = {workers: [] for workers in WORKERS}
    contests = [_Against(rival) for rival in rivals(run, place)]
    for _ in range(min(run.repetitions, ROUNDS_MAX)):
        bare.append(await batch_limit(place, run.size(JOBS_MAX, 1_000)))
        for workers in WORKERS:
            rates[workers].append(await drained_rate(own, grounds, run, workers))
        best = max(WORKERS, key=lambda workers: rates[workers][-1])
        before = rates[best][-1]
        for contest in contests:
            before = await _compete(contest, own, grounds, run, best, before)
    figures = [
        compared("drain", place.name, f"no-op jobs, {_workers(workers)}", rates[workers], bare, "/s")
        for workers in WORKERS
    ]
    return figures + [_figure(place, contest) for contest in contests if contest.ours]


async def _compete(
    contest: _Against, own: Contestant, grounds: Grounds, run: Run, workers: int, before: float
) -> float:
    """Measure a peer, then Headway again; return Headway's rate. A peer that fails is reported and left out."""
    try:
        found = {count: await drained_rate(contest.rival, grounds, run, count) for count in WORKERS}
    except Failed as error:
        print(f"{contest.rival.name}: {error}", file=sys.stderr)
        return before
    after = await drained_rate(own, grounds, run, workers)
    contest.ours.append((before + after) / 2)
    for count, rate in found.items():
        contest.theirs[count].append(rate)
    return after


async def drained_rate(contestant: Contestant, grounds: Grounds, run: Run, workers: int) -> float:
    """Measure; repeat, a few times at most, while other processes use the machine."""
    jobs = min(JOBS_MAX, run.size(contestant.pace * LENGTH_S, 200))
    found: list[Drained] = []
    while len(found) < run.size(TRIES_MAX, 1) and not (found and found[-1].disturbed <= DISTURBED_MAX):
        if not run.is_quick:
            await calm()
        found.append(await drain(contestant, grounds, jobs, workers))
    calmest = min(found, key=lambda drained: drained.disturbed)
    others = f"others used {calmest.disturbed:.0%} of the machine"
    print(f"{contestant.name}, {_workers(workers)}: {calmest.rate:,.0f}/s, {others}", file=sys.stderr)
    return calmest.rate


async def drain(contestant: Contestant, grounds: Grounds, jobs: int, workers: int) -> Drained:
    """Let a contestant drain a backlog with this many worker processes."""
    async with stage(contestant, grounds) as its:
        await its.run("enqueue", jobs)
        for _ in range(workers):
            await its.start_worker()
        return await its.drained(jobs)


def _figure(place: Place, contest: _Against) -> Figure:
    """Compare with the number of workers that is best for the peer."""
    best = max(WORKERS, key=lambda workers: median(contest.theirs[workers]))
    what = f"against {contest.rival.name}, {_workers(best)}"
    target = _target(place, contest.rival)
    return compared("drain", place.name, what, contest.ours, contest.theirs[best], "/s", target)


def _target(place: Place, rival: Contestant) -> Target:
    if rival.root != ROOT:
        return Target(">=", 0.97, of_ratio=True)
    if rival.environment == "node":
        return Target(">=", 1, of_ratio=True)
    if place.name == "sqlite" and rival.name == "huey-sqlite":
        return Target(">=", 5, of_ratio=True)
    return Target(">=", 1.5, of_ratio=True)


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
