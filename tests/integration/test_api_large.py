"""Jobs and bodies that are as large and as finely divided as they may be: answers are bounded, nobody else waits.

Work is bounded by bytes and values, not by seconds. That it is done beside the loop is shown by holding up the thread
that does it, while the same process goes on answering.
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


class House:
    """A real API in this process, with its loop and its thread within reach."""

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
    def held_up(self) -> Iterator[None]:
        """Let the thread for large work stand still meanwhile."""
        assert self.api._services is not None
        go_on = threading.Event()
        self.api._services.offload._thread.submit(go_on.wait)
        try:
            yield
        finally:
            go_on.set()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    clock = Clock(node="test")
    store = await Store.open(f"sqlite:///{tmp_path}/headway.db", clock, synchronous="normal")

    async def opened() -> Store:
        return store

    api = new_api(opened, Settings(), clock)
    listening, stopping = server.bind("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.ensure_future(server.serve(api, listening, stopping))
    await api.start()
    try:
        yield House(store, api, listening.getsockname()[1])
    finally:
        stopping.set()
        await serving
        await store.close()


@pytest.fixture
def masked_values(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the values that are looked at for secrets, for each text that is read; it goes on as ever."""
    counted: list[int] = []
    look = job_details.read_json

    def counting(text: str | None) -> Any:
        counted.append(0 if text is None else len(text))
        return look(text)

    monkeypatch.setattr(jobs, "read_json", counting)
    return counted


