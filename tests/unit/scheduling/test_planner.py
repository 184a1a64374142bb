"""The planner's policies, one table each. Times are minutes after noon."""

from dataclasses import replace
from itertools import product

import pytest

from headway.core.instants import DAY, MINUTE, SECOND, Instant, isoformat, parse_instant
from headway.core.occurrences import Decided, LiveJobs, Plan
from headway.core.schedules import Missed, Overlap, Pause, Schedule, ScheduleSpec
from headway.core.triggers import After, At, Cron, Every, Trigger
from headway.scheduling import planner
from headway.scheduling.planner import first_at, jittered, next_instant, plan

NOON = parse_instant("2027-01-01T12:00Z")
FREE = LiveJobs()
BUSY = LiveJobs(running=("job_1",))
FULL = LiveJobs(running=("job_1",), waiting=("job_2",))

Row = tuple[float, str] | tuple[float, str, int]  # Minute and outcome, or first minute of a run, outcome and count.


def at(minutes: float) -> Instant:
    return NOON + round(minutes * MINUTE)


def schedule(
    trigger: Trigger | None = None,
    *,
    through: float = 0,
    next_at: Instant | None = None,
    pauses: tuple[Pause, ...] = (),
    **options: object,
) -> Schedule:
    spec = ScheduleSpec.build(task="work", trigger=trigger or Every("1m"), **options)
    return Schedule(name="s", spec=spec, decided_through=at(through), next_at=next_at, pauses=pauses)


def rows(made: Plan) -> list[Row]:
    found: list[Row] = []
    for decision in made.decisions:
        minute = (decision.instant - NOON) / MINUTE
        if decision.count == 1:
            found.append((minute, str(decision.outcome)))
        else:
            assert decision.until is not None
            found.append((minute, str(decision.outcome), decision.count))
    return found


def reasons(made: Plan) -> list[str]:
    return [decision.reason for decision in made.decisions]


def waits(made: Plan) -> list[bool]:
    return [decision.waits for decision in made.decisions if decision.outcome is Decided.FIRED]


def test_due_instant_fires() -> None:
    made = plan(schedule(), at(1), FREE)
    assert rows(made) == [(1, "fired")]
    assert (made.decided_through, made.next_at, made.fires) == (at(1), at(2), 1)
    assert (made.decisions[0].start_at, made.decisions[0].reason) == (at(1), "on time")


def test_nothing_is_due_between_two_instants() -> None:
    made = plan(schedule(), at(0.9), FREE)
    assert (made.decisions, made.decided_through, made.next_at) == ((), at(0.9), at(1))


def test_clock_that_went_back_decides_nothing_and_loses_nothing() -> None:
    made = plan(schedule(through=10), at(3), FREE)
    assert (made.decisions, made.decided_through, made.next_at) == ((), at(10), at(11))


# overlap: instants on time while an earlier job is live -----------------------------------------------------


@pytest.mark.parametrize(
    ("overlap", "live", "expected", "waiting"),
    [
        ("skip", FREE, [(1, "fired"), (2, "skipped", 2)], [False]),
        ("skip", BUSY, [(1, "skipped", 3)], []),
        ("queue", FREE, [(1, "fired"), (2, "fired"), (3, "skipped")], [False, True]),
        ("queue", BUSY, [(1, "fired"), (2, "skipped", 2)], [True]),
        ("queue", FULL, [(1, "skipped", 3)], []),
        ("allow", FREE, [(1, "fired"), (2, "fired"), (3, "fired")], [False] * 3),
        ("allow", FULL, [(1, "fired"), (2, "fired"), (3, "fired")], [False] * 3),
        ("replace", FREE, [(1, "coalesced", 2), (3, "fired")], [False]),
        ("replace", BUSY, [(1, "coalesced", 2), (3, "fired")], [True]),
    ],
)
def test_overlap_of_three_instants_on_time(
    overlap: str, live: LiveJobs, expected: list[Row], waiting: list[bool]
) -> None:
    made = plan(schedule(overlap=overlap, grace="5m"), at(3.5), live)
    assert rows(made) == expected
    assert waits(made) == waiting
    assert made.replaces == (overlap == "replace" and live is not FREE)


