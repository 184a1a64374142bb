"""The services that the routes of one process share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from headway.core.access import BrowserSessions
from headway.core.clock import Loop
from headway.core.feed import ChangeFeed
from headway.core.ports import LiveView, WakeUps
from headway.operations.caller import Caller, Principal
from headway.operations.health import Health
from headway.operations.job_reader import EncodedJobs, JobReader, NodeNames
from headway.operations.metrics import Metrics
from headway.operations.task_catalogue import TaskCatalogue
from headway.server.auth import Authenticator
from headway.server.fanout import Fanout
from headway.server.offload import ThreadOffload
from headway.server.quotas import TenantQuotas
from headway.server.web import Route
from headway.server.webhook_sender import Deliverer


@dataclass(slots=True, kw_only=True)
class Services:
    """Everything that a request may need. `wiring` builds it from a store; its loops run while the API does."""

    caller_of: Callable[[Principal, str], Caller]
    watch: Callable[[Callable[[str], None]], Awaitable[WakeUps]]
    feed: ChangeFeed
    sessions: BrowserSessions
    fanout: Fanout
    auth: Authenticator
    quotas: TenantQuotas
    offload: ThreadOffload
    tasks: TaskCatalogue
    reader: JobReader
    names: NodeNames
    encoded: EncodedJobs
    health: Health
    metrics: Metrics
    deliverer: Deliverer
    routes: tuple[Route, ...]
    live: LiveView | None = None
    is_closing: bool = False
    loops: list[Loop] = field(default_factory=list)
