"""Jobs as JSON: one to enqueue, one as it is, what followers are told, attempts, log, history, and why it is there."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Final, TypedDict

import msgspec
from msgspec import UNSET

from headway.core import job_details, jobs
from headway.core.instants import Instant
from headway.core.job_details import eta_at, eta_seconds, read_detail, read_error, read_json, read_metadata
from headway.core.job_logs import read_stream
from headway.core.job_summary import glance
from headway.core.lifecycle import Status
from headway.core.needs import shown_needs
from headway.core.windows import WINDOW_OPTIONS
from headway.wire.base import (
    LISTED_BYTES_MAX,
    Absent,
    Count,
    Omitted,
    Resource,
    Span,
    Time,
    duration,
    example,
    is_longer,
    stamp,
)
from headway.wire.masking import masked

CONTENT: Final = ("args", "result", "metadata")
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
_AT: Final = "2027-01-31T06:00:00Z"


class Failure(Resource):
    """The error of a job. Only operators and admins see the traceback."""

    type: str
    message: str
    traceback: str | Absent = UNSET


class Step(Resource):
    """A named step of a job."""

    name: str
    state: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["done", "running", "waiting"]})]
    seconds: float | None


class Detail(Resource):
    """The last progress report of a running job."""

    step: str | Absent = UNSET
    done: float | Absent = UNSET
    total: float | Absent = UNSET
    rate: Annotated[float, msgspec.Meta(description="units of `done` per second")] | Absent = UNSET
    steps: list[Step] | Absent = UNSET


@example(
    {
        "id": "job_01m7h07rq30wjd03gjnmt8r3pz",
        "type": "report",
        "status": "COMPLETED",
        "progress": 100,
        "created_at": _AT,
        "run_at": _AT,
        "started_at": "2027-01-31T06:00:00.004Z",
        "updated_at": "2027-01-31T06:01:09Z",
        "finished_at": "2027-01-31T06:01:09Z",
        "ready_at": _AT,
        "cancel_requested_at": None,
        "reviewed_at": None,
        "metadata": {},
        "detail": None,
        "eta_at": None,
        "attempts": 1,
        "failures": 0,
        "max_attempts": 3,
        "timeout": "30m",
        "expires_at": None,
        "queue": "default",
        "priority": 0,
        "tenant": "42",
        "key": None,
        "tags": [],
        "limit": None,
        "needs": {"cpu": 2, "memory": 4294967296},
        "labels": None,
        "pinned_to": None,
        "schedule": "daily-report",
        "occurrence_at": _AT,
        "batch": None,
        "parent": None,
        "rerun_of": None,
        "node": None,
        "blocked_by": None,
        "parked": None,
        "reason": "completed",
        "args": {"kind": "sales"},
        "result": {"download_url": "https://files.example/42/2027-01-31.pdf"},
        "error": None,
        "version": 17,
        "why": "completed in 1m 9s",
        "eta_seconds": None,
    },
    known_by=frozenset({"id", "type", "status"}),
)
class Job(Resource, kw_only=True, gc=False):
    """A unit of work in its current state."""

    id: Annotated[str, msgspec.Meta(examples=["job_01m7h07rq30wjd03gjnmt8r3pz"])]
    type: Annotated[str, msgspec.Meta(description="the name of its task")]
    status: Status
    progress: Annotated[int, msgspec.Meta(ge=0, le=100)]
    created_at: Time
    run_at: Time
    started_at: Time | None
    updated_at: Time
    finished_at: Time | None
    ready_at: Annotated[Time | None, msgspec.Meta(description="since when it waits, or last waited, for a worker")]
    cancel_requested_at: Time | None
    reviewed_at: Annotated[Time | None, msgspec.Meta(description="when the dead letter was retried or dropped")]
    metadata: Annotated[
        dict[str, Any], msgspec.Meta(description="facts for people; names that look like secrets are masked")
    ]
    detail: Detail | None
    eta_at: Annotated[Time | None, msgspec.Meta(description="when the job expects to end; this may be in the past")]
    attempts: Count
    failures: Count
    max_attempts: Count
    timeout: Span | None
    expires_at: Time | None
    queue: str
    priority: int
    tenant: str
    key: str | None
    tags: list[str]
    limit: Annotated[str | None, msgspec.Meta(description="the limit that it names")]
    needs: Annotated[dict[str, Any] | None, msgspec.Meta(description="what a worker must offer, by name")]
    labels: Annotated[dict[str, str] | None, msgspec.Meta(description="the labels that a worker must have")]
    pinned_to: Annotated[str | None, msgspec.Meta(description="the version of the code that a worker must have")]
    schedule: str | None
    occurrence_at: Time | None
    batch: Annotated[str | None, msgspec.Meta(description="the id of its batch; null also for one of another tenant")]
    parent: str | None
    rerun_of: str | None
    node: str | None
    blocked_by: Annotated[str | None, msgspec.Meta(description="the job that must end first")]
    parked: Annotated[str | None, msgspec.Meta(description="why no worker can run it")]
    reason: Annotated[str, msgspec.Meta(description="the reason of its status, in a few words")]
    args: Any
    result: Any
    error: Failure | None
    version: Annotated[
        int, msgspec.Meta(ge=0, description="grows with every change; `since` and `Last-Event-ID` name it")
    ]
    live: (
        Annotated[int, msgspec.Meta(ge=1, description="the number of the last live report of a running job")] | Absent
    ) = UNSET
    omitted: Omitted | Absent = UNSET
    merged_into: (
        Annotated[str, msgspec.Meta(description="the id of this job, if the request was merged into it")] | Absent
    ) = UNSET
    why: Annotated[str, msgspec.Meta(description="its state and the reason, in words")]
    eta_seconds: Count | None


class NewJob(msgspec.Struct, forbid_unknown_fields=True):
    """A job to be enqueued."""

    type: Text
    args: dict[str, Any] = {}
    delay: str | float | int | None = None
    run_at: str | None = None
    queue: Text | None = None
    priority: int | None = None
    key: Text | None = None
    tenant: Text | None = None
    callback_url: str | None = None
    max_attempts: int | None = None
    timeout: str | float | int | None = None
    expires: str | float | int | None = None
    tags: list[Text] | None = None
    metadata: dict[str, Any] | None = None
    limit: Text | None = None
    needs: dict[str, float | str] | None = None
    labels: dict[str, Text] | None = None
    debounce: str | float | int | None = None
    max_wait: str | float | int | None = None
    throttle: str | float | int | None = None
    unique: str | float | int | None = None

    @property
    def has_window(self) -> bool:
        """Whether `key` names a window and is not an idempotency key."""
        return any(getattr(self, name) is not None for name in WINDOW_OPTIONS)

    EXAMPLE: ClassVar = {"type": "video.transcode", "args": {"video": 456}, "queue": "media", "key": "video-456"}


class JobChange(Resource, kw_only=True, gc=False):
    """An event about a changed job, without arguments, result, error and large metadata."""

    id: str
    type: str
    tenant: str
    queue: str
    schedule: str | None
    key: str | None
    tags: list[str]
    status: Status
    progress: int
    attempts: Count
    failures: Count
    max_attempts: Count
    metadata: dict[str, Any]
    detail: Detail | None
    eta_at: Time | None
    started_at: Time | None
    finished_at: Time | None
    updated_at: Time
    why: str
    eta_seconds: Count | None
    version: int
    live: int | Absent = UNSET
    omitted: Omitted | Absent = UNSET


@example(
    {
        "attempt": 1,
        "node": "node_01m7h0en7803x23x7364a4cyve",
        "ready_at": _AT,
        "started_at": _AT,
        "ended_at": "2027-01-31T06:00:03Z",
        "outcome": "failed",
        "reason": "failure 1 of 3, retrying in 5s",
        "error": {"type": "ConnectionError", "message": "the printer does not answer"},
    },
    known_by=frozenset({"attempt", "outcome"}),
)
class Attempt(Resource):
    """A finished attempt of a job."""

    attempt: Count
    node: str | None
    ready_at: Time | None
    started_at: Time | None
    ended_at: Time | None
    outcome: str
    reason: str | None
    error: Failure | None


@example(
    {
        "seq": 1,
        "attempt": 1,
        "at": "2027-01-31T06:00:00.104Z",
        "stream": "log",
        "line": "from berlin",
        "version": 3,
        "level": "info",
        "logger": "shop.stock",
    },
    known_by=frozenset({"seq", "stream", "line"}),
)
class LogLine(Resource, kw_only=True):
    """A log line of a job. A live one has no number yet."""

    seq: int | None
    attempt: Count
    at: Time
    stream: Annotated[str, msgspec.Meta(description="log, stdout, stderr, …")]
    line: str
    version: Annotated[int, msgspec.Meta(description="its number in the job, once it is stored")] | Absent = UNSET
    level: str
    logger: str | None


@example({"seq": 14411, "event": "enqueued", "data": {}, "at": _AT}, known_by=frozenset({"event", "at", "data"}))
class HistoryEntry(Resource):
    """An entry of a job's history."""

    seq: int
    event: str
    data: Any
    at: Time


