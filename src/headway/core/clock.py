"""Time and randomness, read only here; and the one loop that everything runs in.

The store's clock decides what is due. A process never trusts its own wall clock: whenever the store reports its time,
the process notes it beside its own *monotonic* clock and counts on from there. This estimate is never ahead of the
store: the store read its clock before the response arrived, so the estimate is late by at most one round trip. A
stepping, frozen or wrong wall clock changes nothing.

Every loop of the engine is a `Loop`: a tick that returns the seconds to rest. Signals (a notification, a commit by
another process, a stop) only cut the rest short, so losing one costs latency and nothing else.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from headway.core.backoff import backoff
from headway.core.errors import StoreFull, StoreUnavailable
from headway.core.events import ClockStepped, TickFailed, emit
from headway.core.instants import SECOND, Instant

CANCEL_AGAIN_S: Final = 0.1
RETRY_REST_S_MIN: Final = 0.2
RETRY_REST_S_MAX: Final = 5.0
CLOCK_STEP_S: Final = 1.0
# Crockford's base 32: sorts like the numbers, without i l o u.
_ID_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_RANDOM_BITS: Final = 75
_PAIRS: Final = tuple(high + low for high in _ID_ALPHABET for low in _ID_ALPHABET)


def monotonic_now() -> float:
    """Read a clock that never steps and, unlike `time.monotonic` on Linux, advances while the machine sleeps.

    A lease expires while a laptop is closed; its holder must notice that when it is opened.
    """
    return time.clock_gettime(_MONOTONIC)


_MONOTONIC: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_now() -> Instant:
    """Read this machine's wall clock."""
    return time.time_ns() // 1_000


class Clock:
    """The store's time as this process knows it, monotonic time, and randomness."""

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = monotonic_now,
        wall: Callable[[], Instant] = wall_now,
        chance: random.Random | None = None,
        node: str = "",
    ) -> None:
        self.monotonic = monotonic
        self.wall = wall
        self.chance = chance or random.Random(random.SystemRandom().getrandbits(128))
        self.node = node
        self._offset: Instant | None = None
        self._last_id = (0, 0, "")  # The milliseconds, the random number, and the milliseconds as text.

    def now(self) -> Instant:
        """Return the store's time, late by at most a round trip; before the store has reported it, the wall clock."""
        if self._offset is None:
            return self.wall()
        return self._offset + round(self.monotonic() * SECOND)

    def observe(self, store_now: Instant, *, sent: float) -> None:
        """Note the store's time from a response that arrives now to a request sent at monotonic `sent`."""
        lowest = store_now - round(self.monotonic() * SECOND)
        highest = store_now - round(sent * SECOND)
        known = self._offset
        if known is not None and lowest <= known <= highest:
            return  # The current estimate is possible, and tighter than this response could make it.
        self._offset = lowest
        if known is not None and abs(lowest - known) > CLOCK_STEP_S * SECOND:
            emit(ClockStepped(node=self.node, by_s=(lowest - known) / SECOND, store_now=store_now))

    def skew_s(self) -> float:
        """Return how far this machine's wall clock is ahead of the store's."""
        return (self.wall() - self.now()) / SECOND

    def new_id(self, prefix: str) -> str:
        """Make an id that sorts by its creation time, also within one process and millisecond."""
        millis = self.now() // 1_000
        last_millis, number, text = self._last_id
        if millis <= last_millis:
            number += 1 + self.chance.getrandbits(32)
        else:
            last_millis, text = millis, _base32(millis, 5)
            number = self.chance.getrandbits(_ID_RANDOM_BITS)  # Leaves room to count up within 80 bits.
        self._last_id = (last_millis, number, text)
        return f"{prefix}_{text}{_base32(number, 8)}"

    def backoff_s(self, failures: int, *, first_s: float, most_s: float, factor: float = 2.0) -> float:
        """Return the seconds to rest after this many consecutive failures: exponential back-off with jitter."""
        return backoff(failures, first=first_s, most=most_s, factor=factor, spread=self.chance.random())

    def nap(self, seconds: float) -> None:
        """Sleep, for callers who cannot await."""
        time.sleep(seconds)

    async def rest(self, seconds: float, wake: asyncio.Event) -> None:
        """Wait until the time is up or the event is set."""
        try:
            async with asyncio.timeout(seconds):
                await wake.wait()
        except TimeoutError:
            pass

    async def yield_to_loop(self) -> None:
        """Let the event loop run other tasks in the middle of a long computation."""
        await asyncio.sleep(0)


def is_cancelled() -> bool:
    """Return whether somebody cancelled the current task.

    A client library can raise `CancelledError` although nobody did, for example when its connection is closed.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def cancel_until_done(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks until they have ended. A client library can miss a cancellation, for example while it connects."""
    while waiting := [task for task in tasks if not task.done()]:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting, timeout=CANCEL_AGAIN_S)


def _base32(number: int, pairs: int) -> str:
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(10 * (pairs - 1), -1, -10)])


class Loop:
    """Calls `tick` until stopped. The tick returns the seconds to rest; a wake-up cuts the rest short.

    A store that does not answer or is full is survived here, with a jittered and growing rest; any other exception is
    a bug and ends the process loudly. The time since the last finished tick is what watchdogs look at. Whoever has to
    wake a loop before it exists sets the event `woken`, which the loop is then given.
    """

    def __init__(
        self,
        name: str,
        tick: Callable[[], Awaitable[float]],
        *,
        clock: Clock,
        rest_s_max: float,
        woken: asyncio.Event | None = None,
    ) -> None:
        self.name = name
        self.rest_s_max = rest_s_max
        self._tick = tick
        self._clock = clock
        self._wake = woken or asyncio.Event()
        self._stopping = False
        self._failures = 0
        self._progress = clock.monotonic()

    def wake(self) -> None:
        """Cut the rest short, or skip the next one when a tick is under way."""
        self._wake.set()

    def stop(self) -> None:
        """End after the current tick."""
        self._stopping = True
        self._wake.set()

    def idle_s(self) -> float:
        """Return the seconds since a tick last finished."""
        return self._clock.monotonic() - self._progress

    async def run(self) -> None:
        """Tick and rest until stopped."""
        while not self._stopping:
            self._wake.clear()  # Before the tick: a signal during the tick must not be lost.
            rest_s = await self._tick_once()
            if rest_s > 0:  # stop() sets the event too, so that a stopped loop does not rest.
                await self._clock.rest(min(rest_s, self.rest_s_max), self._wake)

    async def _tick_once(self) -> float:
        try:
            rest_s = await self._tick()
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            # A task group would take it for a loop that ended as asked, and the process would live on without it.
            raise RuntimeError(f"the loop {self.name} was cancelled, and nobody in this process did it") from error
        except (StoreUnavailable, StoreFull) as error:
            self._failures += 1
            rest_s = self._retry_rest_s()
            emit(TickFailed(node=self._clock.node, loop=self.name, error=str(error), rest_s=rest_s))
        else:
            self._failures = 0
            self._progress = self._clock.monotonic()
        return rest_s

    def _retry_rest_s(self) -> float:
        return self._clock.backoff_s(self._failures + 1, first_s=RETRY_REST_S_MIN, most_s=RETRY_REST_S_MAX)
