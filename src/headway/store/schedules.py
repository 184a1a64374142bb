"""Schedules in the store: put, remove, pause, resume, trigger, backfill.

Whoever changes a schedule first decides, in the same transaction, everything that is due under the old definition.
So a definition covers exactly the instants from its effective time to that of the next, and what was decided stays
decided. A removed schedule keeps its row and its place in time: adding it again goes on from there and repeats
nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from headway.clock import Clock
from headway.errors import (
    DefinitionError,
    DuplicateKey,
    InvalidSchedule,
    ScheduleChanged,
    ScheduleNotFound,
    ScheduleOwned,
)
from headway.instants import Instant, isoformat
from headway.model import FAILING_FLAGGED, Decided, LiveJobs, Overlap, Pause, Schedule, ScheduleSpec
from headway.ports import slot_of
from headway.scheduling.planner import first_at, next_instant, plan
from headway.scheduling.triggers import After, describe
from headway.store.ledger import (
    FOREVER,
    NOTHING_LIVE,
    Writer,
    clear_line,
    job_of,
    live_by_schedule,
    pauses_json,
    read_schedule,
    show_schedule,
)
from headway.store.queue import PAGE_MAX, insert, job_row
from headway.store.selection import literally
from headway.store.transaction import ConstraintViolated, Driver, Row, Transaction, as_json, call

BACKFILL_MAX: Final = 10_000
STATES: Final = ("active", "paused", "late", "attention", "failing", "ended")


def _settle_past(schedule: Schedule, now: Instant, clock: Clock) -> Transaction[tuple[Schedule, LiveJobs]]:
    """Decide everything that is due under the present definition; return the schedule as it is then."""
    while True:
        rows = yield call("live_jobs", names=as_json([{"name": schedule.name}]))
        live = live_by_schedule(rows).get(schedule.name, NOTHING_LIVE)
        plan_ = plan(schedule, now, live)
        if not plan_.decisions and plan_.decided_through == schedule.decided_through:
            return schedule, live
        yield from Writer(clock).fire([plan_])
        schedule = replace(
            schedule,
            version=schedule.version + 1,
            decided_through=plan_.decided_through,
            next_at=plan_.next_at,
        )
        if plan_.decided_through >= now:
            rows = yield call("live_jobs", names=as_json([{"name": schedule.name}]))
            return schedule, live_by_schedule(rows).get(schedule.name, NOTHING_LIVE)


def _locked(name: str) -> Transaction[tuple[Row | None, Instant]]:
    rows = yield call("schedule_locked", name=name)
    if not rows:
        now = (yield call("time"))[0]["now"]
        return None, now
    return rows[0], rows[0]["now"]


def _absent(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"no schedule is named {name!r}; `headway schedules list` shows all")


def _is_foreign(row: Row, tenant: str | None) -> bool:
    return tenant is not None and row["tenant"] != tenant


def _present(name: str, tenant: str | None) -> Transaction[tuple[Schedule, Instant]]:
    """Lock a schedule and return it with the store's time."""
    row, now = yield from _locked(name)
    if row is None or row["removed_at"] is not None or _is_foreign(row, tenant):
        raise _absent(name)
    return read_schedule(row), now


def _existing(name: str, clock: Clock, tenant: str | None) -> Transaction[tuple[Schedule, LiveJobs, Instant]]:
    """Lock a schedule, decide its past and return it with its live jobs and the store's time."""
    schedule, now = yield from _present(name, tenant)
    schedule, live = yield from _settle_past(schedule, now, clock)
    return schedule, live, now


def _event(schedule: str, event: str, **data: object) -> Transaction[None]:
    text = msgspec.json.encode(data).decode()
    yield call("record_events", events=as_json([{"job_id": None, "schedule": schedule, "event": event, "data": text}]))


def _require_instants(name: str, spec: ScheduleSpec, now: Instant) -> None:
    if first_at(spec, now) is None:
        raise InvalidSchedule(f"schedule {name!r} has no instant after {isoformat(now)}: {describe(spec.trigger)}")


