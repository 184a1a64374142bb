"""Whole workers from outside: what tasks can do, what schedules do with running jobs, on both databases."""

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.chaos.worker_arena import WorkerArena, everywhere, is_alive, wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def stores(postgres_url: str, tmp_path: Path) -> dict[str, str]:
    """An empty store on each database."""
    return {"sqlite": f"sqlite:///{tmp_path}/headway.db", "postgres": postgres_url}


def test_what_tasks_can_do(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_tasks, stores, tmp_path)


def _tasks(arena: WorkerArena) -> None:
    arena.start("--queues", "default", "--processes", "2", "--poll", "0.5s", HEADWAY_CHILD_MAX_JOBS="8")
    kinds = {kind: arena.enqueue("picky", {"kind": kind}, max_attempts=3) for kind in PICKY}
    steps = {how: arena.enqueue("steps_once", {"how": how}, max_attempts=3) for how in ("kill", "exit")}
    unasked = arena.enqueue("cancels_itself", max_attempts=2)
    crash = arena.enqueue("parent_of_many", {"then": "crash"}, max_attempts=1)
    hungry = arena.enqueue("hungry", max_attempts=1)
    fan_out = arena.enqueue("fan_out", {"jobs": 3})
    where = {task: arena.enqueue(task) for task in ("in_thread", "in_process")}
    many = arena.enqueue_many("short", [{}] * 60)
    overdue = arena.enqueue("short", queue="elsewhere", expires="1s")
    ended = [*kinds.values(), *steps.values(), unasked, crash, hungry, fan_out, *where.values(), *many, overdue]
    arena.wait_final(ended, 60)
    arena.check_ended_once(set(ended) - {overdue})

    for kind, (status, outcomes) in PICKY.items():
        assert (arena.job(kinds[kind], "status"), arena.outcomes(kinds[kind])) == (status, outcomes), kind
    started = [
        row[0] for row in arena.sql(f"select started_at from headway_attempts where job_id = '{kinds['later']}'")
    ]
    assert arena.job(kinds["later"], "started_at") - started[0] >= 1_000_000, "it asked for a second"
    assert arena.job(kinds["cancel"], "reason") == "nothing to do"
    for how, job_id in steps.items():
        assert arena.job(job_id, "status", "result") == ("COMPLETED", "[1,2]")
        assert [line[3] for line in arena.trace("step", job_id)] == ["1", "2"], f"a finished step was repeated ({how})"
    assert arena.outcomes(unasked) == ["failed", "failed"], "nobody asked it to stop"
    family = arena.trace("begin", crash)[0][2:]
    wait_for(lambda: not any(map(is_alive, family)), "what a crashed job has started to be gone", 10)
    _check_memory(arena, hungry)
    children = json.loads(arena.job(fan_out, "result"))
    arena.wait_final(children)
    assert {arena.job(job_id, "parent") for job_id in children} == {fan_out}
    for job_id in where.values():
        assert json.loads(arena.job(job_id, "result"))[1:] == [arena.job(job_id, "attempt"), "default"]
    pids = [int(arena.job(job_id, "result")) for job_id in many]
    assert len(set(pids)) >= 4, "children are replaced after eight jobs or so"
    assert max(map(pids.count, pids)) <= 8 + 30, "and not much later"
    assert arena.job(overdue, "status", "attempt") == ("CANCELLED", 0)
    assert "expired" in arena.job(overdue, "reason")


PICKY = {
    "fine": ("COMPLETED", ["completed"]),
    "later": ("COMPLETED", ["failed", "completed"]),
    "cancel": ("CANCELLED", ["cancelled"]),
    "os": ("COMPLETED", ["failed", "completed"]),
    "connection": ("FAILED", ["failed"]),
    "value": ("FAILED", ["failed"]),
}


def _check_memory(arena: WorkerArena, hungry: str) -> None:
    status, error = arena.job(hungry, "status", "error")
    assert (status, json.loads(error)["type"]) == ("FAILED", "MemoryError")
    [*_, [_, _, pid]] = arena.trace("begin", hungry)
    wait_for(lambda: not is_alive(pid), "the child that ran out of memory to be replaced", 10)


