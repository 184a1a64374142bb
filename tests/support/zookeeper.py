"""A private ZooKeeper for the tests: one server, or an ensemble of three on the loopback interface."""

import os
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.support.certificates import make_certificate
from tests.support.server import READY_SECONDS, Server, ServerMissing, find_program, free_port
from tests.support.waiting import wait_until

JAR = Path("/usr/share/java/zookeeper.jar")
TLS_JAR = Path("/usr/share/java/netty-codec.jar")  # Debian's ZooKeeper does not list it, but needs it for TLS.
TICK_S = 0.5
SESSION_S_MIN = 2 * TICK_S
SESSION_S_MAX = 3_600
ANSWER_S_MAX = 3.0  # Then retry: a starting server may forget a request.
TLS_ANSWER_S_MAX = 20.0  # The first TLS handshake is slow.
KEY_STORE_PASSWORD = "private"


class ZookeeperServer(Server):
    """One ZooKeeper. `ensemble` are the lines of zoo.cfg that name its members, and `number` is the number of this one.

    With `tls` it also listens on `tls_port`, with a self-signed certificate.
    """

    def __init__(self, *, number: int = 1, ensemble: tuple[str, ...] = (), tls: bool = False) -> None:
        if not JAR.exists():
            raise ServerMissing("zookeeper (scripts/install-servers installs it)")
        java = find_program("java")
        super().__init__("zk")
        self._java = java
        self._number = number
        self.ensemble = ensemble
        self.tls_port = free_port() if tls else None

    @property
    def authority(self) -> Path:
        """Return the CA certificate of the server."""
        return self.folder / "cert.pem"

    def start(self) -> None:
        """Start the server and wait until it serves; a member of an ensemble may have to wait for the others."""
        self._configure()
        self._start(self._command(), self.is_serving)

    def launch(self) -> None:
        """Start the server without waiting for its service, which needs other members."""
        self._configure()
        self._start(self._command(), lambda: True)

    def close(self) -> None:
        """Kill the server for good. Java may have been started with the usual signal ignored."""
        self.kill()
        super().close()

    def url(self, prefix: str = "") -> str:
        """Return its URL for locks below a prefix."""
        return f"zookeeper://127.0.0.1:{self.port}" + (f"?prefix={prefix}" if prefix else "")

    def is_serving(self) -> bool:
        """Return whether it answers clients, also with TLS: alone, or as part of a quorum."""
        return "Mode:" in self._words("srvr") and (self.tls_port is None or "Mode:" in self._words("srvr", tls=True))

    def is_leader(self) -> bool:
        """Return whether it leads the ensemble."""
        return "Mode: leader" in self._words("srvr")

    def _words(self, command: str, *, tls: bool = False) -> str:
        try:
            with self._connection(tls) as connection:
                connection.sendall(command.encode())
                return connection.makefile().read()
        except OSError:
            return ""

    def _connection(self, tls: bool) -> socket.socket:
        port = self.tls_port if tls else self.port
        plain = socket.create_connection(("127.0.0.1", port), TLS_ANSWER_S_MAX if tls else ANSWER_S_MAX)
        if not tls:
            return plain
        return ssl.create_default_context(cafile=str(self.authority)).wrap_socket(plain, server_hostname="127.0.0.1")

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
            "initLimit": "60",  # In ticks. Members that wait for the CPU must not be considered dead;
            "syncLimit": "40",  # the others notice a dead member by its closed connections.
            "dataDir": str(data),
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": "0",
            "maxSessionTimeout": str(SESSION_S_MAX * 1_000),
            **self._tls_settings(),
        }
        lines = [f"{name}={value}" for name, value in settings.items()]
        config = self.folder / "zoo.cfg"
        config.write_text("\n".join([*lines, *self.ensemble]) + "\n")
        config.chmod(0o644)

    def _tls_settings(self) -> dict[str, str]:
        if self.tls_port is None:
            return {}
        store = self.folder / "server.p12"
        if not store.exists():
            certificate, key = make_certificate(self)
            exported = ("openssl", "pkcs12", "-export", "-inkey", key, "-in", certificate, "-out", store)
            self.run(*exported, "-passout", f"pass:{KEY_STORE_PASSWORD}")
        return {
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": str(self.tls_port),
            "secureClientPortAddress": "127.0.0.1",
            "ssl.keyStore.location": store.name,
            "ssl.keyStore.password": KEY_STORE_PASSWORD,
            "ssl.clientAuth": "none",
        }

    def _command(self) -> list[str]:
        flags = ["admin.enableServer=false", "4lw.commands.whitelist=srvr,ruok", "forceSync=no"]
        flags.append("root.logger=INFO,CONSOLE")
        return [
            *(str(self._java), "-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xrs"),
            *(f"-Dzookeeper.{flag}" for flag in flags),
            *("-cp", f"/etc/zookeeper/conf:{JAR}:{TLS_JAR}", "org.apache.zookeeper.server.quorum.QuorumPeerMain"),
            str(self.folder / "zoo.cfg"),
        ]


class ZookeeperEnsemble:
    """Three servers that work while two of them are up."""

    def __init__(self) -> None:
        self.members = [ZookeeperServer(number=number) for number in (1, 2, 3)]
        lines = tuple(f"server.{number}=127.0.0.1:{free_port()}:{free_port()}" for number in (1, 2, 3))
        for member in self.members:
            member.ensemble = lines

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for member in self.members:
                stack.callback(member.close)
            self.mend()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url(self, prefix: str = "") -> str:
        """Return the URL of all of them."""
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in self.members)
        return f"zookeeper://{hosts}" + (f"?prefix={prefix}" if prefix else "")

    def wait_for_quorum(self, count: int) -> None:
        """Wait until this many members serve."""
        wait_until(
            lambda: sum(member.is_serving() for member in self.members) >= count,
            f"{count} members of ZooKeeper to serve",
            within_s=READY_SECONDS,
        )

    def mend(self) -> None:
        """Start the members that do not run, all at once, and wait until each of them serves."""
        for member in self.members:
            if not member.is_running():
                member.launch()
        self.wait_for_quorum(len(self.members))
