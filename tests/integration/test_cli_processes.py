"""The installed script in separate processes: signals, terminals, pipes, and a store that is late."""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headway.cli.root import run
from headway.store import postgres, primary
from tests.support import evidence
from tests.support.command_line import Cli, be_patient
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer
from tests.support.proxy import CLEAR, REFUSED, Proxies
from tests.support.server import free_port
from tests.support.waiting import DEADLINE_S, wait_until

HEADWAY = str(Path(sys.executable).with_name("headway"))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the timeouts of commands that run in this process, for a slow machine."""
    be_patient(monkeypatch)


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
        timeout=DEADLINE_S,
        check=False,
    )


def output_of(store: str, *args: str) -> Any:
    """Run a command in this process, which is faster; return its JSON output."""
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        assert run([*args, "--json", "--store", store]) == 0
    return json.loads(written.getvalue())


def output_in(folder: Path, *args: str) -> Any:
    """Run a command in a separate process, in a folder; return its JSON output."""
    done = headway(folder, *args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def file_store(folder: Path) -> str:
    return f"sqlite:///{folder / 'headway.db'}"


def rewrite(file: Path, text: str) -> None:
    """Replace a file atomically: no process sees it half written."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    new.replace(file)


@contextlib.contextmanager
def started(folder: Path, name: str, *args: str, **more: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run a long command with its output in a log file, and kill it at the end of the block."""
    log = evidence.log_file(f"headway {name}")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [HEADWAY, *args], cwd=folder, env=environment(**more), stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        yield process, log
    finally:
        process.kill()
        process.wait(DEADLINE_S)


def logged(log: Path, text: str) -> Callable[[], bool]:
    return lambda: text in log.read_text()


def on_terminal(folder: Path, *args: str, columns: int = 100, typed: str = "", **more: str) -> tuple[int, str]:
    """Run a command on a pseudo-terminal, type something; return its exit code and its output."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [HEADWAY, *args], cwd=folder, env=environment(**more), stdin=side, stdout=side, stderr=side
    )
    os.close(side)
    os.write(main, typed.encode())
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
    return process.wait(DEADLINE_S), written.decode()


def test_help_loads_neither_store_nor_engine(tmp_path: Path) -> None:
    """It takes under 0.3 s on an idle machine. Imports take most of the time, and they can be counted anywhere."""
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


