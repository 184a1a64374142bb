"""Statistics, alerts and series as JSON."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET

from headway.wire.base import Absent, Count, Resource, Time, example, example_of
from headway.wire.limits import Limit
from headway.wire.nodes import Node, Worker
from headway.wire.queues import Queue
from headway.wire.tenants import LateTenant

Seconds = Annotated[float, msgspec.Meta(ge=0)]


class StoreState(Resource, kw_only=True):
    """The database, and how long it takes to answer."""

    kind: str
    version: str
    url: Annotated[str, msgspec.Meta(description="without its password; only for a local store")] | Absent = UNSET
    latency_ms: float


class LeadingNode(Resource):
    """A node that decides schedules; `token` is its fencing token."""

    name: str
    id: str
    token: int
    since: Time


class Shard(Resource):
    """A shard of the schedules, and the node that decides it."""

    role: str
    name: str
    id: str
    token: int
    since: Time


class ComingSchedule(Resource):
    """A schedule whose next instant is near, or is overdue."""

    name: str
    tenant: str
    decided_through: Time
    next_at: Time
    undecided_seconds: Seconds


class ScheduleFigures(Resource):
    """Numbers of schedules, the next instants, and the decisions of the last day by outcome."""

    total: Count
    paused: Count
    late: Count
    attention: Annotated[int, msgspec.Meta(ge=0, description="the number that cannot be planned")]
    next_at: Time | None
    coming: list[ComingSchedule]
    last_day: dict[str, Count]


class ErrorCount(Resource):
    """An error, and how many dead letters ended with it."""

    error: str
    count: Count


class DeadTask(Resource):
    """The dead letters of a task."""

    task: str
    letters: Count
    newest: str
    errors: list[ErrorCount]
    error: Annotated[str, msgspec.Meta(description="the most frequent errors in words")]


class DeadLetterFigures(Resource):
    """The number of dead letters, in all and by task."""

    total: Count
    tasks: list[DeadTask]


class FailingSchedule(Resource):
    """A schedule whose last jobs all failed."""

    schedule: str
    tenant: str
    failed_in_a_row: Count


class MissedSchedule(Resource):
    """A schedule that missed instants in the last day."""

    schedule: str
    tenant: str
    instants: Count
    latest: Time


class FullLimits(Resource):
    """The limits for which jobs wait: how many, and those for which most wait."""

    total: Count
    items: list[Limit]


class LateTenants(Resource):
    """The tenants whose jobs wait longer than their `wait_slo`: how many, and those that are furthest beyond it."""

    total: Count
    items: list[LateTenant]


class LastHour(Resource):
    """How the jobs of the last hour ended. The window is shorter if there were too many to count."""

    CANCELLED: Count
    COMPLETED: Count
    FAILED: Count
    TIMED_OUT: Count
    window_seconds: Seconds
    per_second: float
    failure_rate: float


_LEADER: Final = {
    "name": "web-1",
    "id": "node_01m7h0en7803x23x7364a4cyve",
    "token": 7,
    "since": "2027-01-31T05:00:00Z",
}
_SCHEDULE: Final = {"schedule": "daily-report", "tenant": "default"}


@example(
    {
        "store": {"kind": "postgresql", "version": "15.5", "latency_ms": 0.8},
        "leader": _LEADER,
        "shards": [{"role": "scheduler/0", **_LEADER}],
        "nodes": [example_of(Node)],
        "workers": [example_of(Worker)],
        "queues": [example_of(Queue)],
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
                    "tenant": "default",
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
                    "errors": [{"error": "IOError: disk … is full", "count": 1}],
                    "error": "IOError: disk 7 is full",
                }
            ],
        },
        "failing": [{**_SCHEDULE, "failed_in_a_row": 3}],
        "missed": [{**_SCHEDULE, "instants": 2, "latest": "2027-01-31T06:00:00Z"}],
        "limits": {"total": 1, "items": [example_of(Limit)]},
        "tenants": {"total": 1, "items": [example_of(LateTenant)]},
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
    },
    known_by=frozenset({"queues", "degraded", "last_hour"}),
)
class Stats(Resource, kw_only=True):
    """Statistics of jobs, queues and schedules. Store, leader, nodes and workers are absent for one tenant."""

    store: StoreState | Absent = UNSET
    leader: LeadingNode | Absent | None = UNSET
    shards: list[Shard] | Absent = UNSET
    nodes: list[Node] | Absent = UNSET
    workers: list[Worker] | Absent = UNSET
    queues: list[Queue]
    jobs: Annotated[dict[str, Count], msgspec.Meta(description="unfinished jobs by status")]
    schedules: ScheduleFigures
    oldest_undecided_seconds: Annotated[float, msgspec.Meta(ge=0, description="age of the oldest undecided instant")]
    dead: DeadLetterFigures
    failing: list[FailingSchedule]
    missed: list[MissedSchedule]
    limits: FullLimits
    tenants: LateTenants
    degraded: Annotated[list[str], msgspec.Meta(description="faults in words")]
    at: Time
    tenant: Annotated[str | None, msgspec.Meta(description="the tenant of these statistics; null for all")]
    oldest_pending_seconds: Seconds
    last_hour: LastHour


@example(
    {
        "code": "dead_letters",
        "target": "report",
        "message": "1 dead letter of report: IOError: full",
        "cure": "headway dead list --task report",
    },
    known_by=frozenset({"code", "target", "message", "cure"}),
)
class Alert(Resource, kw_only=True):
    """A problem that needs an operator, with the command or action that fixes it."""

    code: Annotated[str, msgspec.Meta(description="for programs; it stays the same")]
    target: str | None = None
    tenant: Annotated[str, msgspec.Meta(description="the tenant of the target, if that is a schedule")] | Absent = UNSET
    message: Annotated[str, msgspec.Meta(description="for people")]
    cure: str


@example(
    {"items": [example_of(Alert)], "total": 1, "next_cursor": None},
    known_by=frozenset({"items", "total", "next_cursor"}),
)
class AlertList(Resource):
    """Open alerts, the most severe first, and how many there are."""

    items: list[Alert]
    total: Count
    next_cursor: None = None


class Point(Resource):
    """How the jobs of one time step ended; durations are those of completed jobs, in seconds."""

    at: Time
    cancelled: Count
    completed: Count
    failed: Count
    timed_out: Count
    duration_p50: float | None
    duration_p95: float | None


_POINT: Final[dict[str, Any]] = {
    "at": "2027-01-31T06:00:00Z",
    "cancelled": 0,
    "completed": 30,
    "failed": 1,
    "timed_out": 0,
    "duration_p50": 1.204,
    "duration_p95": 4.5,
}


@example(
    {
        "since": "2027-01-31T05:00:30Z",
        "until": "2027-01-31T06:00:30Z",
        "step_seconds": 30,
        "points": [_POINT],
        "truncated": False,
    },
    known_by=frozenset({"points", "step_seconds"}),
)
class Series(Resource):
    """How jobs ended over time."""

    since: Time
    until: Time
    step_seconds: int
    points: list[Point]
    truncated: Annotated[bool, msgspec.Meta(description="whether earlier jobs were left out: there were too many")]
