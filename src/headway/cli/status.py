"""`headway status`: who leads, what waits, what is late, and what is not as it should be."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from headway.cli.session import Desk, Session, new_command
from headway.cli.show import Output
from headway.cli.text import clean, count, span, stamp
from headway.instants import SECOND, Instant
from headway.model import Lease, Node
from headway.settings import Settings, mask_url
from headway.store.facts import Facts, facts

ALIVE_WITHIN: Final = 10 * SECOND  # A node beats at least every two seconds.
LATE: Final = 10 * SECOND  # The budget of promise L1.
LATE_SHOWN: Final = 3
STANDSTILL_S: Final = 30.0
SETTLED_AFTER: Final = 5 * SECOND  # A node says first that it lives, and begins to listen then.
SCHEDULER: Final = "scheduler"
SHARD_PREFIX: Final = "scheduler/"
OUTCOMES: Final = ("fired", "skipped", "missed", "coalesced", "paused")


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything that status knows, read at one time."""

    now: Instant
    url: str
    facts: Facts
    latency_s: float
    leases: list[Lease]
    nodes: list[Node]
    queues: list[dict[str, Any]]
    waiting: dict[str, int]
    schedules: dict[str, Any]

    @property
    def schedulers(self) -> list[Node]:
        """The nodes that decide."""
        return [node for node in self.nodes if SCHEDULER in node.roles]

    @property
    def leader(self) -> Lease | None:
        """Who decides; with several shards, who decides the first of them."""
        return self.leases[0] if self.leases else None


async def status(session: Session) -> None:
    """Show who leads, what waits, what is late, and what is not as it should be."""
    settings = session.settings()
    async with session.open() as desk:
        situation = await look(desk, settings)
    if session.as_json:
        session.out.json(shape(situation))
    else:
        tell(session.out, situation)


async def look(desk: Desk, settings: Settings) -> Situation:
    """Read the situation."""
    store = desk.store
    return Situation(
        now=desk.now,
        url=settings.store,
        facts=await facts(store.driver),
        latency_s=desk.latency_s,
        leases=[lease for lease, runs in await store.leases.held(SHARD_PREFIX) if runs],
        nodes=await store.nodes.alive(ALIVE_WITHIN),
        queues=await store.queue.depths(),
        waiting=await store.queue.waiting(),
        schedules=await store.ledger.summary(),
    )


def degraded(situation: Situation) -> Iterator[str]:
    """Say what is not as it should be, each in a sentence that stands alone."""
    if not situation.schedulers:
        yield "no scheduler is alive"
    elif not situation.leases and any(node.state.get("mode") == "leader" for node in situation.schedulers):
        yield "schedulers are alive, but none of them leads"
    undecided = situation.schedules["oldest_undecided_seconds"]
    if undecided > LATE / SECOND:
        yield f"the oldest undecided instant is {span(round(undecided) * SECOND)} old"
    if attention := situation.schedules["attention"]:
        yield f"{count(attention, 'schedule')} cannot be planned"
    for node in situation.nodes:
        yield from _node_faults(node, situation.facts.kind)


def _node_faults(node: Node, kind: str) -> Iterator[str]:
    is_settled = node.beat_at - node.started_at >= SETTLED_AFTER
    if kind == "postgresql" and is_settled and node.state.get("wake_ups") == "poll":
        yield f"{node.name} polls: notifications do not reach it"
    for loop, idle_s in node.state.get("loops", {}).items():
        if idle_s > STANDSTILL_S:
            yield f"the loop {loop} of {node.name} has stood still for {span(round(idle_s) * SECOND)}"


def shape(situation: Situation) -> dict[str, Any]:
    """Write the situation as JSON."""
    schedules = dict(situation.schedules)
    undecided = schedules.pop("oldest_undecided_seconds")
    return {
        "store": {
            "kind": situation.facts.kind,
            "version": situation.facts.version,
            "url": mask_url(situation.url),
            "latency_ms": round(situation.latency_s * 1000, 3),
        },
        "leader": None if situation.leader is None else _lease_shape(situation.leader),
        "shards": [{"role": lease.name, **_lease_shape(lease)} for lease in situation.leases],
        "nodes": [_node_shape(node) for node in situation.nodes],
        "workers": [],
        "queues": situation.queues,
        "jobs": {"PENDING": sum(queue["pending"] for queue in situation.queues), **situation.waiting},
        "schedules": {
            **schedules,
            "next_at": stamp(schedules["next_at"]),
            "coming": [_coming_shape(coming, situation.now) for coming in schedules["coming"]],
        },
        "oldest_undecided_seconds": undecided,
        "degraded": list(degraded(situation)),
    }


