"""Groups of jobs that are counted and end together; a batch is one kind. Here is what follows from their counts.

The counts of a group are those in its row and the changes that are not added to it yet. Every read adds them up as of
one instant, so they are exact whenever they are read.
"""

import operator
from typing import Any, Final, Protocol

import msgspec

from headway.core.errors import InvalidTask
from headway.core.instants import HOUR, MINUTE, SECOND, Duration, Instant
from headway.core.jobs import NewJob
from headway.core.validation import KEY_LENGTH_MAX, check_name

BATCH: Final = "batch"
OPEN_FOR: Final = HOUR
OPENER_LOOK: Final = 10 * SECOND  # How often housekeeping looks whether the job that opened a group has ended.
SAFETY_LOOK: Final = MINUTE
SOON: Final = 5 * SECOND  # How often housekeeping looks at a group that is being cancelled or retried.
_ID_PREFIX: Final = f"{BATCH}_"


class GroupCounts(msgspec.Struct, frozen=True):
    """How many jobs a group has, and how many of them ended in each way."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    timed_out: int = 0
    cancelled: int = 0
    retried: int = 0

    @property
    def ended(self) -> int:
        """How many jobs have ended."""
        return self.completed + self.failed + self.timed_out + self.cancelled

    @property
    def failures(self) -> int:
        """How many jobs failed or timed out and were not rerun in the group."""
        return max(0, self.failed + self.timed_out - self.retried)

    def plus(self, other: "GroupCounts") -> "GroupCounts":
        """Return the sums."""
        return GroupCounts(*map(operator.add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


class Delta(msgspec.Struct, frozen=True):
    """A change of the counts by one statement, with the times of the last addition and of the earliest start."""

    counts: GroupCounts
    added_at: Instant | None = None
    began_at: Instant | None = None


class NewGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group to create. The callbacks are jobs without arguments: they get them when the group finishes."""

    id: str
    name: str
    tenant: str
    kind: str = BATCH
    on_done: NewJob | None = None
    on_failure: NewJob | None = None
    open_for: Duration = OPEN_FOR
    opened_by: str | None = None


class JobGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group as of the last read."""

    id: str
    kind: str
    tenant: str
    name: str
    counts: GroupCounts
    running: int
    read_at: Instant
    created_at: Instant
    open_until: Instant
    began_at: Instant | None
    closed_at: Instant | None
    cancel_requested_at: Instant | None
    finished_at: Instant | None
    outcome: str | None
    reason: str
    on_done: str | None
    on_failure: str | None
    rerun_of: str | None

    @property
    def waiting(self) -> int:
        """How many jobs neither run nor have ended."""
        return max(0, self.counts.total - self.counts.ended - self.running)

    @property
    def progress(self) -> int:
        """The ended jobs in percent; 100 only when the group has finished."""
        if self.finished_at is not None:
            return 100
        return min(99, self.counts.ended * 100 // self.counts.total) if self.counts.total else 0

    @property
    def rate(self) -> float | None:
        """Ended jobs per second since the first of them began, without cancelled ones; None before one has ended."""
        if self.began_at is None:
            return None
        until = self.read_at if self.finished_at is None else self.finished_at
        ended = self.counts.ended - self.counts.cancelled
        return ended / max(until - self.began_at, 1) * SECOND if ended > 0 else None

    @property
    def eta_seconds(self) -> int | None:
        """When its known jobs will have ended, by the rate so far; None if that is not known."""
        rate = self.rate
        if self.finished_at is not None or not rate:
            return None
        return -int(-(self.counts.total - self.counts.ended) // rate)


class OpenGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What housekeeping knows of a group that it has locked."""

    counts: GroupCounts
    now: Instant
    open_for: Duration
    open_until: Instant
    began_at: Instant | None
    closed_at: Instant | None
    is_cancelled: bool
    is_finished: bool
    has_opener: bool
    is_rerun: bool
    reason: str


