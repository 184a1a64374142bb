"""What is ZooKeeper's own: sessions that outlive loops, nodes that nobody heard of, users, TLS, and a quorum."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from headway import Headway
from headway.clock import Clock
from headway.coordination.engines.zookeeper import ZookeeperEngine
from headway.errors import EngineUnavailable, InvalidConfig, LockHeld
from headway.instants import SECOND
from headway.settings import Settings
from tests.engines.conftest import OpenEngine, _do_without, make_server
from tests.support.server import ServerMissing, free_port
from tests.support.zookeeper import ZookeeperEnsemble, ZookeeperServer

LEASE = 2 * SECOND
LONG = 30 * SECOND
WAIT_S_MAX = 30.0
FEW_SECONDS = 10.0

HOLDER = """
import asyncio, sys
from headway.clock import Clock
from headway.coordination.engines.zookeeper import ZookeeperEngine

async def main():
    engine = ZookeeperEngine(sys.argv[1], clock=Clock(), node="frozen")
    token = await engine.acquire("role", holder="frozen", duration=2_000_000)
    await engine.renew(["role"], holder="frozen", duration=60_000_000)  # By its own clock it has a minute.
    print(token, flush=True)
    while sys.stdin.readline():
        try:
            print(sorted(await engine.renew(["role"], holder="frozen", duration=2_000_000)), flush=True)
        except Exception as error:
            print(type(error).__name__, flush=True)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZookeeperServer]:
    server = make_server("zookeeper")
    assert isinstance(server, ZookeeperServer)
    with server:
        yield server


@pytest.fixture
def url(zookeeper: ZookeeperServer, request: pytest.FixtureRequest) -> str:
    return zookeeper.url(prefix=request.node.name[:60])


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZookeeperEnsemble]:
    try:
        members = ZookeeperEnsemble()
    except ServerMissing as missing:
        _do_without(missing)
    with members:
        yield members


@pytest.fixture
async def eye(zookeeper: ZookeeperServer) -> AsyncIterator[KazooClient]:
    """A client that looks at the nodes behind the engine's back."""
    client = KazooClient(hosts=f"127.0.0.1:{zookeeper.port}")
    await asyncio.to_thread(client.start)
    yield client
    client.stop()
    client.close()


async def until(is_so: Callable[[], Awaitable[object]], what: str) -> float:
    """Wait until something is so, whatever the engine says meanwhile; return how long it took."""
    began = time.monotonic()
    while True:
        try:
            if await is_so():
                return time.monotonic() - began
        except EngineUnavailable:
            pass
        assert time.monotonic() - began < WAIT_S_MAX, what
        await asyncio.sleep(0.05)


async def test_a_name_is_one_node_and_nothing_is_left_of_it(url: str, open_at: OpenEngine, eye: KazooClient) -> None:
    engine, root = open_at(url), f"/{url.rpartition('=')[2]}"
    names = ["scheduler/0", "scheduler%2F0", ".", "..", "a/../b", "ü 🚂"]
    for name in names:
        assert await engine.acquire(name, holder="ada/1~x", duration=LONG)
        assert await engine.acquire(name, holder="bob", duration=LONG) is None
    folders = eye.get_children(root)
    assert len(folders) == len(names)
    assert all(len(eye.get_children(f"{root}/{folder}")) == 1 for folder in folders)  # Bob has left nothing.
    await engine.release(names, holder="ada/1~x")
    assert eye.get_children(root) == []


async def test_tokens_are_the_transactions_of_zookeeper(url: str, open_at: OpenEngine, eye: KazooClient) -> None:
    engine, root = open_at(url), f"/{url.rpartition('=')[2]}"
    token = await engine.acquire("role", holder="ada", duration=LONG)
    [node] = eye.get_children(f"{root}/role")
    assert eye.exists(f"{root}/role/{node}").czxid == token
    again = await engine.acquire("role", holder="ada", duration=LONG)
    assert again is not None
    assert token is not None
    assert again > token
    await engine.release(["role"], holder="ada")
    after = await engine.acquire("role", holder="bob", duration=LONG)
    assert after is not None
    assert after > again


