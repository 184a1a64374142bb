"""Jobs: as users enqueue them, as the store keeps them, and as a worker claims and reports them.

All are msgspec structs: a struct is created ten times as fast as a frozen dataclass.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypedDict

import msgspec

from headway.core.constructors import attributes, constructor
from headway.core.instants import Duration, DurationLike, Instant, InstantLike
from headway.core.lifecycle import Attempt, Backoff, Status
from headway.core.schedule_names import schedule_name
from headway.core.tenants import DEFAULT_TENANT
from headway.core.windows import Window

RESULT_BYTES_MAX: Final = 256 * 1024
ERROR_BYTES_MAX: Final = 16 * 1024
UNFINISHED_MAX: Final = 99  # Percent: 100 is for jobs that have completed.
METADATA_BYTES_MAX: Final = 16 * 1024
STEP_LENGTH_MAX: Final = 200


class Erased:
    """Marks a field with users' data: a purge empties it."""


@dataclass(frozen=True, slots=True)
class Large:
    """Marks a field that may be large: lists omit it if it has more than `spare` bytes beyond their limit."""

    spare: int = 0


ERASED: Final = Erased()
_BOUNDED: Final = Large(1 << 18)  # Workers write less than this.


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a job that it keeps as they were set."""

    tenant: str = DEFAULT_TENANT
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 1
    key: str | None = None
    tags: Annotated[tuple[str, ...], ERASED] = ()
    backoff: Backoff | None = None
    timeout: Duration | None = None
    metadata: Annotated[str | None, ERASED, _BOUNDED] = None


class EnqueueOptions(TypedDict, total=False):
    """The options of `enqueue`; the task or the server fills in what is left out."""

    delay: DurationLike | None
    at: InstantLike | None
    key: str | None
    queue: str | None
    priority: int | None
    tenant: str | None
    callback_url: str | None
    max_attempts: int | None
    timeout: DurationLike | None
    expires: DurationLike | None
    tags: Iterable[str] | None
    metadata: Mapping[str, Any] | None
    limit: str | None
    needs: Mapping[str, int | float | str] | None
    labels: Mapping[str, str] | None
    debounce: DurationLike | None
    max_wait: DurationLike | None
    throttle: DurationLike | None
    unique: DurationLike | None


class JobFields(JobOptions, frozen=True, kw_only=True):
    """What a job keeps from the moment it is enqueued; each field is a column, see `headway.store.job_columns`."""

    schedule: str | None = None
    occurrence_at: Instant | None = None
    blocked_by: str | None = None
    exclusive: bool = False
    parent: str | None = None
    rerun_of: str | None = None
    callback: Annotated[str | None, ERASED] = None
    limit_key: str = ""
    needs: str = ""  # What a worker must offer, as canonical text; see `headway.core.needs`.
    group_id: str | None = None
    group_tenant: str | None = None  # The tenant of its group, if that is another one: this tenant must not see it.


class NewJob(JobFields, frozen=True, kw_only=True):
    """A job to enqueue. Through a `window` it may be merged into another job."""

    id: str
    task: str
    args: str = "{}"
    delay: Duration = 0
    run_at: Instant | None = None
    expires: Duration | None = None
    window: Window | None = None


class Job(JobFields, frozen=True, kw_only=True):
    """A job as stored. `omitted` names the texts that were too large to read."""

    id: str
    task: str
    status: Status
    args: Annotated[str, Large()]
    created_at: Instant
    run_at: Instant
    attempt: int = 0
    failures: int = 0
    version: int = 1
    node: str | None = None
    lease_until: Instant | None = None
    ready_at: Instant | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    updated_at: Instant = 0
    cancel_requested_at: Instant | None = None
    progress: int = 0
    reason: str = ""
    result: Annotated[str | None, ERASED, Large()] = None
    error: Annotated[str | None, ERASED, _BOUNDED] = None
    detail: Annotated[str | None, ERASED, _BOUNDED] = None
    parked: str | None = None
    expires_at: Instant | None = None
    reviewed_at: Instant | None = None
    company: int | None = None
    omitted: tuple[str, ...] = ()

    @property
    def schedule_name(self) -> str | None:
        """The name of its schedule; `schedule` is the key."""
        return None if self.schedule is None else schedule_name(self.schedule)


class EnqueuedRow(msgspec.Struct, frozen=True):
    """The stored row of a new job; `is_new` is False when its key was used before with the same arguments.

    `is_merged` means that the call was merged into this job by its window.
    """

    id: str
    status: str
    created_at: Instant
    run_at: Instant
    is_new: bool
    earlier: Job | None = None  # The current state of the existing job; None for a new job.
    is_merged: bool = False

    @property
    def merged_into(self) -> str | None:
        """The id of the job that the call was merged into; None if it was not merged."""
        return self.id if self.is_merged else None

    def job_of(self, new: NewJob) -> Job:
        """Return the stored job without reading it again."""
        if self.earlier is not None:
            return self.earlier
        status = Status(self.status)
        ready_at = self.created_at if status is Status.PENDING else None
        job: Job = _created_job(self, new, status, ready_at)
        return job


_created_job: Final = constructor(
    Job,
    "row, new, status, ready_at",
    {
        **attributes("new", JobFields.__struct_fields__),
        "id": "row.id",
        "task": "new.task",
        "args": "new.args",
        "status": "status",
        "created_at": "row.created_at",
        "updated_at": "row.created_at",
        "run_at": "row.run_at",
        "ready_at": "ready_at",
        "expires_at": "None if new.expires is None else row.run_at + new.expires",
    },
)


class Claimed(Attempt, frozen=True, kw_only=True):
    """A claimed job: what a worker needs to run it and to settle the attempt."""

    task: str
    args: str
    tenant: str
    queue: str
    priority: int
    run_at: Instant
    reason: str = ""
    occurrence_at: Instant | None = None
    timeout: Duration | None = None
    metadata: str | None = None
    log_bytes: int = 0
    unreadable: str | None = None
    gates: tuple[str, ...] = ()  # The limits that count this attempt.
    share: str | None = None  # The tenant that is charged for it; None: nobody is.
    reserved: Duration = 0  # What the tenant was charged when it started.
    needs: str = ""  # What it uses of the worker's offer.

    @property
    def id(self) -> str:
        """The id of the job."""
        return self.job_id


class Suspect(msgspec.Struct, frozen=True):
    """A ready job that may have crashed workers: at most `company` such jobs run together; 0 means alone."""

    job_id: str
    task: str
    company: int
    waited: Duration
    needs: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Progress and log lines of a running attempt since its last report; reports of stale attempts are dropped."""

    job_id: str
    attempt: int
    progress: int | None = None
    detail: str | None = None
    metadata: str | None = None
    lines: tuple[tuple[Instant | None, str, str], ...] = ()  # Time, stream, text.
