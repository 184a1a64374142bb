"""A private Redis for the tests: it has no persistence, so it always starts empty.

Faults: `flush` deletes everything, `kill` and `start` lose everything, `pause` blocks clients, `fill` leaves no memory
for new data.
"""

from collections.abc import Mapping
from urllib.parse import quote

from redis import Redis
from redis.exceptions import RedisError

from tests.support.certificates import make_certificate
from tests.support.server import Server, find_program

ANSWER_S_MAX = 60.0


class RedisServer(Server):
    """One Redis without persistence; `options` are settings of redis.conf.

    With `tls` it accepts no plain connections, and has a self-signed certificate.
    """

    def __init__(
        self, *, password: str | None = None, tls: bool = False, options: Mapping[str, str] | None = None
    ) -> None:
        # One program with several names; this name runs the server.
        program = find_program("redis-server").with_name("redis-server")
        super().__init__("redis")
        self._program = program
        self._password = password
        self._options = dict(options or {})
        self._files = make_certificate(self) if tls else None

    def start(self) -> None:
        """Start it, empty."""
        self._start(self._command(), self._is_ready)

    def close(self) -> None:
        """Kill it for good. It has nothing to save, and may have been started with the usual signal ignored."""
        self.kill()
        super().close()

    def restart_empty(self) -> None:
        """Kill it and restart it on the same port."""
        self.kill()
        self.start()

    def mend(self) -> None:
        """Reset it: running, empty, with free memory, not paused, and with its default user only."""
        if not self.is_running():
            self.start()
        with self.client() as client:
            client.client_unpause()
            client.flushall()
            client.config_set("maxmemory", 0)
            users = [user for user in client.acl_users() if user != "default"]
            if users:
                client.acl_deluser(*users)

    def url(self, *, prefix: str = "", password: str | None = None) -> str:
        """Return its URL, with its own password or another one."""
        secret = password if password is not None else self._password
        credentials = f":{quote(secret, safe='')}@" if secret else ""
        options = [f"prefix={quote(prefix, safe='')}"] if prefix else []
        options += [f"ca={self._files[0]}"] if self._files else []
        scheme = "rediss" if self._files else "redis"
        return f"{scheme}://{credentials}127.0.0.1:{self.port}/0" + (f"?{'&'.join(options)}" if options else "")

    def client(self) -> "Redis":
        """Return a client for inspection."""
        secured = {"ssl": True, "ssl_ca_certs": str(self._files[0])} if self._files else {}
        return Redis(
            host="127.0.0.1",
            port=self.port,
            password=self._password,
            socket_timeout=ANSWER_S_MAX,
            decode_responses=True,
            **secured,  # type: ignore[arg-type]
        )

    def connections(self, name: str) -> int:
        """Count the connections of clients with this name."""
        with self.client() as client:
            return sum(found["name"] == name for found in client.client_list())

    def flush(self) -> None:
        """Delete everything."""
        with self.client() as client:
            client.flushall()

    def pause(self, seconds: float) -> None:
        """Block all commands that may write, including scripts; the command that ends the pause passes."""
        with self.client() as client:
            client.client_pause(round(seconds * 1_000), all=False)

    def resume(self) -> None:
        """End the pause."""
        with self.client() as client:
            client.client_unpause()

    def fill(self) -> None:
        """Leave no memory for new data."""
        with self.client() as client:
            client.config_set("maxmemory", 1)

    def empty(self) -> None:
        """Remove the memory limit."""
        with self.client() as client:
            client.config_set("maxmemory", 0)

    def _command(self) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": "0" if self._files else str(self.port),
            "save": "",
            "appendonly": "no",
            "dir": str(self.folder),
            "daemonize": "no",
            **({"requirepass": self._password} if self._password else {}),
            **self._options,
        }
        if self._files:
            certificate, key = map(str, self._files)
            settings |= {
                "tls-port": str(self.port),
                "tls-cert-file": certificate,
                "tls-key-file": key,
                "tls-ca-cert-file": certificate,
                "tls-auth-clients": "no",
            }
        return [str(self._program), *(part for name, value in settings.items() for part in (f"--{name}", value))]

    def _is_ready(self) -> bool:
        """Return whether this server, and not another one on its port, answers."""
        try:
            with self.client() as client:
                return bool(client.config_get("dir")["dir"] == str(self.folder))
        except (RedisError, OSError):
            return False
