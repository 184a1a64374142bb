"""An event loop on virtual time: when nothing is ready it jumps to the next timer.

Without a timer there is nothing left that could ever happen: that is a deadlock, and it fails. So does a program that
runs and runs without letting time pass.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

TURNS_AT_ONE_TIME_MAX: Final = 100_000


class Deadlock(Exception):
    """Nothing is ready, and no timer is set."""


class Livelock(Exception):
    """The program is busy and lets no time pass."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order in which they were scheduled; reads no clock and no file."""

    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._turns = 0
        self._clock_resolution = 1e-9
        self._selector = self

    def time(self) -> float:
        """Return the virtual seconds since the beginning."""
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Wait for what comes next, as a selector would: by jumping there."""
        if timeout is None:
            raise Deadlock("nothing is ready and no timer is set")
        if timeout > 0:
            self._now = max(self._now, self._scheduled[0].when())
            self._turns = 0
        else:
            self._turns += 1
            if self._turns > TURNS_AT_ONE_TIME_MAX:
                raise Livelock(f"{self._turns} turns at {self._now} s")
        return []

    def close(self) -> None:
        """End everything that still runs, then close."""
        if not self.is_closed():
            self._cancel_all()
        super().close()

    def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            task.cancel()
        if tasks:
            self.run_until_complete(asyncio.wait(tasks, timeout=60.0))

    def _process_events(self, event_list: list[Any]) -> None:
        """There is no I/O."""

    def _write_to_self(self) -> None:
        """Refuse: a thread that calls would break determinism."""
        raise AssertionError("a thread in virtual time")


def run_virtual(main: Coroutine[Any, Any, T], loop: VirtualLoop | None = None) -> T:
    """Run a coroutine to its end in virtual time."""
    loop = loop or VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


def virtual(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make a test that is written as a coroutine run in virtual time."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_virtual(test(*args, **kwargs))

    return run
