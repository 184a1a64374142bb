"""The routes of dead letters and of failed jobs by error.

Which dead letters are meant is decided here for lists, for retrying and for dropping alike, and a dry run names exactly
the jobs that the real one would touch.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

import msgspec

from headway.core.errors import HeadwayError, JobNotFound, NotFinal, NotFound, StoreError
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.operations import audit_log as deeds
from headway.operations.job_reads import JOB_ID, page_of_jobs, versions_of, visible_job
from headway.server.refusals import Refused
from headway.server.routes.streams import job_answer
from headway.server.web import CURSOR, LIMIT, Answer, Call, Param, Route, etag_of, require_printable
from headway.store.failures import COUNTED_MAX, ERROR_TEXT_MAX, DeadLetter, ErrorGroup
from headway.wire.base import LISTED_BYTES_MAX, PAGE_MAX
from headway.wire.shapes import Shape, stamp

GROUP_MAX: Final = 1_000
GROUP_DEFAULT: Final = 100
GROUPS_SHOWN_MAX: Final = 200

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
_Error = Annotated[str, msgspec.Meta(min_length=1, max_length=ERROR_TEXT_MAX)]
_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class LettersBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters: some by their ids, those that match filters, or all."""

    ids: Annotated[list[_Id], msgspec.Meta(min_length=1, max_length=GROUP_MAX)] | None = None
    type: _Name | None = None
    queue: _Name | None = None
    tenant: _Name | None = None
    schedule: _Name | None = None
    error: _Error | None = None
    all: bool = False
    dry_run: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=GROUP_MAX)] = GROUP_DEFAULT

    def __post_init__(self) -> None:
        for name in ("type", "queue", "tenant", "schedule", "error"):
            require_printable(getattr(self, name) or "", name)


def _tenant(call: Call, asked: str | None) -> str | None:
    if call.tenant is not None and asked not in (None, call.tenant):
        raise Refused(403, "forbidden", "tenant: this token sees one tenant only; leave it out")
    return call.tenant or asked


def group_shape(group: ErrorGroup) -> Shape:
    """Return jobs that failed alike as JSON."""
    return {
        "type": group.task,
        "error": group.error,
        "count": group.jobs,
        "newest": group.newest,
        "example": group.example,
        "newest_at": stamp(group.newest_at),
        "oldest_at": stamp(group.oldest_at),
    }


async def list_failures(call: Call) -> Answer:
    """Count failed jobs by task and error, most first."""
    query = call.query
    groups = await call.store.failures.groups(
        since=query.get("finished_after"),
        task=query.get("type"),
        queue=query.get("queue"),
        tenant=_tenant(call, query.get("tenant")),
        schedule=query.get("schedule"),
    )
    total = sum(group.jobs for group in groups)
    shapes = [group_shape(group) for group in groups[: query.get("limit", GROUPS_SHOWN_MAX)]]
    return Answer({"items": shapes, "groups": len(groups), "total": total, "is_exact": total < COUNTED_MAX})


async def list_dead(call: Call) -> Answer:
    """List jobs that failed for good and await review, newest first."""
    limit, before = call.page(JOB_ID)
    query = call.query
    tenant = _tenant(call, query.get("tenant"))
    filters = {"task": query.get("type"), "queue": query.get("queue"), "schedule": query.get("schedule")}
    if "error" not in query:
        found = await call.store.jobs.dead(
            **filters, tenant=tenant, before=before, limit=limit, largest=LISTED_BYTES_MAX
        )
        return await _page(call, found, limit)
    letters, following = await call.store.failures.letters(
        **filters, tenant=tenant, error=query["error"], before=before, limit=limit
    )
    found = await call.store.failures.jobs([letter.id for letter in letters], largest=LISTED_BYTES_MAX)
    return await _page(call, found, limit, following=following)  # It may be short: the scan has its bound.


async def _page(call: Call, found: Sequence[Job], limit: int, following: str | None = None) -> Answer:
    page = await page_of_jobs(call.caller, found, limit, following=following)
    return Answer(page, etag=etag_of(versions_of(page, call.caller)))


async def retry_dead(call: Call) -> Answer:
    """Run a dead letter once more, as a new job linked to it."""
    letter = await _letter(call, call.path("id"))
    await call.services.quotas.jobs(call.principal, 1)
    again = await _retried(call, letter)
    answer = await job_answer(call, again)
    return Answer(answer.body, 201, {"Location": f"/api/jobs/{again.id}"})


