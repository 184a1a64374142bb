"""The routes of schedules, as the API and its specification know them."""

from typing import Any, Final

from headway.operations.calendar import YEAR_MAX, YEAR_MIN
from headway.server.routes.schedule_bodies import (
    PREVIEW_MAX,
    BackfillBody,
    PauseBody,
    PreviewBody,
    ScheduleBody,
    TriggerBody,
)
from headway.server.routes.schedules import (
    RECENT_MAX,
    backfill_schedule,
    get_calendar,
    get_schedule,
    list_occurrences,
    list_runs,
    list_schedules,
    pause_schedule,
    preview_rule,
    preview_schedule,
    put_schedule,
    remove_schedule,
    resume_schedule,
    trigger_schedule,
)
from headway.server.web import CURSOR, LIMIT, Param, Route
from headway.store.schedules import STATES

_NEXT: Final = [{"instant": "2027-01-31T05:00:00Z", "local": "2027-01-31T06:00:00+01:00", "note": None}]
_SCHEDULE: Final[dict[str, Any]] = {
    "name": "daily-report",
    "task": "report",
    "trigger": {"kind": "cron", "expr": "0 6 * * *", "tz": "Europe/Berlin", "dst": "shift"},
    "rule": "cron 0 6 * * * Europe/Berlin",
    "args": {"day": "yesterday"},
    "tenant": "default",
    "queue": "default",
    "priority": 0,
    "max_attempts": 3,
    "backoff": "5s..5m",
    "tags": ["reports"],
    "overlap": "skip",
    "queue_limit": 1,
    "missed": "latest",
    "deadline": "4h",
    "grace": "1m",
    "catch_up_limit": 100,
    "catch_up_rate": None,
    "jitter": "0s",
    "start": None,
    "end": None,
    "expect": "10m",
    "owner": "",
    "revision": 3,
    "created_at": "2027-01-01T12:00:00Z",
    "decided_through": "2027-01-30T05:00:00Z",
    "next_at": "2027-01-31T05:00:00Z",
    "paused": False,
    "pause": None,
    "attention": None,
    "failing": 0,
}
_ONE: Final = {**_SCHEDULE, "next": _NEXT}
_RECENT: Final = {
    "at": "2027-01-31T05:00:00Z",
    "count": 1,
    "outcome": "fired",
    "reason": "on time",
    "job_status": "COMPLETED",
    "job_id": "job_01m7h07rq30wjd03gjnmt8r3pz",
}
_CALENDAR: Final = {
    "year": 2027,
    "tz": "Europe/Berlin",
    "days": [{"day": "2027-01-31", "outcomes": {"fired": 3, "skipped": 1}, "ended": {"COMPLETED": 2, "FAILED": 1}}],
    "truncated": False,
}
_OCCURRENCE: Final = {
    "schedule": "daily-report",
    "tenant": "default",
    "instant": "2027-01-30T05:00:00Z",
    "count": 1,
    "outcome": "fired",
    "reason": "",
    "decided_at": "2027-01-30T05:00:00.012345Z",
    "job_id": "job_01m7h07rq30wjd03gjnmt8r3pz",
}
_BY_HAND: Final = {
    **_OCCURRENCE,
    "instant": "2027-01-30T09:12:44.123456Z",
    "outcome": "triggered",
    "reason": "by ada",
    "decided_at": "2027-01-30T09:12:44.123456Z",
}
_NOT_STARTED: Final = {
    "outcome": "not started",
    "message": "job_01m7h07rq30wjd03gjnmt8r3pz of this schedule is RUNNING, and overlap=skip makes no second job",
}
_BODY: Final = {
    "task": "report",
    "cron": "0 6 * * *",
    "tz": "Europe/Berlin",
    "args": {"day": "yesterday"},
    "missed": "latest",
    "deadline": "4h",
}
_PREVIEW: Final = {"rule": "cron 0 6 * * * Europe/Berlin", "tz": "Europe/Berlin", "note": None, "items": _NEXT}
_JOB: Final = {"id": "job_01m7h07rq30wjd03gjnmt8r3pz", "type": "report", "status": "PENDING", "progress": 0}
_DRY_RUN: Final = Param("dry_run", "1 writes nothing and says what would happen", "flag", example="1")
_OWNER: Final = Param("owner", "whose schedules: the name of an app or a file")
_TENANT: Final = Param("tenant", "whose schedule, for those who see all tenants; default `default`", example="acme")

