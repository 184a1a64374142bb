"""Command tasks: arguments, output, outcome, and cleanup of subprocesses."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from headway import Cron, Headway, InvalidTask, Retry
from headway.core.instants import parse_instant
from headway.core.job_logs import LOG_BYTES_MAX
from headway.core.settings import Settings
from headway.tasks.context import TaskStopped
from headway.tasks.execution import memory_limit
from headway.testing import virtual
from headway.worker import command as commands
from headway.worker.command import TAIL_LINES, CommandFailed, CommandRefused, command
from tests.support.contexts import Listener, new_context
from tests.support.processes import is_alive
from tests.support.waiting import DEADLINE_S, wait_until

SHOW = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the reader of a command's output enough time on a slow machine."""
    monkeypatch.setattr(commands, "DRAIN_S", DEADLINE_S)


def run(argv: list[str], options: dict[str, Any] | None = None, **args: Any) -> tuple[Any, Listener]:
    context, listener = new_context()
    return command(argv, **(options or {}))(context, **args), listener


def given(argv: list[str], **args: Any) -> list[str]:
    """Return the arguments that a program actually received."""
    _, listener = run([*SHOW, *argv], **args)
    found: list[str] = json.loads("".join(listener.texts("stdout")))
    return found


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


# --- arguments


def test_argument_stays_within_its_list_element() -> None:
    nasty = "a b\"; rm -rf / $(id) `id` ' \n *"
    assert given(["--file", "/backups/{day}.sql", "{day}", "{n}-{flag}"], day=nasty, n=7, flag=True) == [
        "--file",
        f"/backups/{nasty}.sql",
        nasty,
        "7-true",
    ]


def test_braces_are_escaped_by_doubling_and_other_placeholders_are_rejected() -> None:
    assert given(["{{print}}", "{x}{{{y}}}"], x="1", y="2") == ["{print}", "1{2}"]
    for wrong in ("{", "}", "{print $1}", "{a!r}", "{0}", "{a:>10}"):
        with pytest.raises(InvalidTask, match="brace"):
            command(["echo", wrong])


@pytest.mark.parametrize("value", ["-rf", "--output=/etc/passwd", -5, "-"])
def test_value_cannot_become_an_option(value: object) -> None:
    context, _ = new_context()
    with pytest.raises(CommandRefused, match=r'x must not begin with "-"'):
        command([*SHOW, "{x}"])(context, x=value)
    with pytest.raises(CommandRefused):
        command([*SHOW, "{empty}{x}"])(context, empty="", x=value)
    assert given(["--", "{x}"], x=value) == ["--", str(value)]
    assert given(["--name={x}"], x=value) == [f"--name={value}"]


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, "a\0b"])
def test_value_that_is_not_text_is_rejected(value: object) -> None:
    context, _ = new_context()
    with pytest.raises(CommandRefused, match="x must be text or a number"):
        command([*SHOW, "{x}"])(context, x=value)


@pytest.mark.parametrize("argv", ["ls -l", [], [""], ["{program}"], ["ls", 5], ["ls", "a\0b"], None])
def test_command_is_a_list_with_a_fixed_program(argv: Any) -> None:
    with pytest.raises(InvalidTask):
        command(argv)


def test_arguments_are_checked_on_enqueue() -> None:
    app = Headway(settings=Settings(store="sqlite://"), name="t")
    backup = app.command("backup", ["pg_dump", "--file", "{day}", "{table}"], queue="slow", timeout="30m")
    assert backup.bind((), {"day": "x", "table": "y"}) == {"day": "x", "table": "y"}
    for wrong in ({"day": "x"}, {"day": "x", "table": "y", "more": 1}):
        with pytest.raises(InvalidTask, match="backup"):
            backup.bind((), wrong)
    assert (backup.wants_context, backup.execution.isolation, backup.defaults.queue) == (True, "process", "slow")
    with pytest.raises(InvalidTask, match="two tasks are named 'backup'"):
        app.command("backup", ["ls"])
    with pytest.raises(InvalidTask, match="cannot be used"):
        app.command("odd", ["echo", "{import}"])


