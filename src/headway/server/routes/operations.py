"""The routes of operation: queues, workers, nodes, figures, alerts, dead letters, the audit.

A caller of one tenant sees queues and figures over its own jobs only, and neither nodes nor workers; what stops or
moves the jobs of everybody (pausing a queue, draining a worker) needs a token for all tenants.
"""

from typing import Annotated, Any, Final
from weakref import WeakKeyDictionary

import msgspec

from headway.core.instants import HOUR, SECOND
from headway.core.lifecycle import FINAL, Status
from headway.operations.attention import alerts
from headway.operations.figures import situation_shape
from headway.operations.overview import (
    Situation,
    look,
)
from headway.operations.queues import Queues
from headway.operations.workers import Nodes, Workers
from headway.server.operation_routes import routes_of
from headway.server.web import LIMIT, Answer, Call, Param, Route, etag_of
from headway.store.facts import Facts, facts
from headway.store.transaction import Driver
from headway.wire.base import PAGE_MAX
from headway.wire.shapes import stamp

GROUP_MAX: Final = 1_000
GROUP_DEFAULT: Final = 100

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
)