async def test_a_loop_that_hangs_loses_its_locks_although_its_session_lives(url: str, open_at: OpenEngine) -> None:
    """The client keeps the session from a thread of its own; who takes the lock away must not need the loop either."""
    taken, resume = threading.Event(), threading.Event()

    async def hang() -> frozenset[str]:
        engine = ZookeeperEngine(url, clock=Clock(), node="hanging")
        assert await engine.acquire("role", holder="hanging", duration=LEASE)
        taken.set()
        await asyncio.to_thread(lambda: None)
        resume.wait(WAIT_S_MAX)  # Blocks the loop.
        try:
            return await engine.renew(["role"], holder="hanging", duration=LEASE)
        finally:
            await engine.close()

    hanging = asyncio.ensure_future(asyncio.to_thread(asyncio.run, hang()))
    assert await asyncio.to_thread(taken.wait, WAIT_S_MAX)
    other = open_at(url)
    try:
        took_s = await until(lambda: other.acquire("role", holder="next", duration=LONG), "the lock never came free")
    finally:
        resume.set()
    assert LEASE / SECOND * 0.5 < took_s < LEASE / SECOND + 3
    assert await hanging == frozenset()


def start_holder(url: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLDER, url]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def test_a_session_that_ran_out_while_its_process_was_stopped_is_lost(url: str, open_at: OpenEngine) -> None:
    other = open_at(url)
    process = start_holder(url)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert int(process.stdout.readline()) > 0
        os.kill(process.pid, signal.SIGSTOP)
        took_s = await until(lambda: other.acquire("role", holder="next", duration=LONG), "the lock never came free")
        assert took_s > LEASE / SECOND * 0.5
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


async def test_a_node_that_was_made_after_we_gave_up_does_not_stay(url: str, open_at: OpenEngine) -> None:
    """The server makes it when it wakes up, and the one who asked does not ask again."""
    with make_server("zookeeper") as server:
        gone, other = open_at(server.url()), open_at(server.url())
        assert await gone.acquire("warm", holder="gone", duration=LONG)
        assert await other.acquire("warm", holder="other", duration=LONG) is None
        assert server.pid is not None
        for turn in range(24):
            asking = asyncio.ensure_future(gone.acquire("role", holder="gone", duration=LONG))
            await asyncio.sleep(turn % 8 * 0.0005)  # At another point of its way each time.
            os.kill(server.pid, signal.SIGSTOP)
            try:
                asking.cancel()
                await asyncio.wait([asking])
            finally:
                os.kill(server.pid, signal.SIGCONT)
            if not asking.cancelled():
                await gone.release(["role"], holder="gone")
        await until(lambda: other.acquire("role", holder="other", duration=LONG), "a node of nobody's blocks the lock")


