"""The installed script in processes of its own: signals, terminals, pipes, and a store that comes late."""

import contextlib
import fcntl
import io
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.cli.root import run
from tests.support.postgres import PostgresServer

HEADWAY = str(Path(sys.executable).with_name("headway"))
WAIT_S_MAX = 30.0


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    return {name: value for name, value in clean.items() if name != "NO_COLOR"} | {"TERM": "xterm-256color", **more}


def headway(folder: Path, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HEADWAY, *args],
        cwd=folder,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def told(store: str, *args: str) -> Any:
    """Ask in this process, which is quicker."""
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        assert run([*args, "--json", "--store", store]) == 0
    return json.loads(written.getvalue())


def told_in(folder: Path, *args: str) -> Any:
    """Ask in a process of its own, in a folder."""
    done = headway(folder, *args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def file_store(folder: Path) -> str:
    return f"sqlite:///{folder / 'headway.db'}"


def wait_until(is_so: Callable[[], bool], what: str, within_s: float = WAIT_S_MAX) -> float:
    """Wait for something to become so, and return how long it took."""
    begin = time.monotonic()
    while not is_so():
        assert time.monotonic() - begin < within_s, f"waited {within_s:g} s in vain: {what}"
        time.sleep(0.05)
    return time.monotonic() - begin


@contextlib.contextmanager
def started(folder: Path, name: str, *args: str, **more: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run a long command with its output in a file, and end it with the block."""
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [HEADWAY, *args], cwd=folder, env=environment(**more), stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        yield process, log
    finally:
        process.kill()
        process.wait(WAIT_S_MAX)


def says(log: Path, text: str) -> Callable[[], bool]:
    return lambda: text in log.read_text()


def on_terminal(folder: Path, *args: str, columns: int = 100, **more: str) -> tuple[int, str]:
    """Run a command on a terminal of its own and return its exit code and what it wrote there."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [HEADWAY, *args], cwd=folder, env=environment(**more), stdin=side, stdout=side, stderr=side
    )
    os.close(side)
    written = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # The other side is closed.
            break
        if not part:
            break
        written += part
    os.close(main)
    return process.wait(WAIT_S_MAX), written.decode()


def test_help_needs_neither_store_nor_engine(tmp_path: Path) -> None:
    """Under 0.3 s on a machine at rest. What costs time is what is loaded, and that can be counted anywhere."""
    code = (
        "import sys; from headway.cli.root import run; run(['--help']);"
        "heavy = {'asyncio', 'msgspec', 'sqlite3', 'rich', 'pydantic', 'headway.app', 'headway.store'};"
        "sys.exit(f'loaded: {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: headway [OPTIONS] COMMAND")
    shown = headway(tmp_path, "--help")
    for name in ("demo", "dev", "scheduler", "migrate", "status", "doctor", "schedules", "audit", "enqueue", "jobs"):
        assert f"\n  {name} " in shown.stdout


def test_a_plain_command_does_not_load_the_validation_library(tmp_path: Path) -> None:
    code = (
        "import sys; from headway.cli.root import run; run(['migrate', '--store', 'sqlite:///x.db']);"
        "sys.exit(5 if 'pydantic' in sys.modules or 'rich' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0


def test_a_terminal_gets_colours_unless_told_otherwise_and_whole_ids(tmp_path: Path) -> None:
    told(file_store(tmp_path), "schedules", "put", "daily", "--task", "t", "--every", "1h")
    job = told(file_store(tmp_path), "schedules", "trigger", "daily")["id"]
    for columns in (100, 20):
        code, text = on_terminal(tmp_path, "jobs", "list", columns=columns)
        assert code == 0
        assert job in text.replace("\r\n", "")
    assert "\x1b[" in on_terminal(tmp_path, "schedules", "list")[1]
    assert "\x1b[3" not in on_terminal(tmp_path, "schedules", "list", NO_COLOR="1")[1]
    code, text = on_terminal(tmp_path, "schedules", "list", "--json")
    assert "\x1b" not in text
    assert json.loads(text)[0]["name"] == "daily"


def test_whoever_reads_may_stop_reading(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [HEADWAY, "schedules", "preview", "--every", "1s", "-n", "1000"],
        cwd=tmp_path,
        env=environment(),
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_destructive_command_asks_on_a_terminal(tmp_path: Path) -> None:
    told(file_store(tmp_path), "schedules", "put", "daily", "--task", "t", "--every", "1h")
    main, side = pty.openpty()
    process = subprocess.Popen(
        [HEADWAY, "schedules", "remove", "daily"],
        cwd=tmp_path,
        env=environment(),
        stdin=side,
        stdout=side,
        stderr=side,
    )
    os.close(side)
    os.write(main, b"n\n")
    assert process.wait(WAIT_S_MAX) == 130
    os.close(main)
    assert told(file_store(tmp_path), "schedules", "show", "daily")["name"] == "daily"


APP = """
from headway import Every, Headway
app = Headway()

@app.task
def hello() -> str:
    return "hello, world"

app.schedule("hello", hello, Every("1h"))
"""


def test_dev_runs_jobs_restarts_when_the_app_changes_and_survives_its_mistakes(tmp_path: Path) -> None:
    source = tmp_path / "shop.py"
    source.write_text(APP)
    with started(tmp_path, "dev", "dev", "shop:app") as (process, log):
        wait_until(says(log, "schedules_synchronised app=shop"), "the app to run")
        job = told(file_store(tmp_path), "enqueue", "hello", "--wait", "--timeout", "60s")
        assert (job["status"], job["result"]) == ("COMPLETED", "hello, world")
        source.write_text(APP + "\noops(")
        wait_until(says(log, "waiting_for_a_change"), "the mistake to be told")
        mistake = log.read_text().partition("restarting changed=shop.py")[2].splitlines()
        assert ["SyntaxError" in line for line in mistake] == [False, True, False], "one line says what is wrong"
        assert mistake[1].startswith("headway: the app 'shop:app' cannot be imported from")
        source.write_text(APP.replace("1h", "2h").replace("world", "you"))
        wait_until(says(log, '"1 changed"'), "the change to arrive")
        job = told(file_store(tmp_path), "enqueue", "hello", "--wait", "--timeout", "60s")
        assert job["result"] == "hello, you"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S_MAX) == 0
    assert told(file_store(tmp_path), "schedules", "show", "hello")["rule"] == "every 2h"
    assert told(file_store(tmp_path), "status")["nodes"] == []


TASKS = """
[tasks.greet]
command = ["echo", "hello {who}"]

[schedules.greet]
task = "greet"
every = "1h"
args = {who = "you"}
"""


def test_dev_needs_no_python_and_watches_the_file_of_settings(tmp_path: Path) -> None:
    file = tmp_path / "headway.toml"
    file.write_text(TASKS)
    with started(tmp_path, "dev", "dev") as (process, log):
        wait_until(says(log, "schedules_synchronised app=headway.toml"), "the file to be an app")
        job = told_in(tmp_path, "enqueue", "greet", "-a", "who=world", "--wait", "--timeout", "60s")
        assert (job["status"], job["result"]) == ("COMPLETED", {"exit_code": 0})
        assert "hello world" in headway(tmp_path, "jobs", "logs", job["id"]).stdout
        file.write_text(file.read_text().replace('"1h"', '"2h"'))
        wait_until(says(log, "restarting changed=headway.toml"), "the change to be seen")
        wait_until(says(log, '"1 changed"'), "the change to arrive")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S_MAX) == 0
    refused = headway(tmp_path, "enqueue", "greet")
    assert (refused.returncode, "missing a required argument: 'who'" in refused.stderr) == (2, True)


def test_a_worker_without_tasks_says_where_they_could_be(tmp_path: Path) -> None:
    refused = headway(tmp_path, "worker")
    assert refused.returncode == 2
    assert refused.stderr.endswith(
        "a worker needs tasks: --app module:app, HEADWAY_APP, or [tasks.…] in headway.toml\n"
    )


# --- schedulers


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_a_stopped_scheduler_hands_its_lease_over(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = file_store(tmp_path) if kind == "sqlite" else request.getfixturevalue("postgres_url")
    told(store, "migrate")

    def status() -> Any:
        return told(store, "status")

    options = ("scheduler", "--leader-lease", "60s")  # Far longer than the test waits: only a hand-over is quick.
    with started(tmp_path, "one", *options, "--node", "one", HEADWAY_STORE=store) as (first, log):
        wait_until(says(log, "leading role=scheduler/0"), "the first to lead")
        with started(tmp_path, "two", *options, "--node", "two", HEADWAY_STORE=store) as (second, second_log):
            wait_until(lambda: len(status()["nodes"]) == 2, "both to be alive")
            before = status()
            assert (before["leader"]["name"], before["degraded"]) == ("one", [])
            first.send_signal(signal.SIGTERM)
            wait_until(says(second_log, "leading role=scheduler/0"), "the second to lead", 10)
            assert first.wait(WAIT_S_MAX) == 0
            after = status()
            assert after["leader"]["name"] == "two"
            assert after["leader"]["token"] > before["leader"]["token"]
            assert log.read_text().splitlines()[-1].split(" ")[1:3] == ["info", "stopped"]
            second.send_signal(signal.SIGINT)
            assert second.wait(WAIT_S_MAX) == 0
    assert (status()["leader"], status()["nodes"]) == (None, [])


def test_decisions_are_logged_and_recorded(tmp_path: Path) -> None:
    store = file_store(tmp_path)
    told(store, "schedules", "put", "beat", "--task", "t", "--every", "500ms", "--overlap", "allow")
    with started(tmp_path, "scheduler", "scheduler", "--json") as (process, log):
        wait_until(lambda: log.read_text().count('"decided"') >= 2, "two decisions")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S_MAX) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert all({"at", "level", "event"} <= set(line) for line in lines)
    decided = next(line for line in lines if line["event"] == "decided")
    if "schedule" in decided:  # A machine that is busy decides several instants in one tick.
        assert (decided["schedule"], decided["outcome"]) == ("beat", "fired")
    assert {item["outcome"] for item in told(store, "schedules", "history", "beat")} == {"fired"}
    assert told(store, "audit")["ok"] is True


def test_a_scheduler_that_waits_for_its_store_can_be_stopped(tmp_path: Path) -> None:
    with started(tmp_path, "s", "scheduler", "--store", "postgresql://u:s3cret@127.0.0.1:1/none") as (process, log):
        wait_until(says(log, "waiting_for_the_store"), "it to wait for the store")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S_MAX) == 0
    assert "store=postgresql " in log.read_text()
    assert "postgresql://" not in log.read_text()