@pytest.mark.parametrize(
    ("overlap", "live", "outcome"),
    [
        ("skip", BUSY, "skipped"),
        ("skip", LiveJobs(waiting=("job_2",)), "skipped"),
        ("queue", BUSY, "fired"),
        ("queue", FULL, "skipped"),
        ("allow", FULL, "fired"),
        ("replace", FULL, "fired"),
    ],
)
def test_overlap_of_a_single_instant(overlap: str, live: LiveJobs, outcome: str) -> None:
    made = plan(schedule(overlap=overlap), at(1), live)
    assert rows(made) == [(1, outcome)]
    assert made.replaces == (overlap == "replace")


def test_queue_limit_bounds_the_queue() -> None:
    made = plan(schedule(overlap="queue", queue_limit=3, grace="1h"), at(10), FULL)
    assert rows(made) == [(1, "fired"), (2, "fired"), (3, "skipped", 8)]
    assert reasons(made)[-1] == "queue_limit=3 reached, job_1 has not ended"


def test_skip_reason_names_the_live_job() -> None:
    assert reasons(plan(schedule(), at(1), BUSY)) == ["job_1 has not ended"]
    first = plan(schedule(grace="5m"), at(2), FREE)
    assert reasons(first) == ["on time", "the job of an earlier instant has not ended"]


# missed: instants that were not decided in time -------------------------------------------------------------

LATE: list[tuple[str, str, LiveJobs, list[Row]]] = [
    ("latest", "skip", FREE, [(1, "coalesced", 9), (10, "fired")]),
    ("latest", "skip", BUSY, [(1, "coalesced", 9), (10, "skipped")]),
    ("latest", "queue", FREE, [(1, "coalesced", 9), (10, "fired")]),
    ("latest", "queue", BUSY, [(1, "coalesced", 9), (10, "fired")]),
    ("latest", "queue", FULL, [(1, "coalesced", 9), (10, "skipped")]),
    ("latest", "allow", FULL, [(1, "coalesced", 9), (10, "fired")]),
    ("latest", "replace", FULL, [(1, "coalesced", 9), (10, "fired")]),
    ("all", "skip", FREE, [(1, "missed", 7), (8, "fired"), (9, "fired"), (10, "fired")]),
    ("all", "skip", BUSY, [(1, "missed", 7), (8, "skipped", 3)]),
    ("all", "queue", FREE, [(1, "missed", 7), (8, "fired"), (9, "fired"), (10, "fired")]),
    ("all", "queue", FULL, [(1, "missed", 7), (8, "fired"), (9, "fired"), (10, "skipped")]),
    ("all", "allow", FULL, [(1, "missed", 7), (8, "fired"), (9, "fired"), (10, "fired")]),
    ("all", "replace", FULL, [(1, "coalesced", 9), (10, "fired")]),
    ("skip", "skip", FREE, [(1, "missed", 10)]),
    ("skip", "queue", FREE, [(1, "missed", 10)]),
    ("skip", "allow", FREE, [(1, "missed", 10)]),
    ("skip", "replace", BUSY, [(1, "missed", 10)]),
]


@pytest.mark.parametrize(("missed", "overlap", "live", "expected"), LATE)
def test_ten_late_instants_and_none_on_time(missed: str, overlap: str, live: LiveJobs, expected: list[Row]) -> None:
    late = schedule(missed=missed, overlap=overlap, catch_up_limit=3, grace="30s")
    made = plan(late, at(10.75), live)
    assert rows(made) == expected
    assert (made.decided_through, made.next_at) == (at(10.75), at(11))
    assert made.replaces == (overlap == "replace" and made.fires > 0)


