"""HTTP tasks: what a server receives, what its responses mean, and that no server can block a job."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headway import Headway, InvalidTask, Retry
from headway.core.instants import DAY, SECOND
from headway.core.jobs import RESULT_BYTES_MAX
from headway.core.settings import Settings
from headway.tasks.context import TaskStopped, encode_result
from headway.worker.http import BODY_BYTES_MAX, HttpFailed, HttpRefused, http_request
from tests.support.contexts import new_context
from tests.support.waiting import DEADLINE_S, wait_until

ENDLESS_BYTES = 1 << 30  # Much more than all socket buffers of a connection hold.


class Heard:
    """A request as the server received it."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self.method, self.path, self.headers = handler.command, handler.path, handler.headers
        self.body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))


class Server:
    """A local server; `answers` maps paths to handlers."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def handle_one(self) -> None:
                outer.heard.append(Heard(self))
                outer.answers[self.path.partition("?")[0]](self)

            do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = handle_one

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def at(self, path: str, status: int = 200, body: bytes = b"", **headers: str) -> str:
        """Set the response of a path; return its URL."""

        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name.replace("_", "-"), value)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            if handler.command != "HEAD":
                handler.wfile.write(body)

        self.answers[path] = answer
        return self.url + path


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.server.shutdown()
    thread.join(DEADLINE_S)
    server.server.server_close()


def send(url: str, arguments: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    context, _ = new_context()
    return http_request(url, **options)(context, **(arguments or {}))


# --- requests


def test_post_sends_arguments_as_json_with_job_headers(server: Server) -> None:
    url = server.at("/hook", body=b'{"ok": true, "n": 9007199254740993}', Content_Type="application/json")
    result = send(url, {"day": "2027-01-01", "n": [1]}, method="post", headers={"Authorization": "Bearer x"})
    assert result == {"status": 200, "body": {"ok": True, "n": 9007199254740993}}
    heard = server.heard[0]
    assert (heard.method, heard.path) == ("POST", "/hook")
    assert json.loads(heard.body) == {"day": "2027-01-01", "n": [1]}
    assert heard.headers["Idempotency-Key"] == "job_test"
    assert heard.headers["X-Headway-Attempt"] == "2"
    assert heard.headers["Content-Type"] == "application/json"
    assert heard.headers["Authorization"] == "Bearer x"
    assert heard.headers["User-Agent"] == "headway"


def test_get_sends_arguments_in_the_query(server: Server) -> None:
    url = server.at("/hook", body="grün".encode(), Content_Type="text/plain; charset=utf-8")
    assert send(f"{url}?a=1", {"q": "x&y=ü", "n": 5, "on": True}) == {"status": 200, "body": "grün"}
    assert server.heard[0].path == "/hook?a=1&q=x%26y%3D%C3%BC&n=5&on=true"
    assert server.heard[0].body == b""
    assert send(url, headers={"user-agent": "mine"}) == {"status": 200, "body": "grün"}
    assert server.heard[1].headers.get_all("User-Agent") == ["mine"]


def test_log_shows_the_request_without_its_query(server: Server) -> None:
    url = server.at("/hook", 201)
    context, listener = new_context()
    http_request(f"{url}?token=s3cret", method="DELETE")(context)
    (text,) = listener.texts("log")
    assert text.startswith(f"DELETE {url}  201 Created  ")


# --- responses


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (b"not json", "application/json", "not json"),
        (b"[1, 2]", "application/problem+json", [1, 2]),
        (b"[1, 2]", "text/plain", "[1, 2]"),
        (b"\xff\x00\x1b[31m", "text/plain", "\ufffd\ufffd\ufffd[31m"),
        (b"gr\xfcn", "text/plain; charset=latin-1", "grün"),
        (b"x", "text/plain; charset=no-such", "x"),
        (b"[" * 5_000, "application/json", "[" * 5_000),
        (b"", "application/json", ""),
    ],
)
def test_body_is_stored_by_its_content_type(server: Server, body: bytes, kind: str, expected: object) -> None:
    assert send(server.at("/x", body=body, Content_Type=kind))["body"] == expected


@pytest.mark.parametrize("byte", [b"a", b"\x01", b"\xff", b'"', b"\n"])
def test_long_body_is_truncated_and_storable(server: Server, byte: bytes) -> None:
    result = send(server.at("/x", body=byte * (BODY_BYTES_MAX + 500_000), Content_Type="text/plain"))
    assert result["truncated"] is True
    assert len(result["body"]) == BODY_BYTES_MAX
    assert len(encode_result(result)) <= RESULT_BYTES_MAX


def test_endless_body_is_not_read_completely(server: Server) -> None:
    hung_up = threading.Event()

    def pour(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            for _ in range(0, ENDLESS_BYTES, 65_536):
                handler.wfile.write(b"x" * 65_536)
        except OSError:
            hung_up.set()

    server.answers["/endless"] = pour
    assert send(f"{server.url}/endless")["truncated"] is True
    assert hung_up.wait(DEADLINE_S)


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422])
def test_other_client_errors_are_final(server: Server, status: int) -> None:
    with pytest.raises(HttpRefused, match=rf"the answer was {status} .*: no such thing"):
        send(server.at("/x", status, b"no\nsuch thing", Retry_After="5"))


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_some_responses_are_retried(server: Server, status: int) -> None:
    with pytest.raises(HttpFailed, match=str(status)) as failed:
        send(server.at("/x", status))
    assert not isinstance(failed.value, HttpRefused)
    with pytest.raises(Retry, match=str(status)) as retry:
        send(server.at("/x", status, Retry_After="120"))
    assert retry.value.after == 120 * SECOND


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("99999999", DAY),
        ("Fri, 01 Jan 2027 00:02:00 GMT", 120 * SECOND),
        ("Thu, 31 Dec 2026 00:00:00 GMT", 0),
    ],
)
def test_retry_after_may_be_a_date_and_is_bounded(server: Server, text: str, expected: int) -> None:
    """The date is relative to the server's own clock."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response_only(503)
        handler.send_header("Date", "Fri, 01 Jan 2027 00:00:00 GMT")
        handler.send_header("Retry-After", text)
        handler.end_headers()

    server.answers["/x"] = answer
    with pytest.raises(Retry) as retry:
        send(f"{server.url}/x")
    assert retry.value.after == expected


