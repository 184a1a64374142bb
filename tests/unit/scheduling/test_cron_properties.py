"""The cron engine against an oracle that checks every minute, and against two other libraries.

Set `HEADWAY_PROPERTY_EXAMPLES=5000` for a long run.
"""

import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from cronsim import CronSim
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from headway.core.cron import Timetable, timetable
from headway.core.errors import InvalidSchedule
from headway.core.instants import SECOND, from_datetime, to_datetime
from headway.core.triggers import Cron, last_between, nth_last_between
from tests.unit.scheduling.cron_oracle import (
    RANGES,
    Oracle,
    changes_of,
    exists,
    local_time,
    values,
    zones_with_changes,
)

EXAMPLES = int(os.environ.get("HEADWAY_PROPERTY_EXAMPLES", "50"))
slow_but_fine = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large],
)

HOUR_S, DAY_S = 3_600, 86_400
HORIZON = from_datetime(datetime(2200, 1, 3, tzinfo=UTC))
POLICIES = ("shift", "skip", "both")

# Historical edge cases: a half-hour shift, a gap at midnight, negative DST, two days that never existed.
NOTABLE = [
    ("Australia/Lord_Howe", 2027),
    ("America/Sao_Paulo", 2018),
    ("Africa/Casablanca", 2026),
    ("Europe/Dublin", 2027),
    ("Pacific/Apia", 2011),
    ("Pacific/Kwajalein", 1993),
    ("America/Scoresbysund", 2024),
    ("Asia/Gaza", 2040),
    ("Antarctica/Troll", 2027),
    ("America/Caracas", 2007),
    ("Asia/Pyongyang", 2015),
    ("America/Santiago", 2027),
]
ODD = ("Africa/Monrovia", 1972)  # Its offset had seconds, so its minutes are not aligned with those of UTC.


# Expressions


def number_items(field: str, *, low: int | None = None, high: int | None = None) -> st.SearchStrategy[str]:
    face = RANGES[field]
    low, high = face[0] if low is None else low, face[-1] if high is None else high
    value, step = st.integers(low, high), st.integers(1, len(face))
    return st.one_of(
        value.map(str),
        st.builds("*/{}".format, step),
        st.builds("{}-{}".format, value, value),
        st.builds("{}-{}/{}".format, value, value, st.integers(1, 5)),
        st.builds("{}/{}".format, value, step),
    )


