"""A naive cron: it checks every minute (or second) of a window for a match.

It shares neither code nor method with `headway.scheduling`: fields are lists of values, days are checked one by one,
and daylight saving is what `datetime` says about a single moment (`fold`, and whether a local time survives the
conversion to UTC and back). It is slow, and easy to verify.
"""

import calendar
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

MONTHS = dict(zip("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split(), range(1, 13), strict=True))
WEEKDAYS = dict(zip("SUN MON TUE WED THU FRI SAT".split(), range(7), strict=True))

RANGES = {
    "second": range(60),
    "minute": range(60),
    "hour": range(24),
    "day": range(1, 32),
    "month": range(1, 13),
    "weekday": range(7),
    "year": range(1970, 2200),
}


def number(text: str) -> int:
    return MONTHS[text] if text in MONTHS else WEEKDAYS[text] if text in WEEKDAYS else int(text)


@lru_cache(maxsize=4096)
def values(field: str, text: str) -> set[int]:
    """List the values of a field without the special letters, wrapping around at its end."""
    return set().union(*(item_values(field, item) for item in text.split(",")))


def item_values(field: str, item: str) -> set[int]:
    face = list(RANGES[field])
    step = int(item.split("/")[1]) if "/" in item else 1
    base = item.split("/")[0]
    if base in ("*", "?"):
        return set(face[::step])
    if "-" not in base:
        value = number(base) % 7 if field == "weekday" else number(base)
        return {v for v in face if v >= value and (v - value) % step == 0} if "/" in item else {value}
    first, last = (number(end) for end in base.split("-"))
    if field == "weekday" and (first, last) == (0, 7):
        return set([*face, 0][::step])
    if field == "weekday":
        first, last = first % 7, last % 7
    walked = [first]
    while walked[-1] != last:
        walked.append(face[(face.index(walked[-1]) + 1) % len(face)])
    return set(walked[::step])


def day_item_matches(item: str, day: date) -> bool:
    length = calendar.monthrange(day.year, day.month)[1]
    if item == "L":
        return day.day == length
    if item.startswith("L-"):
        return day.day == length - int(item[2:])
    if item.endswith("W"):
        target = length if item == "LW" else int(item[:-1])
        return target <= length and day == nearest_weekday(day.replace(day=target))
    return day.day in item_values("day", item)


def nearest_weekday(day: date) -> date:
    for distance in (0, -1, 1, -2, 2):
        other = day + timedelta(days=distance)
        if other.month == day.month and other.isoweekday() <= 5:
            return other
    raise AssertionError


def weekday_item_matches(item: str, day: date) -> bool:
    weekday = day.isoweekday() % 7
    if "#" in item:
        name, nth = item.split("#")
        return weekday == number(name) % 7 and (day.day + 6) // 7 == int(nth)
    if item.endswith("L"):
        return weekday == number(item[:-1]) % 7 and (day + timedelta(days=7)).month != day.month
    return weekday in item_values("weekday", item)


@dataclass(frozen=True)
class Oracle:
    """The seven fields of an expression, in upper case."""

    second: str
    minute: str
    hour: str
    day: str
    month: str
    weekday: str
    year: str

    @property
    def text(self) -> str:
        return " ".join((self.second, self.minute, self.hour, self.day, self.month, self.weekday, self.year))

    @property
    def runs_every_hour(self) -> bool:
        return "*" in self.hour or "/" in self.hour or len(values("hour", self.hour)) == 24

    def matches_day(self, day: date) -> bool:
        if day.month not in values("month", self.month) or day.year not in values("year", self.year):
            return False
        by_day = any(day_item_matches(item, day) for item in self.day.split(","))
        by_weekday = any(weekday_item_matches(item, day) for item in self.weekday.split(","))
        if self.day[0] in "*?" or self.weekday[0] in "*?":
            return by_day and by_weekday
        return by_day or by_weekday

    def matcher(self) -> Callable[[datetime], bool]:
        """Return a predicate for local times that caches the days it was asked for."""
        seconds, minutes = values("second", self.second), values("minute", self.minute)
        hours, days = values("hour", self.hour), dict[date, bool]()

        def matches(local: datetime) -> bool:
            if local.minute not in minutes or local.hour not in hours or local.second not in seconds:
                return False
            day = local.date()
            if day not in days:
                days[day] = self.matches_day(day)
            return days[day]

        return matches

    def instants(self, tz: str, dst: str, start: int, stop: int, step: int = 60) -> list[int]:
        """List the seconds since 1970 in [start, stop) at which the expression runs, by checking each."""
        walk, matches = walk_of(tz, start, stop, step), self.matcher()
        if self.runs_every_hour:
            return [second for second, local in walk.shown if matches(local)]
        both = dst == "both"
        runs = {second for second, local in walk.shown if matches(local) and (both or not local.fold)}
        if dst != "skip":
            runs |= {second for second, local in walk.left_out if matches(local)}
        return sorted(second for second in runs if start <= second < stop)


@dataclass(frozen=True)
class Walk:
    """The local time at every step of a window, and the local times that it skips, with the second at which they are
    over.
    """

    shown: list[tuple[int, datetime]]
    left_out: list[tuple[int, datetime]]


@lru_cache(maxsize=256)
def walk_of(tz: str, start: int, stop: int, step: int) -> Walk:
    zone = ZoneInfo(tz)
    shown = [(second, local_time(second, zone)) for second in range(start, stop, step)]
    left_out = list[tuple[int, datetime]]()
    passing = list[datetime]()
    local = local_time(start - step, zone).replace(fold=0)
    while local <= shown[-1][1].replace(fold=0) or passing:
        if not exists(local, zone):
            passing.append(local)
        elif passing:
            gap_end = int(local.replace(tzinfo=zone).timestamp())
            left_out += [(gap_end, missing) for missing in passing]
            passing.clear()
        local += timedelta(seconds=step)
    return Walk(shown, left_out)


def local_time(second: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(second, zone).replace(tzinfo=None)


def exists(local: datetime, zone: ZoneInfo) -> bool:
    return local.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None) == local


@lru_cache(maxsize=1)
def zones_with_changes() -> tuple[str, ...]:
    """List the time zones whose offset changes between 2020 and 2030."""
    return tuple(name for name in sorted(available_timezones()) if is_changing(ZoneInfo(name)))


def is_changing(zone: ZoneInfo) -> bool:
    ten_days = range(1_577_836_800, 1_924_905_600, 10 * 86_400)
    return len({datetime.fromtimestamp(second, zone).utcoffset() for second in ten_days}) > 1


@lru_cache(maxsize=4096)
def changes_of(tz: str, year: int) -> tuple[int, ...]:
    """List the seconds at which the offset changes in a year: searched by days, then by minutes and seconds."""
    return tuple(_changes(ZoneInfo(tz), year))


def _changes(zone: ZoneInfo, year: int) -> Iterator[int]:
    def offset(second: int) -> timedelta | None:
        return datetime.fromtimestamp(second, zone).utcoffset()

    start = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    for day in range(start, start + 366 * 86_400, 86_400):
        if offset(day) != offset(day + 86_400):
            minute = next(s for s in range(day, day + 86_400, 60) if offset(s) != offset(s + 60))
            yield next(s for s in range(minute, minute + 61) if offset(s) != offset(minute))
