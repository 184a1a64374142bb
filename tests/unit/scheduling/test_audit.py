"""The audit: its own expansion against the engine's, every kind of finding, and the ledger of a real store."""

import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import count

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headway.core.clock import Clock
from headway.core.errors import InvalidSchedule, ScheduleNotFound
from headway.core.instants import DAY, HOUR, MINUTE, SECOND, Instant, isoformat, parse_instant
from headway.core.lifecycle import Attempt, Succeeded, settle
from headway.core.occurrences import Cursor, Decided, Occurrence
from headway.core.ports import Shards
from headway.core.schedule_names import ScheduleRef
from headway.core.schedules import Revision, ScheduleSpec
from headway.core.triggers import After, At, CalendarTrigger, Cron, Every, Trigger
from headway.scheduling import audit as audit_module
from headway.scheduling.audit import AuditFinding, AuditFindings, AuditReport, Record, ScheduleAudit, audit
from headway.scheduling.expansion import Block, blocks_of, expected
from headway.scheduling.planner import plan
from headway.store import Store
from headway.store.migrations import migrate
from headway.store.sqlite import InlineSqliteDriver, SqliteConnection
from tests.unit.scheduling.cron_oracle import changes_of, zones_with_changes

NOON = parse_instant("2027-01-01T12:00Z")
EVERYTHING = Shards(of=1, held=frozenset({0}))


def count_expected(spec: ScheduleSpec, after: Instant, until: Instant) -> int:
    """Count the instants of a schedule in (after, until], by days where the UTC offset is constant."""
    return sum(block.high - block.low for block in blocks_of(spec, after, until))


def spec(trigger: Trigger, **options: object) -> ScheduleSpec:
    return ScheduleSpec.build(task="work", trigger=trigger, **options)


def by_engine(trigger: CalendarTrigger, after: Instant, until: Instant) -> list[Instant]:
    found, instant = [], trigger.next_after(after)
    while instant is not None and instant <= until:
        found.append(instant)
        instant = trigger.next_after(instant)
    return found


# The expansion ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "tz", "dst", "around", "instants"),
    [
        ("30 2 * * *", "Europe/Berlin", "shift", "2027-03-28", ["2027-03-28T01:00:00Z"]),
        ("30 2 * * *", "Europe/Berlin", "skip", "2027-03-28", []),
        ("30 2 * * *", "Europe/Berlin", "shift", "2027-10-31", ["2027-10-31T00:30:00Z"]),
        ("30 2 * * *", "Europe/Berlin", "both", "2027-10-31", ["2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z"]),
        ("30 2 * * *", "America/New_York", "shift", "2027-03-14", ["2027-03-14T07:00:00Z"]),
        ("30 1 * * *", "America/New_York", "shift", "2027-11-07", ["2027-11-07T05:30:00Z"]),
        ("15 2 * * *", "Australia/Lord_Howe", "shift", "2027-10-02", ["2027-10-02T15:30:00Z"]),
        ("0 0 * * *", "America/Santiago", "shift", "2027-09-05", ["2027-09-05T04:00:00Z"]),
        ("0 0 1 1 *", "Asia/Kathmandu", "shift", "2026-12-31", ["2026-12-31T18:15:00Z"]),
        ("0 9 30 12 *", "Pacific/Apia", "shift", "2011-12-30", ["2011-12-30T10:00:00Z"]),  # A day that does not exist.
    ],
)
def test_reference_instants(expr: str, tz: str, dst: str, around: str, instants: list[str]) -> None:
    start = parse_instant(around)
    found = expected(spec(Cron(expr, tz=tz, dst=dst)), start - 1, start + DAY - 1)  # type: ignore[arg-type]
    assert [isoformat(instant) for instant in found] == instants