def _coming_shape(coming: dict[str, Any], now: Instant) -> dict[str, Any]:
    return {
        "name": coming["name"],
        "decided_through": stamp(coming["decided_through"]),
        "next_at": stamp(coming["next_at"]),
        "undecided_seconds": max(0, now - coming["next_at"]) / SECOND,
    }


def _lease_shape(lease: Lease) -> dict[str, Any]:
    return {"name": lease.holder_name, "id": lease.holder, "token": lease.token, "since": stamp(lease.since)}


def _node_shape(node: Node) -> dict[str, Any]:
    return {
        "id": node.id,
        "name": node.name,
        "roles": list(node.roles),
        "version": node.version,
        "started_at": stamp(node.started_at),
        "beat_at": stamp(node.beat_at),
        "state": node.state,
    }


def tell(out: Output, situation: Situation) -> None:
    """Write the situation for people: five lines and what needs them."""
    left = {
        "store": _store_text(situation),
        "leader": _leader_text(situation),
        "jobs": _jobs_text(situation),
        "schedules": _schedules_text(situation),
        "last 24 h": _outcomes_text(situation),
    }
    out.facts(left | _late_facts(situation))
    for fault in degraded(situation):
        out.say(f"! {clean(fault)}", "warn")


def _late_facts(situation: Situation) -> dict[str, str]:
    """Name the schedules that are furthest behind, and how far each is decided."""
    late = [coming for coming in situation.schedules["coming"] if situation.now - coming["next_at"] > LATE]
    texts = [
        f"{clean(coming['name'])} undecided for {span(situation.now - coming['next_at'])}"
        f" (decided through {stamp(coming['decided_through'])})"
        for coming in late[:LATE_SHOWN]
    ]
    return {"late": "; ".join(texts)} if texts else {}


def _store_text(situation: Situation) -> str:
    modes = sorted({str(node.state.get("wake_ups", "?")) for node in situation.nodes})
    words = {"notify": "LISTEN/NOTIFY", "watch": "watching the file", "poll": "polling"}
    wake_ups = ", ".join(words.get(mode, mode) for mode in modes) or "nobody listens"
    latency = f"{situation.latency_s * 1000:.1f} ms"
    return f"{situation.facts.kind} {situation.facts.version}  ok ({latency})  wake-ups: {wake_ups}"


def _leader_text(situation: Situation) -> str:
    alive = f"{count(len(situation.schedulers), 'scheduler')} alive"
    modes = {node.state.get("mode") for node in situation.schedulers}
    if modes == {"lock"}:
        return f"none: lock mode, all decide  ({alive})"
    if situation.leader is None:
        return f"none  ({alive})"
    if len(situation.leases) > 1:
        holders = {lease.holder for lease in situation.leases}
        return f"{len(situation.leases)} shards led by {count(len(holders), 'node')}  ({alive})"
    lease = situation.leader
    return f"{lease.holder_name}  term {lease.token}  since {span(situation.now - lease.since)}  ({alive})"


def _jobs_text(situation: Situation) -> str:
    pending = sum(queue["pending"] for queue in situation.queues)
    oldest = max((queue["oldest_age_seconds"] for queue in situation.queues), default=0.0)
    age = f" (oldest {span(round(oldest) * SECOND)})" if pending else ""
    words = {"RUNNING": "running", "SCHEDULED": "scheduled", "RETRYING": "retrying", "BLOCKED": "blocked"}
    others = [f"{number:,} {word}" for status, word in words.items() if (number := situation.waiting.get(status, 0))]
    return " · ".join([f"{pending:,} waiting{age}", *others])


def _schedules_text(situation: Situation) -> str:
    numbers = situation.schedules
    on = numbers["total"] - numbers["paused"]
    held = f" · {numbers['attention']:,} held" if numbers["attention"] else ""
    next_at = numbers["next_at"]
    coming = f" · next in {span(next_at - situation.now)}" if next_at and next_at > situation.now else ""
    return f"{on:,} on · {numbers['paused']:,} paused · {numbers['late']:,} late{held}{coming}"


def _outcomes_text(situation: Situation) -> str:
    numbers = situation.schedules["last_day"]
    return " · ".join(f"{numbers.get(outcome, 0):,} {outcome}" for outcome in OUTCOMES)


app = new_command(status)
