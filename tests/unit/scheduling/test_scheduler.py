"""The scheduler's tick on the real ledger: what it decides, with which token, and what happens without permission."""

import asyncio
from collections.abc import Sequence

import pytest

from headway.core.events import DecisionRefused, LocksLost, ScheduleHeld, SchedulesDecided
from headway.core.instants import SECOND, Duration, Instant
from headway.core.nodes import Lease
from headway.core.occurrences import LiveJobs, Plan
from headway.core.ports import Fence, Shards, slot_of
from headway.core.schedules import Overlap, Schedule, ScheduleSpec
from headway.core.triggers import Every, Trigger
from headway.scheduling import scheduler as module
from headway.scheduling.planner import plan
from headway.scheduling.scheduler import LeaderFencing, LockFencing, Scheduler
from tests.simulation.stage import START, Seat, Stage
from tests.simulation.virtual_loop import virtual

POLL: Duration = SECOND
POLL_S = 1.0
LEASE: Duration = 20 * SECOND


async def put(seat: Seat, *names: str, trigger: Trigger | None = None) -> None:
    """Create schedules that are due every ten seconds."""
    for name in names:
        await seat.store.schedules.put(name, ScheduleSpec(task="work", trigger=trigger or Every("10s")))


def names_of(count: int, *, shard: int, of: int = 2) -> list[str]:
    """Return names of schedules that belong to a shard."""
    names = (f"schedule-{number}" for number in range(1_000))
    return [name for name in names if slot_of(name) % of == shard][:count]


class Leader:
    """A scheduler in leader mode on a seat; the test sets the shards that it holds."""

    def __init__(self, seat: Seat, shards: int = 1) -> None:
        self.seat = seat
        self.held: dict[str, Lease] = {}
        self.lost: list[str] = []
        self.fencing = LeaderFencing(shards, lambda: dict(self.held), seat.clock.node, self._lose)
        self.scheduler = Scheduler(seat.store.ledger, self.fencing, clock=seat.clock, poll=POLL)

    async def take(self, *shards: int) -> None:
        for shard in shards:
            won = await self.seat.store.leases.acquire(
                [LeaderFencing.role(shard)], holder=self.seat.clock.node, holder_name="", duration=LEASE
            )
            self.held |= {lease.name: lease for lease in won}

    def _lose(self, reason: str) -> None:
        self.held.clear()
        self.lost.append(reason)


def locker(seat: Seat) -> Scheduler:
    """Return a scheduler in lock mode."""
    fencing = LockFencing(seat.store.leases, node_id=seat.clock.node, node_name="", duration=LEASE)
    return Scheduler(seat.store.ledger, fencing, clock=seat.clock, poll=POLL)


def decided(stage: Stage) -> list[tuple[str, float, str]]:
    """Return the ledger as (schedule, seconds, outcome)."""
    rows = stage.sql("select * from headway_occurrences order by instant, schedule")
    return [(row["schedule"], (row["instant"] - START) / SECOND, row["outcome"]) for row in rows]


@virtual
async def test_due_instants_are_decided_and_the_rest_ends_at_the_next_one() -> None:
    async with Stage() as stage:
        leader = Leader(stage.seat())
        await leader.take(0)
        await put(leader.seat, "a", "b")
        assert await leader.scheduler.tick() == POLL_S  # Nothing is due for ten seconds: rest no longer than that.
        await asyncio.sleep(9.5)
        assert await leader.scheduler.tick() == pytest.approx(0.5)
        await asyncio.sleep(0.5)
        assert await leader.scheduler.tick() == 0.0
        assert decided(stage) == [("a", 10.0, "fired"), ("b", 10.0, "fired")]
        assert [len(event.plans) for event in stage.said(SchedulesDecided)] == [2]
        jobs = stage.sql("select j.id from headway_jobs j join headway_occurrences o on o.job_id = j.id")
        assert len(jobs) == 2


@virtual
async def test_node_without_a_shard_sends_no_query() -> None:
    async with Stage() as stage:
        leader = Leader(stage.seat())
        await put(leader.seat, "a")
        await asyncio.sleep(60.0)
        calls = leader.seat.driver.calls
        assert await leader.scheduler.tick() == POLL_S
        assert leader.seat.driver.calls == calls


@virtual
async def test_node_decides_only_its_own_shards() -> None:
    async with Stage() as stage:
        leader = Leader(stage.seat(), shards=2)
        await leader.take(1)
        await put(leader.seat, *names_of(2, shard=0), *names_of(3, shard=1))
        await asyncio.sleep(10.0)
        await leader.scheduler.tick()
        assert {name for name, _, _ in decided(stage)} == set(names_of(3, shard=1))


