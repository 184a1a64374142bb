"""A checker of needs that sees rows and running code only: no worker ever runs more than it offers.

It shares no code with the engine, and reads what a job needs from the text in its row.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from tests.simulation.checkers import require

UNITS: Final = 1_000  # Needs have at most three decimals.


def needed(text: str) -> Counter[str]:
    """Return the amounts in the needs of a job, in thousandths."""
    pairs = (part.split("=") for part in text.split() if "=" in part)
    return Counter({name: round(float(amount) * UNITS) for name, amount in pairs})


class NeedsChecker:
    """The offers of workers by their id, and what was seen."""

    def __init__(self, offers: Mapping[str, Mapping[str, int]], labels: Mapping[str, str]) -> None:
        self._offers = offers
        self._labels = labels
        self.seen: Counter[str] = Counter()

    def check(self, leased: Iterable[tuple[str, str, str]], running: Iterable[tuple[str, str, str]]) -> None:
        """Check attempts with a lease, and attempts whose code runs, each as worker, job and needs."""
        self._fits("a lease", leased)
        self._fits("running code", running)

    def _fits(self, what: str, attempts: Iterable[tuple[str, str, str]]) -> None:
        used: dict[str, Counter[str]] = {}
        for worker, job_id, text in attempts:
            offer = self._offers.get(worker, {})
            for name, amount in needed(text).items():
                sums = used.setdefault(worker, Counter())
                sums[name] += amount
                limit = offer.get(name, 0) * UNITS
                require(sums[name] <= limit, f"more {name} used than offered, by {what}", worker, job_id, sums, limit)
                self.seen["a resource was used up"] += sums[name] == limit
            wanted = [part.partition(":")[2] for part in text.split() if part.startswith("zone:")]
            require(not wanted or wanted == [self._labels.get(worker)], "ran without its label", worker, job_id, text)
            self.seen[f"{what} with needs"] += bool(text)
