"""`headway workers`: who runs jobs, and how to send one of them home."""

import asyncio
from typing import Annotated, Any, Final

import typer

from headway.cli.around import alive
from headway.cli.given import TimeoutOption, read_timeout
from headway.cli.session import Desk, Session, command, new_group
from headway.cli.show import Column
from headway.cli.text import away, clean, span, stamp
from headway.errors import Conflict, NotFound
from headway.instants import Instant
from headway.model import Node
from headway.why import WORKER, Worker, workers_of

LOOK_S: Final = 0.5
INTERRUPTED: Final = 130
NAMES_SHOWN: Final = 5

app = new_group(help="List workers, and have one finish what it runs and leave.")


@command(app, "list")
async def list_(session: Session) -> None:
    """List the workers that are alive."""
    async with session.open() as desk:
        nodes, now = await alive(desk.store), desk.now
    if session.as_json:
        session.out.json(worker_shapes(nodes))
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
    rows = [_row(node, worker, now) for node, worker in _pairs(nodes)]
    if rows:
        session.out.table(columns, rows)
    else:
        session.out.say("no worker is alive; `headway worker --app MODULE:APP` starts one")


def _pairs(nodes: list[Node]) -> list[tuple[Node, Worker]]:
    found = {worker.id: worker for worker in workers_of(nodes)}
    return [(node, found[node.id]) for node in nodes if node.id in found]


def worker_shapes(nodes: list[Node]) -> list[dict[str, Any]]:
    """Write the workers among the nodes as JSON."""
    return [
        {
            "id": node.id,
            "name": node.name,
            "version": node.version,
            "started_at": stamp(node.started_at),
            "beat_at": stamp(node.beat_at),
            "draining": worker.draining,
            "slots": worker.slots,
            "running": worker.running,
            "children": worker.children,
            "queues": list(worker.queues),
            "tasks": list(worker.tasks),
        }
        for node, worker in _pairs(nodes)
    ]


def _row(node: Node, worker: Worker, now: Instant) -> tuple[object, ...]:
    tasks = ", ".join(worker.tasks[:NAMES_SHOWN])
    more = f" and {len(worker.tasks) - NAMES_SHOWN:,} more" if len(worker.tasks) > NAMES_SHOWN else ""
    return (
        node.name,
        "draining" if worker.draining else "alive",
        f"{worker.running:,}/{worker.slots:,}",
        "all" if "*" in worker.queues else ", ".join(worker.queues),
        tasks + more,
        span(max(0, now - node.started_at)),
        away(min(node.beat_at, now), now),
        node.id,
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
        node = find(await alive(desk.store), worker)
        if not await desk.store.nodes.ask(node.id, "drain"):
            raise NotFound(f"{worker!r} has just left")
        if wait:
            try:
                async with asyncio.timeout(timeout_s):
                    await _gone(desk, node.id)
            except TimeoutError:
                raise TimeoutError(f"{node.name} has not gone in this time; it goes on draining") from None
            except asyncio.CancelledError:  # Ctrl-C.
                session.out.note(clean(f"stopped waiting; {node.name} goes on draining"))
                return INTERRUPTED
    if session.as_json:
        session.out.json({"id": node.id, "name": node.name, "draining": True, "gone": wait})
    else:
        session.out.say(
            clean(f"{node.name} has gone" if wait else f"{node.name} takes no more jobs and leaves when done")
        )
    return 0


def find(nodes: list[Node], asked: str) -> Node:
    """Find the one worker that is meant, by its name, its id or the beginning of its id."""
    workers = [node for node in nodes if WORKER in node.roles]
    exact = [node for node in workers if node.id == asked]
    named = exact or [node for node in workers if node.name == asked]
    found = named or [node for node in workers if len(asked) >= 4 and node.id.startswith(asked)]
    if not found:
        names = ", ".join(node.name for node in workers[:NAMES_SHOWN]) or "none"
        raise NotFound(f"no live worker is called {asked[:60]!r}; alive: {names}")
    if len(found) > 1:
        raise Conflict(f"several workers are called {asked[:60]!r}; say which id: {', '.join(n.id for n in found[:5])}")
    return found[0]


async def _gone(desk: Desk, node_id: str) -> None:
    wake = asyncio.Event()
    while any(node.id == node_id and WORKER in node.roles for node in await alive(desk.store)):
        await desk.clock.rest(LOOK_S, wake)