def test_invalid_arguments_are_not_retried() -> None:
    app = Headway(settings=Settings(store="sqlite://"), name="t")
    for task in (
        app.command("a", ["ls"]),
        app.command("b", ["ls"], retry=Retry(max_attempts=5, backoff="1s..9s", give_up_on=KeyError)),
    ):
        assert task.execution.retry is not None
        assert not task.execution.retry.retries(CommandRefused("no"))
        assert task.execution.retry.retries(CommandFailed("no"))
        assert task.execution.retry.retries(KeyError()) is (task.name == "a")
    assert (task.defaults.max_attempts, str(task.defaults.backoff)) == (5, "1s..9s")


def test_environment_is_limited_to_the_listed_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "HEADWAY_STORE", "LD_PRELOAD_X", "PYTHONPATH"):
        monkeypatch.setenv(name, "secret")
    for name in ("LANG", "LC_ALL", "TZ", "HOME", "TMPDIR", "USER"):
        monkeypatch.setenv(name, "C.UTF-8")
    argv = [sys.executable, "-c", "import json, os; print(json.dumps([dict(os.environ), os.getcwd()]))"]
    _, listener = run(argv, {"env": {"PGUSER": "ada", "TZ": "UTC"}, "cwd": tmp_path})
    seen, folder = json.loads(listener.texts("stdout")[0])
    assert folder == str(tmp_path.resolve())
    assert seen == {
        **dict.fromkeys(("LANG", "LC_ALL", "HOME", "TMPDIR", "USER"), "C.UTF-8"),
        "PATH": os.environ["PATH"],
        "PGUSER": "ada",
        "TZ": "UTC",
        "HEADWAY_JOB_ID": "job_test",
        "HEADWAY_ATTEMPT": "2",
        "HEADWAY_FENCING_TOKEN": "2",
        "HEADWAY_TENANT": "default",
    }
    for wrong in (["A=B"], {"A=B": "x"}, {"A": 1}, {"A": "a\0"}, {1: "x"}):
        with pytest.raises(InvalidTask, match="env"):
            command(["ls"], env=wrong)  # type: ignore[arg-type]


def test_configured_variables_reach_the_command() -> None:
    said = {"HEADWAY_TOKEN": "for the API", "HEADWAY_JOB_ID": "mine"}
    _, listener = run(shell("echo $HEADWAY_TOKEN, $HEADWAY_JOB_ID, $HEADWAY_FENCING_TOKEN"), {"env": said})
    assert listener.texts("stdout") == ["for the API, mine, 2"]


def test_scheduled_command_gets_its_schedule_and_instant() -> None:
    names = ("JOB_ID", "ATTEMPT", "TENANT", "SCHEDULE", "OCCURRENCE_AT")
    told = " ".join(["echo", *(f'"$HEADWAY_{name}"' for name in names), '"$1"'])
    script = [*shell(told), "sh", "at={occurrence}"]
    instant = parse_instant("2027-01-31T06:00:00Z")
    context, listener = new_context(tenant="acme", schedule="nightly", occurrence_at=instant)
    command(script)(context)
    told = "job_test 2 acme nightly 2027-01-31T06:00:00Z"
    assert listener.texts("stdout") == [f"{told} at=2027-01-31T06:00:00Z"]
    again, listener = new_context(tenant="acme", schedule="nightly", occurrence_at=instant)
    command(script)(again, occurrence="another day")  # An argument of the job takes precedence.
    assert listener.texts("stdout") == [f"{told} at=another day"]


def test_occurrence_without_an_instant_is_an_ordinary_argument() -> None:
    by_hand, listener = new_context(schedule="nightly")
    with pytest.raises(CommandRefused, match="give the job the argument occurrence"):
        command(["echo", "{occurrence}"])(by_hand)
    command(shell('echo "$HEADWAY_SCHEDULE" "$HEADWAY_OCCURRENCE_AT"'))(by_hand)
    assert listener.texts("stdout") == ["nightly "]
    assert given(["{occurrence}"], occurrence="2027-01-31") == ["2027-01-31"]


