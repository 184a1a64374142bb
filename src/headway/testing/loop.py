"""An event loop on virtual time: when nothing is ready it jumps to the next timer.

Without a timer nothing can ever happen again: that is a deadlock, and raises an error. So does a program that keeps
running without letting time pass.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable
from typing import Any, Final

TURNS_AT_ONE_TIME_MAX: Final = 100_000
SAME_TIME_S: Final = 1e-7  # Sums of seconds are not exact; the store counts microseconds.
SAME_TIME_STEPS: Final = 4  # The same in steps of a float, which grow over the years.
RESOLUTION_S: Final = 1e-9
GOODBYE_S_MAX: Final = 60.0
GOODBYES_MAX: Final = 5


class Deadlock(Exception):
    """Nothing is ready, and no timer is set."""


class Livelock(Exception):
    """The program keeps running and lets no time pass."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order in which they were scheduled; reads no clock and no file."""

    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._turns = 0
        self._clock_resolution = RESOLUTION_S
        self._selector = self
        self._until: float | None = None

    def time(self) -> float:
        """Return the virtual seconds since the beginning."""
        return self._now

    def run_through(self, when: float) -> None:
        """Run everything up to a time, and set the clock to it."""
        self._until = when
        try:
            self.run_forever()
        finally:
            self._until = None

    def next_timer(self) -> float | None:
        """Return when the next timer is due; None when there is none."""
        live = [handle.when() for handle in self._scheduled if not handle.cancelled()]
        return max(self._now, min(live)) if live else None

    def select(self, timeout: float | None) -> list[Any]:
        """Wait for the next timer, like a selector, by jumping to it."""
        if timeout is not None and timeout <= 0:
            self._turns += 1
            if self._turns > TURNS_AT_ONE_TIME_MAX:
                self._turns = 0  # At shutdown.
                raise Livelock(
                    f"time stands still {self._now:.6f} s after the start: {TURNS_AT_ONE_TIME_MAX:,} turns, and nothing"
                    " waits. A loop that only yields must let time pass: await asyncio.sleep(1), not 0"
                )
            return []
        self._turns = 0
        following = None if timeout is None else max(self._now, self._scheduled[0].when())
        if self._until is not None and (following is None or following > _latest(self._until)):
            self._jump(max(self._now, self._until))
            self.stop()
        elif following is None:
            raise Deadlock("nothing is ready and no timer is set")
        else:
            self._jump(following)
        return []

    def _jump(self, when: float) -> None:
        """Set the time. A timer is due before time plus resolution, which must not get lost in rounding."""
        self._now = when
        self._clock_resolution = max(RESOLUTION_S, math.ulp(when))

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """Call the function inline: threads have no virtual time."""
        answer = self.create_future()
        try:
            answer.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it travels to whoever awaits
            answer.set_exception(error)
        return answer

    def close(self) -> None:
        """End everything that still runs, then close."""
        if not self.is_closed():
            self._cancel_all()
        super().close()

    def _cancel_all(self) -> None:
        for _ in range(GOODBYES_MAX):  # A timer can start something new while the others end.
            tasks = asyncio.all_tasks(self)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            try:
                self.run_until_complete(asyncio.wait(tasks, timeout=GOODBYE_S_MAX))
            except Livelock:  # Another turn would not help.
                break
        for task in asyncio.all_tasks(self):  # Code that swallows its cancellation.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(Exception):
                task.get_coro().close()

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there is no I/O."""

    def _write_to_self(self) -> None:
        """Raise an error: calls from threads would break determinism."""
        raise AssertionError("a thread in virtual time")


def _latest(until: float) -> float:
    """Return the latest time that is still the same."""
    return until + max(SAME_TIME_S, SAME_TIME_STEPS * math.ulp(until))
