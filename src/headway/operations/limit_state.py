"""Read what jobs wait for: limits without a free place, and tenants whose jobs wait longer than they should."""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import UNSET

from headway.core.instants import Instant
from headway.core.limits import Limit, Rules
from headway.store import Store
from headway.store.tenants import Objective
from headway.wire import limits as wire
from headway.wire.base import stamp
from headway.wire.limits import limit_of


async def describe(store: Store, limits: Iterable[Limit], rules: Rules, now: Instant) -> list[wire.Limit]:
    """Return limits with what runs under them and waits for them."""
    reads, listed = store.limit_reads, list(limits)
    running = await reads.running([limit.name for limit in listed if not limit.is_pattern])
    held = await reads.held(listed, rules) if listed else {}
    next_starts = await reads.next_starts(listed, now)
    return [
        msgspec.structs.replace(
            limit_of(limit, running.get(limit.name)),
            held=held.get(limit.name, 0),
            next_at=stamp(next_starts.get(limit.name)),
        )
        for limit in listed
    ]


async def limits_of(store: Store, tenant: str) -> dict[str, wire.Limit]:
    """Return the limits that concern a tenant: those of its running and waiting jobs, which alone it counts."""
    reads = store.limit_reads
    rules = await reads.rules()
    if not rules.limits:
        return {}
    running, held = await reads.running_of(tenant, rules), await reads.held_of(tenant, rules)
    own = rules.find(f"tenant:{tenant}")
    names = {*running, *held} | ({own.name} if own is not None else set())
    return {name: _of_tenant(rules.limits[name], running, held) for name in sorted(names)}


def _of_tenant(limit: Limit, running: Mapping[str, int], held: Mapping[str, int]) -> wire.Limit:
    waiting = UNSET if limit.kind == "queue" else held.get(limit.name, 0)
    return msgspec.structs.replace(limit_of(limit, running.get(limit.name, 0)), held=waiting)


async def full_limits(store: Store, now: Instant, tenant: str | None) -> list[wire.Limit]:
    """Return the limits for which jobs wait, those first for which most wait."""
    if tenant is None:
        rules = await store.limit_reads.rules()
        held = await store.limit_reads.held(rules.limits.values(), rules) if rules.limits else {}
        found = await describe(store, [rules.limits[name] for name in held], rules, now)
    else:
        found = [limit for limit in (await limits_of(store, tenant)).values() if limit.held]
    return sorted(found, key=lambda limit: (-(limit.held or 0), limit.name))


async def late_tenants(store: Store, tenant: str | None) -> list[Objective]:
    """Return the tenants whose oldest ready job has waited longer than `wait_slo`, by how much."""
    found = await store.tenants.objectives(None if tenant is None else [tenant])
    late = [one for one in found if one.waited > one.wait_slo]
    return sorted(late, key=lambda one: (-one.waited / one.wait_slo, one.tenant))
