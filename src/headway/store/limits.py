"""Define limits and the weights of tenants.

A limit is in force when `put` returns. Claims read the limits in their own transaction and keep them from changing
until they are committed. A claim that does not know of limits yet may be under way when the first one is defined, so
`put` waits for the transactions that write jobs at that moment, then marks the attempts that run, and only then lets
jobs start under the new limit.
"""

import asyncio
from functools import partial
from typing import Final

from headway.core.clock import Clock
from headway.core.errors import LimitOwned
from headway.core.instants import SECOND
from headway.core.limits import BITS, SINCE_SCHEMA, Limit, Rules, kind_of, value_of
from headway.store.coordination import require_schema
from headway.store.held_lanes import held_lanes, lane_key
from headway.store.lanes import read_limit, reopen
from headway.store.transaction import Driver, Transaction, as_json, call

WRITERS_S_MAX: Final = 15.0  # No claim takes longer: the store ends its statements after 10 s, and idle ones after 5 s.
WRITERS_REST_S: Final = 0.005
REOPEN_MAX: Final = 1_000
RELABEL_MAX: Final = 5_000
SWEEP_MAX: Final = 200
LATE_AFTER: Final = 20 * SECOND  # A limit that is not in force by then is finished by a janitor.


def _begin_change() -> Transaction[int]:
    """Wait for the claims that read the old limits; return the new revision."""
    yield call("lock_limits")
    return int((yield call("raise_limits_revision"))[0]["revision"])


def _put(limit: Limit, author: str, *, replaces: bool) -> Transaction[int]:
    """Write a limit; return its revision if it still has to be put in force, else 0."""
    revision = yield from _begin_change()
    found = yield call("limit", name=limit.name)
    owner = found[0]["owner"] if found else limit.owner
    if owner != limit.owner and not replaces:
        whose = f"the app {owner!r}" if owner else "an operator"
        raise LimitOwned(
            f"the limit {limit.name!r} was put by {whose}; change it with `headway limits put`, or remove it first"
        )
    if not found:
        yield from require_schema(SINCE_SCHEMA, f"the limit {limit.name!r} cannot be defined")
    values = {"concurrency": limit.concurrency, "rate": limit.rate, "per": limit.per, "burst": limit.burst}
    said = {"name": limit.name, "author": author, "revision": revision, **values}
    rows = yield call(
        "put_limit",
        **said,
        kind=limit.kind,
        stem=limit.stem,
        is_pattern=int(limit.is_pattern),
        owner=limit.owner,
        in_force=0,
        relabel="" if limit.kind == "task" else None,
    )
    is_new = rows[0]["in_force"] == 0
    if not is_new:  # A new one is recorded when it is in force.
        yield call("record_limit", **said, removed=0)
    yield call("recheck_lanes", stem=limit.name.removesuffix("*"))
    yield from _mark_queues()
    return revision if is_new else 0


def _mark_queues() -> Transaction[Rules]:
    rules = Rules(map(read_limit, (yield call("limits"))))
    names = as_json(sorted(rules.limited_queues()))
    yield call("mark_limited_queues", names=names)
    yield call("mark_unlimited_queues", names=names)
    return rules


def _enforce(name: str, written_as: int) -> Transaction[None]:
    """Count the attempts that run, and let jobs start under a limit.

    A limit that was removed and put again, or put by another caller, meanwhile is left to that caller: claims may be
    under way that have begun while there was none.
    """
    revision = yield from _begin_change()
    rows = yield call("limit", name=name)
    if not rows or rows[0]["in_force"] == 1 or rows[0]["revision"] != written_as:
        return
    row = rows[0]
    yield call("mark_running", bit=BITS[row["kind"]])
    yield call("limit_in_force", name=name)
    yield call("recheck_lanes", stem=name.removesuffix("*"))
    said = {column: row[column] for column in ("name", "author", "concurrency", "rate", "per", "burst")}
    yield call("record_limit", **said, revision=revision, removed=0)


def _remove(name: str, author: str) -> Transaction[bool]:
    revision = yield from _begin_change()
    if not (yield call("remove_limit", name=name)):
        return False
    gone = dict.fromkeys(("concurrency", "rate", "per", "burst"))
    yield call("record_limit", name=name, author=author, revision=revision, **gone, removed=1)
    yield call("recheck_lanes", stem=name.removesuffix("*"))
    yield from _mark_queues()
    return True


