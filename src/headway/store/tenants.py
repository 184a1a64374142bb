"""Define tenants: their weights, and how long their jobs may wait. Read what they have used of queues."""

import heapq
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from headway.core.errors import LimitOwned
from headway.core.instants import Duration, Instant
from headway.core.limits import SINCE_SCHEMA
from headway.core.tenants import WEIGHT_DEFAULT, Tenant
from headway.store.coordination import require_schema
from headway.store.limit_reads import QUEUES_MAX, places_in, sharing_queues
from headway.store.transaction import Driver, Row, Transaction, as_json, call

WAITS_MAX: Final = 200
BACKLOG_MAX: Final = 500  # Ready jobs that are counted of a tenant in a queue.
OBJECTIVES_MAX: Final = 1_000  # Tenants whose waits are measured.
_NEWEST_MAX: Final = 10_000
_RUNNING_MAX: Final = 10_000  # Tenants and queues in which jobs run.
_SHARES_MAX: Final = 100_000
_PLACES_MAX: Final = 20_000  # Tenants times queues in one read; the first queues by name.
_OLDEST_MAX: Final = 20  # Ready jobs of a tenant in a queue among which the oldest is looked for.

Running: TypeAlias = Mapping[tuple[str, str], Duration]  # How long the running jobs of a queue and a tenant have taken.


@dataclass(frozen=True, slots=True)
class Backlog:
    """The ready jobs of a tenant, counted up to a limit, and since when the oldest of them has waited."""

    jobs: int
    oldest_at: Instant
    now: Instant

    @property
    def waited(self) -> Duration:
        """How long the oldest of them has waited."""
        return max(0, self.now - self.oldest_at)


@dataclass(frozen=True, slots=True)
class UsedQueue:
    """What all tenants together have used of a queue, and the sum of their weights."""

    used: Duration
    weight: int


@dataclass(frozen=True, slots=True)
class Objective:
    """How long the jobs of a tenant should wait at most, and how long the oldest ready one has waited."""

    tenant: str
    wait_slo: Duration
    waited: Duration


def _put(tenant: Tenant, author: str, *, replaces: bool) -> Transaction[bool]:
    rows = yield call("tenant", name=tenant.name)
    if rows and not replaces and rows[0]["author"] != author:
        raise LimitOwned(
            f"the tenant {tenant.name!r} was set by {rows[0]['author']!r}; change it with `headway tenants set`"
        )
    if not rows:
        yield from require_schema(SINCE_SCHEMA, f"the tenant {tenant.name!r} cannot be set")
    yield call("put_tenant", name=tenant.name, weight=tenant.weight, wait_slo=tenant.wait_slo, author=author)
    yield from _weigh(tenant.name, tenant.weight)
    return True


def _remove(name: str, author: str) -> Transaction[bool]:
    if not (yield call("remove_tenant", name=name, author=author)):
        return False
    yield from _weigh(name, WEIGHT_DEFAULT)
    return True


def _weigh(name: str, weight: int) -> Transaction[None]:
    """Change the weight of a tenant in its queues; its shares are locked in their order first, as claims do."""
    queues = places_in((yield call("sharing_queues", limit=QUEUES_MAX)))
    shares = yield call("tenant_shares", places=as_json(_places(queues, [name])))
    if shares:
        keys = [{column: share[column] for column in ("queue", "needs", "tenant")} for share in shares]
        yield call("lock_shares", shares=as_json(keys))
        yield call("weigh_shares", name=name, weight=weight)


def _read(row: Row) -> Tenant:
    return Tenant(name=row["name"], weight=row["weight"], wait_slo=row["wait_slo"])


