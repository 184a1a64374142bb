"""Responses: jobs as stored, 304 while nothing has changed, and errors that name the field."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from headway import Headway
from headway.core.instants import HOUR, SECOND
from headway.core.jobs import Report
from headway.core.lifecycle import Raised, Succeeded
from headway.core.settings import Settings
from headway.store import Store
from tests.conformance.arrange import claim_one, run_one
from tests.support.house import SECRET, House
from tests.support.waiting import wait_until

ERROR = '{"type": "IOError", "message": "the disk is full", "traceback": "line 1"}'
WAITING = "from headway_jobs where status = 'PENDING' and queue = 'waiting'"
PASSES = ("why", "eta_seconds")  # Fields that change as time passes.
PAUSE_S = 1.2  # Long enough that every relative time has changed; longer does no harm.


def error_of(answer: httpx.Response, status: int = 422) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["message"])


def facts(job: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in job.items() if name not in PASSES}


def read(home: House, job_id: str) -> dict[str, Any]:
    return facts(home.acme.get(f"/api/jobs/{job_id}").json())


# --- new jobs


@pytest.mark.parametrize(
    "body",
    [
        {"expires": "1h", "timeout": "5m", "tags": ["a"], "metadata": {"n": 1}, "priority": 3, "max_attempts": 2},
        {"expires": "1h", "delay": "30m"},
        {"expires": "1h", "run_at": "2099-01-31T06:00:00.5+01:00"},
        {"run_at": "2020-01-31T06:00:00Z"},
    ],
)
def test_response_to_a_new_job_matches_the_stored_job(home: House, body: dict[str, Any]) -> None:
    made = home.acme.post("/api/jobs", json={"type": "told", "queue": "told", **body})
    assert made.status_code == 201, made.text
    assert facts(made.json()) == read(home, made.json()["id"])
    [in_bulk] = home.acme.post("/api/jobs/bulk", json={"jobs": [{"type": "told", **body}]}).json()["items"]
    assert facts(in_bulk) == read(home, in_bulk["id"])
    assert (made.json()["expires_at"] is None) == ("expires" not in body)


def test_repeated_key_returns_the_current_job(home: House) -> None:
    body = {"type": "repeated", "key": "k1", "queue": "repeated", "metadata": {"who": "me"}}
    other = {**body, "queue": "other", "priority": 7, "metadata": {"who": "you"}, "delay": "1h"}
    made = home.acme.post("/api/jobs", json=body).json()

    def repeat() -> list[dict[str, Any]]:
        """Enqueue it again, alone and in a batch with a new one."""
        alone = home.acme.post("/api/jobs", json=other)
        assert (alone.status_code, alone.headers["location"]) == (200, f"/api/jobs/{made['id']}")
        fresh = {"type": "repeated", "queue": "fresh"}
        among = home.acme.post("/api/jobs/bulk", json={"jobs": [fresh, other, other]}).json()
        assert (among["created"], among["existing"], among["items"][0]["version"]) == (1, 2, 1)
        return [alone.json(), *among["items"][1:]]

    assert [facts(told) for told in repeat()] == [read(home, made["id"])] * 3

    async def start(store: Store) -> None:
        job = await claim_one(store, "repeated")
        await store.work.report([Report(job_id=job.id, attempt=job.attempt, progress=40)])

    home.on_store(start)
    running = [facts(told) for told in repeat()]
    assert running == [read(home, made["id"])] * 3
    assert (running[0]["status"], running[0]["progress"], running[0]["version"]) == ("RUNNING", 40, 3)
    assert running[0]["started_at"] is not None
    assert (running[0]["queue"], running[0]["priority"], running[0]["metadata"]) == ("repeated", 0, {"who": "me"})


def test_repeated_key_of_a_finished_job_returns_its_result(home: House) -> None:
    body = {"type": "ended", "key": "k2", "queue": "ended"}
    made = home.acme.post("/api/jobs", json=body).json()
    home.on_store(lambda store: run_one(store, Succeeded('{"url": "x"}'), "ended"))
    again = home.acme.post("/api/jobs", json={**body, "queue": "other"})
    assert (again.status_code, facts(again.json())) == (200, read(home, made["id"]))
    assert (again.json()["status"], again.json()["progress"], again.json()["result"]) == (
        "COMPLETED",
        100,
        {"url": "x"},
    )


# --- conditional requests


def check_unchanged_until(client: httpx.Client, change: Callable[[], object], *paths: str) -> None:
    """Check for 304 after a pause, and for 200 after a change."""
    etags = {path: client.get(path).headers["etag"] for path in paths}
    time.sleep(PAUSE_S)
    for path, etag in etags.items():
        again = client.get(path, headers={"If-None-Match": etag})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag), path
    change()
    for path, etag in etags.items():
        assert client.get(path, headers={"If-None-Match": etag}).status_code == 200, path


def test_job_list_is_unchanged_until_a_job_changes(home: House) -> None:
    """Also with running, finished and due jobs, whose texts contain relative times."""
    for queue in ("running", "done"):
        home.acme.post("/api/jobs", json={"type": "listed", "queue": queue})
    home.acme.post("/api/jobs", json={"type": "listed", "delay": "1h"})
    home.on_store(lambda store: run_one(store, queue="done"))
    job = home.on_store(lambda store: claim_one(store, "running"))
    before = home.acme.get("/api/jobs?type=listed").json()["items"]

    def change() -> None:
        assert [one["why"] for one in home.acme.get("/api/jobs?type=listed").json()["items"]] != [
            one["why"] for one in before
        ]
        report = Report(job_id=job.id, attempt=job.attempt, progress=40)
        home.on_store(lambda store: store.work.report([report]))

    check_unchanged_until(home.acme, change, "/api/jobs?type=listed")


def test_etag_depends_on_the_rights_of_the_caller(home: House) -> None:
    home.acme.post("/api/jobs", json={"type": "failing", "queue": "failing"})
    home.on_store(lambda store: run_one(store, Raised(ERROR, retryable=False), "failing"))
    path = "/api/jobs?type=failing"
    etag = home.viewer.get(path).headers["etag"]
    assert home.acme.get(path, headers={"If-None-Match": etag}).status_code == 200


def test_dead_letters_and_alerts_are_unchanged_until_they_change(home: House) -> None:
    def fail() -> None:
        home.acme.post("/api/jobs", json={"type": "letter", "queue": "letter"})
        home.on_store(lambda store: run_one(store, Raised(ERROR, retryable=False), "letter"))

    fail()
    check_unchanged_until(home.acme, fail, "/api/dead?type=letter", "/api/alerts")


def test_queues_are_unchanged_until_they_change(home: House) -> None:
    def enqueue() -> None:
        home.acme.post("/api/jobs", json={"type": "waiting", "queue": "waiting"})

    def kept() -> str:
        """Read twice with a pause; return the ETag, or an empty text if it changed."""
        etag: str = home.acme.get("/api/queues").headers["etag"]
        time.sleep(PAUSE_S)
        again = home.acme.get("/api/queues", headers={"If-None-Match": etag})
        if again.status_code == 200:
            return ""
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        return etag

    enqueue()
    # The server derives the start of the wait from its rounded duration. A slow server may round differently the next
    # time; least of all if the start is a whole second.
    home.write(f"update headway_jobs set run_at = run_at / {SECOND} * {SECOND} where status = 'PENDING'")
    etag = wait_until(kept, "an unchanged list of queues")
    enqueue()
    assert home.acme.get("/api/queues", headers={"If-None-Match": etag}).status_code == 200
    home.write(f"update headway_jobs set run_at = run_at - {HOUR} where id = (select min(id) {WAITING})")
    etag = home.acme.get("/api/queues").headers["etag"]
    home.on_store(lambda store: run_one(store, queue="waiting"))
    enqueue()  # The number of waiting jobs is the same, but the oldest is another one.
    assert home.acme.get("/api/queues", headers={"If-None-Match": etag}).status_code == 200


def test_schedules_are_unchanged_until_they_change(home: House) -> None:
    body = {"task": "report", "cron": "0 6 1 1 *"}
    home.acme.put("/api/schedules/yearly", json=body)
    paths = ("/api/schedules?q=yearly&recent=5", "/api/schedules/yearly")
    check_unchanged_until(home.acme, lambda: home.acme.post("/api/schedules/yearly/pause"), *paths)


def test_latest_job_changes_with_a_newer_job(home: House) -> None:
    path = "/api/jobs/latest?type=newest"
    first = home.acme.post("/api/jobs", json={"type": "newest"}).json()
    etag = home.acme.get(path).headers["etag"]
    assert home.acme.get(path, headers={"If-None-Match": etag}).status_code == 304
    second = home.acme.post("/api/jobs", json={"type": "newest"}).json()  # It has the same version number.
    latest = home.acme.get(path, headers={"If-None-Match": etag})
    assert (latest.status_code, latest.json()["id"]) == (200, second["id"])
    assert first["version"] == second["version"]


@pytest.mark.parametrize("who", ["acme", "root"])
def test_latest_completed_job_is_found_while_a_newer_one_waits(home: House, who: str) -> None:
    client, body = home.clients[who], {"type": "download", "queue": f"download-{who}"}
    ready = client.post("/api/jobs", json=body).json()
    home.on_store(lambda store: run_one(store, Succeeded('{"download_url": "x"}'), body["queue"]))
    newer = client.post("/api/jobs", json=body).json()
    wants: list[dict[str, str]] = [{}, {"status": "COMPLETED"}, {"status": "PENDING"}]
    found = [client.get("/api/jobs/latest", params={"type": "download", **want}).json() for want in wants]
    assert [job["id"] for job in found] == [newer["id"], ready["id"], newer["id"]]
    assert found[1]["result"] == {"download_url": "x"}
    absent = client.get("/api/jobs/latest", params={"type": "download", "status": "FAILED"})
    assert "no FAILED job" in error_of(absent, 404)
    assert "status" in error_of(client.get("/api/jobs/latest", params={"type": "download", "status": "READY"}))


# --- errors name the field


@pytest.mark.parametrize("wrong", ["x", "job_", "", "job_01jd", "node_01m7h07rq30wjd03gjnmt8r3pz"])
@pytest.mark.parametrize("path", ["/api/jobs", "/api/dead", "/api/deliveries", "/api/webhooks"])
def test_invalid_cursor_is_rejected(home: House, path: str, wrong: str) -> None:
    assert "cursor" in error_of(home.root.get(path, params={"cursor": wrong}))


def test_invalid_idempotency_key_is_rejected(home: House) -> None:
    for key in ("", "x" * 513):
        answer = home.acme.post("/api/jobs", json={"type": "keyless"}, headers={"Idempotency-Key": key})
        assert "Idempotency-Key" in error_of(answer)
    assert home.acme.get("/api/jobs?type=keyless").json()["items"] == []


def test_bulk_requests_accept_no_common_idempotency_key(home: House) -> None:
    body = {"jobs": [{"type": "keyless"}]}
    message = error_of(home.acme.post("/api/jobs/bulk", json=body, headers={"Idempotency-Key": "k"}))
    assert "Idempotency-Key" in message
    assert "`key`" in message
    assert home.acme.get("/api/jobs?type=keyless").json()["items"] == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run_at", "tomorrow"),
        ("delay", "soon"),
        ("delay", -5),
        ("callback_url", "file:///etc/passwd"),
        ("timeout", "0s"),
        ("expires", "x"),
        ("priority", 10_000),
        ("max_attempts", 0),
        ("queue", "a\u001b[2J"),
        ("key", "\n"),
        ("tenant", "globex"),
        ("type", "\u202e"),
        ("metadata", {"n": "x" * 20_000}),
    ],
)
def test_bulk_error_names_the_item_and_the_field(home: House, field: str, value: Any) -> None:
    good = {"type": "wrong"}
    status = 403 if field == "tenant" else 422
    assert field in error_of(home.acme.post("/api/jobs", json={**good, field: value}), status)
    message = error_of(home.acme.post("/api/jobs/bulk", json={"jobs": [good, {**good, field: value}]}), status)
    assert message.startswith("jobs[1]")
    assert field in message
    assert home.acme.get("/api/jobs?type=wrong").json()["items"] == []


@pytest.mark.parametrize("text", ["a\u001b[2Jb", "two\nlines", "\u202egnp.exe"])
def test_control_characters_in_texts_are_rejected(home: House, text: str) -> None:
    job = home.acme.post("/api/jobs", json={"type": "said", "delay": "1h"}).json()["id"]
    home.acme.put("/api/schedules/said", json={"task": "report", "cron": "0 6 1 1 *"})
    hook = home.root.post("/api/webhooks", json={"url": "https://hooks.invalid/x", "note": "a note"}).json()["id"]
    for client, method, path, body in (
        (home.acme, "POST", f"/api/jobs/{job}/cancel", {"reason": text}),
        (home.acme, "POST", "/api/jobs/cancel", {"ids": [job], "reason": text}),
        (home.acme, "POST", "/api/schedules/said/pause", {"reason": text}),
        (home.everybody, "POST", "/api/queues/said/pause", {"reason": text}),
        (home.acme, "POST", "/api/dead/retry", {"type": text}),
        (home.acme, "POST", "/api/dead/drop", {"queue": text}),
        (home.acme, "POST", "/api/dead/drop", {"schedule": text}),
        (home.root, "POST", "/api/dead/drop", {"tenant": text}),
        (home.root, "POST", "/api/webhooks", {"url": "https://hooks.invalid/x", "note": text}),
        (home.root, "PUT", f"/api/webhooks/{hook}", {"note": text}),
    ):
        field = next(name for name, value in body.items() if value == text)
        assert error_of(client.request(method, path, json=body)).startswith(field), path
    assert read(home, job)["status"] == "SCHEDULED"
    assert home.root.get(f"/api/webhooks/{hook}").json()["note"] == "a note"
    assert home.root.put(f"/api/webhooks/{hook}", json={"enabled": False}).json()["note"] == "a note"
    assert home.acme.post(f"/api/jobs/{job}/cancel", json={"reason": "zu spät … 😀"}).status_code == 200


async def test_mounted_api_checks_arguments_and_task_names(tmp_path: Path) -> None:
    async with Headway(f"sqlite:///{tmp_path}/headway.db", settings=Settings(token=SECRET)) as app:

        @app.task
        def report(n: int) -> int:
            return n

        api = app.api()
        transport = httpx.ASGITransport(app=Starlette(routes=[Mount("/", api)]))
        headers = {"Authorization": f"Bearer {SECRET}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.example", headers=headers) as client:
            for args in ({}, {"n": 1, "m": 2}):
                assert "args" in error_of(await client.post("/api/jobs", json={"type": "report", "args": args}))
                body = {"jobs": [{"type": "report", "args": args}]}
                assert error_of(await client.post("/api/jobs/bulk", json=body)).startswith("jobs[0]: args")
            rule = {"task": "rapport", "every": "1h"}
            for query in ("?dry_run=1", ""):
                put = await client.put(f"/api/schedules/s{query}", json=rule)
                assert [warning for warning in put.json()["warnings"] if "'rapport'" in warning], put.text
            known = await client.put("/api/schedules/s", json={**rule, "task": "report", "args": {"n": 1}})
            assert known.json()["warnings"] == ["no worker is alive"]
        await api.close()
