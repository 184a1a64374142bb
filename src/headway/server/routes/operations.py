"""The routes of operation: queues, workers, nodes, figures, alerts, dead letters, the audit.

A caller of one tenant sees queues and figures over its own jobs only, and neither nodes nor workers; what stops or
moves the jobs of everybody (pausing a queue, draining a worker) needs a token for all tenants.
"""

import asyncio
from typing import Annotated, Any, Final
from urllib.parse import quote, unquote
from weakref import WeakKeyDictionary

import msgspec

from headway.core.errors import ScheduleNotFound
from headway.core.instants import DAY, HOUR, INSTANT_MIN, SECOND, Instant
from headway.core.lifecycle import FINAL, Status
from headway.core.schedule_names import schedule_name
from headway.core.tenants import DEFAULT_TENANT
from headway.operations.attention import alerts
from headway.operations.figures import situation_shape
from headway.operations.overview import (
    Situation,
    look,
)
from headway.operations.queues import Queues
from headway.operations.workers import Nodes, Workers
from headway.scheduling import audit as auditing
from headway.server.operation_routes import routes_of
from headway.server.refusals import Refused
from headway.server.web import CURSOR, LIMIT, Answer, Call, Param, Route, etag_of
from headway.store.facts import Facts, facts
from headway.store.transaction import Driver
from headway.wire.base import PAGE_DEFAULT, PAGE_MAX
from headway.wire.shapes import stamp

GROUP_MAX: Final = 1_000
GROUP_DEFAULT: Final = 100
AUDIT_WINDOW: Final = DAY
AUDIT_WINDOW_MAX: Final = 366 * DAY
AUDIT_S_MAX: Final = 20.0  # After so long a page of the audit ends where it is.
SCHEDULE_AUDIT_S_MAX: Final = 30.0

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]

# The words of these alerts say for how long, or how much, by now.
_PASSING: Final = ("undecided", "standstill", "long_transaction", "node_lost", "clock_off")

_facts_of: Final[WeakKeyDictionary[Driver, Facts]] = WeakKeyDictionary()


# Figures and alerts -----------------------------------------------------------------------------------------


async def get_stats(call: Call) -> Answer:
    """Say how things are in figures."""
    situation = await _situation(call)
    ended, window = await call.store.statistics.ended_counts(HOUR, tenant=call.tenant)
    shape = situation_shape(situation)
    failed = sum(ended.get(status, 0) for status in (Status.FAILED, Status.TIMED_OUT))
    finished = failed + ended.get(Status.COMPLETED, 0)
    shape["at"] = stamp(situation.now)
    shape["tenant"] = call.tenant
    shape["oldest_pending_seconds"] = max((queue["oldest_age_seconds"] for queue in situation.queues), default=0.0)
    shape["last_hour"] = {
        **{str(status): ended.get(status, 0) for status in sorted(FINAL)},
        "window_seconds": window / SECOND,
        "per_second": round(finished / (window / SECOND), 3),
        "failure_rate": round(failed / finished, 4) if finished else 0.0,
    }
    return Answer(shape)


async def list_alerts(call: Call) -> Answer:
    """Say what needs somebody now, each with a code, words and the command that leads on."""
    found = [alert.to_dict() for alert in alerts(await _situation(call))]
    items = found[: call.query.get("limit", PAGE_MAX)]
    facts = [{**item, "message": ""} if item["code"] in _PASSING else item for item in items]
    return Answer({"items": items, "total": len(found), "next_cursor": None}, etag=etag_of([facts, len(found)]))


async def _situation(call: Call) -> Situation:
    started = call.clock.monotonic()
    await call.store.ledger.pruned_through()  # The smallest question there is, to hear how long an answer takes.
    latency_s = call.clock.monotonic() - started
    driver = call.store.driver
    if driver not in _facts_of:
        _facts_of[driver] = await facts(driver)
    return await look(
        call.store,
        now=call.clock.now(),
        facts=_facts_of[driver],
        latency_s=latency_s,
        tenant=call.tenant,
        trouble=(await call.services.health.look()).store,
    )


# The audit --------------------------------------------------------------------------------------------------


