"""Promise S8 as a checker: what runs and starts under each limit, counted from the rows of jobs and limits alone.

It shares no code with the engine. A *gate* is a limit for one name; a job passes the gates of its queue, its tenant,
its task and the key that it named.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from headway.core.instants import Instant
from tests.simulation.recorder import JobRow, LaneRow, LimitRow

BITS: Final = {"queue": 1, "task": 2, "tenant": 4, "key": 8}  # In the column `held`.
KINDS: Final = ("queue", "task", "tenant")
STARTS_MAX: Final = 500  # Of one gate, more than any simulated rate needs.

LaneKey = tuple[str, str, str, str, str]


class LimitViolation(Exception):
    """A limit was exceeded, or an attempt under it is not counted."""


def kind_of(name: str) -> str:
    """Return the kind of a limit or gate."""
    kind, separator, _ = name.partition(":")
    return kind if separator and kind in KINDS else "key"


def gates_of(job: JobRow) -> tuple[str, ...]:
    """Return the names under which limits may count a job."""
    names = (f"queue:{job.queue}", f"tenant:{job.tenant}", f"task:{job.task}")
    return (*names, job.limit_key) if job.limit_key else names


class LimitChecker:
    """The limits in force, the attempts under each gate, and their recent starts."""

    def __init__(self, seen: Counter[str]) -> None:
        self.limits: dict[str, LimitRow] = {}
        self.put_at: dict[str, Instant] = {}
        self.lanes: dict[LaneKey, LaneRow] = {}
        self._seen = seen
        self._running: defaultdict[str, dict[str, JobRow]] = defaultdict(dict)
        self._starts: defaultdict[str, list[Instant]] = defaultdict(list)
        self._governed: dict[str, tuple[str, int]] = {}  # The limit and its revision that the starts are counted for.
        self._first: dict[str, int] = {}  # The first start under that revision.
        self._full_at: dict[str, Instant] = {}

    def limit_of(self, name: str) -> LimitRow | None:
        """Return the limit of a gate: the exact one, or the longest pattern."""
        if name in self.limits:
            return self.limits[name]
        kind = kind_of(name)
        patterns = [
            limit
            for limit in self.limits.values()
            if limit.name.endswith("*") and kind_of(limit.name) == kind and name.startswith(limit.name[:-1])
        ]
        return max(patterns, key=lambda limit: len(limit.name), default=None)

    # Changes.

    def defined(self, now: Instant, old: LimitRow | None, new: LimitRow | None) -> None:
        """Note a new, changed or removed limit."""
        for name in self._running:
            if self.is_full(name, now):
                self._full_at[name] = now
        if new is None:
            assert old is not None
            del self.limits[old.name]
            del self.put_at[old.name]
            self._seen["limit removed"] += 1
        else:
            self.limits[new.name] = new
            if old is None or old.revision != new.revision:
                self.put_at[new.name] = now
                self._seen["limit put" if old is None else "limit changed"] += 1
        for name, running in self._running.items():
            limit = self.limit_of(name)
            now_governed = (limit.name, limit.revision) if limit is not None else ("", 0)
            if self._governed.get(name) != now_governed:
                self._governed[name] = now_governed
                self._first[name] = len(self._starts[name])
            if limit is not None and limit.in_force:
                self._are_counted(name, running.values())
                if limit.concurrency is not None and len(running) > limit.concurrency:
                    self._seen["limit lowered below what runs"] += 1

    def changed(self, now: Instant, job: JobRow) -> None:
        """Note whether a job has a lease."""
        for name in gates_of(job):
            running = self._running[name]
            if name not in self._governed:
                limit = self.limit_of(name)
                self._governed[name] = (limit.name, limit.revision) if limit is not None else ("", 0)
            if job.lease_until is not None:
                running[job.id] = job
            elif job.id in running:
                if self.is_full(name, now):
                    self._full_at[name] = now
                del running[job.id]

    def lane(self, old: LaneRow | None, new: LaneRow | None) -> None:
        """Note a lane."""
        if old is not None:
            self.lanes.pop(old[:5], None)
        if new is not None:
            self.lanes[new[:5]] = new
            if new.held_by is not None and (old is None or old.held_by is None):
                self._seen["lane held at a rate" if new.look_at is not None else "lane held"] += 1

    # Safety.

    def claimed(self, now: Instant, jobs: Iterable[JobRow]) -> None:
        """Check a commit that has started these jobs."""
        touched: Counter[str] = Counter(name for job in jobs for name in gates_of(job))
        for name, count in touched.items():
            starts = self._starts[name]
            starts += [now] * count
            limit = self.limit_of(name)
            if limit is None:
                continue
            self._seen["started under a limit"] += count
            running = self._running[name]
            _require(limit.in_force, "S8: started under a limit that is not in force yet", name, limit, running)
            if limit.concurrency is not None:
                _require(len(running) <= limit.concurrency, "S8: more run than allowed", name, limit, [*running])
                self._seen["limit reached"] += len(running) == limit.concurrency
            if limit.rate is not None:
                since = starts[self._first.get(name, 0) :]
                _require(_is_allowed(limit, since), "S8: more started than allowed", name, limit, since)
            self._are_counted(name, running.values())
            if self.is_full(name, now):
                self._full_at[name] = now

    def _are_counted(self, name: str, running: Iterable[JobRow]) -> None:
        bit = BITS[kind_of(name)]
        uncounted = [job for job in running if not job.held & bit]
        _require(not uncounted, "S8: an attempt under a limit is not counted", name, uncounted)

    # Liveness.

    def is_full(self, name: str, now: Instant) -> bool:
        """Return whether nothing may start at a gate now."""
        limit = self.limit_of(name)
        if limit is None:
            return False
        if not limit.in_force:
            return True
        if limit.concurrency is not None and len(self._running[name]) >= limit.concurrency:
            return True
        # All recent starts, also those before the limit was changed: it may count them, to be on the safe side.
        return limit.rate is not None and not _is_allowed(limit, [*self._starts[name][-STARTS_MAX:], now])

    def full_at(self, name: str, now: Instant) -> Instant:
        """Return when nothing could start at a gate for the last time."""
        if self.is_full(name, now):
            self._full_at[name] = now
        return self._full_at.get(name, 0)

    def held_at(self, job: JobRow, now: Instant) -> Instant:
        """Return when a job had to wait at one of its gates for the last time."""
        return max(self.full_at(name, now) for name in gates_of(job))

    def running(self) -> Mapping[str, Mapping[str, JobRow]]:
        """Return the attempts that run, by the names under which limits count them."""
        return self._running


def _is_allowed(limit: LimitRow, starts: list[Instant]) -> bool:
    """Return whether the last start was within the rate; earlier ones were checked before."""
    assert limit.rate is not None
    assert limit.per is not None
    last = starts[-1]
    if limit.burst is None:
        return sum(at > last - limit.per for at in starts) <= limit.rate
    return all(
        (len(starts) - number) * limit.per <= limit.burst * limit.per + limit.rate * (last - at)
        for number, at in enumerate(starts)
    )


def _require(holds: object, *what: object) -> None:
    if not holds:
        raise LimitViolation(" ".join(str(part) for part in what))
