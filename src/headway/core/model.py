"""The nouns: frozen values that every other module passes around.

A `ScheduleSpec` is what a person wrote: task, trigger and policies. It has one JSON form, the same in a
file for `headway schedules apply`, in the store and over HTTP. A `Schedule` is a spec with its place in time: its
revision, how far it is decided and what comes next. A `Plan` is what the planner makes of a schedule: decisions, each
for one instant or for a run of equal ones. Nothing here reads a clock or talks to a store.

What is made once per decision or job is a msgspec `Struct`: just as frozen, and made ten times as fast as a frozen
dataclass, which counts when ten thousand schedules are due at once.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from headway.core.errors import DefinitionError, InvalidSchedule, InvalidTask
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
from headway.core.lifecycle import Attempt, Backoff, Status
from headway.core.triggers import After, At, Cron, Every, Trigger, trigger_from_dict, trigger_to_dict
from headway.core.urls import check_url

JsonObject: TypeAlias = dict[str, Any]

DEFAULT_TENANT: Final = "default"
NAME_LENGTH_MAX: Final = 200
KEY_LENGTH_MAX: Final = 512
ARGS_BYTES_MAX: Final = 256 * 1024
TAGS_MAX: Final = 32
PRIORITY_MAX: Final = 1_000
CATCH_UP_LIMIT_MAX: Final = 10_000
QUEUE_LIMIT_MAX: Final = 1_000
ATTEMPTS_MAX: Final = 1_000
RATE_COUNT_MAX: Final = 1_000_000
RESULT_BYTES_MAX: Final = 256 * 1024
ERROR_BYTES_MAX: Final = 16 * 1024
REASON_LENGTH_MAX: Final = 500
UNFINISHED_MAX: Final = 99  # Percent: 100 is for jobs that have completed.
LOG_BYTES_MAX: Final = 1024 * 1024
LOG_LINE_OVERHEAD: Final = 40  # What a line costs beside its text, about.
LOG_LINE_LENGTH_MAX: Final = 4_096
METADATA_BYTES_MAX: Final = 16 * 1024
STEP_LENGTH_MAX: Final = 200
FAILING_FLAGGED: Final = 3  # So many jobs in a row have failed: somebody should look at the schedule.


class Overlap(StrEnum):
    """What happens to an instant while an earlier job of its schedule is still live."""

    SKIP = "skip"
    QUEUE = "queue"
    ALLOW = "allow"
    REPLACE = "replace"


class Missed(StrEnum):
    """What happens to instants that nobody decided in time."""

    LATEST = "latest"
    ALL = "all"
    SKIP = "skip"


class Decided(StrEnum):
    """The outcome of an occurrence."""

    FIRED = "fired"
    SKIPPED = "skipped"
    MISSED = "missed"
    COALESCED = "coalesced"
    PAUSED = "paused"


class ByHand(StrEnum):
    """What people do to have jobs of a schedule beside those of its instants. It makes no occurrence."""

    TRIGGERED = "triggered"
    BACKFILLED = "backfilled"


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in so long, written `10/m`."""

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
    """What runs, when, and what to do when it cannot."""

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

    @classmethod
    def build(cls, /, *, task: str, trigger: Trigger, **options: Any) -> "ScheduleSpec":
        """Make a spec from what a person gives: durations as text, times as text or datetime, args as a dict."""
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
        return spec

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ScheduleSpec":
        """Read the JSON form; refuse what it does not know."""
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
    def exclusive(self) -> bool:
        """Say whether at most one job of the schedule may be live (promise S7)."""
        return self.overlap is not Overlap.ALLOW