def _add(specs: dict[str, ScheduleSpec], owner: str, author: str, now: Instant) -> Transaction[list[str]]:
    """Create schedules that begin to count now; return the names of those that did not exist."""
    rows = yield call("schedule_add", schedules=as_json([_new_row(name, specs[name], owner, now) for name in specs]))
    added = [row["name"] for row in rows]
    if added:
        revisions = [_revision_row(name, 1, now, specs[name], author) for name in added]
        yield call("revision_add", revisions=as_json(revisions))
    return added


def _new_row(name: str, spec: ScheduleSpec, owner: str, now: Instant) -> dict[str, object]:
    return {
        "name": name,
        "owner": owner,
        "tenant": spec.tenant,
        "slot": slot_of(name),
        "definition": spec.to_json(),
        "trigger_text": describe(spec.trigger),
        "delay": spec.trigger.delay if isinstance(spec.trigger, After) else None,
        "ends_at": spec.end,
        "next_at": first_at(spec, now),
        "decided_through": now,
        "created_at": now,
    }


def _revision_row(
    name: str, revision: int, effective_at: Instant, spec: ScheduleSpec | None, author: str
) -> dict[str, object]:
    return {
        "schedule": name,
        "revision": revision,
        "effective_at": effective_at,
        "definition": None if spec is None else spec.to_json(),
        "author": author,
    }


def _revise(
    schedule: Schedule, spec: ScheduleSpec | None, owner: str, author: str, live: LiveJobs, now: Instant
) -> Transaction[None]:
    effective_at = max(now, schedule.decided_through)
    shown = spec or schedule.spec
    next_at = None if spec is None else _next_after_edit(schedule, spec, live, effective_at)
    rows = yield call(
        "schedule_revise",
        name=schedule.name,
        version=schedule.version,
        owner=owner,
        tenant=shown.tenant,
        definition=shown.to_json(),
        trigger_text=describe(shown.trigger),
        delay=shown.trigger.delay if isinstance(shown.trigger, After) else None,
        ends_at=shown.end,
        next_at=next_at,
        decided_through=effective_at,
        removed_at=effective_at if spec is None else None,
    )
    if not rows:
        raise ScheduleChanged(f"schedule {schedule.name!r} was changed at the same moment; try again")
    revision = _revision_row(schedule.name, rows[0]["revision"], effective_at, spec, author)
    yield call("revision_add", revisions=as_json([revision]))
    if not shown.exclusive:
        yield call("leave_line", schedule=schedule.name)


def _next_after_edit(schedule: Schedule, spec: ScheduleSpec, live: LiveJobs, now: Instant) -> Instant | None:
    if isinstance(spec.trigger, After) and live.last is not None:
        return None  # The end of the live job sets it.
    if isinstance(spec.trigger, After) and isinstance(schedule.spec.trigger, After) and schedule.next_at is not None:
        moved = schedule.next_at - schedule.spec.trigger.delay + spec.trigger.delay
        return max(moved, now + 1)
    return first_at(spec, now)


def _put(
    name: str,
    spec: ScheduleSpec,
    *,
    owner: str,
    author: str,
    clock: Clock,
    expected_revision: int | None,
    take_over: bool,
    may_be_over: bool,
    tenant: str | None,
) -> Transaction[str]:
    row, now = yield from _locked(name)
    if row is not None and _is_foreign(row, tenant):  # Also a removed one: its history is not the caller's.
        raise ScheduleOwned(f"the name {name!r} is taken; choose another")
    if row is None:
        if expected_revision not in (None, 0):
            raise ScheduleChanged(f"schedule {name!r} does not exist any more")
        if not may_be_over:
            _require_instants(name, spec, now)
        if not (yield from _add({name: spec}, owner, author, now)):
            raise ConstraintViolated(f"schedule {name!r} was created at the same moment")
        return "created"
    removed = row["removed_at"] is not None
    if expected_revision is not None and expected_revision != (0 if removed else row["revision"]):
        found = "was removed" if removed else f"has revision {row['revision']}, not {expected_revision}"
        raise ScheduleChanged(f"schedule {name!r} {found}")
    if not removed and row["owner"] != owner and not take_over:
        whose = f"the app {row['owner']!r}" if row["owner"] else "nobody's code (it was put by hand)"
        raise ScheduleOwned(f"schedule {name!r} belongs to {whose}; choose another name, or remove it first")
    if not removed and row["definition"] == spec.to_json() and row["owner"] == owner:
        return "unchanged"
    if not may_be_over:
        _require_instants(name, spec, now)
    return (yield from _change(row, spec, owner=owner, author=author, now=now, clock=clock))


