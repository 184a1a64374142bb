"""Transactions that create, change and remove schedules.

A change first decides, in the same transaction, everything that is due under the old definition. So a definition covers
exactly the instants from its effective time to that of the next, and no decision changes. A removed schedule keeps its
row and its position: adding it again continues from there and repeats nothing.

Names are unique per tenant. The column `name` has the *key* of a schedule (see `schedule_names.schedule_key`), which
never changes: the ledger, the jobs, the locks and the jitter use it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headway.core.clock import Clock
from headway.core.errors import (
    DefinitionError,
    InvalidSchedule,
    ScheduleChanged,
    ScheduleNotFound,
    ScheduleOwned,
)
from headway.core.instants import Instant, isoformat
from headway.core.occurrences import LiveJobs
from headway.core.ports import slot_of
from headway.core.schedule_names import ScheduleRef, schedule_key, schedule_name
from headway.core.schedules import Schedule, ScheduleSpec
from headway.core.tenants import DEFAULT_TENANT
from headway.core.triggers import After, describe
from headway.scheduling.planner import first_at, plan
from headway.store.ledger import NOTHING_LIVE, Writer, live_by_schedule, read_schedule
from headway.store.transaction import ConstraintViolated, Row, Transaction, as_json, call

REFUSED: Final = "refused: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """The author of definitions, their new owner, and what the author may do."""

    clock: Clock
    name: str = ""
    owner: str = ""
    take_over: bool = False
    may_be_over: bool = False


# One --------------------------------------------------------------------------------------------------------


def settle_past(schedule: Schedule, now: Instant, clock: Clock) -> Transaction[tuple[Schedule, LiveJobs]]:
    """Decide everything that is due under the current definition; return the advanced schedule."""
    while True:
        live = yield from _live(schedule)
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
            return schedule, (yield from _live(schedule))


def _live(schedule: Schedule) -> Transaction[LiveJobs]:
    rows = yield call("live_jobs", names=as_json([{"name": schedule.key}]))
    return live_by_schedule(rows).get(schedule.key, NOTHING_LIVE)


def locked(ref: ScheduleRef) -> Transaction[tuple[Row | None, Instant]]:
    """Lock a schedule, removed ones included; return its row and the store's time."""
    rows = yield call("schedule_locked", tenant=ref.tenant, name=ref.name)
    if not rows:
        now = (yield call("time"))[0]["now"]
        return None, now
    return rows[0], rows[0]["now"]


def absent(ref: ScheduleRef) -> ScheduleNotFound:
    """Return the error for a schedule that does not exist."""
    return ScheduleNotFound(f"no schedule is named {str(ref)!r}; `headway schedules list` shows all")


def put(ref: ScheduleRef, spec: ScheduleSpec, author: Author, expected_revision: int | None = None) -> Transaction[str]:
    """Create or change a schedule; return what was done."""
    row, now = yield from locked(ref)
    if row is None:
        if expected_revision not in (None, 0):
            raise ScheduleChanged(f"schedule {str(ref)!r} does not exist any more")
        _check_instants(ref, spec, author, now)
        if not (yield from add({ref: spec}, author, now)):
            raise ConstraintViolated(f"schedule {str(ref)!r} was created at the same moment")
        return "created"
    removed = row["removed_at"] is not None
    if expected_revision is not None and expected_revision != (0 if removed else row["revision"]):
        found = "was removed" if removed else f"has revision {row['revision']}, not {expected_revision}"
        raise ScheduleChanged(f"schedule {str(ref)!r} {found}")
    if (taken := _taken(ref, row, author)) is not None:
        raise ScheduleOwned(taken)
    if _is_same(row, spec, author):
        return "unchanged"
    _check_instants(ref, spec, author, now)
    return (yield from _change(row, spec, author, now))


def _taken(ref: ScheduleRef, row: Row, author: Author) -> str | None:
    """Return who owns the schedule, if the author may not change it."""
    if row["removed_at"] is not None or row["owner"] == author.owner or author.take_over:
        return None
    whose = f"the app {row['owner']!r}" if row["owner"] else "no app or file (it was put by hand)"
    return f"schedule {str(ref)!r} belongs to {whose}; choose another name, or remove it first"


def _is_same(row: Row, spec: ScheduleSpec, author: Author) -> bool:
    return row["removed_at"] is None and row["definition"] == spec.to_json() and row["owner"] == author.owner


def _check_instants(ref: ScheduleRef, spec: ScheduleSpec, author: Author, now: Instant) -> None:
    if not author.may_be_over and first_at(spec, now) is None:
        raise InvalidSchedule(f"schedule {str(ref)!r} has no instant after {isoformat(now)}: {describe(spec.trigger)}")


