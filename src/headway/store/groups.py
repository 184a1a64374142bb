"""Create, read, close, cancel, retry and finish groups of jobs.

A group finishes in one transaction together with its callbacks: the group row is locked, so nobody adds jobs; a new
statement then reads the changes of the counts; and when every job has ended, the row says so, once.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from headway.core.clock import Clock
from headway.core.errors import BatchClosed, BatchNotFound, Conflict, DuplicateKey, RequestTooLarge, StoreUnavailable
from headway.core.groups import (
    BATCH,
    SOON,
    Delta,
    GroupCounts,
    JobGroup,
    NewGroup,
    OpenGroup,
    callback_args,
    closed,
    folded,
    is_over,
    next_look,
    outcome_of,
)
from headway.core.instants import Instant
from headway.core.jobs import NewJob
from headway.store.bulk import retry_jobs
from headway.store.group_entry import group_rows
from headway.store.queue import cancel_in_line, insert
from headway.store.transaction import Driver, Row, Transaction, as_json, call

PAGE_MAX: Final = 200
DELTAS_MAX: Final = 1_000  # Folded in one transaction.
LOOK_MAX: Final = 100  # Groups that one tick looks at.
CANCEL_STEP: Final = 1_000  # Jobs per transaction, which locks them.
RETRY_STEP: Final = 500
STEPS_AT_ONCE: Final = 10  # Of one group in one tick.
UNFINISHED_MAX: Final = 10_000  # Batches of a tenant that may be unfinished.
_RETRY: Final = "retry"
_NAMES_TRIED: Final = 100
_LAST_ID: Final = "~"  # Sorts after every id.
_COUNTS: Final = GroupCounts.__struct_fields__


def _counts(row: Row) -> GroupCounts:
    return GroupCounts(*(row[name] for name in _COUNTS))


def _more_counts(row: Row) -> GroupCounts:
    return GroupCounts(*(row["d_added" if name == "total" else f"d_{name}"] for name in _COUNTS))


def read_group(row: Row) -> JobGroup:
    """Read a group from a row of the statement `groups`."""
    delta = Delta(_more_counts(row), row["d_added_at"], row["d_began_at"])
    whole = folded(_open_group(row), [delta])
    columns = ("id", "kind", "tenant", "name", "created_at", "closed_at", "cancel_requested_at", "finished_at")
    rest = ("outcome", "reason", "on_done", "on_failure", "rerun_of", "running")
    return JobGroup(
        **{name: row[name] for name in (*columns, *rest)},
        counts=whole.counts,
        read_at=row["now"],
        open_until=whole.open_until,
        began_at=whole.began_at,
    )


def _open_group(row: Row) -> OpenGroup:
    return OpenGroup(
        counts=_counts(row),
        now=row["now"],
        open_for=row["open_for"],
        open_until=row["open_until"],
        began_at=row["began_at"],
        closed_at=row["closed_at"],
        is_cancelled=row["cancel_requested_at"] is not None,
        is_finished=row["finished_at"] is not None,
        has_opener=row["opened_by"] is not None,
        is_rerun=row["spec"] == _RETRY,
        reason=row["reason"],
    )


def read_groups(ids: Sequence[str]) -> Transaction[list[JobGroup]]:
    """Read groups with exact counts, in the order of the ids; unknown ones are left out."""
    if not ids:
        return []
    rows = yield call("groups", groups=group_rows(ids))
    found = {row["id"]: read_group(row) for row in rows}
    return [found[group_id] for group_id in ids if group_id in found]


def require_group(group_id: str) -> Transaction[JobGroup]:
    """Read a group with exact counts."""
    found = yield from read_groups([group_id])
    if not found:
        raise BatchNotFound(f"no batch has the id {group_id!r}")
    return found[0]


def _callback(job: NewJob | None) -> str | None:
    return None if job is None else msgspec.json.encode(job).decode()


def _same_callback(stored: str | None, given: NewJob | None) -> bool:
    """Return whether a call names the callback that the group has; one that names none accepts any."""
    return given is None or (stored is not None and msgspec.json.decode(stored, type=NewJob).task == given.task)


def _insert_group(new: NewGroup, *, spec: str | None = None, rerun_of: str | None = None) -> Transaction[bool]:
    on_done, on_failure = _callback(new.on_done), _callback(new.on_failure)
    return (yield from _insert_copy(new, on_done, on_failure, spec=spec, rerun_of=rerun_of))


def _insert_copy(
    new: NewGroup, on_done: str | None, on_failure: str | None, *, spec: str | None, rerun_of: str | None
) -> Transaction[bool]:
    look_in = SOON if spec or new.opened_by else new.open_for
    rows = yield call(
        "open_group",
        id=new.id,
        kind=new.kind,
        tenant=new.tenant,
        name=new.name,
        opened_by=new.opened_by,
        open_for=new.open_for,
        on_done=on_done,
        on_failure=on_failure,
        spec=spec,
        rerun_of=rerun_of,
        look_in=look_in,
    )
    return bool(rows)


def open_group(new: NewGroup, *, unfinished_max: int | None = None) -> Transaction[tuple[JobGroup, bool]]:
    """Create a batch, or return the one that has this name; also return whether it is new."""
    is_new = yield from _insert_group(new)
    group_id = new.id
    if not is_new:
        rows = yield call("batch_by_name", tenant=new.tenant, name=new.name)
        if not rows:
            raise StoreUnavailable(f"the batch {new.name!r} was deleted at this moment; try again")
        for which, given in (("on_done", new.on_done), ("on_failure", new.on_failure)):
            if not _same_callback(rows[0][which], given):
                raise DuplicateKey(
                    f"a batch {new.name!r} exists with another {which}; use another name, or the same task"
                )
        group_id = rows[0]["id"]
    elif unfinished_max is not None:
        found = yield call("unfinished_groups", tenant=new.tenant, kind=new.kind, limit=unfinished_max + 1)
        if found[0]["groups"] > unfinished_max:
            raise RequestTooLarge(f"a tenant has at most {unfinished_max:,} unfinished batches; close some of them")
    return (yield from require_group(group_id)), is_new


def close_group(group_id: str, reason: str = "") -> Transaction[bool]:
    """Close a group; return False if it was closed already."""
    if (yield call("close_group", id=group_id, reason=reason)):
        return True
    yield from require_group(group_id)
    return False


def _request_cancel(group_id: str, reason: str) -> Transaction[bool]:
    if (yield call("request_cancel_of_group", id=group_id, reason=reason)):
        return True
    group = yield from require_group(group_id)
    if group.finished_at is not None and group.cancel_requested_at is None:
        raise BatchClosed(f"the batch {group.name!r} has finished already")
    return False


def _cancel_step(group_id: str) -> Transaction[int]:
    """Cancel the next jobs of a cancelled group; return how many."""
    rows = yield call("lock_group", id=group_id)
    if not rows or rows[0]["cancel_requested_at"] is None:
        return 0
    return (yield from _cancel_members(group_id, rows[0]["reason"]))


def _cancel_members(group_id: str, reason: str) -> Transaction[int]:
    ids = [row["id"] for row in (yield call("members_to_cancel", id=group_id, limit=CANCEL_STEP))]
    if ids:
        yield from cancel_in_line(ids, reason)
    return len(ids)


def _begin_retry(group_id: str, new_id: str) -> Transaction[str | None]:
    """Return the group for the reruns of the failed jobs: the same while it runs, else a new one; None: none failed."""
    rows = yield call("lock_group", id=group_id)
    if not rows:
        raise BatchNotFound(f"no batch has the id {group_id!r}")
    group = rows[0]
    if group["finished_at"] is None and group["cancel_requested_at"] is not None:
        raise Conflict(f"the batch {group['name']!r} is being cancelled; retry when it has finished")
    has_failed = bool((yield call("members_to_retry", id=group_id, limit=1)))
    if group["finished_at"] is None:
        return group_id if has_failed else None
    again = yield call("rerun_of_group", id=group_id)
    if again and (again[0]["closed_at"] is None or not has_failed):
        return str(again[0]["id"])
    return (yield from _rerun_group(group, new_id)) if has_failed else None


def _rerun_group(group: Row, new_id: str) -> Transaction[str]:
    """Create the group for the reruns of a finished one; it stays open until all of them are in it."""
    name = yield from _free_name(group["tenant"], group["name"])
    new = NewGroup(id=new_id, name=name, tenant=group["tenant"], open_for=group["open_for"])
    if not (yield from _insert_copy(new, group["on_done"], group["on_failure"], spec=_RETRY, rerun_of=group["id"])):
        raise StoreUnavailable(f"the name {name!r} was taken at this moment; try again")
    return new_id


def _free_name(tenant: str, name: str) -> Transaction[str]:
    """Return a name for the retry of a batch: `NAME retry 1`, or the next number that is free."""
    base, _, number = name.rpartition(" retry ")
    first, stem = (int(number) + 1, base) if base and number.isdecimal() and len(number) < 6 else (1, name)
    tried = [f"{stem[: 500 - 13]} retry {n}" for n in range(first, first + _NAMES_TRIED)]
    taken = {row["name"] for row in (yield call("batch_names", tenant=tenant, names=as_json(tried)))}
    free = [name for name in tried if name not in taken]
    if not free:
        raise Conflict(f"the batch {name!r} was retried too often")
    return free[0]


def _retry_step(group_id: str, target: str, author: str, clock: Clock) -> Transaction[bool]:
    """Rerun the next failed jobs of a group in the target group; return whether more are left.

    A target that is a group of its own is closed after the last one.
    """
    rows = yield call("lock_group", id=group_id)
    if target != group_id:
        rows = yield call("lock_group", id=target)
    if not rows or rows[0]["cancel_requested_at"] is not None or rows[0]["finished_at"] is not None:
        return False
    if target != group_id and rows[0]["closed_at"] is not None:
        return False
    ids = [row["id"] for row in (yield call("members_to_retry", id=group_id, limit=RETRY_STEP))]
    result = (yield from retry_jobs(ids, author, clock, {group_id: target})) if ids else None
    has_more = len(ids) == RETRY_STEP and result is not None and bool(result.done)
    if target != group_id and not has_more:
        yield call("close_group", id=target, reason="")
    return has_more


class Looked(NamedTuple):
    """What a look at a group found: whether anything changed, and what is left to do."""

    has_changed: bool = False
    is_cancelling: bool = False
    source: str | None = None  # The group whose failed jobs still have to be rerun in this one.


def _look(group_id: str, clock: Clock) -> Transaction[Looked]:
    """Add up what changed in a group, close it when it is time, and finish it when all of its jobs have ended."""
    rows = yield call("lock_free_group", id=group_id)
    if not rows:
        return Looked()
    row, before = rows[0], _open_group(rows[0])
    taken = yield call("take_deltas", id=group_id, limit=DELTAS_MAX)
    group = folded(before, [_delta(one) for one in taken])
    group = closed(group, opener_completed=(yield from _opener_completed(row, group)))
    has_more = len(taken) == DELTAS_MAX
    yield from _write(group_id, group, has_more=has_more)
    is_ending = is_over(group) and not has_more and not group.is_finished
    if is_ending:
        yield from _finish(row, group, clock)
    return Looked(
        has_changed=bool(taken) or is_ending or group.closed_at != before.closed_at,
        is_cancelling=group.is_cancelled and not group.is_finished and not is_ending,
        source=row["rerun_of"] if group.is_rerun and group.closed_at is None else None,
    )


def _delta(row: Row) -> Delta:
    names = ("added", *_COUNTS[1:])
    return Delta(GroupCounts(*(row[name] for name in names)), row["added_at"], row["began_at"])


def _opener_completed(row: Row, group: OpenGroup) -> Transaction[bool]:
    if group.closed_at is not None or row["opened_by"] is None:
        return False
    return bool((yield call("is_job_completed", id=row["opened_by"])))


def _write(group_id: str, group: OpenGroup, *, has_more: bool) -> Transaction[None]:
    yield call(
        "update_group",
        id=group_id,
        **msgspec.structs.asdict(group.counts),
        open_until=group.open_until,
        began_at=group.began_at,
        closed_at=group.closed_at,
        reason=group.reason,
        look_at=group.now if has_more else next_look(group),
    )


def _finish(row: Row, group: OpenGroup, clock: Clock) -> Transaction[None]:
    """Finish a group and enqueue its callbacks. Their keys make a second one impossible, whatever happens here."""
    outcome = outcome_of(group.counts, is_cancelled=group.is_cancelled)
    finished = yield call("finish_group", id=row["id"], outcome=outcome)
    if not finished:
        return
    whole = yield from require_group(row["id"])
    args = msgspec.json.encode(callback_args(whole)).decode()
    callbacks = {"done": row["on_done"], "failure": row["on_failure"] if group.counts.failures else None}
    jobs = [
        msgspec.structs.replace(
            msgspec.json.decode(text, type=NewJob),
            id=clock.new_id("job"),
            args=args,
            tenant=row["tenant"],
            key=f"group:{row['id']}:{which}",
        )
        for which, text in callbacks.items()
        if text is not None
    ]
    if jobs:
        yield from insert(jobs)


class StoreGroups:
    """Groups of jobs of one store."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def open(self, new: NewGroup, *, unfinished_max: int | None = None) -> tuple[JobGroup, bool]:
        """Create a batch, or return the one that has this name; also return whether it is new."""
        return await self._driver.run(lambda: open_group(new, unfinished_max=unfinished_max))

    async def get(self, group_id: str) -> JobGroup:
        """Read a group with exact counts."""
        return await self._driver.run(lambda: require_group(group_id))

    async def find_batch(self, tenant: str, name: str) -> str | None:
        """Return the id of a batch by its name."""
        rows = await self._driver.fetch(call("batch_by_name", tenant=tenant, name=name))
        return rows[0]["id"] if rows else None

    async def page(
        self,
        *,
        kind: str = BATCH,
        tenant: str | None = None,
        finished: bool | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[JobGroup]:
        """Read a page of groups with exact counts, newest first."""
        filters = {"kind": kind, "tenant": tenant, "finished": None if finished is None else int(finished)}
        place = {"before": before or _LAST_ID, "limit": max(1, min(limit, PAGE_MAX))}
        ids = [row["id"] for row in await self._driver.fetch(call("group_page", **filters, **place))]
        return await self._driver.run(lambda: read_groups(ids)) if ids else []

    async def of_tenant(self, group_ids: Iterable[str], tenant: str) -> frozenset[str]:
        """Return which of these groups belong to a tenant."""
        groups = group_rows(sorted(set(group_ids)))
        rows = await self._driver.fetch(call("groups_of_tenant", groups=groups, tenant=tenant))
        return frozenset(row["id"] for row in rows)

    async def close(self, group_id: str, *, reason: str = "") -> bool:
        """Close a group: it takes no more jobs, and finishes when all have ended. Return False if it was closed."""
        return await self._driver.run(lambda: close_group(group_id, reason))

    async def request_cancel(self, group_id: str, *, reason: str) -> bool:
        """Close a group and mark it as cancelled; return False if it was. `cancel_step` cancels its jobs."""
        return await self._driver.run(lambda: _request_cancel(group_id, reason))

    async def cancel_step(self, group_id: str) -> bool:
        """Cancel up to 1,000 jobs of a cancelled group; return whether there may be more."""
        return await self._driver.run(lambda: _cancel_step(group_id)) == CANCEL_STEP

    async def begin_retry(self, group_id: str) -> str | None:
        """Return the group in which the failed jobs are rerun, created if this one has finished; None: none failed."""
        new_id = self._clock.new_id(BATCH)
        return await self._driver.run(lambda: _begin_retry(group_id, new_id))

    async def retry_step(self, group_id: str, target: str, *, author: str) -> bool:
        """Rerun up to 500 failed jobs; return whether there may be more."""
        return await self._driver.run(lambda: _retry_step(group_id, target, author, self._clock))

    async def keep_going(self) -> bool:
        """Do one bounded piece of what is due; return whether there may be more."""
        rows = await self._driver.fetch(call("groups_at_work", deltas=DELTAS_MAX, limit=LOOK_MAX))
        has_changed = False
        for row in rows:
            has_changed |= await self._keep_going_with(row["id"])
        return has_changed

    async def _keep_going_with(self, group_id: str) -> bool:
        found = await self._driver.run(lambda: _look(group_id, self._clock))
        if found.is_cancelling:
            for _ in range(STEPS_AT_ONCE):
                if not await self.cancel_step(group_id):
                    break
        if found.source is not None:
            for _ in range(STEPS_AT_ONCE):
                if not await self.retry_step(found.source, group_id, author="housekeeping"):
                    break
        return found.has_changed

    async def next_look(self) -> Instant | None:
        """Return when housekeeping has to look at a group next, if no job ends before."""
        at: Instant | None = (await self._driver.fetch(call("next_look")))[0]["at"]
        return at
