"""S3 with live progress: what a thawed worker reports after its replacement is not shown."""

import itertools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.chaos.worker_arena import Worker, WorkerArena, wait_for
from tests.support.api import ApiProcess, api_process
from tests.support.processes import is_alive
from tests.support.redis import RedisServer
from tests.support.server import ServerMissing
from tests.support.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.slow

FLAGS = ("--processes", "1", "--poll", "0.5s")
POLL_S = 0.05


@dataclass
class Stage:
    """A worker that can be replaced: its lease is short. It serves the queue `a`, the other one `b`."""

    arena: WorkerArena
    api: ApiProcess
    first: Worker
    second: Worker
    numbers: Iterator[int] = field(default_factory=itertools.count)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    try:
        server = RedisServer()
    except ServerMissing as missing:
        pytest.fail(f"missing: {missing}") if os.environ.get("CI") else pytest.skip(f"missing: {missing}")
    folder = tmp_path_factory.mktemp("live")
    with server:
        arena = WorkerArena.on(f"sqlite:///{folder}/headway.db", folder, shared=True)
        try:
            url = server.url()
            first = arena.start("--queues", "a", "--worker-lease", "3s", *FLAGS, is_ready=False, HEADWAY_REDIS=url)
            second = arena.start("--queues", "b", "--worker-lease", "10m", *FLAGS, is_ready=False, HEADWAY_REDIS=url)
            with api_process(arena.store, env={"HEADWAY_REDIS": url}) as api:
                yield Stage(arena, api, first, second)
        finally:
            arena.stop()


