"""Nodes and workers as JSON."""

from typing import Annotated, Any

import msgspec

from headway.core import nodes as core
from headway.core.instants import isoformat
from headway.wire.base import Count, Resource, Time, example


@example(
    {
        "id": "node_01m7h0en7803x23x7364a4cyve",
        "name": "web-1",
        "roles": ["scheduler", "worker"],
        "version": "0.4.0",
        "started_at": "2027-01-31T05:00:00Z",
        "beat_at": "2027-01-31T06:00:00Z",
        "state": {"mode": "leader", "wake_ups": "notify"},
    },
    known_by=frozenset({"id", "roles", "beat_at"}),
)
class Node(Resource):
    """A process of Headway, as it described itself in its last heartbeat."""

    id: str
    name: str
    roles: list[str]
    version: str
    started_at: Time
    beat_at: Time
    state: dict[str, Any]


@example(
    {
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
        "offer": {"cpu": 8, "memory": 34359738368},
        "offer_free": {"cpu": 6, "memory": 30064771072},
        "labels": {"zone": "eu"},
        "app_version": "1.4.2",
    },
    known_by=frozenset({"id", "slots", "tasks"}),
)
class Worker(Resource):
    """A process that runs jobs, as it described itself in its last heartbeat."""

    id: str
    name: str
    version: str
    started_at: Time
    beat_at: Time
    draining: bool
    slots: Count
    running: Count
    children: Count
    queues: list[str]
    tasks: list[str]
    offer: Annotated[dict[str, Any], msgspec.Meta(description="what jobs with needs may use here, by name")]
    offer_free: Annotated[dict[str, Any], msgspec.Meta(description="what of it is free")]
    labels: dict[str, str]
    app_version: Annotated[str | None, msgspec.Meta(description="the version of its code, for pinned jobs")]


@example(
    {"id": "node_01m7h0en7803x23x7364a4cyve", "name": "web-1", "draining": True},
    known_by=frozenset({"id", "name", "draining"}),
)
class DrainingWorker(Resource):
    """A worker that was asked to drain."""

    id: str
    name: str
    draining: bool


def node_of(node: core.Node) -> Node:
    """Return a node as the API shows it."""
    return Node(
        id=node.id,
        name=node.name,
        roles=list(node.roles),
        version=node.version,
        started_at=isoformat(node.started_at),
        beat_at=isoformat(node.beat_at),
        state=node.state,
    )
