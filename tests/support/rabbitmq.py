"""A private RabbitMQ for the tests. It takes about ten seconds to start, so one run shares it."""

import shlex
import socket
import ssl
import subprocess
from pathlib import Path

from tests.support.certificates import make_certificate
from tests.support.server import READY_SECONDS, Server, ServerFailed, ServerMissing, free_port

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # The one in PATH requires its own system user.
USER = "guest"
ANSWER_S_MAX = 30.0
PASSWORD = "guest"  # The default user of a new broker, which is limited to the same host.

CONFIG = """\
listeners.ssl.default = 127.0.0.1:{port}
ssl_options.cacertfile = {certificate}
ssl_options.certfile = {certificate}
ssl_options.keyfile = {key}
"""


class RabbitServer(Server):
    """One broker with its own data, its own port mapper, and no plugins. It also listens with TLS."""

    def __init__(self) -> None:
        if not PROGRAM.exists():
            raise ServerMissing("rabbitmq-server (scripts/install-servers installs it)")
        super().__init__("rabbit")
        self.tls_port = free_port()
        self._mapper_port = free_port()
        self._distribution_port = free_port()

    def start(self) -> None:
        """Start the broker. Later calls reuse its data and ports."""
        if not self.authority.exists():
            certificate, key = make_certificate(self)
            self._config.write_text(CONFIG.format(port=self.tls_port, certificate=certificate, key=key))
            self._config.chmod(0o644)
        # As a child of the broker's process the port mapper dies with it; one that the broker starts would outlive the
        # tests.
        mapper = f"setpriv --pdeathsig KILL epmd -port {self._mapper_port} &"
        # The broker would start its own if it came first.
        wait = f"until epmd -port {self._mapper_port} -names >/dev/null 2>&1; do sleep 0.05; done;"
        script = f"{mapper} {wait} exec env {shlex.join(self._environment())} {PROGRAM}"
        self._start(["sh", "-c", script], self._is_ready)

    def close(self) -> None:
        """Kill it for good. It has nothing to save, and may have been started with the usual signal ignored."""
        self.kill()
        super().close()

    @property
    def authority(self) -> Path:
        """Return the CA certificate of the broker."""
        return self.folder / "cert.pem"

    @property
    def _config(self) -> Path:
        return self.folder / "rabbitmq.conf"

    def restart(self) -> None:
        """Kill the broker, as a crash would, and start it with its data on the same port."""
        self.kill()
        self.start()

    def url(self, *, prefix: str = "", queues: str = "") -> str:
        """Return its URL."""
        options = "&".join(f"{name}={value}" for name, value in (("prefix", prefix), ("queues", queues)) if value)
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.port}/" + (f"?{options}" if options else "")

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl, as an operator does; this takes more than a second."""
        user = self.owner.pw_name if self.owner else None
        command = ["env", *self._environment(), str(PROGRAM.with_name("rabbitmqctl")), "--quiet", *arguments]
        done = subprocess.run(
            command,
            cwd=self.folder,
            user=user,
            capture_output=True,
            text=True,
            timeout=READY_SECONDS * 2,
            check=False,
        )
        if done.returncode:
            raise ServerFailed(f"rabbitmqctl {arguments[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def _environment(self) -> list[str]:
        settings = {
            "HOME": self.folder,
            "RABBITMQ_CONFIG_FILE": self._config,
            "RABBITMQ_NODENAME": f"t{self.port}@localhost",
            "RABBITMQ_NODE_PORT": self.port,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": self._distribution_port,
            "ERL_EPMD_PORT": self._mapper_port,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_MNESIA_BASE": self.folder / "data",
            "RABBITMQ_LOG_BASE": self.folder / "logs",
            "RABBITMQ_LOGS": "-",  # To standard output, which the report of a failed test shows.
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.folder / "plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none -noinput",
            "RABBITMQ_ALLOW_INPUT": "true",  # So that it is the started process itself, not a child of it.
        }
        return [f"{name}={value}" for name, value in settings.items()]

    def _is_ready(self) -> bool:
        """Return whether the broker answers, also over TLS: it replies to any other protocol with its own header."""
        try:
            if not _speaks_amqp(socket.create_connection(("127.0.0.1", self.port), ANSWER_S_MAX)):
                return False
            trust = ssl.create_default_context(cafile=str(self.authority))
            plain = socket.create_connection(("127.0.0.1", self.tls_port), ANSWER_S_MAX)
            return _speaks_amqp(trust.wrap_socket(plain, server_hostname="127.0.0.1"))
        except OSError:
            return False


def _speaks_amqp(connection: socket.socket) -> bool:
    with connection:
        connection.sendall(b"GET / HT")
        return connection.recv(8).startswith(b"AMQP")
