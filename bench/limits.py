"""limits: what tenants, limits and fairness cost.

- Throughput of a backlog of no-op jobs with tenants and limits, against the same backlog without. The variants run in
  turn, in every round: without, 1,000 tenants, one limit of 500 for the queue, and 10,000 keys with a limit of 5 each.
  Each is drained as in `drain`, by one worker. With `--before` an earlier build drains the plain backlog in turn with
  this one.
- The same with 1,000,000 ready jobs, of one tenant and of 1,000: the rate of the first 100,000 starts.
- CPU time of the database server per job, from enqueue to completion, of a named tenant and of `default`.
- Pick-up latency on an idle system of a job of a named tenant, in turn with one of `default`.
- How soon the next job starts when the only place of a limit becomes free, with two workers.
- Claims by lanes in stores of different sizes: see `limit_claims`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Final

from bench import limit_claims
from bench.copies import copy_job
from bench.drain import ROUNDS_MAX, drain, drained_rate
from bench.figures import Figure, Target, compared, percentile, plain
from bench.latency import picked_up_ms
from bench.peers.catalogue import Contestant, earlier, headway
from bench.peers.stage import Grounds, stage
from bench.places import Place, Run
from bench.watch import family_cpu_s

VARIANTS: Final = {
    "tenants": ("1,000 tenants", 0.80),
    "queue-limit": ("one limit of 500", 0.80),
    "keys": ("10,000 keys, limit 5", 0.65),
}
UNUSED: Final = Target(">=", 0.97, of_ratio=True)
TENANTS: Final = 1_000
PLACES_TAKEN: Final = 200
FREED_MS_MAX: Final = 50


@dataclass(slots=True)
class _Found:
    """What the rounds have measured, by variant; the variant without anything is ''."""

    rates: dict[str, list[float]] = field(default_factory=dict)

    def add(self, variant: str, value: float) -> None:
        self.rates.setdefault(variant, []).append(value)


async def measure(run: Run) -> list[Figure]:
    """Measure both databases."""
    figures = []
    for place in run.places:
        with Grounds.of(run, place) as grounds:
            figures += await _drains(place, run, grounds)
            figures += await _backlogs(place, run, grounds)
            figures += await _server_time(place, run, grounds)
            figures += await _pick_ups(place, run, grounds)
            figures += await _freed(place, run, grounds)
        figures += await limit_claims.measure(place, run)
    return figures


def _variant(place: Place, kind: str) -> Contestant:
    own = headway(place.name)
    return replace(own, name=f"{own.name}+{kind}") if kind else own


async def _drains(place: Place, run: Run, grounds: Grounds) -> list[Figure]:
    found = _Found()
    for _ in range(min(run.repetitions, ROUNDS_MAX)):
        if run.before is not None:
            found.add("before", await drained_rate(earlier(place.name, run.before), grounds, run, 1))
        for kind in ("", *VARIANTS):
            found.add(kind, await drained_rate(_variant(place, kind), grounds, run, 1))
    usual = found.rates[""]
    figures = [
        compared("limits", place.name, words, found.rates[kind], usual, "/s", Target(">=", least, of_ratio=True))
        for kind, (words, least) in VARIANTS.items()
    ]
    if run.before is not None:
        figures.append(
            compared("limits", place.name, "unused, against before", usual, found.rates["before"], "/s", UNUSED)
        )
    return figures


async def _backlogs(place: Place, run: Run, grounds: Grounds) -> list[Figure]:
    """Start the first jobs of a large backlog, of one tenant and of many."""
    backlog, starts = run.size(1_000_000, 2_000), run.size(100_000, 200)
    found = _Found()
    for _ in range(run.size(2, 1)):
        for kind in ("", "tenants"):
            async with stage(_variant(place, kind), grounds) as its:
                await its.run("enqueue", 1)
                bare = await its.bare()
                try:
                    [source] = (await bare.read("headway_jobs", "id limit 1")).column_of("id")
                    tenant = {"tenant": f"'t' || n % {TENANTS}"} if kind else {}
                    await copy_job(bare, source, {"id": "'job_00000' || n", **tenant}, backlog)
                    await bare.execute("vacuum analyze" if place.name == "postgresql" else "analyze")
                finally:
                    await bare.close()
                await its.start_worker()
                found.add(kind, await its.started(starts))
    what = f"{backlog:,} ready jobs of {TENANTS:,} tenants, against one"
    target = Target(">=", 0.80, of_ratio=True)
    return [compared("limits", place.name, what, found.rates["tenants"], found.rates[""], "/s", target)]


async def _server_time(place: Place, run: Run, grounds: Grounds) -> list[Figure]:
    if grounds.postgres is None or grounds.postgres.pid is None:
        return []
    jobs = run.size(50_000, 200)
    found = _Found()
    for _ in range(min(run.repetitions, ROUNDS_MAX)):
        for kind in ("", "tenant"):
            before_s = family_cpu_s(grounds.postgres.pid)
            await drain(_variant(place, kind), grounds, jobs, 1)
            found.add(kind, (family_cpu_s(grounds.postgres.pid) - before_s) / jobs * 1e6)
    what = "server CPU per job of a named tenant, enqueue to completion"
    target = Target("<=", 1.16, of_ratio=True)
    return [compared("limits", place.name, what, found.rates["tenant"], found.rates[""], "us", target)]


async def _pick_ups(place: Place, run: Run, grounds: Grounds) -> list[Figure]:
    pair = _variant(place, ""), _variant(place, "tenant")
    usual: list[float] = []
    named: list[float] = []
    for _ in range(min(run.repetitions, ROUNDS_MAX)):
        for found, late_ms in zip((usual, named), await picked_up_ms(pair, place, grounds, run), strict=True):
            found += late_ms
    return [
        compared(
            "limits",
            place.name,
            f"pick-up of a job of a named tenant, p{percent}",
            [percentile(named, percent)],
            [percentile(usual, percent)],
            "ms",
            Target("<=", 1.4, of_ratio=True) if percent == 50 else None,
        )
        for percent in (50, 99)
    ]


async def _freed(place: Place, run: Run, grounds: Grounds) -> list[Figure]:
    """Measure the time between starts when one place is taken again and again."""
    gaps_ms = await _gaps_ms(_variant(place, "one-place"), grounds, run.size(PLACES_TAKEN, 20))
    target = Target("<=", FREED_MS_MAX) if place.name == "postgresql" else None
    what = "from one start to the next, limit of 1, two workers"
    return [
        plain("limits", place.name, f"{what}, median", [median(gaps_ms)], "ms", target),
        plain("limits", place.name, f"{what}, p95", [percentile(gaps_ms, 95)], "ms"),
    ]


async def _gaps_ms(contestant: Contestant, grounds: Grounds, jobs: int) -> Sequence[float]:
    async with stage(contestant, grounds) as its:
        await its.run("enqueue", jobs)
        for _ in range(2):
            await its.start_worker()
        await its.bodies(jobs)
        return [(later.started_ns - earlier.started_ns) / 1e6 for earlier, later in pairwise(its.hits())]
