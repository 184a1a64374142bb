"""S3 where jobs are told live: a worker that stood still comes back, and nobody hears what it says then."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.chaos.worker_arena import PATIENCE_S, Worker, WorkerArena, is_alive, wait_for
from tests.support.api import ApiProcess, api_process
from tests.support.redis import RedisServer
from tests.support.server import ServerMissing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

FLAGS = ("--worker-lease", "3s", "--processes", "1", "--poll", "0.5s")
POLL_S = 0.05
HEAD_START_S = 0.3  # For the task, so that it has said something before its worker can stop it.
AFTERWARDS_S = 1.0  # Longer than anything told live takes.


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    try:
        server = RedisServer()
    except ServerMissing as missing:
        pytest.fail(f"missing: {missing}") if os.environ.get("CI") else pytest.skip(f"missing: {missing}")
    with server:
        yield server


@dataclass
class Audience:
    """Those who follow a job and those who look at it again and again, and what each was shown."""

    api: ApiProcess
    job_id: str
    lines: list[tuple[int, str]] = field(default_factory=list)
    followed: list[dict[str, Any]] = field(default_factory=list)
    polled: list[dict[str, Any]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def follow(self) -> None:
        """Hear events until the job is done."""
        with self.api.client() as client, client.stream("GET", f"/api/jobs/{self.job_id}/events") as response:
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
        """Look until there is nobody to see any more."""
        with self.api.client() as client, suppress(httpx.HTTPError):
            while not self.over.wait(POLL_S):
                self.polled.append(client.get(f"/api/jobs/{self.job_id}").json())

    def of(self, attempt: int) -> list[str]:
        """Return the lines of an attempt that were told."""
        return [line for number, line in self.lines if number == attempt]


@contextmanager
def audience(api: ApiProcess, job_id: str) -> Iterator[Audience]:
    people = Audience(api, job_id)
    threads = [threading.Thread(target=look, daemon=True) for look in (people.follow, people.poll)]
    for thread in threads:
        thread.start()
    try:
        yield people
        threads[0].join(PATIENCE_S)
        assert not threads[0].is_alive(), "who follows was not told of the end"
    finally:
        people.over.set()
        threads[1].join(PATIENCE_S)


@pytest.mark.parametrize("whole", [True, False], ids=["all of it stood still", "its supervisor stood still"])
def test_what_a_worker_says_after_it_was_replaced_is_shown_to_nobody(
    whole: bool, redis: RedisServer, tmp_path: Path
) -> None:
    arena = WorkerArena.on(f"sqlite:///{tmp_path}/headway.db", tmp_path)
    try:
        with api_process(arena.store, env={"HEADWAY_REDIS": redis.url()}) as api:
            _play(arena, api, redis.url(), whole)
    finally:
        arena.stop()


def _play(arena: WorkerArena, api: ApiProcess, url: str, whole: bool) -> None:
    first = arena.start(*FLAGS, HEADWAY_REDIS=url)
    enough = arena.folder / "enough"
    job_id = arena.enqueue("talking", {"until": str(enough)})
    [[_, _, pid]] = arena.wait_trace("begin", job_id)
    with audience(api, job_id) as people:
        _wait(arena, lambda: len(people.of(1)) > 20, "the first attempt to be heard")
        second = arena.start(*FLAGS, HEADWAY_REDIS=url)
        frozen = [first.pid, *(first.family() if whole else ())]
        for number in frozen:
            os.kill(number, signal.SIGSTOP)
        try:
            _wait(arena, lambda: len(people.of(2)) > 20 and people.polled[-1]["attempts"] == 2, "the second attempt")
            told, kept = people.of(1), _kept(arena, job_id)
            before = len(_said(arena, job_id, 1)) if whole else len(told)
        finally:
            _resume(first, frozen)
        _wait(arena, lambda: len(_said(arena, job_id, 1)) > before, "the first attempt to go on")
        _wait(arena, lambda: not is_alive(pid), "the first attempt to be stopped")
        time.sleep(AFTERWARDS_S)
        assert second.process.poll() is None
        enough.touch()
        arena.wait_status(job_id, "COMPLETED")
    assert people.of(1) == told, "lines of an attempt that was over"
    assert _kept(arena, job_id) == kept, "lines of an attempt that was over are in the store"
    assert people.of(2) == [f"2: {number}" for number in range(1, len(people.of(2)) + 1)]
    for states in (people.followed, people.polled):
        since = next(place for place, job in enumerate(states) if job["metadata"].get("attempt") == 2)
        shown = {(job["attempts"], job["metadata"]["attempt"], job["progress"]) for job in states[since:]}
        assert shown <= {(2, 2, 70), (2, 2, 100)}, "words of an attempt that was over"
    assert json.loads(arena.job(job_id, "result")) == 2
    assert arena.outcomes(job_id) == ["expired", "completed"]


def _wait(arena: WorkerArena, is_so: Callable[[], bool], what: str) -> None:
    wait_for(is_so, what, PATIENCE_S, arena.describe)


def _resume(worker: Worker, frozen: list[int]) -> None:
    """Let the task go on first, and then who is to stop it."""
    for number in frozen:
        if number != worker.pid:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGCONT)
    time.sleep(HEAD_START_S)
    worker.signal(signal.SIGCONT)


def _said(arena: WorkerArena, job_id: str, attempt: int) -> list[list[str]]:
    return [words for words in arena.trace("said", job_id) if words[1] == str(attempt)]


def _kept(arena: WorkerArena, job_id: str) -> list[tuple[Any, ...]]:
    """Return the lines of the first attempt that are in the store."""
    return arena.sql(f"select line from headway_log where job_id = '{job_id}' and attempt = 1 order by at")
