"""/metrics, /livez and /readyz of real API processes: figures of other processes, and outages of the store."""

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.cli.root import run
from tests.support import evidence
from tests.support.api import ApiProcess, api_process
from tests.support.postgres import PostgresServer
from tests.support.waiting import DEADLINE_S, wait_until

TOKEN = secrets.token_hex(16)  # The token of the environment works without the store.

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
    """Run a role of Headway in a process, with leases too long to expire in a test."""
    command = [sys.executable, "-m", "headway", name, "--store", store, *arguments]
    patience = {"HEADWAY_LEADER_LEASE": "10m", "HEADWAY_WORKER_LEASE": "10m"}
    with evidence.log_file(f"headway {name}").open("ab") as log:
        environ = {**os.environ, **patience, "PYTHONPATH": str(folder)}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


Samples = dict[str, dict[str, float]]


def scrape(api: ApiProcess, token: str | None = None) -> Samples:
    """Read /metrics: by sample name, then by labels as Prometheus writes them."""
    with api.client(token) as client:
        answer = client.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: Samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def wait_samples(
    api: ApiProcess, *wanted: tuple[str, str, Callable[[float], bool]], token: str | None = None
) -> Samples:
    """Read /metrics until these samples have the expected values. A slow store may leave out samples."""
    found: Samples = {}
    evidence.attach("/metrics", lambda: "\n".join(f"{name} {samples}" for name, samples in found.items()))

    def are_as_expected() -> bool:
        found.clear()
        found.update(scrape(api, token))
        return all(is_right(found.get(name, {}).get(labels, -1.0)) for name, labels, is_right in wanted)

    wait_until(are_as_expected, f"the samples {[name for name, *_ in wanted]}", every_s=0.1)
    return found


def exactly(number: float) -> Callable[[float], bool]:
    return lambda value: value == number


def at_least(number: float) -> Callable[[float], bool]:
    return lambda value: value >= number


def readiness(api: ApiProcess) -> tuple[int, str, dict[str, str]]:
    with api.client() as client:
        assert client.get("/livez").json() == {"status": "alive"}, "liveness does not depend on the store"
        answer = client.get("/readyz")
    body = answer.json()
    assert body.keys() == {"status", "checks"}, "anonymous callers see nothing else"
    return answer.status_code, body["status"], body["checks"]


def test_counters_of_other_processes_outlive_them(tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text(APP)
    store = f"sqlite:///{tmp_path}/headway.db"
    names = ("headway_attempts_total", "headway_decisions_total", "headway_run_duration_seconds_count")
    with api_process(store) as api, api.client() as client:
        jobs: list[dict[str, object]] = [{"type": "good", "queue": f"queue-{n % 3}"} for n in range(30)]
        jobs += [{"type": "bad", "queue": "queue-0", "max_attempts": 1} for _ in range(4)]
        jobs += [{"type": "good", "queue": "idle", "delay": "1h"}]
        with role("serve", store, "--app", "counted:app", folder=tmp_path):
            wait_samples(api, ("headway_worker_slots", "", at_least(1)))
            answer = client.post("/api/jobs/bulk", json={"jobs": jobs})
            assert answer.status_code in (200, 201), answer.text
            found = wait_samples(
                api,
                ("headway_attempts_total", "result=completed", at_least(30)),
                ("headway_attempts_total", "result=failed", exactly(4)),
                ("headway_decisions_total", "outcome=fired", at_least(2)),
                ("headway_dead_letters", "", exactly(4)),
                ("headway_oldest_undecided_seconds", "", at_least(0)),
                ("headway_scheduler_leases", "", exactly(1)),
                ("headway_nodes", "role=scheduler", exactly(1)),
                ("headway_nodes", "role=worker", exactly(1)),
                ("headway_claim_duration_seconds_count", "", at_least(3)),
                ("headway_settle_duration_seconds_count", "", at_least(1)),
                ("headway_run_duration_seconds_count", "", at_least(34)),
                ("headway_decision_lateness_seconds_count", "", at_least(2)),
            )
            assert found["headway_leases_lost_total"] == {"of=attempt": 0, "of=term": 0, "of=other": 0}
            requests = found["headway_api_requests_total"]
            assert requests["method=POST,route=/api/jobs/bulk,status=2xx"] == 1
            assert not [labels for labels in requests if "job_" in labels]
            before = found
        after = scrape(api)
        gone = wait_samples(api, ("headway_nodes", "role=worker", exactly(0)))
        for found in (after, gone):
            for name in names:
                assert all(found[name][labels] >= number for labels, number in before[name].items()), name
        last = gone
    with api_process(store) as api:
        found = wait_samples(api, ("headway_store_up", "", exactly(1)))
        assert {name: found[name] for name in names} == {name: last[name] for name in names}, (
            "counters survive a restart"
        )


def test_metrics_need_access_to_all_tenants(tmp_path: Path) -> None:
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
        with api.client() as client:
            wait_until(lambda: client.get("/metrics").status_code == 401, "the end of anonymous access")
            assert client.get("/metrics", headers={"Authorization": "Bearer hw_wrong"}).status_code == 401
            refused = client.get("/metrics", headers={"Authorization": f"Bearer {tokens['acme']}"})
            assert refused.status_code == 403
            assert "headway_" not in refused.text
            assert "headway_store_up" in scrape(api, tokens["*"])
            wait_until(lambda: readiness(api)[0] == 200, "the API to be ready")
            for path in ("/livez/", "/api/livez", "/readyz/x", "/api/jobs/readyz", "/metrics/"):
                assert client.get(path).status_code in (401, 404), path


@pytest.mark.postgres
def test_readiness_reports_store_outages_and_stuck_loops(tmp_path: Path) -> None:
    """`tests/unit/server/test_health.py` checks the delays in virtual time."""
    with PostgresServer() as server:
        url = server.create_database()
        assert run(["migrate", "--store", url]) == 0
        with api_process(url, env={"HEADWAY_TOKEN": TOKEN}) as api:

            def await_readiness(status: int, word: str, **other: str) -> None:
                expected = (status, word, {**OK, **other})
                wait_until(lambda: readiness(api) == expected, f"{expected}", every_s=0.1)

            await_readiness(200, "degraded", leader="no scheduler is the leader: schedules are not decided")
            with role("scheduler", url, folder=tmp_path):
                await_readiness(200, "ready")

                with psycopg.connect(url) as connection:  # The store answers, but the deliverer waits for a lock.
                    connection.execute("lock table headway_deliveries in access exclusive mode")
                    await_readiness(503, "unready", loops="deliverer is stuck")
                await_readiness(200, "ready")

                server.stop("immediate")
                away = {"store": "does not answer", "leader": "unknown"}
                wait_until(lambda: readiness(api)[0] == 503, "the outage to show", every_s=0.1)
                status, word, checks = readiness(api)
                assert (status, word, {name: checks[name] for name in away}) == (503, "unready", away)
                wait_samples(api, ("headway_store_up", "", exactly(0)), token=TOKEN)
                server.start()
                await_readiness(200, "ready")
                wait_samples(api, ("headway_store_up", "", exactly(1)), token=TOKEN)
            await_readiness(200, "degraded", leader="no scheduler is the leader: schedules are not decided")


OK = {"store": "ok", "loops": "ok", "leader": "ok", "engines": "ok"}
