"""Leases granted by an engine in front of a real store: whatever happens to the engine, exactly one holder can write.

Redis stands for all engines, because it is easy to flush, pause and kill. Each test ends by checking what the store
allows, not what a node believes: who may fire.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest

from headway.adapters.engines import open_engine
from headway.coordination import admission
from headway.coordination.admission import AdmittedLeases
from headway.core.clock import Clock, monotonic_now
from headway.core.errors import LeaseLost
from headway.core.events import EngineEvent, EngineLost, EngineReturned, subscribed
from headway.core.instants import SECOND
from headway.core.nodes import Lease
from headway.core.ports import Engine, Fence, Shards
from headway.core.schedules import ScheduleSpec
from headway.core.settings import Settings
from headway.core.triggers import Every
from headway.scheduling.planner import plan
from headway.store import Store, open_driver
from headway.store.migrations import migrate
from headway.wiring.roles import scheduler_node, world_of
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer
from tests.support.waiting import DEADLINE_S, async_wait_until

LEASE = 600 * SECOND  # Too long to expire on any machine; the engine is waited for during a quarter of it.
PAUSE_S = 600.0
FREED = "{headway:}freed"
ROLE = "scheduler/0"


class Rival:
    """A node that competes for the role, with its own connections."""

    def __init__(self, name: str, store: Store, engine: Engine, *, falls_back: bool) -> None:
        self.name = name
        self.store = store
        self.engine = engine
        self.ahead_s = 0.0
        clock = Clock(node=name, monotonic=lambda: monotonic_now() + self.ahead_s)
        self.leases = AdmittedLeases(engine, store.leases, clock=clock, falls_back=falls_back)
        self.lease: Lease | None = None

    async def acquire(self) -> bool:
        """Try to acquire the role."""
        won = await self.leases.acquire([ROLE], holder=self.name, holder_name=self.name, duration=LEASE)
        self.lease = won[0] if won else None
        return bool(won)

    async def renew(self) -> bool:
        """Renew the lease."""
        assert self.lease is not None
        renewed = await self.leases.renew([self.lease], duration=LEASE)
        return bool(renewed)

    async def release(self) -> None:
        """Release the lease."""
        assert self.lease is not None
        await self.leases.release([self.lease])

    async def fires(self) -> bool:
        """Decide what is due with the lease that this node believes it holds; return whether the store accepted it."""
        assert self.lease is not None
        async with asyncio.timeout(DEADLINE_S):  # The schedule is due ten times a second, but not in the first 100 ms.
            while not (due := await self.store.ledger.due(Shards(of=1, held=frozenset({0})), 10)).schedules:
                await asyncio.sleep(0.01)
        plans = [plan(schedule, due.now, live) for schedule, live in due.schedules]
        try:
            refused = await self.store.ledger.fire(plans, Fence(holder=self.name, tokens={ROLE: self.lease.token}))
        except LeaseLost:
            return False
        return not refused

    def skip_back_off(self) -> None:
        """Advance its clock past the time during which an unavailable engine is not called."""
        self.ahead_s += admission.ABSENT_S

    @property
    def trouble(self) -> str | None:
        """The trouble with the engine that this node reports."""
        trouble: str | None = self.leases.state["trouble"]
        return trouble


class Match:
    """Nodes on one store, each with its own engine or a shared one."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.url = url
        self._stack = stack

    async def rival(self, name: str, engine: str, *, falls_back: bool = True) -> Rival:
        """Add a node."""
        clock = Clock(node=name)
        store = await Store.open(self.url, clock)
        self._stack.push_async_callback(store.close)
        opened = open_engine(engine, clock=clock, node=name)
        self._stack.push_async_callback(opened.close)
        return Rival(name, store, opened, falls_back=falls_back)


@pytest.fixture(scope="session")
def migrated(postgres_server: PostgresServer) -> str:
    """A migrated database that serves as a template."""
    url = postgres_server.create_database()
    with ThreadPoolExecutor(1) as thread:  # An event loop may already run in this thread.
        thread.submit(asyncio.run, _prepare(url)).result(timeout=DEADLINE_S)
    return url


async def _prepare(url: str) -> None:
    """Create a store with one schedule that is always due."""
    driver = open_driver(url)
    await migrate(driver)
    store = Store.on(driver, Clock(node="operator"))
    await store.schedules.put("beat", ScheduleSpec(task="beat", trigger=Every("100ms")))
    await driver.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def match(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Match]:
    """A store with one schedule that is always due."""
    async with AsyncExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path}/headway.db"
            await _prepare(url)
        else:
            server: PostgresServer = request.getfixturevalue("postgres_server")
            url = server.create_database(template=request.getfixturevalue("migrated"))
            stack.callback(server.drop, url)
        yield Match(url, stack)


@contextmanager
def engine_events() -> Iterator[list[EngineEvent]]:
    """Collect events about engines."""
    events: list[EngineEvent] = []

    def note(event: EngineEvent) -> None:
        if isinstance(event, EngineLost | EngineReturned):
            events.append(event)

    with subscribed(note):
        yield events


