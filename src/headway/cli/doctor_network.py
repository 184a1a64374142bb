"""Security of the network: connections without encryption, and an API without tokens.

Connections to this machine itself and Unix sockets need no encryption.
"""

import ipaddress
import os
from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qs, urlsplit

from headway.core.settings import Settings, mask_url

TLS_OF: Final = {
    "redis": "rediss",
    "etcd": "etcds",
    "zookeeper": "zookeepers",
    "consul": "consuls",
    "amqp": "amqps",
}
_VERIFYING: Final = ("verify-ca", "verify-full")


def plain_servers(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each server beside the store that is reached over the network without encryption."""
    named = {"coordination": settings.coordination, "redis": settings.redis or "", "transport": settings.transport}
    for setting, url in named.items():
        scheme = url.partition("://")[0]
        if scheme in TLS_OF and not _is_here(url):
            yield (
                f"HEADWAY_{setting.upper()} {mask_url(url)} is not encrypted: the password and the data can be"
                f" read on the network; use {TLS_OF[scheme]}://"
            )


def plain_store(url: str, is_encrypted: bool) -> tuple[bool, str]:
    """Return whether the connection to PostgreSQL is safe, and a description."""
    if _is_here(url):
        return True, "PostgreSQL is on this machine: its connection needs no encryption"
    if not is_encrypted:
        return False, (
            "the connection to PostgreSQL is not encrypted: the password and all jobs can be read on the network;"
            " add `?sslmode=verify-full&sslrootcert=FILE` to HEADWAY_STORE, and allow `hostssl` alone in pg_hba.conf"
        )
    mode = parse_qs(urlsplit(url).query).get("sslmode", [os.environ.get("PGSSLMODE", "prefer")])[-1]
    if mode not in _VERIFYING:
        return False, (
            f"the connection to PostgreSQL is encrypted, but with sslmode={mode} the server is not verified;"
            " add `?sslmode=verify-full&sslrootcert=FILE` to HEADWAY_STORE"
        )
    return True, f"the connection to PostgreSQL is encrypted, and the certificate is checked (sslmode={mode})"


def open_api(settings: Settings, *, has_token: bool) -> tuple[bool, str]:
    """Return whether the API requires a token, and a description."""
    where = f"{settings.host}:{settings.port}"
    if not has_token and settings.token is None:
        return False, (
            f"the API has no tokens: anyone who can reach {where} has full access;"
            " `headway tokens create NAME --role admin` turns on sign-in"
        )
    if not _is_local(settings.host) and not settings.trusted_proxies:
        return False, (
            f"the API listens on {where} with plain HTTP: put a proxy with TLS in front of it, and add that to"
            " HEADWAY_TRUSTED_PROXIES"
        )
    return True, "the API requires a token"


def _is_here(url: str) -> bool:
    """Return whether all hosts of an address are this machine, or a Unix socket."""
    try:
        parts = urlsplit(url)
        named = parts.netloc.rpartition("@")[2] or ",".join(parse_qs(parts.query).get("host", []))
    except ValueError:
        return True  # Another check reports the error.
    return all(_is_local(_without_port(part)) for part in named.split(",") if part)


def _without_port(part: str) -> str:
    return part[1:].partition("]")[0] if part.startswith("[") else part.partition(":")[0]


def _is_local(host: str) -> bool:
    if host.startswith(("/", "%2F", "%2f")) or host in ("", "localhost") or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