def test_instant_is_the_same_in_schedule_and_program(tmp_path: Path) -> None:
    app = Headway(settings=Settings(store="sqlite://"), name="instants")
    file = tmp_path / "told"
    told = shell(f'echo "$HEADWAY_SCHEDULE $HEADWAY_OCCURRENCE_AT $1 $2" >> {file}')
    report = app.command("report", [*told, "sh", "{occurrence}", "{day}"])
    app.schedule("nightly", report, Cron("0 6 * * *"), args={"day": "monday"})
    with virtual(app, start="2027-01-30T12:00Z") as world:
        world.advance(hours=48)
    instants = ("2027-01-31T06:00:00Z", "2027-02-01T06:00:00Z")
    assert file.read_text().splitlines() == [f"nightly {instant} {instant} monday" for instant in instants]


HOG = [sys.executable, "-c", "print(len(bytearray(300 << 20)))"]


@pytest.mark.parametrize(
    "argv", [HOG, ["/bin/sh", "-c", '"$@"; exit $?', "sh", *HOG]], ids=["itself", "what it starts"]
)
def test_memory_limit_of_a_command_is_enforced(argv: list[str]) -> None:
    context, _ = new_context()
    with pytest.raises(CommandFailed, match=r"^.* ended with exit code 1:\n(.*\n)*MemoryError"):
        command(argv, memory=200 << 20)(context)
    assert run(argv, {"memory": 1 << 30})[1].texts("stdout") == [str(300 << 20)]


def test_memory_limit_changes_nothing_else(tmp_path: Path) -> None:
    nasty = "a b\"; rm -rf / $(id) `id` ' \n *"
    _, listener = run([*SHOW, "{x}", "-n", ""], {"memory": 1 << 30, "cwd": tmp_path}, x=nasty)
    assert json.loads(listener.texts("stdout")[0]) == [nasty, "-n", ""]
    context, _ = new_context()
    with pytest.raises(CommandFailed, match=r"^no-such-program ended with exit code 127:\n.*no-such-program"):
        command(["no-such-program"], memory=1 << 30)(context)
    with pytest.raises(CommandFailed, match=f"ls cannot be started in {tmp_path}/none: No such"):
        command(["ls"], memory=1 << 30, cwd=tmp_path / "none")(context)


