"""Metrics that a node counts in its own process, and how they reach the store."""

import asyncio

import msgspec
import pytest

from headway.core.events import (
    AttemptsLost,
    DecisionRefused,
    EngineEvent,
    JobsPromoted,
    JobsSettled,
    LeasesExpired,
    ReportsRefused,
    ScheduleHeld,
    SchedulesDecided,
    TermLost,
    TermWon,
    TickFailed,
    Timed,
    subscribed,
)
from headway.core.instants import MILLISECOND, SECOND
from headway.core.jobs import NewJob, Report
from headway.core.lifecycle import Attempt, Crashed, Raised, Released, Succeeded, settle
from headway.core.occurrences import Decided, Plan, PlannedDecision
from headway.core.process_metrics import BOUNDS_S, Histogram, ProcessMetrics, histogram_of
from headway.core.schedules import Schedule, ScheduleSpec
from headway.core.settings import Settings
from headway.core.triggers import Every
from headway.wiring.node import EngineNode
from tests.simulation.stage import Seat, Stage, until
from tests.simulation.virtual_loop import virtual
from tests.unit.test_node import SETTINGS, world_of
from tests.unit.worker.test_supervisor import Post

ATTEMPT = Attempt(job_id="job_1", attempt=1, failures=0, max_attempts=3)


def decided(now: int, *late: int, outcome: Decided = Decided.FIRED, count: int = 1) -> SchedulesDecided:
    decisions = tuple(PlannedDecision(instant=now - by, outcome=outcome, reason="", count=count) for by in late)
    schedule = Schedule(name="s", spec=ScheduleSpec(task="work", trigger=Every("1s")))
    plan = Plan(schedule=schedule, now=now, decisions=decisions, decided_through=now, next_at=None)
    return SchedulesDecided(node="node_a", plans=(plan,))


