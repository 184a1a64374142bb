"""Tables of cron expressions: parsed or rejected, their instants, and the notes of previews."""

import time
from datetime import datetime, timedelta
from itertools import pairwise, product
from typing import cast

import pytest

from headway.core import zones
from headway.core.cron import Dst, Timetable, timetable
from headway.core.cron_expression import parse
from headway.core.errors import InvalidSchedule
from headway.core.instants import DAY, HOUR, SECOND, isoformat, parse_instant
from headway.core.zones import Timeline, timeline, zone
from tests.unit.scheduling.cron_oracle import changes_of

START = "2026-11-15T12:00:07Z"  # A Sunday.


def runs(text: str, start: str, count: int, *, tz: str = "UTC", dst: str = "shift") -> list[str]:
    made, instant, found = timetable(text, tz, dst), parse_instant(start), list[str]()
    for _ in range(count):
        following = made.next_after(instant)
        if following is None:
            break
        assert following > instant
        found.append(isoformat(following).removesuffix(":00Z"))
        instant = following
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Five fields, lists, ranges, steps, names in any case.
        ("* * * * *", ["2026-11-15T12:01", "2026-11-15T12:02"]),
        ("0,30 9-10 * * *", ["2026-11-16T09:00", "2026-11-16T09:30", "2026-11-16T10:00", "2026-11-16T10:30"]),
        ("10-40/15 12 * * *", ["2026-11-15T12:10", "2026-11-15T12:25", "2026-11-15T12:40"]),
        ("*/25 * * * *", ["2026-11-15T12:25", "2026-11-15T12:50", "2026-11-15T13:00"]),
        ("0 0 1 jan *", ["2027-01-01T00:00", "2028-01-01T00:00"]),
        ("0 0 * Nov mon", ["2026-11-16T00:00", "2026-11-23T00:00", "2026-11-30T00:00", "2027-11-01T00:00"]),
        ("05 06 07 08 *", ["2027-08-07T06:05"]),
        # A start with a step runs to the end of the field.
        ("5/15 * * * *", ["2026-11-15T12:05", "2026-11-15T12:20", "2026-11-15T12:35", "2026-11-15T12:50"]),
        ("0 0 * * 4/2", ["2026-11-19T00:00", "2026-11-21T00:00", "2026-11-26T00:00"]),
        # Wraparound.
        ("0 22-2 * * *", ["2026-11-15T22:00", "2026-11-15T23:00", "2026-11-16T00:00", "2026-11-16T01:00"]),
        ("0 22-2/2 * * *", ["2026-11-15T22:00", "2026-11-16T00:00", "2026-11-16T02:00", "2026-11-16T22:00"]),
        ("0 0 * * FRI-MON", ["2026-11-16T00:00", "2026-11-20T00:00", "2026-11-21T00:00", "2026-11-22T00:00"]),
        ("0 0 1 NOV-FEB *", ["2026-12-01T00:00", "2027-01-01T00:00", "2027-02-01T00:00", "2027-11-01T00:00"]),
        ("0 0 30-1 * *", ["2026-11-30T00:00", "2026-12-01T00:00", "2026-12-30T00:00", "2026-12-31T00:00"]),
        # Seven is Sunday; as the start of a range it is the Sunday at the beginning of the week.
        ("0 0 * * 7/2", ["2026-11-17T00:00", "2026-11-19T00:00", "2026-11-21T00:00", "2026-11-22T00:00"]),
        ("0 0 * * SUN/2", ["2026-11-17T00:00", "2026-11-19T00:00", "2026-11-21T00:00", "2026-11-22T00:00"]),
        ("0 0 * * 7-2", ["2026-11-16T00:00", "2026-11-17T00:00", "2026-11-22T00:00"]),
        ("0 0 * * 7", ["2026-11-22T00:00", "2026-11-29T00:00"]),
        ("0 0 * * 7-1", ["2026-11-16T00:00", "2026-11-22T00:00", "2026-11-23T00:00"]),
        ("0 0 * * 7-7", ["2026-11-22T00:00", "2026-11-29T00:00"]),
        ("0 0 * * 6-7", ["2026-11-21T00:00", "2026-11-22T00:00", "2026-11-28T00:00"]),
        ("0 0 * * 0-7", ["2026-11-16T00:00", "2026-11-17T00:00"]),
        # Last days, nearest weekdays, n-th weekdays.
        ("0 0 L * *", ["2026-11-30T00:00", "2026-12-31T00:00", "2027-01-31T00:00", "2027-02-28T00:00"]),
        ("0 0 L-3 * *", ["2026-11-27T00:00", "2026-12-28T00:00", "2027-01-28T00:00", "2027-02-25T00:00"]),
        ("0 0 L-30 * *", ["2026-12-01T00:00", "2027-01-01T00:00", "2027-03-01T00:00"]),
        ("0 0 LW * *", ["2026-11-30T00:00", "2026-12-31T00:00", "2027-01-29T00:00", "2027-02-26T00:00"]),
        ("0 0 15W * *", ["2026-11-16T00:00", "2026-12-15T00:00", "2027-01-15T00:00", "2027-02-15T00:00"]),
        ("0 0 1W 5 *", ["2027-05-03T00:00", "2028-05-01T00:00"]),
        ("0 0 31W * *", ["2026-12-31T00:00", "2027-01-29T00:00", "2027-03-31T00:00"]),
        ("0 0 1,15W,L * *", ["2026-11-16T00:00", "2026-11-30T00:00", "2026-12-01T00:00", "2026-12-15T00:00"]),
        ("0 0 * * 5#2", ["2026-12-11T00:00", "2027-01-08T00:00"]),
        ("0 0 * * fri#2", ["2026-12-11T00:00", "2027-01-08T00:00"]),
        ("0 0 * * 0#5", ["2026-11-29T00:00", "2027-01-31T00:00"]),
        ("0 0 * * 5L", ["2026-11-27T00:00", "2026-12-25T00:00"]),
        ("0 0 * * FRIL", ["2026-11-27T00:00", "2026-12-25T00:00"]),
        ("0 0 * * 7L", ["2026-11-29T00:00", "2026-12-27T00:00"]),
        # Day of month or day of week; both must match where one starts with "*".
        ("0 0 13 * 5", ["2026-11-20T00:00", "2026-11-27T00:00", "2026-12-04T00:00", "2026-12-11T00:00"]),
        ("0 0 13 * FRI#2", ["2026-12-11T00:00", "2026-12-13T00:00", "2027-01-08T00:00", "2027-01-13T00:00"]),
        ("0 0 31 2 MON", ["2027-02-01T00:00", "2027-02-08T00:00", "2027-02-15T00:00", "2027-02-22T00:00"]),
        ("0 0 */2 * 5", ["2026-11-27T00:00", "2026-12-11T00:00", "2026-12-25T00:00", "2027-01-01T00:00"]),
        ("0 0 13 * */5", ["2026-12-13T00:00", "2027-06-13T00:00"]),
        ("0 0 ? * 5", ["2026-11-20T00:00", "2026-11-27T00:00"]),
        ("0 0 13 * ?", ["2026-12-13T00:00", "2027-01-13T00:00"]),
        ("0 0 ? * ?", ["2026-11-16T00:00", "2026-11-17T00:00"]),
        # Years, seconds, macros, spaces.
        ("0 2 * * * 2027", ["2027-01-01T02:00", "2027-01-02T02:00"]),
        ("0 2 31 12 * 2027-2028", ["2027-12-31T02:00", "2028-12-31T02:00"]),
        ("0 2 1 1 * 2027/100", ["2027-01-01T02:00", "2127-01-01T02:00"]),
        ("0 0 12 * * * *", ["2026-11-16T12:00", "2026-11-17T12:00"]),
        ("@hourly", ["2026-11-15T13:00", "2026-11-15T14:00"]),
        ("@daily", ["2026-11-16T00:00", "2026-11-17T00:00"]),
        ("@MIDNIGHT", ["2026-11-16T00:00", "2026-11-17T00:00"]),
        ("@weekly", ["2026-11-22T00:00", "2026-11-29T00:00"]),
        ("@monthly", ["2026-12-01T00:00", "2027-01-01T00:00"]),
        ("@yearly", ["2027-01-01T00:00", "2028-01-01T00:00"]),
        ("@annually", ["2027-01-01T00:00", "2028-01-01T00:00"]),
        (" \t0  6 * *\t* \n", ["2026-11-16T06:00"]),
        # Rare: 2100 is not a leap year, and a 29 February on a Monday comes every 28 years.
        ("0 0 29 2 *", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("0 0 29 2 * 2096-2199", ["2096-02-29T00:00", "2104-02-29T00:00"]),
        ("0 0 ? 2 MON#5", ["2044-02-29T00:00", "2072-02-29T00:00"]),
    ],
)
def test_parses_common_expressions(text: str, expected: list[str]) -> None:
    assert runs(text, START, len(expected)) == expected


