"""L7, L8, L9: time-outs, cancels and drains hold whatever the code does, and nothing that it started survives them."""

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headway.errors import AlreadyFinal
from tests.chaos.arena import headway
from tests.chaos.worker_arena import FULL, Worker, WorkerArena, everywhere, is_alive, wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(240)]

GIL_S = 60 if FULL else 12
CANCELS = 500
NOISE_S = 4.0  # What a busy machine may add to every wait.


def test_the_interpreter_is_held(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_held_interpreter, stores, tmp_path)


def _held_interpreter(arena: WorkerArena) -> None:
    """L9, and L8 in the meantime: one child is deaf for more than two leases, one for years."""
    arena.start("--worker-lease", "5s", "--processes", "6", "--poll", "0.5s")
    deaf = _hold_up_short_jobs(arena)
    hopeless = arena.enqueue("catastrophic")
    [[_, _, pid]] = arena.wait_trace("begin", hopeless)
    merely_slow = arena.enqueue("backtracking")
    _check_cancels(arena)
    arena.wait_status(hopeless, "TIMED_OUT", within_s=15)
    assert not is_alive(pid), "out of time, and still running"
    arena.wait_status(merely_slow, "TIMED_OUT", within_s=15)
    for job_id in (hopeless, merely_slow):
        assert arena.outcomes(job_id) == ["timed_out"]

    arena.wait_status(deaf, "COMPLETED", within_s=GIL_S + 15)
    assert arena.outcomes(deaf) == ["completed"], "a live job was rescued for its age"
    assert arena.job(deaf, "failures") == 0
    assert arena.sql("select count(*) from headway_attempts where outcome = 'expired'") == [(0,)]


def _hold_up_short_jobs(arena: WorkerArena) -> str:
    """Let jobs that are so short that they are prefetched get in line behind one that makes their child deaf."""
    arena.wait_final(arena.enqueue_many("nothing", [{}] * 300))
    tasks = [*["nothing"] * 100, "hold_gil", *["nothing"] * 200]
    args = {"hold_gil": {"seconds": GIL_S}}
    jobs = [arena.app._job_by_name(task, args.get(task), {})[0] for task in tasks]
    arena.app.enqueue_jobs_sync(jobs)
    [deaf] = [job.id for job in jobs if job.task == "hold_gil"]
    arena.wait_final([job.id for job in jobs if job.id != deaf], GIL_S - 4)
    assert arena.job(deaf, "status") == "RUNNING", "they were not behind it, but after it"
    return deaf


def _check_cancels(arena: WorkerArena) -> None:
    """Polite code stops within two seconds, impolite code is killed; CANCELLED is never said before."""
    polite = ("checking", "tracking", "awaiting")
    impolite = ("stubborn", "stubborn_thread", "stubborn_async", "logging_without_end")
    jobs = {task: arena.enqueue(task) for task in polite}
    pids = {task: arena.wait_trace("begin", job_id)[0][2] for task, job_id in jobs.items()}
    asked = time.monotonic()
    for job_id in jobs.values():
        arena.app.cancel_sync(job_id, "enough")
    for task, job_id in jobs.items():
        arena.wait_status(job_id, "CANCELLED", within_s=2 + NOISE_S)
        assert arena.outcomes(job_id) == ["cancelled"], task
        assert "enough" in arena.job(job_id, "reason")
    assert time.monotonic() - asked < 2 + NOISE_S
    assert arena.trace("stopped", jobs["checking"])
    assert arena.trace("stopped", jobs["awaiting"])
    assert all(map(is_alive, pids.values())), "whoever stops when asked need not be killed"

    jobs = {task: arena.enqueue(task) for task in impolite}
    nested = {then: arena.enqueue("parent_of_many", {"then": then}) for then in ("wait", "check")}
    pids = {task: arena.wait_trace("begin", job_id)[0][2] for task, job_id in jobs.items()}
    families = {then: arena.wait_trace("begin", job_id)[0][2:] for then, job_id in nested.items()}
    for then, family in families.items():
        assert len(family) == 4, then
        assert all(map(is_alive, family)), then
    for job_id in (*jobs.values(), *nested.values()):
        arena.app.cancel_sync(job_id)
    for task, job_id in jobs.items():
        arena.wait_status(job_id, "CANCELLED", within_s=10 + NOISE_S)
        if task != "logging_without_end":  # A signal reaches that one; its process is of use yet.
            assert not is_alive(pids[task]), f"{task} was CANCELLED before it had stopped"
    for job_id in nested.values():
        arena.wait_status(job_id, "CANCELLED", within_s=10 + NOISE_S)
    for then, family in families.items():
        left = [pid for pid in family[1:] if is_alive(pid)]
        assert not left, f"processes outlive the job that started them ({then})"


def test_cancels_around_claim_and_completion(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_many_cancels, stores, tmp_path)


