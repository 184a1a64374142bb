"""`headway queues`: what waits where, and the tap of each queue."""

from typing import Annotated

import typer

from headway.cli.output import Column
from headway.cli.session import AUTHOR, Desk, Session, command, new_group
from headway.cli.text import clean, span
from headway.core.instants import SECOND, Instant, parse_instant
from headway.core.model import check_name
from headway.operations import audit_log as deeds
from headway.wire.shapes import Shape

app = new_group(help="List queues; pause and resume them.")

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.")]


@command(app, "list")
async def list_(session: Session) -> None:
    """List the queues: how much waits in each, how long, how much of it runs."""
    async with session.open() as desk:
        found = await desk.queues()
        now = desk.now
    if session.as_json:
        session.out.json(found)
    elif not found:
        session.out.say("nothing waits and nothing runs")
    else:
        columns = [
            Column("queue", "name", wraps=True),
            Column("waiting", right=True),
            Column("oldest", "time", right=True),
            Column("running", right=True),
            Column("state", wraps=True),
        ]
        session.out.table(columns, [_row(shape, now) for shape in found])


def _row(shape: Shape, now: Instant) -> tuple[object, ...]:
    oldest = span(round(shape["oldest_age_seconds"]) * SECOND) if shape["pending"] else None
    return shape["name"], f"{shape['pending']:,}", oldest, f"{shape['running']:,}", queue_state(shape, now)


def queue_state(shape: Shape, now: Instant) -> str:
    """Say in a few words whether a queue is open."""
    if not shape["paused"]:
        return "on"
    since = span(max(0, now - parse_instant(shape["paused_at"])) // SECOND * SECOND)
    by = f" by {shape['paused_by']}" if shape["paused_by"] else ""
    return f"paused for {since}{by}" + (f": {shape['reason']}" if shape["reason"] else "")


@command(app)
async def pause(
    session: Session,
    queue: QueueArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Recorded in the audit log.")] = "",
) -> None:
    """Take nothing more from a queue; what runs goes on, and what comes waits."""
    check_name(queue, "queue")
    async with session.open() as desk:
        acting = desk.acting(deeds.pause_queue(queue, reason))
        is_new = await acting.queue.pause(queue, author=AUTHOR, reason=reason)
        await _tell(session, desk, queue, "" if is_new else " already")


@command(app)
async def resume(session: Session, queue: QueueArgument) -> None:
    """Take from a queue again."""
    check_name(queue, "queue")
    async with session.open() as desk:
        was_paused = await desk.acting(deeds.resume_queue(queue)).queue.resume(queue)
        await _tell(session, desk, queue, "" if was_paused else " already")


async def _tell(session: Session, desk: Desk, queue: str, already: str) -> None:
    shape = await desk.queue(queue)
    if session.as_json:
        session.out.json(shape)
    else:
        waiting = f" ({shape['pending']:,} waiting)" if shape["pending"] else ""
        session.out.say(clean(f"{queue} is{already} {queue_state(shape, desk.now)}{waiting}"))