async def test_a_server_that_took_a_connection_and_forgot_it_is_asked_again(open_at: OpenEngine) -> None:
    """As one may that is starting: the connection stands, and nobody ever answers on it."""
    try:
        server = ZookeeperServer()
    except ServerMissing as missing:
        _do_without(missing)
    forgotten: list[asyncio.StreamWriter] = []

    async def forget(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        forgotten.append(writer)

    silent = await asyncio.start_server(forget, "127.0.0.1", server.port)
    engine = open_at(server.url())
    with pytest.raises(EngineUnavailable, match="zookeeper"):
        await engine.acquire("role", holder="ada", duration=LONG)
    silent.close()  # Nobody else is taken in; who was waits on.
    assert forgotten
    with server:
        took_s = await until(lambda: engine.acquire("role", holder="ada", duration=LONG), "it was not asked again")
    for writer in forgotten:
        writer.close()
    assert took_s < FEW_SECONDS


async def test_users_keep_others_away(zookeeper: ZookeeperServer, open_at: OpenEngine, eye: KazooClient) -> None:
    private = f"zookeeper://ada:se%2Fcret@127.0.0.1:{zookeeper.port}/apps?prefix=private"
    ada = open_at(private)
    assert await ada.acquire("role", holder="ada", duration=LONG)
    with pytest.raises(NoAuthError):
        eye.get_children("/apps/private/role")
    for stranger in (private.replace("ada:se%2Fcret@", ""), private.replace("cret", "ssame")):
        with pytest.raises(EngineUnavailable, match="does not let this user") as refused:
            await open_at(stranger).acquire("role", holder="eve", duration=LONG)
        assert "ssame" not in str(refused.value)
    assert await open_at(private).acquire("role", holder="bob", duration=LONG) is None
    assert await ada.renew(["role"], holder="ada", duration=LONG) == {"role"}


async def test_tls_checks_the_server(open_at: OpenEngine) -> None:
    secure = free_port()
    try:
        server = ZookeeperServer(
            options={
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "secureClientPort": str(secure),
                "secureClientPortAddress": "127.0.0.1",
                "ssl.keyStore.location": "server.p12",
                "ssl.keyStore.password": "private",
                "ssl.clientAuth": "none",
            }
        )
    except ServerMissing as missing:
        _do_without(missing)
    make_certificates(server.folder)
    with server:
        good = open_at(f"zookeepers://127.0.0.1:{secure}?ca={server.folder / 'ca.pem'}")
        assert await good.acquire("role", holder="ada", duration=LONG)
        with pytest.raises(EngineUnavailable):  # Nobody vouches for its certificate.
            await open_at(f"zookeepers://127.0.0.1:{secure}").acquire("role", holder="eve", duration=LONG)
    with pytest.raises(InvalidConfig, match="files for TLS"):
        open_at(f"zookeepers://127.0.0.1:{secure}?ca=/nowhere.pem")


def make_certificates(made: Path) -> None:
    """Make a certificate for 127.0.0.1 that vouches for itself, as clients and as Java want it."""
    key = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout key.pem"
    for command in (
        f"{key} -out ca.pem -subj /CN=test -addext subjectAltName=IP:127.0.0.1",
        "openssl pkcs12 -export -inkey key.pem -in ca.pem -out server.p12 -passout pass:private",
    ):
        subprocess.run(command.split(), cwd=made, check=True, capture_output=True)
    (made / "server.p12").chmod(0o644)  # The server is another user where the tests are root.


async def test_a_users_lock_is_granted_by_zookeeper(url: str, tmp_path: Path, eye: KazooClient) -> None:
    apps = [Headway(f"sqlite:///{tmp_path}/headway.db", name=name, coordination=url) for name in ("one", "two")]
    seen: list[list[str]] = []
    tokens: list[int] = []

    async def enter(app: Headway) -> None:
        async with app.lock("till/1", ttl="3s") as lock:
            seen.append(eye.get_children(f"/{url.rpartition('=')[2]}"))
            tokens.append(lock.token)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(enter(app) for app in apps * 3))
    # On a busy machine ZooKeeper may be too slow for one of them, which the store then grants alone.
    assert ["lock%2Ftill%2F1"] in seen
    assert all(names in ([], ["lock%2Ftill%2F1"]) for names in seen)
    assert len(tokens) == 6
    assert tokens == sorted(set(tokens))
    for app in apps:
        await app.close()


async def test_who_gets_no_lock_for_want_of_zookeeper_is_told_so(tmp_path: Path) -> None:
    settings = Settings(
        store=f"sqlite:///{tmp_path}/headway.db",
        coordination=f"zookeeper://127.0.0.1:{free_port()}",
        coordination_fallback="stop",
    )
    app = Headway(name="one", settings=settings)
    with pytest.raises(LockHeld, match="'till' was not obtained: zookeeper cannot be reached at"):
        await app.lock("till", blocking=False).acquire()
    await app.close()


async def test_an_ensemble_goes_on_with_two_of_three(ensemble: ZookeeperEnsemble, open_at: OpenEngine) -> None:
    ensemble.wait_for_quorum(3)
    engine, other = open_at(ensemble.url("quorum")), open_at(ensemble.url("quorum"))
    assert await engine.acquire("role", holder="ada", duration=LONG)

    async def keeps() -> bool:
        return await engine.renew(["role"], holder="ada", duration=LONG) == {"role"}

    for dies in (lambda member: not member.is_leader(), lambda member: member.is_leader()):
        victim = next(member for member in ensemble.members if dies(member))
        victim.kill()
        assert await until(keeps, "the lock was not found again") < 15
        assert await other.acquire("role", holder="bob", duration=LONG) is None
        victim.launch()
        await asyncio.to_thread(ensemble.wait_for_quorum, 3)


async def test_without_a_quorum_nothing_is_granted_and_it_comes_back(
    ensemble: ZookeeperEnsemble, open_at: OpenEngine
) -> None:
    ensemble.wait_for_quorum(3)
    engine = open_at(ensemble.url("none"))
    assert await engine.acquire("role", holder="ada", duration=LONG)
    victims = ensemble.members[:2]
    for victim in victims:
        victim.kill()
    for call in (
        engine.renew(["role"], holder="ada", duration=LONG),
        engine.acquire("another", holder="ada", duration=LONG),
    ):
        began = time.monotonic()
        with pytest.raises(EngineUnavailable, match="zookeeper"):
            await call
        assert time.monotonic() - began < 8
    for victim in victims:
        victim.launch()
    await asyncio.to_thread(ensemble.wait_for_quorum, 3)
    await until(lambda: engine.acquire("another", holder="ada", duration=LONG), "it did not come back")
