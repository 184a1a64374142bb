"""Tenants share a queue by the seconds that they use; jobs that become ready are never overlooked."""

import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from headway.core.instants import DAY, HOUR, MINUTE, SECOND, Duration
from headway.core.jobs import Claimed
from headway.core.lifecycle import Parked, Raised, Released, Succeeded
from headway.core.ports import Charge
from headway.core.tenants import Tenant
from headway.store import Store
from headway.store.caller_transaction import run_inside_async
from headway.store.lanes import SHARES_MAX
from headway.store.queue import enqueue as enqueue_inside
from tests.conformance.arrange import LEASE, claim_all, end, enqueue, new_job, run_one
from tests.conformance.backend import Backend, PostgresBackend, SqliteBackend
from tests.conformance.limiting import claim, claimed, fill, finish, put, running
from tests.support.waiting import DEADLINE_S

# --- fairness


class Queue:
    """A queue whose jobs take as long as a test says; their tenants are charged for it, as workers do."""

    def __init__(self, store: Store, costs: dict[str, Duration]) -> None:
        self.store = store
        self.costs = costs
        self.used: Counter[str] = Counter()
        self.held: list[Claimed] = []

    async def serve(self, jobs: int, *, slots: int = 1) -> list[str]:
        """Run so many jobs, `slots` at a time; return their tenants in the order of their starts."""
        order: list[str] = []
        while len(order) < jobs:
            found = await claim(self.store, limit=slots - len(self.held))
            if not found.jobs and not self.held:
                assert found.has_more, "it stopped with jobs left"
            order += [job.tenant for job in found.jobs]
            self.held += found.jobs
            if self.held:
                await self._end_first()
        return order

    async def _end_first(self) -> None:
        job = self.held.pop(0)
        took = self.costs[job.tenant]
        self.used[job.tenant] += took
        assert job.share == job.tenant
        more = took - job.reserved
        await self.store.work.charge([Charge(queue=job.queue, tenant=job.tenant, more=more, took=took, jobs=1)])
        await finish(self.store, job)


async def test_tenants_get_equal_seconds_whatever_their_jobs_take(store: Store) -> None:
    costs = {"default": 2 * SECOND, "acme": 10 * SECOND, "globex": SECOND}
    for tenant in costs:
        await fill(store, 100, tenant=tenant)
    queue = Queue(store, costs)
    await queue.serve(80)
    assert max(queue.used.values()) - min(queue.used.values()) <= 2 * max(costs.values())


@pytest.mark.parametrize("limit", [None, "queue:default", "queue:*"])
async def test_weight_divides_seconds(store: Store, limit: str | None) -> None:
    """Also while the queue is always full: the next free place goes to the tenant that has used least."""
    if limit is not None:
        await put(store, limit, concurrency=2)
    await store.tenants.put(Tenant(name="acme", weight=2), author="ada")
    costs = {"acme": 5 * SECOND, "globex": 2 * SECOND}
    for tenant in costs:
        await fill(store, 100, tenant=tenant)
    queue = Queue(store, costs)
    await queue.serve(70, slots=1 if limit is None else 4)
    assert abs(queue.used["acme"] / 2 - queue.used["globex"]) <= 3 * 5 * SECOND


async def test_changed_weight_counts_from_now_on(store: Store) -> None:
    costs = {"acme": SECOND, "globex": SECOND}
    for tenant in costs:
        await fill(store, 60, tenant=tenant)
    queue = Queue(store, costs)
    await queue.serve(20)
    assert abs(queue.used["acme"] - queue.used["globex"]) <= 2 * SECOND
    await store.tenants.put(Tenant(name="acme", weight=4), author="ada")
    served = Counter(await queue.serve(50))
    assert abs(served["acme"] - 40) <= 2


@pytest.mark.parametrize("idle", ["default", "globex"])
@pytest.mark.parametrize("plain", [False, True], ids=["lanes", "plain claims"])
async def test_idle_tenant_saves_nothing(store: Store, idle: str, plain: bool) -> None:
    costs = {"acme": 10 * SECOND, idle: 10 * SECOND}
    queue = Queue(store, costs)
    for tenant in costs:
        await fill(store, 2, tenant=tenant)
    await queue.serve(4)
    await fill(store, 30, tenant="acme")
    await queue.serve(30)
    if plain and idle == "default":  # Jobs that nobody is charged for, because no other tenant has any.
        await fill(store, 3)
        assert len(await store.work.claim("default", node="n", lease=LEASE, limit=9)) == 3
    for tenant in costs:
        await fill(store, 20, tenant=tenant)
    served = Counter(await queue.serve(20))
    assert abs(served["acme"] - 10) <= 2


