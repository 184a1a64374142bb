"""What supervisor and child say to each other: lists of messages as JSON, with their length in front. Never pickle.

    supervisor → child   Run · Stop · Revoke · Answer · Flush · Finish
    child → supervisor   Hello · Done · Failed · Cancelled · Stopped · Unfit · Reports · Revoked · Voided · Ask · Spent

A message with jobs holds many of them, and while more of them wait a child sends the outcomes of short ones in one
frame: both sides do few calls when there is much to do, and wait for nothing when there is little. So that nobody is
blamed for another's crash meanwhile, a child notes the number of the job it is at in a page of memory that both can
read.
"""

import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from headway.instants import Duration
from headway.model import Claimed, Report

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


class Revoke(_Message, tag=True, frozen=True):
    """Give back jobs that have not begun."""

    job_ids: list[str]


class Answer(_Message, tag=True, frozen=True):
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


class Cancelled(_Message, tag=True, frozen=True):
    """The task said that its job is to be cancelled."""

    job_id: str
    attempt: int
    reason: str


class Stopped(_Message, tag=True, frozen=True):
    """The task has stopped because it was asked to."""

    job_id: str
    attempt: int


class Unfit(_Message, tag=True, frozen=True):
    """The job cannot be run as it is."""

    job_id: str
    attempt: int
    reason: str
    cause: str


class Reports(_Message, tag=True, frozen=True):
    """What running jobs say about themselves."""

    reports: list[Report]


class Revoked(_Message, tag=True, frozen=True):
    """These jobs have not begun, and will not. The others that were asked for had begun."""

    job_ids: list[str]
    begun: list[str] = []


class Voided(_Message, tag=True, frozen=True):
    """The child came to a job that was taken back meanwhile (see `Place`), and left it out."""

    job_id: str
    attempt: int


class Ask(_Message, tag=True, frozen=True):
    """A question that needs the store: keep a step, enqueue jobs."""

    number: int
    job_id: str
    attempt: int
    question: str
    body: str


class Spent(_Message, tag=True, frozen=True):
    """The child wants to be replaced, and why."""

    reason: str


ToChild: TypeAlias = Run | Stop | Revoke | Answer | Flush | Finish
ToSupervisor: TypeAlias = Hello | Done | Failed | Cancelled | Stopped | Unfit | Reports | Revoked | Voided | Ask | Spent

_encoder: Final = msgspec.json.Encoder()


def frame(messages: Sequence[ToChild | ToSupervisor]) -> bytearray:
    """Write messages as a frame, at most `MESSAGES_MAX` of them."""
    buffer = bytearray(_HEAD)
    _encoder.encode_into(messages, buffer, _HEAD)
    buffer[:_HEAD] = (len(buffer) - _HEAD).to_bytes(_HEAD, "big")
    return buffer


class Place:
    """Two numbers in a page of memory that child and supervisor share: where the child is, and what it shall leave out.

    A child may be deaf, because a task holds the interpreter. Jobs that wait in it can be taken back all the same: the
    supervisor says up to which number they are void, and looks where the child is; the child says where it is, and
    looks what is void.
    """

    def __init__(self, number: int | None = None) -> None:
        self.file = number if number is not None else _memory_file()
        self._page = mmap.mmap(self.file, mmap.PAGESIZE)

    def set(self, number: int) -> None:
        """Say which job begins now."""
        _NUMBER.pack_into(self._page, 0, number)

    def get(self) -> int:
        """Return the number of the job that began last."""
        (number,) = _NUMBER.unpack_from(self._page, 0)
        return int(number)

    def void(self, number: int) -> None:
        """Say that the jobs up to this one, as far as they have not begun, shall not begin."""
        _NUMBER.pack_into(self._page, _NUMBER.size, number)

    def is_void(self, number: int) -> bool:
        """Say whether a job shall not begin; asked after `set`."""
        (void,) = _NUMBER.unpack_from(self._page, _NUMBER.size)
        return number <= int(void)

    def close(self) -> None:
        """Let go of the page."""
        self._page.close()
        os.close(self.file)


_NUMBER: Final = struct.Struct("<Q")


def _memory_file() -> int:
    with tempfile.TemporaryFile() as file:  # It has no name, so nothing is left behind.
        file.truncate(mmap.PAGESIZE)
        return os.dup(file.fileno())


class Reader(Generic[M]):
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
