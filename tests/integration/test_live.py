"""Live values over a real Redis: they arrive before the store has them, and nothing depends on them."""

import asyncio
import contextlib
import io
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import websockets

from headway.adapters.redis import live_progress as live_module
from headway.adapters.redis.live_progress import RedisLive, RedisView
from headway.cli.root import run
from headway.core.clock import Clock
from headway.core.events import EngineEvent, EngineLost, EngineReturned, subscribed
from headway.core.instants import SECOND
from headway.core.jobs import Claimed, NewJob, Report
from headway.core.lifecycle import Cancelled, Released, settle
from headway.core.ports import Latest
from headway.operations.job_reader import JobReader
from headway.server.fanout import Fanout
from headway.server.routes import streams as follow
from headway.store import Store
from tests.integration.test_api_follow import enqueue, events
from tests.support import evidence
from tests.support.api import ApiProcess, api_process
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer
from tests.support.server import ServerMissing
from tests.support.tuned import tuned
from tests.support.waiting import DEADLINE_S, async_wait_until, wait_until

APP = """
import pathlib, time
from headway import Context, Headway

app = Headway(name="spoken")

@app.task
def speak(ctx: Context, until: str) -> str:
    ctx.progress(1, "Begin")
    ctx.log("half of it")
    while not pathlib.Path(f"{until}.stored").exists():
        time.sleep(0.02)
    ctx.metadata["rows"] = 21
    ctx.metadata["password"] = "hunter2"
    ctx.progress(42, "Middle")
    while not pathlib.Path(until).exists():
        ctx.metadata["beats"] = ctx.metadata.get("beats", 0) + 1  # Told again, for those who come later.
        time.sleep(0.1)
    ctx.progress(90, "End")
    return "spoken"

@app.task
def count(ctx: Context, until: str) -> int:
    number = 0
    while not pathlib.Path(until).exists():
        number += 1
        ctx.log(f"line {number}")
        ctx.metadata["number"] = number
        time.sleep(0.02)
    return number
"""
HOUR_S = 3_600
# On a slow machine Redis gets more time, and values are kept longer. Progress without lines is stored only at the end.
PATIENT: Mapping[str, float] = {
    "headway.adapters.redis.live_progress.ANSWER_S_MAX": DEADLINE_S,
    "headway.adapters.redis.live_progress.MOMENT_S": DEADLINE_S,
    "headway.adapters.redis.live_progress.KEPT_S": HOUR_S,
    "headway.worker.reporter.CHECKPOINT_EVERY_S": HOUR_S,
}
# While Redis works, nothing is stored before the end.
LIVE_ONLY: Mapping[str, float] = {
    "headway.worker.reporter.CHECKPOINT_EVERY_S": HOUR_S,
    "headway.worker.reporter.LINES_EVERY_S": HOUR_S,
}
PAUSE_S = 600


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the timeouts for Redis in this process, too."""
    for name, value in PATIENT.items():
        if name.startswith("headway.adapters.redis.live_progress."):
            monkeypatch.setattr(live_module, name.rpartition(".")[2], value)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    try:
        server = RedisServer()
    except ServerMissing as missing:
        if os.environ.get("CI"):
            pytest.fail(f"missing: {missing}")
        pytest.skip(f"missing: {missing}")
    with server:
        yield server


@dataclass
class Parts:
    """A worker and an API on one store, both with Redis."""

    store: str
    folder: Path
    redis: RedisServer
    api: ApiProcess
    worker_log: Path
    env: dict[str, str]

    def times_logged(self, words: str) -> int:
        """Return how often the worker has logged something."""
        return sum(words in line for line in self.worker_log.read_text().splitlines())


@contextmanager
def running(store: str, folder: Path, redis: RedisServer, values: Mapping[str, float]) -> Iterator[Parts]:
    (folder / "spoken.py").write_text(APP)
    # Too long to expire on a slow machine.
    leases = {"HEADWAY_WORKER_LEASE": "10m", "HEADWAY_LEADER_LEASE": "10m"}
    env = {**os.environ, **leases, "PYTHONPATH": tuned(folder, values), "HEADWAY_REDIS": redis.url()}
    command = [sys.executable, "-m", "headway", "worker", "--app", "spoken:app", "--store", store, "--processes", "3"]
    log = evidence.log_file("worker", shared=True)
    with api_process(store, env=env) as api:
        with log.open("wb") as out:
            worker = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=out)
        try:
            with api.client() as client:
                wait_until(lambda: client.get("/api/workers").json()["items"], "the worker")
            yield Parts(store, folder, redis, api, log, env)
        finally:
            worker.terminate()
            worker.wait(DEADLINE_S)  # Its grace period is shorter, even if a failed test left jobs running.


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def parts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, redis: RedisServer
) -> Iterator[Parts]:
    folder = tmp_path_factory.mktemp("spoken")
    if request.param == "sqlite":
        with running(f"sqlite:///{folder}/headway.db", folder, redis, PATIENT) as made:
            yield made
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.create_database(template=request.getfixturevalue("migrated_database"))
    with running(url, folder, redis, PATIENT) as made:
        yield made
    server.drop(url)


# --- followers, each until it knows enough


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = await Store.open(url, Clock(node="test"))
    try:
        yield store
    finally:
        await store.close()


def is_half(data: dict[str, Any]) -> bool:
    return data.get("progress") == 42


async def by_events(client: httpx.AsyncClient, path: str, job_id: str, received: list[Any]) -> None:
    async with client.stream("GET", path) as response:
        async for kind, place, data in events(response):
            received.append((kind, place, data))
            if kind == "done" and data["id"] == job_id:
                return


async def by_socket(parts: Parts, job_id: str, received: list[Any]) -> None:
    async with websockets.connect(parts.api.url.replace("http", "ws") + "/api/ws") as socket:
        await socket.send(json.dumps({"subscribe": {"job": job_id}}))
        async for message in socket:
            items = json.loads(message)
            received.append((items["event"], items["id"], items["data"]))
            if items["event"] == "done":
                return


async def by_long_poll(client: httpx.AsyncClient, job_id: str, received: list[Any]) -> None:
    params: dict[str, str] = {}
    while not received or received[-1][2]["finished_at"] is None:
        job = (await client.get(f"/api/jobs/{job_id}", params=params)).json()
        received.append(("poll", None, job))
        params = {"wait": "20s", "since": str(job["version"]), "live": str(job.get("live", 0))}


async def by_watching(parts: Parts, job_id: str, received: list[Any]) -> None:
    command = ["-m", "headway", "jobs", "watch", job_id, "--json", "--store", parts.store]
    with evidence.log_file("jobs watch").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, env=parts.env, stdout=asyncio.subprocess.PIPE, stderr=log
        )
    assert process.stdout is not None
    async for line in process.stdout:
        received.append(("watch", None, json.loads(line)))
    await process.wait()


async def test_followers_receive_values_before_they_are_stored(parts: Parts, tmp_path: Path) -> None:
    async with parts.api.async_client() as client, opened(parts.store) as store:
        job_id = await enqueue(client, "speak", until=str(tmp_path / "go"))
        received: dict[str, list[Any]] = {name: [] for name in ("events", "socket", "poll", "everything", "watch")}
        following = [
            asyncio.ensure_future(follower)
            for follower in (
                by_events(client, f"/api/jobs/{job_id}/events", job_id, received["events"]),
                by_events(client, "/api/stream?type=speak", job_id, received["everything"]),
                by_socket(parts, job_id, received["socket"]),
                by_long_poll(client, job_id, received["poll"]),
                by_watching(parts, job_id, received["watch"]),
            )
        ]

        async def is_stored() -> bool:
            lines = (await client.get(f"/api/jobs/{job_id}/log")).json()["items"]
            return bool(lines) and (await store.jobs.get(job_id)).progress == 1

        await async_wait_until(is_stored, "the first report to be stored")
        (tmp_path / "go.stored").touch()
        for name, items in received.items():
            half = lambda items=items: any(is_half(data) for _, _, data in items)  # noqa: E731
            await async_wait_until(half, f"{name} to receive the half-way value")
        got = (await client.get(f"/api/jobs/{job_id}")).json()
        listed = (await client.get("/api/jobs", params={"type": "speak"})).json()["items"][0]
        stored = await store.jobs.get(job_id)
        assert (got["progress"], got["metadata"]["rows"]) == (42, 21)
        assert listed["progress"] == 42
        assert stored.progress == 1, "the value is already stored"
        (tmp_path / "go").touch()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*following)
        final = (await client.get(f"/api/jobs/{job_id}")).json()
        stored = await store.jobs.get(job_id)
    for name, items in received.items():
        states = [data for _, _, data in items if "progress" in data and data["id"] == job_id]
        assert states[-1]["status"] == "COMPLETED", name
        assert all(state["progress"] < 100 for state in states[:-1]), name
        assert [state["progress"] for state in states] == sorted(state["progress"] for state in states), name
        assert "hunter2" not in json.dumps(states), name
    assert (final["progress"], final["result"], final.get("live")) == (100, "spoken", None)
    assert (stored.progress, json.loads(stored.metadata or "{}")["rows"]) == (100, 21)
    for name in ("events", "socket"):
        lines = [line["line"] for kind, _, data in received[name] if kind == "log" for line in data["lines"]]
        assert lines == ["half of it"], name


async def test_lines_arrive_once_despite_disconnects(parts: Parts, tmp_path: Path) -> None:
    async with parts.api.async_client() as client:
        job_id = await enqueue(client, "count", until=str(tmp_path / "go"))
        last: dict[int, str] = {}
        lines: dict[int, list[tuple[int, str]]] = {0: [], 1: [], 2: []}
        done: dict[int, dict[str, Any]] = {}

        async def persist(number: int, cut_after: int) -> None:
            while number not in done:
                headers = {"Last-Event-ID": last[number]} if number in last else {}
                received = 0
                async with client.stream("GET", f"/api/jobs/{job_id}/events", headers=headers) as response:
                    async for kind, place, data in events(response):
                        if kind == "log":
                            lines[number] += [(line["attempt"], line["line"]) for line in data["lines"]]
                        if kind == "done":
                            done[number] = data
                        last[number] = place or last.get(number, "")
                        received += 1
                        if received >= cut_after and place is not None:  # As a browser that disconnects just then.
                            break
                await asyncio.sleep(0.4)  # Meanwhile some values are stored.

        following = [asyncio.ensure_future(persist(number, cut)) for number, cut in ((0, 10**6), (1, 5), (2, 12))]
        await async_wait_until(lambda: all(len(items) > 200 for items in lines.values()), "more than 200 lines")
        (tmp_path / "go").touch()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*following)
        logged: list[tuple[int, str]] = []
        cursor: str | None = ""
        while cursor is not None:
            params = {"limit": "200", **({"cursor": cursor} if cursor else {})}
            page = (await client.get(f"/api/jobs/{job_id}/log", params=params)).json()
            logged += [(line["attempt"], line["line"]) for line in page["items"]]
            cursor = page["next_cursor"]
    assert logged == [(1, f"line {number}") for number in range(1, len(logged) + 1)]
    assert lines == {0: logged, 1: logged, 2: logged}


async def test_redis_outage_falls_back_to_the_store_and_recovers(tmp_path: Path, redis: RedisServer) -> None:
    with RedisServer() as own, running(f"sqlite:///{tmp_path}/headway.db", tmp_path, own, LIVE_ONLY) as parts:
        async with parts.api.async_client() as client, opened(parts.store) as store:
            job_id = await enqueue(client, "count", until=str(tmp_path / "go"))
            received: list[Any] = []
            following = asyncio.ensure_future(by_events(client, f"/api/jobs/{job_id}/events", job_id, received))

            def number() -> int:
                return max(
                    (data["metadata"].get("number", 0) for _, _, data in received if "metadata" in data), default=0
                )

            def live_count() -> int:
                return sum(place is None and "live" in data for _, place, data in received)

            async def grows(figure: Callable[[], int], by: int, what: str) -> None:
                before = figure()
                await async_wait_until(lambda: figure() > before + by, what)

            await grows(live_count, 5, "it to be told live")
            own.flush()
            await grows(live_count, 5, "it to be told live after all was forgotten")
            faults: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
                "killed": (own.kill, own.start),
                "paused": (lambda: own.pause(PAUSE_S), own.resume),
                "full": (own.fill, own.empty),
            }
            for fault, (break_it, mend_it) in faults.items():
                # On a slow machine it may have been unavailable in between.
                before = parts.times_logged("engine_unavailable")
                await asyncio.to_thread(break_it)
                lost = lambda before=before: parts.times_logged("engine_unavailable") > before  # noqa: E731
                await async_wait_until(lost, f"{fault}: the worker to notice")
                first = (await store.jobs.get(job_id)).version
                await grows(number, 20, f"{fault}: more to come")

                async def is_stored_again(first: int = first) -> bool:
                    return (await store.jobs.get(job_id)).version > first

                await async_wait_until(is_stored_again, f"{fault}: values to be stored again")
                await asyncio.to_thread(mend_it)
                back = lambda: parts.times_logged("engine_returned") == parts.times_logged("engine_unavailable")  # noqa: E731
                await async_wait_until(back, f"{fault}: the worker to reconnect")
                await grows(live_count, 5, f"{fault}: it to be told live again")
            (tmp_path / "go").touch()
            async with asyncio.timeout(DEADLINE_S):
                await following
            stored = await store.jobs.get(job_id)
        numbers = [data["metadata"].get("number", 0) for _, _, data in received if "metadata" in data]
        assert numbers == sorted(numbers)
        assert json.loads(stored.metadata or "{}")["number"] == int(stored.result or 0) == received[-1][2]["result"]
        lines = [line["line"] for kind, _, data in received if kind == "log" for line in data["lines"]]
        assert lines == [f"line {one}" for one in range(1, received[-1][2]["result"] + 1)]
        assert parts.times_logged("engine_unavailable") >= len(faults)


# --- which values are shown


@dataclass
class RunningJob:
    """A store with a running job, and its live view."""

    store: Store
    clock: Clock
    fanout: Fanout
    view: RedisView
    job_id: str
    claimed: Claimed

    async def seen(self) -> dict[str, Any]:
        """Return the job as a GET would show it."""
        job = await JobReader(self.store, self.view).get(self.job_id)
        return {"progress": job.progress, "metadata": job.metadata, "attempt": job.attempt}


@asynccontextmanager
async def running_job(redis: RedisServer, folder: Path, prefix: str) -> AsyncIterator[RunningJob]:
    clock = Clock(node="test")
    store = await Store.open(f"sqlite:///{folder}/headway.db", clock)
    view = RedisView(redis.url(prefix=prefix), clock=clock, node="test")
    fanout = Fanout(store.feed, clock, view)
    try:
        [row] = await store.queue.enqueue([NewJob(id=clock.new_id("job"), task="work", max_attempts=3)])
        [claimed] = await store.work.claim("default", node="node_1", lease=60 * SECOND, limit=1)
        yield RunningJob(store, clock, fanout, view, row.id, claimed)
    finally:
        await view.close()
        await store.close()


def value_of(job_id: str, attempt: int, serial: int, progress: int, **more: Any) -> Latest:
    detail = json.dumps({"serial": serial})
    return Latest(job_id=job_id, attempt=attempt, serial=serial, at=1, progress=progress, detail=detail, **more)


@pytest.mark.usefixtures("patience")
async def test_only_values_of_the_current_attempt_are_shown(redis: RedisServer, tmp_path: Path) -> None:
    async with running_job(redis, tmp_path, "believed:") as it:
        live = RedisLive(redis.url(prefix="believed:"), clock=it.clock, node="node_1")
        live.begin(lambda _job_id, _attempt: True, lambda: None)
        services = SimpleNamespace(fanout=it.fanout, feed=it.store.feed, auth=None, is_closing=False)
        call: Any = SimpleNamespace(services=services, clock=it.clock, query={})
        follower, first = await follow.follow_job(it.fanout, call, it.job_id, None)
        received = list(first)

        async def send(latest: Latest, shows: int, got: int | None = None) -> None:
            async def is_kept() -> bool:
                return (await it.view.latest([latest.job_id])).get(latest.job_id) == latest

            async def is_shown() -> bool:
                await it.fanout.tick()
                received.extend(follower.take())
                return bool(json.loads(received[-1].data)["progress"] == shows)

            live.tell(latest)
            await async_wait_until(is_kept, "Redis to store the value")
            await asyncio.sleep(0.1)  # Time for values that must not be shown to arrive.
            await async_wait_until(is_shown, f"{shows} % to be shown")
            assert (await it.seen())["progress"] == (shows if got is None else got)

        try:
            await send(value_of(it.job_id, 1, 5, 30), shows=30)
            await send(value_of(it.job_id, 1, 6, 100), shows=99)
            assert received[-1].id is None
            await it.store.work.report([Report(job_id=it.job_id, attempt=1, progress=50, detail='{"serial": 9}')])
            await send(value_of(it.job_id, 1, 8, 20), shows=50)  # The stored value is newer.
            job = await it.store.jobs.get(it.job_id)
            assert (job.attempt, job.progress) == (1, 50), "live values are not stored"
            await it.store.work.settle([settle(it.claimed, Released("again"), 0.5)])
            [again] = await it.store.work.claim("default", node="node_2", lease=60 * SECOND, limit=1)
            # From a stalled worker that does not know that it lost the job.
            await send(value_of(it.job_id, 1, 99, 77), shows=0)
            await send(value_of(it.job_id, 2, 1, 5), shows=5)
            await send(value_of(it.job_id, 3, 99, 88), shows=5, got=0)  # From an attempt that the store does not know.
            await send(value_of(it.job_id, 2, 2, 6), shows=6)
            await it.store.work.settle([settle(again, Cancelled("enough"), 0.5)])
            await send(value_of(it.job_id, 2, 3, 66), shows=0)
            assert received[-1].kind == "done"
        finally:
            it.fanout.leave(follower)
            await live.close()


@pytest.mark.usefixtures("patience")
async def test_concurrent_followers_all_receive_the_value(redis: RedisServer, tmp_path: Path) -> None:
    async with running_job(redis, tmp_path, "at-once:") as it:
        live = RedisLive(redis.url(prefix="at-once:"), clock=it.clock, node="node_1")
        live.begin(lambda _job_id, _attempt: True, lambda: None)
        services = SimpleNamespace(fanout=it.fanout, feed=it.store.feed, auth=None, is_closing=False)
        call: Any = SimpleNamespace(services=services, clock=it.clock, query={})
        following = [follow.follow_job(it.fanout, call, it.job_id, None) for _ in range(3)]
        everything = [follow.follow_everything(it.fanout, lambda _: True, None) for _ in range(3)]
        begun = await asyncio.gather(*following, *everything)
        received: list[list[Any]] = [list(first) for _, first in begun]
        serials = itertools.count(1)

        async def all_received() -> bool:
            live.tell(value_of(it.job_id, 1, next(serials), 30))  # Followers of all jobs are noticed at intervals.
            await it.fanout.tick()
            for (follower, _), items in zip(begun, received, strict=True):
                items += follower.take()
            return all(any(event.kind == "progress" for event in items) for items in received)

        try:
            await async_wait_until(all_received, "all followers to receive the value")
        finally:
            for follower, _ in begun:
                it.fanout.leave(follower)
            await live.close()


COMMANDS: dict[str, tuple[tuple[str, ...], Callable[[Any], dict[str, Any]]]] = {
    "list": (("jobs", "list"), lambda items: items[0]),
    "show": (("jobs", "show", "{id}"), lambda items: items),
    "top": (("top", "--once"), lambda items: items["running"][0]),
}


async def by_commands(
    it: RunningJob, folder: Path, redis_url: str | None, monkeypatch: pytest.MonkeyPatch
) -> dict[str, tuple[int, int | None]]:
    """Return the progress that each command shows, and the serial of its live value."""

    def shown(words: tuple[str, ...], job_in: Callable[[Any], dict[str, Any]]) -> tuple[int, int | None]:
        command = [word.format(id=it.job_id) for word in words]
        command += ["--json", "--store", f"sqlite:///{folder}/headway.db"]
        out, complaints = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(complaints):
            code = run(command)
        assert (code, complaints.getvalue()) == (0, ""), command
        job = job_in(json.loads(out.getvalue()))
        return job["progress"], job.get("live")

    with monkeypatch.context() as patch:
        patch.delenv("HEADWAY_REDIS", raising=False)
        if redis_url:
            patch.setenv("HEADWAY_REDIS", redis_url)
        return {name: await asyncio.to_thread(shown, *how) for name, how in COMMANDS.items()}


async def test_commands_show_live_values_or_fall_back_to_stored_ones(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = dict.fromkeys(COMMANDS, (0, None))
    async with running_job(redis, tmp_path, "commands:") as it:
        url = redis.url(prefix="commands:")
        with monkeypatch.context() as patient:
            for name in ("ANSWER_S_MAX", "MOMENT_S", "KEPT_S"):
                patient.setattr(live_module, name, HOUR_S)
            live = RedisLive(url, clock=it.clock, node="node_1")
            live.begin(lambda _job_id, _attempt: True, lambda: None)
            try:
                for latest, shown in (
                    (value_of(it.job_id, 1, 5, 30), dict.fromkeys(COMMANDS, (30, 5))),
                    (value_of(it.job_id, 2, 6, 60), stored),  # From an attempt that the store does not know.
                ):
                    live.tell(latest)

                    async def is_sent(latest: Latest = latest) -> bool:
                        return (await it.view.latest([it.job_id])).get(it.job_id) == latest

                    await async_wait_until(is_sent, "Redis to store the value")
                    assert await by_commands(it, tmp_path, url, monkeypatch) == shown
            finally:
                await live.close()
        assert await by_commands(it, tmp_path, None, monkeypatch) == stored
        with RedisServer() as silent:
            assert silent.pid is not None
            os.kill(silent.pid, signal.SIGSTOP)
            try:
                assert await by_commands(it, tmp_path, silent.url(), monkeypatch) == stored
            finally:
                os.kill(silent.pid, signal.SIGCONT)
            silent.kill()
            assert await by_commands(it, tmp_path, silent.url(), monkeypatch) == stored


def refusals(redis: RedisServer) -> int:
    """Return how many connections used a wrong password."""
    with redis.client() as client:
        errors: dict[str, Any] = client.info("errorstats")
    return sum(found["count"] for name, found in errors.items() if name == "errorstat_WRONGPASS")


async def test_refused_password_is_reported_once_without_delay(redis: RedisServer) -> None:
    clock = Clock(node="node_1")
    events_seen: list[EngineEvent] = []
    with RedisServer(password="right") as locked, subscribed(events_seen.append):
        changes: list[str | None] = []
        live = RedisLive(locked.url(password="wrong"), clock=clock, node="node_1")
        live.begin(lambda _job_id, _attempt: True, lambda: changes.append(live.trouble))
        for serial in range(1, 20_001):
            live.tell(value_of("job_1", 1, serial, 10, lines=((serial, "log", "x" * 1_000),)))
        assert refusals(locked) == 0, "sending does not wait for Redis"
        await async_wait_until(lambda: len(changes) == 1, "the refusal to be reported")
        await async_wait_until(lambda: refusals(locked) >= 3, "several attempts to connect")
        await live.close()
    [lost] = [event for event in events_seen if isinstance(event, EngineLost | EngineReturned)]
    assert isinstance(lost, EngineLost)
    assert (lost.falls_back, "wrong" in lost.error, "refused" in lost.error) == (True, False, True)


@pytest.mark.usefixtures("patience")
async def test_values_arrive_in_order_and_losses_are_detected(redis: RedisServer) -> None:
    clock = Clock(node="node_1")
    live = RedisLive(redis.url(prefix="order:"), clock=clock, node="node_1")
    view = RedisView(redis.url(prefix="order:"), clock=clock, node="api")
    received: list[Latest] = []
    ours = {"job_1"}
    view.listen(lambda latest, _is_of_everything: received.append(latest))
    live.begin(lambda job_id, _attempt: job_id in ours, lambda: None)
    try:
        await view.follow("job_1")
        began = clock.monotonic()
        for serial in range(1, 401):
            line = (serial, "log", f"line {serial}")
            live.tell(value_of("job_1", 1, serial, serial // 10, after=serial - 1, lines=(line,)))
            live.tell(value_of("job_2", 1, serial, serial // 10))  # No longer one of our jobs.
            await asyncio.sleep(0.002)
            if serial % 50 == 0:
                come = lambda serial=serial: bool(received) and received[-1].serial == serial  # noqa: E731
                await async_wait_until(come, f"the value {serial} to arrive")
        values_max = (clock.monotonic() - began) / live_module.TELL_EVERY_S + 2  # short: a count, not a deadline.
        assert [latest.serial for latest in received] == sorted(latest.serial for latest in received)
        assert 8 <= len(received) <= values_max, "the rate is bounded"
        items = [latest for latest in received if latest.lines]
        assert all(now.after <= before.lines[-1][0] for before, now in itertools.pairwise(items)), "lines are missing"
        assert await view.latest(["job_2"]) == {}
        kept = (await view.latest(["job_1"]))["job_1"]
        assert (kept.serial, kept.lines[-1][2], kept.after) == (400, "line 400", kept.lines[0][0] - 1)
        with redis.client() as client:
            assert 0 < client.ttl("{order:}live:job_1") <= live_module.KEPT_S
    finally:
        await live.close()
        await view.close()


async def test_close_ends_tasks_that_missed_their_cancellation(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Redis client can lose a cancellation while it connects; closing used to hang then."""

    async def ignore_cancellation(_: object, *__: object) -> float:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3_600)
        return 3_600.0

    monkeypatch.setattr(RedisLive, "_round", ignore_cancellation)
    monkeypatch.setattr(RedisView, "_listen", ignore_cancellation)
    clock = Clock(node="node_1")
    live = RedisLive(redis.url(prefix="deaf:"), clock=clock, node="node_1")
    view = RedisView(redis.url(prefix="deaf:"), clock=clock, node="api")
    live.begin(lambda _job_id, _attempt: True, lambda: None)
    view.listen(lambda _latest, _is_of_everything: None)
    await asyncio.sleep(0.1)  # Lets both start; if they do not, this shows less.
    async with asyncio.timeout(DEADLINE_S):
        await live.close()
        await view.close()
