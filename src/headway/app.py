"""Headway, the object that users hold: the registry of tasks and schedules, and the way into the store.

Async inside, sync outside: every call that does I/O is a coroutine with a blocking twin named `…_sync`, a thin
facade over the same coroutine that works in threads and scripts alike (see `Headway.blocking`).

Schedules declared here belong to the app, by its name. `sync()` brings the store in line with what is declared and
removes what this app declared before and no longer does; schedules of other apps, and those put by hand, stay.
"""

import asyncio
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, overload

from headway.adapters.engines import open_engine
from headway.adapters.transports import open_transport
from headway.coordination.admission import AdmittedLeases
from headway.coordination.locks import TTL_DEFAULT, Grants, Leader, LeaderTerm, Lock, SyncLock, Wish
from headway.core.clock import Clock
from headway.core.errors import InvalidSchedule, InvalidTask, ScheduleNotFound, TaskNotFound
from headway.core.instants import DurationLike, quote
from headway.core.lifecycle import Status
from headway.core.model import (
    DEFAULT_TENANT,
    EnqueuedRow,
    Job,
    NewJob,
    Occurrence,
    Schedule,
    ScheduleRef,
    ScheduleSpec,
    check_name,
    read_status,
    schedule_key,
    schedule_label,
    schedule_name,
)
from headway.core.ports import Live, LiveView, Transport, WakeUps
from headway.core.settings import Settings
from headway.core.triggers import Cron, Trigger
from headway.operations import audit_log as deeds
from headway.operations.job_context import why
from headway.operations.why import glance
from headway.queue.announcer import Dispatch
from headway.queue.background_announcer import Post
from headway.store import Store
from headway.store.access import Deed, Doer
from headway.store.caller_transaction import run_inside, run_inside_async
from headway.store.queue import enqueue
from headway.store.schedule_definitions import REFUSED
from headway.store.schedules import in_pieces
from headway.store.sqlite import path_of
from headway.tasks.context import Context
from headway.tasks.definitions import Definitions, inherited
from headway.tasks.rows import jobs_of_rows
from headway.tasks.task import (
    Conduct,
    JobHandle,
    Options,
    Retry,
    Task,
    check_function,
    check_retry,
    memory_limit,
)
from headway.wiring.node import EngineNode, World
from headway.worker.child_processes import CrewPlan
from headway.worker.command import CommandRefused, command
from headway.worker.environment import ALLOWED
from headway.worker.http import HttpRefused, http_request
from headway.worker.ipc import Hello, TaskInfo
from headway.worker.process import child_command
from headway.worker.supervisor import Supervisor

if TYPE_CHECKING:
    from headway.server.api import Api

P = ParamSpec("P")
R = TypeVar("R")

SYNC_PAGE: Final = 200
SKIPPED: Final = "skipped: "
THREADS_MAX: Final = 32
CHILD_STORE: Final = "HEADWAY_CHILD_STORE"
CHILD_REPORT_S: Final = "HEADWAY_CHILD_REPORT_S"
LIVE_REPORT_EVERY_S: Final = 0.02
WAIT_REST_S_MIN: Final = 0.02
WAIT_REST_S_MAX: Final = 0.5