@pytest.mark.parametrize(("newcomer", "is_limited"), [("default", False), ("globex", False), ("globex", True)])
async def test_new_tenant_begins_where_the_others_are(store: Store, newcomer: str, is_limited: bool) -> None:
    """Also if the others have nothing to do at that moment, and have paid for long jobs since they were claimed."""
    if is_limited:
        await put(store, "queue:default", concurrency=5)
    queue = Queue(store, {"acme": HOUR, newcomer: SECOND})
    await fill(store, 3, tenant="acme")
    await queue.serve(3)
    queue.costs["acme"] = SECOND
    await fill(store, 20, tenant=newcomer)
    assert set(await queue.serve(3)) == {newcomer}
    await fill(store, 20, tenant="acme")
    served = Counter(await queue.serve(20))
    assert abs(served["acme"] - 10) <= 3


async def test_tenant_that_pauses_is_not_forgiven(backend: Backend) -> None:
    """While another tenant waits, what a tenant has used counts, also if it had no jobs for a moment."""
    store = backend.store
    queue = Queue(store, {"acme": 60 * SECOND, "globex": SECOND})
    await fill(store, 1, tenant="acme")
    await fill(store, 100, tenant="globex")
    assert sorted(await queue.serve(2, slots=2)) == ["acme", "globex"]
    await queue.serve(10)
    assert (await claim(store, past=["globex"])).jobs == ()  # Somebody has seen that it has no jobs.
    assert await backend.count("headway_shares", "tenant = 'acme' and open = 0") == 1
    await fill(store, 5, tenant="acme")
    assert set(await queue.serve(20)) == {"globex"}
    served = Counter(await queue.serve(40))
    assert served["acme"] == 1


async def test_twenty_long_jobs_are_charged_while_they_run(store: Store) -> None:
    await fill(store, 40, tenant="acme")
    await fill(store, 40, tenant="globex")
    long = [job for job in (await claim(store, limit=20)).jobs if job.tenant == "acme"]
    assert len(long) == 10
    minutes = len(long) * 10 * MINUTE
    await store.work.charge([Charge(queue="default", tenant="acme", more=minutes, took=0, jobs=0)])
    assert {job.tenant for job in (await claim(store, limit=20)).jobs} == {"globex"}


