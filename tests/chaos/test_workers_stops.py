"""L7, L8, L9: timeouts, cancels and drains work whatever the code does, and no subprocess survives them."""

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headway.core.errors import AlreadyFinal
from tests.chaos.arena import headway
from tests.chaos.worker_arena import MANY_S_MAX, Worker, WorkerArena, everywhere, wait_for
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

POLITE = ("checking", "tracking", "awaiting")
IMPOLITE = ("stubborn", "stubborn_thread", "stubborn_async", "logging_without_end")
CANCELS = 500
LEASE = ("--worker-lease", "36s")  # Extended every 12 s. A worker may freeze for 20 s without losing it.
GRACE_S = 1.0


def test_blocked_interpreter(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_held_interpreter, stores, tmp_path)


def _held_interpreter(arena: WorkerArena) -> None:
    """L9, and L8 meanwhile: one child is blocked until it is released, one for years."""
    arena.start(*LEASE, "--processes", "6", "--poll", "0.5s", is_ready=False)
    let_go = arena.folder / "let-go"
    os.mkfifo(let_go)
    deaf = _hold_up_short_jobs(arena, let_go)
    leased_until = arena.job(deaf, "lease_until")
    wait_until(lambda: _are_out_of_time(arena), "tasks that hold the interpreter to begin in time")
    wait_until(lambda: _stop_when_asked(arena), "cooperative tasks to stop before they are killed")
    _check_impolite(arena)

    wait_for(lambda: arena.job(deaf, "lease_until") > leased_until, "the lease to be extended", describe=arena.describe)
    assert arena.job(deaf, "status") == "RUNNING"
    let_go.write_bytes(b"!")
    arena.wait_status(deaf, "COMPLETED")
    assert arena.outcomes(deaf) == ["completed"], "a live job was expired by age"
    assert arena.job(deaf, "failures") == 0
    assert arena.sql("select count(*) from headway_attempts where outcome = 'expired'") == [(0,)]


def _hold_up_short_jobs(arena: WorkerArena, let_go: Path) -> str:
    """Queue jobs that are so short that they are prefetched behind one that blocks their child."""
    arena.wait_final(arena.enqueue_many("nothing", [{}] * 300))
    tasks = [*["nothing"] * 100, "hold_gil", *["nothing"] * 200]
    args = {"hold_gil": {"until": str(let_go)}}
    jobs = [arena.app._job_by_name(task, args.get(task), {})[0] for task in tasks]
    arena.hand_in(jobs)
    [deaf] = [job.id for job in jobs if job.task == "hold_gil"]
    arena.wait_final([job.id for job in jobs if job.id != deaf])
    arena.wait_trace("begin", deaf)
    return deaf


def _are_out_of_time(arena: WorkerArena) -> bool:
    """Let code that ignores signals, and code that handles them, time out; False if it did not even begin."""
    jobs = [arena.enqueue(task) for task in ("catastrophic", "backtracking")]
    hopeless, _ = jobs
    arena.wait_status(hopeless, "TIMED_OUT")
    left = [pid for _, _, pid in arena.trace("begin", hopeless) if is_alive(pid)]
    assert not left, "timed out, but still running"
    for job_id in jobs:
        arena.wait_status(job_id, "TIMED_OUT")
        assert arena.outcomes(job_id) == ["timed_out"]
    return all(arena.trace("begin", job_id) for job_id in jobs)


def _stop_when_asked(arena: WorkerArena) -> bool:
    """Cancel cooperative code; False if the machine was so slow that it was killed before it could stop."""
    jobs = {task: arena.enqueue(task) for task in POLITE}
    pids = [arena.wait_trace("begin", job_id)[0][2] for job_id in jobs.values()]
    for job_id in jobs.values():
        arena.cancel(job_id, "enough")
    for task, job_id in jobs.items():
        arena.wait_status(job_id, "CANCELLED")
        assert arena.outcomes(job_id) == ["cancelled"], task
        assert "enough" in arena.job(job_id, "reason")
    have_stopped = all(arena.trace("stopped", jobs[task]) for task in ("checking", "awaiting"))
    return have_stopped and all(map(is_alive, pids))


