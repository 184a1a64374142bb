"""Health checks: the state of store, loops and leader, at a bounded cost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headway.core.clock import Loop
from headway.core.errors import StoreFull, StoreReadOnly, StoreUnavailable
from headway.core.instants import SECOND
from headway.core.nodes import Node
from headway.operations.health import FRESH_S, NOBODY_DECIDES, UNKNOWN, Condition, Health
from headway.operations.store_trouble import AWAY, FULL, OK, PROBE_S_MAX, READ_ONLY
from tests.simulation.stage import Seat, Stage
from tests.simulation.virtual_loop import virtual


@asynccontextmanager
async def watched() -> AsyncIterator[tuple[Seat, Health]]:
    """Open a store in virtual time, with a health check on it."""
    async with Stage() as stage:
        seat = stage.seat()
        yield seat, Health(seat.store, seat.clock)


async def lead(seat: Seat, seconds: int = 10) -> None:
    won = await seat.store.leases.acquire(
        ["scheduler/0"], holder=seat.clock.node, holder_name="a", duration=seconds * SECOND
    )
    assert won


def condition(store: str = OK, loops: str = OK, leader: str = OK, engines: str = OK) -> Condition:
    return Condition(store=store, loops=loops, leader=leader, engines=engines)


def test_overall_status() -> None:
    assert condition().status == "ready"
    assert condition(leader=NOBODY_DECIDES).status == "degraded", "jobs can still be enqueued and run"
    assert condition(engines="redis does not answer any node").status == "degraded", (
        "the store grants the leases instead"
    )
    assert condition(loops="fanout is stuck").status == "unready"
    assert condition(store=AWAY, leader=UNKNOWN, engines=UNKNOWN).status == "unready"


@virtual
async def test_ready_while_there_is_a_leader() -> None:
    async with watched() as (seat, health):
        await lead(seat)
        assert await health.look() == condition()
        await asyncio.sleep(15)  # The lease has expired.
        assert await health.look() == condition(leader=NOBODY_DECIDES)


@virtual
async def test_housekeeping_lease_does_not_count_as_leader() -> None:
    async with Stage() as stage:
        seat = stage.seat()
        await seat.store.leases.acquire(["housekeeping"], holder="node_a", holder_name="a", duration=SECOND * 60)
        assert (await Health(seat.store, seat.clock).look()).leader == NOBODY_DECIDES


@virtual
async def test_lock_mode_needs_only_a_live_scheduler() -> None:
    async with watched() as (seat, health):
        await seat.store.nodes.beat(Node(id="n1", name="a", roles=("worker",), state={"mode": "lock"}))
        assert (await health.look()).leader == NOBODY_DECIDES
        await asyncio.sleep(2)
        await seat.store.nodes.beat(Node(id="n2", name="b", roles=("scheduler",), state={"mode": "lock"}))
        assert (await health.look()).leader == OK
        await asyncio.sleep(60)
        assert (await health.look()).leader == NOBODY_DECIDES


def stated(name: str, trouble: str | None, engine: str = "redis") -> Node:
    said = {"engine": engine, "trouble": trouble, "fallback": "store"}
    return Node(id=name, name=name, roles=("worker",), state={"coordination": said})


@virtual
async def test_unreachable_engine_is_named_with_the_number_of_nodes() -> None:
    async with watched() as (seat, health):
        await lead(seat, 600)
        odd = Node(id="old", name="old", roles=("worker",), state={"coordination": "of another version"})
        for node in (odd, stated("host-1", None), stated("host-2", None)):
            await seat.store.nodes.beat(node)
        assert await health.look() == condition()
        await seat.store.nodes.beat(stated("host-2", "10.0.0.7:6379: connection refused"))
        await asyncio.sleep(1.5)
        found = await health.look()
        assert (found.status, found.engines) == ("degraded", "redis does not answer 1 of 2 nodes")
        await seat.store.nodes.beat(stated("host-1", "10.0.0.7:6379: connection refused"))
        await seat.store.nodes.beat(stated("host-3", "no quorum", engine="etcd"))
        await asyncio.sleep(1.5)
        assert (await health.look()).engines == "etcd does not answer any node; redis does not answer any node"


@virtual
async def test_store_outage_and_recovery_show_within_seconds() -> None:
    async with watched() as (seat, health):
        await lead(seat, 600)
        assert (await health.look()).status == "ready"
        seat.driver.is_down = True
        await asyncio.sleep(1.5)
        assert await health.look() == condition(store=AWAY, leader=UNKNOWN, engines=UNKNOWN)
        seat.driver.is_down = False
        await asyncio.sleep(1.5)
        assert (await health.look()).status == "ready"


@virtual
async def test_store_failure_shows_within_two_seconds_at_any_polling_rate() -> None:
    assert PROBE_S_MAX + FRESH_S <= 2.0
    async with watched() as (seat, health):
        await lead(seat, 600)
        for what, asking_s, words in (
            (StoreReadOnly(), 0.0, READ_ONLY),
            (StoreFull(), 0.0, FULL),
            (StoreUnavailable(), 0.0, AWAY),
            (None, 100.0, AWAY),  # A locked table, or commits that are never confirmed.
        ):
            assert (await health.look()).status == "ready"
            seat.driver.refuses, seat.driver.asking_s = what, asking_s
            began, said = seat.clock.monotonic(), list[str]()
            while seat.clock.monotonic() - began < 30.0:
                said.append((await health.look()).store)
                if said[-1] != OK:
                    assert seat.clock.monotonic() - began <= 2.0 or words in said[:-1]
                await asyncio.sleep(0.05)
            assert set(said[said.index(words) :]) == {words}, "the status flaps"
            seat.driver.refuses, seat.driver.asking_s = None, 0.0
            await asyncio.sleep(2.0)


@virtual
async def test_hanging_store_does_not_block_the_check() -> None:
    async with watched() as (seat, health):
        await lead(seat, 600)
        seat.driver.asking_s = 100.0
        began = seat.clock.monotonic()
        assert (await health.look()).store == AWAY
        assert seat.clock.monotonic() - began < 5.0
        seat.driver.asking_s = 0.0
        await asyncio.sleep(1.5)
        assert (await health.look()).status == "ready", "a slow check must not be cached for long"


@virtual
async def test_concurrent_checks_share_one_query() -> None:
    async with watched() as (seat, health):
        await lead(seat, 600)
        before = seat.driver.calls
        seat.driver.answering_s = 0.05
        found = await asyncio.gather(*(health.look() for _ in range(500)))
        assert {each.status for each in found} == {"ready"}
        assert seat.driver.calls - before <= 3


@virtual
async def test_cancelled_check_does_not_cancel_the_shared_one() -> None:
    async with watched() as (seat, health):
        await lead(seat, 600)
        seat.driver.answering_s = 0.2
        first, second = asyncio.create_task(health.look()), asyncio.create_task(health.look())
        await asyncio.sleep(0.1)
        first.cancel()
        assert (await second).status == "ready"


@virtual
async def test_stalled_loop_shows_within_fifteen_seconds() -> None:
    async with Stage() as stage:
        seat = stage.seat()
        frozen = asyncio.Event()

        async def turn() -> float:
            return 4.0

        async def hang() -> float:
            if frozen.is_set():
                await asyncio.Event().wait()
            return 4.0

        loops = [
            Loop("fanout", turn, clock=seat.clock, rest_s_max=5.0),
            Loop("deliverer", hang, clock=seat.clock, rest_s_max=5.0),
        ]
        tasks = [asyncio.create_task(loop.run()) for loop in loops]
        health = Health(seat.store, seat.clock, loops)
        await lead(seat, 600)
        for _ in range(40):
            await asyncio.sleep(1)
            assert (await health.look()).status == "ready"
        frozen.set()
        await asyncio.sleep(15)
        assert await health.look() == condition(loops="deliverer is stuck")
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