async def test_a_page_of_large_jobs_costs_what_a_page_may_cost(house: House, masked_values: list[int]) -> None:
    ids = await house.enqueue(JOBS)
    async with house.client() as client:
        masked_values.clear()
        answer = await client.get("/api/jobs", params={"limit": JOBS})
        assert sum(masked_values) < PAGE_BYTES_MAX  # None of the arguments was read: they would be 50 MB.
        page = answer.json()
        assert [job["id"] for job in page["items"]] == sorted(ids, reverse=True)
        assert all(job["args"] is None and job["omitted"] == ["args"] for job in page["items"])
        assert len(answer.content) < PAGE_BYTES_MAX
        again = await client.get("/api/jobs", params={"limit": JOBS}, headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304

        one = (await client.get(f"/api/jobs/{ids[0]}")).json()
        assert "omitted" not in one
        assert one["args"] == {"x": [[]] * FINE_ITEMS, "token": "***"}
        for path in ("why", "history", "attempts", "log"):  # They have no use for the arguments.
            masked_values.clear()
            assert (await client.get(f"/api/jobs/{ids[0]}/{path}")).status_code == 200
            assert sum(masked_values) < LISTED_BYTES_MAX, path


async def test_pages_are_bounded_by_bytes_and_nothing_is_left_out_of_all_of_them(house: House) -> None:
    text = "é" * 1_900  # Just below what lists leave out, as bytes.
    ids = await house.enqueue(JOBS, args=encode_args({"text": text}), metadata=encode_args({"text": text}))
    async with house.client() as client:
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


async def test_large_results_and_tracebacks_are_left_out_of_lists_and_told_whole_alone(house: House) -> None:
    await house.enqueue(args="{}")
    done = await house.finish(FINE)
    [failed] = await house.enqueue(args=FINE, max_attempts=1)
    [job] = await house.store.work.claim("default", node="node", lease=300 * SECOND, limit=1)
    error = encode_args({"type": "IOError", "message": "full", "traceback": "line\n" * 2_000})
    attempt = Attempt(job_id=job.id, attempt=job.attempt, failures=0, max_attempts=1)
    await house.store.work.settle([settle(attempt, Raised(error, retryable=False), 0.5)])
    async with house.client() as client:
        listed = {job["id"]: job for job in (await client.get("/api/jobs")).json()["items"]}
        assert (listed[done]["result"], listed[done]["omitted"]) == (None, ["result"])
        assert listed[failed]["error"] == {"type": "IOError", "message": "full"}
        assert listed[failed]["omitted"] == ["args", "error.traceback"]
        [letter] = (await client.get("/api/dead")).json()["items"]
        assert (letter["error"], letter["omitted"]) == (listed[failed]["error"], listed[failed]["omitted"])
        assert (await client.get(f"/api/jobs/{done}")).json()["result"]["x"] == [[]] * FINE_ITEMS
        assert (await client.get(f"/api/jobs/{failed}")).json()["error"]["traceback"] == "line\n" * 2_000
        again = await client.post(f"/api/jobs/{failed}/retry", json={"args": {"x": [1], "token": "***"}})
        assert again.status_code == 201  # What was masked came from arguments that no list has.
        stored = await house.store.jobs.get(again.json()["id"])
        assert json.loads(stored.args) == {"x": [1], "token": "s3cr3t"}


async def test_the_loop_answers_while_large_jobs_and_bodies_are_worked_on(house: House) -> None:
    [job_id] = await house.enqueue()
    body = json.dumps({"type": "work", "args": {"x": [[]] * 60_000}})
    async with house.client() as client, house.client() as other:
        with house.held_up():
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
async def test_a_body_of_too_many_values_is_refused_before_it_is_read(
    house: House, path: str, inner: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = BULK_BYTES_MAX if path.endswith("bulk") else 1 << 20
    body = b'{"jobs":[' + inner * ((size - 100) // len(inner)) + b"[]]}"
    read: list[int] = []
    loads = json.loads

    def reading(data: bytes | str, **options: Any) -> Any:
        read.append(len(data))
        return loads(data, **options)

    monkeypatch.setattr(json, "loads", reading)
    async with house.client() as client:
        answer = await client.post(path, content=body, headers=JSON)
        assert read == []
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
        assert "values" in answer.json()["error"]["message"]


async def test_texts_full_of_commas_are_few_values(house: House) -> None:
    jobs = [{"type": "work", "args": {"csv": ",".join("[{,1" * 4_000)}}] * 120
    async with house.client() as client:
        answer = await client.post("/api/jobs/bulk", json={"jobs": jobs})
        assert answer.status_code == 201, answer.text
        items = answer.json()["items"]
        assert len(items) == 120
        assert all(item["omitted"] == ["args"] for item in items)


async def test_who_repeats_many_large_jobs_is_told_of_them_without_what_makes_them_large(house: House) -> None:
    jobs = [{"type": "work", "args": {"x": [[]] * 2_000}, "key": f"k{n}"} for n in range(50)]
    async with house.client() as client:
        first = await client.post("/api/jobs/bulk", json={"jobs": jobs})
        again = await client.post("/api/jobs/bulk", json={"jobs": jobs})
        assert (first.status_code, again.status_code, again.json()["existing"]) == (201, 200, 50)
        assert [job["id"] for job in first.json()["items"]] == [job["id"] for job in again.json()["items"]]
        assert {tuple(job["omitted"]) for job in again.json()["items"]} == {("args",)}
        assert len(again.content) < PAGE_BYTES_MAX


async def test_followers_are_told_the_result_and_not_the_large_arguments(
    house: House, masked_values: list[int]
) -> None:
    [job_id] = await house.enqueue()
    url = f"ws://127.0.0.1:{house.port}/api/ws"
    async with websockets.connect(url, max_size=None) as socket, asyncio.timeout(DEADLINE_S):
        masked_values.clear()
        await socket.send(json.dumps({"subscribe": {"job": job_id}}))
        first = json.loads(await socket.recv())
        assert (first["event"], first["data"]["args"], first["data"]["omitted"]) == ("status", None, ["args"])
        assert sum(masked_values) < LISTED_BYTES_MAX
        await house.finish(FINE)
        while (told := json.loads(await socket.recv()))["event"] != "done":
            assert "args" not in told["data"]
        assert (told["data"]["result"]["x"], told["data"]["args"]) == ([[]] * FINE_ITEMS, None)
        assert told["data"]["omitted"] == ["args"]
    async with house.client() as client, client.stream("GET", f"/api/jobs/{job_id}/events") as stream:
        said = "".join([text async for text in stream.aiter_text()])
        assert '"omitted":["args"]' in said
        assert said.count("[]") == FINE_ITEMS + 1  # The result, and its tags.


async def test_a_large_result_holds_up_nobody_else_who_follows(house: House) -> None:
    [large] = await house.enqueue(args="{}")
    [small] = await house.enqueue(args="{}")
    async with websockets.connect(f"ws://127.0.0.1:{house.port}/api/ws", max_size=None) as socket:

        async def ended() -> str:
            while (told := json.loads(await socket.recv()))["event"] != "done":
                pass
            return str(told["data"]["id"])

        async with asyncio.timeout(DEADLINE_S):
            for job_id in (large, small):
                await socket.send(json.dumps({"subscribe": {"job": job_id}}))
                assert json.loads(await socket.recv())["event"] == "status"
            with house.held_up():
                assert [await house.finish(FINE), await house.finish("1")] == [large, small]
                assert await ended() == small
            assert await ended() == large


async def test_large_arguments_of_schedules_are_left_out_of_their_list(house: House) -> None:
    definition = {"task": "work", "cron": "0 6 * * *"}
    async with house.client() as client:
        large: dict[str, Any] = {"x": [[]] * 40_000}
        assert (await client.put("/api/schedules/large", json={**definition, "args": large})).status_code == 201
        assert (await client.put("/api/schedules/small", json={**definition, "args": {"n": 1}})).status_code == 201
        listed = {item["name"]: item for item in (await client.get("/api/schedules")).json()["items"]}
        assert (listed["large"]["args"], listed["large"]["omitted"]) == (None, ["args"])
        assert (listed["small"]["args"], "omitted" in listed["small"]) == ({"n": 1}, False)
        assert (await client.get("/api/schedules/large")).json()["args"] == large


@pytest.mark.parametrize(("holders", "at_once"), [(1, offload.PIECES_OF_ONE_MAX), (10, offload.PIECES_MAX)])
async def test_one_holder_takes_two_turns_and_all_together_so_many(holders: int, at_once: int) -> None:
    shop = offload.Offload()
    inside, most = 0, 0
    go_on = asyncio.Event()

    async def one(holder: str) -> None:
        nonlocal inside, most
        async with shop.turn(holder):
            inside += 1
            most = max(most, inside)
            await go_on.wait()
            inside -= 1

    tasks = [asyncio.ensure_future(one(f"tenant-{number % holders}")) for number in range(50)]
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*tasks)
    assert most == at_once
    assert shop._holders == {}
    shop.close()
