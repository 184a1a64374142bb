"""Locks on ZooKeeper: an ephemeral sequential node for each who tries; the lowest is the holder's.

    /headway/scheduler%2F0/node_01h…~5f3a~0000000007      name, holder, attempt, and the number that ZooKeeper gives

The token is the transaction that made the node, a number that only grows over the whole of ZooKeeper. Who is not the
lowest takes his node away again, so nothing is left of somebody who has stopped trying. A watch on the name wakes him;
`/headway` itself is a bell, which whoever gives a lock back rings by writing to it, for those who have not tried yet.

The *session* is the lease: when it ends, its nodes are gone. The client keeps it alive from a thread of its own, so it
would also live while our loop hangs, and for a lock that nobody renews. Another thread therefore takes away what was
not renewed in time. It also takes away nodes of which we never heard whether they were made.

A session lasts nine tenths of the lease: longer than its holder trusts it, and short enough that ZooKeeper, which looks
once per tick, gives it away in time. There is one session for leases of about the same length. The server limits how
short and how long sessions can be (from 2 to 20 ticks, a tick is 2 s, unless told otherwise), and does not say so.
A shorter lease is given away late after a crash. A longer one ends with the session, which its holder learns with the
next renewal; so let the server's `maxSessionTimeout` be as long as the longest lease.

A renewal writes to the node: a server that is cut off from the others would answer a mere look from memory.
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
CONNECTED_S_MAX: Final = 2.0  # A session that is suspended is mostly back sooner, at another server.
CONNECT_S_MAX: Final = 1.5  # For one endpoint; then the next one is tried.
CLOSE_S_MAX: Final = 3.0
LOOK_S: Final = 0.02
SWEEP_AGAIN_S: Final = 0.5
CREATIONS_MAX: Final = 5
_NODE: Final = re.compile(r"(?P<mark>.*~[0-9a-f]+)~(?P<number>[0-9]{10})")
_DEAD: Final = (KeeperState.CLOSED, KeeperState.AUTH_FAILED)

logging.getLogger("kazoo").addHandler(logging.NullHandler())  # What it has to say is told by our own events.


@dataclass(slots=True)
class _Held:
    """A lock of ours, and until when it stays without a renewal."""

    client: KazooClient
    path: str
    until: float


@dataclass(frozen=True, slots=True)
class _Stray:
    """A node of ours that shall go, should it be there."""

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
        self._changed = threading.Condition()  # Guards what is held and what strays, which two threads look at.
        self._sweeper: threading.Thread | None = None
        self._closed = threading.Event()
        self._hear: Callable[[], None] | None = None

    async def acquire(self, name: str, *, holder: str, duration: Duration) -> int | None:
        """Take a lock that is free, has run out or is the holder's own."""
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
        for node in [node for node in nodes if node.startswith(owner)]:  # Of a try that we never heard the end of.
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
        except BaseException:  # It is not known whether there is a node, and nobody may ask for it again.
            self._sweep(_Stray(client, folder, mark))
            raise
        with self._changed:
            self._held[name, holder] = _Held(client, path, self._end_of(duration))
        self._sweep()
        return token

    async def renew(self, names: Iterable[str], *, holder: str, duration: Duration) -> frozenset[str]:
        """Extend those locks that are still the holder's."""
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
        """Give back those locks that are the holder's."""
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
        """End every session; what is held is free then."""
        self._hear = None
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
        clients, self._clients = list(self._clients.values()), {}
        # Not in the loop's own threads, for which a program waits when it ends: a server may be silent for long.
        ending = [threading.Thread(target=_end, args=(client,), daemon=True) for client in clients]
        for thread in ending:
            thread.start()
        until, never = self._clock.monotonic() + CLOSE_S_MAX, asyncio.Event()
        while any(thread.is_alive() for thread in ending) and self._clock.monotonic() < until:
            await self._clock.rest(LOOK_S, never)

    # --- sessions

    def _client(self, duration: Duration) -> KazooClient:
        """Return the client whose session is right for leases of this length."""
        lease_s = duration / SECOND
        fitting = [timeout_s for timeout_s in self._clients if (1 - LEASE_MARGIN) * lease_s <= timeout_s <= lease_s]
        timeout_s = fitting[0] if fitting else (1 - LEASE_MARGIN / 2) * lease_s
        client = self._clients.get(timeout_s)
        if client is None:
            client = self._clients[timeout_s] = self._start(timeout_s)
        return client

    def _start(self, timeout_s: float) -> KazooClient:
        if self._closed.is_set():
            raise EngineUnavailable("zookeeper is not used any more: the engine is closed")
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
            if client.client_state in _DEAD:  # It does not connect again by itself; the next who asks makes another.
                self._clients.pop(timeout_s, None)
            elif state == KazooState.CONNECTED:
                client.exists_async(self._root, watch=listen)
            self._ring()

        def listen(event: WatchedEvent) -> None:
            if event.type != EventType.NONE:  # Else the connection is lost, and all watches with it.
                client.exists_async(self._root, watch=listen)
            self._ring()

        client.add_listener(note)
        client.start_async()
        return client

    async def _connected(self, *clients: KazooClient) -> None:
        """Wait until sessions can be used; one that is suspended cannot."""
        until, never = self._clock.monotonic() + CONNECTED_S_MAX, asyncio.Event()
        while any(client.state != KazooState.CONNECTED for client in clients):
            if self._clock.monotonic() >= until:
                raise EngineUnavailable(f"zookeeper cannot be reached at {self._where()}")
            await self._clock.rest(LOOK_S, never)

    @asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        """Give everything that is asked in a block a few seconds, all together."""
        try:
            async with asyncio.timeout(CALL_S_MAX):
                yield
        except TimeoutError:
            raise EngineUnavailable(f"zookeeper does not answer at {self._where()}") from None

    def _where(self) -> str:
        return ", ".join(_host_port(*endpoint) for endpoint in self._address.endpoints)

    def _ring(self, *_: object) -> None:
        """Wake who waits; called by threads of the client, with whatever has happened."""
        if self._hear is not None:
            self._hear()

    # --- nodes

    async def _extend(self, key: tuple[str, str], held: _Held, duration: Duration) -> int | None:
        """Write to our node, if it is still there; return the number of this transaction, None when it is lost."""
        try:
            stat = await self._ask(held.client.set_async(held.path, self._label))
        except (NoNodeError, SessionExpiredError):
            with self._changed:
                if self._held.get(key) is held:
                    del self._held[key]
            return None
        with self._changed:
            if self._held.get(key) is not held:  # It was too late: the sweeper is taking it away.
                return None
            held.until = self._end_of(duration)
            return int(stat.mzxid)

    async def _nodes(self, client: KazooClient, folder: str) -> list[str]:
        """List who tries for a name, and be told when that changes."""
        try:
            nodes: list[str] = await self._ask(client.get_children_async(folder, watch=self._ring))
        except NoNodeError:
            return []
        except SessionExpiredError as error:
            raise _unavailable(error) from error
        return [node for node in nodes if _NODE.fullmatch(node)]

    async def _create(self, client: KazooClient, path: str) -> tuple[int, str]:
        """Make our node. It is one request: whoever asks after it sees whether it was done. The folder is another."""
        try:
            for _ in range(CREATIONS_MAX):
                try:
                    made, stat = await self._ask(
                        client.create_async(path, self._label, ephemeral=True, sequence=True, include_data=True)
                    )
                    return int(stat.czxid), str(made)
                except NoNodeError:  # Nobody has had this lock, or who released it took the empty folder away.
                    await self._ask(client.ensure_path_async(path.rpartition("/")[0]))
        except SessionExpiredError as error:
            raise _unavailable(error) from error
        raise EngineUnavailable("zookeeper loses the folder of a lock again and again")

    async def _delete(self, client: KazooClient, path: str) -> None:
        """Delete a node, or a folder that is empty."""
        with contextlib.suppress(NoNodeError, NotEmptyError, SessionExpiredError):
            await self._ask(client.delete_async(path))

    async def _ask(self, result: Any) -> Any:
        """Wait for what the client's thread brings."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[None] = loop.create_future()

        def put() -> None:
            if not arrived.done():  # Who asked may have lost patience.
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

    # --- what is not renewed

    def _end_of(self, duration: Duration) -> float:
        return self._clock.monotonic() + duration / SECOND

    def _sweep(self, *strays: _Stray) -> None:
        """Have nodes taken away, as soon as that is possible, and see to it that locks run out."""
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
    """Threads of the client, which connect in our way: soon tired of an endpoint, and with our own rules for TLS."""

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
        """Wait for something to happen. Who waits for one connection alone wants the rest of a message, or its first.

        The client would wait for that as long as a session lasts, also for the greeting of a server that took the
        connection while it was starting, and has forgotten about it.
        """
        is_in_message = len(rlist) + len(wlist) == 1
        limit_s = min(timeout, CALL_S_MAX) if is_in_message and timeout is not None else timeout
        return super().select(rlist, wlist, xlist, limit_s)


def _take_away(stray: _Stray) -> bool:
    """Delete a node of ours; False when that must be tried again."""
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
    """Write any text as the name of one node."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _end(client: KazooClient) -> None:
    client.stop()
    client.close()


def _unavailable(error: KazooException) -> EngineUnavailable:
    if isinstance(error, NoAuthError):
        return EngineUnavailable("zookeeper does not let this user make or change nodes below this prefix")
    return EngineUnavailable(f"zookeeper cannot be used: {' '.join(str(error).split()) or type(error).__name__}")
