"""All operations, on a store."""

from headway.core.clock import Clock
from headway.core.instants import Instant
from headway.operations.access import AuditLog, Identity, Tokens
from headway.operations.batches import Batches
from headway.operations.caller import Caller
from headway.operations.dead_letters import DeadLetters, FailedJobs
from headway.operations.jobs import Jobs
from headway.operations.ledger_audit import Ledger
from headway.operations.limits import Limits
from headway.operations.monitoring import Monitoring
from headway.operations.purge import Purge
from headway.operations.queues import Queues
from headway.operations.schedules import Schedules
from headway.operations.tenants import Tenants
from headway.operations.webhooks import Deliveries, Webhooks
from headway.operations.workers import Nodes, Workers


class Operations:
    """All operations, for one caller. `RemoteOperations` has the same ones over HTTP."""

    clock: Clock
    jobs: Jobs
    queues: Queues
    batches: Batches
    limits: Limits
    tenants: Tenants
    workers: Workers
    nodes: Nodes
    monitoring: Monitoring
    identity: Identity
    tokens: Tokens
    audit_log: AuditLog
    webhooks: Webhooks
    deliveries: Deliveries
    dead_letters: DeadLetters
    failures: FailedJobs
    purge: Purge
    schedules: Schedules
    ledger: Ledger

    @property
    def now(self) -> Instant:
        """The store's time, or the server's."""
        return self.clock.now()


class LocalOperations(Operations):
    """Operations on a store."""

    def __init__(self, caller: Caller) -> None:
        self.clock = caller.clock
        self.jobs = Jobs(caller)
        self.queues = Queues(caller)
        self.batches = Batches(caller)
        self.limits = Limits(caller)
        self.tenants = Tenants(caller)
        self.workers = Workers(caller)
        self.nodes = Nodes(caller)
        self.monitoring = Monitoring(caller)
        self.identity = Identity(caller)
        self.tokens = Tokens(caller)
        self.audit_log = AuditLog(caller)
        self.webhooks = Webhooks(caller)
        self.deliveries = Deliveries(caller)
        self.dead_letters = DeadLetters(caller)
        self.failures = FailedJobs(caller)
        self.purge = Purge(caller)
        self.schedules = Schedules(caller)
        self.ledger = Ledger(caller)
