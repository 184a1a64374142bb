"""`headway api`: the status API over HTTP, as one of any number of such processes.

It is a node like the others: it says that it lives, and keeps house when nobody else does. It runs no user code and
needs no app; with one it knows what the tasks of the app say about their jobs, otherwise it asks the workers.
"""

import asyncio
from contextlib import suppress

from headway import __version__
from headway.cli.log import EventLog
from headway.cli.serve import HostOption, PortOption, open_store, run_node, serve_api, stopped_by_signals
from headway.cli.session import Session, new_command
from headway.core.clock import Clock
from headway.core.events import subscribed
from headway.core.settings import store_kind
from headway.server.http_server import bind
from headway.wiring.roles import api_node, new_node_id


async def api(session: Session, host: HostOption = None, port: PortOption = None) -> None:
    """Serve the API: look, follow and steer over HTTP.

    On 127.0.0.1 no token is needed until the first one is made with `headway tokens create`; any other address needs
    one before it is listened on. /docs describes every path.
    """
    settings = session.settings(host=host, port=port)
    app = session.app()
    log = EventLog.on_stderr(as_json=session.as_json)
    stopping = asyncio.Event()
    clock = Clock()
    clock.node = new_node_id(clock)
    with stopped_by_signals(stopping, log), subscribed(log):
        listening = bind(settings.host, settings.port)
        kind = store_kind(settings.store)
        log.write("starting", node=clock.node, name=settings.node, store=kind, version=__version__)
        store = await open_store(settings, clock, stopping, log)
        if store is None:
            return
        try:
            async with asyncio.TaskGroup() as group:
                node = api_node(store, settings, clock, __version__)
                group.create_task(run_node(node, stopping))
                tasks = app.tasks if app is not None else {}
                await serve_api(store, settings, clock, listening, log, stopping, tasks, node)
                stopping.set()
        finally:
            with suppress(OSError):
                listening.close()
            await store.close()
        log.write("stopped", node=clock.node)


app = new_command(api)
