"""Schedules as JSON: definitions, decisions, previews, changes and the calendar."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, cast
from urllib.parse import quote, unquote

import msgspec
from msgspec import UNSET

from headway.core import occurrences, schedules
from headway.core.instants import Instant
from headway.core.job_details import read_json
from headway.core.lifecycle import Status
from headway.core.needs import shown_needs
from headway.core.occurrences import Decided
from headway.core.schedule_names import ScheduleRef
from headway.core.schedules import Missed, Overlap, ScheduleSpec
from headway.core.settings import mask_url
from headway.core.tenants import DEFAULT_TENANT
from headway.core.triggers import describe, trigger_to_dict
from headway.wire.base import (
    EXAMPLES,
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
from headway.wire.jobs import Job
from headway.wire.masking import masked

_AT: Final = "2027-01-31T06:00:00Z"
_JOB_ID: Final = "job_01m7h07rq30wjd03gjnmt8r3pz"
_DEFINITION: Final[dict[str, Any]] = {
    "task": "report",
    "trigger": {"kind": "cron", "expr": "0 6 * * *", "tz": "UTC", "dst": "shift"},
    "rule": "0 6 * * * UTC",
    "args": {"kind": "sales"},
    "tenant": "default",
    "queue": "default",
    "priority": 0,
    "max_attempts": 3,
    "backoff": "5s..5m",
    "tags": [],
    "overlap": "skip",
    "queue_limit": 1,
    "missed": "latest",
    "deadline": "4h",
    "grace": "1m",
    "catch_up_limit": 100,
    "catch_up_rate": None,
    "jitter": None,
    "start": None,
    "end": None,
    "expect": None,
    "callback_url": None,
    "expires": None,
    "limit": None,
    "needs": None,
    "labels": None,
    "version": None,
}
_PREVIEW: Final = {
    "instant": "2027-03-28T01:00:00Z",
    "local": "2027-03-28T03:00:00+02:00",
    "note": "02:30 does not exist on 2027-03-28 (DST); runs at 03:00, dst=shift",
}


# Schedules --------------------------------------------------------------------------------------------------


@example(_PREVIEW, known_by=frozenset({"instant", "local"}))
class Preview(Resource):
    """A future instant."""

    instant: Time
    local: Annotated[str, msgspec.Meta(description="the same in the time zone of the trigger")]
    note: Annotated[str | None, msgspec.Meta(description="how daylight saving affects it")]


class PauseOfSchedule(Resource):
    """Since when a schedule is paused, until when, why and by whom."""

    since: Time
    until: Time | None
    reason: str
    author: str


class Recent(Resource):
    """A decision in short, with the status of its job."""

    at: Time
    count: Annotated[int, msgspec.Meta(ge=1)]
    outcome: Decided
    reason: str
    job_status: Status | None
    job_id: str | None


def recent_of(decision: Mapping[str, Any]) -> Recent:
    """Convert a decision to its short form."""
    return Recent(
        at=stamp(decision["instant"]),
        count=decision["count"],
        outcome=decision["outcome"],
        reason=decision["reason"],
        job_status=decision["job_status"],
        job_id=decision["job_id"],
    )


Outcome = Literal["created", "changed", "unchanged"]


@example(
    {
        "name": "daily-report",
        **_DEFINITION,
        "owner": "shop",
        "revision": 3,
        "created_at": _AT,
        "decided_through": _AT,
        "next_at": "2027-02-01T06:00:00Z",
        "paused": False,
        "pause": None,
        "attention": None,
        "failing": 0,
    },
    known_by=frozenset({"name", "task"}),
)
class Schedule(Resource):
    """When a task runs, with every policy."""

    name: str
    task: str
    trigger: dict[str, Any]
    rule: Annotated[str, msgspec.Meta(description="the trigger in words")]
    args: Any
    tenant: str
    queue: str
    priority: int
    max_attempts: int
    backoff: str | None
    tags: list[str]
    overlap: Overlap
    queue_limit: int
    missed: Missed
    deadline: Span | None
    grace: Span | None
    catch_up_limit: int
    catch_up_rate: str | None
    jitter: Span | None
    start: Time | None
    end: Time | None
    expect: Span | None
    callback_url: str | None
    expires: Span | None
    limit: str | None
    needs: Annotated[dict[str, Any] | None, msgspec.Meta(description="what a worker must offer, by name")]
    labels: Annotated[dict[str, str] | None, msgspec.Meta(description="the labels that a worker must have")]
    version: Annotated[str | None, msgspec.Meta(description="the version of the code that its jobs are pinned to")]
    owner: str
    revision: Annotated[int, msgspec.Meta(description="its ETag; grows with every change")]
    created_at: Time
    decided_through: Time
    next_at: Time | None
    paused: bool
    pause: PauseOfSchedule | None
    attention: str | None
    failing: Annotated[int, msgspec.Meta(description="the number of consecutive failures of its last jobs")]
    recent: Annotated[list[Recent], msgspec.Meta(description="its newest decisions, if requested")] | Absent = UNSET
    omitted: Omitted | Absent = UNSET
    next: Annotated[list[Preview], msgspec.Meta(description="the next instants; not in lists")] | Absent = UNSET
    outcome: Annotated[Outcome, msgspec.Meta(description="what a PUT did")] | Absent = UNSET
    warnings: Annotated[list[str], msgspec.Meta(description="why its jobs would not run now")] | Absent = UNSET
    changed: Annotated[bool, msgspec.Meta(description="whether this request changed it")] | Absent = UNSET


def schedule_of(schedule: schedules.Schedule, now: Instant) -> Schedule:
    """Convert a schedule with every policy, including defaults."""
    pause = schedule.paused_at(now)
    return Schedule(
        name=schedule.name,
        **definition_of(schedule.spec),
        owner=schedule.owner,
        revision=schedule.revision,
        created_at=stamp(schedule.created_at),
        decided_through=stamp(schedule.decided_through),
        next_at=stamp(schedule.next_at),
        paused=pause is not None,
        pause=None if pause is None else _pause_of(pause),
        attention=schedule.attention,
        failing=schedule.failing,
    )


def listed_schedule(schedule: schedules.Schedule, now: Instant) -> Schedule:
    """Convert a schedule for a list: large arguments are left out, and named in `omitted`."""
    if not is_longer(schedule.spec.args, LISTED_BYTES_MAX):
        return schedule_of(schedule, now)
    brief = schedule_of(replace(schedule, spec=replace(schedule.spec, args="null")), now)
    brief.omitted = ["args"]
    return brief


def _pause_of(pause: schedules.Pause) -> PauseOfSchedule:
    return PauseOfSchedule(stamp(pause.since), stamp(pause.until), pause.reason, pause.author)


def definition_of(spec: ScheduleSpec) -> dict[str, Any]:
    """Convert a definition with every policy; secrets are masked."""
    return {
        "task": spec.task,
        "trigger": trigger_to_dict(spec.trigger),
        "rule": describe(spec.trigger),
        "args": masked(read_json(spec.args)),
        "tenant": spec.tenant,
        "queue": spec.queue,
        "priority": spec.priority,
        "max_attempts": spec.max_attempts,
        "backoff": None if spec.backoff is None else str(spec.backoff),
        "tags": list(spec.tags),
        "overlap": spec.overlap,
        "queue_limit": spec.queue_limit,
        "missed": spec.missed,
        "deadline": duration(spec.deadline),
        "grace": duration(spec.grace),
        "catch_up_limit": spec.catch_up_limit,
        "catch_up_rate": None if spec.catch_up_rate is None else str(spec.catch_up_rate),
        "jitter": duration(spec.jitter),
        "start": stamp(spec.start),
        "end": stamp(spec.end),
        "expect": duration(spec.expect),
        "callback_url": None if spec.callback_url is None else mask_url(spec.callback_url),
        "expires": duration(spec.expires),
        "limit": spec.limit,
        "needs": shown_needs(spec.needs)[0] or None,
        "labels": shown_needs(spec.labels)[1] or None,
        "version": spec.version,
    }


def complete_definition(spec: ScheduleSpec) -> dict[str, Any]:
    """Convert a definition with every option and its secrets, so that nothing depends on the defaults of the task."""
    fields = {name: value for name, value in definition_of(spec).items() if name != "rule" and value is not None}
    if spec.tenant == DEFAULT_TENANT:
        del fields["tenant"]  # The token determines the tenant.
    hook = {} if spec.callback_url is None else {"callback_url": spec.callback_url}
    return {**fields, **hook, "args": read_json(spec.args)}


def short_definition(spec: ScheduleSpec) -> dict[str, Any]:
    """Convert a definition to its short form: defaults are left out, and secrets are masked."""
    fields: dict[str, Any] = masked(spec.to_dict())
    return fields if spec.callback_url is None else {**fields, "callback_url": mask_url(spec.callback_url)}


def etag_of_schedule(schedule: Schedule) -> str:
    """Return the ETag: the revision, which `If-Match` compares, and a digest of the rest."""
    lasting = msgspec.structs.replace(schedule, outcome=UNSET, warnings=UNSET, changed=UNSET)
    digest = hashlib.blake2b(msgspec.json.encode(lasting), digest_size=8).hexdigest()
    return f'"{schedule.revision}-{digest}"'


def schedule_cursor(ref: ScheduleRef) -> str:
    """Encode the cursor after a page of schedules."""
    return f"{quote(ref.tenant, safe='')}/{quote(ref.name, safe='')}"


def read_schedule_cursor(cursor: str, tenant: str | None) -> ScheduleRef:
    """Decode the cursor of a page of one tenant's schedules, or of all; a plain name belongs to that tenant."""
    whose, slash, name = cursor.partition("/")
    if slash and tenant in (None, unquote(whose)):
        return ScheduleRef(unquote(whose), unquote(name))
    return ScheduleRef(tenant or DEFAULT_TENANT, cursor)


