"""Kill the processes that children have started, without blocking the event loop.

Finding them means scanning all processes of the host, which is slow on a busy one. So one thread does it, and all
children that ask in the meantime share the next scan.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from headway.core.process_tree import ProcessTable, kill_each, kill_group


class ProcessTree(Protocol):
    """A child process with all its descendants."""

    @property
    def pid(self) -> int:
        """Its process id, and that of its process group."""
        ...

    @property
    def mark(self) -> str:
        """The mark that its descendants have in their environment."""
        ...


@dataclass(frozen=True, slots=True)
class _KillRequest:
    family: ProcessTree
    with_head: bool
    then: Callable[[], None]


class Sweeper:
    """Kill process trees, many with one scan. Used by one event loop."""

    def __init__(self) -> None:
        self._requests: list[_KillRequest] = []
        self._sweeping: asyncio.Task[None] | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="headway-sweeper")

    def sweep(self, family: ProcessTree, then: Callable[[], None], *, with_head: bool) -> None:
        """Kill the descendants of a child, and the child itself if asked to; then call `then`."""
        self._requests.append(_KillRequest(family, with_head, then))
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while self._requests:
            requests, self._requests = self._requests, []
            try:
                await loop.run_in_executor(self._executor, _kill, requests)
            finally:
                for request in requests:
                    loop.call_soon(request.then)
        self._sweeping = None

    def close(self) -> None:
        """Let the thread end; do not wait for it."""
        self._executor.shutdown(wait=False)


def _kill(requests: Sequence[_KillRequest]) -> None:
    census = ProcessTable.take()
    for request in requests:
        found = census.descendants_of(request.family.pid, request.family.mark)
        if request.with_head:
            kill_group(request.family.pid)
        kill_each(found)
