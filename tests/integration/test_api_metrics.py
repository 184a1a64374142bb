"""/metrics, /livez and /readyz of real API processes: true about other processes, and about a store that goes away."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.api import ApiProcess, api_process
from tests.support.postgres import PostgresServer

pytestmark = [pytest.mark.timeout(240)]

TRUTH_S_MAX = 15.0
PATIENCE_S = 60.0
TOKEN = secrets.token_hex(16)  # That of the environment counts without the store.

APP = """
from headway import Every, Headway

app = Headway()


@app.task
async def good() -> None:
    pass


@app.task
async def bad() -> None:
    raise ValueError("as asked")


app.schedule("tick", good, Every("1s"))
"""


@contextmanager
def role(name: str, store: str, *arguments: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a role of Headway in a process of its own."""
    command = [sys.executable, "-m", "headway", name, "--store", store, *arguments]
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(folder)})
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def scrape(api: ApiProcess, token: str | None = None) -> dict[str, dict[str, float]]:
    """Read /metrics: by name of the sample, then by its labels as Prometheus writes them."""
    with api.client(token) as client:
        answer = client.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def wait_for(holds: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> float:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, f"{what}: not within {seconds:g} s"
        time.sleep(0.1)
    return time.monotonic() - began


def readiness(api: ApiProcess) -> tuple[int, str, dict[str, str]]:
    with api.client() as client:
        assert client.get("/livez").json() == {"status": "alive"}, "whatever the store does"
        answer = client.get("/readyz")
    body = answer.json()
    assert body.keys() == {"status", "checks"}, "nothing else may be known to strangers"
    return answer.status_code, body["status"], body["checks"]


def test_counts_of_other_processes_outlive_them(tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text(APP)
    store = f"sqlite:///{tmp_path}/headway.db"
    names = ("headway_attempts_total", "headway_decisions_total", "headway_run_duration_seconds_count")
    with api_process(store) as api, api.client() as client:
        jobs: list[dict[str, object]] = [{"type": "good", "queue": f"queue-{n % 3}"} for n in range(30)]
        jobs += [{"type": "bad", "queue": "queue-0", "max_attempts": 1} for _ in range(4)]
        jobs += [{"type": "good", "queue": "idle", "delay": "1h"}]
        with role("serve", store, "--app", "counted:app", folder=tmp_path):
            wait_for(lambda: scrape(api)["headway_worker_slots"][""] > 0, "the worker to be there")
            answer = client.post("/api/jobs/bulk", json={"jobs": jobs})
            assert answer.status_code in (200, 201), answer.text
            wait_for(lambda: scrape(api)["headway_attempts_total"]["result=completed"] >= 30, "jobs to be counted")
            wait_for(lambda: scrape(api)["headway_decisions_total"]["outcome=fired"] >= 2, "decisions")
            found = scrape(api)
            assert found["headway_attempts_total"]["result=failed"] == 4
            assert found["headway_dead_letters"][""] == 4
            assert found["headway_oldest_undecided_seconds"][""] < 30
            assert found["headway_scheduler_leases"][""] == 1
            assert found["headway_nodes"]["role=scheduler"] == found["headway_nodes"]["role=worker"] == 1
            assert found["headway_claim_duration_seconds_count"][""] >= 3
            assert found["headway_settle_duration_seconds_count"][""] >= 1
            assert found["headway_run_duration_seconds_count"][""] >= 34
            assert found["headway_decision_lateness_seconds_count"][""] >= 2
            assert found["headway_leases_lost_total"] == {"of=attempt": 0, "of=term": 0, "of=other": 0}
            requests = found["headway_api_requests_total"]
            assert requests["method=POST,route=/api/jobs/bulk,status=2xx"] == 1
            assert not [labels for labels in requests if "job_" in labels]
            before = scrape(api)
        after = scrape(api)
        wait_for(lambda: scrape(api)["headway_nodes"]["role=worker"] == 0, "the worker to be gone")
        for found in (after, scrape(api)):
            for name in names:
                assert all(found[name][labels] >= number for labels, number in before[name].items()), name
        last = scrape(api)
    with api_process(store) as api:
        found = scrape(api)
        assert {name: found[name] for name in names} == {name: last[name] for name in names}, "it was not this process"


def test_numbers_of_everybody_are_for_those_who_may_see_everybody(tmp_path: Path) -> None:
    with api_process(f"sqlite:///{tmp_path}/headway.db") as api:
        assert "headway_store_up" in scrape(api)
        with api.client() as client:
            made = client.post("/api/tokens", json={"name": "root", "role": "admin", "tenant": "*"})
            root = made.json()["token"]
        with api.client(root) as client:
            tokens = {
                tenant: client.post("/api/tokens", json={"name": "p", "role": "viewer", "tenant": tenant}).json()[
                    "token"
                ]
                for tenant in ("*", "acme")
            }
        wait_for(lambda: api.client().get("/metrics").status_code == 401, "the door to be shut")
        assert api.client("hw_wrong").get("/metrics").status_code == 401
        refused = api.client(tokens["acme"]).get("/metrics")
        assert refused.status_code == 403
        assert "headway_" not in refused.text
        assert "headway_store_up" in scrape(api, tokens["*"])
        assert readiness(api)[0] == 200
        for path in ("/livez/", "/api/livez", "/readyz/x", "/api/jobs/readyz", "/metrics/"):
            assert api.client().get(path).status_code in (401, 404), path


@pytest.mark.postgres
def test_readiness_tells_the_truth_about_the_store_and_about_loops(tmp_path: Path) -> None:
    with PostgresServer() as server:
        url = server.create_database()
        subprocess.run([sys.executable, "-m", "headway", "migrate", "--store", url], check=True, timeout=60)
        with api_process(url, env={"HEADWAY_TOKEN": TOKEN}) as api:
            assert readiness(api) == (200, "degraded", {**OK, "leader": "nobody decides the schedules"})
            with role("scheduler", url, folder=tmp_path):
                wait_for(lambda: readiness(api)[1] == "ready", "the scheduler to lead")

                with psycopg.connect(url) as connection:  # The store answers, and the deliverer waits for a lock.
                    connection.execute("lock table headway_deliveries in access exclusive mode")
                    took_s = wait_for(lambda: readiness(api)[0] == 503, "the frozen loop to show")
                    assert readiness(api) == (503, "unready", {**OK, "loops": "deliverer stands still"})
                    assert took_s < TRUTH_S_MAX
                assert wait_for(lambda: readiness(api)[1] == "ready", "the loop to turn again") < TRUTH_S_MAX

                server.stop("immediate")
                assert wait_for(lambda: readiness(api)[0] == 503, "the outage to show") < TRUTH_S_MAX
                status, word, checks = readiness(api)
                assert (status, word) == (503, "unready")
                assert (checks["store"], checks["leader"]) == ("does not answer", "unknown")
                assert scrape(api, TOKEN)["headway_store_up"][""] == 0
                server.start()
                assert wait_for(lambda: readiness(api)[0] == 200, "the store to be there again") < TRUTH_S_MAX
                wait_for(lambda: readiness(api)[1] == "ready", "the scheduler to lead again")
                assert scrape(api, TOKEN)["headway_store_up"][""] == 1
            wait_for(lambda: readiness(api)[1] == "degraded", "the scheduler to be missed")


OK = {"store": "ok", "loops": "ok", "leader": "ok", "engines": "ok"}