class _Here(threading.local):
    """What each thread has for its own blocking calls on SQLite: a connection, and whether it is in such a call."""

    store: Store | None = None
    process: int = 0
    calls: int = 0

    def finish(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine that never has to wait."""
        self.calls += 1
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            self.calls -= 1
            coroutine.close()
        raise AssertionError("a blocking call on SQLite waited for something else than SQLite")


class _Portal:
    """An event loop in the background that runs coroutines for callers who cannot await."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headway-portal", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine over there and wait for its result."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise InvalidTask("a _sync call inside of Headway's own loop would wait for itself; await its twin instead")
        called = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return called.result()
        finally:
            called.cancel()  # Where the caller was interrupted, nobody wants it any more.


class _Registers(Protocol):
    """Registers the function that it decorates, with or without a context in front."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class Headway:
    """The app: tasks, schedules and the store they live in."""

    def __init__(
        self,
        store: str | None = None,
        *,
        name: str | None = None,
        coordination: str | None = None,
        transport: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.settings = settings or Settings.load(
            {"store": store, "coordination": coordination, "transport": transport}
        )
        self.name = check_name(name or _calling_module(), "app name")
        self.tasks: dict[str, Task[Any, Any]] = {}
        self._declared: dict[str, ScheduleSpec] = {}
        self._file = Definitions.load() if settings is None else Definitions()
        self._clock = Clock(node=f"app:{self.name}")
        self._stores: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Store]] = (
            weakref.WeakKeyDictionary()
        )
        self._admissions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AdmittedLeases] = (
            weakref.WeakKeyDictionary()
        )
        self._portal: _Portal | None = None
        self._moved_to: Store | None = None
        self._here = _Here()
        self._post = Post(self._transport, self._clock)
        self._lock = threading.Lock()
        self._file.add_tasks(self)

    # --- definitions

    @property
    def declared(self) -> dict[str, ScheduleSpec]:
        """The schedules that are declared, in code and in headway.toml, by `schedule_key`: the name, in most apps."""
        in_file = self._file.specs(self._spec)
        return {**self._declared, **{schedule_key(spec.tenant, name): spec for name, spec in in_file.items()}}

    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        retry: Retry | None = None,
        timeout: DurationLike | None = None,
        expires: DurationLike | None = None,
        isolation: str | None = None,
        memory: str | int | None = None,
    ) -> _Registers: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        retry: Retry | None = None,
        timeout: DurationLike | None = None,
        expires: DurationLike | None = None,
        isolation: str | None = None,
        memory: str | int | None = None,
    ) -> Any:
        """Register a function as a task; its name defaults to the function's.

        `isolation` says where it runs: a `def` in a `process` (the default: it can be killed alone) or in a `thread`,
        an `async def` on the `loop` that it shares with others (the default) or in a `process`. An attempt that
        takes longer than `timeout` is stopped; a job that has not begun after `expires` is cancelled.
        """
        options = Options().changed({"queue": queue, "priority": priority, "tenant": tenant, "expires": expires})
        policy = check_retry(retry)
        if policy is not None:
            options = replace(options, max_attempts=policy.max_attempts, backoff=policy.backoff)

        def register(callee: Callable[..., Any]) -> Task[..., Any]:
            check_function(callee)
            conduct = Conduct.of(callee, isolation=isolation, timeout=timeout, memory=memory, retry=policy)
            called = getattr(callee, "__name__", None) if name is None else name
            return self._register(callee, called, options, conduct)

        return register if function is None else register(function)

    def command(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        queue: str | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        retry: Retry | None = None,
        timeout: DurationLike | None = None,
        expires: DurationLike | None = None,
        memory: str | int | None = None,
    ) -> Task[..., dict[str, Any]]:
        """Register a program with its arguments as a task; no shell is involved.

        `{name}` in an element is an argument of the job. What the program writes is the log of the job, and a line
        `::progress 40 Copying tables` its progress. An exit code other than 0 is a failure. Each process of the program
        can have as much `memory`.
        """
        policy = _giving_up_on(CommandRefused, retry)
        register = self.task(
            name=check_name(name, "the name of a task"),
            queue=queue,
            priority=priority,
            tenant=tenant,
            retry=policy,
            timeout=timeout,
            expires=expires,
        )
        limit = None if memory is None else memory_limit(memory)
        return register(command(argv, env=env, cwd=cwd, memory=limit))

    def http(
        self,
        name: str,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        queue: str | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        retry: Retry | None = None,
        timeout: DurationLike | None = "30s",
        expires: DurationLike | None = None,
    ) -> Task[..., dict[str, Any]]:
        """Register a request as a task; the arguments of the job are its JSON body, or its query."""
        register = self.task(
            name=check_name(name, "the name of a task"),
            queue=queue,
            priority=priority,
            tenant=tenant,
            retry=_giving_up_on(HttpRefused, retry),
            timeout=timeout,
            expires=expires,
            isolation="thread",
        )
        return register(http_request(url, method=method, headers=headers, allow=self.settings.webhook_allow))

    def _register(
        self, callee: Callable[..., Any], called: object, options: Options, conduct: Conduct
    ) -> Task[..., Any]:
        name = check_name(called, "the name of a task")
        if name in self.tasks:
            where = f", one of them in {self._file.file}" if name in self._file.tasks else ""
            raise InvalidTask(f"two tasks are named {name!r}{where}; give one of them another name")
        self.tasks[name] = task = Task(self, callee, name, options, conduct)
        return task

    def schedule(
        self,
        name: str,
        task: "Task[Any, Any] | str",
        trigger: Trigger,
        *,
        args: Mapping[str, Any] | None = None,
        **policies: Any,
    ) -> ScheduleSpec:
        """Declare when a task runs; `sync` (or a starting scheduler with this app) brings it into the store."""
        check_name(name, "schedule name")
        spec = self._spec(task, trigger, args, policies)
        key = schedule_key(spec.tenant, name)
        in_file = name in self._file.schedules and self._file.schedules[name].tenant == spec.tenant
        if key in self._declared or in_file:
            where = f", one of them in {self._file.file}" if in_file else ""
            raise InvalidSchedule(f"two schedules are named {schedule_label(spec.tenant, name)!r}{where}")
        self._declared[key] = spec
        return spec

    def cron(
        self, expr: str, *, name: str | None = None, tz: str = "UTC", dst: str = "shift", **policies: Any
    ) -> Callable[[Callable[P, R] | Task[P, R]], Task[P, R]]:
        """Register a function as a task that runs at the times of a cron text; the schedule has the task's name."""

        def register(callee: Callable[P, R] | Task[P, R]) -> Task[P, R]:
            task = callee if isinstance(callee, Task) else self.task(callee)
            self.schedule(name or task.name, task, Cron(expr, tz=tz, dst=dst), **policies)  # type: ignore[arg-type]
            return task

        return register

    def _spec(
        self, task: "Task[Any, Any] | str", trigger: Trigger, args: Mapping[str, Any] | None, policies: dict[str, Any]
    ) -> ScheduleSpec:
        if isinstance(task, str):
            if self.tasks and task not in self.tasks:
                raise TaskNotFound(f"no task is named {task!r}; known are {', '.join(sorted(self.tasks)[:20])}")
            task = self.tasks.get(task, task)
        if isinstance(task, str):
            return ScheduleSpec.build(task=task, trigger=trigger, args=dict(args or {}), **policies)
        if not isinstance(task, Task):
            raise InvalidSchedule(f"a schedule runs a task or the name of one, not {quote(task)}")
        named = task.bind((), dict(args or {}))
        return ScheduleSpec.build(task=task.name, trigger=trigger, args=named, **(inherited(task.defaults) | policies))

    # --- the store

    async def store(self) -> Store:
        """Return the store of the running event loop, opened on first use."""
        if self._moved_to is not None:
            return self._moved_to
        if self._here.calls:
            return await self._store_here()
        loop = asyncio.get_running_loop()
        opening = self._stores.get(loop)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception())):
            opening = loop.create_task(self._open_store())
            self._stores[loop] = opening
        return opening.result() if opening.done() else await asyncio.shield(opening)

    async def _store_here(self) -> Store:
        """Return the store that this thread has for its blocking calls on SQLite."""
        if self._here.store is None or self._here.process != os.getpid():
            self._here.store = await self._open_store(inline=True)
            self._here.process = os.getpid()
        return self._here.store

    async def _open_store(self, inline: bool = False) -> Store:
        synchronous = self.settings.sqlite_synchronous
        store = await Store.open(self.settings.store, self._clock, synchronous=synchronous, inline=inline)
        return store if self.settings.transport == "store" else store.announcing(self._post.announce, self._clock)

    def _transport(self) -> Transport:
        return open_transport(self.settings.transport, clock=self._clock, node=self._clock.node)

    @contextmanager
    def moved_to(self, store: Store, clock: Clock) -> Iterator[None]:
        """Be on another store and clock for the time of a block. The store must be one that answers at once."""
        before = self._moved_to, self._clock
        self._moved_to, self._clock = store, clock
        try:
            yield
        finally:
            self._moved_to, self._clock = before

    async def close(self) -> None:
        """Close the store of the running event loop."""
        admission = self._admissions.pop(asyncio.get_running_loop(), None)
        if admission is not None:
            await admission.close()
        opening = self._stores.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            await self._post.flush_async()
            await (await opening).close()

    async def __aenter__(self) -> "Headway":
        await self.store()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def blocking(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run one of this app's coroutines and wait for it.

        On a SQLite file it runs right here, since every hop to another thread costs about as much as a commit; nothing
        in it waits for anything else. Otherwise it runs on a loop in the background.
        """
        is_file = self._dialect == "sqlite" and path_of(self.settings.store) != ":memory:"
        if self._moved_to is not None or is_file:
            return self._here.finish(coroutine)
        return self._in_background(coroutine)

    def _in_background(self, coroutine: Coroutine[Any, Any, R]) -> R:
        with self._lock:
            if self._portal is None or self._portal.process != os.getpid():  # A fork has no threads.
                self._portal = _Portal()
        return self._portal.call(coroutine)

    # --- jobs

    def new_job(self, task: str, args: Mapping[str, Any], options: Options) -> NewJob:
        """Make a job that is checked and ready to be handed in."""
        return options.new_job(self._clock.new_id("job"), task, args)

    def jobs_of(self, task: Any, args: Mapping[str, Any], options: Mapping[str, Any]) -> list[NewJob]:
        """Make the job that a running task enqueues."""
        if "tx" in options:
            raise InvalidTask("a job that a running task enqueues is written under its lease; it cannot have a tx=")
        name = task.name if isinstance(task, Task) else task
        return [self._job_by_name(name, args, options)[0]]

    def jobs_of_rows(self, task: Any, rows: Iterable[Mapping[str, Any]], options: Mapping[str, Any]) -> list[NewJob]:
        """Make the jobs that a running task enqueues, one per row of arguments."""
        if "tx" in options:
            raise InvalidTask("jobs that a running task enqueues are written under its lease; they cannot have a tx=")
        return self._rows_by_name(task.name if isinstance(task, Task) else task, rows, options)[0]

    async def enqueue_jobs(self, jobs: list[NewJob], tx: Any = None) -> list[JobHandle]:
        """Hand in jobs, all or none; inside the caller's transaction when `tx` is its connection."""
        if tx is not None:
            rows = await run_inside_async(tx, lambda: enqueue(jobs), self._dialect)
        else:
            rows = await (await self.store()).queue.enqueue(jobs)
        return self._handles(jobs, rows)

    def enqueue_jobs_sync(self, jobs: list[NewJob], tx: Any = None) -> list[JobHandle]:
        """Hand in jobs, all or none; inside the caller's transaction when `tx` is its connection."""
        if tx is None:
            return self.blocking(self.enqueue_jobs(jobs))
        return self._handles(jobs, run_inside(tx, lambda: enqueue(jobs), self._dialect))

    async def enqueue(self, task: str, args: Mapping[str, Any] | None = None, **options: Any) -> JobHandle:
        """Enqueue a job by the name of its task, which need not be known here."""
        job, tx = self._job_by_name(task, args, options)
        return (await self.enqueue_jobs([job], tx))[0]

    def enqueue_sync(self, task: str, args: Mapping[str, Any] | None = None, **options: Any) -> JobHandle:
        """Enqueue a job by the name of its task, which need not be known here."""
        job, tx = self._job_by_name(task, args, options)  # A blocking `tx` belongs to the caller's own thread.
        return self.enqueue_jobs_sync([job], tx)[0]

    async def enqueue_many(self, task: str, rows: Iterable[Mapping[str, Any]], **options: Any) -> list[JobHandle]:
        """Enqueue one job per row of arguments by the name of the task; see `Task.enqueue_many`."""
        jobs, common = self._rows_by_name(task, rows, options)
        return await self.enqueue_jobs(jobs, common.tx)

    def enqueue_many_sync(self, task: str, rows: Iterable[Mapping[str, Any]], **options: Any) -> list[JobHandle]:
        """Enqueue one job per row of arguments by the name of the task; see `Task.enqueue_many`."""
        jobs, common = self._rows_by_name(task, rows, options)
        return self.enqueue_jobs_sync(jobs, common.tx)

    def _rows_by_name(
        self, task: str, rows: Iterable[Mapping[str, Any]], given: Mapping[str, Any]
    ) -> tuple[list[NewJob], Options]:
        known = self.tasks.get(task)
        if known is not None:
            return known.jobs_of_rows(rows, given)
        name = check_name(task, "task")
        return jobs_of_rows(rows, given, Options(), lambda row, options: self.new_job(name, row, options))

    def _job_by_name(self, task: str, args: Mapping[str, Any] | None, given: Mapping[str, Any]) -> tuple[NewJob, Any]:
        known = self.tasks.get(task)
        options = (known.defaults if known else Options()).changed(given)
        named = known.bind((), dict(args or {})) if known else dict(args or {})
        return self.new_job(check_name(task, "task"), named, options), options.tx

    async def job(self, job_id: str) -> JobHandle:
        """Look up a job by its id, or by the beginning of it."""
        store = await self.store()
        job = await store.queue.get(_job_id(job_id))
        return JobHandle(self, job, (await why(store, job, self._clock.now())).why)

    def job_sync(self, job_id: str) -> JobHandle:
        """Look up a job by its id, or by the beginning of it."""
        return self.blocking(self.job(job_id))

    async def jobs(
        self,
        *,
        status: str | None = None,
        task: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        schedule: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[JobHandle]:
        """Return a page of jobs, newest first; `before` is the last id of the page before."""
        known, most = None if status is None else read_status(status), _page_size(limit)
        found = await (await self.store()).queue.page(
            status=known, task=task, queue=queue, tenant=tenant, schedule=schedule, before=before, limit=most
        )
        return [JobHandle(self, job) for job in found]

    def jobs_sync(self, **filters: Any) -> list[JobHandle]:
        """Return a page of jobs, newest first."""
        return self.blocking(self.jobs(**filters))

    async def cancel(self, job_id: str, reason: str = "") -> JobHandle:
        """End a job, or ask it to stop when it runs."""
        found = await (await self.store()).queue.get(_job_id(job_id))
        acting = await self._acting(deeds.cancel(found, reason))
        return JobHandle(self, await acting.queue.cancel(found.id, author=self._author, reason=reason))

    def cancel_sync(self, job_id: str, reason: str = "") -> JobHandle:
        """End a job, or ask it to stop when it runs."""
        return self.blocking(self.cancel(job_id, reason))

    async def retry(self, job_id: str) -> JobHandle:
        """Run a job that has ended once more, as a new job that is linked to it."""
        found = await (await self.store()).queue.get(_job_id(job_id))
        acting = await self._acting(deeds.retry(found))
        return JobHandle(self, await acting.queue.retry(found.id, author=self._author))

    def retry_sync(self, job_id: str) -> JobHandle:
        """Run a job that has ended once more, as a new job that is linked to it."""
        return self.blocking(self.retry(job_id))

    @property
    def _author(self) -> str:
        return f"app:{self.name}"

    async def _acting(self, deed: Deed) -> Store:
        """Return the store for something that an operator could do, too: it is written to the audit log with it."""
        return (await self.store()).acting(Doer(self._author, deeds.origin()), deed, self._clock)

    def glance(self, job: Job) -> str:
        """Say why a job is where it is, as far as the job alone can tell."""
        return glance(job, self._clock.now())

    async def _look(self, handle: JobHandle) -> Status:
        """Read the job of a handle again, and nothing around it."""
        handle.take(await (await self.store()).queue.get(handle.id))
        return handle.status

    async def wait_for(self, handle: JobHandle, limit_s: float | None) -> Any:
        """Wait for the end of a job, looking again and again, ever more slowly."""
        until = None if limit_s is None else self._clock.monotonic() + limit_s
        rest_s, wake = WAIT_REST_S_MIN, asyncio.Event()
        while not (await self._look(handle)).is_final:
            if until is not None and self._clock.monotonic() >= until:
                raise TimeoutError(f"{handle.id} has not ended within {limit_s:g} s; it is {handle.status}")
            await self._clock.rest(rest_s, wake)
            rest_s = min(rest_s * 1.5, WAIT_REST_S_MAX)
        return handle.outcome()

    def wait_for_sync(self, handle: JobHandle, limit_s: float | None) -> Any:
        """Wait for the end of a job, looking again and again, ever more slowly."""
        until = None if limit_s is None else self._clock.monotonic() + limit_s
        rest_s = WAIT_REST_S_MIN
        while not self.blocking(self._look(handle)).is_final:
            if until is not None and self._clock.monotonic() >= until:
                raise TimeoutError(f"{handle.id} has not ended within {limit_s:g} s; it is {handle.status}")
            self._clock.nap(rest_s)
            rest_s = min(rest_s * 1.5, WAIT_REST_S_MAX)
        return handle.outcome()

    # --- schedules

    async def put_schedule(
        self,
        name: str,
        *,
        task: "Task[Any, Any] | str",
        trigger: Trigger,
        args: Mapping[str, Any] | None = None,
        **policies: Any,
    ) -> Schedule:
        """Create or change a schedule at run time; it belongs to nobody's code and is never removed by `sync`."""
        spec = self._spec(task, trigger, args, policies)
        schedules = (await self.store()).schedules
        try:
            before = (await schedules.get(check_name(name, "schedule name"), tenant=spec.tenant)).spec
        except ScheduleNotFound:
            before = None
        acting = await self._acting(deeds.put_schedule(name, before, spec))
        await acting.schedules.put(name, spec, author=self._author)
        return await schedules.get(name, tenant=spec.tenant)

    def put_schedule_sync(
        self,
        name: str,
        *,
        task: "Task[Any, Any] | str",
        trigger: Trigger,
        args: Mapping[str, Any] | None = None,
        **policies: Any,
    ) -> Schedule:
        """Create or change a schedule at run time."""
        return self.blocking(self.put_schedule(name, task=task, trigger=trigger, args=args, **policies))

    async def remove_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> bool:
        """Remove a schedule of a tenant from now on; False when there was none."""
        try:
            found = await (await self.store()).schedules.get(name, tenant=tenant)
        except ScheduleNotFound:
            return False
        acting = await self._acting(deeds.remove_schedule(found))
        return await acting.schedules.remove(name, author=self._author, tenant=tenant)

    def remove_schedule_sync(self, name: str, *, tenant: str = DEFAULT_TENANT) -> bool:
        """Remove a schedule of a tenant from now on; False when there was none."""
        return self.blocking(self.remove_schedule(name, tenant=tenant))

    async def occurrences(self, schedule: str, *, tenant: str = DEFAULT_TENANT, limit: int = 50) -> list[Occurrence]:
        """Return what was decided for a schedule of a tenant, newest first."""
        store = await self.store()
        return await store.ledger.occurrences(
            await store.schedules.key(schedule, tenant=tenant), limit=_page_size(limit)
        )

    def occurrences_sync(self, schedule: str, *, tenant: str = DEFAULT_TENANT, limit: int = 50) -> list[Occurrence]:
        """Return what was decided for a schedule of a tenant, newest first."""
        return self.blocking(self.occurrences(schedule, tenant=tenant, limit=limit))

    async def sync(self) -> dict[str, str]:
        """Bring the store in line with the schedules declared here; return what became of each."""
        return await sync_schedules(await self.store(), self.name, self.declared)

    def sync_sync(self) -> dict[str, str]:
        """Bring the store in line with the schedules declared here; return what became of each."""
        return self.blocking(self.sync())

    # --- locks

    def lock(
        self, name: str, *, ttl: DurationLike = TTL_DEFAULT, timeout: DurationLike | None = None, blocking: bool = True
    ) -> Lock:
        """Return a lock on a name, over all hosts, for `async with`; it renews itself for as long as the body runs.

        It is waited for, at most `timeout`, or not at all unless `blocking`; then `LockHeld` is raised. After a crash
        others get it when `ttl` is over. When it is lost, the body is cancelled and `LeaseLost` is raised.
        """
        wish = Wish.of(name, ttl, timeout, blocking)
        return Lock(wish, self._grants, clock=self._clock, holder_name=self.settings.node)

    def lock_sync(
        self, name: str, *, ttl: DurationLike = TTL_DEFAULT, timeout: DurationLike | None = None, blocking: bool = True
    ) -> SyncLock:
        """Return a lock on a name, over all hosts, for `with`; it is renewed in the background.

        The body cannot be stopped when the lock is lost: `lock.check()` raises then, and so does the end of the body.
        """
        return SyncLock(
            Wish.of(name, ttl, timeout, blocking),
            self._grants,
            clock=self._clock,
            holder_name=self.settings.node,
            call=self._in_background if self._moved_to is None else self._here.finish,
            is_alone=self._moved_to is not None,
        )

    def leader(self, name: str, *, ttl: DurationLike = TTL_DEFAULT) -> Leader:
        """Return a role that one process at a time has: `async with` waits for one term of it, `async for` for all."""
        wish = Wish.of(name, ttl, None, blocking=True)
        return Leader(
            lambda: LeaderTerm(wish, self._grants, clock=self._clock, holder_name=self.settings.node),
            lambda: Lock(wish, self._grants, clock=self._clock, holder_name=self.settings.node),
        )

    def leader_sync(self, name: str, *, ttl: DurationLike = TTL_DEFAULT) -> SyncLock:
        """Return a role that one process at a time has; `with` waits for one term of it."""
        return self.lock_sync(name, ttl=ttl)

    async def _grants(self) -> Grants:
        store = await self.store()
        if self._moved_to is not None or self.settings.coordination == "store":
            return grants_of(store, None)
        loop = asyncio.get_running_loop()
        admission = self._admissions.get(loop) or admission_of(store, self.settings, self._clock)
        assert admission is not None
        self._admissions[loop] = admission
        return grants_of(store, admission)

    def api(self) -> "Api":
        """Return the API as an ASGI application, to be served alone or mounted into another.

        It starts with its first request and ends with the loop. Who may use it is decided by its tokens, as everywhere;
        behind an application of your own requests come from everywhere, so without a token it answers nobody.
        """
        from headway.server.api import Api

        clock = Clock(node=new_node_id(self._clock))
        live = partial(live_view_of, self.settings, clock)
        return Api(self.store, self.settings, clock, tasks=self.tasks, is_loopback=False, live=live)

    def _handles(self, jobs: Sequence[NewJob], rows: Sequence[EnqueuedRow]) -> list[JobHandle]:
        return [JobHandle(self, row.job_of(job)) for job, row in zip(jobs, rows, strict=True)]

    @property
    def _dialect(self) -> str:
        return "sqlite" if self.settings.store.startswith("sqlite") else "postgresql"


def _giving_up_on(kind: type[Exception], retry: Retry | None) -> Retry:
    """Return a policy that also gives up on this kind of error."""
    policy = check_retry(retry) or Retry(max_attempts=1)
    return Retry(
        max_attempts=policy.max_attempts,
        backoff=str(policy.backoff),
        retry_on=policy.retry_on,
        give_up_on=(*policy.give_up_on, kind),
        retry_timeouts=policy.retry_timeouts,
    )


def _job_id(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidTask(f"a job is named by its id, a text such as job.id, not {quote(value)}")
    return value


def _page_size(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidTask(f"limit must be a whole number of at least 1, not {quote(value)}")
    return value


def _calling_module() -> str:
    """Name an app after the module that makes it, so that two services never take each other for themselves."""
    frame = sys._getframe(2)
    module = str(frame.f_globals.get("__name__", "app"))
    return Path(frame.f_code.co_filename).stem or "app" if module == "__main__" else module


def new_node_id(clock: Clock) -> str:
    """Make the id of a process incarnation."""
    return clock.new_id("node")


def admission_of(store: Store, settings: Settings, clock: Clock) -> AdmittedLeases | None:
    """Put the server that grants leases before those of a store; None where the store does it alone."""
    if settings.coordination == "store":
        return None
    engine = open_engine(settings.coordination, clock=clock, node=clock.node)
    return AdmittedLeases(engine, store.leases, clock=clock, falls_back=settings.coordination_fallback == "store")


def grants_of(store: Store, admission: AdmittedLeases | None) -> Grants:
    """Give users' locks what they need of a store, and of the server that grants its leases."""
    if admission is None:
        return Grants(store.leases, store.leases.held)
    return Grants(admission, store.leases.held, lambda: admission.state["trouble"])


def dispatched(store: Store, settings: Settings, clock: Clock) -> tuple[Store, Dispatch | None]:
    """Have the ready jobs of a store announced by a transport; None where the store wakes workers alone."""
    if settings.transport == "store":
        return store, None
    dispatch = Dispatch.by(open_transport(settings.transport, clock=clock, node=clock.node), clock)
    return store.announcing(dispatch.announcer.announce, clock), dispatch


def world_of(store: Store, admission: AdmittedLeases | None = None, dispatch: Dispatch | None = None) -> World:
    """Give a node what it needs of a store, and of the servers beside it."""

    async def watch(hear: Callable[[str], None]) -> WakeUps:
        if admission is not None:
            await admission.watch(lambda: hear("leases"))
        return await store.watch(hear)

    leases = store.leases if admission is None else admission
    return World(
        ledger=store.ledger,
        queue=store.queue,
        leases=leases,
        nodes=store.nodes,
        watch=watch,
        audit_log=store.access,
        admission=admission,
        dispatch=dispatch,
    )


def live_of(settings: Settings, clock: Clock) -> Live | None:
    """Make what carries the words of running jobs to who looks; None where the store does it alone."""
    if settings.redis is None:
        return None
    from headway.adapters.redis.live_progress import RedisLive

    return RedisLive(settings.redis, clock=clock, node=clock.node)


def live_view_of(settings: Settings, clock: Clock) -> LiveView | None:
    """Make what hears the words of running jobs; None where the store does it alone."""
    if settings.redis is None:
        return None
    from headway.adapters.redis.live_progress import RedisView

    return RedisView(settings.redis, clock=clock, node=clock.node)


def scheduler_node(store: Store, settings: Settings, clock: Clock, version: str = "") -> EngineNode:
    """Wire the scheduler role to a store. The clock must be the one the store was opened with."""
    store, dispatch = dispatched(store, settings, clock)
    return EngineNode(world_of(store, admission_of(store, settings, clock), dispatch), settings, clock, version=version)


def worker_node(
    store: Store, settings: Settings, clock: Clock, version: str = "", *, schedules: bool
) -> tuple[EngineNode, Supervisor]:
    """Wire the worker role, and the scheduler's too if asked for, to a store. The supervisor still needs its crew."""
    store, dispatch = dispatched(store, settings, clock)
    supervisor = Supervisor(
        store.queue,
        clock=clock,
        lease=settings.worker_lease,
        poll=settings.poll,
        queues=settings.queues,
        live=live_of(settings, clock),
    )
    world = world_of(store, admission_of(store, settings, clock), dispatch)
    node = EngineNode(world, settings, clock, version=version, schedules=schedules, supervisor=supervisor)
    return node, supervisor


def api_node(store: Store, settings: Settings, clock: Clock, version: str = "") -> EngineNode:
    """Wire a node that neither decides nor works: it says that it lives, and keeps house like everybody."""
    store, dispatch = dispatched(store, settings, clock)
    world = world_of(store, admission_of(store, settings, clock), dispatch)
    return EngineNode(world, settings, clock, version=version, schedules=False, is_api=True)


def api_of(
    store: Store,
    settings: Settings,
    clock: Clock,
    tasks: "Mapping[str, Task[Any, Any]] | None" = None,
    node: EngineNode | None = None,
) -> "Api":
    """Make the API of an open store; it watches over the loops of the node that it is a part of."""
    from headway.server.api import Api  # Here, since who only enqueues needs no HTTP.
    from headway.server.auth import is_loopback

    if node is not None and node.dispatch is not None:
        store = store.announcing(node.dispatch.announcer.announce, clock)

    async def opened() -> Store:
        return store

    def open_view() -> LiveView | None:
        view = live_view_of(settings, clock)
        if view is not None and node is not None and node.live_state() is None:
            node.live_state = lambda: {"name": view.name, "trouble": view.trouble}
        return view

    loops = node.loops if node is not None else ()
    return Api(
        opened,
        settings,
        clock,
        tasks=tasks,
        is_loopback=is_loopback(settings.host),
        loops=loops,
        live=open_view,
    )


def crew_plan(settings: Settings, store: str | None = None) -> CrewPlan:
    """Say how many children of which kind a worker has; their app uses its own store unless another is given."""
    return CrewPlan(
        command=child_command(settings.app),
        environ={  # Not in the command, which everybody can read.
            **({} if store is None else {CHILD_STORE: store}),
            **({} if settings.redis is None else {CHILD_REPORT_S: str(LIVE_REPORT_EVERY_S)}),
            **({ALLOWED: ",".join(settings.task_env)} if settings.task_env else {}),
        },
        processes=settings.processes or _cores(),
        concurrency=settings.concurrency,
        threads=min(settings.concurrency, THREADS_MAX),
        max_jobs=settings.child_max_jobs,
        max_memory=settings.child_max_memory,
    )


def _cores() -> int:
    """Count the cores that this process may use; not every system tells which those are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def hello_of(app: Headway) -> Hello:
    """Describe an app to a supervisor, which never imports it."""
    tasks = [
        TaskInfo(
            name=task.name,
            isolation=task.conduct.isolation,
            timeout=task.conduct.timeout,
            retries_timeouts=task.conduct.retry is None or task.conduct.retry.retry_timeouts,
            defaults=task.defaults.told(),
        )
        for task in app.tasks.values()
    ]
    schedules = {name: spec.to_json() for name, spec in app.declared.items()}
    return Hello(os.getpid(), app.name, app.settings.store, tasks, schedules)


def file_app() -> Headway | None:
    """Make an app of what headway.toml defines; None when it defines nothing."""
    defined = Definitions.load()
    return Headway(name=defined.name) if defined else None


async def sync_schedules(store: Store, owner: str, declared: Mapping[str, ScheduleSpec]) -> dict[str, str]:
    """Bring a store in line with the schedules that an app declares; return what became of each.

    One that belongs to somebody else is left alone: what became of it begins with `skipped: ` and says whose it is.
    """
    author = f"app:{owner}"
    wanted = {ScheduleRef(spec.tenant, schedule_name(key)): spec for key, spec in declared.items()}
    done: dict[str, str] = {}
    for piece in in_pieces(wanted):
        outcomes = await store.schedules.put_many(piece, owner=owner, author=author, may_be_over=True)
        for ref, outcome in zip(piece, outcomes, strict=True):
            done[str(ref)] = outcome.replace(REFUSED, SKIPPED, 1) if outcome.startswith(REFUSED) else outcome
    last: ScheduleRef | None = None
    while page := await store.schedules.page(owner=owner, after=last, limit=SYNC_PAGE):
        refs = [ScheduleRef(schedule.tenant, schedule.name) for schedule in page]
        for ref in refs:
            if ref not in wanted and await store.schedules.remove(
                ref.name, tenant=ref.tenant, author=author, owner=owner
            ):
                done[str(ref)] = "removed"
        last = refs[-1]
    return done
