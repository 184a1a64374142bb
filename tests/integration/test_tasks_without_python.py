"""Commands and requests of headway.toml in a real worker: cancelled, out of time, retried, and killed with it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

HEADWAY = [sys.executable, "-m", "headway"]
WAIT_S_MAX = 60.0

FILE = """
[tasks.sleep]
command = ["/bin/sh", "-c", "trap '' TERM; sleep 300 & echo $$ $! > {where}; wait; sleep 300"]

[tasks.late]
command = ["/bin/sh", "-c", "echo begun; sleep 300"]
timeout = "1s"

[tasks.hook]
http = "URL"
method = "POST"
retry = {max_attempts = 3, backoff = "5m"}
"""


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_S_MAX
    while not is_so():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Place:
    """A folder with a headway.toml, and a worker in it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        (folder / "headway.toml").write_text(FILE.replace("URL", url))
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
        self.worker = subprocess.Popen(
            [*HEADWAY, "worker", "--processes", "1"], cwd=folder, env=self.environ, stderr=subprocess.DEVNULL
        )

    def headway(self, *args: str) -> Any:
        done = subprocess.run(
            [*HEADWAY, *args, "--json"], cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)

    def begin_sleeping(self) -> tuple[str, list[int]]:
        """Have the command run; return its job and the processes that it consists of."""
        where = self.folder / "pids"
        job = self.headway("enqueue", "sleep", "-a", f"where={where}")["id"]
        wait_until(lambda: where.exists() and len(where.read_text().split()) == 2, "the command to run")
        return job, [int(pid) for pid in where.read_text().split()]


@pytest.fixture
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


@pytest.fixture
def place(tmp_path: Path, server: tuple[str, list[str]]) -> Iterator[Place]:
    place = Place(tmp_path, server[0])
    yield place
    with contextlib.suppress(ProcessLookupError):
        place.worker.send_signal(signal.SIGKILL)
    place.worker.wait(WAIT_S_MAX)


@pytest.mark.slow
def test_a_cancelled_command_is_gone_when_its_job_is(place: Place) -> None:
    job, pids = place.begin_sleeping()
    place.headway("jobs", "cancel", job)
    wait_until(lambda: place.headway("jobs", "show", job)["status"] == "CANCELLED", "the job to be cancelled")
    assert [pid for pid in pids if is_alive(pid)] == []


@pytest.mark.slow
def test_a_command_dies_with_its_worker(place: Place) -> None:
    _, pids = place.begin_sleeping()
    place.worker.kill()
    wait_until(lambda: not any(map(is_alive, pids)), "the command to be gone")


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_stopped(place: Place) -> None:
    job = place.headway("enqueue", "late", "--wait", "--timeout", "60s")
    assert job["status"] == "TIMED_OUT"
    assert [line["line"] for line in place.headway("jobs", "logs", job["id"])] == ["begun"]


@pytest.mark.slow
def test_a_request_is_retried_when_the_server_says(place: Place, server: tuple[str, list[str]]) -> None:
    """Long before the five minutes of its own backoff."""
    job = place.headway("enqueue", "hook", "-a", "order=7", "--wait", "--timeout", "60s")
    assert (job["status"], job["result"]) == ("COMPLETED", {"status": 200, "body": ""})
    assert server[1] == [f'{job["id"]} {attempt} {{"order":7}}' for attempt in (1, 2)]
