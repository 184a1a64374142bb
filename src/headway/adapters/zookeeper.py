"""Locks on ZooKeeper: an ephemeral sequential node per contender; the lowest one holds the lock.

    /headway/scheduler%2F0/node_01h…~5f3a~0000000007      name, holder, attempt, and the number that ZooKeeper gives

The token is the transaction id that created the node, a number that only grows over the whole of ZooKeeper. A contender
that is not the lowest deletes its node again, so a contender that gives up leaves nothing behind. A watch on the name
wakes it. `/headway` itself is a bell: a release writes to it, which wakes contenders that have not tried yet.

The *session* is the lease: when it ends, its nodes are deleted. The client keeps it alive from its own thread, so it
would also live while our event loop hangs, and for a lock that is not renewed. Another thread therefore deletes locks
that were not renewed in time, and nodes whose creation was never confirmed.

A session lasts nine tenths of the lease: longer than its holder trusts it, and short enough that ZooKeeper, which
checks once per tick, expires it in time. There is one session for leases of about the same length. The server limits
the session timeout (by default 2 to 20 ticks of 2 s), and does not report the limits. A shorter lease is released late
after a crash. A longer one ends with the session, which its holder learns at the next renewal; so set the server's
`maxSessionTimeout` to the longest lease or more.

A renewal writes to the node: a partitioned server would answer a mere read from memory.
"""

import asyncio
import contextlib
import logging
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError, NoNodeError, NotEmptyError, SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent
from kazoo.security import make_digest_acl

from headway.adapters.adapter_url import AdapterUrl
from headway.core.clock import Clock
from headway.core.errors import EngineUnavailable
from headway.core.instants import SECOND, Duration
from headway.core.nodes import LEASE_MARGIN

PORT: Final = 2181
PREFIX: Final = "headway"
CALL_S_MAX: Final = 3.0
CONNECTED_S_MAX: Final = 2.0  # A suspended session is usually back sooner, at another server.
CONNECT_S_MAX: Final = 1.5  # For one endpoint; then the next one is tried.
CLOSE_S_MAX: Final = 3.0
LOOK_S: Final = 0.02
SWEEP_AGAIN_S: Final = 0.5
CREATIONS_MAX: Final = 5
_NODE: Final = re.compile(r"(?P<mark>.*~[0-9a-f]+)~(?P<number>[0-9]{10})")
_DEAD: Final = (KeeperState.CLOSED, KeeperState.AUTH_FAILED)

logging.getLogger("kazoo").addHandler(logging.NullHandler())  # Our own events replace its log.


@dataclass(slots=True)
class _Held:
    """A lock of ours, and when it expires without a renewal."""

    client: KazooClient
    path: str
    until: float


@dataclass(frozen=True, slots=True)
class _Stray:
    """A node of ours to delete, if it exists."""

    client: KazooClient
    folder: str
    mark: str


