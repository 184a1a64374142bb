"""Frames survive any split of the stream; malformed frames raise an error at once."""

import os
import random

import msgspec
import pytest

from headway.core.jobs import Claimed, Report
from headway.worker.ipc import (
    FRAME_BYTES_MAX,
    Done,
    Failed,
    FailedInDamagedProcess,
    Finish,
    Flush,
    FrameReader,
    FrameTooLarge,
    Reports,
    Run,
    SharedCounters,
    Skipped,
    Stop,
    StoreRequest,
    StoreResponse,
    ToChild,
    ToSupervisor,
    Unrunnable,
    encode_frame,
    pair,
)


def claimed(**changes: object) -> Claimed:
    """Create a claimed job."""
    given = {
        "job_id": "job_1",
        "attempt": 1,
        "failures": 0,
        "max_attempts": 3,
        "task": "work",
        "args": "{}",
        "tenant": "default",
        "queue": "default",
        "priority": 0,
        "run_at": 0,
    }
    return Claimed(**{**given, **changes})  # type: ignore[arg-type]


TO_CHILD = [
    Run(7, [claimed(args='{"ö":"\\u0000"}'), claimed(job_id="job_2")], {"job_1": 5}, {"job_1": {"step": "[1]"}}),
    Stop("job_1", 2),
    StoreResponse(3, "body"),
    StoreResponse(4, error="no", is_lost=True),
    Flush(),
    Finish(),
]
TO_SUPERVISOR = [
    Done("job_1", 1, None),
    Done("job_1", 1, '"x"'),
    Failed("job_1", 1, "{}", retryable=False, retry_in=5),
    Unrunnable("job_1", 1, "why", "arguments"),
    Reports([Report(job_id="job_1", attempt=1, progress=3, lines=((None, "log", "line"),))]),
    StoreRequest(1, "job_1", 1, "step", "body"),
    Skipped(3, 7),
    FailedInDamagedProcess("job_1", 1, 5, "umask"),
]


@pytest.mark.parametrize(("messages", "kind"), [(TO_CHILD, ToChild), (TO_SUPERVISOR, ToSupervisor)])
def test_messages_survive_any_chunk_boundary(messages: list[object], kind: object) -> None:
    stream = b"".join(bytes(encode_frame(part)) for part in ([messages[0]], [], messages[1:]))  # type: ignore[arg-type]
    chance = random.Random(1)
    for size in (1, 3, 17, len(stream)):
        reader: FrameReader[object] = FrameReader(kind)
        heard: list[object] = []
        start = 0
        while start < len(stream):
            end = start + chance.randint(1, size)
            heard += reader.feed(stream[start:end])
            start = end
        assert heard == messages


def test_malformed_frames_are_errors() -> None:
    for nonsense in ((FRAME_BYTES_MAX + 1).to_bytes(4, "big"), b"\0\0\0\4[[]]", b'\0\0\0\x08["Nobody', b"\0\0\0\1\xff"):
        reader: FrameReader[object] = FrameReader(ToSupervisor)
        with pytest.raises((ValueError, msgspec.DecodeError)):
            list(reader.feed(nonsense + b"      "))


def test_oversized_message_is_not_sent() -> None:
    with pytest.raises(FrameTooLarge, match="bytes of one IPC frame"):
        encode_frame([StoreResponse(1, "x" * FRAME_BYTES_MAX)])


def test_both_sides_see_the_same_page() -> None:
    ours = SharedCounters()
    theirs = SharedCounters(os.dup(ours.file))
    try:
        assert (ours.begun, ours.ended, ours.withdrawn) == (0, 0, 0)
        theirs.begun, theirs.ended, ours.withdrawn = 2**40, 2**39, 2**41
        ours.fence()
        assert (ours.begun, ours.ended, theirs.withdrawn) == (2**40, 2**39, 2**41)
    finally:
        ours.close()
        theirs.close()


def test_closing_one_end_ends_the_other() -> None:
    ours, theirs = pair()
    with ours, theirs:
        ours.sendall(b"x")
        assert theirs.recv(10) == b"x"
        theirs.close()
        assert ours.recv(10) == b""
