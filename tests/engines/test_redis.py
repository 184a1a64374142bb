"""What is Redis' own: its faults, its ways to be secured, its endpoints, and what it leaves in its keys."""

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
def test_a_connection_that_has_just_gone_is_an_absent_server(
    redis: RedisServer, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Whatever the event loop calls it; who takes it for a mistake of ours ends the process."""

    async def write_too_late() -> None:
        address = read_address(redis.url())
        [client] = clients_of(address, node="test", answer_s=PATIENT_S, connections=1)
        connection: Any = await client.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        connection._writer.transport.abort()
        with suppress(OSError):
            await connection._writer.wait_closed()

        async def ask() -> None:
            await connection.send_command("PING")
            await connection.read_response()

        with pytest.raises((RedisError, OSError)):
            await ask()
        await client.connection_pool.release(connection)
        assert await client.ping()
        await client.aclose()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(write_too_late())


async def test_a_flushed_redis_has_forgotten_everything(redis: RedisServer, open_at: OpenEngine) -> None:
    """Also its tokens; that they grow for ever is the business of the store."""
    engine = open_at(redis.url())
    assert await _take(engine) == 1
    assert await _take(engine, "other") == 2
    redis.flush()
    assert await engine.renew(["role"], holder="ada", duration=LONG) == frozenset()
    await engine.release(["role"], holder="ada")
    assert await _take(engine, holder="bob") == 1


async def test_keys_run_out_and_are_in_one_slot(redis: RedisServer, open_at: OpenEngine) -> None:
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


async def test_a_lock_made_by_hand_without_an_end_is_not_besieged(redis: RedisServer, open_at: OpenEngine) -> None:
    engine = open_at(redis.url())
    heard: list[None] = []
    await engine.watch(lambda: heard.append(None))
    await async_wait_until(lambda: heard, "the subscription to stand")
    with redis.client() as client:
        client.set("{headway:}lock:role", "somebody")
        assert await _take(engine) is None
        await asyncio.sleep(0.3)  # Nothing comes after what must not come: on a slow machine this shows less.
        assert len(heard) == 1  # Of the subscription.
        client.delete("{headway:}lock:role")
    assert await _take(engine) is not None


async def test_who_is_refused_is_woken_when_the_lock_has_run_out(redis: RedisServer, open_at: OpenEngine) -> None:
    """Redis itself does not tell."""
    engine, waiting = open_at(redis.url()), open_at(redis.url())
    woken = asyncio.Event()
    await waiting.watch(woken.set)
    await async_wait_until(woken.is_set, "the subscription to stand")

    async def is_refused() -> bool:
        """Ask for a lock that soon runs out; on a slow machine it may have done so already."""
        woken.clear()
        assert await engine.acquire("role", holder="ada", duration=SECOND)
        if await _take(waiting, "role", "bob") is None:
            return True
        await waiting.release(["role"], holder="bob")
        return False

    await async_wait_until(is_refused, "the lock to be refused before it runs out")
    await async_wait_until(woken.is_set, "the end of the lock to be heard of")
    assert await _take(waiting, "role", "bob") is not None


async def test_a_full_redis_keeps_what_it_has_and_grants_nothing_new(redis: RedisServer, open_at: OpenEngine) -> None:
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


async def test_a_paused_redis_is_not_waited_for(redis: RedisServer, open_at: OpenEngine, patience: Patience) -> None:
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
            with pytest.raises(EngineUnavailable, match="the user or the password is refused") as caught:
                await _take(open_at(server.url(password=wrong)))
            assert "wrong-secret" not in str(caught.value)
        with pytest.raises(EngineUnavailable, match=r"(?i)certificate"):  # Not one that the system's authorities know.
            await _take(open_at(server.url().partition("?")[0]))
        with pytest.raises(EngineUnavailable) as caught:  # Nobody listens in the clear.
            await _take(open_at(server.url().replace("rediss", "redis").partition("?")[0]))
        assert PASSWORD not in str(caught.value)


async def test_a_user_needs_no_more_rights_than_the_documented_ones(redis: RedisServer, open_at: OpenEngine) -> None:
    documented = COORDINATION.read_text().partition("with permission for ")[2].partition(" |")[0]
    rights = [f"+{right.lower().replace(' ', '|')}" for right in re.findall("`([A-Z ]+)`", documented)]
    with redis.client() as client:
        keys = "~{headway:}* &{headway:}*".split()
        client.execute_command("ACL", "SETUSER", "modest", "on", ">secret", *keys, *rights)
        client.execute_command("ACL", "SETUSER", "nobody", "on", ">secret", "+client|setname")
    engine = open_at(redis.url().replace("://", "://modest:secret@"))
    woken = asyncio.Event()
    await engine.watch(woken.set)
    assert await _take(engine) is not None
    assert await _take(engine, holder="bob") is None
    assert await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}
    await async_wait_until(woken.is_set, "the subscription to stand")
    await engine.release(["role"], holder="ada")
    for address, words in (
        (redis.url(prefix="other:").replace("://", "://modest:secret@"), "keys of this prefix"),
        (redis.url().replace("://", "://nobody:secret@"), "may not run these commands"),
    ):
        with pytest.raises(EngineUnavailable, match=words):
            await _take(open_at(address))


async def test_the_endpoint_that_may_write_is_found(redis: RedisServer, open_at: OpenEngine) -> None:
    """A primary and its replica, in any order, also after they have changed places."""
    with RedisServer(options={"replicaof": f"127.0.0.1 {redis.port}"}) as replica:
        url = f"redis://127.0.0.1:1,127.0.0.1:{replica.port},127.0.0.1:{redis.port}"
        engine = open_at(url)
        assert await _take(engine) == 1
        redis.kill()

        async def is_read_only() -> bool:
            """Ask the replica, which may not have loaded all of the data yet."""
            with pytest.raises(EngineUnavailable) as caught:
                await _take(engine, holder="bob")
            return "read only" in str(caught.value)

        await async_wait_until(is_read_only, "the replica to refuse writing")
        with replica.client() as client:
            client.replicaof("NO", "ONE")
        assert await _take(engine, "other", holder="bob") is not None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://:secret@127.0.0.1:x", "'127.0.0.1:x' is no host with a port"),
        ("redis://:secret@127.0.0.1:0", "no host with a port"),
        ("redis://:secret@", "no host with a port"),
        ("redis://:secret@127.0.0.1,/0", "no host with a port"),
        ("redis://:secret@127.0.0.1/zero", "the number of a database"),
        ("redis://:secret@127.0.0.1?prefixx=a", "unknown option 'prefixx'"),
        ("rediss://:secret@127.0.0.1?ca=/nowhere.pem", "cannot use its files for TLS"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_at_once(url: str, words: str, open_at: OpenEngine) -> None:
    with pytest.raises(InvalidConfig) as caught:
        open_at(url)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch, open_at: OpenEngine, tmp_path: Path) -> None:
    (tmp_path / "redis.py").write_text("raise ImportError('not installed')")
    monkeypatch.syspath_prepend(tmp_path)
    for module in [name for name in sys.modules if name.split(".")[0] == "redis"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "headway.adapters.redis.engine", raising=False)
    with pytest.raises(InvalidConfig, match=r"pip install 'headway\[redis\]'"):
        open_at("redis://127.0.0.1")
