"""Limits as JSON: the definition, and which jobs hold its places."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET

from headway.core import limits
from headway.wire.base import Absent, Count, Resource, Time, example

_LIMIT: Final[dict[str, Any]] = {
    "name": "queue:media",
    "concurrency": 40,
    "rate": "10/s",
    "burst": 20,
    "owner": "shop",
    "in_force": True,
    "running": 38,
    "held": 3,
    "next_at": None,
}
_HOLDER: Final[dict[str, Any]] = {
    "id": "job_01m7h07rq30wjd03gjnmt8r3pz",
    "task": "report",
    "tenant": "acme",
    "since": "2027-01-31T06:00:00Z",
    "gate": "queue:media",
}


@example(_LIMIT, known_by=frozenset({"name", "concurrency", "rate"}))
class Limit(Resource, kw_only=True):
    """How many jobs may run at a time, and how many may start in a period."""

    name: Annotated[str, msgspec.Meta(description="queue:NAME, task:NAME, tenant:NAME or a name that jobs give")]
    concurrency: int | None
    rate: Annotated[str | None, msgspec.Meta(description="starts in a time", examples=["10/s"])]
    burst: Annotated[int | None, msgspec.Meta(description="the size of the token bucket of the rate")]
    owner: Annotated[str, msgspec.Meta(description="the app that declares it; empty: put by an operator")]
    in_force: Annotated[bool, msgspec.Meta(description="false until attempts that run already are counted")]
    running: Annotated[
        Count | None, msgspec.Meta(description="running jobs that it counts; null for a name that ends with *")
    ]
    held: (
        Annotated[
            Count,
            msgspec.Meta(
                description="lanes that wait for it, up to 1,000; jobs with the same queue, tenant and limits are one;"
                " a token of one tenant counts its own, and not for queues"
            ),
        ]
        | Absent
    ) = UNSET
    next_at: (
        Annotated[
            Time | None,
            msgspec.Meta(description="when a rate that is used up allows the next start; for all tenants only"),
        ]
        | Absent
    ) = UNSET
    changed: Annotated[bool, msgspec.Meta(description="whether this request changed it")] | Absent = UNSET


@example(_HOLDER, known_by=frozenset({"id", "task", "since"}))
class LimitHolder(Resource):
    """A running job that a limit counts."""

    id: str
    task: str
    tenant: str
    since: Time
    gate: Annotated[str, msgspec.Meta(description="the name under which it counts, such as account-42")]


@example(
    {**_LIMIT, "holders": [_HOLDER]},
    known_by=frozenset({"name", "concurrency", "holders"}),
)
class LimitDetails(Limit, kw_only=True):
    """A limit with the jobs that hold its places."""

    holders: Annotated[list[LimitHolder], msgspec.Meta(description="running jobs, those that run longest first")]


@example({"name": "queue:media", "removed": True}, known_by=frozenset({"name", "removed"}))
class RemovedLimit(Resource):
    """A limit that was removed."""

    name: str
    removed: bool = True


def definition_of_limit(limit: limits.Limit) -> dict[str, Any]:
    """Convert the definition of a limit."""
    return {"concurrency": limit.concurrency, "rate": limit.rate_text, "burst": limit.burst}


def limit_of(limit: limits.Limit, running: int | None) -> Limit:
    """Convert a limit."""
    return Limit(
        name=limit.name,
        **definition_of_limit(limit),
        owner=limit.owner,
        in_force=limit.in_force,
        running=running,
    )
