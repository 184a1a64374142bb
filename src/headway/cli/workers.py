"""`headway workers`: list workers and drain one."""

import asyncio
from typing import Annotated, Final

import typer

from headway.cli.output import Column
from headway.cli.parsing import TimeoutOption, read_timeout
from headway.cli.session import Session, command, new_group
from headway.cli.text import away, clean, span
from headway.core.instants import Instant, parse_instant
from headway.core.needs import Needs, Offer, amount_words
from headway.operations.everything import Operations
from headway.operations.verbs import pages
from headway.wire.nodes import Worker

LOOK_S: Final = 0.5
INTERRUPTED: Final = 130
NAMES_SHOWN: Final = 5

app = new_group(help="List workers, and drain one.")


@command(app, "list")
async def list_(session: Session) -> None:
    """List the live workers."""
    async with session.operations() as operations:
        found, now = [worker async for worker in pages(operations.workers.list)], operations.now
    if session.as_json:
        session.out.json(found)
        return
    columns = [
        Column("name", "name"),
        Column("state"),
        Column("running", right=True),
        Column("queues", wraps=True),
        Column("tasks", wraps=True),
        *([Column("offer (free)", wraps=True)] if any(_offers(worker) for worker in found) else []),
        Column("alive for", "time"),
        Column("heard", "quiet", spare=True),
        Column("id", "quiet", spare=True),
    ]
    if found:
        session.out.table(
            columns, [_row(worker, now, with_offer=any(_offers(one) for one in found)) for worker in found]
        )
    else:
        session.out.say("no worker is alive; start one with `headway worker --app MODULE:APP`")


def _offers(worker: Worker) -> bool:
    return bool(worker.offer or worker.labels or worker.app_version)


def _offer_words(worker: Worker) -> str:
    """Say what of the offer is free: `cpu 6/8, memory 28G/32G, zone=eu, version 1.4.2`."""
    offer = Offer.read(worker.offer, worker.labels, worker.app_version)
    free = {name: round(free * 1000) for name, free in worker.offer_free.items()}
    amounts = [
        f"{name} {amount_words(free.get(name, 0))}/{amount_words(amount)}" for name, amount in offer.amounts.items()
    ]
    return ", ".join([*amounts, *Needs({}, offer.labels, offer.version).parts()])


def _row(worker: Worker, now: Instant, *, with_offer: bool) -> tuple[object, ...]:
    tasks = ", ".join(worker.tasks[:NAMES_SHOWN])
    more = f" and {len(worker.tasks) - NAMES_SHOWN:,} more" if len(worker.tasks) > NAMES_SHOWN else ""
    return (
        worker.name,
        "draining" if worker.draining else "alive",
        f"{worker.running:,}/{worker.slots:,}",
        "all" if "*" in worker.queues else ", ".join(worker.queues),
        tasks + more,
        *((_offer_words(worker),) if with_offer else ()),
        span(max(0, now - parse_instant(worker.started_at))),
        away(min(parse_instant(worker.beat_at), now), now),
        worker.id,
    )


@command(app)
async def drain(
    session: Session,
    worker: Annotated[str, typer.Argument(metavar="NAME|ID", help="The name of the worker, or its id.")],
    wait: Annotated[bool, typer.Option("--wait", help="Return when it has exited.")] = False,
    timeout: TimeoutOption = None,
) -> int:
    """Drain a worker: it takes no more jobs, finishes or hands back what it runs, and leaves."""
    timeout_s = read_timeout(timeout, wait)
    async with session.operations() as operations:
        drained = await operations.workers.drain(worker)
        name = drained.name
        if wait:
            try:
                async with asyncio.timeout(timeout_s):
                    await _gone(operations, drained.id)
            except TimeoutError:
                raise TimeoutError(f"{name} has not gone in this time; it goes on draining") from None
            except asyncio.CancelledError:  # Ctrl-C.
                session.out.note(clean(f"stopped waiting; {name} goes on draining"))
                return INTERRUPTED
    if session.as_json:
        session.out.json({"id": drained.id, "name": name, "draining": True, "gone": wait})
    else:
        session.out.say(clean(f"{name} has gone" if wait else f"{name} takes no more jobs and leaves when done"))
    return 0


async def _gone(operations: Operations, node_id: str) -> None:
    wake = asyncio.Event()
    while node_id in {worker.id async for worker in pages(operations.workers.list)}:
        await operations.clock.rest(LOOK_S, wake)
