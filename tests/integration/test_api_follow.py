"""Following jobs over real connections, with a real worker: nothing is missed, whatever is cut and whoever restarts."""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from headway.instants import SECOND, parse_instant
from tests.support.api import ApiProcess, api_process
from tests.support.postgres import PostgresServer

APP = """
import time
from headway import Context, Headway, Retry

app = Headway(name="followed")

@app.task
def count(ctx: Context, steps: int, pause: float = 0.05) -> dict[str, int]:
    for number in range(steps):
        ctx.log(f"line {number}")
        ctx.progress(100 * number // steps)
        time.sleep(pause)
    return {"steps": steps}

@app.task(retry=Retry(max_attempts=3, backoff="100ms"))
def flaky(ctx: Context) -> int:
    ctx.log(f"attempt {ctx.attempt}")
    if ctx.attempt < 3:
        raise ValueError("not yet")
    return 42
"""


@contextmanager
def worker(folder: Path, store: str) -> Iterator[None]:
    (folder / "followed.py").write_text(APP)
    process = subprocess.Popen(
        [sys.executable, "-m", "headway", "worker", "--app", "followed:app", "--store", store, "--processes", "4"],
        cwd=folder,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('followed')}/headway.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.create_database()
    command = [sys.executable, "-m", "headway", "migrate", "--store", url]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    yield url
    server.drop(url)


