"""The worker's side of the queue: claim jobs, extend their leases, report, and settle attempts.

Every change of a running job is guarded by (id, attempt, RUNNING): an attempt that lost its job matches no row, changes
nothing, and is told so.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from headway.core.errors import BatchClosed, LeaseLost
from headway.core.fairness import COST_DEFAULT
from headway.core.groups import JobGroup, NewGroup
from headway.core.instants import DURATION_MAX, INSTANT_MAX, Duration
from headway.core.job_logs import LOG_LINE_OVERHEAD
from headway.core.jobs import Claimed, EnqueuedRow, NewJob, Report, Suspect
from headway.core.lifecycle import Released, Settlement, Status, settle
from headway.core.ports import Charge, LaneClaim
from headway.store.claim_request import ClaimRequest
from headway.store.group_entry import hold_groups
from headway.store.groups import close_group, open_group, read_groups, require_group
from headway.store.held_lanes import held_lanes, lane_key
from headway.store.job_rows import count_in, read_claimed, read_lost_attempt
from headway.store.lanes import ClaimedInVain, LaneClaims, reopen
from headway.store.needs import ClassPages
from headway.store.queue import enqueue, with_earlier
from headway.store.settlement import completed, refuse, settle_attempts
from headway.store.transaction import ConstraintViolated, Driver, Row, StatementCall, Transaction, as_json, call
from headway.store.windows import find_merged

QUEUES_MAX: Final = 1_000
HELD_MAX: Final = 100_000
DUE_LANES_MAX: Final = 500


def _waited(row: Row) -> Duration:
    waited: Duration = row["now"] - count_in(row["ready_at"], INSTANT_MAX)
    return count_in(waited, DURATION_MAX)


def _hand_back_unknown(
    node: str, known: Collection[tuple[str, int]], given_up: Collection[tuple[str, int]]
) -> Transaction[list[str]]:
    rows = yield call("held_by_node", node=node, limit=HELD_MAX)
    unknown = [
        row
        for row in rows
        if (attempt := (row["id"], row["attempt"])) not in known
        and (
            attempt not in given_up or count_in(row["lease_until"], INSTANT_MAX) < row["now"]
        )  # Until then its code may still run.
    ]
    reason = Released("handed back: its worker did not hear that it had it, or could not keep its lease")
    if unknown:
        yield from settle_attempts([settle(read_lost_attempt(row), reason, 0.0) for row in unknown])
    return [row["id"] for row in unknown]


def _report_call(reports: Sequence[Report]) -> StatementCall:
    rows = [
        _ReportRow(
            report.job_id,
            report.attempt,
            report.progress,
            report.detail,
            report.metadata,
            sum(len(line) + LOG_LINE_OVERHEAD for _, _, line in report.lines),
        )
        for report in reports
    ]
    return call("report", reports=as_json(rows))


def _charge_call(charges: Sequence[Charge]) -> StatementCall:
    """Charge shares in their order; add up charges of the same one, because a statement changes a row only once."""
    sums: dict[tuple[str, str, str], list[int]] = {}
    for charge in charges:
        known = sums.setdefault((charge.queue, charge.needs, charge.tenant), [0, 0, 0])
        known[:] = known[0] + charge.more, known[1] + charge.took, known[2] + charge.jobs
    rows = [
        {"in_queue": queue, "for_needs": needs, "of_tenant": tenant, "more": more, "took": took, "jobs": jobs}
        for (queue, needs, tenant), (more, took, jobs) in sorted(sums.items())
    ]
    return call("charge", cost=COST_DEFAULT, charges=as_json(rows))


class _ReportRow(msgspec.Struct, frozen=True):
    """A report as a row of the statement `report`."""

    job_id: str
    job_attempt: int
    to_progress: int | None
    to_detail: str | None
    to_metadata: str | None
    more_log: int


def _stale(reports: Sequence[Report], rows: Sequence[Row]) -> frozenset[str]:
    written = {(row["id"], row["attempt"]) for row in rows}
    return frozenset(report.job_id for report in reports if (report.job_id, report.attempt) not in written)


def _report(reports: Sequence[Report]) -> Transaction[frozenset[str]]:
    """Write reports and the log lines of running attempts; the row locks keep attempts from ending meanwhile."""
    rows = yield _report_call(reports)
    written = {(row["id"], row["attempt"]) for row in rows}
    lines = [
        {"job_id": report.job_id, "attempt": report.attempt, "at": at, "stream": stream, "line": line}
        for report in reports
        if (report.job_id, report.attempt) in written
        for at, stream, line in report.lines
    ]
    if lines:
        yield call("record_log", lines=as_json(lines))
    return _stale(reports, rows)


def _hold(job_id: str, attempt: int) -> Transaction[Row]:
    rows = yield call("hold_attempt", id=job_id, attempt=attempt)
    if not rows:
        raise LeaseLost(f"attempt {attempt} of {job_id} is over")
    return rows[0]


def _keep_step(job_id: str, attempt: int, name: str, result: str) -> Transaction[None]:
    yield from _hold(job_id, attempt)
    yield call("record_step", id=job_id, attempt=attempt, name=name, result=result)


def _enqueue_from(job_id: str, attempt: int, jobs: Sequence[NewJob]) -> Transaction[list[EnqueuedRow]]:
    yield from hold_groups(jobs)  # Before the job: whoever cancels a group locks it before its jobs.
    own = yield from _hold(job_id, attempt)
    return (yield from enqueue(jobs, member_of=own["group_id"]))


def _enqueued_before(jobs: Sequence[NewJob]) -> Transaction[list[EnqueuedRow]]:
    """Find the jobs that an earlier call enqueued."""
    rows = yield call("jobs_by_id", ids=as_json([job.id for job in jobs]), largest=0)
    found = {row["id"]: EnqueuedRow(row["id"], row["status"], row["created_at"], row["run_at"], True) for row in rows}
    found |= yield from find_merged([job for job in jobs if job.id not in found])
    return (yield from with_earlier(jobs, found))


def _are_enqueued(jobs: Sequence[NewJob]) -> Transaction[bool]:
    """Return whether an earlier call enqueued all of these jobs, before their batch was closed."""
    rows = yield call("jobs_by_id", ids=as_json([job.id for job in jobs]), largest=0)
    return len(rows) == len(jobs)


def _open_group_from(job_id: str, attempt: int, new: NewGroup, *, own: bool) -> Transaction[JobGroup]:
    holder = yield from _hold(job_id, attempt)
    if own and holder["group_id"] is not None:
        found = yield from read_groups([holder["group_id"]])
        if found and (found[0].name, found[0].kind) == (new.name, new.kind):
            return found[0]
    return (yield from open_group(new))[0]


def _read_group_from(job_id: str, attempt: int, group_id: str) -> Transaction[JobGroup]:
    yield from _hold(job_id, attempt)
    return (yield from require_group(group_id))


def _close_group_from(job_id: str, attempt: int, group_id: str) -> Transaction[JobGroup]:
    yield call("lock_group", id=group_id)  # Before the job, see `_enqueue_from`.
    yield from _hold(job_id, attempt)
    yield from close_group(group_id)
    return (yield from require_group(group_id))


class StoreWork:
    """Implement the port `Work` on one store."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lanes = LaneClaims()
        self._classes = ClassPages("open_classes")

    async def ready_queues(self) -> dict[str, bool]:
        """Return the queues that have ready jobs, each with whether it has lanes of tenants or limits."""
        rows = await self._driver.fetch(call("ready_queues", limit=QUEUES_MAX))
        return {row["queue"]: row["has_lanes"] == 1 for row in rows}

    async def claim(
        self, queue: str, *, node: str, lease: Duration, limit: int, skip: Collection[str] = ()
    ) -> list[Claimed]:
        """Claim ready jobs of a queue, highest priority first, then oldest."""
        rows = await self._driver.fetch(
            call("claim", queue=queue, node=node, lease=lease, limit=limit, skip=as_json(sorted(skip)))
        )
        jobs = [read_claimed(row) for row in rows]
        if len(jobs) > 1:
            jobs.sort(key=lambda job: (-job.priority, job.run_at, job.job_id))  # RETURNING has no order.
        return jobs

    async def claim_lanes(
        self,
        queue: str,
        *,
        node: str,
        lease: Duration,
        limit: int,
        skip: Collection[str] = (),
        past: Collection[str] = (),
        needs: str = "",
    ) -> LaneClaim:
        """Claim ready jobs of a queue with tenants or limits: of the tenant that has used least, within all limits."""
        request = ClaimRequest(queue=queue, node=node, lease=lease, room=limit, skip=skip, past=past, needs=needs)
        try:
            return await self._driver.run(lambda: self._lanes.claim(request))
        except ClaimedInVain as rolled_back:
            return rolled_back.claim

    async def classes(self) -> list[tuple[str, str]]:
        """Return queues and needs that have ready jobs with needs; in turns if they are many."""
        return await self._classes.following(self._driver)

    async def reopen(self, freed: Mapping[str, int]) -> frozenset[str]:
        """Let lanes go on that wait at these gates, as many as places came free, or whose rate allows it."""
        rows = [*await self._driver.fetch(call("due_lanes", limit=DUE_LANES_MAX))]
        if freed:
            rows += await self._driver.fetch(held_lanes(freed))
        lanes = {lane_key(row) for row in rows}
        return await self._driver.run(lambda: reopen(lanes)) if lanes else frozenset()

    async def charge(self, charges: Sequence[Charge]) -> None:
        """Charge tenants for what their jobs took."""
        await self._driver.fetch(_charge_call(charges))

    async def apart(
        self, tasks: Collection[str], queues: Collection[str], limit: int, *, unfit: Collection[str] = ()
    ) -> list[Suspect]:
        """Find ready suspects of these tasks in these queues, or in any, that need none of `unfit`."""
        rows = await self._driver.fetch(
            call(
                "apart",
                tasks=as_json(sorted(tasks)),
                queues=as_json(sorted(queues)),
                any_queue=int(not queues),
                unfit=as_json(sorted(unfit)),
                limit=limit,
            )
        )
        if rows:
            rows = await self._driver.run(lambda: self._lanes.startable(rows))
        return [Suspect(row["id"], row["task"], count_in(row["company"]), _waited(row), row["needs"]) for row in rows]

    async def claim_apart(self, job_id: str, *, node: str, lease: Duration) -> tuple[Claimed, Duration] | None:
        """Claim a suspect; return it and for how long it runs apart."""
        return await self._driver.run(lambda: self._lanes.claim_apart(job_id, node=node, lease=lease))

    async def hand_back_unknown(
        self, node: str, *, known: Collection[tuple[str, int]], given_up: Collection[tuple[str, int]]
    ) -> list[str]:
        """Hand back attempts that the node holds but does not know; those in `given_up` once their lease expired."""
        return await self._driver.run(lambda: _hand_back_unknown(node, known, given_up))

    async def extend(self, attempts: Iterable[tuple[str, int]], *, lease: Duration) -> dict[str, bool]:
        """Extend running attempts; return those still running, with whether to stop them."""
        rows = as_json([{"job_id": job_id, "job_attempt": attempt} for job_id, attempt in attempts])
        extended = await self._driver.fetch(call("extend", attempts=rows, lease=lease))
        return {row["id"]: row["cancel_requested_at"] is not None for row in extended}

    async def asked_to_stop(self, node: str) -> dict[tuple[str, int], str]:
        """Return the running attempts of a node that were asked to stop, each with the reason."""
        rows = await self._driver.fetch(call("asked_to_stop", node=node))
        return {(row["id"], row["attempt"]): row["reason"] for row in rows}

    async def settle(self, settlements: Sequence[Settlement]) -> frozenset[str]:
        """Write what ended attempts make of their jobs; return the ids of stale ones."""
        if all(s.status is Status.COMPLETED and s.schedule is None for s in settlements):
            rows = await self._driver.fetch(completed(settlements))  # The usual case: one statement, no transaction.
            if len(rows) == len(settlements):
                return frozenset()
            written = {(row["id"], row["attempt"]) for row in rows}
            absent = [s for s in settlements if (s.job_id, s.attempt) not in written]
            return await self._driver.run(lambda: refuse(absent))
        return await self._driver.run(lambda: settle_attempts(settlements))

    async def report(self, reports: Sequence[Report]) -> frozenset[str]:
        """Write progress, metadata and log lines of running attempts; return the ids of stale ones."""
        if any(report.lines for report in reports):
            return await self._driver.run(lambda: _report(reports))
        return _stale(reports, await self._driver.fetch(_report_call(reports)))

    async def step_sizes(self, job_ids: Iterable[str]) -> dict[str, int]:
        """Return by job how many bytes `steps` would read."""
        rows = await self._driver.fetch(call("step_sizes", ids=as_json(sorted(job_ids))))
        return {row["job_id"]: int(row["size"] or 0) for row in rows}

    async def steps(self, job_ids: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the stored results of finished steps, as JSON text by job and name."""
        found: dict[str, dict[str, str]] = {}
        for row in await self._driver.fetch(call("steps", ids=as_json(sorted(job_ids)))):
            found.setdefault(row["job_id"], {})[row["name"]] = row["result"]
        return found

    async def keep_step(self, job_id: str, attempt: int, name: str, result: str) -> None:
        """Store the result of a finished step; raise `LeaseLost` when the attempt is over."""
        await self._driver.run(lambda: _keep_step(job_id, attempt, name, result))

    async def enqueue_from(self, job_id: str, attempt: int, jobs: Sequence[NewJob]) -> list[EnqueuedRow]:
        """Enqueue jobs from a running attempt; raise `LeaseLost` when it is over. Repeating it is safe."""
        try:
            return await self._driver.run(lambda: _enqueue_from(job_id, attempt, jobs))
        except ConstraintViolated:  # An earlier call committed, but its response was lost.
            return await self._driver.run(lambda: _enqueued_before(jobs))
        except BatchClosed:
            if not await self._driver.run(lambda: _are_enqueued(jobs)):
                raise
            return await self._driver.run(lambda: _enqueued_before(jobs))

    async def open_group_from(self, job_id: str, attempt: int, new: NewGroup, *, own: bool) -> JobGroup:
        """Create a batch from a running attempt, or return the one with this name; with `own`, also its own."""
        return await self._driver.run(lambda: _open_group_from(job_id, attempt, new, own=own))

    async def read_group_from(self, job_id: str, attempt: int, group_id: str) -> JobGroup:
        """Read a group for a running attempt; raise `LeaseLost` when it is over."""
        return await self._driver.run(lambda: _read_group_from(job_id, attempt, group_id))

    async def close_group_from(self, job_id: str, attempt: int, group_id: str) -> JobGroup:
        """Close a group from a running attempt; raise `LeaseLost` when it is over."""
        return await self._driver.run(lambda: _close_group_from(job_id, attempt, group_id))

    async def unpark(self, tasks: Iterable[str], cause: str = "") -> int:
        """Make parked jobs of these tasks ready again, all or those parked for one cause; return how many."""
        return len(await self._driver.fetch(call("unpark", tasks=as_json(sorted(tasks)), cause=cause)))
