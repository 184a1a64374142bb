"""A real API process on a free loopback port, and clients for it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support import evidence

START_S_MAX = 120.0
END_S_MAX = 120.0
ANSWER_S_MAX = 120.0


@dataclass
class ApiProcess:
    """One `headway api` process."""

    url: str
    process: subprocess.Popen[str]
    log: list[str] = field(default_factory=list)

    def client(self, token: str | None = None, **options: object) -> httpx.Client:
        """Return a client with or without a token."""
        return httpx.Client(**self._client_options(token), **options)  # type: ignore[arg-type]

    def async_client(self, token: str | None = None, **options: object) -> httpx.AsyncClient:
        """Return an asynchronous client with or without a token."""
        return httpx.AsyncClient(**self._client_options(token), **options)  # type: ignore[arg-type]

    def _client_options(self, token: str | None) -> dict[str, Any]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        # Without verify=False each client would load all certificates of the system, for plain HTTP.
        return {"base_url": self.url, "headers": headers, "timeout": ANSWER_S_MAX, "trust_env": False, "verify": False}

    def kill(self) -> None:
        """Kill it, like a power cut."""
        self.process.kill()
        self.process.wait(END_S_MAX)

    def stop(self) -> int:
        """Stop it cleanly; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_S_MAX)


@contextlib.contextmanager
def api_process(
    store: str, *arguments: str, port: int = 0, env: dict[str, str] | None = None, role: str = "api"
) -> Iterator[ApiProcess]:
    """Run `headway api`, or another command that serves the API, on a store until the block ends."""
    command = [sys.executable, "-m", "headway", role, "--store", store, "--port", str(port), *arguments]
    written = evidence.log_file(f"standard output of headway {role}", shared=True)
    with written.open("wb") as output:
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=output, text=True, env={**os.environ, **(env or {})}
        )
    log: list[str] = []
    said = evidence.attach(f"headway {role} {process.pid}", lambda: "".join(log), shared=True)
    try:
        url = _listening(process, log)
        threading.Thread(target=_drain, args=(process, log), daemon=True).start()
        yield ApiProcess(url, process, log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        said.close()


def _listening(process: subprocess.Popen[str], log: list[str]) -> str:
    timer = threading.Timer(START_S_MAX, process.kill)
    timer.start()
    try:
        assert process.stderr is not None
        for line in process.stderr:
            log.append(line)
            if found := re.search(r"listening.*(http://\S+?)[\"\s]", line + " "):
                return found[1]
    finally:
        timer.cancel()
    raise AssertionError("the API did not start:\n" + "".join(log))


def _drain(process: subprocess.Popen[str], log: list[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if len(log) < 10_000:
            log.append(line)
