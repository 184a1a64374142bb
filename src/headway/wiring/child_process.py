"""Run a child process of a worker: load the app with the environment that it may see, then serve jobs."""

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from headway.core.settings import Settings
from headway.tasks.store_requests import JobFactory
from headway.wiring.children import CHILD_REPORT_S, CHILD_STORE, Described, hello_of
from headway.worker import capture, environment
from headway.worker.attempt import TasksByName
from headway.worker.child import serve
from headway.worker.child_connection import REPORT_EVERY_S
from headway.worker.ipc import Hello, SharedCounters


class App(JobFactory, Described, Protocol):
    """An app: its tasks, its settings, and a way to make jobs."""

    settings: Settings


def run_child(load_app: Callable[[], App], socket_number: int, counters_number: int, kind: str, width: int) -> None:
    """Run jobs of an app until the supervisor ends this process."""
    withheld = environment.receive()
    store = withheld.pop(CHILD_STORE, None)
    report_every_s = float(withheld.pop(CHILD_REPORT_S, REPORT_EVERY_S))

    def load() -> tuple[TasksByName, JobFactory, Hello]:
        with environment.shown(withheld):
            app = load_app()
        capture.adjust()
        if store is not None:
            app.settings = replace(app.settings, store=store)
        return app.tasks, app, hello_of(app, app.settings.store)

    capture.install(one_at_a_time=kind == "process")
    sock = socket.socket(fileno=socket_number)
    counters = SharedCounters(counters_number)
    for number in (sock.fileno(), counters.file):
        os.set_inheritable(number, False)
    serve(sock, counters, kind, width, load, report_every_s)
