"""Check what a new batch is made of: its name, its tenant and its callbacks."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from headway.core.errors import InvalidTask, TaskNotFound
from headway.core.groups import CALLBACK_SAMPLE, OPEN_FOR, NewGroup, check_batch_name
from headway.core.instants import quote
from headway.core.jobs import NewJob
from headway.core.tenants import DEFAULT_TENANT, check_tenant
from headway.core.validation import check_name
from headway.tasks.batches import BatchOptions
from headway.tasks.options import Options, positive
from headway.tasks.task import Task


class BatchMaker(Protocol):
    """What a new batch needs of its app."""

    @property
    def tasks(self) -> Mapping[str, Task[Any, Any]]: ...

    def new_id(self, prefix: str) -> str: ...

    def new_job(self, task: str, args: Mapping[str, Any], options: Options) -> NewJob: ...


def new_batch(app: BatchMaker, name: str, options: BatchOptions) -> NewGroup:
    """Make a checked batch without creating it."""
    if unknown := options.keys() - BatchOptions.__annotations__.keys():
        raise InvalidTask(
            f"a batch has no option {min(unknown)!r}; known are {', '.join(BatchOptions.__annotations__)}"
        )
    open_for = options.get("open_for")
    return NewGroup(
        id=app.new_id("batch"),
        name=check_batch_name(name),
        tenant=check_tenant(options.get("tenant", DEFAULT_TENANT), "tenant"),
        on_done=_callback(app, "on_done", options.get("on_done")),
        on_failure=_callback(app, "on_failure", options.get("on_failure")),
        open_for=OPEN_FOR if open_for is None else positive(open_for, "open_for"),
    )


def _callback(app: BatchMaker, which: str, given: Any) -> NewJob | None:
    if given is None:
        return None
    task = given if isinstance(given, Task) else app.tasks.get(check_name(_name(which, given), which))
    if task is None and app.tasks:
        raise TaskNotFound(f"{which}: no task is named {given!r}; known are {', '.join(sorted(app.tasks)[:20])}")
    try:
        args = CALLBACK_SAMPLE if task is None else task.bind((), CALLBACK_SAMPLE)
        options = Options() if task is None else task.defaults
        return as_callback(app.new_job(given if task is None else task.name, args, options), options)
    except InvalidTask as error:
        raise InvalidTask(f"{which}: {error}; it is called with one argument, batch") from None


def _name(which: str, given: object) -> str:
    if not isinstance(given, str):
        raise InvalidTask(f"{which} must be a task or the name of one, not {quote(given)}")
    return given


def as_callback(job: NewJob, options: Options) -> NewJob:
    """Return a job as the callback of a batch: its id, its arguments and its key come with the end of the batch."""
    if options.key is not None or options.has_window:
        raise InvalidTask("a callback has a key of its own, and neither debounce, throttle nor unique")
    return msgspec.structs.replace(job, id="", args="{}")
