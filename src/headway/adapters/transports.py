"""Transports for hints about ready jobs, each behind the port `Transport`, chosen by the scheme of a URL.

    redis://[user:password@]host:port[,host:port]/[database][?prefix=…]             rediss:// with TLS
    amqp://[user:password@]host:port[,host:port]/[virtual host][?prefix=…&queues=…]  amqps:// with TLS

They are optional: each client is imported only if its transport is used.
"""

from typing import Final

from headway.core.clock import Clock
from headway.core.errors import InvalidConfig
from headway.core.ports import Transport
from headway.core.settings import mask_url

SCHEMES: Final = ("redis", "rediss", "amqp", "amqps")
_EXTRAS: Final = {"redis": "redis", "rediss": "redis", "amqp": "rabbitmq", "amqps": "rabbitmq"}


def open_transport(url: str, *, clock: Clock, node: str) -> Transport:
    """Make the transport for a URL; it connects on first use. `node` names this process to the server."""
    scheme = url.partition("://")[0]
    try:
        match scheme:
            case "redis" | "rediss":
                from headway.adapters.redis.transport import RedisTransport

                return RedisTransport(url, clock=clock, node=node)
            case "amqp" | "amqps":
                from headway.adapters.rabbitmq import RabbitTransport

                return RabbitTransport(url, clock=clock)
    except ImportError as error:
        raise InvalidConfig(f"{scheme}:// needs a client: pip install 'headway[{_EXTRAS[scheme]}]'") from error
    raise InvalidConfig(f"transport cannot be {mask_url(url)[:60]!r}; it is `store` or one of {', '.join(SCHEMES)}")
