"""Cron expressions: which labels of a local clock they select.

An `Expression` is a set of labels (see `zones`), held as bit masks: seconds of a minute, minutes of a day, days of a
year. Searching is shifting, counting is `int.bit_count`, and neither depends on how often it fires.

Day of month and day of week: when both are restricted, a day matches if either field does. A field that starts with `*`
(also `*/2`) or is `?` is not restricted, and then both must match. This is Debian's rule.

The length of an expression is limited before it is expanded, and every error names the field and its allowed values. In
an expression of six fields the year is last; one that could also be read with seconds first is refused with both
readings spelled out.
"""

import re
from bisect import bisect_right
from calendar import isleap
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from typing import Final

from headway.core.errors import InvalidSchedule
from headway.core.zones import DAY_S, shorten

TEXT_LENGTH_MAX: Final = 512
LIST_ITEMS_MAX: Final = 100
YEAR_MIN: Final = 1970
YEAR_MAX: Final = 2199

MACROS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


# Fields -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a cron expression: its display name, its lowest and highest value, and names for values."""

    name: str
    low: int
    high: int
    words: dict[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.high - self.low + 1

    def error(self, text: str, reason: str) -> InvalidSchedule:
        return InvalidSchedule(f"cron {self.name} {shorten(text)}: {reason}")


_MONTH_WORDS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAY_WORDS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")

_SECOND: Final = _Field("second", 0, 59)
_MINUTE: Final = _Field("minute", 0, 59)
_HOUR: Final = _Field("hour", 0, 23)
_DAY: Final = _Field("day of month", 1, 31)
_MONTH: Final = _Field("month", 1, 12, {word: n for n, word in enumerate(_MONTH_WORDS, 1)})
_WEEKDAY: Final = _Field("day of week", 0, 6, {word: n for n, word in enumerate(_DAY_WORDS)})
_YEAR: Final = _Field("year", YEAR_MIN, YEAR_MAX)
_FIELDS: Final = (_SECOND, _MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY, _YEAR)

_NUMBER: Final = re.compile(r"[0-9]+")
_LAST_DAY: Final = re.compile(r"L(?:-([0-9]{1,2}))?")
_NEAREST_WEEKDAY: Final = re.compile(r"(L|[0-9]{1,2})W")
_NTH_WEEKDAY: Final = re.compile(r"([0-9A-Z]+)#([0-9]+)")
_LAST_WEEKDAY: Final = re.compile(r"([0-9A-Z]+)L")


def _items(spec: _Field, text: str) -> list[str]:
    items = text.split(",", LIST_ITEMS_MAX)
    if len(items) > LIST_ITEMS_MAX:
        raise spec.error(text, f"a list may have at most {LIST_ITEMS_MAX} items")
    return items


def _mask(spec: _Field, text: str) -> int:
    """Expand a field into a mask with one bit per value."""
    mask = 0
    for item in _items(spec, text):
        mask |= _item_mask(spec, item)
    return mask


def _item_mask(spec: _Field, item: str) -> int:
    base, slash, step_text = item.partition("/")
    step = _step(spec, item, step_text) if slash else 1
    if base == "*":
        first, last = spec.low, spec.high
    elif "-" in base:
        first, last = _range(spec, item, *base.split("-", 1))
    else:
        first = _value(spec, item, base) % 7 if spec is _WEEKDAY else _value(spec, item, base)
        last = spec.high if slash else first
    mask = 0
    for value in range(first, last + 1, step):
        mask |= 1 << spec.low + (value - spec.low) % spec.size
    return mask


def _step(spec: _Field, item: str, text: str) -> int:
    if _NUMBER.fullmatch(text) and 1 <= int(text) <= spec.size:
        return int(text)
    raise spec.error(item, f'a step must be between 1 and {spec.size}; for longer intervals use Every("90m")')


def _range(spec: _Field, item: str, first_text: str, last_text: str) -> tuple[int, int]:
    """Read both ends; a range that wraps around (22-2) gets an end beyond the highest value."""
    first, last = _value(spec, item, first_text), _value(spec, item, last_text)
    if first == 7 and spec is _WEEKDAY:
        first, last = 0, last % 7
    if last < first:
        if spec is _YEAR:
            raise spec.error(item, "a range of years must not run backwards")
        last += spec.size
    return first, last


def _value(spec: _Field, item: str, text: str) -> int:
    if text in spec.words:
        return spec.words[text]
    if not _NUMBER.fullmatch(text):
        raise spec.error(item, f"expected {_expected(spec)}")
    value = int(text)
    if spec.low <= value <= spec.high or (spec is _WEEKDAY and value == 7):
        return value
    raise spec.error(item, f"{text[:12]} is outside {spec.low}-{7 if spec is _WEEKDAY else spec.high}")


def _expected(spec: _Field) -> str:
    expected = f"numbers {spec.low}-{7 if spec is _WEEKDAY else spec.high}"
    if spec.words:
        expected += f", names like {next(iter(spec.words))}"
    expected += ', "*", ranges "a-b", steps "*/n" and lists "a,b"'
    if spec is _DAY:
        expected += ', "L", "L-3", "LW", "15W"'
    if spec is _WEEKDAY:
        expected += ', "FRIL" (the last), "FRI#2" (the second)'
    return expected


# Days -------------------------------------------------------------------------------------------------------


def _day_number(year: int) -> int:
    return date(year, 1, 1).toordinal() - date(1970, 1, 1).toordinal()


_YEAR_STARTS: Final = [_day_number(year) for year in range(YEAR_MIN, YEAR_MAX + 2)]
DAYS_END: Final = _YEAR_STARTS[-1]
_MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True, slots=True)
class _DaysOfMonth:
    """The day-of-month field: plain days, days counted from the end, and weekdays nearest to a day."""

    plain: int
    from_end: tuple[int, ...]
    nearest: tuple[int, ...]  # 0 means the last day of the month.

    def mask(self, first_weekday: int, length: int) -> int:
        mask = self.plain & (2 << length) - 1
        for back in self.from_end:
            if back < length:
                mask |= 1 << length - back
        for day in self.nearest:
            if day <= length:
                mask |= 1 << _nearest_weekday(day or length, first_weekday, length)
        return mask


