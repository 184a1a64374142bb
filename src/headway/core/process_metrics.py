"""Metrics of one process since it started, small enough to travel with every heartbeat of its node.

Schedulers and workers run in other processes than the API that Prometheus scrapes. Each keeps a `ProcessMetrics`, which
subscribes to the events of its own node. The heartbeat carries its cells (the *tally*) to the store, and /metrics sums
them over the nodes. When a node leaves, the store adds its last tally to those of earlier nodes, so a counter never
decreases.

A tally is a flat dictionary of integers, so two tallies can be added without knowing what they count:

    decided|fired   attempts|failed   lost|attempt   …      how often
    claim|0.005   claim|inf                                  how many took at most so many seconds (and more than the
                                                             bound before); only bounds that were met are there
    claim|us                                                 how long all of them took, in microseconds

Nothing here is per job: an event tells of a batch. What the API of this process has answered is counted here too, and
stays here: Prometheus asks every API process, and wants to know them apart.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from headway.core.clock import Clock
from headway.core.events import (
    AttemptsLost,
    DecisionRefused,
    EngineEvent,
    JobsPromoted,
    JobsSettled,
    LeasesExpired,
    ReportsRefused,
    ScheduleHeld,
    SchedulesDecided,
    TermLost,
    TermWon,
    TickFailed,
    Timed,
)
from headway.core.instants import SECOND
from headway.core.occurrences import Decided

STATEMENT_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BOUNDS_S: Final[dict[str, tuple[float, ...]]] = {
    "claim": STATEMENT_BOUNDS_S,
    "settle": STATEMENT_BOUNDS_S,
    "run": (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0),
    "late": (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0),
}

ANSWER_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
OTHER: Final = "other"


class Histogram:
    """Durations in buckets: each counts those up to its bound and above the previous bound, the last one the rest."""

    __slots__ = ("bounds", "counts", "sum_s")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def note(self, seconds: float, times: int = 1) -> None:
        """Count a duration this many times."""
        self.counts[bisect_left(self.bounds, seconds)] += times
        self.sum_s += seconds * times

    def cumulated(self) -> list[tuple[str, float]]:
        """Return the cumulative count for each bound, as Prometheus expects it."""
        rows, total = [], 0
        for bound, count in zip((*self.bounds, None), self.counts, strict=True):
            total += count
            rows.append(("+Inf" if bound is None else str(bound), float(total)))
        return rows


class ProcessMetrics:
    """Count the events of this clock's node and the responses of its API.

    It is a subscriber of events; `cells` is what the heartbeat carries. Without a clock it counts responses only.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self.answers: Counter[tuple[str, str, int]] = Counter()  # By route, method and first digit of the status.
        self.answer_times: dict[tuple[str, str], Histogram] = {}
        self._counts: Counter[str] = Counter()
        self._times = {name: Histogram(bounds) for name, bounds in BOUNDS_S.items()}
        self._hear: dict[type, Callable[[Any], None]] = {
            Timed: self._timed,
            JobsSettled: self._settled,
            SchedulesDecided: self._decided,
            AttemptsLost: self._attempts_lost,
            LeasesExpired: lambda event: self._add("attempts|expired", len(event.job_ids)),
            ReportsRefused: lambda event: self._add("refused|report", len(event.job_ids)),
            DecisionRefused: lambda event: self._add("refused|decision", len(event.schedules)),
            ScheduleHeld: lambda _: self._add("held", 1),
            JobsPromoted: lambda event: self._add("promoted", event.count),
            TermWon: lambda _: self._add("won", 1),
            TermLost: lambda event: self._add("lost|term", not event.is_handed_over),
            TickFailed: lambda event: self._add(f"failed|{event.loop}", 1),
        }

    def __call__(self, event: EngineEvent) -> None:
        """Count an event of our own node: in tests and simulations several nodes share a process."""
        hear = self._hear.get(type(event))
        if hear is not None and self._clock is not None and event.node == self._clock.node:
            hear(event)

    def request(self, route: str, method: str, status: int, took_s: float) -> None:
        """Count a response of the API. `route` is the template of the path, never the path itself."""
        kind = (route, method)
        times = self.answer_times.get(kind)
        if times is None:
            if method not in METHODS or not route.startswith("/"):
                kind = (OTHER, OTHER)
            times = self.answer_times.setdefault(kind, Histogram(ANSWER_BOUNDS_S))
        times.note(took_s)
        self.answers[*kind, status // 100] += 1

    def cells(self) -> dict[str, int]:
        """Return all counts except zeros."""
        cells = {name: number for name, number in self._counts.items() if number}
        for name, times in self._times.items():
            for bound, number in zip((*times.bounds, "inf"), times.counts, strict=True):
                if number:
                    cells[f"{name}|{bound}"] = number
            if times.sum_s:
                cells[f"{name}|us"] = round(times.sum_s * SECOND)
        return cells

    def _add(self, cell: str, number: int) -> None:
        self._counts[cell] += number

    def _timed(self, event: Timed) -> None:
        times = self._times[event.what]
        for seconds, number in event.lots:
            times.note(seconds, number)

    def _settled(self, event: JobsSettled) -> None:
        self._add("attempts|completed", event.completed)
        for settlement in event.others:
            self._add(f"attempts|{settlement.outcome}", 1)

    def _decided(self, event: SchedulesDecided) -> None:
        assert self._clock is not None, "without a clock no event is counted"
        now, late = self._clock.now(), self._times["late"]
        for plan in event.plans:
            for decision in plan.decisions:
                self._add(f"decided|{decision.outcome}", decision.count)
                if decision.outcome is Decided.FIRED:
                    late.note(max(0, now - decision.instant) / SECOND, decision.count)

    def _attempts_lost(self, event: AttemptsLost) -> None:
        self._add("refused|settlement" if event.is_refused else "lost|attempt", len(event.job_ids))


def histogram_of(name: str, cells: Mapping[str, int]) -> Histogram:
    """Read a histogram from the cells. Bounds that this version does not have count for the next larger one."""
    times = Histogram(BOUNDS_S[name])
    for cell, number in cells.items():
        head, _, bound = cell.partition("|")
        if head != name:
            continue
        if bound == "us":
            times.sum_s = number / SECOND
        elif (bound_s := _bound_s(bound)) is not None:
            times.counts[bisect_left(times.bounds, bound_s)] += number
    return times


def _bound_s(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
