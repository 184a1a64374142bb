"""The store fails under load: acknowledged jobs end once, and jobs that outlive their lease are killed."""

import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.arena import environment
from tests.chaos.worker_arena import MANY_S_MAX, WorkerArena, everywhere, wait_for
from tests.support import evidence
from tests.support.postgres import PostgresServer
from tests.support.processes import is_alive
from tests.support.waiting import DEADLINE_S

pytestmark = pytest.mark.slow

# The lease has to expire during the outage. On a slow machine it expires at other times as well.
FLAGS = ("--worker-lease", "4s", "--processes", "2", "--poll", "0.5s")
CLIENT = textwrap.dedent(
    """
    import itertools, sys, time
    from headway import Headway, HeadwayError

    app = Headway(name="client")
    for number in itertools.count():
        task, args = (("short", {"seconds": 0.01}), ("rest", {"seconds": 0.05}), ("nothing", {}))[number % 3]
        while True:  # Repeating it is safe: it has a key.
            try:
                job = app.enqueue_sync(task, args, key=f"{sys.argv[1]}:{number}", max_attempts=1000)
                break
            except HeadwayError:
                time.sleep(0.05)
        print(job.id, flush=True)
        time.sleep(float(sys.argv[2]))
    """
)


@contextmanager
def client(arena: WorkerArena, name: str, rest_s: float = 0.005) -> Iterator[Callable[[], list[str]]]:
    """Run a client that enqueues all the time; yield a function that returns the acknowledged jobs."""
    path = arena.folder / f"acknowledged-{name}"
    with path.open("wb") as out, evidence.log_file(f"client {name} of {arena.store}").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, name, str(rest_s)], env=environment(arena.store), stdout=out, stderr=errors
        )
    try:
        yield lambda: path.read_text().rpartition("\n")[0].split()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """Start a server for this test, which breaks it."""
    with PostgresServer() as own:
        yield own


@pytest.mark.postgres
def test_store_outages(server: PostgresServer, tmp_path: Path) -> None:
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
        _wait_for_more(arena, acknowledged, 100)
        for _ in range(2):
            server.restart(mode="immediate")
            _wait_for_more(arena, acknowledged, 50)
        long = _check_running_code_is_killed(arena, server)
    jobs = [*acknowledged(), long]
    assert arena.wait_final(jobs, MANY_S_MAX) == {"COMPLETED": len(jobs)}
    arena.check_ended_once(jobs)
    _check_outage_is_not_its_fault(arena, long)
    assert all(worker.is_running() for worker in workers), "no worker had to be restarted"


def _check_outage_is_not_its_fault(arena: WorkerArena, job_id: str) -> None:
    """Check that the job was released when the store was back, or its lease was ended before; neither is a failure."""
    assert arena.job(job_id, "failures") == 0
    assert len(arena.attempts(job_id)) > 1
    assert set(arena.outcomes(job_id)[:-1]) <= {"expired"}


def _check_running_code_is_killed(arena: WorkerArena, server: PostgresServer) -> str:
    """Check that code is killed in an outage longer than the lease: another worker may have the job by then."""
    job_id = arena.enqueue("sit", {"seconds": 600, "only_first": True}, priority=9, max_attempts=1000)
    pid = arena.wait_trace("begin", job_id)[0][2]
    server.stop("immediate")
    try:
        wait_for(lambda: not is_alive(pid), "the code of a lost lease to be killed")
    finally:
        server.start()
    return job_id


def _sqlite_is_locked(arena: WorkerArena, path: Path) -> None:
    """X31: another process writes for a long time; nothing is lost, and nothing has to be restarted."""
    worker = arena.start(*FLAGS, is_ready=False)
    with client(arena, "one") as acknowledged:
        long = arena.enqueue("sit", {"seconds": 600, "only_first": True}, priority=9, max_attempts=1000)
        pid = arena.wait_trace("begin", long)[0][2]
        _wait_for_more(arena, acknowledged, 100)
        connection = sqlite3.connect(path, isolation_level=None, timeout=DEADLINE_S)
        connection.execute("begin immediate")
        said = worker.log.stat().st_size
        wait_for(lambda: not is_alive(pid), "the code of a lost lease to be killed")
        gave_up = "store_unavailable"  # A statement waits for the lock, but not for ever.
        wait_for(lambda: gave_up in worker.log.read_text()[said:], "a statement to time out", describe=arena.describe)
        connection.execute("rollback")
        connection.close()
        _wait_for_more(arena, acknowledged, 20)
    jobs = [*acknowledged(), long]
    assert arena.wait_final(jobs, MANY_S_MAX) == {"COMPLETED": len(jobs)}
    arena.check_ended_once(jobs)
    _check_outage_is_not_its_fault(arena, long)
    assert worker.is_running()


def _wait_for_more(arena: WorkerArena, acknowledged: Callable[[], list[str]], jobs: int) -> None:
    """Wait until a client has received some more acknowledgements."""
    seen = len(acknowledged())
    wait_for(lambda: len(acknowledged()) > seen + jobs, "the client to continue", describe=arena.describe)
