"""Outbound requests to URLs from users, with protection against SSRF.

A user who may set a URL could make this process connect to hosts that only it can reach: a database beside it, the
metadata service of its cloud, itself. So the host is resolved once, each of its addresses is checked, and the
connection goes to exactly those: a later change of the name (DNS rebinding) has no effect. The socket factory checks
the address again, so nothing depends on two libraries parsing a URL alike. Redirects are not followed, and proxies from
the environment are not used. Only the status code of the response counts; a part of the body is read, so that the
receiver can finish, and discarded.
"""

import asyncio
import ipaddress
import os
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

from headway.core.backoff import retry_after
from headway.core.clock import Clock
from headway.core.instants import SECOND
from headway.core.urls import Allowed, IPAddress, NotAllowed, vetted

if TYPE_CHECKING:
    import aiohttp

SEND_S_MAX: Final = 10.0
READ_BYTES_MAX: Final = 64 * 1024
READ_S_MAX: Final = 1.0  # The status is known by then; nothing else is needed.
RESOLVERS_MAX: Final = 32

Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """The outcome of a request: a status code, or why there is none. `is_final`: a retry would not help."""

    took_ms: int
    code: int | None = None
    error: str | None = None
    retry_after_s: int | None = None
    is_final: bool = False

    @property
    def is_good(self) -> bool:
        """Return whether the receiver accepted it."""
        return self.code is not None and 200 <= self.code < 300


class Sender:
    """Posts to URLs from users. One per process; `close` ends its threads."""

    def __init__(
        self,
        clock: Clock,
        allow: Iterable[str] = (),
        *,
        resolve: Resolve | None = None,
        trust: ssl.SSLContext | None = None,
        seconds_max: float = SEND_S_MAX,
    ) -> None:
        self._clock = clock
        self._allowed = Allowed.read(allow)
        # Its own threads: a name server that does not answer must not block other users of the default executor.
        self._threads = ThreadPoolExecutor(RESOLVERS_MAX, thread_name_prefix="headway-resolver")
        self._resolve = resolve or self._ask_system
        self._trust = trust
        self._seconds_max = seconds_max

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> SendResult:
        """Post a body to a checked URL. Failures are outcomes too; it does not raise."""
        await self._get_ready()
        began = self._clock.monotonic()
        code: int | None = None
        error: str | None = None
        wait_s: int | None = None
        is_final = False
        try:
            async with asyncio.timeout(self._seconds_max):
                code, wait_s = await self._exchange(url, body, headers)
        except TimeoutError:
            error = f"no answer within {self._seconds_max:g} s"
        except NotAllowed as refused:
            error, is_final = str(refused), _is_literal(url)
        except Exception as problem:
            error = _describe(problem)
            if error is None:
                raise
        took_ms = round((self._clock.monotonic() - began) * 1_000)
        return SendResult(took_ms=took_ms, code=code, error=error, retry_after_s=wait_s, is_final=is_final)

    async def _get_ready(self) -> None:
        """Import the HTTP client, which is slow the first time: in a thread, and before the timeout starts."""
        if "aiohttp" not in sys.modules:
            await asyncio.get_running_loop().run_in_executor(self._threads, import_module, "aiohttp")

    async def _exchange(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, int | None]:
        import aiohttp  # Slow to import, and not needed to only check a URL.

        parts = urlsplit(url)
        assert parts.hostname is not None
        port = parts.port or (443 if parts.scheme == "https" else 80)
        addresses = vetted(parts.hostname, await self._find(parts.hostname, port), self._allowed)
        connector = aiohttp.TCPConnector(
            resolver=_pinned(addresses),
            use_dns_cache=False,
            force_close=True,
            socket_factory=lambda info: _socket(info, addresses),
            ssl=self._trust or True,
        )
        async with (
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),  # Our own timeout covers the whole request.
                auto_decompress=False,
                trust_env=False,
                read_bufsize=READ_BYTES_MAX // 2,
            ) as session,
            session.post(
                url,
                data=body,
                headers={**headers, "Accept-Encoding": "identity", "User-Agent": "headway"},
                allow_redirects=False,
            ) as response,
        ):
            await _drain(response)
            response.close()
            wait = retry_after(response.headers.get("Retry-After"), response.headers.get("Date"), now=self._clock.now())
            return response.status, None if wait is None else wait // SECOND

    async def _find(self, host: str, port: int) -> list[str]:
        try:
            return [str(ipaddress.ip_address(host))]
        except ValueError:
            return await self._resolve(host, port)

    async def _ask_system(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return [str(info[4][0]) for info in found]

    def close(self) -> None:
        """End the resolver threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _pinned(addresses: tuple[IPAddress, ...]) -> "aiohttp.abc.AbstractResolver":
    """Make a resolver that returns the checked addresses for any name."""
    from aiohttp.abc import AbstractResolver, ResolveResult

    class Pinned(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            return [
                ResolveResult(
                    hostname=host,
                    host=str(address),
                    port=port,
                    family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                    proto=socket.IPPROTO_TCP,
                    flags=socket.AI_NUMERICHOST,
                )
                for address in addresses
            ]

        async def close(self) -> None:
            """Do nothing: there is nothing to close."""

    return Pinned()


def _socket(info: tuple[Any, ...], addresses: tuple[IPAddress, ...]) -> socket.socket:
    """Create the socket for a connection; raise an error for an address that was not checked."""
    family, kind, protocol, _, place = info
    if ipaddress.ip_address(place[0]) not in addresses:
        raise NotAllowed("the host resolves to an address to which nothing is sent: not checked")
    return socket.socket(family, kind, protocol)


async def _drain(response: "aiohttp.ClientResponse") -> None:
    """Read and discard a part of the body, so that the receiver can finish normally."""
    import aiohttp

    left = READ_BYTES_MAX
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(READ_S_MAX):
            while left > 0 and (chunk := await response.content.read(left)):
                left -= len(chunk)


def _is_literal(url: str) -> bool:
    try:
        ipaddress.ip_address(urlsplit(url).hostname or "")
    except ValueError:
        return False
    return True


def _describe(problem: Exception) -> str | None:
    """Describe an error without details of the internal network; None for a bug of ours."""
    import aiohttp

    match problem:
        case socket.gaierror():
            return "the host name cannot be resolved"
        case aiohttp.ClientConnectorCertificateError():
            return "the TLS certificate of the host is not trusted"
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return "the TLS handshake failed"
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed without a response"
        case aiohttp.ClientResponseError() | aiohttp.ClientPayloadError():
            return "the response was not valid HTTP"
        case aiohttp.ClientOSError():  # Its own message contains addresses.
            return os.strerror(problem.errno).lower() if problem.errno else "no connection could be made"
        case OSError():
            return str(problem) or "no connection could be made"
        case aiohttp.ClientError() | ValueError():
            return f"nothing could be sent ({type(problem).__name__})"
    return None
