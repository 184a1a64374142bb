"""The entry of a child process of a worker: `python -m headway.cli.child APP SOCKET PAGE KIND WIDTH`.

Not a command for people. It imports the app, tells the supervisor what is in it, and runs what comes.
"""

import os
import socket
import sys
from dataclasses import replace

from headway.app import file_app
from headway.cli.app_path import load_app
from headway.core.errors import InvalidConfig
from headway.tasks.context import JobFactory
from headway.wiring.children import CHILD_REPORT_S, CHILD_STORE, hello_of
from headway.worker import capture, environment
from headway.worker.attempt import TasksByName
from headway.worker.child import serve
from headway.worker.child_connection import REPORT_EVERY_S
from headway.worker.ipc import Hello, SharedCounters


def main(app_path: str, socket_number: str, counters_number: str, kind: str, width: str) -> None:
    """Be a child until the supervisor has no more use for it."""
    withheld = environment.receive()
    store = withheld.pop(CHILD_STORE, None)
    report_every_s = float(withheld.pop(CHILD_REPORT_S, REPORT_EVERY_S))

    def load() -> tuple[TasksByName, JobFactory, Hello]:
        with environment.shown(withheld):
            app = load_app(app_path) if app_path else file_app()
        capture.adjust()
        if app is None:
            raise InvalidConfig("headway.toml defines no tasks any more")
        if store is not None:
            app.settings = replace(app.settings, store=store)
        return app.tasks, app, hello_of(app, app.settings.store)

    capture.install(one_at_a_time=kind == "process")
    sock = socket.socket(fileno=int(socket_number))
    counters = SharedCounters(int(counters_number))
    for number in (sock.fileno(), counters.file):
        os.set_inheritable(number, False)
    serve(sock, counters, kind, int(width), load, report_every_s)


if __name__ == "__main__":
    main(*sys.argv[1:])
