"""Tasks: functions that have a name in the store.

Calling a `Task` runs it here and now; `enqueue` makes a job of it, with the task's options or others, and returns a
`JobHandle`.

A task whose first parameter is annotated `Context` gets one from the worker; it is not an argument of the job.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, ParamSpec, TypeVar, Unpack

from headway.core.errors import InvalidTask
from headway.core.instants import (
    quote,
)
from headway.core.jobs import NewJob
from headway.tasks.context import Context
from headway.tasks.execution import ExecutionPolicy
from headway.tasks.handles import AppPort, JobHandle
from headway.tasks.limit_templates import check_limit_arguments
from headway.tasks.options import Options, TaskEnqueueOptions
from headway.tasks.rows import jobs_of_rows

P = ParamSpec("P")
R = TypeVar("R")

_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BY_PLACE: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


def check_function(function: object) -> Callable[..., Any]:
    """Check that jobs can call a function with named arguments, and that calling it runs it."""
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
        if options.limit is not None:
            self._check_limit(options.limit)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function itself."""
        return self._function(*args, **kwargs)

    @property
    def function(self) -> Callable[P, R]:
        """The function that runs."""
        return self._function

    @property
    def defaults(self) -> Options:
        """The default options of this task's jobs."""
        return self._options

    def options(self, **given: Unpack[TaskEnqueueOptions]) -> "Task[P, R]":
        """Return the task with other options for its next jobs, such as delay, at, key, priority, queue or tags.

        With debounce, throttle or unique, the key is a template over the arguments: `key="account-{id}"`.
        """
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
        """Make checked jobs without enqueuing them."""
        return jobs_of_rows(
            rows, given, self._options, lambda row, options: self._app.new_job(self.name, self.bind((), row), options)
        )

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Bind every argument to its name, or raise `InvalidTask` naming the one that does not fit."""
        if not args and isinstance(kwargs, dict) and self._required <= kwargs.keys() <= self._known:
            return kwargs.copy()  # All named and known.
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidTask(f"task {self.name!r}: {error}") from None
        named = dict(bound.arguments)
        for parameter in self._signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                named.update(named.pop(parameter.name, {}))
        return named

    def _check_limit(self, limit: str) -> None:
        """Raise an error if the limit needs an argument that no job of this task can have."""
        if any(one.kind is one.VAR_KEYWORD for one in self._signature.parameters.values()):
            return
        try:
            check_limit_arguments(limit, self._known)
        except InvalidTask as error:
            raise InvalidTask(f"task {self.name!r}: {error}") from None

    def _job(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NewJob:
        named = self.bind(args, kwargs)
        return self._app.new_job(self.name, named, self._options.for_args(named))


def _without_context(function: Callable[..., Any]) -> tuple[inspect.Signature, bool]:
    """Return the signature without the context, and whether the task wants a context as first argument."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if not parameters or not _is_context(function, parameters[0]):
        return signature, False
    return signature.replace(parameters=parameters[1:]), True


def _is_context(function: Callable[..., Any], parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    # Postponed evaluation (`from __future__ import annotations`): look it up where the function is.
    if isinstance(annotation, str):
        annotation = getattr(function, "__globals__", {}).get(annotation, annotation)
    return annotation is Context or (isinstance(annotation, str) and annotation.split(".")[-1] == "Context")
