"""`Headway`, the app object: the registry of tasks and schedules, and the calls on the store.

Async inside, sync outside: every call that does I/O is a coroutine with a blocking twin named `…_sync`, a thin
facade over the same coroutine that works in threads and scripts alike (see `Connections.blocking`).

Schedules, limits and tenants declared here belong to the app, by its name. `sync()` writes them to the store and
removes those that this app declared before and no longer does; those of other apps, and those put by hand, stay.
"""

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Unpack

from headway.core.clock import Clock
from headway.core.errors import InvalidTask, ScheduleNotFound
from headway.core.instants import quote
from headway.core.job_summary import glance
from headway.core.jobs import Job, NewJob
from headway.core.lifecycle import Status
from headway.core.occurrences import Occurrence
from headway.core.schedules import Schedule
from headway.core.settings import Settings
from headway.core.sync_bridge import blocking_twin
from headway.core.tenants import DEFAULT_TENANT
from headway.core.triggers import Trigger
from headway.core.validation import check_name, read_status
from headway.operations.app_sync import Declarations, sync_app
from headway.operations.job_actions import cancel_job, retry_job
from headway.operations.job_reads import explained_job, visible_job
from headway.operations.schedule_definitions import put_unowned
from headway.operations.schedules import Schedules
from headway.tasks.definitions import Definitions
from headway.tasks.handles import JobHandle
from headway.tasks.options import Options
from headway.tasks.registry import TaskOptions, TaskRegistry
from headway.tasks.task import Task
from headway.wiring.app_batches import BatchCalls
from headway.wiring.connections import Connections
from headway.wiring.ready_made import ReadyMade, program, request

HTTP_TIMEOUT: Final = "30s"
WAIT_REST_S_MIN: Final = 0.02
WAIT_REST_S_MAX: Final = 0.5


