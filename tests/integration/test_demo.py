"""The demo as a newcomer runs it: what it shows, what it prints at the end, and that it leaves nothing behind.

The speed of the machine does not matter: sample jobs sleep a tenth of the time, a job that a test needs to see or kill
waits for it (`STAGE`), and the test ends the lease of a killed worker.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.cli.demo import NEXT_COMMANDS
from headway.cli.demo_board import DemoView, frame, story
from headway.cli.samples import app
from headway.core.instants import SECOND, parse_instant
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.core.schedules import Schedule
from tests.support import evidence
from tests.support.command_line import Cli
from tests.support.processes import marked
from tests.support.server import free_port
from tests.support.waiting import DEADLINE_S, wait_until

HEADWAY = str(Path(sys.executable).with_name("headway"))

# Python runs this in every process of the demo. The file `hold` has a number: a process waits at that call of sleep
# while the file exists. Thumbnails keep their duration, which is longer than the interval of their schedule.
STAGE = """
import os, sys, time, types
from importlib.machinery import PathFinder

HOLD, calls = os.path.join(os.environ["STAGE"], "hold"), 0


def sleep(seconds):
    global calls
    calls += 1
    time.sleep(seconds if seconds == 0.11 else seconds / 10)
    while os.path.exists(HOLD) and calls >= int(open(HOLD).read()):
        time.sleep(0.02)


def change(module):
    if module.__name__ == "headway.cli.samples":
        module.time = types.SimpleNamespace(sleep=sleep)
    else:
        module.WORKER_LEASE = 600 * module.SECOND


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name not in ("headway.cli.samples", "headway.cli.crash"):
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (execute(module), change(module))
        return spec


sys.meta_path.insert(0, Finder())
"""
AT_ONCE = 1
AFTER_TWO_THIRDS = 109  # Of transcode: after the progress at which its worker is killed.


@pytest.fixture
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose `sitecustomize` all processes of the demo load."""
    folder = tmp_path_factory.mktemp("stage")
    (folder / "sitecustomize.py").write_text(STAGE)
    return folder


def hold(stage: Path, calls: int) -> None:
    """Make sample jobs wait from now on, after this many calls of sleep."""
    (stage / "new").write_text(str(calls))
    (stage / "new").rename(stage / "hold")


def environment(folder: Path, stage: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    staged = {"STAGE": str(stage), "PYTHONPATH": str(stage)}
    return {**clean, "TMPDIR": str(folder), "TERM": "xterm-256color", "MARKED": str(folder), **staged}


def check_no_process_left(folder: Path) -> None:
    wait_until(lambda: not marked(f"MARKED={folder}"), "every process of the demo to end", every_s=0.1)


class Output:
    """The output of the demo, read as it arrives."""

    def __init__(self, source: int) -> None:
        self._source = source
        self.text = ""
        evidence.attach("headway demo", lambda: self.text)

    def read_until(self, *expected: str) -> str:
        end = time.monotonic() + DEADLINE_S
        while not all(text in self.text for text in expected):
            assert time.monotonic() < end, f"no {expected} within the deadline"
            if select.select([self._source], [], [], 0.5)[0]:
                chunk = os.read(self._source, 65536)
                assert chunk, f"the demo ended before it printed {expected}"
                self.text += chunk.decode(errors="replace")
        return self.text


@contextlib.contextmanager
def on_terminal(
    folder: Path, stage: Path, *args: str, size: tuple[int, int] = (80, 24), **variables: str
) -> Iterator[tuple[subprocess.Popen[bytes], Output]]:
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    process = subprocess.Popen(
        [HEADWAY, "demo", *args],
        cwd=folder,
        env={**environment(folder, stage), **variables},
        stdin=side,
        stdout=side,
        stderr=side,
        process_group=0,
    )
    os.close(side)
    try:
        yield process, Output(main)
    finally:
        process.kill()
        process.wait(DEADLINE_S)
        os.close(main)


@contextlib.contextmanager
def in_pipe(folder: Path, stage: Path, *args: str) -> Iterator[tuple[subprocess.Popen[bytes], Output]]:
    process = subprocess.Popen(
        [HEADWAY, "demo", *args],
        cwd=folder,
        env=environment(folder, stage),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        yield process, Output(process.stdout.fileno())
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def output_at_exit(process: subprocess.Popen[bytes], output: Output) -> str:
    """Wait for a successful exit; return all output."""
    output.text += process.communicate(timeout=DEADLINE_S)[0].decode()
    assert process.returncode == 0, output.text
    return output.text


def check_dashboard(output: Output, port: int) -> None:
    """Check that the dashboard answers on the requested port, which the demo prints."""
    output.read_until(f"Dashboard: http://127.0.0.1:{port}/")

    def is_alive() -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=DEADLINE_S) as seen,
        ):
            return bool(seen.status == 200)
        return False

    wait_until(is_alive, "the dashboard to answer", every_s=0.1)


