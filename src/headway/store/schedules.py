"""Put, pause, resume, trigger, backfill and read schedules. `schedule_definitions` has the transactions of `put`.

A schedule is identified by tenant and name. Pause, resume, trigger and backfill first decide, in the same transaction,
everything that is due.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from headway.core.clock import Clock
from headway.core.errors import DuplicateKey, InvalidSchedule
from headway.core.instants import Instant, isoformat
from headway.core.lifecycle import Status
from headway.core.occurrences import ByHand, Decided, LiveJobs
from headway.core.schedule_names import ScheduleRef
from headway.core.schedules import FAILING_FLAGGED, Overlap, Pause, Schedule, ScheduleSpec
from headway.core.tenants import DEFAULT_TENANT
from headway.core.triggers import After
from headway.scheduling.planner import next_instant
from headway.store import schedule_definitions as defining
from headway.store.job_filter import escape_like
from headway.store.jobs import PAGE_MAX
from headway.store.ledger import (
    FOREVER,
    NOTHING_LIVE,
    clear_line,
    job_of,
    pauses_json,
    read_schedule,
    show_schedule,
)
from headway.store.queue import insert
from headway.store.schedule_definitions import Author, absent, locked, settle_past
from headway.store.transaction import ConstraintViolated, Driver, Transaction, as_json, call

BACKFILL_MAX: Final = 10_000
PUT_AT_ONCE: Final = 500  # Per transaction, to bound how long others wait.
STATES: Final = ("active", "paused", "late", "attention", "failing", "ended")

T = TypeVar("T")


def in_pieces(specs: Mapping[ScheduleRef, ScheduleSpec]) -> Iterator[dict[ScheduleRef, ScheduleSpec]]:
    """Split many definitions into batches of one transaction each."""
    left = iter(specs.items())
    while piece := dict(islice(left, PUT_AT_ONCE)):
        yield piece


class Triggered(NamedTuple):
    """The result of a manual trigger: the job, whether it is new, and if not, the reason."""

    job_id: str
    is_new: bool
    why: str | None = None


def _present(ref: ScheduleRef) -> Transaction[tuple[Schedule, Instant]]:
    """Lock a schedule and return it with the store's time."""
    row, now = yield from locked(ref)
    if row is None or row["removed_at"] is not None:
        raise absent(ref)
    return read_schedule(row), now


def _existing(ref: ScheduleRef, clock: Clock) -> Transaction[tuple[Schedule, LiveJobs, Instant]]:
    """Lock a schedule, decide its past and return it with its live jobs and the store's time."""
    schedule, now = yield from _present(ref)
    schedule, live = yield from settle_past(schedule, now, clock)
    return schedule, live, now


def _event(schedule: Schedule, event: str, **data: object) -> Transaction[None]:
    line = {"job_id": None, "schedule": schedule.key, "event": event, "data": msgspec.json.encode(data).decode()}
    yield call("record_events", events=as_json([line]))


def _pause(ref: ScheduleRef, author: str, reason: str, until: Instant | None, clock: Clock) -> Transaction[bool]:
    schedule, _, now = yield from _existing(ref, clock)
    if schedule.paused_at(now) is not None:
        return False
    if until is not None and until <= now:
        raise InvalidSchedule(f"a pause must end in the future, not at {isoformat(until)}")
    pause = Pause(since=max(now, schedule.decided_through), until=until, reason=reason, author=author)
    yield call(
        "schedule_pauses",
        key=schedule.key,
        version=schedule.version,
        pauses=pauses_json([*schedule.pauses, pause]),
        paused_until=FOREVER if until is None else until,
        next_at=schedule.next_at,
    )
    yield from _event(
        schedule, "paused", author=author, reason=reason, until=None if until is None else isoformat(until)
    )
    return True


def _resume(ref: ScheduleRef, author: str, clock: Clock) -> Transaction[bool]:
    schedule, live, now = yield from _existing(ref, clock)
    open_pause = schedule.paused_at(now)
    if open_pause is None:
        return False
    next_at = schedule.next_at
    if next_at is None and isinstance(schedule.spec.trigger, After) and live.last is None:
        next_at = max(now, schedule.decided_through) + 1
    closed = replace(open_pause, until=max(now, schedule.decided_through))
    pauses = [closed if pause is open_pause else pause for pause in schedule.pauses]
    yield call(
        "schedule_pauses",
        key=schedule.key,
        version=schedule.version,
        pauses=pauses_json(pauses),
        paused_until=None,
        next_at=next_at,
    )
    yield from _event(schedule, "resumed", author=author)
    return True


