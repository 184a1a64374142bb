"""Schedules: what users define, and where each schedule stands in time.

A `ScheduleSpec` is what a user wrote: task, trigger and policies. It has one JSON form, the same in a file for
`headway schedules apply`, in the store and over HTTP. A `Schedule` is a spec with its place in time: its revision, how
far it is decided and what comes next. Nothing here reads a clock or talks to a store.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

import msgspec

from headway.core.errors import DefinitionError, InvalidSchedule
from headway.core.instants import (
    SECOND,
    Duration,
    DurationLike,
    Instant,
    format_duration,
    isoformat,
    parse_duration,
    parse_instant,
    quote,
)
from headway.core.json_values import JsonObject, encode_args
from headway.core.lifecycle import Backoff
from headway.core.limits import check_limit_key
from headway.core.needs import NEEDS_LENGTH_MAX, Needs, read_amounts, read_labels, read_version, shown_needs
from headway.core.schedule_names import schedule_label
from headway.core.tenants import DEFAULT_TENANT, check_tenant
from headway.core.triggers import After, At, Cron, Every, Trigger, trigger_from_dict, trigger_to_dict
from headway.core.urls import check_url
from headway.core.validation import ATTEMPTS_MAX, PRIORITY_MAX, check_int, check_name, check_tags

CATCH_UP_LIMIT_MAX: Final = 10_000
QUEUE_LIMIT_MAX: Final = 1_000
RATE_COUNT_MAX: Final = 1_000_000
FAILING_FLAGGED: Final = 3  # Consecutive failures after which a schedule needs attention.


class Overlap(StrEnum):
    """What happens to an instant while an earlier job of its schedule is still live."""

    SKIP = "skip"
    QUEUE = "queue"
    ALLOW = "allow"
    REPLACE = "replace"


class Missed(StrEnum):
    """What happens to instants that were not decided in time."""

    LATEST = "latest"
    ALL = "all"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate, written `10/m`."""

    count: int
    per: Duration

    @classmethod
    def parse(cls, text: str) -> "Rate":
        """Read `10/m`, `1/s` or `100/h`."""
        count, slash, unit = text.partition("/")
        if slash and unit in _RATE_UNITS and _COUNT.fullmatch(count) and 0 < int(count) <= RATE_COUNT_MAX:
            return cls(int(count), _RATE_UNITS[unit])
        raise InvalidSchedule(f'catch_up_rate must look like "10/m", "1/s" or "100/h", not {quote(text)}')

    def __str__(self) -> str:
        return f"{self.count}/{next(unit for unit, per in _RATE_UNITS.items() if per == self.per)}"

    @property
    def interval(self) -> Duration:
        """The time between two starts."""
        return self.per // self.count


