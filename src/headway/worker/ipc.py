"""IPC between supervisor and child: lists of messages as JSON, each list with its length in front. Never pickle.

    supervisor → child   Run · Stop · Answer · Flush · Finish
    child → supervisor   Hello · Done · Failed · Cancelled · Stopped · Unfit · Disturbed · Skipped · Reports · Ask ·
                         Spent

One `Run` carries many jobs, and a child sends the outcomes of short jobs together: few system calls under load, no
delay without it. Which jobs have begun is in a page of shared memory (`SharedCounters`), which `handover.py` explains.
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

FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
MESSAGES_MAX: Final = 32  # In one frame: so many of the largest results fit into it.
_HEAD: Final = 4

M = TypeVar("M")


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a supervisor has to know of a task, which it never imports itself."""

    name: str
    isolation: str
    timeout: Duration | None = None
    retries_timeouts: bool = True
    defaults: dict[str, Any] = {}


class _Message(msgspec.Struct, frozen=True, array_like=True):
    """Written as an array with the name of its class in front."""


class Run(_Message, tag=True, frozen=True):
    """Run these jobs, in this order, numbered from `first`; `kept` are results of steps that were finished before."""

    first: int
    jobs: list[Claimed]
    deadlines: dict[str, int] = {}
    kept: dict[str, dict[str, str]] = {}


class Stop(_Message, tag=True, frozen=True):
    """Ask a running job to stop."""

    job_id: str
    attempt: int


class StoreResponse(_Message, tag=True, frozen=True):
    """The answer to a question; `error` is the reason of a refusal."""

    number: int
    body: str = ""
    error: str | None = None
    is_lost: bool = False


class Flush(_Message, tag=True, frozen=True):
    """Send what you have kept back."""


class Finish(_Message, tag=True, frozen=True):
    """Nothing more will come: end when all is done."""


class Hello(_Message, tag=True, frozen=True):
    """The child is ready. It has imported the app, and tells what is in it."""

    pid: int
    app: str
    store: str
    tasks: list[TaskInfo]
    schedules: dict[str, str]
    error: str | None = None


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
    """The task said that its job is to be cancelled."""

    job_id: str
    attempt: int
    reason: str


class Stopped(_Message, tag=True, frozen=True):
    """The task has stopped because it was asked to."""

    job_id: str
    attempt: int


class Unrunnable(_Message, tag=True, frozen=True):
    """The job cannot be run as it is."""

    job_id: str
    attempt: int
    reason: str
    cause: str


class Reports(_Message, tag=True, frozen=True):
    """What running jobs say about themselves."""

    reports: list[Report]


class Skipped(_Message, tag=True, frozen=True):
    """The jobs with these numbers were withdrawn before they began; the child has skipped them."""

    first: int
    last: int


class FailedInDamagedProcess(_Message, tag=True, frozen=True):
    """The attempt failed in a process that another of its jobs may have damaged: `company` jobs are suspects."""

    job_id: str
    attempt: int
    company: int
    reason: str


class StoreRequest(_Message, tag=True, frozen=True):
    """A question that needs the store: keep a step, enqueue jobs."""

    number: int
    job_id: str
    attempt: int
    question: str
    body: str


class ReplacementRequest(_Message, tag=True, frozen=True):
    """The child wants to be replaced, and why; harmful is what jobs that run in it now may suffer from."""

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
    """Encode messages as one frame; `FrameTooLarge` when the other side would refuse it."""
    buffer = bytearray(_HEAD)
    _encoder.encode_into(messages, buffer, _HEAD)
    size = len(buffer) - _HEAD
    if size > FRAME_BYTES_MAX:
        raise FrameTooLarge(f"{size:,} bytes do not fit into one frame, which has {FRAME_BYTES_MAX:,} at most")
    buffer[:_HEAD] = size.to_bytes(_HEAD, "big")
    return buffer


class FrameTooLarge(HeadwayError):
    """What is to be sent between supervisor and child exceeds the size of a frame."""


class SharedCounters:
    """Three numbers in memory that child and supervisor share. Each number has one writer.

    The child writes `begun` (the job that it began last) and `ended` (the one that ended last, where it runs one job at
    a time); the supervisor writes `withdrawn` (jobs up to this number must not begin any more).
    """

    def __init__(self, file: int | None = None) -> None:
        self.file = file if file is not None else _memory_file()
        self._counters = mmap.mmap(self.file, mmap.PAGESIZE)
        self._lock = threading.Lock()

    @property
    def begun(self) -> int:
        """The number of the job that began last."""
        return int(_NUMBER.unpack_from(self._counters, _BEGUN)[0])

    @begun.setter
    def begun(self, number: int) -> None:
        _NUMBER.pack_into(self._counters, _BEGUN, number)

    @property
    def ended(self) -> int:
        """The number of the job that ended last, in a child that runs one job at a time."""
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
        """Order a write before a read of the other side's number: taking a lock is a full memory barrier."""
        with self._lock:
            pass

    def close(self) -> None:
        """Release the memory."""
        self._counters.close()
        os.close(self.file)


_NUMBER: Final = struct.Struct("<Q")
_BEGUN, _ENDED, _WITHDRAWN = (slot * 64 for slot in range(3))  # A cache line each.


def _memory_file() -> int:
    """Make an anonymous file in memory; it needs no writable folder where the kernel can do without."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("headway-page")
        os.truncate(file, mmap.PAGESIZE)
        return file
    with tempfile.TemporaryFile() as unnamed:
        unnamed.truncate(mmap.PAGESIZE)
        return os.dup(unnamed.fileno())


class FrameReader(Generic[M]):
    """Cuts a stream of bytes into messages."""

    def __init__(self, kind: Any) -> None:
        self._decode = msgspec.json.Decoder(list[kind]).decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[M]:
        """Take what has arrived; yield every message that is complete."""
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
    """Make the two ends of a line."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in (ours, theirs):
        for size in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, size, 1 << 20)
    return ours, theirs
