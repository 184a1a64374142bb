"""Every engine on a real server. One whose program or client is missing is skipped, except where CI is set.

The product waits a few seconds for a server, and a loaded machine may take longer to answer. So everything that runs in
the process of the tests has a minute (`patience`), unless the end of that patience is what is tested.
"""

import importlib
import itertools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import NoReturn, Protocol, Self, TypeVar

import pytest

from headway.adapters.engines import open_engine
from headway.core.clock import Clock
from headway.core.errors import EngineUnavailable
from headway.core.ports import Engine
from tests.support.etcd import EtcdEnsemble
from tests.support.redis import RedisServer
from tests.support.server import ServerMissing
from tests.support.transports import TransportServer, start_server
from tests.support.waiting import DEADLINE_S, async_wait_until, wait_until

# Where the server of each engine is to be found.
SERVERS = {
    "redis": "tests.support.redis:RedisServer",
    "etcd": "tests.support.etcd:EtcdServer",
    "zookeeper": "tests.support.zookeeper:ZookeeperServer",
    "consul": "tests.support.consul:ConsulServer",
}
PREFIXES = itertools.count(1)
PATIENT_S = 60.0
ENGINE_LIMITS = (
    *(f"headway.adapters.redis.engine.{name}" for name in ("ANSWER_S_MAX", "CALL_S_MAX")),
    *(f"headway.adapters.endpoints.{name}" for name in ("CALL_S_MIN", "CALL_S_MAX", "CONNECT_S_MAX")),
    *(f"headway.adapters.zookeeper.{name}" for name in ("CALL_S_MAX", "CONNECTED_S_MAX", "CONNECT_S_MAX")),
    "headway.coordination.admission.GOODBYE_S_MAX",
    "headway.adapters.redis.transport.ANSWER_S_MAX",
    "headway.adapters.rabbitmq.ANSWER_S_MAX",
)
OTHER_LIMITS = (
    "headway.adapters.rabbitmq.HEARTBEAT_S",
    *(f"headway.store.postgres.{name}_S_MAX" for name in ("STATEMENT", "IDLE", "PROBE", "CLOSE")),
    *(f"headway.store.primary.{name}_S_MAX" for name in ("CONNECT", "IDENTIFY")),
    *(f"headway.store.sqlite.{name}_S_MAX" for name in ("STATEMENT", "BUSY")),
)

T = TypeVar("T")

OpenEngine = Callable[..., Engine]
Patience = Callable[[float], None]


class EngineServer(Protocol):
    """What the suite needs of a server."""

    pid: int | None

    def url(self, *, prefix: str = "") -> str:
        """Return its address; with a prefix it is as good as another server."""

    def start(self) -> None:
        """Start it, or start it again."""

    def kill(self) -> None:
        """End it as a crash would."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def make_server(kind: str) -> EngineServer:
    """Make a server of an engine's own, not started yet."""
    module, _, name = SERVERS[kind].partition(":")
    try:
        server: EngineServer = getattr(importlib.import_module(module), name)()
    except (ImportError, ServerMissing) as missing:
        _do_without(missing)
    return server


def _do_without(missing: Exception) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"missing: {missing}")
    pytest.skip(f"missing: {missing}")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> Patience:
    """Wait for servers for as long as a loaded machine needs; a test sets the seconds for engines and transports."""

    def set_to(seconds: float) -> None:
        for name in ENGINE_LIMITS:
            monkeypatch.setattr(name, seconds)

    set_to(PATIENT_S)
    for name in OTHER_LIMITS:
        monkeypatch.setattr(name, int(PATIENT_S))
    return set_to


