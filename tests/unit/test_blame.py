"""Only the job that killed a worker is charged for its loss, not the jobs that ran beside it. Virtual time."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from headway import Headway
from headway.core.errors import StoreUnavailable
from headway.core.instants import SECOND
from headway.core.jobs import Claimed
from headway.core.settings import Settings
from headway.testing import virtual
from headway.testing.world import World
from tests.simulation.stage import Stage, until
from tests.simulation.virtual_loop import virtual as virtual_loop
from tests.unit.test_node import SETTINGS, Actor, Worker, enqueue, jobs

LOOK_S = 1.0
LEASE_S = 10


class Killers:
    """A virtual world in which some jobs kill the worker that runs them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.fatal: dict[str, float] = {}
        self.deaths = 0

    def enqueue(self, seconds: float, *, kills_after_s: float | None = None) -> str:
        """Enqueue a job that runs for some seconds, unless it kills its worker before."""
        job = self.world.enqueue("work", {"seconds": seconds})
        if kills_after_s is not None:
            self.fatal[job.id] = kills_after_s
        return job.id

    def step(self) -> None:
        """Advance the clock, and kill workers whose fatal job has run long enough."""
        self.world.advance(seconds=LOOK_S)
        for job_id, after_s in self.fatal.items():
            job = self.world.job(job_id).job
            started_s = (job.started_at or 0) / SECOND
            if job.status == "RUNNING" and self.world.now.timestamp() - started_s >= after_s and self._runs(job_id):
                self.world.kill_worker(job_id)
                self.deaths += 1

    def _runs(self, job_id: str) -> bool:
        return any(process.child_pool is not None and process.child_pool.has(job_id) for process in self.world._workers)

    def live(self, job_ids: list[str], *, within_s: float) -> set[str]:
        """Advance the clock until these jobs have ended; return their final states."""
        waiting = [*job_ids]
        for _ in range(round(within_s / LOOK_S)):
            self.step()
            while waiting and self.has_ended(waiting[-1]):  # For good: final states never change.
                waiting.pop()
            if not waiting:
                break
        return {str(self.world.job(job_id).status) for job_id in job_ids}

    def has_ended(self, job_id: str) -> bool:
        """Return whether a job is in a final state."""
        return self.world.job(job_id).status.is_final

    def charged(self, job_ids: list[str]) -> int:
        """Return the total number of failures charged to these jobs."""
        return sum(self.world.job(job_id).job.failures for job_id in job_ids)


