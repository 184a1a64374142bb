"""limits: throughput of a backlog of no-op jobs with tenants and limits, against the same backlog without.

The four variants run in turn, in every round: without, 1,000 tenants, one limit of 500 for the queue, and 10,000 keys
with a limit of 5 each. Each is drained as in `drain`, by one worker.
"""

from dataclasses import replace
from typing import Final

from bench.drain import ROUNDS_MAX, drained_rate
from bench.figures import Figure, Target, compared
from bench.peers.catalogue import headway
from bench.peers.stage import Grounds
from bench.places import Place, Run

VARIANTS: Final = {
    "tenants": ("1,000 tenants", 0.80),
    "queue-limit": ("one limit of 500", 0.80),
    "keys": ("10,000 keys, limit 5", 0.65),
}


async def measure(run: Run) -> list[Figure]:
    """Measure both databases."""
    figures = []
    for place in run.places:
        with Grounds.of(run, place) as grounds:
            figures += await _measure_on(place, run, grounds)
    return figures


async def _measure_on(place: Place, run: Run, grounds: Grounds) -> list[Figure]:
    own = headway(place.name)
    plain: list[float] = []
    rates: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for _ in range(min(run.repetitions, ROUNDS_MAX)):
        plain.append(await drained_rate(own, grounds, run, 1))
        for variant in VARIANTS:
            rates[variant].append(await drained_rate(replace(own, name=f"{own.name}+{variant}"), grounds, run, 1))
    return [
        compared("limits", place.name, words, rates[variant], plain, "/s", Target(">=", least, of_ratio=True))
        for variant, (words, least) in VARIANTS.items()
    ]
