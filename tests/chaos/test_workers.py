"""Workers that die, freeze and come back under their own name: no job is lost, none ends twice, nobody stale writes.

Every scenario is played on SQLite and PostgreSQL at the same time.
"""

import signal
import time
from pathlib import Path

import pytest

from tests.chaos.worker_arena import PATIENCE_S, WorkerArena, everywhere, is_alive, wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(180)]

LEASE_S = 3.0
RESCUE_S_MAX = LEASE_S + 10.0
FLAGS = ("--worker-lease", f"{LEASE_S}s", "--processes", "2", "--poll", "0.5s")


def test_lost_workers(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_lost_workers, stores, tmp_path)


def _lost_workers(arena: WorkerArena) -> None:
    """One worker is killed, one is killed and comes back with the same name, one is frozen past its lease."""
    marker = arena.folder / "thawed"
    victims = {name: arena.start("--queues", name, "--node", name, *FLAGS, is_ready=False) for name in "abc"}
    killed = [arena.enqueue("sit", {"seconds": 60, "only_first": True}, queue="a") for _ in range(2)]
    nested = arena.enqueue("parent_of_many", queue="b", max_attempts=1)
    twin = arena.enqueue("sit", {"seconds": 60, "only_first": True}, queue="b")
    frozen = arena.enqueue("stale", {"marker": str(marker)}, queue="c")
    unheard = arena.enqueue("sit", {"seconds": LEASE_S}, queue="c")  # It ends, and nobody hears of it in time.
    for job_id in (*killed, twin, nested, frozen, unheard):
        arena.wait_trace("begin", job_id)
    family = victims["a"].family() | victims["b"].family()
    assert len(family) >= 4 + 3, "the victims have children, and one of these has some, too"

    frozen_child = arena.trace("begin", frozen)[0][2]
    arena.freeze(victims["c"])
    for name in "ab":
        victims[name].signal(signal.SIGKILL)
        victims[name].wait(10)
    fallen = time.monotonic()
    arena.start("--queues", "b", "--node", "b", *FLAGS, is_ready=False)  # The same name, another node.
    arena.start("--queues", "a,c", "--node", "rescuer", *FLAGS, is_ready=False)
    wait_for(lambda: not any(map(is_alive, family)), "the children of dead workers to be gone", 10)
    rescued = [*killed, twin, frozen, unheard]
    for job_id in rescued:
        assert arena.wait_trace("begin", job_id, 2)[1][1] == "2"
        assert time.monotonic() - fallen < RESCUE_S_MAX + 5, "rescued too late, machine noise included"
    arena.wait_final(rescued)
    assert is_alive(frozen_child), "nobody could know that it has lost its job"
    marker.touch()
    # The child speaks into the line of a supervisor that is frozen, and waits for the answers.
    assert arena.wait_trace("trying", frozen)[0][3] == "child"
    time.sleep(0.2)
    victims["c"].signal(signal.SIGCONT)
    wait_for(lambda: not is_alive(frozen_child), "the child of the thawed worker to be gone", PATIENCE_S)
    assert victims["c"].process.poll() is None, victims["c"].log.read_text()

    arena.check_ended_once(rescued)
    for job_id in rescued:
        assert arena.attempts(job_id) == [(1, "expired"), (2, "completed")]
        assert arena.job(job_id, "failures") == 1
    assert arena.job(unheard, "result") == "2"
    _check_nothing_stale(arena, frozen)
    arena.app.cancel_sync(nested)


def test_a_worker_that_trusts_a_lease_which_is_not_its_own_any_more(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_stale_and_alive, stores, tmp_path)


def _stale_and_alive(arena: WorkerArena) -> None:
    """S3: a job is given to somebody else behind the back of a worker that lives; whatever it asks for is refused."""
    marker = arena.folder / "go"
    patient = ("--worker-lease", "10m", "--processes", "1", "--poll", "0.5s")  # It looks after its leases now and then.
    victim = arena.start("--queues", "a", *patient)
    arena.start("--queues", "b", *FLAGS, is_ready=False)
    job = arena.enqueue("stale", {"marker": str(marker)}, queue="a")
    arena.wait_trace("begin", job)
    time.sleep(2)  # It has just extended its lease, then; the next time is far away.
    arena.write(f"update headway_jobs set lease_until = 1, queue = 'b' where id = '{job}'")
    arena.wait_status(job, "COMPLETED")
    marker.touch()
    refused = arena.wait_trace("refused", job, 2)
    assert [line[3:] for line in refused] == [["child", "LeaseLost"], ["step", "LeaseLost"]]
    wait_for(lambda: "refused" in victim.log.read_text(), "the result to be refused, too", PATIENCE_S, arena.describe)
    assert arena.attempts(job) == [(1, "expired"), (2, "completed")]
    arena.check_ended_once([job])
    _check_nothing_stale(arena, job)
    assert arena.sql("select count(*) from headway_jobs") == [(1,)]


def _check_nothing_stale(arena: WorkerArena, job_id: str) -> None:
    result, progress, detail, metadata = arena.job(job_id, "result", "progress", "detail", "metadata")
    assert (result, progress) == ('"second"', 100)
    assert "stale" not in f"{detail} {metadata}"
    assert arena.sql(f"select line from headway_log where job_id = '{job_id}' and line like '%stale%'") == []
    assert arena.sql(f"select name from headway_steps where job_id = '{job_id}'") == []
    assert arena.sql(f"select id from headway_jobs where parent = '{job_id}'") == []
    assert arena.trace("accepted", job_id) == []
