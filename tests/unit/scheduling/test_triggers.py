"""Triggers: construction, comparison, instants and serialisation."""

import copy
import json
import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import InvalidSchedule
from headway.core.instants import DAY, HOUR, MINUTE, SECOND, isoformat, parse_instant
from headway.core.triggers import (
    After,
    At,
    CalendarTrigger,
    Cron,
    Every,
    Trigger,
    describe,
    last_between,
    nth_last_between,
    trigger_from_dict,
    trigger_to_dict,
)

NOON = parse_instant("2027-01-01T12:00Z")

TRIGGERS: list[tuple[Trigger, dict[str, object], str]] = [
    (
        Cron("0 6 * * *", tz="Europe/Berlin"),
        {"kind": "cron", "expr": "0 6 * * *", "tz": "Europe/Berlin", "dst": "shift"},
        "cron 0 6 * * * Europe/Berlin",
    ),
    (
        Cron("0 6 * * mon", dst="both", seconds="*/10"),
        {"kind": "cron", "expr": "0 6 * * MON", "tz": "UTC", "dst": "both", "seconds": "*/10"},
        "cron 0 6 * * MON seconds=*/10 UTC dst=both",
    ),
    (Cron("@Daily"), {"kind": "cron", "expr": "@daily", "tz": "UTC", "dst": "shift"}, "cron @daily UTC"),
    (Every("30s"), {"kind": "every", "interval": "30s"}, "every 30s"),
    (
        Every(90, start="2027-01-01T12:00:00Z"),
        {"kind": "every", "interval": "1m30s", "start": "2027-01-01T12:00:00Z"},
        "every 1m30s from 2027-01-01T12:00:00Z",
    ),
    (After("10m"), {"kind": "after", "delay": "10m"}, "after 10m"),
    (
        At("2027-01-01T00:00:00Z"),
        {"kind": "at", "instant": "2027-01-01T00:00:00Z"},
        "at 2027-01-01T00:00:00Z",
    ),
    (
        At("2027-01-01T00:00:00", tz="Asia/Tokyo"),
        {"kind": "at", "instant": "2026-12-31T15:00:00Z", "tz": "Asia/Tokyo"},
        "at 2026-12-31T15:00:00Z",
    ),
]


@pytest.mark.parametrize(("trigger", "written", "text"), TRIGGERS)
def test_trigger_round_trips(trigger: Trigger, written: dict[str, object], text: str) -> None:
    assert trigger_to_dict(trigger) == written
    assert trigger_from_dict(json.loads(json.dumps(written))) == trigger
    assert describe(trigger) == text


@pytest.mark.parametrize("trigger", [trigger for trigger, _, _ in TRIGGERS])
def test_trigger_is_an_immutable_value(trigger: Trigger) -> None:
    for twin in (copy.copy(trigger), copy.deepcopy(trigger), pickle.loads(pickle.dumps(trigger))):
        assert twin == trigger
        assert hash(twin) == hash(trigger)
    assert eval(repr(trigger)) == trigger
    with pytest.raises(AttributeError):
        setattr(trigger, next(iter(trigger.__slots__)), 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Every("60s"), Every("1m")),
        (Every(60), Every(timedelta(minutes=1))),
        (Every("1m", start=NOON), Every("1m", start="2027-01-01T13:00+01:00")),
        (After("90s"), After("1m30s")),
        (Cron("0  6 * * mon"), Cron(" 0 6 * * MON ")),
        (Cron("* * * * *", seconds=" 5 "), Cron("* * * * *", seconds="5")),
        (At("2027-01-01T12:00"), At(datetime(2027, 1, 1, 12, tzinfo=UTC))),
        (At("2027-01-01T12:00Z"), At(datetime(2027, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))))),
    ],
)
def test_triggers_compare_by_meaning(one: Trigger, other: Trigger) -> None:
    assert one == other
    assert hash(one) == hash(other)


def test_different_triggers_differ() -> None:
    triggers = {trigger for trigger, _, _ in TRIGGERS}
    assert len(triggers) == len(TRIGGERS)
    assert len({Every("10m"), After("10m")}) == 2
    assert Cron("0 6 * * *") != Cron("0 6 * * *", tz="Europe/Berlin")


