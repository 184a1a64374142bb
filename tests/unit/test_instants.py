"""Instants and durations: formatting round-trips, and invalid texts are rejected with one line."""

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import DefinitionError
from headway.core.instants import (
    DAY,
    DURATION_MAX,
    HOUR,
    INSTANT_MAX,
    INSTANT_MIN,
    MILLISECOND,
    MINUTE,
    SECOND,
    START_MAX,
    format_duration,
    from_datetime,
    isoformat,
    parse_duration,
    parse_instant,
    parse_start,
    quote,
    to_datetime,
)

# Durations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "micros"),
    [
        ("90s", 90 * SECOND),
        ("1h30m", 90 * MINUTE),
        ("1h 30m", 90 * MINUTE),
        (" 1 h 30 m ", 90 * MINUTE),
        ("2d", 2 * DAY),
        ("1w", 7 * DAY),
        ("1.5h", 90 * MINUTE),
        ("0.25s", 250 * MILLISECOND),
        ("5ms", 5 * MILLISECOND),
        ("7us", 7),
        ("0s", 0),
        (90, 90 * SECOND),
        (0, 0),
        (0.1, 100 * MILLISECOND),
        (timedelta(days=1, microseconds=1), DAY + 1),
        (DURATION_MAX / SECOND, DURATION_MAX),
    ],
)
def test_durations_are_parsed(written: str | float | timedelta, micros: int) -> None:
    assert parse_duration(written) == micros


@pytest.mark.parametrize(
    "written",
    [
        "",
        " ",
        "90",
        "s",
        "1x",
        "1h30",
        "1 2s",
        "5m s",
        "-5s",
        "+5s",
        "1e9s",
        "1,5s",
        "٣s",
        "5s;",
        "5s\n",
        "5s\0",
        "1.s",
        ".5s",
        "1.1234567s",
        "3661d",
        "9999999999999s",
        "9" * 1_000_000 + "s",
        "1s" * 100,
        -1,
        -0.001,
        float("nan"),
        float("inf"),
        float("-inf"),
        1e308,
        10**400,
        10**5_000,
        True,
        None,
        b"5s",
        [],
        timedelta(days=3661),
        timedelta(seconds=-1),
        timedelta.max,
    ],
    ids=lambda value: quote(value)[:20],
)
def test_invalid_durations_are_rejected_with_one_short_line(written: object) -> None:
    started = time.thread_time()  # CPU time of this thread: independent of the load of the machine.
    with pytest.raises(DefinitionError) as refused:
        parse_duration(written, what="grace")  # type: ignore[arg-type]
    assert time.thread_time() - started < 5
    message = str(refused.value)
    assert message.startswith("grace must ")
    assert len(message) < 160
    assert message.isprintable()


@given(st.integers(0, DURATION_MAX))
@settings(deadline=None)
def test_duration_round_trips(micros: int) -> None:
    assert parse_duration(format_duration(micros)) == micros


@given(st.integers(-DURATION_MAX, -1))
@settings(deadline=None)
def test_negative_duration_is_formatted_with_its_sign(micros: int) -> None:
    assert format_duration(micros) == "-" + format_duration(-micros)


@given(st.text(max_size=80) | st.text("0123456789smhdw. us-", max_size=80))
@settings(deadline=None)
def test_any_text_is_a_duration_or_rejected(text: str) -> None:
    with suppress(DefinitionError):  # And raises nothing else.
        assert 0 <= parse_duration(text) <= DURATION_MAX


def test_durations_are_formatted_with_the_largest_unit_first() -> None:
    assert format_duration(0) == "0s"
    assert format_duration(DAY + HOUR + MINUTE + SECOND + MILLISECOND + 1) == "1d1h1m1s1ms1us"


