"""`headway tenants`: how tenants share queues."""

from typing import Annotated

import typer

from headway.cli.output import Column
from headway.cli.session import Session, command, new_group
from headway.cli.text import clean, span
from headway.core.instants import SECOND
from headway.operations.verbs import pages
from headway.wire.tenants import Tenant, TenantDetails

app = new_group(help="List tenants; set and show their weights.")

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="The name of the tenant.")]


@command(app, "list")
async def list_(session: Session) -> None:
    """List the tenants: their weights, and what they have used of all queues."""
    async with session.operations() as operations:
        found = [tenant async for tenant in pages(operations.tenants.list)]
    if session.as_json:
        session.out.json(found)
    elif not found:
        session.out.say("no tenant has a weight or has used a queue; `headway tenants set NAME --weight N` sets one")
    else:
        columns = [
            Column("tenant", "name", wraps=True),
            Column("weight", right=True),
            Column("wait at most", "time", right=True),
            Column("used", "time", right=True),
            Column("set by", "quiet", wraps=True),
        ]
        session.out.table(columns, [_row(tenant) for tenant in found])


def _row(tenant: Tenant) -> tuple[object, ...]:
    return tenant.name, tenant.weight, tenant.wait_slo, _seconds(tenant.used_seconds), tenant.author


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
        found = await operations.tenants.show(tenant)
    if session.as_json:
        session.out.json(found)
        return
    session.out.say(clean(f"{found.name} has the weight {found.weight:,}{_slo(found)}"))
    if found.wait_p95_seconds is not None:
        session.out.say(clean(_waits(found)))
    if found.queues:
        columns = [Column("queue", "name", wraps=True), Column("used", "time", right=True)]
        session.out.table(columns, [(share.queue, _seconds(share.used_seconds)) for share in found.queues])


def _waits(tenant: TenantDetails) -> str:
    verdict = {None: "", True: ", within its objective", False: ", longer than its objective"}[tenant.meets_slo]
    return f"wait of its newest {tenant.waits:,} jobs: p95 {_seconds(tenant.wait_p95_seconds or 0)}{verdict}"