def fields(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(st.just("*"), items, st.lists(items, min_size=2, max_size=4).map(",".join))


weekday_names = st.sampled_from(["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT", *map(str, range(8))])
day_items = st.one_of(
    number_items("day"),
    st.sampled_from(["L", "LW", "1W", "15W", "31W"]),
    st.builds("L-{}".format, st.integers(0, 30)),
    st.builds("{}W".format, st.integers(1, 31)),
)
weekday_items = st.one_of(
    number_items("weekday"),
    weekday_names,
    st.builds("{}-{}".format, weekday_names, weekday_names),
    st.builds("{}L".format, weekday_names),
    st.builds("{}#{}".format, weekday_names, st.integers(1, 5)),
)
month_items = st.one_of(number_items("month"), st.sampled_from(["FEB", "NOV-FEB", "JAN,JUL", "OCT-NOV"]))
# Most clocks change at night: these hours make the interesting cases frequent.
night_hours = st.one_of(
    st.sampled_from(["0", "1", "2", "3", "23", "1,2", "0-3", "22-2", "1-2", "2,14"]), number_items("hour")
)
minutes = st.one_of(st.sampled_from(["0", "15", "30", "45", "0,30", "*/15", "*"]), number_items("minute"))
on_the_minute = st.just("0")
any_day = st.one_of(st.just("*"), fields(day_items), st.just("?"))
any_weekday = st.one_of(st.just("*"), fields(weekday_items), st.just("?"))


def oracles(*, busy: bool, second: st.SearchStrategy[str] = on_the_minute) -> st.SearchStrategy[Oracle]:
    """Generate expressions of all kinds; the busy ones run on most days, so that a window of hours contains some."""
    often = st.one_of(st.just("*"), st.just("*"), st.just("?"))
    return st.builds(
        Oracle,
        second,
        fields(minutes),
        fields(night_hours),
        st.one_of(often, any_day) if busy else any_day,
        st.just("*") if busy else fields(month_items),
        st.one_of(often, any_weekday) if busy else any_weekday,
        st.just("*"),
    )


# Windows


@st.composite
def changes(draw: st.DrawFn, notable: list[tuple[str, int]] = NOTABLE) -> tuple[str, int]:
    """Generate a zone and a second at which its offset changes."""
    zone = st.sampled_from(zones_with_changes())
    tz, year = draw(st.one_of(st.sampled_from(notable), st.tuples(zone, st.integers(2020, 2030))))
    found = changes_of(tz, year)
    assume(found)
    return tz, draw(st.sampled_from(found))


@st.composite
def windows(draw: st.DrawFn) -> tuple[str, int, int]:
    """Generate a zone and two days, mostly around a change of its offset."""
    tz, change = draw(changes())
    middle = draw(st.one_of(st.just(change), st.just(change), st.integers(0, 2_000_000_000)))
    middle -= middle % 60
    return tz, middle - 20 * HOUR_S, middle + 28 * HOUR_S


def make(oracle: Oracle, tz: str, dst: str) -> Timetable:
    try:
        return timetable(oracle.text, tz, dst)
    except InvalidSchedule as error:
        assume("no such day" not in str(error) and "never runs" not in str(error))
        raise


def enumerate_s(made: Timetable, start: int, stop: int) -> list[int]:
    """List the seconds in [start, stop) by repeatedly asking for the next one."""
    found, instant = list[int](), made.next_after(start * SECOND - 1)
    while instant is not None and instant < stop * SECOND:
        assert instant % SECOND == 0
        found.append(instant // SECOND)
        instant = made.next_after(instant)
    return found


# Against the oracle


@slow_but_fine
@given(oracles(busy=True), windows(), st.sampled_from(POLICIES))
@example(Oracle("0", "30", "2", "*", "*", "*", "*"), ("Europe/Berlin", 1806102000, 1806274800), "both")
def test_runs_match_the_oracle(oracle: Oracle, window: tuple[str, int, int], dst: str) -> None:
    tz, start, stop = window
    assert enumerate_s(make(oracle, tz, dst), start, stop) == oracle.instants(tz, dst, start, stop)


@pytest.mark.slow
@slow_but_fine
@given(oracles(busy=False), windows(), st.sampled_from(POLICIES))
def test_rare_runs_match_the_oracle(oracle: Oracle, window: tuple[str, int, int], dst: str) -> None:
    tz, start, stop = window
    assert enumerate_s(make(oracle, tz, dst), start, stop) == oracle.instants(tz, dst, start, stop)


@pytest.mark.slow
@slow_but_fine
@given(
    oracles(busy=True, second=fields(number_items("second"))),
    changes([*NOTABLE, ODD]),
    st.sampled_from(POLICIES),
)
def test_runs_with_seconds_match_the_oracle(oracle: Oracle, change: tuple[str, int], dst: str) -> None:
    tz, second = change
    start, stop = second - 4_200, second + 4_200
    made = make(oracle, tz, dst)
    expected = oracle.instants(tz, dst, start, stop, step=1)
    assert made.count_between(start * SECOND - 1, stop * SECOND - 1) == len(expected)
    assert enumerate_s(made, start, stop) == expected


@slow_but_fine
@given(oracles(busy=True), windows(), st.sampled_from(POLICIES), st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_count_and_next_match_from_any_start(
    oracle: Oracle, window: tuple[str, int, int], dst: str, parts: list[float]
) -> None:
    tz, start, stop = window
    made, runs = make(oracle, tz, dst), oracle.instants(tz, dst, start, stop)
    marks = sorted(start * SECOND + int(part * ((stop - start) * SECOND - 1)) for part in parts)
    for after, until in pairwise(marks):
        between = [second * SECOND for second in runs if after < second * SECOND <= until]
        assert made.count_between(after, until) == len(between)
        following = [second * SECOND for second in runs if second * SECOND > after]
        found = made.next_after(after)
        if following:
            assert found == following[0]
        else:
            assert found is None or found >= stop * SECOND


@slow_but_fine
@given(oracles(busy=True), windows(), st.sampled_from(POLICIES), st.integers(1, 12))
def test_last_runs_match_the_oracle(oracle: Oracle, window: tuple[str, int, int], dst: str, n: int) -> None:
    tz, start, stop = window
    make(oracle, tz, dst)
    trigger = Cron(oracle.text, tz, dst)  # type: ignore[arg-type]
    runs = [second * SECOND for second in oracle.instants(tz, dst, start, stop)]
    after, until = start * SECOND - 1, stop * SECOND - 1
    assert last_between(trigger, after, until) == (runs[-1] if runs else None)
    assert nth_last_between(trigger, after, until, n) == (runs[-n] if len(runs) >= n else None)


@slow_but_fine
@given(
    st.builds(
        Oracle,
        st.just("0"),
        st.integers(0, 59).map(str),
        st.integers(0, 23).map(str),
        any_day,
        st.one_of(st.just("*"), fields(month_items), st.just("FEB")),
        any_weekday,
        st.one_of(st.just("*"), st.just("2020-2040"), st.builds("{}/4".format, st.integers(1970, 2100))),
    ),
    st.one_of(st.just("UTC"), st.sampled_from(zones_with_changes())),
    st.datetimes(datetime(1971, 1, 1), datetime(2150, 1, 1)),  # noqa: DTZ001
)
def test_finds_the_next_day_years_ahead(oracle: Oracle, tz: str, start: datetime) -> None:
    """The expressions run at most once a day, so checking day after day finds the next run."""
    made, zone = make(oracle, tz, "skip"), ZoneInfo(tz)
    after = from_datetime(start.replace(tzinfo=UTC))
    for days in range(-2, 12 * 366):
        day = start.date() + timedelta(days=days)
        local = datetime(day.year, day.month, day.day, int(oracle.hour), int(oracle.minute))  # noqa: DTZ001
        if oracle.matches_day(day) and exists(local, zone):
            instant = from_datetime(local.replace(tzinfo=zone))
            if instant > after:
                assert made.next_after(after) == instant
                assert made.count_between(after, instant - 1) == 0
                assert made.count_between(after, instant) == 1
                return
    found = made.next_after(after)
    assert found is None or after + 12 * 365 * DAY_S * SECOND < found < HORIZON


@slow_but_fine
@given(
    oracles(busy=False),
    st.sampled_from(zones_with_changes()),
    st.sampled_from(POLICIES),
    st.integers(0, 4_000_000_000),
    st.integers(0, 4_000),
)
def test_count_equals_enumeration_over_long_ranges(oracle: Oracle, tz: str, dst: str, start: int, days: int) -> None:
    made = make(oracle, tz, dst)
    per_day = len(values("minute", oracle.minute)) * len(values("hour", oracle.hour))
    stop = start + min(days, 1 + 4_000 // per_day) * DAY_S
    enumerated = enumerate_s(made, start, stop)
    assert made.count_between(start * SECOND - 1, stop * SECOND - 1) == len(enumerated)
    assert enumerated == sorted(set(enumerated))


@pytest.mark.parametrize(("tz", "year"), NOTABLE)
def test_count_equals_enumeration_across_notable_changes(tz: str, year: int) -> None:
    """Cover cases that random examples may miss, above all skipped times that coincide with an existing one."""
    hours = ("*", "*/2", "0", "1", "2", "3", "0-3", "2,3", "23-1", "0,1,2,3,22,23")
    for second, hour, minute, dst in product(changes_of(tz, year), hours, ("30", "0,15,45"), POLICIES):
        start, stop = second - 26 * HOUR_S - second % 60, second + 26 * HOUR_S
        expected = Oracle("0", minute, hour, "*", "*", "*", "*").instants(tz, dst, start, stop)
        made = timetable(f"{minute} {hour} * * *", tz, dst)
        assert enumerate_s(made, start, stop) == expected
        assert made.count_between(start * SECOND - 1, stop * SECOND - 1) == len(expected)
        assert made.count_between(second * SECOND - 1, second * SECOND) == (second in expected)


# Properties without an oracle


@slow_but_fine
@given(changes(), fields(night_hours), fields(minutes), st.sampled_from(POLICIES))
def test_next_run_is_always_after_the_start(change: tuple[str, int], hour: str, minute: str, dst: str) -> None:
    tz, second = change
    made = timetable(f"{minute} {hour} * * *", tz, dst)
    latest = 0
    for start in range(second - 3 * HOUR_S, second + 3 * HOUR_S, 300):
        for instant in (start * SECOND - 1, start * SECOND, start * SECOND + 1):
            found = made.next_after(instant)
            assert found is not None
            assert found > instant
            assert found >= latest
            latest = found


@slow_but_fine
@given(changes(), st.integers(0, 23), st.integers(0, 59))
def test_daily_runs_once_per_calendar_day(change: tuple[str, int], hour: int, minute: int) -> None:
    tz, second = change
    # Where a whole day is skipped, its midnight moves to the next midnight: two days, one instant.
    assume((hour, minute) != (0, 0) or tz not in ("Pacific/Apia", "Pacific/Kwajalein"))
    made, zone = timetable(f"{minute} {hour} * * *", tz), ZoneInfo(tz)
    # The window opens and closes right after the time of day, away from the change.
    opens = at_local(second - 4 * DAY_S, zone, hour, minute)
    closes = at_local(second + 4 * DAY_S, zone, hour, minute)
    days = (local_time(closes, zone).date() - local_time(opens, zone).date()).days
    assert made.count_between(opens * SECOND, closes * SECOND) == days
    runs = enumerate_s(made, opens + 1, closes + 1)
    assert len(runs) == days
    assert all(DAY_S - 3 * HOUR_S <= b - a <= DAY_S + 3 * HOUR_S for a, b in pairwise(runs)) or days != 8


def at_local(second: int, zone: ZoneInfo, hour: int, minute: int) -> int:
    local = local_time(second, zone).replace(hour=hour, minute=minute, second=0, fold=0)
    return int(local.replace(tzinfo=zone).timestamp())


@pytest.mark.slow
@slow_but_fine
@given(windows(), st.integers(1, 12), st.sampled_from(POLICIES))
def test_every_real_hour_has_the_same_runs(window: tuple[str, int, int], per_hour: int, dst: str) -> None:
    tz, start, stop = window
    made = timetable(f"*/{60 // per_hour} * * * *", tz, dst)
    runs = enumerate_s(made, start, stop)
    # Where the offset jumps by half an hour, a run on the hour comes half an hour later.
    assert all(b - a <= 1.5 * HOUR_S for a, b in pairwise(runs))
    assert runs == enumerate_s(timetable(f"*/{60 // per_hour} * * * *", tz), start, stop)


@given(st.text(max_size=40))
@settings(max_examples=3 * EXAMPLES, deadline=None)
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    with suppress(InvalidSchedule):
        timetable(text)


@given(st.text(alphabet="0123456789*/-,?LW# @AMONFRJ", max_size=24))
@settings(max_examples=3 * EXAMPLES, deadline=None)
def test_any_cron_like_text_is_parsed_or_rejected(text: str) -> None:
    with suppress(InvalidSchedule):
        made = timetable(text)
        assert made.count_between(0, DAY_S * SECOND) == len(enumerate_s(made, 1, DAY_S + 1))


# Against other libraries, where they are right


def plain_items(field: str, *, exclude_all: bool) -> st.SearchStrategy[str]:
    """Generate items that every library reads the same way: no wraparound, no range of a single value."""
    face = RANGES[field]
    value = st.integers(face[0], face[-1])
    ordered = st.tuples(value, value).filter(lambda ends: ends[0] < ends[1])
    if exclude_all:
        ordered = ordered.filter(lambda ends: ends[1] - ends[0] < len(face) - 1)
    ranges = ordered.map(lambda ends: f"{ends[0]}-{ends[1]}")
    stepped = st.builds("{}/{}".format, ranges, st.integers(2, 5))
    return st.one_of(value.map(str), ranges, stepped)


def plain_fields(field: str, *extra: str, exclude_all: bool = False) -> st.SearchStrategy[str]:
    items = st.one_of(plain_items(field, exclude_all=exclude_all), *([st.sampled_from(extra)] if extra else []))
    return st.one_of(st.just("*"), items, st.lists(items, min_size=2, max_size=3).map(",".join))


starts = st.datetimes(datetime(2020, 1, 1), datetime(2090, 1, 1)).map(  # noqa: DTZ001
    lambda moment: moment.replace(tzinfo=UTC, microsecond=0)
)


def ours(made: Timetable, start: datetime, runs: int) -> list[datetime]:
    found, instant = list[datetime](), from_datetime(start)
    for _ in range(runs):
        following = made.next_after(instant)
        assert following is not None
        found.append(to_datetime(following))
        instant = following
    return found


def theirs(iterator: Any, start: datetime, runs: int) -> list[datetime]:
    """Take runs from a library that may repeat runs or go backwards: keep those that increase."""
    found, latest = list[datetime](), start
    while len(found) < runs:
        moment = next(iterator).astimezone(UTC)
        if moment > latest:
            found.append(moment)
            latest = moment
    return found


def make_or_skip(text: str, tz: str = "UTC") -> Timetable:
    try:
        return timetable(text, tz)
    except InvalidSchedule as error:
        assume("no such day" not in str(error))
        raise


@slow_but_fine
@given(
    plain_fields("minute"),
    plain_fields("hour"),
    plain_fields("day", "L", "LW", "*/2", "*/5"),
    plain_fields("month", "JAN", "OCT-DEC"),
    plain_fields("weekday", "FRI", "MON-THU", "5L", "7L", "FRI#2", "0#5", "*/2"),
    starts,
)
def test_agrees_with_cronsim_in_utc(
    minute: str, hour: str, day: str, month: str, weekday: str, start: datetime
) -> None:
    text = f"{minute} {hour} {day} {month} {weekday}"
    made = make_or_skip(text)
    assert ours(made, start, 4) == theirs(CronSim(text, start), start, 4)


@slow_but_fine
@given(
    st.sampled_from(["America/New_York", "Europe/Berlin", "America/Santiago", "Africa/Casablanca"]),
    st.integers(2020, 2030),
    plain_items("minute", exclude_all=False),
    plain_items("hour", exclude_all=True).filter(lambda text: "/" not in text),
    st.integers(-6 * HOUR_S, 6 * HOUR_S),
    st.data(),
)
def test_agrees_with_cronsim_across_changes(
    tz: str, year: int, minute: str, hour: str, shift_s: int, data: st.DataObject
) -> None:
    second = data.draw(st.sampled_from(changes_of(tz, year)))
    start = datetime.fromtimestamp(second + shift_s, ZoneInfo(tz))
    text = f"{minute} {hour} * * *"
    expected = theirs(CronSim(text, start), start.astimezone(UTC), 6)
    assert ours(timetable(text, tz), start.astimezone(UTC), 6) == expected


@pytest.mark.slow
@slow_but_fine
@given(
    plain_fields("minute"),
    plain_fields("hour"),
    plain_fields("day", "L", exclude_all=True),
    plain_fields("month", "JAN", "OCT-DEC"),
    plain_fields("weekday", "FRI", "MON-THU", exclude_all=True),
    starts,
)
def test_agrees_with_croniter_in_utc(
    minute: str, hour: str, day: str, month: str, weekday: str, start: datetime
) -> None:
    # croniter turns lists that cover all days into "*", which changes the meaning of the other field.
    assume(day == "*" or "L" in day or len(values("day", day)) < 31)
    assume(weekday == "*" or len(values("weekday", weekday)) < 7)
    # croniter gives up on days that do not exist even if the day of week would match.
    assume(weekday == "*" or day == "*" or "L" in day or min(values("day", day)) <= 28)
    text = f"{minute} {hour} {day} {month} {weekday}"
    made = make_or_skip(text)
    assert ours(made, start, 4) == theirs(croniter(text, start).all_next(datetime), start, 4)


@pytest.mark.parametrize("tz", ["America/New_York", "Europe/Berlin", "Australia/Lord_Howe"])
@pytest.mark.parametrize("text", ["30 2 * * *", "15 2 * * *", "0 0 * * *", "*/15 * * * *", "45 1,2,3 * * MON-SUN"])
def test_agrees_with_croniter_in_spring(tz: str, text: str) -> None:
    for year in (2026, 2027, 2028):
        for second in changes_of(tz, year):
            before, after = (datetime.fromtimestamp(s, ZoneInfo(tz)) for s in (second - 1, second))
            if (after.utcoffset() or timedelta()) < (before.utcoffset() or timedelta()):
                continue  # croniter runs fixed times twice when clocks fall back.
            start = datetime.fromtimestamp(second - 30 * HOUR_S, ZoneInfo(tz))
            expected = theirs(croniter(text, start).all_next(datetime), start.astimezone(UTC), 4)
            assert ours(timetable(text, tz), start.astimezone(UTC), 4) == expected
