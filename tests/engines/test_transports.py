"""One contract for all transports: hints reach one worker each, and whatever happens to them harms nobody.

First the transports by themselves, on real servers; `test_transport_workers.py` has real workers on them.
"""

import asyncio
import itertools
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Protocol

import pytest

from headway.adapters import rabbitmq
from headway.adapters.redis import transport as redis
from headway.adapters.transports import open_transport
from headway.core.clock import Clock
from headway.core.errors import EngineUnavailable, InvalidConfig
from headway.core.events import EngineEvent, EngineLost, EngineReturned, subscribed
from headway.core.ports import Hint, Transport
from headway.queue.announcer import HINTS_MAX, QUEUES_MAX, Announcer, TransportHealth
from headway.queue.background_announcer import FLUSH_S_MAX, BackgroundAnnouncer
from tests.engines.conftest import Patience
from tests.support.rabbitmq import RabbitServer
from tests.support.redis import RedisServer
from tests.support.server import free_port
from tests.support.transports import KINDS, Bench, TransportServer
from tests.support.waiting import DEADLINE_S

NUMBERS = itertools.count(1)
Open = Callable[..., Transport]


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, transport_server: Callable[[str], TransportServer]) -> Bench:
    """A server with a prefix that nobody has used, and ways to torment what is under it."""
    kind = str(request.param)
    return Bench(kind, transport_server(kind), f"test{next(NUMBERS)}.")


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for what shall not come."""
    for module in (redis, rabbitmq):
        monkeypatch.setattr(module, "WAIT_S", 0.3)


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Open transports; they are closed after the test."""
    async with AsyncExitStack() as stack:

        def open_one(url: str, node: str = "a") -> Transport:
            transport = open_transport(url, clock=Clock(node=node), node=node)
            stack.push_async_callback(transport.close)
            return transport

        yield open_one


async def taken(transport: Transport, count: int) -> list[Hint]:
    """Take until there are so many."""
    found: list[Hint] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            found += await transport.take(100)
    return found


async def nothing(transport: Transport) -> None:
    """Check that no hint comes."""
    for _ in range(2):
        assert await transport.take(100) == []


def ids(count: int) -> list[str]:
    return [f"job_{number:026}" for number in range(count)]


async def test_each_hint_reaches_one_of_those_who_wait(bench: Bench, opened: Open) -> None:
    teller, one, other = opened(bench.url), opened(bench.url, "b"), opened(bench.url, "c")
    await one.attend({"default", "media"})
    await other.attend({"default"})
    await teller.announce({"default": ids(30), "media": ids(3)})
    found: dict[str, list[Hint]] = {"b": [], "c": []}
    async with asyncio.timeout(DEADLINE_S):
        while sum(map(len, found.values())) < 33:
            for name, transport in (("b", one), ("c", other)):
                hints = await transport.take(5)
                await transport.acknowledge(hints)
                found[name] += hints
    assert sum(map(len, found.values())) == 33
    assert [hint.queue for hint in found["b"]].count("media") == 3
    assert {hint.queue for hint in found["c"]} == {"default"}
    await nothing(one)
    assert await bench.count("default") == 0


async def test_what_was_announced_before_anybody_came_is_there(bench: Bench, opened: Open) -> None:
    await opened(bench.url).announce({"default": ids(2)})
    taker = opened(bench.url, "b")
    await taker.attend({"default"})
    assert len(await taken(taker, 2)) == 2


async def test_what_is_given_back_or_not_wanted_reaches_another(bench: Bench, opened: Open) -> None:
    teller, one, other = opened(bench.url), opened(bench.url, "b"), opened(bench.url, "c")
    await one.attend({"default"})
    await teller.announce({"default": ids(4)})
    hints = list[Hint]()
    async with asyncio.timeout(DEADLINE_S):
        while not hints:
            hints = await one.take(1)
    await asyncio.sleep(0.2)  # The others may have been sent, too, and are not taken; if not, this shows less.
    await one.attend(())
    await one.give_back(hints)
    assert await one.take(100) == []
    await other.attend({"default"})
    found = await taken(other, 4)
    await other.acknowledge(found)
    assert len(found) == 4
    assert await bench.count("default") == 0