@pytest.mark.parametrize(
    ("text", "seconds", "expected"),
    [
        ("*/20 * * * * * *", None, ["12:00:20", "12:00:40", "12:01:00"]),
        ("* * * * *", "*/20", ["12:00:20", "12:00:40", "12:01:00"]),
        ("*/5 * * * * *", "7,30", ["12:00:30", "12:05:07", "12:05:30"]),
        ("0 13 * * * 2026", "58-1", ["13:00:00", "13:00:01", "13:00:58", "13:00:59"]),
        ("@hourly", "30", ["12:00:30", "13:00:30"]),
    ],
)
def test_parses_seconds(text: str, seconds: str | None, expected: list[str]) -> None:
    made, instant, found = timetable(text, seconds=seconds), parse_instant(START), []
    for _ in expected:
        following = made.next_after(instant)
        assert following is not None
        found.append(isoformat(following)[11:19])
        instant = following
    assert found == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "0 fields"),
        ("* * * *", "4 fields"),
        ("* * * * * * * *", "8 fields"),
        ("60 * * * *", "cron minute '60': 60 is outside 0-59"),
        ("* 24 * * *", "cron hour '24': 24 is outside 0-23"),
        ("* * 0 * *", "cron day of month '0': 0 is outside 1-31"),
        ("* * 32 * *", "cron day of month"),
        ("* * * 13 *", "cron month"),
        ("* * * 0 *", "cron month"),
        ("* * * * 8", "cron day of week '8': 8 is outside 0-7"),
        ("* * * * * 1969", "cron year '1969'"),
        ("* * * * * 2200", "cron year '2200'"),
        ("0 0 * * * 2028-2027", "cron year '2028-2027'"),
        ("61 * * * * * *", "cron second '61'"),
        ("*/0 * * * *", "cron minute '*/0': a step must be between 1 and 60"),
        ("*/-5 * * * *", "cron minute '*/-5'"),
        ("*/61 * * * *", "cron minute '*/61'"),
        ("*/70 * * * *", "cron minute '*/70'"),
        ("0 */25 * * *", "cron hour '*/25'"),
        ("0 0 */32 * *", "cron day of month '*/32'"),
        ("0 0 1 */13 *", "cron month '*/13'"),
        ("0 0 * * */8", "cron day of week '*/8'"),
        ("*/ * * * *", "cron minute '*/'"),
        ("*/1/2 * * * *", "cron minute"),
        ("1-2-3 * * * *", "cron minute '1-2-3'"),
        ("1- * * * *", "cron minute"),
        ("-1 * * * *", "cron minute"),
        ("1,,2 * * * *", "cron minute ''"),
        (", * * * *", "cron minute"),
        ("*5 * * * *", "cron minute"),
        ("** * * * *", "cron minute"),
        ("1.5 * * * *", "cron minute"),
        ("+1 * * * *", "cron minute"),
        ("0x1 * * * *", "cron minute"),
        ("? * * * *", "cron minute '?'"),
        ("0 0 ?/2 * *", "cron day of month"),
        ("0 0 * MOO *", "cron month 'MOO': expected numbers 1-12, names like JAN"),
        ("0 0 * * FOO", "cron day of week 'FOO'"),
        ("0 0 * MON *", "cron month"),
        ("0 0 * * L", "cron day of week 'L'"),
        ("0 0 * * 5#0", "cron day of week '5#0'"),
        ("0 0 * * 5#6", "cron day of week '5#6'"),
        ("0 0 * * 5#2#3", "cron day of week"),
        ("0 0 * * MON-FRI#2", "cron day of week"),
        ("0 0 * * 8L", "cron day of week"),
        ("0 0 W * *", "cron day of month"),
        ("0 0 0W * *", "cron day of month"),
        ("0 0 32W * *", "cron day of month"),
        ("0 0 L-31 * *", "cron day of month"),
        ("0 0 L/2 * *", "cron day of month"),
        ("0 L * * *", "cron hour"),
        ("@reboot", "@hourly, @daily"),
        ("@every 5m", "not known"),
        ("H * * * *", "cron minute"),
        # Never.
        ("0 0 30 2 *", "cron day of month, month, day of week '30 2 *'"),
        ("0 0 31 4,6,9,11 *", "no such day"),
        ("0 0 31 4,6,9,11 ?", "no such day"),
        ("0 0 29 2 * 2027", "no such day"),
        ("0 0 L-30 2 *", "no such day"),
        ("0 0 29 2 * 2101-2103", "no such day"),
    ],
)
def test_rejects_invalid_fields_by_name(text: str, message: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        parse(text)
    assert message in str(refused.value)


@pytest.mark.parametrize("seconds", ["", "60", "* *", "*/0", "x", "0 0 * * *", "1" * 600])
def test_rejects_seconds(seconds: str) -> None:
    with pytest.raises(InvalidSchedule, match=r"second|characters"):
        parse("* * * * *", seconds)
    with pytest.raises(InvalidSchedule, match=r"leave out seconds="):
        parse("0 * * * * * *", "5")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "*/10 * * * * *",
            [
                "two ways",
                "every 10 minutes, every hour",
                '"0 */10 * * * * *"',
                '"*/10 * * * *"',
                "every 10 seconds, every minute",
                '"*/10 * * * * * *"',
                '"* * * * *" with seconds="*/10"',
            ],
        ),
        (
            "0 0 12 * * *",
            [
                "two ways",
                "minute 0, hour 0, day of month 12",
                '"0 0 0 12 * * *"',
                '"0 0 12 * *"',
                "second 0, minute 0, hour 12",
                '"0 0 12 * * * *"',
                '"0 12 * * *" with seconds="0"',
            ],
        ),
        ("0 0 12 1 * */2", ["two ways", '"0 0 0 12 1 * */2"', '"0 0 12 1 * */2 *"']),
        ("0 30 2 * * MON", ["seconds first", "day of week MON", '"0 30 2 * * MON *"']),
        ("0 30 2 * * *", ["seconds first", "minute 30, hour 2", '"0 30 2 * * * *"']),
        ("0 0 0 ? * 2-6", ["seconds first", '"0 0 0 ? * 2-6 *"']),
    ],
)
def test_rejects_six_fields_that_may_start_with_seconds(text: str, says: list[str]) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        parse(text)
    for part in says:
        assert part in str(refused.value)


