"""What the objects of the API look like, for its specification: the types of what `headway.wire.shapes` writes.

An answer in a table of routes is an example. Where the names of an example are those of a shape here, the specification
refers to the shape, so that a job is the same `Job` wherever it turns up.
"""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET

from headway.core.lifecycle import Status
from headway.core.occurrences import Decided
from headway.core.schedules import Missed, Overlap
from headway.wire.base import EXAMPLES, Absent, Omitted, Resource, Span, Time


class Occurrence(Resource, kw_only=True):
    """What was decided about an instant of a schedule, or about a run of them that ended alike."""

    schedule: str
    tenant: str
    instant: Time
    until: Time | Absent = UNSET
    count: Annotated[int, msgspec.Meta(ge=1)]
    outcome: Literal["fired", "skipped", "missed", "coalesced", "paused", "triggered", "backfilled"]
    reason: str
    decided_at: Time
    job_id: str | None


class Preview(Resource):
    """An instant to come."""

    instant: Time
    local: Annotated[str, msgspec.Meta(description="the same by the clock of the trigger's zone")]
    note: Annotated[str | None, msgspec.Meta(description="what daylight saving does to it")]


class PauseOfSchedule(Resource):
    """Since when a schedule is paused, until when, why and by whom."""

    since: Time
    until: Time | None
    reason: str
    author: str


class Recent(Resource):
    """A decision in short, and what became of its job."""

    at: Time
    count: Annotated[int, msgspec.Meta(ge=1)]
    outcome: Decided
    reason: str
    job_status: Status | None
    job_id: str | None


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
    owner: str
    revision: Annotated[int, msgspec.Meta(description="its ETag; grows with every change")]
    created_at: Time
    decided_through: Time
    next_at: Time | None
    paused: bool
    pause: PauseOfSchedule | None
    attention: str | None
    failing: Annotated[int, msgspec.Meta(description="how many of its last jobs failed in a row")]
    recent: Annotated[list[Recent], msgspec.Meta(description="its newest decisions, where asked for")] | Absent = UNSET
    omitted: Omitted | Absent = UNSET


class Problem(Resource):
    """Why a request was refused."""

    code: Annotated[str, msgspec.Meta(description="for programs; it stays the same")]
    message: Annotated[str, msgspec.Meta(description="for people; it names the field that is wrong")]
    hint: Annotated[str, msgspec.Meta(description="what to do instead")] | Absent = UNSET


class Error(Resource):
    """The body of every answer from 400 on."""

    error: Problem
    request_id: Annotated[str, msgspec.Meta(description="also in the header X-Request-ID, and in the log")]


_AT: Final = "2027-01-31T06:00:00Z"

# A whole example of each, and the names by which a shorter one is known.
EXAMPLES.update(
    {
        Occurrence: (
            {
                "schedule": "daily-report",
                "tenant": "default",
                "instant": _AT,
                "count": 1,
                "outcome": "fired",
                "reason": "on time",
                "decided_at": "2027-01-31T06:00:00.003Z",
                "job_id": "job_01m7h07rq30wjd03gjnmt8r3pz",
            },
            frozenset({"schedule", "instant", "outcome"}),
        ),
        Preview: (
            {
                "instant": "2027-03-28T01:00:00Z",
                "local": "2027-03-28T03:00:00+02:00",
                "note": "02:30 does not exist on 2027-03-28 (DST); runs at 03:00, dst=shift",
            },
            frozenset({"instant", "local"}),
        ),
        Schedule: (
            {
                "name": "daily-report",
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
            frozenset({"name", "task"}),
        ),
    }
)


@cache
def _names(shape: type[Resource]) -> frozenset[str]:
    return frozenset(field.name for field in msgspec.structs.fields(shape))


def shape_of(example: Mapping[str, Any]) -> type[Resource] | None:
    """Return the shape of which an example has the names, or the most telling of them; None when it has others."""
    for shape, (_, telling) in EXAMPLES.items():
        if telling <= example.keys() <= _names(shape):
            return shape
    return None


def whole(example: Any) -> Any:
    """Fill up the shapes in an example that was written shorter, so that those who read it see all the names."""
    match example:
        case dict():
            shape = shape_of(example)
            known = {} if shape is None else EXAMPLES[shape][0]
            return {**known, **{name: whole(value) for name, value in example.items()}}
        case list() | tuple():
            return [whole(item) for item in example]
        case _:
            return example
