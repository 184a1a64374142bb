"""Log lines: one formatter, one line per event, rate-limited."""

import io
import json
import sys
from typing import get_args

import msgspec
import pytest

from headway.cli.log import (
    DECISIONS_TOLD_MAX,
    JOB_LINES_MAX,
    TRACEBACK_LENGTH_MAX,
    TRACEBACKS_MAX,
    EventLog,
    close_logs,
    describe,
)
from headway.core.events import (
    AccessRefused,
    AttemptsLost,
    ChildEnded,
    ChildStarted,
    ClockStepped,
    DecisionRefused,
    Draining,
    EngineEvent,
    EngineLost,
    EngineReturned,
    JobLogged,
    JobsPromoted,
    JobsSettled,
    LeasesExpired,
    LocksLost,
    Pruned,
    ReportsRefused,
    RequestFailed,
    ScheduleHeld,
    SchedulesDecided,
    StoreWentBack,
    TermLost,
    TermWon,
    TickFailed,
    Timed,
    WakeModeChanged,
)
from headway.core.instants import SECOND, parse_instant
from headway.core.lifecycle import Attempt, Crashed, Raised, settle
from headway.core.occurrences import Decided, Plan, PlannedDecision
from headway.core.schedules import Schedule, ScheduleSpec
from headway.core.triggers import Every

NOW = parse_instant("2027-01-01T00:00:00.123456Z")


def plan(name: str, *decisions: PlannedDecision) -> Plan:
    schedule = Schedule(name=name, spec=ScheduleSpec(task="t", trigger=Every("1s")))
    return Plan(schedule=schedule, now=NOW, decisions=decisions, decided_through=NOW, next_at=None)


def fired(seconds: int = 0) -> PlannedDecision:
    return PlannedDecision(instant=NOW // SECOND * SECOND - seconds * SECOND, outcome=Decided.FIRED, reason="on time")


ATTEMPT = Attempt(job_id="job_1", attempt=1, failures=0, max_attempts=3)

EVENTS: list[EngineEvent] = [
    TermWon(node="n", role="scheduler/0", token=7),
    TermLost(node="n", role="scheduler/0", token=7, reason="released"),
    SchedulesDecided(node="n", plans=(plan("a", fired()),)),
    DecisionRefused(node="n", schedules=("a",), reason="another node decided first"),
    LocksLost(node="n", schedules=("a", "b")),
    StoreWentBack(node="n", seen=NOW),
    ScheduleHeld(node="n", schedule="a", reason="cannot be planned"),
    JobsPromoted(node="n", count=3),
    LeasesExpired(node="n", job_ids=("job_1",)),
    ChildStarted(node="n", pid=7, kind="process"),
    ChildEnded(node="n", pid=7, kind="process", reason="was killed by SIGSEGV"),
    JobsSettled(node="n", completed=0, others=(settle(ATTEMPT, Crashed("{}"), 0.5),)),
    JobLogged(node="n", job_id="job_1", task="t", lines=(("stdout", "hello"),)),
    AttemptsLost(node="n", job_ids=("job_1",), reason="the store refused their outcomes"),
    ReportsRefused(node="n", job_ids=("job_1",)),
    Draining(node="n", running=3, reason="the worker ends"),
    Pruned(node="n", rows=9),
    TickFailed(node="n", loop="scheduler", error="gone", rest_s=1.0),
    ClockStepped(node="n", by_s=-3.5, store_now=NOW),
    WakeModeChanged(node="n", mode="poll", reason="notifications do not arrive"),
    EngineLost(node="n", engine="redis", error="no answer within 1.5 s", falls_back=True),
    EngineReturned(node="n", engine="redis"),
    AccessRefused(node="n", client="10.0.0.7", reason="the token is not known", is_limited=True),
    RequestFailed(node="n", request_id="req_1", error=ValueError("no")),
]


def log_of(look: str, *events: EngineEvent) -> list[str]:
    lines: list[str] = []
    log = EventLog(lines.append, look=look, wall=lambda: NOW)
    for event in events:
        log(event)
    return lines


def test_every_kind_of_event_is_covered() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(EngineEvent)) - {Timed}


def test_measurements_are_not_logged() -> None:
    assert log_of("plain", Timed(node="n", what="claim", lots=((0.1, 1),))) == []


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_is_a_line(event: EngineEvent) -> None:
    assert list(describe(event))
    (line,) = log_of("plain", event)
    assert line.startswith("2027-01-01T00:00:00.123Z ")
    (text,) = log_of("json", event)
    assert json.loads(text)["at"] == "2027-01-01T00:00:00.123Z"


def test_decision_line_has_outcome_and_lateness() -> None:
    (line,) = log_of("plain", SchedulesDecided(node="n", plans=(plan("daily report", fired(2)),)))
    assert line == (
        '2027-01-01T00:00:00.123Z info decided schedule="daily report" instant=2026-12-31T23:59:58Z outcome=fired'
        ' reason="on time" after=2.1s'
    )


