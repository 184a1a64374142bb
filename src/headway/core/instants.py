"""Instants and durations: the arithmetic of time that everything shares.

An *instant* is an `int`: microseconds since the Unix epoch, UTC. It compares, adds and stores without conversion, and
the same number stands in Python, SQLite and PostgreSQL. A *duration* is an `int` of microseconds too. People see
neither: this module parses and formats text at the edges. It never reads a clock.
"""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo

from headway.core.errors import DefinitionError

Instant: TypeAlias = int
Duration: TypeAlias = int
DurationLike: TypeAlias = str | int | float | timedelta
InstantLike: TypeAlias = str | datetime

MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

DURATION_MAX: Final = 3660 * DAY  # Ten years: longer waits are mistakes, and sums stay within 64 bits.

INSTANT_MIN: Final = -62_135_596_800 * SECOND  # Year 1 to year 9999: what can be written as a date.
INSTANT_MAX: Final = 253_402_300_800 * SECOND - 1
START_MAX: Final = 7_258_118_400 * SECOND  # The year 2200, as for schedules: sums with durations stay in the calendar.

_UNITS: Final = {"us": 1, "ms": MILLISECOND, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
_PART: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?(us|ms|[smhdw])")
_PARTS: Final = re.compile(rf"(?: *{_PART.pattern})+ *")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT_LENGTH_MAX: Final = 64


def parse_duration(value: DurationLike, *, what: str = "duration") -> Duration:
    """Read `"90s"`, `"1h30m"`, `"2d"`, a number of seconds or a `timedelta`; refuse anything else by name."""
    micros = _micros(value, what)
    if not 0 <= micros <= DURATION_MAX:
        raise DefinitionError(f"{what} must be between 0 and {format_duration(DURATION_MAX)}, not {quote(value)}")
    return micros


def _micros(value: DurationLike, what: str) -> int:
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value != value or abs(value) > DURATION_MAX:
            raise DefinitionError(f"{what} must be a finite number of seconds, not {quote(value)}")
        return round(value * SECOND)
    if isinstance(value, str) and len(value) <= _TEXT_LENGTH_MAX and _PARTS.fullmatch(value):
        return sum(round(float(number) * _UNITS[unit]) for number, unit in _PART.findall(value))
    raise DefinitionError(f'{what} must look like "90s", "1h30m" or "2d", not {quote(value)}')


def format_duration(micros: Duration) -> str:
    """Write a duration the way `parse_duration` reads it, largest unit first: `1h30m`."""
    if micros < 0:
        return "-" + format_duration(-micros)
    text = ""
    for unit in ("d", "h", "m", "s", "ms", "us"):
        whole, micros = divmod(micros, _UNITS[unit])
        if whole:
            text += f"{whole}{unit}"
    return text or "0s"


def parse_instant(value: InstantLike, *, tz: str | None = None, what: str = "time") -> Instant:
    """Read ISO 8601 text or a `datetime`. Without an offset of its own it is local to `tz`, else UTC."""
    moment = _read_text(value, what) if isinstance(value, str) else value
    if not isinstance(moment, datetime):
        raise DefinitionError(f"{what} must be a datetime or ISO 8601 text, not {quote(value)}")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=_zone(tz) if tz else UTC)
    instant = from_datetime(moment)
    if not INSTANT_MIN <= instant <= INSTANT_MAX:
        raise DefinitionError(f"{what} must lie in the years 1 to 9999 of UTC, not {quote(value)}")
    return instant


def parse_start(value: InstantLike, *, what: str = "time") -> Instant:
    """Read when a job is to start. Whatever is added to it later is still a valid date."""
    instant = parse_instant(value, what=what)
    if instant >= START_MAX:
        raise DefinitionError(f"{what} must lie before the year 2200, not {quote(value)}")
    return instant


def _read_text(text: str, what: str) -> datetime:
    try:
        if len(text) <= _TEXT_LENGTH_MAX:
            return datetime.fromisoformat(text.strip())
    except ValueError:
        pass
    raise DefinitionError(f'{what} must look like "2027-01-31T06:00:00Z", not {quote(text)}')


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # No such zone, an invalid name, or a folder of zones.
        raise DefinitionError(f"tz must be an IANA time zone such as Europe/Berlin, not {quote(name)}") from None


def from_datetime(moment: datetime) -> Instant:
    """Convert an aware `datetime` exactly."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def to_datetime(instant: Instant) -> datetime:
    """Convert to an aware UTC `datetime`: exactly, or to an end of the calendar for a row with an invalid date.

    The ends are a day inside the calendar, so that every time zone can write them.
    """
    if not INSTANT_MIN <= instant <= INSTANT_MAX:
        instant = INSTANT_MIN + DAY if instant < 0 else INSTANT_MAX - DAY
    return _EPOCH + timedelta(microseconds=instant)


def isoformat(instant: Instant) -> str:
    """Write ISO 8601 UTC with `Z`, with a fraction only where there is one."""
    seconds, fraction = divmod(instant, SECOND)
    return f"{_whole(seconds)}.{fraction:06d}Z" if fraction else f"{_whole(seconds)}Z"


@lru_cache(4_096)  # Instants shown together are often in the same second.
def _whole(seconds: int) -> str:
    return to_datetime(seconds * SECOND).replace(tzinfo=None).isoformat()


def span(duration: Duration) -> str:
    """Format a duration for people, with its two largest units: `4m 12s`, `3h 2m`, `0.2s`."""
    if duration < 0:
        return "-" + span(-duration)
    if 0 < duration < 100 * MILLISECOND:
        return f"{max(1, duration // MILLISECOND)}ms"
    if duration < 10 * SECOND:
        return f"{duration / SECOND:.1f}s" if duration % SECOND else f"{duration // SECOND}s"
    for large, unit, small, rest in ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "m"), (MINUTE, "m", SECOND, "s")):
        if duration >= large:
            few = duration % large // small
            return f"{duration // large}{unit} {few}{rest}" if few else f"{duration // large}{unit}"
    return f"{duration // SECOND}s"


def away(instant: Instant, now: Instant) -> str:
    """Format how far an instant is from now: `in 3m 12s`, `2h ago`."""
    if abs(instant - now) < SECOND // 10:
        return "now"
    return f"in {span(instant - now)}" if instant > now else f"{span(now - instant)} ago"


def quote(value: object) -> str:
    """Quote user input for an error message: on one line and shortened."""
    try:
        text = repr(value[:_TEXT_LENGTH_MAX] if isinstance(value, str) else value)
    except ValueError:  # Python refuses to write numbers of more than 4,300 digits.
        text = "a number of thousands of digits"
    return text if len(text) <= _TEXT_LENGTH_MAX else text[: _TEXT_LENGTH_MAX - 1] + "…"
