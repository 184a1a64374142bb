"""The promises as checkers: they receive every change of a row, after each commit and in commit order.

They keep their own model of the store and share no code with the planner or the SQL; of the engine they use only
`next_after` of the triggers. A finding is a `Violation`, named by the promise of docs/promises.md that it breaks.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple
from zlib import crc32

from headway.core.instants import SECOND, Duration, Instant, isoformat
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import After
from tests.simulation.limit_checker import LimitChecker, LimitViolation
from tests.simulation.recorder import (
    AttemptRow,
    Change,
    CounterRow,
    EventRow,
    JobRow,
    LaneRow,
    LeaseRow,
    LimitRow,
    LogRow,
    OccurrenceRow,
    RevisionRow,
    ScheduleRow,
    StepRow,
)

FINAL: Final = frozenset({"COMPLETED", "FAILED", "TIMED_OUT", "CANCELLED"})
LIVE: Final = frozenset({"SCHEDULED", "PENDING", "RUNNING", "RETRYING"})
MOVES: Final[Mapping[str, frozenset[str]]] = {
    "SCHEDULED": frozenset({"PENDING", "CANCELLED"}),
    "RETRYING": frozenset({"PENDING", "CANCELLED"}),
    "BLOCKED": frozenset({"PENDING", "CANCELLED"}),
    "PENDING": frozenset({"RUNNING", "CANCELLED"}),
    "RUNNING": frozenset({"PENDING", "RETRYING", "BLOCKED", *FINAL}),
}
COUNTED: Final = frozenset({"failed", "crashed", "timed_out"})  # Outcomes that count as a failure.
LOSSES_MAX: Final = 3
HOUSEKEEPING: Final = "housekeeping"


class Violation(Exception):
    """A promise was broken."""


def require(holds: object, promise: str, *what: object) -> None:
    """Raise a violation of the promise, with its evidence, unless the condition holds."""
    if not holds:
        raise Violation(f"{promise}: " + " ".join(str(part) for part in what))


class Checker:
    """The expected state of the store, and the events seen so far."""

    def __init__(
        self,
        *,
        shards: int,
        retention: Duration,
        holds: Callable[[], Mapping[str, Mapping[str, int]]],
        beat_at: Callable[[str], Instant] = lambda node: 0,
        has: Callable[[str, str], bool] = lambda node, job_id: True,
    ) -> None:
        self.seen: Counter[str] = Counter()
        self.jobs: dict[str, JobRow] = {}
        self.schedules: dict[str, ScheduleRow] = {}
        self.leases: dict[str, LeaseRow] = {}
        self.revisions: dict[tuple[str, int], tuple[Instant, ScheduleSpec | None]] = {}
        self.decided: dict[str, Instant] = {}
        self.steps: set[tuple[str, str]] = set()
        self.limits = LimitChecker(self.seen)
        self._shards = shards
        self._retention = retention
        self._holds = holds
        self._beat_at = beat_at
        self._has = has
        self._losses: list[_Loss] = []
        self._live: defaultdict[str, set[str]] = defaultdict(set)
        self._unfinished: defaultdict[str, set[str]] = defaultdict(set)
        self._line: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._keys: dict[tuple[str, str], str] = {}
        self._history: set[tuple[object, ...]] = set()
        self._highest_token = 0
        self._shard_tokens: dict[int, int] = {}
        self._released: set[str] = set()
        self._taken_from: dict[str, str] = {}
        self._floor: dict[str, Instant] = {}
        self._ends: list[tuple[str, Instant]] = []

    def look(self, actor: str, now: Instant, changes: Iterable[Change]) -> None:
        """Check one commit."""
        commit = _Commit(self, actor, now)
        try:
            for change in changes:
                commit.hear(change)
            commit.end()
        except LimitViolation as violation:
            raise Violation(str(violation)) from None
        self._floor.update((name, floor) for name, floor in self._ends if not self._unfinished[name])
        self._ends.clear()

    # Leadership.

    def acquired(self, actor: str, now: Instant, old: LeaseRow | None, new: LeaseRow) -> None:
        """Check a lease with a new token: it was acquired."""
        require(new.holder == actor, "leases", actor, "wrote for another", new)
        require(new.token > self._highest_token, "tokens only grow", old, new, self._highest_token)
        self._highest_token = new.token
        require(
            old is None or old.holder == new.holder or old.until <= now,
            "a lease is taken only when it has run out", now, old, new,
        )  # fmt: skip
        if old is not None and old.holder != new.holder:
            if new.name not in self._released:
                self.seen["lease expired and taken over"] += 1
            self._taken_from[new.name] = old.holder
        self._released.discard(new.name)

    def kept(self, actor: str, now: Instant, old: LeaseRow, new: LeaseRow) -> None:
        """Check a lease that was renewed or released."""
        require(old.holder == new.holder == actor, "only its holder renews a lease", actor, old, new)
        if new.until == now:
            self._released.add(new.name)
            self.seen["lease released"] += 1
        elif old.until <= now:
            self.seen["lease renewed after it had run out"] += 1

    def trusts(self, now: Instant) -> None:
        """Check that a node that trusts a role is its holder."""
        for node, roles in self._holds().items():
            for role, token in roles.items():
                lease = self.leases.get(role)
                require(
                    lease is not None and (lease.holder, lease.token) == (node, token) and lease.until > now,
                    "nobody trusts a lease that is not held", node, role, token, now, lease,
                )  # fmt: skip

    def acts(self, actor: str, now: Instant, decision: OccurrenceRow) -> None:
        """Check that a decision with a token comes from the holder of its lease."""
        if decision.token == 0:
            return  # Decided by an edit of the schedule, under its lock.
        require(decision.node == actor, "S12", actor, "signed as", decision)
        require(decision.token <= self._highest_token, "tokens", decision)
        if not self._shards:
            held = [lease.token for lease in self.leases.values() if lease.holder == actor and lease.until > now]
            require(decision.token in held, "fencing: the lock is not the decider's", actor, decision)
            return
        shard = crc32(decision.schedule.encode()) % self._shards
        lease = self.leases.get(f"scheduler/{shard}")
        require(
            lease is not None and (lease.holder, lease.token) == (actor, decision.token) and lease.until > now,
            "fencing: decided under a token that is not the shard's", now, lease, decision,
        )  # fmt: skip
        require(decision.token >= self._shard_tokens.get(shard, 0), "fencing: tokens of a shard fell", decision)
        self._shard_tokens[shard] = decision.token
        assert lease is not None
        if decision.instant < lease.since and lease.name in self._taken_from:
            self.seen["leader changed over a due instant"] += 1

    # The ledger.

    def decide(self, now: Instant, decision: OccurrenceRow, before: ScheduleRow | None) -> None:
        """Check that a decision is for the next undecided instant of the current definition, and not early."""
        name = decision.schedule
        schedule = self.schedules.get(name)
        require(schedule is not None, "S1: a decision for no schedule", decision)
        assert schedule is not None
        effective_at, spec = self.revisions[name, decision.revision]
        require(decision.revision == schedule.revision, "S1: another revision is in force", decision, schedule)
        require(spec is not None, "S1: decided while removed", decision)
        assert spec is not None
        last = self.decided.get(name, 0)
        require(decision.instant > last, "S1: decided twice", decision, "decided until", last)
        require(decision.instant > effective_at, "S1: before the definition counts", decision, effective_at)
        require(decision.end <= now, "S11: decided before its instant", decision, now)
        require(decision.decided_at == now, "S12: decided_at is not the store's time", decision, now)
        require(decision.end <= schedule.decided_through, "S1: decided_through is behind", decision, schedule)
        require((decision.until is None) == (decision.count == 1), "S12: range and count", decision)
        require((decision.outcome == "fired") == (decision.job_id is not None), "S1: fired and job", decision)
        if isinstance(spec.trigger, After):
            self._decide_after(decision, before, spec)
        else:
            expected = next_instant(spec, max(effective_at, last))
            require(decision.instant == expected, "S1: not the next instant", decision, "expected", expected)
        self.decided[name] = decision.end
        self.seen[decision.outcome] += decision.count
        if decision.count > 1:
            self.seen[f"range {decision.outcome}"] += 1

    def _decide_after(self, decision: OccurrenceRow, before: ScheduleRow | None, spec: ScheduleSpec) -> None:
        require(before is not None and before.next_at is not None, "S1: no instant is due", decision, before)
        assert before is not None
        expected = max(before.next_at or 0, before.decided_through + 1, spec.start or 0)
        require(decision.instant == expected, "S1: not the fixed delay", decision, before, expected)
        require(decision.count == 1, "S1: a fixed delay has one instant at a time", decision)
        floor = self._floor.get(decision.schedule, 0)
        require(decision.instant >= floor, "After: too early after the last job", decision, isoformat(floor))

    def cursor(self, now: Instant, name: str) -> None:
        """Check that everything up to decided_through is decided, and that next_at is the next instant."""
        schedule = self.schedules[name]
        effective_at, spec = self.revisions[name, schedule.revision]
        if spec is None or isinstance(spec.trigger, After) or schedule.attention:
            return
        following = next_instant(spec, max(effective_at, self.decided.get(name, 0)))
        require(
            following is None or following > schedule.decided_through,
            "S1: passed over", following, schedule, "decided until", self.decided.get(name),
        )  # fmt: skip
        require(schedule.next_at == following, "S1: next_at is not the next instant", schedule, following)

    def changed(self, old: ScheduleRow | None, new: ScheduleRow) -> None:
        """Check that a schedule only moves forward."""
        if old is not None:
            if new == old:
                return  # The count of consecutive failures does not affect decisions.
            require(new.version > old.version, "a write raises the version", old, new)
            require(new.decided_through >= old.decided_through, "S1: decided_through fell", old, new)
            if (old.revision, old.pauses) != (new.revision, new.pauses) or old.removed_at != new.removed_at:
                self._floor.pop(new.name, None)  # Edits and pauses set the next instant by their own rules.
        self.schedules[new.name] = new

    # The queue.

    def created(self, now: Instant, job: JobRow) -> None:
        """Check that a new job is ready, or waits for a reason."""
        require(job.id not in self.jobs and job.attempt == 0, "S4: a job that existed", job)
        waits = "BLOCKED" if job.blocked_by else "SCHEDULED" if job.run_at > now else "PENDING"
        require(job.status == waits, "lifecycle: created as", job)
        if job.key is not None:
            require((job.tenant, job.key) not in self._keys, "S2: one job per key", job)
            self._keys[job.tenant, job.key] = job.id
        self._keep(job)

    def moved(self, now: Instant, old: JobRow, new: JobRow) -> None:
        """Check that a job changes by one of the four verbs."""
        require(old.status not in FINAL or old == new, "S4: a final job changed", old, new)
        if old == new:
            return  # An operator has reviewed it.
        if old.status != new.status:
            require(new.status in MOVES[old.status], "lifecycle: no such transition", old, new)
            require(new.status not in ("PENDING", "RUNNING") or new.run_at <= now, "started early", now, old, new)
        claimed = old.status == "PENDING" and new.status == "RUNNING"
        require(new.attempt == old.attempt + claimed, "S3: the attempt rises by claims only", old, new)
        require((new.status in FINAL) == (new.finished_at is not None), "S4: finished_at", new)
        require((new.status == "RUNNING") == (new.lease_until is not None), "a lease runs with its attempt", new)
        require(not claimed or (new.lease_until or 0) > now, "claimed without a lease", new)
        require(new.parked is None or new.status == "BLOCKED", "only a blocked job is parked", new)
        self._keep(new)
        if new.finished_at is not None and new.schedule is not None:
            self._ended(new.schedule, new.finished_at)

    def reported(self, actor: str, old: JobRow, new: JobRow) -> None:
        """Check that a running job is changed only by its worker."""
        require(old.node == new.node, "S3: another worker without a claim", old, new)
        if old.lease_until != new.lease_until:
            require(actor == new.node, "S3: extended by", actor, new)
            require((new.lease_until or 0) >= (old.lease_until or 0), "a lease was shortened", old, new)
        before, after = (old.progress, old.detail, old.log_bytes), (new.progress, new.detail, new.log_bytes)
        if before != after:
            require(actor == new.node, "S3: progress told by", actor, new)
            self.seen["progress told"] += 1
        if old.detail != new.detail:
            require(new.detail == f'{{"step":"{new.attempt}"}}', "S3: progress of a stale attempt", new)

    def settled(self, actor: str, now: Instant, old: JobRow, new: JobRow, outcome: str) -> None:
        """Check that an end is written by the holder of the attempt or after its lease expired, and is counted
        correctly.
        """
        if outcome == "expired":
            require((old.lease_until or 0) < now, "L3: a live job was rescued", now, old, new)
            self.seen["job lease expired"] += 1
            self._lost(now, old, new)
        elif outcome == "released" and actor != old.node:
            require((old.lease_until or 0) < now, "L3: a live job was handed back by others", now, old, new)
            self.seen["handed back for a worker that lives"] += 1
        else:
            require(actor == old.node, "S3: settled by", actor, outcome, old, new)
        if outcome == "completed":
            require(new.result == str(old.attempt), "S3: the result of a stale attempt", old, new)
        counted = outcome in COUNTED
        require(new.failures == old.failures + counted, "L7: what counts as a failure", outcome, old, new)
        if new.status == "RETRYING" and outcome != "expired":
            require(counted and new.failures < old.max_attempts, "L6: retried too often", outcome, old, new)
        elif counted:
            require(new.status in ("FAILED", "TIMED_OUT"), "lifecycle: a failure", outcome, old, new)

    def _lost(self, now: Instant, old: JobRow, new: JobRow) -> None:
        """Check that a job fails for lost workers only after several losses, the last one while it ran alone."""
        loss = _Loss(old.id, old.node or "", old.started_at or 0, now)
        if new.status == "FAILED":
            beside = [job.id for job in self.held_by(loss.node) if job.id != old.id]
            beside += [one.job_id for one in self._losses if one.node == loss.node and one.ended_at > loss.started_at]
            require(not beside, "L6: given up, though others ran beside it", old, new, beside)
            lost = [one for one in self._losses if one.job_id == old.id and self._beat_at(one.node) <= one.ended_at]
            enough = len(lost) + 1 >= max(LOSSES_MAX, old.max_attempts)
            require(enough, "L6: given up, though its workers lived", old, new, lost)
            self.seen["given up for killing its worker"] += 1
        self._losses.append(loss)

    def claimed(self, now: Instant, job: JobRow) -> None:
        """Check that nothing is claimed beside a job that has to run alone, and that suspects are limited."""
        watched = [
            one
            for one in self.held_by(job.node or "")
            if one.company is not None
            and one.id != job.id
            and self._has(one.node or "", one.id)
            and now < (one.started_at or 0) + (one.apart_for or 0) // 2
        ]
        alone = [one for one in watched if one.company == 0]
        require(not alone, "L6: taken beside a job that has to run alone", job, alone)
        if job.company is not None:
            self.seen["suspect taken"] += 1
            most = min((one.company or 0 for one in (job, *watched)), default=0)
            require(not watched or len(watched) < most, "L6: suspects run together", job, watched)

    def said(self, actor: str, row: LogRow | StepRow) -> None:
        """Check that a line or a step belongs to the running attempt and is written by its worker."""
        job = self.jobs.get(row.job_id)
        runs = job is not None and (job.status, job.attempt, job.node) == ("RUNNING", row.attempt, actor)
        require(runs, "S3: said by a stale attempt", actor, row, job)
        text = row.line if isinstance(row, LogRow) else row.result
        require(text == str(row.attempt), "S3: the words of another attempt", row)
        if isinstance(row, StepRow):
            require((row.job_id, row.name) not in self.steps, "a step was kept twice", row)
            self.steps.add((row.job_id, row.name))
            self.seen["step kept"] += 1
        else:
            self.seen["line logged"] += 1

    def child(self, actor: str, job: JobRow) -> None:
        """Check that a child job is created while its parent runs, by the parent's attempt."""
        parent = self.jobs.get(job.parent or "")
        runs = parent is not None and (parent.status, parent.node) == ("RUNNING", actor)
        require(runs, "S3: enqueued by a stale attempt", actor, job, parent)
        assert parent is not None
        require(job.args == f'{{"by":{parent.attempt}}}', "S3: enqueued by another attempt", job, parent)
        self.seen["child enqueued"] += 1

    def _keep(self, job: JobRow) -> None:
        self.jobs[job.id] = job
        if job.schedule is not None:
            live = self._live[job.schedule]
            live.add(job.id) if job.status in LIVE else live.discard(job.id)
            self._line[job.schedule].pop(job.id, None)
            if job.status == "BLOCKED" and job.blocked_by is not None and job.parked is None:
                self._line[job.schedule][job.id] = job.blocked_by
            unfinished = self._unfinished[job.schedule]
            unfinished.add(job.id) if job.finished_at is None else unfinished.discard(job.id)

    def _ended(self, name: str, at: Instant) -> None:
        schedule = self.schedules[name]
        if schedule.delay is not None:
            due = schedule.next_at is not None and schedule.next_at <= at
            if not due:  # An instant that was due before the job ended stays due.
                self._ends.append((name, at + schedule.delay))

    def pruned(self, now: Instant, job: JobRow) -> None:
        """Check that only jobs that ended long ago are deleted."""
        require(job.finished_at is not None and job.finished_at < now - self._retention, "S12: pruned early", job)
        del self.jobs[job.id]
        if job.key is not None:
            del self._keys[job.tenant, job.key]
        self.seen["pruned"] += 1

    def exclusive(self, name: str, arrivals: set[str]) -> None:
        """Check that an exclusive schedule has at most one live job, and that its queued jobs form one chain."""
        line = self._line[name]
        require(len(set(line.values())) == len(line), "S7: two jobs wait for the same one", name, line)
        live = [self.jobs[job_id] for job_id in sorted(self._live[name])]
        require(sum(job.exclusive for job in live) <= 1, "S7: two live jobs", name, live)
        if len(live) > 1:
            late = [job for job in live if job.exclusive and job.id in arrivals]
            require(not late, "S7: became live beside another job", name, late, live)

    def held_by(self, node: str) -> list[JobRow]:
        """Return the jobs that run on a node."""
        return [job for job in self.jobs.values() if job.status == "RUNNING" and job.node == node]

    def live(self, schedule: str | None) -> set[str]:
        """Return the jobs of a schedule that are live and not queued."""
        return self._live[schedule] if schedule is not None else set()

    def written(self, row: AttemptRow | RevisionRow | OccurrenceRow | EventRow) -> None:
        """Check that history is written once."""
        key = (type(row).__name__, row[0]) if isinstance(row, EventRow) else (type(row).__name__, row[0], row[1])
        require(key not in self._history, "S12: written twice", row)
        self._history.add(key)


