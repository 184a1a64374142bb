"""The contract of all transports: each hint reaches one worker, and no fault of a transport loses a job.

This file tests transports alone, on real servers; `test_transport_workers.py` tests them with real workers.
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
from tests.support.proxy import CLEAR, MUTE, Proxies
from tests.support.rabbitmq import RabbitServer
from tests.support.redis import RedisServer
from tests.support.server import free_port
from tests.support.transports import KINDS, Bench, TransportServer
from tests.support.waiting import DEADLINE_S

NUMBERS = itertools.count(1)
Open = Callable[..., Transport]


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, transport_server: Callable[[str], TransportServer]) -> Bench:
    """A server with an unused prefix, and ways to break what is under it."""
    kind = str(request.param)
    return Bench(kind, transport_server(kind), f"test{next(NUMBERS)}.")


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only briefly for hints that must not come."""
    for module in (redis, rabbitmq):
        monkeypatch.setattr(module, "WAIT_S", 0.3)


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Open transports; close them after the test."""
    async with AsyncExitStack() as stack:

        def open_one(url: str, node: str = "a") -> Transport:
            transport = open_transport(url, clock=Clock(node=node), node=node)
            stack.push_async_callback(transport.close)
            return transport

        yield open_one


async def take_hints(transport: Transport, count: int) -> list[Hint]:
    """Take hints until there are this many."""
    found: list[Hint] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            found += await transport.take(100)
    return found


async def check_no_hints(transport: Transport) -> None:
    """Check that no hint arrives."""
    for _ in range(2):
        assert await transport.take(100) == []


def ids(count: int) -> list[str]:
    return [f"job_{number:026}" for number in range(count)]


async def test_each_hint_reaches_one_listener(bench: Bench, opened: Open) -> None:
    sender, one, other = opened(bench.url), opened(bench.url, "b"), opened(bench.url, "c")
    await one.attend({"default", "media"})
    await other.attend({"default"})
    await sender.announce({"default": ids(30), "media": ids(3)})
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
    await check_no_hints(one)
    assert await bench.count("default") == 0


async def test_hints_announced_before_any_listener_are_kept(bench: Bench, opened: Open) -> None:
    await opened(bench.url).announce({"default": ids(2)})
    receiver = opened(bench.url, "b")
    await receiver.attend({"default"})
    assert len(await take_hints(receiver, 2)) == 2


async def test_returned_and_unclaimed_hints_reach_another_listener(bench: Bench, opened: Open) -> None:
    sender, one, other = opened(bench.url), opened(bench.url, "b"), opened(bench.url, "c")
    await one.attend({"default"})
    await sender.announce({"default": ids(4)})
    hints = list[Hint]()
    async with asyncio.timeout(DEADLINE_S):
        while not hints:
            hints = await one.take(1)
    await asyncio.sleep(0.2)  # The other hints may have been delivered but not taken; if not, this shows less.
    await one.attend(())
    await one.give_back(hints)
    assert await one.take(100) == []
    await other.attend({"default"})
    found = await take_hints(other, 4)
    await other.acknowledge(found)
    assert len(found) == 4
    assert await bench.count("default") == 0


async def test_hints_of_a_dead_listener_are_taken_over(
    bench: Bench, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, one, other = opened(bench.url), opened(bench.url, "b"), opened(bench.url, "c")
    await one.attend({"default"})
    await sender.announce({"default": ids(3)})
    assert len(await take_hints(one, 3)) == 3
    monkeypatch.setattr(redis, "RECLAIM_IDLE_S", 0.2)  # Not earlier: a slow listener would take over its own hints.
    monkeypatch.setattr(redis, "RECLAIM_EVERY_S", 0.2)
    await bench.cut(one)
    await other.attend({"default"})
    assert len(await take_hints(other, 3)) == 3


async def test_calls_on_a_connection_that_another_call_closes_fail(bench: Bench, opened: Open) -> None:
    """The call that first notices a silent server closes the connection; the others must not end as if cancelled."""
    port = int(re.search(r":(\d+)", bench.url.rpartition("@")[2])[1])  # type: ignore[index]
    with Proxies() as proxies:
        link = proxies.to(port)
        transport = opened(bench.url.replace(f":{port}", f":{link.port}"))
        await transport.attend({"default"})
        await transport.announce({"default": ids(1)})
        link.set(MUTE)
        calls = [
            asyncio.ensure_future(call)
            for call in (
                transport.announce({"default": ids(3)}),
                transport.announce({"media": ids(1)}),
                transport.attend({"default", "media"}),
                transport.attend({"default", "reports"}),
            )
        ]
        await asyncio.sleep(0.3)  # They wait for their answers by now; if not, this shows less.
        closing = asyncio.ensure_future(transport.close())
        await asyncio.wait((closing,), timeout=2.0)  # short: Redis waits for the server; RabbitMQ does not.
        link.cut()
        link.set(CLEAR)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait((closing, *calls))
        assert not any(call.cancelled() for call in calls)
        failures = [failure for call in calls if (failure := call.exception()) is not None]
        assert all(isinstance(failure, EngineUnavailable) for failure in failures), failures


async def test_malformed_hints_are_discarded(bench: Bench, opened: Open) -> None:
    receiver = opened(bench.url, "b")
    await receiver.attend({"default"})
    for poison in (b"", b"\x00\xff\xfe", b"no such job", b"x" * 100_000, b"[" * 5_000, "jöb_1".encode()):
        await bench.put("default", poison)
    await bench.put_foreign("default")
    await opened(bench.url).announce({"default": ids(1)})
    hints = await take_hints(receiver, 1)
    assert len(hints) == 1  # A foreign id looks like one of ours: it costs a lookup in the store.
    await receiver.acknowledge(hints)
    await check_no_hints(receiver)
    assert await bench.count("default") == 0


async def test_lost_channel_is_recreated(bench: Bench, opened: Open) -> None:
    sender, receiver = opened(bench.url), opened(bench.url, "b")
    await receiver.attend({"default"})
    await sender.announce({"default": ids(1)})
    held = await take_hints(receiver, 1)
    await bench.lose("default")
    await receiver.acknowledge(held)  # Of a channel that no longer exists.
    await receiver.give_back([])
    async with asyncio.timeout(DEADLINE_S):
        while not await receiver.take(100):
            await sender.announce({"default": ids(1)})


async def test_channels_are_bounded(bench: Bench, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "LENGTH_MAX", 50)
    monkeypatch.setattr(rabbitmq, "LENGTH_MAX", 50)
    sender = opened(bench.url)
    for _ in range(4):
        await sender.announce({"default": ids(100)})
    assert 50 <= await bench.count("default") <= 200  # Redis trims about a hundred entries at a time.


async def test_prefixes_are_separate_namespaces(bench: Bench, opened: Open) -> None:
    stranger = opened(bench.at("elsewhere."), "b")
    await stranger.attend({"default"})
    await opened(bench.url).announce({"default": ids(1)})
    await check_no_hints(stranger)


async def test_tls(bench: Bench, opened: Open) -> None:
    if bench.kind == "redis":
        with RedisServer(tls=True) as server:
            await _send_and_receive(opened, server.url())
    elif isinstance(broker := bench.server, RabbitServer):
        url = f"amqps://guest:guest@127.0.0.1:{broker.tls_port}/?ca={broker.authority}&prefix={bench.prefix}"
        await _send_and_receive(opened, url)
        with pytest.raises(EngineUnavailable):
            await opened(url.replace(f"ca={broker.authority}&", "")).announce({})


async def _send_and_receive(opened: Open, url: str) -> None:
    receiver = opened(url, "b")
    await receiver.attend({"default"})
    await opened(url).announce({"default": ids(1)})
    await receiver.acknowledge(await take_hints(receiver, 1))


async def test_next_endpoint_is_tried(bench: Bench, opened: Open) -> None:
    host = f"127.0.0.1:{bench.server.port}"
    sender = opened(bench.url.replace(host, f"127.0.0.1:{free_port()},{host}"))
    with pytest.raises(EngineUnavailable):
        await sender.announce({})
    await sender.announce({})


SECRET = "s3cr3t/p@ss"


async def test_silent_server_times_out(opened: Open, patience: Patience) -> None:
    patience(1.5)

    async def check(scheme: str, port: int) -> None:
        transport = opened(f"{scheme}://ada:s3cr3t%2Fp%40ss@127.0.0.1:{port}/")
        for call in (transport.announce({"default": ids(1)}), transport.attend({"default"})):
            with pytest.raises(EngineUnavailable) as raised:
                async with asyncio.timeout(DEADLINE_S):
                    await call
            assert f"127.0.0.1:{port}" in str(raised.value)
            assert SECRET not in str(raised.value)

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        ports = free_port(), silent.getsockname()[1]
        await asyncio.gather(*(check(scheme, port) for scheme in ("redis", "amqp") for port in ports))


async def test_wrong_password_is_not_in_the_error(bench: Bench, opened: Open) -> None:
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
def test_invalid_url_is_rejected_without_its_password(url: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        open_transport(url, clock=Clock(), node="n")
    assert "s3cret" not in str(raised.value)


# --- the announcer


class Flaky:
    """A transport that can be unavailable, and records what is announced."""

    name = "flaky"

    def __init__(self) -> None:
        self.announced: list[dict[str, list[str]]] = []
        self.is_away = False

    async def announce(self, ready: dict[str, list[str]]) -> None:
        """Record the announcement."""
        if self.is_away:
            raise EngineUnavailable("flaky is away")
        self.announced.append({queue: list(job_ids) for queue, job_ids in ready.items()})


class _Announces(Protocol):
    async def announce(self, ready: dict[str, list[str]]) -> None: ...


def announcer_on(transport: _Announces) -> Announcer:
    return Announcer(transport, TransportHealth("flaky", "n"), clock=Clock(node="n"), wake=lambda: None)  # type: ignore[arg-type]


async def test_announcer_keeps_hints_while_unavailable_and_reports_it_once() -> None:
    flaky, events = Flaky(), list[EngineEvent]()
    announcer = announcer_on(flaky)
    flaky.is_away = True
    with subscribed(events.append):
        for number in range(3):
            announcer.announce([("default", f"job_{number}")])
            assert 0 < await announcer.tick() <= 5
        assert announcer.is_done  # Shutdown does not wait for it.
        flaky.is_away = False
        async with asyncio.timeout(DEADLINE_S):
            while not flaky.announced:
                await asyncio.sleep(min(0.1, await announcer.tick()))
    assert flaky.announced == [{"default": ["job_0", "job_1", "job_2"]}]
    assert [type(event) for event in events] == [EngineLost, EngineReturned]
    await announcer.tick()
    assert len(flaky.announced) == 1


async def test_announcer_probes_an_unavailable_server_without_hints() -> None:
    flaky = Flaky()
    announcer = announcer_on(flaky)
    flaky.is_away = True
    announcer.announce([("default", "job_0")])
    await announcer.tick()
    flaky.is_away = False
    announcer._waiting.clear()
    async with asyncio.timeout(DEADLINE_S):
        while not flaky.announced:
            await asyncio.sleep(min(0.1, await announcer.tick()))
    assert flaky.announced == [{}]


async def test_announcer_is_bounded() -> None:
    flaky = Flaky()
    announcer = announcer_on(flaky)
    announcer.announce([("default", f"job_{number}") for number in range(20 * HINTS_MAX)])
    announcer.announce([(f"queue-{number}", "job_1") for number in range(2 * QUEUES_MAX)])
    await announcer.tick()
    assert len(flaky.announced[0]) == QUEUES_MAX
    assert {len(announced) for announced in flaky.announced[0].values()} == {HINTS_MAX, 1}


async def test_background_announcer_delivers_hints(bench: Bench, opened: Open) -> None:
    receiver = opened(bench.url, "b")
    await receiver.attend({"default"})
    clock = Clock(node="script")
    announcer = BackgroundAnnouncer(lambda: open_transport(bench.url, clock=clock, node="script"), clock)
    announcer.announce([("default", ids(1)[0])])
    await asyncio.to_thread(announcer.flush)
    await receiver.acknowledge(await take_hints(receiver, 1))


def test_background_announcer_does_not_wait_for_a_silent_server(patience: Patience) -> None:
    patience(10 * DEADLINE_S)  # A flush that waits for the server does not reach the end of this test.
    naps: list[float] = []

    class Counting(Clock):
        def nap(self, seconds: float) -> None:
            naps.append(seconds)
            super().nap(seconds)

    clock = Counting(node="script")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        announcer = BackgroundAnnouncer(lambda: open_transport(url, clock=clock, node="script"), clock)
        announcer.announce([("default", "job_1")])
        assert not naps
        announcer.flush()
        assert 0 < sum(naps) < 2 * FLUSH_S_MAX
