"""Requests to addresses that others name: what may be said to whom, and how much may come back.

Whoever may set a URL could have this process speak to what only it can reach: a database beside it, the metadata of
its cloud, itself. So a host is resolved once, every one of its addresses is vetted, and the connection goes to exactly
those: what the name leads to a moment later does not matter. A second look is taken at the socket itself, so nothing
depends on two libraries reading a URL alike. Redirects are not followed, proxies of the environment not asked; an
answer is its status code, and what else it says is read a little, so that the other side can finish, and forgotten.
"""

import asyncio
import ipaddress
import os
import re
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote as percent_encode
from urllib.parse import urlsplit, urlunsplit

from headway.clock import Clock
from headway.errors import DefinitionError
from headway.instants import quote
from headway.settings import mask_url

if TYPE_CHECKING:
    import aiohttp

SEND_S_MAX: Final = 10.0
READ_BYTES_MAX: Final = 64 * 1024
READ_S_MAX: Final = 1.0  # The status is known by then, and more is not wanted.
URL_LENGTH_MAX: Final = 2_000
ADDRESSES_MAX: Final = 16
RESOLVERS_MAX: Final = 32
_URL_SAFE: Final = "/:?[]@!$&'()*+,;=%~-._"
_LABEL: Final = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
_HOST: Final = re.compile(rf"{_LABEL}(\.{_LABEL}){{0,31}}")
_RETRY_AFTER: Final = re.compile("[0-9]{1,6}")

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]

