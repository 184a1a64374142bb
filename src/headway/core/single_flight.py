"""A look at something that counts for a while: many who ask at once cost one look, and looking has its price."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from headway.core.clock import Clock

REST_S_MAX: Final = 60.0

T = TypeVar("T")


class CachedRead(Generic[T]):
    """What was read last, for `fresh_s` seconds; with `cost`, reading takes no larger part of all time than that.

    A read that took a second is then cached for twenty seconds with a cost of a twentieth, but never for more than a
    minute. An error is raised in all waiting callers, and not cached.
    """

    def __init__(
        self, read: Callable[[], Awaitable[T]], *, clock: Clock, fresh_s: float, cost: float | None = None
    ) -> None:
        self._read = read
        self._clock = clock
        self._fresh_s = fresh_s
        self._cost = cost
        self._known: tuple[T, float, float] | None = None  # What, when it was read, until when it counts.
        self._reading: asyncio.Future[T] | None = None

    async def get(self) -> T:
        """Return what is known, or what is found out now."""
        if self._known is not None and self._clock.monotonic() < self._known[2]:
            return self._known[0]
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._look())
        return await asyncio.shield(self._reading)  # One who goes away must not take the answer from the others.

    def age_s(self) -> float:
        """Return how old that is which is known."""
        return 0.0 if self._known is None else self._clock.monotonic() - self._known[1]

    async def _look(self) -> T:
        started = self._clock.monotonic()
        try:
            value = await self._read()
        finally:
            self._reading = None
        now = self._clock.monotonic()
        rest_s = 0.0 if self._cost is None else min((now - started) / self._cost, REST_S_MAX)
        self._known = value, now, now + max(self._fresh_s, rest_s)
        return value
