"""The audit: recompute which instants every schedule had, and compare them with what the ledger says.

    revisions ──own expansion──► expected instants ─┐
                                                    ├─ walked side by side ──► gaps · duplicates · phantoms
    ledger ─────pages, oldest first──► records ─────┘

It must not be wrong in the same way as the scheduler, so it shares no arithmetic with it: not the planner, and not the
engine behind the triggers either. A cron text is read here once more, into plain sets of numbers, and expanded day by
day; what a local time means in UTC is asked of `zoneinfo` for both folds, and a time that does not survive the way to
UTC and back does not exist. Only the triggers' fields and the checks made when they were created are shared. Two
independent readings of the same rules are compared in the tests over random expressions and zones.

A *gap* is an expected instant, not later than `decided_through`, that no record covers. A *duplicate* is a record for
what another record covers already. A *phantom* is a record that the revision in force at its instant does not explain:
an instant it does not have, a run whose ends or count are wrong. A revision is in force from its effective time,
exclusive, to that of the next, inclusive.

A fixed delay has no instants of its own; there the audit checks that no occurrence came earlier than the end of the job
before it plus the delay, and that a job that ended has a successor once that time is decided.

Memory is bounded: expected instants come in blocks of a day that are counted without being listed, records in pages,
findings are kept up to `FINDINGS_MAX` of each kind and counted beyond it.
"""

import calendar
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, Protocol, TypeAlias
from zoneinfo import ZoneInfo

from headway.errors import DefinitionError, ScheduleNotFound
from headway.instants import DAY, INSTANT_MAX, INSTANT_MIN, MINUTE, SECOND, Instant, format_duration, isoformat
from headway.model import Decided, JsonObject, Occurrence, Revision, ScheduleSpec
from headway.scheduling.triggers import After, At, Cron, Every

FINDINGS_MAX: Final = 1_000
NAMES_PAGE: Final = 200
LEDGER_PAGE: Final = 1_000

_FOREVER: Final = 2**62
_BEGINNING: Final = -(2**62)
_AGAIN_MAX: Final = 10
# The end of a job and the next instant that follows from it are written by two statements of one transaction.
_FOLLOW_SLACK: Final = MINUTE

Cursor: TypeAlias = tuple[str, Instant]  # A schedule's name, and the time through which it is decided.
Record: TypeAlias = tuple[Occurrence, Instant | None]  # A record of the ledger and the end of its job.


# Blocks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Block:
    """Instants in order: base + times[low], …, base + times[high - 1]. `times` may be a range and is never copied."""

    base: Instant
    times: Sequence[int]
    low: int
    high: int

    def position(self, instant: Instant) -> int:
        """Return the index behind the last time that is not later."""
        return bisect_right(self.times, instant - self.base, self.low, self.high)

    def clipped(self, after: Instant, until: Instant) -> "_Block":
        return _Block(self.base, self.times, self.position(after), self.position(until))


def _blocks(spec: ScheduleSpec, after: Instant, until: Instant) -> Iterator[_Block]:
    """Yield the instants of a schedule in (after, until] as blocks, none of them empty."""
    if spec.start is not None:
        after = max(after, spec.start - 1)
    if spec.end is not None:
        until = min(until, spec.end)
    if after >= until:
        return
    for block in _trigger_blocks(spec, after, until):
        clipped = block.clipped(after, until)
        if clipped.low < clipped.high:
            yield clipped


def _trigger_blocks(spec: ScheduleSpec, after: Instant, until: Instant) -> Iterator[_Block]:
    match spec.trigger:
        case Cron() as cron:
            yield from _cron_blocks(cron, after, until)
        case Every() as every:
            yield _every_block(every, after, until)
        case At() as at:
            yield _Block(at.instant, (0,), 0, 1)
        case After():
            return