def _trigger(ref: ScheduleRef, author: str, args: str | None, key: str | None, clock: Clock) -> Transaction[Triggered]:
    schedule, live, _ = yield from _existing(ref, clock)
    if args is not None:
        schedule = replace(schedule, spec=replace(schedule.spec, args=args))
    if key is not None and (earlier := (yield from _triggered_before(schedule, key))) is not None:
        return Triggered(earlier, False, "it was started with this key before")
    if (instead := (yield from _instead(schedule, live))) is not None:
        return instead
    blocked_by = yield from _make_room(schedule, live)
    job_id = clock.new_id("job")
    job = job_of(job_id, schedule, blocked_by=blocked_by, key=key)
    if not (yield from insert([job])):
        raise DuplicateKey(f"key {key!r} was used at the same moment; try again")
    yield call("schedule_touch", key=schedule.key, version=schedule.version)
    yield from _event(schedule, ByHand.TRIGGERED, author=author, job_id=job_id)
    return Triggered(job_id, True)


def _instead(schedule: Schedule, live: LiveJobs) -> Transaction[Triggered | None]:
    """Return the live job that stands in for a new one under the overlap rule; None if a new job is allowed."""
    spec = schedule.spec
    if spec.overlap is Overlap.SKIP and live.last is not None:
        there = (live.running or live.waiting)[-1]
        states = {row["id"]: Status(row["status"]) for row in (yield call("job_states", ids=as_json([there])))}
        if (status := states.get(there)) is not None and not status.is_final:  # It may have ended in the meantime.
            return Triggered(
                there, False, f"{there} of this schedule is {status}, and overlap=skip makes no second job"
            )
    if spec.overlap is Overlap.QUEUE and len(live.waiting) >= spec.queue_limit:
        waiting = "1 job waits" if len(live.waiting) == 1 else f"{len(live.waiting)} jobs wait"
        return Triggered(
            live.waiting[-1], False, f"{waiting} in line, and queue_limit={spec.queue_limit} allows no more"
        )
    return None


def _triggered_before(schedule: Schedule, key: str) -> Transaction[str | None]:
    """Return the job that was triggered with this key; refuse a key that was used for anything else."""
    rows = yield call("jobs_by_key", keys=as_json([{"tenant": schedule.spec.tenant, "key": key}]))
    if not rows:
        return None
    job_id: str = rows[0]["id"]
    if (rows[0]["schedule"], rows[0]["task"], rows[0]["args"]) != (
        schedule.key,
        schedule.spec.task,
        schedule.spec.args,
    ):
        raise DuplicateKey(f"key {key!r} was used for {job_id} with other arguments; use another key")
    return job_id


def _make_room(schedule: Schedule, live: LiveJobs) -> Transaction[str | None]:
    """Return the job that a manually triggered job has to wait for under the overlap rule."""
    if schedule.spec.overlap is Overlap.ALLOW:
        return None
    if schedule.spec.overlap is Overlap.REPLACE and live.last is not None:
        return (yield from clear_line(schedule.key, live, "replaced by a job started by hand"))
    return live.last


def _backfill_instants(schedule: Schedule, since: Instant, until: Instant) -> list[Instant]:
    trigger = schedule.spec.trigger
    if isinstance(trigger, After):
        raise InvalidSchedule(f"schedule {schedule.name!r} has a fixed delay: it has no instants to backfill")
    if trigger.count_between(since - 1, until) > BACKFILL_MAX:
        raise InvalidSchedule(f"a backfill has at most {BACKFILL_MAX} instants; choose a shorter range")
    instants: list[Instant] = []
    instant = next_instant(schedule.spec, trigger, since - 1)
    while instant is not None and instant <= until:
        instants.append(instant)
        instant = next_instant(schedule.spec, trigger, instant)
    return instants