async def drop_dead(call: Call) -> Answer:
    """Take a dead letter off the list; the job stays in the history, nothing runs again."""
    letter = await _letter(call, call.path("id"))
    acting = call.acting(deeds.drop_dead(letter))
    if not await acting.queue.drop_dead([letter.id], author=call.principal.name):
        raise _no_letter(letter)
    return Answer({"id": letter.id, "dropped": True})


async def retry_dead_group(call: Call) -> Answer:
    """Run the dead letters that match once more, oldest first."""
    body = await call.body(LettersBody)
    letters, more, refused = await _chosen(call, body)
    if letters and not body.dry_run:
        await call.services.quotas.jobs(call.principal, len(letters))
    done: list[dict[str, str]] = []
    for letter in () if body.dry_run else letters:
        try:
            again = await _retried(call, letter)
            done.append({"id": letter.id, "rerun": again.id})
        except StoreError:
            raise
        except HeadwayError as error:  # Gone or retried by somebody else meanwhile; the others are still to do.
            refused.append({"id": letter.id, "error": str(error)})
    return _told(body, letters, [pair["id"] for pair in done], more, {"retried": done, "refused": refused})


async def drop_dead_group(call: Call) -> Answer:
    """Take the dead letters that match off the list."""
    body = await call.body(LettersBody)
    letters, more, refused = await _chosen(call, body)
    dropped: list[str] = []
    for tenant, theirs in _by_tenant(() if body.dry_run else letters).items():
        for start in range(0, len(theirs), PAGE_MAX):
            acting = call.acting(deeds.drop_dead_group(tenant, _filters(body)))
            ids = theirs[start : start + PAGE_MAX]
            dropped += await acting.queue.drop_dead(ids, author=call.principal.name)
    return _told(body, letters, dropped, more, {"dropped": dropped, "refused": refused})


def _told(body: LettersBody, chosen: list[DeadLetter], done: list[str], more: bool, rest: Shape) -> Answer:
    """Say what was done; of a dry run, to which letters it would be."""
    ids = [letter.id for letter in chosen] if body.dry_run else done
    return Answer({"count": len(ids), "ids": ids, **rest, "more": more, "dry_run": body.dry_run})


async def _retried(call: Call, letter: Job | DeadLetter) -> Job:
    store = call.caller.acting(deeds.retry_dead(letter))
    return await store.queue.retry(letter.id, author=call.principal.name, only_dead=True)


def _by_tenant(letters: Iterable[DeadLetter]) -> dict[str, list[str]]:
    """Sort letters by tenant: each finds in its own audit log what was done with its own letters."""
    found: dict[str, list[str]] = {}
    for letter in letters:
        found.setdefault(letter.tenant, []).append(letter.id)
    return found


def _filters(body: LettersBody) -> dict[str, str]:
    return {
        name: value for name in ("type", "queue", "schedule", "error") if (value := getattr(body, name)) is not None
    }


async def _chosen(call: Call, body: LettersBody) -> tuple[list[DeadLetter], bool, list[dict[str, str]]]:
    """Return the dead letters that are meant, oldest first, whether there are more, and those already dealt with."""
    filters = {"task": body.type, "queue": body.queue, "schedule": body.schedule, "error": body.error}
    is_filtered = body.tenant is not None or any(value is not None for value in filters.values())
    if (body.ids is not None) + is_filtered + body.all != 1:
        raise Refused(
            422, "invalid", "say which in one way: ids, filters (type, queue, schedule, tenant, error), or all"
        )
    tenant = _tenant(call, body.tenant)
    if body.ids is not None:
        letters = await _letters(call, body.ids)
        gone = [{"id": one.id, "error": str(_no_letter(one))} for one in letters if not one.is_dead]
        return [one for one in letters if one.is_dead], False, gone
    found, following = await call.store.failures.letters(**filters, tenant=tenant, limit=body.limit)
    return found[::-1], following is not None, []


async def _letters(call: Call, job_ids: list[str]) -> list[DeadLetter]:
    """Read jobs by their ids, oldest first; that somebody has dealt with one does not keep the others from it."""
    found = await call.store.failures.among(job_ids)
    for job_id in sorted(set(job_ids)):
        letter = found.get(job_id)
        if letter is None or not call.principal.sees(letter.tenant):
            raise JobNotFound(f"no job has the id {job_id!r}")
        if not letter.status.is_final:
            raise NotFinal(f"{letter.id} is {letter.status}; it is no dead letter")
    return [found[job_id] for job_id in sorted(found)]