def _every_block(every: Every, after: Instant, until: Instant) -> _Block:
    start = every.start or 0
    steps = max(0, -(-(after + 1 - start) // every.interval))  # Rounded up: the first one that is not before.
    times = range(start + steps * every.interval, until + 1, every.interval)
    return _Block(0, times, 0, len(times))


def expected(spec: ScheduleSpec, after: Instant, until: Instant) -> Iterator[Instant]:
    """Yield the instants that a schedule has in (after, until], in order; none for a fixed delay."""
    for block in _blocks(spec, after, until):
        for index in range(block.low, block.high):
            yield block.base + block.times[index]


def count_expected(spec: ScheduleSpec, after: Instant, until: Instant) -> int:
    """Count the instants that a schedule has in (after, until], by days where the clock is steady."""
    return sum(block.high - block.low for block in _blocks(spec, after, until))


# Cron, read once more ---------------------------------------------------------------------------------------

_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_WORDS: Final = {
    **{name: number for number, name in enumerate("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split(), 1)},
    **{name: number for number, name in enumerate("SUN MON TUE WED THU FRI SAT".split())},
}
_YEARS: Final = (1970, 2199)
_DAY_S: Final = 86_400
_EPOCH_DAY: Final = datetime(1970, 1, 1, tzinfo=UTC).toordinal()
_ORDINALS: Final = tuple(datetime(year, 1, 1, tzinfo=UTC).toordinal() for year in (_YEARS[0], _YEARS[1] + 1))


def _number(text: str) -> int:
    return _WORDS[text] if text in _WORDS else int(text)


def _values(text: str, low: int, high: int) -> frozenset[int]:
    """List the values of a field that has no special letters."""
    found: set[int] = set()
    for item in text.split(","):
        base, _, step = item.partition("/")
        if base in ("*", "?"):
            first, last = low, high
        elif "-" in base:
            first, last = (_number(end) for end in base.split("-"))
        else:
            first = last = _number(base)
            last = high if step else last
        if last < first:  # Around the corner: 22-2.
            last += high - low + 1
        found.update((value - low) % (high - low + 1) + low for value in range(first, last + 1, int(step or 1)))
    return frozenset(found)


def _weekday_values(text: str) -> frozenset[int]:
    """List plain weekdays, 0 to 6; 7 is Sunday again, and a Sunday that begins something is 0."""
    items = []
    for item in text.split(","):
        begins, dash, rest = item.partition("-")
        if begins == "7" or begins.startswith("7/"):
            begins = "0" + begins[1:]
            rest = "0" + rest[1:] if rest.startswith("7") else rest
        items.append(begins + dash + rest)
    return _values(",".join(items), 0, 6)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A cron text as sets of numbers, and the seconds of a day as one sorted list, in microseconds."""

    times: Sequence[int]
    hours: frozenset[int]
    every_hour: bool
    day: str
    month: frozenset[int]
    weekday: str
    year: frozenset[int]
    days_of_months: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)

    def has_day(self, ordinal: int) -> bool:
        """Say whether the expression runs on this day of the local calendar."""
        if not _ORDINALS[0] <= ordinal < _ORDINALS[1]:
            return False
        day = datetime.fromordinal(ordinal)
        if day.month not in self.month or day.year not in self.year:
            return False
        key = (day.year, day.month)
        days = self.days_of_months.get(key)
        if days is None:
            days = self.days_of_months[key] = self._days(*key)
        return day.day in days

    def _days(self, year: int, month: int) -> frozenset[int]:
        length = calendar.monthrange(year, month)[1]
        weekdays = {day: datetime(year, month, day, tzinfo=UTC).isoweekday() % 7 for day in range(1, length + 1)}
        by_date = frozenset().union(*(_dates(item, weekdays) for item in self.day.split(",")))
        by_weekday = frozenset().union(*(_weekdays(item, weekdays) for item in self.weekday.split(",")))
        if self.day[0] in "*?" or self.weekday[0] in "*?":
            return by_date & by_weekday
        return by_date | by_weekday


def _dates(item: str, weekdays: dict[int, int]) -> frozenset[int]:
    """List the days of a month that one item of the day-of-month field means."""
    length = len(weekdays)
    if item.endswith("W"):
        target = length if item == "LW" else int(item[:-1])
        if target > length:
            return frozenset()
        working = [day for day, weekday in weekdays.items() if weekday not in (0, 6)]
        return frozenset({min(working, key=lambda day: (abs(day - target), day))})
    if item.startswith("L"):
        last = length - int(item[2:] or 0)
        return frozenset({last} if last >= 1 else ())
    return _values(item, 1, 31) & weekdays.keys()


def _weekdays(item: str, weekdays: dict[int, int]) -> frozenset[int]:
    """List the days of a month that one item of the day-of-week field means."""
    name, hash_sign, nth = item.partition("#")
    if hash_sign or (item.endswith("L") and item[:-1]):
        wanted = _number(name if hash_sign else item[:-1]) % 7
        days = [day for day, weekday in weekdays.items() if weekday == wanted]
        if not hash_sign:
            return frozenset(days[-1:])
        return frozenset(days[int(nth) - 1 : int(nth)])
    plain = _weekday_values(item)
    return frozenset(day for day, weekday in weekdays.items() if weekday in plain)


@lru_cache(maxsize=64)
def _read(expr: str, seconds: str | None) -> _Reading:
    columns = _MACROS.get(expr, expr).split()
    if seconds is not None:
        columns = [seconds, *columns]
    elif len(columns) < 7:
        columns = ["0", *columns]
    second, minute, hour, day, month, weekday, year = [*columns, "*"][:7]
    hours = _values(hour, 0, 23)
    minutes, second_values = sorted(_values(minute, 0, 59)), sorted(_values(second, 0, 59))
    return _Reading(
        times=array(
            "q",
            ((h * 60 + m) * 60 * SECOND + s * SECOND for h in sorted(hours) for m in minutes for s in second_values),
        ),
        hours=hours,
        every_hour="*" in hour or "/" in hour or len(hours) == 24,
        day=day,
        month=_values(month, 1, 12),
        weekday=weekday,
        year=_values(year, *_YEARS),
    )


# Local times ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def _offset_s(local: datetime, zone: ZoneInfo, fold: int) -> int:
    offset = local.replace(tzinfo=zone, fold=fold).utcoffset()
    assert offset is not None
    return offset // timedelta(seconds=1)


def _one_offset(moments: Iterable[datetime], zone: ZoneInfo) -> int | None:
    """Return the offset that all of these local times have in both folds; None when they differ."""
    offsets = {_offset_s(local, zone, fold) for local in moments for fold in (0, 1)}
    return offsets.pop() if len(offsets) == 1 else None


@lru_cache(maxsize=65_536)
def _steady_offset(zone_name: str, ordinal: int) -> int | None:
    """Return the offset of a local day on which no clock is changed, else None.

    No zone has changed twice within six hours, so a change shows at one of these times, or between two of them.
    """
    day = datetime.fromordinal(ordinal)
    moments = [day + timedelta(hours=hours) for hours in (0, 6, 12, 18)]
    return _one_offset([*moments, day + timedelta(hours=24, seconds=-1)], _zone(zone_name))


def _cron_blocks(cron: Cron, after: Instant, until: Instant) -> Iterator[_Block]:
    """Yield one block per local day, and one for all neighbouring days in which clocks are changed.

    A change can move what belongs to a day past midnight, so the day after a change is never taken alone.
    """
    reading = _read(cron.expr, cron.seconds)
    first = max(_EPOCH_DAY + after // DAY - 2, _ORDINALS[0] - 1)
    last = min(_EPOCH_DAY + until // DAY + 1, _ORDINALS[1])
    unsteady: list[int] = []
    for ordinal in range(first, last + 1):
        offset = _steady_offset(cron.tz, ordinal)
        if offset is None:
            unsteady.append(ordinal)
            continue
        if unsteady:
            yield _unsteady_block(cron, reading, [*unsteady, ordinal])
            unsteady = []
        elif reading.has_day(ordinal):
            base = (ordinal - _EPOCH_DAY) * DAY - offset * SECOND
            yield _Block(base, reading.times, 0, len(reading.times))
    if unsteady:
        yield _unsteady_block(cron, reading, unsteady)


def _unsteady_block(cron: Cron, reading: _Reading, ordinals: list[int]) -> _Block:
    found: set[int] = set()
    for ordinal in ordinals:
        if reading.has_day(ordinal):
            for hour in reading.hours:
                found.update(_hour_seconds(cron, reading, datetime.fromordinal(ordinal), hour))
    times = array("q", (second * SECOND for second in sorted(found)))
    return _Block(0, times, 0, len(times))


def _hour_seconds(cron: Cron, reading: _Reading, day: datetime, hour: int) -> Iterator[int]:
    """Yield the UTC seconds at which the local times of one hour of one day run."""
    low = bisect_left(reading.times, hour * 3_600 * SECOND)
    high = bisect_left(reading.times, (hour + 1) * 3_600 * SECOND)
    labels = [time // SECOND for time in reading.times[low:high]]
    zone, start = _zone(cron.tz), day + timedelta(hours=hour)
    midnight = (day.toordinal() - _EPOCH_DAY) * _DAY_S
    offset = _one_offset((start, start + timedelta(seconds=3_599)), zone)
    for label in labels:
        if offset is not None:
            yield midnight + label - offset
        else:
            yield from _seconds_of(cron, reading, day + timedelta(seconds=label), zone)


def _seconds_of(cron: Cron, reading: _Reading, local: datetime, zone: ZoneInfo) -> list[int]:
    """Return the UTC seconds at which one local time runs, under the schedule's rule for clock changes."""
    naive_s = (local.toordinal() - _EPOCH_DAY) * _DAY_S + (local - datetime.fromordinal(local.toordinal())).seconds
    both = sorted({naive_s - _offset_s(local, zone, fold) for fold in (0, 1)})
    shown = [second for second in both if _local(second, zone) == local]
    if reading.every_hour:
        return shown  # An interval, not a time of day: whatever the clock shows runs.
    if not shown:
        return [] if cron.dst == "skip" else [_end_of_gap(both[0], both[-1], zone)]
    return shown if cron.dst == "both" else shown[:1]


def _local(second: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(second, zone).replace(tzinfo=None, fold=0)


def _end_of_gap(before: int, behind: int, zone: ZoneInfo) -> int:
    """Return the first second with the new offset; the change lies in (before, behind]."""
    old = datetime.fromtimestamp(before, zone).utcoffset()
    while behind - before > 1:
        middle = (before + behind) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == old:
            before = middle
        else:
            behind = middle
    return behind


# Comparing --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something in the ledger that should not be so, for one instant or a run of them."""

    schedule: str
    instant: Instant
    reason: str
    until: Instant | None = None
    count: int = 1

    def to_dict(self) -> JsonObject:
        """Write the JSON form; a run of instants has `until`."""
        until = {} if self.until is None else {"until": _when(self.until)}
        return {
            "schedule": self.schedule,
            "instant": _when(self.instant),
            **until,
            "count": self.count,
            "reason": self.reason,
        }


@dataclass(slots=True)
class Findings:
    """Findings of one kind: the first ones in full, all of them counted."""

    kept: list[Finding] = field(default_factory=list)
    total: int = 0

    def add(self, *findings: Finding) -> None:
        """Keep findings while there is room, and count them."""
        self.kept.extend(findings[: FINDINGS_MAX - len(self.kept)])
        self.total += len(findings)

    def merge(self, other: "Findings") -> None:
        """Take over what another list has."""
        self.kept.extend(other.kept[: FINDINGS_MAX - len(self.kept)])
        self.total += other.total


@dataclass(slots=True, kw_only=True)
class AuditReport:
    """What the audit of one or many schedules found. `unreadable` are schedules that could not be audited."""

    schedules: int = 0
    expected: int = 0
    recorded: int = 0
    gaps: Findings = field(default_factory=Findings)
    duplicates: Findings = field(default_factory=Findings)
    phantoms: Findings = field(default_factory=Findings)
    unreadable: Findings = field(default_factory=Findings)

    @property
    def ok(self) -> bool:
        """Say whether the ledger is exactly what the schedules explain."""
        return not (self.gaps.total or self.duplicates.total or self.phantoms.total or self.unreadable.total)

    def merge(self, other: "AuditReport") -> None:
        """Add what another report says."""
        self.schedules += other.schedules
        self.expected += other.expected
        self.recorded += other.recorded
        for mine, theirs in zip(self._findings().values(), other._findings().values(), strict=True):
            mine.merge(theirs)

    def to_dict(self) -> JsonObject:
        """Write the JSON form: the first findings of each kind, and how many there are in all."""
        kinds = self._findings()
        return {
            "schedules": self.schedules,
            "expected": self.expected,
            "recorded": self.recorded,
            **{kind: [finding.to_dict() for finding in findings.kept] for kind, findings in kinds.items()},
            "totals": {kind: findings.total for kind, findings in kinds.items()},
            "ok": self.ok,
        }

    def _findings(self) -> dict[str, Findings]:
        return {
            "gaps": self.gaps,
            "duplicates": self.duplicates,
            "phantoms": self.phantoms,
            "unreadable": self.unreadable,
        }


def _when(instant: Instant) -> str:
    if INSTANT_MIN <= instant <= INSTANT_MAX:
        return isoformat(instant)
    return f"{instant} µs"  # A ledger that was tampered with may hold any number.


@dataclass(frozen=True, slots=True)
class _Passed:
    """The expected instants that one step passed over."""

    count: int = 0
    first: Instant = 0
    last: Instant = 0


class _Tape:
    """Expected instants, passed over once, from front to back."""

    def __init__(self, blocks: Iterator[_Block]) -> None:
        self._blocks = blocks
        self._block: _Block | None = next(blocks, None)
        self._index = self._block.low if self._block else 0

    def takes(self, instant: Instant) -> bool:
        """Pass over this instant if it is the next one: the usual case."""
        block = self._block
        if block is None or block.base + block.times[self._index] != instant:
            return False
        self._index += 1
        if self._index == block.high:
            self._next_block()
        return True

    def skip(self, until: Instant) -> _Passed:
        """Pass over everything that is not later, and say what it was."""
        count = first = last = 0
        while (block := self._block) is not None:
            position = max(self._index, block.position(until))
            if position > self._index:
                first = first if count else block.base + block.times[self._index]
                last = block.base + block.times[position - 1]
                count += position - self._index
                self._index = position
            if position < block.high:
                break
            self._next_block()
        return _Passed(count, first, last)

    def _next_block(self) -> None:
        self._block = next(self._blocks, None)
        self._index = self._block.low if self._block else 0


class ScheduleAudit:
    """Compares one schedule's records, fed oldest first, with the instants its revisions explain."""

    def __init__(
        self, name: str, revisions: Sequence[Revision], *, decided_through: Instant, after: Instant, until: Instant
    ) -> None:
        self.report = AuditReport(schedules=1)
        self._name = name
        self._revisions = sorted(revisions, key=lambda revision: revision.revision)
        self._effective = [revision.effective_at for revision in self._revisions]
        self._decided_through = decided_through
        self._until = min(until, decided_through)
        self._tape = _Tape(self._expected(after, decided_through))
        self._covered = after
        self._last_fired: tuple[Occurrence, Instant | None] | None = None
        self._last: Occurrence | None = None

    def _expected(self, after: Instant, until: Instant) -> Iterator[_Block]:
        ends = [*self._effective[1:], until]
        for revision, end in zip(self._revisions, ends, strict=True):
            if revision.spec is not None:
                yield from _blocks(revision.spec, max(after, revision.effective_at), min(until, end))

    def straddle(self, record: Occurrence) -> None:
        """Take a run that began before the time that is looked at, and reaches into it."""
        if record.until is not None and record.until > self._covered:
            passed = self._tape.skip(record.until)
            self._count(passed.count, passed.count)
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
        """Report what is expected behind the last record."""
        self._missing(self._tape.skip(self._until))

    def unfollowed(self) -> tuple[Instant, Instant] | None:
        """Return when the job of the last record of a fixed delay ended, and when its successor was due.

        None when the successor need not be there: the schedule was changed or removed, the job is live or was
        pruned, the time is not decided yet or not looked at, or something other than a job was recorded last.
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
        reason = f"the job before it ended at {_when(ended)}, and nothing was decided a delay later"
        self.report.expected += 1
        self.report.gaps.add(Finding(schedule=self._name, instant=due, reason=reason))

    def _in_force(self, instant: Instant) -> Revision | None:
        index = bisect_left(self._effective, instant) - 1
        return self._revisions[index] if index >= 0 else None

    def _is_usual(self, record: Occurrence, revision: Revision | None) -> bool:
        """Take a single record for the very next instant, under the right revision."""
        return (
            record.count == 1
            and record.until is None
            and record.instant > self._covered
            and revision is not None
            and revision.revision == record.revision
            and self._tape.takes(record.instant)
        )

    def _feed_run(self, record: Occurrence, revision: Revision | None) -> None:
        end = _end(record)
        if record.instant <= self._covered:
            self._duplicate(record)
            passed = self._fresh_count(record.instant, end)
            self._count(self._tape.skip(end).count, record.count)
        else:
            self._missing(self._tape.skip(record.instant - 1))
            passed = self._tape.skip(end)
            self._count(passed.count, record.count)
        self._explain(record, end, passed, revision)

    def _explain(self, record: Occurrence, end: Instant, passed: _Passed, revision: Revision | None) -> None:
        """Report a record that the revision in force does not explain."""
        if end > self._decided_through:
            self._phantom(record, self._undecided())
        elif revision is None or revision.spec is None:
            self._phantom(record, "the schedule did not exist at that time")
        elif record.revision != revision.revision:
            self._phantom(record, f"decided by revision {record.revision}; revision {revision.revision} was in force")
        elif not passed.count or passed.first != record.instant:
            self._phantom(record, "the schedule has no such instant")
        elif record.until is not None and record.until < record.instant:
            self._phantom(record, f"the run ends at {_when(record.until)}, before it begins")
        elif passed.last != end:
            self._phantom(record, f"the run ends at {_when(end)}, which is no instant of the schedule")
        elif passed.count != record.count:
            self._phantom(record, f"the run counts {record.count} instants; the schedule has {passed.count} there")
        elif record.outcome is Decided.FIRED and record.count > 1:
            self._phantom(record, f"one job cannot stand for {record.count} instants that fired")

    def _fresh_count(self, first: Instant, end: Instant) -> _Passed:
        return _Tape(self._expected(first - 1, self._decided_through)).skip(end)

    def _feed_after(self, record: Occurrence, revision: Revision, trigger: After) -> None:
        self._missing(self._tape.skip(record.instant - 1))  # What a calendar had before this revision.
        reason = self._wrong_after(record, revision, trigger)
        self._count(0 if reason else 1, record.count)
        if record.instant <= self._covered:
            self._duplicate(record)
        elif reason:
            self._phantom(record, reason)

    def _wrong_after(self, record: Occurrence, revision: Revision, trigger: After) -> str | None:
        """Say what is wrong with the record of a fixed delay."""
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

    def _missing(self, passed: _Passed) -> None:
        self.report.expected += passed.count
        if passed.count:
            until = passed.last if passed.count > 1 else None
            reason = "no record" if passed.count == 1 else f"no record for {passed.count} instants in a row"
            finding = Finding(schedule=self._name, instant=passed.first, until=until, count=passed.count, reason=reason)
            self.report.gaps.add(finding)

    def _count(self, expected: int, recorded: int) -> None:
        self.report.expected += expected
        self.report.recorded += recorded

    def _duplicate(self, record: Occurrence) -> None:
        reason = f"an earlier record covers this time through {_when(self._covered)}"
        self.report.duplicates.add(_finding(record, self._name, reason))

    def _phantom(self, record: Occurrence, reason: str) -> None:
        self.report.phantoms.add(_finding(record, self._name, reason))


def _end(record: Occurrence) -> Instant:
    return record.instant if record.until is None else max(record.instant, record.until)


def _finding(record: Occurrence, schedule: str, reason: str) -> Finding:
    return Finding(
        schedule=schedule,
        instant=record.instant,
        until=record.until,
        count=record.count,
        reason=reason,
    )


def audit_schedule(
    revisions: Sequence[Revision],
    decided_through: Instant,
    records: Iterable[Record],
    *,
    since: Instant | None = None,
    until: Instant | None = None,
) -> AuditReport:
    """Compare all records of one schedule, oldest first, with what its revisions explain in [since, until]."""
    after, end = _BEGINNING if since is None else since - 1, _FOREVER if until is None else until
    name = revisions[0].schedule if revisions else ""
    comparing = ScheduleAudit(name, revisions, decided_through=decided_through, after=after, until=end)
    for record, finished_at in records:
        if record.instant <= after:
            comparing.straddle(record)
        elif record.instant <= end:
            comparing.feed(record, finished_at)
    comparing.finish()
    if (missing := comparing.unfollowed()) is not None:
        comparing.report_unfollowed(*missing)
    return comparing.report


# Driving ----------------------------------------------------------------------------------------------------


class AuditSource(Protocol):
    """What the audit reads. Methods may raise `StoreUnavailable`; the audit then ends, and can be run again."""

    async def names(self, after: str, limit: int) -> list[Cursor]:
        """Return a page of all schedules, also removed ones and such that cannot be read, by name in byte order."""
        ...

    async def revisions(self, name: str) -> list[Revision]:
        """Return every definition that a schedule ever had, oldest first."""
        ...

    async def ledger(self, name: str, after: Instant, until: Instant, limit: int) -> list[Record]:
        """Return a page of records whose first instant is in (after, until], oldest first."""
        ...

    async def occurrences(self, name: str, *, before: Instant, limit: int) -> list[Occurrence]:
        """Return the newest records whose first instant is earlier than `before`, newest first."""
        ...

    async def started_by_hand(self, name: str, after: Instant) -> bool:
        """Say whether a job of the schedule that belongs to no instant was live at this time or later."""
        ...

    async def pruned_through(self) -> Instant:
        """Return the time up to which decisions may have been deleted because of their age."""
        ...


async def audit(
    source: AuditSource, *, schedule: str | None = None, since: Instant | None = None, until: Instant | None = None
) -> AuditReport:
    """Audit one schedule or all of them, in bounded memory, while schedulers may go on deciding."""
    report = AuditReport()
    if schedule is not None:
        found = await _find(source, schedule)
        if found is None:
            raise ScheduleNotFound(f"no schedule is named {schedule!r}, and none ever was")
        report.merge(await _audit_one(source, found, since, until))
        return report
    async for cursor in _all(source):
        report.merge(await _audit_one(source, cursor, since, until))
    return report


async def _all(source: AuditSource) -> AsyncIterator[Cursor]:
    after = ""
    while page := await source.names(after, NAMES_PAGE):
        for cursor in page:
            yield cursor
        after = page[-1][0]


async def _find(source: AuditSource, name: str) -> Cursor | None:
    """Read one schedule, also a removed one, by asking for what follows the name just before it."""
    page = await source.names(_just_before(name), 2)
    return next((cursor for cursor in page if cursor[0] == name), None)


def _just_before(name: str) -> str:
    if not name or name[-1] <= " ":
        return name[:-1]
    previous = ord(name[-1]) - 1
    return name[:-1] + chr(0xD7FF if 0xD800 <= previous <= 0xDFFF else previous) + chr(0x10FFFF)


async def _audit_one(source: AuditSource, cursor: Cursor, since: Instant | None, until: Instant | None) -> AuditReport:
    """Audit one schedule; once more when what it misses may have been pruned meanwhile."""
    pruned = await source.pruned_through()
    for _ in range(_AGAIN_MAX):
        try:
            report = await _compare(source, cursor, max(pruned, _BEGINNING if since is None else since - 1), until)
        except DefinitionError as error:
            report = AuditReport(schedules=1)
            report.unreadable.add(Finding(schedule=cursor[0], instant=cursor[1], reason=str(error)))
        if not report.gaps.total:
            break
        before, pruned = pruned, await source.pruned_through()
        if pruned == before:
            break
    return report


async def _compare(source: AuditSource, cursor: Cursor, after: Instant, until: Instant | None) -> AuditReport:
    name, decided_through = cursor
    revisions = await source.revisions(name)
    end = _FOREVER if until is None else until
    comparing = ScheduleAudit(name, revisions, decided_through=decided_through, after=after, until=end)
    if revisions and after > revisions[0].effective_at:
        for record in await source.occurrences(name, before=after + 1, limit=1):
            comparing.straddle(record)
    async for record, finished_at in _records(source, cursor, after, end):
        comparing.feed(record, finished_at)
    comparing.finish()
    missing = comparing.unfollowed()
    if missing is not None and not await source.started_by_hand(name, missing[0]):
        comparing.report_unfollowed(*missing)
    return comparing.report


async def _records(source: AuditSource, cursor: Cursor, after: Instant, until: Instant) -> AsyncIterator[Record]:
    """Yield records page by page; those that were decided after the cursor was read are left out."""
    name, decided_through = cursor
    while page := await source.ledger(name, after, until, LEDGER_PAGE):
        for record, finished_at in page:
            if record.instant > decided_through:
                # Decided meanwhile, or never: the record and the cursor are written together.
                now = await _find(source, name)
                if now is not None and now[1] >= record.instant:
                    return
            yield record, finished_at
        after = page[-1][0].instant
