"""Run work that grows with user data outside the event loop: parsing large bodies, encoding large jobs.

One thread does it, one piece at a time, so that the loop can go on serving. Small pieces run inline, which is cheaper.
To prevent head-of-line blocking, one holder (a tenant, or a token for all tenants) has two places and all holders
together have eight; further callers wait before they load anything.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final, ParamSpec, TypeVar

SMALL_BYTES_MAX: Final = 32 << 10  # Up to this size it takes a few milliseconds at worst.
PIECES_MAX: Final = 8
PIECES_OF_ONE_MAX: Final = 2

P = ParamSpec("P")
T = TypeVar("T")


class ThreadOffload:
    """One thread for all large pieces of work of a process."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "headway-offload")
        self._pieces = asyncio.Semaphore(PIECES_MAX)
        self._holders: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def turn(self, holder: str) -> AsyncIterator[None]:
        """Hold one of the holder's places, and wait until one is free; load large data only while holding it."""
        own, waiting = self._holders.get(holder, (asyncio.Semaphore(PIECES_OF_ONE_MAX), 0))
        self._holders[holder] = own, waiting + 1
        try:
            async with own, self._pieces:
                yield
        finally:
            own, waiting = self._holders[holder]
            self._holders[holder] = own, waiting - 1
            if waiting == 1:
                del self._holders[holder]

    async def take_turn(self, holder: str, size: int, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Do a piece of work on that many bytes: inline if they are few, else in the thread when a place is free."""
        if size <= SMALL_BYTES_MAX:
            return work(*args, **options)
        async with self.turn(holder):
            return await self.run(size, work, *args, **options)

    async def run(self, size: int, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Do a piece of work on that many bytes; the caller holds a place or needs none."""
        if size <= SMALL_BYTES_MAX:
            return work(*args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*args, **options))

    def close(self) -> None:
        """Stop the thread without waiting for running work."""
        self._thread.shutdown(wait=False, cancel_futures=True)