def check_name(value: object, what: str, length_max: int = NAME_LENGTH_MAX) -> str:
    """Return a name that is safe to store and show, or say what is wrong with it."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidTask(f"{what} must be a text that is not empty, not {quote(value)}")
    if len(value) > length_max:
        raise InvalidTask(f"{what} must have at most {length_max} characters, not {len(value)}")
    if not value.isprintable():
        raise InvalidTask(f"{what} must not have control characters: {value[:40]!r}")
    return value


# Between tenant and name in the key of a schedule. No name has it, since names are printable.
_IN_KEY: Final = "\x1f"


def schedule_key(tenant: str, name: str, *, qualified: bool = False) -> str:
    """Return the key of a schedule: its name, of other tenants than the default with the tenant before it.

    The key names the schedule within the store: in the ledger, in its jobs and its locks, for ever. One that was made
    before names were unique per tenant has its name for a key, whosever it is, and the default tenant's of the same
    name is then `qualified`, too. So only the store knows the key of a schedule that exists.
    """
    return f"{tenant}{_IN_KEY}{name}" if qualified or tenant != DEFAULT_TENANT else name


def schedule_name(key: str) -> str:
    """Return the name of the schedule with this key; a name is returned as it is."""
    return key.rpartition(_IN_KEY)[2]


def schedule_label(tenant: str, name: str) -> str:
    """Return what the command line calls a schedule: its name, and `tenant/name` of other tenants than the default.

    A name of the default tenant that has a slash is also written with its tenant, so that no two labels are equal.
    """
    return name if tenant == DEFAULT_TENANT and "/" not in name else f"{tenant}/{name}"


def key_label(key: str) -> str:
    """Return what the command line calls the schedule with this key, as far as the key tells."""
    tenant, _, name = key.rpartition(_IN_KEY)
    return schedule_label(tenant or DEFAULT_TENANT, name)


class ScheduleRef(NamedTuple):
    """Which schedule: a name, and whose. As text it is what the command line calls it."""

    tenant: str
    name: str

    def __str__(self) -> str:
        return schedule_label(self.tenant, self.name)


def check_tenant(value: object, what: str) -> str:
    """Return the name of one tenant; `*` stands for all of them, and nothing belongs to all."""
    if value == "*":
        raise InvalidTask(f"{what} must be one tenant; * stands for all of them")
    return check_name(value, what)


def storable(text: str, length_max: int) -> str:
    """Return free text as every database can keep it: no NUL, no half characters, and not endless."""
    if len(text) > length_max:
        text = f"{text[: length_max - 20]}… ({len(text):,} characters)"
    return text.replace("\x00", "␀").encode("utf-8", "replace").decode()


def check_int(value: object, what: str, low: int, high: int) -> int:
    """Return a whole number within its bounds, or say which they are."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidTask(f"{what} must be a whole number from {low} to {high}, not {quote(value)}")
    return value


def read_status(value: object) -> Status:
    """Return a status by its name, or say which there are."""
    try:
        return Status(str(value).upper())
    except ValueError:
        raise InvalidTask(f"status must be one of {', '.join(Status)}, not {quote(value)}") from None


def check_tags(value: object, what: str = "tags") -> tuple[str, ...]:
    """Return tags as a tuple of names, at most `TAGS_MAX`."""
    if isinstance(value, str) or not isinstance(value, list | tuple) or len(value) > TAGS_MAX:
        raise InvalidTask(f"{what} must be a list of at most {TAGS_MAX} texts")
    return tuple(check_name(tag, "tag") for tag in value)


def encode_args(value: object, what: str = "args") -> str:
    """Write arguments as canonical JSON text, so that equal arguments are equal text; bounded."""
    if isinstance(value, str):
        value = _decode_args(value, what)
    if not isinstance(value, Mapping):
        raise InvalidTask(f"{what} must be an object of names and values, not {type(value).__name__}")
    try:
        text = msgspec.json.encode(value, order="deterministic").decode()
        check_finite(value, text, what)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidTask(f"{what} must be JSON: {error}") from None
    if len(text) > ARGS_BYTES_MAX or len(text.encode()) > ARGS_BYTES_MAX:
        raise _too_large(what)
    if "\\u0000" in text and _NUL.search(text):
        raise InvalidTask(f"{what} must not contain NUL characters; PostgreSQL cannot store them")
    return text


def check_finite(value: object, text: str, what: str) -> None:
    """Refuse numbers that JSON does not have; in the text of a value they would be null, and nobody would know."""
    if "null" not in text:
        return
    # A stack and not recursion, since what can be written may be nested as deep as Python's own stack.
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=str)  # The hook is for `Raw`, which is JSON already.
    left: list[tuple[str, Any]] = [("", plain)]
    while left:
        place, found = left.pop()
        if isinstance(found, float) and not math.isfinite(found):
            where = f" at {place[:NAME_LENGTH_MAX]}" if place else ""
            raise InvalidTask(f"{what} must be JSON, which has no {found}{where}; give a number, a text or None")
        if isinstance(found, dict):
            left += [(f"{place}.{name}" if place else name, part) for name, part in found.items()]
        elif isinstance(found, list | tuple):
            left += [(f"{place}[{at}]", part) for at, part in enumerate(found)]


