"""The planner turns a schedule and a time into decisions: pure arithmetic, with no clock, store or memory.

`plan` looks at the instants in (decided_through, now] and decides each of them exactly once:

    ───────────┬──────────────┬───────────────┬──────────────┬──▶ time
    decided    │  too old     │  late         │  on time     │ now
               │  deadline    │  missed=      │  overlap=    │
               └ missed       └ latest all    └ skip queue   └ next_at
                                skip            allow replace

Each pause cuts out its own stretch of time. A stretch is treated as a whole: a run of equal decisions is one record
with a count. So a year of downtime of an every-second schedule costs a few records, not thirty million steps.

An instant that is late by up to `grace` counts as on time. Under `missed=latest` late instants are merged into the next
instant that is on time or, when there is none, into the newest late one. Under `missed=all` the newest `catch_up_limit`
late instants fire, oldest first, their starts spread by `catch_up_rate`; unless `overlap=allow` they wait for one
another, in a queue that holds `catch_up_limit` or `queue_limit`, whichever is more. Each replacing the previous one
would be pointless, so `overlap=replace` treats `all` as `latest`.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import blake2b
from itertools import pairwise
from typing import Final, assert_never

from headway.core.instants import Duration, Instant, format_duration
from headway.core.occurrences import Decided, LiveJobs, Plan, PlannedDecision
from headway.core.schedules import Missed, Overlap, Pause, Schedule, ScheduleSpec
from headway.core.triggers import After, CalendarTrigger, last_between, nth_last_between

FIRES_PER_PLAN_MAX: Final = 1_000


def plan(schedule: Schedule, now: Instant, live: LiveJobs) -> Plan:
    """Decide every due and undecided instant of the schedule.

    Under `overlap=allow` a plan may end early, after `FIRES_PER_PLAN_MAX` on-time fires; its `next_at` is then due.
    """
    trigger = schedule.spec.trigger
    if isinstance(trigger, After):
        return _plan_after(schedule, trigger, now, live)
    return _CalendarPlan(schedule, trigger, now, live).make()


def first_at(spec: ScheduleSpec, now: Instant) -> Instant | None:
    """Return the first instant of a schedule that starts now."""
    if isinstance(spec.trigger, After):
        first = max(now + 1, spec.start or 0)  # A fixed delay has no earlier job to wait for.
        return None if spec.end is not None and first > spec.end else first
    return next_instant(spec, spec.trigger, now)


def next_instant(spec: ScheduleSpec, trigger: CalendarTrigger, after: Instant) -> Instant | None:
    """Return the first instant later than `after` that lies between the schedule's start and end."""
    if spec.start is not None:
        after = max(after, spec.start - 1)
    instant = trigger.next_after(after)
    return None if instant is None or (spec.end is not None and instant > spec.end) else instant


def jittered(schedule: str, instant: Instant, jitter: Duration) -> Instant:
    """Move the start, not the instant, by a hash of both: the same on every node and every retry."""
    if not jitter:
        return instant
    digest = blake2b(f"{schedule}\0{instant}".encode(), digest_size=8).digest()
    return instant + int.from_bytes(digest) % (jitter + 1)