def test_memory_option_is_parsed_as_for_tasks() -> None:
    app = Headway(settings=Settings(store="sqlite://"), name="t")
    context, listener = new_context()
    app.command("limit", shell("ulimit -d"), memory="64MB").function(context)
    assert listener.texts("stdout") == [str(memory_limit("64MB") // 1024)]
    for wrong in ("much", "1MB", -5):
        with pytest.raises(InvalidTask, match='memory must be a size like "512MB"'):
            app.command("odd", ["ls"], memory=wrong)


# --- output


def test_lines_become_the_log_and_progress() -> None:
    script = """
    echo '::progress 40 Copying tables'; echo one; echo two >&2
    echo '::progress 12.5%'; echo '::progress x'; echo ' ::progress 50'; echo '::progress 300 Much'
    printf 'bad \\377 byte\\nover\\rwritten\\n\\nlast'"""
    result, listener = run(shell(script))
    assert result == {"exit_code": 0}
    assert listener.texts("stderr") == ["two"]
    assert listener.texts("stdout") == [
        *("one", "::progress x", " ::progress 50", "bad \ufffd byte", "written", "", "last"),
    ]
    # An estimate of the remaining time may come in between.
    assert [percent for percent, _ in listener.progress if percent is not None] == [40, 12, 99]
    assert "Copying tables" in str(listener.progress[0][1])
    assert "Much" in str(listener.progress[-1][1])


def test_lines_arrive_while_the_command_runs(tmp_path: Path) -> None:
    """It waits for a file that appears only after its first line has arrived."""
    context, listener = new_context()
    sign = tmp_path / "sign"
    argv = ["/bin/sh", "-c", 'echo ready; while [ ! -e "$1" ]; do sleep 0.05; done', "sh", str(sign)]
    thread = threading.Thread(target=lambda: command(argv)(context))
    thread.start()
    wait_until(lambda: listener.texts("stdout") == ["ready"], "its first line")
    sign.touch()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


@pytest.mark.slow
def test_flood_of_output_is_bounded() -> None:
    code = (
        "import sys\n"
        "sys.stdout.write('x' * 5_000_000 + '\\n')\n"
        "for n in range(200_000): sys.stdout.write('line %d of very many\\n' % n)\n"
        "print('::progress 70 Still heard')\n"
        "sys.stderr.write('the end')\n"
        "sys.exit(4)"
    )
    context, listener = new_context()
    with pytest.raises(CommandFailed, match="exit code 4:\nthe end"):
        command([sys.executable, "-c", code])(context)
    assert LOG_BYTES_MAX < sum(len(text) + 1 for _, text in listener.lines) < LOG_BYTES_MAX + 10_000
    assert len(listener.lines[0][1]) < 4_200
    assert listener.progress[-1][0] == 70


# --- outcome


def test_failure_shows_the_end_of_stderr() -> None:
    context, _ = new_context()
    with pytest.raises(CommandFailed) as failed:
        command(shell("for n in $(seq 30); do echo $n >&2; done; echo out; exit 3"))(context)
    assert str(failed.value).splitlines() == [
        "/bin/sh ended with exit code 3:",
        *(str(n) for n in range(31 - TAIL_LINES, 31)),
    ]
    with pytest.raises(CommandFailed, match=r"^/bin/sh ended with exit code 1:\nonly out$"):
        command(shell("echo only out; exit 1"))(context)
    with pytest.raises(CommandFailed, match=r"^/bin/sh was killed by SIGSEGV$"):
        command(shell("kill -SEGV $$"))(context)


def test_missing_program_is_named(tmp_path: Path) -> None:
    context, _ = new_context()
    with pytest.raises(CommandFailed, match="no-such-program cannot be started: No such file"):
        command(["no-such-program"])(context)
    with pytest.raises(CommandFailed, match=f"ls cannot be started in {tmp_path}/none: No such"):
        command(["ls"], cwd=tmp_path / "none")(context)


@pytest.mark.parametrize("stops", [True, False], ids=["gentle", "stubborn"])
def test_stop_ends_the_command_and_its_subprocesses(stops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "TERM_S", DEADLINE_S if stops else 0.2)
    context, listener = new_context()
    trap = "trap 'echo cleaning; exit 0' TERM" if stops else "trap '' TERM"
    script = f"{trap}; sleep 300 & echo $! $$; while true; do sleep 0.1; done"
    ended: list[BaseException] = []

    def work() -> None:
        try:
            command(shell(script))(context)
        except BaseException as error:  # noqa: BLE001 - TaskStopped is none of the ordinary ones
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: listener.texts("stdout"), "its first output")
    sleeper, leader = map(int, listener.texts("stdout")[0].split())
    context.stop()
    thread.join(DEADLINE_S)
    assert [type(error) for error in ended] == [TaskStopped]
    assert ("cleaning" in listener.texts("stdout")) is stops
    wait_until(lambda: not is_alive(sleeper) and not is_alive(leader), "the end of all its processes")


def test_leftover_subprocesses_end_with_the_command() -> None:
    _, listener = run(shell("sleep 300 & echo $!"))
    sleeper = int(listener.texts("stdout")[0])
    wait_until(lambda: not is_alive(sleeper), "the end of its leftover subprocesses")


def test_daemon_that_keeps_the_pipes_open_does_not_block_the_job() -> None:
    """Waiting for the pipes to close would exceed the timeout of the test."""
    result, listener = run(shell("setsid sleep 3600 & echo $!; sleep 0.2"))
    assert result == {"exit_code": 0}
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(listener.texts("stdout")[0]), signal.SIGKILL)


def test_command_dies_with_its_child_process(tmp_path: Path) -> None:
    """Even SIGKILL of the worker's child process does not leave the command running."""
    code = (
        "from headway.worker.command import command\n"
        "from tests.support.contexts import new_context\n"
        f"command(['/bin/sh', '-c', 'echo $$ > {tmp_path}/pid; sleep 300'])(new_context()[0])"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3])
    file = tmp_path / "pid"
    wait_until(lambda: file.exists() and file.read_text().strip(), "the command to print its process id")
    pid = int(file.read_text())
    assert is_alive(pid)
    process.kill()
    process.wait(DEADLINE_S)
    wait_until(lambda: not is_alive(pid), "its end")