@pytest.mark.parametrize(
    ("missed", "overlap", "expected"),
    [
        ("latest", "skip", [(1, "coalesced", 7), (8, "fired"), (9, "skipped", 2)]),
        ("latest", "queue", [(1, "coalesced", 7), (8, "fired"), (9, "fired"), (10, "skipped")]),
        ("latest", "allow", [(1, "coalesced", 7), (8, "fired"), (9, "fired"), (10, "fired")]),
        ("latest", "replace", [(1, "coalesced", 7), (8, "coalesced", 2), (10, "fired")]),
        ("all", "skip", [(1, "missed", 5), (6, "fired"), (7, "fired"), (8, "skipped", 3)]),
        ("all", "queue", [(1, "missed", 5), (6, "fired"), (7, "fired"), (8, "skipped", 3)]),
        ("all", "allow", [(1, "missed", 5), *((minute, "fired") for minute in range(6, 11))]),
        ("all", "replace", [(1, "coalesced", 7), (8, "coalesced", 2), (10, "fired")]),
        ("skip", "skip", [(1, "missed", 7), (8, "fired"), (9, "skipped", 2)]),
        ("skip", "allow", [(1, "missed", 7), (8, "fired"), (9, "fired"), (10, "fired")]),
    ],
)
def test_seven_late_instants_and_three_on_time(missed: str, overlap: str, expected: list[Row]) -> None:
    made = plan(schedule(missed=missed, overlap=overlap, catch_up_limit=2, grace="2m30s"), at(10), FREE)
    assert rows(made) == expected


def test_lateness_up_to_grace_is_on_time() -> None:
    late = schedule(missed="skip", grace="60s")
    assert rows(plan(late, at(2) - 1, FREE)) == [(1, "fired")]
    assert rows(plan(late, at(2), FREE)) == [(1, "fired"), (2, "skipped")]  # Exactly a minute late.
    assert rows(plan(schedule(Every("1h", start=isoformat(at(1))), missed="skip"), at(2), FREE)) == [(1, "fired")]
    assert rows(plan(schedule(Every("1h", start=isoformat(at(1))), missed="skip"), at(2) + 1, FREE)) == [(1, "missed")]


def test_zero_grace_still_fires_an_instant_due_now() -> None:
    assert rows(plan(schedule(missed="skip", grace=0), at(3), FREE)) == [(1, "missed", 2), (3, "fired")]


def test_reasons_name_the_policy() -> None:
    now = at(10.75)
    assert reasons(plan(schedule(missed="skip", grace="30s"), now, FREE)) == ["not decided within 30s, missed=skip"]
    assert reasons(plan(schedule(grace="30s"), now, FREE)) == [
        "not decided within 30s, merged into a later one",
        "caught up late",
    ]
    limited = plan(schedule(missed="all", catch_up_limit=1, grace="30s"), now, FREE)
    assert reasons(limited) == ["beyond catch_up_limit=1", "caught up late"]


# catch-up ---------------------------------------------------------------------------------------------------


def test_catch_up_jobs_wait_for_each_other_unless_overlap_is_allowed() -> None:
    for overlap, expected in (("skip", [False, True, True]), ("queue", [False, True, True]), ("allow", [False] * 3)):
        made = plan(schedule(missed="all", overlap=overlap, catch_up_limit=3, grace=0), at(10.5), FREE)
        assert waits(made) == expected


def test_catch_up_is_paced_from_now_on() -> None:
    paced = schedule(missed="all", overlap="allow", catch_up_limit=3, catch_up_rate="6/m", grace=0, jitter="5m")
    made = plan(paced, at(10.5), FREE)
    starts = [decision.start_at for decision in made.decisions if decision.outcome is Decided.FIRED]
    assert starts == [at(10.5), at(10.5) + 10 * SECOND, at(10.5) + 20 * SECOND]


def test_rate_applies_only_to_catch_up() -> None:
    made = plan(schedule(missed="all", overlap="allow", catch_up_rate="1/h"), at(1), FREE)
    assert [decision.start_at for decision in made.decisions] == [at(1)]
    latest = plan(schedule(missed="latest", catch_up_rate="1/h", grace=0), at(10.5), FREE)
    assert [decision.start_at for decision in latest.decisions][-1] == at(10)