async def _check_only_holder_writes(holder: Rival, *others: Rival) -> None:
    """Check that exactly this node can write."""
    for other in others:
        assert not await other.fires(), f"{other.name} wrote, though the lease is {holder.name}'s"
    assert await holder.fires()


async def test_engine_grants_to_one_node_and_store_records_it(match: Match, redis: RedisServer) -> None:
    ada, bob = await match.rival("ada", redis.url()), await match.rival("bob", redis.url())
    assert await ada.acquire()
    assert not await bob.acquire()
    assert await ada.renew()
    [(recorded, runs)] = await ada.store.leases.held(ROLE)
    assert (recorded.holder, runs) == ("ada", True)
    first = ada.lease
    await ada.release()
    assert await bob.acquire()
    assert first is not None
    assert bob.lease is not None
    assert bob.lease.token > first.token
    await _check_only_holder_writes(bob, ada)


async def test_tokens_increase_after_engine_restart(match: Match, redis: RedisServer) -> None:
    """Redis restarts empty and grants its lowest token; the store has seen higher ones and issues a higher one."""
    ada = await match.rival("ada", redis.url())
    with redis.client() as client:
        client.set("{headway:}token", 1_000_000)
    assert await ada.acquire()
    assert ada.lease is not None
    high = ada.lease
    assert high.token > 1_000_000
    redis.restart_empty()
    bob = await match.rival("bob", redis.url())
    assert await bob.acquire()
    assert bob.lease is not None
    assert bob.lease.token > high.token
    await _check_only_holder_writes(bob, ada)


@pytest.mark.parametrize("fault", ["flushed", "restarted empty"])
async def test_two_holders_of_the_lock_share_one_row(match: Match, redis: RedisServer, fault: str) -> None:
    ada, bob = await match.rival("ada", redis.url()), await match.rival("bob", redis.url())
    assert await ada.acquire()
    if fault == "flushed":
        redis.flush()
    else:
        redis.restart_empty()
    assert await bob.acquire()  # Now both have been granted the lock, and neither has released it.
    await _check_only_holder_writes(bob, ada)
    assert not await ada.renew()
    assert not await ada.acquire()
    assert await bob.renew()
    assert await bob.fires()


async def test_lock_forgotten_by_engine_is_acquired_again(match: Match, redis: RedisServer) -> None:
    ada, bob = await match.rival("ada", redis.url()), await match.rival("bob", redis.url())
    assert await ada.acquire()
    before = ada.lease
    redis.flush()
    assert await ada.renew()
    assert ada.lease == before  # Nobody acquired it in between, so the term is the same.
    assert not await bob.acquire()
    assert await ada.fires()


async def test_nodes_with_separate_engines_do_not_steal_leases_forever(match: Match, redis: RedisServer) -> None:
    """Each node has its own Redis, and each Redis names its node as the holder."""
    with RedisServer() as other:
        ada, bob = await match.rival("ada", redis.url()), await match.rival("bob", other.url())
        assert await ada.acquire()
        assert await bob.acquire()
        for _ in range(3):  # Bob was later. Ada cannot come back while he renews.
            assert not (ada.lease and await ada.renew())
            assert not await ada.acquire()
            assert await bob.renew()
            assert await bob.fires()
        await bob.release()
        assert await ada.acquire()
        await _check_only_holder_writes(ada, bob)


async def test_without_engine_the_store_decides(match: Match, redis: RedisServer) -> None:
    ada, bob = await match.rival("ada", redis.url()), await match.rival("bob", redis.url())
    assert await ada.acquire()
    redis.kill()
    with engine_events() as events:
        assert await ada.renew()
        assert await ada.renew()
        assert not await bob.acquire()
    assert [(type(event), event.node) for event in events] == [(EngineLost, "ada"), (EngineLost, "bob")]
    assert ada.trouble is not None
    assert "redis" in ada.trouble
    assert await ada.fires()
    await ada.release()
    assert await bob.acquire()  # Granted by the store alone.
    await _check_only_holder_writes(bob, ada)
    assert not await ada.acquire()
    redis.start()
    ada.skip_back_off()
    bob.skip_back_off()
    with engine_events() as events:
        assert not await ada.acquire()  # The engine would grant it, but bob holds the lease in the store and keeps it.
        assert await bob.renew()
        assert not await ada.acquire()
    assert [type(event) for event in events] == [EngineReturned, EngineReturned]
    assert {ada.trouble, bob.trouble} == {None}
    assert await bob.fires()


async def test_without_engine_and_fallback_nothing_is_decided(match: Match, redis: RedisServer) -> None:
    ada = await match.rival("ada", redis.url(), falls_back=False)
    assert await ada.acquire()
    redis.kill()
    assert not await ada.renew()
    assert not await ada.acquire()
    assert ada.leases.state == {"engine": "redis", "trouble": ada.trouble, "fallback": "stop"}
    redis.start()
    ada.skip_back_off()
    assert await ada.acquire()
    assert await ada.fires()


