"""What tasks print, log and warn goes to the log of the right job, once."""

import re
from collections.abc import Iterable

import pytest

from headway.core.job_logs import LOG_BYTES_MAX, LOG_LINE_LENGTH_MAX, log_stream, read_stream
from headway.worker.child import ProcessChild
from headway.worker.child_base import ChildSetup
from headway.worker.ipc import Done, Failed, FrameReader, Hello, Reports, Run, SharedCounters, ToSupervisor, pair
from headway.worker.process import child_command
from tests.unit.worker.test_child import Line
from tests.unit.worker.test_ipc import claimed


class Captured:
    """Jobs that a child has run, and their output."""

    def __init__(self) -> None:
        self.lines: dict[str, list[tuple[str, str]]] = {}
        self.results: dict[str, str | None] = {}

    def words(self, job_id: str = "job_1") -> list[str]:
        """Return the lines of a job, without streams."""
        return [text for _, text in self.lines.get(job_id, [])]


async def run(kind: str, jobs: Iterable[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> Captured:
    """Run jobs in one child, each a task and its arguments; return their output."""
    monkeypatch.setattr("tests.unit.worker.test_child.child_command", lambda _: child_command(APP))
    claims = [claimed(task=task, args=args, job_id=f"job_{n}") for n, (task, args) in enumerate(jobs, 1)]
    line, captured = Line(len(claims), kind), Captured()
    try:
        await line.hear(lambda message: isinstance(message, Hello))
        line.process.send(Run(1, claims))
        while len(captured.results) < len(claims):
            message = await line.hear(lambda message: isinstance(message, Reports | Done | Failed))
            match message:
                case Reports(reports):
                    for report in reports:
                        said = [(stream, text) for _, stream, text in report.lines]
                        captured.lines.setdefault(report.job_id, []).extend(said)
                case Done(job_id, _, result):
                    captured.results[job_id] = result
                case Failed(job_id, _, error):
                    raise AssertionError(error)
    finally:
        line.process.kill()
        await line.ending()
        line.process.close()
    return captured


APP = "tests.unit.worker.capture_tasks:app"


async def test_all_output_of_a_task_is_in_its_log(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    captured = await run("process", [("everything", "{}"), ("everything", "{}")], monkeypatch)
    lines = captured.lines["job_1"]
    assert lines[:8] == [
        ("stdout", "printed"),
        ("stdout", "one line"),
        ("stderr", "to stderr"),
        ("info:shop.orders", "logged 7"),
        ("warning:shop.orders", "two"),
        ("warning:shop.orders", "lines"),
        ("error:shop.orders", "torn %d (its arguments do not fit: TypeError)"),
        ("error:shop.orders", "an exception"),
    ]
    trace = lines[8:-5]
    assert trace[0] == ("error:shop.orders", "Traceback (most recent call last):")
    assert trace[-1] == ("error:shop.orders", "ValueError: caught")
    stream, warning = lines[-5]
    assert stream == "warning:py.warnings"
    assert re.fullmatch(r"UserWarning: out of date \(.*/capture_tasks\.py:\d+\)", warning)
    assert sorted(lines[-4:]) == sorted(
        [("stdout", "bytes ü"), ("stdout", "from a thread"), ("stdout", "without an end"), ("stderr", "20%")]
    )
    assert captured.lines["job_2"] == lines, "including a warning that another job caused"
    out, err = capfd.readouterr()
    assert (out, err) == ("while it is imported\nthrough a wrapper\n", "")


async def test_handlers_of_the_app_log_nothing_twice_and_native_output_passes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    captured = await run("process", [("configured", "{}"), ("with_context", "{}"), ("copied", "{}")], monkeypatch)
    assert captured.lines["job_1"] == [
        ("debug:shop.orders", "fine"),
        ("info:shop.orders", "once"),
        ("stdout", "terminal: False 1"),
    ]
    assert captured.words("job_2") == ["before", "between", "after"]
    assert (captured.results["job_3"], captured.words("job_3")) == ('"0"', [])
    out, err = capfd.readouterr()
    assert (sorted(out.splitlines()), err) == (
        ["from the copy", "native", "through a wrapper", "while it is imported"],
        "",
    )


async def test_jobs_that_share_a_loop_have_their_own_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = await run("loop", [("shared", '{"name":"a"}'), ("shared", '{"name":"b"}')], monkeypatch)
    for job_id, name in (("job_1", "a"), ("job_2", "b")):
        assert captured.words(job_id) == [
            f"{name} begins",
            f"{name} goes on",
            f"{name} in a thread",
            f"{name} in a task of its own",
        ]


async def test_jobs_in_threads_have_their_own_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = await run("thread", [("beside", '{"name":"a"}'), ("beside", '{"name":"b"}')], monkeypatch)
    assert (captured.words("job_1"), captured.words("job_2")) == (["a in its thread"], ["b in its thread"])


async def test_output_after_the_end_of_an_attempt_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = await run("loop", [("late", "{}"), ("afterwards", "{}")], monkeypatch)
    assert captured.lines == {"job_2": [("stdout", "in time")]}


async def test_flood_of_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = await run("process", [("flood", '{"lines": 3000}')], monkeypatch)
    said = captured.words()
    assert 0.9 * LOG_BYTES_MAX < sum(map(len, said)) < 1.1 * LOG_BYTES_MAX
    assert max(map(len, said)) <= LOG_LINE_LENGTH_MAX


async def test_output_before_a_crash_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.worker.test_child.child_command", lambda _: child_command(APP))
    line = Line(1, "process")
    try:
        await line.hear(lambda message: isinstance(message, Hello))
        line.process.send(Run(1, [claimed(task="crash")]))
        await line.ending()
        said = [message for messages in line.process.last_words() for message in messages]
    finally:
        line.process.close()
    reports = [report for message in said if isinstance(message, Reports) for report in message.reports]
    assert [text for report in reports for _, _, text in report.lines] == ["one", "two", "three"]


def test_output_while_lines_are_sent_does_not_deadlock() -> None:
    """A finaliser may print in the sending thread."""
    ours, theirs = pair()
    child = ProcessChild(ChildSetup(theirs, SharedCounters(), {}, None, 1))
    context = child.context_of(claimed())()
    for busy in (child._telling, child._sending):
        with busy:
            context.log("from a finaliser")
    context.log("later")
    ours.setblocking(False)
    reader: FrameReader[Reports] = FrameReader(ToSupervisor)
    heard = list(reader.feed(ours.recv(1 << 16)))
    assert [text for message in heard for report in message.reports for _, _, text in report.lines] == [
        "from a finaliser",
        "from a finaliser",
        "later",
    ]
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("log", ("log", "info", None)),
        ("stdout", ("stdout", "info", None)),
        ("stderr", ("stderr", "warning", None)),
        (log_stream("error", "a.b"), ("log", "error", "a.b")),
        (log_stream("info", "odd:name"), ("log", "info", "odd:name")),
        ("mine: x", ("mine: x", "info", None)),
        ("", ("", "info", None)),
    ],
)
def test_streams_have_level_and_logger(stored: str, expected: tuple[str, str, str | None]) -> None:
    assert read_stream(stored) == expected