@pytest.mark.parametrize(
    ("limit", "before_the_pause"),
    [
        (4, [(4, "missed", 2)]),  # Beyond the limit.
        (5, [(4, "missed"), (5, "fired")]),
        (6, [(4, "fired"), (5, "fired")]),
        (7, [(4, "fired"), (5, "fired")]),
    ],
)
def test_newest_instants_are_caught_up_across_pauses_and_deadlines(limit: int, before_the_pause: list[Row]) -> None:
    window = Pause(since=at(5), until=at(8))
    policies = {"missed": "all", "overlap": "allow", "deadline": "9m", "grace": 0}
    made = plan(schedule(catch_up_limit=limit, pauses=(window,), **policies), at(12.5), FREE)  # type: ignore[arg-type]
    assert rows(made) == [
        (1, "missed", 3),  # Older than the deadline.
        *before_the_pause,
        (6, "paused", 3),
        *((minute, "fired") for minute in (9, 10, 11, 12)),
    ]


# deadline ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deadline", "grace", "expected"),
    [
        ("5m", "30s", [(1, "missed", 4), (5, "coalesced", 5), (10, "fired")]),
        ("0s", "30s", [(1, "missed", 9), (10, "fired")]),
        ("30s", "5m", [(1, "missed", 9), (10, "fired")]),  # A deadline shorter than the grace still holds.
        ("1h", "30s", [(1, "coalesced", 9), (10, "fired")]),
    ],
)
def test_instant_older_than_the_deadline_is_missed(deadline: str, grace: str, expected: list[Row]) -> None:
    assert rows(plan(schedule(deadline=deadline, grace=grace), at(10), FREE)) == expected


@pytest.mark.parametrize("grace", ["0s", "5m", "20m"])
def test_deadline_itself_is_in_time(grace: str) -> None:
    hourly = schedule(Every("1h", start=isoformat(at(1))), deadline="10m", grace=grace)
    assert rows(plan(hourly, at(11), FREE)) == [(1, "fired")]
    assert rows(plan(hourly, at(11) + 1, FREE)) == [(1, "missed")]
    assert reasons(plan(hourly, at(11) + 1, FREE)) == ["later than its deadline of 10m"]


# start, end, pauses -----------------------------------------------------------------------------------------


def test_start_and_end_are_inclusive() -> None:
    limited = schedule(start=isoformat(at(3)), end=isoformat(at(5)), overlap="allow", grace="1h")
    assert rows(plan(limited, at(10), FREE)) == [(3, "fired"), (4, "fired"), (5, "fired")]
    assert plan(limited, at(10), FREE).next_at is None
    assert plan(limited, at(1), FREE).next_at == at(3)
    assert plan(replace(limited, decided_through=at(5)), at(10), FREE).decisions == ()


@pytest.mark.parametrize("microsecond", [-1, 0, 1])
def test_pause_covers_instants_after_its_start_up_to_its_end(microsecond: int) -> None:
    window = Pause(since=at(3) + microsecond, until=at(6) + microsecond)
    made = plan(schedule(overlap="allow", grace="1h", pauses=(window,)), at(8), FREE)
    first, last = (3 if microsecond < 0 else 4), (5 if microsecond < 0 else 6)
    paused = (first, "paused", last - first + 1)
    assert rows(made) == [*((m, "fired") for m in range(1, first)), paused, *((m, "fired") for m in range(last + 1, 9))]


def test_open_pause_has_no_end() -> None:
    window = Pause(since=at(2), author="ann", reason="repairs")
    made = plan(schedule(pauses=(window,)), at(1_000), FREE)
    assert rows(made) == [(1, "coalesced"), (2, "fired"), (3, "paused", 998)]
    assert reasons(made)[-1] == "paused by ann: repairs"


def test_pause_takes_precedence_over_other_policies() -> None:
    window = Pause(since=at(0), until=at(8))
    made = plan(schedule(deadline="1m", missed="all", grace=0, pauses=(window,)), at(10.5), BUSY)
    assert rows(made) == [(1, "paused", 8), (9, "missed"), (10, "skipped")]


def test_late_instants_before_a_pause_are_merged_into_one_after_it() -> None:
    window = Pause(since=at(3), until=at(6))
    made = plan(schedule(grace="30s", pauses=(window,)), at(8.25), FREE)
    assert rows(made) == [(1, "coalesced", 3), (4, "paused", 3), (7, "coalesced"), (8, "fired")]


def test_late_instant_may_be_merged_into_one_before_a_pause() -> None:
    window = Pause(since=at(3), until=None)
    made = plan(schedule(grace="30s", pauses=(window,)), at(8.25), FREE)
    assert rows(made) == [(1, "coalesced", 2), (3, "fired"), (4, "paused", 5)]


