"""Jobs: enqueue, list, count, show, explain, cancel and retry them."""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, Literal

import msgspec

from headway.core.errors import (
    AlreadyFinal,
    BatchClosed,
    BatchNotFound,
    DefinitionError,
    DuplicateKey,
    InvalidTask,
    JobNotFound,
    NotFinal,
    TaskNotFound,
)
from headway.core.instants import SECOND, parse_duration
from headway.core.job_details import read_json
from headway.core.jobs import Job as StoredJob
from headway.core.json_values import encode_args
from headway.core.lifecycle import Status
from headway.operations.bulk import Bulk
from headway.operations.caller import require_printable
from headway.operations.enqueue import enqueue_many, enqueue_one
from headway.operations.job_actions import cancel_job, retry_job
from headway.operations.job_reads import (
    JOB_ID,
    PAGE_BYTES_MAX,
    chosen_by,
    etag_of_job,
    explained_job,
    page_of_jobs,
    shown_job,
    tenant_asked_for,
    versions_of,
    visible_job,
)
from headway.operations.job_source import serial_of
from headway.operations.verbs import InHeader, OperationGroup, Reason, verb
from headway.wire.base import LISTED_BYTES_MAX, PAGE_DEFAULT, Cursor, Limit, Page
from headway.wire.job_requests import EnqueuedJobs, JobFilter, ManyJobs, ManyOutcome, NewJobs
from headway.wire.jobs import (
    Attempt,
    CreatedJob,
    HistoryEntry,
    Job,
    JobCount,
    LogLine,
    NewJob,
    Why,
    attempt_of,
    entry_of,
    line_of,
)
from headway.wire.masking import unmasked

ATTEMPTS_SHOWN: Final = 1_000
FIRST_LOOK_S: Final = 0.05
EVERY_JOB: Final = JobFilter()
_LINE_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)

IdempotencyKey = Annotated[str | None, InHeader("Idempotency-Key")]
Order = Annotated[
    Literal["asc", "desc"], msgspec.Meta(description="`asc` for the oldest line first, `desc` for the newest")
]
OtherArgs = Annotated[
    dict[str, Any],
    msgspec.Meta(
        description="arguments instead of those of the job; masked values are kept", examples=[{"video": 457}]
    ),
]
Wait = Annotated[str, msgspec.Meta(description="how long to wait for a change (long polling)", examples=["30s"])]
Version = Annotated[int, msgspec.Meta(ge=0, le=10**15, description="the last version that you know")]
Live = Annotated[int, msgspec.Meta(ge=0, le=10**15, description="the last `live` that you know of that version")]


def _names_jobs(given: Mapping[str, Any]) -> bool:
    """Return whether repeating it is safe: with ids it is; with a filter and a limit it would take the next jobs."""
    return given["many"].dry_run or given["many"].ids is not None


def _is_created(job: Job) -> bool:
    return isinstance(job, CreatedJob)


def _path_of(job: Job) -> str:
    return f"/api/jobs/{job.id}"


