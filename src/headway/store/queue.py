"""The queue in the store: enqueue, promote, claim, extend, settle, expire, cancel, prune.

Every change of a job that runs is guarded by (id, attempt, RUNNING): an attempt that was taken away finds no row,
changes nothing and is told so. What a finished attempt makes of its job is decided in `lifecycle.settle`, here it
is only written, together with the trace of the attempt.

When a job ends, two others may be waiting for it: the next in line of its schedule (BLOCKED behind it), and the
schedule itself when it has a fixed delay. Both are moved in the same transaction.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from headway.core.clock import Clock
from headway.core.errors import (
    AlreadyFinal,
    Conflict,
    DefinitionError,
    DuplicateKey,
    InvalidTask,
    JobNotFound,
    LeaseLost,
    NotFinal,
    StoreUnavailable,
)
from headway.core.instants import DAY, DURATION_MAX, HOUR, INSTANT_MAX, INSTANT_MIN, SECOND, Duration, Instant
from headway.core.lifecycle import (
    APART_MAX,
    ATTEMPT_MAX,
    FINAL,
    Attempt,
    Backoff,
    LeaseExpired,
    Outcome,
    Released,
    Settlement,
    Status,
    settle,
)
from headway.core.model import (
    ARGS_BYTES_MAX,
    LOG_LINE_OVERHEAD,
    REASON_LENGTH_MAX,
    Claimed,
    EnqueuedRow,
    Job,
    NewJob,
    Report,
    ScheduleSpec,
    Suspect,
    storable,
)
from headway.store.coordination import keep_tallies
from headway.store.job_filter import JobFilter, has_index, tenant_of
from headway.store.statements import TEXT_BYTES_MAX
from headway.store.transaction import Call, ConstraintViolated, Driver, Row, Rows, Transaction, as_json, call
from headway.store.webhooks import ensure_callbacks

ENQUEUE_MAX: Final = 10_000
ENQUEUE_STEP: Final = 1_000  # Rows in one statement; a larger one does not fit into the memory that databases give it.
WHOLE: Final = 2**62  # No text is so large.
EARLIER_STEP: Final = 100  # Jobs that have the keys of new ones, read at once: whole, to be compared.
PAGE_MAX: Final = 200
LOG_PAGE_MAX: Final = 10_000
QUEUES_MAX: Final = 1_000
ERASED: Final = "erased"  # The reason of a job of which only its times and its end are left.
HELD_MAX: Final = 100_000
LIVES_AFTER: Final = SECOND
_LAST_ID: Final = "~"  # Sorts after every id.
_LAST_SEQ: Final = 2**63 - 1
_LINE: Final = ("seq", "attempt", "at", "stream", "line", "version")
_BYPASS_ROUNDS_MAX: Final = 10_000
_LEASES_KEPT: Final = HOUR  # After they ran out; so long everybody can see who had them last.
_NODES_KEPT: Final = DAY


class JobRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A new job as the row that the statement `enqueue` unfolds; what it does not have is left out, and null there."""

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
    """Write a new job as a row."""
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


_Bounded: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=DURATION_MAX)]  # What is longer does not fit into the store.


class _Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """What few jobs have, in one column of JSON."""

    backoff: tuple[_Bounded, _Bounded] | None = None
    timeout: _Bounded | None = None

    def patience(self) -> Backoff | None:
        """Return how long a failed job waits."""
        return None if self.backoff is None else Backoff(first=self.backoff[0], most=self.backoff[1])


_NO_OPTIONS: Final = _Options()
_decode_options: Final = msgspec.json.Decoder(_Options).decode


def _options(backoff: Backoff | None, timeout: Duration | None) -> str | None:
    if backoff is None and timeout is None:
        return None
    patience = None if backoff is None else (backoff.first, backoff.most)
    return msgspec.json.encode(_Options(backoff=patience, timeout=timeout)).decode()


def _read_options(text: str | None) -> _Options:
    """Read options as far as they can be read: whoever shows or expires a job must not fall over one."""
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
    """Make a job of a row."""
    options = _read_options(row["options"])
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
        backoff=options.patience(),
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
    """Make a job of a row of `{job_columns}`, in which large texts may be left out."""
    omitted = tuple(row["omitted"].split())
    if not omitted:
        return read_job(row)
    return msgspec.structs.replace(read_job(row), args=row["args"] or "null", omitted=omitted)


_DEFAULT_BACKOFF: Final = Backoff()
_TOO_LARGE: Final = f"its {{}} larger than {TEXT_BYTES_MAX:,} bytes"


def _count(value: object, most: int = ATTEMPT_MAX) -> int:
    """Read a number that somebody may have spoiled; what makes no sense counts as none."""
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
    """Say whether a job can be run with such numbers; SQLite keeps texts in their columns as well."""
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
    if not isinstance(args, str):  # SQLite keeps what it is given, whatever the column says.
        return "its arguments are not text"
    if not args:
        return _TOO_LARGE.format("arguments are")
    return f"its arguments have {len(args):,} characters, at most {ARGS_BYTES_MAX:,} are run"


def read_claimed(row: Iterable[Any]) -> Claimed:
    """Make of a claimed row what a worker needs; what cannot be read is said, and stops nobody else's job."""
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
    ) = row  # In the order of the statement: by name takes longer.
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
        failures, max_attempts, priority = (_count(value) for value in (failures, max_attempts, priority))
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
        backoff=options.patience() or _DEFAULT_BACKOFF,
        timeout=options.timeout,
        metadata=metadata,
        log_bytes=log_bytes,
        unreadable=unreadable,
    )