async def test_charges_of_one_tenant_in_one_call_add_up(backend: Backend) -> None:
    store = backend.store
    await fill(store, 2, tenant="acme")
    await claim(store, limit=1)  # The other job waits, so the tenant has a share.
    [before] = await backend.sql("select * from headway_shares where tenant = 'acme'")
    one = Charge(queue="default", tenant="acme", more=SECOND, took=2 * SECOND, jobs=1)
    await store.tenants.put(Tenant.build("new", weight=2), author="ada")
    unknown = Charge(queue="other", tenant="new", more=SECOND, took=SECOND, jobs=1)
    await store.work.charge([one, unknown, one])
    [new] = await backend.sql("select * from headway_shares where tenant = 'new'")
    assert (new["queue"], new["vtime"], new["weight"]) == ("other", SECOND // 2, 2)
    assert (new["cost"], new["used"], new["open"]) == (SECOND, SECOND, 0)
    [after] = await backend.sql("select * from headway_shares where tenant = 'acme'")
    assert (after["vtime"] - before["vtime"], after["used"]) == (2 * SECOND, 4 * SECOND)
    assert after["cost"] == (before["cost"] * 4 + 4 * SECOND) // (4 + 2)  # Of two jobs.
    await store.work.charge([Charge(queue="default", tenant="acme", more=-SECOND, took=0, jobs=0)])
    [refunded] = await backend.sql("select * from headway_shares where tenant = 'acme'")
    assert refunded["vtime"] - before["vtime"] == SECOND


async def test_only_tenant_with_jobs_is_claimed_without_a_share(backend: Backend) -> None:
    store = backend.store
    await fill(store, 3, tenant="acme")
    jobs = (await claim(store, limit=10)).jobs
    assert [(job.tenant, job.share, job.reserved) for job in jobs] == [("acme", "acme", 0)] * 3
    assert await backend.count("headway_shares") == await backend.count("headway_rings") == 0
    assert not (await claim(store)).has_lanes


async def test_only_tenant_gets_a_share_when_jobs_are_left(backend: Backend) -> None:
    """Because there was no room for all of them, or because this worker cannot run them."""
    store = backend.store
    await fill(store, 3, tenant="acme")
    first = await claim(store, limit=2)
    assert (len(first.jobs), first.has_more) == (2, True)
    assert await backend.count("headway_shares", "tenant = 'acme' and open = 1") == 1
    assert len((await claim(store, skip=["report"])).jobs) == 0
    assert len((await claim(store)).jobs) == 1
    await fill(store, 1, tenant="globex")
    assert not (await claim(store, skip=["report"])).jobs
    assert [job.tenant for job in (await claim(store)).jobs] == ["globex"]


async def test_other_tenants_are_not_passed_over_for_the_only_one_that_rang(store: Store) -> None:
    await fill(store, 50, tenant="acme")
    assert len((await claim(store, limit=20)).jobs) == 20
    await fill(store, 20, tenant="globex")
    await store.work.charge([Charge(queue="default", tenant="globex", more=MINUTE, took=MINUTE, jobs=1)])
    assert {job.tenant for job in (await claim(store, limit=20)).jobs} == {"acme"}
    await fill(store, 1)
    await fill(store, 1, tenant="globex")
    assert {job.tenant for job in await claimed(store)} == {"acme", "globex", "default"}


async def test_more_tenants_than_one_claim_looks_at(store: Store) -> None:
    tenants = [f"t{number:03d}" for number in range(SHARES_MAX + 20)]
    await store.queue.enqueue([new_job(tenant=tenant) for tenant in tenants])
    jobs = await claimed(store, limit=10)
    assert sorted(job.tenant for job in jobs) == tenants
    assert not (await claim(store)).has_lanes


async def test_tenants_without_jobs_are_not_looked_at_again(backend: Backend) -> None:
    """Also if a share was opened for a lane that another claim had emptied in the meantime."""
    store = backend.store
    await fill(store, 1, tenant="acme")
    await claimed(store)
    await backend.sql("update headway_shares set open = 1")
    await claimed(store)
    assert await backend.count("headway_shares", "open = 1") == 0
    await fill(store, 1, tenant="acme")
    assert len(await claimed(store)) == 1


async def test_priorities_order_the_jobs_of_a_tenant(store: Store) -> None:
    for priority in (1, 5, 3):
        await enqueue(store, tenant="acme", priority=priority)
    assert [(await claim(store, limit=1)).jobs[0].priority for _ in range(3)] == [5, 3, 1]


# --- no ready job is overlooked


async def _enqueued(backend: Backend) -> None:
    await enqueue(backend.store, tenant="acme")


async def _promoted(backend: Backend) -> None:
    await enqueue(backend.store, tenant="acme", delay=MINUTE)
    assert await claim_all(backend.store) == []
    await backend.advance(HOUR)
    await backend.store.housekeeping.promote(10)


async def _retried(backend: Backend) -> None:
    await enqueue(backend.store, tenant="acme", max_attempts=3)
    await run_one(backend.store, Raised("{}", retry_in=0))
    assert await claim_all(backend.store) == []
    await backend.advance(HOUR)
    await backend.store.housekeeping.promote(10)


async def _released(backend: Backend) -> None:
    await enqueue(backend.store, tenant="acme")
    await run_one(backend.store, Released("draining"))


async def _unparked(backend: Backend) -> None:
    await enqueue(backend.store, tenant="acme")
    await run_one(backend.store, Parked("unknown task", "unknown task"))
    assert await claim_all(backend.store) == []
    await backend.store.work.unpark(["report"])
    await backend.store.housekeeping.promote(10)


async def _unblocked(backend: Backend) -> None:
    first = await enqueue(backend.store, tenant="acme")
    await enqueue(backend.store, tenant="acme", blocked_by=first)
    await run_one(backend.store)
    await backend.store.housekeeping.promote(10)


async def _expired(backend: Backend) -> None:
    await enqueue(backend.store, tenant="acme", max_attempts=3)
    assert len(await claim_all(backend.store)) == 1
    await backend.advance(LEASE + SECOND)
    await backend.store.housekeeping.expire(10)
    await backend.advance(HOUR)
    await backend.store.housekeeping.promote(10)
    await backend.sql("update headway_jobs set company = null")


async def _in_a_callers_transaction(backend: Backend) -> None:
    jobs = [new_job(tenant="acme")]
    if isinstance(backend, PostgresBackend):
        connection = await asyncpg.connect(backend.url, timeout=DEADLINE_S)
        async with connection.transaction():
            await run_inside_async(connection, lambda: enqueue_inside(jobs), "postgresql")
            assert await claim_all(backend.store) == []
        await connection.close()
    else:
        assert isinstance(backend, SqliteBackend)
        if not backend.is_shared:
            pytest.skip("a database in memory has one connection")
        with sqlite3.connect(backend.path, timeout=DEADLINE_S) as connection:
            connection.execute("begin immediate")
            await run_inside_async(connection, lambda: enqueue_inside(jobs), "sqlite")
        connection.close()


@pytest.mark.parametrize(
    "make_ready",
    [_enqueued, _promoted, _retried, _released, _unparked, _unblocked, _expired, _in_a_callers_transaction],
)
async def test_every_job_that_becomes_ready_is_found(
    backend: Backend, make_ready: Callable[[Backend], Awaitable[None]]
) -> None:
    store = backend.store
    await enqueue(store, tenant="acme")
    await finish(store, *await claimed(store))
    assert await claimed(store) == []  # The lane exists, and is closed.
    await make_ready(backend)
    assert await store.work.ready_queues() == {"default": True}
    found = await claim(store)
    assert [job.tenant for job in found.jobs] == ["acme"]
    assert await store.work.ready_queues() == {}


async def test_paused_queue_keeps_its_rings(store: Store) -> None:
    await fill(store, 2, tenant="acme")
    await put(store, "queue:default", concurrency=5)
    await store.queue.pause("default", author="ada")
    await fill(store, 1)
    assert (await claim(store)).jobs == ()
    await store.queue.resume("default")
    assert len(await claimed(store)) == 3


async def test_more_new_lanes_than_one_claim_opens(store: Store) -> None:
    for _ in range(3):
        await store.queue.enqueue([new_job(tenant=f"t{number:03d}") for number in range(700)])
    assert len(await claimed(store, limit=1_000)) == 2_100


async def test_cancelled_and_expired_jobs_leave_no_open_lane(backend: Backend) -> None:
    store = backend.store
    [cancelled] = await fill(store, 1, tenant="acme")
    await store.queue.cancel(cancelled, author="ada")
    await fill(store, 1, tenant="globex", expires=SECOND)
    await backend.advance(DAY)
    found = await claim(store)
    assert (found.jobs, found.in_vain, found.has_lanes) == ((), frozenset(), False)


async def test_empty_lane_at_a_gate_lets_the_next_one_go_on(store: Store) -> None:
    await put(store, "tenant:*", concurrency=1)
    await put(store, "account-*", concurrency=5)
    lanes = [(await fill(store, 2, tenant="acme", limit_key=f"account-{number}")) for number in range(5)]
    [job] = await claimed(store)
    rest = [job_id for lane in lanes for job_id in lane if job_id != job.id]
    for job_id in rest[:-1]:
        await store.queue.cancel(job_id, author="ada")
    await finish(store, job)
    assert [job.id for job in await claimed(store)] == rest[-1:]


async def test_lane_that_goes_on_to_another_gate_leaves_its_place_to_the_next_one(store: Store) -> None:
    await put(store, "tenant:*", concurrency=2)
    await put(store, "account-*", concurrency=1)
    await fill(store, 2, tenant="acme", limit_key="account-1")
    await fill(store, 1, tenant="acme", limit_key="account-2")
    first, second = await claimed(store)
    assert {frozenset(job.gates) for job in (first, second)} == {
        frozenset({"tenant:acme", "account-1"}),
        frozenset({"tenant:acme", "account-2"}),
    }
    await fill(store, 1, tenant="acme", limit_key="account-3")
    assert await claimed(store) == []
    await finish(store, first if "account-2" in first.gates else second)
    assert ["account-3" in job.gates for job in await claimed(store)] == [True]


# --- jobs that a worker cannot take


async def test_tenant_whose_jobs_this_worker_cannot_take_is_left_for_others(store: Store) -> None:
    await fill(store, 2, tenant="acme", task="video")
    await fill(store, 1, tenant="globex", task="video")
    await fill(store, 1, tenant="globex", task="report")
    found = await claim(store, skip=["video"])
    assert [job.task for job in found.jobs] == ["report"]
    assert found.in_vain == {"acme", "globex"}
    assert (found.has_lanes, found.has_more) == (True, False)
    past = await claim(store, skip=["video"], past=["acme", "globex"])
    assert (past.jobs, past.in_vain) == ((), frozenset())
    assert await store.work.ready_queues() == {"default": True}
    others = await claim(store, node="worker-2")
    assert sorted(job.tenant for job in others.jobs) == ["acme", "acme", "globex"]
    assert not others.in_vain


# --- suspects


async def _suspect(backend: Backend, **options: object) -> str:
    """Enqueue a job that workers were lost with."""
    job_id = await enqueue(backend.store, **options)
    await backend.sql(f"update headway_jobs set company = 0, apart_for = 1000 where id = '{job_id}'")
    return job_id


@pytest.mark.parametrize(
    ("name", "gate", "options"),
    [
        ("queue:default", "queue:default", {}),
        ("tenant:acme", "tenant:acme", {}),
        ("task:*", "task:report", {}),
        ("account-*", "account-1", {"limit_key": "account-1"}),
    ],
)
@pytest.mark.parametrize("is_late", [False, True], ids=["labelled", "not labelled"])
async def test_suspect_passes_its_gates(
    backend: Backend, name: str, gate: str, options: dict[str, str], is_late: bool
) -> None:
    store = backend.store
    await put(store, name, concurrency=1)
    [other] = await fill(store, 1, tenant="acme", **options)
    suspect = await _suspect(backend, tenant="acme", **options)
    if is_late:  # Enqueued by a transaction that did not see the limit of its task.
        await backend.sql(f"update headway_jobs set limited_task = '' where id = '{suspect}'")
    [job] = await claimed(store)
    assert job.id == other  # The usual claim leaves suspects alone.
    assert await store.work.apart(["report"], [], 10) == []  # No worker makes room for it in vain.
    assert await store.work.claim_apart(suspect, node="n", lease=LEASE) is None
    await finish(store, job)
    assert [found.job_id for found in await store.work.apart(["report"], [], 10)] == [suspect]
    taken = await store.work.claim_apart(suspect, node="n", lease=LEASE)
    assert taken is not None
    alone, apart_for = taken
    assert (alone.id, alone.gates, alone.share, alone.reserved, apart_for) == (suspect, (gate,), "acme", 0, 1000)
    await fill(store, 1, tenant="acme", **options)
    assert await claimed(store) == []
    assert await store.work.claim_apart(suspect, node="n", lease=LEASE) is None
    await finish(store, alone)
    assert len(await claimed(store)) == 1


async def test_suspect_counts_as_a_start_of_its_rate(backend: Backend) -> None:
    store = backend.store
    await put(store, "tenant:*", rate="1/m")
    suspects = [await _suspect(backend, tenant="acme") for _ in range(2)]
    assert await store.work.claim_apart(suspects[0], node="n", lease=LEASE)
    assert await store.work.apart(["report"], [], 10) == []
    assert await store.work.claim_apart(suspects[1], node="n", lease=LEASE) is None
    await backend.advance(MINUTE)
    assert len(await store.work.apart(["report"], [], 10)) == 1
    assert await store.work.claim_apart(suspects[1], node="n", lease=LEASE)
    assert await running(backend) == 2


async def test_suspect_of_nobody_in_particular_is_charged_to_nobody(backend: Backend) -> None:
    store = backend.store
    suspect = await _suspect(backend)
    await store.queue.pause("default", author="ada")
    assert await store.work.claim_apart(suspect, node="n", lease=LEASE) is None
    await store.queue.resume("default")
    taken = await store.work.claim_apart(suspect, node="n", lease=LEASE)
    assert taken is not None
    assert (taken[0].gates, taken[0].share) == ((), None)
    assert not await end(store, taken[0], Succeeded())


async def test_suspects_do_not_keep_a_lane_open(backend: Backend) -> None:
    await _suspect(backend, tenant="acme")
    found = await claim(backend.store)
    assert (found.jobs, found.in_vain, found.has_lanes) == ((), frozenset(), False)
