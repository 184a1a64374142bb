"""Jobs and bodies of maximal size and nesting: responses are bounded, and other requests do not wait.

Work is bounded in bytes and values, not in seconds. The tests block the thread that does large work, to show that the
event loop keeps answering.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from headway.core import job_details
from headway.core.clock import Clock
from headway.core.instants import SECOND
from headway.core.jobs import NewJob
from headway.core.json_values import encode_args
from headway.core.lifecycle import Attempt, Raised, Succeeded, settle
from headway.core.settings import Settings
from headway.server import http_server as server
from headway.server import offload
from headway.server.api import Api
from headway.server.web import BULK_BYTES_MAX, PAGE_BYTES_MAX
from headway.store import Store
from headway.wire import jobs
from headway.wire.base import LISTED_BYTES_MAX
from headway.wiring.api import new_api
from tests.support.waiting import DEADLINE_S

FINE = encode_args({"x": [[]] * 85_000, "token": "s3cr3t"})  # A quarter of a megabyte.
FINE_ITEMS = 85_000
JOBS = 200


class LocalApi:
    """A real API in this process, with access to its loop and its thread."""

    def __init__(self, store: Store, api: Api, port: int) -> None:
        self.store = store
        self.api = api
        self.port = port

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=DEADLINE_S)

    async def enqueue(self, count: int = 1, **options: Any) -> list[str]:
        made = [NewJob(**{"id": Clock().new_id("job"), "task": "work", "args": FINE, **options}) for _ in range(count)]
        return [row.id for row in await self.store.queue.enqueue(made)]

    async def finish(self, result: str) -> str:
        [job] = await self.store.work.claim("default", node="node", lease=300 * SECOND, limit=1)
        attempt = Attempt(job_id=job.id, attempt=job.attempt, failures=0, max_attempts=job.max_attempts)
        assert not await self.store.work.settle([settle(attempt, Succeeded(result=result), 0.5)])
        return job.id

    @contextmanager
    def blocked_offload(self) -> Iterator[None]:
        """Block the thread for large work."""
        assert self.api._services is not None
        release = threading.Event()
        self.api._services.offload._thread.submit(release.wait)
        try:
            yield
        finally:
            release.set()


@pytest.fixture
async def local_api(tmp_path: Path) -> AsyncIterator[LocalApi]:
    clock = Clock(node="test")
    store = await Store.open(f"sqlite:///{tmp_path}/headway.db", clock, synchronous="normal")

    async def opened() -> Store:
        return store

    api = new_api(opened, Settings(), clock)
    listening, stopping = server.bind("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.ensure_future(server.serve(api, listening, stopping))
    await api.start()
    try:
        yield LocalApi(store, api, listening.getsockname()[1])
    finally:
        stopping.set()
        await serving
        await store.close()


@pytest.fixture
def masked_values(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the size of each text that is parsed for masking."""
    counted: list[int] = []
    look = job_details.read_json

    def counting(text: str | None) -> Any:
        counted.append(0 if text is None else len(text))
        return look(text)

    monkeypatch.setattr(jobs, "read_json", counting)
    return counted


