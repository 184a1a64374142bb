"""The situation: who leads, who works, what waits, what is late, and what needs somebody.

Read at one time, for one tenant or for all of them, and shown by `headway status`, `/api/stats` and `/api/alerts`.
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headway.errors import Conflict, NotFound
from headway.instants import DAY, SECOND, Instant, span
from headway.model import FAILING_FLAGGED, Lease, Node
from headway.settings import mask_url
from headway.shapes import Shape, stamp
from headway.status.around import alive, pauses
from headway.status.engines import PARTS, engines_of
from headway.store import Store
from headway.store.facts import Facts
from headway.store.measures import OpenTransaction
from headway.why import WORKER, Worker, error_line, workers_of

LATE: Final = 10 * SECOND  # The budget of promise L1.
STANDSTILL_S: Final = 30.0
TRANSACTION_S_MAX: Final = 120.0
SETTLED_AFTER: Final = 5 * SECOND  # A node says first that it lives, and begins to listen then.
SCHEDULER: Final = "scheduler"
SHARD_PREFIX: Final = "scheduler/"
DEAD_COUNTED_MAX: Final = 10_000
DEAD_SHOWN: Final = 3
NAMES_SHOWN: Final = 5
RUNNING: Final = "RUNNING"
PENDING: Final = "PENDING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything that status knows, read at one time. Of one tenant: only what is that tenant's."""

    now: Instant
    url: str
    facts: Facts
    latency_s: float
    leases: list[Lease]
    nodes: list[Node]
    queues: list[Shape]
    waiting: dict[str, int]
    schedules: dict[str, Any]
    dead: list[dict[str, Any]]
    failing: list[tuple[str, int]]
    held: list[tuple[str, str]] = field(default_factory=list)
    undelivered: int = 0
    transaction: OpenTransaction | None = None
    tenant: str | None = None

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

    @property
    def pending(self) -> int:
        """How many jobs are ready and wait for a worker."""
        return sum(queue["pending"] for queue in self.queues)


async def look(
    store: Store, *, now: Instant, facts: Facts, url: str = "", latency_s: float = 0.0, tenant: str | None = None
) -> Situation:
    """Read the situation."""
    if tenant is None:
        queues, waiting = await queue_shapes(store), await store.queue.waiting()
    else:
        queues, waiting = await _jobs_of(store, tenant)
    return Situation(
        now=now,
        url=url,
        facts=facts,
        latency_s=latency_s,
        leases=[lease for lease, runs in await store.leases.held(SHARD_PREFIX) if runs],
        nodes=await alive(store),
        queues=queues,
        waiting=waiting,
        schedules=await store.ledger.summary(tenant=tenant),
        dead=await _dead(store, tenant),
        failing=await store.ledger.failing(FAILING_FLAGGED, tenant=tenant),
        held=await store.ledger.held(tenant=tenant),
        undelivered=await store.webhooks.failed(DAY, owner=tenant),
        transaction=await store.measures.oldest_transaction() if tenant is None else None,
        tenant=tenant,
    )


async def _dead(store: Store, tenant: str | None) -> list[dict[str, Any]]:
    """Count dead letters by task; the first few tasks with what went wrong last."""
    rows = await store.queue.dead_counts(DEAD_COUNTED_MAX, tenant=tenant)
    for row in rows[:DEAD_SHOWN]:
        found = await store.queue.dead(task=row["task"], tenant=tenant, limit=1)
        row["error"] = (error_line(found[0].error) or found[0].reason) if found else ""
    return rows


# Queues -----------------------------------------------------------------------------------------------------


async def queue_shapes(store: Store, tenant: str | None = None) -> list[Shape]:
    """Read the queues in which anything waits or runs, and those that are paused; of a tenant where it has jobs."""
    if tenant is not None:
        return (await _jobs_of(store, tenant))[0]
    waiting = {row["name"]: row for row in await store.queue.depths()}
    running, paused = await store.queue.running_counts(), await pauses(store)
    return [
        _queue_shape(name, waiting.get(name), running.get(name, 0), paused)
        for name in sorted({*waiting, *running, *paused})
    ]


async def _jobs_of(store: Store, tenant: str) -> tuple[list[Shape], dict[str, int]]:
    """Read what one tenant has waiting and running: by queue, and by status."""
    rows, paused = await store.queue.live_counts(tenant), await pauses(store)
    waiting = {row["name"]: {**row, "pending": row["jobs"]} for row in rows if row["status"] == PENDING}
    running = {row["name"]: row["jobs"] for row in rows if row["status"] == RUNNING}
    statuses: dict[str, int] = {}
    for row in rows:
        if row["status"] != PENDING:
            statuses[row["status"]] = statuses.get(row["status"], 0) + row["jobs"]
    names = sorted({row["name"] for row in rows})
    return [_queue_shape(name, waiting.get(name), running.get(name, 0), paused) for name in names], statuses


