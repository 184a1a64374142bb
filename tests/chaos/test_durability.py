"""S5: acknowledged jobs survive kill -9 of the client and a crash of the store."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.chaos.arena import environment, migrate
from tests.chaos.ledger import query
from tests.support import evidence
from tests.support.postgres import PostgresServer
from tests.support.processes import is_alive
from tests.support.waiting import DEADLINE_S, wait_until

# Each line on standard input is the name of a client, which is a fork: only one process imports everything.
CLIENTS = textwrap.dedent(
    """
    import ctypes, itertools, os, signal, sys
    from headway import Headway, StoreUnavailable

    def enqueue(name):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with its parent.
        app = Headway(name="client")
        for number in itertools.count():
            try:
                job = app.enqueue_sync("work", {"number": number}, key=f"{name}:{number}")
            except StoreUnavailable:
                continue
            os.write(acknowledged, f"{job.id}\\n".encode())  # At once: half a line would spoil the next one's.

    acknowledged = int(sys.argv[1])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            enqueue(line.strip())
        print(pid, flush=True)
    """
)
IDS = "select id from headway_jobs"


class Clients:
    """Programs that enqueue as fast as they can, and record the acknowledged jobs."""

    def __init__(self, store: str, acknowledged: Path) -> None:
        self._living: list[int] = []
        log = evidence.log_file("clients")
        with acknowledged.open("ab") as out, log.open("ab") as err:
            self._parent = subprocess.Popen(
                [sys.executable, "-c", CLIENTS, str(out.fileno())],
                env=environment(store),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                pass_fds=[out.fileno()],
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._parent.kill()
        self._parent.communicate(timeout=DEADLINE_S)

    def start(self, name: str) -> None:
        """Start another client."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(f"{name}\n")
        self._parent.stdin.flush()
        self._living.append(int(self._parent.stdout.readline()))

    def kill(self) -> None:
        """Kill all clients, wherever they are, and wait until they have ended."""
        for pid in self._living:
            assert is_alive(pid), "a client ended by itself"
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(is_alive(pid) for pid in self._living), "the clients to end")
        self._living.clear()


def _acknowledged(file: Path) -> set[str]:
    whole_lines = file.read_text().rpartition("\n")[0]
    return set(whole_lines.split())


def _wait_for_progress(file: Path) -> None:
    """Wait until the client has received some responses, so that the kill comes while it works."""
    size = file.stat().st_size
    wait_until(lambda: file.stat().st_size >= size + 500, "some jobs to be acknowledged")


def test_sqlite_keeps_acknowledged_jobs_and_its_integrity(tmp_path: Path) -> None:
    path, acknowledged, chance = tmp_path / "headway.db", tmp_path / "acknowledged", random.Random(7)
    store = f"sqlite:///{path}"
    acknowledged.touch()
    migrate(store)
    with Clients(store, acknowledged) as clients:
        for round_number in range(8):
            for index in range(2):
                clients.start(f"{round_number}-{index}")
            _wait_for_progress(acknowledged)
            time.sleep(chance.uniform(0, 0.1))
            clients.kill()
    connection = sqlite3.connect(path)
    assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    connection.close()
    stored = {row[0] for row in query(store, IDS)}
    assert _acknowledged(acknowledged) <= stored
    assert len(stored) > 50


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """Start a durable server for this test, which crashes it."""
    with PostgresServer(durable=True) as own:
        yield own


@pytest.mark.postgres
def test_postgresql_keeps_acknowledged_jobs(server: PostgresServer, tmp_path: Path) -> None:
    store, acknowledged = server.create_database(), tmp_path / "acknowledged"
    acknowledged.touch()
    migrate(store)
    with Clients(store, acknowledged) as clients:
        clients.start("client")
        for _ in range(3):
            _wait_for_progress(acknowledged)
            server.kill()
            server.start()
        _wait_for_progress(acknowledged)
    stored = {row[0] for row in query(store, IDS)}
    assert _acknowledged(acknowledged) <= stored