@pytest.mark.parametrize("interval", ["", "x", "0s", "99ms", -1, 0, 0.05, "4000d", True, None, [], float("nan")])
def test_rejects_intervals(interval: object) -> None:
    with pytest.raises(InvalidSchedule, match="every interval"):
        Every(interval)  # type: ignore[arg-type]
    with pytest.raises(InvalidSchedule, match="after delay"):
        After(interval)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "instant", ["", "soon", "2027-13-01", "1969-12-31T23:59:59Z", "2200-01-01", "0001-01-01", None, [], 1.5]
)
def test_rejects_instants(instant: object) -> None:
    for tz in (None, "Asia/Tokyo"):
        with pytest.raises(InvalidSchedule, match="at instant"):
            At(instant, tz)  # type: ignore[arg-type]
    if instant is not None:
        with pytest.raises(InvalidSchedule, match="every start"):
            Every("1m", start=instant)  # type: ignore[arg-type]


def test_numbers_are_not_accepted_as_instants() -> None:
    """A user may mean Unix seconds, and would get a moment in 1970."""
    with pytest.raises(InvalidSchedule, match="at instant"):
        At(1_800_000_000)  # type: ignore[arg-type]
    with pytest.raises(InvalidSchedule, match="every start"):
        Every("1m", start=10**30)


@pytest.mark.parametrize("tz", ["", "Nowhere", "../../etc/passwd", "Europe/Berlin\x00", 1])
def test_rejects_zones(tz: str) -> None:
    with pytest.raises(InvalidSchedule, match="tz"):
        At("2027-01-01", tz=tz)
    with pytest.raises(InvalidSchedule, match="tz"):
        Cron("* * * * *", tz=tz)