HOSTILE = [
    "*/0 * * * *",
    "0-99999999/1 * * * *",
    "0-59/99999999999999999999999999 * * * *",
    "9" * 400 + " * * * *",
    "x" * 1_000_000,
    "* " * 500_000,
    "*" + ",*" * 10_000 + " * * * *",
    "0" + ",0" * 200 + " * * * *",
    "0 0 30 2 *",
    "0 0 31 4,6,9,11 *",
    "0 0 31 4,6,9,11 ? 1970-2199",
    "0 0 30W,31,L-30 2 */7",
    "٣ * * * *",
    "１ * * * *",
    "² * * * *",
    "0\u00a00 * * *",
    "0\u30000 * * *",
    "0 0 * * *\x00",
    "\x00",
    "0\x1c0 * * *",
    "ﬁ * * * *",
    "0 0 * ſep *",
    "@" * 500,
    "\n" * 512,
    "-" * 512,
    "/" * 512,
    "1-" * 250 + " * * * *",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_rejects_hostile_texts_at_once(text: str) -> None:
    started = time.thread_time()  # CPU time of this thread: independent of the load of the machine.
    with pytest.raises(InvalidSchedule) as refused:
        timetable(text)
    assert time.thread_time() - started < 5
    assert len(str(refused.value)) < 500
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Mars/Olympus",
        "../../etc/passwd",
        "/etc/passwd",
        "/usr/share/zoneinfo/UTC",
        "Europe/../UTC",
        "Europe",
        "Europe/",
        "Europe//Berlin",
        "Europe/Berlin\x00",
        "Europe/Berlin\n",
        "Europe Berlin",
        "\x00",
        "A" * 10_240,
        "A/" * 31 + "A",
        "localtime",
        "posixrules",
        "right/Europe/Berlin",
        "posix/Europe/Berlin",
        "zone.tab",
        "tzdata.zi",
        "leapseconds",
        "Ｕ",
    ],
)
def test_rejects_unknown_zones_by_name(name: str) -> None:
    for make in (zone, timeline, lambda tz: timetable("0 0 * * *", tz)):
        with pytest.raises(InvalidSchedule, match=r"^tz .* IANA name such as"):
            make(name)


