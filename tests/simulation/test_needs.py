"""Needs under faults: real supervisors with offers and simulated children, lost answers, outages, crashes, cancels."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

import pytest

from headway.core.errors import HeadwayError
from headway.core.instants import SECOND
from headway.core.jobs import Claimed, NewJob
from headway.core.lifecycle import Backoff
from headway.core.needs import Needs, Offer
from headway.core.settings import Settings
from headway.wiring.node import EngineNode
from headway.wiring.roles import world_of
from headway.worker.capacity import Capacity
from headway.worker.supervisor import Supervisor
from tests.simulation.checkers import Violation, require
from tests.simulation.child import ProcessState
from tests.simulation.child_pool import SimulatedChildPool
from tests.simulation.needs_checker import NeedsChecker
from tests.simulation.scenario import TASKS
from tests.simulation.stage import Seat, Stage, until
from tests.simulation.virtual_loop import run_virtual

SEEDS: Final = range(8)
CHAOS_S: Final = 40.0
QUIET_S: Final = 240.0
OFFERS: Final = {
    "node_small": {"cpu": 2},
    "node_big": {"cpu": 4, "gpu": 1},
    "node_other": {"cpu": 3, "memory": 8},
}
LABELS: Final = {"node_big": "eu", "node_other": "us"}
NEEDS: Final = (
    *("", "", "cpu=1", "cpu=1", "cpu=1", "cpu=0.5", "cpu=2", "cpu=3", "cpu=4", "cpu=1 gpu=1", "gpu=1", "memory=5"),
    *("cpu=3 memory=8", "zone:eu", "cpu=1 zone:us"),
)


class _Onlooker:
    """Counts what happens to jobs, and gives each its own chance."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.seen: Counter[str] = Counter()

    def begins(self, claimed: Claimed) -> None:
        self.seen["began"] += 1

    def repeats_step(self, claimed: Claimed, name: str) -> None:
        pass

    def saw(self, what: str) -> None:
        self.seen[what] += 1

    def chance(self, whose: str) -> random.Random:
        return random.Random(f"{self._seed} {whose}")


class _Worker:
    """A worker with an offer: its node, its children, and its connection to the store."""

    def __init__(self, stage: Stage, name: str, onlooker: _Onlooker, check: Callable[[], None]) -> None:
        self.seat = seat = stage.seat(name)
        seat.driver.run = self._checked(seat.driver.run, check)  # type: ignore[method-assign]
        around = ProcessState(
            stage=onlooker,
            knows=tuple(TASKS),
            heard=_at_once,
            is_frozen=lambda: False,
            new_id=lambda: seat.clock.new_id("job"),
            kill_worker=lambda: None,
        )
        self.child_pool = SimulatedChildPool(around, seat.clock)
        settings = replace(Settings(), worker_lease=4 * SECOND, leader_lease=4 * SECOND)
        amounts = {resource: amount * 1_000 for resource, amount in OFFERS[name].items()}
        labels = {"zone": LABELS[name]} if name in LABELS else {}
        supervisor = Supervisor(
            seat.store.work,
            self.child_pool,
            clock=seat.clock,
            lease=settings.worker_lease,
            poll=settings.poll,
        )
        supervisor.offer(Offer(amounts, labels))
        self.node = EngineNode(world_of(seat.store), settings, seat.clock, schedules=False, supervisor=supervisor)
        self.task = asyncio.get_running_loop().create_task(self.node.run())

    def _checked(self, run: Callable[..., Any], check: Callable[[], None]) -> Callable[..., Any]:
        async def checked(begin: Any) -> Any:
            try:
                return await run(begin)
            finally:
                check()

        return checked

    def running(self) -> list[tuple[str, str, str]]:
        """Return the attempts whose code runs here."""
        found = []
        for child in self.child_pool.children:
            found += [(self.seat.clock.node, run.claimed.job_id, run.claimed.needs) for run in child.running.values()]
        return found


async def _at_once() -> None:
    """Hear at once."""