# jitter -----------------------------------------------------------------------------------------------------


def test_jitter_delays_the_start_but_not_the_instant() -> None:
    made = plan(schedule(jitter="2m"), at(1), FREE)
    assert made.decisions[0].instant == at(1)
    assert made.decisions[0].start_at == jittered("s", at(1), 2 * MINUTE)
    assert made.decisions[0].start_at != at(1)
    assert made.next_at == at(2)


# triggers ---------------------------------------------------------------------------------------------------


def test_at_fires_once() -> None:
    once = schedule(At(isoformat(at(5))))
    assert plan(once, at(4), FREE).next_at == at(5)
    made = plan(once, at(5), FREE)
    assert (rows(made), made.next_at) == ([(5, "fired")], None)
    again = plan(replace(once, decided_through=made.decided_through), at(500), FREE)
    assert (again.decisions, again.next_at) == ((), None)


def test_missed_at_is_caught_up() -> None:
    assert rows(plan(schedule(At(isoformat(at(5)))), at(500), FREE)) == [(5, "fired")]
    assert rows(plan(schedule(At(isoformat(at(5))), missed="skip"), at(500), FREE)) == [(5, "missed")]
    assert rows(plan(schedule(At(isoformat(at(5))), deadline="4h"), at(500), FREE)) == [(5, "missed")]


def test_cron_follows_its_zone_through_a_dst_change() -> None:
    day = parse_instant("2027-03-27T12:00Z")
    cron = schedule(Cron("30 2 * * *", tz="Europe/Berlin"), grace="2d", overlap="allow")
    made = plan(replace(cron, decided_through=day), day + 2 * DAY, FREE)
    assert [isoformat(decision.instant) for decision in made.decisions] == [
        "2027-03-28T01:00:00Z",
        "2027-03-29T00:30:00Z",
    ]


# a fixed delay ----------------------------------------------------------------------------------------------


def delay(next_at: float | None = 1, through: float = 0, **options: object) -> Schedule:
    moment = None if next_at is None else at(next_at)
    return schedule(After("10m"), through=through, next_at=moment, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "now", "live", "outcome", "next_at"),
    [
        ({}, 1, FREE, "fired", None),
        ({}, 500, FREE, "fired", None),
        ({"missed": "skip"}, 2, FREE, "fired", None),
        ({"missed": "skip"}, 2.5, FREE, "missed", at(12.5)),
        ({"missed": "all"}, 500, FREE, "fired", None),
        ({"deadline": "5m"}, 6, FREE, "fired", None),
        ({"deadline": "5m"}, 6.5, FREE, "missed", at(16.5)),
        ({"overlap": "skip"}, 1, BUSY, "skipped", None),
        ({"overlap": "queue"}, 1, BUSY, "fired", None),
        ({"overlap": "queue"}, 1, FULL, "skipped", None),
        ({"overlap": "allow"}, 1, FULL, "fired", None),
        ({"overlap": "replace"}, 1, FULL, "fired", None),
        ({"pauses": (Pause(since=at(0), until=at(5)),)}, 1, FREE, "paused", at(5) + 1),
        ({"pauses": (Pause(since=at(0), until=at(5)),)}, 7, FREE, "paused", at(7) + 1),
        ({"pauses": (Pause(since=at(0)),)}, 1, FREE, "paused", None),
        ({"pauses": (Pause(since=at(1)),)}, 1, FREE, "fired", None),
    ],
)
def test_fixed_delay(
    options: dict[str, object], now: float, live: LiveJobs, outcome: str, next_at: Instant | None
) -> None:
    made = plan(delay(**options), at(now), live)  # type: ignore[arg-type]
    assert rows(made) == [(1, outcome)]
    assert (made.decided_through, made.next_at) == (at(now), next_at)
    assert made.replaces == (options.get("overlap") == "replace")


def test_fixed_delay_waits_for_its_time_and_its_job() -> None:
    early = plan(delay(), at(0.5), FREE)
    assert (early.decisions, early.decided_through, early.next_at) == ((), at(0.5), at(1))
    waiting = plan(delay(None), at(30), BUSY)
    assert (waiting.decisions, waiting.next_at) == ((), None)