_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # Not a backslash that is itself written with one.


def _decode_args(text: str, what: str) -> object:
    if len(text) > ARGS_BYTES_MAX:
        raise _too_large(what)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidTask(f"{what} must be JSON: {error}") from None


def _too_large(what: str) -> InvalidTask:
    return InvalidTask(f"{what} must have at most {ARGS_BYTES_MAX} bytes as JSON; store large data elsewhere")


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


# One reader per option, in the order in which people would list them. Unknown options are refused against this table.
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
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A window of time in which a schedule does not run; open when `until` is None."""

    since: Instant
    until: Instant | None = None
    reason: str = ""
    author: str = ""

    def covers(self, instant: Instant) -> bool:
        """Say whether the instant falls into the window."""
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
        """Whose it is."""
        return self.spec.tenant

    @property
    def label(self) -> str:
        """What the command line calls it."""
        return schedule_label(self.spec.tenant, self.name)

    def paused_at(self, now: Instant) -> Pause | None:
        """Return the pause that is open at this time."""
        return next((pause for pause in self.pauses if pause.covers(now + 1)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One definition of a schedule and the time from which it counts; no spec means removed."""

    schedule: str
    revision: int
    effective_at: Instant
    spec: ScheduleSpec | None
    author: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJobs:
    """The jobs of one schedule that have not ended, oldest first: those in the way and those in line."""

    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()

    @property
    def last(self) -> str | None:
        """The job that a new one would have to wait for."""
        return (self.waiting or self.running or (None,))[-1]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What is decided for one instant, or for a run of equal instants from `instant` to `until`."""

    instant: Instant
    outcome: Decided
    reason: str
    until: Instant | None = None
    count: int = 1
    start_at: Instant | None = None
    waits: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All decisions for one schedule up to `decided_through`, and when to look again."""

    schedule: Schedule
    now: Instant
    decisions: tuple[Decision, ...]
    decided_through: Instant
    next_at: Instant | None
    live: LiveJobs = LiveJobs()
    replaces: bool = False

    @property
    def fires(self) -> int:
        """The number of jobs that the plan makes."""
        return sum(decision.outcome is Decided.FIRED for decision in self.decisions)


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as its author hands it in."""

    id: str
    task: str
    args: str = "{}"
    tenant: str = DEFAULT_TENANT
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 1
    key: str | None = None
    tags: tuple[str, ...] = ()
    delay: Duration = 0
    run_at: Instant | None = None
    schedule: str | None = None
    occurrence_at: Instant | None = None
    blocked_by: str | None = None
    exclusive: bool = False
    backoff: Backoff | None = None
    timeout: Duration | None = None
    expires: Duration | None = None
    metadata: str | None = None
    parent: str | None = None
    rerun_of: str | None = None
    callback: str | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the store has it. `omitted` names the texts that were too large to be read with it."""

    id: str
    task: str
    status: Status
    tenant: str
    queue: str
    priority: int
    args: str
    created_at: Instant
    run_at: Instant
    max_attempts: int
    attempt: int = 0
    failures: int = 0
    version: int = 1
    key: str | None = None
    tags: tuple[str, ...] = ()
    schedule: str | None = None
    occurrence_at: Instant | None = None
    blocked_by: str | None = None
    node: str | None = None
    lease_until: Instant | None = None
    ready_at: Instant | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    updated_at: Instant = 0
    cancel_requested_at: Instant | None = None
    progress: int = 0
    reason: str = ""
    result: str | None = None
    error: str | None = None
    backoff: Backoff | None = None
    timeout: Duration | None = None
    metadata: str | None = None
    detail: str | None = None
    parent: str | None = None
    rerun_of: str | None = None
    parked: str | None = None
    expires_at: Instant | None = None
    reviewed_at: Instant | None = None
    exclusive: bool = False
    callback: str | None = None
    company: int | None = None
    omitted: tuple[str, ...] = ()

    @property
    def schedule_name(self) -> str | None:
        """What people call its schedule; `schedule` is the key."""
        return None if self.schedule is None else schedule_name(self.schedule)


