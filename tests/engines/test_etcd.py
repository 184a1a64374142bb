"""etcd only: a lost majority, leases separate from their keys, logins, certificates."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import aiohttp
import pytest

from headway.adapters.etcd import EtcdEngine
from headway.core.errors import EngineUnavailable, InvalidConfig
from headway.core.instants import SECOND
from headway.core.ports import Engine
from tests.engines.conftest import (
    PATIENT_S,
    EngineServer,
    OpenEngine,
    Patience,
    acquire_eventually,
    frozen,
    is_kept_eventually,
    is_refused_eventually,
)
from tests.support.etcd import EtcdEnsemble, EtcdServer
from tests.support.lost_answers import lost_answers
from tests.support.waiting import async_wait_until

pytestmark = pytest.mark.usefixtures("etcd")  # Skips all of them where etcd is not installed.

LONG = 600 * SECOND


@pytest.fixture
def etcd(server_of: Callable[[str], EngineServer]) -> EtcdServer:
    """The shared etcd; tests must not stop it."""
    server = server_of("etcd")
    assert isinstance(server, EtcdServer)
    return server


async def _is_kept(engine: Engine, name: str = "role") -> bool:
    return await is_kept_eventually(engine, name, "ada", LONG)


async def _refusal_of(engine: Engine, name: str = "role") -> str:
    with pytest.raises(EngineUnavailable) as caught:
        await engine.acquire(name, holder="ada", duration=LONG)
    return str(caught.value)


def _lease_of(etcd: EtcdServer, key: str) -> dict[str, Any]:
    """Return what etcd reports about the lease of a key."""
    [found] = etcd.keys(key)
    answer: dict[str, Any] = etcd.call("/v3/lease/timetolive", {"ID": found["lease"]})
    return answer


async def test_lock_survives_while_a_majority_of_servers_runs(
    etcd_ensemble: EtcdEnsemble, open_at: OpenEngine, patience: Patience
) -> None:
    ensemble, url = etcd_ensemble, etcd_ensemble.url(prefix="majority/")
    engine, other = open_at(url), open_at(url, "another")
    token = await acquire_eventually(engine, "role", "ada", LONG)
    ensemble.leader().kill()
    assert await _is_kept(engine)
    assert await is_refused_eventually(other, "role", "bob", LONG)
    assert await acquire_eventually(other, "second", "bob", LONG) > token

    ensemble.leader().kill()
    patience(2.0)
    with pytest.raises(EngineUnavailable, match="etcd"):
        await engine.renew(["role"], holder="ada", duration=LONG)

    async def says_why() -> bool:
        return "no leader" in await _refusal_of(other)

    # The last member needs a moment to notice that there is no leader; then it reports that instead of waiting.
    patience(PATIENT_S)
    await async_wait_until(says_why, "the last member to say that it has no leader")

    next(member for member in ensemble.members if not member.is_running()).start()
    assert await _is_kept(engine)
    assert await is_refused_eventually(other, "role", "bob", LONG)
    assert await acquire_eventually(other, "third", "bob", LONG) > token


async def test_frozen_member_is_tried_last(
    etcd_ensemble: EtcdEnsemble, open_at: OpenEngine, patience: Patience, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = etcd_ensemble.url(prefix="frozen/")
    patient, impatient = open_at(url), open_at(url)
    await acquire_eventually(patient, "role", "ada", LONG)
    await is_kept_eventually(impatient, "role", "ada", LONG)
    first, slow = _record_first_members(patient, monkeypatch), etcd_ensemble.members[0]
    with frozen(slow.pid):
        patience(6.0)  # Half of it is for the first member.
        assert await _is_kept(patient)
        first.clear()
        for _ in range(5):
            assert await _is_kept(patient)
        assert first
        assert f"http://127.0.0.1:{slow.port}" not in first
        patience(PATIENT_S)

        async def succeeds() -> bool:  # A caller with a shorter timeout succeeds as well.
            with suppress(TimeoutError, EngineUnavailable):
                # short: retried.
                return await asyncio.wait_for(impatient.renew(["role"], holder="ada", duration=LONG), 2.0) == {"role"}
            return False

        await async_wait_until(succeeds, "the impatient engine to use a member that is not frozen")


def _record_first_members(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the member that each call tries first."""
    assert isinstance(engine, EtcdEngine)
    servers, asked = engine._servers, list[str]()
    ask, request = servers.ask, servers._request
    is_first = True

    async def recording_ask(*question: Any, **options: Any) -> Any:
        nonlocal is_first
        is_first = True
        return await ask(*question, **options)

    def recording_request(method: str, url: str, **options: Any) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        nonlocal is_first
        if is_first:
            asked.append(url.partition("/v3/")[0])
        is_first = False
        return request(method, url, **options)

    monkeypatch.setattr(servers, "ask", recording_ask)
    monkeypatch.setattr(servers, "_request", recording_request)
    return asked


