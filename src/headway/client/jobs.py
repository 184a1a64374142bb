"""The calls on jobs."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypedDict, Unpack

from headway.client import follow
from headway.client.binding import Shapes, W_co, get, listing, operation, pages, post, require_known
from headway.client.declared_calls import DeclaredJobs
from headway.client.follow import Event
from headway.client.progress_bar import draw
from headway.client.requests import (
    Flow,
    Shape,
    Steps,
    duration_text,
    instant_text,
    part,
)
from headway.core.clock import Clock
from headway.core.errors import (
    DuplicateKey,
    InvalidTask,
    JobNotFound,
    NotFinal,
    TaskNotFound,
)
from headway.core.instants import SECOND, DurationLike, InstantLike, parse_duration
from headway.core.jobs import EnqueueOptions
from headway.core.windows import WINDOW_OPTIONS


def new_key() -> str:
    """Make a unique idempotency key, so that a job whose response was lost is not created twice."""
    return _KEYS.new_id("auto")


_KEYS: Final = Clock()


_IN_BODY: Final = {"at": "run_at"}  # Options that have another name in the body.
_WRITERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **{name: partial(duration_text, what=name) for name in ("delay", "timeout", "expires", *WINDOW_OPTIONS)},
    "at": partial(instant_text, what="at"),
    "tags": list,
    "metadata": dict,
}


def _job_body(task: str, args: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]) -> Shape:
    require_known(options, EnqueueOptions, "enqueue")
    given = {name: value for name, value in options.items() if value is not None}
    if given.keys().isdisjoint(WINDOW_OPTIONS):  # Else the key names a window, and the caller has to choose it.
        given = {"key": new_key(), **given}
    return {
        "type": task,
        "args": dict(args or {}),
        **{_IN_BODY.get(name, name): _WRITERS.get(name, _as_is)(value) for name, value in given.items()},
    }


def _as_is(value: Any) -> Any:
    return value


class JobFilters(TypedDict, total=False):
    """Filters of jobs, with the names of the API."""

    status: str | None
    type: str | None
    queue: str | None
    tenant: str | None
    schedule: str | None
    batch: str | None
    tag: str | None
    key: str | None
    created_after: InstantLike | None
    created_before: InstantLike | None
    finished_after: InstantLike | None
    finished_before: InstantLike | None
    rerun_of: str | None
    q: str | None


class JobCalls(DeclaredJobs[W_co]):
    """Enqueue, read, follow, cancel and retry jobs."""

    @operation
    def enqueue(
        self, task: str, args: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Steps[Shape]:
        """Enqueue a job; it is durable when this returns. Without a key it gets one, so retries create no duplicate.

        With debounce, throttle or unique, the key names the window, and `merged_into` is set if the job was merged.
        """
        return _enqueue(_job_body(task, args, **options))

    @operation
    def enqueue_many(self, jobs: Iterable[Mapping[str, Any]], *, batch: str | None = None) -> Steps[Shapes]:
        """Enqueue many jobs, all or none: `{"task": …, "args": {…}, "queue": …}` with the options of `enqueue`.

        With `batch`, the name or id of a batch, they are added to it; give each a key, so that it is safe to repeat.
        """
        return _enqueue_many([_job_body(**job) for job in jobs], batch)

    @operation
    def job(self, job_id: str) -> Steps[Shape]:
        """Return a job with the explanation of its state."""
        return get(_job(job_id), missing=JobNotFound)

    @listing
    def jobs(
        self, *, before: str | None = None, limit: int | None = None, **filters: Unpack[JobFilters]
    ) -> Flow[Shape]:
        """Iterate over jobs, newest first; pages are read as they are needed."""
        require_known(filters, JobFilters, "jobs")
        return pages("/api/jobs", {**_job_filters(filters), "cursor": before}, limit)

    @operation
    def count(self, /, **filters: Unpack[JobFilters]) -> Steps[Shape]:
        """Count the jobs that match, with the filters of `jobs`: `{"count": 37, "is_exact": True}`."""
        return get("/api/jobs/count", _job_filters(filters), missing=JobNotFound)

    @operation
    def retry_many(
        self,
        /,
        ids: Iterable[str] | None = None,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        reason: str = "",
        **filters: Unpack[JobFilters],
    ) -> Steps[Shape]:
        """Run many finished jobs again, oldest first: those with these ids, or those that match.

        The filters are those of `jobs`. Jobs that were already retried are left alone; with `dry_run` it only counts.
        """
        return _many("retry", ids, filters, dry_run, limit, reason)

    @operation
    def cancel_many(
        self,
        /,
        ids: Iterable[str] | None = None,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        reason: str = "",
        **filters: Unpack[JobFilters],
    ) -> Steps[Shape]:
        """Cancel many jobs, oldest first: those with these ids, or those that match. Running ones are asked to stop."""
        return _many("cancel", ids, filters, dry_run, limit, reason)

    @operation
    def latest(
        self, type: str, *, tenant: str | None = None, key: str | None = None, status: str | None = None
    ) -> Steps[Shape]:
        """Return the newest job of a kind, such as the latest report of a tenant, or the latest COMPLETED one."""
        query = {"type": type, "tenant": tenant, "key": key, "status": status}
        return get("/api/jobs/latest", query, missing=JobNotFound)

    @operation
    def retry(self, job_id: str, *, args: Mapping[str, Any] | None = None) -> Steps[Shape]:
        """Run a finished job again, as a new job that is linked to it, perhaps with other arguments."""
        body = None if args is None else {"args": dict(args)}
        return post(_job(job_id, "retry"), body, missing=JobNotFound, conflict=NotFinal, invalid=InvalidTask)

    @listing
    def log(self, job_id: str, *, after: int = 0, limit: int | None = None, newest_first: bool = False) -> Flow[Shape]:
        """Iterate over the log lines of a job, oldest first, starting after line number `after`.

        With `newest_first` the order is reversed, and it starts before line number `after`.
        """
        query = {"cursor": after or None, "order": "desc" if newest_first else None}
        return pages(_job(job_id, "log"), query, limit, missing=JobNotFound)

    @operation
    def wait(self, job_id: str, timeout: DurationLike | None = None) -> Steps[Any]:
        """Wait until a job has ended; return its result, or raise `JobFailed` (or `TimeoutError` after `timeout`)."""
        return follow.wait(job_id, timeout)

    @operation
    def changed(self, job_id: str, version: int, wait: DurationLike = "25s") -> Steps[Shape]:
        """Return a job as soon as it has another version than this one, or unchanged when the time is up."""
        return follow.long_poll(job_id, version, parse_duration(wait, what="wait") / SECOND)

    @listing
    def watch(self, job_id: str) -> Flow[Event]:
        """Iterate over the events of a job until it has ended; survives lost connections and restarted servers."""
        return follow.watch(job_id)

    @operation
    def progress(self, job_id: str) -> Steps[Shape]:
        """Draw the progress of a job on the terminal until it has ended; return the job."""
        return draw(job_id)

    @listing
    def stream(
        self,
        *,
        status: str | None = None,
        type: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        schedule: str | None = None,
        tag: str | None = None,
        key: str | None = None,
    ) -> Flow[Event]:
        """Iterate over the events of all jobs that match, without end.

        An event `resync` means that events may have been missed: read the jobs again.
        """
        query = {"status": status, "type": type, "queue": queue, "tenant": tenant, "schedule": schedule}
        return follow.stream({**query, "tag": tag, "key": key})


_TIMES: Final = ("created_after", "created_before", "finished_after", "finished_before")


def _job_filters(filters: Mapping[str, Any]) -> Shape:
    return {name: instant_text(value, name) if name in _TIMES else value for name, value in filters.items()}


def _many(
    verb: str, ids: Iterable[str] | None, filters: Mapping[str, Any], dry_run: bool, limit: int | None, reason: str
) -> Steps[Shape]:
    chosen = None if ids is not None and not filters else _job_filters(filters)
    body = {"filter": chosen, "ids": None if ids is None else [*ids], "dry_run": dry_run, "limit": limit}
    # With ids it is idempotent; with a filter and a limit, a repetition would take the next jobs.
    return post(f"/api/jobs/{verb}", {**body, "reason": reason}, is_keyed=dry_run or ids is not None)


def _job(job_id: str, verb: str | None = None) -> str:
    return f"/api/jobs/{part(job_id)}" + (f"/{verb}" if verb else "")


def _enqueue(body: Shape) -> Steps[Shape]:
    job: Shape = yield from post(
        "/api/jobs", body, is_keyed=True, missing=TaskNotFound, conflict=DuplicateKey, invalid=InvalidTask
    )
    return job


def _enqueue_many(jobs: Shapes, batch: str | None) -> Steps[Shapes]:
    if not jobs:
        return []
    answer = yield from post(
        "/api/jobs/bulk",
        {"jobs": jobs} if batch is None else {"jobs": jobs, "batch": batch},
        is_keyed=True,
        missing=TaskNotFound,
        conflict=DuplicateKey,
        invalid=InvalidTask,
    )
    items: Shapes = answer["items"]
    return items
