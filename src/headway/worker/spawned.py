"""Track the processes that tasks of a shared child start, so that they end with their own job only.

A task in a process of its own owns everything in that process. On a loop and in threads, only the call shows whose a
new process is. So `subprocess.Popen`, which `asyncio` uses as well, records each process with the job of the calling
context. Processes started in other ways (`os.fork`, `multiprocessing`), from a thread without the job's context, or by
a process that is itself gone are not tracked; they end with the child.
"""

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Final

from headway.core.process_tree import alive_with_descendants, began_at

LOOK_EVERY_S: Final = 0.02
TERM_LOOKS: Final = 25  # How often to check after SIGTERM.
KILL_LOOKS: Final = 50  # How often to check after SIGKILL.

_current: ContextVar["SpawnedProcesses | None"] = ContextVar("headway_spawned", default=None)


class SpawnedProcesses:
    """The processes that one attempt has started."""

    def __init__(self) -> None:
        self._heads: dict[int, int] = {}

    def note(self, pid: int) -> None:
        """Record a process by its pid and start time."""
        began = began_at(pid)
        if began is not None:
            self._heads[pid] = began

    def end(self) -> Iterator[float]:
        """Kill the remaining processes and their descendants; yield how long to rest before the next check."""
        family = self._heads
        for number, looks in ((signal.SIGTERM, TERM_LOOKS), (signal.SIGKILL, KILL_LOOKS)):
            family = alive_with_descendants(family)  # They may have started more in the meantime.
            _send(number, family)
            for _ in range(looks):
                family = {pid: began for pid, began in family.items() if began_at(pid) == began}
                if not family:
                    return
                yield LOOK_EVERY_S


class OwnedTask(asyncio.Task[Any]):
    """A task of an event loop that several jobs share: code of one job cannot cancel the tasks of another.

    The child itself, which belongs to no job, can.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._headway_owner = _current.get()

    @classmethod
    def make(cls, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "OwnedTask":
        """Make a task; used as the task factory of a shared loop."""
        return cls(coroutine, loop=loop, **options)

    def assign_to(self, spawned: SpawnedProcesses) -> None:
        """Assign this task to an attempt."""
        self._headway_owner = spawned

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the task, unless the caller is another job."""
        caller = _current.get()
        if caller is not None and caller is not self._headway_owner:
            return False
        return super().cancel(msg)


def track_spawned() -> SpawnedProcesses:
    """Track what this context starts from now on, including its asyncio tasks and `asyncio.to_thread`."""
    spawned = SpawnedProcesses()
    _current.set(spawned)
    return spawned


def track_spawned_in_task() -> SpawnedProcesses:
    """Track what the current task of a shared loop starts, and assign the task to this attempt."""
    spawned = track_spawned()
    task = asyncio.current_task()
    if isinstance(task, OwnedTask):
        task.assign_to(spawned)
    return spawned


def patch_popen() -> None:
    """Patch `subprocess.Popen` to record every process that a tracked context starts."""
    begin = subprocess.Popen.__init__

    @functools.wraps(begin)
    def begin_noted(process: "subprocess.Popen[Any]", *args: Any, **options: Any) -> None:
        begin(process, *args, **options)
        spawned = _current.get()
        if spawned is not None:
            spawned.note(process.pid)

    subprocess.Popen.__init__ = begin_noted  # type: ignore[method-assign,assignment]


def _send(number: signal.Signals, family: dict[int, int]) -> None:
    for pid in family:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
