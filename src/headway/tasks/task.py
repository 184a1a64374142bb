"""Tasks and the jobs made of them, as a program holds them.

A `Task` is a function that has a name in the store. Calling it runs it here and now; `enqueue` makes a job of it, with
the task's options or others. A `JobHandle` is what comes back: a job as it was when last looked at.

A task whose first parameter is annotated `Context` is given one by the worker; it is no argument of the job.
"""

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from headway.core.errors import HeadwayError, InvalidTask, JobFailed
from headway.core.instants import (
    SECOND,
    Duration,
    DurationLike,
    Instant,
    parse_duration,
    parse_start,
    quote,
    to_datetime,
)
from headway.core.jobs import METADATA_BYTES_MAX, Job, NewJob
from headway.core.json_values import encode_args
from headway.core.lifecycle import Backoff, Status
from headway.core.settings import parse_memory
from headway.core.tenants import check_tenant
from headway.core.urls import check_url
from headway.core.validation import ATTEMPTS_MAX, KEY_LENGTH_MAX, PRIORITY_MAX, check_int, check_name, check_tags
from headway.tasks.context import Context
from headway.tasks.rows import jobs_of_rows

P = ParamSpec("P")
R = TypeVar("R")

_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BY_PLACE: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


class TaskSignal(Exception):
    """Raised by a task to say something; not an error."""


class Retry(TaskSignal):
    """How often and how soon a failed job is tried again: `retry=Retry(max_attempts=3, backoff="5s..5m")`.

    `retry_on` names the only exceptions worth another try, `give_up_on` those that are not; time-outs are retried
    unless `retry_timeouts` is False. Within a task, `raise Retry(after="10m")` ends the attempt as a failure and says
    when the next one is due; there is a next one only within the task's own `max_attempts`.
    """

    def __init__(
        self,
        *,
        max_attempts: int = 3,
        backoff: DurationLike = "5s..5m",
        retry_on: tuple[type[BaseException], ...] | type[BaseException] = (),
        give_up_on: tuple[type[BaseException], ...] | type[BaseException] = (),
        retry_timeouts: bool = True,
        after: DurationLike | None = None,
        reason: str = "",
    ) -> None:
        self.max_attempts = check_int(max_attempts, "max_attempts", 1, ATTEMPTS_MAX)
        self.backoff = Backoff.parse(backoff)
        self.retry_on = _exceptions(retry_on, "retry_on")
        self.give_up_on = _exceptions(give_up_on, "give_up_on")
        self.retry_timeouts = _bool(retry_timeouts, "retry_timeouts")
        self.after = None if after is None else parse_duration(after, what="after")
        super().__init__(reason or "the task asked to be retried, as far as its max_attempts allows")

    def retries(self, error: BaseException) -> bool:
        """Say whether another try is worth it after this exception."""
        if isinstance(error, self.give_up_on):
            return False
        return not self.retry_on or isinstance(error, self.retry_on)


class Cancel(TaskSignal):
    """Raised by a task to end its job as CANCELLED: there is nothing (more) to do."""

    def __init__(self, reason: str = "cancelled by the task") -> None:
        super().__init__(reason)


def _exceptions(given: Any, what: str) -> tuple[type[BaseException], ...]:
    found = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in found):
        raise InvalidTask(f"{what} must be an exception class or a tuple of them, not {quote(given)}")
    return found