def next_instant(spec: ScheduleSpec, after: Instant) -> Instant | None:
    """Return the first instant of a trigger after another, within the bounds of the schedule."""
    assert not isinstance(spec.trigger, After)
    if spec.start is not None and spec.start > after:
        after = spec.start - 1
    instant = spec.trigger.next_after(after)
    return None if instant is not None and spec.end is not None and instant > spec.end else instant


class _Loss(NamedTuple):
    """One attempt that ended by an expired lease."""

    job_id: str
    node: str
    started_at: Instant
    ended_at: Instant


class _Commit:
    """The changes of one commit, which have to be consistent."""

    def __init__(self, checker: Checker, actor: str, now: Instant) -> None:
        self._checker = checker
        self._actor = actor
        self._now = now
        self._before: dict[str, ScheduleRow] = {}
        self._decisions: list[OccurrenceRow] = []
        self._created: dict[str, JobRow] = {}
        self._settled: dict[tuple[str, int], tuple[JobRow, JobRow]] = {}
        self._traced: dict[tuple[str, int], str] = {}
        self._touched: set[str] = set()
        self._arrivals: defaultdict[str, set[str]] = defaultdict(set)
        self._claimed: list[JobRow] = []
        self._looks_at_trust = False
        self._revised = False

    def hear(self, change: Change) -> None:
        """Process one row."""
        match change.old, change.new:
            case (JobRow() | None) as old, JobRow() as new:
                self._job(old, new)
            case LeaseRow() | None as old, LeaseRow() as new:
                self._lease(old, new)
            case ScheduleRow() | None as old, ScheduleRow() as new:
                self._schedule(old, new)
            case None, OccurrenceRow() as new:
                self._checker.decide(self._now, new, self._before.get(new.schedule))
                self._checker.acts(self._actor, self._now, new)
                self._checker.written(new)
                self._decisions.append(new)
                self._looks_at_trust = True
            case None, AttemptRow() as new:
                self._checker.written(new)
                self._traced[new.job_id, new.attempt] = new.outcome
                self._checker.seen[f"attempt {new.outcome}"] += 1
            case None, RevisionRow() as new:
                self._revision(new)
            case None, EventRow() as new:
                self._checker.written(new)
                self._checker.seen[f"event {new.event}"] += 1
            case CounterRow() as old, CounterRow() as new:
                require(new.value >= old.value, "counters only rise", old, new)
            case None, CounterRow() as new:  # The first node that leaves after it counted this.
                require(new.name.startswith("tally|") and new.value > 0, "a counter of nobody", new)
            case None, ((LogRow() | StepRow()) as new):
                self._checker.said(self._actor, new)
            case ((LimitRow() | None) as old, (LimitRow() | None) as new):
                self._checker.limits.defined(self._now, old, new)
            case ((LaneRow() | None) as old, (LaneRow() | None) as new):
                self._checker.limits.lane(old, new)
            case JobRow() as old, None:
                self._checker.pruned(self._now, old)
            case OccurrenceRow() as old, None:
                require(old.decided_at < self._now - self._checker._retention, "S12: pruned early", old)
            case (((AttemptRow() | LogRow() | StepRow()) as old), None):
                require(old.job_id not in self._checker.jobs, "S12: the trace of a job went before the job", old)
            case ((EventRow() | LeaseRow()), None):
                pass
            case _:
                require(False, "S12: history was rewritten", change)

    def end(self) -> None:
        """Check what must hold at the end of a transaction."""
        checker = self._checker
        for decision in self._decisions:
            if decision.job_id is not None:
                job = self._created.pop(decision.job_id, None)
                require(job is not None, "S1: fired without a job in the same transaction", decision)
                assert job is not None
                require((job.schedule, job.occurrence_at) == decision[:2], "S1: another job", decision, job)
        for job in self._created.values():
            again = job.rerun_of is not None or (job.key or "").startswith("backfill:")
            require(
                again or job.schedule is None or job.occurrence_at is None,
                "S1: a job of an instant without its decision",
                job,
            )
        self._end_attempts()
        checker.limits.claimed(self._now, self._claimed)
        for name in self._touched:
            checker.cursor(self._now, name)
        for name, arrivals in self._arrivals.items():
            checker.exclusive(name, arrivals)
        if self._looks_at_trust:
            checker.trusts(self._now)
        if self._revised and self._decisions:
            checker.seen["edit with pending instants"] += 1

    def _end_attempts(self) -> None:
        """Check that every end leaves a record; that of a success is the job itself."""
        for attempt, (old, new) in self._settled.items():
            outcome = "completed" if new.status == "COMPLETED" else self._traced.pop(attempt, None)
            require(outcome is not None, "S12: an attempt ended without a trace", old, new)
            assert outcome is not None
            self._checker.settled(self._actor, self._now, old, new, outcome)
        require(not self._traced, "S12: the trace of an attempt that did not end", self._traced)

    def _job(self, old: JobRow | None, new: JobRow) -> None:
        if old is None:
            if new.parent is not None and new.rerun_of is None:
                self._checker.child(self._actor, new)
            self._checker.created(self._now, new)
            self._created[new.id] = new
        else:
            self._checker.moved(self._now, old, new)
            self._checker.limits.changed(self._now, new)
            if old.status == "PENDING" and new.status == "RUNNING":
                self._checker.claimed(self._now, new)
                self._claimed.append(new)
            if old.status == "RUNNING" and new.status == "RUNNING":
                self._checker.reported(self._actor, old, new)
            elif old.status == "RUNNING":
                self._settled[new.id, new.attempt] = (old, new)
        if new.schedule is not None and (old is None or old.status != new.status):
            arrivals = self._arrivals[new.schedule]
            if new.status in LIVE and (old is None or old.status not in LIVE):
                arrivals.add(new.id)

    def _lease(self, old: LeaseRow | None, new: LeaseRow) -> None:
        if old is None or old.token != new.token:
            self._checker.acquired(self._actor, self._now, old, new)
        else:
            self._checker.kept(self._actor, self._now, old, new)
        self._checker.leases[new.name] = new
        self._looks_at_trust = True

    def _schedule(self, old: ScheduleRow | None, new: ScheduleRow) -> None:
        if old is not None:
            self._before[old.name] = old
        self._checker.changed(old, new)
        self._touched.add(new.name)

    def _revision(self, new: RevisionRow) -> None:
        checker = self._checker
        checker.written(new)
        spec = None if new.definition is None else ScheduleSpec.from_json(new.definition)
        checker.revisions[new.schedule, new.revision] = (new.effective_at, spec)
        earlier = checker.revisions.get((new.schedule, new.revision - 1))
        require(new.revision == 1 or earlier is not None, "S12: a revision is missing", new)
        require(earlier is None or earlier[0] <= new.effective_at, "S12: revisions go back in time", earlier, new)
        self._revised |= new.revision > 1