class _World:
    """Workers on one store, and a checker that sees each commit."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.chance = random.Random(f"needs {seed}")
        self.onlooker = _Onlooker(seed)
        self.checker = NeedsChecker(OFFERS, LABELS)
        self.problem: Violation | None = None
        self.client: Seat = stage.seat("client")
        self.workers: list[_Worker] = []
        self.workers += [_Worker(stage, name, self.onlooker, self.check) for name in OFFERS]

    def check(self) -> None:
        leased = self.stage.sql(
            "select node, id, needs from headway_jobs where lease_until > ? order by id", self.stage.now()
        )
        running = [attempt for worker in self.workers for attempt in worker.running()]
        try:
            self.checker.check(leased, running)
        except Violation as problem:
            self.problem = self.problem or problem

    async def disturb(self) -> None:
        """Enqueue jobs, cancel some, lose answers, and cut workers off for longer than their leases."""
        end = asyncio.get_running_loop().time() + CHAOS_S
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(self.chance.uniform(0.05, 0.8))
            await self.client.store.queue.enqueue([self._job() for _ in range(self.chance.randint(0, 3))])
            worker = self.chance.choice(self.workers)
            draw = self.chance.random()
            if draw < 0.2:
                worker.seat.driver.loses_answer = self.chance.randint(1, 3)
                self.onlooker.saw("answer lost")
            elif draw < 0.25:
                asyncio.get_running_loop().create_task(self._cut_off(worker))
            elif draw < 0.4:
                await self._cancel()
            elif draw < 0.45 and worker.child_pool.children:
                self.chance.choice(worker.child_pool.children).kill()
                self.onlooker.saw("child killed")

    def _job(self) -> NewJob:
        return NewJob(
            id=self.client.clock.new_id("job"),
            task=self.chance.choice(tuple(TASKS)),
            queue=self.chance.choice(("default", "slow")),
            tenant=self.chance.choice(("default", "default", "acme", "globex")),
            needs=self.chance.choice(NEEDS),
            max_attempts=self.chance.randint(1, 3),
            backoff=Backoff(first=SECOND // 10, most=SECOND),
        )

    async def _cancel(self) -> None:
        rows = self.stage.sql("select id from headway_jobs where status in ('RUNNING', 'PENDING') order by id")
        if rows:
            try:
                await self.client.store.queue.cancel(self.chance.choice(rows)[0], author="ada")
                self.onlooker.saw("cancelled")
            except HeadwayError:
                self.onlooker.saw("not cancelled")

    async def _cut_off(self, worker: _Worker) -> None:
        self.onlooker.saw("cut off")
        worker.seat.driver.is_down = True
        await asyncio.sleep(self.chance.uniform(1.0, 9.0))
        worker.seat.driver.is_down = False

    async def recover(self) -> None:
        """End all faults; every job has to end."""
        for worker in self.workers:
            worker.child_pool.calm()
            worker.seat.driver.is_down, worker.seat.driver.loses_answer = False, 0
        await until(lambda: not self._unfinished(), within_s=QUIET_S, step_s=0.5)

    def _unfinished(self) -> list[Any]:
        return self.stage.sql("select id from headway_jobs where finished_at is null and parked is null")


async def _play(seed: int) -> Counter[str]:
    async with Stage() as stage:
        world = _World(stage, seed)
        await asyncio.sleep(2.0)
        await world.disturb()
        await world.recover()
        for worker in world.workers:
            worker.node.hurry()
        await asyncio.gather(*(worker.task for worker in world.workers))
        if world.problem is not None:
            raise world.problem
        return world.onlooker.seen + world.checker.seen


def _play_all(seeds: Iterable[int]) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            seen += run_virtual(_play(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    return seen


def test_no_worker_ever_runs_more_than_it_offers() -> None:
    seen = _play_all(SEEDS)
    for what in (
        *("began", "answer lost", "cut off", "cancelled", "child killed", "child crashed with jobs"),
        *("a resource was used up", "a lease with needs", "running code with needs"),
    ):
        require(seen[what] > 3, "the campaign proves nothing: it never saw", what, seen)


def test_worker_that_counts_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Capacity, "free", lambda self: dict(self.offer.amounts))
    with pytest.raises(Violation, match=r"more .* used than offered"):
        run_virtual(_play(0))


def test_worker_that_forgets_what_it_has_lost_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Capacity, "lose", lambda *_: None)
    with pytest.raises(Violation, match=r"more .* used than offered"):
        _play_all(range(8))


def test_worker_that_ignores_labels_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    covers = Offer.covers
    monkeypatch.setattr(Offer, "covers", lambda self, needs: needs is not None and covers(self, Needs(needs.amounts)))
    with pytest.raises(Violation, match="without its label"):
        run_virtual(_play(0))
