"""Whole nodes on the real store: who leads after what, and in which order they stop."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from headway.events import TermLost, TermWon
from headway.instants import SECOND, Instant
from headway.model import ScheduleSpec
from headway.node import HOUSEKEEPING, EngineNode, World
from headway.ports import Due, Shards, slot_of
from headway.scheduling.triggers import Every
from headway.settings import Settings
from tests.simulation.stage import Seat, Stage, until
from tests.simulation.virtual_loop import virtual

LEASE_S = 10.0
TAKEOVER_S = LEASE_S + 5.0
SETTINGS = Settings(node="test", leader_lease=round(LEASE_S * SECOND), poll=SECOND)


class Actor:
    """A node that runs at a seat."""

    def __init__(self, seat: Seat, settings: Settings = SETTINGS, world: World | None = None) -> None:
        self.seat = seat
        self.node = EngineNode(world or world_of(seat), settings, seat.clock)
        self.task = asyncio.create_task(self.node.run())

    def shards(self) -> set[str]:
        return set(self.node.holds()) - {HOUSEKEEPING}

    async def crash(self) -> None:
        self.seat.driver.is_down = True  # Nothing that it does while it falls reaches the store.
        self.task.cancel()
        await asyncio.wait([self.task])

    async def stop(self) -> None:
        self.node.stop()
        async with asyncio.timeout(5.0):
            await self.task


def world_of(seat: Seat) -> World:
    """Give a node the real store of its seat."""
    store = seat.store
    return World(ledger=store.ledger, queue=store.queue, leases=store.leases, nodes=store.nodes, watch=store.watch)


async def put(stage: Stage, *names: str) -> None:
    """Create schedules that are due every two seconds."""
    for name in names:
        await stage.seat("operator").store.schedules.put(name, ScheduleSpec(task="work", trigger=Every("2s")))


def undecided_s(stage: Stage) -> float:
    """Return the age of the oldest undecided instant."""
    rows = stage.sql("select min(next_at) as next_at from headway_schedules")
    next_at: Instant | None = rows[0]["next_at"]
    return max(0.0, (stage.now() - (next_at or stage.now())) / SECOND)


@virtual
async def test_one_node_takes_every_role_and_decides_on_time() -> None:
    async with Stage() as stage:
        await put(stage, "a", "b")
        actor = Actor(stage.seat())
        await asyncio.sleep(1.0)
        assert set(actor.node.holds()) == {"scheduler/0", HOUSEKEEPING}
        for _ in range(60):
            await asyncio.sleep(1.0)
            assert undecided_s(stage) < 0.5
        await actor.stop()


@virtual
async def test_after_a_crash_another_node_decides_what_became_due_meanwhile() -> None:
    async with Stage() as stage:
        await put(stage, "a")
        first = Actor(stage.seat("node_a"))
        await asyncio.sleep(3.0)
        second = Actor(stage.seat("node_b"))
        await asyncio.sleep(30.0)
        assert first.shards()
        assert not second.shards()
        await first.crash()
        await until(second.shards, within_s=TAKEOVER_S)
        await asyncio.sleep(1.0)
        assert undecided_s(stage) < 0.5
        rows = stage.sql("select instant, coalesce(until, instant) as until, count from headway_occurrences order by 1")
        for before, after in pairwise(rows):
            assert after["instant"] == before["until"] + 2 * SECOND
        await second.stop()


@virtual
async def test_a_clean_stop_makes_nobody_wait() -> None:
    async with Stage() as stage:
        await put(stage, "a")
        first = Actor(stage.seat("node_a"))
        await asyncio.sleep(3.0)
        second = Actor(stage.seat("node_b"))
        await asyncio.sleep(10.0)
        await first.stop()
        assert await until(second.shards, within_s=LEASE_S / 2) < LEASE_S / 2
        assert [row["id"] for row in stage.sql("select id from headway_nodes")] == ["node_b"]
        await second.stop()
        now = stage.now()
        assert all(row["until"] <= now for row in stage.sql("select until from headway_leases"))


@virtual
async def test_a_stop_without_a_store_takes_no_longer_than_the_goodbye() -> None:
    async with Stage() as stage:
        actor = Actor(stage.seat())
        await asyncio.sleep(3.0)
        actor.seat.driver.is_down = True
        await actor.stop()


@virtual
async def test_a_bug_in_one_loop_ends_the_node_and_hands_its_roles_over() -> None:
    async with Stage() as stage:
        await put(stage, "a")
        actor = Actor(stage.seat())
        await asyncio.sleep(1.0)

        async def broken(shards: Shards, limit: int) -> Due:
            raise ZeroDivisionError("a bug")

        actor.seat.store.ledger.due = broken  # type: ignore[method-assign]
        with pytest.raises(ExceptionGroup) as raised:
            await actor.task
        assert raised.group_contains(ZeroDivisionError)
        now = stage.now()
        assert all(row["until"] <= now for row in stage.sql("select until from headway_leases"))


@virtual
async def test_a_leader_whose_scheduler_hangs_steps_down_for_another() -> None:
    async with Stage() as stage:
        await put(stage, "a")
        first = Actor(stage.seat("node_a"))
        await asyncio.sleep(3.0)
        second = Actor(stage.seat("node_b"))
        await asyncio.sleep(5.0)
        assert first.shards()

        async def hangs(shards: Shards, limit: int) -> Due:
            await asyncio.sleep(10_000)
            raise AssertionError("cancelled before")

        first.seat.store.ledger.due = hangs  # type: ignore[method-assign]
        await until(second.shards, within_s=2 * LEASE_S)
        reasons = [event.reason for event in stage.said(TermLost) if event.role == "scheduler/0"]
        assert reasons == ["the loop stands still"]
        await asyncio.sleep(3 * LEASE_S)
        assert second.shards()
        assert undecided_s(stage) < 0.5
        await second.stop()


@virtual
async def test_shards_are_shared_and_given_to_newcomers() -> None:
    settings = replace(SETTINGS, scheduler_shards=3)
    everything = {"scheduler/0", "scheduler/1", "scheduler/2"}
    async with Stage() as stage:
        actors = [Actor(stage.seat("node_a"), settings)]
        await until(lambda: actors[0].shards() == everything, within_s=5.0)
        for name in ("node_b", "node_c"):
            actors.append(Actor(stage.seat(name), settings))
            await until(lambda: max(len(actor.shards()) for actor in actors) <= 2, within_s=TAKEOVER_S)
            await until(lambda: set.union(*(actor.shards() for actor in actors)) == everything, within_s=TAKEOVER_S)
        await until(lambda: all(len(actor.shards()) == 1 for actor in actors), within_s=TAKEOVER_S)
        for actor in actors:
            await actor.stop()


@virtual
async def test_the_shards_of_a_dead_node_go_to_the_living_in_time() -> None:
    settings = replace(SETTINGS, scheduler_shards=3)
    everything = {"scheduler/0", "scheduler/1", "scheduler/2"}
    async with Stage() as stage:
        first = Actor(stage.seat("node_a"), settings)
        for phase in range(20):  # The crash meets renewals and beats at every distance.
            second = Actor(stage.seat(f"node_b{phase}"), settings)
            await asyncio.sleep(40.0 + phase * 0.37)
            assert first.shards() | second.shards() == everything
            assert first.shards() != everything
            await second.crash()
            await until(lambda: first.shards() == everything, within_s=TAKEOVER_S - 1.0)
        await first.stop()


@virtual
async def test_the_shards_of_a_node_that_hangs_go_to_those_that_work() -> None:
    settings = replace(SETTINGS, scheduler_shards=2)
    async with Stage() as stage:
        await put(stage, *(name for name in ("a", "b", "c", "d", "e", "f") if slot_of(name) % 2 in (0, 1)))
        first, second = Actor(stage.seat("node_a"), settings), Actor(stage.seat("node_b"), settings)
        await until(lambda: len(first.shards()) == len(second.shards()) == 1, within_s=TAKEOVER_S)

        async def hangs(shards: Shards, limit: int) -> Due:
            await asyncio.sleep(10_000)
            raise AssertionError("cancelled before")

        second.seat.store.ledger.due = hangs  # type: ignore[method-assign]
        await until(lambda: len(first.shards()) == 2, within_s=3 * LEASE_S)
        await asyncio.sleep(3 * LEASE_S)
        assert len(first.shards()) == 2  # It beats, but it does not count as somebody to share with.
        assert undecided_s(stage) < 0.5
        await second.crash()
        await first.stop()


@virtual
async def test_after_an_outage_longer_than_the_leases_everything_is_decided_within_ten_seconds() -> None:
    for outage_s in (11.0, 13.0, 17.0, 29.0):
        async with Stage() as stage:
            await put(stage, "a")
            actors = [Actor(stage.seat(name)) for name in ("node_a", "node_b", "node_c")]
            await asyncio.sleep(20.0)
            for actor in actors:
                actor.seat.driver.is_down = True
            await asyncio.sleep(outage_s)
            for actor in actors:
                actor.seat.driver.is_down = False
            await until(lambda: undecided_s(stage) == 0.0, within_s=10.0)
            for actor in actors:
                await actor.stop()


@virtual
async def test_with_locks_nobody_leads_and_everything_is_decided_once() -> None:
    settings = replace(SETTINGS, coordination_mode="lock")
    async with Stage() as stage:
        await put(stage, "a", "b", "c")
        actors = [Actor(stage.seat(name), settings) for name in ("node_a", "node_b", "node_c")]
        await asyncio.sleep(30.5)
        assert not set.union(*(actor.shards() for actor in actors))
        counts = stage.sql("select schedule, sum(count) as decisions from headway_occurrences group by schedule")
        assert {row["schedule"]: row["decisions"] for row in counts} == dict.fromkeys("abc", 15)
        assert {event.role for event in stage.said(TermWon)} == {HOUSEKEEPING}
        for actor in actors:
            await actor.stop()


@virtual
async def test_an_idle_node_leaves_the_store_in_peace() -> None:
    async with Stage() as stage:
        leader = Actor(stage.seat("node_a"))
        await asyncio.sleep(3.0)
        follower = Actor(stage.seat("node_b"))
        await asyncio.sleep(10.0)
        before = leader.seat.driver.calls, follower.seat.driver.calls
        await asyncio.sleep(60.0)
        assert (leader.seat.driver.calls - before[0]) / 60 < 8
        assert (follower.seat.driver.calls - before[1]) / 60 < 3
        await leader.stop()
        await follower.stop()