def test_hostile_zones_never_reach_the_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.core.zones.ZoneInfo", None)
    for name in ("../../etc/passwd", "/etc/passwd", "a/../b", "", "\x00", "A" * 10_240, "a.b", "right/UTC"):
        with pytest.raises(InvalidSchedule):
            zone(name)


def test_rejects_unknown_policies() -> None:
    with pytest.raises(InvalidSchedule, match='dst \'twice\' is not known; use "shift", "skip" or "both"'):
        timetable("0 0 * * *", dst="twice")


@pytest.mark.parametrize(
    ("tz", "text"),
    [("Europe/Berlin", "30 2 28 3 * 2027"), ("Pacific/Apia", "0 12 30 12 * 2011")],
)
def test_rejects_times_that_daylight_saving_always_skips(tz: str, text: str) -> None:
    with pytest.raises(InvalidSchedule, match="never runs"):
        timetable(text, tz, "skip")
    assert timetable(text, tz, "shift").next_after(0) is not None


@pytest.mark.parametrize(
    ("tz", "day", "text", "expected"),
    [
        ("Europe/Berlin", "2027-03-28", "30 2 * * *", "2027-03-28T01:00"),
        ("Europe/Berlin", "2027-10-31", "30 2 * * *", "2027-10-31T00:30"),
        ("America/New_York", "2027-03-14", "30 2 * * *", "2027-03-14T07:00"),
        ("America/New_York", "2027-11-07", "30 1 * * *", "2027-11-07T05:30"),
        ("Australia/Lord_Howe", "2027-10-03", "15 2 * * *", "2027-10-02T15:30"),
        ("America/Santiago", "2027-09-05", "0 0 * * *", "2027-09-05T04:00"),
        ("Asia/Kathmandu", "2027-01-01", "0 0 * * *", "2026-12-31T18:15"),
        ("Australia/Lord_Howe", "2027-04-04", "45 1 * * *", "2027-04-03T14:45"),
        ("America/Sao_Paulo", "2018-11-04", "0 0 * * *", "2018-11-04T03:00"),
        ("America/Sao_Paulo", "2018-02-17", "30 23 * * *", "2018-02-18T01:30"),
        ("Africa/Casablanca", "2026-02-15", "30 2 * * *", "2026-02-15T01:30"),
        ("Africa/Casablanca", "2026-03-22", "30 2 * * *", "2026-03-22T02:00"),
        ("America/New_York", "2027-11-07", "0 30 1 * * * *", "2027-11-07T05:30"),
        ("America/New_York", "2027-03-14", "0 30 2 * * * *", "2027-03-14T07:00"),
        ("America/New_York", "2027-03-14", "17 30 2 * * * *", "2027-03-14T07:00"),
    ],
)
def test_reference_instants(tz: str, day: str, text: str, expected: str) -> None:
    """Each runs exactly once for its local day: the day before and the day after have their own run."""
    made = timetable(text, tz)
    instant = parse_instant(expected + ":00Z")
    assert made.next_after(instant - 1) == instant
    assert made.count_between(instant - 20 * HOUR, instant + 20 * HOUR) == 1, day