MONTH_WORDS = st.sampled_from("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split())
DAY_WORDS = st.sampled_from("SUN MON TUE WED THU FRI SAT".split())


def items(numbers: st.SearchStrategy[int], words: st.SearchStrategy[str] | None = None) -> st.SearchStrategy[str]:
    value = numbers.map(str) if words is None else numbers.map(str) | words
    steps = st.integers(1, 5).map(lambda step: f"/{step}")
    return st.one_of(
        st.just("*"),
        steps.map(lambda step: "*" + step),
        value,
        st.tuples(value, value).map("-".join),
        st.tuples(value, value, steps).map(lambda parts: f"{parts[0]}-{parts[1]}{parts[2]}"),
        st.tuples(value, steps).map("".join),
    )


def lists(item: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(item, min_size=1, max_size=3).map(",".join)


DAYS = items(st.integers(1, 31)) | st.sampled_from("L L-1 L-3 L-30 LW 1W 15W 31W ?".split())
WEEKDAYS = items(st.integers(0, 7), DAY_WORDS) | st.sampled_from("5L SUNL 7L FRI#2 0#5 7#1 ?".split())
EXPRESSIONS = st.tuples(
    st.just("0") | lists(items(st.integers(0, 59))),
    lists(items(st.integers(0, 59))),
    lists(items(st.integers(0, 23))),
    lists(DAYS),
    st.just("*") | lists(items(st.integers(1, 12), MONTH_WORDS)),
    lists(WEEKDAYS),
    st.just("*"),
).map(" ".join)


def cron_of(expr: str, tz: str, dst: str = "shift") -> Cron:
    try:
        return Cron(expr, tz=tz, dst=dst)  # type: ignore[arg-type]
    except InvalidSchedule:  # A random expression may match no day at all.
        assume(False)
        raise


@pytest.mark.slow
@given(
    EXPRESSIONS,
    st.sampled_from(zones_with_changes()),
    st.sampled_from(["shift", "skip", "both"]),
    st.integers(2021, 2029),
    st.data(),
)
@settings(max_examples=80, deadline=None)
def test_expansion_equals_the_engines(expr: str, tz: str, dst: str, year: int, data: st.DataObject) -> None:
    cron = cron_of(expr, tz, dst)
    changes = changes_of(tz, year) or (parse_instant(f"{year}-06-01") // SECOND,)
    middle = data.draw(st.sampled_from(changes)) * SECOND
    after = middle - data.draw(st.integers(0, 3 * DAY))
    until = middle + data.draw(st.integers(0, 3 * DAY))
    seen, instant = [], cron.next_after(after)
    for ours in expected(spec(cron), after, until):
        assert ours == instant, f"{isoformat(ours)} here, {instant and isoformat(instant)} there"
        seen.append(ours)
        if len(seen) == 1_000:
            return
        instant = cron.next_after(ours)
    assert instant is None or instant > until
    assert count_expected(spec(cron), after, until) == len(seen) == cron.count_between(after, until)


@pytest.mark.slow
@given(EXPRESSIONS, st.sampled_from(zones_with_changes()), st.integers(2000, 2100))
@settings(max_examples=30, deadline=None)
def test_count_over_years_equals_the_engines(expr: str, tz: str, year: int) -> None:
    cron = cron_of(expr, tz)
    after = parse_instant(f"{year}-05-05T05:05:05Z")
    until = after + 400 * DAY
    assert count_expected(spec(cron), after, until) == cron.count_between(after, until)


@given(
    st.integers(100_000, 10**10),
    st.none() | st.integers(0, 10**11),
    st.integers(-(10**9), 10**11),
    st.integers(0, 10**9),
)
@settings(max_examples=150, deadline=None)
def test_fixed_rate_equals_the_engines(interval: int, start: int | None, after: int, length: int) -> None:
    every = Every(interval / SECOND, start=start)
    length = min(length, 200 * every.interval)
    assert list(expected(spec(every), after, after + length)) == by_engine(every, after, after + length)


def test_macros_years_seconds_and_names_are_parsed() -> None:
    for cron in (
        Cron("@weekly"),
        Cron("@yearly", tz="Asia/Tokyo"),
        Cron("0 2 * * * 2028"),
        Cron("*/20 0 12 * FEB MON-FRI *"),
        Cron("0 12 * * 6-1", seconds="*/30"),
        Cron("0 12 L * 5L"),
        Cron("0 12 ? * FRI#2"),
    ):
        assert list(expected(spec(cron), NOON, NOON + 800 * DAY)) == by_engine(cron, NOON, NOON + 800 * DAY)


def test_start_and_end_are_respected() -> None:
    limited = spec(Every("1h"), start=isoformat(NOON), end=isoformat(NOON + 2 * HOUR))
    assert list(expected(limited, 0, NOON + DAY)) == [NOON, NOON + HOUR, NOON + 2 * HOUR]
    assert list(expected(spec(At(isoformat(NOON))), NOON - 1, NOON)) == [NOON]
    assert list(expected(spec(At(isoformat(NOON))), NOON, NOON + DAY)) == []
    assert list(expected(spec(After("1m")), NOON, NOON + DAY)) == []


def test_long_ranges_are_counted_by_days(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = count()
    monkeypatch.setattr(Block, "clipped", _counting(Block.clipped, blocks))
    every_second = Cron("* * * * * * *", tz="Europe/Berlin")
    assert count_expected(spec(every_second), NOON, NOON + 365 * DAY) == 365 * 86_400
    assert count_expected(spec(Every("100ms")), NOON, NOON + 3_650 * DAY) == 3_650 * 864_000
    assert next(blocks) < 400


def _counting(method: Callable[..., object], calls: "count[int]") -> Callable[..., object]:
    def counted(*args: object) -> object:
        next(calls)
        return method(*args)

    return counted


def test_minutes_are_audited_record_by_record() -> None:
    minutely = spec(Cron("* * * * *", tz="Europe/Berlin"))
    assert sum(1 for _ in expected(minutely, NOON, NOON + 365 * DAY)) == 525_600
    start, end = NOON + 60 * DAY, NOON + 90 * DAY  # Includes the DST change in March.
    records = ((record(instant), None) for instant in expected(minutely, start, end))
    report = audit_schedule([revision(minutely, effective_at=start)], end, records)
    assert (report.ok, report.expected, report.recorded) == (True, 43_200, 43_200)


# Findings, by hand ------------------------------------------------------------------------------------------

HOURLY = spec(Every("1h"))


def revision(definition: ScheduleSpec | None, number: int = 1, effective_at: Instant = NOON) -> Revision:
    return Revision(schedule="s", revision=number, effective_at=effective_at, spec=definition, author="")


def record(
    instant: Instant,
    until: Instant | None = None,
    count: int = 1,
    *,
    outcome: Decided = Decided.FIRED,
    number: int = 1,
) -> Occurrence:
    return Occurrence(
        schedule="s", instant=instant, until=until, count=count, outcome=outcome, reason="", decided_at=instant,
        revision=number,
    )  # fmt: skip


def run(first: Instant, last: Instant, count: int, **more: int) -> Occurrence:
    return record(first, last, count, outcome=Decided.MISSED, **more)


def hour(n: int) -> Instant:
    return NOON + n * HOUR


FIVE = hour(5)


def audit_schedule(
    revisions: Sequence[Revision],
    decided_through: Instant,
    records: Iterable[Record],
    *,
    since: Instant | None = None,
    until: Instant | None = None,
) -> AuditReport:
    """Compare all records of one schedule, oldest first, with what its revisions explain in [since, until]."""
    after, end = -(2**62) if since is None else since - 1, 2**62 if until is None else until
    cursor = Cursor(revisions[0].schedule if revisions else "", decided_through)
    comparing = ScheduleAudit(cursor, revisions, after=after, until=end)
    for record, finished_at in records:
        if record.instant <= after:
            comparing.straddle(record)
        elif record.instant <= end:
            comparing.feed(record, finished_at)
    comparing.finish()
    if (missing := comparing.unfollowed()) is not None:
        comparing.report_unfollowed(*missing)
    return comparing.report


def judged(
    records: Iterable[Occurrence],
    *,
    revisions: Sequence[Revision] = (revision(HOURLY),),
    decided_through: Instant = FIVE,
    since: Instant | None = None,
    until: Instant | None = None,
) -> AuditReport:
    pairs = [(one, None) for one in records]
    return audit_schedule(revisions, decided_through, pairs, since=since, until=until)


def hours(findings: AuditFindings) -> list[tuple[int, int]]:
    """Return the findings as (hours after noon, count)."""
    assert all((finding.instant - NOON) % HOUR == 0 for finding in findings.kept)
    return [((finding.instant - NOON) // HOUR, finding.count) for finding in findings.kept]


def test_complete_ledger_is_clean() -> None:
    report = judged([record(hour(1)), run(hour(2), hour(4), 3), record(hour(5))])
    assert report.to_dict() == {
        "schedules": 1,
        "expected": 5,
        "recorded": 5,
        "gaps": [],
        "duplicates": [],
        "phantoms": [],
        "unreadable": [],
        "totals": {"gaps": 0, "duplicates": 0, "phantoms": 0, "unreadable": 0},
        "ok": True,
    }


def test_undecided_instants_are_not_gaps() -> None:
    assert judged([record(hour(1))], decided_through=hour(2) - 1).ok
    assert hours(judged([record(hour(1))], decided_through=hour(2)).gaps) == [(2, 1)]


@pytest.mark.parametrize(
    ("records", "gaps"),
    [
        ([], [(1, 5)]),
        ([record(hour(2)), run(hour(3), hour(5), 3)], [(1, 1)]),
        ([record(hour(1)), record(hour(2)), record(hour(5))], [(3, 2)]),
        ([record(hour(1)), run(hour(2), hour(4), 3)], [(5, 1)]),
        ([record(hour(1)), record(hour(3)), record(hour(5))], [(2, 1), (4, 1)]),
    ],
)
def test_gaps(records: list[Occurrence], gaps: list[tuple[int, int]]) -> None:
    report = judged(records)
    assert hours(report.gaps) == gaps
    assert report.expected == 5
    assert report.expected - report.recorded == sum(missing for _, missing in gaps)
    assert not report.ok
    assert not report.duplicates.total + report.phantoms.total


@pytest.mark.parametrize(
    ("records", "duplicates"),
    [
        ([record(hour(1)), record(hour(1)), run(hour(2), hour(5), 4)], [(1, 1)]),
        ([run(hour(1), hour(5), 5), record(hour(3))], [(3, 1)]),
        ([run(hour(1), hour(3), 3), run(hour(2), hour(5), 4)], [(2, 4)]),
        ([run(hour(1), hour(5), 5), run(hour(2), hour(4), 3), record(hour(5))], [(2, 3), (5, 1)]),
    ],
)
def test_duplicates(records: list[Occurrence], duplicates: list[tuple[int, int]]) -> None:
    report = judged(records)
    assert hours(report.duplicates) == duplicates
    assert not report.ok
    assert not report.gaps.total + report.phantoms.total


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (record(hour(2) + 1), "no such instant"),
        (record(hour(2) - MINUTE), "no such instant"),
        (run(hour(1) + 1, hour(2), 1), "no such instant"),
        (run(hour(1), hour(2) + 1, 2), "which is not an instant"),
        (run(hour(1), hour(3), 2), "counts 2 instants; the schedule has 3"),
        (run(hour(1), hour(3), 4), "counts 4 instants; the schedule has 3"),
        (record(hour(1), None, 2), "counts 2 instants; the schedule has 1"),
        (record(hour(1), hour(2), 2), "one job cannot stand for 2"),
        (record(hour(1), number=2), "decided by revision 2; revision 1"),
        (record(hour(6)), "decided through 2027-01-01T17:00:00Z only"),
        (run(hour(1), hour(7), 5), "decided through 2027-01-01T17:00:00Z only"),
        (record(hour(0)), "did not exist"),
        (record(2**62), f"{2**62} µs"),
        (run(hour(1), 2**62, 5), "decided through"),
        (run(hour(3), hour(1), 1), "before it begins"),
    ],
)
def test_phantoms(wrong: Occurrence, reason: str) -> None:
    report = judged([wrong])
    assert report.phantoms.total == 1
    assert reason in str(report.phantoms.kept[0].to_dict())
    assert not report.ok


def test_shifted_instant_is_a_phantom_and_a_gap() -> None:
    report = judged([record(hour(1)), record(hour(2) + SECOND), run(hour(3), hour(5), 3)])
    assert [finding.instant for finding in report.phantoms.kept] == [hour(2) + SECOND]
    assert hours(report.gaps) == [(2, 1)]


def test_each_revision_applies_to_its_own_time() -> None:
    revisions = [
        revision(HOURLY),
        revision(spec(Every("30m")), 2, hour(2)),
        revision(None, 3, hour(3)),
        revision(HOURLY, 4, hour(4)),
    ]
    half = HOUR // 2
    clean = [
        record(hour(1)),
        record(hour(2)),  # Exactly at the edit: the old definition decided it.
        record(hour(2) + half, number=2),
        record(hour(3), number=2),
        record(hour(5), number=4),
    ]
    assert judged(clean, revisions=revisions).ok
    assert judged(clean, revisions=revisions).expected == 5
    removed = judged([*clean[:4], record(hour(4), number=3), clean[4]], revisions=revisions)
    assert [finding.reason for finding in removed.phantoms.kept] == ["the schedule did not exist at that time"]
    early = judged([clean[0], record(hour(1) + half), *clean[1:]], revisions=revisions)
    assert [finding.reason for finding in early.phantoms.kept] == ["the schedule has no such instant"]
    assert hours(judged([*clean[:3], clean[4]], revisions=revisions).gaps) == [(3, 1)]


def test_first_of_two_edits_at_one_time_is_ignored() -> None:
    revisions = [revision(HOURLY), revision(spec(Every("1m")), 2, hour(2)), revision(HOURLY, 3, hour(2))]
    records = [record(hour(1)), record(hour(2)), run(hour(3), hour(5), 3, number=3)]
    assert judged(records, revisions=revisions).ok


def test_only_the_given_range_is_audited() -> None:
    records = [run(hour(1), hour(3), 3), record(hour(4))]
    assert judged(records, since=hour(2), until=hour(4)).ok
    assert not judged(records, since=hour(2)).ok
    assert judged(records[1:], since=hour(4), until=hour(4)).ok
    assert hours(judged(records[1:], since=hour(3), until=hour(4)).gaps) == [(3, 1)]
    reaching = [record(hour(1)), run(hour(2), hour(5), 4)]
    assert judged(reaching, until=hour(3)).ok


def test_findings_are_bounded_and_counted() -> None:
    every_minute, instants = spec(Every("1m")), range(NOON + 2 * MINUTE, NOON + 5_000 * MINUTE, 2 * MINUTE)
    report = judged(map(record, instants), revisions=[revision(every_minute)], decided_through=instants[-1])
    assert len(report.gaps.kept) == audit_module.FINDINGS_MAX
    assert report.gaps.total == len(instants)
    other = judged([])
    other.merge(report)
    other.merge(report)
    assert len(other.gaps.kept) == audit_module.FINDINGS_MAX
    assert other.to_dict()["totals"]["gaps"] == 2 * len(instants) + 1
    assert other.schedules == 3


def test_findings_show_readable_times() -> None:
    finding = AuditFinding(schedule="s", instant=hour(1), until=hour(2), count=2, reason="no record")
    assert finding.to_dict() == {
        "schedule": "s",
        "tenant": "default",
        "instant": "2027-01-01T13:00:00Z",
        "until": "2027-01-01T14:00:00Z",
        "count": 2,
        "reason": "no record",
    }


# A fixed delay ----------------------------------------------------------------------------------------------

DELAY = [revision(spec(After("10m")))]


def at(minutes: int) -> Instant:
    return NOON + minutes * MINUTE


HALF_PAST = at(30)


def judged_delay(*records: tuple[Occurrence, Instant | None], through: Instant = HALF_PAST) -> AuditReport:
    return audit_schedule(DELAY, through, records)


def test_fixed_delay_that_waits_for_its_jobs_is_clean() -> None:
    report = judged_delay((record(at(1)), at(3)), (record(at(13)), at(15)), (record(at(25)), None))
    assert (report.ok, report.expected, report.recorded) == (True, 3, 3)


@pytest.mark.parametrize("ended", [at(3) + 1, at(14), at(60)])
def test_occurrence_that_did_not_wait_is_a_phantom(ended: Instant) -> None:
    report = judged_delay((record(at(1)), ended), (record(at(13)), None))
    assert [finding.instant for finding in report.phantoms.kept] == [at(13)]
    assert "earlier than 10m after" in report.phantoms.kept[0].reason


def test_live_or_pruned_predecessor_is_no_finding() -> None:
    assert judged_delay((record(at(1)), None), (record(at(2)), None)).ok


def test_edit_may_bring_the_next_occurrence_forward() -> None:
    revisions = [*DELAY, revision(spec(After("1h")), 2, at(5))]
    records = [(record(at(1)), at(2)), (record(at(6), number=2), None)]
    assert audit_schedule(revisions, at(30), records).ok


def test_fixed_delay_without_a_successor_is_a_gap() -> None:
    report = judged_delay((record(at(1)), at(3)))
    assert [finding.instant for finding in report.gaps.kept] == [at(13)]
    assert report.expected == 2


@pytest.mark.parametrize(
    ("revisions", "last", "through"),
    [
        (DELAY, (record(at(1)), None), at(30)),  # It is running, or was pruned.
        (DELAY, (record(at(1)), at(3)), at(13)),  # The job ends and its successor is set in two statements.
        (DELAY, (record(at(1), outcome=Decided.PAUSED), None), at(30)),
        ([*DELAY, revision(None, 2, at(4))], (record(at(1)), at(3)), at(30)),
        ([*DELAY, revision(spec(After("10m")), 2, at(4))], (record(at(1)), at(3)), at(30)),
        ([revision(spec(After("10m"), end=isoformat(at(12))))], (record(at(1)), at(3)), at(30)),
    ],
)
def test_successor_is_not_always_due(
    revisions: list[Revision], last: tuple[Occurrence, Instant | None], through: Instant
) -> None:
    assert audit_schedule(revisions, through, [last]).ok


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (record(at(1), at(2), 2), "not runs"),
        (record(at(1), number=2), "revision 1 was in force"),
        (record(at(31)), "decided through"),
    ],
)
def test_phantoms_of_a_fixed_delay(wrong: Occurrence, reason: str) -> None:
    report = judged_delay((wrong, None))
    assert [reason in finding.reason for finding in report.phantoms.kept] == [True]


def test_cron_before_a_fixed_delay_is_still_audited() -> None:
    revisions = [revision(HOURLY), revision(spec(After("10m")), 2, hour(3))]
    records = [(record(hour(1)), None), (record(hour(3) + 1, number=2), None)]
    assert hours(audit_schedule(revisions, hour(5), records).gaps) == [(2, 2)]


# A real store -----------------------------------------------------------------------------------------------


class World:
    """The real ledger on SQLite in memory, the real planner, and a frozen clock."""

    def __init__(self, start: Instant = NOON) -> None:
        self.now = start
        self.connection = SqliteConnection(":memory:", now=lambda: self.now)
        clock = Clock(monotonic=lambda: self.now / SECOND, wall=lambda: self.now, chance=random.Random(7), node="n")
        self.store = Store.on(InlineSqliteDriver(self.connection), clock)

    async def __aenter__(self) -> "World":
        await migrate(self.store.driver)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.connection.raw.close()

    async def put(self, definition: ScheduleSpec, name: str = "s") -> None:
        await self.store.schedules.put(name, definition, may_be_over=True)

    async def decide(self) -> None:
        while (due := await self.store.ledger.due(EVERYTHING, 100)).schedules:
            refused = await self.store.ledger.fire([plan(one, due.now, live) for one, live in due.schedules], None)
            assert not refused

    async def pass_time(self, length: int, step: int) -> None:
        """Advance the clock, with a scheduler that ticks every `step`."""
        end = self.now + length
        while self.now < end:
            self.now = min(end, self.now + step)
            await self.decide()

    async def finish_jobs(self) -> None:
        await self.store.housekeeping.promote(1_000)
        for job in await self.store.work.claim("default", node="n", lease=MINUTE, limit=1_000):
            attempt = Attempt(job_id=job.id, attempt=job.attempt, failures=0, max_attempts=1, schedule=job.schedule)
            await self.store.work.settle([settle(attempt, Succeeded(), 0.5)])

    async def audit(
        self, key: str | None = None, since: Instant | None = None, until: Instant | None = None
    ) -> AuditReport:
        return await audit(self.store.ledger, key=key, since=since, until=until)

    async def clean(self) -> AuditReport:
        report = await self.audit()
        assert report.ok, report.to_dict()
        assert report.expected == report.recorded
        return report

    def sql(self, text: str, *values: object) -> None:
        assert self.connection.raw.execute(text, values).rowcount == 1


async def test_empty_store_is_clean() -> None:
    async with World() as world:
        assert (await world.clean()).schedules == 0


@pytest.mark.parametrize("dst", ["shift", "skip", "both"])
@pytest.mark.parametrize("expr", ["30 2 * * *", "*/20 * * * *", "*/25 1-3 * * *"])
async def test_clock_changes_leave_a_clean_ledger(expr: str, dst: str) -> None:
    for day in ("2027-03-27T12:00Z", "2027-10-30T12:00Z"):
        async with World(parse_instant(day)) as world:
            await world.put(spec(Cron(expr, tz="Europe/Berlin", dst=dst), overlap="allow"))  # type: ignore[arg-type]
            await world.pass_time(2 * DAY, 7 * MINUTE)
            assert (await world.clean()).expected > 0


@pytest.mark.parametrize("missed", ["latest", "all", "skip"])
@pytest.mark.parametrize("overlap", ["skip", "queue", "allow", "replace"])
async def test_long_outages_leave_a_clean_ledger(overlap: str, missed: str) -> None:
    async with World() as world:
        await world.put(spec(Cron("* * * * * * *"), overlap=overlap, missed=missed, catch_up_limit=3, deadline="10d"))
        await world.pass_time(MINUTE, 10 * SECOND)
        await world.finish_jobs()
        await world.pass_time(40 * DAY, 40 * DAY)
        await world.pass_time(MINUTE, 10 * SECOND)
        assert (await world.clean()).expected == 40 * 86_400 + 120


async def test_edits_removals_and_pauses_leave_a_clean_ledger() -> None:
    async with World() as world:
        schedules = world.store.schedules
        await world.put(spec(Every("1m")))
        await world.pass_time(HOUR, 20 * SECOND)
        await schedules.pause("s", until=world.now + HOUR)
        await world.pass_time(3 * HOUR, HOUR)
        await world.put(spec(Cron("*/5 * * * *", tz="Asia/Kathmandu")))
        await world.pass_time(HOUR, 50 * SECOND)
        await schedules.remove("s")
        await world.pass_time(HOUR, HOUR)
        await world.put(spec(Every("90s", start=isoformat(NOON))))
        await schedules.pause("s")
        await world.pass_time(HOUR, HOUR)
        await schedules.resume("s")
        await world.pass_time(HOUR, 10 * MINUTE)
        await world.put(spec(At(isoformat(world.now + HOUR))))
        await world.pass_time(3 * HOUR, HOUR)
        assert (await world.clean()).expected == 60 + 180 + 12 + 80 + 1


async def test_fixed_delay_leaves_a_clean_ledger() -> None:
    async with World() as world:
        await world.put(spec(After("10m")))
        for step in range(40):
            await world.pass_time(3 * MINUTE, MINUTE)
            if step % 5 == 4:
                await world.store.schedules.trigger("s")
            if step % 3 == 2:
                await world.finish_jobs()
        assert (await world.clean()).recorded > 3


async def test_manual_job_that_delays_the_next_one_is_no_gap() -> None:
    async with World() as world:
        await world.put(spec(After("10m"), overlap="queue"))
        await world.pass_time(MINUTE, MINUTE)
        await world.store.schedules.trigger("s")
        await world.finish_jobs()  # Ends the job of the schedule; the manual one stays queued.
        await world.pass_time(2 * HOUR, HOUR)
        await world.store.schedules.trigger("s")  # Decides past instants, which moves decided_through.
        await world.clean()
        world.connection.raw.execute("delete from headway_jobs where occurrence_at is null")
        assert (await world.audit()).gaps.total == 1


async def tampered() -> World:
    """Return a store: schedule `s` has 60 single records, one run of 120 and 10 singles; `t` is another schedule."""
    world = await World().__aenter__()
    await world.put(spec(Every("1m"), overlap="allow"))
    await world.put(spec(Every("1h")), "t")
    await world.pass_time(HOUR, 30 * SECOND)
    await world.store.schedules.pause("s", until=world.now + 2 * HOUR)
    await world.pass_time(2 * HOUR, 2 * HOUR)
    await world.pass_time(10 * MINUTE, 30 * SECOND)
    await world.clean()
    return world


OCCURRENCE = "update headway_occurrences set {} where schedule = 's' and instant = ?"
SCHEDULE = "update headway_schedules set {} where name = 's'"


@pytest.mark.parametrize(
    ("tamper", "kinds"),
    [
        (("delete from headway_occurrences where schedule = 's' and instant = ?", at(7)), {"gaps"}),
        (("delete from headway_occurrences where schedule = 's' and instant = ?", at(61)), {"gaps"}),
        ((OCCURRENCE.format("instant = ?"), at(7) + 1, at(7)), {"gaps", "phantoms"}),
        ((OCCURRENCE.format("count = 119"), at(61)), {"phantoms"}),
        ((OCCURRENCE.format("until = ?"), at(179), at(61)), {"gaps", "phantoms"}),
        ((OCCURRENCE.format("until = ?, count = 122"), at(182), at(61)), {"duplicates"}),
        ((OCCURRENCE.format("revision = 9"), at(61)), {"phantoms"}),
        ((SCHEDULE.format("decided_through = ?, next_at = ?"), at(200), at(201)), {"gaps"}),
        ((SCHEDULE.format("decided_through = ?"), at(185)), {"phantoms"}),
        (("update headway_revisions set effective_at = ? where schedule = 's'", at(3)), {"phantoms"}),
    ],
)
async def test_tampering_is_detected(tamper: tuple[object, ...], kinds: set[str]) -> None:
    world = await tampered()
    world.sql(*tamper)  # type: ignore[arg-type]
    report = (await world.audit()).to_dict()
    found = {kind for kind in ("gaps", "duplicates", "phantoms") if report[kind]}
    assert found >= kinds
    assert {finding["schedule"] for kind in found for finding in report[kind]} == {"s"}
    assert not report["ok"]
    assert (await world.audit("t")).ok
    assert not (await world.audit("s")).ok


async def test_overlapping_run_is_detected() -> None:
    world = await tampered()
    world.sql(
        "insert into headway_occurrences (schedule, instant, until, count, outcome, reason, decided_at, revision,"
        " token, node) values ('s', ?, ?, 5, 'missed', '', ?, 1, 0, 'n')",
        at(101), at(105), world.now,
    )  # fmt: skip
    report = await world.audit()
    assert [(finding.instant, finding.count) for finding in report.duplicates.kept] == [(at(101), 5)]
    assert (report.gaps.total, report.phantoms.total) == (0, 0)


async def test_range_includes_runs_that_reach_into_it() -> None:
    world = await tampered()
    for since, until in [(at(61), at(180)), (at(70), at(75)), (at(180), at(181)), (at(59), None), (None, at(100))]:
        assert (await world.audit(since=since, until=until)).ok
    world.sql("delete from headway_occurrences where schedule = 's' and instant = ?", at(61))
    assert (await world.audit(since=at(181))).ok
    assert (await world.audit(until=at(60))).ok
    assert (await world.audit(since=at(100), until=at(109))).gaps.kept[0].count == 10


async def test_pruned_records_are_not_gaps() -> None:
    world = await tampered()
    await world.finish_jobs()
    assert await world.store.housekeeping.prune(100 * MINUTE, 10_000)
    report = await world.clean()
    assert report.recorded < 200
    world.sql("delete from headway_occurrences where schedule = 's' and instant = ?", at(185))
    assert (await world.audit()).gaps.total == 1


async def test_removed_schedule_is_audited_and_an_unknown_one_is_not_found() -> None:
    world = await tampered()
    await world.store.schedules.remove("s")
    assert (await world.audit("s")).recorded == 190
    world.sql("delete from headway_occurrences where schedule = 's' and instant = ?", at(9))
    assert (await world.audit("s")).gaps.total == 1
    for name in ("unknown", "", "s ", "s\0", "\ud800"):
        with pytest.raises(ScheduleNotFound):
            await world.audit(name)


async def test_every_page_of_schedules_is_audited() -> None:
    async with World() as world:
        names = [*(f"{n:05}" for n in range(450)), "a", "a\U0010ffff", "\ue000", "é"]
        await world.store.schedules.put_many({ScheduleRef("default", name): spec(Every("1h")) for name in names})
        await world.pass_time(HOUR, HOUR)
        assert (await world.clean()).schedules == len(names)
        for name in ("00000", "00299", "a", "a\U0010ffff", "\ue000", "é"):
            assert (await world.audit(name)).recorded == 1


async def test_unreadable_definition_is_reported_and_does_not_stop_the_audit() -> None:
    world = await tampered()
    world.sql("update headway_revisions set definition = '{broken' where schedule = 's'")
    report = await world.audit()
    assert [finding.schedule for finding in report.unreadable.kept] == ["s"]
    assert (report.schedules, report.ok) == (2, False)
    world.sql("update headway_schedules set definition = '{broken' where name = 't'")
    assert (await world.audit("t")).ok  # Its revisions have the same definition, and are readable.


async def test_missing_definitions_are_reported_and_do_not_stop_the_audit() -> None:
    world = await tampered()
    world.sql("delete from headway_revisions where schedule = 's'")
    report = await world.audit()
    [finding] = report.unreadable.kept
    assert (finding.schedule, "definitions are gone" in finding.reason) == ("s", True)
    assert (report.schedules, report.ok) == (2, False)


class Meanwhile:
    """A ledger that runs a callback after each call of one of its methods."""

    def __init__(self, world: World, method: str, happens: Callable[[], Awaitable[object]]) -> None:
        self._ledger = world.store.ledger
        self._method = method
        self._happens = happens

    def __getattr__(self, name: str) -> object:
        method = getattr(self._ledger, name)

        async def disturbed(*args: object, **more: object) -> object:
            answer = await method(*args, **more)
            await self._happens()
            return answer

        return disturbed if name == self._method else method


async def test_decisions_made_while_the_audit_runs_are_not_phantoms() -> None:
    async with World() as world:
        await world.put(spec(Every("1m")))
        await world.pass_time(HOUR, MINUTE)
        busy = Meanwhile(world, "keys", lambda: world.pass_time(5 * MINUTE, MINUTE))
        assert (await audit(busy)).ok  # type: ignore[arg-type]
        assert (await world.clean()).recorded > 60


async def test_decisions_pruned_while_the_audit_runs_are_not_gaps() -> None:
    world = await tampered()
    await world.finish_jobs()
    busy = Meanwhile(world, "revisions", lambda: world.store.housekeeping.prune(100 * MINUTE, 10_000))
    assert (await audit(busy)).ok  # type: ignore[arg-type]
    assert (await world.clean()).recorded < 200


OPERATIONS = st.one_of(
    st.tuples(st.just("pass"), st.integers(1, 100), st.integers(1, 40)),
    st.tuples(st.just("put"), st.integers(0, 5), st.sampled_from(["skip", "queue", "allow", "replace"])),
    st.tuples(st.sampled_from(["remove", "pause", "resume", "trigger", "finish", "late"])),
)
TRIGGERS: list[Trigger] = [
    Every("1m"),
    Every("7m", start=isoformat(NOON + 20 * MINUTE)),
    Cron("*/10 2 * * *", tz="Europe/Berlin"),
    Cron("*/20 * * * * * *"),
    After("5m"),
    At("2027-03-28T00:30Z"),
]


@pytest.mark.slow
@given(st.lists(OPERATIONS, min_size=1, max_size=25), st.sampled_from(["latest", "all", "skip"]))
@settings(max_examples=60, deadline=None)
async def test_any_sequence_of_changes_leaves_a_clean_ledger(operations: list[tuple[object, ...]], missed: str) -> None:
    async with World(parse_instant("2027-03-28T00:00Z")) as world:
        schedules = world.store.schedules
        await world.put(spec(TRIGGERS[0], missed=missed))
        for operation in operations:
            present = (await schedules.page()) != []
            match operation:
                case ("pass", int(minutes), int(step)):
                    await world.pass_time(minutes * MINUTE, step * MINUTE)
                case ("put", int(which), str(overlap)):
                    await world.put(spec(TRIGGERS[which], missed=missed, overlap=overlap, catch_up_limit=5))
                case ("remove",):
                    await schedules.remove("s")
                case ("pause",) if present:
                    await schedules.pause("s", until=world.now + 17 * MINUTE)
                case ("resume",) if present:
                    await schedules.resume("s")
                case ("trigger",) if present:
                    await schedules.trigger("s")
                case ("finish",):
                    await world.finish_jobs()
                case ("late",):
                    world.now += 3 * HOUR + 11
        await world.decide()
        await world.clean()
