"""Convert rows of the table `jobs` into jobs and claims, and new jobs into rows."""

from collections.abc import Iterable
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from headway.core.instants import DURATION_MAX, INSTANT_MAX, INSTANT_MIN, Duration, Instant
from headway.core.jobs import Claimed, Job, NewJob
from headway.core.json_values import ARGS_BYTES_MAX
from headway.core.lifecycle import ATTEMPT_MAX, Attempt, Backoff, Status
from headway.store.statements import TEXT_BYTES_MAX
from headway.store.transaction import Row, as_json

ANY_SIZE: Final = 2**62  # In bytes; no text is larger.


class JobRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A new job as a row of the statement `enqueue`; omitted fields are null there."""

    id: str
    tenant: str
    task: str
    queue: str
    priority: int
    max_attempts: int
    exclusive: int
    args: str
    delay: Duration
    key: str | None = None
    schedule: str | None = None
    occurrence_at: Instant | None = None
    blocked_by: str | None = None
    tags: str | None = None
    options: str | None = None
    metadata: str | None = None
    parent: str | None = None
    rerun_of: str | None = None
    callback: str | None = None
    expires: Duration | None = None
    run_at: Instant | None = None


def job_row(job: NewJob) -> JobRow:
    """Return a new job as a row."""
    return JobRow(
        id=job.id,
        tenant=job.tenant,
        task=job.task,
        queue=job.queue,
        priority=job.priority,
        max_attempts=job.max_attempts,
        exclusive=int(job.exclusive),
        args=job.args,
        delay=job.delay,
        key=job.key,
        schedule=job.schedule,
        occurrence_at=job.occurrence_at,
        blocked_by=job.blocked_by,
        tags=as_json(job.tags) if job.tags else None,
        options=_options(job.backoff, job.timeout),
        metadata=job.metadata,
        parent=job.parent,
        rerun_of=job.rerun_of,
        callback=job.callback,
        expires=job.expires,
        run_at=job.run_at,
    )


_Bounded: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=DURATION_MAX)]  # The store cannot hold more.


class _Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rare options of a job, kept in one JSON column."""

    backoff: tuple[_Bounded, _Bounded] | None = None
    timeout: _Bounded | None = None

    def retry_backoff(self) -> Backoff | None:
        """Return the back-off of the job, if it has one."""
        return None if self.backoff is None else Backoff(first=self.backoff[0], most=self.backoff[1])


_NO_OPTIONS: Final = _Options()


_decode_options: Final = msgspec.json.Decoder(_Options).decode


def _options(backoff: Backoff | None, timeout: Duration | None) -> str | None:
    if backoff is None and timeout is None:
        return None
    bounds = None if backoff is None else (backoff.first, backoff.most)
    return msgspec.json.encode(_Options(backoff=bounds, timeout=timeout)).decode()


def read_options(text: str | None) -> _Options:
    """Decode options; return none if they are invalid, so that the job can still be shown and expired."""
    if text is None:
        return _NO_OPTIONS
    try:
        return _decode_options(text)
    except (msgspec.DecodeError, RecursionError, TypeError):
        return _NO_OPTIONS


def read_tags(text: str | None) -> tuple[str, ...]:
    if not text:
        return ()
    try:
        return tuple(msgspec.json.decode(text, type=list[str]))
    except (msgspec.DecodeError, RecursionError):
        return ()