@example(
    {"id": "job_01m7h07rq30wjd03gjnmt8r3pz", "status": "PENDING", "why": "its queue is paused", "evidence": {}},
    known_by=frozenset({"id", "why", "evidence"}),
)
class Why(Resource):
    """Why a job has its status: one sentence, and the evidence for it."""

    id: str
    status: Status
    why: str
    evidence: dict[str, Any]


@example({"count": 37, "is_exact": True}, known_by=frozenset({"count", "is_exact"}))
class JobCount(Resource):
    """The number of matching jobs."""

    count: Count
    is_exact: Annotated[bool, msgspec.Meta(description="false if there are more than were counted")]


class CreatedJob(Job, kw_only=True, gc=False):
    """A job that this request has created."""


class JobViews(TypedDict, total=False):
    """What those who see a job as JSON may see of it: tracebacks, and the batch of another tenant than the job's."""

    with_traceback: bool
    all_tenants: bool


def job_of(
    job: jobs.Job,
    now: Instant,
    *,
    why: str | None = None,
    node_name: str | None = None,
    with_traceback: bool = True,
    all_tenants: bool = False,
    kind: type[Job] = Job,
) -> Job:
    """Convert a job to JSON, see `JobViews`; too large values are in `omitted`. The usual `why` uses the job alone."""
    detail = read_detail(job)
    return kind(
        id=job.id,
        type=job.task,
        status=job.status,
        progress=job.progress,
        created_at=stamp(job.created_at),
        run_at=stamp(job.run_at),
        started_at=stamp(job.started_at),
        updated_at=stamp(job.updated_at),
        finished_at=stamp(job.finished_at),
        ready_at=stamp(job.ready_at),
        cancel_requested_at=stamp(job.cancel_requested_at),
        reviewed_at=stamp(job.reviewed_at),
        metadata=masked(read_metadata(job)),
        detail=_detail(detail),
        eta_at=stamp(eta_at(job)),
        attempts=job.attempt,
        failures=job.failures,
        max_attempts=job.max_attempts,
        timeout=duration(job.timeout),
        expires_at=stamp(job.expires_at),
        queue=job.queue,
        priority=job.priority,
        tenant=job.tenant,
        key=job.key,
        tags=list(job.tags),
        limit=job.limit_key or None,
        **_needs_of(job),
        schedule=job.schedule_name,
        occurrence_at=stamp(job.occurrence_at),
        batch=_batch(job, all_tenants=all_tenants),
        parent=job.parent,
        rerun_of=job.rerun_of,
        node=job.node,
        blocked_by=job.blocked_by,
        parked=job.parked,
        reason=job.reason,
        args=masked(read_json(job.args)),
        result=masked(read_json(job.result)),
        error=failure_of(job.error, with_traceback=with_traceback),
        version=job.version,
        live=_live(job, detail),
        omitted=list(job.omitted) if job.omitted else UNSET,
        why=glance(job, now, node_name) if why is None else why,
        eta_seconds=eta_seconds(job, now),
    )


