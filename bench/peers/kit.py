"""What the programs of all contestants share: where their stores are, and the body of every job.

A body calls `hit`: one append of 24 bytes (key, time before the enqueue call, time of the body's start) to a file. An
append is atomic across threads and processes, so that one file tells how many ran, how fast, how late and how often.
Only the standard library is used here, because this runs in the environments of the peers too.
"""

import asyncio
import os
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RECORD: Final = struct.Struct("<QQQ")
WARM_UP: Final = 1 << 40  # Keys from here on belong to jobs that do not count.

VARIANT: Final = os.environ.get("BENCH_VARIANT", "")
POSTGRES: Final = os.environ.get("BENCH_POSTGRES", "")
REDIS: Final = os.environ.get("BENCH_REDIS", "")
SQLITE: Final = os.environ.get("BENCH_SQLITE", "")
NUMBER: Final = int(os.environ.get("BENCH_NUMBER", "0"))  # Which of several worker processes this is.

IN_FLIGHT: Final = 100

_file: int | None = None


def hit(key: int, sent_ns: int) -> None:
    """Be the body of a job: write down that it started."""
    global _file
    if _file is None:
        _file = os.open(os.environ["BENCH_RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(_file, RECORD.pack(key, sent_ns, time.time_ns()))


@dataclass(frozen=True)
class Blocking:
    """A client whose calls block."""

    one: Callable[[int, int], object]
    many: Callable[[Sequence[int]], object] | None = None


@dataclass(frozen=True)
class Awaited:
    """A client whose calls are awaited."""

    one: Callable[[int, int], Awaitable[object]]
    many: Callable[[Sequence[int]], Awaitable[object]]


async def in_flight(one: Callable[[int, int], Awaitable[object]], keys: Sequence[int]) -> None:
    """Enqueue with many calls under way at once, for a client that has no call for many."""
    for start in range(0, len(keys), IN_FLIGHT):
        await asyncio.gather(*(one(key, 0) for key in keys[start : start + IN_FLIGHT]))


def become(program: str, *arguments: object) -> None:
    """Go on as a program of this environment."""
    path = Path(sys.executable).parent / program
    os.execv(path, [str(path), *_texts(arguments)])


def _texts(values: Iterable[object]) -> list[str]:
    return [str(value) for value in values]