def _check_impolite(arena: WorkerArena) -> None:
    """Check that uncooperative code is killed with its subprocesses, and is not CANCELLED before that."""
    jobs = {task: arena.enqueue(task) for task in IMPOLITE}
    nested = {then: arena.enqueue("parent_of_many", {"then": then}) for then in ("wait", "check")}
    pids = {task: arena.wait_trace("begin", job_id)[0][2] for task, job_id in jobs.items()}
    families = {then: arena.wait_trace("begin", job_id)[0][2:] for then, job_id in nested.items()}
    for then, family in families.items():
        assert len(family) == 4, then
        assert all(map(is_alive, family)), then
    for job_id in (*jobs.values(), *nested.values()):
        arena.cancel(job_id)
    for task, job_id in jobs.items():
        arena.wait_status(job_id, "CANCELLED")
        if task != "logging_without_end":  # A signal stops that one; its process can still be used.
            assert not is_alive(pids[task]), f"{task} was CANCELLED before it had stopped"
    for job_id in nested.values():
        arena.wait_status(job_id, "CANCELLED")
    for then, family in families.items():
        left = [pid for pid in family[1:] if is_alive(pid)]
        assert not left, f"processes outlive the job that started them ({then})"


def test_cancels_around_claim_and_completion(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_many_cancels, stores, tmp_path)


