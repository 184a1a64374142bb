"""Promise L10 in virtual time: no tenant starves, and tenants that always have jobs use seconds by their weights."""

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import pytest

from headway.core.instants import SECOND
from headway.core.jobs import Claimed, NewJob
from headway.core.limits import Limit
from headway.core.settings import Settings
from headway.core.tenants import Tenant
from headway.store.housekeeping import StoreHousekeeping
from headway.wiring.node import EngineNode
from headway.wiring.roles import world_of
from headway.worker.held import Usage
from headway.worker.ipc import Done
from headway.worker.supervisor import Supervisor
from tests.simulation.checkers import Violation, require
from tests.simulation.child import ProcessState, SimulatedChild, _Run
from tests.simulation.child_pool import SLOTS, SimulatedChildPool
from tests.simulation.stage import START, Seat, Stage, until
from tests.simulation.virtual_loop import run_virtual

STARVED_S: Final = 2.0  # Promise L10.
BACKLOG: Final = 300
BACKLOGGED_S: Final = 40.0
ACCURATE_S: Final = 0.1  # Of each job: a claim and a settlement take a moment.


class Ran(NamedTuple):
    """One attempt; times are seconds since the beginning."""

    tenant: str
    ready_s: float
    started_s: float
    ended_s: float


class Arrival(NamedTuple):
    """Jobs of a tenant that are enqueued together."""

    at_s: float
    tenant: str
    count: int  # type: ignore[assignment]  # `tuple.count` is not used here.
    length_s: float


class _TimedChild(SimulatedChild):
    """Runs each job for as long as its arguments say."""

    async def _live(self, run: _Run) -> None:
        await asyncio.sleep(float(run.claimed.args))
        if self.running.get(run.claimed.job_id) is run:
            self._end(run, Done(run.claimed.job_id, run.claimed.attempt, "0"))


class _TimedChildPool(SimulatedChildPool):
    def _start(self, _: object, kind: str, width: int, mark: str, __: object) -> SimulatedChild:
        self._pids += 1
        return _TimedChild(self._around, kind, width, mark, self._pids)


class _Audience:
    """Takes notice of nothing."""

    def begins(self, claimed: Claimed) -> None:
        pass

    def repeats_step(self, claimed: Claimed, name: str) -> None:
        pass

    def saw(self, what: str) -> None:
        pass

    def chance(self, whose: str) -> random.Random:
        return random.Random(whose)


class _Worker:
    """A worker that can die."""

    def __init__(self, seat: Seat, queues: Sequence[str] = ()) -> None:
        self.seat = seat
        self.node, self.child_pool = _worker(seat, queues)
        self.task = asyncio.get_running_loop().create_task(self.node.run())

    async def die(self) -> None:
        """Die with everything that runs: its leases have to run out."""
        self.seat.driver.is_down = True
        self.task.cancel()
        self.child_pool.die()
        await asyncio.wait([self.task])


def _worker(seat: Seat, queues: Sequence[str]) -> tuple[EngineNode, SimulatedChildPool]:
    async def heard() -> None:
        pass

    around = ProcessState(
        stage=_Audience(),
        knows=("work",),
        heard=heard,
        is_frozen=lambda: False,
        new_id=lambda: seat.clock.new_id("job"),
        kill_worker=lambda: None,
    )
    settings, child_pool = Settings(), _TimedChildPool(around, seat.clock)
    supervisor = Supervisor(
        seat.store.work,
        child_pool,
        clock=seat.clock,
        lease=settings.worker_lease,
        poll=settings.poll,
        queues=queues,
    )
    node = EngineNode(world_of(seat.store), settings, seat.clock, schedules=False, supervisor=supervisor)
    return node, child_pool


