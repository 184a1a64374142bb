"""S5: what was acknowledged survives kill -9 of the client and a crash of the store."""

import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.arena import environment, headway
from tests.chaos.ledger import query
from tests.support.postgres import PostgresServer

CLIENT = textwrap.dedent(
    """
    import itertools, os, sys
    from headway import Headway, StoreUnavailable

    app = Headway(name="client")
    for number in itertools.count():
        try:
            job = app.enqueue_sync("work", {"number": number}, key=f"{sys.argv[1]}:{number}")
        except StoreUnavailable:
            continue
        os.write(1, f"{job.id}\\n".encode())  # At once: half a line would spoil the next one's.
    """
)
IDS = "select id from headway_jobs"


def _client(store: str, name: str, acknowledged: Path) -> subprocess.Popen[bytes]:
    with acknowledged.open("ab") as out:
        return subprocess.Popen([sys.executable, "-c", CLIENT, name], env=environment(store), stdout=out)


def _acknowledged(file: Path) -> set[str]:
    whole_lines = file.read_text().rpartition("\n")[0]
    return set(whole_lines.split())


def _wait_for_progress(file: Path) -> None:
    """Wait until the client has got some answers, so that the kill comes while it works."""
    size, deadline = file.stat().st_size, time.monotonic() + 20
    while file.stat().st_size < size + 500:
        assert time.monotonic() < deadline, "the client makes no progress"
        time.sleep(0.02)


def test_sqlite_keeps_what_it_acknowledged_and_its_integrity(tmp_path: Path) -> None:
    path, acknowledged, chance = tmp_path / "headway.db", tmp_path / "acknowledged", random.Random(7)
    store = f"sqlite:///{path}"
    acknowledged.touch()
    assert headway("migrate", store=store).returncode == 0
    for round_number in range(8):
        clients = [_client(store, f"{round_number}-{index}", acknowledged) for index in range(2)]
        try:
            _wait_for_progress(acknowledged)
            time.sleep(chance.uniform(0, 0.1))
        finally:
            for client in clients:
                client.send_signal(signal.SIGKILL)
                client.wait(10)
    connection = sqlite3.connect(path)
    assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    connection.close()
    stored = {row[0] for row in query(store, IDS)}
    assert _acknowledged(acknowledged) <= stored
    assert len(stored) > 50


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A durable server of this test's own, to be crashed."""
    with PostgresServer(durable=True) as own:
        yield own


@pytest.mark.postgres
def test_postgresql_keeps_what_it_acknowledged(server: PostgresServer, tmp_path: Path) -> None:
    store, acknowledged = server.create_database(), tmp_path / "acknowledged"
    acknowledged.touch()
    assert headway("migrate", store=store).returncode == 0
    client = _client(store, "client", acknowledged)
    try:
        for _ in range(3):
            _wait_for_progress(acknowledged)
            server.kill()
            server.start()
        _wait_for_progress(acknowledged)
    finally:
        client.send_signal(signal.SIGKILL)
        client.wait(10)
    stored = {row[0] for row in query(store, IDS)}
    assert _acknowledged(acknowledged) <= stored
