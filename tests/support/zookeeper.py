"""A private ZooKeeper for the tests: one server, or an ensemble of three on the loopback interface."""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.support.server import Server, ServerFailed, ServerMissing, find_program, free_port

JAR = Path("/usr/share/java/zookeeper.jar")
TLS_JAR = Path("/usr/share/java/netty-codec.jar")  # Debian's ZooKeeper does not name it, and needs it for TLS.
TICK_S = 0.5
SESSION_S_MIN = 2 * TICK_S


class ZookeeperServer(Server):
    """One ZooKeeper. `ensemble` are the lines of zoo.cfg that name its members, and `number` is this one's."""

    def __init__(
        self, *, number: int = 1, ensemble: tuple[str, ...] = (), options: Mapping[str, str] | None = None
    ) -> None:
        if not JAR.exists():
            raise ServerMissing("zookeeper (scripts/install-servers installs it)")
        java = find_program("java")
        super().__init__("zk")
        self._java = java
        self._number = number
        self.ensemble = ensemble
        self._options = options or {}

    def start(self) -> None:
        """Start the server, and wait until it serves; a member of an ensemble may have to wait for the others."""
        self._configure()
        self._start(self._command(), self.is_serving)

    def launch(self) -> None:
        """Start the server and do not wait for its service, which needs other members."""
        self._configure()
        self._start(self._command(), lambda: True)

    def close(self) -> None:
        """End the server for good. Java may have been told to ignore the signal that others end with."""
        self.kill()
        super().close()

    def url(self, prefix: str = "") -> str:
        """Return its address for locks below a prefix."""
        return f"zookeeper://127.0.0.1:{self.port}" + (f"?prefix={prefix}" if prefix else "")

    def is_serving(self) -> bool:
        """Tell whether it answers clients: alone, or as a part of a quorum."""
        return "Mode:" in self._words("srvr")

    def is_leader(self) -> bool:
        """Tell whether it leads the ensemble."""
        return "Mode: leader" in self._words("srvr")

    def _words(self, command: str) -> str:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(command.encode())
                return connection.makefile().read()
        except OSError:
            return ""

    def _configure(self) -> None:
        data = self.folder / "data"
        if not data.exists():
            data.mkdir()
            (data / "myid").write_text(str(self._number))
            if self.owner:
                for path in (data, data / "myid"):
                    os.chown(path, self.owner.pw_uid, self.owner.pw_gid)
        settings = {
            "tickTime": f"{TICK_S * 1000:.0f}",
            "initLimit": "20",
            "syncLimit": "4",
            "dataDir": str(data),
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": "0",
            "maxSessionTimeout": "60000",
            **self._options,
        }
        lines = [f"{name}={value}" for name, value in settings.items()]
        config = self.folder / "zoo.cfg"
        config.write_text("\n".join([*lines, *self.ensemble]) + "\n")
        config.chmod(0o644)

    def _command(self) -> list[str]:
        flags = ["admin.enableServer=false", "4lw.commands.whitelist=srvr,ruok", "forceSync=no"]
        return [
            *(str(self._java), "-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xrs"),
            *(f"-Dzookeeper.{flag}" for flag in flags),
            *("-cp", f"/etc/zookeeper/conf:{JAR}:{TLS_JAR}", "org.apache.zookeeper.server.quorum.QuorumPeerMain"),
            str(self.folder / "zoo.cfg"),
        ]


class ZookeeperEnsemble:
    """Three servers that go on while two of them live."""

    def __init__(self) -> None:
        self.members = [ZookeeperServer(number=number) for number in (1, 2, 3)]
        lines = tuple(f"server.{number}=127.0.0.1:{free_port()}:{free_port()}" for number in (1, 2, 3))
        for member in self.members:
            member.ensemble = lines

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for member in self.members:
                stack.callback(member.close)
                member.launch()
            self.wait_for_quorum(len(self.members))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url(self, prefix: str = "") -> str:
        """Return the address of all of them."""
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in self.members)
        return f"zookeeper://{hosts}" + (f"?prefix={prefix}" if prefix else "")

    def wait_for_quorum(self, count: int, within_s: float = 30.0) -> None:
        """Wait until so many members serve."""
        deadline = time.monotonic() + within_s
        while sum(member.is_serving() for member in self.members) < count:
            if time.monotonic() > deadline:
                raise ServerFailed("no quorum:\n" + "\n".join(member.tail(10) for member in self.members))
            time.sleep(0.05)
