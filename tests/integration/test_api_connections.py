"""Bad connections to the API: silent, slow, endless, malformed. The server waits for none of them forever."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from headway.core.clock import Clock
from headway.core.events import EngineEvent, RequestFailed, subscribed
from headway.core.jobs import NewJob
from headway.core.settings import Settings
from headway.server import http_server as server
from headway.server import web
from headway.server.routes import websocket
from headway.store import Store
from headway.wiring.api import new_api
from tests.support.waiting import DEADLINE_S, async_wait_until

SOON_S = 0.3  # The timeout of the server where it must give up; elsewhere the default applies.
HEAD = b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class LocalApi:
    """An API in this process."""

    def __init__(self, store: Store, port: int) -> None:
        self.store = store
        self.port = port

    def client(self) -> httpx.AsyncClient:
        """Return a client."""
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=DEADLINE_S)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a plain TCP connection."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def send(self, *parts: bytes) -> bytes:
        """Send bytes, then wait; return the response until the server closes the connection."""
        reader, writer = await self.connect()
        try:
            async with asyncio.timeout(DEADLINE_S):
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                return await reader.read()
        finally:
            writer.close()

    async def ended_job(self) -> str:
        """Create a job that was cancelled before it started."""
        [row] = await self.store.queue.enqueue([NewJob(id=Clock().new_id("job"), task="work")])
        await self.store.queue.cancel(row.id, author="me")
        return row.id


@pytest.fixture
async def local_api(tmp_path: Path) -> AsyncIterator[LocalApi]:
    clock = Clock(node="test")
    store = await Store.open(f"sqlite:///{tmp_path}/headway.db", clock)

    async def opened() -> Store:
        return store

    listening, stopping = server.bind("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.ensure_future(server.serve(new_api(opened, Settings(), clock), listening, stopping))
    try:
        yield LocalApi(store, listening.getsockname()[1])
    finally:
        stopping.set()
        await serving
        await store.close()


@pytest.mark.parametrize(
    "sent", [b"", b"GET /api/jobs HTTP/1.1\r\nHost: local", b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /li"]
)
async def test_incomplete_request_head_times_out(
    local_api: LocalApi, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_S_MAX", SOON_S)
    complete = sent.count(b"\r\n\r\n")

    async def is_answered() -> bool:
        """Send it; complete requests are answered, unless the test was too slow to send them in time."""
        received = (await local_api.send(sent)).count(b"HTTP/1.1 200 OK")
        assert received <= complete
        return received == complete

    await async_wait_until(is_answered, "an answer to every complete request")


GUARDS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "content-type": "application/json",
}


def headers_of(received: bytes) -> dict[str, str]:
    """Parse the headers of a response, with lower-case names."""
    lines = received.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def test_endless_request_head_is_rejected(local_api: LocalApi) -> None:
    received = await local_api.send(b"GET /livez HTTP/1.1\r\n", *[b"x-more: " + b"x" * 8_000 + b"\r\n"] * 9)
    assert received.startswith(b"HTTP/1.1 431 ")
    assert headers_of(received).items() >= GUARDS.items()


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01nonsense\r\n\r\n", b"GET /livez HTTP/1.1\r\nTransfer-Encoding: O\r\n\r\n"]
)
async def test_malformed_http_gets_the_standard_json_error(local_api: LocalApi, sent: bytes) -> None:
    head, _, body = (await local_api.send(sent)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-type: application/json" in head
    assert json.loads(body)["error"]["code"] == "not_http"
    assert headers_of(head).items() >= GUARDS.items()


HANDSHAKE = {
    "Host": "localhost",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.mark.parametrize(
    ("path", "differences", "status", "code"),
    [
        ("/api/nothing", {}, 404, "not_found"),
        ("/api/ws", {"Authorization": "Bearer hw_wrong"}, 401, "unauthorized"),
        ("/api/ws", {"Host": "evil.example"}, 403, "forbidden"),
        ("/api/ws", {"Origin": "https://evil.example"}, 403, "forbidden"),
        ("/api/ws", {"X-Forwarded-For": "127.0.0.1"}, 403, "forbidden"),
        ("/api/ws", {"Sec-WebSocket-Key": "short"}, 400, "not_websocket"),
        ("/api/ws", {"Sec-WebSocket-Version": "7"}, 400, "not_websocket"),
    ],
)
async def test_refused_websocket_handshake_gets_the_standard_json_error(
    local_api: LocalApi, path: str, differences: dict[str, str], status: int, code: str
) -> None:
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in {**HANDSHAKE, **differences}.items())]
    received = await local_api.send(("\r\n".join(lines) + "\r\n\r\n").encode())
    assert received.startswith(f"HTTP/1.1 {status} ".encode()), received
    assert headers_of(received).items() >= GUARDS.items()
    answer = json.loads(received.partition(b"\r\n\r\n")[2])
    assert answer["error"]["code"] == code
    assert answer["request_id"] == headers_of(received)["x-request-id"]


async def test_missing_request_body_times_out(local_api: LocalApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "BODY_S_MAX", SOON_S)
    received = await local_api.send(HEAD + b"Connection: close\r\nContent-Length: 100\r\n\r\n{")
    assert received.startswith(b"HTTP/1.1 408 ")
    assert b"too_slow" in received


async def test_client_disconnect_is_not_logged_as_an_error(local_api: LocalApi) -> None:
    failures: list[EngineEvent] = []
    with subscribed(lambda event: failures.append(event) if isinstance(event, RequestFailed) else None):
        _, writer = await local_api.connect()
        writer.write(HEAD + b"Content-Length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        async with local_api.client() as client:
            assert (await client.get("/api/jobs")).status_code == 200
    assert failures == []


async def test_head_request_to_a_stream_ends_after_its_headers(local_api: LocalApi) -> None:
    async with local_api.client() as client:
        for path in ("/api/stream", f"/api/jobs/{await local_api.ended_job()}/events"):
            head = await client.head(path)
            assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream")
            assert (await client.get("/livez")).status_code == 200


async def test_many_distinct_names_are_checked_in_linear_time(local_api: LocalApi) -> None:
    """Anyone can send this to the sign-in route; it used to take minutes."""
    names = ",".join(f'"k{number:06}":0' for number in range(80_000))
    body = f'{{{names},"z":0,"z":0}}'.encode()
    async with local_api.client() as client:
        refused = await client.post("/api/jobs", content=body, headers={"Content-Type": "application/json"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "duplicate_name")
        refused = await client.post("/api/session", content=body, headers={"Content-Type": "application/json"})
        assert refused.status_code == 413


async def test_invalid_last_event_id_gets_a_resync(local_api: LocalApi) -> None:
    reader, writer = await local_api.connect()
    try:
        lost = b"9" * 5_000 + b".1"
        writer.write(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: " + lost + b"\r\n\r\n")
        async with asyncio.timeout(DEADLINE_S):
            assert b"200 OK" in await reader.readline()
            await reader.readuntil(b"event: resync\n")
    finally:
        writer.close()


async def test_finished_jobs_use_no_subscription_of_a_websocket(
    local_api: LocalApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "SUBSCRIPTIONS_MAX", 2)
    job_ids = [await local_api.ended_job() for _ in range(3)]
    async with websockets.connect(f"ws://127.0.0.1:{local_api.port}/api/ws") as socket, asyncio.timeout(DEADLINE_S):

        async def reply_to(message: str | bytes) -> dict[str, Any]:
            await socket.send(message)
            answer: dict[str, Any] = json.loads(await socket.recv())
            return answer

        for job_id in (*job_ids, *job_ids):
            received = await reply_to(json.dumps({"subscribe": {"job": job_id}}))
            assert (received["event"], received["data"]["id"]) == ("done", job_id)
        assert (await reply_to(b"\x00"))["data"]["code"] == "invalid"
        assert (await reply_to(json.dumps({"subscribe": {"job": job_ids[0]}})))["event"] == "done"
