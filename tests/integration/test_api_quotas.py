"""What one tenant may take of a real API, and that the others still get theirs."""

import contextlib
from pathlib import Path

import httpx

from tests.support.api import api_process

SECRET = "environment-0123456789abcdef"
BOUNDS = {"TENANT_REQUESTS": "20", "TENANT_STREAMS": "2", "TENANT_JOBS": "3", "TENANT_SCHEDULES": "1"}
DAILY = {"task": "report", "cron": "0 6 * * *"}


def _refusal(answer: httpx.Response) -> tuple[int, str, bool]:
    return answer.status_code, answer.json()["error"]["code"], "retry-after" in answer.headers


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
        answers = [acme.get("/api/me") for _ in range(200)]
        assert {answer.status_code for answer in answers} == {200, 429}
        assert _refusal(next(answer for answer in answers if answer.status_code == 429)) == (429, "quota", True)
        assert root.get("/api/me").status_code == 200
