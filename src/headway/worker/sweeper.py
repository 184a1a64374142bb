"""Ending what child processes have started, without holding up the event loop.

To find it all processes of the host are looked through, which takes a while on a busy one. So one thread does it, and
all children that ask meanwhile share the next look.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from headway.worker.descendants import Census, kill_each, kill_group


class Family(Protocol):
    """A child process with all that it has started."""

    @property
    def pid(self) -> int:
        """Its process id, and that of its process group."""
        ...

    @property
    def mark(self) -> str:
        """What all that it starts has in its environment."""
        ...


@dataclass(frozen=True, slots=True)
class _Wish:
    family: Family
    with_head: bool
    then: Callable[[], None]


class Sweeper:
    """Kills families of processes, many with one look. Used by one event loop."""

    def __init__(self) -> None:
        self._wishes: list[_Wish] = []
        self._sweeping: asyncio.Task[None] | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="headway-sweeper")

    def sweep(self, family: Family, then: Callable[[], None], *, with_head: bool) -> None:
        """Kill all that a child has started, and the child itself if asked to; call `then` when that is done."""
        self._wishes.append(_Wish(family, with_head, then))
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while self._wishes:
            wishes, self._wishes = self._wishes, []
            try:
                await loop.run_in_executor(self._executor, _kill, wishes)
            finally:
                for wish in wishes:
                    loop.call_soon(wish.then)
        self._sweeping = None

    def close(self) -> None:
        """Let the thread end; it is not waited for."""
        self._executor.shutdown(wait=False)


def _kill(wishes: Sequence[_Wish]) -> None:
    census = Census.take()
    for wish in wishes:
        found = census.descendants_of(wish.family.pid, wish.family.mark)
        if wish.with_head:
            kill_group(wish.family.pid)
        kill_each(found)