class PlannedInstants(Resource):
    """The next instants of a schedule before a change, and after it."""

    before: list[Preview]
    after: list[Preview]


@example(
    {
        "name": "daily-report",
        "tenant": "default",
        "action": "change",
        "next": {"before": [_PREVIEW], "after": [_PREVIEW]},
        "definition": _DEFINITION,
        "dry_run": True,
        "warnings": ["no live worker knows the task 'report'"],
    },
    known_by=frozenset({"name", "action", "definition"}),
)
class SchedulePlan(Resource):
    """What a PUT would do."""

    name: str
    tenant: str
    action: Literal["create", "change", "nothing"]
    next: PlannedInstants
    definition: dict[str, Any]
    dry_run: bool
    warnings: list[str]


class ScheduleChange(Resource):
    """The outcome, or planned outcome, for one of many schedules."""

    name: str
    tenant: str
    outcome: Outcome
    before: Annotated[list[Preview] | None, msgspec.Meta(description="the next instants by the previous definition")]
    after: Annotated[list[Preview], msgspec.Meta(description="the next instants by the new definition")]
    trigger: dict[str, Any]
    previous_trigger: dict[str, Any] | None
    warnings: list[str]


@example(
    {
        "items": [
            {
                "name": "daily-report",
                "tenant": "default",
                "outcome": "created",
                "before": None,
                "after": [_PREVIEW],
                "trigger": _DEFINITION["trigger"],
                "previous_trigger": None,
                "warnings": [],
            }
        ],
        "dry_run": False,
    },
    known_by=frozenset({"items", "dry_run"}),
)
class AppliedSchedules(Resource):
    """The outcomes, or planned outcomes, for many schedules, in the order of the request."""

    items: list[ScheduleChange]
    dry_run: bool


