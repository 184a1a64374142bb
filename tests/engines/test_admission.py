"""An engine in front of a real store: whatever becomes of the engine, one holder can write, and the others are refused.

Redis stands for all engines here, since it forgets, hangs and dies so readily. What is asked at the end of a story is
never what somebody believes, but what the store lets happen: who may fire.
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

LEASE = 600 * SECOND  # No machine is so slow that it runs out; a quarter of it is how long the engine is waited for.
PAUSE_S = 600.0
FREED = "{headway:}freed"
ROLE = "scheduler/0"


class Rival:
    """One of those who want to decide, each with connections of his own."""

    def __init__(self, name: str, store: Store, engine: Engine, *, falls_back: bool) -> None:
        self.name = name
        self.store = store
        self.engine = engine
        self.ahead_s = 0.0
        clock = Clock(node=name, monotonic=lambda: monotonic_now() + self.ahead_s)
        self.leases = AdmittedLeases(engine, store.leases, clock=clock, falls_back=falls_back)
        self.lease: Lease | None = None

    async def acquire(self) -> bool:
        """Try for the role."""
        won = await self.leases.acquire([ROLE], holder=self.name, holder_name=self.name, duration=LEASE)
        self.lease = won[0] if won else None
        return bool(won)

    async def renew(self) -> bool:
        """Keep it."""
        assert self.lease is not None
        renewed = await self.leases.renew([self.lease], duration=LEASE)
        return bool(renewed)

    async def release(self) -> None:
        """Give it back."""
        assert self.lease is not None
        await self.leases.release([self.lease])

    async def fires(self) -> bool:
        """Decide what is due with the lease that he believes to have; say whether the store let him."""
        assert self.lease is not None
        async with asyncio.timeout(DEADLINE_S):  # It is due ten times a second, but not in the first tenth.
            while not (due := await self.store.ledger.due(Shards(of=1, held=frozenset({0})), 10)).schedules:
                await asyncio.sleep(0.01)
        plans = [plan(schedule, due.now, live) for schedule, live in due.schedules]
        try:
            refused = await self.store.ledger.fire(plans, Fence(holder=self.name, tokens={ROLE: self.lease.token}))
        except LeaseLost:
            return False
        return not refused

    def rest(self) -> None:
        """Let the time pass for which an engine that was absent is left alone."""
        self.ahead_s += admission.ABSENT_S

    @property
    def trouble(self) -> str | None:
        """What he says of the engine."""
        trouble: str | None = self.leases.state["trouble"]
        return trouble


class Match:
    """Rivals on one store, each with an engine that may be another's, too."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.url = url
        self._stack = stack

    async def rival(self, name: str, engine: str, *, falls_back: bool = True) -> Rival:
        """Let one more take part."""
        clock = Clock(node=name)
        store = await Store.open(self.url, clock)
        self._stack.push_async_callback(store.close)
        opened = open_engine(engine, clock=clock, node=name)
        self._stack.push_async_callback(opened.close)
        return Rival(name, store, opened, falls_back=falls_back)


@pytest.fixture(scope="session")
def migrated(postgres_server: PostgresServer) -> str:
    """A database to make copies of."""
    url = postgres_server.create_database()
    with ThreadPoolExecutor(1) as thread:  # The fixture may be asked for while a loop runs here.
        thread.submit(asyncio.run, _prepare(url)).result(timeout=DEADLINE_S)
    return url


async def _prepare(url: str) -> None:
    """Make a store with one schedule that is always due."""
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
def said() -> Iterator[list[EngineEvent]]:
    """What is said of engines."""
    events: list[EngineEvent] = []

    def note(event: EngineEvent) -> None:
        if isinstance(event, EngineLost | EngineReturned):
            events.append(event)

    with subscribed(note):
        yield events


async def _tell_apart(holder: Rival, *others: Rival) -> None:
    """Check that exactly this one can write."""
    for other in others:
        assert not await other.fires(), f"{other.name} wrote, though the lease is {holder.name}'s"
    assert await holder.fires()


async def test_the_engine_lets_one_try_and_the_store_records_him(match: Match, redis: RedisServer) -> None:
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
    await _tell_apart(bob, ada)


