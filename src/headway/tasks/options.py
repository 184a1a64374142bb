"""The options of a job: queue, priority, key, delay and so on, with their checks."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from headway.core import jobs
from headway.core.constructors import attributes, constructor
from headway.core.errors import HeadwayError, InvalidTask
from headway.core.instants import (
    Duration,
    Instant,
    format_duration,
    parse_duration,
    parse_start,
    quote,
)
from headway.core.jobs import METADATA_BYTES_MAX, EnqueueOptions, NewJob
from headway.core.json_values import encode_args
from headway.core.lifecycle import Backoff
from headway.core.needs import Amounts, needs_text, numbers, read_amounts, read_labels
from headway.core.templates import Template
from headway.core.tenants import check_tenant
from headway.core.urls import check_url
from headway.core.validation import (
    ATTEMPTS_MAX,
    KEY_LENGTH_MAX,
    PRIORITY_MAX,
    TAGS_MAX,
    check_int,
    check_name,
    check_tags,
)
from headway.core.windows import WINDOW_MAX, WINDOW_OPTIONS, Window, window_of
from headway.tasks.limit_templates import check_limit_template, fill_limit


class TaskEnqueueOptions(EnqueueOptions, total=False):
    """The options of `enqueue` in an app: also the caller's own transaction."""

    tx: Any


