"""Read an overview: leaders, nodes, queues, schedules, and what needs an operator.

It is read at one time, for one tenant or for all of them. `headway status`, `/api/stats` and `/api/alerts` show it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headway.core.failures import ErrorGroup
from headway.core.instants import DAY, HOUR, SECOND, Instant
from headway.core.nodes import Lease, Node
from headway.core.schedule_names import ScheduleRef
from headway.core.schedules import FAILING_FLAGGED
from headway.operations.job_context import alive
from headway.operations.limit_state import full_limits, late_tenants
from headway.operations.queues import read_queues, read_tenant_jobs
from headway.operations.store_trouble import OK, SHARD_PREFIX
from headway.operations.worker_state import Worker, workers_of
from headway.store import Store
from headway.store.facts import Facts
from headway.store.metrics import MissedInstants, OpenTransaction
from headway.store.restore_detection import Sign
from headway.store.tenants import Objective
from headway.wire.limits import Limit
from headway.wire.overview import DeadTask, ErrorCount
from headway.wire.queues import Queue

LATE: Final = 10 * SECOND  # The budget of promise L1.
LOST_WITHIN: Final = HOUR  # How long a node that ended without signing off is reported.
SCHEDULER: Final = "scheduler"
DEAD_COUNTED_MAX: Final = 10_000
DEAD_READ_MAX: Final = 1_000  # The newest letters, whose errors are named.
DEAD_SHOWN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Everything that status shows, read at one time. For one tenant it contains only that tenant's data."""

    now: Instant
    facts: Facts
    latency_s: float
    leases: list[Lease]
    nodes: list[Node]
    queues: list[Queue]
    waiting: dict[str, int]
    schedules: dict[str, Any]
    dead: list[DeadTask]
    failing: list[tuple[ScheduleRef, int]]
    held: list[tuple[ScheduleRef, str]] = field(default_factory=list)
    missed: list[MissedInstants] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    late_tenants: list[Objective] = field(default_factory=list)
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
        """The number of dead letters."""
        return sum(task.letters for task in self.dead)

    @property
    def schedulers(self) -> list[Node]:
        """The nodes that decide schedules."""
        return [node for node in self.nodes if SCHEDULER in node.roles]

    @property
    def leader(self) -> Lease | None:
        """The leader; with several shards, the leader of the first one."""
        return self.leases[0] if self.leases else None

    @property
    def pending(self) -> int:
        """The number of pending jobs."""
        return sum(queue.pending for queue in self.queues)


async def read_overview(
    store: Store,
    *,
    now: Instant,
    facts: Facts,
    latency_s: float = 0.0,
    tenant: str | None = None,
    trouble: str = OK,
) -> Overview:
    """Read an overview; `trouble` is what keeps the store from accepting writes, if that was probed."""
    if tenant is None:
        queues, waiting = await read_queues(store), await store.statistics.waiting()
    else:
        queues, waiting = await read_tenant_jobs(store, tenant)
    living, schedules = await alive(store), await store.ledger.summary(tenant=tenant)
    heard = await store.nodes.alive(LOST_WITHIN) if tenant is None else []
    return Overview(
        now=now,
        facts=facts,
        latency_s=latency_s,
        leases=[lease for lease, runs in await store.leases.held(SHARD_PREFIX) if runs],
        nodes=living,
        lost=lost_among(heard, living),
        trouble=trouble,
        restored=await store.restore_detection.signs() if tenant is None else [],
        queues=queues,
        waiting=waiting,
        schedules=schedules,
        missed=await store.metrics.missed(DAY, tenant=tenant) if schedules["last_day"].get("missed") else [],
        dead=await _dead(store, tenant),
        failing=await store.ledger.failing(FAILING_FLAGGED, tenant=tenant),
        held=await store.ledger.held(tenant=tenant),
        limits=await full_limits(store, now, tenant),
        late_tenants=await late_tenants(store, tenant),
        undelivered=await store.webhooks.failed(DAY, owner=tenant),
        transaction=await store.metrics.oldest_transaction() if tenant is None else None,
        tenant=tenant,
    )


def lost_among(nodes: list[Node], living: list[Node]) -> list[Node]:
    """Return the nodes that ended without signing off and have no successor, the latest first.

    A successor has the same name, or has the same roles and started later: containers get a new name each time.
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


async def _dead(store: Store, tenant: str | None) -> list[DeadTask]:
    """Count dead letters by task, each with its errors."""
    rows = await store.statistics.dead_counts(DEAD_COUNTED_MAX, tenant=tenant)
    groups = await store.failures.groups(tenant=tenant, limit=DEAD_READ_MAX) if rows else []
    return [_dead_task(row, [group for group in groups if group.task == row["task"]]) for row in rows]


def _dead_task(row: Mapping[str, Any], groups: Sequence[ErrorGroup]) -> DeadTask:
    return DeadTask(
        task=row["task"],
        letters=row["letters"],
        newest=row["newest"],
        errors=[ErrorCount(group.error, group.jobs) for group in groups[:DEAD_SHOWN]],
        error=_error_words(groups, row["letters"]),
    )


def _error_words(groups: Sequence[ErrorGroup], letters: int) -> str:
    """Name the errors of a task's dead letters, the most frequent first; with numbers only if all letters were read."""
    if len(groups) < 2:
        return groups[0].example if groups else ""
    is_all = sum(group.jobs for group in groups) == letters
    named = [f"{group.error} ({group.jobs:,})" if is_all else group.error for group in groups[:DEAD_SHOWN]]
    if len(groups) > DEAD_SHOWN:
        others = len(groups) - DEAD_SHOWN
        named.append(f"{others:,} other {'error' if others == 1 else 'errors'}")
    return f"{', '.join(named[:-1])} and {named[-1]}"