@pytest.mark.slow
def test_piped_output_has_one_line_per_event(tmp_path: Path, stage: Path) -> None:
    """With the dashboard on the port of `--port`."""
    port = free_port()
    with in_pipe(tmp_path, stage, "--port", str(port)) as (process, output):
        check_dashboard(output, port)
        output.read_until(
            "recovered in attempt", "skipped", "thumbnails     completed", "heartbeat      fired      on time"
        )
        process.send_signal(signal.SIGINT)
        written = output_at_exit(process, output)
    lines = [re.sub(r"^\S+ \S+Z  ", "", line) for line in written.splitlines()]
    text = "\n".join(re.sub(r" +", " ", line) for line in lines)
    for expected in (
        "heartbeat fired on time",
        "import_orders retrying Crashed: its process was killed by SIGKILL\n",
    ):
        assert expected in text
    # Attempts that were handed back before they began have numbers as well.
    assert re.search(r"^import_orders started attempt \d+$", text, re.MULTILINE)
    assert re.search(
        r"^import_orders started attempt \d+; the batches that are done are not repeated$", text, re.MULTILINE
    )
    assert re.search(
        r'import_orders completed recovered in attempt \d+ in .*"imported by this attempt":\[5,6,7,8\]', text
    )
    assert re.search(r"thumbnails skipped job_\w+ has not ended", text)
    assert re.search(r"^jobs \d+ jobs completed, import_orders after its process was killed$", text, re.MULTILINE)
    assert re.search(r"^audit ok: 6 schedules, \d+ instants expected", text, re.MULTILINE)
    following = written.partition("\nNext:\n")[2].splitlines()
    assert [line.split("  ")[1] for line in following] == [
        command for command, _ in NEXT_COMMANDS if command != "headway demo"
    ]
    assert "\x1b" not in written
    assert list(tmp_path.iterdir()) == []
    check_no_process_left(tmp_path)


@pytest.mark.slow
def test_killed_worker_is_replaced_and_its_job_recovers(tmp_path: Path, stage: Path) -> None:
    hold(stage, AFTER_TWO_THIRDS)
    with in_pipe(tmp_path, stage, "crash") as (process, output):
        output.read_until("the store was not notified")
        killed = re.search(r"kill -9 (\d+):", output.text)
        assert killed
        wait_until(lambda: not Path(f"/proc/{killed[1]}").exists(), "the worker to die")
        (stage / "hold").unlink()
        expire_leases(tmp_path)
        written = output_at_exit(process, output)
    story = [re.sub(r"^ *[\d.]+s  ", "", line) for line in written.splitlines()]
    assert re.fullmatch(r"two workers on one store: one \(\d+\) and two \(\d+\)", story[0])
    while not story[2].startswith("kill -9"):  # It was handed back because it had to wait for a child process.
        del story[1]
    first = re.fullmatch(r"worker (one|two) runs transcode; .*", story[1])
    assert first
    second = "two" if first[1] == "one" else "one"
    assert re.fullmatch(rf"kill -9 \d+: worker {first[1]} is gone, with the process that ran the job", story[2])
    assert story[3].startswith("the store was not notified")
    again = re.fullmatch(rf"the lease expired: worker {second} runs attempt (\d+) of the same job", story[4])
    assert again
    assert any(re.fullmatch(r"completed: one job, \d+ attempts, one result", line) for line in story)
    table = [line.split()[:3] for line in written.partition("attempt  worker")[2].splitlines()]
    assert [row[1:] for row in table if "expired" in row or "completed" in row] == [
        [first[1], "expired"],
        [second, "completed"],
    ]
    assert "  headway dev jobs:app " in written
    assert list(tmp_path.iterdir()) == []
    check_no_process_left(tmp_path)


def expire_leases(folder: Path) -> None:
    """Expire the lease of every job of the demo."""
    [store] = folder.glob("headway-demo-*/headway.db")
    connection = sqlite3.connect(store, timeout=DEADLINE_S)
    with connection:
        connection.execute("update headway_jobs set lease_until = 1 where lease_until is not null")
    connection.close()


