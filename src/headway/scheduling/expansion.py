"""Expand a schedule into its instants for the audit, independently of the scheduler.

The audit must not be wrong in the same way as the scheduler, so it shares no arithmetic with it: neither the planner
nor the engine behind the triggers. It parses a cron expression again, into plain sets of numbers, and expands it day by
day. `zoneinfo` converts local times to UTC for both folds; a time that does not survive the round trip does not exist.
Only the triggers' fields are shared, and the fact that they were checked when they were made. The tests compare the two
implementations over random expressions and zones.

Instants come in blocks, one for each day of a cron expression, which are counted and skipped without being listed.
"""

import calendar
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from headway.core.instants import DAY, SECOND, Instant
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import After, At, Cron, Every


@dataclass(frozen=True, slots=True)
class Block:
    """Instants in order: base + times[low], …, base + times[high - 1]. `times` may be a range and is never copied."""

    base: Instant
    times: Sequence[int]
    low: int
    high: int

    def position(self, instant: Instant) -> int:
        """Return the index after the last time that is not later."""
        return bisect_right(self.times, instant - self.base, self.low, self.high)

    def clipped(self, after: Instant, until: Instant) -> "Block":
        """Return the part that lies in (after, until]."""
        return Block(self.base, self.times, self.position(after), self.position(until))


def blocks_of(spec: ScheduleSpec, after: Instant, until: Instant) -> Iterator[Block]:
    """Yield the instants of a schedule in (after, until] as non-empty blocks."""
    if spec.start is not None:
        after = max(after, spec.start - 1)
    if spec.end is not None:
        until = min(until, spec.end)
    if after >= until:
        return
    for block in _trigger_blocks(spec, after, until):
        clipped = block.clipped(after, until)
        if clipped.low < clipped.high:
            yield clipped


def _trigger_blocks(spec: ScheduleSpec, after: Instant, until: Instant) -> Iterator[Block]:
    match spec.trigger:
        case Cron() as cron:
            yield from _cron_blocks(cron, after, until)
        case Every() as every:
            yield _every_block(every, after, until)
        case At() as at:
            yield Block(at.instant, (0,), 0, 1)
        case After():
            return