@dataclass
class Audience:
    """Followers and pollers of a job, and what each was shown."""

    api: ApiProcess
    job_id: str
    lines: list[tuple[int, str]] = field(default_factory=list)
    followed: list[dict[str, Any]] = field(default_factory=list)
    polled: list[dict[str, Any]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def follow(self) -> None:
        """Receive events until the job is done."""
        address = f"/api/jobs/{self.job_id}/events"
        with self.api.client() as client, client.stream("GET", address, timeout=None) as response:
            kind = ""
            for line in response.iter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    data = json.loads(value)
                    if kind == "log":
                        self.lines += [(one["attempt"], one["line"]) for one in data["lines"]]
                    elif "progress" in data:
                        self.followed.append(data)
                    if kind == "done":
                        return

    def poll(self) -> None:
        """Poll until the test ends."""
        with self.api.client() as client:
            while not self.over.wait(POLL_S):
                with suppress(httpx.HTTPError):
                    self.polled.append(client.get(f"/api/jobs/{self.job_id}").raise_for_status().json())

    def sees(self, attempt: int) -> bool:
        """Return whether pollers last saw this attempt."""
        return bool(self.polled) and self.polled[-1]["attempts"] == attempt

    def of(self, attempt: int) -> list[str]:
        """Return the lines of an attempt that were sent."""
        return [line for number, line in self.lines if number == attempt]


@contextmanager
def audience(api: ApiProcess, job_id: str) -> Iterator[Audience]:
    people = Audience(api, job_id)
    threads = [threading.Thread(target=look, daemon=True) for look in (people.follow, people.poll)]
    for thread in threads:
        thread.start()
    try:
        yield people
        threads[0].join(DEADLINE_S)
        assert not threads[0].is_alive(), "a follower did not receive the end"
    finally:
        people.over.set()
        threads[1].join(DEADLINE_S)


@pytest.mark.parametrize("whole", [True, False], ids=["all of it stood still", "its supervisor stood still"])
def test_reports_of_a_replaced_worker_are_not_shown(whole: bool, stage: Stage) -> None:
    wait_until(lambda: _play(stage, whole), "a worker to be frozen before its lease expires")


def _play(stage: Stage, whole: bool) -> bool:
    """Run once; return False if the machine was so slow that the worker lost its lease before it was frozen."""
    arena, first, second = stage.arena, stage.first, stage.second
    enough = arena.folder / f"enough-{next(stage.numbers)}"
    job_id = arena.enqueue("talking", {"until": str(enough)}, queue="a")
    pid = arena.wait_trace("begin", job_id)[0][2]
    with audience(stage.api, job_id) as people:
        _wait(arena, lambda: len(people.of(1)) > 20 or arena.job(job_id, "attempt") > 1, "the first attempt")
        frozen = _freeze(arena, first, whole)
        if arena.job(job_id, "status", "attempt") != ("RUNNING", 1) or not is_alive(pid):
            _resume(first, frozen)
            enough.touch()
            arena.wait_final([job_id])
            return False
        before = 0
        try:
            arena.write(f"update headway_jobs set queue = 'b' where id = '{job_id}'")
            arena.write("update headway_leases set until = 1")  # The frozen worker may hold the housekeeping role.
            _wait(arena, lambda: len(people.of(2)) > 20 and people.sees(2), "the second attempt")
            told, kept = people.of(1), _kept(arena, job_id)
            before = len(_said(arena, job_id, 1)) if whole else len(told)
        finally:
            _resume(first, frozen, lambda: len(_said(arena, job_id, 1)) > before)
        _wait(arena, lambda: not is_alive(pid), "the first attempt to be stopped")
        _let_time_pass(arena, people)
        assert second.is_running()
        enough.touch()
        arena.wait_status(job_id, "COMPLETED")
    assert people.of(1) == told, "lines of a stale attempt"
    assert _kept(arena, job_id) == kept, "lines of a stale attempt are in the store"
    assert people.of(2) == [f"2: {number}" for number in range(1, len(people.of(2)) + 1)]
    for states in (people.followed, people.polled):
        since = next(place for place, job in enumerate(states) if job["metadata"].get("attempt") == 2)
        shown = {(job["attempts"], job["metadata"]["attempt"], job["progress"]) for job in states[since:]}
        assert shown <= {(2, 2, 70), (2, 2, 100)}, "reports of a stale attempt"
    assert json.loads(arena.job(job_id, "result")) == 2
    assert arena.outcomes(job_id) == ["expired", "completed"]
    return True


def _wait(arena: WorkerArena, is_so: Callable[[], bool], what: str) -> None:
    wait_for(is_so, what, describe=arena.describe)


def _freeze(arena: WorkerArena, worker: Worker, whole: bool) -> list[int]:
    """Freeze the supervisor, or all of a worker; return the frozen processes."""
    arena.freeze(worker)
    children = sorted(worker.family()) if whole else []
    for number in children:
        os.kill(number, signal.SIGSTOP)
    return [*children, worker.pid]


def _resume(worker: Worker, frozen: list[int], goes_on: Callable[[], bool] = lambda: True) -> None:
    """Resume the task first, so that it reports something, and then the process that stops it."""
    for number in frozen:
        if number != worker.pid:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGCONT)
    try:
        wait_until(goes_on, "the first attempt to continue")
    finally:
        worker.signal(signal.SIGCONT)


def _let_time_pass(arena: WorkerArena, people: Audience) -> None:
    """Wait until the thawed worker has run and reported another job, and the audience has seen more."""
    arena.wait_final([arena.enqueue("murmur", {"lines": 5}, queue="a")])
    heard, seen = len(people.of(2)), len(people.polled)
    _wait(arena, lambda: len(people.of(2)) > heard + 20 and len(people.polled) > seen + 5, "more to be told")


def _said(arena: WorkerArena, job_id: str, attempt: int) -> list[list[str]]:
    return [words for words in arena.trace("said", job_id) if words[1] == str(attempt)]


def _kept(arena: WorkerArena, job_id: str) -> list[tuple[Any, ...]]:
    """Return the lines of the first attempt that are in the store."""
    return arena.sql(f"select line from headway_log where job_id = '{job_id}' and attempt = 1 order by at")
