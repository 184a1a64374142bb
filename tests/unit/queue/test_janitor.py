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
    """A janitor at a seat; the test says whether the house is its own."""

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
        """Be an audit log."""
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
async def test_a_job_whose_worker_is_silent_is_taken_back_when_its_lease_ends() -> None:
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
        assert await house.status(job) == "RUNNING"  # A lease counts to its last moment.
        await asyncio.sleep(0.001)
        await house.janitor.tick()
        assert (await house.status(job), await house.status(last)) == ("RETRYING", "FAILED")
        (event,) = stage.said(LeasesExpired)
        assert set(event.job_ids) == {job, last}
        assert len(stage.sql("select * from headway_attempts where outcome = 'expired'")) == 4


@virtual
async def test_a_live_job_is_never_taken_for_its_age() -> None:
    async with Stage() as stage:
        house = House(stage.seat())
        job = await house.claimed()
        for _ in range(20):
            await asyncio.sleep(LEASE_S - 1)
            await house.seat.store.work.extend([(job, 1)], lease=round(LEASE_S * SECOND))
            await house.janitor.tick()
        assert await house.status(job) == "RUNNING"


@virtual
async def test_a_fixed_delay_whose_job_is_gone_goes_on() -> None:
    async with Stage() as stage:
        house = House(stage.seat())
        await house.seat.store.schedules.put("poll", ScheduleSpec(task="work", trigger=After("5s")))
        stage.sql("update headway_schedules set next_at = null")  # Its job ended, and nobody moved it on.
        await house.janitor.tick()
        (row,) = stage.sql("select next_at from headway_schedules")
        assert row["next_at"] == stage.now() + 5 * SECOND


@virtual
async def test_history_is_pruned_past_its_retention_now_and_then() -> None:
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
        assert len(stage.sql("select * from headway_jobs")) == 2  # It looked just now, and looks again in a while.
        await asyncio.sleep(PRUNE_EVERY_S)
        await house.janitor.tick()
        assert [row["id"] for row in stage.sql("select id from headway_jobs")] == [young]
        assert [row["job_id"] for row in stage.sql("select job_id from headway_all_attempts")] == [young]
        assert sum(event.rows for event in stage.said(Pruned)) >= 1


@virtual
async def test_jobs_that_did_not_start_in_time_are_ended_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_much_is_cleaned_up_piece_by_piece_without_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_without_the_house_it_does_nothing_at_all() -> None:
    async with Stage() as stage:
        house = House(stage.seat())
        job = await house.claimed()
        await asyncio.sleep(LEASE_S + 1.0)
        house.is_mine, calls = False, house.seat.driver.calls
        assert await house.janitor.tick() == POLL_S
        assert house.seat.driver.calls == calls
        assert await house.status(job) == "RUNNING"


@virtual
async def test_the_audit_log_is_kept_in_bounds_piece_by_piece() -> None:
    async with Stage() as stage:
        house = House(stage.seat())
        house.old_entries = 2 * module.BATCH + 1
        assert [await house.janitor.tick() for _ in range(3)] == [0.0, 0.0, POLL_S]
        assert house.old_entries == 0
