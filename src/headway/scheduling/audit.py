"""The audit: recompute which instants every schedule had, and compare them with what the ledger says.

    revisions ──own expansion──► expected instants ─┐
                                                    ├─ walked side by side ──► gaps · duplicates · phantoms
    ledger ─────pages, oldest first──► records ─────┘

The expected instants come from `expansion`, which shares no arithmetic with the scheduler.

A *gap* is an expected instant, not later than `decided_through`, that no record covers. A *duplicate* is a record for
what another record covers already. A *phantom* is a record that the revision in force at its instant does not explain:
an instant it does not have, a run whose ends or count are wrong. A revision is in force from its effective time,
exclusive, to that of the next, inclusive.

A fixed delay has no instants of its own; there the audit checks that no occurrence came earlier than the end of the job
before it plus the delay, and that a job that ended has a successor once that time is decided.

Memory is bounded: records come in pages, findings are kept up to `FINDINGS_MAX` of each kind and counted beyond it.
"""

from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from headway.core.errors import DefinitionError, ScheduleNotFound
from headway.core.instants import INSTANT_MAX, INSTANT_MIN, MINUTE, Instant, format_duration, isoformat
from headway.core.json_values import JsonObject
from headway.core.occurrences import Cursor, Decided, Occurrence
from headway.core.schedule_names import key_label, schedule_name
from headway.core.schedules import Revision
from headway.core.tenants import DEFAULT_TENANT
from headway.core.triggers import After
from headway.scheduling.expansion import Block, InstantCursor, SkippedInstants, blocks_of

FINDINGS_MAX: Final = 1_000
KEYS_PAGE: Final = 200
LEDGER_PAGE: Final = 1_000

_FOREVER: Final = 2**62
_BEGINNING: Final = -(2**62)
_AGAIN_MAX: Final = 10
# One transaction writes the end of a job and the next instant that follows from it, in two statements.
_FOLLOW_SLACK: Final = MINUTE

Record: TypeAlias = tuple[Occurrence, Instant | None]  # A ledger record and the end of its job.


# Comparing --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """Something wrong in the ledger, for one instant or a run of instants."""

    schedule: str
    instant: Instant
    reason: str
    until: Instant | None = None
    count: int = 1
    tenant: str = DEFAULT_TENANT

    def to_dict(self) -> JsonObject:
        """Return the JSON form; a run of instants has `until`."""
        until = {} if self.until is None else {"until": _when(self.until)}
        return {
            "schedule": self.schedule,
            "tenant": self.tenant,
            "instant": _when(self.instant),
            **until,
            "count": self.count,
            "reason": self.reason,
        }


@dataclass(slots=True)
class AuditFindings:
    """Findings of one kind: the first ones in full, all of them counted."""

    kept: list[AuditFinding] = field(default_factory=list)
    total: int = 0

    def add(self, *findings: AuditFinding) -> None:
        """Keep findings up to the limit, and count all of them."""
        self.kept.extend(findings[: FINDINGS_MAX - len(self.kept)])
        self.total += len(findings)

    def merge(self, other: "AuditFindings") -> None:
        """Add the findings of another list."""
        self.kept.extend(other.kept[: FINDINGS_MAX - len(self.kept)])
        self.total += other.total


@dataclass(slots=True, kw_only=True)
class AuditReport:
    """The result of auditing one or many schedules. `unreadable` lists schedules that could not be audited."""

    schedules: int = 0
    expected: int = 0
    recorded: int = 0
    gaps: AuditFindings = field(default_factory=AuditFindings)
    duplicates: AuditFindings = field(default_factory=AuditFindings)
    phantoms: AuditFindings = field(default_factory=AuditFindings)
    unreadable: AuditFindings = field(default_factory=AuditFindings)

    @property
    def ok(self) -> bool:
        """Return whether the ledger is exactly what the schedules explain."""
        return not (self.gaps.total or self.duplicates.total or self.phantoms.total or self.unreadable.total)

    def merge(self, other: "AuditReport") -> None:
        """Add another report."""
        self.schedules += other.schedules
        self.expected += other.expected
        self.recorded += other.recorded
        for mine, theirs in zip(self._findings().values(), other._findings().values(), strict=True):
            mine.merge(theirs)

    def to_dict(self) -> JsonObject:
        """Return the JSON form: the first findings of each kind, and the total counts."""
        kinds = self._findings()
        return {
            "schedules": self.schedules,
            "expected": self.expected,
            "recorded": self.recorded,
            **{kind: [finding.to_dict() for finding in findings.kept] for kind, findings in kinds.items()},
            "totals": {kind: findings.total for kind, findings in kinds.items()},
            "ok": self.ok,
        }

    def _findings(self) -> dict[str, AuditFindings]:
        return {
            "gaps": self.gaps,
            "duplicates": self.duplicates,
            "phantoms": self.phantoms,
            "unreadable": self.unreadable,
        }