class EnqueuedRow(msgspec.Struct, frozen=True):
    """What the store made of a new job; `is_new` is False when its key was used before with the same arguments."""

    id: str
    status: str
    created_at: Instant
    run_at: Instant
    is_new: bool
    earlier: Job | None = None  # The job that has the key, as it is by now; None for a new one.

    def job_of(self, new: NewJob) -> Job:
        """Return the job as the store has it, without reading it again."""
        if self.earlier is not None:
            return self.earlier
        status = Status(self.status)
        return Job(
            id=self.id,
            task=new.task,
            status=status,
            tenant=new.tenant,
            queue=new.queue,
            priority=new.priority,
            args=new.args,
            created_at=self.created_at,
            run_at=self.run_at,
            ready_at=self.created_at if status is Status.PENDING else None,
            updated_at=self.created_at,
            max_attempts=new.max_attempts,
            key=new.key,
            tags=new.tags,
            backoff=new.backoff,
            timeout=new.timeout,
            metadata=new.metadata,
            expires_at=None if new.expires is None else self.run_at + new.expires,
            callback=new.callback,
        )


class Claimed(Attempt, frozen=True, kw_only=True):
    """A job that this process has just taken: what it needs to run it, and what to settle it with."""

    task: str
    args: str
    tenant: str
    queue: str
    priority: int
    run_at: Instant
    reason: str = ""
    occurrence_at: Instant | None = None
    timeout: Duration | None = None
    metadata: str | None = None
    log_bytes: int = 0
    unreadable: str | None = None

    @property
    def id(self) -> str:
        """The id of the job."""
        return self.job_id


LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_STREAM_LEVELS: Final = {"stderr": "warning"}


def log_stream(level: str, logger: str) -> str:
    """Name the stream of a line that was logged with a level by a logger."""
    return f"{level}:{logger}"


def read_stream(text: str) -> tuple[str, str, str | None]:
    """Return stream, level and logger of a line; one that was only written has no logger."""
    level, colon, logger = text.partition(":")
    if colon and level in LOG_LEVELS:
        return "log", level, logger
    return text, _STREAM_LEVELS.get(text, "info"), None


class Suspect(msgspec.Struct, frozen=True):
    """A ready job with which workers were lost: at most `company` such jobs run together; 0 is alone on its worker."""

    job_id: str
    task: str
    company: int
    waited: Duration


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a running attempt says about itself since it last did; nothing of a stale attempt is kept."""

    job_id: str
    attempt: int
    progress: int | None = None
    detail: str | None = None
    metadata: str | None = None
    lines: tuple[tuple[Instant | None, str, str], ...] = ()  # When, which stream, what.


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One recorded decision, as it stands in the ledger; among the runs of a schedule also what was done by hand."""

    schedule: str
    instant: Instant
    outcome: Decided | ByHand
    reason: str
    decided_at: Instant
    until: Instant | None = None
    count: int = 1
    revision: int = 1
    token: int = 0
    job_id: str | None = None
    tenant: str = DEFAULT_TENANT


class Cursor(NamedTuple):
    """How far a schedule is decided: its key, the time, and whose it is."""

    key: str
    decided_through: Instant
    tenant: str = DEFAULT_TENANT


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A right to act on a name for a time. Its token only ever grows, whoever held the name before."""

    name: str
    holder: str
    token: int
    until: Instant
    holder_name: str = ""
    since: Instant = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One incarnation of a process; a restart makes another node."""

    id: str
    name: str
    roles: tuple[str, ...]
    version: str = ""
    started_at: Instant = 0
    beat_at: Instant = 0
    state: JsonObject = field(default_factory=dict)
    asked: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is known of a token; its value is known to its holder only. `state` is valid, expired or revoked."""

    id: str
    tenant: str
    role: str
    name: str
    created_at: Instant
    created_by: str
    expires_at: Instant | None
    revoked_at: Instant | None
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A session of somebody who has signed in: it may what the token with this hash may, until then at most."""

    token_hash: str
    expires_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A line of the trail: who did what to what, of which tenant, from where."""

    seq: int
    at: Instant
    actor: str
    tenant: str
    origin: str
    action: str
    target: str
    detail: JsonObject
