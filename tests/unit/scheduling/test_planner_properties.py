"""The planner against an oracle that decides every instant separately, by the documented rules."""

from dataclasses import dataclass, replace
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headway.core.instants import DAY, HOUR, MINUTE, SECOND, Instant, isoformat, parse_instant
from headway.core.occurrences import Decided, LiveJobs, Plan, PlannedDecision
from headway.core.schedules import Missed, Overlap, Pause, Rate, Schedule, ScheduleSpec
from headway.core.triggers import After, At, Cron, Every, Trigger
from headway.scheduling import planner
from headway.scheduling.planner import first_at, jittered, plan

START = parse_instant("2027-03-28T00:00Z")  # Berlin's DST change is an hour later.
FIRES_MAX = 5  # Replaces the planner's bound where a small one is needed.

TRIGGERS: list[Trigger] = [
    Every("10s"),
    Every("1m"),
    Every("7m", start=isoformat(START + 3 * MINUTE)),
    Cron("* * * * *"),
    Cron("*/3 1-3 * * *", tz="Europe/Berlin"),
    Cron("*/3 1-3 * * *", tz="Europe/Berlin", dst="both"),
    Cron("*/20 * * * * * *", tz="Asia/Kathmandu"),
    At(isoformat(START + 30 * MINUTE)),
]

seconds = st.integers(0, 3 * 3_600)
durations = st.one_of(st.sampled_from([0, 1, 60, 61, 600, 3_600]), seconds)


@st.composite
def pauses(draw: st.DrawFn) -> Pause:
    since = START + draw(seconds) * SECOND
    until = draw(st.none() | seconds.map(lambda length: since + length * SECOND))
    return Pause(since=since, until=until, reason=draw(st.sampled_from(["", "repairs"])))


@st.composite
def specs(draw: st.DrawFn, triggers: list[Trigger] = TRIGGERS) -> ScheduleSpec:
    start = draw(st.none() | seconds)
    end = draw(st.none() | seconds)
    return ScheduleSpec(
        task="work",
        trigger=draw(st.sampled_from(triggers)),
        overlap=draw(st.sampled_from(Overlap)),
        missed=draw(st.sampled_from(Missed)),
        queue_limit=draw(st.integers(1, 4)),
        grace=draw(durations) * SECOND,
        deadline=draw(st.none() | durations.map(lambda duration: duration * SECOND)),
        catch_up_limit=draw(st.integers(1, 8)),
        catch_up_rate=draw(st.sampled_from([None, None, Rate.parse("7/m"), Rate.parse("1/s")])),
        jitter=draw(st.sampled_from([0, 0, 1, 90 * SECOND])),
        start=None if start is None else START + start * SECOND,
        end=None if end is None else START + end * SECOND + 1,
    )


live_jobs = st.builds(
    LiveJobs,
    running=st.sampled_from([(), (), ("job_1",)]),
    waiting=st.sampled_from([(), (), ("job_2",), ("job_2", "job_3")]),
)
schedules = st.builds(
    lambda spec, through, windows: Schedule(
        name="s", spec=spec, decided_through=START + through * SECOND, pauses=tuple(windows)
    ),
    specs(),
    seconds,
    st.lists(pauses(), max_size=3),
)
moments = st.integers(0, 4 * 3_600).map(lambda second: START + second * SECOND)


# The oracle -------------------------------------------------------------------------------------------------


def instants_of(schedule: Schedule, until: Instant) -> list[Instant]:
    """List the instants in (decided_through, until] one by one."""
    spec, found = schedule.spec, list[Instant]()
    assert not isinstance(spec.trigger, After)
    instant = spec.trigger.next_after(schedule.decided_through)
    while instant is not None and instant <= until:
        if (spec.start is None or instant >= spec.start) and (spec.end is None or instant <= spec.end):
            found.append(instant)
        instant = spec.trigger.next_after(instant)
    return found


@dataclass(frozen=True)
class Verdict:
    instant: Instant
    outcome: Decided
    start_at: Instant | None = None
    waits: bool = False