def insert(rows: Sequence[JobRow]) -> Transaction[Rows]:
    """Insert jobs as they are; those with a callback_url have what tells their end."""
    yield from ensure_callbacks({row.tenant for row in rows if row.callback is not None})
    return (yield call("enqueue", jobs=as_json(rows)))


def enqueue(jobs: Sequence[NewJob], largest: int = WHOLE) -> Transaction[list[EnqueuedRow]]:
    """Insert jobs, all or none. A key that exists with the same task and arguments gives the job that has it.

    Of such a job, a result of more bytes than `largest` is left out.
    """
    if len(jobs) > ENQUEUE_MAX:
        raise InvalidTask(
            f"at most {ENQUEUE_MAX:,} jobs can be enqueued at once, not {len(jobs):,}; enqueue them in parts"
        )
    yield from ensure_callbacks({job.tenant for job in jobs if job.callback is not None})
    found: dict[str, EnqueuedRow] = {}
    for start in range(0, len(jobs), ENQUEUE_STEP):
        rows = yield call("enqueue", jobs=as_json([job_row(job) for job in jobs[start : start + ENQUEUE_STEP]]))
        for row in rows:
            found[row["id"]] = EnqueuedRow(row["id"], row["status"], row["created_at"], row["run_at"], True)
    if len(found) == len(jobs):
        return [found[job.id] for job in jobs]
    return (yield from _with_earlier(jobs, found, largest))


def _with_earlier(
    jobs: Sequence[NewJob], found: dict[str, EnqueuedRow], largest: int = WHOLE
) -> Transaction[list[EnqueuedRow]]:
    absent = [(number, job) for number, job in enumerate(jobs) if job.id not in found]
    for start in range(0, len(absent), EARLIER_STEP):
        yield from _compare_earlier(absent[start : start + EARLIER_STEP], found, largest, is_one=len(jobs) == 1)
    return [found[job.id] for job in jobs]


def _compare_earlier(
    absent: Sequence[tuple[int, NewJob]], found: dict[str, EnqueuedRow], largest: int, *, is_one: bool
) -> Transaction[None]:
    keys = as_json([{"tenant": job.tenant, "key": job.key} for _, job in absent])
    earlier = {(row["tenant"], row["key"]): row for row in (yield call("jobs_by_key", keys=keys))}
    for number, job in absent:
        row = earlier.get((job.tenant, job.key))
        if row is None:
            raise StoreUnavailable(f"the job with the key {job.key!r} was pruned at this moment; try again")
        if (row["task"], row["args"]) != (job.task, job.args):
            which = "" if is_one else f"jobs[{number}]: "
            raise DuplicateKey(
                f"{which}key {job.key!r} was used for {row['id']} with other arguments;"
                " use another key, or the same arguments"
            )
        same = msgspec.structs.replace(read_job(row), args=job.args)  # As they are equal, one of them is enough.
        if same.result is not None and len(same.result) > largest:
            same = msgspec.structs.replace(same, result=None, omitted=("result",))
        found[job.id] = EnqueuedRow(row["id"], row["status"], row["created_at"], row["run_at"], False, same)


def end(job_ids: Sequence[str], schedules: Iterable[str | None]) -> Transaction[None]:
    """Move what waited for these ended jobs: the next in line, and schedules with a fixed delay."""
    names = sorted({name for name in schedules if name})
    if names:
        yield call("promote_successors", ids=as_json(job_ids))
        yield call("follow", names=as_json(names))


def cancel(
    job_ids: Sequence[str], reason: str, *, moves_on: bool = True, stops_running: bool = True
) -> Transaction[tuple[list[str], list[str]]]:
    """End jobs that are not running and, unless they shall be left alone, ask running ones to stop; return both lists.

    What waited for them moves on, unless the caller puts something in their place.
    """
    ids = as_json(sorted(job_ids))
    yield call("lock_jobs", ids=ids)  # Else a worker could hand one back after it was looked at as not running.
    ended = yield call("cancel", ids=ids, reason=reason)
    asked = (yield call("request_cancel", ids=ids, reason=reason)) if stops_running else []
    if ended and moves_on:
        gone = [row["id"] for row in ended]
        for _ in range(_BYPASS_ROUNDS_MAX):  # Ends after as many rounds as cancelled jobs stood in one line.
            if not (yield call("bypass", ids=as_json(gone))):
                break
        freed = [*gone, *(row["blocked_by"] for row in ended if row["blocked_by"])]
        yield from end(freed, (row["schedule"] for row in ended))
    yield from record_events([(row["id"], "cancelled", {"reason": reason}) for row in ended])
    yield from record_events([(row["id"], "cancel_requested", {"reason": reason}) for row in asked])
    return [row["id"] for row in ended], [row["id"] for row in asked]


def cancel_in_line(
    job_ids: Sequence[str], reason: str, *, stops_running: bool = True
) -> Transaction[tuple[list[str], list[str]]]:
    """Cancel jobs while nobody else changes the lines that they stand in."""
    yield call("lock_lines", ids=as_json(sorted(job_ids)))
    return (yield from cancel(job_ids, reason, stops_running=stops_running))


def settle_attempts(settlements: Sequence[Settlement]) -> Transaction[frozenset[str]]:
    """Write what ended attempts make of their jobs; return the ids of stale ones.

    A job that was asked to stop does not run again, whatever ended its attempt.
    """
    by_attempt = {(settlement.job_id, settlement.attempt): settlement for settlement in settlements}
    written = yield from _settle_completed([s for s in by_attempt.values() if s.status is Status.COMPLETED])
    written |= yield from _settle_others([s for s in by_attempt.values() if s.status is not Status.COMPLETED])
    yield from count_failures([s for attempt, s in by_attempt.items() if attempt in written and s.schedule])
    if len(written) == len(by_attempt):
        return frozenset()
    absent = [settlement for attempt, settlement in by_attempt.items() if attempt not in written]
    return (yield from _refuse(absent))


