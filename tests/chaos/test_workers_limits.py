"""S8 with real workers that are killed, stopped and frozen while they hold the places of limits.

Every scenario runs on SQLite and PostgreSQL. Leases are so long that none expires by chance; the test sets their end
back in the store.
"""

import signal
from pathlib import Path

import pytest

from headway.core.limit_audit import audit_limits
from headway.core.limits import Limit
from headway.store import Store
from tests.chaos.arena import with_store
from tests.chaos.worker_arena import WorkerArena, everywhere, wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

FLAGS = ("--processes", "2", "--poll", "0.5s", "--worker-lease", "600s")


def _limit(arena: WorkerArena, *limits: Limit) -> None:
    async def put(store: Store) -> None:
        for limit in limits:
            await store.limits.put(limit, author="tests")

    with_store(arena.store, put)


def _check_limits(arena: WorkerArena) -> None:
    async def check(store: Store) -> None:
        spans, _ = await store.limit_reads.spans(0)
        revisions, _ = await store.limit_reads.revisions()
        assert spans
        assert audit_limits(spans, revisions) == []

    with_store(arena.store, check)


def _passes_by(arena: WorkerArena, queue: str) -> None:
    """Wait until a worker has claimed again: a job that could start would have been started before this one."""
    for _ in range(2):
        arena.wait_final([arena.enqueue("nothing_async", queue=queue, tenant="globex")])


def test_places_of_lost_workers_come_back(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_lost_places, stores, tmp_path)


def _lost_places(arena: WorkerArena) -> None:
    """Kill a worker that holds all places of a limit; then stop one in order, which hands its job back."""
    _limit(arena, Limit.build("account-*", concurrency=2), Limit.build("queue:b", concurrency=20, rate="1000/s"))
    victim = arena.start("--queues", "a", *FLAGS, is_ready=False)
    end = arena.folder / "end"
    holders = [
        arena.enqueue("hold", {"until": str(end), "only_first": True}, queue="a", limit="account-1", tenant="acme")
        for _ in range(2)
    ]
    for job_id in holders:
        arena.wait_trace("begin", job_id)
    waiting = [
        arena.enqueue("nothing_async", queue="b", limit="account-1", tenant=name) for name in ("acme", "default")
    ]
    arena.start("--queues", "b", *FLAGS, is_ready=False)
    victim.signal(signal.SIGKILL)
    victim.wait()
    _passes_by(arena, "b")
    assert arena.statuses(waiting) == {"PENDING": 2}, "a place is given away before its lease has run out"
    arena.run_out(holders[0])
    arena.wait_final(waiting)
    assert arena.statuses(holders[1:]) == {"RUNNING": 1}
    arena.run_out(holders[1])

    heir = arena.start("--queues", "a", *FLAGS, is_ready=False, HEADWAY_GRACE="0s")
    arena.wait_final(holders)
    last = [
        arena.enqueue("hold", {"until": str(end) + "-never"}, queue="a", limit="account-1", max_attempts=9)
        for _ in range(2)
    ]
    for job_id in last:
        arena.wait_trace("begin", job_id)
    after = arena.enqueue("nothing_async", queue="b", limit="account-1")
    _passes_by(arena, "b")
    assert arena.job(after, "status") == "PENDING"
    heir.signal(signal.SIGTERM)
    heir.wait()
    arena.wait_final([after])
    assert {outcome for job_id in last for _, outcome in arena.attempts(job_id)} == {"released"}
    _check_limits(arena)


def test_worker_that_is_frozen_past_its_lease_loses_its_place(stores: dict[str, str], tmp_path: Path) -> None:
    everywhere(_frozen_place, stores, tmp_path)


def _frozen_place(arena: WorkerArena) -> None:
    _limit(arena, Limit.build("task:hold", concurrency=1))
    frozen = arena.start("--queues", "c", *FLAGS, "--worker-lease", "3s", is_ready=False)
    end = arena.folder / "end"
    held = arena.enqueue("hold", {"until": str(end), "only_first": True}, queue="c", max_attempts=9)
    arena.wait_trace("begin", held)
    arena.freeze(frozen)
    others = [arena.enqueue("hold", {"until": "/"}, queue="c") for _ in range(3)]
    arena.start("--queues", "c", *FLAGS, is_ready=False)
    arena.wait_final([held, *others])  # When the lease has run out.
    frozen.signal(signal.SIGCONT)
    end.touch()
    more = [arena.enqueue("hold", {"until": "/"}, queue="c") for _ in range(6)]
    assert arena.wait_final(more) == {"COMPLETED": 6}
    wait_for(
        lambda: frozen.said("lost") or frozen.said("refused"), "the frozen worker to notice", describe=arena.describe
    )
    arena.check_ended_once([held, *others, *more])
    _check_limits(arena)
