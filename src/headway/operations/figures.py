"""The situation as JSON, for `headway status --json` and `/api/stats`."""

from typing import Any

from headway.core.instants import SECOND, Instant
from headway.core.nodes import Lease
from headway.core.settings import mask_url
from headway.operations.attention import faults
from headway.operations.overview import PENDING, Situation, node_shape, worker_shapes
from headway.wire.shapes import Shape, stamp


def situation_shape(situation: Situation) -> Shape:
    """Write the situation as JSON; who leads and works is not for those who see one tenant only."""
    schedules = dict(situation.schedules)
    undecided = schedules.pop("oldest_undecided_seconds")
    return {
        **(_machinery_shape(situation) if situation.tenant is None else {}),
        "queues": situation.queues,
        "jobs": {PENDING: situation.pending, **situation.waiting},
        "schedules": {
            **schedules,
            "next_at": stamp(schedules["next_at"]),
            "coming": [_coming_shape(coming, situation.now) for coming in schedules["coming"]],
        },
        "oldest_undecided_seconds": undecided,
        "dead": {"total": situation.dead_letters, "tasks": situation.dead},
        "failing": [
            {"schedule": ref.name, "tenant": ref.tenant, "failed_in_a_row": number} for ref, number in situation.failing
        ],
        "missed": [
            {"schedule": one.schedule, "tenant": one.tenant, "instants": one.instants, "latest": stamp(one.latest)}
            for one in situation.missed
        ],
        "degraded": [fault.words for fault in faults(situation)],
    }


def _machinery_shape(situation: Situation) -> Shape:
    return {
        "store": {
            "kind": situation.facts.kind,
            "version": situation.facts.version,
            **({"url": mask_url(situation.url)} if situation.url else {}),
            "latency_ms": round(situation.latency_s * 1000, 3),
        },
        "leader": None if situation.leader is None else _lease_shape(situation.leader),
        "shards": [{"role": lease.name, **_lease_shape(lease)} for lease in situation.leases],
        "nodes": [node_shape(node) for node in situation.nodes],
        "workers": worker_shapes(situation.nodes),
    }


def _coming_shape(coming: dict[str, Any], now: Instant) -> Shape:
    return {
        "name": coming["name"],
        "tenant": coming["tenant"],
        "decided_through": stamp(coming["decided_through"]),
        "next_at": stamp(coming["next_at"]),
        "undecided_seconds": max(0, now - coming["next_at"]) / SECOND,
    }


def _lease_shape(lease: Lease) -> Shape:
    return {"name": lease.holder_name, "id": lease.holder, "token": lease.token, "since": stamp(lease.since)}