@pytest.mark.slow
def test_ctrl_c_stops_it_cleanly(tmp_path: Path, stage: Path) -> None:
    """With the dashboard on the port of the environment."""
    hold(stage, AT_ONCE)
    port = free_port()
    with on_terminal(tmp_path, stage, HEADWAY_PORT=str(port)) as (process, terminal):
        assert "import_orders" in terminal.read_until("Importing batches")
        check_dashboard(terminal, port)
        os.killpg(process.pid, signal.SIGINT)
        written = terminal.read_until("headway audit")
        assert process.wait(DEADLINE_S) == 0
    assert "Traceback" not in written
    assert "audit  ok: 6 schedules" in written
    assert list(tmp_path.iterdir()) == []
    check_no_process_left(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("scene", [(), ("crash",)], ids=["demo", "crash"])
def test_kill_9_leaves_no_process(scene: tuple[str, ...], tmp_path: Path, stage: Path) -> None:
    hold(stage, AT_ONCE)
    with on_terminal(tmp_path, stage, *scene) as (process, terminal):
        terminal.read_until("Download" if scene else "Importing batches")
        assert len(marked(f"MARKED={tmp_path}")) > 2
        process.kill()
        process.wait(DEADLINE_S)
        check_no_process_left(tmp_path)


@pytest.mark.slow
def test_json_output_is_the_audit(tmp_path: Path, stage: Path) -> None:
    done = subprocess.run(
        [HEADWAY, "demo", "--seconds", "1", "--json"],
        cwd=tmp_path,
        env=environment(tmp_path, stage),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True


def test_port_that_is_taken_or_invalid_is_reported(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = cli("demo", "--seconds", "1", "--port", port)
        assert (result.code, f"cannot listen on 127.0.0.1:{port}" in result.err) == (2, True), result.err
    result = cli("demo", "--seconds", "1", "--port", "many")
    assert (result.code, "--port" in result.err) == (2, True), result.err


def test_unknown_scene_is_rejected(cli: Cli) -> None:
    done = cli("demo", "smash")
    assert done.code == 2
    assert done.err == "headway: unknown demo 'smash'; use `headway demo` or `headway demo crash`\n"


# --- drawing

NOW = parse_instant("2027-01-01T00:00:00Z")


def job(task: str, status: Status = Status.RUNNING, **more: object) -> Job:
    values: dict[str, object] = {
        "id": f"job_{task}",
        "task": task,
        "status": status,
        "tenant": "default",
        "queue": "default",
        "priority": 0,
        "args": "{}",
        "created_at": NOW - 60 * SECOND,
        "run_at": NOW - 60 * SECOND,
        "max_attempts": 3,
        "attempt": 1,
        "started_at": NOW - 10 * SECOND,
        "updated_at": NOW,
    }
    return Job(**{**values, **more})  # type: ignore[arg-type]


def texts(picture: DemoView, width: int, height: int) -> list[str]:
    return ["".join(piece for piece, _ in line) for line in frame(picture, width, height)]


@pytest.mark.parametrize("size", [(80, 23), (120, 39), (60, 20), (200, 60), (40, 10)])
def test_frame_fits_and_keeps_its_height(size: tuple[int, int]) -> None:
    width, height = size
    schedules = [
        Schedule(name=name, spec=spec, decided_through=NOW, next_at=NOW + 7 * SECOND)
        for name, spec in app.declared.items()
    ]
    empty = DemoView(now=NOW, elapsed=SECOND, jobs=[], schedules=schedules)
    detail = json.dumps({"step": "A step with a very long name " * 5, "eta": 90})
    many = [job(f"task_{n}", progress=n, detail=detail) for n in range(30)]
    over = [
        job(f"long_name_of_a_task_{n}", Status.COMPLETED, result='"\x1b[31m' + "x" * 500, finished_at=NOW)
        for n in range(30)
    ]
    retrying = job("import_orders", Status.RETRYING, reason="crashed, failure 1 of 3, retrying", run_at=NOW + SECOND)
    full = DemoView(now=NOW, elapsed=SECOND, jobs=[retrying, *many, *over], schedules=schedules, note="n" * 300)
    lines = texts(full, width, height)
    assert len(lines) <= height
    assert len(texts(empty, width, height)) == len(lines)
    if width >= 60:
        assert max(map(len, lines)) <= width, max(lines, key=len)
    assert not any("\x1b" in line for line in lines)
    if size == (80, 23):
        assert "  import_orders  crashed, failure 1 of 3, retrying, in 1s" in lines
        assert any(re.fullmatch(r"  nightly +30 2 \* \* \* Europe/Berlin +in 7s +", line) for line in lines)


def test_story_follows_the_job() -> None:
    def text_for(hero: Job | None) -> str:
        lines = story(hero, NOW)
        assert 1 <= len(lines) <= 2
        assert max(len(text) for text, _ in lines) <= 80
        return " ".join(text for text, _ in lines)

    assert "will kill its own process" in text_for(None)
    assert "will kill its own process" in text_for(job("import_orders", attempt=2)), "attempt 1 was handed back"
    assert "starts again in 2s" in text_for(job("import_orders", Status.RETRYING, failures=1, run_at=NOW + 2 * SECOND))
    assert "Attempt 2 runs: batches 1 to 4 are not repeated" in text_for(job("import_orders", attempt=2, failures=1))
    assert "recovered" in text_for(job("import_orders", Status.COMPLETED, attempt=2, failures=1))
