"""A corrupt row, written by hand or by another version, affects no other row."""

import pytest

from tests.support.house import House
from tests.support.waiting import wait_until

HUGE = 2**62
ABSURD = {
    "expires_at": f"{HUGE}",
    "run_at": f"{HUGE}",
    "created_at": f"{-HUGE}",
    "updated_at": f"{HUGE}",
    "started_at": f"{HUGE}",
    "ready_at": f"{-HUGE}",
    "version": f"{2**63 - 1}",
    "occurrence_at": f"{HUGE}",
    "args": "'{'",
    "metadata": "'[1'",
    "detail": "'nonsense'",
    "tags": "'{'",
    "options": '\'{"timeout": "soon"}\'',
    "progress": "2147483647",
    "attempt": "2147483647",
    "failures": "2147483647",
    "max_attempts": "-1",
    "priority": "2147483647",
    "callback": "'not a url'",
}


def _enqueue(home: House, **more: object) -> str:
    answer = home.acme.post("/api/jobs", json={"type": "report", "queue": "nowhere", **more})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_time_that_overflows_is_rejected(home: House) -> None:
    body = {"type": "never", "run_at": "9999-12-31T23:00:00Z", "expires": "3660d"}
    answer = home.acme.post("/api/jobs", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["message"].startswith("run_at must lie before the year 2200")
    many = home.acme.post("/api/jobs/bulk", json={"jobs": [{"type": "never"}, body]})
    assert many.status_code == 422
    assert "jobs[1]" in many.json()["error"]["message"]
    assert home.acme.get("/api/jobs", params={"type": "never"}).json()["items"] == []


@pytest.mark.parametrize("column", ABSURD)
def test_corrupt_row_affects_no_other_row(home: House, column: str) -> None:
    job_id, good = _enqueue(home), _enqueue(home)
    home.write(f"update headway_jobs set {column} = {ABSURD[column]} where id = '{job_id}'")
    for path in ("/api/jobs", f"/api/jobs/{job_id}", f"/api/jobs/{job_id}/why", f"/api/jobs/{job_id}/attempts"):
        answer = home.acme.get(path)
        assert answer.status_code == 200, f"{path}: {answer.text}"
    for path in ("/api/stats", "/api/alerts", "/api/queues", "/api/jobs/latest?type=report", "/api/dead", "/metrics"):
        answer = home.root.get(path)
        assert answer.status_code == 200, f"{path}: {answer.text}"
    listed = {job["id"] for job in home.acme.get("/api/jobs", params={"limit": 200}).json()["items"]}
    assert {job_id, good} <= listed


# The largest version has no successor.
@pytest.mark.parametrize("column", [name for name in ABSURD if name != "version"])
def test_end_of_a_corrupt_job_stops_no_process(home: House, column: str) -> None:
    job_id = _enqueue(home, callback_url="http://127.0.0.1:9/hook")
    home.write(f"update headway_jobs set {column} = {ABSURD[column]} where id = '{job_id}'")
    answer = home.acme.post(f"/api/jobs/{job_id}/cancel")
    assert answer.status_code in (200, 202), answer.text
    good = _enqueue(home, callback_url="http://127.0.0.1:9/hook")
    assert home.acme.post(f"/api/jobs/{good}/cancel").status_code == 200

    def are_tried() -> bool:
        items = home.root.get("/api/deliveries", params={"limit": 200}).json()["items"]
        return {job_id, good} <= {item["job"] for item in items if item["tries"] or item["ended_at"]}

    wait_until(are_tried, "both deliveries to be tried")
    assert home.api.process.poll() is None