def test_a_stop_stays_a_stop_whatever_the_task_makes_of_it(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_stops, stores, tmp_path)


def _stops(arena: WorkerArena) -> None:
    """`retry_timeouts=False` means one attempt, and a canceller's words stay, also if the task raises meanwhile."""
    arena.start("--processes", "4", "--poll", "0.5s")
    torn = [arena.enqueue("torn_async"), arena.enqueue("torn"), arena.enqueue("torn", {"starts": True})]
    late = [*torn, arena.enqueue("plain_async")]
    unmoved = arena.enqueue("unmoved")
    cancelled = [arena.enqueue(task, timeout="1m") for task in ("torn_async", "torn")]
    for job_id in cancelled:
        arena.wait_trace("begin", job_id)
        arena.app.cancel_sync(job_id, "enough")
    arena.wait_final([*late, unmoved, *cancelled])
    for job_id in late:
        assert (arena.job(job_id, "status"), arena.outcomes(job_id)) == ("TIMED_OUT", ["timed_out"])
        assert arena.job(job_id, "failures") == 1
        error = json.loads(arena.job(job_id, "error"))
        assert error["type"] == "TimeoutError"
        assert ("RuntimeError: torn" in error["message"]) == (job_id in torn)
    assert not is_alive(arena.trace("begin", torn[2])[0][3])
    assert arena.job(unmoved, "status", "result") == ("COMPLETED", '"done all the same"')
    for job_id in cancelled:
        assert arena.outcomes(job_id) == ["cancelled"]
        status, failures, reason = arena.job(job_id, "status", "failures", "reason")
        assert (status, failures) == ("CANCELLED", 0)
        assert "enough" in reason


def test_schedules_and_running_jobs(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_schedules, stores, tmp_path)


def _schedules(arena: WorkerArena) -> None:
    """S7: with skip, queue and replace, and after a fixed delay, one job of a schedule runs at a time."""
    arena.start("--processes", "6", "--poll", "0.5s", role="serve", WITH_SCHEDULES="1")
    wait_for(lambda: len(arena.trace("end-newest")) >= 3, "a few to be replaced", 40, arena.describe)
    for name in ("in-line", "skipping", "following"):
        wait_for(lambda name=name: len(arena.trace(f"end-{name}")) >= 3, f"a few of {name}", 30, arena.describe)  # type: ignore[misc]
    for name in ("in-line", "skipping", "newest", "following"):
        begun = [(float(line[2]), 1) for line in arena.trace(f"begin-{name}")]
        ended = [(float(line[2]), -1) for line in arena.trace(f"end-{name}")]
        depth = 0
        for _, change in sorted(begun + ended):
            depth += change
            assert 0 <= depth <= 1, f"two jobs of {name} ran at the same time"
    replaced = arena.sql(
        "select status, count(*) from headway_jobs where schedule = 'newest' and attempt > 0 group by 1"
    )
    assert dict(replaced)["CANCELLED"] >= 2
    line = "select created_at, finished_at from headway_jobs where schedule = 'following' order by id"
    for (_, finished_at), (created_at, _) in pairwise(arena.sql(line)):
        assert created_at - finished_at >= 500_000, "it did not wait for the end of the job before"
    jobs = arena.sql("select count(*) from headway_jobs where schedule = 'in-line' and status = 'COMPLETED'")
    assert jobs[0][0] >= 2
    skipped = arena.sql("select count(*) from headway_occurrences where schedule = 'skipping' and outcome = 'skipped'")
    assert skipped[0][0] >= 1


def test_a_worker_without_a_usable_app_says_why(tmp_path: Path) -> None:
    arena = WorkerArena.on(f"sqlite:///{tmp_path}/headway.db", tmp_path / "arena")
    try:
        broken = tmp_path / "broken.py"
        broken.write_text("1 / 0\n")
        began = time.monotonic()
        worker = arena.start("--app", "broken:app", is_ready=False, PYTHONPATH=str(tmp_path))
        assert worker.wait(30) == 2
        assert "ZeroDivisionError" in worker.log.read_text()
        assert time.monotonic() - began < 30
    finally:
        arena.stop()