@contextmanager
def killers(*, workers: int = 2, slots: int = 100) -> Iterator[Killers]:
    settings = replace(Settings.load({}), worker_lease=LEASE_S * SECOND, concurrency=slots)
    app = Headway(name="blame", settings=settings)

    @app.task(name="work")
    async def work(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    with virtual(app, seed=1, workers=workers) as world:
        yield Killers(world)
        world.assert_promises()


@pytest.mark.parametrize(("workers", "slots"), [(1, 8), (2, 8), (1, 1), (3, 2)])
def test_only_the_job_that_kills_its_worker_becomes_a_dead_letter(workers: int, slots: int) -> None:
    with killers(workers=workers, slots=slots) as world:
        innocents = [world.enqueue(20) for _ in range(4)]
        culprit = world.enqueue(60, kills_after_s=3)
        innocents += [world.enqueue(20) for _ in range(3)]
        assert world.live([culprit], within_s=1800) == {"FAILED"}
        assert "worker lost" in world.world.job(culprit).job.reason
        assert world.live(innocents, within_s=1800) == {"COMPLETED"}
        assert world.charged(innocents) == 0
        assert world.deaths <= 6


def test_two_culprits_are_found_under_load() -> None:
    """Keep more short jobs than slots enqueued, and one job of an hour from the beginning."""
    with killers(workers=2, slots=4) as world:
        long = world.enqueue(3600)
        culprits = [world.enqueue(60, kills_after_s=2), world.enqueue(600, kills_after_s=45)]
        innocents: list[str] = []
        live: list[str] = []
        for _ in range(1200):
            live = [job_id for job_id in live if not world.has_ended(job_id)]
            added = [world.enqueue(3) for _ in range(12 - len(live))]
            live += added
            innocents += added
            world.step()
            if all(world.has_ended(job_id) for job_id in culprits):
                break
        assert {str(world.world.job(job_id).status) for job_id in culprits} == {"FAILED"}
        world.fatal.clear()
        assert world.live([long, *innocents], within_s=8000) == {"COMPLETED"}
        assert world.charged([long, *innocents]) == 0


def test_long_job_survives_several_culprits() -> None:
    with killers(workers=1, slots=8) as world:
        long = world.enqueue(900)
        culprits = []
        for _ in range(3):
            culprits.append(world.enqueue(60, kills_after_s=5))
            for _ in range(90):
                world.step()
        assert world.live([long], within_s=7200) == {"COMPLETED"}
        assert world.charged([long]) == 0
        assert world.live(culprits, within_s=7200) == {"FAILED"}


def test_crash_of_a_worker_with_many_slots_does_not_serialise_its_jobs() -> None:
    """After the second crash suspects run in groups, and no group waits for another."""
    with killers(workers=1, slots=100) as world:
        jobs = [world.enqueue(600) for _ in range(100)]
        for _ in range(2):
            world.world.advance(seconds=200)
            world.world.kill_worker(next(job.id for job in world.world.jobs(status="RUNNING")))
            world.world.advance(seconds=LEASE_S + 30)
            assert len(world.world.jobs(status="RUNNING")) >= 12
        assert world.live(jobs, within_s=4 * 3600) == {"COMPLETED"}
        assert world.charged(jobs) == 0


# --- workers that survive


class LosesClaims:
    """A work port whose first `times` claim responses are lost."""

    def __init__(self, work: Any, times: int) -> None:
        self._work = work
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    async def claim(self, *args: Any, **options: Any) -> list[Claimed]:
        jobs: list[Claimed] = await self._work.claim(*args, **options)
        if jobs and self.times:
            self.times -= 1
            raise StoreUnavailable("the response was lost")
        return jobs


@virtual_loop
async def test_jobs_of_a_lost_claim_response_are_released_at_once() -> None:
    settings = replace(SETTINGS, worker_lease=60 * SECOND)
    async with Stage() as stage:
        worker = Worker(stage.seat(), 1.0, settings)
        await asyncio.sleep(2.0)
        worker.supervisor.claimer._work = LosesClaims(worker.seat.store.work, 4)
        await enqueue(stage, "a", "b")
        await until(lambda: jobs(stage, "status") == ["COMPLETED"] * 2, within_s=50.0)
        assert jobs(stage, "attempt", "failures") == [(5, 0)] * 2
        assert {row["outcome"] for row in stage.sql("select outcome from headway_attempts")} == {"released"}
        assert worker.child_pool.abandoned == []
        await worker.stop()


@pytest.mark.parametrize("is_alone", [True, False])
@virtual_loop
async def test_store_outage_is_not_charged_to_jobs(is_alone: bool) -> None:
    """Let the store fail longer than the lease, and more often than a job may lose its worker."""
    settings = replace(SETTINGS, worker_lease=6 * SECOND)
    async with Stage() as stage:
        worker = Worker(stage.seat("node_w"), 20.0, settings)
        others = [] if is_alone else [Actor(stage.seat("node_a"), settings)]
        await enqueue(stage, "a")
        for _ in range(5):
            await until(lambda: len(worker.child_pool.running) == 1, within_s=30.0)
            await asyncio.sleep(2.0)
            worker.seat.driver.is_down = True
            await until(lambda: not worker.child_pool.running, within_s=10.0)
            await asyncio.sleep(8.0)
            worker.seat.driver.is_down = False
        await until(lambda: jobs(stage, "status") == ["COMPLETED"], within_s=60.0)
        assert jobs(stage, "failures", "company") == [(0, None)]
        lost = [row["outcome"] for row in stage.sql("select outcome from headway_attempts")]
        assert len(lost) == 5
        assert is_alone or "expired" in lost
        for actor in [worker, *others]:
            await actor.stop()