async def test_tokens_grow_although_the_engine_starts_again(match: Match, redis: RedisServer) -> None:
    """Redis restarts empty and gives its lowest token; the store has seen higher ones, and gives one above them."""
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
    await _tell_apart(bob, ada)


@pytest.mark.parametrize("fault", ["flushed", "restarted empty"])
async def test_two_who_both_hold_the_lock_have_one_row(match: Match, redis: RedisServer, fault: str) -> None:
    ada, bob = await match.rival("ada", redis.url()), await match.rival("bob", redis.url())
    assert await ada.acquire()
    if fault == "flushed":
        redis.flush()
    else:
        redis.restart_empty()
    assert await bob.acquire()  # Both have been granted the lock now, and neither has given it back.
    await _tell_apart(bob, ada)
    assert not await ada.renew()
    assert not await ada.acquire()
    assert await bob.renew()
    assert await bob.fires()


async def test_a_lock_that_the_engine_forgot_is_taken_again(match: Match, redis: RedisServer) -> None:
    ada, bob = await match.rival("ada", redis.url()), await match.rival("bob", redis.url())
    assert await ada.acquire()
    before = ada.lease
    redis.flush()
    assert await ada.renew()
    assert ada.lease == before  # Nobody else came in between, so it is the same term.
    assert not await bob.acquire()
    assert await ada.fires()


async def test_halves_that_know_nothing_of_each_other_do_not_rob_each_other_for_ever(
    match: Match, redis: RedisServer
) -> None:
    """Each has a Redis of his own, and each Redis calls him the holder."""
    with RedisServer() as other:
        ada, bob = await match.rival("ada", redis.url()), await match.rival("bob", other.url())
        assert await ada.acquire()
        assert await bob.acquire()
        for _ in range(3):  # Bob was the later. Ada comes back in vain, for as long as he renews.
            assert not (ada.lease and await ada.renew())
            assert not await ada.acquire()
            assert await bob.renew()
            assert await bob.fires()
        await bob.release()
        assert await ada.acquire()
        await _tell_apart(ada, bob)


async def test_without_the_engine_the_store_decides(match: Match, redis: RedisServer) -> None:
    ada, bob = await match.rival("ada", redis.url()), await match.rival("bob", redis.url())
    assert await ada.acquire()
    redis.kill()
    with said() as events:
        assert await ada.renew()
        assert await ada.renew()
        assert not await bob.acquire()
    assert [(type(event), event.node) for event in events] == [(EngineLost, "ada"), (EngineLost, "bob")]
    assert ada.trouble is not None
    assert "redis" in ada.trouble
    assert await ada.fires()
    await ada.release()
    assert await bob.acquire()  # From the store alone.
    await _tell_apart(bob, ada)
    assert not await ada.acquire()
    redis.start()
    ada.rest()
    bob.rest()
    with said() as events:
        assert not await ada.acquire()  # The engine would let her; but bob has it, and nobody robs him for that.
        assert await bob.renew()
        assert not await ada.acquire()
    assert [type(event) for event in events] == [EngineReturned, EngineReturned]
    assert {ada.trouble, bob.trouble} == {None}
    assert await bob.fires()


async def test_without_the_engine_nothing_is_decided_where_that_is_wanted(match: Match, redis: RedisServer) -> None:
    ada = await match.rival("ada", redis.url(), falls_back=False)
    assert await ada.acquire()
    redis.kill()
    assert not await ada.renew()
    assert not await ada.acquire()
    assert ada.leases.state == {"engine": "redis", "trouble": ada.trouble, "fallback": "stop"}
    redis.start()
    ada.rest()
    assert await ada.acquire()
    assert await ada.fires()


