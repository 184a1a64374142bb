"""The registry of an app: its tasks, and what it declares in code and in headway.toml: schedules, limits, tenants."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

import msgspec

from headway.core.errors import InvalidLimit, InvalidSchedule, InvalidTask, TaskNotFound
from headway.core.groups import NewGroup
from headway.core.instants import DurationLike, quote
from headway.core.jobs import NewJob
from headway.core.limits import Limit
from headway.core.schedule_names import schedule_key, schedule_label
from headway.core.schedules import ScheduleSpec
from headway.core.tenants import WEIGHT_DEFAULT, Tenant
from headway.core.triggers import Cron, Trigger
from headway.core.validation import check_name
from headway.tasks.batch_definitions import new_batch
from headway.tasks.batches import BatchOptions
from headway.tasks.context import Context
from headway.tasks.definitions import Definitions, inherited
from headway.tasks.execution import ExecutionPolicy
from headway.tasks.handles import AppPort
from headway.tasks.options import Options, no_version, read_pin
from headway.tasks.retry import Retry, check_retry
from headway.tasks.rows import jobs_of_rows
from headway.tasks.task import Task, check_function

P = ParamSpec("P")
R = TypeVar("R")


# Options of a task that its jobs inherit and may change.
_JOB_OPTIONS: Final = ("queue", "priority", "tenant", "expires", "limit", "needs", "labels")


class TaskOptions(TypedDict, total=False):
    """What every kind of task can be registered with."""

    queue: str | None
    priority: int | None
    tenant: str | None
    retry: Retry | None
    timeout: DurationLike | None
    expires: DurationLike | None
    limit: str | None
    needs: Mapping[str, int | float | str] | None
    labels: Mapping[str, str] | None
    pin: bool | None


def check_task_options(options: Mapping[str, object]) -> None:
    """Refuse an option that tasks do not have, as Python refuses an unknown keyword argument."""
    if unknown := options.keys() - TaskOptions.__annotations__.keys():
        known = ", ".join(TaskOptions.__annotations__)
        raise TypeError(f"a task has no option {min(unknown)!r}; known are {known}, and what its kind has")


class _Registers(Protocol):
    """Register the function that it decorates, with or without a context as first parameter."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class TaskRegistry(AppPort):
    """Hold what an app defines, and make jobs of it. The app stores and runs them."""

    def __init__(self, name: str, file: Definitions, version: str | None = None) -> None:
        self.name = name
        self.version = version
        self.tasks: dict[str, Task[Any, Any]] = {}
        self._declared: dict[str, ScheduleSpec] = {}
        self._limits: dict[str, Limit] = {}
        self._tenants: dict[str, Tenant] = {}
        self._file = file

    @property
    def declared(self) -> dict[str, ScheduleSpec]:
        """The schedules that are declared, in code and in headway.toml, by `schedule_key`: the name, in most apps."""
        in_file = self._file.specs(partial(self._spec, is_declared=True))
        return {**self._declared, **{schedule_key(spec.tenant, name): spec for name, spec in in_file.items()}}

    @property
    def declared_limits(self) -> dict[str, Limit]:
        """The limits that are declared, in code and in headway.toml, by name."""
        return {**self._limits, **self._file.limits}

    @property
    def declared_tenants(self) -> dict[str, Tenant]:
        """The tenants that are declared, in code and in headway.toml, by name."""
        return {**self._tenants, **self._file.tenants}

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
        isolation: str | None = None,
        memory: str | int | None = None,
        **options: Unpack[TaskOptions],
    ) -> _Registers: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        isolation: str | None = None,
        memory: str | int | None = None,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Register a function as a task; its name defaults to the function's.

        `isolation` says where it runs: a `def` in a `process` (the default: it can be killed alone) or in a `thread`,
        an `async def` on the `loop` that it shares with others (the default) or in a `process`. An attempt that exceeds
        `timeout` is stopped; a job that has not begun after `expires` is cancelled. `limit` is the name of a limit, a
        template over the arguments of the job: `account-{account_id}`. A worker takes the job only if it offers what
        the job `needs`, such as `{"cpu": 2, "memory": "4G"}`, and has its `labels`; with `pin`, only if its code has
        the version of the process that enqueued the job.
        """
        check_task_options(options)
        policy, timeout = check_retry(options.get("retry")), options.get("timeout")
        defaults = Options().changed({name: options.get(name) for name in _JOB_OPTIONS})
        if options.get("pin") is not None:
            defaults = msgspec.structs.replace(defaults, pin=read_pin(options["pin"])).with_needs(self.version)
        if policy is not None:
            defaults = msgspec.structs.replace(defaults, max_attempts=policy.max_attempts, backoff=policy.backoff)

        def register(callee: Callable[..., Any]) -> Task[..., Any]:
            check_function(callee)
            execution = ExecutionPolicy.of(callee, isolation=isolation, timeout=timeout, memory=memory, retry=policy)
            called = getattr(callee, "__name__", None) if name is None else name
            return self._register(callee, called, defaults, execution)

        return register if function is None else register(function)

    def _register(
        self, callee: Callable[..., Any], called: object, options: Options, execution: ExecutionPolicy
    ) -> Task[..., Any]:
        name = check_name(called, "the name of a task")
        if name in self.tasks:
            where = f", one of them in {self._file.file}" if name in self._file.tasks else ""
            raise InvalidTask(f"two tasks are named {name!r}{where}; give one of them another name")
        if options.pin and self.version is None:
            raise no_version(name)
        self.tasks[name] = task = Task(self, callee, name, options, execution)
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
        """Declare when a task runs; `sync`, or a scheduler that starts with this app, writes it to the store."""
        check_name(name, "schedule name")
        spec = self._spec(task, trigger, args, policies, is_declared=True)
        key = schedule_key(spec.tenant, name)
        in_file = name in self._file.schedules and self._file.schedules[name].tenant == spec.tenant
        if key in self._declared or in_file:
            where = f", one of them in {self._file.file}" if in_file else ""
            raise InvalidSchedule(f"two schedules are named {schedule_label(spec.tenant, name)!r}{where}")
        self._declared[key] = spec
        return spec

    def limit(
        self, name: str, *, concurrency: int | None = None, rate: str | None = None, burst: int | None = None
    ) -> Limit:
        """Declare a limit: at most `concurrency` jobs at a time, at most `rate` starts, such as `10/s`.

        The name is `queue:media`, `task:report`, `tenant:acme`, or one of your own that jobs name with `limit=`. With a
        `*` at its end it holds for each such name separately. With `burst`, the rate is a token bucket of that size.
        `sync`, or a scheduler that starts with this app, writes it to the store.
        """
        made = Limit.build(name, concurrency=concurrency, rate=rate, burst=burst)
        self._check_new("limits", made.name, self._limits, self._file.limits)
        self._limits[made.name] = made
        return made

    def tenant(self, name: str, *, weight: int = WEIGHT_DEFAULT, wait_slo: DurationLike | None = None) -> Tenant:
        """Declare a tenant: its weight when tenants share a queue, and how long its jobs should wait at most.

        `sync`, or a scheduler that starts with this app, writes it to the store.
        """
        made = Tenant.build(name, weight=weight, wait_slo=wait_slo)
        self._check_new("tenants", made.name, self._tenants, self._file.tenants)
        self._tenants[made.name] = made
        return made

    def _check_new(self, what: str, name: str, here: Collection[str], in_file: Collection[str]) -> None:
        if name in here or name in in_file:
            where = f", one of them in {self._file.file}" if name in in_file else ""
            raise InvalidLimit(f"two {what} are named {name!r}{where}; keep one of them")

    def cron(
        self, expr: str, *, name: str | None = None, tz: str = "UTC", dst: str = "shift", **policies: Any
    ) -> Callable[[Callable[P, R] | Task[P, R]], Task[P, R]]:
        """Register a function as a task with a cron schedule of the same name."""

        def register(callee: Callable[P, R] | Task[P, R]) -> Task[P, R]:
            task = callee if isinstance(callee, Task) else self.task(callee)
            self.schedule(name or task.name, task, Cron(expr, tz=tz, dst=dst), **policies)  # type: ignore[arg-type]
            return task

        return register

    def _spec(
        self,
        task: "Task[Any, Any] | str",
        trigger: Trigger,
        args: Mapping[str, Any] | None,
        policies: dict[str, Any],
        *,
        is_declared: bool = False,
    ) -> ScheduleSpec:
        """Define a schedule. One that is put at run time outlives this code, so it is not pinned to its version."""
        if isinstance(task, str):
            if self.tasks and task not in self.tasks:
                raise TaskNotFound(f"no task is named {task!r}; known are {', '.join(sorted(self.tasks)[:20])}")
            task = self.tasks.get(task, task)
        if isinstance(task, str):
            return ScheduleSpec.build(task=task, trigger=trigger, args=dict(args or {}), **policies)
        if not isinstance(task, Task):
            raise InvalidSchedule(f"a schedule runs a task or the name of one, not {quote(task)}")
        named = task.bind((), dict(args or {}))
        options = {**policies, "args": named}
        if is_declared and task.defaults.pin:
            options.setdefault("version", self.version)
        return ScheduleSpec.build(task=task.name, trigger=trigger, **(inherited(task.defaults, options) | options))

    # --- jobs of tasks

    def new_batch(self, name: str, options: BatchOptions) -> NewGroup:
        """Make a checked batch without creating it."""
        return new_batch(self, name, options)

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
        return self.new_job(check_name(task, "task"), named, options.for_args(named)), options.tx
