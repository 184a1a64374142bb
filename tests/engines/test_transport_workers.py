"""Real workers on each transport: jobs run as without one, and all of them run, whatever happens to the server.

Where a test claims that hints or notifications start a job, workers poll too rarely for anything else to have done it.
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
from tests.chaos.worker_arena import FINAL, Worker, WorkerArena, everywhere
from tests.engines.conftest import Patience
from tests.support.transports import Bench, TransportServer
from tests.support.tuned import tuned
from tests.support.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.postgres
NUMBERS = itertools.count(1)
RARELY = "60s"  # The longest interval that the settings allow.
LEASE = "1800s"  # A loop that rests longer than the lease seems stuck.
BEFORE_SWEEP_S = 45.0
SPACE_S = 0.02

T = TypeVar("T")
ServerOf = Callable[[str], TransportServer]


@pytest.fixture(autouse=True)
def _short_timeouts(patience: Patience) -> None:
    """Let clients retry soon, as in production: a starting broker may never answer a request."""
    patience(4.0)


@pytest.fixture
def stores(postgres_url: str, tmp_path: Path) -> dict[str, str]:
    """The URL of an empty store on each database."""
    return {"sqlite": f"sqlite:///{tmp_path}/headway.db", "postgres": postgres_url}


def on_store(arena: WorkerArena, action: Callable[[Store], Awaitable[T]]) -> T:
    """Act on the store without announcing anything."""

    async def act() -> T:
        store = await Store.open(arena.store, Clock(node="test"))
        try:
            return await action(store)
        finally:
            await store.close()

    return asyncio.run(act())


def use(arena: WorkerArena, url: str) -> None:
    """Let the side that enqueues announce."""
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
        # It is enqueued after them, on a queue that is not paused.
        marker = arena.enqueue("nothing_async", queue="media")
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
def test_hints_alone_start_jobs(
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
            """Enqueue a job without a hint: only a poll can start it, which may come once, but not repeatedly."""
            unannounced.append(silent.enqueue_sync("nothing_async").id)
            time.sleep(1.0)  # No later job to wait for, which would start it: on a slow machine this shows less.
            # On a slow machine the server may have been unavailable; then the worker listens to the store.
            is_ready = arena.job(unannounced[-1], "status") == "PENDING"
            return is_ready or times_logged(worker, "engine_unavailable") > 0

        wait_until(is_left_alone, "an unannounced job to stay PENDING")
        arena.wait_final([arena.enqueue("nothing_async"), *unannounced], BEFORE_SWEEP_S)
        worker.signal(signal.SIGTERM)
        assert worker.wait(BEFORE_SWEEP_S) == 0

    everywhere(scenario, {database: stores[database]}, tmp_path)


def listening(worker: Worker) -> str:
    """Wait until a process serves the API; return its URL."""
    found = wait_until(lambda: re.search(r"listening.*?(http://[\w.:]+)", worker.log.read_text()), "the API to listen")
    assert found is not None
    return found[1]


def both_listen(bench: Bench) -> None:
    """Wait until two workers listen for hints."""
    wait_until(lambda: asyncio.run(bench.listeners("default")) == 2, "two workers to listen")


def times_logged(worker: Worker, words: str) -> int:
    return worker.log.read_text().count(words)


def has_logged_both(worker: Worker) -> bool:
    return times_logged(worker, "engine_unavailable") == times_logged(worker, "engine_returned") > 0


def wait_logged(arena: WorkerArena, words: str, times: int = 1) -> None:
    """Wait until every worker has logged something that often."""

    def all_have() -> bool:
        return all(times_logged(worker, words) >= times for worker in arena.workers)

    wait_until(all_have, f"all workers to log {words!r}")


def troubles(arena: WorkerArena) -> list[object]:
    return [json.loads(state)["transport"]["trouble"] for (state,) in arena.sql("select state from headway_nodes")]


@pytest.mark.parametrize("kind", ["redis", "classic"])
def test_burst_for_two_workers_survives_a_server_that_loses_data_and_dies(
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
        both_listen(bench)

        def have_ended() -> bool:
            """Enqueue one more job: its hint brings the others too, whatever was lost or not announced in time."""
            jobs.append(arena.enqueue("nothing_async"))
            time.sleep(0.5)  # A pause between two jobs, so that the backlog shrinks.
            return arena.statuses(jobs[:-10]).keys() <= set(FINAL)

        wait_until(have_ended, "hints to bring every job")
        arena.wait_final(jobs, BEFORE_SWEEP_S)
        both_listen(bench)
        bench.server.kill()
        wait_logged(arena, "engine_unavailable")
        jobs += arena.enqueue_many("nothing_async", [{}] * 40)
        arena.wait_final(jobs, BEFORE_SWEEP_S)
        wait_until(lambda: all(troubles(arena)), "the nodes to report trouble")
        bench.server.start()
        wait_logged(arena, "engine_returned")
        for _ in range(10):
            jobs.append(arena.enqueue("nothing_async"))
        arena.wait_final(jobs, BEFORE_SWEEP_S)
        wait_until(lambda: not any(troubles(arena)), "the nodes to report no trouble")
        arena.check_ended_once(jobs)
        # Logged once, not with every call. On a slow machine the server may have been unavailable once more.
        wait_until(
            lambda: all(map(has_logged_both, arena.workers)), "as many log lines engine_returned as engine_unavailable"
        )
        assert all("guest:guest" not in worker.log.read_text() for worker in arena.workers)

    everywhere(scenario, {"postgres": postgres_url}, tmp_path)


@pytest.mark.parametrize("kind", ["redis", "classic"])
def test_hints_of_a_dead_worker_are_redelivered(kind: str, tmp_path: Path, transport_server: ServerOf) -> None:
    bench = bench_of(kind, transport_server)

    def scenario(arena: WorkerArena) -> None:
        use(arena, bench.url)
        # The broker must not redeliver the hints of the frozen worker before the test has looked.
        patient = tuned(arena.folder / "patient", {"headway.adapters.rabbitmq.HEARTBEAT_S": 600})
        victim, _ = [arena.start("--processes", "1", HEADWAY_TRANSPORT=bench.url, PYTHONPATH=patient) for _ in range(2)]
        arena.wait_final([arena.enqueue("nothing_async") for _ in range(4)])
        jobs = list[str]()

        def freezes_with_hints() -> bool:
            arena.freeze(victim)
            for _ in range(10):
                jobs.append(arena.enqueue("nothing_async"))
                time.sleep(SPACE_S)
            arena.wait_final(jobs)
            # Delivered to the frozen worker, which has not looked at them.
            has_some = bench.unacknowledged("default") > 0
            if not has_some:
                victim.signal(signal.SIGCONT)
            return has_some

        wait_until(freezes_with_hints, "a worker to be frozen while it waits for hints")
        victim.signal(signal.SIGKILL)
        more = [arena.enqueue("nothing_async") for _ in range(5)]
        arena.wait_final(more)
        arena.check_ended_once(jobs + more)

    everywhere(scenario, {"sqlite": f"sqlite:///{tmp_path}/headway.db"}, tmp_path)