@pytest.mark.parametrize(
    ("tz", "text", "start", "dst", "expected"),
    [
        # A gap: several times that do not exist become one run, which may coincide with an existing one.
        ("America/New_York", "0,30 2,3 * * *", "2027-03-14T06:00Z", "shift", ["03-14T07:00", "03-14T07:30"]),
        ("America/New_York", "0,30 2,3 * * *", "2027-03-14T06:00Z", "both", ["03-14T07:00", "03-14T07:30"]),
        ("America/New_York", "0,30 2,3 * * *", "2027-03-14T06:00Z", "skip", ["03-14T07:00", "03-14T07:30"]),
        ("America/New_York", "15,30 2 * * *", "2027-03-14T06:00Z", "shift", ["03-14T07:00", "03-15T06:15"]),
        ("America/New_York", "15,30 2 * * *", "2027-03-14T06:00Z", "both", ["03-14T07:00", "03-15T06:15"]),
        ("America/New_York", "15,30 2 * * *", "2027-03-14T06:00Z", "skip", ["03-15T06:15", "03-15T06:30"]),
        # A repeated hour.
        ("America/New_York", "30 1 * * *", "2027-11-07T00:00Z", "shift", ["11-07T05:30", "11-08T06:30"]),
        ("America/New_York", "30 1 * * *", "2027-11-07T00:00Z", "skip", ["11-07T05:30", "11-08T06:30"]),
        (
            "America/New_York",
            "30 1 * * *",
            "2027-11-07T00:00Z",
            "both",
            ["11-07T05:30", "11-07T06:30", "11-08T06:30"],
        ),
        # From inside the repeated hour, in its first and in its second pass.
        ("America/New_York", "30 1 * * *", "2027-11-07T05:30Z", "shift", ["11-08T06:30"]),
        ("America/New_York", "30 1 * * *", "2027-11-07T06:10Z", "shift", ["11-08T06:30"]),
        ("America/New_York", "30 1 * * *", "2027-11-07T06:10Z", "both", ["11-07T06:30", "11-08T06:30"]),
        # The last local time of a restricted year is repeated.
        ("America/New_York", "30 1 7 11 * 2027", "2027-11-07T05:30Z", "both", ["11-07T06:30"]),
        ("America/New_York", "30 1 7 11 * 2027", "2027-11-07T05:30Z", "shift", []),
        # Wildcards and steps in the hour run in every real hour, under any policy.
        *(
            ("America/New_York", text, start, dst, expected)
            for dst in ("shift", "skip", "both")
            for text, start, expected in (
                ("*/30 * * * *", "2027-11-07T05:00Z", ["11-07T05:30", "11-07T06:00", "11-07T06:30"]),
                ("30 * * * *", "2027-11-07T05:00Z", ["11-07T05:30", "11-07T06:30", "11-07T07:30"]),
                ("30 0-23 * * *", "2027-11-07T05:00Z", ["11-07T05:30", "11-07T06:30", "11-07T07:30"]),
                ("30 1/2 * * *", "2027-11-07T05:00Z", ["11-07T05:30", "11-07T06:30", "11-07T08:30"]),
                ("30 * * * *", "2027-03-14T06:00Z", ["03-14T06:30", "03-14T07:30"]),
                ("0 */2 * * *", "2027-03-14T05:00Z", ["03-14T08:00", "03-14T10:00"]),
                ("0 0-23/2 * * *", "2027-03-14T05:00Z", ["03-14T08:00", "03-14T10:00"]),
                ("*/15 * * * *", "2027-03-14T06:30Z", ["03-14T06:45", "03-14T07:00"]),
            )
        ),
        # A shift of half an hour.
        ("Australia/Lord_Howe", "45 * * * *", "2027-04-03T14:00Z", "shift", ["04-03T14:45", "04-03T15:15"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2027-04-03T14:00Z", "both", ["04-03T14:45", "04-03T15:15"]),
        ("Australia/Lord_Howe", "15 2 * * *", "2027-10-02T12:00Z", "skip", ["10-03T15:15"]),
        # A whole day that was skipped: 2011-12-30 in Apia.
        ("Pacific/Apia", "0 12 * * *", "2011-12-29T22:30Z", "shift", ["12-30T10:00", "12-30T22:00"]),
        ("Pacific/Apia", "0 12 * * *", "2011-12-29T22:30Z", "skip", ["12-30T22:00", "12-31T22:00"]),
        ("Pacific/Apia", "0 12 30 12 *", "2011-12-01T00:00Z", "shift", ["12-30T10:00"]),
        ("Pacific/Apia", "0 * * * *", "2011-12-30T08:30Z", "shift", ["12-30T09:00", "12-30T10:00"]),
    ],
)
def test_daylight_saving(tz: str, text: str, start: str, dst: str, expected: list[str]) -> None:
    assert [run[5:] for run in runs(text, start, max(1, len(expected)), tz=tz, dst=dst)] == expected


def test_quarter_hours_run_in_both_passes() -> None:
    made = timetable("*/15 * * * *", "America/New_York")
    opens = parse_instant("2027-11-07T05:00Z")
    assert made.count_between(opens - 1, opens + 2 * HOUR - 1) == 8


@pytest.mark.parametrize(
    ("tz", "text", "dst", "instant", "note"),
    [
        (
            "Europe/Berlin",
            "30 2 * * *",
            "shift",
            "2027-03-28T01:00Z",
            "02:30 does not exist on 2027-03-28 (DST); runs at 03:00, dst=shift",
        ),
        (
            "Europe/Berlin",
            "30 2 * * *",
            "both",
            "2027-03-28T01:00Z",
            "02:30 does not exist on 2027-03-28 (DST); runs at 03:00, dst=both",
        ),
        (
            "Europe/Berlin",
            "0,20,40 2,3 * * *",
            "shift",
            "2027-03-28T01:00Z",
            "02:00 and 2 more do not exist on 2027-03-28 (DST); run once at 03:00, dst=shift",
        ),
        (
            "America/New_York",
            "30 1 * * *",
            "shift",
            "2027-11-07T05:30Z",
            "01:30 happens twice on 2027-11-07 (DST); runs at the first, dst=shift",
        ),
        (
            "America/New_York",
            "30 1 * * *",
            "skip",
            "2027-11-07T05:30Z",
            "01:30 happens twice on 2027-11-07 (DST); runs at the first, dst=skip",
        ),
        (
            "America/New_York",
            "30 1 * * *",
            "both",
            "2027-11-07T05:30Z",
            "01:30 happens twice on 2027-11-07 (DST); runs at both, this is the first, dst=both",
        ),
        (
            "America/New_York",
            "30 1 * * *",
            "both",
            "2027-11-07T06:30Z",
            "01:30 happens twice on 2027-11-07 (DST); runs at both, this is the second, dst=both",
        ),
        (
            "America/New_York",
            "*/30 * * * *",
            "shift",
            "2027-11-07T06:30Z",
            "01:30 happens twice on 2027-11-07 (DST); this is the second, every real hour runs",
        ),
        (
            "Australia/Lord_Howe",
            "20 15 2 * * * *",
            "shift",
            "2027-10-02T15:30Z",
            "02:15:20 does not exist on 2027-10-03 (DST); runs at 02:30, dst=shift",
        ),
        (
            "Pacific/Apia",
            "0 12 * * *",
            "shift",
            "2011-12-30T10:00Z",
            "12:00 does not exist on 2011-12-30 (DST); runs at 2011-12-31 00:00, dst=shift",
        ),
        ("Europe/Berlin", "0 3 * * *", "shift", "2027-03-28T01:00Z", None),
        ("Europe/Berlin", "0 * * * *", "shift", "2027-03-28T01:00Z", None),
        (
            "Europe/Berlin",
            "30 2 * * *",
            "skip",
            "2027-03-29T00:30Z",
            "02:30 does not exist on 2027-03-28 (DST); left out before this one, dst=skip",
        ),
        (
            "America/New_York",
            "15,30 2 * * *",
            "skip",
            "2027-03-15T06:15Z",
            "02:15 and 1 more do not exist on 2027-03-14 (DST); left out before this one, dst=skip",
        ),
        (
            "Europe/Berlin",
            "30 2 28 3 *",
            "skip",
            "2028-03-28T00:30Z",
            "02:30 does not exist on 2027-03-28 (DST); left out before this one, dst=skip",
        ),
        ("Europe/Berlin", "30 2 * * *", "skip", "2027-03-27T01:30Z", None),
        ("Europe/Berlin", "30 2 * * *", "skip", "2027-03-30T00:30Z", None),
        ("Europe/Berlin", "0 4 * * *", "skip", "2027-03-28T02:00Z", None),
        ("Europe/Berlin", "30 * * * *", "skip", "2027-03-28T01:30Z", None),
        ("Europe/Berlin", "30 2 * * *", "shift", "2027-03-29T00:30Z", None),
        ("America/New_York", "0 2 * * *", "shift", "2027-11-07T07:00Z", None),
        ("UTC", "30 2 * * *", "shift", "2027-03-28T02:30Z", None),
    ],
)
def test_notes_for_previews(tz: str, text: str, dst: str, instant: str, note: str | None) -> None:
    made, at = timetable(text, tz, dst), parse_instant(instant)
    assert made.next_after(at - 1) == at
    assert made.note(at) == note


def test_fractions_of_a_second_are_strict() -> None:
    made, noon = timetable("0 12 * * *"), parse_instant("2027-01-01T12:00Z")
    assert made.next_after(noon - 1) == noon
    assert made.next_after(noon) == noon + DAY
    assert made.next_after(noon + 1) == noon + DAY
    assert made.count_between(noon - 1, noon) == 1
    assert made.count_between(noon, noon + DAY - 1) == 0
    assert made.count_between(noon, noon + DAY) == 1
    assert made.count_between(noon + DAY, noon) == 0


def test_no_runs_after_the_horizon() -> None:
    made = timetable("0 0 * * *", "Asia/Tokyo")
    last = parse_instant("2199-12-30T15:00Z")
    assert made.next_after(last - 1) == last
    for late in (last, last + 10 * DAY, 10**30):
        assert made.next_after(late) is None
        assert made.count_between(late, late + DAY) == 0
        assert made.note(late + 10 * DAY) is None
    first = made.next_after(-(10**30))
    assert first is not None
    assert isoformat(first) == "1969-12-31T15:00:00Z"
    assert made.count_between(-(10**30), 10**30) == 84_006


def test_past_year_has_no_next_run() -> None:
    made = timetable("0 2 * * * 2027", "America/New_York")
    assert made.next_after(parse_instant("2028-01-01T12:00Z")) is None
    assert made.count_between(0, 10**16) == 365


def test_counts_without_enumerating() -> None:
    start = parse_instant("2027-03-05T12:00:07Z")
    for tz in ("UTC", "America/New_York"):
        made = timetable("* * * * * * *", tz)
        made.count_between(start, start + 3652 * DAY)
        started = time.thread_time()
        assert made.count_between(start, start + 3652 * DAY) == 3652 * 86_400
        assert time.thread_time() - started < 5  # Enumerating them would take minutes.


def test_same_text_is_parsed_once_for_all_zones() -> None:
    assert timetable("0 6 * * *", "Europe/Berlin") is timetable("0 6 * * *", "Europe/Berlin")
    assert parse("0 6 * * *") is parse("0 6 * * *")


def test_timeline_finds_every_offset_change() -> None:
    """Check some years hour by hour, independent of the steps that the timeline takes."""
    for name, year in (("America/New_York", 2027), ("Asia/Gaza", 2040), ("America/Recife", 2000)):
        loaded = zone(name)
        line, start = Timeline(loaded), parse_instant(f"{year}-01-01T00:00Z") // SECOND
        for second in range(start, start + 366 * 86_400, 3_600):
            segment = line.at(second)
            assert segment.start <= second < segment.end
            assert timedelta(seconds=segment.offset) == datetime.fromtimestamp(second, loaded).utcoffset()


def test_timeline_cannot_miss_an_offset_change() -> None:
    """These are the closest changes in all zones from 1970 to 2199."""
    for name, year in (("Asia/Gaza", 2040), ("America/Recife", 2000)):
        closest = min(after - before for before, after in pairwise(changes_of(name, year)))
        assert 2 * zones._PROBE_S < closest < 7 * 86_400


@pytest.mark.parametrize("change", ["2027-03-14T07:00Z", "2027-11-07T06:00Z"])
@pytest.mark.parametrize("shift_s", [-3_600, -1_800, 0, 600, 1_800, 3_600])
def test_boundaries_of_stretches_do_not_matter(change: str, shift_s: int) -> None:
    """A stretch of segments may end anywhere, also within a repeated hour."""
    second = parse_instant(change) // SECOND
    start, stop = (second - 30 * 3_600) * SECOND, (second + 30 * 3_600) * SECOND
    line = Timeline(zone("America/New_York"), stretch_s=(second + shift_s) // 40)
    for text, dst in product(("30 1 * * *", "0,30 1,2 * * *", "15 * * * *"), ("shift", "skip", "both")):
        usual = timetable(text, "America/New_York", dst)
        unusual = Timetable(parse(text), line, cast("Dst", dst))
        assert unusual.count_between(start, stop) == usual.count_between(start, stop)
        instant: int | None = start
        while instant is not None and instant < stop:
            assert unusual.next_after(instant) == usual.next_after(instant)
            assert unusual.note(instant) == usual.note(instant)
            instant = usual.next_after(instant)