class ZookeeperEngine:
    """Locks on one ensemble. The port `Engine` says what its methods promise."""

    name: Final = "zookeeper"

    def __init__(self, url: str, *, clock: Clock, node: str) -> None:
        self._address = address = AdapterUrl.parse(url, port=PORT)
        parts = f"{address.path}/{address.options.get('prefix', PREFIX)}".split("/")
        self._root = "".join(f"/{_safe(part)}" for part in parts if part)
        self._tls = address.tls() if address.scheme == "zookeepers" else None
        self._clock = clock
        self._label = node.encode()
        self._clients: dict[float, KazooClient] = {}
        self._held: dict[tuple[str, str], _Held] = {}
        self._strays: list[_Stray] = []
        self._changed = threading.Condition()  # Guards held locks and strays, which two threads use.
        self._sweeper: threading.Thread | None = None
        self._closed = threading.Event()
        self._hear: Callable[[], None] | None = None

    async def acquire(self, name: str, *, holder: str, duration: Duration) -> int | None:
        """Acquire a lock that is free, has expired or is the holder's own."""
        async with self._patience():
            client = self._client(duration)
            await self._connected(client)
            held = self._held.get((name, holder))
            if held is not None and (token := await self._extend((name, holder), held, duration)) is not None:
                return token
            return await self._try(client, name, holder, duration)

    async def _try(self, client: KazooClient, name: str, holder: str, duration: Duration) -> int | None:
        folder, owner = f"{self._root}/{_safe(name)}", f"{quote(holder, safe='')}~"
        nodes = await self._nodes(client, folder)
        for node in [node for node in nodes if node.startswith(owner)]:  # From an attempt without a response.
            await self._delete(client, f"{folder}/{node}")
        if any(not node.startswith(owner) for node in nodes):
            return None
        mark = f"{owner}{self._clock.chance.getrandbits(64):x}"
        try:
            token, path = await self._create(client, f"{folder}/{mark}~")
            nodes = await self._nodes(client, folder)
            if min(nodes, key=_number, default=None) != path.rpartition("/")[2]:
                await self._delete(client, path)
                return None
        except BaseException:  # It is unknown whether the node exists, and no one may try again.
            self._sweep(_Stray(client, folder, mark))
            raise
        with self._changed:
            self._held[name, holder] = _Held(client, path, self._end_of(duration))
        self._sweep()
        return token

    async def renew(self, names: Iterable[str], *, holder: str, duration: Duration) -> frozenset[str]:
        """Extend the locks that are still the holder's."""
        ours = {name: held for name in names if (held := self._held.get((name, holder)))}
        async with self._patience():
            await self._connected(*self._clients.values())
            extended = await asyncio.gather(
                *(self._extend((name, holder), held, duration) for name, held in ours.items()), return_exceptions=True
            )
        for outcome in extended:
            if isinstance(outcome, BaseException):
                raise outcome
        return frozenset(name for name, token in zip(ours, extended, strict=True) if token is not None)

    async def release(self, names: Iterable[str], *, holder: str) -> None:
        """Release the holder's locks."""
        with self._changed:
            ours = [held for name in names if (held := self._held.pop((name, holder), None))]
        try:
            async with self._patience():
                await self._connected(*self._clients.values())
                for held in ours:
                    await self._delete(held.client, held.path)
                    await self._delete(held.client, held.path.rpartition("/")[0])
                    held.client.set_async(self._root, self._label)  # The bell.
        except BaseException:
            self._sweep(*(_stray(held) for held in ours))
            raise

    async def watch(self, hear: Callable[[], None]) -> None:
        """Call `hear` whenever a lock that was refused may be free, and when the connection comes or goes."""
        loop = asyncio.get_running_loop()

        def hear_from_thread() -> None:
            with contextlib.suppress(RuntimeError):  # The loop may be closed by now.
                loop.call_soon_threadsafe(hear)

        self._hear = hear_from_thread

    async def close(self) -> None:
        """Close every session; this releases all locks."""
        self._hear = None
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
        clients, self._clients = list(self._clients.values()), {}
        # Not in the default executor, which a program joins at exit: a server may be silent for long.
        ending = [threading.Thread(target=_end, args=(client,), daemon=True) for client in clients]
        for thread in ending:
            thread.start()
        until, never = self._clock.monotonic() + CLOSE_S_MAX, asyncio.Event()
        while any(thread.is_alive() for thread in ending) and self._clock.monotonic() < until:
            await self._clock.rest(LOOK_S, never)

    # --- sessions

    def _client(self, duration: Duration) -> KazooClient:
        """Return the client whose session fits leases of this length."""
        lease_s = duration / SECOND
        fitting = [timeout_s for timeout_s in self._clients if (1 - LEASE_MARGIN) * lease_s <= timeout_s <= lease_s]
        timeout_s = fitting[0] if fitting else (1 - LEASE_MARGIN / 2) * lease_s
        client = self._clients.get(timeout_s)
        if client is None:
            client = self._clients[timeout_s] = self._start(timeout_s)
        return client

    def _start(self, timeout_s: float) -> KazooClient:
        if self._closed.is_set():
            raise EngineUnavailable("zookeeper cannot be used: the engine is closed")
        address = self._address
        secured: dict[str, Any] = {}
        if address.user is not None:
            password = address.password or ""
            secured["auth_data"] = [("digest", f"{address.user}:{password}")]
            secured["default_acl"] = [make_digest_acl(address.user, password, all=True)]
        client = KazooClient(
            hosts=",".join(_host_port(*endpoint) for endpoint in address.endpoints),
            timeout=timeout_s,
            handler=_Handler(self._tls),
            connection_retry={"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 1.0},
            **secured,
        )

        def note(state: str) -> None:
            if client.client_state in _DEAD:  # It does not reconnect by itself; the next call makes another one.
                self._clients.pop(timeout_s, None)
            elif state == KazooState.CONNECTED:
                client.exists_async(self._root, watch=listen)
            self._ring()

        def listen(event: WatchedEvent) -> None:
            if event.type != EventType.NONE:  # Otherwise the connection is lost, and all watches with it.
                client.exists_async(self._root, watch=listen)
            self._ring()

        client.add_listener(note)
        client.start_async()
        return client

    async def _connected(self, *clients: KazooClient) -> None:
        """Wait until sessions are connected; a suspended one is not."""
        until, never = self._clock.monotonic() + CONNECTED_S_MAX, asyncio.Event()
        while any(client.state != KazooState.CONNECTED for client in clients):
            if self._clock.monotonic() >= until:
                raise EngineUnavailable(f"zookeeper cannot be reached at {self._where()}")
            await self._clock.rest(LOOK_S, never)

    @asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        """Limit all requests in a block to a few seconds together."""
        try:
            async with asyncio.timeout(CALL_S_MAX):
                yield
        except TimeoutError:
            raise EngineUnavailable(f"zookeeper does not answer at {self._where()}") from None

    def _where(self) -> str:
        return ", ".join(_host_port(*endpoint) for endpoint in self._address.endpoints)

    def _ring(self, *_: object) -> None:
        """Wake the waiting contenders; called by threads of the client for any event."""
        if self._hear is not None:
            self._hear()

    # --- nodes

    async def _extend(self, key: tuple[str, str], held: _Held, duration: Duration) -> int | None:
        """Write to our node, if it still exists; return the transaction id, None if the lock is lost."""
        try:
            stat = await self._ask(held.client.set_async(held.path, self._label))
        except (NoNodeError, SessionExpiredError):
            with self._changed:
                if self._held.get(key) is held:
                    del self._held[key]
            return None
        with self._changed:
            if self._held.get(key) is not held:  # Too late: the sweeper is deleting it.
                return None
            held.until = self._end_of(duration)
            return int(stat.mzxid)

    async def _nodes(self, client: KazooClient, folder: str) -> list[str]:
        """List the contenders for a name, and set a watch."""
        try:
            nodes: list[str] = await self._ask(client.get_children_async(folder, watch=self._ring))
        except NoNodeError:
            return []
        except SessionExpiredError as error:
            raise _unavailable(error) from error
        return [node for node in nodes if _NODE.fullmatch(node)]

    async def _create(self, client: KazooClient, path: str) -> tuple[int, str]:
        """Create our node with one request, so that a later read shows whether it succeeded; its folder is another."""
        try:
            for _ in range(CREATIONS_MAX):
                try:
                    made, stat = await self._ask(
                        client.create_async(path, self._label, ephemeral=True, sequence=True, include_data=True)
                    )
                    return int(stat.czxid), str(made)
                except NoNodeError:  # The first use of this lock, or a release deleted the empty folder.
                    await self._ask(client.ensure_path_async(path.rpartition("/")[0]))
        except SessionExpiredError as error:
            raise _unavailable(error) from error
        raise EngineUnavailable("the folder of a lock in zookeeper is deleted again and again")

    async def _delete(self, client: KazooClient, path: str) -> None:
        """Delete a node, or an empty folder."""
        with contextlib.suppress(NoNodeError, NotEmptyError, SessionExpiredError):
            await self._ask(client.delete_async(path))

    async def _ask(self, result: Any) -> Any:
        """Wait for the result from the client's thread."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[None] = loop.create_future()

        def put() -> None:
            if not arrived.done():  # The caller may have given up.
                arrived.set_result(None)

        def bring(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # The loop may be closed by now.
                loop.call_soon_threadsafe(put)

        result.rawlink(bring)
        try:
            await arrived
            return result.get_nowait()
        except (NoNodeError, NotEmptyError, SessionExpiredError):
            raise
        except KazooException as error:
            raise _unavailable(error) from error

    # --- locks that are not renewed

    def _end_of(self, duration: Duration) -> float:
        return self._clock.monotonic() + duration / SECOND

    def _sweep(self, *strays: _Stray) -> None:
        """Delete strays as soon as possible, and make locks expire that are not renewed."""
        with self._changed:
            self._strays += strays
            if self._sweeper is None and not self._closed.is_set():
                self._sweeper = threading.Thread(target=self._keep_sweeping, name="zookeeper locks", daemon=True)
                self._sweeper.start()
            self._changed.notify_all()

    def _keep_sweeping(self) -> None:
        while True:
            with self._changed:
                if self._closed.is_set():
                    return
                now = self._clock.monotonic()
                for key in [key for key, held in self._held.items() if held.until <= now]:
                    self._strays.append(_stray(self._held.pop(key)))
                strays, self._strays = self._strays, []
            left = [stray for stray in strays if not _take_away(stray)]
            with self._changed:
                self._strays += left
                if self._closed.is_set():
                    return
                ends = [held.until - self._clock.monotonic() for held in self._held.values()]
                rest_s = min([*ends, *([SWEEP_AGAIN_S] if self._strays else [])], default=None)
                self._changed.wait(rest_s)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """The client's threads, with a short timeout per endpoint and our own TLS context."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._tls = tls

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **_: object
    ) -> socket.socket | ssl.SSLSocket:
        """Connect to one endpoint."""
        connection = socket.create_connection(address, min(timeout, CONNECT_S_MAX))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection if self._tls is None else self._tls.wrap_socket(connection, server_hostname=hostname)

    def select(self, rlist: list[Any], wlist: list[Any], xlist: list[Any], timeout: float | None = None) -> Any:
        """Wait for socket events. A wait on one socket alone is for the rest of a message, or for the first one.

        The client would wait for the whole session timeout, also for the greeting of a server that accepted the
        connection while it was starting and then forgot it.
        """
        is_in_message = len(rlist) + len(wlist) == 1
        limit_s = min(timeout, CALL_S_MAX) if is_in_message and timeout is not None else timeout
        return super().select(rlist, wlist, xlist, limit_s)


