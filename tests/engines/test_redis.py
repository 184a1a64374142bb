"""Redis only: its faults, credentials, TLS, endpoints, and the keys that it keeps."""

import asyncio
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from redis.exceptions import RedisError

from headway.adapters.redis.client import clients_of, read_address
from headway.core.errors import EngineUnavailable, InvalidConfig
from headway.core.instants import SECOND
from headway.core.ports import Engine
from tests.engines.conftest import PATIENT_S, OpenEngine, Patience
from tests.support.redis import RedisServer
from tests.support.waiting import async_wait_until

LONG = 600 * SECOND
COORDINATION = Path(__file__).parents[2] / "docs" / "coordination.md"
PASSWORD = "s3cr3t/@:%? word"


async def _take(engine: Engine, name: str = "role", holder: str = "ada") -> int | None:
    return await engine.acquire(name, holder=holder, duration=LONG)


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_closed_connection_counts_as_unavailable_server(
    redis: RedisServer, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Each event loop raises another exception for it; an unhandled one would end the process."""

    async def use_closed_connection() -> None:
        address = read_address(redis.url())
        [client] = clients_of(address, node="test", answer_s=PATIENT_S, connections=1)
        connection: Any = await client.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        connection._writer.transport.abort()
        with suppress(OSError):
            await connection._writer.wait_closed()

        async def ping() -> None:
            await connection.send_command("PING")
            await connection.read_response()

        with pytest.raises((RedisError, OSError)):
            await ping()
        await client.connection_pool.release(connection)
        assert await client.ping()
        await client.aclose()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(use_closed_connection())


async def test_flushed_redis_forgets_locks_and_tokens(redis: RedisServer, open_at: OpenEngine) -> None:
    """Tokens restart, too; the store makes them increase forever."""
    engine = open_at(redis.url())
    assert await _take(engine) == 1
    assert await _take(engine, "other") == 2
    redis.flush()
    assert await engine.renew(["role"], holder="ada", duration=LONG) == frozenset()
    await engine.release(["role"], holder="ada")
    assert await _take(engine, holder="bob") == 1


async def test_keys_expire_and_share_one_slot(redis: RedisServer, open_at: OpenEngine) -> None:
    await _take(open_at(redis.url()))
    await _take(open_at(redis.url(prefix="team:")), "x")
    await _take(open_at(redis.url(prefix="{mine}.")), "y")
    with redis.client() as client:
        keys = set(client.keys("*"))
        assert keys == {
            *("{headway:}lock:role", "{headway:}token", "{team:}lock:x", "{team:}token"),
            *("{mine}.lock:y", "{mine}.token"),
        }
        assert 0 < client.pttl("{headway:}lock:role") <= LONG // 1_000


async def test_foreign_lock_without_expiry_causes_no_busy_loop(redis: RedisServer, open_at: OpenEngine) -> None:
    engine = open_at(redis.url())
    heard: list[None] = []
    await engine.watch(lambda: heard.append(None))
    await async_wait_until(lambda: heard, "the subscription")
    with redis.client() as client:
        client.set("{headway:}lock:role", "somebody")
        assert await _take(engine) is None
        await asyncio.sleep(0.3)  # Nothing follows that could be waited for: on a slow machine this shows less.
        assert len(heard) == 1  # From the subscription.
        client.delete("{headway:}lock:role")
    assert await _take(engine) is not None


async def test_refused_node_is_notified_when_the_lock_expires(redis: RedisServer, open_at: OpenEngine) -> None:
    """Redis itself does not notify."""
    engine, waiting = open_at(redis.url()), open_at(redis.url())
    notified = asyncio.Event()
    await waiting.watch(notified.set)
    await async_wait_until(notified.is_set, "the subscription")

    async def is_refused() -> bool:
        """Request a lock that soon expires; on a slow machine it may have expired already."""
        notified.clear()
        assert await engine.acquire("role", holder="ada", duration=SECOND)
        if await _take(waiting, "role", "bob") is None:
            return True
        await waiting.release(["role"], holder="bob")
        return False

    await async_wait_until(is_refused, "the lock to be refused before it expires")
    await async_wait_until(notified.is_set, "the notification of the expired lock")
    assert await _take(waiting, "role", "bob") is not None


async def test_full_redis_keeps_locks_and_grants_no_new_ones(redis: RedisServer, open_at: OpenEngine) -> None:
    engine = open_at(redis.url())
    await _take(engine)
    redis.fill()
    assert await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}
    assert await _take(engine, holder="bob") is None
    with pytest.raises(EngineUnavailable, match="maxmemory"):
        await _take(engine, "other")
    await engine.release(["role"], holder="ada")
    redis.empty()
    assert await _take(engine, "other") is not None


async def test_paused_redis_times_out(redis: RedisServer, open_at: OpenEngine, patience: Patience) -> None:
    engine = open_at(redis.url())
    await _take(engine)
    redis.pause(LONG / SECOND)
    patience(1.0)
    with pytest.raises(EngineUnavailable, match="no answer within 1 s"):
        await engine.renew(["role"], holder="ada", duration=LONG)
    patience(PATIENT_S)
    redis.resume()
    assert await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}


async def test_credentials_and_tls(open_at: OpenEngine) -> None:
    with RedisServer(password=PASSWORD, tls=True) as server:
        assert await _take(open_at(server.url())) is not None
        for wrong in ("wrong-secret", ""):
            with pytest.raises(EngineUnavailable, match="the user or the password was refused") as caught:
                await _take(open_at(server.url(password=wrong)))
            assert "wrong-secret" not in str(caught.value)
        with pytest.raises(EngineUnavailable, match=r"(?i)certificate"):  # No system authority has signed it.
            await _take(open_at(server.url().partition("?")[0]))
        with pytest.raises(EngineUnavailable) as caught:  # No plain-text listener.
            await _take(open_at(server.url().replace("rediss", "redis").partition("?")[0]))
        assert PASSWORD not in str(caught.value)


async def test_documented_permissions_are_sufficient(redis: RedisServer, open_at: OpenEngine) -> None:
    documented = COORDINATION.read_text().partition("with permission for ")[2].partition(" |")[0]
    rights = [f"+{right.lower().replace(' ', '|')}" for right in re.findall("`([A-Z ]+)`", documented)]
    with redis.client() as client:
        keys = "~{headway:}* &{headway:}*".split()
        client.execute_command("ACL", "SETUSER", "modest", "on", ">secret", *keys, *rights)
        client.execute_command("ACL", "SETUSER", "nobody", "on", ">secret", "+client|setname")
    engine = open_at(redis.url().replace("://", "://modest:secret@"))
    notified = asyncio.Event()
    await engine.watch(notified.set)
    assert await _take(engine) is not None
    assert await _take(engine, holder="bob") is None
    assert await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}
    await async_wait_until(notified.is_set, "the subscription")
    await engine.release(["role"], holder="ada")
    for address, words in (
        (redis.url(prefix="other:").replace("://", "://modest:secret@"), "keys of this prefix"),
        (redis.url().replace("://", "://nobody:secret@"), "may not run these commands"),
    ):
        with pytest.raises(EngineUnavailable, match=words):
            await _take(open_at(address))


async def test_writable_endpoint_is_found(redis: RedisServer, open_at: OpenEngine) -> None:
    """A primary and its replica, in any order, also after a failover."""
    with RedisServer(options={"replicaof": f"127.0.0.1 {redis.port}"}) as replica:
        url = f"redis://127.0.0.1:1,127.0.0.1:{replica.port},127.0.0.1:{redis.port}"
        engine = open_at(url)
        assert await _take(engine) == 1
        redis.kill()

        async def is_read_only() -> bool:
            """Call the replica, which may not have loaded all data yet."""
            with pytest.raises(EngineUnavailable) as caught:
                await _take(engine, holder="bob")
            return "read only" in str(caught.value)

        await async_wait_until(is_read_only, "the replica to refuse writes")
        with replica.client() as client:
            client.replicaof("NO", "ONE")
        assert await _take(engine, "other", holder="bob") is not None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://:secret@127.0.0.1:x", "'127.0.0.1:x' is not a host with a port"),
        ("redis://:secret@127.0.0.1:0", "not a host with a port"),
        ("redis://:secret@", "not a host with a port"),
        ("redis://:secret@127.0.0.1,/0", "not a host with a port"),
        ("redis://:secret@127.0.0.1/zero", "the number of a database"),
        ("redis://:secret@127.0.0.1?prefixx=a", "unknown option 'prefixx'"),
        ("rediss://:secret@127.0.0.1?ca=/nowhere.pem", "cannot use its files for TLS"),
    ],
)
def test_invalid_url_is_rejected_at_once(url: str, words: str, open_at: OpenEngine) -> None:
    with pytest.raises(InvalidConfig) as caught:
        open_at(url)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_missing_client_library_is_named(monkeypatch: pytest.MonkeyPatch, open_at: OpenEngine, tmp_path: Path) -> None:
    (tmp_path / "redis.py").write_text("raise ImportError('not installed')")
    monkeypatch.syspath_prepend(tmp_path)
    for module in [name for name in sys.modules if name.split(".")[0] == "redis"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "headway.adapters.redis.engine", raising=False)
    with pytest.raises(InvalidConfig, match=r"pip install 'headway\[redis\]'"):
        open_at("redis://127.0.0.1")
