"""The handover protocol between a supervisor and one child process.

    supervisor assigns          child begins              child ends
    ─────────────────▶ ASSIGNED ─────────────▶  BEGUN  ──────────────▶  ENDED
                          │                       │
        withdrawn before  │                       │  the child dies
        it begins         ▼                       ▼
                       RETURNED                 LOST    (ASSIGNED jobs of a dead child are RETURNED)

Jobs are numbered 1, 2, 3, … per child and begin in that order. Each fact has one owner and is a counter in shared
memory:

- The **child** decides that a job begins: it writes `begun = n`, *then* reads `withdrawn`. If `withdrawn >= n` it skips
  the job and reports that (`Skipped`); otherwise the job has begun and the child owes its outcome.
- The **supervisor** decides that jobs must not begin: it writes `withdrawn = last`, *then* reads `begun`. Jobs numbered
  above `begun` are returned at once, because the child will skip them. Jobs numbered up to `begun` belong to the child:
  their outcome or a `Skipped` will come.

The side that writes second sees what the other wrote first, so no job is both returned and run, and none is lost.
Neither side waits for the other: an unresponsive child, because a task holds the GIL or the process is stopped, keeps
no job that it has not begun. When the child is dead, the counters show how far it got.

This module has no I/O and no clock. `AssignedJob` and `Handover` are the supervisor's side, `Inbox` is the child's;
tests/unit/worker/test_handover.py explores every interleaving of the two.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from headway.core.jobs import Claimed
from headway.core.lifecycle import AttemptOutcome

J = TypeVar("J")
NEVER: Final = float("inf")


class CountersPort(Protocol):
    """The counters that both sides read; each has one writer."""

    begun: int
    ended: int
    withdrawn: int

    def fence(self) -> None:
        """Order the preceding write before the following read (memory barrier)."""
        ...


@dataclass(slots=True, eq=False)
class AssignedJob:
    """A job that a child has and that has neither ended nor been returned."""

    claimed: Claimed
    number: int
    at: float
    since: float | None = None  # When it was first seen to have begun.
    stop_as: AttemptOutcome | None = None
    stop_since: float = 0.0
    stop_stage: int = 0
    is_ending: bool = False  # Its outcome is known; its processes are being ended first.


class Handover:
    """The supervisor's side: which jobs one child has, and how far each of them is."""

    def __init__(self, counters: CountersPort, width: int) -> None:
        self._counters = counters
        self._width = width
        self._waiting: deque[AssignedJob] = (
            deque()
        )  # Not seen to have begun, in order. Some may have left `jobs` already.
        self._begun = 0
        self.last = 0
        self.jobs: dict[str, AssignedJob] = {}

    def give(self, jobs: Sequence[Claimed], now: float) -> int:
        """Number jobs that are sent to the child; return the number of the first."""
        first = self.last + 1
        known, waiting = self.jobs, self._waiting
        for number, claimed in enumerate(jobs, first):
            known[claimed.job_id] = assigned = AssignedJob(claimed, number, now)
            waiting.append(assigned)
        self.last += len(jobs)
        return first

    def find(self, job_id: str, attempt: int) -> AssignedJob | None:
        """Return an attempt that this child has."""
        assigned = self.jobs.get(job_id)
        return assigned if assigned is not None and assigned.claimed.attempt == attempt else None

    def look(self, now: float) -> None:
        """Update which jobs have begun."""
        self._begun = begun = self._counters.begun
        waiting = self._waiting
        while waiting and waiting[0].number <= begun:
            waiting.popleft().since = now

    def has_begun(self, assigned: AssignedJob) -> bool:
        """Return whether a job had begun at the last update."""
        return assigned.number <= self._begun

    def is_running(self, assigned: AssignedJob) -> bool:
        """Return whether the code of a job may be running, as far as this side knows."""
        if self._width > 1:
            return assigned.number <= self._begun
        return assigned.number == self._begun and self._counters.ended < assigned.number

    def running(self) -> list[AssignedJob]:
        """Return the jobs whose code may be running."""
        return [assigned for assigned in self.jobs.values() if self.is_running(assigned)]

    def unheard(self) -> list[AssignedJob]:
        """Return the jobs that have ended and whose outcomes the child has not sent yet."""
        return [
            assigned for assigned in self.jobs.values() if self.has_begun(assigned) and not self.is_running(assigned)
        ]

    def waiting_since(self) -> float:
        """Return since when the longest waiting job waits; `NEVER` when no job waits."""
        waiting = self._waiting
        while waiting and self.jobs.get(waiting[0].claimed.job_id) is not waiting[0]:
            waiting.popleft()
        return waiting[0].at if waiting else NEVER

    def waiting(self) -> list[AssignedJob]:
        """Return the jobs that have not begun."""
        return [assigned for assigned in self._waiting if self.jobs.get(assigned.claimed.job_id) is assigned]

    def end(self, job_id: str, attempt: int) -> AssignedJob | None:
        """Remove an attempt whose outcome has arrived; None if this child does not have it."""
        assigned = self.find(job_id, attempt)
        if assigned is not None:
            del self.jobs[job_id]
        return assigned

    def withdraw(self, now: float) -> list[AssignedJob]:
        """Take back and return the jobs that have not begun. Jobs that have begun continue."""
        if not self._waiting:
            return []
        self._counters.withdrawn = self.last
        self._counters.fence()
        self.look(now)
        back = self.waiting()
        self._waiting.clear()
        for assigned in back:
            del self.jobs[assigned.claimed.job_id]
        return back

    def left_out(self, first: int, last: int) -> list[AssignedJob]:
        """Remove jobs that the child has skipped; return those that were counted as begun."""
        back = [assigned for assigned in self.jobs.values() if first <= assigned.number <= last]
        for assigned in back:
            del self.jobs[assigned.claimed.job_id]
        return back

    def bury(self, now: float) -> tuple[list[AssignedJob], list[AssignedJob], list[AssignedJob]]:
        """Remove the jobs of a dead child; return the running ones, the ended but unreported, and the waiting ones."""
        self.look(now)
        running, unheard, waiting = self.running(), self.unheard(), self.waiting()
        self.jobs.clear()
        self._waiting.clear()
        return running, unheard, waiting


class Inbox(Generic[J]):
    """The child's side: jobs in the order in which they begin. Only one thread at a time may call `begin`."""

    def __init__(self, counters: CountersPort) -> None:
        self._counters = counters
        self._jobs: deque[tuple[int, J]] = deque()

    def put(self, first: int, jobs: Sequence[J]) -> None:
        """Add jobs, numbered from `first`."""
        self._jobs.extend(enumerate(jobs, first))

    def __len__(self) -> int:
        return len(self._jobs)

    def following(self) -> J | None:
        """Return the job that would begin next."""
        return self._jobs[0][1] if self._jobs else None

    def begin(self) -> tuple[int, J] | None:
        """Begin the next job and return its number and itself; None when it was withdrawn or there is none."""
        if not self._jobs:
            return None
        number, job = self._jobs[0]
        counters = self._counters
        if number <= counters.withdrawn:
            return None
        counters.begun = number
        counters.fence()
        if number <= counters.withdrawn:
            counters.ended = number  # Never show it as running.
            return None
        self._jobs.popleft()
        return number, job

    def skip(self) -> list[tuple[int, J]]:
        """Remove and return the jobs that were withdrawn, to report them to the supervisor."""
        withdrawn, skipped = self._counters.withdrawn, []
        while self._jobs and self._jobs[0][0] <= withdrawn:
            skipped.append(self._jobs.popleft())
        return skipped
