"""Decisions of the HTTP client: retries, mapping of responses to errors, and resumable streams."""

import json
import random
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from headway.client import AsyncClient, Client
from headway.client import calls as all_calls
from headway.client.follow import LINES_MAX, POLL_S, stream, wait, watch
from headway.client.requests import (
    AskTerms,
    Give,
    Open,
    Read,
    Reply,
    Request,
    Rest,
    Send,
    Terms,
    Unreached,
    ask,
    body_of,
    error_of,
    part,
)
from headway.client.sse import EventReader, Message
from headway.core.clock import Clock
from headway.core.errors import (
    AlreadyFinal,
    Conflict,
    DefinitionError,
    Denied,
    DuplicateKey,
    HeadwayError,
    InvalidConfig,
    InvalidTask,
    JobFailed,
    JobNotFound,
    NotFound,
    ScheduleChanged,
    SchemaMismatch,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TaskNotFound,
)

SECRET = "hw_very-secret-value"
GET = Request(method="GET", path="/api/x")
POST = Request(method="POST", path="/api/x")
KEYED = Request(method="POST", path="/api/x", is_keyed=True)
OK = Reply(200, {}, b'{"ok": true}')
REFUSED = Unreached("refused", was_sent=False)
CUT = Unreached("cut", was_sent=True)


class Stage:
    """Runs the client's effects from a script, on a clock that only rests advance."""

    def __init__(self, outcomes: Sequence[Any], *, retry_for_s: float = 30.0) -> None:
        self.outcomes = list(outcomes)
        self.now = 0.0
        self.sent: list[Request] = []
        self.rests: list[float] = []
        self.given: list[Any] = []
        clock = Clock(monotonic=lambda: self.now, wall=lambda: 0, chance=random.Random(7))
        self._terms = Terms(clock, retry_for_s)

    def run(self, steps: Generator[Any, Any, Any]) -> Any:
        outcome: Any = None
        while True:
            try:
                effect = steps.send(outcome)
            except StopIteration as end:
                return end.value
            outcome = self._do(effect)

    def _do(self, effect: Any) -> Any:
        match effect:
            case AskTerms():
                return self._terms
            case Rest(seconds):
                self.rests.append(seconds)
                self.now += seconds
                return None
            case Give(item):
                self.given.append(item)
                return None
            case Send(request) | Open(request):
                self.sent.append(request)
                return self.outcomes.pop(0)
            case Read():
                return self.outcomes.pop(0)


def refusal(status: int, code: str = "", message: str = "no", **headers: str) -> Reply:
    return Reply(
        status, headers, json.dumps({"error": {"code": code, "message": message}, "request_id": "r-1"}).encode()
    )


# --- retries


@pytest.mark.parametrize("request_", [GET, KEYED, Request(method="PUT", path="/"), Request(method="DELETE", path="/")])
@pytest.mark.parametrize("trouble", [REFUSED, CUT, refusal(429), refusal(502), refusal(503), refusal(507)])
def test_idempotent_requests_are_retried(request_: Request, trouble: Any) -> None:
    stage = Stage([trouble, trouble, OK])
    assert stage.run(ask(request_)) is OK
    assert stage.sent == [request_] * 3
    assert 0 < stage.rests[0] < stage.rests[1] < 1


@pytest.mark.parametrize(
    ("trouble", "again"),
    [(REFUSED, True), (CUT, False), (refusal(429), True), (refusal(503), False), (refusal(507), True)],
)
def test_other_requests_are_retried_only_if_they_had_no_effect(trouble: Any, again: bool) -> None:
    stage = Stage([trouble, OK])
    if again:
        assert stage.run(ask(POST)) is OK
    else:
        with pytest.raises(HeadwayError):
            stage.run(ask(POST))
    assert len(stage.sent) == 1 + again


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 412, 422, 500])
def test_client_errors_are_not_retried(status: int) -> None:
    stage = Stage([refusal(status)])
    with pytest.raises(HeadwayError):
        stage.run(ask(GET))
    assert len(stage.sent) == 1


def test_retries_back_off_and_end_in_time() -> None:
    stage = Stage([REFUSED] * 1_000, retry_for_s=30)
    with pytest.raises(StoreUnavailable, match="refused"):
        stage.run(ask(GET))
    assert 8 <= len(stage.sent) <= 25
    assert 20 <= stage.now <= 30
    assert max(stage.rests) <= 5