async def get_audit(call: Call) -> Answer:
    """Compare the expected instants of schedules with the recorded ones, a page of schedules at a time."""
    since, until = _audit_window(call)
    started, report = call.clock.monotonic(), auditing.AuditReport()
    keys = await _audited(call)
    last: str | None = None
    for key in keys:
        if last is not None and call.clock.monotonic() - started > AUDIT_S_MAX:
            break
        report.merge(await _audit_one(call, key, since, until))
        last = key
    is_whole = last == (keys[-1] if keys else None) and len(keys) < call.query.get("limit", PAGE_DEFAULT)
    following = None if is_whole or "schedule" in call.query else last
    return Answer(
        {**report.to_dict(), "since": stamp(since), "until": stamp(until), "next_cursor": _audit_cursor(following)}
    )


def _audit_window(call: Call) -> tuple[Instant, Instant]:
    until: Instant = call.query.get("until", call.clock.now())
    since: Instant = call.query.get("since", max(INSTANT_MIN, until - AUDIT_WINDOW))
    if since > until:
        raise Refused(422, "invalid", f"since: {stamp(since)} must not be later than until, {stamp(until)}")
    if until - since > AUDIT_WINDOW_MAX:
        raise Refused(422, "invalid", "since: at most 366 days are audited at once; choose a shorter time")
    return since, until


async def _audited(call: Call) -> list[str]:
    """Return the keys of the schedules to audit, also of removed ones."""
    name, asked = call.query.get("schedule"), call.query.get("tenant")
    if call.tenant is not None and asked not in (None, call.tenant):
        raise Refused(403, "forbidden", "tenant: this token sees one tenant only; leave it out")
    tenant = call.tenant or asked
    if name is not None:
        try:
            whose = tenant or DEFAULT_TENANT
            return [(await call.store.schedules.show(name, tenant=whose, also_removed=True)).key]
        except ScheduleNotFound:
            raise ScheduleNotFound(f"no schedule is named {name!r}, and none ever was") from None
    limit, after = call.page()
    return [found.key for found in await call.store.ledger.keys(unquote(after or ""), limit, tenant=tenant)]


def _audit_cursor(key: str | None) -> str | None:
    return None if key is None else quote(key, safe="")  # A key is not printable.


async def _audit_one(call: Call, key: str, since: Instant, until: Instant) -> auditing.AuditReport:
    try:
        async with asyncio.timeout(SCHEDULE_AUDIT_S_MAX):
            return await auditing.audit(call.store.ledger, key=key, since=since, until=until)
    except TimeoutError:
        name = schedule_name(key)
        raise Refused(422, "too_much", f"since: schedule {name!r} has too many instants in this time") from None


# The table --------------------------------------------------------------------------------------------------