def read_job(row: Row) -> Job:
    """Read a job from a row."""
    options = read_options(row["options"])
    return Job(
        id=row["id"],
        task=row["task"],
        status=Status(row["status"]),
        tenant=row["tenant"],
        queue=row["queue"],
        priority=row["priority"],
        args=row["args"],
        created_at=row["created_at"],
        run_at=row["run_at"],
        max_attempts=row["max_attempts"],
        attempt=row["attempt"],
        failures=row["failures"],
        version=row["version"],
        key=row["key"],
        tags=read_tags(row["tags"]),
        schedule=row["schedule"],
        occurrence_at=row["occurrence_at"],
        blocked_by=row["blocked_by"],
        node=row["node"],
        lease_until=row["lease_until"],
        ready_at=row["ready_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        updated_at=row["updated_at"],
        cancel_requested_at=row["cancel_requested_at"],
        progress=row["progress"],
        reason=row["reason"],
        result=row["result"],
        error=row["error"],
        backoff=options.retry_backoff(),
        timeout=options.timeout,
        metadata=row["metadata"],
        detail=row["detail"],
        parent=row["parent"],
        rerun_of=row["rerun_of"],
        parked=row["parked"],
        expires_at=row["expires_at"],
        reviewed_at=row["reviewed_at"],
        exclusive=row["exclusive"] == 1,
        callback=row["callback"],
        company=row["company"],
    )


def read_listed_job(row: Row) -> Job:
    """Read a job from a row of `{job_columns}`, in which large texts may be omitted."""
    omitted = tuple(row["omitted"].split())
    if not omitted:
        return read_job(row)
    return msgspec.structs.replace(read_job(row), args=row["args"] or "null", omitted=omitted)


DEFAULT_BACKOFF: Final = Backoff()
_TOO_LARGE: Final = f"its {{}} larger than {TEXT_BYTES_MAX:,} bytes"


def count_in(value: object, most: int = ATTEMPT_MAX) -> int:
    """Read a number that may be corrupt; return 0 if it is invalid."""
    return min(value, most) if isinstance(value, int) and value >= 0 else 0


def _is_sane(
    attempt: int,
    failures: int,
    max_attempts: int,
    priority: int,
    run_at: Instant,
    occurrence_at: Instant | None,
    log_bytes: int,
) -> bool:
    """Return whether the numbers of a job are valid; SQLite also stores text in integer columns."""
    try:
        return (
            0 < attempt < ATTEMPT_MAX
            and 0 <= failures <= ATTEMPT_MAX
            and 0 <= max_attempts <= ATTEMPT_MAX
            and INSTANT_MIN <= run_at <= INSTANT_MAX
            and (occurrence_at is None or INSTANT_MIN <= occurrence_at <= INSTANT_MAX)
            and log_bytes >= 0
            and type(priority) is int
        )
    except TypeError:
        return False


def _unreadable_args(args: object) -> str:
    if not isinstance(args, str):  # SQLite stores any type in any column.
        return "its arguments are not text"
    if not args:
        return _TOO_LARGE.format("arguments are")
    return f"its arguments have {len(args):,} characters, at most {ARGS_BYTES_MAX:,} are run"


def read_claimed(row: Iterable[Any]) -> Claimed:
    """Read a claimed job; an undecodable row is marked `unreadable`, and other rows are unaffected."""
    (
        job_id,
        task,
        args,
        attempt,
        failures,
        max_attempts,
        tenant,
        queue,
        priority,
        schedule,
        occurrence_at,
        options_text,
        metadata,
        reason,
        run_at,
        log_bytes,
    ) = row  # By position, in the order of the statement: access by name is slower.
    options, unreadable = _NO_OPTIONS, None
    if options_text is not None:
        try:
            options = _decode_options(options_text)
        except (msgspec.DecodeError, RecursionError, TypeError) as error:
            unreadable = f"its options cannot be read: {error}" if options_text else _TOO_LARGE.format("options are")
    if not isinstance(args, str) or not 0 < len(args) <= ARGS_BYTES_MAX:
        unreadable, args = _unreadable_args(args), "{}"
    if metadata is not None and (not isinstance(metadata, str) or not metadata):
        unreadable, metadata = "its metadata is not text" if metadata else _TOO_LARGE.format("metadata is"), None
    if not _is_sane(attempt, failures, max_attempts, priority, run_at, occurrence_at, log_bytes):
        numbers = f"attempt {attempt}, failures {failures} of {max_attempts}, priority {priority}, run_at {run_at}"
        unreadable = f"its numbers make no sense: {numbers}, occurrence_at {occurrence_at}, log_bytes {log_bytes}"
        failures, max_attempts, priority = (count_in(value) for value in (failures, max_attempts, priority))
        run_at, occurrence_at, log_bytes = 0, None, 0
    return Claimed(
        job_id=job_id,
        task=task,
        args=args,
        attempt=attempt,
        failures=failures,
        max_attempts=max_attempts,
        tenant=tenant,
        queue=queue,
        priority=priority,
        schedule=schedule,
        occurrence_at=occurrence_at,
        reason=reason if isinstance(reason, str) else "",
        run_at=run_at,
        backoff=options.retry_backoff() or DEFAULT_BACKOFF,
        timeout=options.timeout,
        metadata=metadata,
        log_bytes=log_bytes,
        unreadable=unreadable,
    )


def read_lost_attempt(row: Row) -> Attempt:
    return Attempt(
        job_id=row["id"],
        attempt=row["attempt"],
        failures=count_in(row["failures"]),
        max_attempts=count_in(row["max_attempts"]),
        schedule=row["schedule"],
        backoff=read_options(row["options"]).retry_backoff() or DEFAULT_BACKOFF,
    )
