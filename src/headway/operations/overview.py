"""The situation: who leads, who works, what waits, what is late, and what needs somebody.

Read at one time, for one tenant or for all of them, and shown by `headway status`, `/api/stats` and `/api/alerts`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headway.core.errors import Conflict, NotFound
from headway.core.instants import DAY, HOUR, SECOND, Instant
from headway.core.nodes import Lease, Node
from headway.core.schedule_names import ScheduleRef
from headway.core.schedules import FAILING_FLAGGED
from headway.operations.job_context import alive, pauses
from headway.operations.store_trouble import OK, SHARD_PREFIX
from headway.operations.worker_state import WORKER, Worker, workers_of
from headway.store import Store
from headway.store.facts import Facts
from headway.store.failures import ErrorGroup
from headway.store.metrics import MissedInstants, OpenTransaction
from headway.store.restore_detection import Sign
from headway.wire.shapes import Shape, stamp

LATE: Final = 10 * SECOND  # The budget of promise L1.
LOST_WITHIN: Final = HOUR  # So long a node that ended without a word is told of.
SCHEDULER: Final = "scheduler"
DEAD_COUNTED_MAX: Final = 10_000
DEAD_READ_MAX: Final = 1_000  # Letters whose errors are named: the newest.
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
    failing: list[tuple[ScheduleRef, int]]
    held: list[tuple[ScheduleRef, str]] = field(default_factory=list)
    missed: list[MissedInstants] = field(default_factory=list)
    lost: list[Node] = field(default_factory=list)
    trouble: str = OK
    restored: list[Sign] = field(default_factory=list)
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
    store: Store,
    *,
    now: Instant,
    facts: Facts,
    url: str = "",
    latency_s: float = 0.0,
    tenant: str | None = None,
    trouble: str = OK,
) -> Situation:
    """Read the situation; `trouble` is what keeps the store from taking writes, as far as one has looked."""
    if tenant is None:
        queues, waiting = await queue_shapes(store), await store.statistics.waiting()
    else:
        queues, waiting = await _jobs_of(store, tenant)
    living, schedules = await alive(store), await store.ledger.summary(tenant=tenant)
    heard = await store.nodes.alive(LOST_WITHIN) if tenant is None else []
    return Situation(
        now=now,
        url=url,
        facts=facts,
        latency_s=latency_s,
        leases=[lease for lease, runs in await store.leases.held(SHARD_PREFIX) if runs],
        nodes=living,
        lost=lost_among(heard, living),
        trouble=trouble,
        restored=await store.origin.signs() if tenant is None else [],
        queues=queues,
        waiting=waiting,
        schedules=schedules,
        missed=await store.metrics.missed(DAY, tenant=tenant) if schedules["last_day"].get("missed") else [],
        dead=await _dead(store, tenant),
        failing=await store.ledger.failing(FAILING_FLAGGED, tenant=tenant),
        held=await store.ledger.held(tenant=tenant),
        undelivered=await store.webhooks.failed(DAY, owner=tenant),
        transaction=await store.metrics.oldest_transaction() if tenant is None else None,
        tenant=tenant,
    )


def lost_among(nodes: list[Node], living: list[Node]) -> list[Node]:
    """Return those of the nodes that ended without a word, the latest first; a successor makes up for one.

    A successor has the same name, or does the same work and started since: in a container the name is new each time.
    """
    spare, ids = list(living), {node.id for node in living}
    gone = sorted((node for node in nodes if node.id not in ids), key=lambda node: -node.beat_at)
    lost = []
    for node in gone:
        successor = next((other for other in spare if _succeeds(other, node)), None)
        if successor is None:
            lost.append(node)
        else:
            spare.remove(successor)
    return lost


def _succeeds(node: Node, gone: Node) -> bool:
    return node.started_at >= gone.beat_at and (node.name == gone.name or set(node.roles) >= set(gone.roles))


async def _dead(store: Store, tenant: str | None) -> list[dict[str, Any]]:
    """Count dead letters by task, each with the errors that they ended with."""
    rows = await store.statistics.dead_counts(DEAD_COUNTED_MAX, tenant=tenant)
    groups = await store.failures.groups(tenant=tenant, limit=DEAD_READ_MAX) if rows else []
    for row in rows:
        found = [group for group in groups if group.task == row["task"]]
        row["errors"] = [{"error": group.error, "count": group.jobs} for group in found[:DEAD_SHOWN]]
        row["error"] = _error_words(found, row["letters"])
    return rows


def _error_words(groups: Sequence[ErrorGroup], letters: int) -> str:
    """Name the errors of a task's dead letters, the most frequent first; numbers only where all letters were read."""
    if len(groups) < 2:
        return groups[0].example if groups else ""
    is_all = sum(group.jobs for group in groups) == letters
    named = [f"{group.error} ({group.jobs:,})" if is_all else group.error for group in groups[:DEAD_SHOWN]]
    if len(groups) > DEAD_SHOWN:
        others = len(groups) - DEAD_SHOWN
        named.append(f"{others:,} other {'error' if others == 1 else 'errors'}")
    return f"{', '.join(named[:-1])} and {named[-1]}"


# Queues -----------------------------------------------------------------------------------------------------


async def queue_shapes(store: Store, tenant: str | None = None) -> list[Shape]:
    """Read the queues in which anything waits or runs, and those that are paused; of a tenant where it has jobs."""
    if tenant is not None:
        return (await _jobs_of(store, tenant))[0]
    waiting = {row["name"]: row for row in await store.statistics.depths()}
    running, paused = await store.statistics.running_counts(), await pauses(store)
    return [
        _queue_shape(name, waiting.get(name), running.get(name, 0), paused)
        for name in sorted({*waiting, *running, *paused})
    ]


async def _jobs_of(store: Store, tenant: str) -> tuple[list[Shape], dict[str, int]]:
    """Read what one tenant has waiting and running: by queue, and by status."""
    rows, paused = await store.statistics.live_counts(tenant), await pauses(store, tenant=tenant)
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
    if any(worker.can_run(task, queue) for worker in workers):
        return []
    warnings = []
    if not any(task in worker.tasks for worker in workers):
        warnings.append(f"no live worker knows the task {task!r}")
    if not any(worker.takes(queue) for worker in workers):
        warnings.append(f"no live worker takes from the queue {queue!r}")
    return warnings or [f"no live worker that knows the task {task!r} takes from the queue {queue!r}"]