def test_plain_command_does_not_load_the_validation_library(tmp_path: Path) -> None:
    code = (
        "import sys; from headway.cli.root import run; run(['migrate', '--store', 'sqlite:///x.db']);"
        "sys.exit(5 if 'pydantic' in sys.modules or 'rich' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0


def test_terminal_gets_colours_and_full_ids(tmp_path: Path) -> None:
    output_of(file_store(tmp_path), "schedules", "put", "daily", "--task", "t", "--every", "1h")
    job = output_of(file_store(tmp_path), "schedules", "trigger", "daily")["id"]
    for columns in (100, 20):
        code, text = on_terminal(tmp_path, "jobs", "list", columns=columns)
        assert code == 0
        assert job in text.replace("\r\n", "")
    assert "\x1b[" in on_terminal(tmp_path, "schedules", "list")[1]
    assert "\x1b[3" not in on_terminal(tmp_path, "schedules", "list", NO_COLOR="1")[1]
    code, text = on_terminal(tmp_path, "schedules", "list", "--json")
    assert "\x1b" not in text
    assert json.loads(text)[0]["name"] == "daily"


def test_reader_of_a_pipe_may_close_it(tmp_path: Path) -> None:
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


def test_destructive_command_asks_for_confirmation_on_a_terminal(tmp_path: Path) -> None:
    output_of(file_store(tmp_path), "schedules", "put", "daily", "--task", "t", "--every", "1h")
    code, text = on_terminal(tmp_path, "schedules", "remove", "daily", typed="n\n")
    assert code == 130, text
    assert output_of(file_store(tmp_path), "schedules", "show", "daily")["name"] == "daily"


APP = """
from headway import Every, Headway
app = Headway()

@app.task
def hello() -> str:
    print("saying hello")
    return "hello, world"

@app.task
def torn() -> None:
    raise ValueError("torn in two")

app.schedule("hello", hello, Every("1h"))
"""


def test_dev_reloads_the_app_and_survives_its_errors(tmp_path: Path) -> None:
    source = tmp_path / "shop.py"
    source.write_text(APP)
    with started(tmp_path, "dev", "dev", "shop:app") as (process, log):
        wait_until(logged(log, "schedules_synchronised app=shop"), "the app to run")
        job = output_of(file_store(tmp_path), "enqueue", "hello", "--wait", "--timeout", "90s")
        assert (job["status"], job["result"]) == ("COMPLETED", "hello, world")
        assert 'line="saying hello"' in next(line for line in log.read_text().splitlines() if job["id"] in line)
        lines = output_of(file_store(tmp_path), "jobs", "logs", job["id"])
        assert [(line["stream"], line["level"], line["line"]) for line in lines] == [("stdout", "info", "saying hello")]
        headway(tmp_path, "enqueue", "torn", "--wait", "--timeout", "90s")
        wait_until(
            logged(log, 'status=FAILED reason="raised, failure 1 of 1" error="ValueError: torn in two"'), "its error"
        )
        wait_until(logged(log, "raise ValueError("), "its traceback")
        rewrite(source, APP + "\noops(")
        wait_until(logged(log, "waiting_for_a_change"), "the error message")
        mistake = log.read_text().partition("restarting changed=shop.py")[2].splitlines()
        assert ["SyntaxError" in line for line in mistake] == [False, True, False], "the error is one line"
        assert mistake[1].startswith("headway: the app 'shop:app' cannot be imported from")
        rewrite(source, APP.replace("1h", "2h").replace("world", "you"))
        wait_until(logged(log, '"1 changed"'), "the changed schedule")
        job = output_of(file_store(tmp_path), "enqueue", "hello", "--wait", "--timeout", "90s")
        assert job["result"] == "hello, you"
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    assert output_of(file_store(tmp_path), "schedules", "show", "hello")["rule"] == "every 2h"
    assert output_of(file_store(tmp_path), "status")["nodes"] == []


def test_killed_dev_node_restarts_and_another_node_serves_the_api(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    own = {"HEADWAY_PORT": str(free_port())}
    url = f"http://127.0.0.1:{own['HEADWAY_PORT']}/livez"
    with started(tmp_path, "dev", "dev", "shop:app", **own) as (dev, log):
        wait_until(logged(log, "listening"), "the API of dev")
        with started(tmp_path, "serve", "serve", "--app", "shop:app", **own) as (serve, other):
            wait_until(logged(other, "no_API_here"), "the second node")
            [first] = re.findall(r"starting node=\S+ name=\S+-(\d+) ", log.read_text())
            os.kill(int(first), signal.SIGKILL)
            wait_until(logged(log, 'restarting reason="the node was killed by SIGKILL"'), "dev to notice")
            wait_until(lambda: len(re.findall(" starting node=", log.read_text())) == 2, "dev to restart")
            wait_until(
                lambda: (log.read_text() + other.read_text()).count("listening url=") == 2, "one of them to listen"
            )
            assert httpx.get(url, trust_env=False, timeout=DEADLINE_S).status_code == 200
            for process in (serve, dev):
                process.send_signal(signal.SIGTERM)
                assert process.wait(DEADLINE_S) == 0


def test_app_that_fails_to_load_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("raise RuntimeError('no database')")
    done = headway(tmp_path, "serve", "--app", "shop:app", "--port", "0")
    assert (done.returncode, done.stderr.count("no database"), done.stderr.count("\n")) == (2, 1, 1)


TASKS = """
[tasks.greet]
command = ["echo", "hello {who}"]

[schedules.greet]
task = "greet"
every = "1h"
args = {who = "you"}
"""


def test_dev_works_without_python_and_watches_headway_toml(tmp_path: Path) -> None:
    file = tmp_path / "headway.toml"
    file.write_text(TASKS)
    with started(tmp_path, "dev", "dev") as (process, log):
        wait_until(logged(log, "schedules_synchronised app=headway.toml"), "the app of the file to run")
        job = output_in(tmp_path, "enqueue", "greet", "-a", "who=world", "--wait", "--timeout", "90s")
        assert (job["status"], job["result"]) == ("COMPLETED", {"exit_code": 0})
        assert "hello world" in headway(tmp_path, "jobs", "logs", job["id"]).stdout
        rewrite(file, file.read_text().replace('"1h"', '"2h"'))
        wait_until(logged(log, "restarting changed=headway.toml"), "the reload")
        wait_until(logged(log, '"1 changed"'), "the changed schedule")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    refused = headway(tmp_path, "enqueue", "greet")
    assert (refused.returncode, "missing a required argument: 'who'" in refused.stderr) == (2, True)


def test_worker_without_tasks_names_the_options(tmp_path: Path) -> None:
    refused = headway(tmp_path, "worker")
    assert refused.returncode == 2
    assert refused.stderr.endswith(
        "a worker needs tasks: --app module:app, HEADWAY_APP, or [tasks.…] in headway.toml\n"
    )


# --- schedulers


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_stopped_scheduler_releases_its_lease(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = file_store(tmp_path) if kind == "sqlite" else request.getfixturevalue("postgres_url")
    output_of(store, "migrate")

    def status() -> Any:
        return output_of(store, "status")

    # Far longer than the test waits: only a released lease is taken over quickly.
    options = ("scheduler", "--leader-lease", "10m")
    with started(tmp_path, "one", *options, "--node", "one", HEADWAY_STORE=store) as (first, log):
        wait_until(logged(log, "leading role=scheduler/0"), "the first to lead")
        with started(tmp_path, "two", *options, "--node", "two", HEADWAY_STORE=store) as (second, second_log):
            wait_until(lambda: len(status()["nodes"]) == 2, "both to be alive")
            before = status()
            assert before["leader"]["name"] == "one"
            # Faults that a slow machine may add.
            slow = ("has been stuck for", "polls, because notifications do not reach it")
            assert [fault for fault in before["degraded"] if not any(words in fault for words in slow)] == []
            first.send_signal(signal.SIGTERM)
            wait_until(logged(second_log, "leading role=scheduler/0"), "the second to lead")
            assert first.wait(DEADLINE_S) == 0
            after = status()
            assert after["leader"]["name"] == "two"
            assert after["leader"]["token"] > before["leader"]["token"]
            assert log.read_text().splitlines()[-1].split(" ")[1:3] == ["info", "stopped"]
            second.send_signal(signal.SIGINT)
            assert second.wait(DEADLINE_S) == 0
    assert (status()["leader"], status()["nodes"]) == (None, [])


def test_decisions_are_logged_and_recorded(tmp_path: Path) -> None:
    store = file_store(tmp_path)
    every_instant = ("--overlap", "allow", "--missed", "all", "--catch-up-limit", "1000")  # Also on a slow machine.
    output_of(store, "schedules", "put", "beat", "--task", "t", "--every", "500ms", *every_instant)
    with started(tmp_path, "scheduler", "scheduler", "--json") as (process, log):
        wait_until(lambda: log.read_text().count('"decided"') >= 2, "two decisions")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert all({"at", "level", "event"} <= set(line) for line in lines)
    decided = next(line for line in lines if line["event"] == "decided")
    if "schedule" in decided:  # A busy machine decides several instants in one tick.
        assert (decided["schedule"], decided["outcome"]) == ("beat", "fired")
    assert {item["outcome"] for item in output_of(store, "schedules", "history", "beat")} == {"fired"}
    assert output_of(store, "audit")["ok"] is True


def test_foreign_schedule_does_not_prevent_the_start(tmp_path: Path) -> None:
    """A declared name that belongs to an operator is skipped and reported, in lock mode, beside another tenant."""
    store = file_store(tmp_path)
    often = ("--task", "t", "--every", "500ms", "--overlap", "allow")
    output_of(store, "schedules", "put", "nightly", "--task", "t", "--every", "9d")  # Before the app declares it.
    output_of(store, "schedules", "put", "acme/mine", *often)
    (tmp_path / "headway.toml").write_text(
        'name = "shop"\n[tasks.t]\ncommand = ["true"]\n'
        '[schedules.nightly]\ntask = "t"\nevery = "1h"\n[schedules.mine]\ntask = "t"\nevery = "1h"\n'
    )
    with started(tmp_path, "scheduler", "scheduler", HEADWAY_COORDINATION_MODE="lock") as (process, log):
        wait_until(logged(log, "schedules_synchronised"), "the app to synchronise its schedules")
        assert "1 created, 1 skipped" in log.read_text()
        wait_until(logged(log, "schedule=acme/mine"), "a decision for the other tenant")
        wait_until(lambda: output_of(store, "status")["nodes"], "a heartbeat of the node")
        fault = "the app 'shop' declares it too, and that is skipped: schedule 'nightly' belongs to no app or file"
        assert any(fault in words for words in output_of(store, "status")["degraded"])
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    stored = {(one["tenant"], one["name"]): one["rule"] for one in output_of(store, "schedules", "list")}
    assert stored == {
        ("acme", "mine"): "every 500ms",
        ("default", "mine"): "every 1h",
        ("default", "nightly"): "every 9d",
    }
    assert output_of(store, "audit")["ok"] is True


def test_scheduler_waiting_for_its_store_can_be_stopped(tmp_path: Path) -> None:
    with started(tmp_path, "s", "scheduler", "--store", "postgresql://u:s3cret@127.0.0.1:1/none") as (process, log):
        wait_until(logged(log, "waiting_for_the_store"), "the scheduler to wait for the store")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    assert "store=postgresql " in log.read_text()
    assert "postgresql://" not in log.read_text()


@pytest.mark.postgres
def test_scheduler_waits_for_an_unavailable_store(
    tmp_path: Path, postgres_server: PostgresServer, migrated_url: str
) -> None:
    with Proxies() as proxies:
        way = proxies.to(postgres_server.port)
        store = migrated_url.replace(f":{postgres_server.port}/", f":{way.port}/")
        way.set(REFUSED)
        with started(tmp_path, "late", "scheduler", HEADWAY_STORE=store) as (process, log):
            wait_until(logged(log, "waiting_for_the_store"), "the scheduler to wait for the store")
            assert run(["status", "--store", store]) == 5
            way.set(CLEAR)
            wait_until(logged(log, "leading role=scheduler/0"), "the scheduler to lead")
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0


@pytest.mark.postgres
def test_postgresql_must_be_migrated_first(cli: Cli, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "PROBE_S_MAX", DEADLINE_S)
    monkeypatch.setattr(primary, "CONNECT_S_MAX", DEADLINE_S)
    missing = "headway: the database has no Headway schema yet; run `headway migrate`"
    refused = headway(cli.folder, "scheduler", HEADWAY_STORE=postgres_url)
    assert (refused.returncode, refused.stderr.splitlines()[-1]) == (5, missing)
    monkeypatch.setenv("HEADWAY_STORE", postgres_url)
    early = cli("enqueue", "x")
    assert (early.code, early.err.splitlines()[-1]) == (5, missing)
    assert cli("migrate", "--json").json["before"] == 0
    assert cli("schedules", "put", "daily", "--task", "t", "--every", "1d", "--start", "2090-01-01").code == 0
    assert cli("schedules", "trigger", "daily", "--json").json["status"] == "PENDING"
    status = cli("status", "--json").json
    assert (status["store"]["kind"], status["schedules"]["total"]) == ("postgresql", 1)
    assert status["degraded"] == ["no scheduler is alive", "no worker is alive, and 1 job waits"]
    report = cli("doctor", "--json")
    marks = {check["check"]: check["mark"] for check in report.json["checks"]}
    assert (report.code, report.err) == (0, "")
    assert (marks["database"], marks["wake_ups"], marks["schema"], marks["audit"]) == ("ok", "ok", "ok", "ok")
    assert marks["durability"] == "warn"  # The test server does not fsync, which doctor reports.


@pytest.mark.postgres
def test_doctor_detects_a_connection_pooler(cli: Cli, migrated_url: str, pgbouncer: PgBouncer) -> None:
    report = cli("doctor", "--json", "--store", pgbouncer.url(migrated_url))
    checks = {check["check"]: check for check in report.json["checks"]}
    assert (report.code, checks["wake_ups"]["mark"]) == (0, "warn")
    assert "polling every 1s" in checks["wake_ups"]["text"]
