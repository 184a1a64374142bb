"""The demo as a newcomer calls it: what it shows, what it says at the end, and that nothing of it stays behind."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.cli.board import Picture, frame, story
from headway.cli.demo import NEXT_COMMANDS
from headway.cli.samples import app
from headway.instants import SECOND, parse_instant
from headway.lifecycle import Status
from headway.model import Job, Schedule
from tests.support.server import free_port

HEADWAY = str(Path(sys.executable).with_name("headway"))
WAIT_S_MAX = 60.0


def environment(folder: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    return {**clean, "TMPDIR": str(folder), "TERM": "xterm-256color", "MARKED": str(folder)}


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HEADWAY, "demo", *args],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def left_behind(folder: Path) -> list[str]:
    """Return the command lines of living processes that were started from this folder's environment."""
    mark, found = f"MARKED={folder}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def nothing_is_left(folder: Path) -> None:
    end = time.monotonic() + WAIT_S_MAX
    while processes := left_behind(folder):
        assert time.monotonic() < end, processes
        time.sleep(0.05)


@contextlib.contextmanager
def on_terminal(
    folder: Path, *args: str, size: tuple[int, int] = (80, 24)
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    process = subprocess.Popen(
        [HEADWAY, "demo", *args],
        cwd=folder,
        env=environment(folder),
        stdin=side,
        stdout=side,
        stderr=side,
        process_group=0,
    )
    os.close(side)
    try:
        yield process, main
    finally:
        process.kill()
        process.wait(WAIT_S_MAX)
        os.close(main)


def read_until(source: int, *expected: str) -> str:
    written, end = "", time.monotonic() + WAIT_S_MAX
    while not all(text in written for text in expected):
        assert time.monotonic() < end, f"waited in vain for {expected}: {written[-3000:]}"
        if select.select([source], [], [], 0.5)[0]:
            written += os.read(source, 65536).decode(errors="replace")
    return written


def run_until(folder: Path, *expected: str) -> str:
    """Run the demo in a pipe until everything has been said, then have it end; return what it said."""
    process = subprocess.Popen(
        [HEADWAY, "demo"], cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    try:
        written = read_until(process.stdout.fileno(), *expected)
        process.send_signal(signal.SIGINT)
        written += process.communicate(timeout=WAIT_S_MAX)[0].decode()
        assert process.returncode == 0, written
        return written
    finally:
        process.kill()
        process.wait(WAIT_S_MAX)


@pytest.mark.slow
def test_in_a_pipe_everything_that_happens_is_a_line(tmp_path: Path) -> None:
    written = run_until(tmp_path, "recovered in attempt 2", "skipped", "thumbnails     completed")
    lines = [re.sub(r"^\S+ \S+Z  ", "", line) for line in written.splitlines()]
    text = "\n".join(re.sub(r" +", " ", line) for line in lines)
    for expected in (
        "heartbeat fired on time",
        "import_orders started attempt 1\n",
        "import_orders retrying Crashed: its process was killed by SIGKILL\n",
        "import_orders started attempt 2; the batches that are done are not repeated\n",
    ):
        assert expected in text
    assert re.search(
        r'import_orders completed recovered in attempt 2 in .*"imported by this attempt":\[5,6,7,8\]', text
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
    nothing_is_left(tmp_path)


@pytest.mark.slow
def test_a_worker_is_killed_and_its_job_recovers(tmp_path: Path) -> None:
    done = run(tmp_path, "crash")
    assert (done.returncode, done.stderr) == (0, "")
    story = [re.sub(r"^ *[\d.]+s  ", "", line) for line in done.stdout.splitlines()]
    assert re.fullmatch(r"two workers on one store: one \(\d+\) and two \(\d+\)", story[0])
    first = re.fullmatch(r"worker (one|two) runs transcode; .*", story[1])
    assert first
    second = "two" if first[1] == "one" else "one"
    assert re.fullmatch(rf"kill -9 \d+: worker {first[1]} is gone, with the process that ran the job", story[2])
    assert story[3].startswith("nobody told the store")
    assert story[4] == f"the lease ran out: worker {second} runs attempt 2 of the same job"
    assert "completed: one job, two attempts, one result" in story
    table = done.stdout.partition("attempt  worker")[2].splitlines()[1:3]
    assert [line.split()[:3] for line in table] == [["1", first[1], "expired"], ["2", second, "completed"]]
    assert "  headway dev jobs:app " in done.stdout
    assert list(tmp_path.iterdir()) == []
    nothing_is_left(tmp_path)


@pytest.mark.slow
def test_ctrl_c_ends_it_in_good_order(tmp_path: Path) -> None:
    with on_terminal(tmp_path) as (process, terminal):
        assert "import_orders" in read_until(terminal, "Importing batches")
        os.killpg(process.pid, signal.SIGINT)
        written = read_until(terminal, "headway audit")
        assert process.wait(WAIT_S_MAX) == 0
    assert "Traceback" not in written
    assert "audit  ok: 6 schedules" in written
    assert list(tmp_path.iterdir()) == []
    nothing_is_left(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("scene", [(), ("crash",)], ids=["demo", "crash"])
def test_kill_9_leaves_no_process(scene: tuple[str, ...], tmp_path: Path) -> None:
    with on_terminal(tmp_path, *scene) as (process, terminal):
        read_until(terminal, "Download" if scene else "Importing batches")
        assert len(left_behind(tmp_path)) > 2
        process.kill()
        process.wait(WAIT_S_MAX)
        nothing_is_left(tmp_path)


@pytest.mark.slow
def test_json_is_the_audit(tmp_path: Path) -> None:
    done = run(tmp_path, "--seconds", "2", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"]) == (0, True)


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_the_dashboard_is_where_it_is_wanted(how: str, tmp_path: Path) -> None:
    port = free_port()
    options, said = (["--port", str(port)], {}) if how == "flag" else ([], {"HEADWAY_PORT": str(port)})
    process = subprocess.Popen(
        [HEADWAY, "demo", *options],
        cwd=tmp_path,
        env={**environment(tmp_path), **said},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        read_until(process.stdout.fileno(), f"Dashboard: http://127.0.0.1:{port}/", "started")
        end = time.monotonic() + WAIT_S_MAX
        while True:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=5) as seen,
            ):
                assert seen.status == 200
                break
            assert time.monotonic() < end
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S_MAX)


def test_a_port_that_is_taken_or_wrong_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = run(tmp_path, "--seconds", "1", "--port", port)
        assert (result.returncode, f"cannot listen on 127.0.0.1:{port}" in result.stderr) == (2, True), result.stderr
    result = run(tmp_path, "--seconds", "1", "--port", "many")
    assert (result.returncode, "--port" in result.stderr) == (2, True), result.stderr


def test_another_scene_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "smash")
    assert done.returncode == 2
    assert done.stderr == "headway: there is no demo 'smash'; there are `headway demo` and `headway demo crash`\n"


# --- the picture

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


def texts(picture: Picture, width: int, height: int) -> list[str]:
    return ["".join(piece for piece, _ in line) for line in frame(picture, width, height)]


@pytest.mark.parametrize("size", [(80, 23), (120, 39), (60, 20), (200, 60), (40, 10)])
def test_a_frame_fits_and_keeps_its_height(size: tuple[int, int]) -> None:
    width, height = size
    schedules = [
        Schedule(name=name, spec=spec, decided_through=NOW, next_at=NOW + 7 * SECOND)
        for name, spec in app.declared.items()
    ]
    empty = Picture(now=NOW, elapsed=SECOND, jobs=[], schedules=schedules)
    detail = json.dumps({"step": "A step with a very long name " * 5, "eta": 90})
    many = [job(f"task_{n}", progress=n, detail=detail) for n in range(30)]
    over = [
        job(f"long_name_of_a_task_{n}", Status.COMPLETED, result='"\x1b[31m' + "x" * 500, finished_at=NOW)
        for n in range(30)
    ]
    retrying = job("import_orders", Status.RETRYING, reason="crashed, failure 1 of 3, retrying", run_at=NOW + SECOND)
    full = Picture(now=NOW, elapsed=SECOND, jobs=[retrying, *many, *over], schedules=schedules, note="n" * 300)
    lines = texts(full, width, height)
    assert len(lines) <= height
    assert len(texts(empty, width, height)) == len(lines)
    if width >= 60:
        assert max(map(len, lines)) <= width, max(lines, key=len)
    assert not any("\x1b" in line for line in lines)
    if size == (80, 23):
        assert "  import_orders  crashed, failure 1 of 3, retrying, in 1s" in lines
        assert any(re.fullmatch(r"  nightly +30 2 \* \* \* Europe/Berlin +in 7s +", line) for line in lines)


def test_the_story_follows_the_job() -> None:
    def told(hero: Job | None) -> str:
        lines = story(hero, NOW)
        assert 1 <= len(lines) <= 2
        assert max(len(text) for text, _ in lines) <= 80
        return " ".join(text for text, _ in lines)

    assert "will kill its own process" in told(None)
    assert "will kill its own process" in told(job("import_orders"))
    assert "starts again in 2s" in told(job("import_orders", Status.RETRYING, run_at=NOW + 2 * SECOND))
    assert "Attempt 2 runs: batches 1 to 4 are not repeated" in told(job("import_orders", attempt=2))
    assert "recovered" in told(job("import_orders", Status.COMPLETED, attempt=2))