async def test_page_of_large_jobs_omits_arguments(local_api: LocalApi, masked_values: list[int]) -> None:
    ids = await local_api.enqueue(JOBS)
    async with local_api.client() as client:
        masked_values.clear()
        answer = await client.get("/api/jobs", params={"limit": JOBS})
        assert sum(masked_values) < PAGE_BYTES_MAX  # The arguments were not parsed: they would be 50 MB.
        page = answer.json()
        assert [job["id"] for job in page["items"]] == sorted(ids, reverse=True)
        assert all(job["args"] is None and job["omitted"] == ["args"] for job in page["items"])
        assert len(answer.content) < PAGE_BYTES_MAX
        again = await client.get("/api/jobs", params={"limit": JOBS}, headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304

        one = (await client.get(f"/api/jobs/{ids[0]}")).json()
        assert "omitted" not in one
        assert one["args"] == {"x": [[]] * FINE_ITEMS, "token": "***"}
        for path in ("why", "history", "attempts", "log"):  # They do not need the arguments.
            masked_values.clear()
            assert (await client.get(f"/api/jobs/{ids[0]}/{path}")).status_code == 200
            assert sum(masked_values) < LISTED_BYTES_MAX, path


async def test_pages_are_bounded_by_bytes_and_complete_together(local_api: LocalApi) -> None:
    text = "é" * 1_900  # In bytes just below the size that lists omit.
    ids = await local_api.enqueue(JOBS, args=encode_args({"text": text}), metadata=encode_args({"text": text}))
    async with local_api.client() as client:
        seen: list[str] = []
        cursor, pages = None, 0
        while pages == 0 or cursor is not None:
            answer = await client.get("/api/jobs", params={"limit": JOBS, **({"cursor": cursor} if cursor else {})})
            assert len(answer.content) < 2 * PAGE_BYTES_MAX
            assert all(job["args"] == {"text": text} for job in answer.json()["items"])
            seen += [job["id"] for job in answer.json()["items"]]
            cursor, pages = answer.json()["next_cursor"], pages + 1
        assert pages > 1
        assert seen == sorted(ids, reverse=True)


async def test_large_results_and_tracebacks_are_omitted_from_lists_only(local_api: LocalApi) -> None:
    await local_api.enqueue(args="{}")
    done = await local_api.finish(FINE)
    [failed] = await local_api.enqueue(args=FINE, max_attempts=1)
    [job] = await local_api.store.work.claim("default", node="node", lease=300 * SECOND, limit=1)
    error = encode_args({"type": "IOError", "message": "full", "traceback": "line\n" * 2_000})
    attempt = Attempt(job_id=job.id, attempt=job.attempt, failures=0, max_attempts=1)
    await local_api.store.work.settle([settle(attempt, Raised(error, retryable=False), 0.5)])
    async with local_api.client() as client:
        listed = {job["id"]: job for job in (await client.get("/api/jobs")).json()["items"]}
        assert (listed[done]["result"], listed[done]["omitted"]) == (None, ["result"])
        assert listed[failed]["error"] == {"type": "IOError", "message": "full"}
        assert listed[failed]["omitted"] == ["args", "error.traceback"]
        [letter] = (await client.get("/api/dead")).json()["items"]
        assert (letter["error"], letter["omitted"]) == (listed[failed]["error"], listed[failed]["omitted"])
        assert (await client.get(f"/api/jobs/{done}")).json()["result"]["x"] == [[]] * FINE_ITEMS
        assert (await client.get(f"/api/jobs/{failed}")).json()["error"]["traceback"] == "line\n" * 2_000
        again = await client.post(f"/api/jobs/{failed}/retry", json={"args": {"x": [1], "token": "***"}})
        assert again.status_code == 201  # The masked value came from arguments that lists omit.
        stored = await local_api.store.jobs.get(again.json()["id"])
        assert json.loads(stored.args) == {"x": [1], "token": "s3cr3t"}


async def test_loop_answers_during_large_work(local_api: LocalApi) -> None:
    [job_id] = await local_api.enqueue()
    body = json.dumps({"type": "work", "args": {"x": [[]] * 60_000}})
    async with local_api.client() as client, local_api.client() as other:
        with local_api.blocked_offload():
            waiting = [
                asyncio.ensure_future(client.get(f"/api/jobs/{job_id}")),
                asyncio.ensure_future(client.post("/api/jobs", content=body, headers=JSON)),
            ]
            for path in ("/livez", "/readyz", "/api/jobs", f"/api/jobs/{job_id}/why", "/api/queues"):
                assert (await other.get(path)).status_code == 200, path
            assert not any(one.done() for one in waiting)
        assert [(await one).status_code for one in waiting] == [200, 201]


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("path", "inner"),
    [("/api/jobs/bulk", b"[],"), ("/api/jobs/bulk", b'"a",'), ("/api/jobs/bulk", b'{"a":1},'), ("/api/jobs", b"1,")],
)
async def test_body_with_too_many_values_is_rejected_before_parsing(
    local_api: LocalApi, path: str, inner: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = BULK_BYTES_MAX if path.endswith("bulk") else 1 << 20
    body = b'{"jobs":[' + inner * ((size - 100) // len(inner)) + b"[]]}"
    read: list[int] = []
    loads = json.loads

    def reading(data: bytes | str, **options: Any) -> Any:
        read.append(len(data))
        return loads(data, **options)

    monkeypatch.setattr(json, "loads", reading)
    async with local_api.client() as client:
        answer = await client.post(path, content=body, headers=JSON)
        assert read == []
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
        assert "values" in answer.json()["error"]["message"]


async def test_commas_in_strings_are_not_counted_as_values(local_api: LocalApi) -> None:
    jobs = [{"type": "work", "args": {"csv": ",".join("[{,1" * 4_000)}}] * 120
    async with local_api.client() as client:
        answer = await client.post("/api/jobs/bulk", json={"jobs": jobs})
        assert answer.status_code == 201, answer.text
        items = answer.json()["items"]
        assert len(items) == 120
        assert all(item["omitted"] == ["args"] for item in items)


async def test_repeated_large_jobs_are_returned_without_arguments(local_api: LocalApi) -> None:
    jobs = [{"type": "work", "args": {"x": [[]] * 2_000}, "key": f"k{n}"} for n in range(50)]
    async with local_api.client() as client:
        first = await client.post("/api/jobs/bulk", json={"jobs": jobs})
        again = await client.post("/api/jobs/bulk", json={"jobs": jobs})
        assert (first.status_code, again.status_code, again.json()["existing"]) == (201, 200, 50)
        assert [job["id"] for job in first.json()["items"]] == [job["id"] for job in again.json()["items"]]
        assert {tuple(job["omitted"]) for job in again.json()["items"]} == {("args",)}
        assert len(again.content) < PAGE_BYTES_MAX


async def test_followers_receive_the_result_without_large_arguments(
    local_api: LocalApi, masked_values: list[int]
) -> None:
    [job_id] = await local_api.enqueue()
    url = f"ws://127.0.0.1:{local_api.port}/api/ws"
    async with websockets.connect(url, max_size=None) as socket, asyncio.timeout(DEADLINE_S):
        masked_values.clear()
        await socket.send(json.dumps({"subscribe": {"job": job_id}}))
        first = json.loads(await socket.recv())
        assert (first["event"], first["data"]["args"], first["data"]["omitted"]) == ("status", None, ["args"])
        assert sum(masked_values) < LISTED_BYTES_MAX
        await local_api.finish(FINE)
        while (received := json.loads(await socket.recv()))["event"] != "done":
            assert "args" not in received["data"]
        assert (received["data"]["result"]["x"], received["data"]["args"]) == ([[]] * FINE_ITEMS, None)
        assert received["data"]["omitted"] == ["args"]
    async with local_api.client() as client, client.stream("GET", f"/api/jobs/{job_id}/events") as stream:
        text_received = "".join([text async for text in stream.aiter_text()])
        assert '"omitted":["args"]' in text_received
        assert text_received.count("[]") == FINE_ITEMS + 1  # The result and its tags.


async def test_large_result_does_not_delay_other_followers(local_api: LocalApi) -> None:
    [large] = await local_api.enqueue(args="{}")
    [small] = await local_api.enqueue(args="{}")
    async with websockets.connect(f"ws://127.0.0.1:{local_api.port}/api/ws", max_size=None) as socket:

        async def ended() -> str:
            while (received := json.loads(await socket.recv()))["event"] != "done":
                pass
            return str(received["data"]["id"])

        async with asyncio.timeout(DEADLINE_S):
            for job_id in (large, small):
                await socket.send(json.dumps({"subscribe": {"job": job_id}}))
                assert json.loads(await socket.recv())["event"] == "status"
            with local_api.blocked_offload():
                assert [await local_api.finish(FINE), await local_api.finish("1")] == [large, small]
                assert await ended() == small
            assert await ended() == large


async def test_large_arguments_are_omitted_from_schedule_lists(local_api: LocalApi) -> None:
    definition = {"task": "work", "cron": "0 6 * * *"}
    async with local_api.client() as client:
        large: dict[str, Any] = {"x": [[]] * 40_000}
        assert (await client.put("/api/schedules/large", json={**definition, "args": large})).status_code == 201
        assert (await client.put("/api/schedules/small", json={**definition, "args": {"n": 1}})).status_code == 201
        listed = {item["name"]: item for item in (await client.get("/api/schedules")).json()["items"]}
        assert (listed["large"]["args"], listed["large"]["omitted"]) == (None, ["args"])
        assert (listed["small"]["args"], "omitted" in listed["small"]) == ({"n": 1}, False)
        assert (await client.get("/api/schedules/large")).json()["args"] == large


@pytest.mark.parametrize(("holders", "at_once"), [(1, offload.PIECES_OF_ONE_MAX), (10, offload.PIECES_MAX)])
async def test_offload_limits_turns_per_holder_and_in_total(holders: int, at_once: int) -> None:
    shop = offload.ThreadOffload()
    inside, most = 0, 0
    release = asyncio.Event()

    async def one(holder: str) -> None:
        nonlocal inside, most
        async with shop.turn(holder):
            inside += 1
            most = max(most, inside)
            await release.wait()
            inside -= 1

    tasks = [asyncio.ensure_future(one(f"tenant-{number % holders}")) for number in range(50)]
    await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*tasks)
    assert most == at_once
    assert shop._holders == {}
    shop.close()
