"""A proxy to a server that simulates a bad network: slow, cut, silent, in one direction or in both.

    with Proxies() as proxies:
        link = proxies.to(server.port)          # clients connect to link.port
        link.set(BLACK_HOLE)                    # established connections hang, and continue when it is over
        link.set(CLEAR)

Delayed data is not lost. It arrives when the link is clear again, even if its sender has ended: that is how statements
of dead processes reach a database. Where responses are lost, the connection is reset when responses pass again, since a
part of them is missing.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self, TypeVar

from tests.support.server import free_port

CHUNK = 1 << 16
CONNECTIONS_MAX = 500
ANSWER_S_MAX = 90.0  # A timeout against hanging; the calls here take no time.
PORTS_MAX = 20
LEAVE_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: the peer gets a reset.

T = TypeVar("T")


class Way(Enum):
    """What happens to data in one direction."""

    PASS = "passes"
    HOLD = "is held back"
    DROP = "is lost"


@dataclass(frozen=True, slots=True)
class Weather:
    """The state of a link: `up` is from the client to the server."""

    up: Way = Way.PASS
    down: Way = Way.PASS
    delay_s: float = 0.0
    is_refused: bool = False


CLEAR = Weather()
BLACK_HOLE = Weather(up=Way.HOLD, down=Way.HOLD)
MUTE = Weather(up=Way.HOLD)
DEAF = Weather(down=Way.HOLD)
LOST_ANSWERS = Weather(down=Way.DROP)
REFUSED = Weather(is_refused=True)


def slow(delay_s: float) -> Weather:
    """Return the state in which everything is delayed by this time."""
    return Weather(delay_s=delay_s)


@dataclass(slots=True, eq=False)
class _Connection:
    """Both halves of one connection."""

    ends: list[asyncio.StreamWriter] = field(default_factory=list)
    is_torn: bool = False

    def cut(self) -> None:
        """Reset both halves, whatever is in flight."""
        for end in self.ends:
            sock = end.get_extra_info("socket")
            if sock is not None and not end.transport.is_closing():
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LEAVE_AT_ONCE)
            end.transport.abort()


class Link:
    """One route to one server. Its methods may be called from any thread."""

    def __init__(self, proxies: "Proxies", target: int) -> None:
        self.port = free_port()
        self.target = target
        self._proxies = proxies
        self._weather = CLEAR
        self._changed = asyncio.Event()
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    @property
    def weather(self) -> Weather:
        """Return the current state."""
        return self._weather

    @property
    def torn(self) -> int:
        """Return how many open connections have lost data."""
        return sum(connection.is_torn for connection in list(self._connections))

    def set(self, weather: Weather) -> None:
        """Change the state, for open and new connections."""
        self._proxies.do(self._set(weather))

    def cut(self) -> None:
        """Reset every open connection; new ones work."""
        self._proxies.do(self._cut())

    async def listen(self) -> None:
        """Accept connections."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def open(self) -> None:
        """Accept connections for the first time, on a port that is still free."""
        for _ in range(PORTS_MAX - 1):
            try:
                await self.listen()
            except OSError:
                self.port = free_port()
            else:
                return
        await self.listen()

    async def _set(self, weather: Weather) -> None:
        before, self._weather = self._weather, weather
        if weather.is_refused and self._server is not None:
            self._server.close()
            self._server = None
            await self._cut()
        elif not weather.is_refused and self._server is None:
            await self.listen()
        if before.down is Way.DROP and weather.down is not Way.DROP:
            for connection in [found for found in self._connections if found.is_torn]:
                connection.cut()
        self._changed.set()
        self._changed = asyncio.Event()

    async def _cut(self) -> None:
        for connection in list(self._connections):
            connection.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection([writer])
        if len(self._connections) >= CONNECTIONS_MAX:
            connection.cut()
            return
        self._connections.add(connection)
        try:
            await self._held("up")
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
            connection.ends.append(server_writer)
            pumps = [
                asyncio.ensure_future(self._pump("up", reader, server_writer, connection)),
                asyncio.ensure_future(self._pump("down", server_reader, writer, connection)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
            for end in connection.ends:
                end.close()
        except OSError:
            connection.cut()
        finally:
            self._connections.discard(connection)

    async def _pump(
        self, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: _Connection
    ) -> None:
        """Forward data to the other side, as the state allows, up to its end."""
        with contextlib.suppress(OSError):
            while True:
                chunk = await reader.read(CHUNK)
                await self._held(direction)
                if self._weather.delay_s:
                    await asyncio.sleep(self._weather.delay_s)
                if not chunk:
                    return
                if getattr(self._weather, direction) is Way.DROP or connection.is_torn:
                    connection.is_torn = True
                    continue
                writer.write(chunk)
                await writer.drain()

    async def _held(self, direction: str) -> None:
        while getattr(self._weather, direction) is Way.HOLD:
            await self._changed.wait()


class Proxies:
    """All links of a run, on their own thread."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_S_MAX)
        self._loop.close()

    def to(self, port: int) -> Link:
        """Open a link to a server on a loopback port."""
        link = Link(self, port)
        self.do(link.open())
        self.links.append(link)
        return link

    def clear(self) -> None:
        """Clear the state of every link."""
        for link in self.links:
            link.set(CLEAR)

    def do(self, action: Coroutine[Any, Any, T]) -> T:
        """Run something on the thread of the links and wait for it."""
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(ANSWER_S_MAX)

    async def _end(self) -> None:
        for link in self.links:
            await link._set(REFUSED)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