def _count_questions(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Note each renewal that the engine is asked for."""
    asked: list[float] = []
    renew = engine.renew

    def counted(names: Iterable[str], *, holder: str, duration: int) -> Awaitable[frozenset[str]]:
        asked.append(duration / SECOND)
        return renew(names, holder=holder, duration=duration)

    monkeypatch.setattr(engine, "renew", counted)
    return asked


async def test_an_engine_that_hangs_costs_no_lease(
    match: Match, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question is given up in time, and not asked again at every turn."""
    assert admission.PATIENCE <= 0.25  # A holder trusts a lease for 0.8 of it: three questions fit into that.
    ada = await match.rival("ada", redis.url())
    assert await ada.acquire()
    asked = _count_questions(ada.engine, monkeypatch)
    redis.pause(PAUSE_S)
    monkeypatch.setattr(admission, "PATIENCE", 0.001)
    for _ in range(4):
        assert await ada.renew()
    assert len(asked) == 1
    assert ada.trouble == "redis does not answer within 0.6 s"
    assert await ada.fires()
    redis.resume()
    monkeypatch.setattr(admission, "PATIENCE", 0.25)
    ada.rest()
    assert await ada.renew()
    assert len(asked) == 2
    assert ada.leases.state["trouble"] is None
    await ada.leases.close()


async def test_a_late_answer_does_not_end_an_absence(
    match: Match, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two who asked, one lost patience: why the engine is left alone is known for as long as it is."""
    ada = await match.rival("ada", redis.url())
    assert await ada.acquire()
    asked = _count_questions(ada.engine, monkeypatch)
    monkeypatch.setattr(admission, "ABSENT_S", LEASE / SECOND)
    redis.pause(PAUSE_S)
    patient = asyncio.create_task(ada.renew())
    await async_wait_until(lambda: asked, "the engine to be asked")
    monkeypatch.setattr(admission, "PATIENCE", 0.001)  # The first one has begun to wait, and keeps its time.
    assert await ada.renew()
    redis.resume()
    assert await patient
    assert await ada.renew()
    assert ada.trouble == "redis does not answer within 0.6 s"
    assert len(asked) == 2
    await ada.leases.close()


async def test_one_who_is_cut_off_from_the_engine_is_followed_by_one_who_is_not(
    match: Match, redis: RedisServer
) -> None:
    """His lock runs out while the store still knows him as the holder; who gets the lock takes the row from him."""
    ada, bob = await match.rival("ada", redis.url()), await match.rival("bob", redis.url())
    assert await ada.acquire()
    with redis.client() as client:
        client.delete("{headway:}lock:scheduler/0")
    assert await bob.acquire()
    await _tell_apart(bob, ada)
    assert not await ada.renew()


async def test_many_are_asked_for_at_once(match: Match, redis: RedisServer) -> None:
    """As in lock mode: those that the engine grants, in one go."""
    ada, bob = await match.rival("ada", redis.url()), await match.rival("bob", redis.url())
    names = [f"occurrence/{number}/1" for number in range(100)]
    some = await bob.leases.acquire(names[:10], holder="bob", holder_name="bob", duration=LEASE)
    won = await ada.leases.acquire([*names, *names], holder="ada", holder_name="ada", duration=LEASE)
    assert sorted(lease.name for lease in (*some, *won)) == sorted(names)
    assert len({lease.token for lease in won}) == 90
    assert await ada.leases.acquire([], holder="ada", holder_name="ada", duration=LEASE) == []
    assert await ada.leases.renew([], duration=LEASE) == []
    await ada.leases.release([])


async def test_a_node_hears_of_locks_that_came_free(match: Match, redis: RedisServer) -> None:
    ada, bob = await match.rival("ada", redis.url()), await match.rival("bob", redis.url())
    assert await ada.acquire()
    heard: list[str] = []
    wake_ups = await world_of(bob.store, bob.leases).watch(heard.append)
    with redis.client() as client:  # Not through the store, which would tell it as well.
        await async_wait_until(lambda: dict(client.pubsub_numsub(FREED))[FREED], "the subscription to stand")
        heard.clear()
        client.publish(FREED, 1)
    await async_wait_until(lambda: "leases" in heard, "the news of a lock that came free")
    await wake_ups.close()


async def test_the_connections_of_a_node_end_with_it(match: Match, redis: RedisServer) -> None:
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
    await async_wait_until(lambda: redis.connections("headway-cid") == 0, "its connections to be gone")
