"""What tasks that share a child have started, noted job by job: it ends with its job, and that of the others does not.

A task in a process of its own has everything in that process. On a loop and in threads only the call says whose a new
process is. So `subprocess.Popen`, by which `asyncio` starts processes as well, notes them with the job of the calling
context. What is started without it (`os.fork`, `multiprocessing`), from a thread that knows nothing of the job, or by
a process that is gone itself is not seen here, and ends with the child.
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

from headway.worker.descendants import alive_with_descendants, began_at

LOOK_EVERY_S: Final = 0.02
TERM_LOOKS: Final = 25  # So often we look whether SIGTERM was enough,
KILL_LOOKS: Final = 50  # and so often after SIGKILL.

_current: ContextVar["SpawnedProcesses | None"] = ContextVar("headway_spawned", default=None)


class SpawnedProcesses:
    """The processes that one attempt has started."""

    def __init__(self) -> None:
        self._heads: dict[int, int] = {}

    def note(self, pid: int) -> None:
        """Remember a process by its number and its beginning."""
        began = began_at(pid)
        if began is not None:
            self._heads[pid] = began

    def end(self) -> Iterator[float]:
        """End what is left of them, with all that they have started; yield how long to rest before the next look."""
        family = self._heads
        for number, looks in ((signal.SIGTERM, TERM_LOOKS), (signal.SIGKILL, KILL_LOOKS)):
            family = alive_with_descendants(family)  # They may have started more meanwhile.
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
        """Make a task; the task factory of a shared loop."""
        return cls(coroutine, loop=loop, **options)

    def assign_to(self, spawned: SpawnedProcesses) -> None:
        """Say to which attempt this task belongs."""
        self._headway_owner = spawned

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the task, unless another job asks for it."""
        caller = _current.get()
        if caller is not None and caller is not self._headway_owner:
            return False
        return super().cancel(msg)


def track_spawned() -> SpawnedProcesses:
    """Note from now on what this context starts, and what its tasks and `asyncio.to_thread` start for it."""
    spawned = SpawnedProcesses()
    _current.set(spawned)
    return spawned


def track_spawned_in_task() -> SpawnedProcesses:
    """Do so for the current task of a shared loop, which then belongs to this attempt."""
    spawned = track_spawned()
    task = asyncio.current_task()
    if isinstance(task, OwnedTask):
        task.assign_to(spawned)
    return spawned


def patch_popen() -> None:
    """Have every process noted that is started in a context that notes."""
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
