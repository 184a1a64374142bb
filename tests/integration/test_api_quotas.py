"""What one tenant may take of a real API, and that the others still get theirs."""

import contextlib
import time
from pathlib import Path

import httpx

from tests.support.api import api_process

WAIT_S_MAX = 30.0
SECRET = "environment-0123456789abcdef"
BOUNDS = {"TENANT_REQUESTS": "20", "TENANT_STREAMS": "2", "TENANT_JOBS": "3", "TENANT_SCHEDULES": "1"}
DAILY = {"task": "report", "cron": "0 6 * * *"}


def _refusal(answer: httpx.Response) -> tuple[int, str, bool]:
    return answer.status_code, answer.json()["error"]["code"], "retry-after" in answer.headers


def _many_retries_count(client: httpx.Client) -> None:
    """What is retried is new jobs, which a tenant may have as many of as of any."""
    assert client.post("/api/jobs/cancel", json={"filter": {"status": "PENDING"}}).json()["done"] == 3
    end = time.monotonic() + WAIT_S_MAX
    while client.post("/api/jobs", json={"type": "report"}).status_code != 201:  # They are counted every few seconds.
        assert time.monotonic() < end
        time.sleep(0.5)
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
        answers = [acme.get("/api/me") for _ in range(200)]
        assert {answer.status_code for answer in answers} == {200, 429}
        assert _refusal(next(answer for answer in answers if answer.status_code == 429)) == (429, "quota", True)
        assert root.get("/api/me").status_code == 200