def _queue_shape(name: str, waiting: Mapping[str, Any] | None, running: int, paused: Mapping[str, Any]) -> Shape:
    pause = paused.get(name)
    return {
        "name": name,
        "pending": waiting["pending"] if waiting is not None else 0,
        "oldest_age_seconds": waiting["oldest_age_seconds"] if waiting is not None else 0.0,
        "running": running,
        "paused": pause is not None,
        "paused_at": None if pause is None else stamp(pause.since),
        "paused_by": None if pause is None else pause.author,
        "reason": None if pause is None else pause.reason,
    }


async def queue_shape(store: Store, queue: str) -> Shape:
    """Read one queue; one that has nothing is empty and open."""
    found = (shape for shape in await queue_shapes(store) if shape["name"] == queue)
    return next(found, _queue_shape(queue, None, 0, {}))


# Nodes ------------------------------------------------------------------------------------------------------


def node_shape(node: Node) -> Shape:
    """Write a process as JSON."""
    return {
        "id": node.id,
        "name": node.name,
        "roles": list(node.roles),
        "version": node.version,
        "started_at": stamp(node.started_at),
        "beat_at": stamp(node.beat_at),
        "state": node.state,
    }


def worker_pairs(nodes: list[Node]) -> list[tuple[Node, Worker]]:
    """Return the workers among the nodes, each with its node."""
    found = {worker.id: worker for worker in workers_of(nodes)}
    return [(node, found[node.id]) for node in nodes if node.id in found]


def worker_shapes(nodes: list[Node]) -> list[Shape]:
    """Write the workers among the nodes as JSON."""
    return [
        {
            "id": node.id,
            "name": node.name,
            "version": node.version,
            "started_at": stamp(node.started_at),
            "beat_at": stamp(node.beat_at),
            "draining": worker.draining,
            "slots": worker.slots,
            "running": worker.running,
            "children": worker.children,
            "queues": list(worker.queues),
            "tasks": list(worker.tasks),
        }
        for node, worker in worker_pairs(nodes)
    ]


def find_worker(nodes: list[Node], asked: str) -> Node:
    """Find the one worker that is meant, by its name, its id or the beginning of its id."""
    workers = [node for node in nodes if WORKER in node.roles]
    exact = [node for node in workers if node.id == asked]
    named = exact or [node for node in workers if node.name == asked]
    found = named or [node for node in workers if len(asked) >= 4 and node.id.startswith(asked)]
    if not found:
        names = ", ".join(node.name for node in workers[:NAMES_SHOWN]) or "none"
        raise NotFound(f"no live worker is called {asked[:60]!r}; alive: {names}")
    if len(found) > 1:
        raise Conflict(f"several workers are called {asked[:60]!r}; say which id: {', '.join(n.id for n in found[:5])}")
    return found[0]


def unserved(task: str, queue: str, nodes: list[Node]) -> list[str]:
    """Say what keeps jobs of this task from running as things are; a worker on the way may change it."""
    workers = [worker for worker in workers_of(nodes) if not worker.draining]
    if not workers:
        return ["no worker is alive"]
    warnings = []
    if not any(task in worker.tasks for worker in workers):
        warnings.append(f"no live worker knows the task {task!r}")
    if not any(worker.takes(queue) for worker in workers):
        warnings.append(f"no live worker takes from the queue {queue!r}")
    return warnings


# What is wrong ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something that needs somebody: a code for programs, words that stand alone, and the command that leads on."""

    code: str
    words: str
    cure: str
    target: str | None = None

    def to_dict(self) -> Shape:
        """Write the JSON form."""
        return {"code": self.code, "target": self.target, "message": self.words, "cure": self.cure}


def alerts(situation: Situation) -> Iterator[Alert]:
    """Say everything that needs somebody now, the gravest first."""
    for fault in faults(situation):
        if fault.code != "schedules_held":  # Each of them is named below.
            yield fault
    for name, reason in situation.held:
        yield Alert(
            code="schedule_held",
            words=f"schedule {name} cannot be planned: {reason}",
            cure=f"headway schedules show {shlex.quote(name)}",
            target=name,
        )
    for name, number in situation.failing:
        yield Alert(
            code="schedule_failing",
            words=f"schedule {name}: its last {number} jobs failed",
            cure=f"headway jobs list --schedule {shlex.quote(name)}",
            target=name,
        )
    for row in situation.dead:
        error = f": {row['error']}" if row.get("error") else ""
        yield Alert(
            code="dead_letters",
            words=f"{_count(row['letters'], 'dead letter')} of {row['task']}{error}",
            cure=f"headway dead list --task {shlex.quote(row['task'])}",
            target=row["task"],
        )
    yield from _undelivered(situation.undelivered)


def _undelivered(number: int) -> Iterator[Alert]:
    if number:
        words = f"{_count(number, 'webhook')} could not be delivered in the last day"
        yield Alert(code="undelivered", words=words, cure="headway webhooks deliveries --status FAILED")


