"""`headway api`: the status API over HTTP, as one of any number of such processes.

It is a node like the others: it says that it lives, and keeps house when nobody else does. It runs no user code and
needs no app; with one it knows what the tasks of the app say about their jobs, otherwise it asks the workers.
"""

from headway.cli.log import EventLog
from headway.cli.serve import HostOption, PortOption
from headway.cli.session import Session, new_command
from headway.wiring.processes import run_api


async def api(session: Session, host: HostOption = None, port: PortOption = None) -> None:
    """Serve the HTTP API and the dashboard.

    On 127.0.0.1 no token is needed until the first one is made with `headway tokens create`; any other address needs
    one before it is listened on. /docs describes every path.
    """
    settings = session.settings(host=host, port=port)
    app = session.app()
    log = EventLog.on_stderr(as_json=session.as_json)
    await run_api(settings, {} if app is None else app.tasks, log)


app = new_command(api)