@virtual
async def test_many_schedules_are_decided_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    async with Stage() as stage:
        leader = Leader(stage.seat())
        await leader.take(0)
        await put(leader.seat, *"abcde")
        await asyncio.sleep(10.0)
        rests = [await leader.scheduler.tick() for _ in range(4)]
        assert rests[:3] == [0.0, 0.0, 0.0]
        assert rests[3] > 0
        assert [len(event.plans) for event in stage.said(SchedulesDecided)] == [2, 2, 1]


@virtual
async def test_oldest_instant_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 1)
    async with Stage() as stage:
        leader = Leader(stage.seat())
        await leader.take(0)
        await put(leader.seat, "late", trigger=Every("12s", START))
        await put(leader.seat, "early", trigger=Every("11s", START))
        await asyncio.sleep(13.0)
        await leader.scheduler.tick()
        assert [name for name, _, _ in decided(stage)] == ["early"]


@virtual
async def test_unreadable_schedule_is_set_aside_and_blocks_no_other() -> None:
    async with Stage() as stage:
        leader = Leader(stage.seat())
        await leader.take(0)
        await put(leader.seat, "bad", "good")
        stage.sql("update headway_schedules set definition = '{\"task\":1}' where name = 'bad'")
        await asyncio.sleep(10.0)
        await leader.scheduler.tick()
        assert decided(stage) == [("good", 10.0, "fired")]
        assert [event.schedule for event in stage.said(ScheduleHeld)] == ["bad"]
        (row,) = stage.sql("select next_at, attention from headway_schedules where name = 'bad'")
        assert row["next_at"] > stage.now()
        assert row["attention"]
        assert await leader.scheduler.tick() > 0


@virtual
async def test_schedule_that_cannot_be_planned_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    def fussy(schedule: Schedule, now: Instant, live: LiveJobs) -> Plan:
        if schedule.name == "bad":
            raise OverflowError("beyond the end of time")
        return plan(schedule, now, live)

    monkeypatch.setattr(module, "plan", fussy)
    async with Stage() as stage:
        leader = Leader(stage.seat())
        await leader.take(0)
        await put(leader.seat, "bad", "good")
        await asyncio.sleep(10.0)
        await leader.scheduler.tick()
        assert decided(stage) == [("good", 10.0, "fired")]
        (held,) = stage.said(ScheduleHeld)
        assert "beyond the end of time" in held.reason


@virtual
async def test_store_rejects_decisions_of_a_lost_lease() -> None:
    async with Stage() as stage:
        stale, successor = Leader(stage.seat("node_a")), Leader(stage.seat("node_b"))
        await stale.take(0)
        await put(stale.seat, "a")
        await asyncio.sleep(20.1)  # The lease has expired, but this node does not know, as if its clock had stopped.
        await successor.take(0)
        rest_s = await stale.scheduler.tick()
        assert rest_s > 0
        assert decided(stage) == []
        assert stale.lost == ["the store refused its token"]
        (refused,) = stage.said(DecisionRefused)
        assert refused.schedules == ("a",)
        await successor.scheduler.tick()
        assert decided(stage)[0] == ("a", 10.0, "fired")


@virtual
async def test_schedule_changed_meanwhile_is_skipped_and_decided_again() -> None:
    async with Stage() as stage:
        leader, other = Leader(stage.seat("node_a")), stage.seat("operator")
        await leader.take(0)
        await put(leader.seat, "changed", "same")
        await asyncio.sleep(9.9)
        leader.seat.driver.asking_s = 0.1
        ticking = asyncio.create_task(leader.scheduler.tick())
        await asyncio.sleep(0.15)  # The due schedules were read; the decision is in flight.
        await other.store.schedules.trigger("changed")
        assert await ticking == 0.0  # At least one was decided: continue at once.
        assert decided(stage) == [("changed", 10.0, "fired"), ("same", 10.0, "fired")]
        assert [event.schedules for event in stage.said(DecisionRefused)] == [("changed",)]


@virtual
async def test_plans_of_a_shard_lost_while_planning_are_not_committed() -> None:
    async with Stage() as stage:
        leader = Leader(stage.seat(), shards=2)
        await leader.take(0, 1)
        (kept,), (given_away,) = names_of(1, shard=0), names_of(1, shard=1)
        await put(leader.seat, kept, given_away)
        await asyncio.sleep(9.9)
        leader.seat.driver.asking_s = 0.1
        ticking = asyncio.create_task(leader.scheduler.tick())
        await asyncio.sleep(0.15)
        del leader.held["scheduler/1"]  # The shard moves to another node while its schedules are read.
        await ticking
        assert {name for name, _, _ in decided(stage)} == {kept}


