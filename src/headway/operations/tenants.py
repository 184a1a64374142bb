"""Tenants: their weights when they share queues, what they have used, and how long their jobs waited."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from headway.core import tenants as core
from headway.core.errors import Denied, InvalidLimit
from headway.core.instants import SECOND, Duration, isoformat
from headway.operations.verbs import OperationGroup, verb
from headway.store.audit_log import AuditEntry
from headway.store.tenants import Running, UsedQueue
from headway.wire import tenants as wire
from headway.wire.base import PAGE_DEFAULT, Cursor, Limit, Page, duration
from headway.wire.tenants import TenantDetails, TenantShare

Weight = Annotated[int, msgspec.Meta(description="its weight, 1 to 1000; missing: unchanged", examples=[4])]
WaitSlo = Annotated[
    str,
    msgspec.Meta(
        description="how long its jobs should wait at most; 0s: no matter; missing: unchanged", examples=["5s"]
    ),
]


class Tenants(OperationGroup):
    """Tenants: how they share queues."""

    @verb("GET /api/tenants", id="list_tenants", role="viewer")
    async def list(self, *, limit: Limit = PAGE_DEFAULT, cursor: Cursor | None = None) -> Page[wire.Tenant]:
        """List tenants that have a weight or used a queue with limits or other tenants, and what waits of each.

        A token of one tenant sees that one only, and nothing about what others use.
        """
        own, after = self.caller.tenant, cursor or ""
        if own is None:
            names = await self.caller.store.tenants.names(after=after, limit=limit + 1)
        else:
            names = [own] if own > after else []
        shown = names[:limit]
        return Page([*await self._tenants(shown)], shown[-1] if len(names) > limit else None)

    @verb("GET /api/tenants/{name:path}", id="get_tenant", role="viewer", errors=(InvalidLimit,))
    async def show(self, name: str) -> TenantDetails:
        """Show the weight of a tenant, what it has used of each queue, and how long its newest jobs waited.

        A tenant that nobody has set has the weight 1.
        """
        if not self.caller.principal.sees(core.check_tenant(name, "tenant")):
            raise Denied("tenant: this token sees one tenant only")
        store = self.caller.store.tenants
        [tenant], found = await self._tenants([name]), await store.get(name)
        running, waits = await store.running(self.caller.tenant), await store.waits(name)
        shares, used = await store.shares([name], running), await self._used(running)
        slo, p95 = None if found is None else found[0].wait_slo, _percentile(waits, 95)
        return TenantDetails(
            **msgspec.structs.asdict(tenant),
            queues=[_share(share, used.get(share["queue"]), tenant.weight) for share in shares],
            waits=len(waits),
            wait_p50_seconds=_seconds(_percentile(waits, 50)),
            wait_p95_seconds=_seconds(p95),
            meets_slo=None if p95 is None or slo is None else p95 <= slo,
        )

    @verb("PUT /api/tenants/{name:path}", id="put_tenant", role="operator", errors=(InvalidLimit,))
    async def put(self, name: str, *, weight: Weight | None = None, wait_slo: WaitSlo | None = None) -> wire.Tenant:
        """Set the weight of a tenant, or how long its jobs should wait at most.

        A tenant that an app declares belongs to operators from then on. Needs a token for all tenants.
        """
        self.caller.require_all_tenants()
        if weight is None and wait_slo is None:
            raise InvalidLimit("give a tenant a weight, a wait_slo, or both")
        store, who = self.caller.store.tenants, self.caller.name
        found = await store.get(name)
        old = core.Tenant(name=name) if found is None else found[0]
        given = core.Tenant.build(
            name,
            weight=old.weight if weight is None else weight,
            wait_slo=duration(old.wait_slo) if wait_slo is None else wait_slo,
        )
        changed = found != (given, who)  # Whoever sets it last owns it, so that no sync of an app changes it back.
        if changed:
            what = {"before": None if found is None else _definition(old), "after": _definition(given)}
            await self.caller.acting(AuditEntry("tenant.put", name, None, what)).tenants.put(given, author=who)
        [shown] = await self._tenants([name])
        return msgspec.structs.replace(shown, changed=changed)

    async def _tenants(self, names: Sequence[str]) -> Sequence[wire.Tenant]:
        """Return tenants with what they have used, and what waits."""
        store = self.caller.store.tenants
        running = await store.running(self.caller.tenant)
        defined, used = await store.named(names), _used(await store.shares(names, running))
        all_used = await self._used(running)
        backlogs, total = await store.backlogs(names), sum(queue.used for queue in all_used.values())
        found = []
        for name in names:
            tenant = _tenant(name, defined.get(name), used.get(name, 0))
            backlog = backlogs.get(name)
            tenant.ready = 0 if backlog is None else backlog.jobs
            tenant.oldest_ready_at = None if backlog is None else isoformat(backlog.oldest_at)
            if self.caller.tenant is None:
                tenant.used_part = _part(used.get(name, 0), total)
            found.append(tenant)
        return found

    async def _used(self, running: Running) -> dict[str, UsedQueue]:
        """Return what all tenants used of queues, for callers that see all of them."""
        return await self.caller.store.tenants.used(running) if self.caller.tenant is None else {}


def _share(share: Mapping[str, Any], queue: UsedQueue | None, weight: int) -> TenantShare:
    """Convert a share. Where it stands among others is for callers that see all of them: `queue` is theirs."""
    shown = TenantShare(share["queue"], share["used"] / SECOND)
    if queue is not None:
        shown.used_part, shown.fair_part = _part(share["used"], queue.used), _part(weight, queue.weight)
        shown.share_seconds = share["vtime"] / SECOND
    return shown


def _part(some: int, of_all: int) -> float:
    return round(some / of_all, 4) if of_all else 0.0


def _seconds(value: Duration | None) -> float | None:
    return None if value is None else value / SECOND


def _tenant(name: str, found: tuple[core.Tenant, str] | None, used: Duration) -> wire.Tenant:
    tenant, author = (core.Tenant(name=name), None) if found is None else found
    return wire.Tenant(
        name=name,
        weight=tenant.weight,
        wait_slo=duration(tenant.wait_slo),
        author=author,
        used_seconds=used / SECOND,
    )


def _definition(tenant: core.Tenant) -> dict[str, Any]:
    return {"weight": tenant.weight, "wait_slo": duration(tenant.wait_slo)}


def _used(shares: Iterable[Mapping[str, Any]]) -> dict[str, Duration]:
    used: dict[str, Duration] = {}
    for share in shares:
        used[share["tenant"]] = used.get(share["tenant"], 0) + share["used"]
    return used


def _percentile(waits: Sequence[Duration], percent: int) -> Duration | None:
    return sorted(waits)[max(0, -(-len(waits) * percent // 100) - 1)] if waits else None