def _many_cancels(arena: WorkerArena) -> None:
    arena.start("--processes", "2", "--concurrency", "50", "--poll", "0.5s", "--worker-lease", "10m")
    chance = random.Random(8)
    arena.wait_final(arena.enqueue_many("nothing", [{}] * 50))  # So that the children exist, and are full.
    jobs: list[str] = []
    for _ in range(CANCELS // 20):
        jobs += _cancel_some(arena, chance)
    ended = arena.wait_final(jobs, MANY_S_MAX)
    while len(ended) == 1:  # The machine is busy, and all cancels came before the jobs, or all after them.
        jobs += _cancel_some(arena, chance)
        ended = arena.wait_final(jobs)
    assert ended.keys() == {"COMPLETED", "CANCELLED"}, ended
    assert arena.sql("select count(*) from headway_jobs") == [(len(jobs) + 50,)]
    arena.check_ended_once(jobs)


def _cancel_some(arena: WorkerArena, chance: random.Random) -> list[str]:
    """Enqueue a few jobs and cancel them at about the time when they end."""
    args = {"rest": {"seconds": 0.03}}
    tasks = chance.choices(("nothing", "nothing_async", "short", "rest"), k=20)
    jobs = [arena.app._job_by_name(task, args.get(task), {"max_attempts": 1})[0] for task in tasks]
    batch = arena.hand_in(jobs)
    for job_id in chance.sample(batch, 20):
        time.sleep(chance.choice((0, 0, 0.001, 0.01)))
        try:
            arena.cancel(job_id)
        except AlreadyFinal:
            continue
    return batch


def test_drains(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_drains, stores, tmp_path)


def _drains(arena: WorkerArena) -> None:
    """SIGTERM with a short grace, SIGINT and a second signal, and a drain by an operator; all at the same time."""
    arena.is_unhurried = True
    common = ("--concurrency", "60", "--poll", "0.5s", "--worker-lease", "10m")
    patient, hasty, asked = (
        arena.start(*flags, *common, is_ready=False)
        for flags in (
            ("--queues", "a", "--grace", f"{GRACE_S}s", "--processes", "2"),
            ("--queues", "b", "--grace", "10m", "--processes", "1"),
            ("--queues", "c", "--grace", f"{GRACE_S}s", "--processes", "1", "--node", "asked"),
        )
    )
    within_grace, within_drain = arena.folder / "within-grace", arena.folder / "within-drain"
    long = arena.enqueue_many("rest", [{"seconds": 600}] * 23, queue="a")
    long += [arena.enqueue("stubborn", queue="a"), arena.enqueue("parent_of_many", queue="a")]
    other = [arena.enqueue("rest", {"seconds": 600}, queue="b"), arena.enqueue("sit", {"seconds": 600}, queue="b")]
    quick = arena.enqueue_many("hold_async", [{"until": str(within_grace)}] * 30, queue="b")
    still = [arena.enqueue(task, {"until": str(within_drain)}, queue="c") for task in ("hold", "hold_async")]
    for job_id in (*long[-2:], other[-1], still[0]):
        arena.wait_trace("begin", job_id)
    running = [*long, *other, *quick, *still]
    wait_for(lambda: arena.statuses(running).keys() == {"RUNNING"}, "the jobs to run", describe=arena.describe)
    families = {pid for worker in arena.workers for pid in worker.family()}

    with ThreadPoolExecutor(3) as pool:
        end = pool.submit(_end, patient)
        draining = [
            pool.submit(_two_signals, arena, hasty, quick, within_grace),
            pool.submit(_ask_to_drain, arena, asked, within_drain),
        ]
    end.result()
    late = [arena.enqueue("nothing", queue="a"), *(one.result() for one in draining)]
    wait_for(lambda: not any(map(is_alive, families)), "the children to end")
    assert arena.statuses(quick) == {"COMPLETED": 30}
    assert arena.statuses(still) == {"COMPLETED": 2}
    for jobs in (long, other, late):
        assert arena.statuses(jobs) == {"PENDING": len(jobs)}
    assert arena.sql("select count(*) from headway_jobs where failures > 0") == [(0,)]
    for job_id in (*long, *other):
        assert arena.attempts(job_id) == [(1, "released")]
    assert arena.sql("select count(*) from headway_nodes") == [(0,)], "a drained node leaves cleanly"


def _end(worker: Worker) -> None:
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def _two_signals(arena: WorkerArena, worker: Worker, quick: list[str], within_grace: Path) -> str:
    """Let jobs end within the grace, and do not wait for its end; return a job that came too late."""
    worker.signal(signal.SIGINT)
    wait_until(lambda: worker.said("draining"), "the worker to drain")
    late = arena.enqueue("nothing_async", queue="b")
    within_grace.touch()
    arena.wait_final(quick)
    assert worker.is_running(), "the grace is ten minutes"
    _end(worker)
    return late


def _ask_to_drain(arena: WorkerArena, worker: Worker, within_drain: Path) -> str:
    """Drain by an operator while jobs take longer than the grace; return a job that came too late."""
    done = headway("workers", "drain", "asked", store=arena.store)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: worker.said("draining"), "the worker to drain")
    late = arena.enqueue("nothing_async", queue="c")
    time.sleep(1.5 * GRACE_S)  # The grace does not apply here.
    assert worker.is_running(), "a drain waits for its jobs"
    within_drain.touch()
    assert worker.wait() == 0
    return late


def test_worker_with_many_processes_releases_everything(tmp_path: Path) -> None:
    """L7: one scan of all processes of the host serves all children, and no child starts while the worker drains."""
    everywhere(_many_processes, {"sqlite": f"sqlite:///{tmp_path}/headway.db"}, tmp_path)


def _many_processes(arena: WorkerArena) -> None:
    arena.is_unhurried = True
    worker = arena.start(*LEASE, "--processes", "8", "--grace", f"{GRACE_S:g}s")
    ids = arena.enqueue_many("hold", [{"until": "/never"}] * 8)
    wait_until(lambda: len(arena.trace("begin")) == 8, "all jobs to begin")
    wait_until(lambda: worker.log.read_text().count("child_ready") >= 10, "a child of each kind")
    began = worker.log.read_text().count("child_ready")
    worker.signal(signal.SIGTERM)
    worker.wait()
    assert [arena.job(job_id, "status", "failures") for job_id in ids] == [("PENDING", 0)] * 8
    assert worker.log.read_text().count("child_ready") == began
    wait_until(lambda: not worker.family(), "the end of all children")
