"""Fanout to followers: bounded buffers, no duplicates, and no leaks after a disconnect."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest

from headway.core.clock import Clock
from headway.core.errors import StoreUnavailable
from headway.core.feed import EVERYTHING, Line
from headway.core.instants import HOUR, SECOND
from headway.core.jobs import NewJob, Report
from headway.core.settings import Settings
from headway.operations.caller import Caller, Principal
from headway.operations.job_reader import JobReader
from headway.operations.tenant_counts import TenantCounts
from headway.server import fanout as fanout_module
from headway.server.fanout import Fanout
from headway.server.followers import BYTES_MAX, EVENTS_MAX, Follower, StreamEvent
from headway.server.quotas import TenantQuotas
from headway.server.routes import streams as follow
from headway.server.routes import websocket
from headway.store import Store
from headway.store.migrations import migrate
from headway.store.sqlite import InlineSqliteDriver, SqliteConnection
from tests.simulation.stage import START
from tests.support.waiting import DEADLINE_S

CLOCK = Clock(node="test", monotonic=itertools.count(step=1e-6).__next__)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every feed on for the whole test: on SQLite the feed expires by the system clock."""
    monkeypatch.setattr(fanout_module, "FOLLOW_FOR", HOUR)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """A store on the real clock."""
    connection = SqliteConnection(":memory:", now=itertools.count(START).__next__)
    driver = InlineSqliteDriver(connection)
    await migrate(driver)
    yield Store.on(driver, CLOCK)
    connection.raw.close()


@pytest.fixture
def fanout(store: Store) -> Fanout:
    return Fanout(store.feed, CLOCK)


def call_of(store: Store, fanout: Fanout) -> Any:
    """Return the call of a client that may do everything."""
    services = SimpleNamespace(
        fanout=fanout,
        auth=None,
        feed=store.feed,
        quotas=TenantQuotas(TenantCounts(store), Settings(), CLOCK),
        reader=JobReader(store),
        is_closing=False,
    )
    admin = Principal("root", "*", "admin")
    caller = Caller(admin, "", store, CLOCK, jobs=services.reader)
    return SimpleNamespace(services=services, clock=CLOCK, principal=admin, tenant=None, query={}, caller=caller)


async def enqueue(store: Store) -> str:
    [row] = await store.queue.enqueue([NewJob(id=CLOCK.new_id("job"), task="work")])
    return row.id


def saying(job_id: str, number: int) -> Report:
    return Report(job_id=job_id, attempt=1, progress=number, lines=((None, "log", str(number)),))


def test_slow_follower_is_dropped() -> None:
    for event, most in ((StreamEvent("progress", {}), EVENTS_MAX), (StreamEvent("log", {"line": "x" * 100_000}), 12)):
        follower = Follower("job_1")
        for _ in range(2 * EVENTS_MAX):
            follower.push(event)
        assert follower.is_dropped
        kept = follower.take()
        assert len(kept) <= most
        assert sum(len(event.sse) for event in kept) <= BYTES_MAX + len(event.sse)


async def test_unread_stream_ends(store: Store, fanout: Fanout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "SEND_S_MAX", 0.2)
    sent: list[str] = []

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("the other end says nothing")

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()  # The buffers are full, and the client does not read.

    job_id, call = await enqueue(store), call_of(store, fanout)
    stream = follow.Stream(call, lambda: follow.follow_job(fanout, call, job_id, None))
    async with asyncio.timeout(DEADLINE_S):
        await stream({"type": "http", "method": "GET"}, receive, send)
    assert sent == ["http.response.start", "http.response.body"]
    assert fanout.count() == 0


async def test_log_lines_of_versions_read_together_are_sent_once(store: Store, fanout: Fanout) -> None:
    job_id = await enqueue(store)
    follower = await fanout.follow_job(job_id)
    await store.work.claim("default", node="test", lease=60 * SECOND, limit=1)
    for number in range(3):
        await store.work.report([saying(job_id, number)])
    await fanout.tick()
    told = [event.sse.decode() for event in follower.take() if event.kind == "log"]
    assert [text.count('"line":') for text in told] == [1, 1, 1], told


async def test_follower_of_all_jobs_misses_nothing_when_the_store_fails(
    store: Store, fanout: Fanout, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything, _ = await fanout.follow_everything(lambda job: True)
    job_ids = [await enqueue(store)]
    await fanout.follow_job(job_ids[0])
    await store.work.claim("default", node="test", lease=60 * SECOND, limit=1)
    await fanout.tick()
    everything.take()
    await store.work.report([saying(job_ids[0], 5)])
    job_ids += [await enqueue(store) for _ in range(3)]

    async def away(*_: object) -> list[Line]:
        raise StoreUnavailable("for a moment")

    with monkeypatch.context() as patch:
        patch.setattr(store.feed, "log_between", away)
        with pytest.raises(StoreUnavailable):
            await fanout.tick()
    await fanout.tick()
    assert [json.loads(event.data)["id"] for event in everything.take()] == job_ids


async def test_new_follower_does_not_hide_a_gap_from_earlier_ones(store: Store, fanout: Fanout) -> None:
    """The feed was off for a while, so changes were missed; the next follower turns it on again."""
    before, _ = await fanout.follow_everything(lambda job: True)
    await fanout.tick()
    await store.feed.follow([EVERYTHING], -SECOND)
    await enqueue(store)  # Not in the feed.
    await asyncio.sleep(0.005)  # The start of a feed has millisecond precision.
    newcomer, _ = await fanout.follow_everything(lambda job: True)
    await fanout.tick()
    assert [event.kind for event in before.take()] == ["resync"]
    assert newcomer.take() == []


@pytest.mark.parametrize("messages", [["subscribe"], ["subscribe", "unsubscribe"], ["subscribe"] * 3])
async def test_immediate_disconnect_leaves_nothing_behind(store: Store, fanout: Fanout, messages: list[str]) -> None:
    """A task that is cancelled before its first step does not reach its `finally`."""
    job_id = await enqueue(store)
    said = [json.dumps({what: {"job": job_id}}) for what in messages]

    async def receive() -> MutableMapping[str, Any]:
        if said:
            return {"type": "websocket.receive", "text": said.pop(0)}
        return {"type": "websocket.disconnect"}

    async def send_text(_: str) -> None: ...

    socket: Any = SimpleNamespace(receive=receive, send_text=send_text)
    await websocket.WebSocketSession(socket, call_of(store, fanout)).run()
    assert fanout.count() == 0
