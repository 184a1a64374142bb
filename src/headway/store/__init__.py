"""The store: the only package that knows SQL. SQLite and PostgreSQL behind one face.

store = await Store.open("postgresql://…", clock)
store.ledger · store.work · store.housekeeping · store.leases · store.nodes     the ports of the loops
store.queue · store.schedules · store.limits · store.bulk · store.erasure       what producers and operators change
store.tenants · store.groups                                                    what they change and read
store.jobs · store.statistics · store.failures · store.feed · store.metrics     what they read
store.limit_reads                                                               what limits count
store.tokens · store.sessions · store.audit_log · store.webhooks                what the server keeps
store.restore_detection                                                         detects a store restored from a backup
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from headway.core.clock import Clock
from headway.core.errors import InvalidConfig
from headway.core.instants import Instant
from headway.core.ports import WakeUps
from headway.store.announcing_driver import Announce, AnnouncingDriver
from headway.store.audit_log import Actor, AuditEntry, StoreAuditLog, add_entries
from headway.store.auditing_driver import AuditingDriver
from headway.store.bulk import StoreBulk
from headway.store.coordination import StoreLeases, StoreNodes
from headway.store.erasure import StoreErasure
from headway.store.failures import StoreFailures
from headway.store.feed import StoreFeed
from headway.store.groups import StoreGroups
from headway.store.housekeeping import StoreHousekeeping
from headway.store.jobs import StoreJobs
from headway.store.ledger import StoreLedger
from headway.store.limit_reads import StoreLimitReads
from headway.store.limits import StoreLimits
from headway.store.metrics import StoreMetrics
from headway.store.migrations import check_schema, migrate
from headway.store.needs import StoreNeeds
from headway.store.queue import StoreQueue
from headway.store.restore_detection import StoreRestoreDetection
from headway.store.schedules import StoreSchedules
from headway.store.sessions import StoreSessions
from headway.store.sqlite import InlineSqliteDriver, SqliteConnection, SqliteDriver, path_of
from headway.store.statistics import StoreStatistics
from headway.store.tenants import StoreTenants
from headway.store.tokens import StoreTokens
from headway.store.transaction import Driver, call
from headway.store.webhooks import StoreWebhooks
from headway.store.work import StoreWork


@dataclass(frozen=True, slots=True)
class Store:
    """One database with everything that Headway keeps in it."""

    driver: Driver
    ledger: StoreLedger
    schedules: StoreSchedules
    queue: StoreQueue
    work: StoreWork
    housekeeping: StoreHousekeeping
    jobs: StoreJobs
    statistics: StoreStatistics
    leases: StoreLeases
    nodes: StoreNodes
    feed: StoreFeed
    tokens: StoreTokens
    sessions: StoreSessions
    audit_log: StoreAuditLog
    webhooks: StoreWebhooks
    metrics: StoreMetrics
    erasure: StoreErasure
    bulk: StoreBulk
    failures: StoreFailures
    restore_detection: StoreRestoreDetection
    limits: StoreLimits
    limit_reads: StoreLimitReads
    tenants: StoreTenants
    needs: StoreNeeds
    groups: StoreGroups

    @classmethod
    def on(cls, driver: Driver, clock: Clock) -> "Store":
        """Wrap a driver."""
        return cls(
            driver,
            StoreLedger(driver, clock),
            StoreSchedules(driver, clock),
            StoreQueue(driver, clock),
            StoreWork(driver),
            StoreHousekeeping(driver, clock),
            StoreJobs(driver),
            StoreStatistics(driver),
            StoreLeases(driver),
            StoreNodes(driver, clock),
            StoreFeed(driver),
            StoreTokens(driver, clock),
            StoreSessions(driver),
            StoreAuditLog(driver),
            StoreWebhooks(driver, clock),
            StoreMetrics(driver),
            StoreErasure(driver),
            StoreBulk(driver, clock),
            StoreFailures(driver),
            StoreRestoreDetection(driver),
            StoreLimits(driver, clock),
            StoreLimitReads(driver),
            StoreTenants(driver),
            StoreNeeds(driver, clock.node),
            StoreGroups(driver, clock),
        )

    @classmethod
    async def open(
        cls, url: str, clock: Clock, *, synchronous: str = "full", checked: bool = True, inline: bool = False
    ) -> "Store":
        """Connect. An embedded store is brought to the present schema at once; a server's must be there already."""
        store = cls.on(open_driver(url, node=clock.node, synchronous=synchronous, inline=inline), clock)
        try:
            if store.driver.dialect_name == "sqlite":
                await migrate(store.driver)
            if checked:
                await check_schema(store.driver)
        except BaseException:
            await store.close()
            raise
        return store

    def announcing(self, announce: Announce, clock: Clock) -> "Store":
        """Return the same store; it calls `announce` after each commit with the jobs that became ready."""
        return Store.on(AnnouncingDriver(self.driver, announce), clock)

    def auditing(self, actor: Actor, entry: AuditEntry | Sequence[AuditEntry], clock: Clock) -> "Store":
        """Return the same store for one change: it adds the entry, or one per tenant, to the audit log with it."""
        entries = (entry,) if isinstance(entry, AuditEntry) else entry
        return Store.on(AuditingDriver(self.driver, partial(add_entries, actor, entries)), clock)

    async def watch(self, hear: Callable[[str], None], *, quiet_s: float = 0.0) -> WakeUps:
        """Start to hear of other processes' commits; not more often than so, where that saves something."""
        return await self.driver.watch(hear, quiet_s=quiet_s)

    async def now(self) -> Instant:
        """Return the database's time; a process's estimate of it lags behind by as much as an answer takes."""
        now: Instant = (await self.driver.fetch(call("time")))[0]["now"]
        return now

    async def close(self) -> None:
        """Give back every connection."""
        await self.driver.close()


def open_driver(url: str, *, node: str = "", synchronous: str = "full", inline: bool = False) -> Driver:
    """Choose the driver by the beginning of the URL; `inline` is for SQLite in a thread that may block."""
    if url.startswith("sqlite://") and inline:
        return InlineSqliteDriver(SqliteConnection(path_of(url), synchronous=synchronous))
    if url.startswith("sqlite://"):
        return SqliteDriver(path_of(url), synchronous=synchronous)
    try:
        from headway.store.postgres import PostgresDriver
    except ImportError:
        raise InvalidConfig("PostgreSQL needs a driver: pip install 'headway[postgres]'") from None
    return PostgresDriver(url, node=node)
