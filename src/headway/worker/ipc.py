"""IPC between supervisor and child: frames of JSON messages, each with its length in front. Never pickle.

    supervisor → child   Run · Stop · StoreResponse · Flush · Finish
    child → supervisor   Hello · Done · Failed · CancelRaised · Stopped · Unrunnable · FailedInDamagedProcess ·
                         Skipped · Reports · StoreRequest · ReplacementRequest

One `Run` carries many jobs, and a child sends the outcomes of short jobs together: few system calls under load, no
delay otherwise. Counters in shared memory (`SharedCounters`) say which jobs have begun; `handover.py` explains them.
"""

import mmap
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from headway.core.errors import HeadwayError
from headway.core.instants import Duration
from headway.core.jobs import Claimed, Report
from headway.core.limits import Limit
from headway.core.tenants import Tenant

FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
MESSAGES_MAX: Final = 32  # Per frame: this many of the largest results fit.
_HEAD: Final = 4

M = TypeVar("M")


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a supervisor needs to know about a task; it never imports the task itself."""

    name: str
    isolation: str
    timeout: Duration | None = None
    retries_timeouts: bool = True
    defaults: dict[str, Any] = {}


class _Message(msgspec.Struct, frozen=True, array_like=True):
    """A message; encoded as an array with the name of its class in front."""


class Run(_Message, tag=True, frozen=True):
    """Run these jobs in this order, numbered from `first`; `kept` has the stored results of their steps."""

    first: int
    jobs: list[Claimed]
    deadlines: dict[str, int] = {}
    kept: dict[str, dict[str, str]] = {}


class Stop(_Message, tag=True, frozen=True):
    """Ask a running job to stop."""

    job_id: str
    attempt: int


class StoreResponse(_Message, tag=True, frozen=True):
    """The response to a store request; `error` is the reason of a refusal."""

    number: int
    body: str = ""
    error: str | None = None
    is_lost: bool = False


class Flush(_Message, tag=True, frozen=True):
    """Send buffered messages now."""


class Finish(_Message, tag=True, frozen=True):
    """Exit when all jobs are done; no more will come."""


class Hello(_Message, tag=True, frozen=True):
    """The child is ready: it has imported the app and lists what is in it."""

    pid: int
    app: str
    store: str
    tasks: list[TaskInfo]
    schedules: dict[str, str]
    error: str | None = None
    limits: tuple[Limit, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    version: str | None = None


class Done(_Message, tag=True, frozen=True):
    """The task returned."""

    job_id: str
    attempt: int
    result: str | None


class Failed(_Message, tag=True, frozen=True):
    """The task raised."""

    job_id: str
    attempt: int
    error: str
    retryable: bool = True
    retry_in: Duration | None = None


class CancelRaised(_Message, tag=True, frozen=True):
    """The task raised `Cancel`: its job is to be cancelled."""

    job_id: str
    attempt: int
    reason: str


class Stopped(_Message, tag=True, frozen=True):
    """The task has stopped as requested."""

    job_id: str
    attempt: int


class Unrunnable(_Message, tag=True, frozen=True):
    """The job cannot run as it is."""

    job_id: str
    attempt: int
    reason: str
    cause: str


class Reports(_Message, tag=True, frozen=True):
    """Progress, metadata and log lines of running jobs."""

    reports: list[Report]


class Skipped(_Message, tag=True, frozen=True):
    """The child skipped the jobs with these numbers: they were withdrawn before they began."""

    first: int
    last: int


class FailedInDamagedProcess(_Message, tag=True, frozen=True):
    """The attempt failed in a process that another of its jobs may have damaged: `company` jobs are suspects."""

    job_id: str
    attempt: int
    company: int
    reason: str


class StoreRequest(_Message, tag=True, frozen=True):
    """A request that needs the store: keep a step, enqueue jobs, open, read or close a batch."""

    number: int
    job_id: str
    attempt: int
    question: str
    body: str


class ReplacementRequest(_Message, tag=True, frozen=True):
    """The child asks to be replaced; `is_harmful` when its current jobs may suffer from the cause."""

    reason: str
    is_harmful: bool = False


ToChild: TypeAlias = Run | Stop | StoreResponse | Flush | Finish
ToSupervisor: TypeAlias = (
    Hello
    | Done
    | Failed
    | CancelRaised
    | Stopped
    | Unrunnable
    | Skipped
    | FailedInDamagedProcess
    | Reports
    | StoreRequest
    | ReplacementRequest
)

_encoder: Final = msgspec.json.Encoder()


def encode_frame(messages: Sequence[ToChild | ToSupervisor]) -> bytearray:
    """Encode messages as one frame; raise `FrameTooLarge` when the other side would refuse it."""
    buffer = bytearray(_HEAD)
    _encoder.encode_into(messages, buffer, _HEAD)
    size = len(buffer) - _HEAD
    if size > FRAME_BYTES_MAX:
        raise FrameTooLarge(f"{size:,} bytes exceed the {FRAME_BYTES_MAX:,} bytes of one IPC frame")
    buffer[:_HEAD] = size.to_bytes(_HEAD, "big")
    return buffer


class FrameTooLarge(HeadwayError):
    """The messages exceed the maximum size of an IPC frame."""


class SharedCounters:
    """Three counters in memory that child and supervisor share. Each has one writer.

    The child writes `begun` (the last job that it began) and `ended` (the last job that ended, where it runs one job at
    a time). The supervisor writes `withdrawn` (jobs up to this number must not begin any more).
    """

    def __init__(self, file: int | None = None) -> None:
        self.file = file if file is not None else _memory_file()
        self._counters = mmap.mmap(self.file, mmap.PAGESIZE)
        self._lock = threading.Lock()

    @property
    def begun(self) -> int:
        """The number of the last job that began."""
        return int(_NUMBER.unpack_from(self._counters, _BEGUN)[0])

    @begun.setter
    def begun(self, number: int) -> None:
        _NUMBER.pack_into(self._counters, _BEGUN, number)

    @property
    def ended(self) -> int:
        """The number of the last job that ended, in a child that runs one job at a time."""
        return int(_NUMBER.unpack_from(self._counters, _ENDED)[0])

    @ended.setter
    def ended(self, number: int) -> None:
        _NUMBER.pack_into(self._counters, _ENDED, number)

    @property
    def withdrawn(self) -> int:
        """Jobs up to this number that have not begun must not begin."""
        return int(_NUMBER.unpack_from(self._counters, _WITHDRAWN)[0])

    @withdrawn.setter
    def withdrawn(self, number: int) -> None:
        _NUMBER.pack_into(self._counters, _WITHDRAWN, number)

    def fence(self) -> None:
        """Order a write before a read of the other side's counter: taking a lock is a full memory barrier."""
        with self._lock:
            pass

    def close(self) -> None:
        """Release the memory."""
        self._counters.close()
        os.close(self.file)


