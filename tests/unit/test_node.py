"""Whole nodes on the real store: leadership after failures, and the order of a stop."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest

from headway.core.errors import StoreUnavailable
from headway.core.events import AttemptsLost, Draining, TermLost, TermWon
from headway.core.instants import SECOND, Instant
from headway.core.jobs import Claimed, NewJob, Report
from headway.core.lifecycle import AttemptOutcome, Released, Succeeded
from headway.core.ports import Due, Shards, slot_of
from headway.core.schedules import ScheduleSpec
from headway.core.settings import Settings
from headway.core.triggers import Every
from headway.wiring.node import HOUSEKEEPING, EngineNode, NodePorts
from headway.worker.child_pool_port import SupervisorPort
from headway.worker.ipc import TaskInfo
from headway.worker.supervisor import Supervisor
from tests.simulation.stage import Seat, Stage, until
from tests.simulation.virtual_loop import virtual

LEASE_S = 10.0
TAKEOVER_S = LEASE_S + 5.0
SETTINGS = Settings(node="test", leader_lease=round(LEASE_S * SECOND), poll=SECOND)


class Actor:
    """A node that runs on a seat."""

    def __init__(self, seat: Seat, settings: Settings = SETTINGS, world: NodePorts | None = None) -> None:
        self.seat = seat
        self.node = EngineNode(world or world_of(seat), settings, seat.clock)
        self.task = asyncio.create_task(self.node.run())

    def shards(self) -> set[str]:
        return set(self.node.holds()) - {HOUSEKEEPING}

    async def crash(self) -> None:
        self.seat.driver.is_down = True  # Writes of the dying node do not reach the store.
        self.task.cancel()
        await asyncio.wait([self.task])

    async def stop(self) -> None:
        self.node.stop()
        async with asyncio.timeout(5.0):
            await self.task


def world_of(seat: Seat) -> NodePorts:
    """Connect a node to the real store of its seat."""
    store = seat.store
    return NodePorts(
        ledger=store.ledger, housekeeping=store.housekeeping, leases=store.leases, nodes=store.nodes, watch=store.watch
    )


async def put(stage: Stage, *names: str) -> None:
    """Create schedules that are due every two seconds."""
    for name in names:
        await stage.seat("operator").store.schedules.put(name, ScheduleSpec(task="work", trigger=Every("2s")))


def undecided_s(stage: Stage) -> float:
    """Return the age of the oldest undecided instant."""
    rows = stage.sql("select min(next_at) as next_at from headway_schedules")
    next_at: Instant | None = rows[0]["next_at"]
    return max(0.0, (stage.now() - (next_at or stage.now())) / SECOND)


@virtual
async def test_one_node_takes_every_role_and_decides_on_time() -> None:
    async with Stage() as stage:
        await put(stage, "a", "b")
        actor = Actor(stage.seat())
        await asyncio.sleep(1.0)
        assert set(actor.node.holds()) == {"scheduler/0", HOUSEKEEPING}
        for _ in range(60):
            await asyncio.sleep(1.0)
            assert undecided_s(stage) < 0.5
        await actor.stop()


@virtual
async def test_another_node_decides_what_became_due_after_a_crash() -> None:
    async with Stage() as stage:
        await put(stage, "a")
        first = Actor(stage.seat("node_a"))
        await asyncio.sleep(3.0)
        second = Actor(stage.seat("node_b"))
        await asyncio.sleep(30.0)
        assert first.shards()
        assert not second.shards()
        await first.crash()
        await until(second.shards, within_s=TAKEOVER_S)
        await asyncio.sleep(1.0)
        assert undecided_s(stage) < 0.5
        rows = stage.sql("select instant, coalesce(until, instant) as until, count from headway_occurrences order by 1")
        for before, after in pairwise(rows):
            assert after["instant"] == before["until"] + 2 * SECOND
        await second.stop()


@virtual
async def test_crashed_leader_is_replaced_soon_after_its_lease() -> None:
    async with Stage() as stage:
        leader = Actor(stage.seat("node_a"))
        for turn, (offset_s, phase_s) in enumerate(product((0.3, 1.1, 1.9, 2.7, 3.2), (0.1, 0.9, 1.7, 2.5))):
            await asyncio.sleep(LEASE_S + offset_s)  # Vary the offset between renewals and checks,
            waiting = Actor(stage.seat(f"node_b{turn}"))
            await asyncio.sleep(2 * LEASE_S - offset_s + phase_s)  # and the time of the crash.
            await leader.crash()
            await until(waiting.shards, within_s=LEASE_S + 2.0)
            leader = waiting
        await leader.stop()


@virtual
async def test_clean_stop_hands_leadership_over_at_once() -> None:
    async with Stage() as stage:
        await put(stage, "a")
        first = Actor(stage.seat("node_a"))
        await asyncio.sleep(3.0)
        second = Actor(stage.seat("node_b"))
        await asyncio.sleep(10.0)
        await first.stop()
        assert await until(second.shards, within_s=LEASE_S / 2) < LEASE_S / 2
        assert [row["id"] for row in stage.sql("select id from headway_nodes")] == ["node_b"]
        await second.stop()
        now = stage.now()
        assert all(row["until"] <= now for row in stage.sql("select until from headway_leases"))


@virtual
async def test_stop_without_a_store_ends_in_time() -> None:
    async with Stage() as stage:
        actor = Actor(stage.seat())
        await asyncio.sleep(3.0)
        actor.seat.driver.is_down = True
        await actor.stop()


@virtual
async def test_bug_in_one_loop_ends_the_node_and_releases_its_roles() -> None:
    async with Stage() as stage:
        await put(stage, "a")
        actor = Actor(stage.seat())
        await asyncio.sleep(1.0)

        async def broken(shards: Shards, limit: int) -> Due:
            raise ZeroDivisionError("a bug")

        actor.seat.store.ledger.due = broken  # type: ignore[method-assign]
        with pytest.raises(ExceptionGroup) as raised:
            await actor.task
        assert raised.group_contains(ZeroDivisionError)
        now = stage.now()
        assert all(row["until"] <= now for row in stage.sql("select until from headway_leases"))


@virtual
async def test_loop_that_a_library_cancels_ends_the_node() -> None:
    """A client library may raise `CancelledError` by itself. The node must not live on without its loops."""
    async with Stage() as stage:
        await put(stage, "a")
        actor = Actor(stage.seat())
        await asyncio.sleep(1.0)

        async def cancelled(shards: Shards, limit: int) -> Due:
            raise asyncio.CancelledError

        actor.seat.store.ledger.due = cancelled  # type: ignore[method-assign]
        async with asyncio.timeout(30.0):
            with pytest.raises(ExceptionGroup) as raised:
                await actor.task
        assert raised.group_contains(RuntimeError, match="scheduler was cancelled")


@virtual
async def test_loop_that_swallows_its_cancellation_does_not_keep_a_broken_node_alive() -> None:
    """A client library may swallow it if its response arrives at that moment."""
    async with Stage() as stage:
        await put(stage, "a")
        actor = Actor(stage.seat())
        await asyncio.sleep(1.0)

        async def deaf() -> Any:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(100.0)
            raise StoreUnavailable("it took too long")

        async def broken(shards: Shards, limit: int) -> Due:
            await asyncio.sleep(2.0)
            raise ZeroDivisionError("a bug")

        actor.seat.store.housekeeping.next_promotion = deaf  # type: ignore[method-assign]
        actor.seat.store.ledger.due = broken  # type: ignore[method-assign]
        async with asyncio.timeout(10.0):
            with pytest.raises(ExceptionGroup) as raised:
                await actor.task
        assert raised.group_contains(ZeroDivisionError)


@virtual
async def test_leader_with_a_hanging_scheduler_steps_down() -> None:
    async with Stage() as stage:
        await put(stage, "a")
        first = Actor(stage.seat("node_a"))
        await asyncio.sleep(3.0)
        second = Actor(stage.seat("node_b"))
        await asyncio.sleep(5.0)
        assert first.shards()

        async def hangs(shards: Shards, limit: int) -> Due:
            await asyncio.sleep(10_000)
            raise AssertionError("cancelled before")

        first.seat.store.ledger.due = hangs  # type: ignore[method-assign]
        await until(second.shards, within_s=2 * LEASE_S)
        reasons = [event.reason for event in stage.said(TermLost) if event.role == "scheduler/0"]
        assert reasons == ["the loop is stuck"]
        await asyncio.sleep(3 * LEASE_S)
        assert second.shards()
        assert undecided_s(stage) < 0.5
        await second.stop()


@virtual
async def test_shards_are_balanced_when_nodes_join() -> None:
    settings = replace(SETTINGS, scheduler_shards=3)
    everything = {"scheduler/0", "scheduler/1", "scheduler/2"}
    async with Stage() as stage:
        actors = [Actor(stage.seat("node_a"), settings)]
        await until(lambda: actors[0].shards() == everything, within_s=5.0)
        for name in ("node_b", "node_c"):
            actors.append(Actor(stage.seat(name), settings))
            await until(lambda: max(len(actor.shards()) for actor in actors) <= 2, within_s=TAKEOVER_S)
            await until(lambda: set.union(*(actor.shards() for actor in actors)) == everything, within_s=TAKEOVER_S)
        await until(lambda: all(len(actor.shards()) == 1 for actor in actors), within_s=TAKEOVER_S)
        for actor in actors:
            await actor.stop()


@virtual
async def test_shards_of_a_dead_node_are_taken_over_in_time() -> None:
    settings = replace(SETTINGS, scheduler_shards=3)
    everything = {"scheduler/0", "scheduler/1", "scheduler/2"}
    async with Stage() as stage:
        first = Actor(stage.seat("node_a"), settings)
        for phase in range(20):  # Vary the offset between the crash, renewals and heartbeats.
            second = Actor(stage.seat(f"node_b{phase}"), settings)
            await asyncio.sleep(40.0 + phase * 0.37)
            assert first.shards() | second.shards() == everything
            assert first.shards() != everything
            await second.crash()
            await until(lambda: first.shards() == everything, within_s=TAKEOVER_S - 1.0)
        await first.stop()


@virtual
async def test_shards_of_a_hanging_node_are_taken_over() -> None:
    settings = replace(SETTINGS, scheduler_shards=2)
    async with Stage() as stage:
        await put(stage, *(name for name in ("a", "b", "c", "d", "e", "f") if slot_of(name) % 2 in (0, 1)))
        first, second = Actor(stage.seat("node_a"), settings), Actor(stage.seat("node_b"), settings)
        await until(lambda: len(first.shards()) == len(second.shards()) == 1, within_s=TAKEOVER_S)

        async def hangs(shards: Shards, limit: int) -> Due:
            await asyncio.sleep(10_000)
            raise AssertionError("cancelled before")

        second.seat.store.ledger.due = hangs  # type: ignore[method-assign]
        await until(lambda: len(first.shards()) == 2, within_s=3 * LEASE_S)
        await asyncio.sleep(3 * LEASE_S)
        assert len(first.shards()) == 2  # Its heartbeat continues, but it gets no share.
        assert undecided_s(stage) < 0.5
        await second.crash()
        await first.stop()


@virtual
async def test_everything_is_decided_within_ten_seconds_after_a_long_outage() -> None:
    for outage_s in (11.0, 13.0, 17.0, 29.0):
        async with Stage() as stage:
            await put(stage, "a")
            actors = [Actor(stage.seat(name)) for name in ("node_a", "node_b", "node_c")]
            await asyncio.sleep(20.0)
            for actor in actors:
                actor.seat.driver.is_down = True
            await asyncio.sleep(outage_s)
            for actor in actors:
                actor.seat.driver.is_down = False
            await until(lambda: undecided_s(stage) == 0.0, within_s=10.0)
            for actor in actors:
                await actor.stop()


@virtual
async def test_lock_mode_has_no_leader_and_decides_everything_once() -> None:
    settings = replace(SETTINGS, coordination_mode="lock")
    async with Stage() as stage:
        await put(stage, "a", "b", "c")
        actors = [Actor(stage.seat(name), settings) for name in ("node_a", "node_b", "node_c")]
        await asyncio.sleep(30.5)
        assert not set.union(*(actor.shards() for actor in actors))
        counts = stage.sql("select schedule, sum(count) as decisions from headway_occurrences group by schedule")
        assert {row["schedule"]: row["decisions"] for row in counts} == dict.fromkeys("abc", 15)
        assert {event.role for event in stage.said(TermWon)} == {HOUSEKEEPING}
        for actor in actors:
            await actor.stop()


@virtual
async def test_idle_node_sends_few_statements() -> None:
    async with Stage() as stage:
        leader = Actor(stage.seat("node_a"))
        await asyncio.sleep(3.0)
        follower = Actor(stage.seat("node_b"))
        await asyncio.sleep(10.0)
        before = leader.seat.driver.calls, follower.seat.driver.calls
        await asyncio.sleep(60.0)
        assert (leader.seat.driver.calls - before[0]) / 60 < 8
        assert (follower.seat.driver.calls - before[1]) / 60 < 3
        await leader.stop()
        await follower.stop()


# --- workers


class ChildPool:
    """Runs each job for a fixed time, and records its calls."""

    def __init__(self, job_s: float, places: int = 4) -> None:
        self.tasks = {"work": TaskInfo(name="work", isolation="loop")}
        self.kinds = {"loop": frozenset({"work"})}
        self.running: dict[str, asyncio.Task[None]] = {}
        self.abandoned: list[str] = []
        self._job_s = job_s
        self._places = places

    def report_to(self, supervisor_port: SupervisorPort) -> None:
        assert isinstance(supervisor_port, Supervisor)
        self._supervisor = supervisor_port

    def room(self, kind: str) -> int:
        return self._places - len(self.running)

    def slots(self, kind: str | None = None) -> int:
        return self._places

    def busy(self, kind: str | None = None) -> int:
        return len(self.running)

    def count(self) -> int:
        return 1

    def start(self, jobs: Sequence[Claimed], kept: Mapping[str, dict[str, str]] | None = None) -> None:
        for claimed in jobs:
            self.running[claimed.job_id] = asyncio.create_task(self._run(claimed))

    async def _run(self, claimed: Claimed) -> None:
        report = Report(job_id=claimed.job_id, attempt=claimed.attempt, progress=50, lines=((None, "log", "half"),))
        self._supervisor.reported([report])
        await asyncio.sleep(self._job_s)
        self._end(claimed, Succeeded("1"))

    def _end(self, claimed: Claimed, outcome: AttemptOutcome) -> None:
        del self.running[claimed.job_id]
        self._supervisor.ended(claimed, outcome)
        self._supervisor.has_room()

    def stop(self, job_id: str, attempt: int, outcome: AttemptOutcome) -> None:
        held = self._supervisor._held.find(job_id, attempt)
        if held is not None and job_id in self.running:
            self.running[job_id].cancel()
            self._end(held.claimed, outcome)

    def abandon(self, job_id: str, attempt: int) -> None:
        self.abandoned.append(job_id)
        if job_id in self.running:
            self.running.pop(job_id).cancel()

    def is_stopping(self, job_id: str, attempt: int) -> bool:
        return False

    def release_waiting(self, reason: str) -> None:
        pass

    def release_all(self, reason: str) -> None:
        for job_id in list(self.running):
            self.stop(job_id, 1, Released(reason))

    def watch(self) -> None:
        pass


class Worker(Actor):
    """A worker that runs on a seat."""

    def __init__(self, seat: Seat, job_s: float, settings: Settings = SETTINGS, *, schedules: bool = False) -> None:
        self.seat = seat
        work, clock = seat.store.work, seat.clock
        self.child_pool = ChildPool(job_s)
        self.supervisor = Supervisor(
            work, self.child_pool, clock=clock, lease=settings.worker_lease, poll=settings.poll
        )
        world = world_of(seat)
        self.node = EngineNode(world, settings, clock, schedules=schedules, supervisor=self.supervisor)
        self.task = asyncio.create_task(self.node.run())

    async def crash(self) -> None:
        for running in self.child_pool.running.values():
            running.cancel()
        await super().crash()


async def enqueue(stage: Stage, *ids: str) -> None:
    """Enqueue jobs."""
    await stage.seat("client").store.queue.enqueue([NewJob(id=f"job_{id_}", task="work") for id_ in ids])


def jobs(stage: Stage, *columns: str) -> list[Any]:
    """Read columns of all jobs, ordered by id."""
    rows = stage.sql(f"select {', '.join(columns)} from headway_jobs order by id")
    return [row[0] if len(columns) == 1 else tuple(row) for row in rows]


@virtual
async def test_worker_runs_jobs_and_does_housekeeping_but_decides_nothing() -> None:
    async with Stage() as stage:
        await put(stage, "a")
        worker = Worker(stage.seat(), job_s=3.0)
        await enqueue(stage, "a", "b", "c")
        await until(lambda: jobs(stage, "status") == ["COMPLETED"] * 3, within_s=6.0)
        assert set(worker.node.holds()) == {HOUSEKEEPING}
        assert stage.sql("select * from headway_occurrences") == []
        assert jobs(stage, "attempt", "result", "progress") == [(1, "1", 100)] * 3
        assert [row["line"] for row in stage.sql("select line from headway_log")] == ["half"] * 3
        await worker.stop()


@virtual
async def test_process_with_both_roles_decides_and_runs() -> None:
    async with Stage() as stage:
        await put(stage, "a")
        both = Worker(stage.seat(), job_s=0.5, schedules=True)
        await asyncio.sleep(20.5)
        done = [status for status in jobs(stage, "status") if status == "COMPLETED"]
        assert len(done) >= 7
        node = (await stage.seat("looker").store.nodes.alive(10 * SECOND))[0]
        assert node.roles == ("scheduler", "worker")
        assert node.state["worker"]["tasks"] == ["work"]
        await both.stop()


@virtual
async def test_live_worker_keeps_its_leases_and_dead_worker_loses_its_jobs() -> None:
    settings = replace(SETTINGS, worker_lease=6 * SECOND)
    async with Stage() as stage:
        await enqueue(stage, "a")
        first = Worker(stage.seat("node_a"), 60.0, settings)
        await asyncio.sleep(2.0)
        second = Worker(stage.seat("node_b"), 60.0, settings)
        await asyncio.sleep(40.0)  # Many times the lease.
        assert jobs(stage, "attempt", "node") == [(1, "node_a")]
        await first.crash()
        # The dead node also did the housekeeping: its lease of ten seconds has to expire first.
        waited_s = await until(lambda: jobs(stage, "attempt", "node") == [(2, "node_b")], within_s=TAKEOVER_S + 3.0)
        assert waited_s > 3.0
        await second.crash()


@virtual
async def test_worker_that_cannot_extend_its_leases_stops_jobs_before_others_start_them() -> None:
    settings = replace(SETTINGS, worker_lease=6 * SECOND)
    async with Stage() as stage:
        await enqueue(stage, "a")
        other = Actor(stage.seat("node_a"))  # Does the housekeeping.
        await asyncio.sleep(1.0)
        cut_off = Worker(stage.seat("node_b"), 60.0, settings)
        await asyncio.sleep(10.0)
        second = Worker(stage.seat("node_c"), 60.0, settings)
        cut_off.seat.driver.is_down = True
        await until(lambda: jobs(stage, "attempt") == [2], within_s=6.0 + 10.0)
        assert cut_off.child_pool.abandoned == ["job_a"]
        assert stage.said(AttemptsLost)[0].reason == "their leases could not be extended in time"
        cut_off.seat.driver.is_down = False
        await asyncio.sleep(10.0)
        assert jobs(stage, "attempt", "node") == [(2, "node_c")]
        for actor in (cut_off, second):
            await actor.crash()
        await other.stop()


@virtual
async def test_stop_waits_for_jobs_within_the_grace_and_releases_the_rest() -> None:
    settings = replace(SETTINGS, grace=4 * SECOND)
    async with Stage() as stage:
        await enqueue(stage, "a")
        worker = Worker(stage.seat(), 3.0, settings)
        await until(lambda: jobs(stage, "status") == ["RUNNING"], within_s=3.0)
        await worker.stop()
        assert jobs(stage, "status") == ["COMPLETED"]

    async with Stage() as stage:
        await enqueue(stage, "a")
        worker = Worker(stage.seat(), 30.0, settings)
        await until(lambda: jobs(stage, "status") == ["RUNNING"], within_s=3.0)
        began = asyncio.get_running_loop().time()
        worker.node.stop()
        await enqueue(stage, "b")
        await worker.task
        assert asyncio.get_running_loop().time() - began <= 4.0 + 2.0
        assert jobs(stage, "status", "failures", "attempt") == [("PENDING", 0, 1), ("PENDING", 0, 0)]
        assert jobs(stage, "reason")[0] == "handed back: the worker ends"


@virtual
async def test_hurry_does_not_wait_for_the_grace() -> None:
    async with Stage() as stage:
        await enqueue(stage, "a")
        worker = Worker(stage.seat(), 30.0)
        await until(lambda: jobs(stage, "status") == ["RUNNING"], within_s=3.0)
        worker.node.hurry()
        async with asyncio.timeout(2.0):
            await worker.task
        assert jobs(stage, "status", "failures") == [("PENDING", 0)]


@virtual
async def test_job_claimed_during_the_stop_is_released() -> None:
    for grace in (0, 5 * SECOND):
        async with Stage() as stage:
            worker = Worker(stage.seat(), 30.0, replace(SETTINGS, grace=grace))
            await asyncio.sleep(2.0)
            await enqueue(stage, "a")
            worker.seat.driver.answering_s = 0.3
            await until(lambda: jobs(stage, "status") == ["RUNNING"], within_s=3.0, step_s=0.01)
            assert not worker.supervisor.running()  # The response is still in flight.
            await worker.stop()
            assert jobs(stage, "status", "failures") == [("PENDING", 0)], grace


@virtual
async def test_claim_response_after_the_lease_starts_nothing() -> None:
    settings = replace(SETTINGS, worker_lease=3 * SECOND)
    async with Stage() as stage:
        worker = Worker(stage.seat(), 30.0, settings)
        await asyncio.sleep(2.0)
        worker.seat.driver.answering_s = 4.0
        await enqueue(stage, "a")
        await until(lambda: stage.said(AttemptsLost), within_s=40.0)
        assert stage.said(AttemptsLost)[0].reason == "their leases ran out before they began"
        assert worker.child_pool.running == {}
        await worker.crash()


@virtual
async def test_requested_drain_waits_for_running_jobs() -> None:
    settings = replace(SETTINGS, grace=SECOND)
    async with Stage() as stage:
        await enqueue(stage, "a")
        worker = Worker(stage.seat("node_a"), 20.0, settings)
        await until(lambda: jobs(stage, "status") == ["RUNNING"], within_s=3.0)
        assert await stage.seat("operator").store.nodes.ask("node_a", "drain")
        await asyncio.sleep(5.0)
        await enqueue(stage, "b")
        assert [event.running for event in stage.said(Draining)] == [1]
        async with asyncio.timeout(25.0):
            await worker.task
        assert jobs(stage, "status") == ["COMPLETED", "PENDING"]


@virtual
async def test_outcome_survives_a_store_outage() -> None:
    async with Stage() as stage:
        await enqueue(stage, "a")
        worker = Worker(stage.seat(), 3.0)
        await until(lambda: jobs(stage, "status") == ["RUNNING"], within_s=3.0)
        worker.seat.driver.is_down = True
        await asyncio.sleep(8.0)  # The job ends meanwhile.
        worker.seat.driver.is_down = False
        await until(lambda: jobs(stage, "status") == ["COMPLETED"], within_s=6.0)
        assert jobs(stage, "attempt", "failures") == [(1, 0)]
        await worker.stop()


@virtual
async def test_cancelled_running_job_stops_within_two_seconds() -> None:
    async with Stage() as stage:
        await enqueue(stage, "a")
        worker = Worker(stage.seat(), 60.0)
        await until(lambda: jobs(stage, "status") == ["RUNNING"], within_s=3.0)
        await stage.seat("operator").store.queue.cancel("job_a", author="somebody")
        await until(lambda: jobs(stage, "status") == ["CANCELLED"], within_s=2.0)
        await worker.stop()


@virtual
async def test_idle_worker_sends_few_statements() -> None:
    async with Stage() as stage:
        keeper = Actor(stage.seat("node_a"))
        await asyncio.sleep(3.0)
        worker = Worker(stage.seat("node_b"), 1.0)
        await asyncio.sleep(10.0)
        before = worker.seat.driver.calls
        await asyncio.sleep(60.0)
        assert (worker.seat.driver.calls - before) / 60 < 4
        await worker.stop()
        await keeper.stop()