def _when(instant: Instant) -> str:
    if INSTANT_MIN <= instant <= INSTANT_MAX:
        return isoformat(instant)
    return f"{instant} µs"  # A corrupted ledger may hold any number.


class ScheduleAudit:
    """Compare one schedule's records, fed oldest first, with the instants its revisions explain."""

    def __init__(self, cursor: Cursor, revisions: Sequence[Revision], *, after: Instant, until: Instant) -> None:
        decided_through = cursor.decided_through
        self.report = AuditReport(schedules=1)
        self._cursor = cursor
        self._revisions = sorted(revisions, key=lambda revision: revision.revision)
        self._effective = [revision.effective_at for revision in self._revisions]
        self._decided_through = decided_through
        self._until = min(until, decided_through)
        self._instants = InstantCursor(self._expected(after, decided_through))
        self._covered = after
        self._last_fired: tuple[Occurrence, Instant | None] | None = None
        self._last: Occurrence | None = None

    def _expected(self, after: Instant, until: Instant) -> Iterator[Block]:
        ends = [*self._effective, until][1:]
        for revision, end in zip(self._revisions, ends, strict=True):
            if revision.spec is not None:
                yield from blocks_of(revision.spec, max(after, revision.effective_at), min(until, end))

    def straddle(self, record: Occurrence) -> None:
        """Handle a run that began before the audited time and reaches into it."""
        if record.until is not None and record.until > self._covered:
            skipped = self._instants.skip(record.until)
            self._count(skipped.count, skipped.count)
            self._covered = record.until

    def feed(self, record: Occurrence, finished_at: Instant | None) -> None:
        """Compare the next record."""
        revision = self._in_force(record.instant)
        trigger = revision.spec.trigger if revision is not None and revision.spec is not None else None
        if revision is not None and isinstance(trigger, After):
            self._feed_after(record, revision, trigger)
        elif self._is_usual(record, revision):
            self._count(1, 1)
        else:
            self._feed_run(record, revision)
        self._covered = max(self._covered, _end(record))
        self._last = record
        if record.outcome is Decided.FIRED:
            self._last_fired = (record, finished_at)

    def finish(self) -> None:
        """Report expected instants after the last record."""
        self._missing(self._instants.skip(self._until))

    def unfollowed(self) -> tuple[Instant, Instant] | None:
        """Return when the last job of a fixed delay ended, and when its successor was due.

        Return None when there need not be a successor: the schedule was changed or removed, the job is live or was
        pruned, the time is not decided yet or not audited, or the last record has no job.
        """
        if self._until < self._decided_through:
            return None
        revision = self._revisions[-1] if self._revisions else None
        if revision is None or revision.spec is None or not isinstance(revision.spec.trigger, After):
            return None
        if self._last is None or self._last_fired is None or self._last_fired[0] is not self._last:
            return None
        ended = self._last_fired[1]
        if ended is None or self._last.revision != revision.revision:
            return None
        due = max(ended + revision.spec.trigger.delay, revision.spec.start or _BEGINNING)
        end = self._until if revision.spec.end is None else min(self._until, revision.spec.end)
        return (ended, due) if due + _FOLLOW_SLACK <= end else None

    def report_unfollowed(self, ended: Instant, due: Instant) -> None:
        """Report the missing successor of a fixed delay."""
        reason = f"the previous job ended at {_when(ended)}, and nothing was decided a delay later"
        self.report.expected += 1
        self.report.gaps.add(_finding(self._cursor, due, reason))

    def _in_force(self, instant: Instant) -> Revision | None:
        index = bisect_left(self._effective, instant) - 1
        return self._revisions[index] if index >= 0 else None

    def _is_usual(self, record: Occurrence, revision: Revision | None) -> bool:
        """Consume a single record for the very next instant under the right revision; return whether it is one."""
        return (
            record.count == 1
            and record.until is None
            and record.instant > self._covered
            and revision is not None
            and revision.revision == record.revision
            and self._instants.takes(record.instant)
        )

    def _feed_run(self, record: Occurrence, revision: Revision | None) -> None:
        end = _end(record)
        if record.instant <= self._covered:
            self._duplicate(record)
            skipped = self._fresh_count(record.instant, end)
            self._count(self._instants.skip(end).count, record.count)
        else:
            self._missing(self._instants.skip(record.instant - 1))
            skipped = self._instants.skip(end)
            self._count(skipped.count, record.count)
        self._explain(record, end, skipped, revision)

    def _explain(self, record: Occurrence, end: Instant, skipped: SkippedInstants, revision: Revision | None) -> None:
        """Report a record that the revision in force does not explain."""
        if end > self._decided_through:
            self._phantom(record, self._undecided())
        elif revision is None or revision.spec is None:
            self._phantom(record, "the schedule did not exist at that time")
        elif record.revision != revision.revision:
            self._phantom(record, f"decided by revision {record.revision}; revision {revision.revision} was in force")
        elif not skipped.count or skipped.first != record.instant:
            self._phantom(record, "the schedule has no such instant")
        elif record.until is not None and record.until < record.instant:
            self._phantom(record, f"the run ends at {_when(record.until)}, before it begins")
        elif skipped.last != end:
            self._phantom(record, f"the run ends at {_when(end)}, which is not an instant of the schedule")
        elif skipped.count != record.count:
            self._phantom(record, f"the run counts {record.count} instants; the schedule has {skipped.count} there")
        elif record.outcome is Decided.FIRED and record.count > 1:
            self._phantom(record, f"one job cannot stand for {record.count} instants that fired")

    def _fresh_count(self, first: Instant, end: Instant) -> SkippedInstants:
        return InstantCursor(self._expected(first - 1, self._decided_through)).skip(end)

    def _feed_after(self, record: Occurrence, revision: Revision, trigger: After) -> None:
        self._missing(self._instants.skip(record.instant - 1))  # Instants of a calendar trigger before this revision.
        reason = self._wrong_after(record, revision, trigger)
        self._count(0 if reason else 1, record.count)
        if record.instant <= self._covered:
            self._duplicate(record)
        elif reason:
            self._phantom(record, reason)

    def _wrong_after(self, record: Occurrence, revision: Revision, trigger: After) -> str | None:
        """Describe what is wrong with the record of a fixed delay."""
        if record.instant > self._decided_through:
            return self._undecided()
        if record.revision != revision.revision:
            return f"decided by revision {record.revision}; revision {revision.revision} was in force"
        if record.until is not None or record.count != 1:
            return "a fixed delay has single instants, not runs"
        if self._last_fired is not None and self._last_fired[0].revision == record.revision:
            ended = self._last_fired[1]
            if ended is not None and record.instant < ended + trigger.delay:
                delay = format_duration(trigger.delay)
                return f"earlier than {delay} after the end of the job before it, {_when(ended)}"
        return None

    def _undecided(self) -> str:
        return f"recorded, but the schedule is decided through {_when(self._decided_through)} only"

    def _missing(self, skipped: SkippedInstants) -> None:
        self.report.expected += skipped.count
        if skipped.count:
            until = skipped.last if skipped.count > 1 else None
            reason = "no record" if skipped.count == 1 else f"no record for {skipped.count} instants in a row"
            self.report.gaps.add(_finding(self._cursor, skipped.first, reason, until=until, count=skipped.count))

    def _count(self, expected: int, recorded: int) -> None:
        self.report.expected += expected
        self.report.recorded += recorded

    def _duplicate(self, record: Occurrence) -> None:
        reason = f"an earlier record covers this time through {_when(self._covered)}"
        self.report.duplicates.add(self._of_record(record, reason))

    def _phantom(self, record: Occurrence, reason: str) -> None:
        self.report.phantoms.add(self._of_record(record, reason))

    def _of_record(self, record: Occurrence, reason: str) -> AuditFinding:
        return _finding(self._cursor, record.instant, reason, until=record.until, count=record.count)


