"""The routes of jobs: hand in, look at, stop, run again."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec

from headway.core.errors import DefinitionError, DuplicateKey, JobNotFound, TaskNotFound
from headway.core.instants import Instant, parse_start, to_datetime
from headway.core.job_details import read_json
from headway.core.jobs import EnqueuedRow, Job, NewJob
from headway.core.json_values import encode_args
from headway.core.lifecycle import Status
from headway.core.validation import KEY_LENGTH_MAX, check_name
from headway.operations import audit_log as deeds
from headway.operations.job_context import node_names, why
from headway.operations.job_reader import length_of, serial_of
from headway.server.offload import Offload
from headway.server.refusals import Refused
from headway.server.routes.streams import (
    FILTERS,
    LIVE,
    SINCE,
    Stream,
    events_of_job,
    job_answer,
    visible_job,
    wait_for_change,
)
from headway.server.web import (
    BULK_BYTES_MAX,
    CURSOR,
    LIMIT,
    PAGE_BYTES_MAX,
    Answer,
    Call,
    Param,
    Route,
    etag_of,
    require_printable,
)
from headway.store.job_filter import JobFilter
from headway.wire.base import LISTED_BYTES_MAX, Page
from headway.wire.jobs import Job as JobResource
from headway.wire.jobs import JobCount, attempt_of, entry_of, job_of, line_of, listed
from headway.wire.masking import unmasked

JOBS_MAX: Final = 10_000
ATTEMPTS_SHOWN: Final = 1_000
AT_ONCE: Final = 50
JOB_BYTES: Final = 1_024  # What a job has as JSON besides its texts, about.
BULK_ANSWER_BYTES_MAX: Final = 4 << 20
JOB_ID: Final = re.compile(r"job_[0-9a-z]{26}")

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class JobBody(msgspec.Struct, forbid_unknown_fields=True):
    """A job as it is handed in over HTTP."""

    type: _Text
    args: dict[str, Any] = {}
    delay: str | float | int | None = None
    run_at: str | None = None
    queue: _Text | None = None
    priority: int | None = None
    key: _Text | None = None
    tenant: _Text | None = None
    callback_url: str | None = None
    max_attempts: int | None = None
    timeout: str | float | int | None = None
    expires: str | float | int | None = None
    tags: list[_Text] | None = None
    metadata: dict[str, Any] | None = None


class BulkBody(msgspec.Struct, forbid_unknown_fields=True):
    """Many jobs, all or none."""

    jobs: Annotated[list[JobBody], msgspec.Meta(min_length=1, max_length=JOBS_MAX)]


class ReasonBody(msgspec.Struct, forbid_unknown_fields=True):
    """Why somebody does something."""

    reason: Annotated[str, msgspec.Meta(max_length=300)] = ""

    def __post_init__(self) -> None:
        require_printable(self.reason, "reason")


class RetryBody(msgspec.Struct, forbid_unknown_fields=True):
    """Other arguments than the job had; those that are shown masked are kept where they come back masked."""

    args: dict[str, Any] | None = None


# --- what routes have in common


async def page_of_jobs(call: Call, found: Sequence[Job], limit: int, *, following: str | None = None) -> Answer:
    """Answer with a page of jobs, of those that fit into it: bounded by their number, and by their bytes.

    `following` is where the next page begins if this one has all that was found, and they are fewer than the limit.
    """
    shown = _fitting(found)
    if len(shown) < len(found) or len(found) == limit:
        following = shown[-1].id
    names, size = await _names(call, shown), sum(map(length_of, shown))
    offload: Offload = call.services.offload
    with_traceback, now = call.principal.may("operator"), call.clock.now()
    items = await offload.take_turn(
        call.principal.holder, size, _resources, shown, now, names, with_traceback=with_traceback
    )
    stable = [with_traceback, following, [(job.id, job.version, serial_of(job)) for job in shown]]
    return Answer(Page(items, following), etag=etag_of(stable))


def _fitting(found: Sequence[Job]) -> list[Job]:
    """Return the first jobs whose texts fit into a page, at least one; what is too large for a list is left out."""
    shown: list[Job] = []
    size = 0
    for job in map(listed, found):
        size += length_of(job) + JOB_BYTES
        if shown and size > PAGE_BYTES_MAX:
            break
        shown.append(job)
    return shown


def _resources(
    jobs: Iterable[Job], now: Instant, names: Mapping[str, str], *, with_traceback: bool
) -> list[JobResource]:
    return [job_of(job, now, node_name=names.get(job.node or ""), with_traceback=with_traceback) for job in jobs]


async def _names(call: Call, jobs: Iterable[Job]) -> Mapping[str, str]:
    """Return the names of nodes, where any of these jobs has one to tell."""
    return await node_names(call.store) if any(job.status is Status.RUNNING for job in jobs) else {}


# --- hand in


async def enqueue(call: Call) -> Answer:
    """Hand in one job."""
    body = await call.body(JobBody)
    key = call.request.headers.get("idempotency-key")
    if key is not None:
        check_name(key, "Idempotency-Key", KEY_LENGTH_MAX)
        if body.key not in (None, key):
            raise Refused(422, "invalid", "key: the body and the header Idempotency-Key say different things")
    job = await _new_job(call, body, key)
    [row] = await _hand_in(call, [job])
    headers = {"Location": f"/api/jobs/{row.id}"}
    if row.is_new:
        offload: Offload = call.services.offload
        size = len(job.args)
        shape = await offload.take_turn(call.principal.holder, size, job_of, row.job_of(job), row.created_at)
        return Answer(shape, 201, headers)
    return await job_answer(call, (await _earlier(call, [row]))[row.id], headers=headers)


async def enqueue_many(call: Call) -> Answer:
    """Hand in many jobs, all or none."""
    if "idempotency-key" in call.request.headers:
        raise Refused(422, "invalid", "Idempotency-Key: many jobs have no key in common; give each its own `key`")
    body = await call.body(BulkBody)
    jobs = []
    for number, one in enumerate(body.jobs):
        if number % AT_ONCE == 0:
            await call.clock.yield_to_loop()
        try:
            jobs.append(await _new_job(call, one, None))
        except (DefinitionError, TaskNotFound, Refused) as error:
            status = 404 if isinstance(error, TaskNotFound) else getattr(error, "status", 422)
            code = "unknown_task" if isinstance(error, TaskNotFound) else getattr(error, "code", "invalid")
            raise Refused(status, code, f"jobs[{number}]: {error}") from None
    rows = await _hand_in(call, jobs)
    earlier = await _earlier(call, rows)
    names, now = await _names(call, earlier.values()), call.clock.now()
    shown = [row.job_of(job) if row.is_new else earlier[row.id] for job, row in zip(jobs, rows, strict=True)]
    created = sum(row.is_new for row in rows)
    offload: Offload = call.services.offload
    size = sum(map(length_of, shown)) + JOB_BYTES * len(shown)
    items = await offload.take_turn(call.principal.holder, size, _written_all, shown, now, names)
    counts = b'"created":%d,"existing":%d' % (created, len(rows) - created)
    return Answer(b'{"items":[%b],%b}' % (items, counts), 201 if created else 200)


def _written_all(jobs: Iterable[Job], now: Instant, names: Mapping[str, str]) -> bytes:
    """Write the answer about many new jobs; once it has so many bytes of values, those of the others are left out."""
    written, size = [], 0
    for job in jobs:
        job = listed(job, largest=LISTED_BYTES_MAX if size < BULK_ANSWER_BYTES_MAX else 0)
        size += length_of(job)
        written.append(msgspec.json.encode(job_of(job, now, node_name=names.get(job.node or ""))))
    return b",".join(written)


async def _hand_in(call: Call, jobs: list[NewJob]) -> list[EnqueuedRow]:
    await call.services.quotas.jobs(call.principal, len(jobs))
    store = call.caller.acting(deeds.enqueue(jobs)) if call.services.audits_enqueues else call.caller.store
    try:
        return await store.queue.enqueue(jobs, largest=LISTED_BYTES_MAX)
    except DuplicateKey as error:
        raise Refused(409, "duplicate_key", str(error)) from None


async def _new_job(call: Call, body: JobBody, key: str | None) -> NewJob:
    own = call.principal.one_tenant
    if body.tenant is not None and own is not None and body.tenant != own:
        raise Refused(403, "forbidden", "tenant: the tenant comes from the token; leave it out")
    if body.run_at is not None and body.delay is not None:
        raise Refused(422, "invalid", "delay and run_at exclude each other: say when in one way")
    options, args = await call.caller.options_of(check_name(body.type, "type"), body.args)
    options = options.changed(
        {
            "queue": body.queue,
            "priority": body.priority,
            "tenant": own or body.tenant,
            "max_attempts": body.max_attempts,
            "delay": body.delay,
            "at": None if body.run_at is None else to_datetime(parse_start(body.run_at, what="run_at")),
            "key": key or body.key,
            "tags": None if body.tags is None else tuple(body.tags),
            "timeout": body.timeout,
            "expires": body.expires,
            "metadata": body.metadata,
            "callback_url": body.callback_url,
        }
    )
    return options.new_job(call.clock.new_id("job"), body.type, args)


async def _earlier(call: Call, rows: Sequence[EnqueuedRow]) -> dict[str, Job]:
    """Return the jobs that were there before: what they are like by now, not what was handed in this time."""
    found = {row.earlier.id: row.earlier for row in rows if row.earlier is not None}
    return {job.id: job for job in await call.services.reader.overlaid([*found.values()])} if found else {}


# --- look at


async def list_jobs(call: Call) -> Answer:
    """Read a page of jobs, newest first."""
    limit, before = call.page(JOB_ID)
    chosen = chosen_by(call, call.query)
    if chosen is None:
        return Answer({"items": [], "next_cursor": None})
    found = await call.store.jobs.chosen(chosen, before=before, limit=limit, largest=LISTED_BYTES_MAX)
    return await page_of_jobs(call, await call.services.reader.overlaid(found), limit)


async def count_jobs(call: Call) -> Answer:
    """Count the jobs that match, up to a limit."""
    chosen = chosen_by(call, call.query)
    jobs, is_exact = (0, True) if chosen is None else await call.store.bulk.count(chosen)
    return Answer(JobCount(jobs, is_exact))


def chosen_by(call: Call, given: Mapping[str, Any]) -> JobFilter | None:
    """Read the filters of lists by their names there; None where nothing can match, as there are no batches yet."""
    tenant = _tenant(call, given.get("tenant"))
    if given.get("batch"):
        return None
    return JobFilter(
        status=given.get("status"),
        task=given.get("type"),
        queue=given.get("queue"),
        tenant=tenant,
        schedule=given.get("schedule"),
        key=given.get("key"),
        tag=given.get("tag"),
        words=given.get("q"),
        since=given.get("created_after"),
        until=given.get("created_before"),
        finished_after=given.get("finished_after"),
        finished_before=given.get("finished_before"),
        rerun_of=given.get("rerun_of"),
    )


def _tenant(call: Call, asked: str | None) -> str | None:
    """Say whose jobs are asked for; for those of another tenant it is as if there were none."""
    if call.tenant is not None and asked not in (None, call.tenant):
        raise Refused(403, "forbidden", "tenant: this token sees one tenant only; leave it out")
    return call.tenant or asked


async def get_job(call: Call) -> Answer | Stream:
    """Read one job; with `wait` only when it has changed. Who accepts a stream gets one."""
    if call.accepts("text/event-stream"):
        return await events_of_job(call)
    job = await visible_job(call, call.path("job_id"))
    if "wait" in call.query:
        job = await wait_for_change(call, job)
    return await job_answer(call, job)


async def latest_job(call: Call) -> Answer:
    """Read the newest job of a kind."""
    query = call.query
    status = query.get("status")
    found = await call.store.jobs.latest(
        query["type"], tenant=_tenant(call, query.get("tenant")), key=query.get("key"), status=status
    )
    if found is None:
        raise JobNotFound(f"there is no {f'{status} ' if status else ''}job of type {query['type']!r} yet")
    [found] = await call.services.reader.overlaid([found])
    answer = await job_answer(call, found)
    return msgspec.structs.replace(answer, etag=etag_of([found.id, answer.etag]))  # Of another job it may be the same.


async def attempts_of_job(call: Call) -> Answer:
    """Read the attempts of a job that have ended."""
    job = await visible_job(call, call.path("job_id"))
    found = await call.store.jobs.attempts(job.id, newest=ATTEMPTS_SHOWN)
    left = PAGE_BYTES_MAX if call.principal.may("operator") else 0
    items = []
    for attempt in reversed(found):  # Where not all tracebacks fit into the answer, the newest do.
        left -= len(attempt["error"] or "")
        items.append(attempt_of(attempt, with_traceback=left >= 0))
    return Answer({"items": items[::-1], "next_cursor": None})


async def log_of_job(call: Call) -> Answer:
    """Read a page of a job's log, oldest first or newest first."""
    job = await visible_job(call, call.path("job_id"))
    limit, cursor = call.page()
    if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise Refused(422, "invalid", "cursor: not one of this list")
    if call.query.get("order") == "desc":
        before = None if cursor is None else int(cursor)
        lines = await call.store.jobs.log_newest(job.id, before=before, limit=limit)
    else:
        lines = await call.store.jobs.log(job.id, after=int(cursor or 0), limit=limit)
    items = [line_of(line) for line in lines]
    return Answer({"items": items, "next_cursor": str(lines[-1]["seq"]) if len(lines) == limit else None})