class Options(jobs.JobOptions, frozen=True, kw_only=True):
    """The options of one job, as far as they differ from its task's."""

    delay: Duration = 0
    at: Instant | None = None
    expires: Duration | None = None
    callback_url: str | None = None
    limit: str | None = None  # A template over the arguments of the job.
    needs: Amounts = msgspec.field(default_factory=dict)
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    pin: bool = False
    version: str | None = None  # Of the code of this process, for jobs of a task with `pin`.
    needs_text: str = ""  # What the last four say; kept because every job asks.
    debounce: Duration | None = None
    max_wait: Duration | None = None
    throttle: Duration | None = None
    unique: Duration | None = None
    has_window: bool = False  # Whether one of the last four is set; kept because every job asks.
    tx: Any = None

    def changed(self, given: Mapping[str, Any]) -> "Options":
        """Return these options with those of a caller, checked."""
        unknown = given.keys() - _OPTION_READERS.keys()
        if unknown:
            raise InvalidTask(f"unknown option {min(unknown)[:40]!r}; known are {', '.join(_OPTION_READERS)}")
        read = {name: _OPTION_READERS[name](value) for name, value in given.items() if value is not None}
        if not _WINDOWS.isdisjoint(read):
            read["has_window"] = True
        merged = msgspec.structs.replace(self, **read)
        if not _NEEDS.isdisjoint(read):
            merged = merged.with_needs()
        if merged.delay and merged.at is not None:
            raise InvalidTask("delay and at exclude each other: say when in one way")
        return merged

    def new_job(self, job_id: str, task: str, args: Mapping[str, Any]) -> NewJob:
        """Make a checked job, ready to be enqueued."""
        window = self._window() if self.has_window else None
        limit_key = "" if self.limit is None else fill_limit(self.limit, args)
        if self.pin and self.version is None:
            raise no_version(task)
        job: NewJob = _new_job(self, job_id, task, encode_args(args), limit_key)
        return job if window is None else _through(window, job)

    def for_args(self, args: Mapping[str, Any]) -> "Options":
        """Return these options for a job with these arguments. The key of a window is a template over them."""
        if self.key is None or not self.has_window:
            return self
        template = Template.read(self.key)
        template.require(args, "key", "job")
        return self.changed({"key": template.fill_from(args)})

    def with_needs(self, version: str | None = None) -> "Options":
        """Return these options with the canonical text of what they need, in a process with this code version."""
        version = version or self.version
        text = needs_text(self.needs, self.labels, version if self.pin else None)
        return msgspec.structs.replace(self, version=version, needs_text=text)

    def _window(self) -> Window | None:
        return window_of(
            key=self.key,
            debounce=self.debounce,
            max_wait=self.max_wait,
            throttle=self.throttle,
            unique=self.unique,
            has_start=bool(self.delay) or self.at is not None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what differs from the defaults, for processes that do not have the task."""
        plain = Options()
        written = {name: getattr(self, name) for name in _WRITTEN if getattr(self, name) != getattr(plain, name)}
        if self.backoff is not None:
            written["backoff"] = str(self.backoff)
        if self.needs:
            written["needs"] = numbers(self.needs)
        return written

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> "Options":
        """Read options that another process has written; invalid ones count as not set."""
        try:
            values = {name: _WRITTEN[name](written[name]) for name in _WRITTEN if name in written}
            backoff = Backoff.parse(str(written["backoff"])) if "backoff" in written else None
        except (TypeError, ValueError, HeadwayError):
            return cls()
        options = cls(**values, backoff=backoff)
        return options.with_needs() if options.needs or options.labels else options


_new_job: Final = constructor(
    NewJob,
    "options, job_id, task, args, limit_key",
    {
        **attributes("options", [*jobs.JobOptions.__struct_fields__, "delay", "expires"]),
        "id": "job_id",
        "task": "task",
        "args": "args",
        "run_at": "options.at",
        "callback": "options.callback_url",
        "limit_key": "limit_key",
        "needs": "options.needs_text",
    },
)
_WINDOWS: Final = frozenset(WINDOW_OPTIONS)
_NEEDS: Final = frozenset({"needs", "labels", "pin"})
_WRITTEN: Final[dict[str, Callable[[Any], Any]]] = {
    "queue": lambda value: check_name(value, "queue"),
    "priority": int,
    "tenant": lambda value: check_tenant(value, "tenant"),
    "max_attempts": int,
    "expires": int,
    "limit": check_limit_template,
    "needs": lambda value: read_amounts(value, "needs"),
    "labels": lambda value: read_labels(value, "labels"),
    "pin": lambda value: read_pin(value),
}
_OPTION_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "queue": lambda value: check_name(value, "queue"),
    "priority": lambda value: check_int(value, "priority", -PRIORITY_MAX, PRIORITY_MAX),
    "tenant": lambda value: check_tenant(value, "tenant"),
    "max_attempts": lambda value: check_int(value, "max_attempts", 1, ATTEMPTS_MAX),
    "delay": lambda value: parse_duration(value, what="delay"),
    "at": lambda value: parse_start(value, what="at"),
    "key": lambda value: check_name(value, "key", KEY_LENGTH_MAX),
    "tags": lambda value: check_tags(_listed(value)),
    "timeout": lambda value: positive(value, "timeout"),
    "expires": lambda value: positive(value, "expires"),
    "metadata": lambda value: _metadata(value),
    "callback_url": lambda value: check_url(value, "callback_url"),
    "limit": check_limit_template,
    "needs": lambda value: read_amounts(value, "needs"),
    "labels": lambda value: read_labels(value, "labels"),
    "debounce": lambda value: _span(value, "debounce"),
    "max_wait": lambda value: _span(value, "max_wait"),
    "throttle": lambda value: _span(value, "throttle"),
    "unique": lambda value: _span(value, "unique"),
    "tx": lambda value: value,
}


def _through(window: Window, job: NewJob) -> NewJob:
    """Return a job that goes through a window: its key names the window, and a debounce delays it."""
    delay = window.span if window.kind == "debounce" else job.delay
    return msgspec.structs.replace(job, key=None, delay=delay, window=window)


def read_pin(value: Any) -> bool:
    """Read whether jobs run only on workers with the code of the process that enqueues them."""
    if not isinstance(value, bool):
        raise InvalidTask(f"pin must be True or False, not {quote(value)}")
    return value


def no_version(task: str) -> InvalidTask:
    """Return the error for a task with `pin` in a process whose code has no version."""
    return InvalidTask(
        f"task {quote(task)} has pin=True, and the code of this process has no version:"
        ' set HEADWAY_APP_VERSION, or write Headway(version="1.4.2")'
    )


def positive(value: Any, what: str) -> Duration:
    """Read a duration that is longer than zero."""
    duration = parse_duration(value, what=what)
    if duration <= 0:
        raise InvalidTask(f"{what} must be longer than nothing, not {quote(value)}")
    return duration


def _span(value: Any, what: str) -> Duration:
    """Read a duration of a window."""
    span = positive(value, what)
    if span > WINDOW_MAX:
        raise InvalidTask(f"{what} must be at most {format_duration(WINDOW_MAX)}, not {quote(value)}")
    return span


def _listed(value: Any) -> Any:
    """Return an iterable of texts as a tuple; leave text and objects, which are not lists, to the check."""
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    return tuple(islice(value, TAGS_MAX + 1)) if is_list else value


def _metadata(value: Any) -> str:
    text = encode_args(value, "metadata")
    if len(text) > METADATA_BYTES_MAX:
        raise InvalidTask(f"metadata must have at most {METADATA_BYTES_MAX} bytes as JSON, not {len(text)}")
    return text
