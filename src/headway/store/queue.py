"""Enqueue, cancel and retry jobs; pause queues.

A job that ends may release two others: the next job of its schedule, which is BLOCKED behind it, and the schedule
itself when it has a fixed delay. `end` moves both in the transaction that ends the job.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import msgspec

from headway.core.clock import Clock
from headway.core.errors import (
    AlreadyFinal,
    Conflict,
    DefinitionError,
    DuplicateKey,
    InvalidLimit,
    InvalidTask,
    JobNotFound,
    NotFinal,
    StoreUnavailable,
)
from headway.core.jobs import EnqueuedRow, Job, NewJob
from headway.core.lifecycle import Status
from headway.core.limits import Rules
from headway.core.schedules import ScheduleSpec
from headway.core.validation import REASON_LENGTH_MAX, storable
from headway.store.group_entry import count_retries, enter_groups, join_groups
from headway.store.job_rows import ANY_SIZE, insertion, read_job, read_kept
from headway.store.jobs import StoreJobs
from headway.store.lanes import read_limit
from headway.store.transaction import Driver, Row, Rows, Transaction, as_json, call
from headway.store.webhooks import ensure_callbacks
from headway.store.windows import enter_windows

ENQUEUE_MAX: Final = 10_000
ENQUEUE_STEP: Final = 1_000  # Rows per statement; databases limit its memory.
EARLIER_STEP: Final = 100  # Earlier jobs read at once, with their arguments, to compare.
ERASED: Final = "erased"  # The reason of a job whose content was erased.
_BYPASS_ROUNDS_MAX: Final = 10_000
_LAST_PART: Final = re.compile(r"(?<=[-:/._])[^-:/._]+$")  # Of a limit: 42 in account-42.


def insert(jobs: Sequence[NewJob]) -> Transaction[Rows]:
    """Insert jobs, and the callback endpoints that they need."""
    yield from ensure_callbacks({job.tenant for job in jobs if job.callback is not None})
    return (yield insertion(jobs))


def enqueue(
    jobs: Sequence[NewJob], largest: int = ANY_SIZE, *, member_of: str | None = None
) -> Transaction[list[EnqueuedRow]]:
    """Insert jobs, all or none. For a key that was used with the same task and arguments, return the earlier job.

    A job whose window is open is merged into the window's job. A result of an earlier job is left out if it has more
    than `largest` bytes. `member_of` is the group of the running job that enqueues them.
    """
    if len(jobs) > ENQUEUE_MAX:
        raise InvalidTask(
            f"at most {ENQUEUE_MAX:,} jobs can be enqueued at once, not {len(jobs):,}; enqueue them in parts"
        )
    yield from _check_limits({job.limit_key for job in jobs if job.limit_key})
    jobs, is_closed = yield from enter_groups(jobs, member_of)
    if is_closed:
        return (yield from with_earlier(jobs, {}, largest))
    yield from ensure_callbacks({job.tenant for job in jobs if job.callback is not None})
    if any(job.window is not None for job in jobs):
        return (yield from _enqueue_through_windows(jobs, largest))
    found = yield from _insert_in_steps(jobs)
    if len(found) == len(jobs):
        return [found[job.id] for job in jobs]
    return (yield from with_earlier(jobs, found, largest))


def _insert_in_steps(jobs: Sequence[NewJob]) -> Transaction[dict[str, EnqueuedRow]]:
    """Insert jobs; return those that are new, by id."""
    found: dict[str, EnqueuedRow] = {}
    for start in range(0, len(jobs), ENQUEUE_STEP):
        rows = yield insertion(jobs[start : start + ENQUEUE_STEP])
        for row in rows:
            found[row["id"]] = EnqueuedRow(row["id"], row["status"], row["created_at"], row["run_at"], True)
    return found


def _enqueue_through_windows(jobs: Sequence[NewJob], largest: int) -> Transaction[list[EnqueuedRow]]:
    entered = yield from enter_windows(jobs, largest)
    found = yield from _insert_in_steps(entered.new)
    yield from record_events(entered.events)
    return (yield from with_earlier(jobs, found | entered.answers(found), largest))


def _is_plain(job: NewJob) -> bool:
    is_alone = job.group_id is None and job.window is None
    return job.key is None and job.callback is None and not job.limit_key and is_alone


def _check_limits(keys: Collection[str]) -> Transaction[None]:
    """Raise `InvalidLimit` if no limit holds for one of these keys."""
    if not keys:
        return
    rules = Rules(map(read_limit, (yield call("limits"))))
    unknown = sorted(key for key in keys if rules.find(key) is None)
    if unknown:
        name = _LAST_PART.sub("*", unknown[0])
        raise InvalidLimit(
            f"no limit matches {unknown[0]!r}; define one: app.limit({name!r}, concurrency=1),"
            f" or `headway limits put {name!r} --concurrency 1`"
        )


def with_earlier(
    jobs: Sequence[NewJob], found: dict[str, EnqueuedRow], largest: int = ANY_SIZE
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
        if job.group_id not in (None, row["group_id"]):
            which = "" if is_one else f"jobs[{number}]: "
            raise DuplicateKey(f"{which}key {job.key!r} was used for {row['id']}, which is not in this batch")
        same = msgspec.structs.replace(read_job(row), args=job.args)  # They are equal; keep one of them in memory.
        if same.result is not None and len(same.result) > largest:
            same = msgspec.structs.replace(same, result=None, omitted=("result",))
        found[job.id] = EnqueuedRow(row["id"], row["status"], row["created_at"], row["run_at"], False, same)


def end(job_ids: Sequence[str], schedules: Iterable[str | None]) -> Transaction[None]:
    """Release what waited for these ended jobs: the next job of the schedule, and fixed-delay schedules."""
    names = sorted({name for name in schedules if name})
    if names:
        yield call("promote_successors", ids=as_json(job_ids))
        yield call("follow", names=as_json(names))


def cancel(
    job_ids: Sequence[str], reason: str, *, moves_on: bool = True, stops_running: bool = True
) -> Transaction[tuple[list[str], list[str]]]:
    """Cancel jobs that are not running and, with `stops_running`, ask running ones to stop; return both lists.

    With `moves_on`, release what waited for them; a caller that replaces them passes False.
    """
    ids = as_json(sorted(job_ids))
    yield call("lock_jobs", ids=ids)  # Else a worker could hand a job back between the two statements.
    ended = yield call("cancel", ids=ids, reason=reason)
    asked = (yield call("request_cancel", ids=ids, reason=reason)) if stops_running else []
    if ended and moves_on:
        gone = [row["id"] for row in ended]
        for _ in range(_BYPASS_ROUNDS_MAX):  # One round for each cancelled job in a line.
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
    """Lock the lines of waiting jobs, then cancel jobs in them."""
    yield call("lock_lines", ids=as_json(sorted(job_ids)))
    return (yield from cancel(job_ids, reason, stops_running=stops_running))


def cancel_words(author: str, reason: str) -> str:
    """Return the reason of a cancelled job."""
    return storable(f"cancelled by {author}" + (f": {reason}" if reason else ""), REASON_LENGTH_MAX)


def record_events(events: Sequence[tuple[str, str, dict[str, Any]]]) -> Transaction[None]:
    """Record events of jobs: job id, event and data."""
    if events:
        rows = [
            {"job_id": job_id, "schedule": None, "event": event, "data": msgspec.json.encode(data).decode()}
            for job_id, event, data in events
        ]
        yield call("record_events", events=as_json(rows))


def review(job_ids: Sequence[str], event: str, author: str) -> Transaction[list[str]]:
    """Remove jobs from the dead-letter queue; return those that were in it."""
    if not job_ids:
        return []
    rows = yield call("review", ids=as_json(sorted(job_ids)))
    reviewed = [row["id"] for row in rows]
    yield from record_events([(job_id, event, {"author": author}) for job_id in reviewed])
    return reviewed


def repeated(
    row: Row,
    new_id: str,
    *,
    exclusive: bool,
    blocked_by: str | None = None,
    args: str | None = None,
    group_id: str | None = None,
) -> NewJob:
    """Return a rerun of a job, optionally with other arguments. It has no key: that names the first one."""
    kept = msgspec.structs.asdict(read_kept(row))
    line = {"exclusive": exclusive, "blocked_by": blocked_by}
    group = {"group_id": group_id, "group_tenant": None if group_id is None else row["group_tenant"]}
    again = {**kept, **line, **group, "rerun_of": row["id"], "key": None}
    return NewJob(id=new_id, task=row["task"], args=row["args"] if args is None else args, **again)


def _retry(
    job_id: str, author: str, clock: Clock, *, only_dead: bool = False, args: str | None = None
) -> Transaction[str]:
    """Rerun an ended job as a new one. If its schedule runs one job at a time, it waits for the live job."""
    joined = yield from join_groups([job_id])
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
    group_id = joined.get(job.group_id or "")
    again = repeated(rows[0], new_id, exclusive=exclusive, blocked_by=blocked_by, args=args, group_id=group_id)
    yield insertion([again])
    reviewed = yield from review([job.id], "reviewed", author)
    yield from count_retries([group_id] if reviewed else [])
    if not reviewed and only_dead:
        raise AlreadyFinal(f"{job_id} is no longer a dead letter: it was already retried or dropped")
    yield from record_events([(job.id, "retried", {"author": author, "job_id": new_id})])
    return new_id


def _is_exclusive(job: Job) -> Transaction[bool]:
    """Return whether the current definition of the job's schedule allows one job at a time."""
    rows = (yield call("definitions", names=as_json([job.schedule]))) if job.schedule is not None else []
    if not rows:
        return job.exclusive
    try:
        return ScheduleSpec.from_json(rows[0]["definition"]).exclusive
    except DefinitionError:
        return job.exclusive


