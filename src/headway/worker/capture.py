"""Capture what tasks print, log and warn as lines of their job's log.

Installed once in a child process. A context variable says which attempt runs: each asyncio task and each thread of
`asyncio.to_thread` has its own. Where one job runs at a time, its threads need none. Output that belongs to no attempt,
and what native code and other programs write to the file descriptors, is not captured.

A task never waits for a terminal: its lines go to the supervisor, which stores and shows them. The context of an
attempt, which most tasks never need, is made when its first line comes.
"""

import contextlib
import io
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TextIO

from headway.core.job_logs import LOG_LINE_LENGTH_MAX, log_stream
from headway.tasks.context import Context

_output: ContextVar["AttemptOutput | None"] = ContextVar("headway_output", default=None)


class AttemptOutput:
    """The output of one attempt, and the context through which it leaves the process. It is cheap to make."""

    made: Context | None = None
    is_over = False
    _partial: dict[str, str] | None = None  # Incomplete lines by stream.

    def __init__(self, make: Callable[[], Context]) -> None:
        self._make = make

    def context(self) -> Context:
        """Return the context of the attempt; make it on first use."""
        if self.made is None:
            self.made = self._make()
        return self.made

    def add(self, stream: str, text: str) -> None:
        """Add whole lines to the job's log; drop them when the attempt has just ended in another thread."""
        with _lock:
            context = None if self.is_over else self.context()
        if context is not None:
            context.log(text, stream)

    def write(self, stream: str, text: str) -> None:
        """Buffer text written to a stream; add each line when it is complete."""
        with _lock:
            if self._partial is None:
                self._partial = {}
            *lines, rest = (self._partial.get(stream, "") + text).split("\n")
            if len(rest) > LOG_LINE_LENGTH_MAX:
                lines, rest = [*lines, rest], ""
            self._partial[stream] = _overwritten(rest) + ("\r" if rest.endswith("\r") else "")
        if lines:
            self.add(stream, "\n".join([_overwritten(line) for line in lines]))

    def finish_lines(self) -> None:
        """Add incomplete lines."""
        for stream, text in list((self._partial or {}).items()):
            if text.strip():
                self.add(stream, _overwritten(text))


_lock: Final = threading.RLock()  # Reentrant: a signal or a finaliser may run in the same thread.


def _overwritten(line: str) -> str:
    """Return what a terminal would show of a line: the text after the last carriage return."""
    return line.rstrip("\r").rpartition("\r")[2]


class _Installed:
    """The capture that is installed in this process."""

    is_on = False
    is_sole = False  # One attempt runs at a time, so every thread works for it.
    sole: AttemptOutput | None = None


class _Handling(threading.local):
    """Whether this thread is in a `logging` handler whose record was captured already."""

    is_on = False


_handling: Final = _Handling()


def begin(make: Callable[[], Context]) -> AttemptOutput:
    """Capture the output of an attempt from here on; `make` makes its context."""
    output = AttemptOutput(make)
    _output.set(output)
    if _Installed.is_sole:
        _Installed.sole = output
    return output


def end(output: AttemptOutput) -> None:
    """End the capture that `begin` began: what is printed later is not this attempt's."""
    if output._partial:
        output.finish_lines()
    output.is_over = True
    _Installed.sole = None
    _output.set(None)


def current() -> AttemptOutput | None:
    """Return the output of the attempt that runs here; None where nothing is captured."""
    if not _Installed.is_on:
        return None
    output = _output.get() or _Installed.sole
    return None if output is None or output.is_over else output