def test_retry_after_is_honoured_within_the_retry_limit() -> None:
    stage = Stage([refusal(429, **{"retry-after": "3"}), OK])
    assert stage.run(ask(POST)) is OK
    assert 3 < stage.rests[0] < 3.2
    stage = Stage([refusal(429, **{"retry-after": "3600"}), OK])
    with pytest.raises(StoreUnavailable):
        stage.run(ask(POST))
    assert stage.rests == []


@pytest.mark.parametrize("text", ["soon", "-1", "1e9", "Wed, 21 Oct 2099 07:28:00 GMT", "9" * 50])
def test_invalid_retry_after_is_ignored(text: str) -> None:
    stage = Stage([refusal(429, **{"retry-after": text}), OK])
    assert stage.run(ask(GET)) is OK
    assert stage.rests[0] < 1


def test_delete_with_a_lost_response_succeeds() -> None:
    request = Request(method="DELETE", path="/api/x")
    assert Stage([CUT, refusal(404)]).run(ask(request)).status == 200
    with pytest.raises(NotFound):
        Stage([REFUSED, refusal(404)]).run(ask(request))  # The first try never arrived: another client deleted it.


# --- mapping of responses to errors


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "not_json", InvalidTask),
        (401, "unauthorized", Denied),
        (403, "forbidden", Denied),
        (404, "not_found", JobNotFound),
        (404, "unknown_task", TaskNotFound),
        (409, "conflict", AlreadyFinal),
        (409, "duplicate_key", DuplicateKey),
        (412, "changed", ScheduleChanged),
        (413, "too_large", InvalidTask),
        (415, "not_json", InvalidTask),
        (422, "invalid", InvalidTask),
        (429, "too_many", StoreUnavailable),
        (500, "internal", StoreError),
        (502, "", StoreUnavailable),
        (503, "store_unavailable", StoreUnavailable),
        (503, "schema_mismatch", SchemaMismatch),
        (507, "store_full", StoreFull),
        (302, "", StoreError),
    ],
)
def test_responses_become_errors(status: int, code: str, kind: type[HeadwayError]) -> None:
    request = Request(method="POST", path="/", missing=JobNotFound, conflict=AlreadyFinal, invalid=InvalidTask)
    error = error_of(request, refusal(status, code, "these words"))
    assert type(error) is kind
    assert "these words" in str(error)


def test_server_error_names_the_request_id() -> None:
    assert "r-1" in str(error_of(GET, refusal(500)))


def test_hint_is_part_of_the_message() -> None:
    body = b'{"error": {"code": "x", "message": "no", "hint": "try this"}}'
    assert str(error_of(GET, Reply(422, {}, body))) == "no; try this"


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>not ours</html>", b"[]", b'{"error": "x"}', b'{"error": {"code": 1}}', b"[" * 100_000, b"\xff\xfe"],
)
def test_foreign_404_is_not_job_not_found(body: bytes) -> None:
    error = error_of(Request(method="GET", path="/api/jobs/1", missing=JobNotFound), Reply(404, {}, body))
    assert type(error) is StoreError  # A proxy's 404 does not say that the job does not exist.


@pytest.mark.parametrize("code", ["os.system", "__import__", "JobFailed", "SystemExit", "headway.core.errors.Denied"])
def test_error_codes_of_a_server_do_not_select_arbitrary_classes(code: str) -> None:
    assert type(error_of(GET, refusal(409, code))) is Conflict


def test_long_message_is_truncated() -> None:
    assert len(str(error_of(GET, refusal(422, "", "x" * 10_000_000)))) < 5_000


# --- names, bodies, URLs, secrets


@pytest.mark.parametrize("name", ["../../livez", "a/b", "a?b=c", "..", ".", "ü x", "%2e%2e", "a#b"])
def test_name_stays_one_path_segment(name: str) -> None:
    assert not {*part(name)} & {*"/?# "}
    assert part(name) not in (".", "..")


@pytest.mark.parametrize("value", [object(), {"n": float("inf")}])
def test_values_that_are_not_json_are_rejected(value: object) -> None:
    with pytest.raises(DefinitionError, match="JSON"):
        body_of({"args": value})


