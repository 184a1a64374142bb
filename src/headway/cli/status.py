"""`headway status`: who leads, who works, what waits, what is late, and what needs somebody."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from headway.cli.around import alive
from headway.cli.queues import queue_shapes
from headway.cli.session import Desk, Session, new_command
from headway.cli.show import Column, Output
from headway.cli.text import clean, count, span, stamp
from headway.cli.workers import worker_shapes
from headway.instants import SECOND, Instant
from headway.model import FAILING_FLAGGED, Lease, Node
from headway.settings import Settings, mask_url
from headway.store.facts import Facts, facts
from headway.why import Worker, error_line, workers_of

LATE: Final = 10 * SECOND  # The budget of promise L1.
LATE_SHOWN: Final = 3
STANDSTILL_S: Final = 30.0
SETTLED_AFTER: Final = 5 * SECOND  # A node says first that it lives, and begins to listen then.
SCHEDULER: Final = "scheduler"
SHARD_PREFIX: Final = "scheduler/"
DEAD_COUNTED_MAX: Final = 10_000
DEAD_SHOWN: Final = 3
FAILING_SHOWN: Final = 3
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
    dead: list[dict[str, Any]]
    failing: list[tuple[str, int]]

    @property
    def workers(self) -> list[Worker]:
        """The nodes that run jobs."""
        return workers_of(self.nodes)

    @property
    def dead_letters(self) -> int:
        """How many jobs have failed for good and await a look."""
        return sum(row["letters"] for row in self.dead)

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
        nodes=await alive(store),
        queues=await queue_shapes(store),
        waiting=await store.queue.waiting(),
        schedules=await store.ledger.summary(),
        dead=await _dead(desk),
        failing=await store.ledger.failing(FAILING_FLAGGED),
    )


async def _dead(desk: Desk) -> list[dict[str, Any]]:
    """Count dead letters by task; the first few tasks with what went wrong last."""
    rows = await desk.store.queue.dead_counts(DEAD_COUNTED_MAX)
    for row in rows[:DEAD_SHOWN]:
        found = await desk.store.queue.dead(task=row["task"], limit=1)
        row["error"] = (error_line(found[0].error) or found[0].reason) if found else ""
    return rows


def attention(situation: Situation) -> Iterator[tuple[str, str]]:
    """Say what needs somebody, each with the command that leads on."""
    if situation.dead:
        many = situation.dead_letters
        named = [f"{row['task']}: {row['error']}" if row.get("error") else row["task"] for row in situation.dead]
        more = "" if len(named) <= DEAD_SHOWN else f"; and {len(named) - DEAD_SHOWN} more tasks"
        at_least = "at least " if many >= DEAD_COUNTED_MAX else ""
        letters = count(many, "dead letter")
        yield f"{at_least}{letters} ({'; '.join(named[:DEAD_SHOWN])}{more})", "headway dead list"
    for name, number in situation.failing[:FAILING_SHOWN]:
        yield f"schedule {name}: its last {number} jobs failed", f"headway jobs list --schedule {name}"
    if len(situation.failing) > FAILING_SHOWN:
        yield f"{len(situation.failing) - FAILING_SHOWN} more schedules fail in a row", "headway schedules list"


def degraded(situation: Situation) -> Iterator[str]:
    """Say what is not as it should be, each in a sentence that stands alone."""
    if not situation.schedulers:
        yield "no scheduler is alive"
    elif not situation.leases and any(node.state.get("mode") == "leader" for node in situation.schedulers):
        yield "schedulers are alive, but none of them leads"
    undecided = situation.schedules["oldest_undecided_seconds"]
    if undecided > LATE / SECOND:
        yield f"the oldest undecided instant is {span(round(undecided) * SECOND)} old"
    if held := situation.schedules["attention"]:
        yield f"{count(held, 'schedule')} cannot be planned"
    yield from _worker_faults(situation)
    for node in situation.nodes:
        yield from _node_faults(node, situation.facts.kind)


def _worker_faults(situation: Situation) -> Iterator[str]:
    pending = sum(queue["pending"] for queue in situation.queues)
    if pending and not situation.workers:
        yield f"no worker is alive, and {count(pending, 'job')} {'waits' if pending == 1 else 'wait'}"
    for queue in situation.queues:
        if queue["paused"] and queue["pending"]:
            waits = "waits" if queue["pending"] == 1 else "wait"
            yield f"queue {queue['name']} is paused, and {count(queue['pending'], 'job')} {waits} in it"


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
        "workers": worker_shapes(situation.nodes),
        "queues": situation.queues,
        "jobs": {"PENDING": sum(queue["pending"] for queue in situation.queues), **situation.waiting},
        "schedules": {
            **schedules,
            "next_at": stamp(schedules["next_at"]),
            "coming": [_coming_shape(coming, situation.now) for coming in schedules["coming"]],
        },
        "oldest_undecided_seconds": undecided,
        "dead": {"total": situation.dead_letters, "tasks": situation.dead},
        "failing": [{"schedule": name, "failed_in_a_row": number} for name, number in situation.failing],
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
    """Write the situation for people: six lines and what needs them."""
    left = {
        "store": _store_text(situation),
        "leader": _leader_text(situation),
        "workers": workers_text(situation.workers),
        "jobs": _jobs_text(situation),
        "schedules": _schedules_text(situation),
        "last 24 h": _outcomes_text(situation),
    }
    rows = list((left | _late_facts(situation)).items())
    needs = [f"{text}  →  {command}" for text, command in attention(situation)]
    rows += [("attention" if index == 0 else "", need) for index, need in enumerate(needs)]
    out.table((Column("", "quiet"), Column("", wraps=True)), rows)
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


def workers_text(workers: list[Worker]) -> str:
    """Say how many workers there are and how busy they are."""
    if not workers:
        return "none alive"
    draining = sum(worker.draining for worker in workers)
    slots, running = sum(worker.slots for worker in workers), sum(worker.running for worker in workers)
    parts = [f"{len(workers) - draining:,} alive"]
    if draining:
        parts.append(f"{draining:,} draining")
    return " · ".join([*parts, f"{running:,} of {count(slots, 'slot')} busy"])


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
