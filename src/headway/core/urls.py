"""URLs from users: their syntax, and which addresses a request may go to (SSRF protection).

A user who may set a URL could make a process connect to hosts that only it can reach: a database beside it, the
metadata service of its cloud, itself. `check_url` checks the text; `vetted` checks the addresses that the host has at
the moment of use.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import quote as percent_encode
from urllib.parse import urlsplit, urlunsplit

from headway.core.errors import DefinitionError
from headway.core.instants import quote
from headway.core.settings import mask_url

URL_LENGTH_MAX: Final = 2_000
ADDRESSES_MAX: Final = 16
_URL_SAFE: Final = "/:?[]@!$&'()*+,;=%~-._"
_LABEL: Final = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
_HOST: Final = re.compile(rf"{_LABEL}(\.{_LABEL}){{0,31}}")

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

# Every network that is not public, and why. The first match is reported.
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
GLOBAL_V6: Final = ipaddress.ip_network("2000::/3")  # Every address range that is assigned for global use.


class NotAllowed(OSError):
    """Requests to this address are not allowed."""


def check_url(text: object, what: str = "url") -> str:
    """Return a URL in its normal form, or raise an error that names the problem. Its addresses are checked at use."""
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
        raise DefinitionError(f"{what} {shown} has a password, which others could see and use")
    place = f"[{host}]" if ":" in host else host
    path, query = (percent_encode(part, safe=_URL_SAFE) for part in (parts.path or "/", parts.query))
    is_usual = port in (None, 80 if parts.scheme == "http" else 443)
    return urlunsplit((parts.scheme, place if is_usual else f"{place}:{port}", path, query, ""))


def _plain_host(text: str) -> str:
    """Return a host name or address in its normal form; raise `ValueError` when it is neither."""
    if ":" in text:
        address = ipaddress.IPv6Address(text)
        if address.scope_id is not None:
            raise ValueError("an address with a zone is good on one machine only")
        return str(address)
    host = text.rstrip(".").encode("idna").decode().lower()
    if not _HOST.fullmatch(host):
        raise ValueError("that is not a valid host name")
    return host


def target_of(url: str) -> str:
    """Return the origin of a checked URL, with a trailing slash."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, "/", "", ""))


@dataclass(frozen=True, slots=True)
class Allowed:
    """Addresses and hosts that requests may go to although they are not public."""

    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = frozenset()

    @classmethod
    def read(cls, names: Iterable[str]) -> "Allowed":
        """Read networks and host names as the settings have them."""
        networks: list[Network] = []
        hosts: set[str] = set()
        for name in names:
            try:
                networks.append(ipaddress.ip_network(name, strict=False))
            except ValueError:
                hosts.add(name.rstrip(".").lower())
        return cls(tuple(networks), frozenset(hosts))

    def refusal(self, address: IPAddress) -> str | None:
        """Return why requests to an address are refused; None when they are allowed."""
        if any(address in network for network in self.networks):
            return None
        why = next((why for network, why in REFUSED_NETWORKS if address in network), None)
        if why is None and address.version == 6 and address not in GLOBAL_V6:
            return "reserved"
        return why


def vetted(host: str, found: Iterable[str], allowed: Allowed) -> tuple[IPAddress, ...]:
    """Return the resolved addresses of a host; raise `NotAllowed` when one of them is forbidden.

    One is enough: a name with both a public and a private address is suspicious (DNS rebinding).
    """
    addresses = tuple(dict.fromkeys(_address(text) for text in found))[:ADDRESSES_MAX]
    if not addresses:
        raise OSError("the name of the host leads nowhere")
    if host not in allowed.hosts:
        for address in addresses:
            why = allowed.refusal(address)
            if why is not None:
                raise NotAllowed(f"the host resolves to an address to which nothing is sent: {why}")
    return addresses


def _address(text: str) -> IPAddress:
    if "%" in text:
        raise NotAllowed("the host resolves to an address to which nothing is sent: link-local")
    return ipaddress.ip_address(text)