def _backfill(
    ref: ScheduleRef,
    since: Instant,
    until: Instant,
    *,
    again: bool,
    dry_run: bool,
    author: str,
    clock: Clock,
    limit: int,
) -> Transaction[list[Instant]]:
    if dry_run:  # A dry run writes nothing, not even what is due.
        (schedule, now), live = (yield from _present(ref)), NOTHING_LIVE
    else:
        schedule, live, now = yield from _existing(ref, clock)
    instants = _backfill_instants(schedule, since, min(until, now))
    if not again:
        rows = yield call("ledger", schedule=schedule.key, after=since - 1, until=until, limit=BACKFILL_MAX)
        fired = {row["instant"] for row in rows if row["outcome"] == Decided.FIRED}
        instants = [instant for instant in instants if instant not in fired]
    keys = {f"backfill:{schedule.name}:{instant}": instant for instant in instants}
    whose = schedule.spec.tenant
    known = yield call("jobs_by_key", keys=as_json([{"tenant": whose, "key": key} for key in keys]))
    for row in known:
        del keys[row["key"]]
    if len(keys) > limit and not dry_run:
        raise InvalidSchedule(
            f"this would add {len(keys):,} jobs, more than limit = {limit:,}; look with dry_run first"
        )
    if keys and not dry_run:
        last, jobs = (yield from _make_room(schedule, live)), []
        for key, instant in keys.items():
            job_id = clock.new_id("job")
            jobs.append(job_of(job_id, schedule, blocked_by=last, occurrence_at=instant, key=key))
            last = job_id if schedule.spec.exclusive else None
        yield from insert(jobs)
        yield call("schedule_touch", key=schedule.key, version=schedule.version)
        yield from _event(schedule, ByHand.BACKFILLED, author=author, jobs=len(jobs))
    return list(keys.values())