def _count_renewals(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record each renewal request to the engine."""
    calls: list[float] = []
    renew = engine.renew

    def counted(names: Iterable[str], *, holder: str, duration: int) -> Awaitable[frozenset[str]]:
        calls.append(duration / SECOND)
        return renew(names, holder=holder, duration=duration)

    monkeypatch.setattr(engine, "renew", counted)
    return calls


async def test_hanging_engine_loses_no_lease(match: Match, redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call times out, and is not repeated on every renewal."""
    assert admission.PATIENCE <= 0.25  # A holder trusts a lease for 0.8 of it, which leaves room for three calls.
    ada = await match.rival("ada", redis.url())
    assert await ada.acquire()
    calls = _count_renewals(ada.engine, monkeypatch)
    redis.pause(PAUSE_S)
    monkeypatch.setattr(admission, "PATIENCE", 0.001)
    for _ in range(4):
        assert await ada.renew()
    assert len(calls) == 1
    assert ada.trouble == "redis does not answer within 0.6 s"
    assert await ada.fires()
    redis.resume()
    monkeypatch.setattr(admission, "PATIENCE", 0.25)
    ada.skip_back_off()
    assert await ada.renew()
    assert len(calls) == 2
    assert ada.leases.state["trouble"] is None
    await ada.leases.close()


async def test_late_answer_does_not_end_back_off(
    match: Match, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two concurrent calls one times out: the reason stays known for as long as the engine is not called."""
    ada = await match.rival("ada", redis.url())
    assert await ada.acquire()
    calls = _count_renewals(ada.engine, monkeypatch)
    monkeypatch.setattr(admission, "ABSENT_S", LEASE / SECOND)
    redis.pause(PAUSE_S)
    patient = asyncio.create_task(ada.renew())
    await async_wait_until(lambda: calls, "the engine to be asked")
    monkeypatch.setattr(admission, "PATIENCE", 0.001)  # The first call has started and keeps its own timeout.
    assert await ada.renew()
    redis.resume()
    assert await patient
    assert await ada.renew()
    assert ada.trouble == "redis does not answer within 0.6 s"
    assert len(calls) == 2
    await ada.leases.close()


async def test_node_cut_off_from_engine_is_replaced(match: Match, redis: RedisServer) -> None:
    """Its lock expires while the store still records it as the holder; the next node gets lock and row."""
    ada, bob = await match.rival("ada", redis.url()), await match.rival("bob", redis.url())
    assert await ada.acquire()
    with redis.client() as client:
        client.delete("{headway:}lock:scheduler/0")
    assert await bob.acquire()
    await _check_only_holder_writes(bob, ada)
    assert not await ada.renew()


async def test_many_leases_are_requested_at_once(match: Match, redis: RedisServer) -> None:
    """As in lock mode: all leases that the engine grants, in one call."""
    ada, bob = await match.rival("ada", redis.url()), await match.rival("bob", redis.url())
    names = [f"occurrence/{number}/1" for number in range(100)]
    some = await bob.leases.acquire(names[:10], holder="bob", holder_name="bob", duration=LEASE)
    won = await ada.leases.acquire([*names, *names], holder="ada", holder_name="ada", duration=LEASE)
    assert sorted(lease.name for lease in (*some, *won)) == sorted(names)
    assert len({lease.token for lease in won}) == 90
    assert await ada.leases.acquire([], holder="ada", holder_name="ada", duration=LEASE) == []
    assert await ada.leases.renew([], duration=LEASE) == []
    await ada.leases.release([])


async def test_node_is_notified_of_released_locks(match: Match, redis: RedisServer) -> None:
    ada, bob = await match.rival("ada", redis.url()), await match.rival("bob", redis.url())
    assert await ada.acquire()
    heard: list[str] = []
    wake_ups = await world_of(bob.store, bob.leases).watch(heard.append)
    with redis.client() as client:  # Not through the store, which would notify as well.
        await async_wait_until(lambda: dict(client.pubsub_numsub(FREED))[FREED], "the subscription")
        heard.clear()
        client.publish(FREED, 1)
    await async_wait_until(lambda: "leases" in heard, "the notification of a released lock")
    await wake_ups.close()


async def test_connections_of_a_node_are_closed_with_it(match: Match, redis: RedisServer) -> None:
    clock = Clock(node="cid")
    store = await Store.open(match.url, clock)
    node = scheduler_node(store, Settings(store=match.url, node="cid", coordination=redis.url()), clock)
    running = asyncio.create_task(node.run())
    try:
        await async_wait_until(lambda: {"housekeeping", ROLE} <= node.holds().keys(), "the node to have its roles")
        assert redis.connections("headway-cid") > 0
    finally:
        node.stop()
        await running
        await store.close()
    await async_wait_until(lambda: redis.connections("headway-cid") == 0, "its connections to be closed")
