"""What only Consul can do to us: sessions taken away from their holder, times that it does not grant, tokens."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from headway.errors import EngineUnavailable
from headway.instants import SECOND
from headway.ports import Engine
from tests.engines.conftest import OpenEngine, make_server
from tests.support.consul import ConsulServer
from tests.support.lost_answers import lost_answers
from tests.support.server import free_port

pytestmark = pytest.mark.usefixtures("consul")  # Which skips them all where it is not installed.

LONG = 60 * SECOND
FEW_SECONDS = 8.0
LIMIT_S = 30.0
RULES = 'key_prefix "headway/" { policy = "write" } session_prefix "" { policy = "write" }'


@pytest.fixture(scope="module")
def consul() -> Iterator[ConsulServer]:
    """One Consul for those who do not stop it."""
    server = make_server("consul")
    assert isinstance(server, ConsulServer)
    with server:
        yield server


async def _is_kept(engine: Engine, name: str = "role") -> bool:
    """Renew a lock as soon as there is somebody to do it."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return name in await engine.renew([name], holder="ada", duration=LONG)
        except EngineUnavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def _refusal(engine: Engine) -> str:
    began = time.monotonic()
    with pytest.raises(EngineUnavailable) as caught:
        await engine.acquire("role", holder="ada", duration=LONG)
    assert time.monotonic() - began < FEW_SECONDS
    return str(caught.value)


async def test_a_lock_whose_session_or_entry_somebody_takes_away_is_lost(
    consul: ConsulServer, open_at: OpenEngine
) -> None:
    engine, waiting = open_at(consul.url(prefix="taken/")), open_at(consul.url(prefix="taken/"))
    for name in ("session", "entry", "lock", "kept"):
        assert await engine.acquire(name, holder="ada", duration=LONG)
    woken = asyncio.Event()
    await waiting.watch(woken.set)
    await asyncio.wait_for(woken.wait(), LIMIT_S)
    for method, path in (
        ("PUT", f"/v1/session/destroy/{consul.session_of('taken/session')}"),
        ("DELETE", "/v1/kv/taken/entry"),
        ("PUT", f"/v1/kv/taken/lock?release={consul.session_of('taken/lock')}"),
    ):
        woken.clear()
        consul.call(method, path)
        await asyncio.wait_for(woken.wait(), LIMIT_S)
    assert await engine.renew(["session", "entry", "lock", "kept"], holder="ada", duration=LONG) == {"kept"}
    for name in ("session", "entry", "lock"):  # At once; the entry of the last one is there, and nobody has it.
        assert await waiting.acquire(name, holder="bob", duration=LONG)


async def test_each_lock_has_a_session_of_its_own_and_leaves_none_behind(
    consul: ConsulServer, open_at: OpenEngine
) -> None:
    engines = [open_at(consul.url(prefix="sessions/")) for _ in range(8)]
    before = consul.sessions().keys()
    for _ in range(2):  # First in a race, in which some find the lock free and come too late; then without one.
        await asyncio.gather(
            *(engine.acquire("role", holder=str(number), duration=LONG) for number, engine in enumerate(engines))
        )
    assert len(consul.sessions().keys() - before) == 1
    assert await engines[0].acquire("second", holder="ada", duration=LONG)
    assert await engines[0].acquire("second", holder="ada", duration=4 * SECOND)
    [ttl] = {consul.sessions()[consul.session_of("sessions/second")]}
    assert ttl == "2000ms"  # Half of it: Consul waits for twice as long as it is told.
    assert await engines[0].renew(["second"], holder="ada", duration=LONG) == {"second"}
    assert consul.sessions()[consul.session_of("sessions/second")] == "30000ms"
    assert len(consul.sessions().keys() - before) == 2
    await engines[0].release(["second"], holder="ada")
    assert len(consul.sessions().keys() - before) == 1
    assert consul.call("GET", "/v1/kv/sessions/?keys") == ["sessions/role"]  # Nor an entry.


async def test_no_less_is_asked_for_than_the_server_grants(open_at: OpenEngine) -> None:
    with ConsulServer(session_ttl_min="15s") as server:
        engine = open_at(server.url())
        assert await engine.acquire("role", holder="ada", duration=2 * SECOND)
        assert await engine.acquire("role", holder="bob", duration=2 * SECOND) is None
        session = server.session_of("headway/role")
        assert server.sessions() == {session: "15000ms"}
        assert await engine.renew(["role"], holder="ada", duration=2 * SECOND) == {"role"}
        assert server.session_of("headway/role") == session
        assert server.call("GET", f"/v1/session/info/{session}")[0]["NodeChecks"] == []