def test_many_decisions_of_one_tick_are_one_line() -> None:
    few = SchedulesDecided(node="n", plans=tuple(plan(f"s{i}", fired()) for i in range(DECISIONS_TOLD_MAX)))
    assert len(log_of("plain", few)) == DECISIONS_TOLD_MAX
    skipped = PlannedDecision(instant=0, until=9 * SECOND, count=10, outcome=Decided.SKIPPED, reason="overlap")
    many = SchedulesDecided(node="n", plans=tuple(plan(f"s{i}", fired(), skipped) for i in range(1000)))
    (line,) = log_of("plain", many)
    assert line.endswith(" decided schedules=1000 fired=1000 skipped=10000")


def test_long_store_outage_does_not_fill_the_log() -> None:
    failures = [TickFailed(node="n", loop=f"loop{i % 6}", error="gone", rest_s=0.2) for i in range(600)]
    assert len(log_of("plain", *failures)) == 1


def test_two_listeners_of_one_process_log_an_event_once() -> None:
    polling = WakeModeChanged(node="n", mode="poll", reason="notifications do not arrive")
    notified = WakeModeChanged(node="n", mode="notify", reason="notifications arrive")
    lines = log_of("plain", polling, polling, notified, notified, polling)
    assert [line.split("mode=")[1].split()[0] for line in lines] == ["poll", "notify", "poll"]


@pytest.mark.parametrize("look", ["plain", "json", "terminal"])
def test_hostile_names_stay_on_one_line(look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    name = 'x" level=error\n2027 \x1b[2J\u202e\u2028'
    (line,) = log_of(look, ScheduleHeld(node="n", schedule=name, reason=name))
    assert line.isprintable()
    assert " level=error" not in line.replace("\"x' level=error", "").replace('x\\" level=error', "")


def failed(number: int = 1, **error: str) -> JobsSettled:
    """Create a failed attempt of the task `charge`."""
    said = {"type": "shop.CardRefused", "message": "no\nmoney", "traceback": TRACE, **error}
    settlement = settle(msgspec.structs.replace(ATTEMPT, job_id=f"job_{number}"), Raised(json.dumps(said)), 0.5)
    return JobsSettled(node="n", completed=0, others=(settlement,), tasks=("charge",))


TRACE = 'Traceback (most recent call last):\n  File "shop.py", line 3, in charge\nshop.CardRefused: no\nmoney\x1b[2J\n'
HEAD = "2027-01-01T00:00:00.123Z warning "


def test_failed_attempt_line_has_task_error_and_location(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    [text] = log_of("plain", failed())
    first, *trace = text.splitlines()
    assert first == (
        f'{HEAD}failed task=charge job=job_1 attempt=1 status=RETRYING reason="raised, failure 1 of 3, retrying"'
        ' error="shop.CardRefused: no\\nmoney"'
    )
    assert trace == [
        f"{HEAD}traceback job=job_1 {line}"
        for line in (
            "Traceback (most recent call last):",
            '  File "shop.py", line 3, in charge',
            "shop.CardRefused: no",
            "money\\x1b[2J",
        )
    ]
    [text] = log_of("terminal", failed())
    assert text.splitlines()[2:] == [
        '           File "shop.py", line 3, in charge',
        "         shop.CardRefused: no",
        "         money\\x1b[2J",
    ]
    [text] = log_of("json", failed())
    told = json.loads(text)
    assert (told["task"], told["error"], told["traceback"]) == ("charge", "shop.CardRefused: no\nmoney", TRACE.rstrip())


def test_number_of_tracebacks_is_limited() -> None:
    lines = log_of("plain", *map(failed, range(100)), failed(traceback="x" * 1_000_000))
    assert sum("error=" in line for line in lines) == 101
    assert sum(line.count("shop.CardRefused: no\n") for line in lines) == TRACEBACKS_MAX
    assert max(map(len, log_of("plain", failed(traceback="x" * 1_000_000)))) < 2 * TRACEBACK_LENGTH_MAX


def test_log_lines_of_jobs_name_their_job_and_are_limited() -> None:
    said = (("stdout", "hello\x1b[2J"), ("error:shop.stock", "no more"), ("stderr", "oh"), ("log", "said"))
    assert log_of("plain", JobLogged(node="n", job_id="job_1", task="count", lines=said)) == [
        "2027-01-01T00:00:00.123Z info job_log task=count job=job_1 line=hello\\x1b[2J",
        '2027-01-01T00:00:00.123Z error job_log task=count job=job_1 logger=shop.stock line="no more"',
        "2027-01-01T00:00:00.123Z warning job_log task=count job=job_1 stream=stderr line=oh",
        "2027-01-01T00:00:00.123Z info job_log task=count job=job_1 line=said",
    ]
    flood = JobLogged(node="n", job_id="job_1", task="count", lines=(("stdout", "x"),) * 1_000)
    assert len(log_of("plain", flood, flood, flood)) == JOB_LINES_MAX


def test_broken_log_pipe_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    EventLog.on_stderr(as_json=False)(EVENTS[0])
    assert close_logs()
