"""Retry or cancel many jobs at once, and count those that a filter matches.

A filter matches only jobs that the verb applies to. A job can be retried if it has ended and was not retried yet; it
can be cancelled if it has not ended and was not asked to stop. So repeating an interrupted action does the rest of it,
and nothing twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from headway.core.clock import Clock
from headway.core.errors import DefinitionError
from headway.core.lifecycle import Status
from headway.core.schedules import ScheduleSpec
from headway.store.group_entry import count_retries, join_groups
from headway.store.job_filter import Index, JobFilter
from headway.store.job_rows import insertion
from headway.store.queue import (
    ERASED,
    cancel_in_line,
    cancel_words,
    last_in_line,
    record_events,
    repeated,
    review,
)
from headway.store.transaction import Driver, Row, Transaction, as_json, call

_COUNTS: Final[dict[Index, str]] = {
    "group": "job_count_of_group",
    "tenant": "job_count_of_tenant",
    "all": "job_count",
}
_CHOICES: Final[dict[Index, str]] = {
    "group": "jobs_to_act_of_group",
    "tenant": "jobs_to_act_of_tenant",
    "all": "jobs_to_act",
}
COUNT_MAX: Final = 10_000
AT_ONCE_MAX: Final = 100  # Jobs per transaction, which locks them.
_BYTES_AT_ONCE_MAX: Final = 4 << 20  # Arguments per statement.

Verb: TypeAlias = Literal["retry", "cancel"]


@dataclass(frozen=True, slots=True)
class BulkResult:
    """The jobs that were changed, and why each of the others was not."""

    done: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]


def retry_jobs(
    job_ids: Sequence[str], author: str, clock: Clock, into: Mapping[str, str] | None = None
) -> Transaction[BulkResult]:
    """Rerun ended jobs and unpark parked ones; `into` names the group for the reruns of each group's jobs."""
    ids = as_json(sorted(set(job_ids)))
    joined = (yield from join_groups(job_ids)) if into is None else into
    yield call("lock_lines", ids=ids)
    yield call("lock_jobs", ids=ids)  # A concurrent retry waits here, then finds the job retried.
    found = {row["id"]: row for row in (yield call("jobs_to_repeat", ids=ids))}
    again = {row["rerun_of"]: row["id"] for row in (yield call("reruns", ids=ids))}
    refused = {job_id: reason for job_id in job_ids if (reason := _unrunnable(found.get(job_id), again.get(job_id)))}
    fit = [row for job_id, row in found.items() if job_id not in refused]
    parked = [row["id"] for row in fit if not Status(row["status"]).is_final]
    yield from _unpark(parked, author)
    reruns = yield from _repeat([row for row in fit if Status(row["status"]).is_final], clock, joined)
    reviewed = yield from review(list(reruns), "reviewed", author)
    yield from count_retries(_same_group(found[job_id]["group_id"], joined) for job_id in reviewed)
    yield from record_events(
        [(job_id, "retried", {"author": author, "job_id": new_id}) for job_id, new_id in reruns.items()]
    )
    return BulkResult(tuple(sorted([*parked, *reruns])), tuple(refused.items()))


def _same_group(group_id: str | None, joined: Mapping[str, str]) -> str | None:
    """Return the group of a job if its rerun has joined it."""
    return group_id if group_id is not None and joined.get(group_id) == group_id else None


def _unrunnable(row: Row | None, again: str | None) -> str | None:
    """Return why a job cannot be retried; None if it can."""
    if row is None:
        return "no job has this id"
    status = Status(row["status"])
    if status is Status.BLOCKED and row["parked"] is not None:
        return None
    if not status.is_final:
        return f"it is {status}; only a job that has ended can be retried"
    if row["reason"] == ERASED:
        return "it was erased, and its arguments with it"
    return None if again is None else f"{again} repeats it already"


def _unpark(job_ids: Sequence[str], author: str) -> Transaction[None]:
    if job_ids:
        rows = yield call("unpark_jobs", ids=as_json(job_ids))
        yield from record_events([(row["id"], "unparked", {"author": author}) for row in rows])