@pytest.mark.parametrize(
    "url", ["ftp://x", "localhost:8480", "http://", "http://x:0", "http://x:99999", "http://x/?q=1", "http://a b"]
)
def test_invalid_server_urls_are_rejected(url: str) -> None:
    with pytest.raises(InvalidConfig):
        Client(url)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_credentials_are_never_shown(kind: type[Client] | type[AsyncClient]) -> None:
    client = kind("http://127.0.0.1:1/base/", SECRET)
    assert repr(client) == f"{kind.__name__}('http://127.0.0.1:1/base')"
    for url in (f"http://user:{SECRET}@host", f"http://{SECRET}@host", f"http://a:{SECRET}@[::1"):
        with pytest.raises(InvalidConfig) as caught:
            kind(url)
        assert SECRET not in str(caught.value)
    for token in (f"{SECRET}\r\nX: 1", f"{SECRET} x", f"{SECRET}\x00", f"{SECRET}ü"):
        with pytest.raises(InvalidConfig) as caught:
            kind("http://127.0.0.1", token)
        assert SECRET not in str(caught.value)


def test_both_clients_have_the_same_names() -> None:
    assert {name for name in dir(Client) if name[0] != "_"} == {name for name in dir(AsyncClient) if name[0] != "_"}
    with Client("http://127.0.0.1:1", retry_for=0) as client:
        assert client.job.__name__ == "job"
        assert "durable" in (client.enqueue.__doc__ or "")
        assert {"list", "get", "put", "pause", "resume", "trigger", "backfill", "preview", "remove"} <= {
            *dir(client.schedules)
        }


def test_enqueue_adds_a_unique_idempotency_key() -> None:
    stage = Stage([Reply(201, {}, b'{"id": "job_1"}'), Reply(201, {}, b'{"items": [1, 2]}')])
    stage.run(all_calls.Calls.enqueue._plan(None, "report", {"n": 1}))
    stage.run(all_calls.Calls.enqueue_many._plan(None, [{"task": "a"}, {"task": "b", "key": "mine"}]))
    one, many = (json.loads(request.body or b"") for request in stage.sent)
    keys = [one["key"], many["jobs"][0]["key"]]
    assert all(keys)
    assert keys[0] != keys[1]
    assert many["jobs"][1]["key"] == "mine"
    assert all(request.may_be_repeated for request in stage.sent)


def test_jobs_reads_pages_up_to_the_limit() -> None:
    def page(numbers: range, cursor: str | None) -> Reply:
        return Reply(200, {}, json.dumps({"items": [*numbers], "next_cursor": cursor}).encode())

    stage = Stage([page(range(200), "c1"), page(range(200, 400), "c2"), page(range(400, 450), None)])
    stage.run(all_calls.Calls.jobs._plan(None, status="FAILED", before="c0"))
    assert stage.given == [*range(450)]
    asked = [dict(request.query) for request in stage.sent]
    assert [query["cursor"] for query in asked] == ["c0", "c1", "c2"]
    assert all((query["status"], query["limit"]) == ("FAILED", "200") for query in asked)
    stage = Stage([page(range(200), "c1"), page(range(200, 250), "c2")])
    stage.run(all_calls.Calls.jobs._plan(None, limit=250))
    assert stage.given == [*range(250)]
    assert [dict(request.query)["limit"] for request in stage.sent] == ["200", "50"]


def test_audit_merges_pages_into_one_report() -> None:
    def page(gaps: list[str], cursor: str | None) -> Reply:
        counts = {"schedules": 2, "expected": 10, "recorded": 9, "gaps": gaps, "totals": {"gaps": len(gaps)}}
        window = {"since": "2027-01-01T00:00:00Z", "until": "2027-01-02T00:00:00Z"}
        return Reply(200, {}, json.dumps({**counts, "ok": not gaps, **window, "next_cursor": cursor}).encode())

    stage = Stage([page([], "b"), page(["x"], "c"), page([], None)])
    report = stage.run(all_calls.Calls.audit._plan(None))
    assert (report["schedules"], report["expected"], report["recorded"]) == (6, 30, 27)
    assert (report["gaps"], report["totals"], report["ok"]) == (["x"], {"gaps": 1}, False)
    assert [dict(request.query).get("until") for request in stage.sent] == [None, *["2027-01-02T00:00:00Z"] * 2]


# --- server-sent events


