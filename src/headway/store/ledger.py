"""The ledger: read the schedules that are due, and commit what is decided for them.

`fire` commits decisions in one transaction: it checks that the leases of the scheduler are still held, advances each
schedule, and writes the decisions and their jobs. Three guards prevent a second decision for an instant: the fence, the
`version` of the schedule (a plan made on an older version is left out), and the primary key of the ledger.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from headway.core.clock import Clock
from headway.core.errors import DefinitionError, InvalidSchedule, LeaseLost
from headway.core.instants import DAY, INSTANT_MIN, MINUTE, Duration, Instant
from headway.core.jobs import NewJob
from headway.core.occurrences import Cursor, Decided, LiveJobs, Occurrence, Plan, PlannedDecision
from headway.core.ports import Due, Fence, Shards
from headway.core.schedule_names import ScheduleRef, schedule_name
from headway.core.schedules import Pause, Revision, Schedule, ScheduleSpec
from headway.core.tenants import DEFAULT_TENANT
from headway.core.triggers import At
from headway.store.jobs import PAGE_MAX
from headway.store.queue import cancel, insert
from headway.store.transaction import ConstraintViolated, Driver, Row, Transaction, as_json, call

HELD_FOR: Final = MINUTE
COMING_MAX: Final = 20
FOREVER: Final = 2**62
SPECS_KEPT: Final = 16_384  # About 15 MB if all are different.
NOTHING_LIVE: Final = LiveJobs()
_PAUSES: Final = msgspec.json.Decoder(tuple[Pause, ...])


def read_schedule(row: Row) -> Schedule:
    """Read a schedule from a row; raise `DefinitionError` when its definition is invalid."""
    return Schedule(
        key=row["name"],
        name=schedule_name(row["name"]),
        spec=_read_spec(row["definition"]),
        owner=row["owner"],
        revision=row["revision"],
        version=row["version"],
        created_at=row["created_at"],
        decided_through=row["decided_through"],
        next_at=row["next_at"],
        pauses=_read_pauses(row["pauses"]),
        removed_at=row["removed_at"],
        attention=row["attention"],
        failing=row["failing"],
    )


@lru_cache(maxsize=SPECS_KEPT)
def _read_spec(definition: str) -> ScheduleSpec:
    """Decode a definition, with a cache for schedules that fire often."""
    return ScheduleSpec.from_json(definition)


def show_schedule(row: Row) -> Schedule:
    """Read a schedule from a row for display; an invalid definition is reported in `attention`."""
    try:
        return read_schedule(row)
    except DefinitionError as error:
        return Schedule(
            key=row["name"],
            name=schedule_name(row["name"]),
            spec=ScheduleSpec(task="(unreadable)", trigger=At("1970-01-01T00:00:00Z"), tenant=row["tenant"]),
            owner=row["owner"],
            revision=row["revision"],
            version=row["version"],
            created_at=row["created_at"],
            decided_through=row["decided_through"],
            removed_at=row["removed_at"],
            attention=f"cannot be read: {error}",
        )


def _read_pauses(text: str) -> tuple[Pause, ...]:
    if text == "[]":
        return ()
    try:
        return _PAUSES.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidSchedule(f"the stored pauses cannot be read: {error}") from None


def _read_occurrence(row: Row, tenant: str = DEFAULT_TENANT) -> Occurrence:
    return Occurrence(
        schedule=schedule_name(row["schedule"]),
        tenant=tenant,
        instant=row["instant"],
        until=row["until"],
        count=row["count"],
        outcome=Decided(row["outcome"]),
        reason=row["reason"],
        decided_at=row["decided_at"],
        revision=row["revision"],
        token=row["token"],
        job_id=row["job_id"],
    )


def _ref(row: Row) -> ScheduleRef:
    return ScheduleRef(row["tenant"], schedule_name(row["name"]))


def pauses_json(pauses: Iterable[Pause]) -> str:
    rows = [
        {"since": pause.since, "until": pause.until, "reason": pause.reason, "author": pause.author} for pause in pauses
    ]
    return msgspec.json.encode(rows).decode() if rows else "[]"


def live_by_schedule(rows: Sequence[Row]) -> dict[str, LiveJobs]:
    """Group live jobs by schedule: the running ones, and the waiting ones in their order."""
    running: dict[str, list[str]] = {}
    waiting: dict[str, dict[str, str]] = {}
    for row in rows:
        if row["status"] == "BLOCKED":
            waiting.setdefault(row["schedule"], {})[row["id"]] = row["blocked_by"]
        else:
            running.setdefault(row["schedule"], []).append(row["id"])
    return {
        name: LiveJobs(running=tuple(running.get(name, ())), waiting=_line(waiting.get(name, {})))
        for name in running.keys() | waiting.keys()
    }


def _line(blocked_by: dict[str, str]) -> tuple[str, ...]:
    """Sort jobs behind those that they wait for; ids come from clocks of different processes and have another order."""
    line: dict[str, None] = {}
    for job_id in blocked_by:
        ahead: list[str] = []
        walk = job_id
        while walk in blocked_by and walk not in line:
            ahead.append(walk)
            walk = blocked_by[walk]
        line.update(dict.fromkeys(reversed(ahead)))
    return tuple(line)


class _OccurrenceRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision as a row of the statement `record`."""

    schedule: str
    instant: Instant
    count: int
    outcome: str
    reason: str
    revision: int
    token: int
    node: str
    until: Instant | None = None
    job_id: str | None = None