async def test_what_the_dead_had_taken_is_taken_over(
    bench: Bench, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    teller, one, other = opened(bench.url), opened(bench.url, "b"), opened(bench.url, "c")
    await one.attend({"default"})
    await teller.announce({"default": ids(3)})
    assert len(await taken(one, 3)) == 3
    monkeypatch.setattr(redis, "RECLAIM_IDLE_S", 0.2)  # Not earlier: who is slow would take over his own.
    monkeypatch.setattr(redis, "RECLAIM_EVERY_S", 0.2)
    await bench.cut(one)
    await other.attend({"default"})
    assert len(await taken(other, 3)) == 3


async def test_what_cannot_be_a_hint_is_thrown_away(bench: Bench, opened: Open) -> None:
    taker = opened(bench.url, "b")
    await taker.attend({"default"})
    for poison in (b"", b"\x00\xff\xfe", b"no such job", b"x" * 100_000, b"[" * 5_000, "jöb_1".encode()):
        await bench.put("default", poison)
    await bench.put_foreign("default")
    await opened(bench.url).announce({"default": ids(1)})
    hints = await taken(taker, 1)
    assert len(hints) == 1  # A foreign id cannot be told from one of ours: it costs a look into the store.
    await taker.acknowledge(hints)
    await nothing(taker)
    assert await bench.count("default") == 0


async def test_a_channel_that_is_gone_is_made_anew(bench: Bench, opened: Open) -> None:
    teller, taker = opened(bench.url), opened(bench.url, "b")
    await taker.attend({"default"})
    await teller.announce({"default": ids(1)})
    held = await taken(taker, 1)
    await bench.lose("default")
    await taker.acknowledge(held)  # Of something that is not there any more.
    await taker.give_back([])
    async with asyncio.timeout(DEADLINE_S):
        while not await taker.take(100):
            await teller.announce({"default": ids(1)})


async def test_channels_are_bounded(bench: Bench, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "LENGTH_MAX", 50)
    monkeypatch.setattr(rabbitmq, "LENGTH_MAX", 50)
    teller = opened(bench.url)
    for _ in range(4):
        await teller.announce({"default": ids(100)})
    assert 50 <= await bench.count("default") <= 200  # Redis removes a hundred at a time.


async def test_two_prefixes_are_two_worlds(bench: Bench, opened: Open) -> None:
    stranger = opened(bench.at("elsewhere."), "b")
    await stranger.attend({"default"})
    await opened(bench.url).announce({"default": ids(1)})
    await nothing(stranger)


async def test_with_tls(bench: Bench, opened: Open) -> None:
    if bench.kind == "redis":
        with RedisServer(tls=True) as server:
            await _there_and_back(opened, server.url())
    elif isinstance(broker := bench.server, RabbitServer):
        url = f"amqps://guest:guest@127.0.0.1:{broker.tls_port}/?ca={broker.authority}&prefix={bench.prefix}"
        await _there_and_back(opened, url)
        with pytest.raises(EngineUnavailable):
            await opened(url.replace(f"ca={broker.authority}&", "")).announce({})


async def _there_and_back(opened: Open, url: str) -> None:
    taker = opened(url, "b")
    await taker.attend({"default"})
    await opened(url).announce({"default": ids(1)})
    await taker.acknowledge(await taken(taker, 1))


async def test_the_next_endpoint_is_tried(bench: Bench, opened: Open) -> None:
    host = f"127.0.0.1:{bench.server.port}"
    teller = opened(bench.url.replace(host, f"127.0.0.1:{free_port()},{host}"))
    with pytest.raises(EngineUnavailable):
        await teller.announce({})
    await teller.announce({})


SECRET = "s3cr3t/p@ss"


async def test_who_does_not_answer_is_not_waited_for(opened: Open, patience: Patience) -> None:
    patience(1.5)

    async def check(scheme: str, port: int) -> None:
        transport = opened(f"{scheme}://ada:s3cr3t%2Fp%40ss@127.0.0.1:{port}/")
        for call in (transport.announce({"default": ids(1)}), transport.attend({"default"})):
            with pytest.raises(EngineUnavailable) as raised:
                async with asyncio.timeout(DEADLINE_S):
                    await call
            assert f"127.0.0.1:{port}" in str(raised.value)
            assert SECRET not in str(raised.value)

    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        ports = free_port(), deaf.getsockname()[1]
        await asyncio.gather(*(check(scheme, port) for scheme in ("redis", "amqp") for port in ports))


async def test_a_wrong_password_is_told_without_it(bench: Bench, opened: Open) -> None:
    transport = opened(re.sub("//(.*@)?", "//ada:wr0ng-s3cret@", bench.url, count=1))
    with pytest.raises(EngineUnavailable) as raised:
        await transport.announce({})
    assert "wr0ng-s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://ada:s3cret@127.0.0.1:6379/zero",
        "redis://ada:s3cret@127.0.0.1:6379/0?colour=red",
        "amqp://ada:s3cret@127.0.0.1:99999/",
        "amqp://ada:s3cret@127.0.0.1/?queues=stream",
        "kafka://ada:s3cret@127.0.0.1/",
    ],
)
def test_an_address_that_cannot_be(url: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        open_transport(url, clock=Clock(), node="n")
    assert "s3cret" not in str(raised.value)


# --- the announcer


class Flaky:
    """A transport that can be away, and notes what it is told."""

    name = "flaky"

    def __init__(self) -> None:
        self.told: list[dict[str, list[str]]] = []
        self.is_away = False

    async def announce(self, ready: dict[str, list[str]]) -> None:
        """Note it."""
        if self.is_away:
            raise EngineUnavailable("flaky is away")
        self.told.append({queue: list(job_ids) for queue, job_ids in ready.items()})


class _Announces(Protocol):
    async def announce(self, ready: dict[str, list[str]]) -> None: ...


def announcer_on(transport: _Announces) -> Announcer:
    return Announcer(transport, TransportHealth("flaky", "n"), clock=Clock(node="n"), wake=lambda: None)  # type: ignore[arg-type]


async def test_the_announcer_keeps_what_it_cannot_send_and_says_so_once() -> None:
    flaky, events = Flaky(), list[EngineEvent]()
    announcer = announcer_on(flaky)
    flaky.is_away = True
    with subscribed(events.append):
        for number in range(3):
            announcer.announce([("default", f"job_{number}")])
            assert 0 < await announcer.tick() <= 5
        assert announcer.is_done  # Nobody waits for it.
        flaky.is_away = False
        async with asyncio.timeout(DEADLINE_S):
            while not flaky.told:
                await asyncio.sleep(min(0.1, await announcer.tick()))
    assert flaky.told == [{"default": ["job_0", "job_1", "job_2"]}]
    assert [type(event) for event in events] == [EngineLost, EngineReturned]
    await announcer.tick()
    assert len(flaky.told) == 1


async def test_the_announcer_asks_whether_a_server_is_back_when_there_is_nothing_to_say() -> None:
    flaky = Flaky()
    announcer = announcer_on(flaky)
    flaky.is_away = True
    announcer.announce([("default", "job_0")])
    await announcer.tick()
    flaky.is_away = False
    announcer._waiting.clear()
    async with asyncio.timeout(DEADLINE_S):
        while not flaky.told:
            await asyncio.sleep(min(0.1, await announcer.tick()))
    assert flaky.told == [{}]


async def test_the_announcer_is_bounded() -> None:
    flaky = Flaky()
    announcer = announcer_on(flaky)
    announcer.announce([("default", f"job_{number}") for number in range(20 * HINTS_MAX)])
    announcer.announce([(f"queue-{number}", "job_1") for number in range(2 * QUEUES_MAX)])
    await announcer.tick()
    assert len(flaky.told[0]) == QUEUES_MAX
    assert {len(told) for told in flaky.told[0].values()} == {HINTS_MAX, 1}


async def test_a_process_that_only_enqueues(bench: Bench, opened: Open) -> None:
    taker = opened(bench.url, "b")
    await taker.attend({"default"})
    clock = Clock(node="script")
    post = BackgroundAnnouncer(lambda: open_transport(bench.url, clock=clock, node="script"), clock)
    post.announce([("default", ids(1)[0])])
    await asyncio.to_thread(post.flush)
    await taker.acknowledge(await taken(taker, 1))


def test_a_process_that_only_enqueues_is_not_kept_by_a_deaf_server(patience: Patience) -> None:
    patience(10 * DEADLINE_S)  # Whoever waits for the server does not get to the end of this test.
    naps: list[float] = []

    class Counting(Clock):
        def nap(self, seconds: float) -> None:
            naps.append(seconds)
            super().nap(seconds)

    clock = Counting(node="script")
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        url = f"redis://127.0.0.1:{deaf.getsockname()[1]}/0"
        post = BackgroundAnnouncer(lambda: open_transport(url, clock=clock, node="script"), clock)
        post.announce([("default", "job_1")])
        assert not naps
        post.flush()
        assert 0 < sum(naps) < 2 * FLUSH_S_MAX
