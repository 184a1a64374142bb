"""Quotas of a tenant on a real API, and their independence of other tenants."""

import contextlib
import json
import re
import socket
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import connect

from headway import Headway
from headway.core.clock import Clock
from headway.core.settings import Settings
from headway.wiring.api import new_api
from tests.support.api import api_process
from tests.support.waiting import DEADLINE_S, wait_until

SECRET = "environment-0123456789abcdef"
BOUNDS = {"TENANT_REQUESTS": "20", "TENANT_STREAMS": "2", "TENANT_JOBS": "3", "TENANT_SCHEDULES": "1"}
DAILY = {"task": "report", "cron": "0 6 * * *"}


def _refusal(answer: httpx.Response) -> tuple[int, str, bool]:
    return answer.status_code, answer.json()["error"]["code"], "retry-after" in answer.headers


def _statuses_of_burst(client: httpx.Client, requests: int = 100) -> set[int]:
    """Send many pipelined requests at once; return the status codes of the responses."""
    asked = f"GET /api/me HTTP/1.1\r\nHost: localhost\r\nAuthorization: {client.headers['authorization']}\r\n"
    address = (client.base_url.host, client.base_url.port or 80)
    received = b""
    with socket.create_connection(address, timeout=DEADLINE_S) as connection:
        connection.sendall(f"{asked}\r\n".encode() * (requests - 1) + f"{asked}Connection: close\r\n\r\n".encode())
        while data := connection.recv(1 << 20):  # Until the server closes the connection, as requested.
            received += data
    refusals = [part for part in received.split(b"HTTP/1.1 ") if part.startswith(b"429 ")]
    assert all(b"retry-after: 1\r\n" in refusal and b'"quota"' in refusal for refusal in refusals)
    return {int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", received)}


def _check_stream_quota(client: httpx.Client) -> None:
    """Streams, long polls, WebSockets and their further subscriptions share the same two slots."""
    url = str(client.base_url).replace("http", "ws", 1).rstrip("/") + "/api/ws"
    first, second, *_ = [job["id"] for job in client.get("/api/jobs").json()["items"]]

    def polled(**params: str | int) -> httpx.Response:
        return client.get(f"/api/jobs/{first}", params={"wait": "60s", **params})

    with contextlib.ExitStack() as streams:
        for _ in range(2):
            streams.enter_context(client.stream("GET", "/api/stream"))
        with client.stream("GET", "/api/stream") as refused:
            refused.read()
            assert _refusal(refused) == (429, "quota", True)
        assert _refusal(polled()) == (429, "quota", True)
        assert polled(since=0).status_code == 200  # It returns at once.
    # The server notices the end of a stream a little later.
    wait_until(lambda: polled(wait="1ms").status_code == 200, "one of the two slots to be free")
    authorization = {"Authorization": client.headers["authorization"]}
    with connect(url, additional_headers=authorization) as websocket:  # One slot; its first subscription is included.
        subscriptions: list[dict[str, Any]] = [{"job": first}, {"all": {}}, {"job": second}]
        wait_until(lambda: polled(wait="1ms").status_code == 200, "the other slot to be free")
        for subscription in subscriptions:
            websocket.send(json.dumps({"subscribe": subscription}))
        received = {one["event"]: one["data"] for one in (json.loads(websocket.recv(DEADLINE_S)) for _ in range(3))}
        assert received.keys() == {"status", "ready", "error"}
        assert (received["error"]["code"], received["error"]["subscription"]) == ("quota", second)
        assert _refusal(polled()) == (429, "quota", True)
        websocket.send(json.dumps({"unsubscribe": {"all": {}}}))
        wait_until(lambda: polled(wait="1ms").status_code == 200, "its slot to be free")


def _check_job_quota_of_derived_jobs(root: httpx.Client, client: httpx.Client) -> None:
    """Retry, trigger and backfill cannot exceed the quota of jobs."""
    done = client.get("/api/jobs", params={"status": "CANCELLED"}).json()["items"][0]["id"]
    for path, body in (
        (f"/api/jobs/{done}/retry", {}),
        ("/api/schedules/first/trigger", {}),
        ("/api/schedules/first/backfill", {"from": "2026-01-01T00:00:00Z", "to": "2026-01-03T00:00:00Z"}),
    ):
        assert _refusal(client.post(path, json=body)) == (429, "quota", True), path
    whose = {"tenant": "globex"}
    triggered = root.post("/api/schedules/first/trigger", params=whose, json={})
    assert triggered.status_code == 201  # An operator of all tenants can.


def _check_job_quota_of_bulk_retries(client: httpx.Client) -> None:
    """Retried jobs are new jobs and count as such."""
    assert client.post("/api/jobs/cancel", json={"filter": {"status": "PENDING"}}).json()["done"] == 3
    report = {"type": "report"}  # Jobs are counted every few seconds.
    wait_until(lambda: client.post("/api/jobs", json=report).status_code == 201, "room for a job", every_s=0.2)
    chosen = {"filter": {"status": "CANCELLED"}}
    assert client.post("/api/jobs/retry", json={**chosen, "dry_run": True}).json()["matched"] == 3
    assert _refusal(client.post("/api/jobs/retry", json=chosen)) == (429, "quota", True)
    assert client.post("/api/jobs/retry", json={**chosen, "limit": 1}).json()["done"] == 1


def test_tenant_quotas(tmp_path: Path) -> None:
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
        named = [{"name": name, **DAILY} for name in ("first", "second")]
        assert _refusal(globex.put("/api/schedules", json={"schedules": named})) == (429, "quota", True)
        assert globex.get("/api/schedules/first").json()["trigger"]["expr"] == "0 7 * * *"  # None of them was written.
        assert globex.put("/api/schedules?dry_run=1", json={"schedules": named}).status_code == 200
        _check_stream_quota(globex)
        _check_job_quota_of_bulk_retries(acme)
        assert globex.post("/api/jobs/cancel", json={"filter": {"status": "PENDING"}, "limit": 1}).json()["done"] == 1
        wait_until(
            lambda: globex.post("/api/jobs", json={"type": "report"}).status_code == 201, "room for a job", every_s=0.2
        )
        _check_job_quota_of_derived_jobs(root, globex)
        wait_until(lambda: _statuses_of_burst(acme) == {200, 429}, "a burst to exceed the rate limit")
        assert root.get("/api/me").status_code == 200


async def test_sign_in_counts_as_a_request(tmp_path: Path) -> None:
    """The clock is frozen, so that the rate limit does not refill."""
    settings = Settings(store=f"sqlite:///{tmp_path}/headway.db", token=SECRET, tenant_requests=3)
    api = new_api(Headway(settings=settings).store, settings, Clock(monotonic=lambda: 0.0))
    transport = httpx.ASGITransport(app=api)
    root = {"Authorization": f"Bearer {SECRET}"}
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            made = await client.post("/api/tokens", json={"name": "a", "tenant": "a", "role": "viewer"}, headers=root)
            credentials = {"token": made.json()["token"]}
            signed_in = [await client.post("/api/session", json=credentials) for _ in range(5)]
            assert [answer.status_code for answer in signed_in] == [201] * 3 + [429] * 2
            assert _refusal(signed_in[-1]) == (429, "quota", True)
            assert (await client.get("/api/me", headers=root)).status_code == 200
    finally:
        await api.close()
