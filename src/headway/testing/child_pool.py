"""A child pool without processes: tasks run on the virtual loop, in the same thread as the supervisor.

`async def` tasks run for as long as they await; `def` tasks are called and take no time. Everything else is as in
production: time-outs, stopping, progress, steps, what a task enqueues. A task that does not stop when asked is
given up after the time in which its process would have been killed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from headway.core import lifecycle
from headway.core.clock import Clock
from headway.core.errors import LeaseLost
from headway.core.instants import SECOND
from headway.core.jobs import Claimed
from headway.core.lifecycle import AttemptOutcome, Parked, Released, Succeeded, TimedOut
from headway.core.sync_bridge import run_inline
from headway.tasks.context import Context
from headway.tasks.store_requests import JobFactory
from headway.tasks.task import Task
from headway.worker.attempt import Ended, TasksByName, resolve, run_async, run_sync
from headway.worker.child_pool_port import SupervisorPort
from headway.worker.ipc import CancelRaised, Done, Failed, Stopped, StoreRequest, TaskInfo, Unrunnable
from headway.worker.outcomes import failure_of
from headway.worker.stopper import HARD_S, SOFT_S

R = TypeVar("R")

REPORT_EVERY_S: Final = 0.25


class Gate:
    """Open while a process runs, closed while it is frozen, dead after it was killed."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.is_dead = False

    @property
    def is_frozen(self) -> bool:
        """Return whether the process is frozen."""
        return not self._open.is_set()

    def freeze(self) -> None:
        """Stop at the next await."""
        self._open.clear()

    def thaw(self) -> None:
        """Go on."""
        self._open.set()

    async def passed(self) -> None:
        """Wait while the process is frozen."""
        if not self._open.is_set():
            await self._open.wait()


class _Gated:
    """A coroutine that does not advance while its process is frozen."""

    def __init__(self, coroutine: Coroutine[Any, Any, Ended], gate: Gate) -> None:
        self._coroutine = coroutine
        self._gate = gate

    def __await__(self) -> Generator[Any, Any, Ended]:
        error: BaseException | None = None
        while True:
            try:
                waits_for = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            error = None
            try:
                yield waits_for
                yield from self._gate.passed().__await__()
            except BaseException as thrown:  # noqa: BLE001 - it is for the task
                error = thrown


@dataclass(slots=True, eq=False)
class _Run:
    """One attempt in this process."""

    claimed: Claimed
    kept: Mapping[str, str]
    task: asyncio.Task[None] | None = None
    context: Context | None = None
    stop_as: AttemptOutcome | None = None
    timer: asyncio.TimerHandle | None = None
    is_gone: bool = False

    @property
    def is_asked(self) -> bool:
        """Return whether the task was asked to stop."""
        return self.stop_as is not None or self.is_gone


def _is_stopping(job_id: str, attempt: int) -> bool:
    """Return that no abandoned attempt runs: it is cancelled at once."""
    return False


