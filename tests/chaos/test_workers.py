"""Workers that die, freeze and restart under their own name: no job is lost, none ends twice, stale writes are
rejected.

Every scenario runs on SQLite and PostgreSQL at the same time. Leases are so long that none expires by chance; the test
sets their end back in the store. One worker has a short lease, since it has to be frozen past it.
"""

import itertools
import signal
import time
from pathlib import Path

import pytest

from headway.core.instants import SECOND
from tests.chaos.worker_arena import Worker, WorkerArena, everywhere, wait_for
from tests.support.processes import is_alive

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

LEASE_S = 600
FLAGS = ("--processes", "2", "--poll", "0.5s", "--worker-lease", f"{LEASE_S}s")
SHORT_LEASE = ("--worker-lease", "3s")


def test_lost_workers(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_lost_workers, stores, tmp_path)


def _lost_workers(arena: WorkerArena) -> None:
    """Kill one worker, kill one and restart it with the same name, freeze one past its lease."""
    more = {"a": (), "b": (), "c": SHORT_LEASE}
    victims = {
        name: arena.start("--queues", name, "--node", name, *FLAGS, *more[name], is_ready=False) for name in "abc"
    }
    killed = [arena.enqueue("sit", {"seconds": 600, "only_first": True}, queue="a") for _ in range(2)]
    nested = arena.enqueue("parent_of_many", queue="b", max_attempts=1)
    twin = arena.enqueue("sit", {"seconds": 600, "only_first": True}, queue="b")
    for job_id in (*killed, twin, nested):
        arena.wait_trace("begin", job_id)
    family = victims["a"].family() | victims["b"].family()
    assert len(family) >= 4 + 3, "the victims have children, and one of them has children of its own"

    frozen, marker, unheard = _freeze_at_work(arena, victims["c"])
    frozen_child = arena.trace("begin", frozen)[0][2]
    for name in "ab":
        victims[name].signal(signal.SIGKILL)
        victims[name].wait()
    arena.start("--queues", "b", "--node", "b", *FLAGS, is_ready=False)  # The same name, but another node.
    arena.start("--queues", "a,c", "--node", "rescuer", *FLAGS, is_ready=False)
    wait_for(lambda: not any(map(is_alive, family)), "the children of dead workers to end")
    arena.wait_final([arena.enqueue("nothing_async", queue=name) for name in "ab"])
    assert arena.statuses([*killed, twin, nested]) == {"RUNNING": 4}, "a leased job is not claimed"
    arena.run_out(*killed, twin, nested)
    rescued = [*killed, twin, frozen, unheard]
    arena.wait_final(rescued)
    assert is_alive(frozen_child), "the worker must not know yet that it has lost its job"
    marker.touch()
    # The child sends to a frozen supervisor, and waits for the responses.
    assert arena.wait_trace("trying", frozen)[0][3] == "child"
    time.sleep(0.2)  # So that it has sent something. Without this the test checks less, and passes as well.
    victims["c"].signal(signal.SIGCONT)
    wait_for(lambda: not is_alive(frozen_child), "the child of the thawed worker to end", describe=arena.describe)
    assert victims["c"].is_running()

    arena.check_ended_once(rescued)
    for job_id in rescued:
        assert arena.outcomes(job_id) == ["expired", "completed"]
        failures, attempt, result = arena.job(job_id, "failures", "attempt", "result")
        assert failures == 0
        assert result == ('"second"' if job_id == frozen else str(attempt))
    _check_nothing_stale(arena, frozen)
    arena.cancel(nested)


def _freeze_at_work(arena: WorkerArena, worker: Worker) -> tuple[str, Path, str]:
    """Freeze a worker with a short lease while it runs two jobs; one ends then, but is reported too late.

    Return the one that continues, the file that it waits for, and the one that has ended.
    """
    for number in itertools.count():
        marker, end = (arena.folder / f"{what}-{number}" for what in ("thawed", "end"))
        going_on = arena.enqueue("stale", {"marker": str(marker)}, queue="c")
        unheard = arena.enqueue("hold", {"until": str(end), "only_first": True}, queue="c")
        begun = [arena.wait_trace("begin", job_id)[0] for job_id in (going_on, unheard)]
        arena.freeze(worker)
        states = [arena.job(job_id, "status", "attempt") for job_id in (going_on, unheard)]
        if states == [("RUNNING", 1)] * 2 and all(is_alive(pid) for _, _, pid in begun):
            end.touch()
            arena.wait_trace("end", unheard)
            return going_on, marker, unheard
        # The machine was so slow that the lease expired before the worker was frozen.
        worker.signal(signal.SIGCONT)
        marker.touch()
        end.touch()
        arena.wait_final([going_on, unheard])
    raise AssertionError


def test_writes_of_a_worker_that_lost_its_lease_are_rejected(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_stale_and_alive, stores, tmp_path)


def _stale_and_alive(arena: WorkerArena) -> None:
    """S3: a job moves to another worker without the knowledge of the first, which is alive; its writes are rejected."""
    marker = arena.folder / "go"
    victim = arena.start("--queues", "a", *FLAGS, "--processes", "1", is_ready=False)
    arena.start("--queues", "b", *FLAGS, "--processes", "1", is_ready=False)
    job = arena.enqueue("stale", {"marker": str(marker)}, queue="a")
    arena.wait_trace("begin", job)
    # A worker extends the lease of its first job at once, and then after a third of its time.
    extended = f"select 1 from headway_jobs where id = '{job}' and lease_until > started_at + {LEASE_S * SECOND}"
    wait_for(lambda: arena.sql(extended), "the lease to be extended", describe=arena.describe)
    arena.write(f"update headway_jobs set lease_until = 1, queue = 'b' where id = '{job}'")
    arena.wait_status(job, "COMPLETED")
    marker.touch()
    refused = arena.wait_trace("refused", job, 2)
    assert [line[3:] for line in refused] == [["child", "LeaseLost"], ["step", "LeaseLost"]]
    wait_for(lambda: victim.said("refused"), "the result to be rejected", describe=arena.describe)
    assert arena.outcomes(job) == ["expired", "completed"]
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