class StoreTenants:
    """Define tenants, and read what they have used."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def all(self) -> dict[str, tuple[Tenant, str]]:
        """Return the defined tenants by name, each with its author."""
        return {row["name"]: (_read(row), row["author"]) for row in await self._driver.fetch(call("tenants"))}

    async def get(self, name: str) -> tuple[Tenant, str] | None:
        """Return the definition of a tenant with its author; None if there is none."""
        rows = await self._driver.fetch(call("tenant", name=name))
        return (_read(rows[0]), rows[0]["author"]) if rows else None

    async def put(self, tenant: Tenant, *, author: str, replaces: bool = True) -> None:
        """Create or change the definition of a tenant; without `replaces` only one by the same author."""
        await self._driver.run(lambda: _put(tenant, author, replaces=replaces))

    async def remove(self, name: str, *, author: str) -> bool:
        """Remove a definition by this author; return False if there is none."""
        return await self._driver.run(lambda: _remove(name, author))

    async def named(self, names: Collection[str]) -> dict[str, tuple[Tenant, str]]:
        """Return the definitions of some tenants, each with its author."""
        named = as_json([{"name": name} for name in names])
        rows = await self._driver.fetch(call("tenants_named", names=named))
        return {row["name"]: (_read(row), row["author"]) for row in rows}

    async def names(self, *, after: str, limit: int) -> list[str]:
        """Return the names of tenants that are defined or have used a queue."""
        queues = as_json(await sharing_queues(self._driver))
        defined = await self._driver.fetch(call("next_tenants", after=after, limit=limit))
        sharing = await self._driver.fetch(call("sharing_tenants", queues=queues, after=after, limit=limit))
        return heapq.nsmallest(limit, {row["name"] for row in (*defined, *sharing)})

    async def shares(self, names: Collection[str], running: Running) -> list[dict[str, Any]]:
        """Return what tenants have used of queues: microseconds, and the same divided by the weight at the time."""
        places = _places(await sharing_queues(self._driver), names)
        rows = await self._driver.fetch(call("tenant_shares", places=as_json(places)))
        return [
            {
                **{column: row[column] for column in ("queue", "tenant", "vtime")},
                "used": row["used"] + running.get((row["queue"], row["tenant"]), 0),
            }
            for row in rows
        ]

    async def used(self, running: Running) -> dict[str, UsedQueue]:
        """Return what all tenants together have used of each queue."""
        more: Counter[str] = Counter()
        for (queue, _), took in running.items():
            more[queue] += took
        rows = await self._driver.fetch(call("used_of_queues", limit=_SHARES_MAX))
        return {row["queue"]: UsedQueue(int(row["used"]) + more[row["queue"]], int(row["weight"])) for row in rows}

    async def running(self, tenant: str | None) -> Running:
        """Return how long attempts that run have taken so far; they are added to a share when they end."""
        rows = await self._driver.fetch(call("running_seconds", tenant=tenant, limit=_RUNNING_MAX))
        return {(row["queue"], row["tenant"]): int(row["took"]) for row in rows}

    async def backlogs(self, names: Collection[str]) -> dict[str, Backlog]:
        """Return the ready jobs of tenants; those without any are left out."""
        return await self._backlogs(names, BACKLOG_MAX)

    async def objectives(self, names: Collection[str] | None = None) -> list[Objective]:
        """Return the tenants with a `wait_slo`, each with how long its oldest ready job has waited: the first 1,000."""
        if names is None:
            rows: Sequence[Row] = await self._driver.fetch(call("tenants_with_slo", limit=OBJECTIVES_MAX))
            wanted = {row["name"]: row["wait_slo"] for row in rows}
        else:
            wanted = {name: one.wait_slo for name, (one, _) in (await self.named(names)).items() if one.wait_slo}
        waiting = await self._backlogs(wanted, _OLDEST_MAX) if wanted else {}
        return [Objective(name, slo, waiting[name].waited if name in waiting else 0) for name, slo in wanted.items()]

    async def _backlogs(self, names: Collection[str], most: int) -> dict[str, Backlog]:
        queues = places_in(await self._driver.fetch(call("pending_queues", limit=QUEUES_MAX)))
        places = _places(queues, names)
        if not places:
            return {}
        rows = await self._driver.fetch(call("tenant_backlog", places=as_json(places), most=most))
        return {row["tenant"]: Backlog(row["jobs"], row["oldest_at"], row["now"]) for row in rows}

    async def waits(self, name: str) -> list[Duration]:
        """Return how long the newest started jobs of a tenant waited for a worker."""
        rows = await self._driver.fetch(call("tenant_waits", tenant=name, newest=_NEWEST_MAX, limit=WAITS_MAX))
        return [row["waited"] for row in rows]


def _places(queues: Sequence[Mapping[str, str]], names: Collection[str]) -> list[dict[str, str]]:
    return [{**queue, "of_tenant": name} for queue in queues for name in names][:_PLACES_MAX]
