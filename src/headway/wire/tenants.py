"""Tenants as JSON: their weight, what they have used of queues, and how long their jobs waited."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET

from headway.wire.base import Absent, Count, Resource, Span, Time, example

_TENANT: Final[dict[str, Any]] = {
    "name": "acme",
    "weight": 4,
    "wait_slo": "5s",
    "author": "app:shop",
    "used_seconds": 312.5,
    "used_part": 0.42,
    "ready": 12,
    "oldest_ready_at": "2027-01-31T06:00:00Z",
}
_SHARE: Final[dict[str, Any]] = {
    "queue": "media",
    "used_seconds": 312.5,
    "used_part": 0.42,
    "fair_part": 0.5,
    "share_seconds": 78.1,
}


@example(_TENANT, known_by=frozenset({"name", "weight", "wait_slo"}))
class Tenant(Resource, kw_only=True):
    """How a tenant shares queues with others."""

    name: str
    weight: Annotated[int, msgspec.Meta(description="twice the weight is twice the time")]
    wait_slo: Annotated[Span | None, msgspec.Meta(description="how long its jobs should wait for a worker at most")]
    author: Annotated[str | None, msgspec.Meta(description="who set it; null: nobody, so the weight is 1")]
    used_seconds: Annotated[float, msgspec.Meta(description="what its jobs took, in all queues")]
    used_part: (
        Annotated[float, msgspec.Meta(description="of what all tenants used of all queues; for all tenants only")]
        | Absent
    ) = UNSET
    ready: Annotated[Count, msgspec.Meta(description="ready jobs, counted up to 500 in a queue")] | Absent = UNSET
    oldest_ready_at: (
        Annotated[Time | None, msgspec.Meta(description="since when one of them has waited; null: none waits")] | Absent
    ) = UNSET
    changed: Annotated[bool, msgspec.Meta(description="whether this request changed it")] | Absent = UNSET


@example(_SHARE, known_by=frozenset({"queue", "used_seconds"}))
class TenantShare(Resource):
    """What a tenant has used of one queue."""

    queue: str
    used_seconds: float
    used_part: (
        Annotated[float, msgspec.Meta(description="of what all tenants used of the queue; for all tenants only")]
        | Absent
    ) = UNSET
    fair_part: (
        Annotated[
            float, msgspec.Meta(description="its weight among those of all tenants of the queue; for all tenants only")
        ]
        | Absent
    ) = UNSET
    share_seconds: (
        Annotated[float, msgspec.Meta(description="by which tenants are served, the least first; of all tenants only")]
        | Absent
    ) = UNSET


@example(
    {
        **_TENANT,
        "queues": [_SHARE],
        "waits": 200,
        "wait_p50_seconds": 0.4,
        "wait_p95_seconds": 3.2,
        "meets_slo": True,
    },
    known_by=frozenset({"name", "weight", "queues"}),
)
class TenantDetails(Tenant, kw_only=True):
    """A tenant with its use of each queue, and how long its newest jobs waited."""

    queues: list[TenantShare]
    waits: Annotated[Count, msgspec.Meta(description="started jobs that were measured, the newest")]
    wait_p50_seconds: Annotated[float | None, msgspec.Meta(description="median of how long they waited")]
    wait_p95_seconds: Annotated[float | None, msgspec.Meta(description="p95 of how long they waited")]
    meets_slo: Annotated[bool | None, msgspec.Meta(description="null without wait_slo, or without started jobs")]


@example(
    {"name": "acme", "wait_slo": "5s", "waited_seconds": 12.5},
    known_by=frozenset({"name", "wait_slo", "waited_seconds"}),
)
class LateTenant(Resource):
    """A tenant whose oldest ready job has waited longer than it should."""

    name: str
    wait_slo: Span
    waited_seconds: float