def _needs_of(job: jobs.Job) -> dict[str, Any]:
    needs, labels, pinned_to = shown_needs(job.needs) if job.needs else ({}, {}, None)
    return {"needs": needs or None, "labels": labels or None, "pinned_to": pinned_to}


def _batch(job: jobs.Job, *, all_tenants: bool) -> str | None:
    return job.group_id if all_tenants or job.group_tenant is None else None


def set_outlook(
    shown: Job, job: jobs.Job, now: Instant, *, why: str | None = None, node_name: str | None = None
) -> None:
    """Set the fields that change with time although the job does not."""
    shown.why = glance(job, now, node_name) if why is None else why
    shown.eta_seconds = eta_seconds(job, now)


def change_of(job: jobs.Job, now: Instant) -> JobChange:
    """Return the event data of a changed job."""
    brief = listed(job, parts=("metadata",))
    detail = read_detail(job)
    return JobChange(
        id=job.id,
        type=job.task,
        tenant=job.tenant,
        queue=job.queue,
        schedule=job.schedule_name,
        key=job.key,
        tags=list(job.tags),
        status=job.status,
        progress=job.progress,
        attempts=job.attempt,
        failures=job.failures,
        max_attempts=job.max_attempts,
        metadata=masked(read_metadata(brief)),
        detail=_detail(detail),
        eta_at=stamp(eta_at(job)),
        started_at=stamp(job.started_at),
        finished_at=stamp(job.finished_at),
        updated_at=stamp(job.updated_at),
        why=glance(job, now),
        eta_seconds=eta_seconds(job, now),
        version=job.version,
        live=_live(job, detail),
        omitted=["metadata"] if "metadata" in brief.omitted else UNSET,
    )