class Writer:
    """Write plans in one transaction."""

    def __init__(self, clock: Clock, fence: Fence | None = None) -> None:
        self._clock = clock
        self._fence = fence

    def fire(self, plans: Sequence[Plan]) -> Transaction[frozenset[str]]:
        """Advance the schedules, record the decisions and insert the jobs; return the keys of skipped plans."""
        plans = sorted(plans, key=lambda plan: plan.schedule.key)  # In one lock order, to avoid deadlocks.
        advanced = yield call("advance", plans=as_json([_advance_row(plan) for plan in plans]))
        if len(advanced) != len(plans):
            keys = {row["name"] for row in advanced}
            refused = frozenset(plan.schedule.key for plan in plans) - keys
            plans = [plan for plan in plans if plan.schedule.key in keys]
        else:
            refused = frozenset()
        occurrences: list[_OccurrenceRow] = []
        jobs: list[NewJob] = []
        for plan_ in plans:
            last = plan_.live.last
            if plan_.replaces:
                last = yield from clear_line(plan_.schedule.key, plan_.live, "replaced by a later instant")
            self._add_rows(plan_, last, occurrences, jobs)
        if occurrences:
            yield call("record", occurrences=as_json(occurrences))
        if jobs:
            yield from insert(jobs)
        return refused

    def _add_rows(self, plan_: Plan, last: str | None, occurrences: list[_OccurrenceRow], jobs: list[NewJob]) -> None:
        schedule = plan_.schedule
        for decision in plan_.decisions:
            job_id = None
            if decision.outcome is Decided.FIRED:
                job_id = self._clock.new_id("job")
                jobs.append(_occurrence_job(job_id, schedule, decision, last if decision.waits else None))
                last = job_id
            occurrences.append(self._occurrence_row(schedule, decision, job_id))

    def _occurrence_row(self, schedule: Schedule, decision: PlannedDecision, job_id: str | None) -> _OccurrenceRow:
        return _OccurrenceRow(
            schedule=schedule.key,
            instant=decision.instant,
            until=decision.until,
            count=decision.count,
            outcome=decision.outcome,
            reason=decision.reason,
            revision=schedule.revision,
            token=self._fence.token_of(schedule.key) if self._fence else 0,
            node=self._clock.node,
            job_id=job_id,
        )


def _advance_row(plan_: Plan) -> dict[str, object]:
    schedule = plan_.schedule
    pauses = schedule.pauses
    if pauses:  # Completely decided pauses are recorded in the ledger.
        pauses = tuple(pause for pause in pauses if pause.until is None or pause.until > plan_.decided_through)
    return {
        "schedule": schedule.key,
        "seen_version": schedule.version,
        "to_decided_through": plan_.decided_through,
        "to_next_at": plan_.next_at,
        "to_pauses": pauses_json(pauses) if schedule.pauses else "[]",
    }


def job_of(job_id: str, schedule: Schedule, **more: Any) -> NewJob:
    spec = schedule.spec
    return NewJob(
        id=job_id,
        task=spec.task,
        args=spec.args,
        tenant=spec.tenant,
        queue=spec.queue,
        priority=spec.priority,
        max_attempts=spec.max_attempts,
        backoff=spec.backoff,
        tags=spec.tags,
        callback=spec.callback_url,
        expires=spec.expires,
        limit_key=spec.limit or "",
        needs=spec.needs_text,
        schedule=schedule.key,
        exclusive=spec.exclusive,
        **more,
    )


def _occurrence_job(job_id: str, schedule: Schedule, decision: PlannedDecision, blocked_by: str | None) -> NewJob:
    return job_of(job_id, schedule, run_at=decision.start_at, occurrence_at=decision.instant, blocked_by=blocked_by)


def clear_line(schedule: str, live: LiveJobs, reason: str) -> Transaction[str | None]:
    """Stop the live jobs of a schedule; return the one that still runs, which the new job waits for."""
    yield from cancel([*live.running, *live.waiting], reason, moves_on=False)
    # Jobs may have ended since they were read, so read them again.
    rows = yield call("live_jobs", names=as_json([{"name": schedule}]))
    return live_by_schedule(rows).get(schedule, NOTHING_LIVE).last