class _Kind(Enum):
    PAUSED = auto()
    TOO_OLD = auto()
    LATE = auto()
    ON_TIME = auto()


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A range (after, until] of time in which every instant is treated alike."""

    after: Instant
    until: Instant
    kind: _Kind
    pause: Pause | None = None


@dataclass(slots=True)
class _CalendarPlan:
    """Collect the decisions of one call of `plan`, in time order."""

    schedule: Schedule
    trigger: CalendarTrigger
    now: Instant
    live: LiveJobs
    decisions: list[PlannedDecision] = field(default_factory=list)
    fired_here: int = 0
    waiting: int = 0
    cut_at: Instant | None = None

    def make(self) -> Plan:
        schedule, now = self.schedule, self.now
        first = next_instant(schedule.spec, self.trigger, schedule.decided_through)
        if first is None or first > now:
            return self._result(max(now, schedule.decided_through), first)
        following = next_instant(schedule.spec, self.trigger, first)
        if (following is None or following > now) and self._is_on_time(first):
            self._fire_on_time(first)  # The usual case: one instant, due just now.
            return self._result(now, following)
        self._decide_stretches(first)
        if self.cut_at is not None:
            following = next_instant(schedule.spec, self.trigger, self.cut_at)
            if following is not None and following <= now:
                return self._result(self.cut_at, following)
        return self._result(now, next_instant(schedule.spec, self.trigger, now))

    def _result(self, decided_through: Instant, next_at: Instant | None) -> Plan:
        spec = self.schedule.spec
        return Plan(
            schedule=self.schedule,
            now=self.now,
            decisions=tuple(self.decisions),
            decided_through=decided_through,
            next_at=next_at,
            live=self.live,
            replaces=spec.overlap is Overlap.REPLACE and self.fired_here > 0 and self.live.last is not None,
        )

    def _is_on_time(self, instant: Instant) -> bool:
        spec = self.schedule.spec
        allowed = spec.grace if spec.deadline is None else min(spec.grace, spec.deadline)
        return self.now - instant <= allowed and not any(p.covers(instant) for p in self.schedule.pauses)

    def _decide_stretches(self, first: Instant) -> None:
        stretches = _stretches(self.schedule, first - 1, self.now)
        on_time = [stretch for stretch in stretches if stretch.kind is _Kind.ON_TIME]
        late = [stretch for stretch in stretches if stretch.kind is _Kind.LATE]
        fire_late_from = self._late_fires_from(late, on_time)
        newest = self._newest(on_time)
        for stretch in stretches:
            if self.cut_at is not None:
                return
            match stretch.kind:
                case _Kind.PAUSED:
                    self._run(stretch.after, stretch.until, Decided.PAUSED, _pause_reason(stretch.pause))
                case _Kind.TOO_OLD:
                    deadline = format_duration(self.schedule.spec.deadline or 0)
                    self._run(stretch.after, stretch.until, Decided.MISSED, f"later than its deadline of {deadline}")
                case _Kind.LATE:
                    self._decide_late(stretch, fire_late_from)
                case _Kind.ON_TIME:
                    self._decide_on_time(stretch, newest)
                case _:
                    assert_never(stretch.kind)

    def _late_fires_from(self, late: list[_Stretch], on_time: list[_Stretch]) -> Instant | None:
        """Return the oldest late instant that still fires; None when none does."""
        spec = self.schedule.spec
        if spec.missed is Missed.SKIP:
            return None
        if spec.missed is Missed.ALL and spec.overlap is not Overlap.REPLACE:
            return self._nth_newest(late, spec.catch_up_limit)
        if self._newest(on_time) is not None:
            return None  # Merged into an on-time instant.
        return self._newest(late)

    def _newest(self, stretches: list[_Stretch]) -> Instant | None:
        for stretch in reversed(stretches):
            instant = last_between(self.trigger, stretch.after, stretch.until)
            if instant is not None:
                return instant
        return None

    def _nth_newest(self, stretches: list[_Stretch], count: int) -> Instant | None:
        """Return the instant that is `count` from the end of these stretches, or their first one."""
        oldest = None
        for stretch in reversed(stretches):
            here = self.trigger.count_between(stretch.after, stretch.until)
            if here >= count:
                return nth_last_between(self.trigger, stretch.after, stretch.until, count)
            if here:
                oldest = self.trigger.next_after(stretch.after)
                count -= here
        return oldest

    def _decide_late(self, stretch: _Stretch, fire_from: Instant | None) -> None:
        if fire_from is None or stretch.until < fire_from:
            self._run(stretch.after, stretch.until, *self._not_fired_late())
            return
        split = max(stretch.after, fire_from - 1)
        self._run(stretch.after, split, *self._not_fired_late())
        instant = self.trigger.next_after(split)
        while instant is not None and instant <= stretch.until:
            reason = self._blocked_late_reason()
            if reason is not None:
                self._run(instant - 1, stretch.until, Decided.SKIPPED, reason)
                return
            self._fire(instant, self._catch_up_start(instant), "caught up late")
            instant = self.trigger.next_after(instant)

    def _not_fired_late(self) -> tuple[Decided, str]:
        spec = self.schedule.spec
        grace = format_duration(spec.grace)
        match spec.missed:
            case Missed.SKIP:
                return Decided.MISSED, f"not decided within {grace}, missed=skip"
            case Missed.ALL if spec.overlap is not Overlap.REPLACE:
                return Decided.MISSED, f"beyond catch_up_limit={spec.catch_up_limit}"
            case _:
                return Decided.COALESCED, f"not decided within {grace}, merged into a later one"

    def _catch_up_start(self, instant: Instant) -> Instant:
        spec = self.schedule.spec
        if spec.missed is Missed.ALL and spec.catch_up_rate is not None:
            return self.now + self.fired_here * spec.catch_up_rate.interval
        return jittered(self.schedule.key, instant, spec.jitter)

    def _decide_on_time(self, stretch: _Stretch, newest: Instant | None) -> None:
        if self.schedule.spec.overlap is Overlap.REPLACE and newest is not None:
            self._run(stretch.after, min(stretch.until, newest - 1), Decided.COALESCED, "replaced before it began")
            if stretch.after < newest <= stretch.until:
                self._fire_on_time(newest)
            return
        instant = self.trigger.next_after(stretch.after)
        while instant is not None and instant <= stretch.until:
            if self._blocked_reason() is not None:
                self._run(instant - 1, stretch.until, Decided.SKIPPED, self._blocked_reason() or "")
                return
            self._fire_on_time(instant)
            if self.fired_here >= FIRES_PER_PLAN_MAX and self.schedule.spec.overlap is Overlap.ALLOW:
                self.cut_at = instant
                return
            instant = self.trigger.next_after(instant)

    def _blocked_late_reason(self) -> str | None:
        """Return why a late instant cannot be caught up; None when it can."""
        spec = self.schedule.spec
        if spec.overlap is Overlap.SKIP:
            # The blocking job was there before these instants, so it blocks all of them.
            return None if self.live.last is None else self._in_the_way()
        if spec.overlap is Overlap.QUEUE:
            if spec.missed is Missed.ALL and spec.catch_up_limit > spec.queue_limit:
                return self._full_line_reason("catch_up_limit", spec.catch_up_limit)
            return self._full_line_reason("queue_limit", spec.queue_limit)
        return None

    def _full_line_reason(self, name: str, limit: int) -> str | None:
        if len(self.live.waiting) + self.waiting < limit:
            return None
        return f"{name}={limit} reached, {self._in_the_way()}"

    def _blocked_reason(self) -> str | None:
        """Return why an on-time instant cannot fire; None when it can."""
        spec = self.schedule.spec
        if self.live.last is None and not self.fired_here:
            return None
        if spec.overlap is Overlap.SKIP:
            return self._in_the_way()
        if spec.overlap is Overlap.QUEUE:
            return self._full_line_reason("queue_limit", spec.queue_limit)
        return None

    def _in_the_way(self) -> str:
        known = (self.live.running or self.live.waiting or (None,))[0]
        return f"{known} has not ended" if known else "the job of an earlier instant has not ended"

    def _fire_on_time(self, instant: Instant) -> None:
        reason = self._blocked_reason()
        if reason is None:
            self._fire(instant, jittered(self.schedule.key, instant, self.schedule.spec.jitter), "on time")
        else:
            self._decide(PlannedDecision(instant=instant, outcome=Decided.SKIPPED, reason=reason))

    def _fire(self, instant: Instant, start_at: Instant, reason: str) -> None:
        occupied = self.live.last is not None or self.fired_here > 0
        waits = self.schedule.spec.exclusive and occupied
        self.fired_here += 1
        self.waiting += waits
        self._decide(
            PlannedDecision(instant=instant, outcome=Decided.FIRED, reason=reason, start_at=start_at, waits=waits)
        )

    def _run(self, after: Instant, until: Instant, outcome: Decided, reason: str) -> None:
        """Decide all instants in (after, until] alike, in one record."""
        count = self.trigger.count_between(after, until) if after < until else 0
        first = self.trigger.next_after(after) if count else None
        if first is None:
            return
        last = last_between(self.trigger, after, until) if count > 1 else None
        self._decide(PlannedDecision(instant=first, until=last, count=count, outcome=outcome, reason=reason))

    def _decide(self, decision: PlannedDecision) -> None:
        """Add a decision; merge it with the previous one when only the time differs."""
        before = self.decisions[-1] if self.decisions else None
        if (
            before is not None
            and decision.outcome is not Decided.FIRED
            and (before.outcome, before.reason) == (decision.outcome, decision.reason)
        ):
            self.decisions[-1] = PlannedDecision(
                instant=before.instant,
                until=decision.until or decision.instant,
                count=before.count + decision.count,
                outcome=decision.outcome,
                reason=decision.reason,
            )
        else:
            self.decisions.append(decision)


def _stretches(schedule: Schedule, after: Instant, now: Instant) -> list[_Stretch]:
    """Divide (after, now] where the treatment of instants changes."""
    spec = schedule.spec
    until = now if spec.end is None else min(now, spec.end)
    if spec.start is not None:
        after = max(after, spec.start - 1)
    late_until = now - spec.grace - 1
    old_until = now - spec.deadline - 1 if spec.deadline is not None else after
    cuts = {after, until, late_until, old_until}
    for pause in schedule.pauses:
        cuts |= {pause.since, until if pause.until is None else pause.until}
    points = sorted(cut for cut in cuts if after <= cut <= until)
    stretches = []
    for low, high in pairwise(points):
        window = next((pause for pause in schedule.pauses if pause.covers(high)), None)
        if window is not None:
            kind = _Kind.PAUSED
        elif high <= old_until:
            kind = _Kind.TOO_OLD
        else:
            kind = _Kind.LATE if high <= late_until else _Kind.ON_TIME
        stretches.append(_Stretch(low, high, kind, window))
    return stretches


def _pause_reason(pause: Pause | None) -> str:
    if pause is None:
        return "paused"
    by = f" by {pause.author}" if pause.author else ""
    return f"paused{by}" + (f": {pause.reason}" if pause.reason else "")


def _plan_after(schedule: Schedule, trigger: After, now: Instant, live: LiveJobs) -> Plan:
    """Decide the one instant of a fixed-delay schedule that can be due. It fires again when that job has ended."""
    spec, instant = schedule.spec, schedule.next_at
    if instant is not None:
        # A job that ended before the schedule's start, or while the store's clock was behind, yields an impossible
        # instant.
        instant = max(instant, schedule.decided_through + 1, spec.start or 0)
        instant = None if spec.end is not None and instant > spec.end else instant
    if instant is None or instant > now:
        decided_through = max(now, schedule.decided_through)
        return Plan(
            schedule=schedule, now=now, decisions=(), decided_through=decided_through, next_at=instant, live=live
        )
    decision, next_at = _decide_after(schedule, trigger, instant, now, live)
    fired = decision.outcome is Decided.FIRED
    return Plan(
        schedule=schedule,
        now=now,
        decisions=(decision,),
        decided_through=now,
        next_at=next_at,
        live=live,
        replaces=fired and spec.overlap is Overlap.REPLACE and live.last is not None,
    )


def _decide_after(
    schedule: Schedule, trigger: After, instant: Instant, now: Instant, live: LiveJobs
) -> tuple[PlannedDecision, Instant | None]:
    spec, later = schedule.spec, now + max(trigger.delay, 1)
    pause = next((pause for pause in schedule.pauses if pause.covers(instant)), None)
    if pause is not None:
        resumes_at = None if pause.until is None else max(pause.until, now) + 1
        return PlannedDecision(instant=instant, outcome=Decided.PAUSED, reason=_pause_reason(pause)), resumes_at
    lateness = now - instant
    if spec.deadline is not None and lateness > spec.deadline:
        reason = f"later than its deadline of {format_duration(spec.deadline)}"
        return PlannedDecision(instant=instant, outcome=Decided.MISSED, reason=reason), later
    if lateness > spec.grace and spec.missed is Missed.SKIP:
        reason = f"not decided within {format_duration(spec.grace)}, missed=skip"
        return PlannedDecision(instant=instant, outcome=Decided.MISSED, reason=reason), later
    if live.last is not None and spec.overlap is Overlap.SKIP:
        return PlannedDecision(instant=instant, outcome=Decided.SKIPPED, reason=f"{live.last} has not ended"), None
    if live.last is not None and spec.overlap is Overlap.QUEUE and len(live.waiting) >= spec.queue_limit:
        reason = f"queue_limit={spec.queue_limit} reached, {live.last} has not ended"
        return PlannedDecision(instant=instant, outcome=Decided.SKIPPED, reason=reason), None
    return (
        PlannedDecision(
            instant=instant,
            outcome=Decided.FIRED,
            reason="on time" if lateness <= spec.grace else "caught up late",
            start_at=jittered(schedule.key, instant, spec.jitter),
            waits=spec.exclusive and live.last is not None,
        ),
        None,
    )