class StoreSchedules:
    """The schedules of one store. For other tenants than its own, a schedule does not exist."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    # --- define

    async def put(
        self,
        name: str,
        spec: ScheduleSpec,
        *,
        owner: str = "",
        author: str = "",
        expected_revision: int | None = None,
        take_over: bool = False,
        may_be_over: bool = False,
    ) -> str:
        """Create or change a schedule of the definition's tenant; return `created`, `changed` or `unchanged`."""
        ref = ScheduleRef(spec.tenant, name)
        by = Author(clock=self._clock, name=author, owner=owner, take_over=take_over, may_be_over=may_be_over)
        return await self._again_if_raced(lambda: defining.put(ref, spec, by, expected_revision))

    async def put_many(
        self,
        specs: Mapping[ScheduleRef, ScheduleSpec],
        *,
        owner: str = "",
        author: str = "",
        take_over: bool = False,
        may_be_over: bool = False,
    ) -> list[str]:
        """Create or change up to `PUT_AT_ONCE` schedules in one transaction; return what was done with each.

        Schedules of another owner are left alone; their outcome begins with `defining.REFUSED`.
        """
        by = Author(clock=self._clock, name=author, owner=owner, take_over=take_over, may_be_over=may_be_over)
        return await self._again_if_raced(lambda: defining.put_many(specs, by))

    async def remove(
        self,
        name: str,
        *,
        author: str = "",
        owner: str | None = None,
        expected_revision: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> bool:
        """Remove a schedule from now on; return False if it does not exist (or is not `owner`'s)."""
        ref, by = ScheduleRef(tenant, name), Author(clock=self._clock, name=author)
        return await self._driver.run(
            lambda: defining.remove(ref, by, owner=owner, expected_revision=expected_revision)
        )

    # --- steer

    async def pause(
        self,
        name: str,
        *,
        author: str = "",
        reason: str = "",
        until: Instant | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> bool:
        """Pause a schedule until it is resumed or the time is up; return False if it was paused already."""
        ref = ScheduleRef(tenant, name)
        return await self._driver.run(lambda: _pause(ref, author, reason, until, self._clock))

    async def resume(self, name: str, *, author: str = "", tenant: str = DEFAULT_TENANT) -> bool:
        """Resume a schedule; return False if it was not paused."""
        ref = ScheduleRef(tenant, name)
        return await self._driver.run(lambda: _resume(ref, author, self._clock))

    async def trigger(
        self, name: str, *, author: str = "", args: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> str:
        """Enqueue a job of the schedule now, under its overlap rule; return its id, or that of the live job."""
        return (await self.trigger_once(name, None, author=author, args=args, tenant=tenant)).job_id

    async def trigger_once(
        self,
        name: str,
        key: str | None,
        *,
        author: str = "",
        args: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Triggered:
        """Enqueue a job of the schedule now, if its overlap rule allows one and the key was not used before.

        `skip`: not while another job of the schedule is live. `queue`: it waits in line, up to `queue_limit`.
        `replace`: the live one is stopped first. `allow`: at once. Else what is returned is the job that is there.
        """
        ref = ScheduleRef(tenant, name)
        return await self._driver.run(lambda: _trigger(ref, author, args, key, self._clock))

    async def backfill(
        self,
        name: str,
        since: Instant,
        until: Instant,
        *,
        again: bool = False,
        dry_run: bool = False,
        author: str = "",
        limit: int = BACKFILL_MAX,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Instant]:
        """Enqueue a job for each past instant in [since, until] that has not fired; repeating it adds nothing."""
        ref, clock = ScheduleRef(tenant, name), self._clock
        return await self._driver.run(
            lambda: _backfill(ref, since, until, again=again, dry_run=dry_run, author=author, clock=clock, limit=limit)
        )

    # --- look

    async def get(self, name: str, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        """Read one schedule."""
        rows = await self._driver.fetch(call("schedule", tenant=tenant, name=name))
        if not rows or rows[0]["removed_at"] is not None:
            raise absent(ScheduleRef(tenant, name))
        return read_schedule(rows[0])

    async def show(self, name: str, *, tenant: str = DEFAULT_TENANT, also_removed: bool = False) -> Schedule:
        """Read one schedule for display; an invalid definition is reported in `attention`."""
        rows = await self._driver.fetch(call("schedule", tenant=tenant, name=name))
        if not rows or (rows[0]["removed_at"] is not None and not also_removed):
            raise absent(ScheduleRef(tenant, name))
        return show_schedule(rows[0])

    async def find(self, refs: Iterable[ScheduleRef]) -> dict[ScheduleRef, Schedule]:
        """Read those of these schedules that exist."""
        names = [{"tenant": ref.tenant, "name": ref.name} for ref in refs]
        rows = await self._driver.fetch(call("schedules_named", names=as_json(names)))
        found = [show_schedule(row) for row in rows if row["removed_at"] is None]
        return {ScheduleRef(schedule.tenant, schedule.name): schedule for schedule in found}

    async def key(self, name: str, *, tenant: str = DEFAULT_TENANT) -> str:
        """Return the key of a schedule, also when it was removed or does not exist yet."""
        ref = ScheduleRef(tenant, name)
        rows = await self._driver.fetch(call("schedule", tenant=tenant, name=name))
        if rows:
            return str(rows[0]["name"])
        return (await self._driver.run(lambda: defining.choose_keys({ref: None})))[ref]

    async def page(
        self,
        *,
        owner: str | None = None,
        tenant: str | None = None,
        words: str | None = None,
        state: str | None = None,
        after: ScheduleRef | None = None,
        limit: int = PAGE_MAX,
    ) -> list[Schedule]:
        """Read a page of schedules by tenant and name; `words` may be in name and task, `state` is one of `STATES`."""
        plain = None if words is None else words.lower()
        begin = after or ScheduleRef("", "")
        rows = await self._driver.fetch(
            call(
                "schedules",
                owner=owner,
                tenant=tenant,
                words=None if plain is None else f"%{escape_like(plain)}%",
                words_in_json=None if plain is None else f"%{escape_like(as_json([plain])[2:-2])}%",
                state=state,
                flagged=FAILING_FLAGGED,
                after_tenant=begin.tenant,
                after=begin.name,
                limit=limit,
            )
        )
        return [show_schedule(row) for row in rows]

    async def by_hand(
        self, schedule: Schedule, *, since: Instant = 0, before: Instant = FOREVER, limit: int = 50
    ) -> list[dict[str, Any]]:
        """Read the manual triggers and backfills of a schedule, newest first."""
        rows = await self._driver.fetch(
            call(
                "schedule_events",
                schedule=schedule.key,
                events=as_json(ByHand),
                since=since,
                before=before,
                limit=max(1, min(limit, PAGE_MAX)),
            )
        )
        return [{"event": row["event"], "at": row["at"], **msgspec.json.decode(row["data"])} for row in rows]

    async def count(self, tenant: str) -> int:
        """Count the schedules of a tenant."""
        total: int = (await self._driver.fetch(call("schedule_counts", tenant=tenant)))[0]["total"]
        return total

    async def _again_if_raced(self, begin: Callable[[], Transaction[T]]) -> T:
        try:
            return await self._driver.run(begin)
        except ConstraintViolated:  # Two processes created one name: now it exists.
            return await self._driver.run(begin)