def _check_fence(fence: Fence) -> Transaction[None]:
    rows = yield call("fence", names=as_json(sorted(fence.tokens)), holder=fence.holder)
    held = {row["name"]: row["token"] for row in rows}
    lost = [name for name, token in fence.tokens.items() if held.get(name) != token]
    if lost:
        raise LeaseLost(f"the lease {lost[0]!r} is no longer ours")


def _fire(plans: Sequence[Plan], fence: Fence | None, clock: Clock) -> Transaction[frozenset[str]]:
    if fence is not None:
        yield from _check_fence(fence)
    return (yield from Writer(clock, fence).fire(plans))


def _revive(limit: int) -> Transaction[int]:
    names = [row["name"] for row in (yield call("stranded", limit=limit))]
    return len((yield call("follow", names=as_json(names)))) if names else 0


class StoreLedger:
    """Implement the port `Ledger` on one store, and read the ledger."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def due(self, shards: Shards, limit: int) -> Due:
        """Return schedules with undecided instants, each with its live jobs."""
        sent = self._clock.monotonic()
        rows = await self._driver.fetch(
            call("due", shards=shards.of, shard_ids=as_json([str(shard) for shard in shards.held]), limit=limit)
        )
        if not rows:
            return Due(now=self._clock.now(), schedules=())
        now: Instant = rows[0]["now"]
        self._clock.observe(now, sent=sent)
        readable, unreadable = [], []
        for row in rows:
            try:
                readable.append(read_schedule(row))
            except DefinitionError as error:
                unreadable.append((row["name"], row["version"], str(error)))
        live = await self._live(readable)
        pairs = tuple((schedule, live.get(schedule.key, NOTHING_LIVE)) for schedule in readable)
        return Due(now=now, schedules=pairs, unreadable=tuple(unreadable))

    async def _live(self, schedules: Sequence[Schedule]) -> dict[str, LiveJobs]:
        names = [{"name": schedule.key} for schedule in schedules if schedule.spec.exclusive]
        return live_by_schedule(await self._driver.fetch(call("live_jobs", names=as_json(names)))) if names else {}

    async def next_due(self, shards: Shards) -> Instant | None:
        """Return when the next decision is due."""
        sent = self._clock.monotonic()
        rows = await self._driver.fetch(
            call("next_due", shards=shards.of, shard_ids=as_json([str(shard) for shard in shards.held]))
        )
        if not rows:
            return None
        self._clock.observe(rows[0]["now"], sent=sent)
        next_at: Instant = rows[0]["next_at"]
        return next_at

    async def fire(self, plans: Sequence[Plan], fence: Fence | None) -> frozenset[str]:
        """Commit plans in one transaction; return the keys of those that were left out."""
        try:
            return await self._driver.run(lambda: _fire(plans, fence, self._clock))
        except ConstraintViolated as error:
            if len(plans) == 1:  # The schedule is unchanged, so it would stay due and fail forever.
                schedule = plans[0].schedule
                await self.hold(schedule.key, schedule.version, f"refused by the store: {error}")
                return frozenset({schedule.key})
        refused: set[str] = set()
        for plan_ in plans:  # One plan violates a constraint; commit the others.
            refused |= await self.fire([plan_], fence)
        return frozenset(refused)

    async def hold(self, key: str, version: int, reason: str) -> None:
        """Put a schedule on hold for a while, with a reason to display."""
        await self._driver.fetch(call("hold", key=key, version=version, pause=HELD_FOR, attention=reason[:500]))

    async def revive_stranded(self, limit: int) -> int:
        """Give fixed-delay schedules whose job is gone their next instant."""
        if not await self._driver.fetch(call("stranded", limit=1)):
            return 0
        return await self._driver.run(lambda: _revive(limit))

    async def occurrences(
        self, key: str, *, since: Instant = 0, before: Instant = FOREVER, limit: int = 50
    ) -> list[Occurrence]:
        """Read a page of a schedule's ledger, newest first. Schedules are identified by key, here and below."""
        rows = await self._driver.fetch(
            call("occurrences", schedule=key, since=since, before=before, limit=max(1, min(limit, PAGE_MAX)))
        )
        return [_read_occurrence(row, row["tenant"] or DEFAULT_TENANT) for row in rows]

    async def recent(self, keys: Iterable[str], number: int) -> dict[str, list[dict[str, Any]]]:
        """Read the newest decisions of several schedules, newest last, with the outcome of their jobs."""
        rows = await self._driver.fetch(
            call(
                "recent_occurrences",
                names=as_json([{"name": key} for key in sorted(set(keys))]),
                number=number,
                first=INSTANT_MIN,
            )
        )
        columns = ("instant", "count", "outcome", "reason", "job_id", "job_status")
        found: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            found.setdefault(row["schedule"], []).append({column: row[column] for column in columns})
        return found

    async def calendar(
        self,
        key: str,
        since: Instant,
        before: Instant,
        stretches: Sequence[tuple[Instant, Instant, Duration]],
        *,
        limit: int,
        runs_limit: int,
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Count the decisions of a schedule by local days, and read the runs of equal ones; the newest, up to a limit.

        A stretch is a time within which the local clock is ahead of UTC by so much; a day is counted from 1970.
        """
        window = {"schedule": key, "since": since, "before": before}
        rows = [{"begins": begins, "ends": ends, "ahead": ahead} for begins, ends, ahead in stretches]
        days = await self._driver.fetch(call("calendar", **window, stretches=as_json(rows), limit=limit))
        runs = await self._driver.fetch(call("calendar_runs", **window, limit=runs_limit))
        return (
            [{column: row[column] for column in ("day", "outcome", "status", "decisions")} for row in days],
            [{column: row[column] for column in ("instant", "until", "count", "outcome")} for row in runs],
        )

    async def revisions(self, key: str) -> list[Revision]:
        """Read all revisions of a schedule."""
        rows = await self._driver.fetch(call("revisions", schedule=key))
        return [
            Revision(
                schedule=key,
                revision=row["revision"],
                effective_at=row["effective_at"],
                spec=None if row["definition"] is None else ScheduleSpec.from_json(row["definition"]),
                author=row["author"],
            )
            for row in rows
        ]

    async def ledger(
        self, key: str, after: Instant, until: Instant, limit: int
    ) -> list[tuple[Occurrence, Instant | None]]:
        """Read a page of a schedule's ledger, oldest first, each with the end time of its job."""
        rows = await self._driver.fetch(call("ledger", schedule=key, after=after, until=until, limit=limit))
        return [(_read_occurrence(row), row["finished_at"]) for row in rows]

    async def keys(self, after: str, limit: int, *, tenant: str | None = None) -> list[Cursor]:
        """Read a page of all schedules, removed ones included: key, and how far each is decided."""
        rows = await self._driver.fetch(call("ledger_keys", after=after, limit=limit, tenant=tenant))
        return [Cursor(row["name"], row["decided_through"], row["tenant"]) for row in rows]

    async def started_by_hand(self, key: str, after: Instant) -> bool:
        """Return whether a job of the schedule without an instant was live at this time or later."""
        return bool(await self._driver.fetch(call("started_by_hand", schedule=key, after=after)))

    async def pruned_through(self) -> Instant:
        """Return the time up to which old decisions were pruned."""
        pruned: Instant = (await self._driver.fetch(call("counter", name="pruned_through")))[0]["value"]
        return pruned

    async def failing(self, least: int, limit: int = 50, *, tenant: str | None = None) -> list[tuple[ScheduleRef, int]]:
        """Return the schedules with at least this many consecutive failures, most first."""
        rows = await self._driver.fetch(call("failing", least=least, limit=limit, tenant=tenant))
        return [(_ref(row), row["failing"]) for row in rows]

    async def held(self, limit: int = 50, *, tenant: str | None = None) -> list[tuple[ScheduleRef, str]]:
        """Return the schedules on hold, each with the reason."""
        rows = await self._driver.fetch(call("held", limit=limit, tenant=tenant))
        return [(_ref(row), row["attention"]) for row in rows]

    async def summary(self, *, tenant: str | None = None) -> dict[str, Any]:
        """Count schedules and decisions of the last day, and find the oldest undecided instant."""
        row = (await self._driver.fetch(call("schedule_counts", tenant=tenant)))[0]
        outcomes = await self._driver.fetch(call("outcome_counts", window=DAY, tenant=tenant))
        coming = await self._driver.fetch(call("coming", limit=COMING_MAX, tenant=tenant))
        next_at = coming[0]["next_at"] if coming else None
        # The instants of a schedule on hold are undecided since before the hold.
        oldest = min((at for at in (next_at, row["held_since"]) if at is not None), default=row["now"])
        undecided = max(0, row["now"] - oldest)
        return {
            "total": row["total"],
            "paused": row["paused"],
            "late": row["late"],
            "attention": row["attention"],
            "next_at": next_at,
            "coming": [
                {**_ref(entry)._asdict(), **{column: entry[column] for column in ("decided_through", "next_at")}}
                for entry in coming
            ],
            "oldest_undecided_seconds": undecided / 1e6,
            "last_day": {outcome["outcome"]: int(outcome["decisions"]) for outcome in outcomes},
        }