def _end(record: Occurrence) -> Instant:
    return record.instant if record.until is None else max(record.instant, record.until)


def _finding(
    cursor: Cursor, instant: Instant, reason: str, *, until: Instant | None = None, count: int = 1
) -> AuditFinding:
    return AuditFinding(
        schedule=schedule_name(cursor.key),
        tenant=cursor.tenant,
        instant=instant,
        until=until,
        count=count,
        reason=reason,
    )


# Driving ----------------------------------------------------------------------------------------------------


class AuditSource(Protocol):
    """What the audit reads. Methods may raise `StoreUnavailable`; the audit then ends and can be repeated."""

    async def keys(self, after: str, limit: int) -> list[Cursor]:
        """Return a page of all schedules by key in byte order, including removed and unreadable ones."""
        ...

    async def revisions(self, key: str) -> list[Revision]:
        """Return every definition that a schedule ever had, oldest first."""
        ...

    async def ledger(self, key: str, after: Instant, until: Instant, limit: int) -> list[Record]:
        """Return a page of records whose first instant is in (after, until], oldest first."""
        ...

    async def occurrences(self, key: str, *, before: Instant, limit: int) -> list[Occurrence]:
        """Return the newest records whose first instant is earlier than `before`, newest first."""
        ...

    async def started_by_hand(self, key: str, after: Instant) -> bool:
        """Return whether a job of the schedule without an instant was live at this time or later."""
        ...

    async def pruned_through(self) -> Instant:
        """Return the time up to which retention may have deleted decisions."""
        ...


