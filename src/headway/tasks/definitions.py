"""Tasks, schedules, limits and tenants in headway.toml, so that Headway is of use without a line of Python.

    [tasks.backup]
    command = ["pg_dump", "--file", "/backups/{day}.sql"]      # see worker/command.py
    timeout = "30m"
    needs = {cpu = 2, memory = "4G"}
    retry = {max_attempts = 3, backoff = "5s..5m"}

    [tasks.ping]
    http = "https://example.org/hook"                          # see worker/http.py
    method = "POST"

    [schedules.nightly]
    task = "backup"                                            # of this file, or of the app
    cron = "0 2 * * *"                                         # or every, after, at; or trigger = {kind = "cron", …}
    tz = "Europe/Berlin"
    args = {day = "today"}

    [limits."account-*"]
    concurrency = 1
    rate = "10/s"                                              # with burst = 20 a token bucket

    [tenants.acme]
    weight = 4
    wait_slo = "5s"

Every app that reads the file has its definitions too. Without an app they make one, which is called after the
file, or by the `name` in it. Whatever is wrong is said with the file and the key.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from headway.core.errors import DefinitionError, HeadwayError, InvalidConfig, InvalidSchedule
from headway.core.instants import format_duration, quote
from headway.core.limits import Limit
from headway.core.needs import numbers
from headway.core.schedules import ScheduleSpec
from headway.core.settings import FILE_DEFAULT, read_file
from headway.core.tenants import DEFAULT_TENANT, Tenant
from headway.core.triggers import Trigger, trigger_from_dict
from headway.core.validation import check_name
from headway.tasks.limit_templates import fill_limit
from headway.tasks.options import Options
from headway.tasks.retry import Retry

T = TypeVar("T")
TRIGGER_WORDS: Final = ("cron", "every", "after", "at")
CRON_WORDS: Final = ("tz", "dst", "seconds")
_COMMON: Final = ("queue", "priority", "tenant", "timeout", "expires", "limit", "needs", "labels", "pin", "retry")
_KINDS: Final = {"command": ("env", "cwd", "memory"), "http": ("method", "headers")}
_RETRY: Final = ("max_attempts", "backoff", "retry_timeouts")


def inherited(said: Options, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a schedule inherits from its task where it sets none itself.

    The arguments among the given options fill the limit of the task.
    """
    options = {name: getattr(said, name) for name in ("queue", "priority", "tenant", "max_attempts", "backoff")}
    expires = None if said.expires is None else format_duration(said.expires)
    needs = {"needs": numbers(said.needs) or None, "labels": said.labels or None}
    return {**options, **needs, "expires": expires, "limit": _inherited_limit(said, given)}


def _inherited_limit(said: Options, given: Mapping[str, Any]) -> str | None:
    if said.limit is None or given.get("limit") is not None:
        return None
    try:
        return fill_limit(said.limit, given.get("args") or {})
    except DefinitionError as error:
        raise InvalidSchedule(str(error)) from None


class TaskRegistrar(Protocol):
    """Where the tasks of a file are registered: an app."""

    @property
    def command(self) -> Callable[..., Any]:
        """Register a command task."""
        ...

    @property
    def http(self) -> Callable[..., Any]:
        """Register an HTTP task."""
        ...