def _change(row: Row, spec: ScheduleSpec, author: Author, now: Instant) -> Transaction[str]:
    live = NOTHING_LIVE
    try:
        schedule = read_schedule(row)
    except DefinitionError:
        # The instants of an invalid definition are unknown: the new one starts now, without pauses.
        yield from _clear_pauses(row)
        schedule = Schedule(
            key=row["name"],
            name=schedule_name(row["name"]),
            spec=spec,
            version=row["version"] + 1,
            decided_through=row["decided_through"],
        )
    else:
        if schedule.removed_at is None:
            schedule, live = yield from settle_past(schedule, now, author.clock)
        elif schedule.pauses:  # It starts over and keeps only its position.
            yield from _clear_pauses(row)
            schedule = replace(schedule, version=schedule.version + 1, pauses=())
    yield from _revise([(schedule, spec, live)], author.owner, author.name, now)
    return _changed(row)


def _changed(row: Row) -> str:
    return "changed" if row["removed_at"] is None else "created"


def _clear_pauses(row: Row) -> Transaction[None]:
    yield call("schedule_pauses", key=row["name"], version=row["version"], pauses="[]", paused_until=None, next_at=None)


def remove(
    ref: ScheduleRef, author: Author, *, owner: str | None = None, expected_revision: int | None = None
) -> Transaction[bool]:
    """Remove a schedule from now on; return whether it existed (with this owner)."""
    row, now = yield from locked(ref)
    if row is None or row["removed_at"] is not None or (owner is not None and row["owner"] != owner):
        return False
    if expected_revision not in (None, row["revision"]):
        raise ScheduleChanged(f"schedule {str(ref)!r} has revision {row['revision']}, not {expected_revision}")
    try:
        schedule, live = yield from settle_past(read_schedule(row), now, author.clock)
    except DefinitionError as error:
        raise InvalidSchedule(
            f"schedule {str(ref)!r} cannot be decoded ({error}); put it again, then remove it"
        ) from None
    yield from _revise([(schedule, None, live)], row["owner"], author.name, now)
    return True


# Many -------------------------------------------------------------------------------------------------------


def put_many(specs: Mapping[ScheduleRef, ScheduleSpec], author: Author) -> Transaction[list[str]]:
    """Create or change schedules in one transaction; return what was done with each.

    One that is another owner's is left alone, and what is returned for it begins with `REFUSED` and says whose it is.
    """
    names = [{"tenant": ref.tenant, "name": ref.name} for ref in specs]
    rows = yield call("schedules_locked", names=as_json(names))
    now = (yield call("time"))[0]["now"]
    found = {ScheduleRef(row["tenant"], schedule_name(row["name"])): row for row in rows}
    done: dict[ScheduleRef, str] = {}
    different: list[tuple[ScheduleRef, Row]] = []
    for ref, row in found.items():
        if (taken := _taken(ref, row, author)) is not None:
            done[ref] = REFUSED + taken
        elif _is_same(row, specs[ref], author):
            done[ref] = "unchanged"
        else:
            different.append((ref, row))
    for ref in specs.keys() - done.keys():
        _check_instants(ref, specs[ref], author, now)
    new = {ref: spec for ref, spec in specs.items() if ref not in found}
    if new and len((yield from add(new, author, now))) < len(new):
        raise ConstraintViolated("one of these schedules was created at the same moment")
    done |= dict.fromkeys(new, "created")
    done |= yield from _change_many([(ref, row, specs[ref]) for ref, row in different], author, now)
    return [done[ref] for ref in specs]


def _change_many(
    changes: Sequence[tuple[ScheduleRef, Row, ScheduleSpec]], author: Author, now: Instant
) -> Transaction[dict[ScheduleRef, str]]:
    """Change schedules: all that have nothing due in one statement, the others one by one."""
    quiet: list[tuple[Schedule, ScheduleSpec]] = []
    for _, row, spec in changes:
        if _is_quiet(row, now) and (schedule := _readable(row)) is not None:
            quiet.append((schedule, spec))
        else:
            yield from _change(row, spec, author, now)
    if quiet:
        names = [{"name": schedule.key} for schedule, _ in quiet]
        live = live_by_schedule((yield call("live_jobs", names=as_json(names))))
        revised = [(schedule, spec, live.get(schedule.key, NOTHING_LIVE)) for schedule, spec in quiet]
        yield from _revise(revised, author.owner, author.name, now)
    return {ref: _changed(row) for ref, row, _ in changes}


