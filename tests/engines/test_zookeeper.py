"""ZooKeeper only: sessions that outlive loops, orphaned nodes, users, TLS, and a quorum."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from headway import Headway
from headway.adapters import zookeeper as zookeeper_engine
from headway.adapters.zookeeper import ZookeeperEngine
from headway.core.clock import Clock
from headway.core.errors import EngineUnavailable, InvalidConfig, LockHeld
from headway.core.instants import SECOND
from headway.core.settings import Settings
from tests.engines.conftest import (
    PATIENT_S,
    EngineServer,
    OpenEngine,
    Patience,
    acquire_eventually,
    frozen,
    is_kept_eventually,
    is_refused_eventually,
    skip_or_fail,
)
from tests.support import evidence
from tests.support.server import ServerMissing, free_port
from tests.support.waiting import DEADLINE_S
from tests.support.zookeeper import ZookeeperEnsemble, ZookeeperServer

LEASE = 2 * SECOND
LONG = 600 * SECOND  # Longer than any test waits; so are the sessions.

HOLDER = """
import asyncio, sys
from headway.core.clock import Clock
from headway.adapters.zookeeper import ZookeeperEngine

async def main():
    engine = ZookeeperEngine(sys.argv[1], clock=Clock(), node="frozen")
    token = None
    while token is None or not await engine.renew(["role"], holder="frozen", duration=600_000_000):
        token = await engine.acquire("role", holder="frozen", duration=2_000_000)
    print(token, flush=True)  # Its session is short, but its own clock grants it ten minutes.
    while sys.stdin.readline():
        try:
            print(sorted(await engine.renew(["role"], holder="frozen", duration=2_000_000)), flush=True)
        except Exception as error:
            print(type(error).__name__, flush=True)

asyncio.run(main())
"""


@pytest.fixture
def zookeeper(server_of: Callable[[str], EngineServer]) -> ZookeeperServer:
    server = server_of("zookeeper")
    assert isinstance(server, ZookeeperServer)
    return server


@pytest.fixture
def url(zookeeper: ZookeeperServer, request: pytest.FixtureRequest) -> str:
    return zookeeper.url(prefix=request.node.name[:60])


@pytest.fixture(scope="module")
def shared_ensemble() -> Iterator[ZookeeperEnsemble]:
    try:
        members = ZookeeperEnsemble()
    except ServerMissing as missing:
        skip_or_fail(missing)
    with members:
        yield members


@pytest.fixture
def ensemble(shared_ensemble: ZookeeperEnsemble) -> ZookeeperEnsemble:
    """Three servers, all of which run when a test begins."""
    shared_ensemble.mend()
    return shared_ensemble


@pytest.fixture
async def observer(zookeeper: ZookeeperServer) -> AsyncIterator[KazooClient]:
    """A separate client that inspects the nodes of the engine."""
    client = KazooClient(hosts=f"127.0.0.1:{zookeeper.port}", timeout=PATIENT_S)
    await asyncio.to_thread(client.start, DEADLINE_S)
    yield client
    client.stop()
    client.close()


async def test_each_name_is_one_node_and_is_removed(url: str, open_at: OpenEngine, observer: KazooClient) -> None:
    engine, root = open_at(url), f"/{url.rpartition('=')[2]}"
    names = ["scheduler/0", "scheduler%2F0", ".", "..", "a/../b", "ü 🚂"]
    for name in names:
        assert await engine.acquire(name, holder="ada/1~x", duration=LONG)
        assert await engine.acquire(name, holder="bob", duration=LONG) is None
    folders = observer.get_children(root)
    assert len(folders) == len(names)
    # Bob's refused request has left nothing.
    assert all(len(observer.get_children(f"{root}/{folder}")) == 1 for folder in folders)
    await engine.release(names, holder="ada/1~x")
    assert observer.get_children(root) == []


async def test_tokens_are_zookeeper_transaction_ids(url: str, open_at: OpenEngine, observer: KazooClient) -> None:
    engine, root = open_at(url), f"/{url.rpartition('=')[2]}"
    token = await engine.acquire("role", holder="ada", duration=LONG)
    [node] = observer.get_children(f"{root}/role")
    assert observer.exists(f"{root}/role/{node}").czxid == token
    again = await engine.acquire("role", holder="ada", duration=LONG)
    assert again is not None
    assert token is not None
    assert again > token
    await engine.release(["role"], holder="ada")
    after = await engine.acquire("role", holder="bob", duration=LONG)
    assert after is not None
    assert after > again


async def test_blocked_loop_loses_its_locks_although_its_session_lives(
    url: str, open_at: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client keeps the session alive from its own thread, so the lock must be removed without the loop as well."""
    # A session of ten minutes for a lease of two seconds: the end of the session does not free the lock.
    monkeypatch.setattr(zookeeper_engine, "LEASE_MARGIN", 2 * (1 - LONG / LEASE))
    taken, resume = threading.Event(), threading.Event()

    async def hang() -> tuple[frozenset[str], bool]:
        engine = ZookeeperEngine(url, clock=Clock(), node="hanging")
        assert await engine.acquire("role", holder="hanging", duration=LEASE)
        [client] = engine._clients.values()
        session = client.client_id
        taken.set()
        resume.wait(DEADLINE_S)  # Blocks the loop.
        try:
            return await engine.renew(["role"], holder="hanging", duration=LEASE), client.client_id == session
        finally:
            await engine.close()

    hanging = asyncio.ensure_future(asyncio.to_thread(asyncio.run, hang()))
    assert await asyncio.to_thread(taken.wait, DEADLINE_S)
    try:
        await acquire_eventually(open_at(url), "role", "next", LONG, within_s=DEADLINE_S / 2)
    finally:
        resume.set()
    kept, is_same_session = await hanging
    assert is_same_session
    assert kept == frozenset()