@pytest.mark.postgres
def test_a_scheduler_waits_for_a_store_that_is_down_and_then_works(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("postgres_server")  # Skips, or fails, where there is no PostgreSQL.
    with PostgresServer() as server:
        store = server.create_database()
        told(store, "migrate")
        server.stop()
        assert headway(tmp_path, "status", HEADWAY_STORE=store).returncode == 5
        with started(tmp_path, "late", "scheduler", HEADWAY_STORE=store) as (process, log):
            wait_until(says(log, "waiting_for_the_store"), "it to say that it waits")
            server.start()
            wait_until(says(log, "leading role=scheduler/0"), "it to lead")
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S_MAX) == 0


@pytest.mark.postgres
def test_postgresql_must_be_migrated_first_and_then_everything_works(tmp_path: Path, postgres_url: str) -> None:
    for args in (("scheduler",), ("enqueue", "x")):
        refused = headway(tmp_path, *args, HEADWAY_STORE=postgres_url)
        assert refused.returncode == 5
        assert refused.stderr.splitlines()[-1] == (
            "headway: the database has no Headway schema yet; run `headway migrate`"
        )
    assert told(postgres_url, "migrate")["before"] == 0
    told(postgres_url, "schedules", "put", "daily", "--task", "t", "--cron", "0 6 * * *", "--tz", "Europe/Berlin")
    assert told(postgres_url, "schedules", "trigger", "daily")["status"] == "PENDING"
    status = told(postgres_url, "status")
    assert (status["store"]["kind"], status["schedules"]["total"]) == ("postgresql", 1)
    assert status["degraded"] == ["no scheduler is alive", "no worker is alive, and 1 job waits"]
    report = headway(tmp_path, "doctor", "--json", HEADWAY_STORE=postgres_url)
    marks = {check["check"]: check["mark"] for check in json.loads(report.stdout)["checks"]}
    assert (report.returncode, report.stderr) == (0, "")
    assert (marks["database"], marks["wake_ups"], marks["schema"], marks["audit"]) == ("ok", "ok", "ok", "ok")
    assert marks["durability"] == "warn"  # The tests' server does not wait for its disk, and says so.


@pytest.mark.postgres
def test_doctor_sees_a_pooler_in_between(tmp_path: Path, postgres_url: str, request: pytest.FixtureRequest) -> None:
    pooled = request.getfixturevalue("pgbouncer").url(postgres_url)
    told(postgres_url, "migrate")
    report = headway(tmp_path, "doctor", "--json", HEADWAY_STORE=pooled)
    checks = {check["check"]: check for check in json.loads(report.stdout)["checks"]}
    assert (report.returncode, checks["wake_ups"]["mark"]) == (0, "warn")
    assert "polling every 1s" in checks["wake_ups"]["text"]
