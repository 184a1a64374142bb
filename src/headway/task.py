"""Tasks and the jobs made of them, as a program holds them.

A `Task` is a function that has a name in the store. Calling it runs it here and now; `enqueue` makes a job of it, with
the task's options or others. A `JobHandle` is what comes back: a job as it was when last looked at.
"""

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from headway.errors import InvalidTask
from headway.instants import Instant, parse_duration, parse_instant, to_datetime
from headway.lifecycle import Backoff, Status
from headway.model import (
    ATTEMPTS_MAX,
    KEY_LENGTH_MAX,
    PRIORITY_MAX,
    Job,
    NewJob,
    check_int,
    check_name,
    check_tags,
)

P = ParamSpec("P")
R = TypeVar("R")

_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Retry:
    """How often and how soon a failed job is tried again: `Retry(max_attempts=3, backoff="5s..5m")`."""

    __slots__ = ("backoff", "max_attempts")

    def __init__(self, *, max_attempts: int = 3, backoff: str = "5s..5m") -> None:
        self.max_attempts = check_int(max_attempts, "max_attempts", 1, ATTEMPTS_MAX)
        self.backoff = Backoff.parse(backoff)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How one job differs from what its task says."""

    queue: str = "default"
    priority: int = 0
    tenant: str = "default"
    max_attempts: int = 1
    backoff: Backoff | None = None
    delay: int = 0
    at: Instant | None = None
    key: str | None = None
    tags: tuple[str, ...] = ()
    tx: Any = None

    def changed(self, given: Mapping[str, Any]) -> "Options":
        """Return these options with what a caller gives, checked."""
        unknown = given.keys() - _OPTION_READERS.keys()
        if unknown:
            raise InvalidTask(f"unknown option {min(unknown)[:40]!r}; known are {', '.join(_OPTION_READERS)}")
        read = {name: _OPTION_READERS[name](value) for name, value in given.items() if value is not None}
        merged = replace(self, **read)
        if merged.delay and merged.at is not None:
            raise InvalidTask("delay and at exclude each other: say when in one way")
        return merged


_OPTION_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "queue": lambda value: check_name(value, "queue"),
    "priority": lambda value: check_int(value, "priority", -PRIORITY_MAX, PRIORITY_MAX),
    "tenant": lambda value: check_name(value, "tenant"),
    "max_attempts": lambda value: check_int(value, "max_attempts", 1, ATTEMPTS_MAX),
    "delay": lambda value: parse_duration(value, what="delay"),
    "at": lambda value: parse_instant(value, what="at"),
    "key": lambda value: check_name(value, "key", KEY_LENGTH_MAX),
    "tags": check_tags,
    "tx": lambda value: value,
}


class Desk(Protocol):
    """What tasks and job handles need of the app that they belong to."""

    def new_job(self, task: str, args: Mapping[str, Any], options: "Options") -> NewJob:
        """Make a job that is checked and ready to be handed in."""
        ...

    async def enqueue_jobs(self, jobs: list[NewJob], tx: Any = None) -> "list[JobHandle]":
        """Hand in jobs, all or none."""
        ...

    def enqueue_jobs_sync(self, jobs: list[NewJob], tx: Any = None) -> "list[JobHandle]":
        """Hand in jobs, all or none."""
        ...

    async def job(self, job_id: str) -> "JobHandle":
        """Look up a job."""
        ...

    async def cancel(self, job_id: str, reason: str = "") -> "JobHandle":
        """End a job, or ask it to stop."""
        ...

    def blocking(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine and wait for it."""
        ...


class JobHandle:
    """A job as it was when last looked at; `refresh` looks again."""

    __slots__ = ("_app", "job")

    def __init__(self, app: Desk, job: Job) -> None:
        self._app = app
        self.job = job

    @property
    def id(self) -> str:
        """The id of the job."""
        return self.job.id

    @property
    def status(self) -> Status:
        """Where the job is in its life."""
        return self.job.status

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.job.task

    @property
    def args(self) -> Any:
        """The arguments of the job."""
        return msgspec.json.decode(self.job.args)

    @property
    def progress(self) -> int:
        """How far the job is, in percent."""
        return self.job.progress

    @property
    def run_at(self) -> datetime:
        """When it may start."""
        return to_datetime(self.job.run_at)

    @property
    def created_at(self) -> datetime:
        """When it was enqueued."""
        return to_datetime(self.job.created_at)

    async def refresh(self) -> "JobHandle":
        """Read the job again."""
        self.job = (await self._app.job(self.id)).job
        return self

    def refresh_sync(self) -> "JobHandle":
        """Read the job again."""
        return self._app.blocking(self.refresh())

    async def cancel(self, reason: str = "") -> "JobHandle":
        """End the job, or ask it to stop when it runs."""
        self.job = (await self._app.cancel(self.id, reason)).job
        return self

    def cancel_sync(self, reason: str = "") -> "JobHandle":
        """End the job, or ask it to stop when it runs."""
        return self._app.blocking(self.cancel(reason))

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.task} {self.status}>"


class Task(Generic[P, R]):
    """A registered callable. Calling it runs it here and now; `enqueue` makes a job of it."""

    def __init__(self, app: Desk, function: Callable[P, R], name: str, options: Options) -> None:
        functools.update_wrapper(self, function)
        self._app = app
        self._function = function
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters.values()
        self._known = {parameter.name for parameter in parameters if parameter.kind in _BY_NAME}
        self._required = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
        self._options = options
        self.name = name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function itself."""
        return self._function(*args, **kwargs)

    @property
    def defaults(self) -> Options:
        """What jobs of this task are enqueued with unless told otherwise."""
        return self._options

    def options(self, **given: Any) -> "Task[P, R]":
        """Return the task with other options for its next jobs: delay, at, key, priority, queue, tenant, tags, tx."""
        return Task(self._app, self._function, self.name, self._options.changed(given))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Enqueue a job with these arguments; it is durable when this returns (or when `tx` commits)."""
        return (await self._app.enqueue_jobs([self._job(args, kwargs)], self._options.tx))[0]

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Enqueue a job with these arguments; it is durable when this returns (or when `tx` commits)."""
        return self._app.enqueue_jobs_sync([self._job(args, kwargs)], self._options.tx)[0]

    async def enqueue_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[JobHandle]:
        """Enqueue one job per set of arguments, all or none, at most 10,000."""
        return await self._app.enqueue_jobs([self._job((), given) for given in arguments], self._options.tx)

    def enqueue_many_sync(self, arguments: Iterable[Mapping[str, Any]]) -> list[JobHandle]:
        """Enqueue one job per set of arguments, all or none, at most 10,000."""
        return self._app.enqueue_jobs_sync([self._job((), given) for given in arguments], self._options.tx)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Name every argument as the function does, or say which one does not fit."""
        if not args and isinstance(kwargs, dict) and self._required <= kwargs.keys() <= self._known:
            return kwargs.copy()  # All named and known: nothing to work out.
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidTask(f"task {self.name!r}: {error}") from None
        named = dict(bound.arguments)
        for parameter in self._signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                named.update(named.pop(parameter.name, {}))
        return named

    def _job(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NewJob:
        return self._app.new_job(self.name, self.bind(args, kwargs), self._options)