class Jobs(OperationGroup):
    """Jobs: waiting, running and finished work."""

    @verb(
        "POST /api/jobs",
        id="enqueue",
        role="operator",
        idempotent_by="idempotency_key",
        idempotent_if=lambda given: not given["job"].has_window,
        errors=(TaskNotFound, DuplicateKey, InvalidTask),
        created=_is_created,
        location=_path_of,
    )
    async def enqueue(self, job: NewJob, *, idempotency_key: IdempotencyKey = None) -> Job:
        """Enqueue a job.

        201 for a new job; 200 and the existing job if the same key was used before with the same arguments; 409 if it
        was used with other arguments. With `debounce`, `throttle` or `unique`, `key` names a window: 200 and
        `merged_into` if the request was merged into an existing job; 409 if another task uses the window.
        """
        return await enqueue_one(self.caller, job, idempotency_key)

    @verb(
        "POST /api/jobs/bulk",
        id="enqueue_many",
        role="operator",
        is_repeatable=lambda given: all(job.key is not None for job in given["new"].jobs),
        is_bulk=True,
        errors=(TaskNotFound, BatchNotFound, DuplicateKey, BatchClosed, InvalidTask),
        created=lambda enqueued: enqueued.created > 0,
    )
    async def enqueue_many(self, new: NewJobs, *, idempotency_key: IdempotencyKey = None) -> EnqueuedJobs:
        """Enqueue many jobs, all or none.

        Each job may have its own `key`; the header Idempotency-Key is refused. With `batch` they are added to a batch;
        409 if it is closed.
        """
        if idempotency_key is not None:
            raise DefinitionError("Idempotency-Key: not allowed for many jobs; give each job its own `key`")
        return await enqueue_many(self.caller, new.jobs, batch=new.batch)

    @verb("GET /api/jobs", id="list_jobs", role="viewer", stable=versions_of)
    async def list(
        self, which: JobFilter = EVERY_JOB, *, limit: Limit = PAGE_DEFAULT, cursor: Cursor | None = None
    ) -> Page[Job]:
        """List jobs, newest first."""
        if cursor is not None and not JOB_ID.fullmatch(cursor):
            raise DefinitionError("cursor must be the `next_cursor` of the page before")
        chosen = await chosen_by(self.caller, which)
        if chosen is None:
            return Page([])
        found = await self.caller.store.jobs.chosen(chosen, before=cursor, limit=limit, largest=LISTED_BYTES_MAX)
        return await page_of_jobs(self.caller, await self.caller.job_source.overlaid(found), limit)

    @verb("GET /api/jobs/count", id="count_jobs", role="viewer")
    async def count(self, which: JobFilter = EVERY_JOB) -> JobCount:
        """Count the jobs that match.

        Counts up to 10,000; if there are more, `is_exact` is false.
        """
        chosen = await chosen_by(self.caller, which)
        number, is_exact = (0, True) if chosen is None else await self.caller.store.bulk.count(chosen)
        return JobCount(number, is_exact)

    @verb(
        "GET /api/jobs/latest",
        id="latest_job",
        role="viewer",
        errors=(JobNotFound,),
        stable=lambda job, _: [job.id, etag_of_job(job)],
    )
    async def latest(
        self,
        type: Annotated[str, msgspec.Meta(description="the task", examples=["report"])],
        *,
        status: Annotated[Status, msgspec.Meta(description="the newest job with this status")] | None = None,
        tenant: Annotated[str, msgspec.Meta(description="of this tenant", examples=["42"])] | None = None,
        key: Annotated[str, msgspec.Meta(description="with this key")] | None = None,
    ) -> Job:
        """Show the newest job of a kind.

        For example the latest report of a tenant. With `status=COMPLETED` it is the latest one that is ready, with its
        `result.download_url`, even while a newer one runs.
        """
        tenant = tenant_asked_for(self.caller, tenant)
        found = await self.caller.store.jobs.latest(type, tenant=tenant, key=key, status=status)
        if found is None:
            raise JobNotFound(f"there is no {f'{status} ' if status else ''}job of type {type!r} yet")
        [found] = await self.caller.job_source.overlaid([found])
        return await shown_job(self.caller, found)

    @verb("GET /api/jobs/{job_id}", id="get_job", role="viewer", errors=(JobNotFound,), etag=etag_of_job)
    async def show(
        self, job_id: str, *, wait: Wait | None = None, since: Version | None = None, live: Live | None = None
    ) -> Job:
        """Show one job, and explain its state.

        With `wait` (and `since`) this is long polling: the response comes when the job has changed, or after that time.
        With `Accept: text/event-stream` it is the stream of `/api/jobs/{job_id}/events`.
        """
        job = await visible_job(self.caller, job_id)
        if wait is not None:
            known = job.version if since is None else since, serial_of(job) if live is None else live
            job = await self._changed(job, known, parse_duration(wait, what="wait") / SECOND)
        return await shown_job(self.caller, job)

    async def _changed(self, job: StoredJob, known: tuple[int, int], wait_s: float) -> StoredJob:
        """Poll a job until it has changed, at growing intervals."""
        clock, rest_s, never = self.caller.clock, FIRST_LOOK_S, asyncio.Event()
        until = clock.monotonic() + wait_s
        while (job.version, serial_of(job)) <= known and not job.status.is_final:
            left_s = until - clock.monotonic()
            if left_s <= 0:
                break
            await clock.rest(min(rest_s, left_s), never)
            rest_s *= 2
            job = await visible_job(self.caller, job.id)
        return job

    @verb("GET /api/jobs/{job_id}/attempts", id="attempts_of_job", role="viewer", errors=(JobNotFound,))
    async def attempts(self, job_id: str) -> Page[Attempt]:
        """List the finished attempts of a job."""
        job = await visible_job(self.caller, job_id)
        left = PAGE_BYTES_MAX if self.caller.principal.may("operator") else 0
        items = []
        # If not all tracebacks fit into the response, keep the newest.
        for attempt in reversed(await self.caller.store.jobs.attempts(job.id, newest=ATTEMPTS_SHOWN)):
            left -= len(attempt["error"] or "")
            items.append(attempt_of(attempt, with_traceback=left >= 0))
        return Page(items[::-1])

    @verb("GET /api/jobs/{job_id}/log", id="log_of_job", role="viewer", errors=(JobNotFound,))
    async def log(
        self, job_id: str, *, order: Order = "asc", limit: Limit = PAGE_DEFAULT, cursor: Cursor | None = None
    ) -> Page[LogLine]:
        """Read the log of a job, oldest line first.

        With `order=desc` the newest line comes first, and the cursor continues with older ones.
        """
        job = await visible_job(self.caller, job_id)
        if cursor is not None and not _LINE_NUMBER.fullmatch(cursor):
            raise DefinitionError("cursor must be the `next_cursor` of the previous page of this list")
        if order == "desc":
            before = None if cursor is None else int(cursor)
            lines = await self.caller.store.jobs.log_newest(job.id, before=before, limit=limit)
        else:
            lines = await self.caller.store.jobs.log(job.id, after=int(cursor or 0), limit=limit)
        return Page([line_of(line) for line in lines], str(lines[-1]["seq"]) if len(lines) == limit else None)

    @verb("GET /api/jobs/{job_id}/history", id="history_of_job", role="viewer", errors=(JobNotFound,))
    async def history(self, job_id: str) -> Page[HistoryEntry]:
        """List what has happened to a job, oldest first."""
        job = await visible_job(self.caller, job_id)
        return Page([entry_of(event) for event in await self.caller.store.jobs.events(job.id)])

    @verb("GET /api/jobs/{job_id}/why", id="why_of_job", role="viewer", errors=(JobNotFound,))
    async def why(self, job_id: str) -> Why:
        """Explain why a job has its status, with the evidence."""
        job = await visible_job(self.caller, job_id)
        found = await explained_job(self.caller, job)
        return Why(job.id, job.status, found.why, found.evidence)

    @verb(
        "POST /api/jobs/{job_id}/cancel",
        id="cancel_job",
        role="operator",
        errors=(JobNotFound, AlreadyFinal),
    )
    async def cancel(self, job_id: str, *, reason: Reason = "") -> Job:
        """Cancel a job; if it runs, ask it to stop."""
        require_printable(reason, "reason")
        return await shown_job(self.caller, await cancel_job(self.caller, job_id, reason))

    @verb(
        "POST /api/jobs/{job_id}/retry",
        id="retry_job",
        role="operator",
        errors=(JobNotFound, NotFinal, InvalidTask),
        created=_is_created,
        location=_path_of,
    )
    async def retry(self, job_id: str, *, args: OtherArgs | None = None) -> Job:
        """Run a finished job again, as a new job.

        With `args` the new job gets other arguments. `rerun_of` names the job that it repeats.
        """
        job = await visible_job(self.caller, job_id)
        text = None if args is None else await self._other_args(job, args)
        again = await retry_job(self.caller, job, text)
        return await shown_job(self.caller, again, CreatedJob if again.id != job.id else Job)

    async def _other_args(self, job: StoredJob, given: dict[str, Any]) -> str:
        """Check the arguments of a rerun; a task that is unknown here may be known to another process."""
        async with self.caller.turn():
            stored = (await self.caller.job_source.whole(job)).args
            args = await self.caller.convert_now(len(stored), lambda: unmasked(given, read_json(stored)))
        with suppress(TaskNotFound):
            _, args = await self.caller.options_of(job.task, args)
        return encode_args(args)

    @verb("POST /api/jobs/retry", id="retry_many", role="operator", is_repeatable=_names_jobs)
    async def retry_many(self, many: ManyJobs) -> ManyOutcome:
        """Run many finished jobs again, each as a new job.

        Select them with `filter`, which has the filters of the list of jobs, or with `ids`. `matched` counts the jobs
        that qualify, up to 10,000; with `dry_run` nothing else happens. One request takes at most 1,000 jobs, oldest
        first; `more` says that there are others. It is idempotent: a job that was already retried is left alone.
        """
        return await Bulk(self.caller, "retry", many).run()

    @verb("POST /api/jobs/cancel", id="cancel_many", role="operator", is_repeatable=_names_jobs)
    async def cancel_many(self, many: ManyJobs) -> ManyOutcome:
        """Cancel many jobs; those that run are asked to stop.

        Select them with `filter`, which has the filters of the list of jobs, or with `ids`. `matched` counts the jobs
        that qualify, up to 10,000; with `dry_run` nothing else happens. One request takes at most 1,000 jobs, oldest
        first; `more` says that there are others. It is idempotent.
        """
        return await Bulk(self.caller, "cancel", many).run()
