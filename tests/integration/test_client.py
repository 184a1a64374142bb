"""The clients against a real server, through broken connections, and against servers that misbehave."""

import asyncio
import itertools
import json
import os
import random
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from headway.client import AsyncClient, Client, Event
from headway.core.clock import Clock
from headway.core.errors import (
    AlreadyFinal,
    DefinitionError,
    Denied,
    DuplicateKey,
    HeadwayError,
    InvalidSchedule,
    InvalidTask,
    JobFailed,
    JobNotFound,
    NotFinal,
    NotFound,
    ScheduleChanged,
    ScheduleNotFound,
    StoreError,
    StoreUnavailable,
    TaskNotFound,
)
from headway.core.instants import DAY, HOUR
from headway.core.jobs import Claimed, NewJob
from headway.core.lifecycle import Raised, Succeeded
from headway.store import Store
from tests.integration.test_cli_jobs import REFUSED, JobFactory
from tests.support.api import ApiProcess, api_process
from tests.support.server import free_port
from tests.support.waiting import DEADLINE_S, wait_until

TOKEN = "hw_not-to-be-seen-anywhere"
LONG_S = DEADLINE_S


class Twin:
    """One of the two clients, behind one interface."""

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self.kind = kind
        if kind == "sync":
            self._client: Client | AsyncClient = Client(url, **options)
        else:
            self._loop = asyncio.new_event_loop()
            self._client = AsyncClient(url, **options)

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method."""
        result = attrgetter(name)(self._client)(*args, **kwargs)
        return result if self.kind == "sync" else self._loop.run_until_complete(result)

    def each(self, name: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Iterate over the result of a call."""
        items = attrgetter(name)(self._client)(*args, **kwargs)
        return items if self.kind == "sync" else self._each(items)

    def _each(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._loop.run_until_complete(anext(items))
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run_until_complete(items.aclose())  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close the client."""
        if isinstance(self._client, Client):
            self._client.close()
        else:
            self._loop.run_until_complete(self._client.close())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


@contextmanager
def twin(kind: str, url: str, **options: Any) -> Iterator[Twin]:
    patient = {"timeout": "2m", "retry_for": "5m"}  # Longer than a slow machine needs for anything.
    client = Twin(kind, url, **{**patient, **options})
    try:
        yield client
    finally:
        client.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("client")
    return f"sqlite:///{folder / 'headway.db'}"


@pytest.fixture(scope="module")
def api(store: str) -> Iterator[ApiProcess]:
    with api_process(store) as api:
        yield api


@pytest.fixture
def factory(api: ApiProcess, store: str) -> JobFactory:
    return JobFactory(store)


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, api: ApiProcess) -> Iterator[Twin]:
    with twin(request.param, api.url) as made:
        yield made


def repeat_until_raised(call: Callable[[], object]) -> None:
    """Repeat a call until it raises."""
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        call()
        time.sleep(0.02)


def queue_of(client: Twin, name: str) -> str:
    """Return the name of a queue for this test, in a store that many tests share."""
    return f"{name}-{client.kind}"


# --- every call


def test_jobs(client: Twin, factory: JobFactory) -> None:
    queue = queue_of(client, "jobs")
    job = client("enqueue", "report", {"n": 2**70}, queue=queue, key=queue, tags=["x"], metadata={"who": "me"})
    assert (job["status"], job["args"], job["key"]) == ("PENDING", {"n": 2**70}, queue)
    assert client("enqueue", "report", {"n": 2**70}, queue=queue, key=queue)["id"] == job["id"]
    with pytest.raises(DuplicateKey):
        client("enqueue", "report", {"n": 1}, queue=queue, key=queue)
    with pytest.raises(InvalidTask, match="priority"):
        client("enqueue", "report", priority=10**9)
    claimed = factory.claim(queue)
    factory.report(claimed, progress=10, lines=tuple((None, "log", f"line {number}") for number in range(450)))
    with pytest.raises(NotFinal):
        client("retry", job["id"])
    factory.end(claimed, Raised(REFUSED))
    read = client("job", job["id"])
    assert (read["status"], read["error"]["message"]) == ("FAILED", "refused")
    assert client("why", job["id"])["evidence"]["job"] == job["id"]
    assert [attempt["outcome"] for attempt in client("attempts", job["id"])] == ["failed"]
    assert client("history", job["id"])[0]["event"] == "enqueued"
    assert [line["line"] for line in client.each("log", job["id"])] == [f"line {number}" for number in range(450)]
    assert [line["line"] for line in client.each("log", job["id"], after=3, limit=2)] != []
    assert client("latest", "report", key=queue)["id"] == job["id"]
    assert client("latest", "report", key=queue, status="FAILED")["id"] == job["id"]
    with pytest.raises(AlreadyFinal):
        client("cancel", job["id"])
    newest = [line["line"] for line in client.each("log", job["id"], limit=2, newest_first=True)]
    assert newest == ["line 449", "line 448"]
    again = client("retry", job["id"])
    assert (again["rerun_of"], again["args"]) == (job["id"], {"n": 2**70})
    other = client("retry", job["id"], args={"n": 5})
    assert (other["rerun_of"], other["args"]) == (job["id"], {"n": 5})
    assert {found["id"] for found in client.each("jobs", rerun_of=job["id"])} == {again["id"], other["id"]}
    client("cancel", other["id"])
    assert client("cancel", again["id"], reason="enough")["status"] == "CANCELLED"
    for call in ("job", "cancel", "retry", "why", "attempts", "history", "wait"):
        with pytest.raises(JobNotFound, match="job_nobody"):
            client(call, "job_nobody")
    with pytest.raises(JobNotFound):
        client("latest", "never-seen")
    with pytest.raises(JobNotFound, match="no COMPLETED job"):
        client("latest", "report", key=queue, status="COMPLETED")


def test_windows_merge_calls(client: Twin) -> None:
    queue = queue_of(client, "windows")
    window: dict[str, Any] = {"debounce": timedelta(minutes=1), "max_wait": "5m"}
    first = client("enqueue", "report", {"n": 1}, queue=queue, key=queue, **window)
    again = client("enqueue", "report", {"n": 2}, queue=queue, key=queue, **window)
    assert ("merged_into" in first, again["merged_into"], again["args"]) == (False, first["id"], {"n": 2})
    [many] = client("enqueue_many", [{"task": "report", "args": {"n": 3}, "key": queue, **window}])
    assert many["merged_into"] == first["id"]
    with pytest.raises(InvalidTask, match="needs a key"):
        client("enqueue", "report", debounce="30s")
    with pytest.raises(DuplicateKey):
        client("enqueue", "other", key=queue, **window)


def test_bulk_enqueue_and_pages(client: Twin) -> None:
    queue = queue_of(client, "many")
    made = client("enqueue_many", [{"task": "bulk", "args": {"n": n}, "queue": queue} for n in range(450)])
    assert len({job["id"] for job in made}) == 450
    found = [job["args"]["n"] for job in client.each("jobs", queue=queue)]
    assert found == [*reversed(range(450))]
    assert [job["args"]["n"] for job in client.each("jobs", queue=queue, limit=3)] == [449, 448, 447]
    assert [job["id"] for job in client.each("jobs", queue=queue, before=made[1]["id"])] == [made[0]["id"]]
    assert client("enqueue_many", []) == []
    with pytest.raises(InvalidTask, match=r"jobs\[1\]"):
        client("enqueue_many", [{"task": "bulk"}, {"task": "bulk", "priority": 10**9}])


def test_bulk_actions(client: Twin, factory: JobFactory) -> None:
    queue = queue_of(client, "at-once")
    ids = [client("enqueue", "report", queue=queue)["id"] for _ in range(4)]
    for _ in range(2):
        factory.end(factory.claim(queue), Raised(REFUSED))
    assert client("count", queue=queue) == {"count": 4, "is_exact": True}
    assert client("count", queue=queue, finished_after="2020-01-01")["count"] == 2
    assert client("retry_many", status="FAILED", queue=queue, dry_run=True)["matched"] == 2
    assert client("retry_many", status="FAILED", queue=queue, limit=1, reason="fixed")["more"] is True
    assert client("retry_many", status="FAILED", queue=queue)["done"] == 1
    assert client("retry_many", ids[:1])["refused"][0]["id"] == ids[0]
    assert client("cancel_many", iter(ids[2:3]), reason="enough")["done"] == 1
    assert client("cancel_many", queue=queue)["done"] == 3
    for call in ("retry_many", "cancel_many"):
        with pytest.raises(DefinitionError, match="filter"):
            client(call)
        with pytest.raises(DefinitionError, match="filter"):
            client(call, ids, queue=queue)
        with pytest.raises(DefinitionError, match="stauts"):
            client(call, stauts="FAILED")
    points = client("series", "6h", queue=queue)["points"]
    assert sum(point["failed"] for point in points) == 2


def test_schedules(client: Twin) -> None:
    name = f"my schedule/{client.kind}?"
    rule = {"task": "report", "cron": "0 6 * * *", "tz": "Europe/Berlin"}
    plan = client("schedules.put", name, rule, dry_run=True)
    assert plan["action"] == "create"
    made = client("schedules.put", name, rule)
    assert (made["name"], made["outcome"]) == (name, "created")
    changed = client("schedules.put", name, {**rule, "cron": "0 7 * * *"}, if_match=made["revision"])
    with pytest.raises(ScheduleChanged):
        client("schedules.put", name, rule, if_match=made["revision"])
    assert client("schedules.get", name)["revision"] == changed["revision"]
    assert name in [schedule["name"] for schedule in client.each("schedules.list")]
    assert name in [schedule["name"] for schedule in client.each("schedules.list", q="MY SCHED", recent=3)]
    assert [*client.each("schedules.list", state="ended", q="my sched")] == []
    assert client("schedules.calendar", name, 2027)["days"] == []
    assert len(client("schedules.preview", name, 3)) == 3
    assert client("schedules.preview_rule", {"cron": "30 2 * * *", "tz": "Europe/Berlin", "from": "2027-03-28"}, 1)[0][
        "note"
    ]
    assert client("schedules.pause", name, reason="x", until="2h")["paused"] is True
    assert client("schedules.resume", name)["paused"] is False
    job = client("schedules.trigger", name, {"n": 1}, key=name)
    assert client("schedules.trigger", name, {"n": 1}, key=name)["id"] == job["id"]
    client("cancel", job["id"])
    filled = client("schedules.backfill", name, "49h", "1h")  # Two days, at any hour.
    assert filled["count"] == 2
    assert [*client.each("schedules.occurrences", name)] == []  # No scheduler runs here.
    assert client("audit", schedule=name)["ok"] is True
    assert client("schedules.remove", name) == {
        "schedule": name,
        "tenant": "default",
        "removed": True,
    }
    for call in ("get", "pause", "resume", "trigger", "remove", "preview"):  # Its calendar stays.
        with pytest.raises(ScheduleNotFound):
            client(f"schedules.{call}", name)
    with pytest.raises(InvalidSchedule):
        client("schedules.put", name, {"task": "report", "cron": "61 * * * *"})


def test_operations(client: Twin, factory: JobFactory, store: str) -> None:
    queue = queue_of(client, "operations")
    factory.live(name=queue, tasks=["report", "bulk"])
    # Alive for the duration of the test.
    with sqlite3.connect(store.removeprefix("sqlite:///"), timeout=LONG_S) as connection:
        connection.execute("update headway_nodes set beat_at = beat_at + ? where name = ?", [DAY, queue])
    connection.close()
    ids = [client("enqueue", "report", queue=queue)["id"] for _ in range(3)]
    for _ in ids:
        factory.end(factory.claim(queue), Raised(REFUSED))
    assert [job["id"] for job in client.each("dead.list", queue=queue)] == ids[::-1]
    assert client("dead.retry", ids[0])["rerun_of"] == ids[0]
    assert client("dead.drop", ids[1])["dropped"] is True
    assert client("dead.retry_many", queue=queue, dry_run=True)["count"] == 1
    assert client("dead.drop_many", [ids[2]])["dropped"] == [ids[2]]
    with pytest.raises(JobNotFound):
        client("dead.drop", ids[1])
    assert client("queues.pause", queue, reason="x")["paused"] is True
    assert client("queues.resume", queue)["paused"] is False
    assert queue in [shape["name"] for shape in client.each("queues.list")]
    assert queue in [shape["name"] for shape in client.each("workers.list")]
    assert client("workers.drain", queue)["draining"] is True
    with pytest.raises(NotFound):
        client("workers.drain", "nobody")
    assert queue in [node["name"] for node in client("nodes")]
    assert client("stats")["jobs"]["PENDING"] >= 1
    assert isinstance(client("alerts"), list)
    assert client("me")["role"] == "admin"
    assert "queue.pause" in [action["action"] for action in client.each("trail", target=queue)]
    with pytest.raises(TaskNotFound):
        # The tasks of workers are read once a second.
        repeat_until_raised(lambda: client("enqueue", "nobody knows this"))
    factory.do(lambda store: store.nodes.leave(f"node_{queue}"))


def test_webhooks(client: Twin) -> None:
    made = client("webhooks.create", "https://example.org/hook", events=["job.failed"], note="x")
    assert made["id"] in [hook["id"] for hook in client.each("webhooks.list")]
    assert client("webhooks.change", made["id"], enabled=False)["enabled"] is False
    assert client("webhooks.get", made["id"])["events"] == ["job.failed"]
    assert client("webhooks.rotate", made["id"], keep="1h")["id"] == made["id"]
    assert [*client.each("webhooks.deliveries", webhook=made["id"])] == []
    client("webhooks.remove", made["id"])
    with pytest.raises(NotFound):
        client("webhooks.get", made["id"])


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_tokens(kind: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'guarded.db'}"
    with api_process(store) as api:
        with twin(kind, api.url) as nobody:
            admin = nobody("tokens.create", "admin", role="admin")["token"]
        with twin(kind, api.url) as nobody, pytest.raises(Denied):
            repeat_until_raised(lambda: nobody("me"))
        with twin(kind, api.url, token=admin) as root:
            viewer = root("tokens.create", "eye", role="viewer", tenant="acme", expires_in="1h")
            assert {token["name"] for token in root.each("tokens.list")} == {"admin", "eye"}
            with twin(kind, api.url, token=viewer["token"]) as eye:
                assert eye("me")["tenant"] == "acme"
                with pytest.raises(Denied, match="role"):
                    eye("enqueue", "report")
                assert root("tokens.revoke", viewer["id"])["state"] == "revoked"
                with pytest.raises(Denied):
                    repeat_until_raised(lambda: eye("me"))


# --- waiting, watching


def test_waiting(client: Twin, factory: JobFactory) -> None:
    queue = queue_of(client, "waiting")
    good, bad = client("enqueue", "report", queue=queue)["id"], client("enqueue", "report", queue=queue)["id"]
    with pytest.raises(TimeoutError, match="it is PENDING"):
        client("wait", good, "300ms")
    with factory.in_background(lambda: factory.end(factory.claim(queue), Succeeded('{"n": 7}'))):
        assert client("wait", good, "5m") == {"n": 7}
    with (
        factory.in_background(lambda: factory.end(factory.claim(queue), Raised(REFUSED))),
        pytest.raises(JobFailed, match="refused"),
    ):
        client("wait", bad, "5m")


def test_watching(client: Twin, factory: JobFactory) -> None:
    queue = queue_of(client, "watching")
    job_id = client("enqueue", "report", queue=queue)["id"]

    def work() -> None:
        claimed = factory.claim(queue)
        for number in range(1, 5):
            factory.report(claimed, progress=number * 20, lines=((None, "log", f"line {number}"),))
        factory.end(claimed, Succeeded('"fine"'))

    watched = client.each("watch", job_id)
    first: Event = next(watched)
    assert first.kind == "status"
    with factory.in_background(work):
        events = [first, *watched]
    assert (events[-1].kind, events[-1].data["result"]) == ("done", "fine")
    assert [line["line"] for line in lines_of(events)] == [f"line {number}" for number in range(1, 5)]
    versions = [event.version for event in events if event.version is not None]
    assert versions == sorted(set(versions))
    assert [event.kind for event in client.each("watch", job_id)][-1] == "done"
    with pytest.raises(JobNotFound):
        [*client.each("watch", "job_nobody")]


def lines_of(events: list[Event]) -> list[dict[str, Any]]:
    return [line for event in events if event.kind == "log" for line in event.data["lines"]]


def test_closed_streams_leave_no_connection_open(client: Twin, api: ApiProcess) -> None:
    job_id = client("enqueue", "report", queue=queue_of(client, "leaving"))["id"]
    for _ in range(5):
        events = client.each("watch", job_id)
        assert next(events).kind == "status"
        events.close()  # type: ignore[attr-defined]
    assert client("job", job_id)["status"] == "PENDING"


def test_stream_of_all_jobs(client: Twin, factory: JobFactory) -> None:
    # The feed ends if an API stalls for 15 s, so on a slow machine this may take another attempt.
    numbers = itertools.count(1)
    wait_until(
        lambda: _is_streamed_without_resync(client, factory, f"{queue_of(client, 'stream')}-{next(numbers)}"),
        "a stream without a resync",
    )


def _is_streamed_without_resync(client: Twin, factory: JobFactory, queue: str) -> bool:
    """Follow jobs from start to end; return whether there was no resync."""
    begun = threading.Event()
    made: list[str] = []

    def work() -> None:
        while not begun.wait(0.1):  # Only a connected stream receives these; they do not end.
            factory.do(lambda store: _new(store, queue, delay=HOUR))
        for _ in range(5):
            made.append(factory.do(lambda store: _new(store, queue)))
            factory.end(factory.claim(queue), Succeeded("1"))

    ended: dict[str, str] = {}
    with factory.in_background(work):
        for event in client.each("stream", queue=queue):
            begun.set()
            if event.kind == "resync":
                return False
            assert event.data["queue"] == queue
            if event.is_last:
                ended[event.job_id or ""] = event.data["status"]
            if len(ended) == 5:
                break
    assert ended == dict.fromkeys(made, "COMPLETED")
    return True


async def _new(store: Store, queue: str, **options: Any) -> str:
    job = NewJob(id=Clock().new_id("job"), task="report", queue=queue, **options)
    [row] = await store.queue.enqueue([job])
    return str(row.id)


# --- broken connections


class CuttingProxy:
    """A proxy that cuts connections after a number of bytes of a response, or before any."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.limit: Callable[[], int | None] = lambda: None
        self.connections = 0
        self.requests = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._forward, args=(near,), daemon=True).start()

    def _forward(self, near: socket.socket) -> None:
        limit = self.limit()
        try:
            far = socket.create_connection(("127.0.0.1", self._port), timeout=LONG_S)
        except OSError:
            near.close()
            return
        threading.Thread(target=self._forward_requests, args=(near, far), daemon=True).start()
        sent = 0
        try:
            while data := far.recv(4096):
                if limit is not None and sent + len(data) > limit:
                    near.sendall(data[: limit - sent])
                    near.shutdown(socket.SHUT_RDWR)
                    break
                near.sendall(data)
                sent += len(data)
        except OSError:
            pass
        for end in (near, far):
            end.close()

    def _forward_requests(self, near: socket.socket, far: socket.socket) -> None:
        try:
            while data := near.recv(65_536):
                self.requests += data.count(b"HTTP/1.1\r\n")
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def proxy(api: ApiProcess) -> Iterator[CuttingProxy]:
    made = CuttingProxy(int(api.url.rpartition(":")[2]))
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_lost_response_creates_one_job(kind: str, api: ApiProcess, proxy: CuttingProxy) -> None:
    queue = f"lost-{kind}"
    losses = [0, 40, 250, 700]  # Before the response, twice within its head, within its body.
    proxy.limit = lambda: losses.pop() if losses else None
    with twin(kind, proxy.url) as client, twin(kind, api.url) as direct:
        job = client("enqueue", "report", {"n": 1}, queue=queue)
        assert [found["id"] for found in direct.each("jobs", queue=queue)] == [job["id"]]
        assert proxy.requests == 5
        losses[:] = [0, 100]
        many = client("enqueue_many", [{"task": "report", "queue": f"{queue}-many"} for _ in range(20)])
        assert sorted(found["id"] for found in direct.each("jobs", queue=f"{queue}-many")) == sorted(
            job["id"] for job in many
        )


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_calls_that_are_not_idempotent_are_sent_once(kind: str, api: ApiProcess, proxy: CuttingProxy) -> None:
    with twin(kind, proxy.url) as client:
        job_id = client("enqueue", "report", queue=f"once-{kind}")["id"]
        for _ in range(3):
            client("job", job_id)  # Leaves a connection for reuse.
        proxy.limit = lambda: 0
        before = proxy.requests
        with pytest.raises(StoreUnavailable), twin(kind, proxy.url) as other:
            other("cancel", job_id)
        assert proxy.requests == before + 1
        proxy.limit = lambda: None
        assert client("job", job_id)["status"] == "CANCELLED"  # It was executed, but the response was lost.


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_watch_is_complete_through_broken_connections(
    kind: str, api: ApiProcess, factory: JobFactory, proxy: CuttingProxy
) -> None:
    chance, queue, steps = random.Random(11), f"cuts-{kind}", 40
    with twin(kind, api.url) as direct:
        job_id = direct("enqueue", "report", queue=queue)["id"]

    def work() -> None:
        claimed = factory.claim(queue)
        for number in range(1, steps + 1):
            # A late watcher would receive everything at once, through a single connection.
            wait_until(lambda: len(lines_of(events)) >= number - 5, f"line {number - 5}")  # noqa: B023
            factory.report(claimed, progress=number, lines=((None, "log", f"line {number}"),))
        factory.end(claimed, Succeeded("1"))

    events: list[Event] = []
    proxy.limit = lambda: chance.randrange(300, 6_000)
    with twin(kind, proxy.url) as client, factory.in_background(work):
        for event in client.each("watch", job_id):
            events.append(event)
    assert proxy.connections > 3
    assert [line["line"] for line in lines_of(events)] == [f"line {number}" for number in range(1, steps + 1)]
    versions = [event.version for event in events if event.version is not None]
    assert versions == sorted(set(versions))
    assert events[-1].is_last
    if not any(event.kind == "resync" for event in events):
        assert versions == [*range(versions[0], versions[-1] + 1)]


