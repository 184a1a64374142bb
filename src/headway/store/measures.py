"""Numbers about the whole store, for those who watch it from outside: all tenants, all nodes, bounded answers."""

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
LANES_MAX: Final = 5_000  # Priorities, of all queues together.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """A node that lives: what it is, and what it says of itself."""

    roles: tuple[str, ...]
    state: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Tallies:
    """What all nodes have counted together, those that are gone too, and which of them live."""

    cells: dict[str, int]
    alive: tuple[NodeSeen, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How many wait, and for how long the oldest has."""

    pending: int
    oldest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """For how long the oldest undecided instant has been due, and how many schedules cannot be planned."""

    oldest_s: float
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction of anybody that keeps the database from removing dead rows, and for how long it has."""

    age_s: float
    who: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """How many instants of a schedule were recorded as missed, and the latest of them."""

    schedule: str
    instants: int
    latest: Instant
    tenant: str = DEFAULT_TENANT

    @property
    def label(self) -> str:
        """What the command line calls the schedule."""
        return schedule_label(self.tenant, self.schedule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vital:
    """Who lives, and which leases there are, each with whether it still runs."""

    nodes: list[Node]
    leases: list[tuple[Lease, bool]]


def _vital(prefix: str, alive_within: Duration) -> Transaction[Vital]:
    for statement in TOUCHED:
        yield call(statement)
    leases = held_in((yield call("leases", **prefixed(prefix), limit=LEASES_MAX)))
    nodes = nodes_in((yield call("nodes", age=alive_within, limit=NODES_MAX)))
    yield call("touch_counter")  # Last, since everybody who looks waits here for the others.
    return Vital(nodes=nodes, leases=leases)


class StoreMeasures:
    """Counts what is in the store."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def now(self) -> Instant:
        """Hear the store's time: the cheapest question that shows whether it answers."""
        now: Instant = (await self._driver.fetch(call("time")))[0]["now"]
        return now

    async def vital(self, prefix: str, *, alive_within: Duration, within_s: float) -> Vital:
        """Show that the store takes writes, and read who lives and leads; raise what keeps it from that.

        It writes one small row, and takes the locks on tables that everything else needs. A lock that somebody holds,
        a server that is read-only or full, and one whose commits no standby confirms: each shows here.
        """
        return await self._driver.probe(lambda: _vital(prefix, alive_within), within_s)

    async def oldest_transaction(self) -> OpenTransaction | None:
        """Find the transaction that has been open for longest; SQLite does not tell."""
        if self._driver.dialect_name == "sqlite":
            return None
        rows = await self._driver.fetch(call("oldest_transaction"))
        return OpenTransaction(age_s=float(rows[0]["age_s"]), who=rows[0]["who"]) if rows else None

    async def tallies(self, alive_within: Duration) -> Tallies:
        """Add up what the nodes have counted; a node that was heard of so lately lives."""
        cells: Counter[str] = Counter()
        alive: list[NodeSeen] = []
        for row in await self._driver.fetch(call("tallies", limit=NODES_MAX)):
            if row["id"].startswith(TALLY_PREFIX):
                cells[row["id"].removeprefix(TALLY_PREFIX)] += row["value"]
                continue
            cells.update(tally_in(row["state"]))
            if row["beat_at"] >= row["now"] - alive_within:
                alive.append(NodeSeen(roles=tuple(row["roles"].split(",")), state=msgspec.json.decode(row["state"])))
        return Tallies(cells=dict(cells), alive=tuple(alive))

    async def backlog(self, most: int) -> dict[str, Depth]:
        """Count what waits by queue, in each up to `most`; of more queues than can be read, the first by name."""
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

    async def missed(self, within: Duration, limit: int = 50, *, tenant: str | None = None) -> list[Missed]:
        """Find the schedules of which instants were recorded as missed lately, the latest first."""
        rows = await self._driver.fetch(call("missed", window=within, tenant=tenant, limit=limit))
        return [
            Missed(
                schedule=schedule_name(row["schedule"]),
                tenant=row["tenant"] or DEFAULT_TENANT,
                instants=int(row["instants"]),
                latest=row["latest"],
            )
            for row in rows
        ]

    async def deliveries_waiting(self) -> Depth:
        """Count the messages that wait to be delivered, up to a limit; `oldest_s` is the age of the oldest."""
        row = (await self._driver.fetch(call("deliveries_waiting", limit=COUNTED_MAX)))[0]
        oldest = row["now"] if row["oldest_at"] is None else row["oldest_at"]
        return Depth(pending=row["waiting"], oldest_s=max(0, row["now"] - oldest) / SECOND)

    async def dead_letters(self) -> int:
        """Count the dead letters, up to a limit."""
        letters: int = (await self._driver.fetch(call("dead_letters", limit=COUNTED_MAX)))[0]["letters"]
        return letters