async def _play(
    arrivals: Iterable[Arrival],
    weights: Mapping[str, int],
    for_s: float | None,
    *,
    dies_at_s: float | None = None,
    limits: Iterable[Limit] = (),
    queues: Sequence[str] = (),
) -> tuple[list[Ran], dict[str, float]]:
    """Run the jobs on one worker; return what ran, and the seconds that each tenant was charged.

    With `dies_at_s`, the worker dies then with all its jobs, and another one takes over.
    """
    async with Stage() as stage:
        seat = stage.seat("worker_a")
        for tenant, weight in weights.items():
            await seat.store.tenants.put(Tenant(name=tenant, weight=weight), author="test")
        for limit in limits:
            await seat.store.limits.put(limit, author="test")
        worker = _Worker(seat if dies_at_s is None else stage.seat("worker_b"), queues)
        loop = asyncio.get_running_loop()
        replacing = None if dies_at_s is None else loop.create_task(_replace_later(worker, seat, dies_at_s))
        for at_s, tenant, count, length_s in sorted(arrivals):
            await asyncio.sleep(max(0.0, at_s - loop.time()))
            jobs = [
                NewJob(id=seat.clock.new_id("job"), task="work", args=f"{length_s}", tenant=tenant)
                for _ in range(count)
            ]
            await seat.store.queue.enqueue(jobs)
        if for_s is not None:
            await asyncio.sleep(for_s - loop.time())
        else:
            await until(lambda: not stage.sql("select 1 from headway_jobs where finished_at is null"), within_s=1_000)
        now = stage.now()
        rows = stage.sql(
            "select tenant, ready_at, started_at, finished_at from headway_jobs"
            " where finished_at is not null or lease_until is not null"
        )
        ran = [Ran(row[0], *((at - START) / SECOND for at in (row[1], row[2], row[3] or now))) for row in rows]
        await asyncio.sleep(2.0)  # The last charges are written.
        used = stage.sql("select tenant, used from headway_shares")
        worker = worker if replacing is None else await replacing
        worker.node.hurry()
        await worker.task
        assert not stage.sql("select 1 from headway_lanes where held_by is not null") or for_s is not None
        return ran, {tenant: micros / SECOND for tenant, micros in used}


async def _replace_later(worker: _Worker, seat: Seat, at_s: float) -> _Worker:
    await asyncio.sleep(at_s)
    await worker.die()
    return _Worker(seat)


def _seconds(ran: Iterable[Ran], tenant: str) -> float:
    return sum(one.ended_s - one.started_s for one in ran if one.tenant == tenant)


def _check_nobody_starves() -> None:
    longest_s = 0.8
    visits = [Arrival(3.0 + 2.7 * number, "globex", 1, 0.3) for number in range(12)]
    ran, used = run_virtual(_play([Arrival(0.0, "acme", BACKLOG, longest_s), *visits], {}, None))
    waits = [one.started_s - one.ready_s for one in ran if one.tenant == "globex"]
    assert len(ran) == BACKLOG + len(visits)
    assert max(one.ready_s for one in ran) < max(one.started_s for one in ran if one.tenant == "acme"), "no backlog"
    require(max(waits) <= STARVED_S + longest_s, "L10: a tenant waits for the backlog of another", waits)
    for tenant, seconds in used.items():
        if tenant != "default":
            jobs = [one for one in ran if one.tenant == tenant]
            wrong_s = abs(seconds - _seconds(jobs, tenant))
            require(wrong_s <= ACCURATE_S * len(jobs), "L10: charged for another time", tenant, seconds, wrong_s)


def _check_weights() -> None:
    lengths, weights = {"acme": 0.4, "globex": 1.2}, {"acme": 1, "globex": 2}
    arrivals = [Arrival(0.0, tenant, BACKLOG, length_s) for tenant, length_s in lengths.items()]
    ran, _ = run_virtual(_play(arrivals, weights, BACKLOGGED_S))
    used = {tenant: _seconds(ran, tenant) / weight for tenant, weight in weights.items()}
    busy_s = sum(used[tenant] * weight for tenant, weight in weights.items())
    assert busy_s > 0.8 * SLOTS["loop"] * BACKLOGGED_S, "the worker was idle"
    apart_s = abs(used["acme"] - used["globex"])
    require(apart_s <= SLOTS["loop"] * max(lengths.values()), "L10: seconds do not follow the weights", used)


def _check_visitors_under_faults() -> None:
    """A worker dies with the jobs that hold all places of a limit: they come back when its leases run out."""
    longest_s, dies_at_s, until_s = 0.8, 9.0, 60.0
    limits = [Limit.build("tenant:acme", concurrency=SLOTS["loop"]), Limit.build("task:work", rate="20/s")]
    visits = [Arrival(3.0 + 2.7 * number, "globex", 1, 0.3) for number in range(20)]
    arrivals = [Arrival(0.0, "acme", BACKLOG, longest_s), *visits]
    ran, _ = run_virtual(_play(arrivals, {"acme": 4}, until_s, dies_at_s=dies_at_s, limits=limits))
    waits = [one.started_s - one.ready_s for one in ran if one.tenant == "globex" and one.ready_s < until_s - 9.0]
    assert len(waits) >= 18
    require(max(waits) <= STARVED_S + longest_s, "L10: a tenant waits for the backlog of another", waits)
    last_s = 10.0
    late = [one._replace(started_s=max(one.started_s, until_s - last_s)) for one in ran if one.started_s > dies_at_s]
    late = [one for one in late if one.ended_s > one.started_s]
    busy_s = _seconds(late, "acme") + _seconds(late, "globex")
    require(busy_s > 0.8 * SLOTS["loop"] * last_s, "L2: the places of a dead worker are lost", busy_s)