@dataclass
class Oracle:
    """Decides each instant separately, in order, remembering only how many it has fired."""

    schedule: Schedule
    now: Instant
    live: LiveJobs
    fired: int = 0
    in_line: int = 0

    def decide(self) -> list[Verdict]:
        instants = instants_of(self.schedule, self.now)
        self.late = [instant for instant in instants if self.kind(instant) == "late"]
        self.on_time = [instant for instant in instants if self.kind(instant) == "on time"]
        self.in_line = len(self.live.waiting)
        verdicts = []
        for instant in instants:
            verdicts.append(self.verdict(instant))
            is_full = self.fired >= planner.FIRES_PER_PLAN_MAX and self.kind(instant) == "on time"
            if is_full and self.schedule.spec.overlap is Overlap.ALLOW:
                break  # The next plan decides the rest.
        return verdicts

    def kind(self, instant: Instant) -> str:
        spec, age = self.schedule.spec, self.now - instant
        if any(p.since < instant and (p.until is None or instant <= p.until) for p in self.schedule.pauses):
            return "paused"
        if spec.deadline is not None and age > spec.deadline:
            return "too old"
        return "late" if age > spec.grace else "on time"

    def verdict(self, instant: Instant) -> Verdict:
        match self.kind(instant):
            case "paused":
                return Verdict(instant, Decided.PAUSED)
            case "too old":
                return Verdict(instant, Decided.MISSED)
            case "late":
                return self.late_verdict(instant)
            case _:
                return self.on_time_verdict(instant)

    def late_verdict(self, instant: Instant) -> Verdict:
        spec = self.schedule.spec
        if spec.missed is Missed.SKIP:
            return Verdict(instant, Decided.MISSED)
        if spec.missed is Missed.ALL and spec.overlap is not Overlap.REPLACE:
            if instant not in self.late[-spec.catch_up_limit :]:
                return Verdict(instant, Decided.MISSED)
            line_max = max(spec.catch_up_limit, spec.queue_limit)
        else:
            if self.on_time or instant != self.late[-1]:
                return Verdict(instant, Decided.COALESCED)
            line_max = spec.queue_limit
        if spec.overlap is Overlap.SKIP and (self.live.running or self.live.waiting):
            return Verdict(instant, Decided.SKIPPED)
        if spec.overlap is Overlap.QUEUE and self.in_line >= line_max:
            return Verdict(instant, Decided.SKIPPED)
        if spec.missed is Missed.ALL and spec.catch_up_rate is not None:
            rate = spec.catch_up_rate
            return self.fire(instant, self.now + self.fired * (rate.per // rate.count))
        return self.fire(instant, jittered("s", instant, spec.jitter))

    def on_time_verdict(self, instant: Instant) -> Verdict:
        spec, occupied = self.schedule.spec, self.fired or self.live.running or self.live.waiting
        if spec.overlap is Overlap.REPLACE and instant != self.on_time[-1]:
            return Verdict(instant, Decided.COALESCED)
        if occupied and spec.overlap is Overlap.SKIP:
            return Verdict(instant, Decided.SKIPPED)
        if occupied and spec.overlap is Overlap.QUEUE and self.in_line >= spec.queue_limit:
            return Verdict(instant, Decided.SKIPPED)
        return self.fire(instant, jittered("s", instant, spec.jitter))

    def fire(self, instant: Instant, start_at: Instant) -> Verdict:
        occupied = bool(self.fired or self.live.running or self.live.waiting)
        waits = occupied and self.schedule.spec.overlap is not Overlap.ALLOW
        self.fired += 1
        self.in_line += waits
        return Verdict(instant, Decided.FIRED, start_at, waits)


def unfolded(decisions: tuple[PlannedDecision, ...], instants: list[Instant]) -> list[Verdict]:
    """Expand every run of decisions, and check that its ends are instants and its count is right."""
    verdicts = []
    for decision in decisions:
        last = decision.instant if decision.until is None else decision.until
        covered = [instant for instant in instants if decision.instant <= instant <= last]
        assert len(covered) == decision.count
        assert (covered[0], covered[-1]) == (decision.instant, last)
        assert (decision.until is None) == (decision.count == 1)
        for instant in covered:
            verdicts.append(Verdict(instant, decision.outcome, decision.start_at, decision.waits))
    return verdicts


# Properties -------------------------------------------------------------------------------------------------


@given(schedules, moments, live_jobs, st.sampled_from([FIRES_MAX, planner.FIRES_PER_PLAN_MAX]))
@settings(max_examples=150, deadline=None)
def test_every_instant_is_decided_once_and_as_documented(
    schedule: Schedule, now: Instant, live: LiveJobs, fires_max: int
) -> None:
    with patch.object(planner, "FIRES_PER_PLAN_MAX", fires_max):
        made = plan(schedule, now, live)
        verdicts = Oracle(schedule, now, live).decide()
    instants = instants_of(schedule, now)
    assert unfolded(made.decisions, instants) == verdicts
    if len(verdicts) == len(instants):
        assert made.decided_through == max(now, schedule.decided_through)
    else:  # Truncated: exactly at the bound.
        assert made.decided_through == verdicts[-1].instant
    assert [verdict.instant for verdict in verdicts] == [i for i in instants if i <= made.decided_through]


@given(schedules, moments, live_jobs)
@settings(max_examples=100, deadline=None)
def test_plan_advances_and_returns_the_next_wake_up(schedule: Schedule, now: Instant, live: LiveJobs) -> None:
    made = plan(schedule, now, live)
    assert made.decided_through >= schedule.decided_through
    rest = replace(schedule, decided_through=made.decided_through)
    if made.next_at is None:
        assert not instants_of(rest, now + 5 * HOUR)
    else:
        assert instants_of(rest, made.next_at) == [made.next_at]
    assert plan(schedule, now, live) == made  # The planner has no hidden state.
    assert (made.schedule, made.live, made.now) == (schedule, live, now)


@given(schedules, moments, live_jobs)
@settings(max_examples=100, deadline=None)
def test_equal_neighbours_are_one_record_and_fires_are_bounded(
    schedule: Schedule, now: Instant, live: LiveJobs
) -> None:
    made, spec = plan(schedule, now, live), schedule.spec
    for before, after in zip(made.decisions, made.decisions[1:], strict=False):
        same = (before.outcome, before.reason) == (after.outcome, after.reason)
        assert not same or before.outcome is Decided.FIRED
        assert (before.until or before.instant) < after.instant
    assert all(decision.reason for decision in made.decisions)
    assert all((decision.start_at is not None) == (decision.outcome is Decided.FIRED) for decision in made.decisions)
    caught_up = [d for d in made.decisions if d.reason == "caught up late"]
    assert len(caught_up) <= (spec.catch_up_limit if spec.missed is Missed.ALL else spec.missed is Missed.LATEST)
    waiting = sum(decision.waits for decision in made.decisions) + len(live.waiting)
    if spec.overlap is Overlap.SKIP:
        assert not (live.last and made.fires)
    if spec.overlap is Overlap.QUEUE and made.fires:
        assert waiting <= max(spec.queue_limit, spec.catch_up_limit if caught_up else 0, len(live.waiting))
    if spec.overlap is Overlap.REPLACE:
        assert made.fires <= 1
    if spec.overlap is Overlap.ALLOW:
        assert waiting == len(live.waiting)
    assert made.replaces == (spec.overlap is Overlap.REPLACE and made.fires > 0 and live.last is not None)


@given(schedules, moments, st.lists(st.integers(0, 3_600), max_size=6), live_jobs)
@settings(max_examples=100, deadline=None)
def test_several_plans_decide_the_same_instants_as_one(
    schedule: Schedule, now: Instant, cuts: list[int], live: LiveJobs
) -> None:
    everything = instants_of(schedule, now)
    moments = sorted(now - cut * SECOND for cut in cuts)
    decided, present = list[Instant](), schedule
    for moment in [*moments, now]:
        made = plan(present, moment, live)
        decided += [verdict.instant for verdict in unfolded(made.decisions, instants_of(present, moment))]
        present = replace(present, decided_through=made.decided_through, next_at=made.next_at)
    assert decided == everything


@given(specs(), st.lists(st.integers(1, 3_600), max_size=5))
@settings(max_examples=75, deadline=None)
def test_frequency_of_plans_on_time_does_not_matter(spec: ScheduleSpec, steps: list[int]) -> None:
    """With everything on time and no live jobs, it does not matter how often the scheduler plans."""
    spec = replace(spec, grace=DAY, deadline=None, overlap=Overlap.ALLOW)
    schedule = Schedule(name="s", spec=spec, decided_through=START)
    now = START + sum(steps) * SECOND
    assume(len(instants_of(schedule, now)) < planner.FIRES_PER_PLAN_MAX)
    one = plan(schedule, now, LiveJobs()).decisions
    several, present, moment = list[PlannedDecision](), schedule, START
    for step in steps:
        moment += step * SECOND
        made = plan(present, moment, LiveJobs())
        several += made.decisions
        present = replace(present, decided_through=made.decided_through)
    assert tuple(several) == one


@given(schedules, moments, live_jobs)
@settings(max_examples=50, deadline=None)
def test_truncated_plan_is_finished_by_the_next_ones(schedule: Schedule, now: Instant, live: LiveJobs) -> None:
    schedule = replace(schedule, spec=replace(schedule.spec, overlap=Overlap.ALLOW))
    decided, present = list[Verdict](), schedule
    with patch.object(planner, "FIRES_PER_PLAN_MAX", FIRES_MAX):
        for _ in range(3_000):
            made = plan(present, now, live)
            assert made.fires <= max(FIRES_MAX, schedule.spec.catch_up_limit + 1)
            decided += unfolded(made.decisions, instants_of(present, now))
            present = replace(present, decided_through=made.decided_through, next_at=made.next_at)
            if made.decided_through >= now:
                break
            assert made.next_at is not None
            assert made.next_at <= now  # It is already due.
    assert [verdict.instant for verdict in decided] == instants_of(schedule, now)


@given(st.text(max_size=20), st.integers(-(2**50), 2**60), st.integers(0, 10 * DAY))
@settings(deadline=None)
def test_jitter_is_stable_and_within_its_bound(name: str, instant: Instant, jitter: int) -> None:
    start = jittered(name, instant, jitter)
    assert instant <= start <= instant + jitter
    assert start == jittered(name, instant, jitter)


def test_jitter_spreads_over_its_whole_range() -> None:
    starts = [jittered("s", START + n * SECOND, MINUTE) - START - n * SECOND for n in range(2_000)]
    assert min(starts) < MINUTE // 50
    assert max(starts) > MINUTE - MINUTE // 50
    assert abs(sum(starts) / len(starts) - MINUTE / 2) < MINUTE / 20
    assert jittered("s", START, MINUTE) != jittered("t", START, MINUTE)
    assert {jittered("s", START + n, 1) - START - n for n in range(100)} == {0, 1}  # Both ends are reached.


# A fixed delay ----------------------------------------------------------------------------------------------


@given(
    specs([After("10m"), After("100ms")]),
    seconds,
    st.none() | seconds,
    st.lists(pauses(), max_size=2),
    moments,
    live_jobs,
)
@settings(max_examples=100, deadline=None)
def test_fixed_delay_decides_at_most_one_instant(
    spec: ScheduleSpec, through: int, next_s: int | None, windows: list[Pause], now: Instant, live: LiveJobs
) -> None:
    next_at = None if next_s is None else START + next_s * SECOND
    schedule = Schedule(
        name="s", spec=spec, decided_through=START + through * SECOND, next_at=next_at, pauses=tuple(windows)
    )
    made = plan(schedule, now, live)
    assert made == plan(schedule, now, live)
    assert made.decided_through == max(now, schedule.decided_through)
    assert made.next_at is None or made.next_at > made.decided_through
    assert len(made.decisions) <= 1
    for decision in made.decisions:
        assert schedule.decided_through < decision.instant <= now
        assert (decision.until, decision.count) == (None, 1)
        assert spec.start is None or decision.instant >= spec.start
        assert spec.end is None or decision.instant <= spec.end
        assert decision.outcome is not Decided.COALESCED
        if decision.outcome is Decided.FIRED:
            assert made.next_at is None  # The end of its job sets the next one.
            assert decision.waits == (live.last is not None and spec.exclusive)
            assert not any(pause.covers(decision.instant) for pause in windows)
        if decision.outcome is Decided.MISSED:
            assert made.next_at is not None  # Nothing else would ever set the next one.
    due = next_at is not None and max(next_at, schedule.decided_through + 1, spec.start or 0) <= now
    over = spec.end is not None and next_at is not None and max(
        next_at, schedule.decided_through + 1, spec.start or 0
    ) > spec.end  # fmt: skip
    assert bool(made.decisions) == (due and not over)


@given(specs([After("10m")]), seconds, seconds, st.lists(st.integers(1, 3_600), min_size=4, max_size=4))
@settings(max_examples=75, deadline=None)
def test_due_fixed_delay_is_always_decided(spec: ScheduleSpec, through: int, next_s: int, steps: list[int]) -> None:
    """After any step of the store's clock, a schedule with a next instant reaches it: no plan postpones it forever."""
    spec = replace(spec, start=None, end=None)
    present = Schedule(name="s", spec=spec, decided_through=START + through * SECOND, next_at=START + next_s * SECOND)
    now = max(present.decided_through, START + next_s * SECOND)
    for step in steps:
        now += step * SECOND
        made = plan(present, now, LiveJobs())
        if made.decisions:
            return
        present = replace(present, decided_through=made.decided_through, next_at=made.next_at)
    pytest.fail("never decided")


@given(specs([*TRIGGERS, After("10m")]), moments)
@settings(max_examples=100, deadline=None)
def test_first_instant_is_where_the_first_plan_begins(spec: ScheduleSpec, now: Instant) -> None:
    first = first_at(spec, now)
    schedule = Schedule(name="s", spec=spec, decided_through=now, next_at=first)
    if first is None:
        later: Plan = plan(schedule, now + 9 * HOUR, LiveJobs())
        assert not later.decisions
    else:
        assert first > now
        assert not plan(schedule, first - 1, LiveJobs()).decisions
        assert plan(schedule, first, LiveJobs()).decisions[0].instant == first
