"""Check afterwards, from attempts alone, that no limit was exceeded. Independent of the claim, its locks and counts."""

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from headway.core.instants import Duration, Instant
from headway.core.limits import Limit, Rules

FINDINGS_MAX: Final = 1_000


class AttemptSpan(msgspec.Struct, frozen=True):
    """When an attempt ran, and what limits look at; without an end it still runs."""

    job_id: str
    attempt: int
    queue: str
    task: str
    tenant: str
    limit_key: str
    started_at: Instant
    ended_at: Instant | None

    def names(self) -> list[str]:
        """Return the names under which limits can count it."""
        names = [f"queue:{self.queue}", f"task:{self.task}", f"tenant:{self.tenant}"]
        return [*names, self.limit_key] if self.limit_key else names


class LimitRevision(msgspec.Struct, frozen=True):
    """A definition of a limit from a time on; None: it was removed."""

    name: str
    at: Instant
    limit: Limit | None


class Excess(msgspec.Struct, frozen=True):
    """A start that a limit did not allow: how many it allowed, and how many there were with this one."""

    limit: str
    gate: str
    kind: str
    at: Instant
    allowed: int
    found: int
    job_id: str


class _Gate:
    """The attempts under one name, as time goes on."""

    def __init__(self) -> None:
        self._ends: list[Instant] = []
        self._running = 0  # Those without an end.
        self._starts: deque[Instant] = deque()

    def start(self, span: AttemptSpan) -> int:
        """Add an attempt; return how many run."""
        while self._ends and self._ends[0] <= span.started_at:
            heapq.heappop(self._ends)
        if span.ended_at is None:
            self._running += 1
        else:
            heapq.heappush(self._ends, span.ended_at)
        self._starts.append(span.started_at)
        return len(self._ends) + self._running

    def starts_since(self, since: Instant, now: Instant, per: Duration) -> int:
        """Return how many started since a time, and within the period before now."""
        while self._starts and self._starts[0] <= now - per:
            self._starts.popleft()
        return sum(at >= since for at in self._starts)


def audit_limits(spans: Iterable[AttemptSpan], revisions: Sequence[LimitRevision]) -> list[Excess]:
    """Return every start beyond a limit that was in force, up to a bound; `spans` are sorted by their start."""
    rules = _History(revisions)
    gates: dict[str, _Gate] = {}
    found: list[Excess] = []
    for span in spans:
        for name in span.names():
            gate = gates.setdefault(name, _Gate())
            running = gate.start(span)
            limit, since = rules.at(name, span.started_at)
            if limit is None or len(found) >= FINDINGS_MAX:
                continue
            if limit.concurrency is not None and running > limit.concurrency:
                found.append(_excess(limit, name, "concurrency", span, limit.concurrency, running))
            if limit.rate is not None and limit.per is not None:
                most = limit.rate if limit.burst is None else limit.burst + limit.rate
                starts = gate.starts_since(since, span.started_at, limit.per)
                if starts > most:
                    found.append(_excess(limit, name, "rate", span, most, starts))
    return found


def _excess(limit: Limit, gate: str, kind: str, span: AttemptSpan, allowed: int, found: int) -> Excess:
    return Excess(limit.name, gate, kind, span.started_at, allowed, found, span.job_id)


class _History:
    """The limits at every time."""

    def __init__(self, revisions: Sequence[LimitRevision]) -> None:
        self._times: list[Instant] = []
        self._rules: list[Rules] = []
        self._since: dict[str, list[Instant]] = {}
        current: dict[str, Limit] = {}
        for revision in sorted(revisions, key=lambda one: one.at):
            current = {name: limit for name, limit in current.items() if name != revision.name}
            if revision.limit is not None:
                current[revision.name] = revision.limit
            self._times.append(revision.at)
            self._rules.append(Rules(current.values()))
            self._since.setdefault(revision.name, []).append(revision.at)

    def at(self, name: str, time: Instant) -> tuple[Limit | None, Instant]:
        """Return the limit of a name at a time, and since when it was defined like that."""
        place = bisect_right(self._times, time) - 1
        limit = self._rules[place].find(name) if place >= 0 else None
        if limit is None:
            return None, 0
        times = self._since[limit.name]
        return limit, times[bisect_right(times, time) - 1]