def last_in_line(rows: Sequence[Row]) -> str | None:
    """Return the last live job in the line of a schedule: the one that no other waits for."""
    waiting = [row["id"] for row in rows if row["status"] == Status.BLOCKED]
    others = {row["blocked_by"] for row in rows}
    last = [job_id for job_id in waiting if job_id not in others] or [row["id"] for row in rows]
    return last[-1] if last else None


class StoreQueue:
    """What producers and operators do with jobs and queues."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock
        self._jobs = StoreJobs(driver)

    async def enqueue(self, jobs: Sequence[NewJob], *, largest: int = ANY_SIZE) -> list[EnqueuedRow]:
        """Insert jobs, all or none; they are durable when this returns. Leave out large results of earlier jobs."""
        # Without key, callback, limit and window: one statement, one round trip.
        if len(jobs) == 1 and _is_plain(jobs[0]):
            rows = await self._driver.fetch(insertion(jobs))
            return [EnqueuedRow(row["id"], row["status"], row["created_at"], row["run_at"], True) for row in rows]
        return await self._driver.run(lambda: enqueue(jobs, largest)) if jobs else []

    async def cancel(self, job_id: str, *, author: str, reason: str = "") -> Job:
        """Cancel a job that is not running, or ask a running one to stop; return the updated job."""
        text, found = cancel_words(author, reason), await self._jobs.get(job_id)
        ended, asked = await self._driver.run(lambda: cancel_in_line([found.id], text))
        job = await self._jobs.get(found.id)
        if not ended and not asked and job.status.is_final:
            raise AlreadyFinal(f"{job.id} has ended as {job.status} already; final states never change")
        return job

    async def retry(self, job_id: str, *, author: str, only_dead: bool = False, args: str | None = None) -> Job:
        """Rerun an ended job as a new job linked to it, or unpark a parked one; return that job.

        With `only_dead`, fail unless it is still a dead letter, so that two operators do not both rerun it. With
        `args` (JSON), the new job has other arguments.
        """
        found = await self._jobs.get(job_id)
        new_id = await self._driver.run(lambda: _retry(found.id, author, self._clock, only_dead=only_dead, args=args))
        return await self._jobs.get(new_id)

    async def drop_dead(self, job_ids: Sequence[str], *, author: str) -> list[str]:
        """Remove jobs from the dead-letter queue; return those that were in it."""
        return await self._driver.run(lambda: review(job_ids, "dropped", author))

    async def pause(self, queue: str, *, author: str, reason: str = "") -> bool:
        """Pause a queue; return False when it was paused already."""
        said = storable(reason, REASON_LENGTH_MAX)
        return bool(await self._driver.fetch(call("pause_queue", name=queue, author=author, reason=said)))

    async def resume(self, queue: str) -> bool:
        """Resume a queue; return False when it was not paused."""
        return bool(await self._driver.fetch(call("resume_queue", name=queue)))

    async def paused(self) -> dict[str, dict[str, Any]]:
        """Return the paused queues: since when, by whom, and the reason."""
        columns = ("paused_at", "paused_by", "reason")
        rows = await self._driver.fetch(call("queues_paused"))
        return {row["name"]: {column: row[column] for column in columns} for row in rows}