def folded(group: OpenGroup, deltas: list[Delta]) -> OpenGroup:
    """Add changes to a group; an addition extends the time for which it stays open."""
    counts, open_until, began_at = group.counts, group.open_until, group.began_at
    for delta in deltas:
        counts = counts.plus(delta.counts)
        if delta.added_at is not None:
            open_until = max(open_until, delta.added_at + group.open_for)
        if delta.began_at is not None:
            began_at = delta.began_at if began_at is None else min(began_at, delta.began_at)
    return msgspec.structs.replace(group, counts=counts, open_until=open_until, began_at=began_at)


def closed(group: OpenGroup, *, opener_completed: bool) -> OpenGroup:
    """Close a group that nobody closed: the job that opened it has completed, or nothing was added for long."""
    if group.closed_at is not None or group.is_rerun:
        return group
    if opener_completed:
        return msgspec.structs.replace(group, closed_at=group.now, reason="closed: the job that opened it completed")
    if group.open_until <= group.now:
        return msgspec.structs.replace(group, closed_at=group.now, reason="closed: nothing was added for too long")
    return group


def is_over(group: OpenGroup) -> bool:
    """Return whether a group is closed and all of its jobs have ended."""
    return group.closed_at is not None and group.counts.ended >= group.counts.total


def outcome_of(counts: GroupCounts, *, is_cancelled: bool) -> str:
    """Return the outcome of a finished group. One that was cancelled is cancelled, whatever its jobs were by then."""
    if is_cancelled:
        return "cancelled"
    if counts.failures:
        return "failed"
    return "cancelled" if counts.cancelled else "completed"


def next_look(group: OpenGroup) -> Instant | None:
    """Return when housekeeping must look at a group again although no job of it ended."""
    if group.is_finished:
        return None
    if group.is_cancelled:
        return group.now + SOON
    if group.closed_at is not None:
        return group.now + SAFETY_LOOK
    if group.is_rerun:
        return group.now + SOON
    return min(group.open_until, group.now + OPENER_LOOK) if group.has_opener else group.open_until


def callback_args(group: JobGroup) -> dict[str, Any]:
    """Return the arguments of `on_done` and `on_failure`: one, named `batch`."""
    counts = group.counts
    return {
        "batch": {
            "id": group.id,
            "name": group.name,
            "tenant": group.tenant,
            "outcome": group.outcome,
            "total": counts.total,
            "counts": {
                "completed": counts.completed,
                "failed": counts.failed,
                "timed_out": counts.timed_out,
                "cancelled": counts.cancelled,
            },
            "retried": counts.retried,
            "rerun_of": group.rerun_of,
        }
    }


CALLBACK_SAMPLE: Final[dict[str, Any]] = {"batch": {}}  # To check that a task takes these arguments.


def check_batch_name(name: object) -> str:
    """Return the name of a batch, or raise an error."""
    checked = check_name(name, "the name of a batch", KEY_LENGTH_MAX)
    if checked.startswith(_ID_PREFIX):
        raise InvalidTask(f"the name of a batch must not begin with {_ID_PREFIX}, as ids do")
    return checked


def is_batch_id(text: str) -> bool:
    """Return whether a text is the id of a batch, not a name."""
    return text.startswith(_ID_PREFIX)


class GroupWork(Protocol):
    """What a running attempt does with groups. Each raises `LeaseLost` when the attempt is over."""

    async def open_group_from(self, job_id: str, attempt: int, new: NewGroup, *, own: bool) -> JobGroup:
        """Create a batch, or return the one with this name; with `own`, also that of the job itself."""
        ...

    async def read_group_from(self, job_id: str, attempt: int, group_id: str) -> JobGroup:
        """Read a group."""
        ...

    async def close_group_from(self, job_id: str, attempt: int, group_id: str) -> JobGroup:
        """Close a group."""
        ...