@virtual
async def test_decision_carries_the_token_of_its_shard() -> None:
    async with Stage() as stage:
        leader = Leader(stage.seat(), shards=2)
        await leader.take(0, 1)
        (first,), (second,) = names_of(1, shard=0), names_of(1, shard=1)
        await put(leader.seat, first, second)
        await asyncio.sleep(10.0)
        await leader.scheduler.tick()
        tokens = {row["schedule"]: row["token"] for row in stage.sql("select * from headway_occurrences")}
        assert tokens == {first: leader.held["scheduler/0"].token, second: leader.held["scheduler/1"].token}


@virtual
async def test_lock_mode_every_node_looks_and_one_decides() -> None:
    async with Stage() as stage:
        first, second = stage.seat("node_a"), stage.seat("node_b")
        await put(first, "a", "b")
        await asyncio.sleep(10.0)
        await asyncio.gather(locker(first).tick(), locker(second).tick())
        assert decided(stage) == [("a", 10.0, "fired"), ("b", 10.0, "fired")]
        assert {(event.node, event.schedules) for event in stage.said(LocksLost)} <= {("node_b", ("a", "b"))}


@virtual
async def test_lock_mode_instant_of_a_dead_node_waits_only_for_its_lock() -> None:
    async with Stage() as stage:
        dead, alive = stage.seat("node_a"), stage.seat("node_b")
        await put(dead, "a")
        await asyncio.sleep(10.0)
        due = await dead.store.ledger.due(Shards(of=1, held=frozenset({0})), 10)
        fencing = LockFencing(dead.store.leases, node_id="node_a", node_name="", duration=LEASE)
        await fencing.fence([plan(schedule, due.now, live) for schedule, live in due.schedules])
        scheduler, rests = locker(alive), list[float]()
        while not decided(stage):
            rests.append(await scheduler.tick())
            assert stage.now() < START + 32 * SECOND
            await asyncio.sleep(rests[-1])
        assert stage.now() >= START + 30 * SECOND
        # It polled soon at first, then less and less often, to spare the store.
        assert rests[0] < 0.01
        assert rests[:-1] == sorted(rests[:-1])
        # It reported once, not with every poll, that it leaves the instant to another node.
        assert [(event.node, event.schedules) for event in stage.said(LocksLost)] == [("node_b", ("a",))]
        assert max(rests) == POLL_S
        assert len(rests) < 40


@virtual
async def test_lock_mode_keeps_the_lock_past_the_decision() -> None:
    async with Stage() as stage:
        seat = stage.seat()
        await put(seat, "a")
        await asyncio.sleep(10.0)
        await locker(seat).tick()
        (row,) = stage.sql("select * from headway_leases")
        assert row["name"].startswith("occurrence/a/")
        assert row["until"] > stage.now()


@virtual
async def test_replacement_waits_only_for_jobs_that_still_run() -> None:
    async with Stage() as stage:
        leader, other = Leader(stage.seat("node_a")), stage.seat("operator")
        await leader.take(0)
        spec = ScheduleSpec(task="work", trigger=Every("10s"), overlap=Overlap.REPLACE)
        await leader.seat.store.schedules.put("a", spec)
        running = await other.store.schedules.trigger("a")
        await other.store.work.claim("default", node="worker", lease=60 * SECOND, limit=1)
        waiting = await other.store.schedules.trigger("a")
        await asyncio.sleep(9.9)
        leader.seat.driver.asking_s = 0.1
        ticking = asyncio.create_task(leader.scheduler.tick())
        await asyncio.sleep(0.25)  # It read one running and one waiting job; the latter ends now.
        await other.store.queue.cancel(waiting, author="operator")
        await ticking
        (row,) = stage.sql("select status, blocked_by from headway_jobs where occurrence_at is not null")
        assert (row["status"], row["blocked_by"]) == ("BLOCKED", running)


class Refusing:
    """Fencing whose fence is always rejected; counts how often it is asked."""

    asked = 0

    def shards(self) -> Shards | None:
        return Shards(of=1, held=frozenset({0}))

    async def fence(self, plans: Sequence[Plan]) -> tuple[list[Plan], Fence | None]:
        self.asked += 1
        return [], None

    def lost(self) -> None:
        raise AssertionError("nothing was sent")


@virtual
async def test_scheduler_rests_when_its_decisions_are_rejected() -> None:
    async with Stage() as stage:
        seat, fencing = stage.seat(), Refusing()
        await put(seat, "a")
        await asyncio.sleep(10.0)
        scheduler = Scheduler(seat.store.ledger, fencing, clock=seat.clock, poll=POLL)
        for _ in range(60):
            await asyncio.sleep(await scheduler.tick())
        assert stage.now() > START + 45 * SECOND
