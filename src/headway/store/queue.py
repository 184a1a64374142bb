"""The queue in the store: enqueue, promote, claim, extend, settle, expire, cancel, prune.

Every change of a job that runs is guarded by (id, attempt, RUNNING): an attempt that was taken away finds no row,
changes nothing and is told so. What a finished attempt makes of its job is decided in `lifecycle.settle`, here it
is only written, together with the trace of the attempt.

When a job ends, two others may be waiting for it: the next in line of its schedule (BLOCKED behind it), and the
schedule itself when it has a fixed delay. Both are moved in the same transaction.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from headway.clock import Clock
from headway.errors import AlreadyFinal, DuplicateKey, InvalidTask, JobNotFound, StoreUnavailable
from headway.instants import DAY, HOUR, Duration, Instant
from headway.lifecycle import FINAL, Attempt, Backoff, LeaseExpired, Settlement, Status, settle
from headway.model import Job, NewJob
from headway.store.transaction import Driver, Row, Transaction, as_json, call

ENQUEUE_MAX: Final = 10_000
ENQUEUE_STEP: Final = 1_000  # Rows in one statement; a larger one does not fit into the memory that databases give it.
PAGE_MAX: Final = 200
_LAST_ID: Final = "~"  # Sorts after every id.
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
        options=_options(job.backoff),
        run_at=job.run_at,
    )


def _options(backoff: Backoff | None) -> str | None:
    if backoff is None:
        return None
    return msgspec.json.encode({"backoff": [backoff.first, backoff.most]}).decode()


def read_job(row: Row) -> Job:
    """Make a job of a row."""
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
        tags=tuple(msgspec.json.decode(row["tags"])) if row["tags"] else (),
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
        backoff=_read_backoff(row["options"]),
    )


def _read_backoff(options: str | None) -> Backoff | None:
    if options is None:
        return None
    first, most = msgspec.json.decode(options)["backoff"]
    return Backoff(first=first, most=most)


class EnqueuedRow(msgspec.Struct, frozen=True):
    """What the store made of a new job; `is_new` is False when its key was used before with the same arguments."""

    id: str
    status: str
    created_at: Instant
    run_at: Instant
    is_new: bool


def enqueue(jobs: Sequence[NewJob]) -> Transaction[list[EnqueuedRow]]:
    """Insert jobs, all or none. A key that exists with the same task and arguments gives the job that has it."""
    if len(jobs) > ENQUEUE_MAX:
        raise InvalidTask(f"at most {ENQUEUE_MAX} jobs can be enqueued at once, not {len(jobs)}")
    found: dict[str, EnqueuedRow] = {}
    for start in range(0, len(jobs), ENQUEUE_STEP):
        rows = yield call("enqueue", jobs=as_json([job_row(job) for job in jobs[start : start + ENQUEUE_STEP]]))
        for row in rows:
            found[row["id"]] = EnqueuedRow(row["id"], row["status"], row["created_at"], row["run_at"], True)
    if len(found) == len(jobs):
        return [found[job.id] for job in jobs]
    return (yield from _with_earlier(jobs, found))


def _with_earlier(jobs: Sequence[NewJob], found: dict[str, EnqueuedRow]) -> Transaction[list[EnqueuedRow]]:
    absent = [job for job in jobs if job.id not in found]
    rows = yield call("jobs_by_key", keys=as_json([{"tenant": job.tenant, "key": job.key} for job in absent]))
    earlier = {(row["tenant"], row["key"]): row for row in rows}
    for job in absent:
        row = earlier.get((job.tenant, job.key))
        if row is None:
            raise StoreUnavailable(f"the job with the key {job.key!r} was pruned at this moment; try again")
        if (row["task"], row["args"]) != (job.task, job.args):
            raise DuplicateKey(
                f"key {job.key!r} was used for {row['id']} with other arguments; use another key, or the same arguments"
            )
        found[job.id] = EnqueuedRow(row["id"], row["status"], row["created_at"], row["run_at"], False)
    return [found[job.id] for job in jobs]


def end(job_ids: Sequence[str], schedules: Iterable[str | None]) -> Transaction[None]:
    """Move what waited for these ended jobs: the next in line, and schedules with a fixed delay."""
    names = sorted({name for name in schedules if name})
    if names:
        yield call("promote_successors", ids=as_json(job_ids))
        yield call("follow", names=as_json(names))


def cancel(job_ids: Sequence[str], reason: str, *, moves_on: bool = True) -> Transaction[tuple[list[str], list[str]]]:
    """End jobs that are not running and ask running ones to stop; return both lists.

    What waited for them moves on, unless the caller puts something in their place.
    """
    ids = as_json(sorted(job_ids))
    yield call("lock_jobs", ids=ids)  # Else a worker could hand one back after it was looked at as not running.
    ended = yield call("cancel", ids=ids, reason=reason)
    asked = yield call("request_cancel", ids=ids, reason=reason)
    if ended and moves_on:
        gone = [row["id"] for row in ended]
        for _ in range(_BYPASS_ROUNDS_MAX):  # Ends after as many rounds as cancelled jobs stood in one line.
            if not (yield call("bypass", ids=as_json(gone))):
                break
        freed = [*gone, *(row["blocked_by"] for row in ended if row["blocked_by"])]
        yield from end(freed, (row["schedule"] for row in ended))
    yield from _record_events([(row["id"], "cancelled", {"reason": reason}) for row in ended])
    yield from _record_events([(row["id"], "cancel_requested", {"reason": reason}) for row in asked])
    return [row["id"] for row in ended], [row["id"] for row in asked]


def _cancel_in_line(job_ids: Sequence[str], reason: str) -> Transaction[tuple[list[str], list[str]]]:
    """Cancel jobs while nobody else changes the lines that they stand in."""
    yield call("lock_lines", ids=as_json(sorted(job_ids)))
    return (yield from cancel(job_ids, reason))


def settle_attempts(settlements: Sequence[Settlement]) -> Transaction[frozenset[str]]:
    """Write what ended attempts make of their jobs; return the ids of stale ones.

    A job that was asked to stop does not run again, whatever ended its attempt.
    """
    rows = yield call("settle", settlements=as_json([_settlement_row(s) for s in settlements]))
    by_attempt = {(settlement.job_id, settlement.attempt): settlement for settlement in settlements}
    written = {(row["id"], row["attempt"]): row for row in rows}
    if written:
        traces = [_attempt_row(row, by_attempt[attempt]) for attempt, row in written.items()]
        yield call("record_attempts", attempts=as_json(traces))
    ended = [row for row in rows if row["finished_at"] is not None]
    yield from end([row["id"] for row in ended], (row["schedule"] for row in ended))
    asked = [row["id"] for row in rows if row["finished_at"] is None and row["cancel_requested_at"] is not None]
    if asked:
        yield from cancel(asked, "stopped as asked")
    stale = [settlement for attempt, settlement in by_attempt.items() if attempt not in written]
    yield from _record_events(
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
        "to_result": settlement.result,
        "to_error": settlement.error,
        "retry_in": settlement.retry_in,
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


def _record_events(events: Sequence[tuple[str, str, dict[str, Any]]]) -> Transaction[None]:
    if events:
        rows = [
            {"job_id": job_id, "schedule": None, "event": event, "data": msgspec.json.encode(data).decode()}
            for job_id, event, data in events
        ]
        yield call("record_events", events=as_json(rows))


def _expire(limit: int, clock: Clock) -> Transaction[list[str]]:
    rows = yield call("expired", limit=limit)
    settlements = [settle(_expired_attempt(row), LeaseExpired(), clock.chance.random()) for row in rows]
    if settlements:
        yield from settle_attempts(settlements)
    return [row["id"] for row in rows]


def _expired_attempt(row: Row) -> Attempt:
    return Attempt(
        job_id=row["id"],
        attempt=row["attempt"],
        failures=row["failures"],
        max_attempts=row["max_attempts"],
        schedule=row["schedule"],
        backoff=_read_backoff(row["options"]) or Backoff(),
    )


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
    occurrences = yield call("prune_occurrences", retention=retention, limit=limit)
    if occurrences:
        newest = max(row["decided_at"] for row in occurrences)
        yield call("raise_counter", name="pruned_through", value=newest)
    events = yield call("prune_events", retention=retention, limit=limit)
    leases = yield call("prune_leases", age=_LEASES_KEPT, limit=limit)
    nodes = yield call("prune_nodes", age=_NODES_KEPT)
    return sum(map(len, (jobs, occurrences, events, leases, nodes)))


class StoreQueue:
    """The queue on one store. The port `Queue` says what its methods promise."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueuedRow]:
        """Insert jobs, all or none; durable when it returns."""
        if len(jobs) == 1 and jobs[0].key is None:  # Nothing to compare afterwards: one statement, one round trip.
            rows = await self._driver.fetch(call("enqueue", jobs=as_json([job_row(jobs[0])])))
            return [EnqueuedRow(row["id"], row["status"], row["created_at"], row["run_at"], True) for row in rows]
        return await self._driver.run(lambda: enqueue(jobs)) if jobs else []

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

    async def claim(self, queue: str, *, node: str, lease: Duration, limit: int) -> list[Job]:
        """Take ready jobs of a queue, highest priority first, then oldest."""
        rows = await self._driver.fetch(call("claim", queue=queue, node=node, lease=lease, limit=limit))
        jobs = [read_job(row) for row in rows]
        return sorted(jobs, key=lambda job: (-job.priority, job.run_at, job.id))  # RETURNING has no order.

    async def extend(self, attempts: Iterable[tuple[str, int]], *, lease: Duration) -> dict[str, bool]:
        """Extend running attempts; those that are over do not come back."""
        rows = as_json([{"job_id": job_id, "job_attempt": attempt} for job_id, attempt in attempts])
        extended = await self._driver.fetch(call("extend", attempts=rows, lease=lease))
        return {row["id"]: row["cancel_requested_at"] is not None for row in extended}

    async def settle(self, settlements: Sequence[Settlement]) -> frozenset[str]:
        """Write what ended attempts make of their jobs; return the ids of stale ones."""
        return await self._driver.run(lambda: settle_attempts(settlements))

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
        text = f"cancelled by {author}" + (f": {reason}" if reason else "")
        found = await self.get(job_id)
        ended, asked = await self._driver.run(lambda: _cancel_in_line([found.id], text))
        job = await self.get(found.id)
        if not ended and not asked and job.status.is_final:
            raise AlreadyFinal(f"{job.id} has ended as {job.status} already; final states never change")
        return job

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
        before: str | None = None,
        limit: int = 50,
    ) -> list[Job]:
        """Read a page of jobs, newest first."""
        rows = await self._driver.fetch(
            call(
                "jobs",
                status=status,
                task=task,
                queue=queue,
                tenant=tenant,
                schedule=schedule,
                before=before or _LAST_ID,
                limit=max(1, min(limit, PAGE_MAX)),
            )
        )
        return [read_job(row) for row in rows]

    async def attempts(self, job_id: str) -> list[dict[str, Any]]:
        """Read the ended attempts of a job."""
        columns = ("attempt", "node", "ready_at", "started_at", "ended_at", "outcome", "reason", "error")
        rows = await self._driver.fetch(call("attempts", id=job_id))
        return [{column: row[column] for column in columns} for row in rows]

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

    async def waiting(self) -> dict[str, int]:
        """Count the jobs that run or wait for something, by status."""
        return {row["status"]: row["waiting"] for row in await self._driver.fetch(call("waiting_counts"))}
