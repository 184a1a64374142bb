"""Metrics of the whole store: the same on every database, and bounded."""

import asyncio

from headway.core.instants import HOUR, MINUTE, SECOND
from headway.core.jobs import NewJob
from headway.core.lifecycle import Raised, settle
from headway.core.nodes import Node
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import Every
from headway.store import Store
from tests.conformance.backend import Backend
from tests.support.waiting import DEADLINE_S


def node(name: str, **state: object) -> Node:
    return Node(id=f"node_{name}", name=name, roles=("scheduler", "worker"), state=state)


async def enqueue(store: Store, queue: str, number: int = 1, **fields: object) -> None:
    jobs = [NewJob(id=f"job_{queue}_{n}", task="work", queue=queue, **fields) for n in range(number)]  # type: ignore[arg-type]
    await store.queue.enqueue(jobs)


async def cells(store: Store) -> dict[str, int]:
    return (await store.metrics.counters(10 * SECOND)).cells


async def test_tallies_of_all_nodes_are_summed(store: Store) -> None:
    await store.nodes.beat(node("a", tally={"decided|fired": 2, "won": 1}))
    await store.nodes.beat(node("b", tally={"decided|fired": 40}))
    await store.nodes.beat(node("old", loops={}))
    found = await store.metrics.counters(10 * SECOND)
    assert found.cells == {"decided|fired": 42, "won": 1}
    assert [seen.roles for seen in found.alive] == [("scheduler", "worker")] * 3


async def test_counters_of_a_node_stay_when_it_leaves(store: Store) -> None:
    for name, number in (("a", 2), ("b", 40), ("c", 300)):
        await store.nodes.beat(node(name, tally={"decided|fired": number}))
    before = await cells(store)
    for name in ("b", "a"):
        await store.nodes.leave(f"node_{name}")
        await store.nodes.leave(f"node_{name}")  # It repeats this if the response is lost.
        assert await cells(store) == before == {"decided|fired": 342}
    await store.nodes.beat(node("c", tally={"decided|fired": 301}))
    assert await cells(store) == {"decided|fired": 343}


async def test_counters_of_a_dead_node_stay(backend: Backend) -> None:
    store = backend.store
    await store.nodes.beat(node("a", tally={"attempts|failed": 7}))
    await backend.advance(HOUR)
    assert (await store.metrics.counters(10 * SECOND)).alive == ()
    assert await cells(store) == {"attempts|failed": 7}
    await backend.advance(48 * HOUR)
    await store.housekeeping.prune(30 * 24 * HOUR, 100)
    assert await store.nodes.alive(100 * HOUR) == []
    assert await cells(store) == {"attempts|failed": 7}


async def test_nodes_that_leave_concurrently_lose_no_counters(shared: Backend) -> None:
    stores = [shared.store, await shared.another(), await shared.another("node-3")]
    names = [f"{n}" for n in range(9)]
    for name in names:
        await shared.store.nodes.beat(node(name, tally={"won": 1, "held": 10}))
    sums: list[dict[str, int]] = []

    async def watch() -> None:
        while True:
            sums.append(await cells(stores[2]))

    watching = asyncio.create_task(watch())
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(stores[n % 2].nodes.leave(f"node_{name}") for n, name in enumerate(names)))
    watching.cancel()
    await asyncio.wait([watching])
    assert await cells(shared.store) == {"won": 9, "held": 90}
    assert all(found == {"won": 9, "held": 90} for found in sums)


async def test_malformed_counters_are_ignored(store: Store) -> None:
    await store.nodes.beat(node("a", tally={"won": 1, "late": 0.5, "lost": "many", "held": -3, "promoted": True}))
    assert await cells(store) == {"won": 1}
    await store.nodes.leave("node_a")
    assert await cells(store) == {"won": 1}


async def test_backlog_counts_every_queue_and_finds_its_oldest_job(backend: Backend) -> None:
    store = backend.store
    await enqueue(store, "mixed", 2, priority=-5)
    await backend.advance(MINUTE)
    for queue, number, priority in (("mixed", 3, 7), ("a", 4, 0), ("z z", 1, -1000)):
        jobs = [
            NewJob(id=f"job_{queue}_{priority}_{n}", task="t", queue=queue, priority=priority) for n in range(number)
        ]
        await store.queue.enqueue(jobs)
    await enqueue(store, "later", 4, delay=HOUR)
    await store.work.claim("a", node="node_a", lease=MINUTE, limit=1)
    found = await store.metrics.backlog(1_000)
    assert {queue: depth.pending for queue, depth in found.items()} == {"a": 3, "mixed": 5, "z z": 1}
    assert 60 <= found["mixed"].oldest_s < 100, "the oldest job has the lowest priority"
    assert max(found["a"].oldest_s, found["z z"].oldest_s) < 40


async def test_long_queue_is_counted_up_to_a_limit(store: Store) -> None:
    await enqueue(store, "long", 25)
    await enqueue(store, "short", 9)
    found = await store.metrics.backlog(10)
    assert {queue: depth.pending for queue, depth in found.items()} == {"long": 10, "short": 9}


async def test_empty_store_has_no_backlog(store: Store) -> None:
    assert await store.metrics.backlog(1_000) == {}
    assert (await store.metrics.undecided()).oldest_s == 0.0
    assert await store.metrics.dead_letters() == 0
    assert (await store.metrics.deliveries_waiting()).pending == 0


async def test_oldest_undecided_instant(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("tick", ScheduleSpec(task="work", trigger=Every("10s")))
    await backend.advance(MINUTE)
    found = await store.metrics.undecided()
    assert 49 <= found.oldest_s < 90
    assert found.held == 0


async def test_schedule_set_aside_counts_from_its_undecided_instant(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("bad", ScheduleSpec(task="work", trigger=Every("10s")))
    version = (await store.schedules.get("bad")).version
    await backend.advance(MINUTE)
    await store.ledger.hold("bad", version, "cannot be planned")
    found = await store.metrics.undecided()
    assert found.held == 1
    assert found.oldest_s >= 49


async def test_dead_letters_are_counted(store: Store) -> None:
    await enqueue(store, "q", 3)
    jobs = await store.work.claim("q", node="node_a", lease=MINUTE, limit=2)
    await store.work.settle([settle(job, Raised("{}", retryable=False), 0.5) for job in jobs])
    assert await store.metrics.dead_letters() == 2
