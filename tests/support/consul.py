"""A private Consul for the tests: a single agent."""

import itertools
import json
import os
import shutil
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.certificates import make_certificate
from tests.support.server import Server, ServerMissing, find_program, free_port

# Elects a leader at once, and allows sessions shorter than the default minimum of 10 s.
PACE = 'performance { raft_multiplier = 1 } session_ttl_min = "%s"'
SECRETS = 'acl { enabled = true default_policy = "deny" tokens { master = "%s" } }'
TLS = 'ports { http = -1 https = %d } cert_file = "%s" key_file = "%s" ca_file = "%s" verify_incoming_https = true'
ANSWER_S_MAX = 60.0
MASTER = "b0000000-0000-0000-0000-000000000001"


class ConsulServer(Server):
    """One Consul with its own data. With `tls` it requires a client certificate that it trusts."""

    def __init__(self, *, session_ttl_min: str = "1s", secret: bool = False, tls: bool = False) -> None:
        program = _find_consul()
        super().__init__("consul")
        self.owner = None  # Consul runs as root, and its program may be readable only by us.
        self._program = program
        self._numbers = itertools.count(1)
        self._data = self.folder / "data"
        self._ports = [free_port(), free_port()]
        self._files = make_certificate(self) if tls else None
        self._token = MASTER if secret else ""
        self._config = [PACE % session_ttl_min, *([SECRETS % MASTER] if secret else [])]

    def start(self) -> None:
        """Start it with its data, and wait until it creates sessions."""
        self._start(self._command(), self._is_ready)

    def close(self) -> None:
        """Kill it for good. It has nothing to save, and may have been started with the usual signal ignored."""
        self.kill()
        super().close()

    def url(self, *, prefix: str = "", token: str | None = None) -> str:
        """Return its URL, with the management token or another one."""
        options = [f"prefix={quote(prefix, safe='')}"] if prefix else []
        if self._files is not None:
            options += [f"ca={self._files[0]}", f"cert={self._files[0]}", f"key={self._files[1]}"]
        token = self._token if token is None else token
        scheme = "consuls" if self._files is not None else "consul"
        credentials = f":{quote(token, safe='')}@" if token else ""
        return f"{scheme}://{credentials}127.0.0.1:{self.port}" + (f"?{'&'.join(options)}" if options else "")

    def call(self, method: str, path: str, question: object = None) -> Any:
        """Call its HTTP API, as an operator would."""
        return json.loads(self._open(method, path, None if question is None else json.dumps(question).encode()))

    def save(self) -> bytes:
        """Return a snapshot of its state."""
        return self._open("GET", "/v1/snapshot")

    def restore(self, snapshot: bytes) -> None:
        """Restore a snapshot."""
        self._open("PUT", "/v1/snapshot", snapshot)

    def sessions(self) -> dict[str, str]:
        """Return the existing sessions, each with its requested TTL."""
        return {session["ID"]: session["TTL"] for session in self.call("GET", "/v1/session/list")}

    def session_of(self, key: str) -> str:
        """Return the session that holds a key."""
        return str(self.call("GET", f"/v1/kv/{key}")[0]["Session"])

    def lose_data(self) -> None:
        """Delete its data while it is not running."""
        shutil.rmtree(self._data)

    def make_token(self, rules: str) -> str:
        """Create a token with only these rules."""
        policy = self.call("PUT", "/v1/acl/policy", {"Name": f"rules-{next(self._numbers)}", "Rules": rules})
        return str(self.call("PUT", "/v1/acl/token", {"Policies": [{"ID": policy["ID"]}]})["SecretID"])

    def _open(self, method: str, path: str, body: bytes | None = None) -> bytes:
        context = None
        if self._files is not None:
            context = ssl.create_default_context(cafile=str(self._files[0]))
            context.load_cert_chain(*self._files)
        url = f"{'https' if self._files is not None else 'http'}://127.0.0.1:{self.port}{path}"
        headers = {"X-Consul-Token": self._token} if self._token else {}
        request = urllib.request.Request(url, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=ANSWER_S_MAX, context=context) as answer:
            return bytes(answer.read())

    def _command(self) -> list[str]:
        config = list(self._config)
        if self._files is not None:
            config.append(TLS % (self.port, self._files[0], self._files[1], self._files[0]))
        http = [] if self._files is not None else [f"-http-port={self.port}"]
        return [
            *(str(self._program), "agent", "-server", "-bootstrap-expect=1", f"-data-dir={self._data}"),
            *("-bind=127.0.0.1", "-client=127.0.0.1", "-node=tests", "-dns-port=-1", "-grpc-port=-1", *http),
            *(f"-serf-lan-port={self._ports[0]}", "-serf-wan-port=-1", f"-server-port={self._ports[1]}"),
            *(f"-hcl={line}" for line in config),
        ]

    def _is_ready(self) -> bool:
        try:
            session = self.call("PUT", "/v1/session/create", {"TTL": "3600s", "NodeChecks": []})
            return bool(self.call("PUT", f"/v1/session/destroy/{session['ID']}"))
        except (OSError, ValueError, urllib.error.HTTPError):
            return False


def _find_consul() -> Path:
    """Find it where scripts/unpack-consul puts it, since Debian no longer packages it; or in PATH."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    unpacked = cache / "headway" / "consul" / "usr" / "bin" / "consul"
    try:
        return find_program("consul")
    except ServerMissing:
        if not unpacked.exists():
            raise
        return unpacked
