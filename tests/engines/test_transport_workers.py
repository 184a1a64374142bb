"""Real workers on each transport: jobs run as they do without one, and whatever happens to the server, all of them do.

Where a test says that hints or notifications bring a job, the workers sweep so rarely that nothing else could have.
"""

import asyncio
import itertools
import json
import re
import signal
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from headway import At, Headway
from headway.core.clock import Clock
from headway.core.settings import Settings
from headway.store import Store
from tests.chaos.worker_arena import Worker, WorkerArena, everywhere
from tests.engines.conftest import Patience
from tests.support.transports import Bench, TransportServer
from tests.support.tuned import tuned
from tests.support.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.postgres
NUMBERS = itertools.count(1)
RARELY = "60s"  # As rarely as the settings allow.
LEASE = "1800s"  # A loop that rests longer than the lease seems to stand still.
BEFORE_SWEEP_S = 45.0
SPACE_S = 0.02

T = TypeVar("T")
ServerOf = Callable[[str], TransportServer]


@pytest.fixture(autouse=True)
def _tries_again(patience: Patience) -> None:
    """Have whoever enqueues here try again soon, as outside of the tests: a broker that starts may forget who asked."""
    patience(4.0)


@pytest.fixture
def stores(postgres_url: str, tmp_path: Path) -> dict[str, str]:
    """An empty store on each database."""
    return {"sqlite": f"sqlite:///{tmp_path}/headway.db", "postgres": postgres_url}


def on_store(arena: WorkerArena, action: Callable[[Store], Awaitable[T]]) -> T:
    """Do something with the store that nobody announces."""

    async def act() -> T:
        store = await Store.open(arena.store, Clock(node="test"))
        try:
            return await action(store)
        finally:
            await store.close()

    return asyncio.run(act())


def use(arena: WorkerArena, url: str) -> None:
    """Have the side that enqueues announce."""
    arena._app = Headway(settings=Settings(store=arena.store, transport=url), name="client")


def bench_of(kind: str, server_of: ServerOf, name: str = "") -> Bench:
    return Bench(kind, server_of(kind), f"work{next(NUMBERS)}{name}.")


@pytest.mark.parametrize(("kind", "database"), [("store", "sqlite"), ("redis", "postgres"), ("classic", "sqlite")])
def test_priorities_delays_pauses_and_retries_are_the_same(
    kind: str, database: str, stores: dict[str, str], tmp_path: Path, transport_server: ServerOf
) -> None:
    def scenario(arena: WorkerArena) -> None:
        url = "store" if kind == "store" else bench_of(kind, transport_server).url
        use(arena, url)
        arena.start("--processes", "1", HEADWAY_TRANSPORT=url)
        others = [arena.enqueue("nothing"), arena.enqueue("fan_out", {"jobs": 3})]
        others += [arena.enqueue("crash", {"how": "exit"}), arena.enqueue("nothing_async", queue="media")]
        arena.wait_final(others)
        on_store(arena, lambda store: store.queue.pause("default", author="ada"))
        jobs = {
            priority: arena.enqueue("sit", {"seconds": 0.01}, priority=priority, max_attempts=1)
            for priority in (1, 9, 5)
        }
        late = arena.enqueue("sit", {"seconds": 0}, delay="1500ms", queue="media")
        marker = arena.enqueue("nothing_async", queue="media")  # It comes after them, from a queue that is not paused.
        arena.wait_final([marker])
        assert not {line[0] for line in arena.trace("begin")} & {*jobs.values()}
        on_store(arena, lambda store: store.queue.resume("default"))
        arena.wait_final([*jobs.values(), late])
        begun = [line[0] for line in arena.trace("begin") if line[0] in jobs.values()]
        assert begun == [jobs[9], jobs[5], jobs[1]]
        created, started = arena.job(late, "created_at", "started_at")
        assert started - created >= 1_500_000
        everything = [job_id for (job_id,) in arena.sql("select id from headway_jobs")]
        assert len(everything) == 4 + 3 + 5
        arena.wait_final(everything)
        arena.check_ended_once(everything)

    everywhere(scenario, {database: stores[database]}, tmp_path)


@pytest.mark.parametrize(("kind", "database"), [("redis", "sqlite"), ("classic", "postgres")])
def test_hints_alone_bring_jobs(
    kind: str, database: str, stores: dict[str, str], tmp_path: Path, transport_server: ServerOf
) -> None:
    def scenario(arena: WorkerArena) -> None:
        url = bench_of(kind, transport_server).url
        use(arena, url)
        flags = "--processes", "1", "--port", "0"
        worker = arena.start(
            *flags, role="serve", HEADWAY_TRANSPORT=url, HEADWAY_POLL=RARELY, HEADWAY_LEADER_LEASE=LEASE
        )
        for _ in range(3):
            arena.wait_final([arena.enqueue("nothing_async")], BEFORE_SWEEP_S)
        made = httpx.post(f"{listening(worker)}/api/jobs", json={"type": "nothing_async"}, timeout=DEADLINE_S)
        made.raise_for_status()
        arena.wait_final([made.json()["id"]], BEFORE_SWEEP_S)
        arena.wait_final([arena.enqueue("nothing_async", delay="100ms")], BEFORE_SWEEP_S)
        once = At(datetime.now(UTC) + timedelta(seconds=1))
        arena.app.put_schedule_sync("once", task="nothing_async", trigger=once)
        decided = "select id from headway_jobs where schedule = 'once'"
        [(by_schedule,)] = wait_until(lambda: arena.sql(decided), "the schedule's job")
        arena.wait_final([by_schedule], BEFORE_SWEEP_S)
        arena.wait_final([arena.enqueue("fan_out", {"jobs": 2})], BEFORE_SWEEP_S)
        silent = Headway(settings=Settings(store=arena.store), name="silent")
        unannounced = list[str]()

        def is_left_alone() -> bool:
            """The store's own wake-ups are not listened to. A sweep may come just now, but not again and again."""
            unannounced.append(silent.enqueue_sync("nothing_async").id)
            time.sleep(1.0)  # Any job that comes after it would bring it: on a slow machine this shows less.
            # A slow machine may have kept the server from answering; then the store is listened to.
            is_ready = arena.job(unannounced[-1], "status") == "PENDING"
            return is_ready or times_said(worker, "engine_unavailable") > 0

        wait_until(is_left_alone, "a job that nobody announces to be left alone")
        arena.wait_final([arena.enqueue("nothing_async"), *unannounced], BEFORE_SWEEP_S)
        worker.signal(signal.SIGTERM)
        assert worker.wait(BEFORE_SWEEP_S) == 0

    everywhere(scenario, {database: stores[database]}, tmp_path)