async def history_of_job(call: Call) -> Answer:
    """Read what has happened to a job, oldest first."""
    job = await visible_job(call, call.path("job_id"))
    items = [entry_of(event) for event in await call.store.jobs.events(job.id)]
    return Answer({"items": items, "next_cursor": None})


async def why_of_job(call: Call) -> Answer:
    """Say why a job is where it is."""
    job = await visible_job(call, call.path("job_id"))
    reason = await why(call.store, job, call.clock.now(), tenant=call.tenant)
    return Answer({"id": job.id, "status": str(job.status), "why": reason.why, "evidence": reason.evidence})


# --- steer


async def cancel_job(call: Call) -> Answer:
    """End a job, or have it stop when it runs."""
    job = await visible_job(call, call.path("job_id"))
    body = await call.body(ReasonBody)
    acting = call.acting(deeds.cancel(job, body.reason))
    after = await acting.queue.cancel(job.id, author=call.principal.name, reason=body.reason)
    return await job_answer(call, after)


async def retry_job(call: Call) -> Answer:
    """Run a job that has ended once more, as a new one, perhaps with other arguments."""
    job = await visible_job(call, call.path("job_id"))
    body = await call.body(RetryBody)
    args = None if body.args is None else await _other_args(call, job, body.args)
    await call.services.quotas.jobs(call.principal, 1)
    acting = call.acting(deeds.retry(job, other_args=args is not None))
    again = await acting.queue.retry(job.id, author=call.principal.name, args=args)
    status = 201 if again.id != job.id else 200
    return await job_answer(call, again, status=status, headers={"Location": f"/api/jobs/{again.id}"})