def _take_away(stray: _Stray) -> bool:
    """Delete a node of ours; return False if that must be tried again."""
    client = stray.client
    if client.client_state in _DEAD:
        return True  # Its session is gone, or soon will be.
    if client.state != KazooState.CONNECTED:
        return False
    try:
        for node in client.get_children_async(stray.folder).get(timeout=CALL_S_MAX):
            if node.startswith(f"{stray.mark}~"):
                client.delete_async(f"{stray.folder}/{node}").get(timeout=CALL_S_MAX)
        client.delete_async(stray.folder).get(timeout=CALL_S_MAX)
    except (NoNodeError, NotEmptyError, SessionExpiredError):
        return True
    except (KazooException, client.handler.timeout_exception):
        return False
    return True


def _stray(held: _Held) -> _Stray:
    folder, _, node = held.path.rpartition("/")
    return _Stray(held.client, folder, node.rpartition("~")[0])


def _number(node: str) -> int:
    return int(node.rpartition("~")[2])


def _safe(name: str) -> str:
    """Encode any text as the name of one node."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _end(client: KazooClient) -> None:
    client.stop()
    client.close()


def _unavailable(error: KazooException) -> EngineUnavailable:
    if isinstance(error, NoAuthError):
        return EngineUnavailable("zookeeper does not let this user create or change nodes below this prefix")
    return EngineUnavailable(f"zookeeper cannot be used: {' '.join(str(error).split()) or type(error).__name__}")
