"""Coordination engines beside the store, each behind the port `Engine`, chosen by the scheme of a URL.

    redis://[user:password@]host:port[,host:port]/[database][?prefix=…]      rediss:// with TLS
    etcd://[user:password@]host:port[,host:port][?prefix=…]                  etcds://
    zookeeper://[user:password@]host:port[,host:port][/chroot][?prefix=…]    zookeepers://
    consul://[:token@]host:port[,host:port][?prefix=…]                       consuls://

They are optional: each client is imported only if its engine is used.
"""

from typing import Final

from headway.core.clock import Clock
from headway.core.errors import InvalidConfig
from headway.core.ports import Engine
from headway.core.settings import mask_url

SCHEMES: Final = ("redis", "rediss", "etcd", "etcds", "zookeeper", "zookeepers", "consul", "consuls")
_EXTRAS: Final = {  # The others use plain HTTP.
    **dict.fromkeys(("redis", "rediss"), "redis"),
    **dict.fromkeys(("zookeeper", "zookeepers"), "zookeeper"),
}


def open_engine(url: str, *, clock: Clock, node: str) -> Engine:
    """Make the engine for a URL; it connects on first use. `node` names this process to the server."""
    scheme = url.partition("://")[0]
    try:
        match scheme:
            case "redis" | "rediss":
                from headway.adapters.redis.engine import RedisEngine

                return RedisEngine(url, clock=clock, node=node)
            case "etcd" | "etcds":
                from headway.adapters.etcd import EtcdEngine

                return EtcdEngine(url, clock=clock, node=node)
            case "zookeeper" | "zookeepers":
                from headway.adapters.zookeeper import ZookeeperEngine

                return ZookeeperEngine(url, clock=clock, node=node)
            case "consul" | "consuls":
                from headway.adapters.consul import ConsulEngine

                return ConsulEngine(url, clock=clock, node=node)
    except ImportError as error:
        raise InvalidConfig(f"{scheme}:// needs a client: pip install 'headway[{_EXTRAS[scheme]}]'") from error
    raise InvalidConfig(f"coordination cannot be {mask_url(url)[:60]!r}; it is `store` or one of {', '.join(SCHEMES)}")