@pytest.mark.parametrize("text", ["", "soon", "-5", "1.5", "Fri, 99 Jan 2027 00:02:00 GMT"])
def test_invalid_retry_after_uses_the_retry_policy(server: Server, text: str) -> None:
    with pytest.raises(HttpFailed):
        send(server.at("/x", 503, Retry_After=text))


def test_retry_policy_may_give_up_on_errors() -> None:
    app = Headway(settings=Settings(store="sqlite://"), name="t")
    ping = app.http("ping", "https://example.org/hook", method="POST", retry=Retry(max_attempts=4))
    assert ping.execution.retry is not None
    assert not ping.execution.retry.retries(HttpRefused("no"))
    assert ping.execution.retry.retries(HttpFailed("no"))
    assert (ping.execution.isolation, ping.execution.timeout, ping.defaults.max_attempts) == ("thread", 30 * SECOND, 4)
    assert ping.bind((), {"anything": 1, "arguments": 2}) == {"anything": 1, "arguments": 2}
    with pytest.raises(InvalidTask):
        ping.bind((5,), {})


# --- redirects


def test_redirect_to_another_host_drops_credentials(server: Server) -> None:
    other = server.url.replace("127.0.0.1", "localhost")
    server.at("/a", 302, Location="/b")
    server.at("/b", 307, Location=f"{other}/c?x=1")
    server.at("/c", 200, b"here")
    sent = send(f"{server.url}/a", headers={"X-Api-Key": "s3cret"}, allow=["localhost"])
    assert sent == {"status": 200, "body": "here"}
    assert [heard.headers.get("X-Api-Key") for heard in server.heard] == ["s3cret", "s3cret", None]
    assert server.heard[2].path == "/c?x=1"
    assert server.heard[2].headers["Idempotency-Key"] == "job_test"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """Fake the DNS resolver: each name has a list of answers, the last of which repeats."""
    answers: dict[str, list[list[str]]] = {}
    ask = socket.getaddrinfo

    def answer(host: Any, *args: Any, **options: Any) -> Any:
        if host not in answers:
            return ask(host, *args, **options)
        found = answers[host].pop(0) if len(answers[host]) > 1 else answers[host][0]
        return [(socket.AF_INET6 if ":" in text else socket.AF_INET, 0, 0, "", (text, 0)) for text in found]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return answers


METADATA = "169.254.169.254"


