"""Workers and nodes: which processes are alive, and drain a worker."""

from typing import Annotated

import msgspec

from headway.core.errors import NotFound
from headway.operations import audit_log
from headway.operations.job_context import alive, known
from headway.operations.overview import find_worker, node_shape, worker_shapes
from headway.operations.verbs import Group, sliced, verb
from headway.wire.base import PAGE_DEFAULT, Cursor, Limit, Page
from headway.wire.nodes import DrainingWorker, Node, Worker

Gone = Annotated[bool, msgspec.Meta(description="1 also lists nodes that died without a word within the last day")]


class Workers(Group):
    """Workers: the processes that run jobs."""

    @verb("GET /api/workers", id="list_workers", role="viewer")
    async def list(self, *, limit: Limit = PAGE_DEFAULT, cursor: Cursor | None = None) -> Page[Worker]:
        """List the workers that are alive.

        Needs a token for all tenants.
        """
        self.caller.require_all_tenants()
        found = [Worker(**shape) for shape in worker_shapes(await alive(self.caller.store))]
        return sliced(found, limit, cursor, lambda worker: worker.id)

    @verb("POST /api/workers/{id}/drain", id="drain_worker", role="operator", status=202)
    async def drain(self, id: str) -> DrainingWorker:
        """Drain a worker: it takes no more jobs, finishes or hands back what it runs, and leaves.

        Name it by its id, or by its name where only one worker has it. Needs a token for all tenants.
        """
        self.caller.require_all_tenants()
        node = find_worker(await alive(self.caller.store), id)
        if not await self.caller.acting(audit_log.drain(node)).nodes.ask(node.id, "drain"):
            raise NotFound(f"{node.name!r} has just left")
        return DrainingWorker(node.id, node.name, draining=True)


class Nodes(Group):
    """Nodes: the processes of Headway, whatever they do."""

    @verb("GET /api/nodes", id="list_nodes", role="viewer")
    async def list(
        self, *, limit: Limit = PAGE_DEFAULT, cursor: Cursor | None = None, gone: Gone = False
    ) -> Page[Node]:
        """List the processes that are alive: schedulers, workers, APIs.

        Needs a token for all tenants.
        """
        self.caller.require_all_tenants()
        nodes = await known(self.caller.store) if gone else await alive(self.caller.store)
        return sliced([Node(**node_shape(node)) for node in nodes], limit, cursor, lambda node: node.id)
