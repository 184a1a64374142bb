"""`headway scheduler`: one process in the role of a scheduler, from its first signal handler to its last lease.

Start: open the store (and wait for it while it is down), bring the app's schedules into it, run the node. Stop, at
SIGTERM or SIGINT: decide no more, hand the leases over, say goodbye, exit with 0; a second signal ends the process at
once, and then the leases run out by themselves.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from headway import __version__
from headway.app import Headway, new_node_id, scheduler_node
from headway.cli.log import EventLog
from headway.cli.session import Session, new_command
from headway.clock import RETRY_REST_S_MAX, RETRY_REST_S_MIN, Clock
from headway.errors import StoreUnavailable
from headway.events import subscribed
from headway.settings import Settings, mask_url
from headway.store import Store

INTERRUPTED: Final = 130

NodeOption = Annotated[str | None, typer.Option("--node", metavar="NAME", help="What people call this process.")]
ModeOption = Annotated[
    str | None,
    typer.Option(
        "--coordination-mode",
        metavar="MODE",
        help="leader (one scheduler per shard decides) or lock (all evaluate, a lock per instant).",
    ),
]
ShardsOption = Annotated[
    str | None,
    typer.Option("--shards", "--scheduler-shards", metavar="N", help="Over how many leases schedules are spread."),
]
LeaseOption = Annotated[
    str | None, typer.Option("--leader-lease", metavar="DURATION", help="How long a silent leader is waited for.")
]
PollOption = Annotated[
    str | None, typer.Option("--poll", metavar="DURATION", help="How often to look where no wake-up arrives.")
]


async def scheduler(
    session: Session,
    node: NodeOption = None,
    coordination_mode: ModeOption = None,
    shards: ShardsOption = None,
    leader_lease: LeaseOption = None,
    poll: PollOption = None,
) -> None:
    """Decide the schedules of the store, as one of any number of schedulers.

    With --app (or HEADWAY_APP) the schedules declared in the app are brought into the store first. What happens is
    told on stderr. SIGTERM and Ctrl-C hand the leases over, so that the next scheduler decides at once.
    """
    settings = session.settings(
        node=node,
        coordination_mode=coordination_mode,
        scheduler_shards=shards,
        leader_lease=leader_lease,
        poll=poll,
    )
    await serve(settings, session.app(), EventLog.on_stderr(as_json=session.as_json))


async def serve(settings: Settings, app: Headway | None, log: EventLog, stopping: asyncio.Event | None = None) -> None:
    """Run a scheduler until a signal, or the caller's event, ends it."""
    stopping = stopping or asyncio.Event()
    clock = Clock()
    clock.node = new_node_id(clock)
    with stopped_by_signals(stopping, log), subscribed(log):
        log.write("starting", node=clock.node, name=settings.node, store=mask_url(settings.store), version=__version__)
        store = await _open(settings, clock, stopping, log)
        if store is None:
            return
        try:
            if app is not None:
                await _synchronise(app, stopping, log)
            await _run(store, settings, clock, stopping)
        finally:
            await store.close()
        log.write("stopped", node=clock.node)


async def _run(store: Store, settings: Settings, clock: Clock, stopping: asyncio.Event) -> None:
    node = scheduler_node(store, settings, clock, __version__)

    async def stop_when_told() -> None:
        await stopping.wait()
        node.stop()

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(stop_when_told())
        await node.run()
        waiting.cancel()


async def _open(settings: Settings, clock: Clock, stopping: asyncio.Event, log: EventLog) -> Store | None:
    """Open the store, as often as it takes; None when we are stopped before it answers."""
    rest_s = RETRY_REST_S_MIN
    while not stopping.is_set():
        try:
            return await Store.open(settings.store, clock, synchronous=settings.sqlite_synchronous)
        except StoreUnavailable as error:
            log.write("waiting for the store", level="warning", error=str(error), again_in=f"{rest_s:.1f}s")
        await clock.rest(rest_s, stopping)
        rest_s = min(2 * rest_s, RETRY_REST_S_MAX)
    return None


async def _synchronise(app: Headway, stopping: asyncio.Event, log: EventLog) -> None:
    """Bring the app's schedules into the store; one that goes away meanwhile is waited for."""
    clock = Clock()
    while not stopping.is_set():
        try:
            async with app:
                done = await app.sync()
        except StoreUnavailable as error:
            log.write("waiting for the store", level="warning", error=str(error))
            await clock.rest(RETRY_REST_S_MAX, stopping)
            continue
        counts = Counter(done.values())
        words = ", ".join(f"{counts[word]} {word}" for word in sorted(counts))
        log.write("schedules synchronised", app=app.name, done=words or "nothing declared")
        return


@contextmanager
def stopped_by_signals(stopping: asyncio.Event, log: EventLog) -> Iterator[None]:
    """Set the event at the first SIGTERM or SIGINT; at the second, leave at once."""

    def hear(name: str) -> Callable[[], None]:
        def stop() -> None:
            if stopping.is_set():
                os._exit(INTERRUPTED)
            log.write("stopping", signal=name)
            stopping.set()

        return stop

    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, hear(number.name))
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


app = new_command(scheduler)
