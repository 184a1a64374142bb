"""`headway limits`: list, put, show and remove limits."""

from typing import Annotated

import typer

from headway.cli.output import Column
from headway.cli.session import Session, command, new_group
from headway.cli.text import clean, span
from headway.core.instants import SECOND, Instant, parse_instant
from headway.operations.verbs import pages
from headway.wire.limits import Limit, LimitDetails, LimitHolder

app = new_group(help="List limits; put, show and remove them.")

NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="queue:NAME, task:NAME, tenant:NAME or a name of your own; * ends a prefix."),
]


@command(app, "list")
async def list_(session: Session) -> None:
    """List the limits: what they allow, and how many jobs run under them."""
    async with session.operations() as operations:
        found = [limit async for limit in pages(operations.limits.list)]
    if session.as_json:
        session.out.json(found)
    elif not found:
        session.out.say("no limits; `headway limits put queue:NAME --concurrency N` makes one")
    else:
        columns = [
            Column("limit", "name", wraps=True),
            Column("running", right=True),
            Column("concurrency", right=True),
            Column("rate", right=True),
            Column("burst", right=True),
            Column("owner", "quiet", wraps=True),
        ]
        session.out.table(columns, [_row(limit) for limit in found])


def _row(limit: Limit) -> tuple[object, ...]:
    running = None if limit.running is None else f"{limit.running:,}"
    return limit.name, running, limit.concurrency, limit.rate, limit.burst, limit.owner or None


@command(app)
async def put(
    session: Session,
    name: NameArgument,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", help="How many jobs may run at a time.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="N/TIME", help="How many may start in which time: 10/s, 100/5m.")
    ] = None,
    burst: Annotated[
        int | None, typer.Option("--burst", metavar="N", help="Make the rate a token bucket of this size.")
    ] = None,
) -> None:
    """Create or replace a limit; it is in force when this returns. Running jobs are not stopped.

    \b
    headway limits put queue:media --concurrency 40
    headway limits put 'account-*' --concurrency 1 --rate 10/s --burst 20
    """
    async with session.operations(missing="create") as operations:
        tell(session, await operations.limits.put(name, concurrency=concurrency, rate=rate, burst=burst))


def tell(session: Session, limit: Limit) -> None:
    """Print the outcome of a put."""
    if session.as_json:
        session.out.json(limit)
    else:
        already = "" if limit.changed else " already"
        running = "" if limit.running is None else f" ({limit.running:,} running)"
        session.out.say(clean(f"{limit.name}{already} allows {allowed(limit)}{running}"))


def allowed(limit: Limit) -> str:
    """Describe what a limit allows."""
    parts = [] if limit.concurrency is None else [f"{limit.concurrency:,} at a time"]
    if limit.rate is not None:
        parts.append(f"{limit.rate}" + ("" if limit.burst is None else f", bursts of {limit.burst:,}"))
    return " and ".join(parts)


@command(app)
async def show(session: Session, name: NameArgument) -> None:
    """Show a limit with the jobs that hold its places, and how much waits for it."""
    async with session.operations() as operations:
        limit, now = await operations.limits.show(name), operations.now
    if session.as_json:
        session.out.json(limit)
        return
    session.out.say(clean(_summary(limit)))
    if limit.holders:
        columns = [Column("job", "name"), Column("task", wraps=True), Column("tenant", wraps=True)]
        session.out.table([*columns, Column("for", "time", right=True)], [_holder(one, now) for one in limit.holders])


def _summary(limit: LimitDetails) -> str:
    running = "" if limit.running is None else f"; {limit.running:,} running"
    force = "" if limit.in_force else "; not in force yet"
    owner = f"; declared by the app {limit.owner}" if limit.owner else ""
    return f"{limit.name} allows {allowed(limit)}{running}; {limit.held:,} waiting{force}{owner}"


def _holder(holder: LimitHolder, now: Instant) -> tuple[object, ...]:
    return holder.id, holder.task, holder.tenant, span(max(0, now - parse_instant(holder.since)) // SECOND * SECOND)


@command(app)
async def remove(session: Session, name: NameArgument) -> None:
    """Remove a limit: jobs that wait for it may start."""
    async with session.operations() as operations:
        removed = await operations.limits.remove(name)
    if session.as_json:
        session.out.json(removed)
    else:
        session.out.say(clean(f"{removed.name} is removed"))
