"""`headway tenants`: how tenants share queues."""

from typing import Annotated

import typer
from msgspec import UnsetType

from headway.cli.output import Column
from headway.cli.session import Session, command, new_group
from headway.cli.text import clean, count, span
from headway.core.instants import SECOND, Instant, parse_instant
from headway.operations.verbs import pages
from headway.wire.tenants import Tenant, TenantDetails, TenantShare

app = new_group(help="List tenants; set and show their weights.")

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="The name of the tenant.")]


@command(app, "list")
async def list_(session: Session) -> None:
    """List the tenants: their weights, and what they have used of all queues."""
    async with session.operations() as operations:
        found, now = [tenant async for tenant in pages(operations.tenants.list)], operations.now
    if session.as_json:
        session.out.json(found)
    elif not found:
        session.out.say("no tenant has a weight or has used a queue; `headway tenants set NAME --weight N` sets one")
    else:
        columns = [
            Column("tenant", "name", wraps=True),
            Column("weight", right=True),
            Column("wait at most", "time", right=True),
            Column("waits", "time", right=True),
            Column("ready", right=True),
            Column("used", "time", right=True),
            Column("part", right=True),
            Column("set by", "quiet", wraps=True),
        ]
        session.out.table(columns, [_row(tenant, now) for tenant in found])


def _row(tenant: Tenant, now: Instant) -> tuple[object, ...]:
    ready = f"{tenant.ready:,}" if tenant.ready else None
    part = None if isinstance(tenant.used_part, UnsetType) else f"{tenant.used_part:.1%}"
    used = _seconds(tenant.used_seconds)
    return tenant.name, tenant.weight, tenant.wait_slo, _waited(tenant, now), ready, used, part, tenant.author


def _waited(tenant: Tenant, now: Instant) -> str | None:
    """Return how long the oldest ready job has waited."""
    if not tenant.oldest_ready_at:
        return None
    return span(max(0, now - parse_instant(tenant.oldest_ready_at)) // SECOND * SECOND)


def _seconds(value: float) -> str:
    return span(round(value * SECOND))


@command(app, "set")
async def set_(
    session: Session,
    tenant: TenantArgument,
    weight: Annotated[
        int | None, typer.Option("--weight", metavar="N", help="1 to 1000; twice the weight is twice the time.")
    ] = None,
    wait_slo: Annotated[
        str | None,
        typer.Option("--wait-slo", metavar="DURATION", help="How long its jobs should wait at most; 0s: no matter."),
    ] = None,
) -> None:
    """Set the weight of a tenant, or how long its jobs should wait for a worker at most."""
    async with session.operations(missing="create") as operations:
        done = await operations.tenants.put(tenant, weight=weight, wait_slo=wait_slo)
    if session.as_json:
        session.out.json(done)
    else:
        already = "" if done.changed else " already"
        session.out.say(clean(f"{done.name}{already} has the weight {done.weight:,}{_slo(done)}"))


def _slo(tenant: Tenant) -> str:
    return "" if tenant.wait_slo is None else f"; its jobs should wait at most {tenant.wait_slo}"


@command(app)
async def show(session: Session, tenant: TenantArgument) -> None:
    """Show the weight of a tenant, what it has used of each queue, and how long its newest jobs waited."""
    async with session.operations() as operations:
        found, now = await operations.tenants.show(tenant), operations.now
    if session.as_json:
        session.out.json(found)
        return
    session.out.say(clean(f"{found.name} has the weight {found.weight:,}{_slo(found)}"))
    if found.ready:
        session.out.say(f"{count(found.ready, 'ready job')}; one has waited for {_waited(found, now)}")
    if found.wait_p95_seconds is not None:
        session.out.say(clean(_waits(found)))
    if found.queues:
        columns = [
            Column("queue", "name", wraps=True),
            Column("used", "time", right=True),
            Column("part", right=True),
            Column("by weight", "quiet", right=True),
        ]
        session.out.table(columns, [_share(share) for share in found.queues])


def _share(share: TenantShare) -> tuple[object, ...]:
    parts = (share.used_part, share.fair_part)
    percents = (None if isinstance(part, UnsetType) else f"{part:.1%}" for part in parts)
    return share.queue, _seconds(share.used_seconds), *percents


def _waits(tenant: TenantDetails) -> str:
    verdict = {None: "", True: ", within its objective", False: ", longer than its objective"}[tenant.meets_slo]
    p50, p95 = _seconds(tenant.wait_p50_seconds or 0), _seconds(tenant.wait_p95_seconds or 0)
    return f"wait of its newest {tenant.waits:,} jobs: p50 {p50}, p95 {p95}{verdict}"
