"""Estimate how long jobs take, and so how many a child may be given in advance (prefetch).

A child that ends many short jobs must not wait for the next one. So it gets as many in advance as it ends within
`PREFETCH_S`. Durations are learned per task. A task that has not run yet is not prefetched.
"""

import math
from collections.abc import Iterable
from typing import Final

PREFETCH_S: Final = 0.05
PREFETCH_MAX: Final = 2_000
TASKS_MAX: Final = 10_000
_SHORTEST_S: Final = 1e-5


class PrefetchEstimator:
    """Estimate the duration of a pool's jobs by task."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._seen: dict[str, int] = {}
        self._mix: frozenset[str] = frozenset()  # The tasks of the last jobs.
        self._mix_s = math.inf  # The estimate of the slowest of them.

    def expected_s(self, task: str) -> float:
        """Return the estimated duration of a job of this task; infinity when none has ended yet."""
        return self._seconds.get(task, math.inf)

    def learn(self, task: str, took_s: float, jobs: int) -> None:
        """Record the mean duration of some jobs of a task."""
        before = self._seconds.get(task, math.inf)
        if math.isinf(before):
            if len(self._seconds) >= TASKS_MAX:
                self._seconds.clear()
                self._seen.clear()
            before = 2 * PREFETCH_S
        seen = self._seen.get(task, 0)
        # At first the mean of all, to recognise short jobs soon; later the last few dozen count.
        weight = min(0.8 ** min(jobs, 20), (seen + 1) / (seen + 1 + jobs))
        self._seen[task] = seen + jobs
        self._seconds[task] = max(weight * before + (1 - weight) * took_s, _SHORTEST_S)
        if task in self._mix:
            self.mixed(self._mix)

    def takes_at_least(self, task: str, took_s: float) -> None:
        """Raise the estimate to the duration of a job that is still running."""
        if took_s > self._seconds.get(task, 0.0):
            self._seconds[task] = took_s
            if task in self._mix:
                self.mixed(self._mix)

    def mixed(self, tasks: Iterable[str]) -> None:
        """Record which tasks came together last; more of the same is expected."""
        self._mix = frozenset(tasks)
        self._mix_s = max(map(self.expected_s, self._mix), default=math.inf)

    def prefetch_for(self, width: int) -> int:
        """Return how many jobs a child with this many slots may be given in advance."""
        return min(int(width * PREFETCH_S / self._mix_s), PREFETCH_MAX)

    def fits(self, tasks: Iterable[str], width: int, load: int) -> int:
        """Return how many of these jobs, in order, fit a child with this many slots and jobs."""
        free, waiting = max(0, width - load), max(0, load - width)
        budget_s, count = width * PREFETCH_S - (waiting * self._mix_s if waiting else 0.0), 0
        for count, task in enumerate(tasks, 1):
            if count > free:
                budget_s -= self._seconds.get(task, math.inf)
                if budget_s < 0:
                    return count - 1
        return count