class InlineChildPool:
    """Runs the tasks of an app on the virtual loop, in place of child processes."""

    is_stopping = staticmethod(_is_stopping)

    def __init__(
        self,
        registry: TasksByName,
        infos: Sequence[TaskInfo],
        job_factory: JobFactory,
        clock: Clock,
        gate: Gate,
        on_end: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self.tasks: Mapping[str, TaskInfo] = {info.name: info for info in infos}
        self.kinds: dict[str, frozenset[str]] = {
            kind: frozenset(info.name for info in infos if info.isolation == kind)
            for kind in sorted({info.isolation for info in infos})
        }
        self._reports_to: SupervisorPort | None = None
        self.width = 100
        self._registry = registry
        self._job_factory = job_factory
        self._clock = clock
        self._gate = gate
        self._on_end = on_end  # Gets every attempt's asyncio task, so that internal errors surface.
        self._running: dict[str, _Run] = {}
        self._waiting: deque[_Run] = deque()
        self._noted: dict[str, Context] = {}
        self._reporting: asyncio.TimerHandle | None = None

    @property
    def _supervisor(self) -> SupervisorPort:
        assert self._reports_to is not None, "a child pool without a supervisor has no jobs"
        return self._reports_to

    def report_to(self, supervisor_port: SupervisorPort) -> None:
        """Report to this supervisor from now on."""
        self._reports_to = supervisor_port

    # --- the port of the supervisor

    def room(self, kind: str) -> int:
        """The number of free slots."""
        return max(0, self.width - len(self._running) - len(self._waiting))

    def slots(self, kind: str | None = None) -> int:
        """The number of slots."""
        return self.width

    def busy(self, kind: str | None = None) -> int:
        """The number of running jobs."""
        return len(self._running)

    def count(self) -> int:
        """Everything runs in one place."""
        return 1

    def has(self, job_id: str) -> bool:
        """Return whether this process runs the job."""
        return job_id in self._running

    def start(self, jobs: Sequence[Claimed], kept: Mapping[str, dict[str, str]] | None = None) -> None:
        """Run jobs; each ends exactly once, unless it is abandoned."""
        self._waiting.extend(_Run(claimed, (kept or {}).get(claimed.job_id, {})) for claimed in jobs)
        self._begin()

    def stop(self, job_id: str, attempt: int, outcome: AttemptOutcome) -> None:
        """Ask a job to stop; it ends with this outcome."""
        run = self._running.get(job_id)
        if run is None or run.claimed.attempt != attempt:
            for waiting in [run for run in self._waiting if run.claimed.job_id == job_id]:
                self._waiting.remove(waiting)
                self._supervisor.ended(waiting.claimed, outcome)
        elif run.stop_as is None:
            run.stop_as = outcome
            if run.context is not None:
                run.context.stop()
            if run.task is not None:
                run.task.cancel()
            self._set_timer(run, SOFT_S + HARD_S, lambda: self._kill(run))

    def abandon(self, job_id: str, attempt: int) -> None:
        """Stop a job that is no longer ours at once, without reporting its end."""
        self._waiting = deque(run for run in self._waiting if run.claimed.job_id != job_id)
        run = self._running.get(job_id)
        if run is not None and run.claimed.attempt == attempt:
            self._forget(run)
            self._begin()

    def release_waiting(self, reason: str) -> None:
        """Hand back jobs that have not started."""
        while self._waiting:
            self._supervisor.ended(self._waiting.popleft().claimed, Released(reason))

    def release_all(self, reason: str) -> None:
        """Hand back everything now."""
        self.release_waiting(reason)
        for run in list(self._running.values()):
            self._forget(run)
            self._supervisor.ended(run.claimed, run.stop_as or Released(reason))

    def watch(self) -> None:
        """Do nothing: timers of the loop do the checks."""

    def die(self) -> None:
        """Die with the process: nothing about the running jobs is reported."""
        self._waiting.clear()
        for run in list(self._running.values()):
            self._forget(run)

    # --- one attempt

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self.width:
            run = self._waiting.popleft()
            self._running[run.claimed.job_id] = run
            run.task = asyncio.get_running_loop().create_task(self._attempt(run))
            run.task.add_done_callback(self._on_end)
            info = self.tasks[run.claimed.task]
            timeout = run.claimed.timeout or info.timeout
            if timeout is not None:
                self._set_timer(run, timeout / SECOND, self._time_out(run, timeout / SECOND, info.retries_timeouts))

    def _time_out(self, run: _Run, timeout_s: float, is_retried: bool) -> Callable[[], None]:
        words = {"type": "TimeoutError", "message": f"it ran for {timeout_s:g} s, which is its time-out"}
        outcome = TimedOut(msgspec.json.encode(words).decode(), is_retried)
        return lambda: self.stop(run.claimed.job_id, run.claimed.attempt, outcome)

    async def _attempt(self, run: _Run) -> None:
        claimed = run.claimed
        try:
            found = resolve(self._registry, claimed)
            ended = found if isinstance(found, Unrunnable) else await self._call(run, *found)
        except asyncio.CancelledError:  # Before its first step.
            ended = Stopped(claimed.job_id, claimed.attempt)
        if self._running.get(claimed.job_id) is run:  # Otherwise it was abandoned or given up.
            self._end(run, self._outcome(run, ended))

    async def _call(self, run: _Run, task: Task[..., Any], args: dict[str, Any]) -> Ended:
        await self._gate.passed()
        if not task.is_async:
            return run_sync(task, args, lambda: self._context(run), run.claimed, lambda _: run.is_asked)
        attempt = run_async(task, args, lambda: self._context(run), run.claimed, lambda _: run.is_asked)
        return await _Gated(attempt, self._gate)

    def _context(self, run: _Run) -> Context:
        timeout = run.claimed.timeout or self.tasks[run.claimed.task].timeout
        run.context = Context(
            run.claimed,
            self,
            job_factory=self._job_factory,
            kept=run.kept,
            deadline_at=None if timeout is None else self._clock.now() + timeout,
            clock=self._clock,
        )
        return run.context

    def _outcome(self, run: _Run, ended: Ended) -> AttemptOutcome:
        match ended:
            case Done(result=result):
                return Succeeded(result)
            case Failed():
                return failure_of(ended, run.stop_as)
            case CancelRaised(reason=reason):
                return lifecycle.Cancelled(reason)
            case Stopped():
                return run.stop_as or Released("the task stopped by itself")
            case Unrunnable(reason=reason, cause=cause):
                return Parked(reason, cause)

    def _end(self, run: _Run, outcome: AttemptOutcome) -> None:
        self._report()
        self._forget(run)
        self._supervisor.ended(run.claimed, outcome)
        self._begin()
        self._supervisor.has_room()

    def _kill(self, run: _Run) -> None:
        """Give up on a task that did not stop when asked."""
        if run.stop_as is not None and self._running.get(run.claimed.job_id) is run:
            self._end(run, run.stop_as)

    def _forget(self, run: _Run) -> None:
        run.is_gone = True
        self._running.pop(run.claimed.job_id, None)
        self._noted.pop(run.claimed.job_id, None)
        if run.timer is not None:
            run.timer.cancel()
        if run.task is not None and run.task is not asyncio.current_task():
            run.task.cancel()

    def _set_timer(self, run: _Run, seconds: float, act: Callable[[], None]) -> None:
        if run.timer is not None:
            run.timer.cancel()
        run.timer = asyncio.get_running_loop().call_later(seconds, act)

    # --- calls of contexts

    def note(self, context: Context) -> None:
        """Send the changes of the context soon."""
        if self._is_live(context):
            self._noted[context.job_id] = context
            if self._reporting is None:
                self._reporting = asyncio.get_running_loop().call_later(REPORT_EVERY_S, self._report)

    def ask(self, context: Context, question: str, body: str) -> str:
        """Ask the supervisor, whose store answers at once."""
        return at_once(self.ask_async(context, question, body))

    async def ask_async(self, context: Context, question: str, body: str) -> str:
        """Ask the supervisor and await its answer."""
        if not self._is_live(context):
            raise LeaseLost(f"attempt {context.attempt} of {context.job_id} is over")
        return await self._supervisor.answer(StoreRequest(0, context.job_id, context.attempt, question, body))

    def _is_live(self, context: Context) -> bool:
        run = self._running.get(context.job_id)
        return run is not None and run.context is context

    def _report(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
            self._reporting = None
        noted, self._noted = self._noted, {}
        reports = [report for context in noted.values() if (report := context.take_report()) is not None]
        if reports:
            self._supervisor.reported(reports)


def at_once(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never has to wait."""
    return run_inline(
        coroutine, else_say="a def task had to wait, which is not possible in virtual time: make it an async task"
    )
