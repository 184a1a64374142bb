"""Wire the roles of a process to a store: scheduler, worker, API.

The clock must always be the one that the store was opened with.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from headway.coordination.admission import AdmittedLeases
from headway.core.clock import Clock
from headway.core.needs import Offer
from headway.core.ports import LiveView, WakeUps
from headway.core.settings import Settings
from headway.queue.announcer import Dispatch
from headway.store import Store
from headway.tasks.task import Task
from headway.wiring.declarations import DeclarationSync
from headway.wiring.engines import admission_of, dispatched, live_of, live_view_of
from headway.wiring.node import EngineNode, NodePorts
from headway.worker.child_pool_port import ChildPoolPort
from headway.worker.supervisor import Supervisor

if TYPE_CHECKING:
    from headway.server.api import Api


def new_node_id(clock: Clock) -> str:
    """Make the id of a process incarnation."""
    return clock.new_id("node")


def world_of(store: Store, admission: AdmittedLeases | None = None, dispatch: Dispatch | None = None) -> NodePorts:
    """Collect what a node needs from a store and from the servers beside it."""

    async def watch(hear: Callable[[str], None]) -> WakeUps:
        if admission is not None:
            await admission.watch(lambda: hear("leases"))
        return await store.watch(hear)

    return NodePorts(
        ledger=store.ledger,
        housekeeping=store.housekeeping,
        leases=store.leases if admission is None else admission,
        nodes=store.nodes,
        watch=watch,
        audit_log=store.audit_log,
        lanes=store.limits,
        needs=store.needs,
        groups=store.groups,
        admission=admission,
        dispatch=dispatch,
    )


def scheduler_node(
    store: Store, settings: Settings, clock: Clock, version: str = "", *, declared: DeclarationSync | None = None
) -> EngineNode:
    """Wire the scheduler role to a store."""
    return EngineNode(_world(store, settings, clock)[1], settings, clock, version=version, declared=declared)


def worker_node(
    store: Store,
    settings: Settings,
    clock: Clock,
    child_pool: ChildPoolPort,
    version: str = "",
    *,
    schedules: bool,
    declared: DeclarationSync | None = None,
) -> EngineNode:
    """Wire the worker role, and the scheduler's too if asked for, to a store and to the children that run the jobs."""
    store, world = _world(store, settings, clock)
    supervisor = Supervisor(
        store.work,
        child_pool,
        clock=clock,
        lease=settings.worker_lease,
        poll=settings.poll,
        queues=settings.queues,
        live=live_of(settings, clock),
        hints=world.dispatch,
    )
    supervisor.offer(Offer(settings.offer or {}, settings.labels or {}, settings.app_version))
    return EngineNode(
        world, settings, clock, version=version, schedules=schedules, supervisor=supervisor, declared=declared
    )


def api_node(store: Store, settings: Settings, clock: Clock, version: str = "") -> EngineNode:
    """Wire a node that neither schedules nor works: it sends heartbeats and does its share of the housekeeping."""
    return EngineNode(_world(store, settings, clock)[1], settings, clock, version=version, schedules=False, is_api=True)


def _world(store: Store, settings: Settings, clock: Clock) -> tuple[Store, NodePorts]:
    store, dispatch = dispatched(store, settings, clock)
    return store, world_of(store, admission_of(store, settings, clock), dispatch)


def api_of(
    store: Store,
    settings: Settings,
    clock: Clock,
    tasks: "Mapping[str, Task[Any, Any]] | None" = None,
    node: EngineNode | None = None,
) -> "Api":
    """Make the API of an open store; its health checks cover the loops of the node that it is a part of."""
    from headway.server.auth import is_loopback  # Imported here, since a process that only enqueues needs no HTTP.
    from headway.wiring.api import new_api

    if node is not None and node.dispatch is not None:
        store = store.announcing(node.dispatch.announcer.announce, clock)

    async def opened() -> Store:
        return store

    def open_view() -> LiveView | None:
        view = live_view_of(settings, clock)
        if view is not None and node is not None and node.live_state() is None:
            node.live_state = lambda: {"name": view.name, "trouble": view.trouble}
        return view

    return new_api(
        opened,
        settings,
        clock,
        tasks=tasks,
        is_loopback=is_loopback(settings.host),
        loops=() if node is None else node.loops,
        live=open_view,
    )


def mounted_api(
    open_store: Callable[[], Awaitable[Store]], settings: Settings, clock: Clock, tasks: Mapping[str, Task[Any, Any]]
) -> "Api":
    """Make the API of an app, to mount into another server: it requires a token."""
    from headway.wiring.api import new_api

    own = Clock(node=new_node_id(clock))
    live = partial(live_view_of, settings, own)
    return new_api(open_store, settings, own, tasks=tasks, is_loopback=False, live=live)