async def test_an_answer_that_is_lost_is_not_a_lost_lock(consul: ConsulServer, open_at: OpenEngine) -> None:
    """The first server has given the lock and dies before it says so; the second finds that it is ours."""
    async with lost_answers(consul.port, b'"lock"') as (port, lost):
        tokens = []
        for _ in range(2):  # Free at first, and then one's own, which takes another way.
            engine = open_at(f"consul://127.0.0.1:{port},127.0.0.1:{consul.port}?prefix=lost/")
            tokens.append(await engine.acquire("role", holder="ada", duration=LONG) or 0)
        assert [b'"unlock"' in body for body in (lost[0], lost[-1])] == [False, True]
        assert 0 < tokens[0] < tokens[1]
        assert await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}
        assert await engine.acquire("role", holder="bob", duration=LONG) is None


async def test_an_agent_that_restarts_is_found_again_with_its_locks(open_at: OpenEngine) -> None:
    with ConsulServer() as server:
        nowhere = f"consul://127.0.0.1:{free_port()},127.0.0.1:{server.port}"
        engine, waiting = open_at(nowhere), open_at(nowhere)
        woken = asyncio.Event()
        await waiting.watch(woken.set)
        token = await engine.acquire("role", holder="ada", duration=LONG)
        server.kill()
        assert "consul does not answer" in await _refusal(engine)
        server.start()
        assert await _is_kept(engine)
        assert await waiting.acquire("role", holder="bob", duration=LONG) is None
        await asyncio.wait_for(woken.wait(), LIMIT_S)
        await engine.release(["role"], holder="ada")
        again = await waiting.acquire("role", holder="bob", duration=LONG)
        assert token is not None
        assert again is not None
        assert again > token
        server.kill()
        server.lose_data()
        server.start()
        assert not await _is_kept(waiting)
        assert await engine.acquire("role", holder="ada", duration=LONG)


async def test_a_snapshot_that_is_restored_is_heard_of(consul: ConsulServer, open_at: OpenEngine) -> None:
    """Consul counts from a smaller number then; who goes on to wait for a larger one hears nothing for long."""
    engine, waiting = open_at(consul.url(prefix="restored/")), open_at(consul.url(prefix="restored/"))
    assert await engine.acquire("before", holder="ada", duration=LONG)
    snapshot = consul.save()
    for number in range(50):
        assert await engine.acquire(f"after-{number}", holder="ada", duration=LONG)
    woken = asyncio.Event()
    await waiting.watch(woken.set)
    await asyncio.wait_for(woken.wait(), LIMIT_S)
    await asyncio.sleep(0.2)
    woken.clear()
    consul.restore(snapshot)
    await asyncio.wait_for(woken.wait(), 10)  # What was taken since then is free.
    await asyncio.sleep(0.2)
    woken.clear()
    await engine.release(["before"], holder="ada")
    await asyncio.wait_for(woken.wait(), 10)


async def test_tokens(open_at: OpenEngine) -> None:
    with ConsulServer(secret=True) as server:
        token = server.make_token(RULES)
        engine, waiting = open_at(server.url(token=token)), open_at(server.url(token=token))
        woken = asyncio.Event()
        await waiting.watch(woken.set)
        assert await engine.acquire("role", holder="ada", duration=LONG)
        assert await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}
        await asyncio.wait_for(woken.wait(), LIMIT_S)
        wrong = "c0000000-0000-0000-0000-000000000001"
        for url in (
            server.url(token=""),
            server.url(token=wrong),
            server.url(token=token, prefix="other/"),
            server.url(token=server.make_token('session_prefix "" { policy = "write" }')),
            server.url(token=server.make_token('key_prefix "headway/" { policy = "write" }')),
        ):
            refusal = await _refusal(open_at(url))
            assert "consul refuses" in refusal
            assert wrong not in refusal


async def test_tls_with_certificates_on_both_sides(open_at: OpenEngine) -> None:
    with ConsulServer(tls=True) as server:
        engine = open_at(server.url())
        assert await engine.acquire("role", holder="ada", duration=LONG)
        assert await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}
        assert "certificate" in (await _refusal(open_at(f"consuls://127.0.0.1:{server.port}"))).lower()
        await _refusal(open_at(server.url().partition("&")[0]))  # Without a certificate of one's own.