async def test_deleted_key_loses_the_lock_although_its_lease_lives(etcd: EtcdServer, open_at: OpenEngine) -> None:
    engine = open_at(etcd.url(prefix="deleted/"))
    for name in ("key", "lease", "kept"):
        assert await engine.acquire(name, holder="ada", duration=LONG)
    etcd.delete("deleted/key")
    [lease] = etcd.keys("deleted/lease")
    etcd.call("/v3/lease/revoke", {"ID": lease["lease"]})
    assert await engine.renew(["key", "lease", "kept"], holder="ada", duration=LONG) == {"kept"}
    assert await engine.acquire("key", holder="bob", duration=LONG)


async def test_each_lock_has_its_own_lease_in_whole_seconds(etcd: EtcdServer, open_at: OpenEngine) -> None:
    engine = open_at(etcd.url(prefix="leases/"))
    await engine.acquire("one", holder="ada", duration=60 * SECOND + 1)
    await engine.acquire("two", holder="ada", duration=60 * SECOND)
    one, two = _lease_of(etcd, "leases/one"), _lease_of(etcd, "leases/two")
    assert (one["grantedTTL"], two["grantedTTL"]) == ("61", "60")
    assert one["ID"] != two["ID"]


async def test_renewal_extends_the_lease(etcd: EtcdServer, open_at: OpenEngine) -> None:
    engine = open_at(etcd.url(prefix="longer/"))
    token = await engine.acquire("role", holder="ada", duration=60 * SECOND)
    before = _lease_of(etcd, "longer/role")
    assert await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}
    after = _lease_of(etcd, "longer/role")
    assert (before["grantedTTL"], after["grantedTTL"]) == ("60", "600")
    assert before["ID"] not in etcd.leases()  # The old lease is revoked.
    assert await engine.acquire("role", holder="bob", duration=LONG) is None
    await engine.release(["role"], holder="ada")
    assert after["ID"] not in etcd.leases()
    again = await engine.acquire("role", holder="bob", duration=LONG)
    assert again is not None
    assert token is not None
    assert again > token


async def test_all_of_many_locks_are_renewed_every_time(etcd: EtcdServer, open_at: OpenEngine) -> None:
    engine = open_at(etcd.url(prefix="many/"))
    names = [f"shard/{number}" for number in range(150)]
    await asyncio.gather(*(engine.acquire(name, holder="ada", duration=LONG) for name in names))
    for _ in range(10):
        assert await engine.renew(names, holder="ada", duration=LONG) == set(names)


async def test_refused_request_leaves_no_lease_behind(etcd: EtcdServer, open_at: OpenEngine) -> None:
    engines = [open_at(etcd.url(prefix="refused/")) for _ in range(8)]
    before = etcd.leases()
    for _ in range(2):  # First in a race, in which some see the lock free and lose; then without one.
        await asyncio.gather(
            *(engine.acquire("role", holder=str(number), duration=LONG) for number, engine in enumerate(engines))
        )
    assert len(etcd.leases() - before) == 1