def test_fixed_delay_respects_start_and_end() -> None:
    assert plan(delay(start=isoformat(at(5))), at(3), FREE).next_at == at(5)
    assert rows(plan(delay(start=isoformat(at(5))), at(6), FREE)) == [(5, "fired")]
    over = plan(delay(6, end=isoformat(at(5))), at(8), FREE)
    assert (over.decisions, over.next_at) == ((), None)
    assert first_at(delay(end=isoformat(at(5))).spec, at(5)) is None
    assert first_at(delay(end=isoformat(at(5))).spec, at(4)) == at(4) + 1
    assert first_at(delay(start=isoformat(at(5))).spec, at(2)) == at(5)


def test_fixed_delay_with_a_next_instant_in_the_decided_past_continues() -> None:
    """If the store's clock goes back, jobs end before decided_through; the schedule must not stop."""
    behind = plan(delay(5, through=60), at(30), FREE)
    assert (behind.decisions, behind.decided_through, behind.next_at) == ((), at(60), at(60) + 1)
    caught_up = plan(delay(5, through=60), at(90), FREE)
    assert [(decision.instant, decision.outcome) for decision in caught_up.decisions] == [(at(60) + 1, Decided.FIRED)]


def test_next_instant_is_between_start_and_end() -> None:
    spec = schedule(start=isoformat(at(3)), end=isoformat(at(4))).spec
    assert isinstance(spec.trigger, Every)
    assert [next_instant(spec, spec.trigger, at(minute)) for minute in (0, 3, 4)] == [at(3), at(4), None]


# bounds -----------------------------------------------------------------------------------------------------

TEN_YEARS = 3_650 * DAY


class Calls:
    """Counts the calls of triggers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for kind, name in product((Cron, Every), ("next_after", "count_between")):
            monkeypatch.setattr(kind, name, self._counting(getattr(kind, name)))

    def _counting(self, method: object) -> object:
        def counted(*args: object) -> object:
            self.count += 1
            return method(*args)  # type: ignore[operator]

        return counted


@pytest.mark.parametrize("trigger", [Every("1s"), Cron("* * * * * * *", tz="Europe/Berlin")], ids=["every", "cron"])
@pytest.mark.parametrize(("overlap", "missed"), list(product(Overlap, Missed)))
def test_cost_of_ten_years_of_seconds_depends_on_the_records(
    trigger: Trigger, overlap: Overlap, missed: Missed, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch)
    pauses = (Pause(since=NOON - 300 * DAY, until=NOON - 200 * DAY), Pause(since=NOON - 100 * DAY, until=NOON - DAY))
    spec = ScheduleSpec.build(task="work", trigger=trigger, overlap=overlap, missed=missed, deadline="2000d")
    silent = Schedule(name="s", spec=spec, decided_through=NOON - TEN_YEARS, pauses=pauses)
    for live in (FREE, BUSY, FULL):
        calls.count = 0
        made = plan(silent, NOON, live)
        assert sum(decision.count for decision in made.decisions) == TEN_YEARS // SECOND
        assert len(made.decisions) <= made.fires + 10
        assert calls.count <= made.fires + 150
        assert made.fires <= 100 + 61


def test_plan_ends_early_at_the_bound_of_fires() -> None:
    flood = schedule(Every("1s"), overlap="allow", grace="1h")
    made = plan(flood, at(50), FREE)
    assert made.fires == planner.FIRES_PER_PLAN_MAX
    assert made.decided_through == NOON + planner.FIRES_PER_PLAN_MAX * SECOND
    assert made.next_at == made.decided_through + SECOND
    rest = plan(replace(flood, decided_through=made.decided_through), at(50), FREE)
    assert rest.decisions[0].instant == made.next_at


def test_plan_that_fires_exactly_the_bound_is_complete() -> None:
    now = NOON + planner.FIRES_PER_PLAN_MAX * SECOND + 1
    made = plan(schedule(Every("1s"), overlap="allow", grace="1h"), now, FREE)
    assert (made.fires, made.decided_through) == (planner.FIRES_PER_PLAN_MAX, now)
    assert made.next_at == now - 1 + SECOND
