"""Every engine on a real server. One whose program or client is missing is skipped, except where CI is set."""

import importlib
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import NoReturn, Protocol, Self

import pytest

from headway.clock import Clock
from headway.coordination.engines import open_engine
from headway.ports import Engine
from tests.support.redis import RedisServer
from tests.support.server import ServerMissing
from tests.support.transports import TransportServer, start_server

# Where the server of each engine is to be found.
SERVERS = {
    "redis": "tests.support.redis:RedisServer",
    "etcd": "tests.support.etcd:EtcdServer",
    "zookeeper": "tests.support.zookeeper:ZookeeperServer",
    "consul": "tests.support.consul:ConsulServer",
}
PREFIXES = itertools.count(1)

OpenEngine = Callable[..., Engine]


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


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, EngineServer]]:
    """The servers that were started so far, one of each kind for the whole run."""
    started: dict[str, EngineServer] = {}
    yield started
    for server in started.values():
        server.__exit__(None, None, None)


@pytest.fixture(params=list(SERVERS))
def kind(request: pytest.FixtureRequest) -> str:
    """Each engine in turn."""
    return str(request.param)


@pytest.fixture
def server(kind: str, servers: dict[str, EngineServer]) -> EngineServer:
    """The server of an engine, which others use, too: do not stop it."""
    if kind not in servers:
        servers[kind] = make_server(kind).__enter__()
    return servers[kind]


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


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis of this test's own, which it may torment."""
    try:
        server = RedisServer()
    except ServerMissing as missing:
        _do_without(missing)
    with server:
        yield server


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