def faults(situation: Situation) -> Iterator[Alert]:
    """Say what is not as it should be with the machinery, each in a sentence that stands alone."""
    if not situation.schedulers:
        yield Alert(code="no_scheduler", words="no scheduler is alive", cure="headway scheduler")
    elif not situation.leases and any(node.state.get("mode") == "leader" for node in situation.schedulers):
        yield Alert(code="no_leader", words="schedulers are alive, but none of them leads", cure="headway doctor")
    else:
        yield from _shard_faults(situation)
    undecided = situation.schedules["oldest_undecided_seconds"]
    if undecided > LATE / SECOND:
        words = f"the oldest undecided instant is {span(round(undecided) * SECOND)} old"
        yield Alert(code="undecided", words=words, cure="headway status")
    if held := situation.schedules["attention"]:
        words = f"{_count(held, 'schedule')} cannot be planned"
        yield Alert(code="schedules_held", words=words, cure="headway schedules list")
    yield from _queue_faults(situation)
    if situation.tenant is None:
        yield from _store_faults(situation.transaction)
        yield from _engine_faults(situation.nodes)
        for node in situation.nodes:
            yield from _node_faults(node, situation.facts.kind)


def _shard_faults(situation: Situation) -> Iterator[Alert]:
    """A shard that nobody leads is a part of the schedules that nobody decides."""
    leaders = [node.state for node in situation.schedulers if node.state.get("mode") == "leader"]
    numbers = sorted({state["shards"] for state in leaders if "shards" in state})
    if len(numbers) > 1:
        words = f"schedulers do not agree on the number of shards: {', '.join(map(str, numbers))}"
        yield Alert(code="shards_differ", words=words, cure="set HEADWAY_SCHEDULER_SHARDS to one number on all nodes")
    led = {lease.name for lease in situation.leases}
    idle = [shard for shard in range(max(numbers, default=0)) if f"{SHARD_PREFIX}{shard}" not in led]
    if idle:
        words = f"{len(idle)} of {max(numbers)} shards of the schedules have no leader"
        yield Alert(code="shards_without_leader", words=words, cure="headway doctor")


def _queue_faults(situation: Situation) -> Iterator[Alert]:
    pending, workers = situation.pending, situation.workers
    if pending and not workers:
        words = f"no worker is alive, and {_jobs_wait(pending)}"
        yield Alert(code="no_worker", words=words, cure="headway worker --app MODULE:APP")
    for queue in situation.queues:
        name, waiting = queue["name"], queue["pending"]
        if queue["paused"] and waiting:
            yield Alert(
                code="queue_paused",
                words=f"queue {name} is paused, and {_jobs_wait(waiting)} in it",
                cure=f"headway queues resume {shlex.quote(name)}",
                target=name,
            )
        elif waiting and workers and not any(worker.takes(name) for worker in workers):
            yield Alert(
                code="queue_without_worker",
                words=f"no live worker takes from queue {name}, and {_jobs_wait(waiting)} in it",
                cure=f"headway worker --app MODULE:APP --queues {shlex.quote(name)}",
                target=name,
            )


def _store_faults(transaction: OpenTransaction | None) -> Iterator[Alert]:
    if transaction is not None and transaction.age_s >= TRANSACTION_S_MAX:
        age = span(round(transaction.age_s) * SECOND)
        yield Alert(
            code="long_transaction",
            words=f"a transaction has been open for {age} ({transaction.who}): dead rows pile up, and claims slow down",
            cure="end it, or set idle_in_transaction_session_timeout",
        )


def _engine_faults(nodes: list[Node]) -> Iterator[Alert]:
    for engine in engines_of(nodes):
        if engine.troubles:
            names = ", ".join(name for name, _ in engine.troubles[:NAMES_SHOWN])
            more = len(engine.troubles) - NAMES_SHOWN
            some = names if more <= 0 else f"{names} and {more} more"
            what = f"{engine.name} {PARTS[engine.part][0]}does not answer"
            words = f"{what} {some} ({engine.troubles[0][1]}); {engine.meanwhile}"
            yield Alert(code="engine_away", words=words, cure="headway doctor", target=engine.name)


def _node_faults(node: Node, kind: str) -> Iterator[Alert]:
    is_settled = node.beat_at - node.started_at >= SETTLED_AFTER
    if kind == "postgresql" and is_settled and node.state.get("wake_ups") == "poll":
        words = f"{node.name} polls: notifications do not reach it"
        yield Alert(code="polling", words=words, cure="headway doctor", target=node.name)
    for loop, idle_s in node.state.get("loops", {}).items():
        if idle_s > STANDSTILL_S:
            words = f"the loop {loop} of {node.name} has stood still for {span(round(idle_s) * SECOND)}"
            yield Alert(code="standstill", words=words, cure="headway doctor", target=node.name)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _jobs_wait(number: int) -> str:
    return f"{_count(number, 'job')} {'waits' if number == 1 else 'wait'}"


# As JSON ----------------------------------------------------------------------------------------------------


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
        "failing": [{"schedule": name, "failed_in_a_row": number} for name, number in situation.failing],
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
        "decided_through": stamp(coming["decided_through"]),
        "next_at": stamp(coming["next_at"]),
        "undecided_seconds": max(0, now - coming["next_at"]) / SECOND,
    }


def _lease_shape(lease: Lease) -> Shape:
    return {"name": lease.holder_name, "id": lease.holder, "token": lease.token, "since": stamp(lease.since)}
