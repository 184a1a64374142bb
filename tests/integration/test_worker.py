"""Whole workers from the outside: what tasks can do, and schedules with running jobs, on both databases."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.chaos.worker_arena import WorkerArena, everywhere
from tests.support.processes import is_alive
from tests.support.tuned import tuned
from tests.support.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
# Too long to expire: a slow machine would cause one more attempt than expected.
LEASE = "10m"
LIMIT = "3s"  # The timeout of a task that does a little work before it waits to be stopped.


def patience(arena: WorkerArena) -> str:
    """Return a PYTHONPATH that gives a task time to react to its signal before it is killed."""
    return tuned(arena.folder / "tuned", {"headway.worker.stopper.HARD_S": DEADLINE_S})


@pytest.fixture
def stores(postgres_url: str, tmp_path: Path) -> dict[str, str]:
    """An empty store on each database."""
    return {"sqlite": f"sqlite:///{tmp_path}/headway.db", "postgres": postgres_url}


def test_task_features(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_tasks, stores, tmp_path)


def _tasks(arena: WorkerArena) -> None:
    arena.start(
        "--queues",
        "default",
        "--processes",
        "2",
        "--poll",
        "0.5s",
        HEADWAY_CHILD_MAX_JOBS="8",
        HEADWAY_WORKER_LEASE=LEASE,
    )
    kinds = {kind: arena.enqueue("picky", {"kind": kind}, max_attempts=3) for kind in PICKY}
    steps = {how: arena.enqueue("steps_once", {"how": how}, max_attempts=3) for how in ("kill", "exit")}
    unasked = arena.enqueue("cancels_itself", max_attempts=2)
    crash = arena.enqueue("parent_of_many", {"then": "crash"}, max_attempts=1)
    hungry = arena.enqueue("hungry", max_attempts=1)
    fan_out = arena.enqueue("fan_out", {"jobs": 3})
    crowd = arena.enqueue("crowd", {"jobs": 10_000})
    where = {task: arena.enqueue(task) for task in ("in_thread", "in_process")}
    many = arena.enqueue_many("short", [{}] * 60)
    overdue = arena.enqueue("short", queue="elsewhere", expires="1s")
    ended = [*kinds.values(), *steps.values(), unasked, crash, hungry, fan_out, crowd, *where.values(), *many, overdue]
    arena.wait_final(ended, DEADLINE_S)
    arena.check_ended_once(set(ended) - {overdue})

    for kind, (status, outcomes) in PICKY.items():
        assert (arena.job(kinds[kind], "status"), arena.outcomes(kinds[kind])) == (status, outcomes), kind
    started = [
        row[0] for row in arena.sql(f"select started_at from headway_attempts where job_id = '{kinds['later']}'")
    ]
    assert arena.job(kinds["later"], "started_at") - started[0] >= 1_000_000, "it requested a second"
    assert arena.job(kinds["cancel"], "reason") == "nothing to do"
    for how, job_id in steps.items():
        assert arena.job(job_id, "status", "result") == ("COMPLETED", "[1,2]")
        assert [line[3] for line in arena.trace("step", job_id)] == ["1", "2"], f"a finished step was repeated ({how})"
    assert arena.outcomes(unasked) == ["failed", "failed"], "it was not asked to stop"
    family = arena.trace("begin", crash)[0][2:]
    wait_until(lambda: not any(map(is_alive, family)), "the processes of a crashed job to end")
    _check_memory(arena, hungry)
    children = json.loads(arena.job(fan_out, "result"))
    arena.wait_final(children, DEADLINE_S)
    assert {arena.job(job_id, "parent") for job_id in children} == {fan_out}
    assert json.loads(arena.job(crowd, "result")) == [10_000, 10_000], "all or none, once for each key"
    told = arena.sql("select count(*), count(distinct tenant), max(priority) from headway_jobs where queue = 'crowd'")
    assert tuple(told[0]) == (10_000, 10_000, 9)
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
    wait_until(lambda: not is_alive(pid), "the child that ran out of memory to be replaced")


def test_timeouts_and_cancellations_are_final_whatever_the_task_does(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_stops, stores, tmp_path)


def _stops(arena: WorkerArena) -> None:
    """`retry_timeouts=False` means one attempt; the reason of a cancellation stays, even if the task raises."""
    arena.start("--processes", "4", "--poll", "0.5s", PYTHONPATH=patience(arena), HEADWAY_WORKER_LEASE=LEASE)
    torn = [arena.enqueue(*task, timeout=LIMIT) for task in (("torn_async",), ("torn",), ("torn", {"starts": True}))]
    late = [*torn, arena.enqueue("plain_async", timeout=LIMIT)]
    unmoved = arena.enqueue("unmoved", timeout=LIMIT)
    cancelled = [arena.enqueue(task, timeout="1h") for task in ("torn_async", "torn")]
    for job_id in cancelled:
        arena.wait_trace("begin", job_id, within_s=DEADLINE_S)
        arena.app.cancel_sync(job_id, "enough")
    arena.wait_final([*late, unmoved, *cancelled], DEADLINE_S)
    for job_id in late:
        assert (arena.job(job_id, "status"), arena.outcomes(job_id)) == ("TIMED_OUT", ["timed_out"])
        assert arena.job(job_id, "failures") == 1
        error = json.loads(arena.job(job_id, "error"))
        assert error["type"] == "TimeoutError"
        if arena.trace("begin", job_id):  # Otherwise the slow machine stopped it before it began.
            assert ("RuntimeError: torn" in error["message"]) == (job_id in torn)
    for _, _, _, started in arena.trace("begin", torn[2]):
        wait_until(lambda pid=started: not is_alive(pid), "the processes of the task to end")  # type: ignore[misc]
    if arena.trace("begin", unmoved):
        assert arena.job(unmoved, "status", "result") == ("COMPLETED", '"done all the same"')
    for job_id in cancelled:
        assert arena.outcomes(job_id) == ["cancelled"]
        status, failures, reason = arena.job(job_id, "status", "failures", "reason")
        assert (status, failures) == ("CANCELLED", 0)
        assert "enough" in reason


def test_schedules_with_running_jobs(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_schedules, stores, tmp_path)


def _schedules(arena: WorkerArena) -> None:
    """S7: with skip, queue and replace, and after a fixed delay, one job of a schedule runs at a time."""
    arena.start(
        "--processes",
        "6",
        "--poll",
        "0.5s",
        role="serve",
        WITH_SCHEDULES="1",
        PYTHONPATH=patience(arena),
        HEADWAY_WORKER_LEASE=LEASE,
        HEADWAY_LEADER_LEASE=LEASE,
    )

    def count(what: str) -> int:
        [[number]] = arena.sql(f"select count(*) from {what}")
        return int(number)

    for name in ("newest", "in-line", "skipping", "following"):
        wait_until(lambda name=name: len(arena.trace(f"end-{name}")) >= 3, f"three jobs of {name} to end")  # type: ignore[misc]
    for what in (
        "headway_jobs where schedule = 'newest' and attempt > 0 and status = 'CANCELLED'",
        "headway_jobs where schedule = 'in-line' and status = 'COMPLETED'",
        "headway_occurrences where schedule = 'skipping' and outcome = 'skipped'",
    ):
        wait_until(lambda what=what: count(what) >= 2, f"two {what}")  # type: ignore[misc]
    line = "select created_at, finished_at from headway_jobs where schedule = 'following' order by id"
    for (_, finished_at), (created_at, _) in pairwise(arena.sql(line)):
        assert created_at - finished_at >= 500_000, "it did not wait for the previous job"
    lines = [line.split() for line in arena.trace_file.read_text().splitlines()]  # Read once: more lines follow.
    for name in ("in-line", "skipping", "newest", "following"):
        changes = {f"begin-{name}": 1, f"end-{name}": -1}
        depth = 0
        for _, change in sorted((float(at), changes[word]) for word, _, _, at in lines if word in changes):
            depth += change
            assert 0 <= depth <= 1, f"two jobs of {name} ran at the same time"


def test_unusable_app_is_reported(tmp_path: Path) -> None:
    arena = WorkerArena.on(f"sqlite:///{tmp_path}/headway.db", tmp_path / "arena")
    try:
        broken = tmp_path / "broken.py"
        broken.write_text("1 / 0\n")
        worker = arena.start("--app", "broken:app", is_ready=False, PYTHONPATH=str(tmp_path))
        assert worker.wait(DEADLINE_S) == 2
        assert "ZeroDivisionError" in worker.log.read_text()
    finally:
        arena.stop()
