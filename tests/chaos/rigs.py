"""The engines of the torture tests: their servers, the faults of these servers, and the settings that use them."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Final

from tests.support.consul import ConsulServer
from tests.support.etcd import EtcdEnsemble, EtcdServer
from tests.support.rabbitmq import PASSWORD, USER, RabbitServer
from tests.support.redis import RedisServer
from tests.support.server import Server
from tests.support.zookeeper import ZookeeperServer

BRIEFLY: Final = (0.0, 3.0)
HANG_S: Final = (1.0, 5.0)

# A kind of fault: how long it lasts.
Faults = Mapping[str, tuple[float, float]]


class Rig:
    """The servers of an engine, or none. `faults` are the kinds of faults that it supports."""

    faults: ClassVar[Faults] = {}
    has_clocks: ClassVar[bool] = True  # Whether the clocks of the nodes may be wrong.

    def __init__(self, stack: ExitStack) -> None:
        """Start the servers; the exit stack stops them."""

    def ports(self) -> Sequence[int]:
        """Return the ports of the servers, one per link."""
        return ()

    def settings(self, ports: Sequence[int]) -> dict[str, str]:
        """Return the environment of a node whose links have these ports."""
        return {}

    def strike(self, kind: str, lasts_s: float) -> None:
        """Inject one of the faults, and undo it after its time."""
        raise NotImplementedError

    def heal(self) -> None:
        """Undo whatever may be left of the faults."""


class RedisRig(Rig):
    """Redis for everything that it supports: leases, live values, hints."""

    faults: ClassVar[Faults] = {
        "redis flush": (0.0, 0.0),
        "redis crash": BRIEFLY,
        "redis pause": HANG_S,
        "redis hang": HANG_S,
        "redis full": BRIEFLY,
    }

    def __init__(self, stack: ExitStack) -> None:
        self._server = stack.enter_context(RedisServer())

    def ports(self) -> Sequence[int]:
        """Return its port."""
        return [self._server.port]

    def settings(self, ports: Sequence[int]) -> dict[str, str]:
        """Return the settings of all three."""
        url = f"redis://127.0.0.1:{ports[0]}/0"
        return {"HEADWAY_COORDINATION": url, "HEADWAY_REDIS": url, "HEADWAY_TRANSPORT": url}

    def strike(self, kind: str, lasts_s: float) -> None:
        """Flush, stop, pause, freeze or fill it for a while. After a crash it is empty."""
        match kind:
            case "redis flush":
                self._server.flush()
            case "redis crash":
                _crash(self._server, lasts_s)
            case "redis pause":
                self._server.pause(lasts_s)
                time.sleep(lasts_s)
            case "redis hang":
                _hang(self._server, lasts_s)
            case "redis full":
                self._server.fill()
                time.sleep(lasts_s)
                self._server.empty()

    def heal(self) -> None:
        """Make it available, with free memory."""
        self._server.resume()
        self._server.empty()


class EtcdRig(Rig):
    """Three etcd servers, of which two must be up."""

    faults: ClassVar[Faults] = {
        "etcd member crash": BRIEFLY,
        "etcd leader crash": BRIEFLY,
        "etcd quorum loss": (2.0, 6.0),
        "etcd hang": HANG_S,
    }

    def __init__(self, stack: ExitStack) -> None:
        self._ensemble = stack.enter_context(EtcdEnsemble())

    def ports(self) -> Sequence[int]:
        """Return the ports of all members."""
        return [member.port for member in self._ensemble.members]

    def settings(self, ports: Sequence[int]) -> dict[str, str]:
        """Return the URL of all of them."""
        return {"HEADWAY_COORDINATION": "etcd://" + ",".join(f"127.0.0.1:{port}" for port in ports)}

    def strike(self, kind: str, lasts_s: float) -> None:
        """Kill one member, the leader or two members; or freeze the leader."""
        leader = self._ensemble.leader()
        others = [member for member in self._ensemble.members if member is not leader]
        if kind == "etcd hang":
            _hang(leader, lasts_s)
            return
        struck: list[EtcdServer] = {
            "etcd member crash": others[:1],
            "etcd leader crash": [leader],
            "etcd quorum loss": [leader, others[0]],
        }[kind]
        for member in struck:
            member.kill()
        time.sleep(lasts_s)
        for member in struck:
            member.launch()
        for member in self._ensemble.members:
            member.wait_until_served()


class ServerRig(Rig):
    """One server that grants leases, and restarts with its data."""

    scheme = ""
    server_class: Callable[[], Any]

    def __init__(self, stack: ExitStack) -> None:
        self._server: Any = stack.enter_context(type(self).server_class())

    def ports(self) -> Sequence[int]:
        """Return its port."""
        return [self._server.port]

    def settings(self, ports: Sequence[int]) -> dict[str, str]:
        """Return its URL."""
        return {"HEADWAY_COORDINATION": f"{self.scheme}://127.0.0.1:{ports[0]}"}

    def strike(self, kind: str, lasts_s: float) -> None:
        """Kill it, with or without its data, or freeze it."""
        if kind.endswith("hang"):
            _hang(self._server, lasts_s)
        elif kind.endswith("data loss"):
            self._server.kill()
            time.sleep(lasts_s)
            self._server.lose_data()
            self._server.start()
        else:
            _crash(self._server, lasts_s)


class ZookeeperRig(ServerRig):
    """One ZooKeeper. Under libfaketime each response takes its client half a second, so clocks are not changed here."""

    has_clocks = False
    scheme = "zookeeper"
    server_class = ZookeeperServer
    faults: ClassVar[Faults] = {"zookeeper crash": BRIEFLY, "zookeeper hang": HANG_S}


class ConsulRig(ServerRig):
    """One Consul."""

    scheme = "consul"
    server_class = ConsulServer
    faults: ClassVar[Faults] = {"consul crash": BRIEFLY, "consul hang": HANG_S, "consul data loss": BRIEFLY}


class RabbitRig(ServerRig):
    """RabbitMQ, which carries hints; the store grants the leases."""

    server_class = RabbitServer
    faults: ClassVar[Faults] = {"rabbitmq crash": BRIEFLY, "rabbitmq hang": HANG_S}

    def settings(self, ports: Sequence[int]) -> dict[str, str]:
        """Return its URL."""
        return {"HEADWAY_TRANSPORT": f"amqp://{USER}:{PASSWORD}@127.0.0.1:{ports[0]}/"}


RIGS: Final[Mapping[str, type[Rig]]] = {
    "store": Rig,
    "redis": RedisRig,
    "etcd": EtcdRig,
    "zookeeper": ZookeeperRig,
    "consul": ConsulRig,
    "rabbitmq": RabbitRig,
}


def _crash(server: Server, lasts_s: float) -> None:
    server.kill()
    time.sleep(lasts_s)
    server.start()


def _hang(server: Server, lasts_s: float) -> None:
    """Freeze a server: its port accepts connections, but it does not answer."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        time.sleep(lasts_s)
    finally:
        os.kill(server.pid, signal.SIGCONT)
