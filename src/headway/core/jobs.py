"""Jobs: as users enqueue them, as the store keeps them, and as a worker claims and reports them.

All are msgspec structs: a struct is created ten times as fast as a frozen dataclass.
"""

from typing import Final

import msgspec

from headway.core.instants import Duration, Instant
from headway.core.lifecycle import Attempt, Backoff, Status
from headway.core.schedule_names import schedule_name
from headway.core.tenants import DEFAULT_TENANT

RESULT_BYTES_MAX: Final = 256 * 1024
ERROR_BYTES_MAX: Final = 16 * 1024
UNFINISHED_MAX: Final = 99  # Percent: 100 is for jobs that have completed.
METADATA_BYTES_MAX: Final = 16 * 1024
STEP_LENGTH_MAX: Final = 200


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to enqueue."""

    id: str
    task: str
    args: str = "{}"
    tenant: str = DEFAULT_TENANT
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 1
    key: str | None = None
    tags: tuple[str, ...] = ()
    delay: Duration = 0
    run_at: Instant | None = None
    schedule: str | None = None
    occurrence_at: Instant | None = None
    blocked_by: str | None = None
    exclusive: bool = False
    backoff: Backoff | None = None
    timeout: Duration | None = None
    expires: Duration | None = None
    metadata: str | None = None
    parent: str | None = None
    rerun_of: str | None = None
    callback: str | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as stored. `omitted` names the texts that were too large to read."""

    id: str
    task: str
    status: Status
    tenant: str
    queue: str
    priority: int
    args: str
    created_at: Instant
    run_at: Instant
    max_attempts: int
    attempt: int = 0
    failures: int = 0
    version: int = 1
    key: str | None = None
    tags: tuple[str, ...] = ()
    schedule: str | None = None
    occurrence_at: Instant | None = None
    blocked_by: str | None = None
    node: str | None = None
    lease_until: Instant | None = None
    ready_at: Instant | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    updated_at: Instant = 0
    cancel_requested_at: Instant | None = None
    progress: int = 0
    reason: str = ""
    result: str | None = None
    error: str | None = None
    backoff: Backoff | None = None
    timeout: Duration | None = None
    metadata: str | None = None
    detail: str | None = None
    parent: str | None = None
    rerun_of: str | None = None
    parked: str | None = None
    expires_at: Instant | None = None
    reviewed_at: Instant | None = None
    exclusive: bool = False
    callback: str | None = None
    company: int | None = None
    omitted: tuple[str, ...] = ()

    @property
    def schedule_name(self) -> str | None:
        """The name of its schedule; `schedule` is the key."""
        return None if self.schedule is None else schedule_name(self.schedule)


class EnqueuedRow(msgspec.Struct, frozen=True):
    """The stored row of a new job; `is_new` is False when its key was used before with the same arguments."""

    id: str
    status: str
    created_at: Instant
    run_at: Instant
    is_new: bool
    earlier: Job | None = None  # The current state of the job that has the key; None for a new job.

    def job_of(self, new: NewJob) -> Job:
        """Return the stored job without reading it again."""
        if self.earlier is not None:
            return self.earlier
        status = Status(self.status)
        return Job(
            id=self.id,
            task=new.task,
            status=status,
            tenant=new.tenant,
            queue=new.queue,
            priority=new.priority,
            args=new.args,
            created_at=self.created_at,
            run_at=self.run_at,
            ready_at=self.created_at if status is Status.PENDING else None,
            updated_at=self.created_at,
            max_attempts=new.max_attempts,
            key=new.key,
            tags=new.tags,
            backoff=new.backoff,
            timeout=new.timeout,
            metadata=new.metadata,
            expires_at=None if new.expires is None else self.run_at + new.expires,
            callback=new.callback,
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


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Progress and log lines of a running attempt since its last report; reports of stale attempts are dropped."""

    job_id: str
    attempt: int
    progress: int | None = None
    detail: str | None = None
    metadata: str | None = None
    lines: tuple[tuple[Instant | None, str, str], ...] = ()  # Time, stream, text.
