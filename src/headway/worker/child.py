"""The child: the process in which user code runs. It has no store, only a socket to its supervisor.

    process   one `def` task at a time, in the main thread, so that a signal can interrupt it
    thread    `def` tasks in a few threads
    loop      `async def` tasks on one event loop, in the main thread. The loop reads the socket itself, since handing a
              job from thread to thread delays it; the reading thread steps in only while a task blocks the loop

Outcomes are sent at once, except while short jobs wait: then the outcomes of a few milliseconds are sent together.
Between jobs a child restores the process state that tasks have changed (`process_state.py`).
"""

import asyncio
import contextlib
import contextvars
import ctypes
import gc
import inspect
import os
import queue
import resource
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from headway.core.errors import HeadwayError
from headway.core.jobs import Claimed
from headway.tasks.context import TaskStopped
from headway.tasks.store_requests import JobFactory
from headway.tasks.task import Task
from headway.worker.attempt import Ended, TasksByName, outcome_of, resolve, run_async, run_sync
from headway.worker.child_base import ChildBase, ChildSetup
from headway.worker.child_connection import LOOK_EVERY_S, REPORT_EVERY_S, end_with_everything, ending_when_unheard
from headway.worker.ipc import (
    Done,
    Failed,
    FailedInDamagedProcess,
    Hello,
    ReplacementRequest,
    SharedCounters,
    Stopped,
    Unrunnable,
    encode_frame,
)
from headway.worker.spawned import OwnedTask, SpawnedProcesses, patch_popen, track_spawned, track_spawned_in_task

TOGETHER_MAX: Final = 64
TOGETHER_S: Final = 0.002
SHORT_S: Final = 0.001
_PR_SET_PDEATHSIG: Final = 1


class _QueueChild(ChildBase):
    """Run `def` tasks in one thread or several."""

    def __init__(self, setup: ChildSetup) -> None:
        super().__init__(setup)
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wake(self, jobs: int) -> None:
        """Wake as many threads as there are jobs."""
        for _ in range(min(jobs, self._width)):
            self._tokens.put(None)

    def _attempt(self, claimed: Claimed) -> Ended:
        found = resolve(self._registry, claimed)
        if isinstance(found, Unrunnable):
            return found
        task, args = found
        # Context variables that it sets end with it.
        return contextvars.copy_context().run(self._call, task, args, claimed)

    def _call(self, task: Task[..., Any], args: dict[str, Any], claimed: Claimed) -> Ended:
        return run_sync(task, args, self.context_of(claimed), claimed, self.was_asked)