class Liveness:
    """What must have happened after all faults have ended."""

    def __init__(self, checker: Checker, *, roles: Iterable[str], poll_s: float) -> None:
        self._checker = checker
        self._roles = tuple(roles)
        self._poll = round(poll_s * SECOND)

    def leaders(self, holds: Mapping[str, Mapping[str, int]]) -> None:
        """Check that every role has a holder that works."""
        held = {role for roles in holds.values() for role in roles}
        missing = [role for role in self._roles if role not in held]
        require(not missing, "L4: nobody works as", missing, holds, list(self._checker.leases.values())[:5])

    def decided(self, now: Instant, late: Duration) -> None:
        """Check that no instant is overdue by more than `late`."""
        for schedule in self._checker.schedules.values():
            due = schedule.next_at is not None and schedule.next_at < now - late
            require(not due, "L1: undecided for too long", now, schedule)

    def _in_the_way(self, job: JobRow) -> bool:
        """Return whether a live job blocks this one, as any does while the schedule is exclusive."""
        return bool(job.exclusive and self._checker.live(job.schedule))

    def _last_end(self, schedule: str | None) -> Instant:
        """Return when a job of a schedule last stopped blocking others."""
        return max((job.finished_at or 0 for job in self._checker.jobs.values() if job.schedule == schedule), default=0)

    def moving(self, now: Instant, late: Duration) -> None:
        """Check that no job and no fixed-delay schedule waits for something that has already happened."""
        checker = self._checker
        unfinished = {job.schedule for job in checker.jobs.values() if job.finished_at is None}
        for job in checker.jobs.values():
            overdue = job.run_at < now - late
            require(not (overdue and job.status in ("SCHEDULED", "RETRYING")), "L2: not promoted", now, job)
            if overdue and job.status == "BLOCKED" and job.parked is None and not self._in_the_way(job):
                before = checker.jobs.get(job.blocked_by or "")
                ended = before is None or (before.finished_at is not None and before.finished_at < now - late)
                free = not job.exclusive or self._last_end(job.schedule) < now - late
                require(not (ended and free), "L2: still blocked by an ended job", now, job, before)
            if job.lease_until is not None:
                require(job.lease_until >= now - late, "L3: not expired", now, job)
        for schedule in checker.schedules.values():
            stranded = schedule.delay is not None and schedule.next_at is None and schedule.removed_at is None
            if stranded and schedule.name not in unfinished and '"until":null' not in schedule.pauses:
                _, spec = checker.revisions[schedule.name, schedule.revision]
                over = spec is not None and spec.end is not None
                require(over, "L1: a fixed-delay schedule waits for nothing", now, schedule)
