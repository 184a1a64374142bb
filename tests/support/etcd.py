"""A private etcd for the tests: one server, or a cluster of three on the loopback interface."""

import json
import shutil
import ssl
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self
from urllib.parse import quote

from tests.support.certificates import make_certificate
from tests.support.server import READY_SECONDS, Server, find_program, free_port
from tests.support.waiting import wait_until

# Elections in half a second, which allows a lease of 1 s. Durability is off: no power loss during a test.
PACE = ("--heartbeat-interval=50", "--election-timeout=500", "--unsafe-no-fsync")
# Members that wait for the CPU must not be considered dead; this allows a lease of 2 s.
ENSEMBLE_PACE = ("--heartbeat-interval=100", "--election-timeout=1000", "--unsafe-no-fsync")
ANSWER_S_MAX = 60.0
ROOT_PASSWORD = "for the tests"


class EtcdServer(Server):
    """One etcd with its own data. With `tls` it requires a client certificate that it trusts."""

    def __init__(self, *, name: str = "alone", tls: bool = False, pace: Sequence[str] = PACE) -> None:
        program = find_program("etcd")
        super().__init__("etcd")
        self._pace = pace
        self.name = name
        self.peer = f"http://127.0.0.1:{free_port()}"
        self.cluster = f"{name}={self.peer}"
        self._program = program
        self._data = self.folder / "data"
        self._files = make_certificate(self) if tls else None

    def start(self) -> None:
        """Start it with its data, and wait until there is a leader."""
        self._start(self._command(), self.is_serving)

    def launch(self) -> None:
        """Start it without waiting for a leader, which needs other members."""
        self._start(self._command(), lambda: True)

    def close(self) -> None:
        """Kill it for good. It has nothing to save, and may have been started with the usual signal ignored."""
        self.kill()
        super().close()

    def lose_data(self) -> None:
        """Delete its data while it is not running."""
        shutil.rmtree(self._data)

    def url(self, *, prefix: str = "", user: str = "") -> str:
        """Return its URL; `user` is a name with a password, as in a URL."""
        return _address([self.port], prefix=prefix, user=user, files=self._files)

    def is_serving(self) -> bool:
        """Return whether it can write: alone, or as part of a majority."""
        try:
            return bool(self._open("/health")["health"] == "true")
        except (OSError, ValueError):
            return False

    def wait_until_served(self) -> None:
        """Wait until it can write."""
        wait_until(self.is_serving, f"{self.name} to be one of a majority", within_s=READY_SECONDS)

    def is_leader(self) -> bool:
        """Return whether it leads the cluster."""
        try:
            status = self.call("/v3/maintenance/status", {})
        except OSError:
            return False
        return bool(status.get("leader") == status["header"]["member_id"])

    def call(self, path: str, question: object, *, token: str = "") -> Any:
        """Call its HTTP API, as an operator would."""
        return self._open(path, json.dumps(question).encode(), {"Authorization": token} if token else {})

    def delete(self, key: str) -> None:
        """Delete a key."""
        self.call("/v3/kv/deleterange", {"key": _encoded(key)})

    def keys(self, key: str) -> list[dict[str, str]]:
        """Return a key with its metadata, or nothing."""
        found: list[dict[str, str]] = self.call("/v3/kv/range", {"key": _encoded(key)}).get("kvs", [])
        return found

    def leases(self) -> set[str]:
        """Return the existing leases."""
        return {lease["ID"] for lease in self.call("/v3/lease/leases", {}).get("leases", [])}

    def demand_login(self, user: str, password: str, prefix: str) -> None:
        """Require a password, and limit this user to the keys of a prefix."""
        for name, secret in (("root", ROOT_PASSWORD), (user, password)):
            self.call("/v3/auth/user/add", {"name": name, "password": secret})
            self.call("/v3/auth/role/add", {"name": name})
            self.call("/v3/auth/user/grant", {"user": name, "role": name})
        span = {"key": _encoded(prefix), "range_end": _encoded(prefix[:-1] + chr(ord(prefix[-1]) + 1))}
        self.call("/v3/auth/role/grant", {"name": user, "perm": {"permType": "READWRITE", **span}})
        self.call("/v3/auth/enable", {})

    def forget_logins(self, user: str, password: str) -> None:
        """Invalidate the logins of this user, as a change of the password does."""
        token = self.call("/v3/auth/authenticate", {"name": "root", "password": ROOT_PASSWORD})["token"]
        self.call("/v3/auth/user/changepw", {"name": user, "password": password}, token=token)

    def _open(self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Any:
        context = None
        if self._files is not None:
            context = ssl.create_default_context(cafile=str(self._files[0]))
            context.load_cert_chain(*self._files)
        request = urllib.request.Request(f"{self._scheme}://127.0.0.1:{self.port}{path}", body, headers or {})
        with urllib.request.urlopen(request, timeout=ANSWER_S_MAX, context=context) as answer:
            return json.load(answer)

    @property
    def _scheme(self) -> str:
        return "https" if self._files is not None else "http"

    def _command(self) -> list[str]:
        here = f"{self._scheme}://127.0.0.1:{self.port}"
        return [
            *(str(self._program), "--name", self.name, "--data-dir", str(self._data), *self._pace),
            *("--listen-client-urls", here, "--advertise-client-urls", here),
            *("--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer),
            *("--initial-cluster", self.cluster, "--logger", "zap", "--log-outputs", "stderr"),
            *self._tls_options(),
        ]

    def _tls_options(self) -> Sequence[str]:
        if self._files is None:
            return ()
        certificate, key = map(str, self._files)
        own = ("--cert-file", certificate, "--key-file", key)
        return (*own, "--client-cert-auth", "--trusted-ca-file", certificate)


class EtcdEnsemble:
    """Three servers that work while two of them are up."""

    def __init__(self) -> None:
        self.members = [EtcdServer(name=f"m{number}", pace=ENSEMBLE_PACE) for number in (1, 2, 3)]
        cluster = ",".join(member.cluster for member in self.members)
        for member in self.members:
            member.cluster = cluster

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for member in self.members:
                stack.callback(member.close)
            self.mend()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url(self, *, prefix: str = "") -> str:
        """Return the URL of all of them."""
        return _address([member.port for member in self.members], prefix=prefix)

    def mend(self) -> None:
        """Start the members that do not run, all at once, and wait until each of them serves."""
        for member in self.members:
            if not member.is_running():
                member.launch()
        for member in self.members:
            member.wait_until_served()

    def leader(self) -> EtcdServer:
        """Return the leader, once there is one."""
        found = wait_until(self._leader, "a leader of etcd")
        assert found is not None
        return found

    def _leader(self) -> EtcdServer | None:
        living = [member for member in self.members if member.is_running()]
        return next((member for member in living if member.is_leader()), None)


def _address(ports: Sequence[int], *, prefix: str = "", user: str = "", files: Sequence[object] | None = None) -> str:
    options = [f"prefix={quote(prefix, safe='')}"] if prefix else []
    if files is not None:
        options += [f"ca={files[0]}", f"cert={files[0]}", f"key={files[1]}"]
    scheme = "etcds" if files is not None else "etcd"
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return f"{scheme}://{user}{'@' if user else ''}{hosts}" + (f"?{'&'.join(options)}" if options else "")


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()
