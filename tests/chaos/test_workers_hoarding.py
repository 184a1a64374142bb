"""No worker holds jobs that another could run, and only a job whose code has begun can be charged (L2, L6)."""

from pathlib import Path

import msgspec
import pytest

from tests.chaos.worker_arena import MANY_S_MAX, WorkerArena, everywhere
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

MANY = 200


def test_workers_share_jobs_that_turn_out_to_be_long(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_long_after_short, stores, tmp_path)


def _long_after_short(arena: WorkerArena) -> None:
    """The task was short many times, so many of its jobs are prefetched; then they are long."""
    there, sign = arena.folder / "there", arena.folder / "sign"
    there.touch()
    first = arena.start("--processes", "2", "--worker-lease", "10m")
    arena.start("--processes", "2", "--worker-lease", "10m")
    arena.wait_final(arena.enqueue_many("sit", [{"seconds": 0}] * 300))
    ids = arena.enqueue_many("sit", [{"seconds": 0.3}] * 120)
    arena.wait_final(ids)
    shares = arena.sql(f"select count(*) from headway_jobs where id in ({_listed(ids)}) group by node")
    assert len(shares) == 2, "one worker had all of them"
    assert min(shares)[0] >= 10
    arena.wait_final(arena.enqueue_many("hold", [{"until": str(there)}] * 300))
    ids = arena.enqueue_many("hold", [{"until": str(sign)}] * MANY)
    wait_until(lambda: _running_by_node(arena) == [2, 2], "two jobs to run on each worker, and no more to be held")
    assert _slots_used(arena) <= 4
    family = {str(pid) for pid in first.family()}
    begun = {job_id for job_id, _, pid, *_ in arena.trace("begin") if job_id in ids and pid in family}
    first.process.kill()
    first.wait()
    assert len(begun) == 2
    arena.run_out(*_held_beside(arena, begun))
    sign.touch()
    arena.wait_final(ids, MANY_S_MAX)
    assert {arena.job(job_id, "status", "failures") for job_id in ids} == {("COMPLETED", 0)}
    lost = f"select job_id from headway_attempts where outcome = 'expired' and job_id in ({_listed(ids)})"
    assert {job_id for (job_id,) in arena.sql(lost)} >= begun


def _held_beside(arena: WorkerArena, begun: set[str]) -> list[str]:
    """Return what the worker of these jobs holds: it may have claimed more a moment before its end."""
    node = f"select node from headway_jobs where id in ({_listed(sorted(begun))})"
    return [
        job_id
        for (job_id,) in arena.sql(f"select id from headway_jobs where lease_until is not null and node in ({node})")
    ]


def _running_by_node(arena: WorkerArena) -> list[int]:
    rows = arena.sql("select count(*) from headway_jobs where status = 'RUNNING' group by node")
    return [count for (count,) in rows]


def _slots_used(arena: WorkerArena) -> int:
    states = [msgspec.json.decode(state) for (state,) in arena.sql("select state from headway_nodes")]
    return sum(state["worker"]["running"] for state in states if "worker" in state)


def _listed(ids: list[str]) -> str:
    return ", ".join(f"'{job_id}'" for job_id in ids)