_COUNT: Final = re.compile(r"[0-9]{1,7}")
_RATE_UNITS: Final = {"s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec:
    """What runs, when, and what to do when it cannot run."""

    task: str
    trigger: Trigger
    args: str = "{}"
    tenant: str = DEFAULT_TENANT
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 1
    backoff: Backoff | None = None
    tags: tuple[str, ...] = ()
    overlap: Overlap = Overlap.SKIP
    queue_limit: int = 1
    missed: Missed = Missed.LATEST
    deadline: Duration | None = None
    grace: Duration = 60 * SECOND
    catch_up_limit: int = 100
    catch_up_rate: Rate | None = None
    jitter: Duration = 0
    start: Instant | None = None
    end: Instant | None = None
    expect: Duration | None = None
    callback_url: str | None = None
    expires: Duration | None = None
    limit: str | None = None
    needs: str = ""  # Canonical text, see `headway.core.needs`; the next two are parts of it, too.
    labels: str = ""
    version: str | None = None  # Its jobs run only on workers with this version of the code.

    @classmethod
    def build(cls, /, *, task: str, trigger: Trigger, **options: Any) -> "ScheduleSpec":
        """Build a spec from user input: durations as text, times as text or datetime, args as a dict."""
        if not isinstance(trigger, Cron | Every | After | At):
            raise InvalidSchedule(f"trigger must be a Cron, Every, After or At, not {quote(trigger)}")
        unknown = options.keys() - _SPEC_READERS.keys()
        if unknown:
            raise InvalidSchedule(
                f"unknown schedule option {min(unknown)[:40]!r}; known are {', '.join(_SPEC_READERS)}"
            )
        try:
            values = {name: _SPEC_READERS[name](name, value) for name, value in options.items() if value is not None}
        except InvalidSchedule:
            raise
        except DefinitionError as error:
            raise InvalidSchedule(str(error)) from None
        spec = cls(task=check_name(task, "task"), trigger=trigger, **values)
        if spec.start is not None and spec.end is not None and spec.start >= spec.end:
            raise InvalidSchedule(f"start {isoformat(spec.start)} must be before end {isoformat(spec.end)}")
        if len(spec.needs_text) > NEEDS_LENGTH_MAX:
            raise InvalidSchedule(f"needs, labels and version must together have at most {NEEDS_LENGTH_MAX} characters")
        return spec

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ScheduleSpec":
        """Read the JSON form; refuse unknown options."""
        if not isinstance(data, Mapping):
            raise InvalidSchedule("a schedule must be an object with task and trigger")
        if not all(isinstance(name, str) for name in data):
            raise InvalidSchedule("the names of a schedule's options must be text")
        options = dict(data)
        task, trigger = options.pop("task", None), options.pop("trigger", None)
        if not isinstance(task, str):
            raise InvalidSchedule("a schedule needs a task: the name of what to run")
        if not isinstance(trigger, Mapping):
            raise InvalidSchedule('a schedule needs a trigger, such as {"kind": "cron", "expr": "0 6 * * *"}')
        return cls.build(task=task, trigger=trigger_from_dict(trigger), **options)

    @classmethod
    def from_json(cls, text: str) -> "ScheduleSpec":
        """Read the stored form."""
        try:
            data = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidSchedule(f"a schedule must be written as JSON: {error}") from None
        return cls.from_dict(data)

    def to_dict(self) -> JsonObject:
        """Write the JSON form: the task, the trigger and every option that is not the default."""
        data: JsonObject = {"task": self.task, "trigger": trigger_to_dict(self.trigger)}
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name in data or value == option.default:
                continue
            data[option.name] = _SPEC_WRITERS.get(option.name, lambda plain: plain)(value)
        return data

    def to_json(self) -> str:
        """Write the stored form; equal specs have equal text."""
        return msgspec.json.encode(self.to_dict(), order="sorted").decode()

    @property
    def needs_text(self) -> str:
        """What a worker must offer to run its jobs, as canonical text."""
        version = "" if self.version is None else f"@{self.version}"
        return " ".join(part for part in (self.needs, self.labels, version) if part)

    @property
    def exclusive(self) -> bool:
        """Return whether at most one job of the schedule may be live (promise S7)."""
        return self.overlap is not Overlap.ALLOW


def _choice(kind: type[Overlap] | type[Missed]) -> Any:
    def read(name: str, value: object) -> Overlap | Missed:
        try:
            return kind(str(value))
        except ValueError:
            options = ", ".join(member.value for member in kind)
            raise InvalidSchedule(f"{name} must be one of {options}, not {quote(value)}") from None

    return read


def _read_duration(name: str, value: DurationLike) -> Duration:
    return parse_duration(value, what=name)


def _read_positive(name: str, value: DurationLike) -> Duration:
    duration = parse_duration(value, what=name)
    if duration <= 0:
        raise InvalidSchedule(f"{name} must be longer than nothing, not {quote(value)}")
    return duration


def _read_instant(name: str, value: Any) -> Instant:
    return parse_instant(value, what=name)


def _read_rate(name: str, value: object) -> Rate:
    if isinstance(value, Rate):
        return value
    return Rate.parse(value if isinstance(value, str) else quote(value))


# One reader per option, in the order of the error message for unknown options.
_SPEC_READERS: Final[dict[str, Any]] = {
    "args": lambda name, value: encode_args(value, name),
    "tenant": lambda name, value: check_tenant(value, name),
    "queue": lambda name, value: check_name(value, name),
    "priority": lambda name, value: check_int(value, name, -PRIORITY_MAX, PRIORITY_MAX),
    "max_attempts": lambda name, value: check_int(value, name, 1, ATTEMPTS_MAX),
    "backoff": lambda name, value: value if isinstance(value, Backoff) else Backoff.parse(value),
    "tags": lambda name, value: check_tags(value, name),
    "overlap": _choice(Overlap),
    "queue_limit": lambda name, value: check_int(value, name, 1, QUEUE_LIMIT_MAX),
    "missed": _choice(Missed),
    "deadline": _read_duration,
    "grace": _read_duration,
    "catch_up_limit": lambda name, value: check_int(value, name, 1, CATCH_UP_LIMIT_MAX),
    "catch_up_rate": _read_rate,
    "jitter": _read_duration,
    "start": _read_instant,
    "end": _read_instant,
    "expect": _read_duration,
    "callback_url": lambda name, value: check_url(value, name),
    "expires": lambda name, value: _read_positive(name, value),
    "limit": lambda name, value: check_limit_key(value),
    "needs": lambda name, value: Needs(read_amounts(value, name)).text,
    "labels": lambda name, value: Needs({}, read_labels(value, name)).text,
    "version": lambda name, value: read_version(value, name),
}
_SPEC_WRITERS: Final[dict[str, Any]] = {
    "args": msgspec.json.decode,
    "tags": list,
    "backoff": str,
    "overlap": str,
    "missed": str,
    "deadline": format_duration,
    "grace": format_duration,
    "catch_up_rate": str,
    "jitter": format_duration,
    "start": isoformat,
    "end": isoformat,
    "expect": format_duration,
    "expires": format_duration,
    "needs": lambda text: shown_needs(text)[0],
    "labels": lambda text: shown_needs(text)[1],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A time window in which a schedule does not run; open-ended when `until` is None."""

    since: Instant
    until: Instant | None = None
    reason: str = ""
    author: str = ""

    def covers(self, instant: Instant) -> bool:
        """Return whether the instant falls into the pause."""
        return self.since < instant and (self.until is None or instant <= self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A spec with its place in time. `version` changes with every write and guards the next one.

    The name is unique within its tenant; `key` is what the store, its ledger and its jobs call the schedule.
    """

    name: str
    spec: ScheduleSpec
    key: str = ""
    owner: str = ""
    revision: int = 1
    version: int = 1
    created_at: Instant = 0
    decided_through: Instant = 0
    next_at: Instant | None = None
    pauses: tuple[Pause, ...] = ()
    removed_at: Instant | None = None
    attention: str | None = None
    failing: int = 0

    def __post_init__(self) -> None:
        if not self.key:
            object.__setattr__(self, "key", self.name)

    @property
    def tenant(self) -> str:
        """The tenant of the schedule."""
        return self.spec.tenant

    @property
    def label(self) -> str:
        """The label of the schedule on the command line."""
        return schedule_label(self.spec.tenant, self.name)

    def paused_at(self, now: Instant) -> Pause | None:
        """Return the pause that is open at this time."""
        return next((pause for pause in self.pauses if pause.covers(now + 1)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One definition of a schedule and the time from which it applies; no spec means removed."""

    schedule: str
    revision: int
    effective_at: Instant
    spec: ScheduleSpec | None
    author: str