async def test_lost_response_does_not_lose_the_lock(etcd: EtcdServer, open_at: OpenEngine) -> None:
    """The first server writes the key and dies before it responds; the second reports that the key is ours."""
    async with lost_answers(etcd.port, b"request_put") as (port, lost):
        engine = open_at(f"etcd://127.0.0.1:{port},127.0.0.1:{etcd.port}?prefix=lost/")
        assert await engine.acquire("role", holder="ada", duration=LONG)
        assert len(lost) == 1
        assert await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}
        assert await engine.acquire("role", holder="bob", duration=LONG) is None


async def test_server_that_lost_its_data_grants_locks_again(open_at: OpenEngine) -> None:
    with EtcdServer() as server:
        engine = open_at(server.url())
        for _ in range(5):
            before = await engine.acquire("role", holder="ada", duration=LONG)
        server.kill()
        server.lose_data()
        server.start()
        assert not await _is_kept(engine)
        after = await engine.acquire("role", holder="bob", duration=LONG)
        assert before is not None
        assert after is not None
        assert after < before  # It counts from the beginning again; hence the store's own tokens.
        server.kill()
        server.start()  # With its data this time.
        assert await acquire_eventually(engine, "second", "ada", LONG) > after
        assert await engine.acquire("role", holder="ada", duration=LONG) is None


async def test_users_and_passwords(open_at: OpenEngine) -> None:
    secret, written = "pa:ss/w@rd %", "pa%3Ass%2Fw%40rd%20%25"
    with EtcdServer() as server:
        early = open_at(server.url(user=f"ada:{written}"))
        assert await early.acquire("early", holder="ada", duration=LONG)  # No password is required yet.
        server.demand_login("ada", secret, "headway/")
        assert await early.renew(["early"], holder="ada", duration=LONG) == {"early"}

        engine, waiting = open_at(server.url(user=f"ada:{written}")), open_at(server.url(user=f"ada:{written}"))
        notified = asyncio.Event()
        await waiting.watch(notified.set)
        assert await engine.acquire("role", holder="ada", duration=LONG)
        assert await waiting.acquire("role", holder="bob", duration=LONG) is None
        server.forget_logins("ada", secret)
        assert await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}
        notified.clear()
        server.kill()
        server.start()
        await async_wait_until(notified.is_set, "the watch to reconnect with a new login")

        async def is_notified() -> bool:
            notified.clear()
            await acquire_eventually(engine, "told", "ada", LONG)
            await engine.release(["told"], holder="ada")
            with suppress(TimeoutError):
                await asyncio.wait_for(notified.wait(), 1.0)  # short: retried.
            return notified.is_set()

        await async_wait_until(is_notified, "the notification of a released lock")

        for user in ("ada:wr0ng", "eve:wr0ng", "ada", ""):
            refusal = await _refusal_of(open_at(server.url(user=user)))
            assert "etcd refuses" in refusal
            assert "wr0ng" not in refusal
        assert "permission denied" in await _refusal_of(open_at(server.url(user=f"ada:{written}", prefix="other/")))


async def test_mutual_tls(open_at: OpenEngine) -> None:
    with EtcdServer(tls=True) as server:
        engine = open_at(server.url())
        assert await engine.acquire("role", holder="ada", duration=LONG)
        assert await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}
        untrusting = open_at(f"etcds://127.0.0.1:{server.port}")
        assert "certificate" in (await _refusal_of(untrusting)).lower()
        ca = server.url().partition("&")[0]
        await _refusal_of(open_at(ca))  # Without a client certificate.
        await _refusal_of(open_at(f"etcd://127.0.0.1:{server.port}"))
        with pytest.raises(InvalidConfig, match="TLS"):
            open_at(f"etcds://127.0.0.1:{server.port}?ca=/nowhere/ca.pem")


@pytest.mark.parametrize("body", [b"<html></html>", b'{"header": {}}', b"[]", b""])
async def test_server_that_is_not_etcd_is_reported(body: bytes, open_at: OpenEngine) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as stranger:
        port = stranger.sockets[0].getsockname()[1]
        assert "is not etcd" in await _refusal_of(open_at(f"etcd://127.0.0.1:{port}"))