class _Stream(io.TextIOBase):
    """Replace `sys.stdout` or `sys.stderr`. Unknown attributes, such as `reconfigure`, come from the original."""

    def __init__(self, name: str, original: TextIO) -> None:
        self._name = name
        self._original = original
        self._bytes = _Bytes(self, original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def write(self, text: str) -> int:
        """Write text to the log of the running job, or to the original stream."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        output = current()
        if output is None:
            return self._original.write(text)
        if not _handling.is_on:
            output.write(self._name, text)
        return len(text)

    def flush(self) -> None:
        """Flush the original stream."""
        if current() is None:
            self._original.flush()

    @property
    def buffer(self) -> "_Bytes":
        """The binary counterpart, also for code that keeps it until a task runs."""
        return self._bytes

    def detach(self) -> Any:
        """Return the binary counterpart, as text streams do; this stream stays usable."""
        return self._bytes

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the original."""
        return self._original.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """The error handling of the original."""
        return self._original.errors

    def fileno(self) -> int:
        """Return the descriptor, for programs that a task starts."""
        return self._original.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return False: a log is not a terminal."""
        return False

    def close(self) -> None:
        """Stay open: other jobs write here, too."""


class _Bytes(io.RawIOBase):
    """Replace the buffer of a stream."""

    def __init__(self, stream: _Stream, original: TextIO) -> None:
        self._stream = stream
        self._original = original

    def write(self, data: Any) -> int:
        """Write bytes as text to the log of the running job, or to the original buffer."""
        if current() is None:
            self._stream.flush()
            size = self._original.buffer.write(data)
            self._stream.flush()
            return size
        text = bytes(data)
        self._stream.write(text.decode("utf-8", "replace"))
        return len(text)

    def flush(self) -> None:
        """Flush the original buffer."""
        self._stream.flush()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._original.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Stay open: other jobs write here, too, even if a wrapper around it is collected."""


def install(*, one_at_a_time: bool) -> None:
    """Capture the output of this process's tasks. Call it before importing the app, which may keep a stream."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # Uncaptured output survives a crash of the process.
    sys.stdout = _Stream("stdout", sys.stdout or _nowhere())
    sys.stderr = _Stream("stderr", sys.stderr or _nowhere())
    _hand_on_records()
    _hand_on_warnings()
    os.register_at_fork(after_in_child=_uninstall)  # A forked copy of this process must not write to the job's log.
    _Installed.is_on, _Installed.is_sole = True, one_at_a_time


def _nowhere() -> TextIO:
    """Make a stream for a process that was started without one."""
    return open(os.devnull, "w")


def adjust() -> None:
    """Let useful log levels and warnings pass where the app has not set filters. Call it after importing the app."""
    root = logging.getLogger()
    if root.level == logging.WARNING and not root.handlers:
        root.setLevel(logging.INFO)
    if not sys.warnoptions:  # By default a warning is shown once per process, so later jobs would miss it.
        warnings.simplefilter("always", append=True)


def _uninstall() -> None:
    _Installed.is_on = False


def _hand_on_records() -> None:
    call_handlers = logging.Logger.callHandlers

    def capture(logger: logging.Logger, record: logging.LogRecord) -> None:
        output = None if _handling.is_on else current()
        if output is None:
            call_handlers(logger, record)
            return
        output.add(log_stream(_level(record.levelno), record.name), _words(record))
        _handling.is_on = True  # Handlers that write to our streams would log it twice.
        try:
            call_handlers(logger, record)
        finally:
            _handling.is_on = False

    logging.Logger.callHandlers = capture  # type: ignore[method-assign,assignment]


def _hand_on_warnings() -> None:
    show = warnings.showwarning

    def capture(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        output = current() if file is None else None
        if output is None:
            show(message, category, filename, lineno, file, line)
        else:
            output.add(log_stream("warning", "py.warnings"), f"{category.__name__}: {message} ({filename}:{lineno})")

    warnings.showwarning = capture


def _level(number: int) -> str:
    names = ((50, "critical"), (40, "error"), (30, "warning"), (20, "info"))
    return next((name for least, name in names if number >= least), "debug")


def _words(record: logging.LogRecord) -> str:
    """Return the message and traceback of a record; arguments that do not fit its format raise nothing."""
    try:
        text = record.getMessage()
    except Exception as broken:  # noqa: BLE001 - it is code of others
        text = f"{record.msg!s} (its arguments do not fit: {type(broken).__name__})"
    if record.exc_info and record.exc_info[0] is not None:
        with contextlib.suppress(Exception):
            text += "\n" + logging.Formatter().formatException(record.exc_info)
    return text