# Instants ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "tz", "expected"),
    [
        ("2027-01-31T06:00:00Z", None, "2027-01-31T06:00:00Z"),
        ("2027-01-31T06:00", None, "2027-01-31T06:00:00Z"),
        ("2027-01-31", None, "2027-01-31T00:00:00Z"),
        (" 2027-01-31T06:00:00+02:00 ", None, "2027-01-31T04:00:00Z"),
        ("2027-01-31T06:00:00.000001Z", None, "2027-01-31T06:00:00.000001Z"),
        ("2027-01-31T06:00:00", "Asia/Kathmandu", "2027-01-31T00:15:00Z"),
        ("2027-01-31T06:00:00Z", "Asia/Kathmandu", "2027-01-31T06:00:00Z"),
        (datetime(2027, 1, 31, 6), None, "2027-01-31T06:00:00Z"),  # noqa: DTZ001 - local to no zone means UTC
        (datetime(2027, 1, 31, 6, tzinfo=timezone(timedelta(hours=-3))), "Asia/Tokyo", "2027-01-31T09:00:00Z"),
        ("0001-01-01T00:00:00Z", None, "0001-01-01T00:00:00Z"),
        ("9999-12-31T23:59:59.999999Z", None, "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_instants_are_parsed(written: str | datetime, tz: str | None, expected: str) -> None:
    assert isoformat(parse_instant(written, tz=tz)) == expected


@pytest.mark.parametrize(
    "written",
    [
        "",
        "now",
        "tomorrow",
        "2027-13-01",
        "2027-02-29",
        "2027-01-01T25:00",
        "12027-01-01",
        "2027-01-01\0",
        "\ud800",
        "2027-01-01T00:00:00." + "1" * 60 + "garbage",
        "2027-01-01" * 100_000,
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        0,
        1_798_761_600,
        True,
        None,
        b"2027-01-01",
        10**5_000,
    ],
    ids=lambda value: quote(value)[:20],
)
def test_invalid_instants_are_rejected_with_one_short_line(written: object) -> None:
    with pytest.raises(DefinitionError) as refused:
        parse_instant(written, what="start")  # type: ignore[arg-type]
    message = str(refused.value)
    assert message.startswith("start must ")
    assert len(message) < 160
    assert message.isprintable()


@pytest.mark.parametrize("tz", ["Nope/Zone", "../../etc/passwd", "/etc/passwd", "Europe", "a\0b", "x" * 10_000])
def test_unknown_time_zones_are_rejected(tz: str) -> None:
    with pytest.raises(DefinitionError, match=r"^tz must be an IANA time zone") as refused:
        parse_instant("2027-01-01", tz=tz)
    assert len(str(refused.value)) < 160


@given(st.integers(INSTANT_MIN, INSTANT_MAX))
@settings(deadline=None)
def test_instant_round_trips(instant: int) -> None:
    assert parse_instant(isoformat(instant)) == instant
    assert from_datetime(to_datetime(instant)) == instant


@given(
    st.datetimes(timezones=st.just(UTC)),
    st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
@settings(deadline=None)
def test_offset_does_not_change_the_instant(moment: datetime, zone: timezone) -> None:
    try:
        elsewhere = moment.astimezone(zone)
    except OverflowError:  # The local time is in a year that datetime cannot represent.
        return
    assert parse_instant(elsewhere) == parse_instant(moment) == parse_instant(elsewhere.isoformat())


@given(st.text(max_size=80) | st.text("0123456789-:TZ+. W", max_size=40))
@settings(deadline=None)
def test_any_text_is_an_instant_or_rejected(text: str) -> None:
    with suppress(DefinitionError):  # And raises nothing else.
        assert INSTANT_MIN <= parse_instant(text) <= INSTANT_MAX


def test_bounds_are_those_of_datetime() -> None:
    assert (isoformat(INSTANT_MIN), isoformat(INSTANT_MAX)) == ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z")


def test_quote_is_short_and_on_one_line() -> None:
    assert quote("a\nb") == "'a\\nb'"
    assert quote(10**5_000) == "a number of thousands of digits"
    assert len(quote("x" * 10**7)) == 64
    assert quote("x" * 10**7).endswith("…")


@pytest.mark.parametrize("instant", [INSTANT_MAX + 1, 2**62, -(2**62), INSTANT_MIN - 1])
def test_instants_beyond_datetime_are_shown_as_its_bounds(instant: int) -> None:
    shown = to_datetime(instant)
    assert shown.year == (1 if instant < 0 else 9999)
    assert isoformat(instant).startswith(f"{shown:%m-%d}", 5)
    for zone in ("Pacific/Kiritimati", "Etc/GMT+12"):
        shown.astimezone(ZoneInfo(zone))


def test_start_of_a_job_is_before_the_year_2200() -> None:
    assert parse_start("2199-12-31T23:59:59Z", what="at") == START_MAX - SECOND
    assert isoformat(START_MAX) == "2200-01-01T00:00:00Z"
    for text in ("2200-01-01T00:00:00Z", "9999-12-31T23:00:00Z"):
        with pytest.raises(DefinitionError, match="at must lie before the year 2200"):
            parse_start(text, what="at")
