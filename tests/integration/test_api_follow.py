"""Streams over real connections, with a real worker: they resume without gaps after disconnects and restarts."""

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

from headway.core.clock import Clock
from headway.core.instants import HOUR
from headway.core.jobs import Report
from headway.core.settings import Settings
from headway.server import http_server as server
from headway.server.routes import streams as follow
from headway.store import Store
from headway.wiring.api import new_api
from tests.conformance import arrange
from tests.support import evidence
from tests.support.api import ApiProcess, api_process
from tests.support.postgres import PostgresServer
from tests.support.waiting import DEADLINE_S, async_wait_until, wait_until

HANG_S = 240.0
POLL_S = 60  # The longest wait that the API grants.

APP = """
import time
from pathlib import Path
from headway import Context, Headway, Retry

app = Headway(name="followed")

@app.task
def count(ctx: Context, steps: int, pause: float = 0.05) -> dict[str, int]:
    for number in range(steps):
        ctx.log(f"line {number}")
        ctx.progress(100 * number // steps)
        time.sleep(pause)
    return {"steps": steps}

@app.task
def stay(ctx: Context, flag: str) -> int:
    number = 0
    while not Path(flag).exists():
        number += 1
        ctx.progress(number % 100)
        time.sleep(0.05)
    return number

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
    with evidence.log_file("headway worker", shared=True).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "headway", "worker", "--app", "followed:app", "--store", store, "--processes", "4"],
            cwd=folder,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(folder), "HEADWAY_WORKER_LEASE": "10m"},
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('followed')}/headway.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.create_database(template=request.getfixturevalue("migrated_database"))
    yield url
    server.drop(url)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def own_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store without a worker."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/headway.db"
    url: str = request.getfixturevalue("migrated_url")
    return url


@pytest.fixture(scope="module")
def api(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with api_process(store) as running, worker(tmp_path_factory.mktemp("worker"), store):
        with running.client() as client:
            wait_until(lambda: client.get("/api/workers").json()["items"], "the worker")
        yield running


async def events(response: httpx.Response) -> AsyncIterator[tuple[str, str | None, Any]]:
    """Parse server-sent events into type, id and data."""
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
    """The state of a client that follows one job, across reconnects."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.last: str | None = None
        self.lines: dict[int, str] = {}
        self.versions: list[int] = []
        self.gaps: list[str] = []  # The types of events whose version was not the next one.
        self.done: dict[str, Any] | None = None
        self.kinds: list[str] = []

    def receive(self, kind: str, place: str | None, data: Any) -> None:
        """Process an event."""
        self.kinds.append(kind)
        if kind == "log":
            self.lines |= {line["seq"]: line["line"] for line in data["lines"]}
        else:
            version, known = data["version"], self.versions[-1] if self.versions else data["version"] - 1
            if version != known:  # After a disconnect between a version and its log lines, the version is sent again.
                self.versions.append(version)
                if version != known + 1:
                    self.gaps.append(kind)
            if kind == "done":
                # It contains a relative time.
                self.done = {name: value for name, value in data.items() if name != "why"}
        self.last = place or self.last

    async def follow(self, client: httpx.AsyncClient, cut_after: int | None = None) -> None:
        """Follow by server-sent events until the end, or disconnect after some events."""
        headers = {} if self.last is None else {"Last-Event-ID": self.last}
        received_count = 0
        async with client.stream("GET", f"/api/jobs/{self.job_id}/events", headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            async for kind, place, data in events(response):
                self.receive(kind, place, data)
                received_count += 1
                if cut_after is not None and received_count >= cut_after:
                    return

    async def follow_by_websocket(self, client: httpx.AsyncClient, cut_after: int) -> None:
        """Follow by WebSocket until the end, or disconnect after some events."""
        url = str(client.base_url).replace("http", "ws", 1).rstrip("/") + "/api/ws"
        async with websockets.connect(url) as socket:
            await socket.send(json.dumps({"subscribe": {"job": self.job_id, "since": self.last}}))
            for _ in range(cut_after):
                message = json.loads(await socket.recv())
                self.receive(message["event"], message["id"], message["data"])
                if self.done is not None:
                    return
            socket.transport.abort()


async def test_follower_receives_everything_in_order(api: ApiProcess) -> None:
    async with api.async_client() as client:
        follower = Follower(await enqueue(client, "count", steps=20))
        async with asyncio.timeout(HANG_S):
            await follower.follow(client)
        assert follower.done is not None
        assert (follower.done["status"], follower.done["result"]) == ("COMPLETED", {"steps": 20})
        assert list(follower.lines.values()) == [f"line {number}" for number in range(20)]
        assert follower.versions == sorted(set(follower.versions))
        late = Follower(follower.job_id)
        await late.follow(client)
        assert (late.done, late.lines) == (follower.done, follower.lines)


@pytest.mark.parametrize("way", [Follower.follow, Follower.follow_by_websocket])
async def test_streams_resume_without_gaps_after_disconnects(
    api: ApiProcess, way: Callable[[Follower, httpx.AsyncClient, int], Awaitable[None]]
) -> None:
    chance = random.Random(7)

    async def persist(follower: Follower, client: httpx.AsyncClient) -> None:
        while follower.done is None:
            await way(follower, client, chance.randint(1, 4))
            await asyncio.sleep(chance.random() * 0.3)

    async def were_received_in_order() -> bool:
        """Follow jobs to their ends; return whether most followers received consecutive versions."""
        job_ids = [await enqueue(client, "count", steps=25, pause=0.06) for _ in range(3)]
        job_ids.append(await enqueue(client, "flaky"))
        followers = [Follower(job_id) for job_id in job_ids for _ in range(5)]
        await asyncio.gather(*(persist(follower, client) for follower in followers))
        for follower in followers:
            log = (await client.get(f"/api/jobs/{follower.job_id}/log", params={"limit": "200"})).json()["items"]
            assert [follower.lines[seq] for seq in sorted(follower.lines)] == [line["line"] for line in log]
            assert follower.versions == sorted(set(follower.versions))
            # A change in progress when the first follower connects is not in the feed; then the whole job is sent.
            assert set(follower.gaps) <= {"resync", "done"}
            assert follower.done is not None
            assert follower.done["status"] == "COMPLETED"
        return sum(len(follower.gaps) for follower in followers) < len(followers)

    async with api.async_client() as client, asyncio.timeout(HANG_S):
        # The feed ends if an API stalls for 15 s, so on a slow machine this may take another attempt.
        await async_wait_until(were_received_in_order, "followers to receive consecutive versions")


async def test_stream_resumes_at_another_api_process(api: ApiProcess, store: str) -> None:
    with api_process(store) as first:
        async with first.async_client() as client:
            follower = Follower(await enqueue(client, "count", steps=60))
            following = asyncio.ensure_future(follower.follow(client))
            await async_wait_until(lambda: len(follower.kinds) >= 3, "three events")
            first.kill()
            with pytest.raises(httpx.HTTPError):
                await following
    async with api.async_client() as client, asyncio.timeout(HANG_S):
        await follower.follow(client)
    assert follower.done is not None
    assert list(follower.lines.values()) == [f"line {number}" for number in range(60)]


async def test_long_polling(api: ApiProcess) -> None:
    async with api.async_client() as client:
        job_id = await enqueue(client, "count", steps=10)
        job = (await client.get(f"/api/jobs/{job_id}")).json()
        versions = [job["version"]]
        async with asyncio.timeout(HANG_S):
            while job["finished_at"] is None:
                started = time.monotonic()
                job = (await client.get(f"/api/jobs/{job_id}", params=waiting(job))).json()
                versions.append(job["version"])
                if versions[-1] == versions[-2]:  # No change within the timeout.
                    assert time.monotonic() - started >= POLL_S
                    versions.pop()
        assert versions == sorted(set(versions))
        assert job["status"] == "COMPLETED"
        started = time.monotonic()
        same = await client.get(f"/api/jobs/{job_id}", params=waiting(job))
        assert same.json()["version"] == job["version"]
        assert time.monotonic() - started < POLL_S  # The job has ended, so the server does not wait.


def waiting(job: dict[str, Any]) -> dict[str, str]:
    """Return the parameters of a long poll for a newer version."""
    return {"wait": f"{POLL_S}s", "since": str(job["version"])}


class Listener:
    """The state of a client of the stream of all jobs."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.cursor: str | None = None
        self.known: dict[str, tuple[int, str]] = {}
        self.resyncs = 0
        self.is_ready = asyncio.Event()

    async def follow(self, until: set[str] | None = None) -> None:
        """Receive events until all of these jobs have ended."""
        headers = {} if self.cursor is None else {"Last-Event-ID": self.cursor}
        async with self._client.stream("GET", "/api/stream", headers=headers) as response:
            async for kind, place, data in events(response):
                self.cursor = place or self.cursor
                self.resyncs += kind == "resync"
                if "version" in data and data["version"] > self.known.get(data["id"], (0, ""))[0]:
                    self.known[data["id"]] = (data["version"], data["status"])
                if kind == "ready":
                    self.is_ready.set()
                if until and (self.resyncs or all(self._has_ended(job_id) for job_id in until)):
                    return

    def _has_ended(self, job_id: str) -> bool:
        return self.known.get(job_id, (0, ""))[1] == "COMPLETED"


async def test_stream_of_all_jobs_resumes(api: ApiProcess) -> None:
    async def is_resumed() -> bool:
        """Follow, disconnect while jobs end, and resume; return whether nothing was missed."""
        listener = Listener(client)
        first = asyncio.ensure_future(listener.follow())
        await listener.is_ready.wait()
        before = [await enqueue(client, "count", steps=2) for _ in range(3)]
        await async_wait_until(lambda: before[0] in listener.known, "a first event")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        fed_since = str(listener.cursor).partition(".")[0]
        missed = [await enqueue(client, "count", steps=2) for _ in range(3)]
        for job_id in missed:
            while (job := (await client.get(f"/api/jobs/{job_id}")).json())["finished_at"] is None:
                await client.get(f"/api/jobs/{job_id}", params=waiting(job))
        await listener.follow({*before, *missed})
        # The feed ends 15 s after the last follower has left; a client that was away for longer gets a resync.
        assert not listener.resyncs or str(listener.cursor).partition(".")[0] != fed_since
        return not listener.resyncs

    async with api.async_client() as client, asyncio.timeout(HANG_S):
        await async_wait_until(is_resumed, "a follower to resume")
        lost = Listener(client)
        lost.cursor = "123.456"
        await lost.follow({"nobody"})  # Until it gets a resync.
        assert lost.resyncs == 1


async def test_websocket_sends_the_same_events(api: ApiProcess) -> None:
    async with api.async_client() as client:
        job_id = await enqueue(client, "count", steps=10)
        async with websockets.connect(api.url.replace("http", "ws") + "/api/ws") as socket, asyncio.timeout(HANG_S):
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


async def test_progress_arrives_while_the_job_runs(api: ApiProcess, tmp_path: Path) -> None:
    flag = tmp_path / "enough"
    async with api.async_client() as client, asyncio.timeout(HANG_S):
        job_id = await enqueue(client, "stay", flag=str(flag))
        kinds = []
        async with client.stream("GET", f"/api/jobs/{job_id}/events") as response:
            async for kind, _, _ in events(response):
                kinds.append(kind)
                if kinds.count("progress") == 5:
                    flag.touch()  # The job runs until the file exists.
        assert kinds[-1] == "done"


class Woken(Clock):
    """A clock on which a resting loop never times out: only a wake-up ends a rest."""

    async def rest(self, seconds: float, wake: asyncio.Event) -> None:
        """Wait until the event is set."""
        await wake.wait()


async def test_commits_wake_the_feed(own_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress arrives through the notification of a commit: here no loop ever polls."""
    monkeypatch.setattr(follow, "PULSE_S", 3_600.0)
    clock = Woken(node="api")
    mine, other = await Store.open(own_store, clock), await Store.open(own_store, Clock(node="worker"))

    async def opened() -> Store:
        return mine

    listening, stopping = server.bind("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.ensure_future(server.serve(new_api(opened, Settings(), clock), listening, stopping))
    try:
        job_id = await arrange.enqueue(other)
        [job] = await other.work.claim("default", node="worker", lease=HOUR, limit=1)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with (
            asyncio.timeout(HANG_S),
            httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as client,
            client.stream("GET", f"/api/jobs/{job_id}/events") as response,
        ):
            received = events(response)
            assert (await anext(received))[0] == "status"
            for progress in range(1, 6):
                await other.work.report([Report(job_id=job_id, attempt=job.attempt, progress=progress)])
                kind, _, data = await anext(received)
                assert (kind, data["progress"]) == ("progress", progress)
    finally:
        await other.close()
        stopping.set()
        await serving
        await mine.close()


async def test_several_processes_send_the_same_events(api: ApiProcess, store: str) -> None:
    with ExitStack() as stack:
        other = stack.enter_context(api_process(store))
        async with api.async_client() as one, other.async_client() as two:
            job_id = await enqueue(one, "count", steps=15)
            followers = [Follower(job_id), Follower(job_id)]
            async with asyncio.timeout(HANG_S):
                await asyncio.gather(followers[0].follow(one), followers[1].follow(two))
            assert followers[0].lines == followers[1].lines
            assert followers[0].done == followers[1].done


async def test_followers_that_join_during_a_fan_out_miss_nothing(api: ApiProcess) -> None:
    limits = httpx.Limits(max_connections=200)
    async with api.async_client(limits=limits) as client, asyncio.timeout(HANG_S):
        body = {"jobs": [{"type": "count", "args": {"steps": 1}, "delay": "1h"}] * 120}
        jobs = (await client.post("/api/jobs/bulk", json=body)).json()["items"]
        followers = [Follower(job["id"]) for job in jobs]
        following = []
        for follower in followers:
            following.append(asyncio.ensure_future(follower.follow(client)))
            await asyncio.sleep(0.01)
        for job in jobs:
            assert (await client.post(f"/api/jobs/{job['id']}/cancel")).status_code == 200
        await asyncio.gather(*following)
        assert {follower.done and follower.done["status"] for follower in followers} == {"CANCELLED"}
