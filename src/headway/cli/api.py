"""`headway api`: serve the HTTP API, as one of any number of such processes.

It is a node like the others: it sends heartbeats and does its share of the housekeeping. It runs no user code and needs
no app; with one it knows the defaults of the app's tasks, otherwise it reads what workers register.
"""

from dataclasses import replace

from headway.cli.log import EventLog
from headway.cli.serve import HostOption, PortOption
from headway.cli.session import Session, new_command
from headway.wiring.processes import run_api


async def api(session: Session, host: HostOption = None, port: PortOption = None) -> None:
    """Serve the HTTP API and the dashboard.

    On 127.0.0.1 no token is needed until the first one is created with `headway tokens create`. For any other address
    there must be a token before the server starts. /docs describes every path.
    """
    settings = session.settings(host=host, port=port)
    app = session.app()
    if app is not None:
        settings = replace(settings, app_version=app.version)
    log = EventLog.on_stderr(as_json=session.as_json)
    await run_api(settings, {} if app is None else app.tasks, log)


app = new_command(api)
