"""Run one step of a contestant in its own environment.

python -m bench.peers.drive PROGRAM setup                      create the schema and queues of the contestant
python -m bench.peers.drive PROGRAM enqueue COUNT              enqueue jobs, in batches where the library can
python -m bench.peers.drive PROGRAM spaced COUNT GAP_S START   enqueue jobs one by one at fixed intervals
python -m bench.peers.drive PROGRAM worker                     run a worker until killed

A program has `worker()`, `producer()` (a sync or async context manager that yields a client) and optionally `setup()`.
"""

import asyncio
import importlib
import inspect
import math
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import ModuleType
from typing import Any, Final, NamedTuple

from bench.peers.kit import WARM_UP, Awaited, Blocking

AT_ONCE: Final = 1_000
WARM_UPS: Final = 10


class Turns(NamedTuple):
    """When to enqueue: the start time and the interval."""

    gap_s: float
    start: float


def main() -> None:
    """Run the step given on the command line."""
    name, command, *rest = sys.argv[1:]
    program = importlib.import_module(f"bench.peers.{name}")
    match command:
        case "setup":
            _call(getattr(program, "setup", None))
        case "worker":
            _call(program.worker)
        case "enqueue":
            _produce(program, int(rest[0]), None)
        case "spaced":
            _produce(program, int(rest[0]), Turns(gap_s=float(rest[1]), start=float(rest[2])))
        case _:
            raise SystemExit(f"no step is named {command!r}")


def _call(step: Any) -> None:
    result = step() if step else None
    if inspect.iscoroutine(result):
        asyncio.run(result)


def _produce(program: ModuleType, count: int, turns: Turns | None) -> None:
    producer = program.producer()
    if isinstance(producer, AbstractAsyncContextManager):
        asyncio.run(_awaited(producer, count, turns))
    else:
        _blocking(producer, count, turns)


async def _awaited(producer: AbstractAsyncContextManager[Awaited], count: int, turns: Turns | None) -> None:
    async with producer as client:
        if turns is None:
            for keys in _batches(count):
                await client.many(keys)
            return
        for key, rest_s in _moments(count, turns):
            await asyncio.sleep(rest_s)
            await client.one(key, time.time_ns())


def _blocking(producer: AbstractContextManager[Blocking], count: int, turns: Turns | None) -> None:
    """Enqueue without an event loop, because some libraries behave differently inside one."""
    with producer as client:
        if turns is None:
            for keys in _batches(count):
                if client.many:
                    client.many(keys)
                else:
                    for key in keys:
                        client.one(key, 0)
            return
        for key, rest_s in _moments(count, turns):
            time.sleep(rest_s)
            client.one(key, time.time_ns())


def _batches(count: int) -> Iterator[range]:
    for start in range(0, count, AT_ONCE):
        yield range(start, min(count, start + AT_ONCE))


def _moments(count: int, turns: Turns) -> Iterator[tuple[int, float]]:
    """Yield keys, warm-up keys first, with the delay before each. A late producer skips to the next interval."""
    due = turns.start
    for number in range(-WARM_UPS, count):
        now = time.time()
        due += turns.gap_s * max(0, math.ceil((now - due) / turns.gap_s))
        yield (number if number >= 0 else WARM_UP - number), due - now
        due += turns.gap_s


if __name__ == "__main__":
    main()
