"""Define tenants: their weights, and how long their jobs may wait. Read what they have used of queues."""

from collections.abc import Sequence
from typing import Any, Final

from headway.core.errors import LimitOwned
from headway.core.instants import Duration
from headway.core.tenants import WEIGHT_DEFAULT, Tenant
from headway.store.transaction import Driver, Row, Transaction, as_json, call

WAITS_MAX: Final = 200
_NEWEST_MAX: Final = 10_000


def _put(tenant: Tenant, author: str, *, replaces: bool) -> Transaction[bool]:
    rows = yield call("tenant", name=tenant.name)
    if rows and not replaces and rows[0]["author"] != author:
        raise LimitOwned(
            f"the tenant {tenant.name!r} was set by {rows[0]['author']!r}; change it with `headway tenants set`"
        )
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
    shares = yield call("tenant_shares", tenants=as_json([name]))
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

    async def names(self, *, after: str, limit: int) -> list[str]:
        """Return the names of tenants that are defined or have used a queue."""
        return [row["name"] for row in await self._driver.fetch(call("tenant_names", after=after, limit=limit))]

    async def shares(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return what tenants have used of queues: microseconds, and the same divided by the weight at the time."""
        rows = await self._driver.fetch(call("tenant_shares", tenants=as_json(names)))
        return [{column: row[column] for column in ("queue", "tenant", "used", "vtime")} for row in rows]

    async def waits(self, name: str) -> list[Duration]:
        """Return how long the newest started jobs of a tenant waited for a worker."""
        rows = await self._driver.fetch(call("tenant_waits", tenant=name, newest=_NEWEST_MAX, limit=WAITS_MAX))
        return [row["waited"] for row in rows]