ROUTES: Final = (
    Route(
        method="GET",
        path="/api/schedules",
        handler=list_schedules,
        role="viewer",
        summary="List schedules by name",
        tag="schedules",
        what="With `recent` each has its newest decisions, the newest last, and what became of their jobs.",
        query=(
            _OWNER,
            Param("tenant", "only of this tenant"),
            Param("q", "only with this text in name or task"),
            Param("state", "only those that are so now", choices=STATES, example="late"),
            Param("recent", "so many of the newest decisions of each", "int", low=1, high=RECENT_MAX, example=5),
            LIMIT,
            CURSOR,
        ),
        answers={200: {"items": [{**_SCHEDULE, "recent": [_RECENT]}], "next_cursor": None}},
    ),
    Route(
        method="POST",
        path="/api/schedules/preview",
        handler=preview_rule,
        role="viewer",
        summary="The next instants of a rule; nothing is stored",
        what="With their local times, and what daylight saving does to each.",
        tag="schedules",
        body=PreviewBody,
        body_example={"cron": "30 2 * * *", "tz": "Europe/Berlin", "from": "2027-03-27T00:00:00", "n": 3},
        answers={200: _PREVIEW},
    ),
    Route(
        method="GET",
        path="/api/schedules/{name:path}/occurrences",
        handler=list_occurrences,
        role="viewer",
        summary="What was decided for a schedule, newest first, and why",
        tag="schedules",
        query=(
            _TENANT,
            Param("since", "only instants from this time on", "instant", example="2027-01-01T00:00:00Z"),
            Param("before", "only instants before this time", "instant"),
            LIMIT,
            CURSOR,
        ),
        answers={200: {"items": [_OCCURRENCE], "next_cursor": None}},
    ),
    Route(
        method="GET",
        path="/api/schedules/{name:path}/runs",
        handler=list_runs,
        role="viewer",
        summary="What was decided for a schedule and what was started by hand, newest first",
        what=(
            "The decisions of `/occurrences`, and among them by their time what people started: `triggered` (one job)"
            " and `backfilled` (`count` jobs, for past instants). These are not instants of the schedule, and no"
            " occurrences. A little more than `limit` comes where several have the same time."
        ),
        tag="schedules",
        query=(
            _TENANT,
            Param("since", "only what came from this time on", "instant", example="2027-01-01T00:00:00Z"),
            Param("before", "only what came before this time", "instant"),
            LIMIT,
            CURSOR,
        ),
        answers={200: {"items": [_BY_HAND, _OCCURRENCE], "next_cursor": None}},
    ),
    Route(
        method="GET",
        path="/api/schedules/{name:path}/calendar",
        handler=get_calendar,
        role="viewer",
        summary="A year of a schedule by days: what was decided on each, and how its jobs ended",
        what=(
            "Days are those of the schedule's zone; a day without a decision is left out. Runs of equal decisions are"
            " spread evenly over their days. Of more than 100,000 decisions the newest count, and `truncated` is true."
        ),
        tag="schedules",
        query=(
            _TENANT,
            Param("year", "which; default the present one", "int", low=YEAR_MIN, high=YEAR_MAX, example=2027),
        ),
        answers={200: _CALENDAR},
    ),
    Route(
        method="GET",
        path="/api/schedules/{name:path}/preview",
        handler=preview_schedule,
        role="viewer",
        summary="The next instants of a schedule",
        tag="schedules",
        query=(
            _TENANT,
            Param("n", "how many", "int", low=1, high=PREVIEW_MAX, example=5),
            Param("from", "from this time on, or so long from now; default now", example="2027-03-27T00:00:00"),
            Param("tz", "show local times of this zone", example="Europe/Berlin"),
        ),
        answers={200: {"name": "daily-report", "tenant": "default", **_PREVIEW}},
    ),
    Route(
        method="POST",
        path="/api/schedules/{name:path}/pause",
        handler=pause_schedule,
        role="operator",
        summary="Pause a schedule",
        what="Its instants are recorded as paused. `until` is a time, or for how long.",
        tag="schedules",
        query=(_TENANT,),
        body=PauseBody,
        body_is_optional=True,
        body_example={"until": "2h", "reason": "the mail server is down"},
        answers={200: _ONE},
    ),
    Route(
        method="POST",
        path="/api/schedules/{name:path}/resume",
        handler=resume_schedule,
        role="operator",
        summary="Let a paused schedule run again, from now on",
        tag="schedules",
        query=(_TENANT,),
        answers={200: _ONE},
    ),
    Route(
        method="POST",
        path="/api/schedules/{name:path}/trigger",
        handler=trigger_schedule,
        role="operator",
        summary="Enqueue a job of the schedule now",
        what=(
            "Its instants stay as they are. 201 for a new job. Under its overlap rule: with `skip` there is none while"
            " another job of the schedule is live, with `queue` it waits in line, up to `queue_limit`. Where there is"
            " none, the answer is 200 with the job that is there, and `message` says why. `replace` stops the live one"
            " first, `allow` starts at once. With a key it happens once: 200 for the same job."
        ),
        tag="schedules",
        query=(_TENANT,),
        body=TriggerBody,
        body_is_optional=True,
        body_example={"args": {"day": "2027-01-30"}},
        headers=("Idempotency-Key",),
        answers={201: {**_JOB, "outcome": "started", "message": None}, 200: {**_JOB, **_NOT_STARTED}},
    ),
    Route(
        method="POST",
        path="/api/schedules/{name:path}/backfill",
        handler=backfill_schedule,
        role="operator",
        summary="Enqueue a job for each past instant that has not fired",
        what="Repeating it adds nothing. More than `limit` jobs are refused; `dry_run` says how many there would be.",
        tag="schedules",
        query=(_TENANT, _DRY_RUN),
        body=BackfillBody,
        body_example={"from": "2027-01-01", "to": "2027-01-07", "dry_run": True},
        answers={
            200: {
                "schedule": "daily-report",
                "tenant": "default",
                "count": 1,
                "instants": ["2027-01-01T05:00:00Z"],
                "dry_run": True,
            }
        },
    ),
    Route(
        method="GET",
        path="/api/schedules/{name:path}",
        handler=get_schedule,
        role="viewer",
        summary="One schedule with its policies and what comes next",
        tag="schedules",
        query=(_TENANT,),
        answers={200: _ONE},
    ),
    Route(
        method="PUT",
        path="/api/schedules/{name:path}",
        handler=put_schedule,
        role="operator",
        summary="Create or change a schedule",
        what=(
            "201 created, 200 changed or unchanged. `If-Match` with the ETag that was read changes only what nobody"
            " has changed since, `If-None-Match: *` only creates; else 412. With `dry_run=1` nothing is written and"
            " the answer is the plan: `action` (create, change, nothing) and the next instants before and after."
            " Names are unique per tenant. The tenant is that of the token; only a token for all tenants may say"
            " another, in `tenant` of the query or the body."
        ),
        tag="schedules",
        query=(
            _TENANT,
            _DRY_RUN,
            _OWNER,
            Param("take_over", "1 takes over a schedule that belongs to an app or a file", "flag"),
        ),
        body=ScheduleBody,
        body_example=_BODY,
        headers=("If-Match", "If-None-Match"),
        answers={
            201: {**_ONE, "outcome": "created", "warnings": ["no live worker knows the task 'report'"]},
            200: None,
            412: None,
        },
    ),
    Route(
        method="DELETE",
        path="/api/schedules/{name:path}",
        handler=remove_schedule,
        role="operator",
        summary="Remove a schedule",
        what="What was decided stays in the ledger.",
        tag="schedules",
        query=(_TENANT, _OWNER),
        headers=("If-Match",),
        answers={200: {"schedule": "daily-report", "tenant": "default", "removed": True}, 412: None},
    ),
)
