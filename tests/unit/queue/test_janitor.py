"""The janitor's tick on the real store."""

import asyncio

import pytest

from headway.core.events import LeasesExpired, Pruned
from headway.core.instants import MINUTE, SECOND
from headway.core.jobs import NewJob
from headway.core.lifecycle import Attempt, Succeeded, settle
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import After
from headway.queue import janitor as module
from headway.queue.janitor import PRUNE_EVERY_S, Janitor
from tests.simulation.stage import Seat, Stage
from tests.simulation.virtual_loop import virtual

POLL_S = 1.0
LEASE_S = 30.0
RETENTION = 10 * MINUTE


class House:
    """A janitor on a seat; the test sets whether it holds the housekeeping role."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.is_mine = True
        self.janitor = Janitor(
            seat.store.housekeeping,
            seat.store.ledger,
            clock=seat.clock,
            is_mine=lambda: self.is_mine,
            poll=round(POLL_S * SECOND),
            retention=RETENTION,
            audit_log=self,
            audit_retention=RETENTION,
        )
        self.old_entries = 0

    async def prune(self, retention: int, limit: int) -> int:
        """Act as an audit log."""
        assert retention == RETENTION
        gone = min(self.old_entries, limit)
        self.old_entries -= gone
        return gone

    async def claimed(self, *, max_attempts: int = 2) -> str:
        """Enqueue a job and claim it."""
        job = NewJob(id=self.seat.clock.new_id("job"), task="work", max_attempts=max_attempts)
        await self.seat.store.queue.enqueue([job])
        await self.seat.store.work.claim("default", node="worker", lease=round(LEASE_S * SECOND), limit=10)
        return job.id

    async def complete(self, job_id: str) -> None:
        attempt = Attempt(job_id=job_id, attempt=1, failures=0, max_attempts=2)
        assert not await self.seat.store.work.settle([settle(attempt, Succeeded(), 0.0)])

    async def status(self, job_id: str) -> str:
        return str((await self.seat.store.jobs.get(job_id)).status)


@virtual
async def test_job_of_a_silent_worker_is_expired_at_the_end_of_its_lease() -> None:
    async with Stage() as stage:
        house = House(stage.seat())
        job, last = await house.claimed(), await house.claimed()
        stage.sql(
            "insert into headway_attempts (job_id, attempt, node, started_at, ended_at, outcome, reason)"
            f" values ('{last}', -1, 'a', 0, 1, 'expired', ''), ('{last}', -2, 'b', 0, 1, 'expired', '')"
        )
        stage.sql(f"update headway_jobs set node = 'elsewhere' where id = '{last}'")
        await asyncio.sleep(LEASE_S)
        assert await house.janitor.tick() == POLL_S
        assert await house.status(job) == "RUNNING"  # A lease is valid up to its last moment.
        await asyncio.sleep(0.001)
        await house.janitor.tick()
        assert (await house.status(job), await house.status(last)) == ("RETRYING", "FAILED")
        (event,) = stage.said(LeasesExpired)
        assert set(event.job_ids) == {job, last}
        assert len(stage.sql("select * from headway_attempts where outcome = 'expired'")) == 4


@virtual
async def test_live_job_is_never_expired_by_age() -> None:
    async with Stage() as stage:
        house = House(stage.seat())
        job = await house.claimed()
        for _ in range(20):
            await asyncio.sleep(LEASE_S - 1)
            await house.seat.store.work.extend([(job, 1)], lease=round(LEASE_S * SECOND))
            await house.janitor.tick()
        assert await house.status(job) == "RUNNING"


@virtual
async def test_fixed_delay_continues_after_its_job_is_gone() -> None:
    async with Stage() as stage:
        house = House(stage.seat())
        await house.seat.store.schedules.put("poll", ScheduleSpec(task="work", trigger=After("5s")))
        stage.sql("update headway_schedules set next_at = null")  # Its job ended, but the next instant was not set.
        await house.janitor.tick()
        (row,) = stage.sql("select next_at from headway_schedules")
        assert row["next_at"] == stage.now() + 5 * SECOND


@virtual
async def test_history_past_its_retention_is_pruned_periodically() -> None:
    async with Stage() as stage:
        house = House(stage.seat())
        old = await house.claimed()
        await house.complete(old)
        await house.janitor.tick()
        await asyncio.sleep(RETENTION / SECOND - 1.0)
        young = await house.claimed()
        await house.complete(young)
        await house.janitor.tick()
        assert len(stage.sql("select * from headway_jobs")) == 2
        await asyncio.sleep(2.0)
        await house.janitor.tick()
        assert len(stage.sql("select * from headway_jobs")) == 2  # It has just checked, and checks again later.
        await asyncio.sleep(PRUNE_EVERY_S)
        await house.janitor.tick()
        assert [row["id"] for row in stage.sql("select id from headway_jobs")] == [young]
        assert [row["job_id"] for row in stage.sql("select job_id from headway_all_attempts")] == [young]
        assert sum(event.rows for event in stage.said(Pruned)) >= 1


@virtual
async def test_jobs_past_their_start_deadline_are_ended_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    async with Stage() as stage:
        house = House(stage.seat())
        jobs = [NewJob(id=f"job_{n}", task="work", expires=5 * SECOND) for n in range(3)]
        await house.seat.store.queue.enqueue(jobs)
        await asyncio.sleep(4.9)
        assert await house.janitor.tick() == POLL_S
        assert not stage.sql("select * from headway_jobs where status <> 'PENDING'")
        await asyncio.sleep(0.1)
        assert [await house.janitor.tick() for _ in range(2)] == [0.0, POLL_S]
        assert not stage.sql("select * from headway_jobs where status <> 'CANCELLED'")


@virtual
async def test_large_backlog_is_cleaned_up_in_batches_without_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    async with Stage() as stage:
        house = House(stage.seat())
        for _ in range(5):
            await house.claimed()
        await asyncio.sleep(LEASE_S + 1.0)
        rests = [await house.janitor.tick() for _ in range(3)]
        assert rests == [0.0, 0.0, POLL_S]
        assert not stage.sql("select * from headway_jobs where status = 'RUNNING'")


@virtual
async def test_janitor_does_nothing_without_the_role() -> None:
    async with Stage() as stage:
        house = House(stage.seat())
        job = await house.claimed()
        await asyncio.sleep(LEASE_S + 1.0)
        house.is_mine, calls = False, house.seat.driver.calls
        assert await house.janitor.tick() == POLL_S
        assert house.seat.driver.calls == calls
        assert await house.status(job) == "RUNNING"


@virtual
async def test_audit_log_is_pruned_in_batches() -> None:
    async with Stage() as stage:
        house = House(stage.seat())
        house.old_entries = 2 * module.BATCH + 1
        assert [await house.janitor.tick() for _ in range(3)] == [0.0, 0.0, POLL_S]
        assert house.old_entries == 0
