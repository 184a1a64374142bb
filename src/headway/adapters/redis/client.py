"""The Redis client for all uses in Headway: locks, hints about ready jobs, live values.

It never retries by itself and all waits are bounded: the caller knows better which endpoint to try next, and how much
time is left.
"""

import os
import re
from collections.abc import Iterable
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeout

from headway.adapters.adapter_url import AdapterUrl
from headway.core.errors import InvalidConfig

PORT: Final = 6379
PREFIX: Final = "headway:"
TEXT_LENGTH_MAX: Final = 200


def read_address(url: str) -> AdapterUrl:
    """Parse a URL and check what can be checked before connecting."""
    address = AdapterUrl.parse(url, port=PORT)
    if not re.fullmatch("[0-9]{0,4}", address.path):
        raise InvalidConfig(f"the path of {address.scheme}:// is the number of a database, not {address.path[:40]!r}")
    if address.scheme == "rediss":
        address.tls()
    return address


def key_prefix(address: AdapterUrl) -> str:
    """Return the prefix of all keys. Its braces (hash tag) keep them in one slot of a Redis Cluster."""
    prefix = address.options.get("prefix", PREFIX)
    return prefix if "{" in prefix else f"{{{prefix}}}"


def clients_of(address: AdapterUrl, *, node: str, answer_s: float, connections: int) -> list[Redis]:
    """Make a client for each endpoint; it connects on first use, and again after `aclose`."""
    return [_client(address, endpoint, node, answer_s, connections) for endpoint in address.endpoints]


def _client(address: AdapterUrl, endpoint: tuple[str, int], node: str, answer_s: float, connections: int) -> Redis:
    security: dict[str, Any] = {"connection_class": _Connection}
    if address.scheme == "rediss":
        security = {
            "connection_class": _EncryptedConnection,
            "ssl_ca_certs": address.options.get("ca"),
            "ssl_certfile": address.options.get("cert"),
            "ssl_keyfile": address.options.get("key"),
            "ssl_check_hostname": True,
        }
    pool = BlockingConnectionPool(
        **security,
        max_connections=connections,
        timeout=answer_s,
        host=endpoint[0],
        port=endpoint[1],
        db=int(address.path or 0),
        username=address.user,
        password=address.password,
        client_name=re.sub(r"[^!-~]", "-", f"headway-{node}"),
        socket_connect_timeout=answer_s,
        socket_timeout=answer_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    return Redis.from_pool(pool)


class _Connection(Connection):
    """A connection that reports a closed transport as a connection error, whatever the event loop raises."""

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        """Send; uvloop raises `RuntimeError` on a closed transport, where asyncio ignores the write."""
        try:
            await super().send_packed_command(command, check_health)
        except RuntimeError as error:
            raise RedisConnectionError(str(error)) from error


class _EncryptedConnection(_Connection, SSLConnection):
    """The same over TLS."""


def in_words(error: BaseException, *, answer_s: float) -> str:
    """Describe an error of Redis in a few words, without its address."""
    match error:
        case AuthenticationError():
            return "the user or the password was refused"
        case NoPermissionError():
            return "this user may not run these commands on keys of this prefix"
        case RedisTimeout() | TimeoutError():
            return f"no answer within {answer_s:g} s"
    if isinstance(error.__context__, ConnectionError) and error.__context__.errno:
        return os.strerror(error.__context__.errno).lower()  # The client's own message repeats the address.
    return " ".join(str(error).split())[:TEXT_LENGTH_MAX] or type(error).__name__