def _every_block(every: Every, after: Instant, until: Instant) -> Block:
    start = every.start or 0
    steps = max(0, -(-(after + 1 - start) // every.interval))  # Rounded up: the first that is not earlier.
    times = range(start + steps * every.interval, until + 1, every.interval)
    return Block(0, times, 0, len(times))


def expected(spec: ScheduleSpec, after: Instant, until: Instant) -> Iterator[Instant]:
    """Yield the instants of a schedule in (after, until], in order; none for a fixed delay."""
    for block in blocks_of(spec, after, until):
        for index in range(block.low, block.high):
            yield block.base + block.times[index]


@dataclass(frozen=True, slots=True)
class SkippedInstants:
    """The expected instants that one step skipped."""

    count: int = 0
    first: Instant = 0
    last: Instant = 0


class InstantCursor:
    """Read expected instants once, from front to back."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks = blocks
        self._block: Block | None = next(blocks, None)
        self._index = self._block.low if self._block else 0

    def takes(self, instant: Instant) -> bool:
        """Advance past this instant if it is the next one, which is the usual case."""
        block = self._block
        if block is None or block.base + block.times[self._index] != instant:
            return False
        self._index += 1
        if self._index == block.high:
            self._next_block()
        return True

    def skip(self, until: Instant) -> SkippedInstants:
        """Advance past everything that is not later, and return what was skipped."""
        count = first = last = 0
        while (block := self._block) is not None:
            position = max(self._index, block.position(until))
            if position > self._index:
                first = first if count else block.base + block.times[self._index]
                last = block.base + block.times[position - 1]
                count += position - self._index
                self._index = position
            if position < block.high:
                break
            self._next_block()
        return SkippedInstants(count, first, last)

    def _next_block(self) -> None:
        self._block = next(self._blocks, None)
        self._index = self._block.low if self._block else 0


# Cron, parsed independently ---------------------------------------------------------------------------------

_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_WORDS: Final = {
    **{name: number for number, name in enumerate("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split(), 1)},
    **{name: number for number, name in enumerate("SUN MON TUE WED THU FRI SAT".split())},
}
_YEARS: Final = (1970, 2199)
_DAY_S: Final = 86_400
_EPOCH_DAY: Final = datetime(1970, 1, 1, tzinfo=UTC).toordinal()
_ORDINALS: Final = tuple(datetime(year, 1, 1, tzinfo=UTC).toordinal() for year in (_YEARS[0], _YEARS[1] + 1))


def _number(text: str) -> int:
    return _WORDS[text] if text in _WORDS else int(text)


def _values(text: str, low: int, high: int) -> frozenset[int]:
    """List the values of a field without special letters."""
    found: set[int] = set()
    for item in text.split(","):
        base, _, step = item.partition("/")
        if base in ("*", "?"):
            first, last = low, high
        elif "-" in base:
            first, last = (_number(end) for end in base.split("-"))
        else:
            first = last = _number(base)
            last = high if step else last
        if last < first:  # A range that wraps around: 22-2.
            last += high - low + 1
        found.update((value - low) % (high - low + 1) + low for value in range(first, last + 1, int(step or 1)))
    return frozenset(found)


def _weekday_values(text: str) -> frozenset[int]:
    """List plain weekdays, 0 to 6. 7 is Sunday again; a Sunday that begins a range is 0."""
    items = []
    for item in text.split(","):
        begins, dash, rest = item.partition("-")
        if begins == "7" or begins.startswith("7/"):
            begins = "0" + begins[1:]
            rest = "0" + rest[1:] if rest.startswith("7") else rest
        items.append(begins + dash + rest)
    return _values(",".join(items), 0, 6)


@dataclass(frozen=True, slots=True)
class _CronSets:
    """A cron expression as sets of numbers, and the seconds of a day as one sorted list, in microseconds."""

    times: Sequence[int]
    hours: frozenset[int]
    every_hour: bool
    day: str
    month: frozenset[int]
    weekday: str
    year: frozenset[int]
    days_of_months: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)

    def has_day(self, ordinal: int) -> bool:
        """Return whether the expression runs on this day of the local calendar."""
        if not _ORDINALS[0] <= ordinal < _ORDINALS[1]:
            return False
        day = datetime.fromordinal(ordinal)
        if day.month not in self.month or day.year not in self.year:
            return False
        key = (day.year, day.month)
        days = self.days_of_months.get(key)
        if days is None:
            days = self.days_of_months[key] = self._days(*key)
        return day.day in days

    def _days(self, year: int, month: int) -> frozenset[int]:
        length = calendar.monthrange(year, month)[1]
        weekdays = {day: datetime(year, month, day, tzinfo=UTC).isoweekday() % 7 for day in range(1, length + 1)}
        by_date = frozenset().union(*(_dates(item, weekdays) for item in self.day.split(",")))
        by_weekday = frozenset().union(*(_weekdays(item, weekdays) for item in self.weekday.split(",")))
        if self.day[0] in "*?" or self.weekday[0] in "*?":
            return by_date & by_weekday
        return by_date | by_weekday


def _dates(item: str, weekdays: dict[int, int]) -> frozenset[int]:
    """List the days of a month that one item of the day-of-month field selects."""
    length = len(weekdays)
    if item.endswith("W"):
        target = length if item == "LW" else int(item[:-1])
        if target > length:
            return frozenset()
        working = [day for day, weekday in weekdays.items() if weekday not in (0, 6)]
        return frozenset({min(working, key=lambda day: (abs(day - target), day))})
    if item.startswith("L"):
        last = length - int(item[2:] or 0)
        return frozenset({last} if last >= 1 else ())
    return _values(item, 1, 31) & weekdays.keys()


def _weekdays(item: str, weekdays: dict[int, int]) -> frozenset[int]:
    """List the days of a month that one item of the day-of-week field selects."""
    name, hash_sign, nth = item.partition("#")
    if hash_sign or (item.endswith("L") and item[:-1]):
        wanted = _number(name if hash_sign else item[:-1]) % 7
        days = [day for day, weekday in weekdays.items() if weekday == wanted]
        if not hash_sign:
            return frozenset(days[-1:])
        return frozenset(days[int(nth) - 1 : int(nth)])
    plain = _weekday_values(item)
    return frozenset(day for day, weekday in weekdays.items() if weekday in plain)


@lru_cache(maxsize=64)
def _read(expr: str, seconds: str | None) -> _CronSets:
    columns = _MACROS.get(expr, expr).split()
    if seconds is not None:
        columns = [seconds, *columns]
    elif len(columns) < 7:
        columns = ["0", *columns]
    second, minute, hour, day, month, weekday, year = [*columns, "*"][:7]
    hours = _values(hour, 0, 23)
    minutes, second_values = sorted(_values(minute, 0, 59)), sorted(_values(second, 0, 59))
    return _CronSets(
        times=array(
            "q",
            ((h * 60 + m) * 60 * SECOND + s * SECOND for h in sorted(hours) for m in minutes for s in second_values),
        ),
        hours=hours,
        every_hour="*" in hour or "/" in hour or len(hours) == 24,
        day=day,
        month=_values(month, 1, 12),
        weekday=weekday,
        year=_values(year, *_YEARS),
    )


# Local times ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def _offset_s(local: datetime, zone: ZoneInfo, fold: int) -> int:
    offset = local.replace(tzinfo=zone, fold=fold).utcoffset()
    assert offset is not None
    return offset // timedelta(seconds=1)


def _one_offset(moments: Iterable[datetime], zone: ZoneInfo) -> int | None:
    """Return the UTC offset that all of these local times have in both folds; None when they differ."""
    offsets = {_offset_s(local, zone, fold) for local in moments for fold in (0, 1)}
    return offsets.pop() if len(offsets) == 1 else None


@lru_cache(maxsize=65_536)
def _steady_offset(zone_name: str, ordinal: int) -> int | None:
    """Return the UTC offset of a local day without a clock change, else None.

    No zone has changed twice within six hours, so a change shows at one of these times, or between two of them.
    """
    day = datetime.fromordinal(ordinal)
    moments = [day + timedelta(hours=hours) for hours in (0, 6, 12, 18)]
    return _one_offset([*moments, day + timedelta(hours=24, seconds=-1)], _zone(zone_name))


def _cron_blocks(cron: Cron, after: Instant, until: Instant) -> Iterator[Block]:
    """Yield one block per local day, and one for all adjacent days with clock changes.

    A change can move an instant past midnight, so the day after a change is never expanded alone.
    """
    reading = _read(cron.expr, cron.seconds)
    first = max(_EPOCH_DAY + after // DAY - 2, _ORDINALS[0] - 1)
    last = min(_EPOCH_DAY + until // DAY + 1, _ORDINALS[1])
    unsteady: list[int] = []
    for ordinal in range(first, last + 1):
        offset = _steady_offset(cron.tz, ordinal)
        if offset is None:
            unsteady.append(ordinal)
            continue
        if unsteady:
            yield _unsteady_block(cron, reading, [*unsteady, ordinal])
            unsteady = []
        elif reading.has_day(ordinal):
            base = (ordinal - _EPOCH_DAY) * DAY - offset * SECOND
            yield Block(base, reading.times, 0, len(reading.times))
    if unsteady:
        yield _unsteady_block(cron, reading, unsteady)


def _unsteady_block(cron: Cron, reading: _CronSets, ordinals: list[int]) -> Block:
    found: set[int] = set()
    for ordinal in ordinals:
        if reading.has_day(ordinal):
            for hour in reading.hours:
                found.update(_hour_seconds(cron, reading, datetime.fromordinal(ordinal), hour))
    times = array("q", (second * SECOND for second in sorted(found)))
    return Block(0, times, 0, len(times))


def _hour_seconds(cron: Cron, reading: _CronSets, day: datetime, hour: int) -> Iterator[int]:
    """Yield the UTC seconds at which the local times of one hour of one day run."""
    low = bisect_left(reading.times, hour * 3_600 * SECOND)
    high = bisect_left(reading.times, (hour + 1) * 3_600 * SECOND)
    labels = [time // SECOND for time in reading.times[low:high]]
    zone, start = _zone(cron.tz), day + timedelta(hours=hour)
    midnight = (day.toordinal() - _EPOCH_DAY) * _DAY_S
    offset = _one_offset((start, start + timedelta(seconds=3_599)), zone)
    for label in labels:
        if offset is not None:
            yield midnight + label - offset
        else:
            yield from _seconds_of(cron, reading, day + timedelta(seconds=label), zone)


def _seconds_of(cron: Cron, reading: _CronSets, local: datetime, zone: ZoneInfo) -> list[int]:
    """Return the UTC seconds at which one local time runs, under the schedule's DST policy."""
    naive_s = (local.toordinal() - _EPOCH_DAY) * _DAY_S + (local - datetime.fromordinal(local.toordinal())).seconds
    both = sorted({naive_s - _offset_s(local, zone, fold) for fold in (0, 1)})
    shown = [second for second in both if _local(second, zone) == local]
    if reading.every_hour:
        return shown  # An interval, not a time of day: it runs whatever the clock shows.
    if not shown:
        return [] if cron.dst == "skip" else [_end_of_gap(both[0], both[-1], zone)]
    return shown if cron.dst == "both" else shown[:1]


def _local(second: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(second, zone).replace(tzinfo=None, fold=0)


def _end_of_gap(before: int, behind: int, zone: ZoneInfo) -> int:
    """Return the first second with the new offset; the change lies in (before, behind]."""
    old = datetime.fromtimestamp(before, zone).utcoffset()
    while behind - before > 1:
        middle = (before + behind) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == old:
            before = middle
        else:
            behind = middle
    return behind
