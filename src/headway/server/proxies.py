"""Reverse proxies: which of them may state the address of a client (`trusted_proxies`), and how to detect one.

Any client can send `X-Forwarded-For`. It is read only if the connection itself comes from a trusted proxy, and from its
right end: each proxy appends the address of its peer, so the first one that is not a trusted proxy is the client.
Anything to the left of it may be forged.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

HOPS_MAX: Final = 32
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_FORWARDING: Final = frozenset(
    b"forwarded via x-real-ip x-client-ip x-cluster-client-ip x-original-host x-original-forwarded-for"
    b" cf-connecting-ip true-client-ip fastly-client-ip x-envoy-external-address x-proxyuser-ip".split()
)


def is_forwarded(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a header shows that a proxy forwarded this request."""
    return not _FORWARDING.isdisjoint(headers) or any(name.startswith(b"x-forwarded-") for name in headers)


class TrustedProxies:
    """The networks of trusted proxies."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(ipaddress.ip_network(network) for network in networks)
        self._trusts = lru_cache(1_024)(self._is_trusted)

    def client_of(self, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Return the address of the client of a request that came from this peer."""
        if not self._networks or not self._trusts(peer):
            return peer
        said = b",".join(value for name, value in headers if name == b"x-forwarded-for").decode("latin-1")
        for hop in reversed(said.split(",")[-HOPS_MAX:]):
            address = _read(hop)
            if address is None:  # Not written by a trusted proxy: ignore everything to the left.
                break
            peer = str(address)
            if not self._trusts(peer):
                break
        return peer

    def _is_trusted(self, peer: str) -> bool:
        address = _read(peer)
        return address is not None and any(address in network for network in self._networks)


def _read(text: str) -> _Address | None:
    """Parse an address as proxies write it, with or without a port."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None) or address