def start_holder(url: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLDER, url]
    with evidence.log_file("the stopped process").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)


async def test_session_that_expired_while_its_process_was_stopped_is_lost(url: str, open_at: OpenEngine) -> None:
    other = open_at(url)
    process = start_holder(url)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert int(process.stdout.readline()) > 0
        os.kill(process.pid, signal.SIGSTOP)
        await acquire_eventually(other, "role", "next", LONG)
        os.kill(process.pid, signal.SIGCONT)
        said: list[str] = []
        while not said or said[-1] == "EngineUnavailable":
            process.stdin.write("renew\n")
            process.stdin.flush()
            said.append(process.stdout.readline().strip())
        assert said[-1] == "[]", said
    finally:
        process.kill()
        process.communicate()


async def test_node_created_after_cancellation_is_removed(
    zookeeper: ZookeeperServer, url: str, open_at: OpenEngine
) -> None:
    """The server creates it when it resumes, and the caller does not ask again."""
    gone, other = open_at(url), open_at(url)
    assert await gone.acquire("warm", holder="gone", duration=LONG)
    assert await other.acquire("warm", holder="other", duration=LONG) is None
    for turn in range(24):
        asking = asyncio.ensure_future(gone.acquire("role", holder="gone", duration=LONG))
        await asyncio.sleep(turn % 8 * 0.0005)  # At another stage of the call each time.
        with frozen(zookeeper.pid):
            asking.cancel()
            await asyncio.wait([asking])
        if not asking.cancelled():
            await gone.release(["role"], holder="gone")
    await acquire_eventually(other, "role", "other", LONG)


