"""L6: a job that crashes its process fails alone, at once, and as often as allowed; other jobs are unaffected."""

from pathlib import Path

import pytest

from tests.chaos.worker_arena import FULL, MANY_S_MAX, Worker, WorkerArena, everywhere, wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

DEATHS_MAX = 8
WAYS = ("kill", "exit", "segfault", "close")
AGAIN = WAYS if FULL else ("kill", "close")
LONG_LEASE = ("--worker-lease", "10m", "--processes", "3", "--concurrency", "60", "--poll", "0.5s")


def test_only_the_job_that_kills_its_worker_is_charged(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_whole_workers, stores, tmp_path)


def _whole_workers(arena: WorkerArena) -> None:
    """As when a container runs out of memory: supervisor and children die together, with all their jobs."""
    neighbours = arena.enqueue_many("rest", [{"seconds": 2}] * 6)
    culprit = arena.enqueue("crash", {"how": "worker"})
    neighbours += arena.enqueue_many("rest", [{"seconds": 2}] * 2)
    for _ in range(DEATHS_MAX):
        if _kills(culprit, arena.start(*LONG_LEASE), arena):
            arena.run_out(culprit, *neighbours)
        else:
            break
    assert arena.wait_final([culprit, *neighbours], MANY_S_MAX) == {"FAILED": 1, "COMPLETED": len(neighbours)}
    assert arena.job(culprit, "reason").endswith("with no other job on it")
    assert arena.sql("select id from headway_jobs where failures > 0") == []
    assert len(arena.workers) <= DEATHS_MAX


def _kills(culprit: str, worker: Worker, arena: WorkerArena) -> bool:
    """Wait until a job has killed a worker, or has failed."""
    wait_for(
        lambda: not worker.is_running() or arena.job(culprit, "status") == "FAILED",
        "the worker to die, or the job to fail",
        describe=arena.describe,
    )
    return not worker.is_running()


def test_crashes(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_crashes, stores, tmp_path)


def _crashes(arena: WorkerArena) -> None:
    """With a lease of ten minutes nothing that ends here can have been rescued."""
    worker = arena.start(*LONG_LEASE)
    # Other jobs before, between and after: in the same children, on the same loop, prefetched.
    sync = arena.enqueue_many("short", [{"seconds": 0.002}] * 100)
    slow = arena.enqueue_many("rest", [{"seconds": 1}] * 48)
    poison = {how: arena.enqueue("crash", {"how": how}, max_attempts=3, priority=1) for how in AGAIN}
    # It must not matter whether the closed socket or the exit is seen first: use many, where there is time.
    single = [arena.enqueue("crash", {"how": how}, max_attempts=1) for how in WAYS * (10 if FULL else 1)]
    leaving = arena.enqueue("crash", {"how": "raise"}, max_attempts=1)
    on_loop = arena.enqueue("crash_async", {"how": "exit"}, max_attempts=2)
    remembering = arena.enqueue("steps_once_async", max_attempts=2)
    sync += arena.enqueue_many("short", [{"seconds": 0.002}] * 100)
    neighbours = [*sync, *slow]
    dead = [*poison.values(), *single, leaving, on_loop]
    assert arena.wait_final([*neighbours, *dead], MANY_S_MAX) == {"COMPLETED": len(neighbours), "FAILED": len(dead)}
    arena.wait_final([remembering])
    assert worker.is_running()

    arena.check_ended_once([*neighbours, *dead, remembering])
    failed = {job_id for (job_id,) in arena.sql("select id from headway_jobs where failures > 0")}
    assert not failed & set(neighbours)
    for how in AGAIN:
        assert arena.outcomes(poison[how]) == ["crashed", "crashed", "crashed"], how
    for job_id in single:
        assert arena.outcomes(job_id) == ["crashed"]
    assert arena.outcomes(leaving) == ["failed"], "SystemExit is an ordinary exception"
    assert arena.outcomes(on_loop) == ["crashed", "crashed"]
    status, failures, result = arena.job(remembering, "status", "failures", "result")
    assert (status, result) == ("COMPLETED", "[1,2]"), arena.attempts(remembering)
    assert failures <= 1
    words = [line[:1] + line[4:5] for line in arena.lines(remembering)]
    assert words.count(["step", "2"]) == 1
    assert ["step", "1"] not in words[words.index(["kept", "1"]) :], "a finished step was repeated"
    letters = arena.sql("select id from headway_jobs where status = 'FAILED' and reviewed_at is null")
    assert {job_id for (job_id,) in letters} == set(dead)
