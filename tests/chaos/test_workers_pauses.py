"""A paused child blocks nothing: jobs that were assigned to it and have not begun are withdrawn (L2, L9)."""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.chaos.worker_arena import Worker, WorkerArena, everywhere
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

MANY = 200


def test_paused_children_block_nothing(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_pauses, stores, tmp_path)


def _pauses(arena: WorkerArena) -> None:
    worker = arena.start("--processes", "2", "--worker-lease", "10m")
    arena.wait_final(arena.enqueue_many("nothing", [{}] * 300))  # They are short, so that more are prefetched.
    children = _children(worker)
    for pid in children:
        os.kill(pid, signal.SIGSTOP)
    ids = arena.enqueue_many("nothing", [{}] * MANY)
    wait_until(lambda: _released(arena, ids), "jobs to be withdrawn from paused children")
    for pid in children[:1]:
        os.kill(pid, signal.SIGCONT)
    arena.wait_final(ids)  # One child resumes; the other never does, and is replaced.
    assert {arena.job(job_id, "status") for job_id in ids} == {"COMPLETED"}
    assert {arena.job(job_id, "failures") for job_id in ids} == {0}
    wait_until(lambda: len(_children(worker)) == 2 and children[1] not in _children(worker), "another child")
    alone = arena.enqueue_many("nothing", [{}] * 2)
    arena.wait_final(alone)


def test_single_assigned_job_is_withdrawn(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_alone, stores, tmp_path)


def _alone(arena: WorkerArena) -> None:
    """No job waits behind it, so only the watchdog for assigned jobs can notice it."""
    worker = arena.start("--processes", "1", "--worker-lease", "10m")
    arena.wait_final(arena.enqueue_many("nothing", [{}]))
    (child,) = _children(worker)
    os.kill(child, signal.SIGSTOP)
    (job_id,) = arena.enqueue_many("nothing", [{}], timeout="1s")
    arena.wait_final([job_id])
    assert (arena.job(job_id, "status"), arena.job(job_id, "failures")) == ("COMPLETED", 0)
    assert "timed_out" not in arena.outcomes(job_id), "its timeout had not begun"
    assert _children(worker) != [child]


def _released(arena: WorkerArena, ids: list[str]) -> bool:
    listed = ", ".join(f"'{job_id}'" for job_id in ids)
    query = f"select count(*) from headway_attempts where outcome = 'released' and job_id in ({listed})"
    return bool(arena.sql(query)[0][0] >= 2)


def _children(worker: Worker) -> list[int]:
    """Return the children that run one job at a time."""
    return sorted(pid for pid in worker.family() if re.search(r"\bprocess\b", _command(pid)))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