def _bool(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidTask(f"{what} must be True or False, not {quote(value)}")
    return value


def check_retry(value: object) -> Retry | None:
    """Return a policy, or say how one is written."""
    if value is not None and not isinstance(value, Retry):
        raise InvalidTask(f"retry must be a policy such as Retry(max_attempts=3), not {quote(value)}")
    return value


def check_function(function: object) -> Callable[..., Any]:
    """Return a function that jobs can call with named arguments, and that runs when it is called."""
    if not callable(function):
        raise InvalidTask(f"a task must be a function, not {quote(function)}: write @app.task above a def")
    shown = getattr(function, "__name__", None) or quote(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidTask(f"{shown} has a yield, so calling it runs nothing: a task must return its result")
    try:
        signature, _ = _without_context(function)
    except (ValueError, TypeError) as error:
        raise InvalidTask(f"{shown} cannot be a task, since Python does not tell its arguments: {error}") from None
    for parameter in signature.parameters.values():
        if parameter.kind in _BY_PLACE:
            raise InvalidTask(
                f"{shown}: the arguments of a job have names, and {parameter} cannot be given by name;"
                " leave out the / or *"
            )
    return function


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
    timeout: Duration | None = None
    expires: Duration | None = None
    metadata: str | None = None
    callback_url: str | None = None
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

    def new_job(self, job_id: str, task: str, args: Mapping[str, Any]) -> NewJob:
        """Make a job that is checked and ready to be handed in."""
        return NewJob(
            id=job_id,
            task=task,
            args=encode_args(args),
            tenant=self.tenant,
            queue=self.queue,
            priority=self.priority,
            max_attempts=self.max_attempts,
            backoff=self.backoff,
            key=self.key,
            tags=self.tags,
            delay=self.delay,
            run_at=self.at,
            timeout=self.timeout,
            expires=self.expires,
            metadata=self.metadata,
            callback=self.callback_url,
        )

    def to_dict(self) -> dict[str, Any]:
        """Write what differs from a job that says nothing, for processes that do not have the task."""
        plain = Options()
        written = {name: getattr(self, name) for name in _WRITTEN if getattr(self, name) != getattr(plain, name)}
        if self.backoff is not None:
            written["backoff"] = str(self.backoff)
        return written

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> "Options":
        """Read what another process told; what cannot be read is as if it had not been said."""
        try:
            values = {name: _WRITTEN[name](written[name]) for name in _WRITTEN if name in written}
            backoff = Backoff.parse(str(written["backoff"])) if "backoff" in written else None
        except (TypeError, ValueError, HeadwayError):
            return cls()
        return cls(**values, backoff=backoff)


_WRITTEN: Final[dict[str, Callable[[Any], Any]]] = {
    "queue": lambda value: check_name(value, "queue"),
    "priority": int,
    "tenant": lambda value: check_tenant(value, "tenant"),
    "max_attempts": int,
    "expires": int,
}
_OPTION_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "queue": lambda value: check_name(value, "queue"),
    "priority": lambda value: check_int(value, "priority", -PRIORITY_MAX, PRIORITY_MAX),
    "tenant": lambda value: check_tenant(value, "tenant"),
    "max_attempts": lambda value: check_int(value, "max_attempts", 1, ATTEMPTS_MAX),
    "delay": lambda value: parse_duration(value, what="delay"),
    "at": lambda value: parse_start(value, what="at"),
    "key": lambda value: check_name(value, "key", KEY_LENGTH_MAX),
    "tags": check_tags,
    "timeout": lambda value: _positive(value, "timeout"),
    "expires": lambda value: _positive(value, "expires"),
    "metadata": lambda value: _metadata(value),
    "callback_url": lambda value: check_url(value, "callback_url"),
    "tx": lambda value: value,
}


def _positive(value: Any, what: str) -> Duration:
    duration = parse_duration(value, what=what)
    if duration <= 0:
        raise InvalidTask(f"{what} must be longer than nothing, not {quote(value)}")
    return duration


def _metadata(value: Any) -> str:
    text = encode_args(value, "metadata")
    if len(text) > METADATA_BYTES_MAX:
        raise InvalidTask(f"metadata must have at most {METADATA_BYTES_MAX} bytes as JSON, not {len(text)}")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPolicy:
    """How a task is run: where, for how long, with how much memory, and what its failures mean."""

    isolation: str
    timeout: Duration | None = None
    memory: int | None = None
    retry: Retry | None = None

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        *,
        isolation: str | None,
        timeout: DurationLike | None,
        memory: str | int | None,
        retry: Retry | None,
    ) -> "ExecutionPolicy":
        """Read what the author of a task says."""
        is_async = inspect.iscoroutinefunction(function)
        choices = ("loop", "process") if is_async else ("process", "thread")
        chosen = isolation or choices[0]
        if chosen not in choices:
            kind = "an async def" if is_async else "a def"
            raise InvalidTask(f"isolation of {kind} task must be {' or '.join(choices)}, not {quote(isolation)}")
        limit = None if memory is None else memory_limit(memory)
        if limit is not None and chosen != "process":
            raise InvalidTask('memory= needs a process of its own: isolation="process"')
        return cls(
            isolation=chosen,
            timeout=None if timeout is None else _positive(timeout, "timeout"),
            memory=limit,
            retry=retry,
        )