def _live(job: jobs.Job, detail: job_details.Detail) -> int | Absent:
    return detail.serial if detail.serial and job.status is Status.RUNNING else UNSET


def _detail(detail: job_details.Detail) -> Detail | None:
    """Return the progress of a job; None if it has reported none."""
    said = {name: value for name in ("step", "done", "total", "rate") if (value := getattr(detail, name)) is not None}
    if detail.steps:
        said["steps"] = [Step(step.name, step.state, step.seconds) for step in detail.steps]
    return Detail(**said) if said else None


def failure_of(text: str | None, *, with_traceback: bool = True) -> Failure | None:
    """Return the error of a job; with the traceback only if the caller may see it."""
    error = read_error(text)
    if error is None:
        return None
    traceback = error.get("traceback") if with_traceback else None
    return Failure(error["type"], error["message"], UNSET if traceback is None else str(traceback))


def listed(job: jobs.Job, *, parts: Collection[str] = CONTENT, largest: int = LISTED_BYTES_MAX) -> jobs.Job:
    """Convert a job for a list: large values, also a large traceback, are left out and named in `omitted`."""
    large = [name for name in parts if (text := getattr(job, name)) is not None and is_longer(text, largest)]
    changes: dict[str, Any] = {name: "null" if name == "args" else None for name in large}
    if job.error is not None and is_longer(job.error, largest) and (error := read_error(job.error)) is not None:
        if error.pop("traceback", None) is not None:
            large.append("error.traceback")
        changes["error"] = msgspec.json.encode(error).decode()
    if not changes:
        return job
    return msgspec.structs.replace(job, **changes, omitted=(*job.omitted, *large))


def attempt_of(attempt: Mapping[str, Any], *, with_traceback: bool = True) -> Attempt:
    """Convert a finished attempt."""
    return Attempt(
        attempt=attempt["attempt"],
        node=attempt["node"],
        ready_at=stamp(attempt["ready_at"]),
        started_at=stamp(attempt["started_at"]),
        ended_at=stamp(attempt["ended_at"]),
        outcome=attempt["outcome"],
        reason=attempt["reason"],
        error=failure_of(attempt["error"], with_traceback=with_traceback),
    )


def line_of(line: Mapping[str, Any]) -> LogLine:
    """Convert a log line; its level and logger are stored in the name of its stream."""
    stream, level, logger = read_stream(line["stream"])
    return LogLine(**{**line, "at": stamp(line["at"]), "stream": stream}, level=level, logger=logger)


def entry_of(event: Mapping[str, Any]) -> HistoryEntry:
    """Convert an entry of a job's history."""
    data = read_json(event["data"])
    if event["event"] == "merged" and isinstance(data, dict) and "args" in data:
        data["args"] = masked(data["args"])
    return HistoryEntry(event["seq"], event["event"], data, stamp(event["at"]))
