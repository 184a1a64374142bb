"""A client of Redis, made alike for whatever Headway does there: locks, hints about ready jobs, live values.

It never tries again by itself and never waits without a bound: who asks knows better which endpoint comes next, and how
long there is time.
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
    """Read a URL and whatever can be checked before anything is connected."""
    address = AdapterUrl.parse(url, port=PORT)
    if not re.fullmatch("[0-9]{0,4}", address.path):
        raise InvalidConfig(f"the path of {address.scheme}:// is the number of a database, not {address.path[:40]!r}")
    if address.scheme == "rediss":
        address.tls()
    return address


def key_prefix(address: AdapterUrl) -> str:
    """Return what all our keys begin with. Its braces keep them in one slot, for the sake of Redis Cluster."""
    prefix = address.options.get("prefix", PREFIX)
    return prefix if "{" in prefix else f"{{{prefix}}}"


def clients_of(address: AdapterUrl, *, node: str, answer_s: float, connections: int) -> list[Redis]:
    """Make a client of each endpoint; nothing is connected before it is used, and again after `aclose`."""
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
    """A connection that was lost a moment ago is lost, also where the event loop calls it a mistake to write to it."""

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        """Send; uvloop says `RuntimeError` where asyncio says nothing and the answer stays away."""
        try:
            await super().send_packed_command(command, check_health)
        except RuntimeError as error:
            raise RedisConnectionError(str(error)) from error


class _EncryptedConnection(_Connection, SSLConnection):
    """The same over TLS."""


def in_words(error: BaseException, *, answer_s: float) -> str:
    """Say in a few words why Redis does not do its part, without its address."""
    match error:
        case AuthenticationError():
            return "the user or the password is refused"
        case NoPermissionError():
            return "this user may not run these commands on keys of this prefix"
        case RedisTimeout() | TimeoutError():
            return f"no answer within {answer_s:g} s"
    if isinstance(error.__context__, ConnectionError) and error.__context__.errno:
        return os.strerror(error.__context__.errno).lower()  # The client's own words say the address once more.
    return " ".join(str(error).split())[:TEXT_LENGTH_MAX] or type(error).__name__
