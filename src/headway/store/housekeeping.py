"""Promote due jobs, settle attempts whose lease expired, end overdue jobs, and prune history."""

from collections.abc import Sequence
from typing import Final

from headway.core.clock import Clock
from headway.core.instants import DAY, DURATION_MAX, HOUR, INSTANT_MAX, SECOND, Duration, Instant
from headway.core.lifecycle import AttemptOutcome, LeaseExpired, Released, settle
from headway.store.coordination import keep_tallies
from headway.store.job_rows import count_in, read_lost_attempt
from headway.store.queue import cancel_in_line
from headway.store.settlement import settle_attempts
from headway.store.transaction import Driver, Row, Transaction, as_json, call
from headway.store.work import HELD_MAX

LIVES_AFTER: Final = SECOND
_CLASS: Final = ("in_queue", "for_needs", "of_tenant")
_LEASES_KEPT: Final = HOUR  # After they expired, so that their last holder can be seen.
_NODES_KEPT: Final = DAY
_GATES_KEPT: Final = 32 * DAY  # Longer than the time of any rate.


def _expire(limit: int, clock: Clock) -> Transaction[list[str]]:
    rows = yield call("expired", limit=limit)
    if not rows:
        return []
    beside = yield from _beside(rows)
    settlements = [settle(read_lost_attempt(row), _loss(row, beside), clock.chance.random()) for row in rows]
    yield from settle_attempts(settlements)
    return [row["id"] for row in rows]


def _beside(rows: Sequence[Row]) -> Transaction[dict[str, tuple[int, int]]]:
    """Count by worker the jobs that it ran together with the lost ones, and the suspects among them."""
    since: dict[str, Instant] = {}
    for row in rows:
        node, started_at = row["node"] or "", count_in(row["started_at"], INSTANT_MAX)
        since[node] = min(since.get(node, started_at), started_at)
    nodes = as_json([{"lost_node": node, "since": started_at} for node, started_at in since.items()])
    return {row["node"]: (row["jobs"], row["suspects"]) for row in (yield call("beside", nodes=nodes, limit=HELD_MAX))}


def _loss(row: Row, beside: dict[str, tuple[int, int]]) -> AttemptOutcome:
    """Return the outcome of an expired lease. A worker with a later heartbeat is alive, so it is not to blame."""
    lease_until, started_at = row["lease_until"], count_in(row["started_at"], INSTANT_MAX)
    is_alive = (row["beat_at"] or 0) > lease_until + LIVES_AFTER
    if is_alive and lease_until >= started_at:  # Otherwise the lease was ended by hand.
        return Released("handed back: its worker lives, but could not keep its lease")
    jobs, suspects = beside.get(row["node"], (1, 0))
    was_suspect = row["company"] is not None
    return LeaseExpired(
        losses=row["losses"] + 1,
        beside=jobs - 1,
        suspects=max(0, suspects - was_suspect),
        was_suspect=was_suspect,
        longest=max(count_in(row["longest"], DURATION_MAX), lease_until - started_at),
    )


def _promote(limit: int) -> Transaction[int]:
    due = yield call("promote", limit=limit)
    free = yield call("promote_blocked", limit=limit)
    return len(due) + len(free)


def _prune(retention: Duration, limit: int) -> Transaction[int]:
    jobs = yield call("prune_jobs", retention=retention, limit=limit)
    if jobs:
        ids = as_json([row["id"] for row in jobs])
        yield call("prune_attempts", ids=ids)
        yield call("prune_job_events", ids=ids)
        yield call("prune_log", ids=ids)
        yield call("prune_steps", ids=ids)
        yield call("prune_windows_of", ids=ids)
    occurrences = yield call("prune_occurrences", retention=retention, limit=limit)
    if occurrences:
        newest = max(row["decided_at"] for row in occurrences)
        yield call("raise_counter", name="pruned_through", value=newest)
    events = yield call("prune_events", retention=retention, limit=limit)
    leases = yield call("prune_leases", age=_LEASES_KEPT, limit=limit)
    gates = yield call("prune_gates", age=_GATES_KEPT, limit=limit)
    lanes = yield call("prune_lanes", age=_GATES_KEPT, limit=limit)
    unused = [{**dict(zip(_CLASS, row, strict=True)), "most": 1} for row in lanes if row["for_needs"]]
    shares = (yield call("prune_shares", shares=as_json(unused), most=1)) if unused else []
    revisions = yield call("prune_limit_revisions", retention=retention, limit=limit)
    nodes = yield call("prune_nodes", age=_NODES_KEPT)
    yield from keep_tallies(nodes)
    windows = yield call("prune_windows", limit=limit)
    groups = yield call("prune_groups", retention=retention, limit=limit)
    if groups:
        yield call("prune_deltas", ids=as_json([row["id"] for row in groups]))
    return sum(map(len, (jobs, occurrences, events, leases, gates, lanes, shares, revisions, nodes, windows, groups)))


def _end_overdue(limit: int) -> Transaction[int]:
    ids = [row["id"] for row in (yield call("overdue", limit=limit))]
    if not ids:
        return 0
    # A job that a worker claimed meanwhile has started in time.
    ended, _ = yield from cancel_in_line(ids, "expired: it did not start within its time", stops_running=False)
    return len(ended)


class StoreHousekeeping:
    """Implement the port `Housekeeping` on one store."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def promote(self, limit: int) -> int:
        """Make waiting jobs ready that are due and whose predecessor has ended."""
        return await self._driver.run(lambda: _promote(limit))

    async def next_promotion(self) -> Instant | None:
        """Return when the next waiting job is due."""
        sent = self._clock.monotonic()
        row = (await self._driver.fetch(call("next_promotion")))[0]
        self._clock.observe(row["now"], sent=sent)
        next_at: Instant | None = row["now"] if row["is_free"] else row["next_at"]
        return next_at

    async def expire(self, limit: int) -> list[str]:
        """Settle running attempts whose lease has expired."""
        if not await self._driver.fetch(call("any_expired")):
            return []
        return await self._driver.run(lambda: _expire(limit, self._clock))

    async def end_overdue(self, limit: int) -> int:
        """Cancel jobs that did not start in time; return how many."""
        if not await self._driver.fetch(call("overdue", limit=1)):
            return 0
        return await self._driver.run(lambda: _end_overdue(limit))

    async def prune(self, retention: Duration, limit: int) -> int:
        """Delete history older than the retention."""
        return await self._driver.run(lambda: _prune(retention, limit))
