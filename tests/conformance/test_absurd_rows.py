"""A nonsensical row, written by hand, blocks no verb: it is parked or processed, and other rows are unaffected."""

from typing import Any

import pytest

from headway.core.instants import DAY, HOUR, SECOND
from headway.core.jobs import Claimed, Report
from headway.core.lifecycle import Parked, Raised, Succeeded, settle
from tests.conformance.arrange import LEASE, enqueue
from tests.conformance.backend import Backend

INT = (2**31 - 1, -(2**31))
BIG = (2**63 - 1, -(2**63))
COUNTS = ("attempt", "failures", "max_attempts", "priority", "progress", "company", "held")
TIMES = ("run_at", "occurrence_at", "created_at", "updated_at", "ready_at", "started_at", "cancel_requested_at")
NUMBERS = ("version", "log_bytes", "lease_until", "expires_at", "reviewed_at", "apart_for")
LONG = "repeat('x', 3000000)"
TEXTS = ("args", "metadata", "options", "reason", "tags", "detail", "error")
ABSURD = [
    *((column, str(value)) for column in COUNTS for value in INT),
    *((column, str(value)) for column in (*TIMES, *NUMBERS) for value in BIG),
    *((column, LONG) for column in TEXTS),
]
# Values that only SQLite accepts in such a column.
ANYTHING = [
    (column, value)
    for column in (*COUNTS, *TIMES, "version", "log_bytes", "apart_for", "args", "metadata", "reason")
    for value in ("'nonsense'", "x'00ff'", "1e300", str(2**63 - 1))
]


async def _spoil(backend: Backend, job_id: str, column: str, value: str) -> None:
    if backend.name.startswith("sqlite"):
        value = value.replace("repeat('x', 3000000)", "replace(hex(zeroblob(1500000)), '0', 'x')")
    await backend.sql(f"update headway_jobs set {column} = {value} where id = '{job_id}'")


class Verbs:
    """Applies verbs to a valid and a nonsensical job side by side."""

    def __init__(self, backend: Backend, column: str, value: str) -> None:
        self.backend = backend
        self.store = backend.store
        self.column, self.value = column, value

    async def pair(self, name: str, **options: Any) -> tuple[str, str]:
        """Enqueue two jobs into a queue of their own; the nonsensical one comes first."""
        bad = await enqueue(self.backend.store, queue=name, max_attempts=3, **options)
        good = await enqueue(self.backend.store, queue=name, max_attempts=3, **options)
        return bad, good

    async def spoil(self, job_id: str) -> None:
        await _spoil(self.backend, job_id, self.column, self.value)

    async def claim(self, name: str) -> dict[str, Claimed]:
        jobs = await self.store.work.claim(name, node="n", lease=LEASE, limit=10)
        return {job.id: job for job in jobs}

    async def ready(self) -> None:
        """Claim a ready job, and run or park it; repeat if it was parked."""
        name = f"ready {self.column} {self.value[:9]}"
        bad, good = await self.pair(name)
        await self.spoil(bad)
        for _ in range(2):
            jobs = await self.claim(name)
            if bad in jobs:
                job = jobs[bad]
                outcome = Raised("{}") if job.unreadable is None else Parked(job.unreadable, "unreadable")
                assert not await self.store.work.settle([settle(job, outcome, 0.5)])
                row = await self.backend.job(bad)
                assert row["status"] in ("RETRYING", "FAILED", "BLOCKED", "CANCELLED")
                assert row["status"] != "BLOCKED" or self.column in row["reason"] or "its " in row["reason"]
            if good in jobs:
                assert not await self.store.work.settle([settle(jobs[good], Succeeded(), 0.5)])
            await self.store.work.unpark(["report"])
            await self.store.housekeeping.promote(100)
        assert (await self.backend.job(good))["status"] == "COMPLETED"

    async def waiting(self) -> None:
        """Promote waiting jobs."""
        name = f"waiting {self.column} {self.value[:9]}"
        bad, good = await self.pair(name, delay=SECOND)
        await self.spoil(bad)
        await self.backend.advance(2 * SECOND)
        await self.store.housekeeping.promote(1_000)
        await self.store.housekeeping.next_promotion()
        assert (await self.backend.job(good))["status"] == "PENDING"
        await self.store.queue.cancel(bad, author="ann")
        await self.store.queue.cancel(good, author="ann")

    async def running(self) -> None:
        """Extend leases, write reports, release strays, rescue the jobs of dead workers."""
        name = f"running {self.column} {self.value[:9]}"
        bad, good = await self.pair(name)
        jobs = await self.claim(name)
        await self.spoil(bad)
        attempts = [(job.id, job.attempt) for job in jobs.values()]
        assert good in await self.store.work.extend(attempts, lease=LEASE)
        reports = [Report(job_id=job_id, attempt=attempt, progress=5) for job_id, attempt in attempts]
        assert good not in await self.store.work.report(reports)
        await self.store.queue.cancel(bad, author="ann")
        await self.store.work.asked_to_stop("n")
        await self.backend.advance(LEASE + SECOND)
        await self.store.housekeeping.expire(1_000)
        assert (await self.backend.job(good))["status"] == "RETRYING"
        bad, good = await self.pair(name)
        await self.claim(name)
        await self.spoil(bad)
        await self.store.work.hand_back_unknown("n", known=[], given_up=[(bad, 1)])
        assert (await self.backend.job(good))["status"] == "PENDING"
        await self.store.work.apart(["report"], [name], 10)
        await self.backend.sql(f"delete from headway_jobs where id in ('{bad}', '{good}')")

    async def ended(self) -> None:
        """List, retry and prune ended jobs; end jobs that wait too long."""
        name = f"ended {self.column} {self.value[:9]}"
        bad, good = await self.pair(name, expires=HOUR)
        await self.spoil(bad)
        await self.backend.advance(2 * HOUR)
        await self.store.housekeeping.end_overdue(1_000)
        assert (await self.backend.job(good))["status"] == "CANCELLED"
        bad, good = await self.pair(name)
        jobs = await self.claim(name)
        settled = [settle(jobs[id_], Raised("{}", retryable=False), 0.5) for id_ in (bad, good) if id_ in jobs]
        await self.store.work.settle(settled)
        await self.spoil(bad)
        assert good in {job.id for job in await self.store.jobs.dead(limit=200)}
        assert {bad, good} <= {job.id for job in await self.store.jobs.page(limit=200)}
        assert str((await self.store.jobs.get(bad)).status) == "FAILED"
        await self.store.queue.drop_dead([bad, good], author="ann")
        await self.backend.advance(40 * DAY)
        while await self.store.housekeeping.prune(30 * DAY, 500):
            pass
        assert await self.backend.count("headway_jobs", f"id = '{good}'") == 0
        await self.backend.sql(f"delete from headway_jobs where id = '{bad}'")


@pytest.mark.parametrize("verb", ["ready", "waiting", "running", "ended"])
async def test_nonsensical_row_blocks_no_verb(backend: Backend, verb: str) -> None:
    rows = [*ABSURD, *(ANYTHING if backend.name.startswith("sqlite") else [])]
    for column, value in rows:
        try:
            await getattr(Verbs(backend, column, value), verb)()
        except Exception as error:
            error.add_note(f"{verb}: {column} = {value[:40]}")
            raise