@pytest.mark.parametrize(
    "target",
    [
        f"http://{METADATA}/latest/meta-data/",
        "http://2852039166/",  # The same address as one number,
        "http://[::ffff:169.254.169.254]/",  # as IPv6,
        "http://metadata.test/",  # behind a name,
        "http://both.test/",  # and next to a public address.
        "http://[fe80::1]/",
        "http://127.0.0.1:1/",  # Another port of the task's own host.
        "http://localhost/",
        "http://10.0.0.7/",
        "http://0.0.0.0/",
        "//169.254.169.254/",
    ],
)
def test_redirect_into_private_networks_is_not_followed(
    server: Server, names: dict[str, list[list[str]]], monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    names["metadata.test"], names["both.test"] = [[METADATA]], [["93.184.216.34", METADATA]]
    reached: list[Any] = []
    connect = socket.create_connection

    def watched(place: Any, *rest: Any) -> socket.socket:
        reached.append(place)
        return connect(place, *rest)

    monkeypatch.setattr(socket, "create_connection", watched)
    with pytest.raises(HttpRefused, match=r"was not sent: the host resolves to an address to which nothing is sent"):
        send(server.at("/a", 302, Location=target))
    assert reached == [("127.0.0.1", server.server.server_port)]


def test_configured_host_that_resolves_to_cloud_metadata_is_blocked(names: dict[str, list[list[str]]]) -> None:
    names["reports.test"] = [[METADATA]]
    with pytest.raises(HttpRefused, match=r"was not sent: .*link-local; HEADWAY_WEBHOOK_ALLOW names exceptions"):
        send("http://reports.test/")


def test_name_is_resolved_once(server: Server, names: dict[str, list[list[str]]]) -> None:
    """DNS rebinding: the second answer would be the cloud metadata service."""
    names["reports.test"] = [["127.0.0.1"], [METADATA]]
    server.at("/a", 302, Location="/b")
    server.at("/b", 200, b"here")
    url = server.url.replace("127.0.0.1", "reports.test")
    assert send(f"{url}/a")["body"] == "here"
    assert {heard.headers["Host"] for heard in server.heard} == {url.removeprefix("http://")}


def test_number_of_redirects_is_limited(server: Server) -> None:
    server.at("/a", 301, Location="/a")
    with pytest.raises(HttpRefused, match="more than 5 times"):
        send(f"{server.url}/a")
    assert len(server.heard) == 6


@pytest.mark.parametrize("target", ["https://127.0.0.1/x", "ftp://127.0.0.1/x", "file:///etc/passwd", "//["])
def test_redirect_to_another_scheme_is_not_followed(server: Server, target: str) -> None:
    with pytest.raises(HttpRefused, match=r"was redirected \(302\)"):
        send(server.at("/a", 302, Location=target))


def test_post_is_not_redirected(server: Server) -> None:
    with pytest.raises(HttpRefused, match="redirects are followed for GET and HEAD only"):
        send(server.at("/a", 307, Location="/b"), method="POST")
    assert len(server.heard) == 1


# --- no response


def test_connection_errors_are_retried(server: Server) -> None:
    with socket.socket() as taken:  # The port is reserved, and has no listener.
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/x"
        with pytest.raises(HttpFailed, match=rf"GET {url} was not answered: .*refused") as failed:
            send(f"{url}?token=s3cret")
    assert not isinstance(failed.value, HttpRefused)
    assert "s3cret" not in str(failed.value)
    with pytest.raises(HttpFailed, match="was not answered"):
        send(server.url.replace("http://", "https://"))  # The server does not speak TLS.

    def hang_up(handler: BaseHTTPRequestHandler) -> None:
        handler.connection.close()

    server.answers["/gone"] = hang_up
    with pytest.raises(HttpFailed, match="was not answered"):
        send(f"{server.url}/gone")


def test_stop_does_not_wait_for_the_server(server: Server) -> None:
    waiting, over = threading.Event(), threading.Event()

    def never(handler: BaseHTTPRequestHandler) -> None:
        waiting.set()
        over.wait(10 * DEADLINE_S)

    server.answers["/slow"] = never
    context, _ = new_context()
    ended: list[BaseException] = []

    def work() -> None:
        try:
            http_request(f"{server.url}/slow")(context)
        except BaseException as error:  # noqa: BLE001 - TaskStopped is none of the ordinary ones
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert waiting.wait(DEADLINE_S)
        context.stop()
        thread.join(DEADLINE_S)
        assert [type(error) for error in ended] == [TaskStopped]
    finally:
        over.set()  # Only now does the server end.
    wait_until(
        lambda: all(thread.name != "headway-http" for thread in threading.enumerate()), "the end of what was left"
    )


# --- definitions


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x/y",
        "file:///etc/passwd",
        "example.org",
        "https://",
        "https://x:99999/",
        "https://a b/",
        "https://x/\n",
        5,
    ],
)
def test_url_must_be_http_or_https(url: Any) -> None:
    with pytest.raises(InvalidTask, match="URL"):
        http_request(url)


def test_url_must_not_contain_a_password() -> None:
    with pytest.raises(InvalidTask, match="has a password") as refused:
        http_request("https://ada:s3cret@example.org/")
    assert "s3cret" not in str(refused.value)


def test_url_may_be_international(server: Server) -> None:
    server.at("/gr%C3%BCn", 200, b"ok")
    assert send(f"{server.url}/grün")["body"] == "ok"


@pytest.mark.parametrize(
    "headers",
    [
        [("A", "x")],
        "A: x",
        {"A B": "x"},
        {"A": "x\r\nB: y"},
        {"A": 5},
        {"Host": "x"},
        {"idempotency-key": "x"},
        {"": "x"},
    ],
)
def test_headers_are_checked(headers: Any) -> None:
    with pytest.raises(InvalidTask, match="header"):
        http_request("https://example.org", headers=headers)


def test_methods_are_limited() -> None:
    with pytest.raises(InvalidTask, match="method must be one of GET"):
        http_request("https://example.org", method="TRACE")