@example(
    {"schedule": "daily-report", "tenant": "default", "removed": True},
    known_by=frozenset({"schedule", "removed"}),
)
class RemovedSchedule(Resource):
    """A schedule that was removed."""

    schedule: str = ""
    tenant: str = ""
    removed: bool = True


@example(
    {
        "name": "daily-report",
        "tenant": "default",
        "rule": "cron 0 6 * * * Europe/Berlin",
        "tz": "Europe/Berlin",
        "note": None,
        "items": [_PREVIEW],
    },
    known_by=frozenset({"rule", "tz", "items"}),
)
class Previews(Resource, kw_only=True):
    """The next instants of a schedule, or of a trigger that is not stored."""

    name: str | Absent = UNSET
    tenant: str | Absent = UNSET
    rule: str
    tz: str
    note: str | None
    items: list[Preview]


# Runs -------------------------------------------------------------------------------------------------------


@example(
    {
        "schedule": "daily-report",
        "tenant": "default",
        "instant": _AT,
        "count": 1,
        "outcome": "fired",
        "reason": "on time",
        "decided_at": "2027-01-31T06:00:00.003Z",
        "job_id": _JOB_ID,
    },
    known_by=frozenset({"schedule", "instant", "outcome"}),
)
class Occurrence(Resource, kw_only=True):
    """The decision about an instant of a schedule, or about a run of instants with equal decisions."""

    schedule: str
    tenant: str
    instant: Time
    until: Time | Absent = UNSET
    count: Annotated[int, msgspec.Meta(ge=1)]
    outcome: Literal["fired", "skipped", "missed", "coalesced", "paused", "triggered", "backfilled"]
    reason: str
    decided_at: Time
    job_id: str | None


