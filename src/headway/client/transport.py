"""Execute the steps of a call: with the standard library for blocking callers, with aiohttp for asynchronous ones.

The token appears in the headers of requests and nowhere else: not in errors, and not in `repr`. Redirects are not
followed, so only the configured server receives it.
"""

import asyncio
import http.client
import os
import select
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import SplitResult, urlsplit

from headway.client.requests import (
    ANSWER_BYTES_MAX,
    Effect,
    Flow,
    Give,
    Open,
    Read,
    Reply,
    Request,
    Rest,
    Send,
    Steps,
    Terms,
    Unreached,
)
from headway.core.clock import Clock
from headway.core.errors import InvalidConfig
from headway.core.instants import SECOND, DurationLike, parse_duration

if TYPE_CHECKING:
    import aiohttp

SERVER_DEFAULT: Final = "http://127.0.0.1:8480"
IDLE_MAX: Final = 10
CHUNK_BYTES: Final = 64 << 10
CONNECT_S_MAX: Final = 10.0

T = TypeVar("T")


class ServerUrl:
    """The address of the server, and the credential."""

    def __init__(self, url: str | None, token: str | None) -> None:
        self.url = _checked_url(url or os.environ.get("HEADWAY_SERVER") or SERVER_DEFAULT)
        token = token or os.environ.get("HEADWAY_TOKEN") or None
        if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
            raise InvalidConfig("the token contains invalid characters")
        self._token = token

    @property
    def base(self) -> str:
        """The address as text, without credentials."""
        return self.url.geturl().rstrip("/")

    @property
    def prefix(self) -> str:
        """The path under which the API is mounted, without a slash at the end."""
        return self.url.path.rstrip("/")

    def headers(self, request: Request) -> dict[str, str]:
        """Return the headers of a request."""
        headers = {"Accept": "application/json", "User-Agent": "headway-client", **request.headers}
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers


def _checked_url(text: str) -> SplitResult:
    try:
        url = urlsplit(text.strip())
        port = url.port
    except ValueError:
        raise InvalidConfig("the address of the server is not a valid URL") from None
    if "@" in url.netloc:
        raise InvalidConfig("the address of the server must not contain a password; pass the token separately")
    if url.scheme not in ("http", "https") or not url.hostname or port == 0 or url.query or url.fragment:
        raise InvalidConfig(f"the address of the server must look like {SERVER_DEFAULT}, not {text[:60]!r}")
    if not text.isprintable() or not url.geturl().isascii() or " " in url.geturl():
        raise InvalidConfig("the address of the server contains invalid characters")
    return url


class Wire:
    """The settings that both kinds of clients share."""

    def __init__(
        self,
        server: str | None,
        token: str | None,
        *,
        timeout: DurationLike,
        retry_for: DurationLike,
        clock: Clock | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.address = ServerUrl(server, token)
        self.timeout_s = parse_duration(timeout, what="timeout") / SECOND
        self.clock = clock or Clock()
        self.terms = Terms(self.clock, parse_duration(retry_for, what="retry_for") / SECOND)
        self.tls = tls

    def limit_s(self, request: Request) -> float:
        """Return the timeout of a request."""
        return self.timeout_s if request.timeout_s is None else max(self.timeout_s, request.timeout_s)

    def unreached(self, error: BaseException | str, *, was_sent: bool) -> Unreached:
        """Return the outcome of a request without a response, with the reason."""
        words = error if isinstance(error, str) else _reason(error)
        return Unreached(f"{self.address.base} does not answer: {words}", was_sent)


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split())[:200] or type(error).__name__


def _too_large() -> str:
    return f"its response has more than {ANSWER_BYTES_MAX >> 20} MiB"


# --- blocking


