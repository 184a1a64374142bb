"""Convert rows of the table `jobs` into jobs and claims, and new jobs into rows."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from headway.core.constructors import attributes, constructor
from headway.core.instants import DURATION_MAX, INSTANT_MAX, INSTANT_MIN, Duration, Instant
from headway.core.jobs import Claimed, Job, JobFields, NewJob
from headway.core.json_values import ARGS_BYTES_MAX
from headway.core.lifecycle import ATTEMPT_MAX, Attempt, Backoff, Status
from headway.store import job_columns
from headway.store.statements import TEXT_BYTES_MAX
from headway.store.transaction import Row, StatementCall, as_json, call

T = TypeVar("T", bound=msgspec.Struct)
ANY_SIZE: Final = 2**62  # In bytes; no text is larger.


# A new job as a row of the statement `enqueue`; what is None is left out, and null there.
_NewRow: Final = msgspec.defstruct(
    "_NewRow",
    [(name, Any, "" if name in job_columns.BLANK else None) for name in job_columns.NEW],
    frozen=True,
    kw_only=True,
    omit_defaults=True,
)


def insertion(jobs: Iterable[NewJob]) -> StatementCall:
    """Return the statement that inserts jobs."""
    return call("enqueue", jobs=as_json([job_row(job) for job in jobs]))


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


job_row: Final = constructor(
    _NewRow,
    "job",
    {
        **attributes("job", job_columns.NEW),
        **{name: f"int(job.{name})" for name in job_columns.FLAGS},
        **{name: f"as_json(job.{name}) if job.{name} else None" for name in job_columns.LISTS},
        "options": "options(job.backoff, job.timeout)",
    },
    as_json=as_json,
    options=_options,
)


def _from_row(struct: type[T]) -> Callable[[Row, _Options], T]:
    """Return a function that builds a struct from a row and its decoded options."""
    names = [name for name in struct.__struct_fields__ if name in job_columns.ALL]
    return constructor(
        struct,
        "row, options",
        {
            **{name: f"row['{name}']" for name in names},
            **{name: f"row['{name}'] == 1" for name in names if name in job_columns.FLAGS},
            **{name: f"read_tags(row['{name}'])" for name in names if name in job_columns.LISTS},
            **{name: f"Status(row['{name}'])" for name in names if name in job_columns.STATUSES},
            "backoff": "options.retry_backoff()",
            "timeout": "options.timeout",
        },
        read_tags=read_tags,
        Status=Status,
    )


_job: Final = _from_row(Job)
_kept: Final = _from_row(JobFields)


def read_job(row: Row) -> Job:
    """Read a job from a row."""
    return _job(row, read_options(row["options"]))


def read_kept(row: Row) -> JobFields:
    """Read what a rerun takes over from a job."""
    return _kept(row, read_options(row["options"]))


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


def read_claimed(
    row: Iterable[Any], *, gates: tuple[str, ...] = (), share: str | None = None, reserved: Duration = 0
) -> Claimed:
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
        gates=gates,
        share=share,
        reserved=reserved,
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
