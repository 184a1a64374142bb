"""Commands and HTTP requests of headway.toml in a real worker: cancelled, timed out, retried, and killed with it."""

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

    def __init__(self, folder: Path, url: str, received: list[str], *, shared: bool = False) -> None:
        self.folder = folder
        self.received = received
        (folder / "headway.toml").write_text(FILE.replace("URL", url))
        environ = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
        # A stalled machine must not cost an attempt.
        environ["HEADWAY_WORKER_LEASE"] = "10m"
        with evidence.log_file("worker", shared=shared).open("wb") as log:
            self.worker = subprocess.Popen(
                [*HEADWAY, "worker", "--processes", "1"], cwd=folder, env=environ, stdout=log, stderr=log
            )

    def end(self) -> None:
        """Kill the worker."""
        with contextlib.suppress(ProcessLookupError):
            self.worker.send_signal(signal.SIGKILL)
        self.worker.wait(DEADLINE_S)


class Caller:
    """Call commands in this process, in the folder of a worker."""

    def __init__(self, cli: Cli, place: Place) -> None:
        self._cli = cli
        self.place = place

    def headway(self, *args: str) -> Any:
        """Return the JSON output of a command."""
        return self._cli(*args, "--json").json

    def start_sleeping(self) -> tuple[str, list[int]]:
        """Run the command; return its job and its process ids."""
        where = self.place.folder / "pids"
        where.unlink(missing_ok=True)
        job = self.headway("enqueue", "sleep", "-a", f"where={where}")["id"]
        wait_until(lambda: where.exists() and len(where.read_text().split()) == 2, "the command to run")
        return job, [int(pid) for pid in where.read_text().split()]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, list[str]]]:
    """A server that answers 503 with Retry-After first."""
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            received.append(f"{self.headers['Idempotency-Key']} {self.headers['X-Headway-Attempt']} {body}")
            self.send_response(200 if len(received) > 1 else 503)
            self.send_header("Retry-After", "1")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", received
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory, server: tuple[str, list[str]]) -> Iterator[Place]:
    """One worker for all tests that do not kill it."""
    place = Place(tmp_path_factory.mktemp("place"), *server, shared=True)
    yield place
    place.end()


@pytest.fixture
def caller(cli: Cli, shared_place: Place, monkeypatch: pytest.MonkeyPatch) -> Caller:
    monkeypatch.chdir(shared_place.folder)
    return Caller(cli, shared_place)


@pytest.mark.slow
def test_cancelled_command_has_ended_when_its_job_has(caller: Caller) -> None:
    job, pids = caller.start_sleeping()
    caller.headway("jobs", "cancel", job)
    wait_until(lambda: caller.headway("jobs", "show", job)["status"] == "CANCELLED", "the job to be cancelled")
    assert [pid for pid in pids if not has_ended(pid)] == []


@pytest.mark.slow
def test_command_dies_with_its_worker(cli: Cli, server: tuple[str, list[str]], tmp_path: Path) -> None:
    place = Place(tmp_path, *server)
    try:
        _, pids = Caller(cli, place).start_sleeping()
        place.worker.kill()
        wait_until(lambda: all(map(has_ended, pids)), "the command to end")
    finally:
        place.end()


@pytest.mark.slow
def test_command_is_stopped_after_its_timeout(caller: Caller) -> None:
    for _ in range(TRIES_MAX):  # A stalled machine may stop it before it has logged anything.
        job = caller.headway("enqueue", "late", "--wait", "--timeout", "90s")
        assert job["status"] == "TIMED_OUT"
        if lines := caller.headway("jobs", "logs", job["id"]):
            break
    assert [line["line"] for line in lines] == ["begun"]


@pytest.mark.slow
def test_request_is_retried_after_retry_after(caller: Caller) -> None:
    """Long before its own back-off of five minutes."""
    job = caller.headway("enqueue", "hook", "-a", "order=7", "--wait", "--timeout", "90s")
    assert (job["status"], job["result"]) == ("COMPLETED", {"status": 200, "body": ""})
    first, second = (line.split(" ", 2) for line in caller.place.received)
    assert (first[0], first[2]) == (second[0], second[2]) == (job["id"], '{"order":7}')
    assert int(first[1]) < int(second[1])