def _is_quiet(row: Row, now: Instant) -> bool:
    """Return whether a schedule has nothing to decide before it is changed."""
    if row["removed_at"] is not None or row["attention"] is not None:
        return False
    return row["next_at"] is None or row["next_at"] > now


def _readable(row: Row) -> Schedule | None:
    try:
        return read_schedule(row)
    except DefinitionError:
        return None


def add(specs: Mapping[ScheduleRef, ScheduleSpec], author: Author, now: Instant) -> Transaction[list[ScheduleRef]]:
    """Create schedules that start now; return those that did not exist."""
    keys = yield from choose_keys(specs)
    new = [_new_row(keys[ref], spec, author.owner, now) for ref, spec in specs.items()]
    rows = yield call("schedule_add", schedules=as_json(new))
    keys_added = {row["name"] for row in rows}
    added = [ref for ref in specs if keys[ref] in keys_added]
    if added:
        revisions = [_revision_row(keys[ref], 1, now, specs[ref], author.name) for ref in added]
        yield call("revision_add", revisions=as_json(revisions))
    return added


def choose_keys(refs: Mapping[ScheduleRef, object]) -> Transaction[dict[ScheduleRef, str]]:
    """Return the keys for schedules that do not exist yet."""
    plain = [ref.name for ref in refs if ref.tenant == DEFAULT_TENANT]
    rows = (yield call("schedule_whose", keys=as_json(plain))) if plain else []
    taken = {row["name"] for row in rows if row["tenant"] != DEFAULT_TENANT}  # From before names were per tenant.
    return {ref: schedule_key(*ref, qualified=ref.name in taken) for ref in refs}


# Rows -------------------------------------------------------------------------------------------------------


def _new_row(key: str, spec: ScheduleSpec, owner: str, now: Instant) -> dict[str, object]:
    return {
        **_definition(spec),
        "name": key,
        "owner": owner,
        "tenant": spec.tenant,
        "slot": slot_of(key),
        "next_at": first_at(spec, now),
        "decided_through": now,
        "created_at": now,
    }


def _definition(spec: ScheduleSpec) -> dict[str, object]:
    return {
        "definition": spec.to_json(),
        "trigger_text": describe(spec.trigger),
        "delay": spec.trigger.delay if isinstance(spec.trigger, After) else None,
        "ends_at": spec.end,
    }


def _revision_row(
    key: str, revision: int, effective_at: Instant, spec: ScheduleSpec | None, author: str
) -> dict[str, object]:
    return {
        "schedule": key,
        "revision": revision,
        "effective_at": effective_at,
        "definition": None if spec is None else spec.to_json(),
        "author": author,
    }


def _revise(
    changes: Sequence[tuple[Schedule, ScheduleSpec | None, LiveJobs]], owner: str, author: str, now: Instant
) -> Transaction[None]:
    """Record the next revisions of schedules; a revision without a spec removes one."""
    revised = [_revised_row(schedule, spec, live, owner, now) for schedule, spec, live in changes]
    rows = yield call("schedules_revise", schedules=as_json(revised))
    revisions = {row["name"]: row["revision"] for row in rows}
    for schedule, _, _ in changes:
        if schedule.key not in revisions:
            raise ScheduleChanged(f"schedule {schedule.label!r} was changed at the same moment; try again")
    yield call(
        "revision_add",
        revisions=as_json(
            [
                _revision_row(schedule.key, revisions[schedule.key], max(now, schedule.decided_through), spec, author)
                for schedule, spec, _ in changes
            ]
        ),
    )
    allowing = [schedule.key for schedule, spec, _ in changes if not (spec or schedule.spec).exclusive]
    if allowing:
        yield call("leave_line", schedules=as_json(allowing))


def _revised_row(
    schedule: Schedule, spec: ScheduleSpec | None, live: LiveJobs, owner: str, now: Instant
) -> dict[str, object]:
    effective_at = max(now, schedule.decided_through)
    return {
        **_definition(spec or schedule.spec),
        "name": schedule.key,
        "version": schedule.version,
        "owner": owner,
        "next_at": None if spec is None else _next_after_edit(schedule, spec, live, effective_at),
        "decided_through": effective_at,
        "removed_at": effective_at if spec is None else None,
    }


def _next_after_edit(schedule: Schedule, spec: ScheduleSpec, live: LiveJobs, now: Instant) -> Instant | None:
    if isinstance(spec.trigger, After) and live.last is not None:
        return None  # The end of the live job sets the next instant.
    if isinstance(spec.trigger, After) and isinstance(schedule.spec.trigger, After) and schedule.next_at is not None:
        moved = schedule.next_at - schedule.spec.trigger.delay + spec.trigger.delay
        return max(moved, now + 1)
    return first_at(spec, now)