# Everything that is not an address of somebody else in the public network, and why. The first that fits is named.
REFUSED_NETWORKS: Final[tuple[tuple[Network, str], ...]] = tuple(
    (ipaddress.ip_network(network), why)
    for network, why in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a provider's customers"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "the platform of a cloud"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "for documentation"),
        ("192.88.99.0/24", "a relay of 6to4"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("::ffff:0:0/96", "IPv4 inside of IPv6"),
        ("::ffff:0:0:0/96", "IPv4 inside of IPv6"),
        ("::/96", "IPv4 inside of IPv6"),
        ("64:ff9b::/96", "IPv4 behind NAT64"),
        ("64:ff9b:1::/48", "IPv4 behind NAT64"),
        ("2001::/32", "a Teredo tunnel"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "for documentation"),
        ("2002::/16", "a 6to4 tunnel"),
        ("3fff::/20", "for documentation"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
    )
)
GLOBAL_V6: Final = ipaddress.ip_network("2000::/3")  # All that was ever given to anybody to be reached at.


class NotAllowed(OSError):
    """The address is not one to which anything is sent."""


def check_url(text: object, what: str = "url") -> str:
    """Return a URL in its plain form, or say what is wrong with it; where it leads is looked at when it is used."""
    if not isinstance(text, str) or not 0 < len(text) <= URL_LENGTH_MAX:
        raise DefinitionError(
            f"{what} must be text of at most {URL_LENGTH_MAX} characters, such as https://example.org/"
        )
    shown = quote(mask_url(text))
    if not text.isprintable() or re.search(r'[\s\\<>"{}|^`]', text):
        raise DefinitionError(f"{what} has a character that no URL may have: {shown}")
    if "***" in text:
        raise DefinitionError(f"{what} has *** where a secret was hidden: {shown}")
    try:
        parts = urlsplit(text)
        host, port = _plain_host(parts.hostname or ""), parts.port
    except ValueError as error:
        raise DefinitionError(f"{what} {shown} cannot be read: {error}") from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise DefinitionError(f"{what} must look like https://example.org/hook, not {shown}")
    if "@" in parts.netloc:
        raise DefinitionError(f"{what} {shown} has a password, which everybody who sees it could use")
    place = f"[{host}]" if ":" in host else host
    path, query = (percent_encode(part, safe=_URL_SAFE) for part in (parts.path or "/", parts.query))
    is_usual = port in (None, 80 if parts.scheme == "http" else 443)
    return urlunsplit((parts.scheme, place if is_usual else f"{place}:{port}", path, query, ""))


def _plain_host(text: str) -> str:
    """Return a name or an address as everybody writes it; raise `ValueError` when it is neither."""
    if ":" in text:
        address = ipaddress.IPv6Address(text)
        if address.scope_id is not None:
            raise ValueError("an address with a zone is good on one machine only")
        return str(address)
    host = text.rstrip(".").encode("idna").decode().lower()
    if not _HOST.fullmatch(host):
        raise ValueError("that is no name of a host")
    return host


def target_of(url: str) -> str:
    """Return the part of a checked URL that says whom to speak to, with the slash that ends it."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, "/", "", ""))


@dataclass(frozen=True, slots=True)
class Allowed:
    """Addresses and hosts that may be spoken to although they are not public."""

    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = frozenset()

    @classmethod
    def read(cls, names: Iterable[str]) -> "Allowed":
        """Read networks and names of hosts as the settings have them."""
        networks: list[Network] = []
        hosts: set[str] = set()
        for name in names:
            try:
                networks.append(ipaddress.ip_network(name, strict=False))
            except ValueError:
                hosts.add(name.rstrip(".").lower())
        return cls(tuple(networks), frozenset(hosts))

    def refusal(self, address: Address) -> str | None:
        """Say why nothing is sent to an address; None when it may be."""
        if any(address in network for network in self.networks):
            return None
        why = next((why for network, why in REFUSED_NETWORKS if address in network), None)
        if why is None and address.version == 6 and address not in GLOBAL_V6:
            return "reserved"
        return why


def vetted(host: str, found: Iterable[str], allowed: Allowed) -> tuple[Address, ...]:
    """Return the addresses that a host was found to have; raise `NotAllowed` when one of them is not for us.

    One is enough: a name that leads to a public and to a private address was made for something.
    """
    addresses = tuple(dict.fromkeys(_address(text) for text in found))[:ADDRESSES_MAX]
    if not addresses:
        raise OSError("the name of the host leads nowhere")
    if host not in allowed.hosts:
        for address in addresses:
            why = allowed.refusal(address)
            if why is not None:
                raise NotAllowed(f"the host leads to an address to which nothing is sent: {why}")
    return addresses


def _address(text: str) -> Address:
    if "%" in text:
        raise NotAllowed("the host leads to an address to which nothing is sent: link-local")
    return ipaddress.ip_address(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a request: a status code, or why there is none. `is_final`: another try would change nothing."""

    took_ms: int
    code: int | None = None
    error: str | None = None
    retry_after_s: int | None = None
    is_final: bool = False

    @property
    def is_good(self) -> bool:
        """Say whether the other side has it."""
        return self.code is not None and 200 <= self.code < 300


class Sender:
    """Posts to URLs that were named by others. One for a process; `close` ends its threads."""

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
        # Threads of its own: a name server that does not answer must not hold up whatever else needs a thread.
        self._threads = ThreadPoolExecutor(RESOLVERS_MAX, thread_name_prefix="headway-resolver")
        self._resolve = resolve or self._ask_system
        self._trust = trust
        self._seconds_max = seconds_max

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a body to a checked URL. Whatever goes wrong is an answer, too."""
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
        return Answer(took_ms=took_ms, code=code, error=error, retry_after_s=wait_s, is_final=is_final)

    async def _get_ready(self) -> None:
        """Import what sends, which takes long the first time: beside the loop, and before the time counts."""
        if "aiohttp" not in sys.modules:
            await asyncio.get_running_loop().run_in_executor(self._threads, import_module, "aiohttp")

    async def _exchange(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, int | None]:
        import aiohttp  # Not needed by those who only check a URL, and slow to import.

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
                timeout=aiohttp.ClientTimeout(total=None),  # Ours is around all of it.
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
            return response.status, _seconds(response.headers.get("Retry-After", ""))

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
        """Ask for no more names."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _pinned(addresses: tuple[Address, ...]) -> "aiohttp.abc.AbstractResolver":
    """Make a resolver that knows the vetted addresses and nothing else, whatever it is asked for."""
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
            """There is nothing to close."""

    return Pinned()


def _socket(info: tuple[Any, ...], addresses: tuple[Address, ...]) -> socket.socket:
    """Make the socket for a connection, and none for an address that was not vetted."""
    family, kind, protocol, _, place = info
    if ipaddress.ip_address(place[0]) not in addresses:
        raise NotAllowed("the host leads to an address to which nothing is sent: not vetted")
    return socket.socket(family, kind, protocol)


async def _drain(response: "aiohttp.ClientResponse") -> None:
    """Let the other side say a little, so that it can finish in peace; none of it is kept."""
    import aiohttp

    left = READ_BYTES_MAX
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(READ_S_MAX):
            while left > 0 and (chunk := await response.content.read(left)):
                left -= len(chunk)


def _seconds(text: str) -> int | None:
    return int(text) if _RETRY_AFTER.fullmatch(text) else None


def _is_literal(url: str) -> bool:
    try:
        ipaddress.ip_address(urlsplit(url).hostname or "")
    except ValueError:
        return False
    return True


def _describe(problem: Exception) -> str | None:
    """Say what went wrong in words that tell nothing of the network behind; None for a mistake of ours."""
    import aiohttp

    match problem:
        case socket.gaierror():
            return "the name of the host is not known"
        case aiohttp.ClientConnectorCertificateError():
            return "the certificate of the host cannot be trusted"
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return "no secure connection could be made"
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed without an answer"
        case aiohttp.ClientResponseError() | aiohttp.ClientPayloadError():
            return "the answer was no HTTP"
        case aiohttp.ClientOSError():  # Its own words name addresses.
            return os.strerror(problem.errno).lower() if problem.errno else "no connection could be made"
        case OSError():
            return str(problem) or "no connection could be made"
        case aiohttp.ClientError() | ValueError():
            return f"nothing could be sent ({type(problem).__name__})"
    return None
