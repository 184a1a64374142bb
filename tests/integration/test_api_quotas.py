"""What one tenant may take of a real API, and that the others still get theirs."""

import contextlib
import re
import socket
from pathlib import Path

import httpx

from tests.support.api import api_process
from tests.support.waiting import DEADLINE_S, wait_until

SECRET = "environment-0123456789abcdef"
BOUNDS = {"TENANT_REQUESTS": "20", "TENANT_STREAMS": "2", "TENANT_JOBS": "3", "TENANT_SCHEDULES": "1"}
DAILY = {"task": "report", "cron": "0 6 * * *"}


def _refusal(answer: httpx.Response) -> tuple[int, str, bool]:
    return answer.status_code, answer.json()["error"]["code"], "retry-after" in answer.headers


def _told_at_once(client: httpx.Client, requests: int = 100) -> set[int]:
    """Ask so often in one breath that the server need not wait for us; return how it answered."""
    asked = f"GET /api/me HTTP/1.1\r\nHost: localhost\r\nAuthorization: {client.headers['authorization']}\r\n"
    address = (client.base_url.host, client.base_url.port or 80)
    told = b""
    with socket.create_connection(address, timeout=DEADLINE_S) as connection:
        connection.sendall(f"{asked}\r\n".encode() * (requests - 1) + f"{asked}Connection: close\r\n\r\n".encode())
        while data := connection.recv(1 << 20):  # Until the server closes, as it was asked to.
            told += data
    refusals = [part for part in told.split(b"HTTP/1.1 ") if part.startswith(b"429 ")]
    assert all(b"retry-after: 1\r\n" in refusal and b'"quota"' in refusal for refusal in refusals)
    return {int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", told)}


def _many_retries_count(client: httpx.Client) -> None:
    """What is retried is new jobs, which a tenant may have as many of as of any."""
    assert client.post("/api/jobs/cancel", json={"filter": {"status": "PENDING"}}).json()["done"] == 3
    report = {"type": "report"}  # The jobs are counted every few seconds.
    wait_until(lambda: client.post("/api/jobs", json=report).status_code == 201, "room for a job", every_s=0.2)
    chosen = {"filter": {"status": "CANCELLED"}}
    assert client.post("/api/jobs/retry", json={**chosen, "dry_run": True}).json()["matched"] == 3
    assert _refusal(client.post("/api/jobs/retry", json=chosen)) == (429, "quota", True)
    assert client.post("/api/jobs/retry", json={**chosen, "limit": 1}).json()["done"] == 1


def test_a_tenant_gets_its_share_and_no_more(tmp_path: Path) -> None:
    environ = {"HEADWAY_TOKEN": SECRET, **{f"HEADWAY_{name}": value for name, value in BOUNDS.items()}}
    with (
        api_process(f"sqlite:///{tmp_path}/headway.db", env=environ) as api,
        api.client(SECRET) as root,
        contextlib.ExitStack() as stack,
    ):
        tenants = []
        for tenant in ("acme", "globex"):
            made = root.post("/api/tokens", json={"name": tenant, "tenant": tenant, "role": "operator"}).json()
            tenants.append(stack.enter_context(api.client(made["token"])))
        acme, globex = tenants
        three = {"jobs": [{"type": "report", "args": {}}] * 3}
        assert acme.post("/api/jobs/bulk", json=three).status_code == 201
        assert globex.post("/api/jobs/bulk", json=three).status_code == 201
        assert _refusal(globex.post("/api/jobs/bulk", json=three)) == (429, "quota", True)
        assert root.post("/api/jobs/bulk", json={"jobs": three["jobs"] * 10}).status_code == 201
        assert globex.put("/api/schedules/first", json=DAILY).status_code == 201
        assert globex.put("/api/schedules/first", json={**DAILY, "cron": "0 7 * * *"}).status_code == 200
        assert _refusal(globex.put("/api/schedules/second", json=DAILY)) == (429, "quota", True)
        with contextlib.ExitStack() as streams:
            for _ in range(2):
                streams.enter_context(globex.stream("GET", "/api/stream"))
            with globex.stream("GET", "/api/stream") as refused:
                refused.read()
                assert _refusal(refused) == (429, "quota", True)
            with acme.stream("GET", "/api/stream") as other:
                assert other.status_code == 200
        _many_retries_count(acme)
        wait_until(lambda: _told_at_once(acme) == {200, 429}, "requests that are too many for one second")
        assert root.get("/api/me").status_code == 200
