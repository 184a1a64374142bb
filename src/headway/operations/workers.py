"""Workers and nodes: list the live processes, drain a worker."""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from headway.core import nodes as core
from headway.core.errors import Conflict, NotFound
from headway.core.instants import isoformat
from headway.core.needs import numbers
from headway.operations.job_context import alive, known
from headway.operations.verbs import OperationGroup, sliced, verb
from headway.operations.worker_state import WORKER, workers_of
from headway.store.audit_log import AuditEntry
from headway.wire.base import PAGE_DEFAULT, Cursor, Limit, Page
from headway.wire.nodes import DrainingWorker, Node, Worker, node_of

Gone = Annotated[bool, msgspec.Meta(description="1 also lists nodes that died without signing off within the last day")]

NAMES_SHOWN: Final = 5


class Workers(OperationGroup):
    """Workers: the processes that run jobs."""

    @verb("GET /api/workers", id="list_workers", role="viewer")
    async def list(self, *, limit: Limit = PAGE_DEFAULT, cursor: Cursor | None = None) -> Page[Worker]:
        """List the live workers.

        Needs a token for all tenants.
        """
        self.caller.require_all_tenants()
        found = workers_among(await alive(self.caller.store))
        return sliced(found, limit, cursor, lambda worker: worker.id)

    @verb("POST /api/workers/{id}/drain", id="drain_worker", role="operator", status=202)
    async def drain(self, id: str) -> DrainingWorker:
        """Drain a worker: it takes no more jobs, finishes or hands back what it runs, and leaves.

        Name it by its id, or by its name where only one worker has it. Needs a token for all tenants.
        """
        self.caller.require_all_tenants()
        node = find_worker(await alive(self.caller.store), id)
        what = {"name": node.name, "before": node.asked, "after": "drain"}
        entry = AuditEntry("worker.drain", node.id, None, what)
        if not await self.caller.acting(entry).nodes.ask(node.id, "drain"):
            raise NotFound(f"{node.name!r} has just left")
        return DrainingWorker(node.id, node.name, draining=True)


class Nodes(OperationGroup):
    """Nodes: the processes of Headway, in all roles."""

    @verb("GET /api/nodes", id="list_nodes", role="viewer")
    async def list(
        self, *, limit: Limit = PAGE_DEFAULT, cursor: Cursor | None = None, gone: Gone = False
    ) -> Page[Node]:
        """List the live processes: schedulers, workers, APIs.

        Needs a token for all tenants.
        """
        self.caller.require_all_tenants()
        nodes = await known(self.caller.store) if gone else await alive(self.caller.store)
        return sliced([node_of(node) for node in nodes], limit, cursor, lambda node: node.id)


def workers_among(nodes: Sequence[core.Node]) -> list[Worker]:
    """Return the workers among the nodes."""
    states = {worker.id: worker for worker in workers_of(nodes)}
    return [
        Worker(
            id=node.id,
            name=node.name,
            version=node.version,
            started_at=isoformat(node.started_at),
            beat_at=isoformat(node.beat_at),
            draining=state.draining,
            slots=state.slots,
            running=state.running,
            children=state.children,
            queues=list(state.queues),
            tasks=list(state.tasks),
            offer=numbers(state.offer.amounts),
            offer_free=dict(state.offer_free),
            labels=dict(state.offer.labels),
            app_version=state.offer.version,
        )
        for node in nodes
        if (state := states.get(node.id)) is not None
    ]


def find_worker(nodes: Sequence[core.Node], asked: str) -> core.Node:
    """Find a worker by its name, its id or a prefix of its id."""
    workers = [node for node in nodes if WORKER in node.roles]
    exact = [node for node in workers if node.id == asked]
    named = exact or [node for node in workers if node.name == asked]
    found = named or [node for node in workers if len(asked) >= 4 and node.id.startswith(asked)]
    if not found:
        names = ", ".join(node.name for node in workers[:NAMES_SHOWN]) or "none"
        raise NotFound(f"no live worker is called {asked[:60]!r}; alive: {names}")
    if len(found) > 1:
        raise Conflict(f"several workers are called {asked[:60]!r}; use an id: {', '.join(n.id for n in found[:5])}")
    return found[0]