def _change(row: Row, spec: ScheduleSpec, *, owner: str, author: str, now: Instant, clock: Clock) -> Transaction[str]:
    live = NOTHING_LIVE
    try:
        schedule = read_schedule(row)
    except DefinitionError:
        # The old definition cannot be read, so its instants cannot be known: the new one begins now, without pauses.
        yield from _clear_pauses(row)
        version, decided_through = row["version"] + 1, row["decided_through"]
        schedule = Schedule(name=row["name"], spec=spec, version=version, decided_through=decided_through)
    else:
        if schedule.removed_at is None:
            schedule, live = yield from _settle_past(schedule, now, clock)
        elif schedule.pauses:  # It begins anew; only its place in time is kept.
            yield from _clear_pauses(row)
            schedule = replace(schedule, version=schedule.version + 1, pauses=())
    yield from _revise(schedule, spec, owner, author, live, now)
    return "changed" if row["removed_at"] is None else "created"


def _clear_pauses(row: Row) -> Transaction[None]:
    yield call(
        "schedule_pauses", name=row["name"], version=row["version"], pauses="[]", paused_until=None, next_at=None
    )


def _remove(
    name: str, author: str, clock: Clock, owner: str | None, expected_revision: int | None, tenant: str | None
) -> Transaction[bool]:
    row, now = yield from _locked(name)
    if row is None or row["removed_at"] is not None or (owner is not None and row["owner"] != owner):
        return False
    if _is_foreign(row, tenant):
        return False
    if expected_revision not in (None, row["revision"]):
        raise ScheduleChanged(f"schedule {name!r} has revision {row['revision']}, not {expected_revision}")
    try:
        schedule, live = yield from _settle_past(read_schedule(row), now, clock)
    except DefinitionError as error:
        raise InvalidSchedule(f"schedule {name!r} cannot be read ({error}); put it anew, then remove it") from None
    yield from _revise(schedule, None, row["owner"], author, live, now)
    return True


def _pause(
    name: str, author: str, reason: str, until: Instant | None, clock: Clock, tenant: str | None
) -> Transaction[bool]:
    schedule, _, now = yield from _existing(name, clock, tenant)
    if schedule.paused_at(now) is not None:
        return False
    if until is not None and until <= now:
        raise InvalidSchedule(f"a pause must end in the future, not at {isoformat(until)}")
    pause = Pause(since=max(now, schedule.decided_through), until=until, reason=reason, author=author)
    yield call(
        "schedule_pauses",
        name=name,
        version=schedule.version,
        pauses=pauses_json([*schedule.pauses, pause]),
        paused_until=FOREVER if until is None else until,
        next_at=schedule.next_at,
    )
    yield from _event(name, "paused", author=author, reason=reason, until=None if until is None else isoformat(until))
    return True


def _resume(name: str, author: str, clock: Clock, tenant: str | None) -> Transaction[bool]:
    schedule, live, now = yield from _existing(name, clock, tenant)
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
        name=name,
        version=schedule.version,
        pauses=pauses_json(pauses),
        paused_until=None,
        next_at=next_at,
    )
    yield from _event(name, "resumed", author=author)
    return True