@pytest.fixture(scope="module")
def api(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with api_process(store) as running, worker(tmp_path_factory.mktemp("worker"), store):
        with running.client() as client:
            until = time.monotonic() + 30
            while not client.get("/api/workers").json()["items"]:
                assert time.monotonic() < until
                time.sleep(0.1)
        yield running


async def events(response: httpx.Response) -> AsyncIterator[tuple[str, str | None, Any]]:
    """Read server-sent events: kind, id, data."""
    kind, place, data = "message", None, ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("id: "):
            place = line[4:]
        elif line.startswith("data: "):
            data += line[6:]
        elif not line and data:
            yield kind, place, json.loads(data)
            kind, place, data = "message", None, ""


async def enqueue(client: httpx.AsyncClient, task: str, **args: object) -> str:
    answer = await client.post("/api/jobs", json={"type": task, "args": args})
    assert answer.status_code == 201, answer.text
    job_id: str = answer.json()["id"]
    return job_id


class Follower:
    """What somebody who follows one job knows, however often its connection is cut."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.last: str | None = None
        self.lines: dict[int, str] = {}
        self.versions: list[int] = []
        self.gaps: list[str] = []  # How it was told a version that was not the next one.
        self.done: dict[str, Any] | None = None
        self.kinds: list[str] = []

    def hear(self, kind: str, place: str | None, data: Any) -> None:
        """Take an event."""
        self.kinds.append(kind)
        if kind == "log":
            self.lines |= {line["seq"]: line["line"] for line in data["lines"]}
        else:
            version, known = data["version"], self.versions[-1] if self.versions else data["version"] - 1
            if version != known:  # Cut off between a version and its lines, one is told the version again.
                self.versions.append(version)
                if version != known + 1:
                    self.gaps.append(kind)
            if kind == "done":
                self.done = {name: value for name, value in data.items() if name != "why"}  # It says how long ago.
        self.last = place or self.last

    async def follow(self, client: httpx.AsyncClient, cut_after: int | None = None) -> None:
        """Be told by server-sent events, until the end or until the connection is cut."""
        headers = {} if self.last is None else {"Last-Event-ID": self.last}
        heard = 0
        async with client.stream("GET", f"/api/jobs/{self.job_id}/events", headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            async for kind, place, data in events(response):
                self.hear(kind, place, data)
                heard += 1
                if cut_after is not None and heard >= cut_after:
                    return

    async def converse(self, client: httpx.AsyncClient, cut_after: int) -> None:
        """Be told by a WebSocket, until the end or until it is cut."""
        url = str(client.base_url).replace("http", "ws", 1).rstrip("/") + "/api/ws"
        async with websockets.connect(url) as socket:
            await socket.send(json.dumps({"subscribe": {"job": self.job_id, "since": self.last}}))
            for _ in range(cut_after):
                message = json.loads(await socket.recv())
                self.hear(message["event"], message["id"], message["data"])
                if self.done is not None:
                    return
            socket.transport.abort()


async def test_a_follower_sees_everything_in_order(api: ApiProcess) -> None:
    async with api.async_client() as client:
        follower = Follower(await enqueue(client, "count", steps=20))
        async with asyncio.timeout(30):
            await follower.follow(client)
        assert follower.done is not None
        assert (follower.done["status"], follower.done["result"]) == ("COMPLETED", {"steps": 20})
        assert list(follower.lines.values()) == [f"line {number}" for number in range(20)]
        assert follower.versions == sorted(set(follower.versions))
        late = Follower(follower.job_id)
        await late.follow(client)
        assert (late.done, late.lines) == (follower.done, follower.lines)


@pytest.mark.parametrize("way", [Follower.follow, Follower.converse])
async def test_whoever_is_cut_off_again_and_again_misses_nothing(
    api: ApiProcess, way: Callable[[Follower, httpx.AsyncClient, int], Awaitable[None]]
) -> None:
    chance = random.Random(7)
    async with api.async_client() as client:
        job_ids = [await enqueue(client, "count", steps=25, pause=0.06) for _ in range(3)]
        job_ids.append(await enqueue(client, "flaky"))
        followers = [Follower(job_id) for job_id in job_ids for _ in range(5)]

        async def persist(follower: Follower) -> None:
            while follower.done is None:
                await way(follower, client, chance.randint(1, 4))
                await asyncio.sleep(chance.random() * 0.3)

        async with asyncio.timeout(60):
            await asyncio.gather(*map(persist, followers))
        for follower in followers:
            log = (await client.get(f"/api/jobs/{follower.job_id}/log", params={"limit": "200"})).json()["items"]
            assert [follower.lines[seq] for seq in sorted(follower.lines)] == [line["line"] for line in log]
            assert follower.versions == sorted(set(follower.versions))
            # A version that was under way when the first follower came is not fed; then the whole job is told.
            assert set(follower.gaps) <= {"resync", "done"}
            assert follower.done is not None
            assert follower.done["status"] == "COMPLETED"
        assert sum(len(follower.gaps) for follower in followers) < len(followers)


async def test_the_api_may_be_killed_and_another_one_goes_on(api: ApiProcess, store: str) -> None:
    with api_process(store) as first:
        async with first.async_client() as client:
            follower = Follower(await enqueue(client, "count", steps=60))
            following = asyncio.ensure_future(follower.follow(client))
            async with asyncio.timeout(30):
                while len(follower.kinds) < 3:
                    await asyncio.sleep(0.05)
            first.kill()
            with pytest.raises(httpx.HTTPError):
                await following
    async with api.async_client() as client, asyncio.timeout(60):
        await follower.follow(client)
    assert follower.done is not None
    assert list(follower.lines.values()) == [f"line {number}" for number in range(60)]


async def test_polling_for_a_change(api: ApiProcess) -> None:
    async with api.async_client() as client:
        job_id = await enqueue(client, "count", steps=10)
        job = (await client.get(f"/api/jobs/{job_id}")).json()
        versions = [job["version"]]
        async with asyncio.timeout(30):
            while job["finished_at"] is None:
                params = {"wait": "20s", "since": str(job["version"])}
                job = (await client.get(f"/api/jobs/{job_id}", params=params)).json()
                versions.append(job["version"])
        assert versions == sorted(set(versions))
        assert job["status"] == "COMPLETED"
        started = time.monotonic()
        same = await client.get(f"/api/jobs/{job_id}", params={"wait": "20s", "since": str(job["version"])})
        assert same.json()["version"] == job["version"]
        assert time.monotonic() - started < 10  # It has ended: there is nothing to wait for.


async def test_everything_is_followed_and_resumed(api: ApiProcess) -> None:
    async with api.async_client() as client:
        known: dict[str, tuple[int, str]] = {}
        cursor: str | None = None
        resyncs = 0

        async def follow(until: set[str]) -> None:
            nonlocal cursor, resyncs
            headers = {} if cursor is None else {"Last-Event-ID": cursor}
            async with client.stream("GET", "/api/stream", headers=headers) as response:
                async for kind, place, data in events(response):
                    cursor = place or cursor
                    resyncs += kind == "resync"
                    if "version" in data and data["version"] > known.get(data["id"], (0, ""))[0]:
                        known[data["id"]] = (data["version"], data["status"])
                    if kind == "ready":
                        ready.set()
                    if until and all(known.get(job_id, (0, ""))[1] == "COMPLETED" for job_id in until):
                        return

        ready = asyncio.Event()
        first = asyncio.ensure_future(follow({"nobody"}))
        async with asyncio.timeout(20):
            await ready.wait()
        before = [await enqueue(client, "count", steps=2) for _ in range(3)]
        await asyncio.sleep(1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        missed = [await enqueue(client, "count", steps=2) for _ in range(3)]
        await asyncio.sleep(1.5)
        async with asyncio.timeout(30):
            await follow({*before, *missed})
        assert resyncs == 0
        cursor = "123.456"
        async with asyncio.timeout(30):
            again = asyncio.ensure_future(follow({"nobody"}))
            while not resyncs:
                await asyncio.sleep(0.05)
            again.cancel()


async def test_a_websocket_tells_the_same(api: ApiProcess) -> None:
    async with api.async_client() as client:
        job_id = await enqueue(client, "count", steps=10)
        async with websockets.connect(api.url.replace("http", "ws") + "/api/ws") as socket, asyncio.timeout(30):
            await socket.send(json.dumps({"subscribe": {"job": job_id}}))
            await socket.send(json.dumps({"subscribe": {"job": "job_nobody"}}))
            await socket.send("nonsense")
            errors: list[str] = []
            lines: dict[int, str] = {}
            while True:
                message = json.loads(await socket.recv())
                if message["event"] == "error":
                    errors.append(message["data"]["code"])
                elif message["event"] == "log":
                    lines |= {line["seq"]: line["line"] for line in message["data"]["lines"]}
                elif message["event"] == "done":
                    break
            assert sorted(errors) == ["invalid", "not_found"]
            assert list(lines.values()) == [f"line {number}" for number in range(10)]


async def test_progress_arrives_soon_after_it_was_written(api: ApiProcess) -> None:
    async with api.async_client() as client:
        job_id = await enqueue(client, "count", steps=40, pause=0.1)
        late: list[float] = []
        async with asyncio.timeout(60), client.stream("GET", f"/api/jobs/{job_id}/events") as response:
            async for kind, _, data in events(response):
                if kind == "progress":
                    late.append(time.time() - parse_instant(data["updated_at"]) / SECOND)
                if kind == "done":
                    break
        assert len(late) >= 5
        assert sorted(late)[len(late) // 2] < 0.3, late


async def test_several_processes_tell_the_same(api: ApiProcess, store: str) -> None:
    with ExitStack() as stack:
        other = stack.enter_context(api_process(store))
        async with api.async_client() as one, other.async_client() as two:
            job_id = await enqueue(one, "count", steps=15)
            followers = [Follower(job_id), Follower(job_id)]
            async with asyncio.timeout(30):
                await asyncio.gather(followers[0].follow(one), followers[1].follow(two))
            assert followers[0].lines == followers[1].lines
            assert followers[0].done == followers[1].done


async def test_whoever_comes_while_others_are_told_is_told_too(api: ApiProcess) -> None:
    limits = httpx.Limits(max_connections=200)
    async with api.async_client(limits=limits) as client, asyncio.timeout(60):
        body = {"jobs": [{"type": "count", "args": {"steps": 1}, "delay": "1h"}] * 120}
        jobs = (await client.post("/api/jobs/bulk", json=body)).json()["items"]
        followers = [Follower(job["id"]) for job in jobs]
        following = []
        for follower in followers:
            following.append(asyncio.ensure_future(follower.follow(client)))
            await asyncio.sleep(0.025)
        for job in jobs:
            assert (await client.post(f"/api/jobs/{job['id']}/cancel")).status_code == 200
        await asyncio.gather(*following)
        assert {follower.done and follower.done["status"] for follower in followers} == {"CANCELLED"}
