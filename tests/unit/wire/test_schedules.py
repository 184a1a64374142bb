"""Schedules and decisions as JSON: round trips."""

import msgspec
import pytest

from headway.core.instants import HOUR, MINUTE, SECOND
from headway.core.occurrences import Decided, Occurrence
from headway.core.schedule_names import ScheduleRef
from headway.core.schedules import Pause, Schedule, ScheduleSpec
from headway.core.triggers import After, At, Cron, Every, Trigger
from headway.wire.schedule_requests import ScheduleBody
from headway.wire.schedules import Occurrence as WireOccurrence
from headway.wire.schedules import Schedule as WireSchedule
from headway.wire.schedules import (
    complete_definition,
    etag_of_schedule,
    occurrence_of,
    read_schedule_cursor,
    schedule_cursor,
    schedule_of,
)

NOW = 1_800_000_000 * SECOND

TRIGGERS: list[Trigger] = [
    Cron("0 6 * * *", "Europe/Berlin", "both"),
    Cron("0 6 * * *", seconds="*/10"),
    Every("30s"),
    After("10m"),
    At("2027-01-01T00:00:00", "Asia/Tokyo"),
]


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_schedule_round_trips(trigger: Trigger) -> None:
    spec = ScheduleSpec.build(
        task="report",
        trigger=trigger,
        args={"n": 1},
        tenant="acme",
        tags=["x"],
        overlap="queue",
        missed="all",
        catch_up_rate="10/m",
        deadline="4h",
        jitter="2m",
        backoff="5s..5m",
        start="2027-01-01",
    )
    pause = Pause(since=NOW - MINUTE, until=NOW + HOUR, reason="why", author="ada")
    before = Schedule(
        name="daily", spec=spec, owner="app", revision=3, created_at=NOW - HOUR, next_at=NOW, pauses=(pause,), failing=2
    )
    shown = schedule_of(before, NOW)
    assert msgspec.json.decode(msgspec.json.encode(shown), type=WireSchedule) == shown
    assert (shown.paused, shown.pause.author if shown.pause else "") == (True, "ada")
    definition = complete_definition(spec)
    assert ScheduleSpec.from_dict(definition) == spec
    assert msgspec.convert(definition, ScheduleBody).tenant == "acme"
    assert "rule" not in definition


def test_definition_contains_every_field_unmasked() -> None:
    spec = ScheduleSpec.build(task="report", trigger=Every("1h"), args={"token": "secret"})
    definition = complete_definition(spec)
    assert definition["args"] == {"token": "secret"}
    assert {"queue", "priority", "max_attempts", "overlap", "missed", "grace"} <= definition.keys()
    assert "tenant" not in definition  # The token determines it.


def test_decision_round_trips() -> None:
    run = Occurrence(
        schedule="s", instant=NOW, until=NOW + HOUR, count=5, outcome=Decided.MISSED, reason="late", decided_at=NOW
    )
    one = Occurrence(schedule="s", instant=NOW, outcome=Decided.FIRED, reason="", decided_at=NOW, job_id="job_1")
    for decision in (run, one):
        written = msgspec.json.encode(occurrence_of(decision))
        assert msgspec.json.decode(written, type=WireOccurrence) == occurrence_of(decision)


def test_etag_covers_the_revision_and_lasting_fields() -> None:
    spec = ScheduleSpec.build(task="report", trigger=Every("1h"))
    shown = schedule_of(Schedule(name="s", spec=spec, revision=3), NOW)
    etag = etag_of_schedule(shown)
    assert etag.startswith('"3-')
    assert etag_of_schedule(msgspec.structs.replace(shown, changed=True, outcome="changed", warnings=["x"])) == etag
    assert etag_of_schedule(msgspec.structs.replace(shown, failing=1)) != etag


@pytest.mark.parametrize("tenant", [None, "acme/x", "acme"])
@pytest.mark.parametrize("name", ["daily", "reports/daily", "a%2Fb", "100%"])
def test_cursor_identifies_a_schedule(tenant: str | None, name: str) -> None:
    whose = tenant or "globex"
    assert read_schedule_cursor(schedule_cursor(ScheduleRef(whose, name)), tenant) == (whose, name)


def test_cursor_may_be_a_name() -> None:
    assert read_schedule_cursor("daily", None) == ("default", "daily")
    assert read_schedule_cursor("reports/daily", "acme") == ("acme", "reports/daily")
