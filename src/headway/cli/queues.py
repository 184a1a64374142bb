"""`headway queues`: list, pause, resume and limit queues."""

from typing import Annotated

import typer

from headway.cli.limits import tell
from headway.cli.output import Column
from headway.cli.session import Session, command, new_group
from headway.cli.text import clean, span
from headway.core.instants import SECOND, Instant, parse_instant
from headway.operations.verbs import pages
from headway.wire.queues import Queue

app = new_group(help="List queues; pause, resume and limit them.")

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.")]


@command(app, "list")
async def list_(session: Session) -> None:
    """List the queues: pending jobs, age of the oldest, running jobs."""
    async with session.operations() as operations:
        found = [queue async for queue in pages(operations.queues.list)]
        now = operations.now
    if session.as_json:
        session.out.json(found)
    elif not found:
        session.out.say("no pending or running jobs")
    else:
        columns = [
            Column("queue", "name", wraps=True),
            Column("waiting", right=True),
            Column("oldest", "time", right=True),
            Column("running", right=True),
            Column("state", wraps=True),
        ]
        session.out.table(columns, [_row(queue, now) for queue in found])


def _row(queue: Queue, now: Instant) -> tuple[object, ...]:
    oldest = span(round(queue.oldest_age_seconds) * SECOND) if queue.pending else None
    return queue.name, f"{queue.pending:,}", oldest, f"{queue.running:,}", queue_state(queue, now)


def queue_state(queue: Queue, now: Instant) -> str:
    """Describe in a few words whether a queue is paused."""
    if queue.paused_at is None:
        return "on"
    since = span(max(0, now - parse_instant(queue.paused_at)) // SECOND * SECOND)
    by = f" by {queue.paused_by}" if queue.paused_by else ""
    return f"paused for {since}{by}" + (f": {queue.reason}" if queue.reason else "")


@command(app)
async def pause(
    session: Session,
    queue: QueueArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Recorded in the audit log.")] = "",
) -> None:
    """Pause a queue: running jobs finish, and new jobs wait."""
    async with session.operations() as operations:
        _tell(session, await operations.queues.pause(queue, reason=reason), operations.now)


@command(app)
async def resume(session: Session, queue: QueueArgument) -> None:
    """Resume a queue: workers take jobs from it again."""
    async with session.operations() as operations:
        _tell(session, await operations.queues.resume(queue), operations.now)


@command(app)
async def limit(
    session: Session,
    queue: QueueArgument,
    concurrency: Annotated[int, typer.Argument(metavar="N", help="How many of its jobs may run at a time.")],
) -> None:
    """Limit how many jobs of a queue run at a time: `headway limits put queue:QUEUE --concurrency N`."""
    async with session.operations(missing="create") as operations:
        tell(session, await operations.limits.put(f"queue:{queue}", concurrency=concurrency))


@command(app)
async def scale(
    session: Session,
    queue: QueueArgument,
    wait: Annotated[
        str, typer.Option("--wait", metavar="DURATION", help="How long a ready job may wait for a slot.")
    ] = "20s",
) -> None:
    """Print how many slots a queue needs, for autoscalers and for you."""
    async with session.operations() as operations:
        found = await operations.queues.scale(queue, wait=wait)
    if session.as_json:
        session.out.json(found)
    else:
        work = f"{found.ready:,} ready (about {span(round(found.work_seconds * SECOND))} of work)"
        slots = f"{found.wanted_slots:,} slots wanted, {found.slots:,} offered"
        session.out.say(clean(f"{found.queue}: {work}, {found.running:,} running: {slots}"))


def _tell(session: Session, queue: Queue, now: Instant) -> None:
    if session.as_json:
        session.out.json(queue)
    else:
        already = "" if queue.changed else " already"
        waiting = f" ({queue.pending:,} waiting)" if queue.pending else ""
        session.out.say(clean(f"{queue.name} is{already} {queue_state(queue, now)}{waiting}"))
