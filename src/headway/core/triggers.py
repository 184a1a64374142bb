"""Triggers: the four ways to say when a schedule fires.

`Cron`, `Every` and `At` are calendars: their instants depend on nothing but the rule. They return the first instant
after another, and how many lie in a range; everything else follows from these two. `After` depends on when the last job
ended; the planner adds its delay to that.

A trigger is checked when it is made, compares by meaning (`Every("60s") == Every("1m")`), and is stored as a plain
dictionary. Ranges are always (after, until]: an instant belongs to exactly one of two adjacent ranges.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final, TypeAlias, cast

from headway.core.cron import Dst, timetable
from headway.core.cron_expression import YEAR_MAX, YEAR_MIN, normalize
from headway.core.errors import DefinitionError, InvalidSchedule
from headway.core.instants import (
    MILLISECOND,
    SECOND,
    Duration,
    DurationLike,
    Instant,
    format_duration,
    isoformat,
    parse_duration,
    parse_instant,
)
from headway.core.zones import shorten, timeline, zone

INTERVAL_MIN: Final = 100 * MILLISECOND  # A shorter interval would be a load, not a schedule.

_INSTANT_MIN: Final = parse_instant(f"{YEAR_MIN}-01-01T00:00:00Z")
_INSTANT_MAX: Final = parse_instant(f"{YEAR_MAX}-12-31T23:59:59.999999Z")


@dataclass(frozen=True, slots=True)
class Cron:
    """Fire at the local times of a cron expression; `headway.core.cron` explains `dst`."""

    expr: str
    tz: str = "UTC"
    dst: Dst = "shift"
    seconds: str | None = None

    def __post_init__(self) -> None:
        for name in ("expr", "tz", "dst"):
            _require_text(getattr(self, name), f"cron {name}")
        object.__setattr__(self, "expr", normalize(self.expr))
        if self.seconds is not None:
            _require_text(self.seconds, "cron seconds")
            object.__setattr__(self, "seconds", normalize(self.seconds))
        timetable(self.expr, self.tz, self.dst, self.seconds)

    def next_after(self, instant: Instant) -> Instant | None:
        """Return the first instant that is strictly later, or None."""
        return timetable(self.expr, self.tz, self.dst, self.seconds).next_after(instant)

    def count_between(self, after: Instant, until: Instant) -> int:
        """Count the instants in (after, until] without visiting each."""
        return timetable(self.expr, self.tz, self.dst, self.seconds).count_between(after, until)

    def note(self, instant: Instant) -> str | None:
        """Describe how daylight saving affects this instant, for previews."""
        return timetable(self.expr, self.tz, self.dst, self.seconds).note(instant)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Every:
    """Fire at a fixed rate: start, start + interval, start + 2 * interval, and so on; start defaults to 1970.

    The fields are microseconds, so build a new `Every` from text rather than with `dataclasses.replace`.
    """

    interval: Duration
    start: Instant | None

    def __init__(self, interval: DurationLike, start: str | datetime | Instant | None = None) -> None:
        object.__setattr__(self, "interval", _read_interval(interval, "every interval"))
        object.__setattr__(self, "start", None if start is None else _read_start(start))

    def __repr__(self) -> str:
        start = "" if self.start is None else f", start={isoformat(self.start)!r}"
        return f"Every({format_duration(self.interval)!r}{start})"

    def next_after(self, instant: Instant) -> Instant | None:
        """Return the first strictly later instant; like a cron expression it has none after the last year."""
        start = self.start or 0
        found = max(start, start + self._count_until(instant) * self.interval)
        return found if found <= _INSTANT_MAX else None

    def count_between(self, after: Instant, until: Instant) -> int:
        """Count the instants in (after, until]."""
        return max(0, self._count_until(until) - self._count_until(after))

    def _count_until(self, instant: Instant) -> int:
        return max(0, (instant - (self.start or 0)) // self.interval + 1)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class After:
    """Fire a fixed delay, in microseconds, after the previous job has ended; it has no instants of its own."""

    delay: Duration

    def __init__(self, delay: DurationLike) -> None:
        object.__setattr__(self, "delay", _read_interval(delay, "after delay"))

    def __repr__(self) -> str:
        return f"After({format_duration(self.delay)!r})"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class At:
    """Fire once. A time without an offset is local to `tz`, else UTC.

    A local time that does not exist means the first moment after the gap, one that exists twice the first; write an
    offset to mean the second.
    """

    instant: Instant
    tz: str | None

    def __init__(self, instant: str | datetime, tz: str | None = None) -> None:
        if tz is not None:
            zone(_require_text(tz, "at tz"))
        object.__setattr__(self, "instant", _read_instant(instant, tz, "at instant"))
        object.__setattr__(self, "tz", tz)

    def __repr__(self) -> str:
        return f"At({isoformat(self.instant)!r}{'' if self.tz is None else f', tz={self.tz!r}'})"

    def next_after(self, instant: Instant) -> Instant | None:
        """Return the instant if it is strictly later."""
        return self.instant if self.instant > instant else None

    def count_between(self, after: Instant, until: Instant) -> int:
        """Return 1 if the instant lies in (after, until], else 0."""
        return int(after < self.instant <= until)


CalendarTrigger: TypeAlias = Cron | Every | At
Trigger: TypeAlias = Cron | Every | After | At


def last_between(trigger: CalendarTrigger, after: Instant, until: Instant) -> Instant | None:
    """Return the latest instant in (after, until], or None."""
    return nth_last_between(trigger, after, until, 1)


def nth_last_between(trigger: CalendarTrigger, after: Instant, until: Instant, n: int) -> Instant | None:
    """Return the n-th latest instant in (after, until], or None if there are fewer.

    Search back from `until` in doubling strides, then halve the last one, until exactly n instants follow.
    """
    assert n >= 1
    low, high, stride = until, until, SECOND
    while (count := trigger.count_between(low, until)) < n:
        if low <= after:
            return None
        low, high, stride = max(after, until - stride), low, 2 * stride
    while count > n:
        middle = (low + high) // 2
        found = trigger.count_between(middle, until)
        if found < n:
            high = middle
        else:
            low, count = middle, found
    return trigger.next_after(low)


def trigger_to_dict(trigger: Trigger) -> dict[str, object]:
    """Write a trigger as plain JSON values; what was not given is left out."""
    match trigger:
        case Cron():
            seconds = _given("seconds", trigger.seconds)
            return {"kind": "cron", "expr": trigger.expr, "tz": trigger.tz, "dst": trigger.dst, **seconds}
        case Every():
            start = None if trigger.start is None else isoformat(trigger.start)
            return {"kind": "every", "interval": format_duration(trigger.interval), **_given("start", start)}
        case After():
            return {"kind": "after", "delay": format_duration(trigger.delay)}
        case At():
            return {"kind": "at", "instant": isoformat(trigger.instant), **_given("tz", trigger.tz)}


def trigger_from_dict(written: Mapping[str, object]) -> Trigger:
    """Read what `trigger_to_dict` wrote; refuse unknown kinds and fields by name."""
    kind = written.get("kind")
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise InvalidSchedule(f"trigger kind {shorten(kind)} is not known; use one of {', '.join(_READERS)}")
    return read(written)


def describe(trigger: Trigger) -> str:
    """Describe a trigger in a few words for lists and logs."""
    match trigger:
        case Cron():
            seconds = "" if trigger.seconds is None else f" seconds={trigger.seconds}"
            dst = "" if trigger.dst == "shift" else f" dst={trigger.dst}"
            return f"cron {trigger.expr}{seconds} {trigger.tz}{dst}"
        case Every():
            start = "" if trigger.start is None else f" from {isoformat(trigger.start)}"
            return f"every {format_duration(trigger.interval)}{start}"
        case After():
            return f"after {format_duration(trigger.delay)}"
        case At():
            return f"at {isoformat(trigger.instant)}"


def _given(name: str, value: str | None) -> dict[str, object]:
    return {} if value is None else {name: value}


def _read_cron(written: Mapping[str, object]) -> Cron:
    _require_fields(written, required={"expr"}, optional={"tz", "dst", "seconds"})
    expr = _require_text(written["expr"], "cron expr")
    tz = _require_text(written.get("tz", "UTC"), "cron tz")
    dst = _require_text(written.get("dst", "shift"), "cron dst")
    seconds = written.get("seconds")
    return _shared_cron(expr, tz, dst, None if seconds is None else _require_text(seconds, "cron seconds"))


@lru_cache(maxsize=16_384)
def _shared_cron(expr: str, tz: str, dst: str, seconds: str | None) -> Cron:
    return Cron(expr, tz, cast("Dst", dst), seconds)


def _read_every(written: Mapping[str, object]) -> Every:
    _require_fields(written, required={"interval"}, optional={"start"})
    start = written.get("start")
    interval = cast("DurationLike", written["interval"])  # Checked where it is read.
    return Every(interval, None if start is None else _require_text(start, "every start"))


def _read_after(written: Mapping[str, object]) -> After:
    _require_fields(written, required={"delay"}, optional=set())
    return After(cast("DurationLike", written["delay"]))  # Checked where it is read.


def _read_at(written: Mapping[str, object]) -> At:
    _require_fields(written, required={"instant"}, optional={"tz"})
    tz = written.get("tz")
    instant = _require_text(written["instant"], "at instant")
    return At(instant, None if tz is None else _require_text(tz, "at tz"))


_READERS: Final[dict[str, Callable[[Mapping[str, object]], Trigger]]] = {
    "cron": _read_cron,
    "every": _read_every,
    "after": _read_after,
    "at": _read_at,
}


def _require_fields(written: Mapping[str, object], *, required: set[str], optional: set[str]) -> None:
    kind, names = written["kind"], written.keys() - {"kind"}
    if missing := required - names:
        raise InvalidSchedule(f"{kind} trigger needs the field {', '.join(sorted(missing))}")
    if unknown := names - required - optional:
        known = ", ".join(sorted(required | optional))
        raise InvalidSchedule(f"{kind} trigger has no field {shorten(min(unknown, key=str))}; it has {known}")


def _require_text(value: object, what: str) -> str:
    if isinstance(value, str):
        return value
    raise InvalidSchedule(f"{what} must be text, not {shorten(value)}")


def _read_interval(value: DurationLike, what: str) -> Duration:
    try:
        interval = parse_duration(value, what=what)
    except DefinitionError as error:
        raise InvalidSchedule(str(error)) from None
    if interval < INTERVAL_MIN:
        least = format_duration(INTERVAL_MIN)
        raise InvalidSchedule(f"{what} must be at least {least}, not {shorten(value)}")
    return interval


def _read_start(value: str | datetime | Instant) -> Instant:
    if isinstance(value, int):
        return _require_known_year(value, value, "every start")
    return _read_instant(value, None, "every start")


def _read_instant(value: str | datetime, tz: str | None, what: str) -> Instant:
    try:
        instant = parse_instant(value, what=what)
    except DefinitionError as error:
        raise InvalidSchedule(str(error)) from None
    _require_known_year(instant, value, what)
    if tz is None or not _is_local(value):
        return instant
    return _require_known_year(_from_local(instant, tz), value, what)


def _is_local(value: str | datetime) -> bool:
    moment = datetime.fromisoformat(value.strip()) if isinstance(value, str) else value
    return moment.tzinfo is None


def _from_local(label: Instant, tz: str) -> Instant:
    """Convert a local clock reading, taken as if it were UTC, to the instant at which it is first shown."""
    label_s, fraction = divmod(label, SECOND)
    second, is_shown = timeline(tz).reach(label_s)
    return second * SECOND + (fraction if is_shown else 0)


def _require_known_year(instant: Instant, value: object, what: str) -> Instant:
    if _INSTANT_MIN <= instant <= _INSTANT_MAX:
        return instant
    raise InvalidSchedule(f"{what} must lie in the years {YEAR_MIN} to {YEAR_MAX}, not {shorten(value)}")