# Build a schedule's definition from task, trigger, arguments and policies; the task's options are the defaults.
Build = Callable[[str, Trigger, Mapping[str, Any], dict[str, Any]], ScheduleSpec]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A schedule as written in the file."""

    task: str
    trigger: Trigger
    args: Mapping[str, Any]
    policies: dict[str, Any]

    @property
    def tenant(self) -> str:
        """The tenant that the file names."""
        return str(self.policies.get("tenant") or DEFAULT_TENANT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions:
    """The tasks, schedules, limits and tenants that a file defines."""

    file: Path = Path(FILE_DEFAULT)
    name: str = FILE_DEFAULT
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    schedules: Mapping[str, _Entry] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)
    tenants: Mapping[str, Tenant] = field(default_factory=dict)

    @classmethod
    def load(cls, file: Path = Path(FILE_DEFAULT)) -> "Definitions":
        """Read a file; a missing file defines nothing."""
        values = read_file(file)
        with _telling(file, "name"):
            name = check_name(values.get("name", FILE_DEFAULT), "name")
        tasks, entries = table_of(file, values, "tasks"), {}
        for schedule, given in table_of(file, values, "schedules").items():
            with _telling(file, f"schedules.{schedule}"):
                entries[check_name(schedule, "schedule name")] = _entry(given)
        limits = _built(file, values, "limits", Limit.build, ("concurrency", "rate", "burst"))
        tenants = _built(file, values, "tenants", Tenant.build, ("weight", "wait_slo"))
        return cls(file=file, name=name, tasks=tasks, schedules=entries, limits=limits, tenants=tenants)

    def __bool__(self) -> bool:
        return bool(self.tasks or self.schedules or self.limits or self.tenants)

    def add_tasks(self, app: TaskRegistrar) -> None:
        """Register the tasks of the file."""
        for name, given in self.tasks.items():
            with _telling(self.file, f"tasks.{name}"):
                kind, subject, options = _task(given)
                (app.command if kind == "command" else app.http)(name, subject, **options)

    def specs(self, build: Build) -> dict[str, ScheduleSpec]:
        """Return the schedules of the file."""
        found = {}
        for name, entry in self.schedules.items():
            with _telling(self.file, f"schedules.{name}"):
                found[name] = build(entry.task, entry.trigger, entry.args, entry.policies)
        return found


@contextmanager
def _telling(file: Path, key: str) -> Iterator[None]:
    try:
        yield
    except HeadwayError as error:
        raise InvalidConfig(f"{file}: {key}: {error}") from None


def table_of(file: Path, values: Mapping[str, object], key: str) -> dict[str, Mapping[str, Any]]:
    """Return the tables under a key of a file, by their names."""
    table = values.get(key, {})
    if not isinstance(table, dict):
        raise InvalidConfig(f"{file}: {key} must be a table such as [{key}.nightly]")
    for name, given in table.items():
        if not isinstance(given, dict):
            raise InvalidConfig(f"{file}: {key}.{name} must be a table, not {quote(given)}")
    return table


def _built(
    file: Path, values: Mapping[str, object], key: str, build: Callable[..., T], known: tuple[str, ...]
) -> dict[str, T]:
    """Build what the tables under a key define."""
    found = {}
    for name, given in table_of(file, values, key).items():
        with _telling(file, f"{key}.{name}"):
            _refuse_unknown(given, known)
            found[name] = build(name, **given)
    return found


def _task(given: Mapping[str, Any]) -> tuple[str, Any, dict[str, Any]]:
    kinds = [kind for kind in _KINDS if kind in given]
    if len(kinds) != 1:
        raise DefinitionError('a task needs either command = ["program", …] or http = "https://…"')
    kind = kinds[0]
    _refuse_unknown(given, (kind, *_KINDS[kind], *_COMMON))
    options = {name: value for name, value in given.items() if name != kind}
    if "retry" in options:
        options["retry"] = _retry(options["retry"])
    for name in ("env", "headers"):
        if name in options and not isinstance(options[name], dict):
            raise DefinitionError(f"{name} must be a table of names and texts")
    return kind, given[kind], options


def _retry(given: object) -> Retry:
    if not isinstance(given, dict):
        raise DefinitionError('retry must be a table such as {max_attempts = 3, backoff = "5s..5m"}')
    _refuse_unknown(given, _RETRY)
    if not isinstance(given.get("retry_timeouts", True), bool):
        raise DefinitionError("retry_timeouts must be true or false")
    return Retry(**given)


def _refuse_unknown(given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if unknown := given.keys() - set(known):
        raise DefinitionError(f"unknown key {min(unknown)!r}; known are {', '.join(known)}")


def _entry(given: Mapping[str, Any]) -> _Entry:
    policies = dict(given)
    trigger = take_trigger(policies)
    task, args = policies.pop("task", None), policies.pop("args", {})
    if not isinstance(task, str):
        raise InvalidSchedule("a schedule needs a task: the name of what to run")
    if not isinstance(args, dict):
        raise InvalidSchedule("args must be a table of arguments by name")
    ScheduleSpec.build(task=task, trigger=trigger, args=args, **policies)  # Validates it now.
    return _Entry(task, trigger, args, policies)


def take_trigger(options: dict[str, Any]) -> Trigger:
    """Remove the trigger from options and return it: `trigger` as an object, or one of cron, every, after and at."""
    if "trigger" in options:
        if doubled := [word for word in (*TRIGGER_WORDS, *CRON_WORDS) if word in options]:
            raise InvalidSchedule(f"say when in one way: trigger or {doubled[0]}")
        if not isinstance(options["trigger"], Mapping):
            raise InvalidSchedule('trigger must be an object such as {"kind": "cron", "expr": "0 6 * * *"}')
        return trigger_from_dict(options.pop("trigger"))
    trigger = read_trigger(options)
    for word in (*TRIGGER_WORDS, *CRON_WORDS):
        options.pop(word, None)
    return trigger


def read_trigger(given: Mapping[str, Any]) -> Trigger:
    """Make a trigger of exactly one of cron, every, after and at, with its own options."""
    words = [word for word in TRIGGER_WORDS if given.get(word) is not None]
    if len(words) != 1:
        raise InvalidSchedule(f"say when in one way: cron, every, after or at{_both(words)}")
    word, value = words[0], given[words[0]]
    more = {name: given[name] for name in CRON_WORDS if given.get(name) is not None}
    allowed = {"cron": CRON_WORDS, "at": ("tz",)}.get(word, ())
    if wrong := [name for name in more if name not in allowed]:
        raise InvalidSchedule(f"{wrong[0]} does not belong to {word}")
    option = {"cron": "expr", "every": "interval", "after": "delay", "at": "instant"}[word]
    return trigger_from_dict({"kind": word, option: value, **more})


def _both(words: list[str]) -> str:
    return f", not {' and '.join(words)}" if words else ""