def test_watch_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    store, port = f"sqlite:///{tmp_path / 'headway.db'}", free_port()
    factory = JobFactory(store)
    with api_process(store, port=port) as api, twin("sync", api.url) as blocking, twin("async", api.url) as awaiting:
        watchers = [_start_watching(client, factory) for client in (blocking, awaiting)]
        api.kill()
        for claimed, _, _ in watchers:
            factory.report(claimed, progress=20, lines=((None, "log", "while nobody served"),))
        with api_process(store, port=port):
            for claimed, watching, events in watchers:
                factory.end(claimed, Succeeded("1"))
                events += watching
    for _, _, events in watchers:
        assert events[-1].is_last
        assert [line["line"] for line in lines_of(events)] == ["while nobody served"]


def _start_watching(client: Twin, factory: JobFactory) -> tuple[Claimed, Iterator[Event], list[Event]]:
    """Wait for the first progress of a job; return the attempt, the watch and its events."""
    job_id = client("enqueue", "report", queue=client.kind)["id"]
    claimed = factory.claim(client.kind)
    watching = client.each("watch", job_id)
    events = [next(watching)]
    factory.report(claimed, progress=10)
    while events[-1].version != 3:
        events.append(next(watching))
    return claimed, watching, events


# --- servers that misbehave