class Headway(BatchCalls):
    """The app: tasks, schedules and the store they live in."""

    def __init__(
        self,
        store: str | None = None,
        *,
        name: str | None = None,
        coordination: str | None = None,
        transport: str | None = None,
        version: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        given = {"store": store, "coordination": coordination, "transport": transport, "app_version": version}
        chosen = settings or Settings.load(given)
        name = check_name(name or _calling_module(), "app name")
        Connections.__init__(self, chosen, Clock(node=f"app:{name}"))
        file = Definitions.load() if settings is None else Definitions()
        TaskRegistry.__init__(self, name, file, chosen.app_version)
        self._file.add_tasks(self)

    async def __aenter__(self) -> "Headway":
        await self.store()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- tasks that need no Python

    def command(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        memory: str | int | None = None,
        **options: Unpack[TaskOptions],
    ) -> Task[..., dict[str, Any]]:
        """Register a program with its arguments as a task; no shell is involved.

        `{name}` in an element is an argument of the job. The output of the program is the log of the job, and a line
        `::progress 40 Copying tables` reports progress. An exit code other than 0 is a failure. `memory` limits each
        process of the program.
        """
        return self._add(name, program(argv, env=env, cwd=cwd, memory=memory), options)

    def http(
        self,
        name: str,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        **options: Unpack[TaskOptions],
    ) -> Task[..., dict[str, Any]]:
        """Register a request as a task; the arguments of the job are its JSON body, or its query.

        It has 30 seconds, unless another `timeout` is given.
        """
        made = request(url, method=method, headers=headers, allow=self.settings.webhook_allow)
        return self._add(name, made, {"timeout": HTTP_TIMEOUT, **options}, isolation="thread")

    def _add(
        self, name: str, made: ReadyMade, options: TaskOptions, isolation: str | None = None
    ) -> Task[..., dict[str, Any]]:
        options = {**options, "retry": made.policy(options.get("retry"))}
        return self.task(name=check_name(name, "the name of a task"), isolation=isolation, **options)(made.function)

    # --- jobs

    def new_job(self, task: str, args: Mapping[str, Any], options: Options) -> NewJob:
        """Build and check a job, ready to be enqueued."""
        return options.new_job(self._clock.new_id("job"), task, args)

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

    async def job(self, job_id: str) -> JobHandle:
        """Look up a job by its id, or by a prefix of it."""
        caller = await self._caller()
        job = await visible_job(caller, _job_id(job_id))
        return JobHandle(self, job, (await explained_job(caller, job)).why)

    job_sync = blocking_twin(job)

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
        """Return a page of jobs, newest first; `before` is the last id of the previous page."""
        known, most = None if status is None else read_status(status), _page_size(limit)
        found = await (await self.store()).jobs.page(
            status=known, task=task, queue=queue, tenant=tenant, schedule=schedule, before=before, limit=most
        )
        return [JobHandle(self, job) for job in found]

    jobs_sync = blocking_twin(jobs)

    async def cancel(self, job_id: str, reason: str = "") -> JobHandle:
        """Cancel a job; if it runs, ask it to stop."""
        return JobHandle(self, await cancel_job(await self._caller(), _job_id(job_id), reason))

    cancel_sync = blocking_twin(cancel)

    async def retry(self, job_id: str) -> JobHandle:
        """Run a finished job again, as a new job that is linked to it."""
        caller = await self._caller()
        return JobHandle(self, await retry_job(caller, await visible_job(caller, _job_id(job_id))))

    retry_sync = blocking_twin(retry)

    def glance(self, job: Job) -> str:
        """Explain the status of a job, as far as the job alone tells."""
        return glance(job, self._clock.now())

    async def _look(self, handle: JobHandle) -> Status:
        """Read the job of a handle again, without its context."""
        handle.take(await (await self.store()).jobs.get(handle.id))
        return handle.status

    async def wait_for(self, handle: JobHandle, limit_s: float | None) -> Any:
        """Wait for a job to end by polling it, ever more slowly."""
        rests, wake = self._rests(handle, limit_s), asyncio.Event()
        while not (await self._look(handle)).is_final:
            await self._clock.rest(next(rests), wake)
        return handle.outcome()

    def wait_for_sync(self, handle: JobHandle, limit_s: float | None) -> Any:
        """Wait for a job to end by polling it, ever more slowly."""
        rests = self._rests(handle, limit_s)
        while not self.blocking(self._look(handle)).is_final:
            self._clock.nap(next(rests))
        return handle.outcome()

    def _rests(self, handle: JobHandle, limit_s: float | None) -> Iterator[float]:
        """Yield the seconds between two reads of a job; raise `TimeoutError` when the time is up."""
        until = None if limit_s is None else self._clock.monotonic() + limit_s

        def rests() -> Iterator[float]:
            rest_s = WAIT_REST_S_MIN
            while until is None or self._clock.monotonic() < until:
                yield rest_s
                rest_s = min(rest_s * 1.5, WAIT_REST_S_MAX)
            raise TimeoutError(f"{handle.id} has not ended within {limit_s:g} s; it is {handle.status}")

        return rests()

    # --- schedules

    async def put_schedule(
        self,
        /,
        name: str,
        *,
        task: "Task[Any, Any] | str",
        trigger: Trigger,
        args: Mapping[str, Any] | None = None,
        **policies: Any,
    ) -> Schedule:
        """Create or change a schedule at run time. No app owns it, so `sync` never removes it."""
        spec = self._spec(task, trigger, args, policies)
        return await put_unowned(await self._caller(), check_name(name, "schedule name"), spec)

    put_schedule_sync = blocking_twin(put_schedule)

    async def remove_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> bool:
        """Remove a schedule of a tenant; return False if there was none."""
        try:
            return (await Schedules(await self._caller()).remove(name, tenant=tenant)).removed
        except ScheduleNotFound:
            return False

    remove_schedule_sync = blocking_twin(remove_schedule)

    async def occurrences(self, schedule: str, *, tenant: str = DEFAULT_TENANT, limit: int = 50) -> list[Occurrence]:
        """Return the decisions of a schedule of a tenant, newest first."""
        store = await self.store()
        return await store.ledger.occurrences(
            await store.schedules.key(schedule, tenant=tenant), limit=_page_size(limit)
        )

    occurrences_sync = blocking_twin(occurrences)

    async def sync(self) -> dict[str, str]:
        """Write the schedules, limits and tenants declared here to the store; return the outcome of each.

        Limits are named `limit:NAME` there, and tenants `tenant:NAME`.
        """
        return await sync_app(await self.store(), Declarations.of(self))

    sync_sync = blocking_twin(sync)


def _job_id(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidTask(f"a job is named by its id, a text such as job.id, not {quote(value)}")
    return value


def _page_size(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidTask(f"limit must be a whole number of at least 1, not {quote(value)}")
    return value


def _calling_module() -> str:
    """Name an app after the module that creates it, so that two services on one store stay apart."""
    frame = sys._getframe(2)
    module = str(frame.f_globals.get("__name__", "app"))
    return Path(frame.f_code.co_filename).stem or "app" if module == "__main__" else module


def file_app() -> Headway | None:
    """Make an app from headway.toml; None if it defines no tasks and schedules."""
    defined = Definitions.load()
    return Headway(name=defined.name) if defined else None