SSE = (
    b'\xef\xbb\xbfretry: 1000\n\n: still here\n\nevent: status\nid: 3\ndata: {"a": 1}\n\n'
    b"event: log\r\ndata: one\r\ndata:two\r\n\r\nid: 4\rdata: \xc3\xa9\r\rid: 5\n\ndata\n\nevent: cut\nid: 9\ndata: x\n"
)
MESSAGES = [
    Message("status", '{"a": 1}', "3"),
    Message("log", "one\ntwo", "3"),
    Message("message", "é", "4"),
    Message("message", "", "5"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
def test_events_are_parsed_across_any_chunk_boundary(size: int) -> None:
    reader, found = EventReader(), []
    for at in range(0, len(SSE), size):
        found += reader.feed(SSE[at : at + size])
    assert found == MESSAGES
    assert reader.retry_s == 1
    assert reader.last_id == "5"  # The last event is incomplete: it has to be sent again.


def test_endless_event_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.client.sse.PENDING_BYTES_MAX", 1_000)
    reader = EventReader()
    for _ in range(30):
        reader.feed(b"data: " + b"x" * 30 + b"\n")
    with pytest.raises(StoreError):
        reader.feed(b"data: " + b"x" * 200)


# --- following


def sse(event: str, data: dict[str, Any], at: int | str | None = None) -> bytes:
    place = "" if at is None else f"id: {at}\n"
    return f"event: {event}\n{place}data: {json.dumps(data)}\n\n".encode()


def state(event: str, version: int, **more: Any) -> bytes:
    return sse(event, {"id": "job_1", "version": version, "status": "RUNNING", **more}, version)


def log(*numbers: int, at: int | None = None) -> bytes:
    return sse("log", {"lines": [{"seq": number, "line": f"line {number}"} for number in numbers]}, at)


STREAM = Reply(200, {"content-type": "text/event-stream; charset=utf-8"})


def test_interrupted_stream_resumes_where_it_was() -> None:
    script = [
        *[STREAM, state("status", 1) + state("progress", 2), state("progress", 3) + log(1, 2)[:-1], CUT],
        *[REFUSED, refusal(503), STREAM, state("progress", 3), log(1, 2, at=3), b": still here\n\n", b""],
        *[STREAM, state("progress", 4), log(2, 3), state("done", 5, status="COMPLETED")],
    ]
    stage = Stage(script)
    stage.run(watch("job_1"))
    told = [event.version or [line["seq"] for line in event.data["lines"]] for event in stage.given]
    assert told == [1, 2, 3, [1, 2], 4, [3], 5]
    assert [request.headers.get("Last-Event-ID") for request in stage.sent] == [None, "3", "3", "3", "3"]
    assert [event.is_last for event in stage.given] == [False] * 6 + [True]


def test_watcher_receives_resync_after_a_gap() -> None:
    stage = Stage([STREAM, state("status", 1), state("resync", 9, progress=50), state("done", 10)])
    stage.run(watch("job_1"))
    assert [(event.kind, event.version) for event in stage.given] == [("status", 1), ("resync", 9), ("done", 10)]


def test_deleted_job_ends_the_stream() -> None:
    with pytest.raises(JobNotFound):
        Stage([STREAM, state("status", 1), sse("gone", {"id": "job_1"})]).run(watch("job_1"))
    with pytest.raises(JobNotFound):
        Stage([refusal(404, "not_found")]).run(watch("job_1"))


def test_expired_credential_ends_the_stream() -> None:
    with pytest.raises(Denied):
        Stage([STREAM, state("status", 1), b"", refusal(401)]).run(watch("job_1"))


def test_long_stream_has_its_full_retry_time_after_a_disconnect() -> None:
    stage = Stage([STREAM, state("status", 1), b": still here\n\n", CUT, STREAM, state("done", 2)], retry_for_s=5)
    flow = watch("job_1")
    beat = stage.outcomes[2]
    original = stage._do

    def do(effect: Any) -> Any:
        outcome = original(effect)
        if outcome is beat:
            stage.now += 86_400  # A day passes before this heartbeat.
        return outcome

    stage._do = do  # type: ignore[method-assign]
    stage.run(flow)
    assert stage.given[-1].is_last


def test_unreachable_server_ends_the_stream() -> None:
    stage = Stage([STREAM, state("status", 1), CUT, *[REFUSED] * 1_000])
    with pytest.raises(StoreUnavailable):
        stage.run(watch("job_1"))
    assert 20 <= stage.now <= 32


def test_server_sets_the_reconnect_delay() -> None:
    stage = Stage([STREAM, b"retry: 4000\n\n", b"", STREAM, state("done", 2)])
    stage.run(watch("job_1"))
    assert 2 <= stage.rests[0] <= 4


@pytest.mark.parametrize(
    "no_stream",
    [
        [Reply(200, {"content-type": "application/json"}, b"{}")],
        [refusal(406)],
        [STREAM, CUT, STREAM, CUT],  # A proxy buffers the stream.
    ],
)
def test_client_polls_where_streams_do_not_work(no_stream: list[Any]) -> None:
    def job(version: int, **more: Any) -> Reply:
        shape = {"id": "job_1", "version": version, "status": "RUNNING", "attempts": 1, **more}
        return Reply(200, {}, json.dumps(shape).encode())

    def lines(*numbers: int) -> Reply:
        items = [{"seq": number, "line": "x"} for number in numbers]
        return Reply(200, {}, json.dumps({"items": items, "next_cursor": None}).encode())

    script = [job(3, progress=1), lines(1), job(4, progress=2), lines(), job(5, status="COMPLETED"), lines(2)]
    stage = Stage([*no_stream, *script])
    stage.run(watch("job_1"))
    kinds = [event.kind for event in stage.given]
    assert kinds == ["log", "status", "progress", "log", "done"]
    polls = [dict(request.query) for request in stage.sent if request.path == "/api/jobs/job_1"]
    assert polls == [{}, {"wait": f"{POLL_S}000ms", "since": "3"}, {"wait": f"{POLL_S}000ms", "since": "4"}]


def test_long_log_is_complete_before_the_done_event() -> None:
    def lines(*numbers: int) -> Reply:
        return Reply(200, {}, json.dumps({"items": [{"seq": number, "line": "x"} for number in numbers]}).encode())

    ended = Reply(200, {}, json.dumps({"id": "job_1", "version": 9, "status": "COMPLETED", "attempts": 1}).encode())
    whole = lines(*range(1, LINES_MAX + 1)), lines(*range(LINES_MAX + 1, 2 * LINES_MAX + 1)), lines()
    stage = Stage([refusal(406), ended, *whole])
    stage.run(watch("job_1"))
    assert [event.kind for event in stage.given] == ["log", "log", "done"]
    told = [line["seq"] for event in stage.given for line in event.data.get("lines", ())]
    assert told == list(range(1, 2 * LINES_MAX + 1))


def test_resumed_stream_of_all_jobs_repeats_no_event() -> None:
    def told(event: str, job: str, version: int, at: str) -> bytes:
        return sse(event, {"id": job, "version": version}, at)

    script = [
        *[
            STREAM,
            sse("ready", {"cursor": "1.1"}, "1.1"),
            told("status", "a", 1, "1.2") + told("status", "b", 7, "1.2"),
        ],
        *[CUT, STREAM, told("status", "a", 1, "1.3"), told("done", "a", 2, "1.3"), told("progress", "b", 6, "1.3")],
        *[sse("resync", {}, "2.0"), told("progress", "b", 8, "2.1"), b"", refusal(403)],
    ]
    stage = Stage(script)
    with pytest.raises(Denied):
        stage.run(stream({"type": "report"}))
    told_events = [(event.kind, event.job_id, event.version) for event in stage.given]
    assert told_events == [
        ("status", "a", 1),
        ("status", "b", 7),
        ("done", "a", 2),
        ("resync", None, None),
        ("progress", "b", 8),
    ]
    assert stage.sent[0].query == (("type", "report"),)
    assert stage.sent[1].headers["Last-Event-ID"] == "1.2"


@pytest.mark.parametrize("data", ["no json", "[]", "3", "null"])
def test_malformed_events_are_rejected(data: str) -> None:
    with pytest.raises(StoreError):
        Stage([STREAM, f"event: status\ndata: {data}\n\n".encode()]).run(watch("job_1"))


# --- waiting


def ended(status: str, **more: Any) -> Reply:
    return Reply(200, {}, json.dumps({"id": "job_1", "version": 9, "status": status, **more}).encode())


def test_wait_returns_the_result_or_raises_job_failed() -> None:
    assert Stage([ended("RUNNING"), ended("COMPLETED", result={"n": 1})]).run(wait("job_1")) == {"n": 1}
    with pytest.raises(JobFailed, match="job_1 ended as FAILED: ValueError: bad"):
        Stage([ended("FAILED", error={"type": "ValueError", "message": "bad"})]).run(wait("job_1"))
    with pytest.raises(JobFailed, match="job_1 ended as CANCELLED: stopped by ada"):
        Stage([ended("CANCELLED", error=None, why="stopped by ada")]).run(wait("job_1"))


def test_wait_raises_timeout_error() -> None:
    stage = Stage([ended("RUNNING")] * 100)
    with pytest.raises(TimeoutError, match="job_1 has not ended within 2 s; it is RUNNING"):
        stage.run(wait("job_1", "2s"))
    assert stage.now >= 2
