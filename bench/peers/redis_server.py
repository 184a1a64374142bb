"""A private Redis for the peers that need one: its own folder, its own loopback port, nothing kept on disk."""

import shutil
import socket

from tests.support.server import Server, ServerMissing

REPLY = b"+PONG"


class RedisServer(Server):
    """One Redis without persistence, which is its fastest."""

    def __init__(self) -> None:
        # Its path as it is found: the same program does other things under other names.
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
        """Stop the server in the way that it listens to, and remove its folder."""
        self.stop()
        super().close()

    def url(self) -> str:
        """Return the address of its only database in use."""
        return f"redis://127.0.0.1:{self.port}/0"

    def empty(self) -> None:
        """Forget everything."""
        if self._asked(b"FLUSHALL") != b"+OK":
            raise RuntimeError("Redis did not forget")

    def _asked(self, command: bytes) -> bytes:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
                connection.sendall(command + b"\r\n")
                return connection.recv(100).strip()
        except OSError:
            return b""
