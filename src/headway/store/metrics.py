"""Health and metrics of the whole store: all tenants, all nodes. Every count is bounded."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

import msgspec

from headway.core.instants import SECOND, Duration, Instant
from headway.core.json_values import JsonObject
from headway.core.nodes import Lease, Node
from headway.core.schedule_names import schedule_label, schedule_name
from headway.core.tenants import DEFAULT_TENANT
from headway.store.coordination import NODES_MAX, TALLY_PREFIX, held_in, nodes_in, prefixed, tally_in
from headway.store.transaction import Driver, Transaction, call

COUNTED_MAX: Final = 10_000
QUEUES_MAX: Final = 1_000
LEASES_MAX: Final = 1_000
TOUCHED: Final = (
    "touch_jobs",
    "touch_attempts",
    "touch_schedules",
    "touch_occurrences",
    "touch_leases",
    "touch_nodes",
)
LANES_MAX: Final = 5_000  # Priorities of all queues together.


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveNode:
    """Roles and state of a live node."""

    roles: tuple[str, ...]
    state: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCounters:
    """Totals of the counters of all nodes, past ones included, and the live nodes."""

    cells: dict[str, int]
    alive: tuple[LiveNode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """The number of pending jobs, and the age of the oldest."""

    pending: int
    oldest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """How long the oldest undecided instant has been due, and how many schedules cannot be planned."""

    oldest_s: float
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """The oldest open transaction, which keeps the database from removing dead rows, and its age."""

    age_s: float
    who: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedInstants:
    """The number of missed instants of a schedule, and the latest of them."""

    schedule: str
    instants: int
    latest: Instant
    tenant: str = DEFAULT_TENANT

    @property
    def label(self) -> str:
        """What the command line calls the schedule."""
        return schedule_label(self.tenant, self.schedule)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHealth:
    """The live nodes, and the leases, each with whether it is still valid."""

    nodes: list[Node]
    leases: list[tuple[Lease, bool]]


def _check(prefix: str, alive_within: Duration) -> Transaction[StoreHealth]:
    for statement in TOUCHED:
        yield call(statement)
    leases = held_in((yield call("leases", **prefixed(prefix), limit=LEASES_MAX)))
    nodes = nodes_in((yield call("nodes", age=alive_within, limit=NODES_MAX)))
    yield call("touch_counter")  # Last, because concurrent checks wait for each other here.
    return StoreHealth(nodes=nodes, leases=leases)


class StoreMetrics:
    """Health and metrics of one store."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def now(self) -> Instant:
        """Read the store's time: the cheapest query that shows whether it answers."""
        now: Instant = (await self._driver.fetch(call("time")))[0]["now"]
        return now

    async def check(self, prefix: str, *, alive_within: Duration, within_s: float) -> StoreHealth:
        """Check that the store accepts writes, and read the live nodes and the leases.

        It writes one small row and takes the table locks that all writes need. So it fails when a lock is held, when
        the server is read-only or full, and when no standby confirms commits.
        """
        return await self._driver.probe(lambda: _check(prefix, alive_within), within_s)

    async def oldest_transaction(self) -> OpenTransaction | None:
        """Find the transaction that has been open longest; None on SQLite, which cannot tell."""
        if self._driver.dialect_name == "sqlite":
            return None
        rows = await self._driver.fetch(call("oldest_transaction"))
        return OpenTransaction(age_s=float(rows[0]["age_s"]), who=rows[0]["who"]) if rows else None

    async def counters(self, alive_within: Duration) -> NodeCounters:
        """Add up the counters of all nodes; return the nodes with a recent heartbeat too."""
        cells: Counter[str] = Counter()
        alive: list[LiveNode] = []
        for row in await self._driver.fetch(call("tallies", limit=NODES_MAX)):
            if row["id"].startswith(TALLY_PREFIX):
                cells[row["id"].removeprefix(TALLY_PREFIX)] += row["value"]
                continue
            cells.update(tally_in(row["state"]))
            if row["beat_at"] >= row["now"] - alive_within:
                alive.append(LiveNode(roles=tuple(row["roles"].split(",")), state=msgspec.json.decode(row["state"])))
        return NodeCounters(cells=dict(cells), alive=tuple(alive))

    async def backlog(self, most: int) -> dict[str, Depth]:
        """Count pending jobs by queue, up to `most` in each; with too many queues, the first by name."""
        rows = await self._driver.fetch(call("backlog", most=most, lanes=LANES_MAX, limit=QUEUES_MAX))
        return {
            row["queue"]: Depth(pending=row["pending"], oldest_s=max(0, row["now"] - row["oldest_at"]) / SECOND)
            for row in rows
        }

    async def undecided(self) -> Undecided:
        """Find the oldest instant without a decision."""
        row = (await self._driver.fetch(call("undecided")))[0]
        oldest = min((at for at in (row["next_at"], row["held_since"]) if at is not None), default=row["now"])
        return Undecided(oldest_s=max(0, row["now"] - oldest) / SECOND, held=row["held"])

    async def missed(self, within: Duration, limit: int = 50, *, tenant: str | None = None) -> list[MissedInstants]:
        """Find the schedules with recently missed instants, latest first."""
        rows = await self._driver.fetch(call("missed", window=within, tenant=tenant, limit=limit))
        return [
            MissedInstants(
                schedule=schedule_name(row["schedule"]),
                tenant=row["tenant"] or DEFAULT_TENANT,
                instants=int(row["instants"]),
                latest=row["latest"],
            )
            for row in rows
        ]

    async def deliveries_waiting(self) -> Depth:
        """Count pending webhook deliveries, up to a limit; `oldest_s` is the age of the oldest."""
        row = (await self._driver.fetch(call("deliveries_waiting", limit=COUNTED_MAX)))[0]
        oldest = row["now"] if row["oldest_at"] is None else row["oldest_at"]
        return Depth(pending=row["waiting"], oldest_s=max(0, row["now"] - oldest) / SECOND)

    async def dead_letters(self) -> int:
        """Count dead letters, up to a limit."""
        letters: int = (await self._driver.fetch(call("dead_letters", limit=COUNTED_MAX)))[0]["letters"]
        return letters
