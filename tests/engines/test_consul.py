"""What only Consul can do to us: sessions taken away from their holder, times that it does not grant, tokens."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from headway.adapters import consul as consul_engine
from headway.core.errors import EngineUnavailable
from headway.core.instants import SECOND
from headway.core.ports import Engine
from tests.engines.conftest import EngineServer, OpenEngine, is_kept_in_the_end
from tests.support.consul import ConsulServer
from tests.support.lost_answers import lost_answers
from tests.support.server import free_port
from tests.support.waiting import async_wait_until

pytestmark = pytest.mark.usefixtures("consul")  # Which skips them all where it is not installed.

LONG = 600 * SECOND
RULES = 'key_prefix "headway/" { policy = "write" } session_prefix "" { policy = "write" }'


@pytest.fixture
def consul(server_of: Callable[[str], EngineServer]) -> ConsulServer:
    """One Consul for those who do not stop it."""
    server = server_of("consul")
    assert isinstance(server, ConsulServer)
    return server


@pytest.fixture(scope="module")
def strict() -> Iterator[ConsulServer]:
    """One Consul that asks for tokens and certificates, and gives no short sessions."""
    with ConsulServer(session_ttl_min="120s", secret=True, tls=True) as server:
        yield server


async def _is_kept(engine: Engine, name: str = "role") -> bool:
    return await is_kept_in_the_end(engine, name, "ada", LONG)


async def _refusal(engine: Engine) -> str:
    with pytest.raises(EngineUnavailable) as caught:
        await engine.acquire("role", holder="ada", duration=LONG)
    return str(caught.value)


async def test_a_lock_whose_session_or_entry_somebody_takes_away_is_lost(
    consul: ConsulServer, open_at: OpenEngine
) -> None:
    engine, waiting = open_at(consul.url(prefix="taken/")), open_at(consul.url(prefix="taken/"))
    for name in ("session", "entry", "lock", "kept"):
        assert await engine.acquire(name, holder="ada", duration=LONG)
    woken = asyncio.Event()
    await waiting.watch(woken.set)
    await async_wait_until(woken.is_set, "the one who waits to be woken")
    for method, path in (
        ("PUT", f"/v1/session/destroy/{consul.session_of('taken/session')}"),
        ("DELETE", "/v1/kv/taken/entry"),
        ("PUT", f"/v1/kv/taken/lock?release={consul.session_of('taken/lock')}"),
    ):
        woken.clear()
        consul.call(method, path)
        await async_wait_until(woken.is_set, "the one who waits to be woken")
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
    assert await engines[0].acquire("second", holder="ada", duration=400 * SECOND)
    [ttl] = {consul.sessions()[consul.session_of("sessions/second")]}
    assert ttl == "200000ms"  # Half of it: Consul waits for twice as long as it is told.
    assert await engines[0].renew(["second"], holder="ada", duration=LONG) == {"second"}
    assert consul.sessions()[consul.session_of("sessions/second")] == "300000ms"
    assert len(consul.sessions().keys() - before) == 2
    await engines[0].release(["second"], holder="ada")
    assert len(consul.sessions().keys() - before) == 1
    assert consul.call("GET", "/v1/kv/sessions/?keys") == ["sessions/role"]  # Nor an entry.


async def test_no_less_is_asked_for_than_the_server_grants(strict: ConsulServer, open_at: OpenEngine) -> None:
    engine, before = open_at(strict.url(prefix="short/")), strict.sessions().keys()
    assert await engine.acquire("role", holder="ada", duration=60 * SECOND)
    assert await engine.acquire("role", holder="bob", duration=60 * SECOND) is None
    session = strict.session_of("short/role")
    assert strict.sessions().keys() - before == {session}
    assert strict.sessions()[session] == "120000ms"
    assert await engine.renew(["role"], holder="ada", duration=60 * SECOND) == {"role"}
    assert strict.session_of("short/role") == session
    assert strict.call("GET", f"/v1/session/info/{session}")[0]["NodeChecks"] == []


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
        await async_wait_until(woken.is_set, "the one who waits to be woken")
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


async def test_a_snapshot_that_is_restored_is_heard_of(
    consul: ConsulServer, open_at: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consul counts from a smaller number then; who goes on to wait for a larger one hears nothing for long."""
    monkeypatch.setattr(consul_engine, "WAIT_S", LONG // SECOND - 60)
    monkeypatch.setattr(consul_engine, "QUIET_S", LONG / SECOND)
    engine, waiting = open_at(consul.url(prefix="restored/")), open_at(consul.url(prefix="restored/"))
    assert await engine.acquire("before", holder="ada", duration=LONG)
    snapshot = consul.save()
    for number in range(50):
        assert await engine.acquire(f"after-{number}", holder="ada", duration=LONG)
    woken = asyncio.Event()
    await waiting.watch(woken.set)
    await async_wait_until(woken.is_set, "the subscription to stand")
    # The next question is under way after a moment. Were it later, it would only hide that nobody is woken.
    await asyncio.sleep(0.2)
    woken.clear()
    consul.restore(snapshot)
    await async_wait_until(woken.is_set, "the news that what was taken since then is free")
    await asyncio.sleep(0.2)
    woken.clear()
    await engine.release(["before"], holder="ada")
    await async_wait_until(woken.is_set, "the news of a lock that is given back")


async def test_tokens(strict: ConsulServer, open_at: OpenEngine) -> None:
    token = strict.make_token(RULES)
    engine, waiting = open_at(strict.url(token=token)), open_at(strict.url(token=token))
    woken = asyncio.Event()
    await waiting.watch(woken.set)
    assert await engine.acquire("role", holder="ada", duration=LONG)
    assert await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}
    await async_wait_until(woken.is_set, "the one who waits to be woken")
    wrong = "c0000000-0000-0000-0000-000000000001"
    for url in (
        strict.url(token=""),
        strict.url(token=wrong),
        strict.url(token=token, prefix="other/"),
        strict.url(token=strict.make_token('session_prefix "" { policy = "write" }')),
        strict.url(token=strict.make_token('key_prefix "headway/" { policy = "write" }')),
    ):
        refusal = await _refusal(open_at(url))
        assert "consul refuses" in refusal
        assert wrong not in refusal


async def test_tls_with_certificates_on_both_sides(strict: ConsulServer, open_at: OpenEngine) -> None:
    url = strict.url(prefix="secure/")
    engine = open_at(url)
    assert await engine.acquire("role", holder="ada", duration=LONG)
    assert await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}
    assert "certificate" in (await _refusal(open_at(url.partition("?")[0]))).lower()
    assert "certificate" in (await _refusal(open_at(url.partition("&cert=")[0]))).lower()  # Without one of one's own.
