"""Common parts of the private servers of the tests: a folder, a port, an owner and a guardian."""

import atexit
import fcntl
import json
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Self

from tests.support import evidence

# Timeouts against hanging: a loaded machine may take a minute to start a server.
READY_SECONDS = 120.0
STOP_SECONDS = 120.0

# Below the ephemeral port range of the kernel: a client that keeps trying to reach a stopped
# server would otherwise connect to itself sooner or later, and occupy the port when the server restarts.
PORTS = range(20_000, 32_000)
PORT_LOCKS = Path(tempfile.gettempdir()) / f"headway-test-ports-{os.geteuid()}"
_reserved: list[IO[bytes]] = []


class ServerMissing(Exception):
    """A program that the tests need is not installed."""


class ServerFailed(Exception):
    """A server did not start or stop in time; its log is in the message."""


class Server:
    """One server process on the loopback interface, owned by this process and ended with it."""

    def __init__(self, name: str, *, folder: Path | None = None) -> None:
        self.port = free_port()
        self.owner = unprivileged_owner()
        # Short, since it contains sockets, and accessible to another user, since servers reject root.
        self.folder = Path(tempfile.mkdtemp(prefix=f"hw-{name}-", dir=folder or "/tmp"))
        self.log = self.folder / "server.log"
        if self.owner:
            os.chown(self.folder, self.owner.pw_uid, self.owner.pw_gid)
        self._guardian: subprocess.Popen[bytes] | None = None
        self.pid: int | None = None
        self._evidence = evidence.watch(f"{name} on port {self.port}", self.log, shared=True)
        atexit.register(self.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_running(self) -> bool:
        """Return whether the process exists, ready or not."""
        return self._guardian is not None and self._guardian.poll() is None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the server and wait until it has ended."""
        self._stop(signal.SIGINT)

    def kill(self) -> None:
        """Kill the server and its children with SIGKILL, as a crash would."""
        if self.is_running():
            self._ask("crash")
            self._wait_gone()

    def close(self) -> None:
        """Stop the server and remove its folder. It cannot be started again."""
        atexit.unregister(self.close)
        self._stop(signal.SIGQUIT)
        self._evidence.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command: str | Path) -> None:
        """Run a command to its end as the server's owner."""
        uid, gid = (self.owner.pw_uid, self.owner.pw_gid) if self.owner else (None, None)
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.folder,
            user=uid,
            group=gid,
            extra_groups=[] if self.owner else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=READY_SECONDS * 2,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServerFailed(f"{command[0]} ended with {done.returncode}:\n{done.stdout}")

    def _start(self, command: Sequence[str], is_ready: Callable[[], bool]) -> None:
        """Start `command` under a guardian and wait until `is_ready`."""
        assert not self.is_running(), "the server is running already"
        plan = {
            "command": command,
            "user": self.owner.pw_uid if self.owner else None,
            "group": self.owner.pw_gid if self.owner else None,
            "log": str(self.log),
            "folder": str(self.folder),
        }
        guardian = Path(__file__).with_name("guardian.py")
        self._guardian = subprocess.Popen(
            [sys.executable, "-IS", str(guardian), json.dumps(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._guardian.stdout is not None
        self.pid = int(self._guardian.stdout.readline() or 0)
        deadline = time.monotonic() + READY_SECONDS
        while not is_ready():
            if not self.is_running() or time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(f"{command[0]} did not start:\n{self.tail()}")
            time.sleep(0.01)

    def _stop(self, number: signal.Signals) -> None:
        if self.is_running():
            self._ask(str(int(number)))
            self._wait_gone()

    def _ask(self, request: str) -> None:
        assert self._guardian is not None
        assert self._guardian.stdin is not None
        try:
            self._guardian.stdin.write(f"{request}\n".encode())
            self._guardian.stdin.flush()
        except BrokenPipeError:
            pass  # It has ended by itself meanwhile.

    def _wait_gone(self) -> None:
        assert self._guardian is not None
        try:
            self._guardian.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._ask("crash")
            self._guardian.wait(timeout=STOP_SECONDS)
            raise ServerFailed(f"the server had to be killed:\n{self.tail()}") from None
        finally:
            self._guardian.__exit__(None, None, None)
            self.pid = None

    def tail(self, lines: int = 30) -> str:
        """Return the end of the server's log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


def free_port() -> int:
    """Return a free loopback port. It stays reserved for this process: other test runs get other ports."""
    for _ in range(100):
        port = random.choice(PORTS)
        if _is_free(port) and _reserve(port):
            return port
    raise ServerFailed("no free port on the loopback interface")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _reserve(port: int) -> bool:
    """Lock the file of a port until this process ends."""
    PORT_LOCKS.mkdir(exist_ok=True)
    lock = (PORT_LOCKS / str(port)).open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return False
    _reserved.append(lock)
    return True


def answers(port: int) -> bool:
    """Return whether a loopback port accepts connections."""
    try:
        # short: callers retry.
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def unprivileged_owner() -> pwd.struct_passwd | None:
    """Return the user to run servers as if we are root, which they reject."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ServerMissing("a user other than root, to run servers as")


def find_program(name: str) -> Path:
    """Find a server's program in PATH or in Debian's directories; of several versions, the newest."""
    if found := shutil.which(name):
        return Path(found).resolve()
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    for folder in [*reversed(versions), Path("/usr/sbin"), Path("/usr/local/sbin")]:
        if (folder / name).exists():
            return folder / name
    raise ServerMissing(f"{name} (scripts/install-servers installs it)")