class BlockingWire(Wire):
    """A thread-safe pool of connections of the standard library."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def run(self, steps: Steps[T]) -> T:
        """Execute a call; return its result."""
        hand = _BlockingHand(self)
        outcome: Any = None
        try:
            while True:
                outcome = hand.do(steps.send(outcome))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            hand.close()

    def iterate(self, flow: Flow[T]) -> Iterator[T]:
        """Execute a call that yields items."""
        hand = _BlockingHand(self)
        outcome: Any = None
        try:
            while True:
                effect = flow.send(outcome)
                if isinstance(effect, Give):
                    yield effect.item
                    outcome = None
                else:
                    outcome = hand.do(effect)
        except StopIteration:
            return
        finally:
            hand.close()

    def take(self, request: Request) -> http.client.HTTPConnection:
        """Return a connection. A request that must not be sent twice gets a new one.

        The server may just be closing an idle one, and then it would be unknown whether the request arrived.
        """
        with self._lock:
            if self._pid != os.getpid():  # A fork must not share the connections of its parent.
                self._idle, self._pid = [], os.getpid()
            while self._idle and request.may_be_repeated:
                idle = self._idle.pop()
                if not _has_ended(idle):
                    return idle
                idle.close()
        url = self.address.url
        assert url.hostname is not None
        if url.scheme == "https":
            context = self.tls or ssl.create_default_context()
            return http.client.HTTPSConnection(url.hostname, url.port, timeout=CONNECT_S_MAX, context=context)
        return http.client.HTTPConnection(url.hostname, url.port, timeout=CONNECT_S_MAX)

    def give_back(self, connection: http.client.HTTPConnection) -> None:
        """Return a connection to the pool after its response was read completely."""
        with self._lock:
            if connection.sock is not None and len(self._idle) < IDLE_MAX and self._pid == os.getpid():
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class _BlockingHand:
    """Executes the steps of one call."""

    def __init__(self, wire: BlockingWire) -> None:
        self._wire = wire
        self._stream: tuple[http.client.HTTPConnection, http.client.HTTPResponse] | None = None

    def do(self, effect: Effect) -> Any:
        match effect:
            case Send(request):
                return self._send(request)
            case Open(request):
                return self._open(request)
            case Read(timeout_s):
                return self._read(timeout_s)
            case Rest(seconds):
                return self._wire.clock.nap(seconds)
            case _:
                return self._wire.terms

    def _send(self, request: Request) -> Reply | Unreached:
        until = self._wire.clock.monotonic() + self._wire.limit_s(request)
        begun = self._begin(request, self._wire.limit_s(request))
        if isinstance(begun, Unreached):
            return begun
        connection, response = begun
        try:
            body = self._body(connection, response, until)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return self._wire.unreached(error, was_sent=True)
        if isinstance(body, Unreached) or response.will_close:
            connection.close()
        else:
            self._wire.give_back(connection)
        return body if isinstance(body, Unreached) else Reply(response.status, _headers(response), body)

    def _open(self, request: Request) -> Reply | Unreached:
        self.close()
        begun = self._begin(request, self._wire.limit_s(request))
        if isinstance(begun, Unreached):
            return begun
        connection, response = begun
        if response.status != 200:
            try:
                body = self._body(connection, response, self._wire.clock.monotonic() + self._wire.timeout_s)
            except (OSError, http.client.HTTPException) as error:
                body = self._wire.unreached(error, was_sent=True)
            connection.close()
            return body if isinstance(body, Unreached) else Reply(response.status, _headers(response), body)
        self._stream = begun
        return Reply(response.status, _headers(response))

    def _begin(
        self, request: Request, limit_s: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse] | Unreached:
        """Send a request and read the headers of its response."""
        connection = self._wire.take(request)
        try:
            if connection.sock is None:
                connection.timeout = min(CONNECT_S_MAX, limit_s)
                connection.connect()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return self._wire.unreached(error, was_sent=False)
        try:
            connection.sock.settimeout(limit_s)
            target = self._wire.address.prefix + request.target
            connection.request(request.method, target, request.body, self._wire.address.headers(request))
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return self._wire.unreached(error, was_sent=True)

    def _body(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, until: float
    ) -> bytes | Unreached:
        body = bytearray()
        while chunk := response.read1(CHUNK_BYTES):
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                return self._wire.unreached(_too_large(), was_sent=True)
            left_s = until - self._wire.clock.monotonic()
            if left_s <= 0:
                return self._wire.unreached(TimeoutError(), was_sent=True)
            if connection.sock is not None:
                connection.sock.settimeout(left_s)
        # Truncated headers look like headers without Content-Length; then there is no body.
        is_cut = bool(response.length) or (response.length is None and not response.chunked and not body)
        response.close()  # Otherwise the connection could not be reused.
        return self._wire.unreached("its response was cut off", was_sent=True) if is_cut else bytes(body)

    def _read(self, timeout_s: float) -> bytes | Unreached:
        if self._stream is None:
            return b""
        connection, response = self._stream
        try:
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            return response.read1(CHUNK_BYTES)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()  # No longer read: a caller that polls from now on must not hold a stream open.
            return self._wire.unreached(error, was_sent=True)

    def close(self) -> None:
        if self._stream is not None:
            connection, response = self._stream
            self._stream = None
            response.close()
            connection.close()


def _has_ended(connection: http.client.HTTPConnection) -> bool:
    """Return whether the server has closed an idle connection, or sent unexpected data."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _headers(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


