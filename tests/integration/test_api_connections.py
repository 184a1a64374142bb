"""Connections to the API that are not as they should be: silent, slow, endless. Nobody is waited for without end."""

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

SOON_S = 0.3  # How long the server waits where it is to give up; elsewhere it waits as long as it always does.
HEAD = b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class House:
    """An API in this process, and its address."""

    def __init__(self, store: Store, port: int) -> None:
        self.store = store
        self.port = port

    def client(self) -> httpx.AsyncClient:
        """Return a client."""
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=DEADLINE_S)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect without any library between us and the bytes."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def told(self, *parts: bytes) -> bytes:
        """Send something and nothing more; return what is said until the other end closes."""
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
        """Have a job that was cancelled before it began."""
        [row] = await self.store.queue.enqueue([NewJob(id=Clock().new_id("job"), task="work")])
        await self.store.queue.cancel(row.id, author="me")
        return row.id


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    clock = Clock(node="test")
    store = await Store.open(f"sqlite:///{tmp_path}/headway.db", clock)

    async def opened() -> Store:
        return store

    listening, stopping = server.bind("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.ensure_future(server.serve(new_api(opened, Settings(), clock), listening, stopping))
    try:
        yield House(store, listening.getsockname()[1])
    finally:
        stopping.set()
        await serving
        await store.close()


@pytest.mark.parametrize(
    "said", [b"", b"GET /api/jobs HTTP/1.1\r\nHost: local", b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /li"]
)
async def test_who_does_not_say_what_he_wants_is_not_waited_for(
    house: House, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_S_MAX", SOON_S)
    whole = said.count(b"\r\n\r\n")

    async def is_answered() -> bool:
        """Say it; what was whole is answered, unless we were too slow to say it in time."""
        told = (await house.told(said)).count(b"HTTP/1.1 200 OK")
        assert told <= whole
        return told == whole

    await async_wait_until(is_answered, "an answer to what was whole")


GUARDS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "content-type": "application/json",
}


def headers_of(told: bytes) -> dict[str, str]:
    """Read the headers of an answer, with their names in small letters."""
    lines = told.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def test_a_head_without_end_is_refused(house: House) -> None:
    told = await house.told(b"GET /livez HTTP/1.1\r\n", *[b"x-more: " + b"x" * 8_000 + b"\r\n"] * 9)
    assert told.startswith(b"HTTP/1.1 431 ")
    assert headers_of(told).items() >= GUARDS.items()


@pytest.mark.parametrize(
    "said", [b"\x16\x03\x01nonsense\r\n\r\n", b"GET /livez HTTP/1.1\r\nTransfer-Encoding: O\r\n\r\n"]
)
async def test_what_is_no_http_is_refused_as_everything_is(house: House, said: bytes) -> None:
    head, _, body = (await house.told(said)).partition(b"\r\n\r\n")
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
async def test_a_refused_handshake_is_answered_as_everything_is(
    house: House, path: str, differences: dict[str, str], status: int, code: str
) -> None:
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in {**HANDSHAKE, **differences}.items())]
    told = await house.told(("\r\n".join(lines) + "\r\n\r\n").encode())
    assert told.startswith(f"HTTP/1.1 {status} ".encode()), told
    assert headers_of(told).items() >= GUARDS.items()
    said = json.loads(told.partition(b"\r\n\r\n")[2])
    assert said["error"]["code"] == code
    assert said["request_id"] == headers_of(told)["x-request-id"]


async def test_a_body_that_does_not_come_is_not_waited_for(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "BODY_S_MAX", SOON_S)
    told = await house.told(HEAD + b"Connection: close\r\nContent-Length: 100\r\n\r\n{")
    assert told.startswith(b"HTTP/1.1 408 ")
    assert b"too_slow" in told


async def test_who_goes_in_the_middle_is_nobodys_mistake(house: House) -> None:
    mistakes: list[EngineEvent] = []
    with subscribed(lambda event: mistakes.append(event) if isinstance(event, RequestFailed) else None):
        _, writer = await house.connect()
        writer.write(HEAD + b"Content-Length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        async with house.client() as client:
            assert (await client.get("/api/jobs")).status_code == 200
    assert mistakes == []


async def test_the_head_of_a_stream_is_all_of_it(house: House) -> None:
    async with house.client() as client:
        for path in ("/api/stream", f"/api/jobs/{await house.ended_job()}/events"):
            head = await client.head(path)
            assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream")
            assert (await client.get("/livez")).status_code == 200


async def test_thousands_of_names_are_looked_through_once(house: House) -> None:
    """Anybody can send this to where one signs in, and once it took minutes."""
    names = ",".join(f'"k{number:06}":0' for number in range(80_000))
    body = f'{{{names},"z":0,"z":0}}'.encode()
    async with house.client() as client:
        refused = await client.post("/api/jobs", content=body, headers={"Content-Type": "application/json"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "duplicate_name")
        refused = await client.post("/api/session", content=body, headers={"Content-Type": "application/json"})
        assert refused.status_code == 413


async def test_a_place_that_is_none_is_told_to_begin_anew(house: House) -> None:
    reader, writer = await house.connect()
    try:
        lost = b"9" * 5_000 + b".1"
        writer.write(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: " + lost + b"\r\n\r\n")
        async with asyncio.timeout(DEADLINE_S):
            assert b"200 OK" in await reader.readline()
            await reader.readuntil(b"event: resync\n")
    finally:
        writer.close()


async def test_jobs_that_have_ended_take_no_place_on_a_websocket(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "SUBSCRIPTIONS_MAX", 2)
    job_ids = [await house.ended_job() for _ in range(3)]
    async with websockets.connect(f"ws://127.0.0.1:{house.port}/api/ws") as socket, asyncio.timeout(DEADLINE_S):

        async def said(message: str | bytes) -> dict[str, Any]:
            await socket.send(message)
            answer: dict[str, Any] = json.loads(await socket.recv())
            return answer

        for job_id in (*job_ids, *job_ids):
            told = await said(json.dumps({"subscribe": {"job": job_id}}))
            assert (told["event"], told["data"]["id"]) == ("done", job_id)
        assert (await said(b"\x00"))["data"]["code"] == "invalid"
        assert (await said(json.dumps({"subscribe": {"job": job_ids[0]}})))["event"] == "done"
