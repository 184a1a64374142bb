"""What others on the network could read or do: connections without encryption, and an API without tokens.

A connection to this machine itself is nobody else's business, and so is a socket in its file system.
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
                f"HEADWAY_{setting.upper()} {mask_url(url)} is not encrypted: its password and what is sent can be"
                f" read on the way; use {TLS_OF[scheme]}://"
            )


def plain_store(url: str, is_encrypted: bool) -> tuple[bool, str]:
    """Say whether the way to PostgreSQL is safe, and in words how it is."""
    if _is_here(url):
        return True, "PostgreSQL is on this machine: its connection needs no encryption"
    if not is_encrypted:
        return False, (
            "the connection to PostgreSQL is not encrypted: its password and everything in jobs can be read on the way;"
            " add `?sslmode=verify-full&sslrootcert=FILE` to HEADWAY_STORE, and allow `hostssl` alone in pg_hba.conf"
        )
    mode = parse_qs(urlsplit(url).query).get("sslmode", [os.environ.get("PGSSLMODE", "prefer")])[-1]
    if mode not in _VERIFYING:
        return False, (
            f"the connection to PostgreSQL is encrypted, but with sslmode={mode} anybody can pretend to be the server;"
            " add `?sslmode=verify-full&sslrootcert=FILE` to HEADWAY_STORE"
        )
    return True, f"the connection to PostgreSQL is encrypted, and the certificate is checked (sslmode={mode})"


def open_api(settings: Settings, *, has_token: bool) -> tuple[bool, str]:
    """Say whether the API lets only those in who have a token, and in words how it is."""
    where = f"{settings.host}:{settings.port}"
    if not has_token and settings.token is None:
        return False, (
            f"the API has no tokens: whoever can reach {where} may do everything;"
            " `headway tokens create NAME --role admin` turns on sign-in"
        )
    if not _is_local(settings.host) and not settings.trusted_proxies:
        return False, (
            f"the API listens on {where} and speaks plain HTTP: put a proxy with TLS before it, and name that in"
            " HEADWAY_TRUSTED_PROXIES"
        )
    return True, "the API asks for a token"


def _is_here(url: str) -> bool:
    """Say whether all hosts of an address are this machine, or a socket in its file system."""
    try:
        parts = urlsplit(url)
        named = parts.netloc.rpartition("@")[2] or ",".join(parse_qs(parts.query).get("host", []))
    except ValueError:
        return True  # What is wrong with it is said elsewhere.
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