def occurrence_of(occurrence: occurrences.Occurrence) -> Occurrence:
    """Convert a decision; a run of equal ones has `until` and `count`."""
    return Occurrence(
        schedule=occurrence.schedule,
        tenant=occurrence.tenant,
        instant=stamp(occurrence.instant),
        until=UNSET if occurrence.until is None else stamp(occurrence.until),
        count=occurrence.count,
        outcome=cast("Any", str(occurrence.outcome)),
        reason=occurrence.reason,
        decided_at=stamp(occurrence.decided_at),
        job_id=occurrence.job_id,
    )


@example(
    {**EXAMPLES[Job][0], "outcome": "started", "message": None},
    known_by=frozenset({"id", "type", "outcome", "message"}),
)
class TriggeredJob(Job, kw_only=True):
    """The job that was triggered, or the live one instead of it."""

    outcome: Literal["started", "not started"]
    message: Annotated[str | None, msgspec.Meta(description="why no job was started")]


@example(
    {
        "schedule": "daily-report",
        "tenant": "default",
        "count": 1,
        "instants": ["2027-01-01T05:00:00Z"],
        "dry_run": True,
    },
    known_by=frozenset({"schedule", "instants", "dry_run"}),
)
class Backfill(Resource):
    """The past instants for which a job was enqueued, or would be."""

    schedule: str
    tenant: str
    count: Count
    instants: list[Time]
    dry_run: bool


class CalendarDay(Resource):
    """A day of a schedule: its decisions, and how the jobs ended."""

    day: str
    outcomes: dict[str, int]
    ended: dict[str, int]


@example(
    {
        "year": 2027,
        "tz": "Europe/Berlin",
        "days": [{"day": "2027-01-31", "outcomes": {"fired": 3, "skipped": 1}, "ended": {"COMPLETED": 2, "FAILED": 1}}],
        "truncated": False,
    },
    known_by=frozenset({"year", "days"}),
)
class Calendar(Resource):
    """A year of a schedule, by day."""

    year: int
    tz: str
    days: list[CalendarDay]
    truncated: bool
