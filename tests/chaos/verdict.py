"""The verdict on a torture test: do the database, the tasks and the client agree?

Nothing here uses the product, except `headway audit`. The ledger is read with plain SQL and compared with arithmetic;
then the checkers of the simulation process the same rows; then every attempt is compared with the lines that the tasks
wrote themselves. A mismatch is a sentence that begins with the promise it breaks.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast
from zlib import crc32

from headway.core.instants import DAY, SECOND
from headway.core.schedules import ScheduleSpec
from tests.chaos.ledger import check_audit, check_ledger
from tests.chaos.limits import exceeded, overlapping
from tests.chaos.worker_arena import FINAL, WorkerArena
from tests.simulation.checkers import Checker, Liveness, Violation
from tests.simulation.recorder import AttemptRow, JobRow, OccurrenceRow, RevisionRow, Row, ScheduleRow

SHOWN_MAX: Final = 5
ENDS_OF_TASKS: Final = frozenset({"completed", "failed"})  # Outcomes that only the task's own code can cause.

R = TypeVar("R", bound=Row)


@dataclass(slots=True)
class Quiet:
    """The state after the last fault, while all nodes still ran. Nothing that was due `at` its end is undone."""

    at: int
    holds: Mapping[str, Mapping[str, int]]
    roles: tuple[str, ...]


@dataclass(slots=True)
class Evidence:
    """The data that a verdict is based on."""

    arena: WorkerArena
    receipts: Mapping[str, str]
    quiet: Quiet
    shards: int
    seconds: float


@dataclass(slots=True)
class Figures:
    """Statistics of a run."""

    decisions: int = 0
    records: int = 0
    jobs: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    enqueued: int = 0
    refused: int = 0
    ran_on: int = 0
    tokens: int = 0
    late_s: float = 0.0


def judge(evidence: Evidence) -> list[str]:
    """Return every broken promise."""
    arena = evidence.arena
    witness = Witness.read(arena)
    checks: list[tuple[str, Callable[[], object]]] = [
        ("S1, by arithmetic: ", lambda: check_ledger(arena.store, evidence.seconds)),
        ("S1, by audit: ", lambda: check_audit(arena.store)),
        ("S4: ", lambda: arena.check_ended_once(_final(arena))),
        ("", lambda: check_as_simulated(arena, evidence.quiet)),
    ]
    found = [f"{promise}{sentence}" for promise, check in checks if (sentence := _complaint(check))]
    for sentences in (
        _receipts(arena, evidence.receipts),
        _tokens(arena, evidence.shards),
        _overlaps(arena),
        _words(arena),
        exceeded(arena),
        overlapping(arena, witness.lines),
        witness.attempts(arena),
        witness.results(arena),
        witness.acknowledged(arena),
    ):
        found += _some(sentences)
    return found


def measure(evidence: Evidence) -> Figures:
    """Compute the statistics."""
    arena = evidence.arena
    [(decisions, records, tokens)] = arena.sql(
        "select coalesce(sum(count), 0), count(*), count(distinct token) from headway_occurrences"
    )
    [(late,)] = arena.sql(
        "select coalesce(max(decided_at - instant), 0) from headway_occurrences where outcome = 'fired'"
    )
    statuses = dict(arena.sql("select status, count(*) from headway_jobs group by status order by status"))
    attempts = dict(arena.sql("select outcome, count(*) from headway_all_attempts group by outcome order by outcome"))
    [(refused,)] = arena.sql("select count(*) from headway_events where event = 'settle_refused'")
    return Figures(
        decisions=int(decisions),
        records=records,
        jobs=sum(statuses.values()),
        statuses=statuses,
        attempts=attempts,
        enqueued=len(evidence.receipts),
        refused=refused,
        ran_on=Witness.read(arena).ran_on(),
        tokens=tokens,
        late_s=late / SECOND,
    )


def check_as_simulated(arena: WorkerArena, quiet: Quiet) -> None:
    """Let the checkers of the simulation process the rows as if they saw them being written."""
    checker = Checker(shards=0, retention=30 * DAY, holds=dict)
    for schedule in _rows(arena, "schedules", ScheduleRow):
        checker.changed(None, schedule)
    for revision in _rows(arena, "revisions", RevisionRow):
        checker.written(revision)
        spec = None if revision.definition is None else ScheduleSpec.from_json(revision.definition)
        checker.revisions[revision.schedule, revision.revision] = (revision.effective_at, spec)
    for decision in _rows(arena, "occurrences", OccurrenceRow, order="schedule, instant"):
        checker.written(decision)
        checker.decide(decision.decided_at, decision, None)
    for attempt in _rows(arena, "attempts", AttemptRow):
        checker.written(attempt)
    for job in _rows(arena, "jobs", JobRow):
        checker._keep(job)
    for name in checker.schedules:
        checker.cursor(quiet.at, name)
        checker.exclusive(name, set())
    _check_liveness(checker, quiet)


def undone(arena: WorkerArena, quiet: Quiet) -> list[str]:
    """Return what should have happened by now, by the checkers of the simulation."""
    checker = Checker(shards=0, retention=30 * DAY, holds=dict)
    for schedule in _rows(arena, "schedules", ScheduleRow):
        checker.changed(None, schedule)
    for revision in _rows(arena, "revisions", RevisionRow):
        spec = None if revision.definition is None else ScheduleSpec.from_json(revision.definition)
        checker.revisions[revision.schedule, revision.revision] = (revision.effective_at, spec)
    for job in _rows(arena, "jobs", JobRow):
        checker._keep(job)
    complaint = _complaint(lambda: _check_liveness(checker, quiet))
    return [] if complaint is None else [complaint]


def _check_liveness(checker: Checker, quiet: Quiet) -> None:
    liveness = Liveness(checker, roles=quiet.roles, poll_s=1.0)
    liveness.leaders(quiet.holds)
    liveness.decided(quiet.at, 0)
    liveness.moving(quiet.at, 0)


@dataclass(slots=True)
class Witness:
    """The lines that the tasks wrote, in order."""

    lines: list[list[str]]

    @classmethod
    def read(cls, arena: WorkerArena) -> "Witness":
        """Read the file of a run."""
        text = arena.trace_file.read_text() if arena.trace_file.exists() else ""
        return cls([line.split() for line in text.splitlines()])

    def of(self, word: str) -> Iterator[tuple[str, int, str, str]]:
        """Yield job, attempt, process and the remaining fields of lines of one kind."""
        for kind, job_id, attempt, pid, more in self.lines:
            if kind == word:
                yield job_id, int(attempt), pid, more

    def attempts(self, arena: WorkerArena) -> Iterator[str]:
        """Yield attempts that ran but should not have, or should have run but did not."""
        jobs = dict(arena.sql("select id, attempt from headway_jobs"))
        begun = Counter((job_id, attempt) for job_id, attempt, _, _ in self.of("begin"))
        for (job_id, attempt), times in begun.items():
            if times > 1:
                yield f"S3: attempt {attempt} of {job_id} was begun {times} times"
            if attempt > jobs.get(job_id, 0):
                yield f"S3: attempt {attempt} of {job_id} ran, and the store has {jobs.get(job_id, 'no such job')}"
        for job_id, attempt, _, token in self.of("begin"):
            if int(token) != attempt:
                yield f"S3: {job_id} had the token {token} in attempt {attempt}"
        for job_id, attempt, outcome in arena.sql("select job_id, attempt, outcome from headway_all_attempts"):
            if outcome in ENDS_OF_TASKS and not begun[job_id, attempt]:
                yield f"S3: attempt {attempt} of {job_id} is {outcome} and never ran"

    def results(self, arena: WorkerArena) -> Iterator[str]:
        """Yield results that are not from the last attempt of their job, or not from a finished one."""
        ended = {(job_id, f"{attempt}/{pid}") for job_id, attempt, pid, _ in self.of("end")}
        completed = "select id, attempt, result from headway_jobs where status = 'COMPLETED'"
        for job_id, attempt, result in arena.sql(completed):
            if (job_id, json.loads(result)) not in ended:
                yield f"S3: the result {result} of {job_id} is of no attempt that came to its end"
            if not str(json.loads(result)).startswith(f"{attempt}/"):
                yield f"S3: the result {result} of {job_id} is not of its last attempt {attempt}"

    def acknowledged(self, arena: WorkerArena) -> Iterator[str]:
        """Yield acknowledged writes of a task that are not in the store, or changed later."""
        steps = dict(arena.sql("select job_id, result from headway_steps where name = 'draw'"))
        for job_id, attempt, _, value in self.of("kept"):
            if job_id not in steps or json.loads(steps[job_id]) != value:
                yield f"S3: the step of {job_id} is {steps.get(job_id)}, and was {value} in attempt {attempt}"
        statuses = dict(arena.sql("select id, status from headway_jobs"))
        children: dict[str, str] = {}
        for job_id, attempt, _, child in self.of("child"):
            if children.setdefault(job_id, child) != child:
                yield f"S2: attempt {attempt} of {job_id} got another child, {child} beside {children[job_id]}"
            if child not in statuses:
                yield f"S5: {child}, acknowledged to {job_id}, is not there"

    def ran_on(self) -> int:
        """Count attempts that still wrote something after a later attempt of their job had begun."""
        latest: dict[str, int] = {}
        stale: set[tuple[str, int]] = set()
        for _, job_id, number, *_ in self.lines:
            attempt = int(number)
            if attempt < latest.get(job_id, 0):
                stale.add((job_id, attempt))
            latest[job_id] = max(attempt, latest.get(job_id, 0))
        return len(stale)


def _receipts(arena: WorkerArena, receipts: Mapping[str, str]) -> Iterator[str]:
    """Check that every acknowledged job exists once and completed: none of them can fail by itself."""
    about = "select id, status, attempt, reason, error from headway_jobs"
    jobs = {job_id: more for job_id, *more in arena.sql(about)}
    for key, job_id in receipts.items():
        if jobs.get(job_id, [""])[0] != "COMPLETED":
            yield f"S5: {job_id}, acknowledged as {key}, is {jobs.get(job_id, 'not there')}"
    if len(set(receipts.values())) != len(receipts):
        yield "S2: two keys, one job"
    for again, times in arena.sql("select key, count(*) from headway_jobs where key is not null group by key"):
        if times > 1:
            yield f"S2: {times} jobs with the key {again!r}"


def _tokens(arena: WorkerArena, shards: int) -> Iterator[str]:
    """Check that accepted tokens of a shard never decrease, and have one holder. Lock mode has no shards: 0."""
    highest: defaultdict[int, int] = defaultdict(int)
    holders: dict[int, str] = {}
    accepted = "select decided_at, schedule, token, node from headway_occurrences where token > 0"
    for _, schedule, token, node in arena.sql(f"{accepted} order by decided_at, token"):
        shard = crc32(schedule.encode()) % shards if shards else -1
        if shards and token < highest[shard]:
            yield f"fencing: {schedule} was decided under {token} after {highest[shard]} of the same shard"
        highest[shard] = max(token, highest[shard])
        if holders.setdefault(token, node) != node:
            yield f"fencing: two nodes, {holders[token]} and {node}, decided under the token {token}"
    [(given,)] = arena.sql("select value from headway_counters where name = 'token'")
    if any(token > given for token in holders):
        yield f"fencing: decided under a token above {given}, the highest that was given"


def _overlaps(arena: WorkerArena) -> Iterator[str]:
    overlapping = """select a.job_id, a.attempt, b.attempt from headway_all_attempts a join headway_all_attempts b
      on b.job_id = a.job_id and b.attempt > a.attempt where b.started_at < a.ended_at
      order by a.job_id, a.attempt, b.attempt"""
    for job_id, one, other in arena.sql(overlapping):
        yield f"S3: attempts {one} and {other} of {job_id} overlap in the store"


def _words(arena: WorkerArena) -> Iterator[str]:
    """Check that every line that a task logged belongs to the attempt that it names."""
    strange = "select job_id, attempt, line from headway_log where stream = 'log' and line <> cast(attempt as text)"
    for job_id, attempt, line in arena.sql(strange):
        yield f"S3: a line {line!r} of attempt {attempt} of {job_id}"


def _final(arena: WorkerArena) -> list[str]:
    among = ", ".join(f"'{status}'" for status in FINAL)
    return [job_id for (job_id,) in arena.sql(f"select id from headway_jobs where status in ({among})")]


def _rows(arena: WorkerArena, table: str, kind: type[R], order: str = "") -> Iterator[R]:
    ordered = f" order by {order}" if order else ""
    found: list[tuple[Any, ...]] = arena.sql(f"select {', '.join(kind._fields)} from headway_{table}{ordered}")
    return (cast("R", kind._make(row)) for row in found)


def _complaint(check: Callable[[], object]) -> str | None:
    try:
        check()
    except (AssertionError, Violation) as error:
        return f"{error}"[:2_000]
    return None


def _some(sentences: Iterator[str]) -> list[str]:
    """Return the first few, and the number of the others."""
    found = list(sentences)
    more = len(found) - SHOWN_MAX
    return found[:SHOWN_MAX] + ([f"… and {more} more of this kind"] if more > 0 else [])