def _trigger(
    name: str, author: str, args: str | None, key: str | None, clock: Clock, tenant: str | None
) -> Transaction[tuple[str, bool]]:
    schedule, live, _ = yield from _existing(name, clock, tenant)
    if args is not None:
        schedule = replace(schedule, spec=replace(schedule.spec, args=args))
    if key is not None and (earlier := (yield from _triggered_before(schedule, key))) is not None:
        return earlier, False
    blocked_by = yield from _make_room(schedule, live)
    job_id = clock.new_id("job")
    job = job_of(job_id, schedule, blocked_by=blocked_by, key=key)
    if not (yield from insert([job_row(job)])):
        raise DuplicateKey(f"key {key!r} was used at the same moment; try again")
    yield call("schedule_touch", name=name, version=schedule.version)
    yield from _event(name, "triggered", author=author, job_id=job_id)
    return job_id, True


def _triggered_before(schedule: Schedule, key: str) -> Transaction[str | None]:
    """Return the job that was started by hand with this key; a key that was used for anything else is refused."""
    rows = yield call("jobs_by_key", keys=as_json([{"tenant": schedule.spec.tenant, "key": key}]))
    if not rows:
        return None
    job_id: str = rows[0]["id"]
    if (rows[0]["schedule"], rows[0]["task"], rows[0]["args"]) != (
        schedule.name,
        schedule.spec.task,
        schedule.spec.args,
    ):
        raise DuplicateKey(f"key {key!r} was used for {job_id} with other arguments; use another key")
    return job_id


def _make_room(schedule: Schedule, live: LiveJobs) -> Transaction[str | None]:
    """Return the job that one more job by hand has to wait for, under the schedule's overlap rule."""
    if schedule.spec.overlap is Overlap.ALLOW:
        return None
    if schedule.spec.overlap is Overlap.REPLACE and live.last is not None:
        return (yield from clear_line(schedule.name, live, "replaced by a job started by hand"))
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
    name: str,
    since: Instant,
    until: Instant,
    *,
    again: bool,
    dry_run: bool,
    author: str,
    clock: Clock,
    limit: int,
    tenant: str | None,
) -> Transaction[list[Instant]]:
    if dry_run:  # Nothing is written, not even what is due anyway.
        (schedule, now), live = (yield from _present(name, tenant)), NOTHING_LIVE
    else:
        schedule, live, now = yield from _existing(name, clock, tenant)
    instants = _backfill_instants(schedule, since, min(until, now))
    if not again:
        rows = yield call("ledger", schedule=name, after=since - 1, until=until, limit=BACKFILL_MAX)
        fired = {row["instant"] for row in rows if row["outcome"] == Decided.FIRED}
        instants = [instant for instant in instants if instant not in fired]
    keys = {f"backfill:{name}:{instant}": instant for instant in instants}
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
            jobs.append(job_row(job_of(job_id, schedule, blocked_by=last, occurrence_at=instant, key=key)))
            last = job_id if schedule.spec.exclusive else None
        yield from insert(jobs)
        yield call("schedule_touch", name=name, version=schedule.version)
        yield from _event(name, "backfilled", author=author, jobs=len(jobs))
    return list(keys.values())


