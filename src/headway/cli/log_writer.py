"""Write log lines in a thread of their own, so that a full pipe never blocks the event loop.

A log that is not read (a stuck log driver, Ctrl-S at a terminal) blocks its writer. That must never be an event loop:
leases would expire and signals would not be handled. Lines wait in a bounded buffer. Lines that do not fit are dropped
and counted, and the next line that is written reports how many.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TextIO

LINES_MAX: Final = 10_000
CHARACTERS_MAX: Final = 4 << 20
BATCH_LINES: Final = 200


class LogWriter:
    """A bounded buffer of lines and the thread that writes them to a stream."""

    def __init__(self, stream: TextIO, describe_drop: Callable[[int], str]) -> None:
        self._stream = stream
        self._describe_drop = describe_drop
        self._lines: deque[str] = deque()
        self._characters = 0
        self._dropped = 0
        self._is_writing = False
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="headway-log", daemon=True)
        self._thread.start()

    def __call__(self, line: str) -> None:
        """Queue a line for writing, or drop and count it when the buffer is full."""
        with self._changed:
            if len(self._lines) >= LINES_MAX or self._characters + len(line) > CHARACTERS_MAX:
                self._dropped += 1
                return
            self._lines.append(line)
            self._characters += len(line)
            self._changed.notify_all()

    def close(self, within_s: float) -> bool:
        """Wait until everything was written, at most this long, and end the thread; return whether it was."""
        with self._changed:
            is_written = self._changed.wait_for(lambda: not self._lines and not self._is_writing, within_s)
            self._is_closed = True
            self._changed.notify_all()
        return is_written

    def _run(self) -> None:
        while text := self._take():
            with suppress(OSError, ValueError):  # The stream is closed.
                self._write(text)
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()

    def _take(self) -> str:
        """Wait for lines and return the next few as one text; nothing when the writer is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._is_closed)
            if self._is_closed:
                return ""
            self._is_writing = True
            lines = [self._lines.popleft() for _ in range(min(len(self._lines), BATCH_LINES))]
            self._characters -= sum(map(len, lines))
            if self._dropped and not self._lines:
                lines.append(self._describe_drop(self._dropped))
                self._dropped = 0
        return "".join(f"{line}\n" for line in lines)

    def _write(self, text: str) -> None:
        try:
            number = self._stream.fileno()
        except (OSError, ValueError):  # In a test it is a buffer, not a file.
            self._stream.write(text)
            return
        # Not through the stream: the thread could hold its lock when the interpreter exits, which is fatal.
        data = memoryview(text.encode(errors="backslashreplace"))
        while data:
            data = data[os.write(number, data) :]


class LibraryLogHandler(logging.Handler):
    """Write the log records and warnings of libraries with the same thread."""

    def __init__(self, write: Callable[[str, str, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._write_line = write

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        level = "warning" if record.levelno < logging.ERROR else "error"
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001 - whatever a library logs must not stop the loop that logs it
            text = "a log record could not be formatted"
        self._write_line(level, record.name, text)
