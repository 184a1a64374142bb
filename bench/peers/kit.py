"""Shared code of all contestant programs: the addresses of their stores and the body of every job.

Each job calls `hit`, which appends 24 bytes (key, time before the enqueue call, start time of the job) to a file.
Appends are atomic across threads and processes, so one file shows throughput, latency and duplicate runs.
Use only the standard library here, because this module also runs in the environments of the peers.
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
WARM_UP: Final = 1 << 40  # Keys from here on belong to warm-up jobs.

VARIANT: Final = os.environ.get("BENCH_VARIANT", "")
POSTGRES: Final = os.environ.get("BENCH_POSTGRES", "")
REDIS: Final = os.environ.get("BENCH_REDIS", "")
SQLITE: Final = os.environ.get("BENCH_SQLITE", "")
NUMBER: Final = int(os.environ.get("BENCH_NUMBER", "0"))  # The index of this worker process.

IN_FLIGHT: Final = 100

_file: int | None = None


def hit(key: int, sent_ns: int) -> None:
    """Record that a job started; every job calls this."""
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
    """Enqueue with concurrent calls, for a client without a batch call."""
    for start in range(0, len(keys), IN_FLIGHT):
        await asyncio.gather(*(one(key, 0) for key in keys[start : start + IN_FLIGHT]))


def become(program: str, *arguments: object) -> None:
    """Replace this process with a program of its environment."""
    path = Path(sys.executable).parent / program
    os.execv(path, [str(path), *_texts(arguments)])


def _texts(values: Iterable[object]) -> list[str]:
    return [str(value) for value in values]