async def audit(
    source: AuditSource, *, key: str | None = None, since: Instant | None = None, until: Instant | None = None
) -> AuditReport:
    """Audit the schedule with this key, or all, in bounded memory, while schedulers keep deciding."""
    report, after = AuditReport(), ""
    if key is not None:
        cursor = await _find(source, key)
        if cursor is None:
            raise ScheduleNotFound(f"no schedule is named {key_label(key)!r}, and none ever was")
        return await _audit_one(source, cursor, since, until, await source.pruned_through())
    while page := await source.keys(after, KEYS_PAGE):
        pruned = await source.pruned_through()
        for cursor in page:
            report.merge(await _audit_one(source, cursor, since, until, pruned))
        after = page[-1].key
    return report


async def _find(source: AuditSource, key: str) -> Cursor | None:
    """Read one schedule, also a removed one, by asking for the key after the one just before it."""
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in key):
        return None  # No store could hold or compare this text.
    page = await source.keys(_just_before(key), 2)
    return next((cursor for cursor in page if cursor.key == key), None)


def _just_before(key: str) -> str:
    if not key or key[-1] <= " ":
        return key[:-1]
    previous = ord(key[-1]) - 1
    return key[:-1] + chr(0xD7FF if 0xD800 <= previous <= 0xDFFF else previous) + chr(0x10FFFF)


async def _audit_one(
    source: AuditSource, cursor: Cursor, since: Instant | None, until: Instant | None, pruned: Instant
) -> AuditReport:
    """Audit one schedule; audit it again when missing records may have been pruned in the meantime."""
    for _ in range(_AGAIN_MAX):
        try:
            report = await _compare(source, cursor, max(pruned, _BEGINNING if since is None else since - 1), until)
        except DefinitionError as error:
            report = AuditReport(schedules=1)
            report.unreadable.add(_finding(cursor, cursor.decided_through, str(error)))
        if not report.gaps.total:
            break
        before, pruned = pruned, await source.pruned_through()
        if pruned == before:
            break
    return report


async def _compare(source: AuditSource, cursor: Cursor, after: Instant, until: Instant | None) -> AuditReport:
    key = cursor.key
    revisions = await source.revisions(key)
    if not revisions:  # A schedule is stored with its first definition, and definitions are never deleted.
        raise DefinitionError("its definitions are gone, so the expected instants are unknown")
    end = _FOREVER if until is None else until
    comparing = ScheduleAudit(cursor, revisions, after=after, until=end)
    if after > revisions[0].effective_at:
        for record in await source.occurrences(key, before=after + 1, limit=1):
            comparing.straddle(record)
    async for record, finished_at in _records(source, cursor, after, end):
        comparing.feed(record, finished_at)
    comparing.finish()
    missing = comparing.unfollowed()
    if missing is not None and not await source.started_by_hand(key, missing[0]):
        comparing.report_unfollowed(*missing)
    return comparing.report


async def _records(source: AuditSource, cursor: Cursor, after: Instant, until: Instant) -> AsyncIterator[Record]:
    """Yield records page by page, without those decided after the cursor was read."""
    while page := await source.ledger(cursor.key, after, until, LEDGER_PAGE):
        for record, finished_at in page:
            if record.instant > cursor.decided_through:
                # Decided in the meantime, or never: record and cursor are written together.
                now = await _find(source, cursor.key)
                if now is not None and now.decided_through >= record.instant:
                    return
            yield record, finished_at
        after = page[-1][0].instant
