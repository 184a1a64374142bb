"""The hand-over of jobs between a supervisor and one child process.

    supervisor gives            child begins              child ends
    ─────────────────▶  GIVEN  ──────────────▶  BEGUN  ──────────────▶  ENDED
                          │                       │
        withdrawn before  │                       │  the child dies
        it begins         ▼                       ▼
                       RETURNED                 LOST    (GIVEN jobs of a dead child are RETURNED)

Jobs are numbered 1, 2, 3, … per child and begin in that order. One side owns each fact, in a page of shared memory:

- the **child** decides that a job begins: it writes `begun = n`, *then* reads `withdrawn`. If `withdrawn >= n` it
  leaves the job out and says so (`LeftOut`); otherwise the job has begun and the child owes its outcome.
- the **supervisor** decides that jobs must not begin: it writes `withdrawn = last`, *then* reads `begun`. What has a
  number above `begun` is returned at once: the child will leave it out. What has a number up to `begun` is the child's:
  its outcome or a `LeftOut` will come.

Whoever writes second sees what the other wrote first, so no job is both returned and run, and none is forgotten.
Neither side waits for the other: a child that is deaf, because a task holds the GIL or the process is stopped, keeps
no job that it has not begun. When the child is dead the page says how far it came.

This module has no I/O and no clock. `Given`, `Handover` are the supervisor's side, `Inbox` is the child's;
tests/unit/worker/test_handover.py explores every interleaving of the two.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from headway.core.jobs import Claimed
from headway.core.lifecycle import Outcome

J = TypeVar("J")
NEVER: Final = float("inf")


class SharedPage(Protocol):
    """The numbers that both sides can read; each has one writer."""

    begun: int
    ended: int
    withdrawn: int

    def fence(self) -> None:
        """Order the write before it before the read after it."""
        ...


@dataclass(slots=True, eq=False)
class Given:
    """A job that was given to a child and has neither ended nor been returned."""

    claimed: Claimed
    number: int
    at: float
    since: float | None = None  # When it was seen to have begun.
    stop_as: Outcome | None = None
    stop_since: float = 0.0
    stop_stage: int = 0
    is_ending: bool = False  # Its outcome is known; what it has started is being ended first.


class Handover:
    """The supervisor's side: which jobs are with one child, and how far each of them is."""

    def __init__(self, page: SharedPage, width: int) -> None:
        self._page = page
        self._width = width
        self._waiting: deque[Given] = deque()  # Not seen to have begun, in order. Some may be out of `jobs` already.
        self._begun = 0
        self.last = 0
        self.jobs: dict[str, Given] = {}

    def give(self, jobs: Sequence[Claimed], now: float) -> int:
        """Take note of jobs that are sent to the child; return the number of the first."""
        first = self.last + 1
        known, waiting = self.jobs, self._waiting
        for number, claimed in enumerate(jobs, first):
            known[claimed.job_id] = given = Given(claimed, number, now)
            waiting.append(given)
        self.last += len(jobs)
        return first

    def find(self, job_id: str, attempt: int) -> Given | None:
        """Return an attempt that is with this child."""
        given = self.jobs.get(job_id)
        return given if given is not None and given.claimed.attempt == attempt else None

    def look(self, now: float) -> None:
        """See which jobs have begun."""
        self._begun = begun = self._page.begun
        waiting = self._waiting
        while waiting and waiting[0].number <= begun:
            waiting.popleft().since = now

    def has_begun(self, given: Given) -> bool:
        """Say whether a job had begun at the last look."""
        return given.number <= self._begun

    def is_running(self, given: Given) -> bool:
        """Say whether the code of a job may be running, as far as this side knows."""
        if self._width > 1:
            return given.number <= self._begun
        return given.number == self._begun and self._page.ended < given.number

    def running(self) -> list[Given]:
        """Return the jobs whose code may be running."""
        return [given for given in self.jobs.values() if self.is_running(given)]

    def unheard(self) -> list[Given]:
        """Return the jobs that have ended and whose outcomes the child still keeps back."""
        return [given for given in self.jobs.values() if self.has_begun(given) and not self.is_running(given)]

    def waiting_since(self) -> float:
        """Return since when the job waits that waits longest without having begun; `NEVER` when none does."""
        waiting = self._waiting
        while waiting and self.jobs.get(waiting[0].claimed.job_id) is not waiting[0]:
            waiting.popleft()
        return waiting[0].at if waiting else NEVER

    def waiting(self) -> list[Given]:
        """Return the jobs that have not begun."""
        return [given for given in self._waiting if self.jobs.get(given.claimed.job_id) is given]

    def end(self, job_id: str, attempt: int) -> Given | None:
        """The child has told the outcome of an attempt; None if it is not with this child."""
        given = self.find(job_id, attempt)
        if given is not None:
            del self.jobs[job_id]
        return given

    def withdraw(self, now: float) -> list[Given]:
        """Take back what has not begun; return it. What the child has begun by now goes on."""
        if not self._waiting:
            return []
        self._page.withdrawn = self.last
        self._page.fence()
        self.look(now)
        back = self.waiting()
        self._waiting.clear()
        for given in back:
            del self.jobs[given.claimed.job_id]
        return back

    def left_out(self, first: int, last: int) -> list[Given]:
        """The child has left these out; return those that we took for begun."""
        back = [given for given in self.jobs.values() if first <= given.number <= last]
        for given in back:
            del self.jobs[given.claimed.job_id]
        return back

    def bury(self, now: float) -> tuple[list[Given], list[Given], list[Given]]:
        """The child is dead: return what was running, what had ended unheard, and what had not begun."""
        self.look(now)
        running, unheard, waiting = self.running(), self.unheard(), self.waiting()
        self.jobs.clear()
        self._waiting.clear()
        return running, unheard, waiting


class Inbox(Generic[J]):
    """The child's side: jobs in the order in which they begin. Whoever calls `begin` must be alone in doing so."""

    def __init__(self, page: SharedPage) -> None:
        self._page = page
        self._jobs: deque[tuple[int, J]] = deque()

    def put(self, first: int, jobs: Sequence[J]) -> None:
        """Take jobs, numbered from `first`."""
        self._jobs.extend(enumerate(jobs, first))

    def __len__(self) -> int:
        return len(self._jobs)

    def following(self) -> J | None:
        """Return the job that would begin next."""
        return self._jobs[0][1] if self._jobs else None

    def begin(self) -> tuple[int, J] | None:
        """Begin the next job: return its number and itself; None when it was withdrawn, or there is none."""
        if not self._jobs:
            return None
        number, job = self._jobs[0]
        page = self._page
        if number <= page.withdrawn:
            return None
        page.begun = number
        page.fence()
        if number <= page.withdrawn:
            page.ended = number  # So that it never looks as if it ran.
            return None
        self._jobs.popleft()
        return number, job

    def skip(self) -> list[tuple[int, J]]:
        """Drop the jobs that were withdrawn; return them, to be told to the supervisor."""
        withdrawn, skipped = self._page.withdrawn, []
        while self._jobs and self._jobs[0][0] <= withdrawn:
            skipped.append(self._jobs.popleft())
        return skipped
