# mypy: ignore-errors
# The library is installed only in the peers' environment, so mypy cannot check its types here.
"""DBOS on PostgreSQL or SQLite: one queue, polled every 0.1 s, a hundred concurrent workflows."""

import signal
from contextlib import contextmanager

from dbos import DBOS, DBOSClient

from bench.peers.kit import NUMBER, POSTGRES, SQLITE, VARIANT, Blocking, hit

URL = f"sqlite:///{SQLITE}" if "sqlite" in VARIANT else POSTGRES


def launch():
    """Start the library with its workflow and its queue."""
    config = {"name": "bench", "system_database_url": URL, "log_level": "ERROR"}
    DBOS(config={**config, "application_version": "1", "executor_id": f"e{NUMBER}"})

    @DBOS.workflow(name="noop")
    def noop(key, sent_ns):
        hit(key, sent_ns)

    DBOS.launch()
    DBOS.register_queue("q", worker_concurrency=100, polling_interval_sec=0.1)


def setup():
    """Create the schema and the queue."""
    launch()
    DBOS.destroy()


@contextmanager
def producer():
    """Open a client."""
    client = DBOSClient(system_database_url=URL)
    options = {"queue_name": "q", "workflow_name": "noop", "app_version": "1"}
    yield Blocking(lambda key, sent_ns: client.enqueue(options, key, sent_ns))


def worker():
    """Run a worker until killed."""
    launch()
    signal.pause()