_QUEUE: Final = {
    "name": "media",
    "pending": 12,
    "oldest_age_seconds": 4.2,
    "running": 8,
    "paused": False,
    "paused_at": None,
    "paused_by": None,
    "reason": None,
}
_WORKER: Final = {
    "id": "node_01m7h0en7803x23x7364a4cyve",
    "name": "web-1",
    "version": "0.4.0",
    "started_at": "2027-01-31T05:00:00Z",
    "beat_at": "2027-01-31T06:00:00Z",
    "draining": False,
    "slots": 8,
    "running": 3,
    "children": 2,
    "queues": ["*"],
    "tasks": ["report"],
}
_NODE: Final = {
    "id": "node_01m7h0en7803x23x7364a4cyve",
    "name": "web-1",
    "roles": ["scheduler", "worker"],
    "version": "0.4.0",
    "started_at": "2027-01-31T05:00:00Z",
    "beat_at": "2027-01-31T06:00:00Z",
    "state": {"mode": "leader", "wake_ups": "notify"},
}
_LEADER: Final = {
    "name": "web-1",
    "id": "node_01m7h0en7803x23x7364a4cyve",
    "token": 7,
    "since": "2027-01-31T05:00:00Z",
}
_STATS: Final[dict[str, Any]] = {
    "store": {"kind": "postgresql", "version": "15.5", "latency_ms": 0.8},
    "leader": _LEADER,
    "shards": [{"role": "scheduler/0", **_LEADER}],
    "nodes": [_NODE],
    "workers": [_WORKER],
    "queues": [_QUEUE],
    "jobs": {"PENDING": 12, "RUNNING": 8, "SCHEDULED": 3, "RETRYING": 0, "BLOCKED": 0},
    "schedules": {
        "total": 40,
        "paused": 1,
        "late": 0,
        "attention": 0,
        "next_at": "2027-01-31T06:01:00Z",
        "coming": [
            {
                "name": "daily-report",
                "decided_through": "2027-01-31T05:00:00Z",
                "next_at": "2027-01-31T06:01:00Z",
                "undecided_seconds": 0.0,
            }
        ],
        "last_day": {"fired": 960, "skipped": 2},
    },
    "oldest_undecided_seconds": 0.0,
    "dead": {
        "total": 1,
        "tasks": [
            {
                "task": "report",
                "letters": 1,
                "newest": "job_01m7…",
                "error": "IOError: disk 7 is full",
                "errors": [{"error": "IOError: disk … is full", "count": 1}],
            }
        ],
    },
    "failing": [{"schedule": "daily-report", "failed_in_a_row": 3}],
    "missed": [{"schedule": "daily-report", "instants": 2, "latest": "2027-01-31T06:00:00Z"}],
    "degraded": ["queue media is paused, and 12 jobs wait in it"],
    "at": "2027-01-31T06:00:00Z",
    "tenant": None,
    "oldest_pending_seconds": 4.2,
    "last_hour": {
        "CANCELLED": 0,
        "COMPLETED": 3_600,
        "FAILED": 2,
        "TIMED_OUT": 0,
        "window_seconds": 3600.0,
        "per_second": 1.001,
        "failure_rate": 0.0006,
    },
}
_ALERT: Final = {
    "code": "dead_letters",
    "target": "report",
    "message": "1 dead letter of report: IOError: full",
    "cure": "headway dead list --task report",
}
_FINDING: Final = {
    "schedule": "daily-report",
    "instant": "2027-01-31T05:00:00Z",
    "count": 1,
    "reason": "no record",
}
_AUDIT: Final = {
    "schedules": 40,
    "expected": 961,
    "recorded": 960,
    "gaps": [_FINDING],
    "duplicates": [],
    "phantoms": [],
    "unreadable": [],
    "totals": {"gaps": 1, "duplicates": 0, "phantoms": 0, "unreadable": 0},
    "ok": False,
    "since": "2027-01-30T06:00:00Z",
    "until": "2027-01-31T06:00:00Z",
    "next_cursor": None,
}
_JOB: Final = {"id": "job_01m7h07rq30wjd03gjnmt8r3pz", "type": "report", "status": "FAILED", "progress": 0}
_RERUN: Final = {"id": "job_01m7h07rq30wjd03gjnmt8r3pz", "rerun": "job_01m7h1rq30wjd03gjnmt8r3pz"}
_LETTER_FILTERS: Final = (
    Param("type", "only of this task", example="report"),
    Param("queue", "only from this queue"),
    Param("schedule", "only of this schedule"),
    Param("tenant", "only of this tenant"),
)

ROUTES: Final = (
    *routes_of(Queues, "operations"),
    *routes_of(Workers, "operations"),
    *routes_of(Nodes, "operations"),
    Route(
        method="GET",
        path="/api/stats",
        handler=get_stats,
        role="viewer",
        summary="How things are in figures",
        what=(
            "Jobs by status, how those of the last hour ended (`window_seconds` is less where there were too many to"
            " look at), the oldest that waits, the oldest instant that is not decided. Store, leader, nodes and workers"
            " only with a token for all tenants."
        ),
        tag="operations",
        answers={200: _STATS},
    ),
    Route(
        method="GET",
        path="/api/alerts",
        handler=list_alerts,
        role="viewer",
        summary="What needs somebody now, and what to do about it",
        tag="operations",
        query=(LIMIT,),
        answers={200: {"items": [_ALERT], "total": 1, "next_cursor": None}},
    ),
    Route(
        method="GET",
        path="/api/audit",
        handler=get_audit,
        role="viewer",
        summary="Expected instants of schedules against recorded ones",
        what=(
            "The expected instants are computed anew, by other code than the scheduler's. A page of schedules at a"
            " time, the last day unless `since` and `until` say otherwise; go on with `cursor` until it is null."
        ),
        tag="operations",
        query=(
            Param("schedule", "only this schedule", example="daily-report"),
            Param("tenant", "only schedules of this tenant", example="acme"),
            Param("since", "only instants after this time", "instant", example="2027-01-30T06:00:00Z"),
            Param("until", "only instants up to this time", "instant"),
            Param("limit", "how many schedules at most", "int", low=1, high=PAGE_MAX, example=50),
            CURSOR,
        ),
        answers={200: _AUDIT, 404: None},
    ),
)