async def test_connection_that_is_never_answered_is_retried(
    zookeeper: ZookeeperServer, open_at: OpenEngine, patience: Patience
) -> None:
    """A starting server may accept a connection and never answer on it."""
    forgotten: list[asyncio.StreamWriter] = []
    is_starting = True

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if is_starting:
            forgotten.append(writer)
            return
        above, below = await asyncio.open_connection("127.0.0.1", zookeeper.port)
        with suppress(OSError):
            await asyncio.gather(_pump(reader, below), _pump(above, writer))

    patience(2.0)  # The client would wait as long as the session lasts, which is longer than this test.
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        engine = open_at(f"zookeeper://127.0.0.1:{port}?prefix=forgotten")
        with pytest.raises(EngineUnavailable, match="zookeeper"):
            await engine.acquire("role", holder="ada", duration=LONG)
        assert forgotten
        is_starting = False
        await acquire_eventually(engine, "role", "ada", LONG)
        await engine.close()
        for writer in forgotten:
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy everything to the other side."""
    while chunk := await reader.read(1 << 16):
        writer.write(chunk)
        await writer.drain()
    writer.close()


async def test_other_users_have_no_access(
    zookeeper: ZookeeperServer, open_at: OpenEngine, observer: KazooClient
) -> None:
    private = f"zookeeper://ada:se%2Fcret@127.0.0.1:{zookeeper.port}/apps?prefix=private"
    ada = open_at(private)
    assert await ada.acquire("role", holder="ada", duration=LONG)
    with pytest.raises(NoAuthError):
        observer.get_children("/apps/private/role")
    for stranger in (private.replace("ada:se%2Fcret@", ""), private.replace("cret", "ssame")):
        with pytest.raises(EngineUnavailable, match="does not let this user") as refused:
            await open_at(stranger).acquire("role", holder="eve", duration=LONG)
        assert "ssame" not in str(refused.value)
    assert await open_at(private).acquire("role", holder="bob", duration=LONG) is None
    assert await ada.renew(["role"], holder="ada", duration=LONG) == {"role"}


async def test_tls_verifies_the_server(open_at: OpenEngine, patience: Patience) -> None:
    try:
        server = ZookeeperServer(tls=True)
    except ServerMissing as missing:
        skip_or_fail(missing)
    with server:
        url = f"zookeepers://127.0.0.1:{server.tls_port}"
        good = open_at(f"{url}?ca={server.authority}")
        assert await good.acquire("role", holder="ada", duration=LONG)
        patience(2.0)  # It retries for as long.
        with pytest.raises(EngineUnavailable):  # No known authority has signed its certificate.
            await open_at(url).acquire("role", holder="eve", duration=LONG)
    with pytest.raises(InvalidConfig, match="files for TLS"):
        open_at(f"{url}?ca=/nowhere.pem")


async def test_user_lock_is_granted_by_zookeeper(url: str, tmp_path: Path, observer: KazooClient) -> None:
    apps = [Headway(f"sqlite:///{tmp_path}/headway.db", name=name, coordination=url) for name in ("one", "two")]
    seen: list[list[str]] = []
    tokens: list[int] = []

    async def enter(app: Headway) -> None:
        async with app.lock("till/1", ttl="600s") as lock:
            seen.append(observer.get_children(f"/{url.rpartition('=')[2]}"))
            tokens.append(lock.token)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(enter(app) for app in apps * 3))
    assert seen == [["lock%2Ftill%2F1"]] * 6
    assert len(tokens) == 6
    assert tokens == sorted(set(tokens))
    for app in apps:
        await app.close()


async def test_lock_error_names_the_unavailable_zookeeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_engine, "CONNECTED_S_MAX", 0.5)
    settings = Settings(
        store=f"sqlite:///{tmp_path}/headway.db",
        coordination=f"zookeeper://127.0.0.1:{free_port()}",
        coordination_fallback="stop",
    )
    app = Headway(name="one", settings=settings)
    with pytest.raises(LockHeld, match="'till' could not be acquired: zookeeper cannot be reached at"):
        await app.lock("till", ttl="600s", blocking=False).acquire()
    await app.close()


async def test_ensemble_works_with_two_of_three_servers(
    ensemble: ZookeeperEnsemble, open_at: OpenEngine, patience: Patience
) -> None:
    engine, other = open_at(ensemble.url("quorum")), open_at(ensemble.url("quorum"))
    assert await engine.acquire("role", holder="ada", duration=LONG)
    assert await other.acquire("role", holder="bob", duration=LONG) is None
    patience(PATIENT_S / 10)  # A starting server may accept a connection and never answer on it.
    for dies in (lambda member: not member.is_leader(), lambda member: member.is_leader()):
        await asyncio.to_thread(ensemble.mend)
        next(member for member in ensemble.members if dies(member)).kill()
        assert await is_kept_eventually(engine, "role", "ada", LONG), "the lock was lost"
        assert await is_refused_eventually(other, "role", "bob", LONG)


async def test_without_quorum_nothing_is_granted_until_it_returns(
    ensemble: ZookeeperEnsemble, open_at: OpenEngine, patience: Patience
) -> None:
    engine = open_at(ensemble.url("none"))
    assert await engine.acquire("role", holder="ada", duration=LONG)
    for victim in ensemble.members[:2]:
        victim.kill()
    patience(2.0)
    for call in (
        engine.renew(["role"], holder="ada", duration=LONG),
        engine.acquire("another", holder="ada", duration=LONG),
    ):
        with pytest.raises(EngineUnavailable, match="zookeeper"):
            await asyncio.wait_for(call, DEADLINE_S)
    await asyncio.to_thread(ensemble.mend)
    patience(PATIENT_S / 10)
    await acquire_eventually(engine, "another", "ada", LONG)