def _settle_completed(settlements: Sequence[Settlement]) -> Transaction[set[tuple[str, int]]]:
    if not settlements:
        return set()
    rows = yield completed(settlements)
    in_line = [row for row in rows if row["schedule"] is not None]
    yield from end([row["id"] for row in in_line], (row["schedule"] for row in in_line))
    return {(row["id"], row["attempt"]) for row in rows}


class _CompletedRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A success as the row that the statement `settle_completed` unfolds; most have no result."""

    job_id: str
    job_attempt: int
    to_result: str | None = None


def completed(settlements: Sequence[Settlement]) -> Call:
    """Write successes: one statement, however many there are."""
    rows = [_CompletedRow(settlement.job_id, settlement.attempt, settlement.result) for settlement in settlements]
    return call("settle_completed", attempts=as_json(rows))


def _settle_others(settlements: Sequence[Settlement]) -> Transaction[set[tuple[str, int]]]:
    if not settlements:
        return set()
    by_attempt = {(settlement.job_id, settlement.attempt): settlement for settlement in settlements}
    rows = yield call("settle", settlements=as_json([_settlement_row(s) for s in settlements]))
    written = {(row["id"], row["attempt"]): row for row in rows}
    if written:
        traces = [_attempt_row(row, by_attempt[attempt]) for attempt, row in written.items()]
        yield call("record_attempts", attempts=as_json(traces))
    ended = [row for row in rows if row["finished_at"] is not None]
    yield from end([row["id"] for row in ended], (row["schedule"] for row in ended))
    asked = [row["id"] for row in rows if row["finished_at"] is None and row["cancel_requested_at"] is not None]
    if asked:
        yield from cancel(asked, "stopped as asked")
    return set(written)


def count_failures(settlements: Sequence[Settlement]) -> Transaction[None]:
    """Note for schedules how many of their jobs have failed in a row."""
    failed: dict[str, int] = {}
    succeeded: set[str] = set()
    for settlement in settlements:
        name = settlement.schedule
        if name is None or settlement.status not in FINAL or settlement.status is Status.CANCELLED:
            continue
        if settlement.status is Status.COMPLETED:
            failed[name] = 0
            succeeded.add(name)
        else:
            failed[name] = failed.get(name, 0) + 1
    if failed:
        rows = [{"schedule": name, "failed": failed[name], "succeeded": int(name in succeeded)} for name in failed]
        yield call("count_failures", ends=as_json(rows))


def _refuse(settlements: Sequence[Settlement]) -> Transaction[frozenset[str]]:
    """Tell stale settlements from those whose first answer was lost on its way; leave a trace of the stale ones."""
    asked = [{"job_id": s.job_id, "attempt": s.attempt, "outcome": s.outcome} for s in settlements]
    rows = yield call("settled_already", attempts=as_json(asked))
    known = {(row["job_id"], row["attempt"]) for row in rows}
    stale = [settlement for settlement in settlements if (settlement.job_id, settlement.attempt) not in known]
    yield from record_events(
        [(s.job_id, "settle_refused", {"attempt": s.attempt, "outcome": s.outcome}) for s in stale]
    )
    return frozenset(settlement.job_id for settlement in stale)


def _settlement_row(settlement: Settlement) -> dict[str, object]:
    return {
        "job_id": settlement.job_id,
        "job_attempt": settlement.attempt,
        "to_status": settlement.status,
        "final": int(settlement.status in FINAL),
        "to_failures": settlement.failures,
        "to_reason": settlement.reason,
        "to_error": settlement.error,
        "to_parked": settlement.parked,
        "retry_in": settlement.retry_in,
        "to_company": settlement.company,
        "to_apart_for": settlement.apart_for,
    }


def _attempt_row(row: Row, settlement: Settlement) -> dict[str, object]:
    return {
        "job_id": row["id"],
        "attempt": row["attempt"],
        "node": row["node"],
        "ready_at": row["ready_at"],
        "started_at": row["started_at"],
        "ended_at": row["updated_at"],
        "outcome": settlement.outcome,
        "reason": settlement.reason,
        "error": settlement.error,
    }


def record_events(events: Sequence[tuple[str, str, dict[str, Any]]]) -> Transaction[None]:
    """Keep a trace of what happened to jobs: each by its id, its name and what there is to say."""
    if events:
        rows = [
            {"job_id": job_id, "schedule": None, "event": event, "data": msgspec.json.encode(data).decode()}
            for job_id, event, data in events
        ]
        yield call("record_events", events=as_json(rows))


def _expire(limit: int, clock: Clock) -> Transaction[list[str]]:
    rows = yield call("expired", limit=limit)
    if not rows:
        return []
    beside = yield from _beside(rows)
    settlements = [settle(_lost_attempt(row), _loss(row, beside), clock.chance.random()) for row in rows]
    yield from settle_attempts(settlements)
    return [row["id"] for row in rows]


def _beside(rows: Sequence[Row]) -> Transaction[dict[str, tuple[int, int]]]:
    """Count by worker the jobs that it had while it had the lost ones, and the suspects among them."""
    since: dict[str, Instant] = {}
    for row in rows:
        node, started_at = row["node"] or "", _count(row["started_at"], INSTANT_MAX)
        since[node] = min(since.get(node, started_at), started_at)
    nodes = as_json([{"lost_node": node, "since": started_at} for node, started_at in since.items()])
    return {row["node"]: (row["jobs"], row["suspects"]) for row in (yield call("beside", nodes=nodes, limit=HELD_MAX))}


def _loss(row: Row, beside: dict[str, tuple[int, int]]) -> Outcome:
    """Say what it means that a lease ran out. A worker that was heard of later lives, and has not got the job."""
    lease_until, started_at = row["lease_until"], _count(row["started_at"], INSTANT_MAX)
    is_alive = (row["beat_at"] or 0) > lease_until + LIVES_AFTER
    if is_alive and lease_until >= started_at:  # Else somebody has ended the lease by hand.
        return Released("handed back: its worker lives, but could not keep its lease")
    jobs, suspects = beside.get(row["node"], (1, 0))
    was_suspect = row["company"] is not None
    return LeaseExpired(
        losses=row["losses"] + 1,
        beside=jobs - 1,
        suspects=max(0, suspects - was_suspect),
        was_suspect=was_suspect,
        longest=max(_count(row["longest"], DURATION_MAX), lease_until - started_at),
    )


def _lost_attempt(row: Row) -> Attempt:
    return Attempt(
        job_id=row["id"],
        attempt=row["attempt"],
        failures=_count(row["failures"]),
        max_attempts=_count(row["max_attempts"]),
        schedule=row["schedule"],
        backoff=_read_options(row["options"]).patience() or _DEFAULT_BACKOFF,
    )


def _waited(row: Row) -> Duration:
    waited: Duration = row["now"] - _count(row["ready_at"], INSTANT_MAX)
    return _count(waited, DURATION_MAX)


def _hand_back_unknown(
    node: str, known: Collection[tuple[str, int]], given_up: Collection[tuple[str, int]]
) -> Transaction[list[str]]:
    rows = yield call("held_by_node", node=node, limit=HELD_MAX)
    unknown = [
        row
        for row in rows
        if (attempt := (row["id"], row["attempt"])) not in known
        and (
            attempt not in given_up or _count(row["lease_until"], INSTANT_MAX) < row["now"]
        )  # Until then its code may not be dead yet.
    ]
    reason = Released("handed back: its worker did not hear that it had it, or could not keep its lease")
    if unknown:
        yield from settle_attempts([settle(_lost_attempt(row), reason, 0.0) for row in unknown])
    return [row["id"] for row in unknown]


def _promote(limit: int) -> Transaction[int]:
    due = yield call("promote", limit=limit)
    free = yield call("promote_blocked", limit=limit)
    return len(due) + len(free)


def _prune(retention: Duration, limit: int) -> Transaction[int]:
    jobs = yield call("prune_jobs", retention=retention, limit=limit)
    if jobs:
        ids = as_json([row["id"] for row in jobs])
        yield call("prune_attempts", ids=ids)
        yield call("prune_job_events", ids=ids)
        yield call("prune_log", ids=ids)
        yield call("prune_steps", ids=ids)
    occurrences = yield call("prune_occurrences", retention=retention, limit=limit)
    if occurrences:
        newest = max(row["decided_at"] for row in occurrences)
        yield call("raise_counter", name="pruned_through", value=newest)
    events = yield call("prune_events", retention=retention, limit=limit)
    leases = yield call("prune_leases", age=_LEASES_KEPT, limit=limit)
    nodes = yield call("prune_nodes", age=_NODES_KEPT)
    yield from keep_tallies(nodes)
    return sum(map(len, (jobs, occurrences, events, leases, nodes)))


def _report_call(reports: Sequence[Report]) -> Call:
    rows = [
        _ReportRow(
            report.job_id,
            report.attempt,
            report.progress,
            report.detail,
            report.metadata,
            sum(len(line) + LOG_LINE_OVERHEAD for _, _, line in report.lines),
        )
        for report in reports
    ]
    return call("report", reports=as_json(rows))


class _ReportRow(msgspec.Struct, frozen=True):
    """A report as the row that the statement `report` unfolds."""

    job_id: str
    job_attempt: int
    to_progress: int | None
    to_detail: str | None
    to_metadata: str | None
    more_log: int


def _stale(reports: Sequence[Report], rows: Sequence[Row]) -> frozenset[str]:
    written = {(row["id"], row["attempt"]) for row in rows}
    return frozenset(report.job_id for report in reports if (report.job_id, report.attempt) not in written)


def _report(reports: Sequence[Report]) -> Transaction[frozenset[str]]:
    """Write reports and, of attempts that are not over, the lines; the update keeps them from ending meanwhile."""
    rows = yield _report_call(reports)
    written = {(row["id"], row["attempt"]) for row in rows}
    lines = [
        {"job_id": report.job_id, "attempt": report.attempt, "at": at, "stream": stream, "line": line}
        for report in reports
        if (report.job_id, report.attempt) in written
        for at, stream, line in report.lines
    ]
    if lines:
        yield call("record_log", lines=as_json(lines))
    return _stale(reports, rows)


def _hold(job_id: str, attempt: int) -> Transaction[Row]:
    rows = yield call("hold_attempt", id=job_id, attempt=attempt)
    if not rows:
        raise LeaseLost(f"attempt {attempt} of {job_id} is over")
    return rows[0]


def _keep_step(job_id: str, attempt: int, name: str, result: str) -> Transaction[None]:
    yield from _hold(job_id, attempt)
    yield call("record_step", id=job_id, attempt=attempt, name=name, result=result)


def _enqueue_from(job_id: str, attempt: int, jobs: Sequence[NewJob]) -> Transaction[list[EnqueuedRow]]:
    yield from _hold(job_id, attempt)
    return (yield from enqueue(jobs))


def _enqueued_before(jobs: Sequence[NewJob]) -> Transaction[list[EnqueuedRow]]:
    """Find the jobs that an earlier call has made of these."""
    rows = yield call("jobs_by_id", ids=as_json([job.id for job in jobs]), largest=0)
    found = {row["id"]: EnqueuedRow(row["id"], row["status"], row["created_at"], row["run_at"], True) for row in rows}
    return (yield from _with_earlier(jobs, found))


def _end_overdue(limit: int) -> Transaction[int]:
    ids = [row["id"] for row in (yield call("overdue", limit=limit))]
    if not ids:
        return 0
    # One that a worker has taken in its last moment has started in time, and runs.
    ended, _ = yield from cancel_in_line(ids, "expired: it did not start within its time", stops_running=False)
    return len(ended)


def review(job_ids: Sequence[str], event: str, author: str) -> Transaction[list[str]]:
    """Take dead letters off the list; return those that were on it."""
    if not job_ids:
        return []
    rows = yield call("review", ids=as_json(sorted(job_ids)))
    reviewed = [row["id"] for row in rows]
    yield from record_events([(job_id, event, {"author": author}) for job_id in reviewed])
    return reviewed


def repeated(
    row: Row, new_id: str, *, exclusive: bool, blocked_by: str | None = None, args: str | None = None
) -> NewJob:
    """Make the job that repeats another one, perhaps with other arguments."""
    options = _read_options(row["options"])
    return NewJob(
        id=new_id,
        task=row["task"],
        args=row["args"] if args is None else args,
        tenant=row["tenant"],
        queue=row["queue"],
        priority=row["priority"],
        max_attempts=row["max_attempts"],
        backoff=options.patience(),
        timeout=options.timeout,
        tags=read_tags(row["tags"]),
        schedule=row["schedule"],
        occurrence_at=row["occurrence_at"],
        exclusive=exclusive,
        blocked_by=blocked_by,
        metadata=row["metadata"],
        parent=row["parent"],
        rerun_of=row["id"],
        callback=row["callback"],
    )


def _retry(
    job_id: str, author: str, clock: Clock, *, only_dead: bool = False, args: str | None = None
) -> Transaction[str]:
    """Make a new job of an ended one. Of a schedule that runs one at a time it waits for whoever is live."""
    yield call("lock_lines", ids=as_json([job_id]))
    rows = yield call("job", id=job_id)
    if not rows:
        raise JobNotFound(f"no job has the id {job_id!r}")
    job = read_job(rows[0])
    if job.parked is not None and job.status is Status.BLOCKED and args is None:
        if (yield call("unpark_jobs", ids=as_json([job_id]))):
            yield from record_events([(job_id, "unparked", {"author": author})])
        return job_id
    if not job.status.is_final:
        raise NotFinal(f"{job_id} is {job.status}; only a job that has ended can be retried")
    if job.reason == ERASED and args is None:
        raise Conflict(f"{job_id} was erased, and its arguments with it: retry it with other arguments")
    exclusive = yield from _is_exclusive(job)
    blocked_by = None
    if exclusive and job.schedule:
        blocked_by = last_in_line((yield call("live_jobs", names=as_json([{"name": job.schedule}]))))
    new_id = clock.new_id("job")
    again = repeated(rows[0], new_id, exclusive=exclusive, blocked_by=blocked_by, args=args)
    yield call("enqueue", jobs=as_json([job_row(again)]))
    if not (yield from review([job.id], "reviewed", author)) and only_dead:
        raise AlreadyFinal(f"{job_id} is no dead letter any more; somebody has dealt with it")
    yield from record_events([(job.id, "retried", {"author": author, "job_id": new_id})])
    return new_id


def _is_exclusive(job: Job) -> Transaction[bool]:
    """Say whether the job's schedule, as it is by now, wants one job at a time."""
    rows = (yield call("definitions", names=as_json([job.schedule]))) if job.schedule is not None else []
    if not rows:
        return job.exclusive
    try:
        return ScheduleSpec.from_json(rows[0]["definition"]).exclusive
    except DefinitionError:
        return job.exclusive


