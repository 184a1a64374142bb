"""Watch a file for writes with inotify instead of polling. Linux only."""

import contextlib
import ctypes
import os
import sys
from typing import Final

_IN_MODIFY: Final = 0x2
_EVENTS_BYTES: Final = 64 * 1024


class FileWatch:
    """A file descriptor that becomes readable when the file is written to."""

    def __init__(self, path: str) -> None:
        if sys.platform != "linux":
            raise OSError("this system has no inotify")
        libc = ctypes.CDLL(None, use_errno=True)
        self.number: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.number < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        if libc.inotify_add_watch(self.number, os.fsencode(path), _IN_MODIFY) < 0:
            error = ctypes.get_errno()
            os.close(self.number)
            raise OSError(error, "inotify_add_watch", path)

    def take(self) -> None:
        """Discard the events so far."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.number, _EVENTS_BYTES)

    def close(self) -> None:
        """Stop watching."""
        os.close(self.number)
