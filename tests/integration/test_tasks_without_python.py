"""Commands and requests of headway.toml in a real worker: cancelled, out of time, retried, and killed with it."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support import evidence
from tests.support.command_line import Cli
from tests.support.processes import has_ended
from tests.support.waiting import DEADLINE_S, wait_until

HEADWAY = [sys.executable, "-m", "headway"]
TRIES_MAX = 10

FILE = """
[tasks.sleep]
command = ["/bin/sh", "-c", "trap '' TERM; sleep 300 & echo $$ $! > {where}; wait; sleep 300"]

[tasks.late]
command = ["/bin/sh", "-c", "echo begun; sleep 300"]
timeout = "2s"

[tasks.hook]
http = "URL"
method = "POST"
retry = {max_attempts = 3, backoff = "5m"}
"""


class Place:
    """A folder with a headway.toml, and a worker in it."""

    def __init__(self, folder: Path, url: str, heard: list[str], *, shared: bool = False) -> None:
        self.folder = folder
        self.heard = heard
        (folder / "headway.toml").write_text(FILE.replace("URL", url))
        environ = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
        # A machine that stands still for a while costs no attempt.
        environ["HEADWAY_WORKER_LEASE"] = "10m"
        with evidence.log_file("worker", shared=shared).open("wb") as log:
            self.worker = subprocess.Popen(
                [*HEADWAY, "worker", "--processes", "1"], cwd=folder, env=environ, stdout=log, stderr=log
            )

    def end(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(ProcessLookupError):
            self.worker.send_signal(signal.SIGKILL)
        self.worker.wait(DEADLINE_S)


class Caller:
    """Calls commands in this process, in the folder of a worker."""

    def __init__(self, cli: Cli, place: Place) -> None:
        self._cli = cli
        self.place = place

    def headway(self, *args: str) -> Any:
        """Return what a command says."""
        return self._cli(*args, "--json").json

    def begin_sleeping(self) -> tuple[str, list[int]]:
        """Have the command run; return its job and the processes that it consists of."""
        where = self.place.folder / "pids"
        where.unlink(missing_ok=True)
        job = self.headway("enqueue", "sleep", "-a", f"where={where}")["id"]
        wait_until(lambda: where.exists() and len(where.read_text().split()) == 2, "the command to run")
        return job, [int(pid) for pid in where.read_text().split()]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, list[str]]]:
    """A server that wants to be left alone for a second first."""
    heard: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            heard.append(f"{self.headers['Idempotency-Key']} {self.headers['X-Headway-Attempt']} {body}")
            self.send_response(200 if len(heard) > 1 else 503)
            self.send_header("Retry-After", "1")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", heard
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory, server: tuple[str, list[str]]) -> Iterator[Place]:
    """One worker for all tests that let it live."""
    place = Place(tmp_path_factory.mktemp("place"), *server, shared=True)
    yield place
    place.end()


@pytest.fixture
def caller(cli: Cli, shared_place: Place, monkeypatch: pytest.MonkeyPatch) -> Caller:
    monkeypatch.chdir(shared_place.folder)
    return Caller(cli, shared_place)


@pytest.mark.slow
def test_a_cancelled_command_is_gone_when_its_job_is(caller: Caller) -> None:
    job, pids = caller.begin_sleeping()
    caller.headway("jobs", "cancel", job)
    wait_until(lambda: caller.headway("jobs", "show", job)["status"] == "CANCELLED", "the job to be cancelled")
    assert [pid for pid in pids if not has_ended(pid)] == []


@pytest.mark.slow
def test_a_command_dies_with_its_worker(cli: Cli, server: tuple[str, list[str]], tmp_path: Path) -> None:
    place = Place(tmp_path, *server)
    try:
        _, pids = Caller(cli, place).begin_sleeping()
        place.worker.kill()
        wait_until(lambda: all(map(has_ended, pids)), "the command to be gone")
    finally:
        place.end()


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_stopped(caller: Caller) -> None:
    for _ in range(TRIES_MAX):  # On a machine that stands still it may be stopped before it has said anything.
        job = caller.headway("enqueue", "late", "--wait", "--timeout", "90s")
        assert job["status"] == "TIMED_OUT"
        if lines := caller.headway("jobs", "logs", job["id"]):
            break
    assert [line["line"] for line in lines] == ["begun"]


@pytest.mark.slow
def test_a_request_is_retried_when_the_server_says(caller: Caller) -> None:
    """Long before the five minutes of its own backoff."""
    job = caller.headway("enqueue", "hook", "-a", "order=7", "--wait", "--timeout", "90s")
    assert (job["status"], job["result"]) == ("COMPLETED", {"status": 200, "body": ""})
    assert caller.place.heard == [f'{job["id"]} {attempt} {{"order":7}}' for attempt in (1, 2)]