@contextmanager
def frozen(pid: int | None) -> Iterator[None]:
    """Stop a process with all its threads for the length of a block."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: _stands_still(pid), f"process {pid} to stand still")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _stands_still(pid: int) -> bool:
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(thread.read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)


async def take_in_the_end(
    engine: Engine, name: str, holder: str, duration: int, *, within_s: float = DEADLINE_S
) -> int:
    """Take a lock as soon as it is free and there is somebody to give it."""

    async def take() -> int | None:
        with suppress(EngineUnavailable):
            return await engine.acquire(name, holder=holder, duration=duration)
        return None

    token = await async_wait_until(take, f"{holder} to get the lock {name!r}", within_s=within_s)
    assert token is not None
    return token


async def is_refused_in_the_end(engine: Engine, name: str, holder: str, duration: int) -> bool:
    """Ask for a lock as soon as there is somebody to answer; tell whether it is another's."""
    token = await _answer(lambda: engine.acquire(name, holder=holder, duration=duration))
    return token is None


async def is_kept_in_the_end(engine: Engine, name: str, holder: str, duration: int) -> bool:
    """Renew a lock as soon as there is somebody to do it; tell whether it is still the holder's."""
    return name in await _answer(lambda: engine.renew([name], holder=holder, duration=duration))


async def _answer(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until an engine answers."""

    async def answers() -> list[T]:
        with suppress(EngineUnavailable):
            return [await ask()]
        return []

    return (await async_wait_until(answers, "an engine to answer"))[0]


@pytest.fixture(scope="session")
def server_of() -> Iterator[Callable[[str], EngineServer]]:
    """Start the server of an engine with the first test that needs it, once for the whole run: do not stop it."""
    started: dict[str, EngineServer] = {}

    def shared(kind: str) -> EngineServer:
        if kind not in started:
            started[kind] = make_server(kind).__enter__()
        return started[kind]

    yield shared
    for server in started.values():
        server.__exit__(None, None, None)


@pytest.fixture(params=list(SERVERS))
def kind(request: pytest.FixtureRequest) -> str:
    """Each engine in turn."""
    return str(request.param)


@pytest.fixture
def server(kind: str, server_of: Callable[[str], EngineServer]) -> EngineServer:
    """The server of an engine, which others use, too: do not stop it."""
    return server_of(kind)


@pytest.fixture(scope="session")
def shared_etcd_ensemble() -> Iterator[EtcdEnsemble]:
    """Three servers of etcd for the whole run."""
    try:
        servers = EtcdEnsemble()
    except ServerMissing as missing:
        _do_without(missing)
    with servers:
        yield servers


@pytest.fixture
def etcd_ensemble(shared_etcd_ensemble: EtcdEnsemble) -> EtcdEnsemble:
    """Three servers of etcd, which a test may stop: all of them run when it begins."""
    shared_etcd_ensemble.mend()
    return shared_etcd_ensemble


@pytest.fixture
async def open_at() -> AsyncIterator[OpenEngine]:
    """Open engines at addresses; they are closed after the test."""
    async with AsyncExitStack() as stack:

        def opened(url: str, node: str = "test") -> Engine:
            engine = open_engine(url, clock=Clock(node=node), node=node)
            stack.push_async_callback(engine.close)
            return engine

        yield opened


@pytest.fixture
def url(server: EngineServer) -> str:
    """The address of an empty engine: one with a prefix that nobody has used."""
    return server.url(prefix=f"test-{next(PREFIXES)}/")


@pytest.fixture
def engine(url: str, open_at: OpenEngine) -> Engine:
    """An engine of this test's own."""
    return open_at(url)


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    """A Redis for the whole run."""
    try:
        server = RedisServer()
    except ServerMissing as missing:
        _do_without(missing)
    with server:
        yield server


@pytest.fixture
def redis(shared_redis: RedisServer) -> RedisServer:
    """A Redis that runs, is empty, and that a test may torment."""
    shared_redis.mend()
    return shared_redis


@pytest.fixture(scope="session")
def transport_server() -> Iterator[Callable[[str], TransportServer]]:
    """Start the server of a kind of transport, once for the whole run."""
    started: dict[str, TransportServer] = {}

    def server_of(kind: str) -> TransportServer:
        try:
            return start_server(kind, started)
        except ServerMissing as missing:
            _do_without(missing)

    yield server_of
    for server in started.values():
        server.close()