async def _letter(call: Call, job_id: str) -> Job:
    job = await visible_job(call.caller, job_id)
    if not job.status.is_final:
        raise NotFinal(f"{job.id} is {job.status}; it is no dead letter")
    if job.status not in (Status.FAILED, Status.TIMED_OUT) or job.reviewed_at is not None:
        raise _no_letter(job)
    return job


def _no_letter(job: Job | DeadLetter) -> NotFound:
    is_failed = job.status in (Status.FAILED, Status.TIMED_OUT)
    return JobNotFound(f"{job.id} is no dead letter: {job.status}" + (", reviewed" if is_failed else ""))


_JOB: Final[dict[str, Any]] = {
    "id": "job_01m7h07rq30wjd03gjnmt8r3pz",
    "type": "report",
    "status": "FAILED",
    "progress": 0,
}
_RERUN: Final = {"id": "job_01m7h07rq30wjd03gjnmt8r3pz", "rerun": "job_01m7h1rq30wjd03gjnmt8r3pz"}
_GROUP: Final = {
    "type": "report",
    "error": "OSError: disk … is full",
    "count": 1,
    "newest": "job_01m7h07rq30wjd03gjnmt8r3pz",
    "example": "OSError: disk 7 is full",
    "newest_at": "2027-01-31T06:00:05.250Z",
    "oldest_at": "2027-01-31T06:00:05.250Z",
}
_DONE: Final = {"count": 1, "ids": [_JOB["id"]], "refused": [], "more": False, "dry_run": False}
_WHICH: Final = (
    "Say which: `ids`, filters, or `all`. `dry_run` changes nothing; `ids` are then the jobs that would be touched. "
    "`more` says that `limit` was reached. Letters that somebody has dealt with meanwhile are in `refused`."
)
_FILTERS: Final = (
    Param("type", "only of this task", example="report"),
    Param("queue", "only from this queue"),
    Param("schedule", "only of this schedule"),
    Param("tenant", "only of this tenant"),
)
_ERROR: Final = Param(
    "error",
    "only with this error; numbers and ids in it may differ. A type alone means all its errors",
    example="OSError",
)

ROUTES: Final = (
    Route(
        method="GET",
        path="/api/failures",
        handler=list_failures,
        role="viewer",
        summary="Failed jobs by task and error, most first",
        what=(
            "Dead letters; with `finished_after` every job that failed since then, also those that somebody has dealt"
            " with. Errors that differ only in numbers and ids are one. The newest 10,000 jobs are counted;"
            " `is_exact` says whether that were all."
        ),
        tag="operations",
        query=(
            *_FILTERS,
            Param("finished_after", "jobs that failed since then", "instant", example="2027-01-31T05:00:00Z"),
            Param("limit", "how many groups at most", "int", low=1, high=GROUPS_SHOWN_MAX, example=50),
        ),
        answers={200: {"items": [_GROUP], "groups": 1, "total": 1, "is_exact": True}},
    ),
    Route(
        method="GET",
        path="/api/dead",
        handler=list_dead,
        role="viewer",
        summary="List jobs that failed for good and await review, newest first",
        tag="operations",
        query=(*_FILTERS, _ERROR, LIMIT, CURSOR),
        answers={200: {"items": [_JOB], "next_cursor": None}},
    ),
    Route(
        method="POST",
        path="/api/dead/retry",
        handler=retry_dead_group,
        role="operator",
        summary="Run many dead letters once more, oldest first",
        what=_WHICH,
        tag="operations",
        body=LettersBody,
        body_example={"type": "report", "error": "OSError: disk … is full", "limit": 100},
        answers={200: {**_DONE, "retried": [_RERUN]}},
    ),
    Route(
        method="POST",
        path="/api/dead/drop",
        handler=drop_dead_group,
        role="operator",
        summary="Take many dead letters off the list",
        what=f"The jobs stay in the history; nothing runs again. {_WHICH}",
        tag="operations",
        body=LettersBody,
        body_example={"type": "report", "limit": 100},
        answers={200: {**_DONE, "dropped": [_JOB["id"]]}},
    ),
    Route(
        method="POST",
        path="/api/dead/{id}/retry",
        handler=retry_dead,
        role="operator",
        summary="Run a dead letter once more, as a new job",
        tag="operations",
        answers={201: _JOB},
    ),
    Route(
        method="POST",
        path="/api/dead/{id}/drop",
        handler=drop_dead,
        role="operator",
        summary="Take a dead letter off the list",
        what="The job stays in the history; nothing runs again.",
        tag="operations",
        answers={200: {"id": _JOB["id"], "dropped": True}},
    ),
)