def _many_cancels(arena: WorkerArena) -> None:
    arena.start("--processes", "2", "--concurrency", "50", "--poll", "0.5s")
    chance = random.Random(8)
    tasks = ("nothing", "nothing_async", "short", "rest")
    args = {"rest": {"seconds": 0.03}}
    arena.wait_final(arena.enqueue_many("nothing", [{}] * 50))  # So that the children are there, and fill up.
    jobs: list[str] = []
    for _ in range(CANCELS // 20):
        batch = [arena.enqueue(task, args.get(task), max_attempts=1) for task in chance.choices(tasks, k=20)]
        jobs += batch
        for job_id in chance.sample(batch, 20):
            time.sleep(chance.choice((0, 0, 0.001, 0.01)))
            try:
                arena.app.cancel_sync(job_id)
            except AlreadyFinal:
                continue
    ended = arena.wait_final(jobs, 60)
    assert ended.keys() <= {"COMPLETED", "CANCELLED"}, ended
    assert len(ended) == 2, f"the race was never close: {ended}"
    assert arena.sql("select count(*) from headway_jobs") == [(CANCELS + 50,)]
    arena.check_ended_once(jobs)


def test_drains(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_drains, stores, tmp_path)


def _drains(arena: WorkerArena) -> None:
    """SIGTERM with a grace, SIGINT and a second signal, and an operator who asks; all at the same time."""
    common = ("--concurrency", "60", "--poll", "0.5s", "--worker-lease", "30s")
    patient = arena.start("--queues", "a", "--grace", "3s", *common, is_ready=False)
    hasty = arena.start("--queues", "b", "--grace", "10m", *common, is_ready=False)
    asked = arena.start("--queues", "c", "--grace", "1s", "--node", "asked", *common, is_ready=False)
    quick = arena.enqueue_many("rest", [{"seconds": 1}] * 5, queue="a")
    long = arena.enqueue_many("rest", [{"seconds": 60}] * 23, queue="a")
    long += [arena.enqueue("stubborn", queue="a"), arena.enqueue("parent_of_many", queue="a")]
    other = [arena.enqueue("rest", {"seconds": 60}, queue="b"), arena.enqueue("sit", {"seconds": 60}, queue="b")]
    for job_id in (*long[-2:], other[-1]):
        arena.wait_trace("begin", job_id)
    wait_for(lambda: arena.statuses([*long, *other]).keys() == {"RUNNING"}, "the jobs to run", 20, arena.describe)
    still = [arena.enqueue("rest", {"seconds": 4}, queue="c"), arena.enqueue("sit", {"seconds": 4}, queue="c")]
    wait_for(lambda: arena.statuses(still).keys() == {"RUNNING"}, "the jobs to run", 20, arena.describe)
    quick += arena.enqueue_many("rest", [{"seconds": 1}] * 25, queue="a")
    wait_for(lambda: "PENDING" not in arena.statuses(quick), "the jobs to run", 20, arena.describe)
    families = {pid for worker in arena.workers for pid in worker.family()}

    with ThreadPoolExecutor(3) as pool:
        ends = [
            pool.submit(_sigterm, patient, 3 + 2),
            pool.submit(_two_signals, hasty),
            pool.submit(_ask_to_drain, arena, asked),
        ]
    for end in ends:
        end.result()
    late = arena.enqueue("nothing", queue="a")
    wait_for(lambda: not any(map(is_alive, families)), "the children to be gone", 10)
    assert arena.statuses(quick) == {"COMPLETED": 30}
    assert arena.statuses(still) == {"COMPLETED": 2}
    for jobs in (long, other, [late]):
        assert arena.statuses(jobs) == {"PENDING": len(jobs)}
    assert arena.sql("select count(*) from headway_jobs where failures > 0") == [(0,)]
    for job_id in (*long, *other):
        assert arena.attempts(job_id) == [(1, "released")]
    assert arena.sql("select count(*) from headway_nodes") == [(0,)], "a drained node says goodbye"


def _sigterm(worker: Worker, within_s: float) -> None:
    worker.signal(signal.SIGTERM)
    began = time.monotonic()
    assert worker.wait(within_s + 20) == 0, worker.log.read_text()
    took_s = time.monotonic() - began
    assert took_s < within_s + 1.5, f"{took_s:.1f} s, machine noise included"


def _two_signals(worker: Worker) -> None:
    worker.signal(signal.SIGINT)
    time.sleep(1)
    assert worker.process.poll() is None, "it has ten minutes"
    _sigterm(worker, 2)


def _ask_to_drain(arena: WorkerArena, worker: Worker) -> None:
    done = headway("workers", "drain", "asked", store=arena.store)
    assert done.returncode == 0, done.stderr
    assert worker.wait(30) == 0, worker.log.read_text()