def last_in_line(rows: Sequence[Row]) -> str | None:
    """Return of the live jobs of one schedule the one that nobody waits for."""
    waiting = [row["id"] for row in rows if row["status"] == Status.BLOCKED]
    others = {row["blocked_by"] for row in rows}
    last = [job_id for job_id in waiting if job_id not in others] or [row["id"] for row in rows]
    return last[-1] if last else None


def cancel_words(author: str, reason: str) -> str:
    """Say why a job ends that somebody cancels."""
    return storable(f"cancelled by {author}" + (f": {reason}" if reason else ""), REASON_LENGTH_MAX)


class StoreQueue:
    """The queue on one store. The port `Queue` says what its methods promise."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def enqueue(self, jobs: Sequence[NewJob], *, largest: int = WHOLE) -> list[EnqueuedRow]:
        """Insert jobs, all or none; durable when it returns. Large results of earlier jobs can be left out."""
        # Nothing to compare afterwards and nobody to call back: one statement, one round trip.
        if len(jobs) == 1 and jobs[0].key is None and jobs[0].callback is None:
            rows = await self._driver.fetch(call("enqueue", jobs=as_json([job_row(jobs[0])])))
            return [EnqueuedRow(row["id"], row["status"], row["created_at"], row["run_at"], True) for row in rows]
        return await self._driver.run(lambda: enqueue(jobs, largest)) if jobs else []

    async def promote(self, limit: int) -> int:
        """Make waiting jobs ready whose time has come and whose predecessor has ended."""
        return await self._driver.run(lambda: _promote(limit))

    async def next_promotion(self) -> Instant | None:
        """Return when the next waiting job is due."""
        sent = self._clock.monotonic()
        row = (await self._driver.fetch(call("next_promotion")))[0]
        self._clock.observe(row["now"], sent=sent)
        next_at: Instant | None = row["now"] if row["is_free"] else row["next_at"]
        return next_at

    async def claim(
        self, queue: str, *, node: str, lease: Duration, limit: int, skip: Collection[str] = ()
    ) -> list[Claimed]:
        """Take ready jobs of a queue, highest priority first, then oldest."""
        rows = await self._driver.fetch(
            call("claim", queue=queue, node=node, lease=lease, limit=limit, skip=as_json(sorted(skip)))
        )
        jobs = [read_claimed(row) for row in rows]
        if len(jobs) > 1:
            jobs.sort(key=lambda job: (-job.priority, job.run_at, job.job_id))  # RETURNING has no order.
        return jobs

    async def apart(self, tasks: Collection[str], queues: Collection[str], limit: int) -> list[Suspect]:
        """Find ready jobs of these tasks, and of these queues or any, that have to run apart."""
        rows = await self._driver.fetch(
            call(
                "apart",
                tasks=as_json(sorted(tasks)),
                queues=as_json(sorted(queues)),
                any_queue=int(not queues),
                limit=limit,
            )
        )
        return [Suspect(row["id"], row["task"], _count(row["company"]), _waited(row)) for row in rows]

    async def claim_apart(self, job_id: str, *, node: str, lease: Duration) -> tuple[Claimed, Duration] | None:
        """Take a job that has to run apart; return it, and for how long it has to."""
        rows = await self._driver.fetch(call("claim_apart", id=job_id, node=node, lease=lease))
        if not rows:
            return None
        *columns, _, apart_for = rows[0]
        return read_claimed(columns), _count(apart_for, APART_MAX)

    async def hand_back_unknown(
        self, node: str, *, known: Collection[tuple[str, int]], given_up: Collection[tuple[str, int]]
    ) -> list[str]:
        """Hand back what a node has and does not know of; of what it gave up, only what has run out."""
        return await self._driver.run(lambda: _hand_back_unknown(node, known, given_up))

    async def ready_queues(self) -> list[str]:
        """Return the queues in which anything is ready."""
        return [row["queue"] for row in await self._driver.fetch(call("ready_queues", limit=QUEUES_MAX))]

    async def extend(self, attempts: Iterable[tuple[str, int]], *, lease: Duration) -> dict[str, bool]:
        """Extend running attempts; those that are over do not come back."""
        rows = as_json([{"job_id": job_id, "job_attempt": attempt} for job_id, attempt in attempts])
        extended = await self._driver.fetch(call("extend", attempts=rows, lease=lease))
        return {row["id"]: row["cancel_requested_at"] is not None for row in extended}

    async def settle(self, settlements: Sequence[Settlement]) -> frozenset[str]:
        """Write what ended attempts make of their jobs; return the ids of stale ones."""
        if all(s.status is Status.COMPLETED and s.schedule is None for s in settlements):
            rows = await self._driver.fetch(completed(settlements))  # The usual case: one statement, no transaction.
            if len(rows) == len(settlements):
                return frozenset()
            written = {(row["id"], row["attempt"]) for row in rows}
            absent = [s for s in settlements if (s.job_id, s.attempt) not in written]
            return await self._driver.run(lambda: _refuse(absent))
        return await self._driver.run(lambda: settle_attempts(settlements))

    async def report(self, reports: Sequence[Report]) -> frozenset[str]:
        """Write progress, metadata and log lines of running attempts; return the ids of stale ones."""
        if any(report.lines for report in reports):
            return await self._driver.run(lambda: _report(reports))
        return _stale(reports, await self._driver.fetch(_report_call(reports)))

    async def asked_to_stop(self, node: str) -> dict[tuple[str, int], str]:
        """Return the running attempts of a node that shall stop, each with the reason."""
        rows = await self._driver.fetch(call("asked_to_stop", node=node))
        return {(row["id"], row["attempt"]): row["reason"] for row in rows}

    async def step_sizes(self, job_ids: Iterable[str]) -> dict[str, int]:
        """Return by job how many bytes `steps` would read."""
        rows = await self._driver.fetch(call("step_sizes", ids=as_json(sorted(job_ids))))
        return {row["job_id"]: int(row["size"] or 0) for row in rows}

    async def steps(self, job_ids: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the stored results of finished steps, as JSON text by job and name."""
        found: dict[str, dict[str, str]] = {}
        for row in await self._driver.fetch(call("steps", ids=as_json(sorted(job_ids)))):
            found.setdefault(row["job_id"], {})[row["name"]] = row["result"]
        return found

    async def keep_step(self, job_id: str, attempt: int, name: str, result: str) -> None:
        """Store the result of a finished step; raise `LeaseLost` when the attempt is over."""
        await self._driver.run(lambda: _keep_step(job_id, attempt, name, result))

    async def enqueue_from(self, job_id: str, attempt: int, jobs: Sequence[NewJob]) -> list[EnqueuedRow]:
        """Insert the jobs that a running attempt makes; raise `LeaseLost` when it is over. Repeating it is safe."""
        try:
            return await self._driver.run(lambda: _enqueue_from(job_id, attempt, jobs))
        except ConstraintViolated:  # The answer to the first time was lost.
            return await self._driver.run(lambda: _enqueued_before(jobs))

    async def unpark(self, tasks: Iterable[str], cause: str = "") -> int:
        """Let parked jobs of these tasks be looked at again, all or those parked for one cause; return how many."""
        return len(await self._driver.fetch(call("unpark", tasks=as_json(sorted(tasks)), cause=cause)))

    async def end_overdue(self, limit: int) -> int:
        """End jobs that did not start within their time; return how many."""
        if not await self._driver.fetch(call("overdue", limit=1)):
            return 0
        return await self._driver.run(lambda: _end_overdue(limit))

    async def expire(self, limit: int) -> list[str]:
        """Settle running attempts whose lease has run out."""
        if not await self._driver.fetch(call("any_expired")):
            return []
        return await self._driver.run(lambda: _expire(limit, self._clock))

    async def prune(self, retention: Duration, limit: int) -> int:
        """Delete history older than the retention."""
        return await self._driver.run(lambda: _prune(retention, limit))

    async def cancel(self, job_id: str, *, author: str, reason: str = "") -> Job:
        """End a job that is not running, or ask a running one to stop; return it as it is then."""
        text, found = cancel_words(author, reason), await self.get(job_id)
        ended, asked = await self._driver.run(lambda: cancel_in_line([found.id], text))
        job = await self.get(found.id)
        if not ended and not asked and job.status.is_final:
            raise AlreadyFinal(f"{job.id} has ended as {job.status} already; final states never change")
        return job

    async def retry(self, job_id: str, *, author: str, only_dead: bool = False, args: str | None = None) -> Job:
        """Run a job that has ended once more, as a new job linked to it; let a parked one be looked at again.

        With `only_dead` only if it is still a dead letter, so that two who see one do not both run it. With `args`,
        which is JSON, the new job has other arguments.
        """
        found = await self.get(job_id)
        new_id = await self._driver.run(lambda: _retry(found.id, author, self._clock, only_dead=only_dead, args=args))
        return await self.get(new_id)

    async def dead(
        self,
        *,
        task: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        schedule: str | None = None,
        before: str | None = None,
        limit: int = 50,
        largest: int = WHOLE,
    ) -> list[Job]:
        """Read a page of dead letters, newest first; `schedule` is one of the tenant, or of the default tenant."""
        whose = tenant_of(tenant, schedule)
        filters = {"task": task, "queue": queue, "tenant": whose, "schedule": schedule, "largest": largest}
        limit = max(1, min(limit, PAGE_MAX))
        rows = await self._driver.fetch(call("dead", **filters, before=before or _LAST_ID, limit=limit))
        return [read_listed_job(row) for row in rows]

    async def drop_dead(self, job_ids: Sequence[str], *, author: str) -> list[str]:
        """Take dead letters off the list; return those that were on it."""
        return await self._driver.run(lambda: review(job_ids, "dropped", author))

    async def pause(self, queue: str, *, author: str, reason: str = "") -> bool:
        """Take nothing more from a queue; False when it was paused already."""
        said = storable(reason, REASON_LENGTH_MAX)
        return bool(await self._driver.fetch(call("pause_queue", name=queue, author=author, reason=said)))

    async def resume(self, queue: str) -> bool:
        """Take from a queue again; False when it was not paused."""
        return bool(await self._driver.fetch(call("resume_queue", name=queue)))

    async def paused(self) -> dict[str, dict[str, Any]]:
        """Return the paused queues: since when, by whom and why."""
        columns = ("paused_at", "paused_by", "reason")
        rows = await self._driver.fetch(call("queues_paused"))
        return {row["name"]: {column: row[column] for column in columns} for row in rows}

    async def ahead(self, job: Job, limit: int = 10_000, *, tenant: str | None = None) -> int:
        """Count the ready jobs, or those of one tenant, that come before a ready one; so many are looked at."""
        place = {"queue": job.queue, "priority": job.priority, "run_at": job.run_at, "id": job.id, "tenant": tenant}
        jobs: int = (await self._driver.fetch(call("ahead", **place, limit=limit)))[0]["jobs"]
        return jobs

    async def running(self, limit: int = PAGE_MAX, *, largest: int = WHOLE) -> list[Job]:
        """Read the jobs that run, those that began first in front."""
        rows = await self._driver.fetch(call("running", limit=limit, largest=largest))
        return [read_listed_job(row) for row in rows]

    async def log(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[dict[str, Any]]:
        """Read a page of a job's log, oldest first."""
        rows = await self._driver.fetch(call("log", id=job_id, after=after, limit=max(1, min(limit, LOG_PAGE_MAX))))
        return [{column: row[column] for column in _LINE} for row in rows]

    async def log_newest(self, job_id: str, *, before: int | None = None, limit: int = 1_000) -> list[dict[str, Any]]:
        """Read a page of a job's log, newest first, from the line before number `before` on."""
        last = _LAST_SEQ if before is None else before
        rows = await self._driver.fetch(
            call("log_newest", id=job_id, before=last, limit=max(1, min(limit, LOG_PAGE_MAX)))
        )
        return [{column: row[column] for column in _LINE} for row in rows]

    async def events(self, job_id: str, limit: int = 1_000) -> list[dict[str, Any]]:
        """Read the history of a job, oldest first; times as the store writes them for people."""
        columns = ("seq", "event", "data")
        rows = await self._driver.fetch(call("events", id=job_id, limit=limit))
        return [{**{column: row[column] for column in columns}, "at": row["seq"] // 8} for row in rows]

    async def reruns(self, job_id: str) -> list[str]:
        """Return the jobs that repeat this one."""
        return [row["id"] for row in await self._driver.fetch(call("reruns", ids=as_json([job_id])))]

    async def get(self, job_id: str) -> Job:
        """Read one job by its id, or by the beginning of its id when that is unique."""
        rows = await self._driver.fetch(call("job", id=job_id))
        if not rows and len(job_id) >= 4 and job_id.startswith("job_"):
            rows = await self._driver.fetch(call("jobs_by_prefix", low=job_id, high=job_id + _LAST_ID))
        if len(rows) != 1:
            raise JobNotFound(f"no job has the id {job_id!r}" if not rows else f"several jobs begin with {job_id!r}")
        return read_job(rows[0])

    async def page(
        self,
        *,
        status: str | None = None,
        task: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        schedule: str | None = None,
        key: str | None = None,
        tag: str | None = None,
        words: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        finished_after: Instant | None = None,
        finished_before: Instant | None = None,
        rerun_of: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[Job]:
        """Read a page of jobs, newest first; `words` may be anywhere in task, key, schedule, id or reason."""
        chosen = JobFilter(
            status=status,
            task=task,
            queue=queue,
            tenant=tenant,
            schedule=schedule,
            key=key,
            tag=tag,
            words=words,
            since=since,
            until=until,
            finished_after=finished_after,
            finished_before=finished_before,
            rerun_of=rerun_of,
        )
        return await self.chosen(chosen, before=before, limit=limit)

    async def chosen(
        self, chosen: JobFilter, *, before: str | None = None, limit: int = 50, largest: int = WHOLE
    ) -> list[Job]:
        """Read a page of the jobs that a filter chooses, newest first; texts with more bytes than that are left out."""
        statement = "jobs_of_tenant" if chosen.has_index else "jobs"
        if chosen.rerun_of is not None:
            statement = "jobs_rerunning"
        most = max(1, min(limit, PAGE_MAX))
        place = {"before": before or _LAST_ID, "limit": most, "largest": largest}
        rows = await self._driver.fetch(call(statement, **chosen.parameters(), **place))
        return [read_listed_job(row) for row in rows]

    async def latest(
        self, task: str, *, tenant: str | None = None, key: str | None = None, status: str | None = None
    ) -> Job | None:
        """Read the newest job of a task, or the newest that has this status."""
        statement = "latest_of_tenant" if has_index(tenant) else "latest"
        rows = await self._driver.fetch(call(statement, task=task, tenant=tenant, key=key, status=status))
        return read_job(rows[0]) if rows else None

    async def attempts(self, job_id: str, *, newest: int = 1_000_000) -> list[dict[str, Any]]:
        """Read the ended attempts of a job, oldest first; of more than that the newest."""
        columns = ("attempt", "node", "ready_at", "started_at", "ended_at", "outcome", "reason", "error")
        rows = await self._driver.fetch(call("attempts", id=job_id, limit=newest))
        return [{column: row[column] for column in columns} for row in reversed(rows)]

    async def depths(self) -> list[dict[str, Any]]:
        """Count what waits, by queue, with the age of the oldest in seconds."""
        rows = await self._driver.fetch(call("queue_depths"))
        return [
            {
                "name": row["queue"],
                "pending": row["pending"],
                "oldest_age_seconds": max(0, row["now"] - row["oldest_at"]) / 1e6,
            }
            for row in rows
        ]

    async def running_counts(self) -> dict[str, int]:
        """Count the jobs that run, by queue."""
        return {row["queue"]: row["running"] for row in await self._driver.fetch(call("running_counts"))}

    async def dead_counts(self, limit: int = 10_000, *, tenant: str | None = None) -> list[dict[str, Any]]:
        """Count dead letters by task, most first, each with the newest of them; up to a limit in all."""
        rows = await self._driver.fetch(call("dead_counts", limit=limit, tenant=tenant))
        return [{column: row[column] for column in ("task", "letters", "newest")} for row in rows]

    async def live_counts(self, tenant: str, limit: int = 100_000) -> list[dict[str, Any]]:
        """Count what one tenant has waiting and running, by queue and status, with the age of the oldest in seconds."""
        rows = await self._driver.fetch(call("live_counts", tenant=tenant, limit=limit))
        return [
            {
                "name": row["queue"],
                "status": row["status"],
                "jobs": row["jobs"],
                "oldest_age_seconds": max(0, row["now"] - row["oldest_at"]) / 1e6,
            }
            for row in rows
        ]

    async def ended_counts(
        self, window: Duration, *, tenant: str | None = None, limit: int = 100_000
    ) -> tuple[dict[str, int], Duration]:
        """Count by status the jobs that ended lately, and say how far back that is: less when there were too many."""
        rows = await self._driver.fetch(call("ended_counts", window=window, tenant=tenant, limit=limit))
        counts = {row["status"]: int(row["jobs"]) for row in rows}
        if sum(row["looked_at"] for row in rows) < limit:
            return counts, window
        return counts, max(1, max(row["now"] for row in rows) - min(row["since_at"] for row in rows))

    async def ended_series(
        self,
        since: Instant,
        step: Duration,
        *,
        tenant: str | None = None,
        task: str | None = None,
        queue: str | None = None,
        limit: int = 20_000,
    ) -> tuple[list[dict[str, Any]], Instant | None]:
        """Count by steps of time and status the jobs that ended, and how long half and most of the completed took.

        Of everybody's jobs the newest are looked at, up to a limit; if there were more, say from when on.
        """
        rows = await self._driver.fetch(
            call("ended_series", since=since, step=step, tenant=tenant, task=task, queue=queue, limit=limit)
        )
        looked_at = next(row for row in rows if row["step"] is None)
        oldest: Instant | None = looked_at["half"] if looked_at["ended"] >= limit else None
        columns = ("step", "status", "ended", "half", "most")
        return [{column: row[column] for column in columns} for row in rows if row["step"] is not None], oldest

    async def waiting(self) -> dict[str, int]:
        """Count the jobs that run or wait for something, by status."""
        return {row["status"]: row["waiting"] for row in await self._driver.fetch(call("waiting_counts"))}
