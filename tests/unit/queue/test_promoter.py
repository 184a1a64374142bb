"""The promoter's tick on the real queue."""

import asyncio

import pytest

from headway.core.errors import StoreUnavailable
from headway.core.events import JobsPromoted
from headway.core.instants import SECOND
from headway.core.jobs import NewJob
from headway.core.schedules import Overlap, ScheduleSpec
from headway.core.triggers import Every
from headway.queue.promoter import Promoter
from tests.simulation.stage import Seat, Stage
from tests.simulation.virtual_loop import virtual

POLL_S = 1.0


class House:
    """A promoter on a seat; the test sets whether it holds the housekeeping role."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.is_mine = True
        self.promoter = Promoter(
            seat.store.housekeeping, clock=seat.clock, is_mine=lambda: self.is_mine, poll=round(POLL_S * SECOND)
        )

    async def enqueue(self, delay_s: float) -> str:
        job = NewJob(id=self.seat.clock.new_id("job"), task="work", delay=round(delay_s * SECOND))
        return (await self.seat.store.queue.enqueue([job]))[0].id

    async def status(self, job_id: str) -> str:
        return str((await self.seat.store.jobs.get(job_id)).status)


@virtual
async def test_job_becomes_ready_at_its_time() -> None:
    async with Stage() as stage:
        house = House(stage.seat())
        job = await house.enqueue(0.75)
        rest_s = await house.promoter.tick()
        assert rest_s == pytest.approx(0.75)
        assert await house.status(job) == "SCHEDULED"
        await asyncio.sleep(rest_s)
        assert await house.promoter.tick() == 0.0
        assert await house.status(job) == "PENDING"
        assert [event.count for event in stage.said(JobsPromoted)] == [1]
        assert await house.promoter.tick() == POLL_S


@virtual
async def test_promoter_never_rests_longer_than_the_poll_interval() -> None:
    async with Stage() as stage:
        house = House(stage.seat())
        await house.enqueue(3_600)
        assert await house.promoter.tick() == POLL_S


@virtual
async def test_promoter_does_nothing_without_the_role() -> None:
    async with Stage() as stage:
        house = House(stage.seat())
        job = await house.enqueue(0.5)
        await asyncio.sleep(1.0)
        house.is_mine, calls = False, house.seat.driver.calls
        assert await house.promoter.tick() == POLL_S
        assert house.seat.driver.calls == calls
        assert await house.status(job) == "SCHEDULED"


@virtual
async def test_tick_with_an_unknown_outcome_is_safe_to_repeat() -> None:
    async with Stage() as stage:
        house = House(stage.seat())
        job = await house.enqueue(0.5)
        await asyncio.sleep(1.0)
        house.seat.driver.loses_answer = 2
        with pytest.raises(StoreUnavailable):
            await house.promoter.tick()
        assert await house.status(job) == "PENDING"
        version = stage.sql("select version from headway_jobs")[0][0]
        await house.promoter.tick()
        assert stage.sql("select version from headway_jobs")[0][0] == version


@virtual
async def test_next_job_in_line_is_promoted_after_its_predecessor() -> None:
    async with Stage() as stage:
        house = House(stage.seat())
        schedules = house.seat.store.schedules
        spec = ScheduleSpec(task="work", trigger=Every("1h"), overlap=Overlap.QUEUE)
        await schedules.put("line", spec)
        first, second = await schedules.trigger("line"), await schedules.trigger("line")
        assert await house.status(second) == "BLOCKED"
        assert await house.promoter.tick() == POLL_S  # Nothing to do while the first job is live.
        stage.sql("delete from headway_jobs where id = ?", first)  # Pruned, or lost with its worker.
        assert await house.promoter.tick() == 0.0
        assert await house.status(second) == "PENDING"


@virtual
async def test_promoter_backs_off_while_nothing_can_be_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Stage() as stage:
        house = House(stage.seat())
        await house.enqueue(0.5)
        await asyncio.sleep(1.0)

        async def none(limit: int) -> int:
            return 0

        monkeypatch.setattr(house.seat.store.housekeeping, "promote", none)
        rests = [await house.promoter.tick() for _ in range(30)]
        assert rests == sorted(rests)
        assert rests[0] < 0.01
        assert rests[-1] == POLL_S