def _nearest_weekday(day: int, first_weekday: int, length: int) -> int:
    """Move a Saturday back and a Sunday forward, or the other way where that would leave the month."""
    weekday = (first_weekday + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


@dataclass(frozen=True, slots=True)
class _DaysOfWeek:
    """The day-of-week field: plain weekdays (0 = Sunday), and the n-th or last one of a month."""

    plain: int
    nth: tuple[tuple[int, int], ...]  # Weekday and n; 0 means the last.

    def mask(self, first_weekday: int, length: int) -> int:
        # Six copies of the week, turned so that bit 1 is the first of the month.
        weeks = self.plain * 0x810204081 << 1 >> first_weekday
        mask = weeks & (2 << length) - 2
        for weekday, n in self.nth:
            first = 1 + (weekday - first_weekday) % 7
            day = first + 7 * (n - 1) if n else first + 7 * ((length - first) // 7)
            if day <= length:
                mask |= 1 << day
        return mask


def _days_of_month(text: str) -> _DaysOfMonth:
    plain, from_end, nearest = 0, [], []
    for item in _items(_DAY, "*" if text == "?" else text):
        if match := _LAST_DAY.fullmatch(item):
            if (back := int(match[1] or 0)) > 30:
                raise _DAY.error(item, "no month has so many days before its last")
            from_end.append(back)
        elif match := _NEAREST_WEEKDAY.fullmatch(item):
            nearest.append(0 if match[1] == "L" else _value(_DAY, item, match[1]))
        else:
            plain |= _item_mask(_DAY, item)
    return _DaysOfMonth(plain, tuple(from_end), tuple(nearest))


def _days_of_week(text: str) -> _DaysOfWeek:
    plain, nth = 0, []
    for item in _items(_WEEKDAY, "*" if text == "?" else text):
        if match := _NTH_WEEKDAY.fullmatch(item):
            if match[2] not in ("1", "2", "3", "4", "5"):
                raise _WEEKDAY.error(item, 'the number after "#" must be between 1 and 5')
            nth.append((_value(_WEEKDAY, item, match[1]) % 7, int(match[2])))
        elif match := _LAST_WEEKDAY.fullmatch(item):
            nth.append((_value(_WEEKDAY, item, match[1]) % 7, 0))
        else:
            plain |= _item_mask(_WEEKDAY, item)
    return _DaysOfWeek(plain, tuple(nth))


class _Days:
    """The days on which an expression runs, counted from 1970-01-01, as one mask per year, made on demand."""

    __slots__ = ("_both", "_days_of_month", "_days_of_week", "_months", "_year_masks", "_years")

    def __init__(self, day: str, month: str, weekday: str, year: str) -> None:
        self._days_of_month = _days_of_month(day)
        self._days_of_week = _days_of_week(weekday)
        self._months = _mask(_MONTH, month)
        self._years = _mask(_YEAR, year) >> YEAR_MIN
        self._both = day[0] in "*?" or weekday[0] in "*?"
        self._year_masks: dict[int, int] = {}

    def next(self, day: int) -> int:
        """Return the first day that is not before this one, or -1."""
        index = bisect_right(_YEAR_STARTS, day) - 1
        since = day - _YEAR_STARTS[index]
        while index < len(_YEAR_STARTS) - 1:
            found = _next_bit(self._year_mask(index), since)
            if found >= 0:
                return _YEAR_STARTS[index] + found
            index, since = index + 1, 0
        return -1

    def count(self, start: int, stop: int) -> int:
        """Count the days from `start` to `stop`, which is not included."""
        total = 0
        while start < stop:
            index = bisect_right(_YEAR_STARTS, start) - 1
            begins, ends = _YEAR_STARTS[index], min(stop, _YEAR_STARTS[index + 1])
            total += (self._year_mask(index) >> start - begins & (1 << ends - start) - 1).bit_count()
            start = ends
        return total

    def _year_mask(self, index: int) -> int:
        mask = self._year_masks.get(index)
        if mask is None:
            mask = self._year_masks[index] = self._make_year_mask(index)
        return mask

    def _make_year_mask(self, index: int) -> int:
        if not self._years >> index & 1:
            return 0
        mask, day = 0, _YEAR_STARTS[index]
        for month, length in enumerate(_MONTH_DAYS, 1):
            length += month == 2 and isleap(YEAR_MIN + index)
            if self._months >> month & 1:
                mask |= self._month_mask((day + 4) % 7, length) >> 1 << day - _YEAR_STARTS[index]
            day += length
        return mask

    def _month_mask(self, first_weekday: int, length: int) -> int:
        by_date = self._days_of_month.mask(first_weekday, length)
        by_weekday = self._days_of_week.mask(first_weekday, length)
        return by_date & by_weekday if self._both else by_date | by_weekday


def _next_bit(mask: int, start: int) -> int:
    """Return the position of the first set bit that is not before `start`, or -1."""
    rest = mask >> start
    return start + (rest & -rest).bit_length() - 1 if rest else -1


# Expressions ------------------------------------------------------------------------------------------------

_NEVER: Final = 2 * DAYS_END * DAY_S  # A label that no clock shows, centuries after the horizon.


class Expression:
    """A parsed cron expression: a set of labels. It knows no zone, so that all zones share one."""

    __slots__ = ("_days", "_first_second", "_minutes", "_per_day", "_per_minute", "_seconds", "every_hour")

    def __init__(self, fields: list[str]) -> None:
        second, minute, hour, day, month, weekday, year = fields
        self._seconds = _mask(_SECOND, second)
        minutes, hours = _mask(_MINUTE, minute), _mask(_HOUR, hour)
        self._minutes = sum(minutes << 60 * h for h in range(24) if hours >> h & 1)
        self._days = _shared_days(day, month, weekday, year)
        self._first_second = _next_bit(self._seconds, 0)
        self._per_minute = self._seconds.bit_count()
        self._per_day = self._minutes.bit_count() * self._per_minute
        self.every_hour = "*" in hour or "/" in hour or hours == (1 << 24) - 1

    def next(self, label: int) -> int:
        """Return the first label that is not before this one; beyond the horizon it is `_NEVER`."""
        day, time = divmod(label, DAY_S)
        found = self._days.next(day) if day >= 0 else self._days.next(0)
        if found == day:
            time = self._next_time(time)
            if time >= 0:
                return day * DAY_S + time
            found = self._days.next(day + 1)
        return found * DAY_S + self._next_time(0) if found >= 0 else _NEVER

    def count(self, start: int, stop: int) -> int:
        """Count the labels from `start` to `stop`, which is not included."""
        if stop <= start:
            return 0
        first_day, first_time = divmod(max(start, 0), DAY_S)
        last_day, last_time = divmod(min(max(stop, 0), DAYS_END * DAY_S), DAY_S)
        whole_days = self._days.count(first_day, last_day) * self._per_day
        return whole_days + self._count_until(last_day, last_time) - self._count_until(first_day, first_time)

    def _count_until(self, day: int, time: int) -> int:
        """Count the labels of this day before this time."""
        if not time or self._days.next(day) != day:
            return 0
        minute, second = divmod(time, 60)
        total = (self._minutes & (1 << minute) - 1).bit_count() * self._per_minute
        if self._minutes >> minute & 1:
            total += (self._seconds & (1 << second) - 1).bit_count()
        return total

    def _next_time(self, time: int) -> int:
        """Return the first second of a day that is not before this one, or -1."""
        minute, second = divmod(time, 60)
        if self._minutes >> minute & 1:
            found = _next_bit(self._seconds, second)
            if found >= 0:
                return minute * 60 + found
            minute += 1
        minute = _next_bit(self._minutes, minute)
        return minute * 60 + self._first_second if minute >= 0 else -1


@lru_cache(maxsize=4096)
def _shared_days(day: str, month: str, weekday: str, year: str) -> _Days:
    """Make the days once for all expressions that have the same ones; refuse days that never occur."""
    days = _Days(day, month, weekday, year)
    if days.next(0) < 0:
        text = shorten(f"{day} {month} {weekday}" + ("" if year == "*" else f" {year}"))
        raise InvalidSchedule(f"cron day of month, month, day of week {text}: there is no such day to run on")
    return days


# Texts ------------------------------------------------------------------------------------------------------

_PLAIN: Final = re.compile(r"[\t\r\n -~]*")
_SHAPES: Final = (
    "5 (minute hour day-of-month month day-of-week), 6 (those and a year) or 7 (second first, those, and a year last)"
)


def normalize(text: str) -> str:
    """Write a cron expression in the one form that is compared and stored; refuse text that cannot be one."""
    if len(text) > TEXT_LENGTH_MAX:
        raise InvalidSchedule(
            f"cron text {shorten(text)} has {len(text)} characters; at most {TEXT_LENGTH_MAX} are allowed"
        )
    if not _PLAIN.fullmatch(text):
        raise InvalidSchedule(f"cron text {shorten(text)} has characters that are not plain ASCII; retype it")
    text = " ".join(text.split())
    return text.lower() if text.startswith("@") else text.upper()


@lru_cache(maxsize=16_384)
def parse(text: str, seconds: str | None = None) -> Expression:
    """Parse a cron expression, with `seconds` as its second field if it has none; explain what is wrong."""
    fields = _expand_macro(normalize(text)).split()
    if len(fields) not in (5, 6, 7):
        raise InvalidSchedule(f"cron text {shorten(text)} has {len(fields)} fields; it needs {_SHAPES}")
    if seconds is None:
        if len(fields) == 6:
            _refuse_second_first(fields)
        return Expression(fields if len(fields) == 7 else ["0", *fields, "*"][:7])
    if len(fields) == 7:
        raise InvalidSchedule(f"cron text {shorten(text)} has a second field already; leave out seconds=")
    second = normalize(seconds)
    if not second or " " in second:
        raise _SECOND.error(second, 'seconds= takes one field, for example "*/10"')
    return Expression([second, *fields, "*"][:7])


def _expand_macro(text: str) -> str:
    if not text.startswith("@"):
        return text
    if text not in MACROS:
        raise InvalidSchedule(f"cron text {shorten(text)} is not known; there are {', '.join(MACROS)}")
    return MACROS[text]


def _refuse_second_first(fields: list[str]) -> None:
    """Accept a 6-field expression only if it cannot mean seconds first, as it does in other products."""
    second_first = [*fields, "*"]
    if _is_readable(second_first):
        year_last = ["0", *fields]
        text = shorten(" ".join(fields), 80)
        if not _is_readable(year_last):
            raise InvalidSchedule(
                f"cron text {text} has 6 fields, and the sixth is a year; it can only be read with seconds "
                f"first ({_in_words(second_first)}). For that write 7 fields: {_quote(second_first)}"
            )
        raise InvalidSchedule(
            f"cron text {text} has 6 fields and can be read in two ways. "
            f"Year last: {_in_words(year_last)}; for that write 7 fields: {_quote(year_last)}"
            f"{_shorter(fields)}. "
            f"Seconds first: {_in_words(second_first)}; for that write 7 fields: {_quote(second_first)}, "
            f"or {_quote(fields[1:])} with seconds={_quote(fields[:1])}"
        )


def _is_readable(fields: list[str]) -> bool:
    try:
        for spec, text in zip(_FIELDS, fields, strict=True):
            if spec is _DAY:
                _days_of_month(text)
            elif spec is _WEEKDAY:
                _days_of_week(text)
            else:
                _mask(spec, text)
    except InvalidSchedule:
        return False
    return True


def _in_words(fields: list[str]) -> str:
    return ", ".join(_field_in_words(spec, text) for spec, text in zip(_FIELDS, fields, strict=True))


def _field_in_words(spec: _Field, text: str) -> str:
    if text in ("*", "?"):
        return f"every {spec.name}"
    if text.startswith("*/") and spec in (_SECOND, _MINUTE, _HOUR):
        return f"every {text[2:]} {spec.name}s"
    return f"{spec.name} {text if len(text) <= 20 else text[:19] + '…'}"


def _quote(fields: list[str]) -> str:
    return f'"{" ".join(fields)}"'


def _shorter(fields: list[str]) -> str:
    return f", or 5: {_quote(fields[:5])}" if fields[5] == "*" else ""
