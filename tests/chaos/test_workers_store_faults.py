"""The store goes away under load: acknowledged jobs end once, and what runs past its lease is killed."""

import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.arena import environment
from tests.chaos.worker_arena import FULL, WorkerArena, everywhere, is_alive, wait_for
from tests.support.postgres import PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

LEASE_S = 4.0
LOCKED_S = 20 if FULL else 12  # Longer than a statement waits for the lock.
FLAGS = ("--worker-lease", f"{LEASE_S}s", "--processes", "2", "--poll", "0.5s")
CLIENT = textwrap.dedent(
    """
    import itertools, sys, time
    from headway import Headway, HeadwayError

    app = Headway(name="client")
    for number in itertools.count():
        task, args = (("short", {"seconds": 0.01}), ("rest", {"seconds": 0.05}), ("nothing", {}))[number % 3]
        while True:  # Repeating it is safe: it has a key.
            try:
                job = app.enqueue_sync(task, args, key=f"{sys.argv[1]}:{number}", max_attempts=10)
                break
            except HeadwayError:
                time.sleep(0.05)
        print(job.id, flush=True)
        time.sleep(float(sys.argv[2]))
    """
)


@contextmanager
def client(arena: WorkerArena, name: str, rest_s: float = 0.005) -> Iterator[Callable[[], list[str]]]:
    """Have a client enqueue all the time; what it yields returns the acknowledged jobs."""
    path = arena.folder / f"acknowledged-{name}"
    with path.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, name, str(rest_s)], env=environment(arena.store), stdout=out
        )
    try:
        yield lambda: path.read_text().rpartition("\n")[0].split()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A server of this test's own, since it is going to suffer."""
    with PostgresServer() as own:
        yield own


@pytest.mark.postgres
def test_the_store_goes_away(server: PostgresServer, tmp_path: Path) -> None:
    stores = {"sqlite": f"sqlite:///{tmp_path}/headway.db", "postgres": server.create_database()}

    def play(arena: WorkerArena) -> None:
        if arena.store == stores["sqlite"]:
            _sqlite_is_locked(arena, tmp_path / "headway.db")
        else:
            _postgresql_restarts_and_stays_away(arena, server)

    everywhere(play, stores, tmp_path)


def _postgresql_restarts_and_stays_away(arena: WorkerArena, server: PostgresServer) -> None:
    workers = [arena.start(*FLAGS, is_ready=False) for _ in range(2)]
    with client(arena, "one") as acknowledged:
        wait_for(lambda: len(acknowledged()) > 100, "the client to get going", 30)
        for _ in range(2):
            server.restart(mode="immediate")
            time.sleep(1)
        _check_running_code_is_killed(arena, server)
    jobs = acknowledged()
    assert arena.wait_final(jobs, 60) == {"COMPLETED": len(jobs)}
    arena.check_ended_once(jobs)
    assert all(worker.process.poll() is None for worker in workers), "no worker had to be restarted"


def _check_running_code_is_killed(arena: WorkerArena, server: PostgresServer) -> None:
    """Away for longer than the lease: past that somebody else may have the job, so its code must not go on."""
    job_id = arena.enqueue("sit", {"seconds": 600, "only_first": True}, priority=9)
    [[_, _, pid]] = arena.wait_trace("begin", job_id)
    server.stop("immediate")
    gone = time.monotonic()
    try:
        wait_for(lambda: not is_alive(pid), "the code under a lost lease to be killed", LEASE_S + 5)
        assert time.monotonic() - gone < LEASE_S + 5
    finally:
        server.start()
    arena.wait_status(job_id, "COMPLETED", within_s=40)
    assert arena.attempts(job_id) == [(1, "expired"), (2, "completed")]


def _sqlite_is_locked(arena: WorkerArena, path: Path) -> None:
    """X31: somebody else writes for a long time; nothing is lost, and nothing has to be restarted."""
    worker = arena.start(*FLAGS)
    with client(arena, "one") as acknowledged:
        long = arena.enqueue("sit", {"seconds": 600, "only_first": True}, priority=9)
        [[_, _, pid]] = arena.wait_trace("begin", long)
        wait_for(lambda: len(acknowledged()) > 100, "the client to get going", 30)
        connection = sqlite3.connect(path, isolation_level=None, timeout=10)
        connection.execute("begin immediate")
        until = time.monotonic() + LOCKED_S
        wait_for(lambda: not is_alive(pid), "the code under a lost lease to be killed", LEASE_S + 5)
        time.sleep(max(0.0, until - time.monotonic()))
        connection.execute("rollback")
        connection.close()
        seen = len(acknowledged())
        wait_for(lambda: len(acknowledged()) > seen + 20, "the client to go on", 30)
    jobs = [*acknowledged(), long]
    assert arena.wait_final(jobs, 60) == {"COMPLETED": len(jobs)}
    arena.check_ended_once(jobs)
    assert arena.attempts(long) == [(1, "expired"), (2, "completed")]
    assert worker.process.poll() is None
