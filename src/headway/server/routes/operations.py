"""The routes of queues, batches, limits, tenants, workers, nodes and monitoring.

A caller of one tenant sees queues, limits and statistics of its own jobs only, and neither nodes nor workers. Actions
that affect jobs of all tenants (pausing a queue, putting a limit, draining a worker) need a token for all tenants.
"""

from typing import Final

from headway.operations.batches import Batches
from headway.operations.limits import Limits
from headway.operations.monitoring import Monitoring
from headway.operations.queues import Queues
from headway.operations.tenants import Tenants
from headway.operations.workers import Nodes, Workers
from headway.server.operation_routes import routes_of

ROUTES: Final = (
    *routes_of(Queues, "operations"),
    *routes_of(Batches, "operations"),
    *routes_of(Limits, "operations"),
    *routes_of(Tenants, "operations"),
    *routes_of(Workers, "operations"),
    *routes_of(Nodes, "operations"),
    *routes_of(Monitoring, "operations"),
)