MEMORY_MIN: Final = 32 * 1024 * 1024


def memory_limit(value: str | int) -> int:
    """Read how much memory a process may have, in bytes."""
    size = parse_memory(value)
    if size is None or size < MEMORY_MIN:
        raise InvalidTask(f'memory must be a size like "512MB" and at least 32MB, not {quote(value)}')
    return size


class AppPort(Protocol):
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

    def glance(self, job: Job) -> str:
        """Say why a job is where it is, as far as the job alone can tell."""
        ...

    async def wait_for(self, handle: "JobHandle", limit_s: float | None) -> Any:
        """Wait for the end of a job."""
        ...

    def wait_for_sync(self, handle: "JobHandle", limit_s: float | None) -> Any:
        """Wait for the end of a job."""
        ...

    def blocking(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine and wait for it."""
        ...


class JobHandle:
    """A job as it was when last looked at; `refresh` looks again."""

    __slots__ = ("_app", "_why", "job")

    def __init__(self, app: AppPort, job: Job, why: str | None = None) -> None:
        self._app = app
        self.take(job, why)

    def take(self, job: Job, why: str | None = None) -> None:
        """Be this state of the job from now on."""
        self.job = job
        self._why = why

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

    @property
    def started_at(self) -> datetime | None:
        """When its latest attempt began; None before the first."""
        return _maybe_datetime(self.job.started_at)

    @property
    def updated_at(self) -> datetime:
        """When it last changed."""
        return to_datetime(self.job.updated_at)

    @property
    def finished_at(self) -> datetime | None:
        """When it ended; None before it has."""
        return _maybe_datetime(self.job.finished_at)

    @property
    def attempts(self) -> int:
        """How often it was begun; `failures` of these count against `max_attempts`."""
        return self.job.attempt

    @property
    def failures(self) -> int:
        """How often it has failed."""
        return self.job.failures

    @property
    def max_attempts(self) -> int:
        """How often it may fail."""
        return self.job.max_attempts

    @property
    def why(self) -> str:
        """Why it is where it is, in one sentence, as the API says it."""
        return self._app.glance(self.job) if self._why is None else self._why

    @property
    def result(self) -> Any:
        """What the task returned; None before it has."""
        return None if self.job.result is None else msgspec.json.decode(self.job.result)

    @property
    def error(self) -> Any:
        """What went wrong in the last attempt: type, message, traceback; None when nothing did."""
        return None if self.job.error is None else msgspec.json.decode(self.job.error)

    @property
    def metadata(self) -> dict[str, Any]:
        """What the task says about the job."""
        return {} if self.job.metadata is None else msgspec.json.decode(self.job.metadata)

    async def wait(self, timeout: DurationLike | None = None) -> Any:
        """Wait until the job has ended; return its result, or raise `JobFailed` (`TimeoutError` when time is up)."""
        limit = None if timeout is None else parse_duration(timeout, what="timeout") / SECOND
        return await self._app.wait_for(self, limit)

    def wait_sync(self, timeout: DurationLike | None = None) -> Any:
        """Wait until the job has ended; return its result, or raise `JobFailed` (`TimeoutError` when time is up)."""
        limit = None if timeout is None else parse_duration(timeout, what="timeout") / SECOND
        return self._app.wait_for_sync(self, limit)

    def outcome(self) -> Any:
        """Return the result of a job that has ended, or raise `JobFailed`."""
        if self.status is Status.COMPLETED:
            return self.result
        error = self.error if isinstance(self.error, dict) else {}
        words = ": ".join(str(error[part]) for part in ("type", "message") if error.get(part))
        raise JobFailed(f"{self.id} ended as {self.status}: {words or self.job.reason}")

    async def refresh(self) -> "JobHandle":
        """Read the job again."""
        seen = await self._app.job(self.id)
        self.take(seen.job, seen.why)
        return self

    def refresh_sync(self) -> "JobHandle":
        """Read the job again."""
        return self._app.blocking(self.refresh())

    async def cancel(self, reason: str = "") -> "JobHandle":
        """End the job, or ask it to stop when it runs."""
        self.take((await self._app.cancel(self.id, reason)).job)
        return self

    def cancel_sync(self, reason: str = "") -> "JobHandle":
        """End the job, or ask it to stop when it runs."""
        return self._app.blocking(self.cancel(reason))

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.task} {self.status}>"


def _maybe_datetime(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


class Task(Generic[P, R]):
    """A registered callable. Calling it runs it here and now; `enqueue` makes a job of it."""

    def __init__(
        self, app: AppPort, function: Callable[P, R], name: str, options: Options, execution: ExecutionPolicy
    ) -> None:
        functools.update_wrapper(self, function)
        self._app = app
        self._function = function
        self.execution = execution
        self._signature, self.wants_context = _without_context(function)
        self.is_async = inspect.iscoroutinefunction(function)
        parameters = self._signature.parameters.values()
        self._known = {parameter.name for parameter in parameters if parameter.kind in _BY_NAME}
        self._required = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
        self._options = options
        self.name = name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function itself."""
        return self._function(*args, **kwargs)

    @property
    def function(self) -> Callable[P, R]:
        """What runs."""
        return self._function

    @property
    def defaults(self) -> Options:
        """What jobs of this task are enqueued with unless told otherwise."""
        return self._options

    def options(self, **given: Any) -> "Task[P, R]":
        """Return the task with other options for its next jobs: delay, at, key, priority, queue, tenant, tags,
        timeout, expires, metadata, callback_url, tx."""
        return Task(self._app, self._function, self.name, self._options.changed(given), self.execution)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Enqueue a job with these arguments; it is durable when this returns (or when `tx` commits)."""
        return (await self._app.enqueue_jobs([self._job(args, kwargs)], self._options.tx))[0]

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Enqueue a job with these arguments; it is durable when this returns (or when `tx` commits)."""
        return self._app.enqueue_jobs_sync([self._job(args, kwargs)], self._options.tx)[0]

    async def enqueue_many(self, rows: Iterable[Mapping[str, Any]], **options: Any) -> list[JobHandle]:
        """Enqueue one job per row of arguments, all or none, at most 10,000; return them in the order of the rows.

        Options are those of `options`. A text is a template over the arguments of the row, a function is called with
        them: `key="report:{tenant_id}", tenant="{tenant_id}", priority=lambda row: row["level"]`. With a key it is
        safe to repeat: a row whose job exists gives that job.
        """
        jobs, common = self.jobs_of_rows(rows, options)
        return await self._app.enqueue_jobs(jobs, common.tx)

    def enqueue_many_sync(self, rows: Iterable[Mapping[str, Any]], **options: Any) -> list[JobHandle]:
        """Enqueue one job per row of arguments, all or none, at most 10,000; options as in `enqueue_many`."""
        jobs, common = self.jobs_of_rows(rows, options)
        return self._app.enqueue_jobs_sync(jobs, common.tx)

    def jobs_of_rows(self, rows: Iterable[Mapping[str, Any]], given: Mapping[str, Any]) -> tuple[list[NewJob], Options]:
        """Make the jobs, checked, not enqueued."""
        return jobs_of_rows(
            rows, given, self._options, lambda row, options: self._app.new_job(self.name, self.bind((), row), options)
        )

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


def _without_context(function: Callable[..., Any]) -> tuple[inspect.Signature, bool]:
    """Return the signature as far as it is the job's, and whether the task wants a context in front."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if not parameters or not _is_context(function, parameters[0]):
        return signature, False
    return signature.replace(parameters=parameters[1:]), True


def _is_context(function: Callable[..., Any], parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    if isinstance(annotation, str):  # From `from __future__ import annotations`: look it up where the function is.
        annotation = getattr(function, "__globals__", {}).get(annotation, annotation)
    return annotation is Context or (isinstance(annotation, str) and annotation.split(".")[-1] == "Context")