def listening(worker: Worker) -> str:
    """Wait until a process serves the API; return where."""
    found = wait_until(lambda: re.search(r"listening.*?(http://[\w.:]+)", worker.log.read_text()), "the API to listen")
    assert found is not None
    return found[1]


def both_listen(bench: Bench) -> None:
    """Wait until two workers wait for hints."""
    wait_until(lambda: asyncio.run(bench.listeners("default")) == 2, "two workers to listen")


def times_said(worker: Worker, words: str) -> int:
    return worker.log.read_text().count(words)


def has_said_both(worker: Worker) -> bool:
    return times_said(worker, "engine_unavailable") == times_said(worker, "engine_returned") > 0


def said(arena: WorkerArena, words: str, times: int = 1) -> None:
    """Wait until every worker has said something so often."""

    def all_have() -> bool:
        return all(times_said(worker, words) >= times for worker in arena.workers)

    wait_until(all_have, f"everybody to say {words!r}")


def troubles(arena: WorkerArena) -> list[object]:
    return [json.loads(state)["transport"]["trouble"] for (state,) in arena.sql("select state from headway_nodes")]


@pytest.mark.parametrize("kind", ["redis", "classic"])
def test_a_burst_for_two_workers_and_a_server_that_forgets_and_dies(
    kind: str, postgres_url: str, tmp_path: Path, transport_server: ServerOf
) -> None:
    bench = bench_of(kind, transport_server)

    def scenario(arena: WorkerArena) -> None:
        use(arena, bench.url)
        for _ in range(2):
            arena.start(
                "--processes", "1", HEADWAY_TRANSPORT=bench.url, HEADWAY_POLL=RARELY, HEADWAY_LEADER_LEASE=LEASE
            )
        both_listen(bench)
        jobs = arena.enqueue_many("nothing_async", [{}] * 150)
        jobs += [arena.enqueue("short") for _ in range(10)]
        asyncio.run(bench.lose("default"))
        jobs += [arena.enqueue("nothing_async") for _ in range(10)]
        arena.wait_final(jobs, BEFORE_SWEEP_S)
        both_listen(bench)
        bench.server.kill()
        said(arena, "engine_unavailable")
        jobs += arena.enqueue_many("nothing_async", [{}] * 40)
        arena.wait_final(jobs, BEFORE_SWEEP_S)
        wait_until(lambda: all(troubles(arena)), "the nodes to show it")
        bench.server.start()
        said(arena, "engine_returned")
        for _ in range(10):
            jobs.append(arena.enqueue("nothing_async"))
        arena.wait_final(jobs, BEFORE_SWEEP_S)
        wait_until(lambda: not any(troubles(arena)), "the nodes to be well")
        arena.check_ended_once(jobs)
        # Said once, and not with every question. A slow machine may have kept the server from answering once more.
        wait_until(lambda: all(map(has_said_both, arena.workers)), "as many ends of absences as absences")
        assert all("guest:guest" not in worker.log.read_text() for worker in arena.workers)

    everywhere(scenario, {"postgres": postgres_url}, tmp_path)


@pytest.mark.parametrize("kind", ["redis", "classic"])
def test_a_worker_that_dies_with_hints(kind: str, tmp_path: Path, transport_server: ServerOf) -> None:
    bench = bench_of(kind, transport_server)

    def scenario(arena: WorkerArena) -> None:
        use(arena, bench.url)
        # The broker must not take back what the frozen one has before we looked, however long that takes.
        patient = tuned(arena.folder / "patient", {"headway.adapters.rabbitmq.HEARTBEAT_S": 600})
        doomed, _ = [arena.start("--processes", "1", HEADWAY_TRANSPORT=bench.url, PYTHONPATH=patient) for _ in range(2)]
        arena.wait_final([arena.enqueue("nothing_async") for _ in range(4)])
        jobs = list[str]()

        def freezes_with_hints() -> bool:
            arena.freeze(doomed)
            for _ in range(10):
                jobs.append(arena.enqueue("nothing_async"))
                time.sleep(SPACE_S)
            arena.wait_final(jobs)
            has_some = bench.unacknowledged("default") > 0  # What the frozen one has, and never looked for.
            if not has_some:
                doomed.signal(signal.SIGCONT)
            return has_some

        wait_until(freezes_with_hints, "a worker to be frozen while it waits for hints")
        doomed.signal(signal.SIGKILL)
        more = [arena.enqueue("nothing_async") for _ in range(5)]
        arena.wait_final(more)
        arena.check_ended_once(jobs + more)

    everywhere(scenario, {"sqlite": f"sqlite:///{tmp_path}/headway.db"}, tmp_path)
