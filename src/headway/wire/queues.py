"""Queues as JSON."""

from typing import Annotated

import msgspec
from msgspec import UNSET

from headway.wire.base import Absent, Count, Resource, Time, example


@example(
    {
        "name": "media",
        "pending": 12,
        "oldest_age_seconds": 4.2,
        "running": 8,
        "paused": False,
        "paused_at": None,
        "paused_by": None,
        "reason": None,
    },
    known_by=frozenset({"name", "pending", "oldest_age_seconds"}),
)
class Queue(Resource):
    """The jobs that wait in a queue or run from it, and whether it is paused."""

    name: str
    pending: Count
    oldest_age_seconds: Annotated[float, msgspec.Meta(description="how long the oldest pending job has waited")]
    running: Count
    paused: bool
    paused_at: Time | None
    paused_by: str | None
    reason: Annotated[str | None, msgspec.Meta(description="why it is paused")]
    changed: Annotated[bool, msgspec.Meta(description="whether this request changed it")] | Absent = UNSET


@example(
    {"queue": "media", "ready": 120, "running": 8, "slots": 16, "work_seconds": 60.0, "wanted_slots": 11},
    known_by=frozenset({"wanted_slots"}),
)
class QueueScale(Resource):
    """How many slots a queue needs, for autoscalers such as KEDA."""

    queue: str
    ready: Annotated[int, msgspec.Meta(description="ready jobs that limits let run, up to 100,000")]
    running: Count
    slots: Annotated[int, msgspec.Meta(description="slots of live workers that take from the queue")]
    work_seconds: Annotated[float, msgspec.Meta(description="what the ready jobs take together, as jobs took lately")]
    wanted_slots: Annotated[int, msgspec.Meta(description="slots that start the ready jobs within the given wait")]