def test_rejects_invalid_cron_on_construction() -> None:
    with pytest.raises(InvalidSchedule, match="cron minute"):
        Cron("61 * * * *")
    with pytest.raises(InvalidSchedule, match="dst"):
        Cron("0 * * * *", dst="never")  # type: ignore[arg-type]
    with pytest.raises(InvalidSchedule, match="cron expr must be text, not 5"):
        Cron(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidSchedule, match="cron seconds must be text"):
        Cron("* * * * *", seconds=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({}, "trigger kind None is not known; use one of cron, every, after, at"),
        ({"kind": "never"}, "trigger kind 'never'"),
        ({"kind": 5}, "trigger kind 5"),
        ({"kind": ["cron"]}, "trigger kind"),
        ({"kind": "cron"}, "cron trigger needs the field expr"),
        ({"kind": "cron", "expr": 5}, "cron expr must be text"),
        ({"kind": "cron", "expr": ["* * * * *"]}, "cron expr must be text"),
        ({"kind": "cron", "expr": "* * * * *", "tz": None}, "cron tz must be text"),
        ({"kind": "cron", "expr": "* * * * *", "dst": 1}, "cron dst must be text"),
        ({"kind": "cron", "expr": "* * * * *", "seconds": 1}, "cron seconds must be text"),
        ({"kind": "cron", "expr": "* * * * *", "jitter": 1}, "no field 'jitter'; it has dst, expr, seconds, tz"),
        ({"kind": "every"}, "every trigger needs the field interval"),
        ({"kind": "every", "interval": None}, "every interval"),
        ({"kind": "every", "interval": {}}, "every interval"),
        ({"kind": "every", "interval": "30s", "start": 5}, "every start must be text"),
        ({"kind": "every", "interval": "30s", "tz": "UTC"}, "no field 'tz'"),
        ({"kind": "after", "delay": True}, "after delay"),
        ({"kind": "after", "interval": "5s"}, "after trigger needs the field delay"),
        ({"kind": "at", "instant": 5}, "at instant must be text"),
        ({"kind": "at", "instant": "2027-01-01", "tz": 5}, "at tz must be text"),
        ({"kind": "at", "instant": "2027-01-01", "x" * 5000: 5}, "at trigger has no field"),
    ],
)
def test_rejects_malformed_stored_triggers(written: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        trigger_from_dict(written)
    assert message in str(refused.value)
    assert len(str(refused.value)) < 300


def test_parses_numbers_as_seconds() -> None:
    assert trigger_from_dict({"kind": "every", "interval": 30}) == Every("30s")
    assert trigger_from_dict({"kind": "after", "delay": 1.5}) == After("1500ms")


@pytest.mark.parametrize(
    ("written", "tz", "expected"),
    [
        ("2027-01-01T00:00:00", "Asia/Tokyo", "2026-12-31T15:00:00Z"),
        ("2027-01-01T00:00:00", None, "2027-01-01T00:00:00Z"),
        ("2027-01-01", "Asia/Kathmandu", "2026-12-31T18:15:00Z"),
        ("2027-01-01T00:00:00+05:30", "Asia/Tokyo", "2026-12-31T18:30:00Z"),
        ("2027-03-28T02:30:00.5", "Europe/Berlin", "2027-03-28T01:00:00Z"),
        ("2027-03-28T01:59:59.5", "Europe/Berlin", "2027-03-28T00:59:59.500000Z"),
        ("2027-10-31T02:30:00.5", "Europe/Berlin", "2027-10-31T00:30:00.500000Z"),
        ("2027-10-31T02:30:00+01:00", "Europe/Berlin", "2027-10-31T01:30:00Z"),
        ("2027-10-03T02:15:00", "Australia/Lord_Howe", "2027-10-02T15:30:00Z"),
        ("2027-09-05T00:00:00", "America/Santiago", "2027-09-05T04:00:00Z"),
        ("2011-12-30T12:00:00", "Pacific/Apia", "2011-12-30T10:00:00Z"),
    ],
)
def test_at_without_offset_is_local(written: str, tz: str | None, expected: str) -> None:
    assert isoformat(At(written, tz).instant) == expected
    assert isoformat(At(datetime.fromisoformat(written), tz).instant) == expected


def test_at_has_one_instant() -> None:
    at = At("2027-01-01T12:00Z")
    assert at.next_after(NOON - 1) == NOON
    assert at.next_after(NOON) is None
    assert at.count_between(NOON - 1, NOON) == 1
    assert at.count_between(NOON, NOON + DAY) == 0


def test_every_is_aligned_to_the_epoch() -> None:
    every = Every("7m")
    assert every.next_after(0) == 7 * MINUTE
    assert every.next_after(-1) == 0
    assert every.next_after(-DAY) == 0
    assert every.next_after(14 * MINUTE - 1) == 14 * MINUTE
    assert every.next_after(14 * MINUTE) == 21 * MINUTE
    assert every.count_between(-1, 14 * MINUTE) == 3
    assert every.count_between(14 * MINUTE, 0) == 0


def test_every_starts_at_its_start() -> None:
    every = Every("1h", start=NOON + 5 * MINUTE)
    assert every.next_after(0) == NOON + 5 * MINUTE
    assert every.next_after(NOON + 5 * MINUTE) == NOON + 5 * MINUTE + HOUR
    assert every.count_between(0, NOON + 4 * MINUTE) == 0
    assert every.count_between(0, NOON + HOUR + 5 * MINUTE) == 2


def test_after_has_no_instants() -> None:
    assert After("10m").delay == 10 * MINUTE
    assert not hasattr(After("10m"), "next_after")


def test_cron_notes_daylight_saving() -> None:
    cron = Cron("30 2 * * *", tz="Europe/Berlin")
    instant = cron.next_after(parse_instant("2027-03-27T12:00Z"))
    assert instant == parse_instant("2027-03-28T01:00Z")
    assert cron.note(instant) == "02:30 does not exist on 2027-03-28 (DST); runs at 03:00, dst=shift"


calendars = st.sampled_from(
    [
        Cron("*/5 * * * *"),
        Cron("0 6 * * *", tz="Europe/Berlin"),
        Cron("30 2 * * SUN", tz="America/New_York", dst="both"),
        Cron("* * * * *", seconds="*/7"),
        Cron("0 0 29 2 *"),
        Every("100ms"),
        Every("7m", start=NOON),
        Every("13d"),
        At("2027-01-01T12:00Z"),
    ]
)


@settings(max_examples=150, deadline=None)
@given(calendars, st.integers(-DAY, DAY), st.integers(0, 3 * DAY), st.integers(1, 40))
def test_last_instants(trigger: CalendarTrigger, shift: int, length: int, n: int) -> None:
    after = NOON + shift
    until = after + min(length, 60 * SECOND if trigger == Every("100ms") else 3 * DAY)
    found = list[int]()
    instant = trigger.next_after(after)
    while instant is not None and instant <= until and len(found) < 5000:
        found.append(instant)
        instant = trigger.next_after(instant)
    if len(found) < 5000:
        assert trigger.count_between(after, until) == len(found)
        assert last_between(trigger, after, until) == (found[-1] if found else None)
        assert nth_last_between(trigger, after, until, n) == (found[-n] if len(found) >= n else None)


def test_last_instants_do_not_enumerate_earlier_ones() -> None:
    every, years = Every("100ms"), 100 * 365 * DAY
    assert last_between(every, NOON, NOON + years) == NOON + years
    assert nth_last_between(every, NOON, NOON + years, 1001) == NOON + years - 100 * SECOND
    assert last_between(Cron("0 0 29 2 *"), 0, NOON) == parse_instant("2024-02-29T00:00Z")
    assert last_between(Cron("0 0 29 2 *"), NOON - DAY, NOON) is None
    assert last_between(every, NOON, NOON - DAY) is None
