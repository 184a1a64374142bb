"""`headway limits`: list, put, show and remove limits."""

from typing import Annotated

import typer
from msgspec import UnsetType

from headway.cli.output import Column
from headway.cli.session import Session, command, new_group
from headway.cli.status import HELD_MAX
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
        found, now = [limit async for limit in pages(operations.limits.list)], operations.now
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
            Column("waiting", right=True),
            Column("next start", "time", right=True),
            Column("owner", "quiet", wraps=True),
        ]
        session.out.table(columns, [_row(limit, now) for limit in found])


def _row(limit: Limit, now: Instant) -> tuple[object, ...]:
    running = None if limit.running is None else f"{limit.running:,}"
    held = _lanes(limit) if limit.held else None
    rules = limit.concurrency, limit.rate, limit.burst
    return limit.name, running, *rules, held, _next_start(limit, now), limit.owner or None


def _lanes(limit: Limit) -> str:
    held = limit.held or 0
    return f"{held:,}+" if held >= HELD_MAX else f"{held:,}"


def _next_start(limit: Limit, now: Instant) -> str | None:
    return f"in {span(max(0, parse_instant(limit.next_at) - now))}" if limit.next_at else None


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
    session.out.say(clean(_summary(limit, now)))
    if limit.holders:
        columns = [Column("job", "name"), Column("task", wraps=True), Column("tenant", wraps=True)]
        if limit.name.endswith("*"):
            columns.append(Column("under", wraps=True))
        columns.append(Column("for", "time", right=True))
        session.out.table(columns, [_holder(one, limit, now) for one in limit.holders])


def _summary(limit: LimitDetails, now: Instant) -> str:
    waiting = "" if isinstance(limit.held, UnsetType) else f"; {_lanes(limit)} waiting"
    soon = _next_start(limit, now)
    rate = f"; the rate allows the next start {soon}" if soon else ""
    running = "" if limit.running is None else f"; {limit.running:,} running"
    force = "" if limit.in_force else "; not in force yet"
    owner = f"; declared by the app {limit.owner}" if limit.owner else ""
    return f"{limit.name} allows {allowed(limit)}{running}{waiting}{rate}{force}{owner}"


def _holder(holder: LimitHolder, limit: Limit, now: Instant) -> tuple[object, ...]:
    age = span(max(0, now - parse_instant(holder.since)) // SECOND * SECOND)
    under = (holder.gate,) if limit.name.endswith("*") else ()
    return holder.id, holder.task, holder.tenant, *under, age


@command(app)
async def remove(session: Session, name: NameArgument) -> None:
    """Remove a limit: jobs that wait for it may start."""
    async with session.operations() as operations:
        removed = await operations.limits.remove(name)
    if session.as_json:
        session.out.json(removed)
    else:
        session.out.say(clean(f"{removed.name} is removed"))
