"""What only etcd can do to us: a majority that is lost, leases apart from their keys, logins, certificates."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from headway.errors import EngineUnavailable, InvalidConfig
from headway.instants import SECOND
from headway.ports import Engine
from tests.engines.conftest import OpenEngine, make_server
from tests.support.etcd import EtcdEnsemble, EtcdServer
from tests.support.lost_answers import lost_answers

pytestmark = pytest.mark.usefixtures("etcd")  # Which skips them all where it is not installed.

LONG = 60 * SECOND
FEW_SECONDS = 8.0
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    """One etcd for those who do not stop it."""
    server = make_server("etcd")
    assert isinstance(server, EtcdServer)
    with server:
        yield server


async def _try_until_taken(engine: Engine, name: str, holder: str) -> int:
    """Take a lock as soon as there is somebody to give it."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            token = await engine.acquire(name, holder=holder, duration=LONG)
        except EngineUnavailable:
            assert time.monotonic() < deadline
        else:
            assert token is not None
            return token
        await asyncio.sleep(0.05)


async def _is_kept(engine: Engine, name: str = "role") -> bool:
    """Renew a lock as soon as there is somebody to do it."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return name in await engine.renew([name], holder="ada", duration=LONG)
        except EngineUnavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def _refusal(engine: Engine, name: str = "role") -> str:
    began = time.monotonic()
    with pytest.raises(EngineUnavailable) as caught:
        await engine.acquire(name, holder="ada", duration=LONG)
    assert time.monotonic() - began < FEW_SECONDS
    return str(caught.value)


def _lease_of(etcd: EtcdServer, key: str) -> dict[str, Any]:
    """Return what etcd knows of the lease that a key is bound to."""
    [found] = etcd.keys(key)
    answer: dict[str, Any] = etcd.call("/v3/lease/timetolive", {"ID": found["lease"]})
    return answer


@pytest.mark.timeout(180)
async def test_a_lock_outlives_its_servers_for_as_long_as_there_is_a_majority(open_at: OpenEngine) -> None:
    with EtcdEnsemble() as ensemble:
        engine, other = open_at(ensemble.url()), open_at(ensemble.url(), "another")
        token = await _try_until_taken(engine, "role", "ada")
        ensemble.leader().kill()
        assert await _is_kept(engine)
        assert await other.acquire("role", holder="bob", duration=LONG) is None
        assert await _try_until_taken(other, "second", "bob") > token

        ensemble.leader().kill()
        began = time.monotonic()
        with pytest.raises(EngineUnavailable, match="etcd"):
            await engine.renew(["role"], holder="ada", duration=LONG)
        assert time.monotonic() - began < FEW_SECONDS
        await asyncio.sleep(1)  # The last one needs a moment to notice that nobody leads it,
        assert "no leader" in await _refusal(other)  # and says so when asked, instead of waiting for the others.

        next(member for member in ensemble.members if not member.is_running()).start()
        assert await _is_kept(engine)
        assert await other.acquire("role", holder="bob", duration=LONG) is None
        assert await _try_until_taken(other, "third", "bob") > token


async def test_a_member_that_is_frozen_is_asked_last(open_at: OpenEngine) -> None:
    with EtcdEnsemble() as ensemble:
        patient, hasty = open_at(ensemble.url()), open_at(ensemble.url())
        await _try_until_taken(patient, "role", "ada")
        await hasty.renew(["role"], holder="ada", duration=LONG)
        frozen = ensemble.members[0]
        assert frozen.pid is not None
        os.kill(frozen.pid, signal.SIGSTOP)
        try:
            assert await _is_kept(patient)
            began = time.monotonic()
            for _ in range(5):
                assert await _is_kept(patient)
            assert time.monotonic() - began < 5  # It would be 1.5 s for each.
            for _ in range(20):  # Who waits for less than that gets by it, too.
                with suppress(TimeoutError, EngineUnavailable):
                    assert await asyncio.wait_for(hasty.renew(["role"], holder="ada", duration=LONG), 1.0) == {"role"}
                    break
            else:
                pytest.fail("only the frozen one was asked")
        finally:
            os.kill(frozen.pid, signal.SIGCONT)


async def test_a_lock_that_somebody_deletes_is_lost_though_its_lease_lives(
    etcd: EtcdServer, open_at: OpenEngine
) -> None:
    engine = open_at(etcd.url(prefix="deleted/"))
    for name in ("key", "lease", "kept"):
        assert await engine.acquire(name, holder="ada", duration=LONG)
    etcd.delete("deleted/key")
    [lease] = etcd.keys("deleted/lease")
    etcd.call("/v3/lease/revoke", {"ID": lease["lease"]})
    assert await engine.renew(["key", "lease", "kept"], holder="ada", duration=LONG) == {"kept"}
    assert await engine.acquire("key", holder="bob", duration=LONG)


async def test_each_lock_has_a_lease_of_its_own_of_whole_seconds(etcd: EtcdServer, open_at: OpenEngine) -> None:
    engine = open_at(etcd.url(prefix="leases/"))
    await engine.acquire("one", holder="ada", duration=2 * SECOND + 1)
    await engine.acquire("two", holder="ada", duration=2 * SECOND)
    one, two = _lease_of(etcd, "leases/one"), _lease_of(etcd, "leases/two")
    assert (one["grantedTTL"], two["grantedTTL"]) == ("3", "2")
    assert one["ID"] != two["ID"]


async def test_a_lock_that_is_renewed_for_longer_lasts_longer(etcd: EtcdServer, open_at: OpenEngine) -> None:
    engine = open_at(etcd.url(prefix="longer/"))
    token = await engine.acquire("role", holder="ada", duration=2 * SECOND)
    before = _lease_of(etcd, "longer/role")
    assert await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}
    after = _lease_of(etcd, "longer/role")
    assert (before["grantedTTL"], after["grantedTTL"]) == ("2", "60")
    assert before["ID"] not in etcd.leases()  # It is not left behind.
    assert await engine.acquire("role", holder="bob", duration=LONG) is None
    await engine.release(["role"], holder="ada")
    assert after["ID"] not in etcd.leases()
    again = await engine.acquire("role", holder="bob", duration=LONG)
    assert again is not None
    assert token is not None
    assert again > token


async def test_of_many_locks_every_one_is_renewed_every_time(etcd: EtcdServer, open_at: OpenEngine) -> None:
    engine = open_at(etcd.url(prefix="many/"))
    names = [f"shard/{number}" for number in range(150)]
    await asyncio.gather(*(engine.acquire(name, holder="ada", duration=LONG) for name in names))
    for _ in range(10):
        assert await engine.renew(names, holder="ada", duration=LONG) == set(names)


async def test_who_is_refused_leaves_no_lease_behind(etcd: EtcdServer, open_at: OpenEngine) -> None:
    engines = [open_at(etcd.url(prefix="refused/")) for _ in range(8)]
    before = etcd.leases()
    for _ in range(2):  # First in a race, in which some find the lock free and come too late; then without one.
        await asyncio.gather(
            *(engine.acquire("role", holder=str(number), duration=LONG) for number, engine in enumerate(engines))
        )
    assert len(etcd.leases() - before) == 1


async def test_an_answer_that_is_lost_is_not_a_lost_lock(etcd: EtcdServer, open_at: OpenEngine) -> None:
    """The first server has written the key and dies before it says so; the second finds that it is ours."""
    async with lost_answers(etcd.port, b"request_put") as (port, lost):
        engine = open_at(f"etcd://127.0.0.1:{port},127.0.0.1:{etcd.port}?prefix=lost/")
        assert await engine.acquire("role", holder="ada", duration=LONG)
        assert len(lost) == 1
        assert await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}
        assert await engine.acquire("role", holder="bob", duration=LONG) is None


async def test_a_server_that_has_lost_its_data_gives_locks_again(open_at: OpenEngine) -> None:
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
        assert after < before  # It counts from the beginning; that is what the store's own tokens are for.
        server.kill()
        server.start()  # With its data this time.
        assert await _try_until_taken(engine, "second", "ada") > after
        assert await engine.acquire("role", holder="ada", duration=LONG) is None


async def test_users_and_passwords(open_at: OpenEngine) -> None:
    secret, written = "pa:ss/w@rd %", "pa%3Ass%2Fw%40rd%20%25"
    with EtcdServer() as server:
        early = open_at(server.url(user=f"ada:{written}"))
        assert await early.acquire("early", holder="ada", duration=LONG)  # Nobody asks for a password yet.
        server.demand_login("ada", secret, "headway/")
        assert await early.renew(["early"], holder="ada", duration=LONG) == {"early"}

        engine, waiting = open_at(server.url(user=f"ada:{written}")), open_at(server.url(user=f"ada:{written}"))
        woken = asyncio.Event()
        await waiting.watch(woken.set)
        assert await engine.acquire("role", holder="ada", duration=LONG)
        assert await waiting.acquire("role", holder="bob", duration=LONG) is None
        server.forget_logins("ada", secret)
        assert await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}
        woken.clear()
        server.kill()
        server.start()
        await asyncio.wait_for(woken.wait(), LIMIT_S)
        deadline = time.monotonic() + LIMIT_S
        while True:  # The watch comes back by itself, with a new login.
            woken.clear()
            await engine.acquire("told", holder="ada", duration=LONG)
            await engine.release(["told"], holder="ada")
            await asyncio.sleep(0.1)
            if woken.is_set():
                break
            assert time.monotonic() < deadline

        for user in ("ada:wr0ng", "eve:wr0ng", "ada", ""):
            refusal = await _refusal(open_at(server.url(user=user)))
            assert "etcd refuses" in refusal
            assert "wr0ng" not in refusal
        assert "permission denied" in await _refusal(open_at(server.url(user=f"ada:{written}", prefix="other/")))


async def test_tls_with_certificates_on_both_sides(open_at: OpenEngine) -> None:
    with EtcdServer(tls=True) as server:
        engine = open_at(server.url())
        assert await engine.acquire("role", holder="ada", duration=LONG)
        assert await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}
        untrusting = open_at(f"etcds://127.0.0.1:{server.port}")
        assert "certificate" in (await _refusal(untrusting)).lower()
        ca = server.url().partition("&")[0]
        await _refusal(open_at(ca))  # Without a certificate of one's own.
        await _refusal(open_at(f"etcd://127.0.0.1:{server.port}"))
        with pytest.raises(InvalidConfig, match="TLS"):
            open_at(f"etcds://127.0.0.1:{server.port}?ca=/nowhere/ca.pem")


@pytest.mark.parametrize("body", [b"<html></html>", b'{"header": {}}', b"[]", b""])
async def test_what_is_not_etcd_is_said_to_be_none(body: bytes, open_at: OpenEngine) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as stranger:
        port = stranger.sockets[0].getsockname()[1]
        assert "is not etcd" in await _refusal(open_at(f"etcd://127.0.0.1:{port}"))