class ThreadChild(_QueueChild):
    """Run `def` tasks in threads. A thread cannot be killed alone; the supervisor may have to kill the process."""

    def __init__(self, setup: ChildSetup) -> None:
        super().__init__(setup)
        self._beginning = threading.Lock()

    def _begin(self) -> Claimed | None:
        with self._beginning:
            if self._active == 0 and self._company:
                self.tidy()
            begun = None if self._is_spent else self._inbox.begin()
            if begun is None:
                return None
            self.enter()
            return begun[1]

    def _work(self) -> None:
        with ending_when_unheard():
            while True:
                claimed = self._begin()
                if claimed is not None:
                    self._run(claimed)
                    continue
                with self._beginning:
                    is_skipping = self.skip()
                self.flush()
                if self._finishing and not len(self._inbox):
                    return
                if not is_skipping:
                    self._tokens.get()

    def _run(self, claimed: Claimed) -> None:
        spawned = track_spawned()
        ended = self._attempt(claimed)
        for rest_s in _end_spawned(spawned, ended):
            threading.Event().wait(rest_s)
        with self._beginning:
            self.leave(claimed, ended)
        self.flush()

    def run(self) -> None:
        """Run jobs until told to finish."""
        threads = [threading.Thread(target=self._work, name=f"headway-task-{n}") for n in range(self._width)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class ProcessChild(_QueueChild):
    """Run one task at a time in the main thread, where SIGTERM raises `TaskStopped` so that `finally` blocks run."""

    def __init__(self, setup: ChildSetup) -> None:
        signal.signal(signal.SIGTERM, self._interrupt)
        super().__init__(setup)
        self._in_task = False
        self._interrupted = False
        self._is_speaking = False
        self._is_due = False  # An interruption that waits until a frame is complete.
        self._main = threading.get_ident()
        self._is_short: dict[str, bool] = {}  # Whether the last job of a task was very short.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: tuple[str, int, asyncio.Task[Ended]] | None = None

    def run(self) -> None:
        """Run jobs until told to finish."""
        inbox, counters, monotonic = self._inbox, self._counters, self._clock.monotonic
        kept, kept_since = 0, 0.0
        while True:
            following = None if self._is_spent else inbox.following()
            if following is None or (kept and not self._is_short.get(following.task)):
                self.flush()  # It may take long, or never return.
                kept = 0
            if not kept and self._company:
                self.tidy()
            begun = None if self._is_spent else inbox.begin()
            if begun is None:
                if self.skip():
                    continue
                if self._unsent:
                    self.flush()
                if self._finishing and not len(inbox):
                    break
                self._tokens.get()
                continue
            number, claimed = begun
            began = monotonic()
            self.enter()
            self.leave(claimed, self._attempt(claimed))
            counters.ended = number
            now = monotonic()
            self._is_short[claimed.task] = now - began < SHORT_S
            kept_since = kept_since if kept else now
            kept += 1
            if kept >= TOGETHER_MAX or now - kept_since > TOGETHER_S:
                self.flush()
                kept = 0
        self.flush()

    def stop(self, job_id: str, attempt: int) -> None:
        """Cancel an async task on its loop. A sync task learns it from its context, or by a signal."""
        running, loop = self._running, self._loop
        if running is not None and loop is not None and running[:2] == (job_id, attempt):
            with contextlib.suppress(RuntimeError):  # It has just ended.
                loop.call_soon_threadsafe(running[2].cancel)

    def flush(self) -> None:
        """Send the buffered messages; defer an interruption until the frame is complete."""
        if threading.get_ident() != self._main:
            super().flush()
            return
        self._is_speaking = True
        try:
            super().flush()
        finally:
            self._is_speaking = False
        if self._is_due:
            self._is_due = False
            raise TaskStopped

    def _interrupt(self, *_: object) -> None:
        if not self._in_task:
            end_with_everything()
        self._interrupted = True
        if not self._is_speaking:
            raise TaskStopped
        self._is_due = True

    def was_asked(self, job_id: str) -> bool:
        """Count a signal as a request, too. If it was meant for the previous job, this one is handed back."""
        return self._interrupted or super().was_asked(job_id)

    def _call(self, task: Task[..., Any], args: dict[str, Any], claimed: Claimed) -> Ended:
        limit = task.execution.memory
        self._interrupted, self._in_task = False, True
        try:
            if limit is not None:
                _limit_memory(limit)
            if task.is_async:
                return asyncio.run(self._call_async(task, args, claimed))
            return run_sync(task, args, self.context_of(claimed), claimed, self.was_asked)
        except BaseException as error:  # noqa: BLE001 - after the end of the task, or from another one on its loop
            return outcome_of(claimed, error, task.execution.retry, self.was_asked)
        finally:
            self._in_task = False
            if limit is not None:
                _limit_memory(None)

    async def _call_async(self, task: Task[..., Any], args: dict[str, Any], claimed: Claimed) -> Ended:
        self._loop = asyncio.get_running_loop()
        attempt = asyncio.create_task(run_async(task, args, self.context_of(claimed), claimed, self.was_asked))
        self._running = (claimed.job_id, claimed.attempt, attempt)
        try:
            return await attempt
        finally:
            self._running = self._loop = None

    def ended(self, claimed: Claimed, ended: Ended | FailedInDamagedProcess) -> None:
        """Ask to be replaced after a task ran out of memory: the state of this process is unknown."""
        super().ended(claimed, ended)
        if isinstance(ended, Failed) and '"type":"MemoryError"' in ended.error and not self._is_spent:
            self._is_spent = True
            self.buffer(ReplacementRequest("a task ran out of memory"))


class LoopChild(ChildBase):
    """Run `async def` tasks on one event loop.

    Tasks share the loop and can damage it. So they cannot cancel each other (`OwnedTask`), a stopped loop is restarted,
    removed readers are restored, and an attempt that fails on a damaged loop is retried elsewhere.
    """

    reads_on_loop = True

    def __init__(self, setup: ChildSetup) -> None:
        super().__init__(setup)
        self._flushing = False
        self._main = threading.get_ident()
        self._loop = asyncio.new_event_loop()
        self._context = contextvars.copy_context()  # Belongs to no job.
        self._running: dict[str, tuple[int, asyncio.Task[None]]] = {}
        self._is_finished = False

    def run(self) -> None:
        """Run jobs until told to finish."""
        asyncio.set_event_loop(self._loop)
        self._loop.set_task_factory(OwnedTask.make)
        self._loop.add_reader(self._socket, self.read)
        while not self._is_finished:  # A task may stop the shared loop.
            self._loop.run_forever()

    def wait_for(self, answered: threading.Event) -> None:
        """Wait for a response; a task that blocks the loop has to read it itself."""
        if threading.get_ident() != self._main:
            answered.wait()
            return
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        while not answered.is_set():
            waiting.poll(LOOK_EVERY_S * 1_000)  # The reading thread may have just read it.
            self.read()

    def look_after(self) -> None:
        """Restore the readers of the loop if a task has removed them; called by the reading thread.

        Without them the loop receives nothing. Readers of other jobs may be gone, too, so the child asks to be
        replaced.
        """
        selector = getattr(self._loop, "_selector", None)
        wakeup = getattr(self._loop, "_ssock", None)
        if selector is None or wakeup is None or self._is_finished:
            return
        watched = selector.get_map()
        missing = [file for file in (wakeup, self._socket) if file.fileno() not in watched]
        if not missing:
            return
        for file in missing:
            self._loop.add_reader(file, self.read if file is self._socket else self._loop._read_from_self)  # type: ignore[attr-defined]
        if not self._is_spent:
            self._is_spent = True
            self.send(ReplacementRequest("a task removed the readers of the event loop", is_harmful=True))

    def _on_loop(self, do: Callable[..., None], *arguments: Any) -> None:
        """Call a function on the loop, directly when already there."""
        if threading.get_ident() == self._main:
            do(*arguments)
        else:
            self._loop.call_soon_threadsafe(do, *arguments)

    def wake(self, jobs: int) -> None:
        """Start jobs on the loop."""
        self._on_loop(self._start)

    def stop(self, job_id: str, attempt: int) -> None:
        """Cancel a job on the loop."""
        self._on_loop(self._cancel, job_id, attempt)

    def _start(self) -> None:
        if self._active == 0 and self._company:
            self.tidy()
        while len(self._running) < self._width and not self._is_spent:
            begun = self._inbox.begin()
            if begun is None:
                break
            claimed = begun[1]
            self.enter()
            task = OwnedTask(self._attempt(claimed), loop=self._loop, context=self._context.copy())
            self._running[claimed.job_id] = (claimed.attempt, task)
        if self.skip():
            self._flush_soon()
            self._loop.call_soon(self._start)
        self._end_if_finished()

    async def _attempt(self, claimed: Claimed) -> None:
        with ending_when_unheard():
            found = resolve(self._registry, claimed)
            if isinstance(found, Unrunnable):
                ended: Ended = found
            else:
                spawned = track_spawned_in_task()
                ended = await run_async(*found, self.context_of(claimed), claimed, self.was_asked)
                for rest_s in _end_spawned(spawned, ended):
                    with contextlib.suppress(asyncio.CancelledError):  # It has ended and is cancelled once more.
                        await self._clock.rest(rest_s, asyncio.Event())
            self._running.pop(claimed.job_id, None)
            self.leave(claimed, ended)
            self._flush_soon()
            self._go_on()

    def _go_on(self) -> None:
        if len(self._inbox):
            self._start()
        else:
            self._end_if_finished()

    def _flush_soon(self) -> None:
        """Send all outcomes of this loop iteration together."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flushing = False
        with ending_when_unheard():
            self.flush()

    def _cancel(self, job_id: str, attempt: int) -> None:
        running = self._running.get(job_id)
        if running is None or running[0] != attempt:
            return
        self._context.copy().run(running[1].cancel)  # The caller may be another job that waits for a response.
        if inspect.getcoroutinestate(running[1].get_coro()) == inspect.CORO_CREATED:  # type: ignore[arg-type]
            del self._running[job_id]  # It will not begin, so it cannot report its end.
            self._active -= 1
            self._forget(job_id, attempt)
            self.send(Stopped(job_id, attempt))
            self._go_on()

    def _end_if_finished(self) -> None:
        if self._finishing and not self._running and not len(self._inbox):
            self.flush()
            self._is_finished = True
            self._loop.stop()

    def damage(self) -> list[str]:
        """Name the state of the process and the loop that tasks have changed."""
        found = super().damage()
        if self._loop.get_task_factory() != OwnedTask.make or self._loop.get_exception_handler() is not None:
            found.append("handlers of the event loop")
        if getattr(self._loop, "_executor_shutdown_called", False):
            found.append("default executor")
        return found

    def repair(self) -> str | None:
        """Restore the state of the process and the loop that tasks have changed."""
        self._loop.set_task_factory(OwnedTask.make)
        self._loop.set_exception_handler(None)
        is_shut = getattr(self._loop, "_executor_shutdown_called", False)
        return super().repair() or ("default executor" if is_shut else None)

    def _become_copy(self) -> None:
        """Run none of the loop's other tasks in the forked copy."""
        super()._become_copy()
        getattr(self._loop, "_ready", []).clear()
        self._loop.call_soon(os._exit, 0)


KINDS: Final[dict[str, type[ChildBase]]] = {"process": ProcessChild, "thread": ThreadChild, "loop": LoopChild}


def serve(
    sock: socket.socket,
    counters: SharedCounters,
    kind: str,
    width: int,
    load: Callable[[], tuple[TasksByName, JobFactory | None, Hello]],
    report_every_s: float = REPORT_EVERY_S,
) -> None:
    """Run as a child: load the app, send the hello, run jobs."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the supervisor.
    try:
        registry, job_factory, hello = load()
    except HeadwayError as error:
        sock.sendall(encode_frame([Hello(os.getpid(), "", "", [], {}, error=str(error))]))
        sys.exit(2)
    if kind != "process":
        patch_popen()
    child = KINDS[kind](ChildSetup(sock, counters, registry, job_factory, width))
    child.report_every_s = report_every_s
    gc.freeze()  # Exclude imported objects from garbage collection while jobs run.
    child.send(hello)
    child.listen()
    with ending_when_unheard():
        child.run()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(0)  # Threads left by tasks must not keep this process alive.


def _end_spawned(spawned: SpawnedProcesses, ended: Ended) -> Iterator[float]:
    """End the processes that an attempt has started, unless it has completed; yield how long to rest between checks."""
    return iter(()) if isinstance(ended, Done | Unrunnable) else spawned.end()


def _die_with_parent() -> None:
    """Let the kernel kill this process with the supervisor, also while a task holds the GIL; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit_memory(limit: int | None) -> None:
    """Limit what this process may allocate; an allocation beyond raises MemoryError."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = hard if limit is None else limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