def test_backlog_does_not_delay_another_tenant() -> None:
    _check_nobody_starves()


def test_backlog_does_not_delay_another_tenant_under_limits_when_a_worker_dies() -> None:
    _check_visitors_under_faults()


@pytest.mark.parametrize("queues", [(), ("default",), ("other", "default")])
@pytest.mark.parametrize("limits", [(), (Limit.build("queue:default", concurrency=2),)])
def test_worker_without_notifications_finds_tenants_and_limits(queues: Sequence[str], limits: Sequence[Limit]) -> None:
    """Notifications may be lost, or be older than the worker: it looks by itself, also with queues of its own."""
    arrivals = [Arrival(at_s, tenant, 3, 0.2) for at_s, tenant in ((0.0, "acme"), (4.0, "default"), (9.0, "globex"))]
    ran, _ = run_virtual(_play(arrivals, {}, None, limits=limits, queues=queues))
    assert len(ran) == 9
    assert max(one.started_s - one.ready_s for one in ran) <= STARVED_S + 1.0


def test_cancelled_jobs_of_many_tenants_delay_nobody() -> None:
    """L10: their lanes are empty, and a claim looks into some lanes only."""

    async def play() -> float:
        async with Stage() as stage:
            seat = stage.seat("worker_a")
            jobs = [
                NewJob(id=seat.clock.new_id("job"), task="work", args="0.1", tenant=f"t{number}")
                for number in range(900)
            ]
            await seat.store.queue.enqueue(jobs)
            await seat.store.work.claim_lanes("default", node="n", lease=SECOND, limit=0)  # Their lanes are open.
            stage.sql("update headway_jobs set status = 'CANCELLED', finished_at = 1")
            late = NewJob(id=seat.clock.new_id("job"), task="work", args="0.1", tenant="zeta")
            await seat.store.queue.enqueue([late])
            worker = _Worker(seat)
            found = f"select 1 from headway_jobs where id = '{late.id}' and started_at is not null"
            waited_s = await until(lambda: stage.sql(found), within_s=1_000)
            worker.node.hurry()
            await worker.task
            return waited_s

    waited_s = run_virtual(play())
    require(waited_s <= STARVED_S, "L10: it waits for lanes without jobs", waited_s)


def test_places_of_a_dead_worker_that_are_lost_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter that only a worker decrements leaks the places of a dead one."""
    monkeypatch.setattr(StoreHousekeeping, "expire", _never)
    with pytest.raises(Violation, match="L2: the places of a dead worker are lost"):
        _check_visitors_under_faults()


async def _never(self: StoreHousekeeping, limit: int) -> list[str]:
    return []


def test_fairness_by_count_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charging a fixed amount for each job gives most of the time to the tenant with long jobs."""
    monkeypatch.setattr("headway.core.fairness.Share.charge", property(lambda self: 1_000 // self.weight))
    monkeypatch.setattr(Usage, "take", lambda self: [])
    with pytest.raises(Violation, match="L10: seconds do not follow the weights"):
        _check_weights()


def test_tenants_use_seconds_by_their_weights() -> None:
    _check_weights()


def test_dropped_charge_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Usage.take
    monkeypatch.setattr(Usage, "take", lambda self: take(self)[:0])  # They are forgotten.
    with pytest.raises(Violation, match="L10: seconds do not follow the weights"):
        _check_weights()
    with pytest.raises(Violation, match="L10: charged for another time"):
        _check_nobody_starves()


def test_claim_that_charges_nobody_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.core.fairness.Share.charge", 0)  # The tenant that came first is always served first.
    monkeypatch.setattr(Usage, "take", lambda self: [])
    with pytest.raises(Violation, match="L10: a tenant waits"):
        _check_nobody_starves()
