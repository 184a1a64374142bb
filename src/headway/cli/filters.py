"""Which jobs a command means: the same flags for those that list jobs and those that do something to many of them."""

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

# By the names that the API has for them.
_FLAGS: Final[dict[str, Any]] = {
    "status": typer.Option("--status", metavar="STATUS", help="PENDING, RUNNING, FAILED, …"),
    "type": typer.Option("--task", metavar="NAME", help="Of this task."),
    "queue": typer.Option("--queue", metavar="NAME", help="Of this queue."),
    "tenant": typer.Option("--tenant", metavar="NAME", help="Of this tenant."),
    "schedule": typer.Option("--schedule", metavar="NAME", help="Of this schedule; tenant/name of another tenant."),
    "tag": typer.Option("--tag", metavar="TEXT", help="With this tag."),
    "key": typer.Option("--key", metavar="TEXT", help="With this key."),
    "q": typer.Option("--text", metavar="TEXT", help="With this in task, key, schedule, id or reason."),
    "created_after": typer.Option("--created-after", metavar="T", help="Enqueued then or later; 2h is two hours ago."),
    "created_before": typer.Option("--created-before", metavar="T", help="Enqueued before."),
    "finished_after": typer.Option("--finished-after", metavar="T", help="Ended then or later."),
    "finished_before": typer.Option("--finished-before", metavar="T", help="Ended before."),
    "rerun_of": typer.Option("--rerun-of", metavar="ID", help="That repeat this job."),
}
_TIMES: Final = {
    "created_after": "--created-after",
    "created_before": "--created-before",
    "finished_after": "--finished-after",
    "finished_before": "--finished-before",
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The filters as they were typed; what can be wrong with them is, but for times, found before a store is opened."""

    given: Mapping[str, str]

    @classmethod
    def of(cls, said: Mapping[str, str | None]) -> "Chosen":
        """Take what was said."""
        given = {name: value for name, value in said.items() if value is not None}
        if "status" in given:
            given["status"] = _status(given["status"])
        if "rerun_of" in given and not given["rerun_of"].startswith("job_"):
            given["rerun_of"] = f"job_{given['rerun_of']}"
        return cls(given)

    def read(self, now: Instant) -> JobFilter:
        """Return them as operations take them; `2h` is two hours before now."""
        said = with_tenant(self.given)
        times = {name: isoformat(read_past(said[name], now, flag)) for name, flag in _TIMES.items() if name in said}
        return JobFilter(**{**said, **times})


def _status(text: str) -> str:
    try:
        return str(Status(text.upper()))
    except ValueError:
        raise DefinitionError(f"--status must be one of {', '.join(Status)}, not {text[:40]!r}") from None


def filtered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the flags that say which jobs; it is handed what they say as `chosen`."""

    @functools.wraps(function)
    def call(*session: Any, **given: Any) -> Any:
        chosen = Chosen.of({name: given.pop(name) for name in _FLAGS})
        return function(*session, chosen=chosen, **given)

    own = [part for part in inspect.signature(function, eval_str=True).parameters.values() if part.name != "chosen"]
    flags = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[str | None, flag], default=None)
        for name, flag in _FLAGS.items()
    ]
    own = [own[0], *(part.replace(kind=inspect.Parameter.KEYWORD_ONLY) for part in own[1:])]
    call.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
    return call