def _relabel() -> Transaction[int]:
    """Put the next jobs of a limited task into lanes of their own; return how many jobs were looked at."""
    found = yield call("relabelled_limit")
    if not found:
        return 0
    name, after = found[0]["name"], found[0]["relabel"]
    page = (yield call("relabel", after=after, limit=RELABEL_MAX))[0]
    if page["last"] is not None:
        yield call("relabel_jobs", after=after, last=page["last"])
    yield call("relabelled", name=name, relabel=page["last"] if page["jobs"] == RELABEL_MAX else None)
    return int(page["jobs"])


def _sweep(after: str, limit: int) -> Transaction[str]:
    """Open lanes whose gate has a free place, or whose rate allows a start; return the gate after which to go on."""
    due = {lane_key(row) for row in (yield call("due_lanes", limit=REOPEN_MAX))}
    gates = [row["gate"] for row in (yield call("waiting_gates", after=after, limit=limit))]
    if gates:
        rules = Rules(map(read_limit, (yield call("limits"))))
        counted = [{"gate": gate, "kind": kind_of(gate), "value": value_of(gate)} for gate in gates]
        rows = yield call("count_running", gates=as_json(counted))
        free = {row["gate"]: _places(rules.find(row["gate"]), row["running"]) for row in rows}
        free = {gate: places for gate, places in free.items() if places > 0}
        if free:
            due |= {lane_key(row) for row in (yield held_lanes(free, REOPEN_MAX, rules=rules))}
    yield from reopen(due)
    return gates[-1] if len(gates) == limit else ""


def _places(limit: Limit | None, running: int) -> int:
    """Return how many places are free. Lanes that wait for a rate have a time of their own, and are not opened here."""
    return REOPEN_MAX if limit is None or limit.concurrency is None else limit.concurrency - running


class StoreLimits:
    """Define limits and tenants, and keep the lanes that wait for them going."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock
        self._swept = ""

    async def all(self) -> list[Limit]:
        """Return all limits, by name."""
        return [read_limit(row) for row in await self._driver.fetch(call("limits"))]

    async def put(self, limit: Limit, *, author: str, replaces: bool = True) -> None:
        """Create or change a limit; it is in force when this returns."""
        written_as = await self._driver.run(lambda: _put(limit, author, replaces=replaces))
        if written_as:
            await self._await_writers()
            await self._driver.run(lambda: _enforce(limit.name, written_as))
        await self.sweep()

    async def remove(self, name: str, *, author: str) -> bool:
        """Remove a limit; return False if there was none."""
        removed = await self._driver.run(lambda: _remove(name, author))
        await self.sweep()
        return removed

    async def _await_writers(self) -> None:
        """Wait until no claim is under way that began before now; what takes longer than a claim can is none."""
        until, wake = self._clock.monotonic() + WRITERS_S_MAX, asyncio.Event()
        writers = await self._writers()
        while writers and self._clock.monotonic() < until:
            await self._clock.rest(WRITERS_REST_S, wake)
            writers &= await self._writers()

    async def _writers(self) -> set[str]:
        return {row["writer"] for row in await self._driver.fetch(call("writers"))}

    async def keep_going(self) -> bool:
        """Do what is due: finish limits whose author died, relabel jobs, open lanes; return whether there is more."""
        at_work = await self._driver.fetch(call("limits_at_work", age=LATE_AFTER))
        if not at_work:
            return False
        for row in at_work:
            if row["is_late"]:
                await self._driver.run(partial(_enforce, row["name"], row["revision"]))
        looked_at = await self.relabel()
        await self.sweep()
        return looked_at > 0

    async def sweep(self) -> None:
        """Open lanes that wait although their gate has a free place."""
        after = self._swept
        self._swept = await self._driver.run(lambda: _sweep(after, SWEEP_MAX))

    async def relabel(self) -> int:
        """Put the next jobs of a limited task into lanes of their own; return how many jobs were looked at."""
        return await self._driver.run(_relabel)
