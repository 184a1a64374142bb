"""Filter options of jobs: the same for commands that list jobs and for bulk commands."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from headway.cli.parsing import read_past
from headway.cli.schedule_names import with_tenant
from headway.core.errors import DefinitionError
from headway.core.instants import Instant, isoformat
from headway.core.lifecycle import Status
from headway.wire.job_requests import JobFilter

# By their names in the API.
_FLAGS: Final[dict[str, Any]] = {
    "status": typer.Option("--status", metavar="STATUS", help="PENDING, RUNNING, FAILED, …"),
    "type": typer.Option("--task", metavar="NAME", help="Only of this task."),
    "queue": typer.Option("--queue", metavar="NAME", help="Only of this queue."),
    "tenant": typer.Option("--tenant", metavar="NAME", help="Only of this tenant."),
    "schedule": typer.Option(
        "--schedule", metavar="NAME", help="Only of this schedule; tenant/name for another tenant."
    ),
    "batch": typer.Option("--batch", metavar="BATCH", help="Only of this batch: its name, or its id."),
    "tag": typer.Option("--tag", metavar="TEXT", help="Only with this tag."),
    "key": typer.Option("--key", metavar="TEXT", help="Only with this key."),
    "q": typer.Option("--text", metavar="TEXT", help="Only with this text in task, key, schedule, id or reason."),
    "created_after": typer.Option(
        "--created-after", metavar="T", help="Only enqueued at this time or later; 2h is two hours ago."
    ),
    "created_before": typer.Option("--created-before", metavar="T", help="Enqueued before."),
    "finished_after": typer.Option("--finished-after", metavar="T", help="Only ended at this time or later."),
    "finished_before": typer.Option("--finished-before", metavar="T", help="Ended before."),
    "rerun_of": typer.Option("--rerun-of", metavar="ID", help="Only reruns of this job."),
}
_TIMES: Final = {
    "created_after": "--created-after",
    "created_before": "--created-before",
    "finished_after": "--finished-after",
    "finished_before": "--finished-before",
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The filter options; errors in them, except in times, are found before a store is opened."""

    given: Mapping[str, str]

    @classmethod
    def of(cls, said: Mapping[str, str | None]) -> "Chosen":
        """Collect the given options."""
        given = {name: value for name, value in said.items() if value is not None}
        if "status" in given:
            given["status"] = _status(given["status"])
        if "rerun_of" in given and not given["rerun_of"].startswith("job_"):
            given["rerun_of"] = f"job_{given['rerun_of']}"
        return cls(given)

    def read(self, now: Instant) -> JobFilter:
        """Return the filters for the operations; `2h` is two hours before now."""
        said = with_tenant(self.given)
        times = {name: isoformat(read_past(said[name], now, flag)) for name, flag in _TIMES.items() if name in said}
        return JobFilter(**{**said, **times})


def _status(text: str) -> str:
    try:
        return str(Status(text.upper()))
    except ValueError:
        raise DefinitionError(f"--status must be one of {', '.join(Status)}, not {text[:40]!r}") from None


def with_filters(
    flags: Mapping[str, Any], read: Callable[[Mapping[str, str | None]], object]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command these flags; it receives what `read` makes of their values as `chosen`."""

    def add_flags(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*session: Any, **given: Any) -> Any:
            chosen = read({name: given.pop(name) for name in flags})
            return function(*session, chosen=chosen, **given)

        first, *own = inspect.signature(function, eval_str=True).parameters.values()
        kind = inspect.Parameter.KEYWORD_ONLY
        added = [
            inspect.Parameter(name, kind, annotation=Annotated[str | None, flag], default=None)
            for name, flag in flags.items()
        ]
        kept = [part.replace(kind=kind) for part in own if part.name != "chosen"]
        call.__signature__ = inspect.Signature([first, *kept, *added])  # type: ignore[attr-defined]
        return call

    return add_flags


filtered: Final = with_filters(_FLAGS, Chosen.of)