class StoreSchedules:
    """Schedules on one store: what people and programs do with them."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

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
        tenant: str | None = None,
    ) -> str:
        """Create or change a schedule; return `created`, `changed` or `unchanged`.

        Here and below, for a caller of one `tenant` the schedules of others do not exist; their names are taken.
        """

        def begin() -> Transaction[str]:
            return _put(
                name,
                spec,
                owner=owner,
                author=author,
                clock=self._clock,
                expected_revision=expected_revision,
                take_over=take_over,
                may_be_over=may_be_over,
                tenant=tenant,
            )

        return await self._again_if_raced(begin)

    async def put_new(self, specs: dict[str, ScheduleSpec], *, owner: str = "", author: str = "") -> int:
        """Create many schedules at once; those whose name exists are left alone. Return how many are new."""

        def begin() -> Transaction[int]:
            now = (yield call("time"))[0]["now"]
            return len((yield from _add(specs, owner, author, now)))

        return await self._driver.run(begin)

    async def count(self, tenant: str) -> int:
        """Count the schedules of a tenant."""
        total: int = (await self._driver.fetch(call("schedule_counts", tenant=tenant)))[0]["total"]
        return total

    async def remove(
        self,
        name: str,
        *,
        author: str = "",
        owner: str | None = None,
        expected_revision: int | None = None,
        tenant: str | None = None,
    ) -> bool:
        """Remove a schedule from now on; False when there was none (or it is not `owner`'s)."""
        return await self._driver.run(lambda: _remove(name, author, self._clock, owner, expected_revision, tenant))

    async def pause(
        self,
        name: str,
        *,
        author: str = "",
        reason: str = "",
        until: Instant | None = None,
        tenant: str | None = None,
    ) -> bool:
        """Stop a schedule from running until it is resumed or the time is up; False when it was paused already."""
        return await self._driver.run(lambda: _pause(name, author, reason, until, self._clock, tenant))

    async def resume(self, name: str, *, author: str = "", tenant: str | None = None) -> bool:
        """Let a paused schedule run again; False when it was not paused."""
        return await self._driver.run(lambda: _resume(name, author, self._clock, tenant))

    async def trigger(self, name: str, *, author: str = "", args: str | None = None) -> str:
        """Enqueue a job of the schedule now, under its overlap rule; return the job's id."""
        return (await self.trigger_once(name, None, author=author, args=args))[0]

    async def trigger_once(
        self, name: str, key: str | None, *, author: str = "", args: str | None = None, tenant: str | None = None
    ) -> tuple[str, bool]:
        """Do so unless it was done with this key before; return the job's id, and whether it is new."""
        return await self._driver.run(lambda: _trigger(name, author, args, key, self._clock, tenant))

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
        tenant: str | None = None,
    ) -> list[Instant]:
        """Enqueue a job for each past instant in [since, until] that has not fired; repeating it adds nothing."""
        return await self._driver.run(
            lambda: _backfill(
                name,
                since,
                until,
                again=again,
                dry_run=dry_run,
                author=author,
                clock=self._clock,
                limit=limit,
                tenant=tenant,
            )
        )

    async def get(self, name: str) -> Schedule:
        """Read one schedule."""
        rows = await self._driver.fetch(call("schedule", name=name))
        if not rows or rows[0]["removed_at"] is not None:
            raise _absent(name)
        return read_schedule(rows[0])

    async def show(self, name: str, *, tenant: str | None = None, also_removed: bool = False) -> Schedule:
        """Read one schedule to look at; one that cannot be read says so in its `attention`."""
        rows = await self._driver.fetch(call("schedule", name=name))
        if not rows or _is_foreign(rows[0], tenant) or (rows[0]["removed_at"] is not None and not also_removed):
            raise _absent(name)
        return show_schedule(rows[0])

    async def is_taken(self, name: str, *, tenant: str | None) -> bool:
        """Say whether another tenant has, or had, a schedule of this name."""
        rows = await self._driver.fetch(call("schedule", name=name))
        return bool(rows) and _is_foreign(rows[0], tenant)

    async def page(
        self,
        *,
        owner: str | None = None,
        tenant: str | None = None,
        words: str | None = None,
        state: str | None = None,
        after: str = "",
        limit: int = PAGE_MAX,
    ) -> list[Schedule]:
        """Read a page of schedules by name; `words` may be anywhere in name and task, `state` is one of `STATES`."""
        plain = None if words is None else words.lower()
        rows = await self._driver.fetch(
            call(
                "schedules",
                owner=owner,
                tenant=tenant,
                words=None if plain is None else f"%{literally(plain)}%",
                words_in_json=None if plain is None else f"%{literally(as_json([plain])[2:-2])}%",
                state=state,
                flagged=FAILING_FLAGGED,
                after=after,
                limit=limit,
            )
        )
        return [show_schedule(row) for row in rows]

    async def _again_if_raced(self, begin: Callable[[], Transaction[str]]) -> str:
        try:
            return await self._driver.run(begin)
        except ConstraintViolated:  # Two creators of one name: the second now finds it.
            return await self._driver.run(begin)