async def _other_args(call: Call, job: Job, given: dict[str, Any]) -> str:
    """Check arguments for a job that repeats another one; a task that nobody here knows may be known elsewhere."""
    offload: Offload = call.services.offload
    async with offload.turn(call.principal.holder):
        stored = (await call.services.reader.whole(job)).args
        args: dict[str, Any] = await offload.run(len(stored), lambda: unmasked(given, read_json(stored)))
    with suppress(TaskNotFound):
        _, args = await call.caller.options_of(job.task, args)
    return encode_args(args)


_JOB: Final = {
    "id": "job_01jdm3v5x8k2c9r7t4w6y0zabc",
    "type": "video.transcode",
    "status": "RUNNING",
    "progress": 65,
    "metadata": {"current_step": "Transcoding 720p", "steps_completed": 2, "steps_total": 4},
    "attempts": 1,
    "max_attempts": 3,
    "queue": "media",
    "tenant": "default",
    "args": {"video": 456},
    "result": None,
    "error": None,
    "why": "running on node-2 for 3m 17s",
    "version": 17,
}
_LINE: Final = {
    "seq": 1,
    "at": "2027-01-31T06:00:00.104Z",
    "attempt": 1,
    "stream": "log",
    "level": "info",
    "logger": "shop.stock",
    "line": "from berlin",
}
_EVENT: Final = {"event": "enqueued", "at": "2027-01-31T06:00:00Z", "data": {}}
_PAGE: Final = {"items": [_JOB], "next_cursor": None}
_BODY: Final = {"type": "video.transcode", "args": {"video": 456}, "queue": "media", "key": "video-456"}

