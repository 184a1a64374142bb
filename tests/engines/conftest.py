"""Run every engine on a real server. Engines whose server or client is missing are skipped, or fail if CI is set.

The product waits a few seconds for a server, and a loaded machine may take longer to answer. So everything in the test
process gets a timeout of one minute (`patience`), except where the timeout itself is tested.
"""

import importlib
import itertools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import NoReturn, Protocol, Self, TypeVar

import pytest

from headway.adapters.engines import open_engine
from headway.core.clock import Clock
from headway.core.errors import EngineUnavailable
from headway.core.ports import Engine
from tests.support.etcd import EtcdEnsemble
from tests.support.processes import is_stopped
from tests.support.redis import RedisServer
from tests.support.server import ServerMissing
from tests.support.transports import TransportServer, start_server
from tests.support.waiting import DEADLINE_S, async_wait_until, wait_until

# The server class of each engine.
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
    """The part of a server that this suite uses."""

    pid: int | None

    def url(self, *, prefix: str = "") -> str:
        """Return its address; each prefix is a separate namespace."""

    def start(self) -> None:
        """Start or restart it."""

    def kill(self) -> None:
        """Kill it, as in a crash."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def make_server(kind: str) -> EngineServer:
    """Create a separate server of an engine, not started yet."""
    module, _, name = SERVERS[kind].partition(":")
    try:
        server: EngineServer = getattr(importlib.import_module(module), name)()
    except (ImportError, ServerMissing) as missing:
        skip_or_fail(missing)
    return server


def skip_or_fail(missing: Exception) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"missing: {missing}")
    pytest.skip(f"missing: {missing}")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> Patience:
    """Raise the timeouts for a loaded machine; return a function that sets those of engines and transports."""

    def set_to(seconds: float) -> None:
        for name in ENGINE_LIMITS:
            monkeypatch.setattr(name, seconds)

    set_to(PATIENT_S)
    for name in OTHER_LIMITS:
        monkeypatch.setattr(name, int(PATIENT_S))
    return set_to


@contextmanager
def frozen(pid: int | None) -> Iterator[None]:
    """Stop a process with all its threads for the duration of a block."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: is_stopped(pid), f"process {pid} to stop")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def acquire_eventually(
    engine: Engine, name: str, holder: str, duration: int, *, within_s: float = DEADLINE_S
) -> int:
    """Acquire a lock as soon as it is free and the engine is available."""

    async def take() -> int | None:
        with suppress(EngineUnavailable):
            return await engine.acquire(name, holder=holder, duration=duration)
        return None

    token = await async_wait_until(take, f"{holder} to get the lock {name!r}", within_s=within_s)
    assert token is not None
    return token


async def is_refused_eventually(engine: Engine, name: str, holder: str, duration: int) -> bool:
    """Request a lock as soon as the engine is available; return whether another holder has it."""
    token = await _call_until_available(lambda: engine.acquire(name, holder=holder, duration=duration))
    return token is None


async def is_kept_eventually(engine: Engine, name: str, holder: str, duration: int) -> bool:
    """Renew a lock as soon as the engine is available; return whether the holder still has it."""
    return name in await _call_until_available(lambda: engine.renew([name], holder=holder, duration=duration))


async def _call_until_available(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until the engine is available."""

    async def attempt() -> list[T]:
        with suppress(EngineUnavailable):
            return [await ask()]
        return []

    return (await async_wait_until(attempt, "an engine to answer"))[0]


@pytest.fixture(scope="session")
def server_of() -> Iterator[Callable[[str], EngineServer]]:
    """Start the server of an engine on first use, once per session. Tests must not stop it."""
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
    """Run the test once per engine."""
    return str(request.param)


@pytest.fixture
def server(kind: str, server_of: Callable[[str], EngineServer]) -> EngineServer:
    """The shared server of an engine. Tests must not stop it."""
    return server_of(kind)


@pytest.fixture(scope="session")
def shared_etcd_ensemble() -> Iterator[EtcdEnsemble]:
    """A cluster of three etcd servers, for the whole session."""
    try:
        servers = EtcdEnsemble()
    except ServerMissing as missing:
        skip_or_fail(missing)
    with servers:
        yield servers


@pytest.fixture
def etcd_ensemble(shared_etcd_ensemble: EtcdEnsemble) -> EtcdEnsemble:
    """A cluster of three etcd servers that a test may stop; all of them run when it begins."""
    shared_etcd_ensemble.mend()
    return shared_etcd_ensemble


@pytest.fixture
async def open_at() -> AsyncIterator[OpenEngine]:
    """Open engines by URL; close them after the test."""
    async with AsyncExitStack() as stack:

        def opened(url: str, node: str = "test") -> Engine:
            engine = open_engine(url, clock=Clock(node=node), node=node)
            stack.push_async_callback(engine.close)
            return engine

        yield opened


@pytest.fixture
def url(server: EngineServer) -> str:
    """The URL of an empty engine, with an unused prefix."""
    return server.url(prefix=f"test-{next(PREFIXES)}/")


@pytest.fixture
def engine(url: str, open_at: OpenEngine) -> Engine:
    """An engine for this test only."""
    return open_at(url)


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    """A Redis server for the whole session."""
    try:
        server = RedisServer()
    except ServerMissing as missing:
        skip_or_fail(missing)
    with server:
        yield server


@pytest.fixture
def redis(shared_redis: RedisServer) -> RedisServer:
    """A running, empty Redis server that a test may break."""
    shared_redis.mend()
    return shared_redis


@pytest.fixture(scope="session")
def transport_server() -> Iterator[Callable[[str], TransportServer]]:
    """Start the server of a transport on first use, once per session."""
    started: dict[str, TransportServer] = {}

    def server_of(kind: str) -> TransportServer:
        try:
            return start_server(kind, started)
        except ServerMissing as missing:
            skip_or_fail(missing)

    yield server_of
    for server in started.values():
        server.close()