def _repeat(rows: Sequence[Row], clock: Clock, joined: Mapping[str, str]) -> Transaction[dict[str, str]]:
    """Enqueue a rerun of each job; reruns of a schedule that runs one job at a time wait for each other."""
    exclusive, last = yield from _lines(rows)
    reruns: dict[str, str] = {}
    waiting, size = [], 0
    for row in rows:
        new_id, schedule = clock.new_id("job"), row["schedule"]
        is_exclusive = exclusive.get(schedule, row["exclusive"] == 1)
        blocked_by = last.get(schedule) if is_exclusive else None
        if is_exclusive and schedule is not None:
            last[schedule] = new_id
        group_id = joined.get(row["group_id"] or "")
        waiting.append(repeated(row, new_id, exclusive=is_exclusive, blocked_by=blocked_by, group_id=group_id))
        reruns[row["id"]] = new_id
        size += len(row["args"])
        if size > _BYTES_AT_ONCE_MAX:
            yield insertion(waiting)
            waiting, size = [], 0
    if waiting:
        yield insertion(waiting)
    return reruns


def _lines(rows: Sequence[Row]) -> Transaction[tuple[dict[str, bool], dict[str, str]]]:
    """Return which schedules run one job at a time, and the last waiting job of each."""
    names = sorted({row["schedule"] for row in rows if row["schedule"] is not None})
    if not names:
        return {}, {}
    exclusive = {}
    for row in (yield call("definitions", names=as_json(names))):
        try:
            exclusive[row["name"]] = ScheduleSpec.from_json(row["definition"]).exclusive
        except DefinitionError:
            continue  # The flag of the job decides then.
    live: dict[str, list[Row]] = {}
    for row in (yield call("live_jobs", names=as_json([{"name": name} for name in names]))):
        live.setdefault(row["schedule"], []).append(row)
    last = {name: job_id for name, theirs in live.items() if (job_id := last_in_line(theirs)) is not None}
    return exclusive, last


def _cancel(job_ids: Sequence[str], words: str) -> Transaction[BulkResult]:
    ended, asked = yield from cancel_in_line(job_ids, words)
    done = {*ended, *asked}
    rest = [job_id for job_id in job_ids if job_id not in done]
    states: Mapping[str, Row] = {}
    if rest:
        states = {row["id"]: row for row in (yield call("job_states", ids=as_json(rest)))}
    return BulkResult(tuple(sorted(done)), tuple((job_id, _why_not_cancelled(states.get(job_id))) for job_id in rest))


def _why_not_cancelled(row: Row | None) -> str:
    if row is None:
        return "no job has this id"
    return f"it has ended as {row['status']}" if Status(row["status"]).is_final else "it was asked to stop already"


class StoreBulk:
    """Actions on many jobs of one store."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def count(self, chosen: JobFilter, verb: Verb | None = None, *, limit: int = COUNT_MAX) -> tuple[int, bool]:
        """Count the jobs that match and that the verb applies to, up to a limit; return whether that is all."""
        rows = await self._driver.fetch(call(_COUNTS[chosen.index], **chosen.parameters(), verb=verb, limit=limit + 1))
        jobs: int = rows[0]["jobs"]
        return min(jobs, limit), jobs <= limit

    async def choose(self, chosen: JobFilter, verb: Verb, limit: int) -> list[tuple[str, str]]:
        """Return the oldest jobs that match and that the verb applies to, each with its tenant."""
        rows = await self._driver.fetch(call(_CHOICES[chosen.index], **chosen.parameters(), verb=verb, limit=limit))
        return [(row["id"], row["tenant"]) for row in rows]

    async def find(
        self, job_ids: Iterable[str], verb: Verb, *, tenant: str | None = None
    ) -> dict[str, tuple[str, bool]]:
        """Return the tenant of each job that exists (for a tenant), and whether the verb applies to it."""
        ids = as_json(sorted(set(job_ids)))
        rows = await self._driver.fetch(call("jobs_to_act_by_id", ids=ids, verb=verb, tenant=tenant))
        return {row["id"]: (row["tenant"], row["is_fit"] == 1) for row in rows}

    async def retry(self, job_ids: Sequence[str], *, author: str) -> BulkResult:
        """Rerun ended jobs, each as a new job linked to it, and unpark parked ones, in one transaction.

        Jobs that were retried already are skipped.
        """
        return await self._driver.run(lambda: retry_jobs(job_ids, author, self._clock))

    async def cancel(self, job_ids: Sequence[str], *, author: str, reason: str = "") -> BulkResult:
        """Cancel jobs that are not running and ask running ones to stop, in one transaction."""
        return await self._driver.run(lambda: _cancel(job_ids, cancel_words(author, reason)))