JOB_FILTERS: Final = (
    *FILTERS,
    Param("batch", "only jobs of this batch"),
    Param("created_after", "only jobs handed in at or after this time", "instant", example="2027-01-31T08:00:00Z"),
    Param("created_before", "only jobs handed in before this time", "instant"),
    Param("finished_after", "only jobs that ended at or after this time", "instant"),
    Param("finished_before", "only jobs that ended before this time", "instant"),
    Param("rerun_of", "only jobs that repeat this one"),
    Param("q", "only jobs with this text in task, key, schedule, id or reason"),
)

ROUTES: Final = (
    Route(
        method="POST",
        path="/api/jobs",
        handler=enqueue,
        role="operator",
        summary="Enqueue a job",
        what=(
            "201 for a new job; 200 and the job as it is by now when the same key was used before with the same"
            " arguments; 409 with others."
        ),
        body=JobBody,
        body_example=_BODY,
        headers=("Idempotency-Key",),
        answers={201: _JOB, 200: _JOB, 409: None},
    ),
    Route(
        method="POST",
        path="/api/jobs/bulk",
        handler=enqueue_many,
        role="operator",
        summary="Enqueue many jobs, all or none",
        what="Each job may have its own `key`; the header Idempotency-Key is refused.",
        body=BulkBody,
        body_example={"jobs": [_BODY]},
        body_bytes_max=BULK_BYTES_MAX,
        answers={201: {**_PAGE, "created": 1, "existing": 0}, 200: None, 409: None},
    ),
    Route(
        method="GET",
        path="/api/jobs",
        handler=list_jobs,
        role="viewer",
        summary="List jobs, newest first",
        query=(*JOB_FILTERS, LIMIT, CURSOR),
        answers={200: _PAGE},
    ),
    Route(
        method="GET",
        path="/api/jobs/count",
        handler=count_jobs,
        role="viewer",
        summary="How many jobs match",
        what="Counted up to 10,000; where there are more, `is_exact` is false.",
        query=JOB_FILTERS,
        answers={200: {"count": 37, "is_exact": True}},
    ),
    Route(
        method="GET",
        path="/api/jobs/latest",
        handler=latest_job,
        role="viewer",
        summary="The newest job of a kind",
        what=(
            "For example the latest report of a tenant. With `status=COMPLETED` the latest that is ready, with its"
            " `result.download_url`, also while a newer one runs."
        ),
        query=(
            Param("type", "the task", is_required=True, example="report"),
            Param("status", "the newest in this state", choices=tuple(Status)),
            Param("tenant", "of this tenant", example="42"),
            Param("key", "with this key"),
        ),
        answers={200: _JOB},
    ),
    Route(
        method="GET",
        path="/api/jobs/{job_id}",
        handler=get_job,
        role="viewer",
        summary="One job, and why it is where it is",
        what=(
            "With `wait` (and `since`) the answer comes when the job has changed, or after that time. With `Accept: "
            "text/event-stream` it is the stream of `/api/jobs/{job_id}/events`."
        ),
        query=(Param("wait", "how long to wait for a change", "duration", example="30s"), SINCE, LIVE),
        headers=("Accept", "Last-Event-ID"),
        answers={200: _JOB},
    ),
    Route(
        method="GET",
        path="/api/jobs/{job_id}/attempts",
        handler=attempts_of_job,
        role="viewer",
        summary="The attempts of a job that have ended",
        answers={200: {"items": [{"attempt": 1, "outcome": "failed"}], "next_cursor": None}},
    ),
    Route(
        method="GET",
        path="/api/jobs/{job_id}/log",
        handler=log_of_job,
        role="viewer",
        summary="The log of a job, oldest line first",
        what="With `order=desc` the newest line comes first, and the cursor leads to older ones.",
        query=(Param("order", "which line comes first", choices=("asc", "desc")), LIMIT, CURSOR),
        answers={200: {"items": [_LINE], "next_cursor": None}},
    ),
    Route(
        method="GET",
        path="/api/jobs/{job_id}/history",
        handler=history_of_job,
        role="viewer",
        summary="What has happened to a job, oldest first",
        answers={200: {"items": [_EVENT], "next_cursor": None}},
    ),
    Route(
        method="GET",
        path="/api/jobs/{job_id}/why",
        handler=why_of_job,
        role="viewer",
        summary="Why a job is where it is, with the evidence",
        answers={200: {"id": _JOB["id"], "status": "PENDING", "why": "its queue is paused", "evidence": {}}},
    ),
    Route(
        method="POST",
        path="/api/jobs/{job_id}/cancel",
        handler=cancel_job,
        role="operator",
        summary="Cancel a job, or have it stop when it runs",
        body=ReasonBody,
        body_is_optional=True,
        body_example={"reason": "wrong month"},
        answers={200: _JOB, 409: None},
    ),
    Route(
        method="POST",
        path="/api/jobs/{job_id}/retry",
        handler=retry_job,
        role="operator",
        summary="Run a job that has ended again, as a new job",
        what="With `args` it is run with other arguments. `rerun_of` says which job it repeats.",
        body=RetryBody,
        body_is_optional=True,
        body_example={"args": {"video": 457}},
        answers={201: _JOB, 200: _JOB, 409: None},
    ),
)
