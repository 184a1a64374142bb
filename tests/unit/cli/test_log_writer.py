"""Log lines are written in a thread: a pipe that is not read blocks nothing."""

import asyncio
import fcntl
import io
import logging
import os
import warnings
from collections.abc import Iterator
from typing import TextIO

import pytest

from headway.cli import log as event_log
from headway.cli import log_writer
from headway.cli.log import EventLog, close_logs
from headway.cli.log_writer import LogWriter
from tests.support.waiting import DEADLINE_S

PIPE_BYTES = 4096


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """Open a pipe that only the test reads: its read end, and a stream into it."""
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    stream = os.fdopen(theirs, "w")
    yield ours, stream
    os.close(ours)  # A thread that still writes fails now.
    while _writers:
        assert _writers.pop().close(DEADLINE_S)  # It must not write to the next file with the same descriptor.
    stream.close()


_writers: list[LogWriter] = []


def _writer(stream: TextIO) -> LogWriter:
    _writers.append(LogWriter(stream, _dropped))
    return _writers[-1]


def _dropped(lines: int) -> str:
    return f"dropped {lines}"


def _read_until(pipe: int, last: str) -> list[str]:
    text = ""
    while last not in text:
        text += os.read(pipe, 65_536).decode()
    return text.splitlines()


def test_full_pipe_blocks_nobody_and_drops_are_counted(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "LINES_MAX", 50)
    monkeypatch.setattr(log_writer, "BATCH_LINES", 1)
    ours, stream = pipe
    write = _writer(stream)
    for number in range(500):  # Without the thread, the first lines would block for ever.
        write(f"{number:04} " + "x" * 200)
    lines = _read_until(ours, "dropped")
    numbers = [int(line[:4]) for line in lines if line[0].isdigit()]
    assert numbers[:50] == list(range(50)), "the first lines are kept"
    assert numbers == sorted({*numbers}), "in order, without duplicates"
    assert lines[-1] == f"dropped {500 - len(numbers)}"
    write("again")
    assert _read_until(ours, "again") == ["again"]
    assert write.close(DEADLINE_S)


def test_long_lines_are_bounded(pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "CHARACTERS_MAX", 20_000)
    ours, stream = pipe
    write = _writer(stream)
    for _ in range(10):
        write("x" * 9_000)
    assert _read_until(ours, "dropped")[-1] in {f"dropped {lines}" for lines in range(5, 9)}


def test_close_waits_and_returns_whether_everything_was_written(pipe: tuple[int, TextIO]) -> None:
    _, stream = pipe
    write = _writer(stream)
    write("x" * 3 * PIPE_BYTES)
    assert not write.close(0.05)  # short: the pipe is not read, so a longer wait has the same result.
    written = io.StringIO()
    write = LogWriter(written, _dropped)
    write("all of it")
    assert write.close(DEADLINE_S)
    assert written.getvalue() == "all of it\n"


def test_closed_stream_raises_nothing() -> None:
    closed = io.StringIO()
    closed.close()
    write = LogWriter(closed, _dropped)
    write("to nobody")
    assert write.close(DEADLINE_S)


def test_library_logs_and_warnings_use_the_writer(capsys: pytest.CaptureFixture[str]) -> None:
    close_logs()  # Earlier tests called servers without the shutdown of a process.
    log = EventLog.on_stderr(as_json=False)
    try:
        log.write("starting")
        logging.getLogger("some.library").error("it broke: %s", "badly")
        _, handler = event_log._opened[-1]
        handler.emit(logging.LogRecord("some.library", logging.WARNING, "", 0, "not a number: %d", ("x",), None))
        logging.getLogger("some.library").info("this is of no interest")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old", DeprecationWarning, stacklevel=1)
    finally:
        assert close_logs()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ", 2)[2] for line in lines[:3]] == [
        "starting",
        'log logger=some.library message="it broke: badly"',
        'log logger=some.library message="a log record could not be formatted"',
    ]
    assert "logger=py.warnings" in lines[3]
    assert len(lines) == 4
    assert not event_log._opened


async def test_event_loop_continues_while_its_log_is_blocked(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, stream = pipe
    monkeypatch.setattr("sys.stderr", stream)
    log = EventLog.on_stderr(as_json=True)
    for number in range(100):
        log.write("tick", number=number, text="x" * 200)
        await asyncio.sleep(0)
    assert len(_read_until(ours, '"number": 99')) == 100
    assert close_logs()
