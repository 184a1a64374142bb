"""`headway workers`: who runs jobs, and how to send one of them home."""

import asyncio
from typing import Annotated, Final

import typer

from headway.cli.output import Column
from headway.cli.parsing import TimeoutOption, read_timeout
from headway.cli.session import Desk, Session, command, new_group
from headway.cli.text import away, clean, span
from headway.core.instants import Instant, parse_instant
from headway.operations.overview import NAMES_SHOWN
from headway.wire.shapes import Shape

LOOK_S: Final = 0.5
INTERRUPTED: Final = 130

app = new_group(help="List workers, and have one finish what it runs and leave.")


@command(app, "list")
async def list_(session: Session) -> None:
    """List the workers that are alive."""
    async with session.open() as desk:
        found, now = await desk.workers(), desk.now
    if session.as_json:
        session.out.json(found)
        return
    columns = [
        Column("name", "name"),
        Column("state"),
        Column("running", right=True),
        Column("queues", wraps=True),
        Column("tasks", wraps=True),
        Column("alive for", "time"),
        Column("heard", "quiet", spare=True),
        Column("id", "quiet", spare=True),
    ]
    if found:
        session.out.table(columns, [_row(worker, now) for worker in found])
    else:
        session.out.say("no worker is alive; `headway worker --app MODULE:APP` starts one")


def _row(worker: Shape, now: Instant) -> tuple[object, ...]:
    tasks = ", ".join(worker["tasks"][:NAMES_SHOWN])
    more = f" and {len(worker['tasks']) - NAMES_SHOWN:,} more" if len(worker["tasks"]) > NAMES_SHOWN else ""
    return (
        worker["name"],
        "draining" if worker["draining"] else "alive",
        f"{worker['running']:,}/{worker['slots']:,}",
        "all" if "*" in worker["queues"] else ", ".join(worker["queues"]),
        tasks + more,
        span(max(0, now - parse_instant(worker["started_at"]))),
        away(min(parse_instant(worker["beat_at"]), now), now),
        worker["id"],
    )


@command(app)
async def drain(
    session: Session,
    worker: Annotated[str, typer.Argument(metavar="NAME|ID", help="The name of the worker, or its id.")],
    wait: Annotated[bool, typer.Option("--wait", help="Return when it has gone.")] = False,
    timeout: TimeoutOption = None,
) -> int:
    """Have a worker take no more jobs, finish or hand back what it runs, and leave."""
    timeout_s = read_timeout(timeout, wait)
    async with session.open() as desk:
        node_id, name = await desk.drain(worker)
        if wait:
            try:
                async with asyncio.timeout(timeout_s):
                    await _gone(desk, node_id)
            except TimeoutError:
                raise TimeoutError(f"{name} has not gone in this time; it goes on draining") from None
            except asyncio.CancelledError:  # Ctrl-C.
                session.out.note(clean(f"stopped waiting; {name} goes on draining"))
                return INTERRUPTED
    if session.as_json:
        session.out.json({"id": node_id, "name": name, "draining": True, "gone": wait})
    else:
        session.out.say(clean(f"{name} has gone" if wait else f"{name} takes no more jobs and leaves when done"))
    return 0


async def _gone(desk: Desk, node_id: str) -> None:
    wake = asyncio.Event()
    while any(worker["id"] == node_id for worker in await desk.workers()):
        await desk.clock.rest(LOOK_S, wake)