# --- asynchronous


class AwaitingWire(Wire):
    """An aiohttp session, created on first use in the running loop."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._session: aiohttp.ClientSession | None = None

    async def run(self, steps: Steps[T]) -> T:
        """Execute a call; return its result."""
        hand = _AwaitingHand(self)
        outcome: Any = None
        try:
            while True:
                try:
                    effect = steps.send(outcome)
                except StopIteration as end:
                    result: T = end.value
                    return result
                outcome = await hand.do(effect)
        finally:
            hand.close()

    async def iterate(self, flow: Flow[T]) -> AsyncIterator[T]:
        """Execute a call that yields items."""
        hand = _AwaitingHand(self)
        outcome: Any = None
        try:
            while True:
                try:
                    effect = flow.send(outcome)
                except StopIteration:
                    return
                if isinstance(effect, Give):
                    yield effect.item
                    outcome = None
                else:
                    outcome = await hand.do(effect)
        finally:
            hand.close()

    def session(self) -> "aiohttp.ClientSession":
        """Return the session."""
        if self._session is None or self._session.closed:
            import aiohttp

            connector = aiohttp.TCPConnector(limit=0, ssl=self.tls or True)
            self._session = aiohttp.ClientSession(
                connector=connector, auto_decompress=True, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()


class _AwaitingHand:
    """Executes the steps of one call."""

    def __init__(self, wire: AwaitingWire) -> None:
        self._wire = wire
        self._stream: aiohttp.ClientResponse | None = None
        self._nothing = asyncio.Event()

    async def do(self, effect: Effect) -> Any:
        match effect:
            case Send(request):
                return await self._send(request)
            case Open(request):
                return await self._open(request)
            case Read(timeout_s):
                return await self._read(timeout_s)
            case Rest(seconds):
                return await self._wire.clock.rest(seconds, self._nothing)
            case _:
                return self._wire.terms

    async def _send(self, request: Request) -> Reply | Unreached:
        return await self._guarded(request, self._whole)

    async def _open(self, request: Request) -> Reply | Unreached:
        self.close()
        return await self._guarded(request, self._head)

    async def _guarded(
        self, request: Request, take: "Callable[[aiohttp.ClientResponse], Awaitable[Reply | Unreached]]"
    ) -> Reply | Unreached:
        """Send a request and receive its response; return `Unreached` with the reason if there is none."""
        import aiohttp

        try:
            async with asyncio.timeout(self._wire.limit_s(request)):
                return await take(await self._begin(request))
        except aiohttp.ClientConnectorError as error:
            return self._wire.unreached(error.os_error, was_sent=False)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return self._wire.unreached(error, was_sent=True)

    async def _begin(self, request: Request) -> "aiohttp.ClientResponse":
        import aiohttp
        from yarl import URL

        address = self._wire.address
        return await self._wire.session().request(
            request.method,
            URL(address.base + request.target, encoded=True),
            data=request.body,
            headers=address.headers(request),
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S_MAX),
        )

    async def _whole(self, response: "aiohttp.ClientResponse") -> Reply | Unreached:
        async with response:
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > ANSWER_BYTES_MAX:
                    response.close()
                    return self._wire.unreached(_too_large(), was_sent=True)
            return Reply(response.status, _small(response.headers), bytes(body))

    async def _head(self, response: "aiohttp.ClientResponse") -> Reply | Unreached:
        if response.status != 200:
            return await self._whole(response)
        self._stream = response
        return Reply(response.status, _small(response.headers))

    async def _read(self, timeout_s: float) -> bytes | Unreached:
        import aiohttp

        if self._stream is None:
            return b""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._stream.content.readany()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.close()  # As above.
            return self._wire.unreached(error, was_sent=True)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _small(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
