"""Jobs over HTTP, with a real server: enqueue, read, cancel, and invalid requests."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.api import api_process
from tests.support.waiting import DEADLINE_S


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder: Path = tmp_path_factory.mktemp("api")
    with api_process(f"sqlite:///{folder}/headway.db") as api, api.client() as client:
        yield client


def test_key_makes_enqueue_idempotent(http: httpx.Client) -> None:
    body = {"type": "report", "args": {"n": 1, "big": 2**70}, "tags": ["a b"], "metadata": {"who": "me"}}
    first = http.post("/api/jobs", json=body, headers={"Idempotency-Key": "k1"})
    assert first.status_code == 201
    job = first.json()
    assert (job["status"], job["args"]["big"], job["key"]) == ("PENDING", 2**70, "k1")
    assert first.headers["location"] == f"/api/jobs/{job['id']}"
    again = http.post("/api/jobs", json={**body, "key": "k1"})
    assert (again.status_code, again.json()["id"]) == (200, job["id"])
    other = http.post("/api/jobs", json={**body, "key": "k1", "args": {"n": 2}})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "duplicate_key")
    read = http.get(f"/api/jobs/{job['id']}")
    assert read.json()["why"]
    assert http.get(f"/api/jobs/{job['id']}", headers={"If-None-Match": read.headers["etag"]}).status_code == 304


def test_windows_merge_requests(http: httpx.Client) -> None:
    body = {"type": "report", "key": "w1", "debounce": "30s", "max_wait": 300}
    first = http.post("/api/jobs", json={**body, "args": {"n": 1}})
    job = first.json()
    assert (first.status_code, job["status"], job["key"], "merged_into" in job) == (201, "SCHEDULED", None, False)
    again = http.post("/api/jobs", json={**body, "args": {"n": 2, "password": "hunter2"}})
    assert (again.status_code, again.json()["merged_into"]) == (200, job["id"])
    assert again.json()["args"] == {"n": 2, "password": "***"}
    assert "merged_into" not in http.get(f"/api/jobs/{job['id']}").json()
    bulk = http.post("/api/jobs/bulk", json={"jobs": [{**body, "args": {"n": 3}}, {"type": "report"}]})
    assert (bulk.status_code, bulk.json()["created"], bulk.json()["merged"]) == (201, 1, 1)
    assert [item.get("merged_into") for item in bulk.json()["items"]] == [job["id"], None]
    assert "hunter2" not in http.get(f"/api/jobs/{job['id']}/history").text
    other = http.post("/api/jobs", json={**body, "type": "other"})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "duplicate_key")


WINDOW_MISTAKES: dict[str, dict[str, object]] = {
    "needs a key": {"debounce": "30s"},
    "exclude each other": {"key": "x", "debounce": "30s", "unique": "1h"},
    "add debounce": {"key": "x", "throttle": "30s", "max_wait": "1h"},
    "at least as long": {"key": "x", "debounce": "30s", "max_wait": "10s"},
    "leave out delay": {"key": "x", "debounce": "30s", "delay": "10s"},
    "at most 30d": {"key": "x", "unique": "31d"},
    "longer than nothing": {"key": "x", "throttle": 0},
    "must look like": {"key": "x", "throttle": "soon"},
}


@pytest.mark.parametrize("message", WINDOW_MISTAKES)
def test_window_mistakes_name_the_cure(http: httpx.Client, message: str) -> None:
    answer = http.post("/api/jobs", json={"type": "mistake", **WINDOW_MISTAKES[message]})
    assert (answer.status_code, message in answer.json()["error"]["message"]) == (422, True), answer.text
    assert http.get("/api/jobs", params={"type": "mistake"}).json()["items"] == []


def test_window_refuses_the_idempotency_header(http: httpx.Client) -> None:
    body = {"type": "mistake", "key": "x", "unique": "1h"}
    answer = http.post("/api/jobs", json=body, headers={"Idempotency-Key": "x"})
    assert (answer.status_code, "names the window" in answer.text) == (422, True)


def test_responses_without_a_body_are_flushed(http: httpx.Client) -> None:
    """On one connection: an unsent response would come before the next one, or never."""
    job = http.post("/api/jobs", json={"type": "report", "args": {}}).json()
    for _ in range(2):
        head = http.head(f"/api/jobs/{job['id']}")
        assert (head.status_code, head.content, int(head.headers["content-length"]) > 100) == (200, b"", True)
        known = http.get(f"/api/jobs/{job['id']}", headers={"If-None-Match": head.headers["etag"]})
        assert (known.status_code, known.content) == (304, b"")
        assert http.get(f"/api/jobs/{job['id']}").json()["id"] == job["id"]


def _raw(http: httpx.Client) -> socket.socket:
    """Open a plain TCP connection."""
    return socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=DEADLINE_S)


def test_response_is_one_packet(http: httpx.Client) -> None:
    body = json.dumps({"type": "report", "args": {}}).encode()
    posted = b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    posted += b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    with _raw(http) as connection:
        for request in (posted, b"GET /api/jobs?limit=9 HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            connection.sendall(request)
            head, _, answer = connection.recv(1 << 20).partition(b"\r\n\r\n")
            assert head.startswith((b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 201 Created\r\n"))
            assert b"\r\ndate: " in head
            assert f"content-length: {len(answer)}".encode() in head.split(b"\r\n")
            assert json.loads(answer)


def test_pipelined_requests_are_answered_in_order(http: httpx.Client) -> None:
    ids = [http.post("/api/jobs", json={"type": "report", "args": {}}).json()["id"] for _ in range(5)]
    asked = b"".join(f"GET /api/jobs/{job_id} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for job_id in ids)
    last = b"GET /api/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with _raw(http) as connection:
        connection.sendall(asked + last)
        told = b""
        while data := connection.recv(1 << 20):  # Until the server closes the connection, as requested.
            told += data
    assert re.findall(rb"\r\n\r\n{\"id\":\"([^\"]+)\"", told) == [job_id.encode() for job_id in ids]
    assert told.count(b"HTTP/1.1 200 OK\r\n") == 6
    assert told.count(b"connection: close\r\n") == 1


def test_http_1_0_client_is_answered_and_disconnected(http: httpx.Client) -> None:
    with _raw(http) as connection:
        connection.sendall(b"GET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n")
        told = b""
        while data := connection.recv(1 << 20):
            told += data
    assert told.startswith(b"HTTP/1.1 200 OK\r\n")


def test_expect_100_continue_is_honoured(http: httpx.Client) -> None:
    body = json.dumps({"type": "report", "args": {}}).encode()
    head = b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
    with _raw(http) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body))
        assert connection.recv(1 << 20) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(1 << 20).startswith(b"HTTP/1.1 201 Created\r\n")
        connection.sendall(head + b"Content-Length: 99999999\r\n\r\n")
        assert connection.recv(1 << 20).startswith(b"HTTP/1.1 413 ")  # Before any of the body is sent.


def test_bulk_is_all_or_nothing(http: httpx.Client) -> None:
    good = {"type": "bulk", "args": {"n": 1}}
    done = http.post("/api/jobs/bulk", json={"jobs": [good, {**good, "key": "b1"}]})
    assert (done.status_code, done.json()["created"]) == (201, 2)
    bad = http.post("/api/jobs/bulk", json={"jobs": [good, {"type": "bulk", "queue": 5}]})
    assert bad.status_code == 422
    assert "jobs[1].queue" in bad.json()["error"]["message"]
    late = http.post("/api/jobs/bulk", json={"jobs": [good, {**good, "key": "b1", "args": {"n": 9}}]})
    assert late.status_code == 409
    assert len(http.get("/api/jobs", params={"type": "bulk"}).json()["items"]) == 2


def test_lists_are_filtered_and_paged(http: httpx.Client) -> None:
    for number in range(5):
        body = {"type": "listed", "args": {"n": number}, "tags": ["x%y", f"n{number}"], "queue": "lists"}
        assert http.post("/api/jobs", json=body).status_code == 201
    found: list[int] = []
    cursor: str | None = None
    while True:
        params = {"type": "listed", "limit": "2", **({"cursor": cursor} if cursor else {})}
        page = http.get("/api/jobs", params=params).json()
        found += [job["args"]["n"] for job in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == [4, 3, 2, 1, 0]
    assert len(http.get("/api/jobs", params={"tag": "x%y"}).json()["items"]) == 5
    assert len(http.get("/api/jobs", params={"tag": "x"}).json()["items"]) == 0
    assert len(http.get("/api/jobs", params={"q": "iste"}).json()["items"]) == 5
    assert len(http.get("/api/jobs", params={"queue": "lists", "status": "RUNNING"}).json()["items"]) == 0
    assert http.get("/api/jobs", params={"created_before": "2020-01-01T00:00:00Z"}).json()["items"] == []
    latest = http.get("/api/jobs/latest", params={"type": "listed"})
    assert latest.json()["args"] == {"n": 4}
    assert http.get("/api/jobs/latest", params={"type": "nothing"}).status_code == 404


def test_cancel_retry_and_read(http: httpx.Client) -> None:
    job = http.post("/api/jobs", json={"type": "stop", "delay": "1h"}).json()
    assert job["status"] == "SCHEDULED"
    assert http.post(f"/api/jobs/{job['id']}/retry").status_code == 409
    cancelled = http.post(f"/api/jobs/{job['id']}/cancel", json={"reason": "enough"})
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "CANCELLED")
    assert "enough" in cancelled.json()["why"]
    again = http.post(f"/api/jobs/{job['id']}/retry")
    assert (again.status_code, again.json()["rerun_of"]) == (201, job["id"])
    for part in ("attempts", "log", "history", "why"):
        assert http.get(f"/api/jobs/{job['id']}/{part}").status_code == 200
    trail = http.get("/api/trail").json()["items"]
    assert {"job.cancel", "job.retry"} <= {action["action"] for action in trail}


def test_secrets_are_masked(http: httpx.Client) -> None:
    args = {"user": "ann", "password": "hunter2", "nested": [{"api_key": "k", "note": "n"}], "monkey": "see"}
    made = http.post("/api/jobs", json={"type": "secret", "args": args, "metadata": {"auth_token": "t"}}).json()
    for shape in (made, http.get(f"/api/jobs/{made['id']}").json()):
        assert shape["args"] == {
            "user": "ann",
            "password": "***",
            "nested": [{"api_key": "***", "note": "n"}],
            "monkey": "see",
        }
        assert shape["metadata"]["auth_token"] == "***"


# Request bodies, and the field that the error must name; None if the body as a whole is wrong.
BAD: dict[str, tuple[bytes, str | None]] = {
    "not json": (b"{", None),
    "not utf-8": (b'{"type": "\xff"}', None),
    "twice": (b'{"type": "a", "type": "b"}', "type"),
    "unknown": (b'{"type": "a", "nonsense": 1}', "nonsense"),
    "wrong type": (b'{"type": 5}', "type"),
    "missing": (b"{}", "type"),
    "a list": (b"[]", None),
    "null": (b"null", None),
    "nan": (b'{"type": "a", "args": {"n": NaN}}', "args.n"),
    "huge number": (b'{"type": "a", "args": {"n": 1' + b"0" * 5_000 + b"}}", "args.n"),
    "deep": (b'{"type": "a", "args": {"n": ' + b"[" * 100 + b"]" * 100 + b"}}", "args.n"),
    "very deep": (b'{"type": "a", "args": {"n": ' + b"[" * 200_000 + b"]" * 200_000 + b"}}", None),
    "nul": (b'{"type": "a", "args": {"n": "\\u0000"}}', "args.n"),
    "surrogate": (b'{"type": "a", "args": {"n": "\\ud800"}}', "args.n"),
    "control in a name": (b'{"type": "a\\u001b[2J"}', "type"),
    "empty": (b'{"type": ""}', "type"),
    "delay": (b'{"type": "a", "delay": "soon"}', "delay"),
    "delay in the past": (b'{"type": "a", "delay": -5}', "delay"),
    "both": (b'{"type": "a", "delay": 5, "run_at": "2030-01-01T00:00:00Z"}', "delay and run_at"),
    "run_at": (b'{"type": "a", "run_at": "tomorrow"}', "run_at"),
    "priority": (b'{"type": "a", "priority": 99999999999999999999}', "priority"),
    "attempts": (b'{"type": "a", "max_attempts": 0}', "max_attempts"),
    "tags": (b'{"type": "a", "tags": [1]}', "tags[0]"),
    "callback": (b'{"type": "a", "callback_url": "file:///etc/passwd"}', "callback_url"),
    "timeout": (b'{"type": "a", "timeout": 1e300}', "timeout"),
    "args too large": (json.dumps({"type": "a", "args": {"n": "x" * 300_000}}).encode(), "args"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_rejected_with_the_field(http: httpx.Client, name: str) -> None:
    body, field = BAD[name]
    answer = http.post("/api/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 413, 422), answer.text
    error = answer.json()["error"]
    assert error["message"]
    assert field is None or re.search(rf"(?<![\w.]){re.escape(field)}(?!\w)", error["message"]), error["message"]
    assert "Traceback" not in answer.text


def test_other_errors(http: httpx.Client) -> None:
    assert http.post("/api/jobs", content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415
    assert (
        http.post("/api/jobs", content=b"x" * (2 << 20), headers={"Content-Type": "application/json"}).status_code
        == 413
    )
    assert http.get("/api/jobs", params={"limit": "0"}).status_code == 422
    assert http.get("/api/jobs", params={"limit": "201"}).status_code == 422
    assert http.get("/api/jobs", params={"limit": "00000000000199999"}).status_code == 422
    assert http.get("/api/jobs/job_nobody", params={"since": "9" * 40}).status_code == 422
    assert http.get("/api/jobs", params={"nonsense": "1"}).status_code == 422
    assert http.get("/api/jobs/job_nobody").status_code == 404
    assert http.get("/api/nothing").status_code == 404
    assert http.put("/api/jobs").status_code == 405
    assert http.get("/api/jobs", headers={"Host": "evil.example"}).status_code == 403
    crossing = http.post("/api/jobs", json={"type": "a"}, headers={"Sec-Fetch-Site": "cross-site"})
    assert crossing.status_code == 403
    assert http.post("/api/jobs", json={"type": "a"}, headers={"Origin": "http://evil.example"}).status_code == 403
    answer = http.get("/api/jobs/job_nobody")
    assert answer.headers["x-request-id"] == answer.json()["request_id"]
    assert answer.headers["x-content-type-options"] == "nosniff"
