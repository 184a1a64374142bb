"""The year of a schedule, day by day: the decisions on each day, and how the resulting jobs ended.

Days are days in the schedule's own time zone and may have 23 or 25 hours. The store counts. It receives the UTC offsets
and the periods in which they hold, since databases differ in their time zone data.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Final

from headway.core.instants import SECOND, Duration, Instant, to_datetime
from headway.core.lifecycle import FINAL
from headway.core.zones import DAY_S, timeline, zone
from headway.store.ledger import StoreLedger
from headway.wire.schedules import Calendar, CalendarDay

YEAR_MIN: Final = 1970
YEAR_MAX: Final = 2199
ROWS_MAX: Final = 100_000
RUNS_MAX: Final = 10_000
_EPOCH: Final = date(1970, 1, 1)


def year_of(instant: Instant, tz: str) -> int:
    """Return the current year in a time zone, within bounds."""
    return min(max(to_datetime(instant).astimezone(zone(tz)).year, YEAR_MIN), YEAR_MAX)


async def calendar(ledger: StoreLedger, name: str, year: int, tz: str) -> Calendar:
    """Count the decisions of a schedule by day; days without decisions are left out."""
    first = date(year, 1, 1)
    begins = _begins(first, date(year + 1, 1, 1), tz)
    stretches = list(_stretches(begins[0], begins[-1], tz))
    counts, runs = await ledger.calendar(name, begins[0], begins[-1], stretches, limit=ROWS_MAX, runs_limit=RUNS_MAX)
    days: dict[int, CalendarDay] = {}
    offset = (first - _EPOCH).days
    for count in counts:
        day = days.setdefault(count["day"] - offset, CalendarDay("", {}, {}))
        _add(day.outcomes, count["outcome"], count["decisions"])
        if count["status"] in FINAL:
            _add(day.ended, count["status"], count["decisions"])
    for run in runs:
        for index, number in _spread(run, begins):
            _add(days.setdefault(index, CalendarDay("", {}, {})).outcomes, run["outcome"], number)
    seen = sum(count["decisions"] for count in counts) + len(runs)
    for index, day in days.items():
        day.day = (first + timedelta(days=index)).isoformat()
    return Calendar(
        year=year,
        tz=tz,
        days=[days[index] for index in sorted(days) if 0 <= index < len(begins) - 1],
        truncated=seen >= ROWS_MAX or len(runs) >= RUNS_MAX,
    )


def _add(counts: dict[str, int], name: str, number: int) -> None:
    counts[name] = counts.get(name, 0) + number


def _begins(first: date, end: date, tz: str) -> list[Instant]:
    """Return when each day begins, and as the last item when the last day ends."""
    line, label = timeline(tz), (first - _EPOCH).days * DAY_S
    return [line.reach(label + number * DAY_S)[0] * SECOND for number in range((end - first).days + 1)]


def _stretches(since: Instant, before: Instant, tz: str) -> Iterator[tuple[Instant, Instant, Duration]]:
    """Yield the periods with a constant UTC offset: start, end and offset."""
    line, second = timeline(tz), since // SECOND
    while second * SECOND < before:
        segment = line.at(second)
        yield second * SECOND, min(segment.end * SECOND, before), segment.offset * SECOND
        second = segment.end


def _spread(run: Mapping[str, Any], begins: Sequence[Instant]) -> Iterator[tuple[int, int]]:
    """Yield the days on which the decisions of a run fall, with their number, assuming equal distances."""
    instant, until, count = run["instant"], run["until"], run["count"]
    span = max(1, until - instant)
    low = max(bisect_right(begins, instant) - 1, 0)
    high = min(bisect_right(begins, until) - 1, len(begins) - 2)

    def earlier_than(moment: Instant) -> int:
        return min(max(-((instant - moment) * (count - 1) // span), 0), count) if moment <= until else int(count)

    for index in range(low, high + 1):
        number = earlier_than(begins[index + 1]) - earlier_than(begins[index])
        if number:
            yield index, number