class ScriptedServer:
    """A server that answers each connection with the next of these responses, and closes it."""

    def __init__(self, *answers: bytes | Callable[[socket.socket], None]) -> None:
        self._answers = list(answers)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.received: list[bytes] = []
        self.closed = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._answers:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            with near:
                near.settimeout(LONG_S)
                self.received.append(near.recv(65_536))
                answer = self._answers.pop(0)
                try:
                    if callable(answer):
                        answer(near)
                    else:
                        near.sendall(answer)
                except OSError:
                    pass
            self.closed += 1
        self._listening.close()  # A further connection must be refused, not wait forever.

    def __enter__(self) -> "ScriptedServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()


def http(status: int, body: bytes = b"{}", *headers: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers, "Connection: close"])
    return head.encode() + b"\r\n\r\n" + body


def drip(near: socket.socket) -> None:
    near.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:  # Until the client disconnects.
        near.sendall(b" ")
        time.sleep(0.1)


BROKEN: dict[str, bytes | Callable[[socket.socket], None]] = {
    "nothing": b"",
    "no-http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "half": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
    "page": http(200, b"<html>login</html>", "Content-Type: text/html"),
    "no-json": http(200, b"{"),
    "deep": http(200, b"[" * 200_000),
    "endless-head": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
    "mistake": http(500, b'{"error": {"code": "internal", "message": "x"}, "request_id": "r-1"}'),
    "elsewhere": http(302, b"", "Location: http://127.0.0.1:1/"),
    "drip": drip,
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_broken_server_raises_within_the_timeout(kind: str, name: str) -> None:
    """Most broken responses end by themselves; only an endless one needs the timeout."""
    timeout = "1s" if name == "drip" else "2m"
    with (
        ScriptedServer(BROKEN[name]) as server,
        twin(kind, server.url, token=TOKEN, timeout=timeout, retry_for=0) as client,
    ):
        with pytest.raises(StoreError) as caught:
            client("me")
        wait_until(lambda: server.closed, "the client to disconnect")
        assert TOKEN not in f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"
        assert len(server.received) == 1


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_endless_response_is_bounded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.client.transport.ANSWER_BYTES_MAX", 1 << 20)

    def pour(near: socket.socket) -> None:
        near.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        for _ in range(200):
            near.sendall(b" " * 65_536)

    with (
        ScriptedServer(pour) as server,
        twin(kind, server.url, retry_for=0) as client,
        pytest.raises(StoreUnavailable, match="MiB"),
    ):
        client("me")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_redirect_does_not_leak_the_token(kind: str) -> None:
    with ScriptedServer(http(200)) as thief, ScriptedServer(http(307, b"", f"Location: {thief.url}/api/me")) as server:
        with twin(kind, server.url, token=TOKEN, retry_for=0) as client, pytest.raises(StoreError):
            client("me")
        assert TOKEN.encode() in server.received[0]
        assert thief.received == []


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_retry_after_is_respected(kind: str) -> None:
    busy = http(429, b'{"error": {"code": "busy", "message": "slow down"}}', "Retry-After: 1")
    with ScriptedServer(busy, http(200, b'{"role": "admin"}')) as server, twin(kind, server.url) as client:
        started = time.monotonic()
        assert client("me") == {"role": "admin"}
        assert time.monotonic() - started >= 1
        assert len(server.received) == 2


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_requests_are_encoded_correctly(kind: str) -> None:
    with (
        ScriptedServer(http(200), http(200, b"")) as server,
        twin(kind, f"{server.url}/under/here/", token=TOKEN) as client,
    ):
        client("job", "../a b?c#ü")
        client("cancel", "x", reason="ü")
    head, _, _ = server.received[0].partition(b"\r\n")
    assert head == b"GET /under/here/api/jobs/..%2Fa%20b%3Fc%23%C3%BC HTTP/1.1"
    assert f"Authorization: Bearer {TOKEN}".encode() in server.received[0]
    assert server.received[1].startswith(b"POST /under/here/api/jobs/x/cancel HTTP/1.1")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_idle_connection_closed_by_the_server_is_replaced(kind: str) -> None:
    def polite(near: socket.socket) -> None:
        near.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")  # It announces keep-alive, then disconnects.

    with ScriptedServer(polite, polite, polite) as server, twin(kind, server.url, retry_for=0) as client:
        for number in range(1, 4):
            assert client("me") == {}
            wait_until(lambda: server.closed == number, "the server to disconnect")  # noqa: B023


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_buffered_stream_falls_back_to_polling(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.client.follow.SILENCE_S_MAX", 0.3)
    held = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

    def hold(near: socket.socket) -> None:
        near.sendall(held)
        left.append(near.recv(1))  # Until the client disconnects.

    left: list[bytes] = []
    job = json.dumps({"id": "job_1", "version": 4, "status": "COMPLETED", "result": 1}).encode()
    no_lines = http(200, b'{"items": [], "next_cursor": null}')
    with ScriptedServer(hold, hold, http(200, job), no_lines) as server, twin(kind, server.url) as client:
        events = [*client.each("watch", "job_1")]
    assert [(event.kind, event.version) for event in events] == [("done", 4)]
    assert left == [b"", b""]  # The client has closed the useless streams.


# --- concurrency, and the progress bar


def test_threads_share_a_client(api: ApiProcess) -> None:
    with Client(api.url) as client, ThreadPoolExecutor(8) as pool:
        jobs = [*pool.map(lambda n: client.enqueue("report", {"n": n}, queue="threads"), range(100))]
        read = [*pool.map(lambda job: client.job(job["id"]), jobs)]
        assert [job["args"]["n"] for job in read] == [*range(100)]


async def test_tasks_share_a_client(api: ApiProcess) -> None:
    async with AsyncClient(api.url) as client:
        jobs = await asyncio.gather(*(client.enqueue("report", {"n": n}, queue="tasks") for n in range(100)))
        assert [(await client.job(job["id"]))["args"]["n"] for job in jobs] == [*range(100)]


def test_progress_without_a_terminal_is_plain_text(
    api: ApiProcess, factory: JobFactory, capfd: pytest.CaptureFixture[str]
) -> None:
    with Client(api.url) as client:
        job_id = client.enqueue("report", queue="bar")["id"]
        claimed = factory.claim("bar")

        def work() -> None:
            factory.report(claimed, progress=50, detail='{"step": "half \\u001b[31m way"}')
            factory.end(claimed, Succeeded('"fine"'))

        with factory.in_background(work):
            job = client.progress(job_id)
    written = capfd.readouterr().err
    assert (job["status"], job["result"]) == ("COMPLETED", "fine")
    assert written.splitlines()[-1].startswith(f"{job_id}  report  COMPLETED")
    assert "\x1b" not in written


def test_progress_on_a_terminal_is_a_bar(api: ApiProcess, factory: JobFactory) -> None:
    with Client(api.url) as client:
        job_id = client.enqueue("report", queue="pty")["id"]
        factory.end(factory.claim("pty"), Succeeded('"fine"'))
    code = f"from headway.client import Client; print(Client({api.url!r}).progress({job_id!r})['result'])"
    near, far = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=far, text=True, env=environment
    ) as child:
        os.close(far)
        drawn = b""
        with suppress(OSError):  # The terminal closes with the child process.
            while data := os.read(near, 4096):
                drawn += data
        os.close(near)
        assert child.communicate(timeout=LONG_S)[0].strip() == "fine"
    text = drawn.decode()
    assert job_id in text
    assert "100%" in text
    assert "━" in text


def test_sync_client_loads_neither_store_nor_aiohttp() -> None:
    code = (
        "import sys; from headway.client import Client; Client('http://127.0.0.1:1');"
        "print([m for m in sys.modules if m.split('.')[0] in ('aiohttp', 'starlette', 'uvicorn', 'rich')"
        " or m.startswith('headway.store')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG_S, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_errors_share_a_base_class(api: ApiProcess) -> None:
    with Client(api.url) as client, pytest.raises(HeadwayError):
        [*client.jobs(status="NO_SUCH_STATE")]