_NUMBER: Final = struct.Struct("<Q")
_BEGUN, _ENDED, _WITHDRAWN = (slot * 64 for slot in range(3))  # One cache line each.


def _memory_file() -> int:
    """Make an anonymous file in memory; without `memfd_create`, an unnamed temporary file."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("headway-page")
        os.truncate(file, mmap.PAGESIZE)
        return file
    with tempfile.TemporaryFile() as unnamed:
        unnamed.truncate(mmap.PAGESIZE)
        return os.dup(unnamed.fileno())


class FrameReader(Generic[M]):
    """Decode a byte stream into messages."""

    def __init__(self, kind: Any) -> None:
        self._decode = msgspec.json.Decoder(list[kind]).decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[M]:
        """Add received bytes; yield every complete message."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _HEAD:
            size = int.from_bytes(buffer[start : start + _HEAD], "big")
            if size > FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {size} bytes")
            end = start + _HEAD + size
            if len(buffer) < end:
                break
            messages: list[M] = self._decode(memoryview(buffer)[start + _HEAD : end])
            start = end
            yield from messages
        del buffer[:start]


def pair() -> tuple[socket.socket, socket.socket]:
    """Make a pair of connected sockets with large buffers."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in (ours, theirs):
        for size in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, size, 1 << 20)
    return ours, theirs