@pytest.mark.parametrize(
    ("event", "cells"),
    [
        (
            JobsSettled(
                node="node_a",
                completed=5,
                others=tuple(settle(ATTEMPT, end, 0.5) for end in (Raised("{}"), Crashed("{}"), Released())),
            ),
            {"attempts|completed": 5, "attempts|failed": 1, "attempts|crashed": 1, "attempts|released": 1},
        ),
        (LeasesExpired(node="node_a", job_ids=("a", "b")), {"attempts|expired": 2}),
        (AttemptsLost(node="node_a", job_ids=("a", "b"), reason="…"), {"lost|attempt": 2}),
        (AttemptsLost(node="node_a", job_ids=("a",), reason="…", is_refused=True), {"refused|settlement": 1}),
        (ReportsRefused(node="node_a", job_ids=("a",)), {"refused|report": 1}),
        (DecisionRefused(node="node_a", schedules=("a", "b"), reason="…"), {"refused|decision": 2}),
        (ScheduleHeld(node="node_a", schedule="a", reason="…"), {"held": 1}),
        (JobsPromoted(node="node_a", count=7), {"promoted": 7}),
        (TermWon(node="node_a", role="scheduler/0", token=1), {"won": 1}),
        (TermLost(node="node_a", role="scheduler/0", token=1, reason="…"), {"lost|term": 1}),
        (TermLost(node="node_a", role="scheduler/0", token=1, reason="…", is_handed_over=True), {}),
        (TickFailed(node="node_a", loop="lease_extender", error="gone", rest_s=1.0), {"failed|lease_extender": 1}),
        (
            Timed(node="node_a", what="run", lots=((0.004, 30), (20.0, 1))),
            {"run|0.01": 30, "run|60.0": 1, "run|us": 20_120_000},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
@virtual
async def test_events_are_counted(event: EngineEvent, cells: dict[str, int]) -> None:
    async with Stage() as stage:
        tally = ProcessMetrics(stage.seat("node_a").clock)
        tally(event)
        assert tally.cells() == cells
        other = ProcessMetrics(stage.seat("node_b").clock)
        other(event)
        assert other.cells() == {}, "events of another node in this process belong to that node"


@virtual
async def test_lateness_is_measured_from_the_instant_to_its_decision() -> None:
    async with Stage() as stage:
        seat = stage.seat("node_a")
        seat.clock.observe(stage.now(), sent=0.0)
        tally, now = ProcessMetrics(seat.clock), seat.clock.now()
        tally(decided(now, 20 * MILLISECOND, 3 * SECOND))
        tally(decided(now, 500 * SECOND, outcome=Decided.MISSED, count=40))
        cells = tally.cells()
        assert cells["decided|fired"] == 2
        assert cells["decided|missed"] == 40
        late = histogram_of("late", cells)
        assert [bound for bound, number in zip(late.bounds, late.counts, strict=False) if number] == [0.025, 5.0]
        assert late.sum_s == pytest.approx(3.02)


def test_bucket_includes_its_upper_bound() -> None:
    times = Histogram((1.0, 5.0))
    for seconds in (0.0, 1.0, 1.5, 5.0, 5.1):
        times.note(seconds)
    assert times.counts == [2, 2, 1]
    assert times.cumulated() == [("1.0", 2.0), ("5.0", 4.0), ("+Inf", 5.0)]


def test_unknown_bucket_bound_counts_in_the_next_larger_bucket() -> None:
    times = histogram_of(
        "claim", {"claim|0.02": 3, "claim|99.0": 2, "claim|inf": 1, "claim|us": 5_000_000, "run|1.0": 9}
    )
    assert [(bound, n) for bound, n in zip((*times.bounds, "inf"), times.counts, strict=True) if n] == [
        (0.025, 3),
        ("inf", 3),
    ]
    assert times.sum_s == 5.0
    assert sum(histogram_of("claim", {"claim|nonsense": 3}).counts) == 0


def test_tally_stays_small() -> None:
    """It is sent with every heartbeat of every node."""
    tally = ProcessMetrics()
    tally._counts.update({f"failed|loop number {n}": 10**9 for n in range(15)})
    for name, bounds in BOUNDS_S.items():
        for bound in bounds:
            tally._times[name].note(bound, 10**9)
    assert len(msgspec.json.encode(tally.cells())) < 3_000


def test_responses_are_counted_by_route_template() -> None:
    tally = ProcessMetrics()
    tally.request("/api/jobs/{id}", "GET", 200, 0.002)
    tally.request("/api/jobs/{id}", "GET", 404, 0.2)
    tally.request("?", "GET", 405, 0.001)
    for n in range(100):
        tally.request("/api/jobs/{id}", f"BREW{n}", 405, 0.001)
    assert dict(tally.answers) == {
        ("/api/jobs/{id}", "GET", 2): 1,
        ("/api/jobs/{id}", "GET", 4): 1,
        ("other", "other", 4): 101,
    }
    assert tally.answer_times["/api/jobs/{id}", "GET"].sum_s == pytest.approx(0.202)


@virtual
async def test_worker_counts_its_statements_and_rejected_writes() -> None:
    async with Stage() as stage:
        post = Post(stage)
        tally = ProcessMetrics(post.seat.clock)
        with subscribed(tally):
            post.seat.driver.answering_s = 0.02
            [good, stale] = await post.take(2, max_attempts=5)
            stage.sql("update headway_jobs set lease_until = 1 where id = ?", stale.id)
            assert await stage.seat("node_b").store.housekeeping.expire(10) == [stale.id]
            post.supervisor.reported([Report(job_id=stale.id, attempt=stale.attempt, progress=50)])
            await post.supervisor.reporter.tick()
            post.supervisor.ended(good, Succeeded("1"))
            post.supervisor.ended(stale, Succeeded("1"))
            await post.supervisor.settle()
        cells = tally.cells()
        assert {name: number for name, number in cells.items() if name.split("|")[0] in ("attempts", "refused")} == {
            "attempts|completed": 1,
            "refused|report": 1,
            "refused|settlement": 1,
        }
        for name in ("claim", "settle"):
            times = histogram_of(name, cells)
            assert (sum(times.counts), times.sum_s >= 0.02) == (1, True), name


async def cells_of(seat: Seat) -> dict[str, int]:
    return (await seat.store.metrics.counters(10 * SECOND)).cells


@virtual
async def test_counters_reach_the_store_and_outlive_their_node() -> None:
    async with Stage() as stage:
        seat, operator = stage.seat("node_a"), stage.seat("operator")
        await operator.store.schedules.put("tick", ScheduleSpec(task="work", trigger=Every("3s")))
        await operator.store.queue.enqueue([NewJob(id="job_1", task="work", delay=SECOND)])
        node = EngineNode(world_of(seat), SETTINGS, seat.clock)
        running = asyncio.create_task(node.run())
        await until(lambda: len(stage.said(SchedulesDecided)) >= 3, within_s=30.0)
        await until(lambda: stage.said(JobsPromoted), within_s=30.0)
        node.stop()
        await running
        made = [plan for event in stage.said(SchedulesDecided) for plan in event.plans]
        fired = sum(plan.fires for plan in made)
        found = await cells_of(operator)
        assert await operator.store.nodes.alive(10 * SECOND) == []
        assert found["decided|fired"] == fired >= 1
        assert found["decided|fired"] + found["decided|skipped"] == len(made) >= 3, "also after its last heartbeat"
        assert found["promoted"] == 1
        assert found["won"] >= 2
        assert "lost|term" not in found
        assert sum(histogram_of("late", found).counts) == fired


@virtual
async def test_node_without_a_store_counts_its_terms_as_lost() -> None:
    async with Stage() as stage:
        seat, operator = stage.seat("node_a"), stage.seat("operator")
        node = EngineNode(world_of(seat), Settings(node="a", leader_lease=10 * SECOND, poll=SECOND), seat.clock)
        running = asyncio.create_task(node.run())
        await until(lambda: stage.said(TermWon), within_s=10.0)
        seat.driver.is_down = True
        await until(lambda: len(stage.said(TermLost)) >= 2, within_s=30.0)
        seat.driver.is_down = False
        await until(lambda: len(stage.said(TermWon)) >= 4, within_s=60.0)
        node.stop()
        await running
        found = await cells_of(operator)
        assert found["lost|term"] == 2
        assert found["failed|heartbeat"] >= 1
