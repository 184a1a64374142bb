"""Run a private Redis for the peers that need one, with its own folder and loopback port and no persistence."""

import shutil
import socket

from tests.support.server import Server, ServerMissing

REPLY = b"+PONG"


class RedisServer(Server):
    """A Redis server without persistence, its fastest mode."""

    def __init__(self) -> None:
        # Do not resolve symlinks: the program behaves differently under other names.
        program = shutil.which("redis-server")
        if program is None:
            raise ServerMissing("redis-server")
        self._program = program
        super().__init__("redis")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "save": "",
            "appendonly": "no",
        }
        pairs = [part for name, value in settings.items() for part in (f"--{name}", value)]
        self._start([self._program, *pairs], lambda: self._asked(b"PING") == REPLY)

    def close(self) -> None:
        """Stop the server gracefully and remove its folder."""
        self.stop()
        super().close()

    def url(self) -> str:
        """Return the URL of the database."""
        return f"redis://127.0.0.1:{self.port}/0"

    def empty(self) -> None:
        """Delete all data."""
        if self._asked(b"FLUSHALL") != b"+OK":
            raise RuntimeError("Redis did not forget")

    def _asked(self, command: bytes) -> bytes:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
                connection.sendall(command + b"\r\n")
                return connection.recv(100).strip()
        except OSError:
            return b""
