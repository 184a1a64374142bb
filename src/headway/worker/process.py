"""One child process as its supervisor sees it: start it, exchange messages, kill it and its descendants.

`child_pool.py` decides what runs in it.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from headway.core.process_tree import MARK, how_it_ended, kill_group
from headway.worker.environment import divided
from headway.worker.ipc import FrameReader, SharedCounters, ToChild, ToSupervisor, encode_frame, pair

READ_BYTES: Final = 1 << 20


class ChildProcess:
    """A process with a socket to it and counters in shared memory."""

    def __init__(self, command: Sequence[str], kind: str, width: int, mark: str, environ: Mapping[str, str]) -> None:
        ours, theirs = pair()
        self.counters = SharedCounters()
        self.mark = f"{MARK}={mark}"
        with divided({**os.environ, **environ}) as (shown, withheld):
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(self.counters.file), kind, str(width)],
                pass_fds=(theirs.fileno(), self.counters.file),
                stdin=withheld,
                start_new_session=True,
                env={**shown, MARK: mark},
            )
        theirs.close()
        ours.setblocking(False)
        self._socket = ours
        self._reader: FrameReader[ToSupervisor] = FrameReader(ToSupervisor)
        self._unsent: deque[bytes | bytearray] = deque()
        self._pidfd: int | None = None
        self._is_closed = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it is dead."""
        return self._process.poll() is not None

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        return how_it_ended(self._process.returncode)

    def watch(self, readable: Callable[[], None], ended: Callable[[], None]) -> None:
        """Call these when there is something to read, and when it is dead."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, readable)
        # Not available on every system; `watch` of the pool polls there.
        with contextlib.suppress(AttributeError, OSError):
            self._pidfd = os.pidfd_open(self.pid)
            loop.add_reader(self._pidfd, ended)

    def read(self) -> list[ToSupervisor] | None:
        """Return the messages that have arrived; None when the socket is closed or carries foreign bytes."""
        try:
            data = self._socket.recv(READ_BYTES)
            messages = list(self._reader.feed(data))
        except BlockingIOError:
            return []
        except (OSError, ValueError, msgspec.DecodeError):
            data, messages = b"", []
        if not data:
            asyncio.get_running_loop().remove_reader(self._socket)
            return None
        return messages

    def last_words(self) -> Iterator[list[ToSupervisor]]:
        """Yield the messages that it had sent before it died."""
        with contextlib.suppress(OSError, ValueError, msgspec.DecodeError):
            while data := self._socket.recv(READ_BYTES):
                yield list(self._reader.feed(data))

    def send(self, message: ToChild) -> None:
        """Send a message; what the socket does not take now is sent when it is writable."""
        if self._is_closed:
            return
        data: bytes | bytearray = encode_frame([message])
        if not self._unsent:
            data = self._write(data)
        if data:
            if not self._unsent:
                asyncio.get_running_loop().add_writer(self._socket, self._flush)
            self._unsent.append(data)

    def _flush(self) -> None:
        while self._unsent:
            self._unsent[0] = self._write(self._unsent[0])
            if self._unsent[0]:
                return
            self._unsent.popleft()
        asyncio.get_running_loop().remove_writer(self._socket)

    def _write(self, data: bytes | bytearray) -> bytes | bytearray:
        """Write what the socket takes; return the rest."""
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            return data
        except OSError:
            return b""  # It is dying; its exit will be noticed.
        return data[sent:]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill it and its process group at once. The sweeper kills what has left the group."""
        kill_group(self.pid)

    def resident_bytes(self) -> int:
        """Return its resident memory; 0 where that is unknown."""
        try:
            with open(f"/proc/{self.pid}/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            return 0

    def close(self) -> None:
        """Release the file descriptors of a dead process."""
        self._is_closed = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        loop.remove_writer(self._socket)
        self._socket.close()
        self.counters.close()
        if self._pidfd is not None:
            loop.remove_reader(self._pidfd)
            os.close(self._pidfd)


def child_command(app_path: str | None) -> tuple[str, ...]:
    """Return the command that starts a child of this app; socket, counters, kind and width are appended."""
    return (sys.executable, "-m", "headway.cli.child", app_path or "")
