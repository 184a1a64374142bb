"""Behind PgBouncer in transaction mode: everything works without prepared statements, LISTEN or a session."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial

import pytest

from headway.core.clock import Clock
from headway.core.errors import AlreadyFinal, LeaseLost
from headway.core.events import EngineEvent, WakeModeChanged, subscribed
from headway.core.instants import DAY, HOUR, SECOND
from headway.core.lifecycle import (
    Attempt,
    AttemptOutcome,
    Cancelled,
    LeaseExpired,
    Raised,
    Released,
    Status,
    Succeeded,
    settle,
)
from headway.core.limits import Limit
from headway.core.nodes import Node
from headway.core.occurrences import Plan
from headway.core.ports import Charge, Fence
from headway.core.schedule_names import ScheduleRef
from headway.core.tenants import Tenant
from headway.store import Store, postgres, primary
from headway.store.migrations import check_schema, migrate
from headway.store.postgres import PostgresDriver
from tests.conformance.arrange import EVERYTHING, after, claim_one, due_plans, end, enqueue, new_job, run_one, spec
from tests.support.pgbouncer import PgBouncer
from tests.support.waiting import DEADLINE_S, async_wait_until

pytestmark = pytest.mark.postgres
LEASE = HOUR  # Too long to expire on a stalled machine.


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the timeouts for a slow machine."""
    for module, limit in ((postgres, "STATEMENT_S_MAX"), (postgres, "IDLE_S_MAX"), (primary, "CONNECT_S_MAX")):
        monkeypatch.setattr(module, limit, DEADLINE_S)


@pytest.fixture
async def store(migrated_url: str, pgbouncer: PgBouncer) -> AsyncIterator[Store]:
    store = Store.on(PostgresDriver(pgbouncer.url(migrated_url), node="n"), Clock(node="n"))
    yield store
    await store.close()


async def test_migrations_run_through_a_pooler(postgres_url: str, pgbouncer: PgBouncer) -> None:
    drivers = [PostgresDriver(pgbouncer.url(postgres_url)) for _ in range(3)]
    await asyncio.gather(*(migrate(driver) for driver in drivers))
    for driver in drivers:
        await check_schema(driver)
        await driver.close()


async def test_lifecycle_of_jobs(store: Store) -> None:
    store = store
    for _ in range(3):  # Repeated, so that any state kept for a connection would be wrong by then.
        await store.queue.enqueue([new_job(max_attempts=2) for _ in range(20)])
        await enqueue(store, delay=1)
        [first] = await store.queue.enqueue([new_job(key="k")])
        assert (await store.queue.enqueue([new_job(key="k")]))[0].id == first.id
        assert await store.housekeeping.promote(100) >= 1  # Including the retries of the previous round.
        jobs = await store.work.claim("default", node="n", lease=LEASE, limit=10)
        assert len(jobs) == 10
        assert len(await store.work.extend([(job.id, job.attempt) for job in jobs], lease=LEASE)) == 10
        outcomes: list[AttemptOutcome] = [
            Succeeded(),
            Raised("{}"),
            Released(),
            LeaseExpired(),
            Raised("{}", retryable=False),
        ]
        attempts = [
            Attempt(job_id=job.id, attempt=job.attempt, failures=job.failures, max_attempts=job.max_attempts)
            for job in jobs
        ]
        settlements = [settle(attempt, outcome, 0) for attempt, outcome in zip(attempts, outcomes * 2, strict=True)]
        assert await store.work.settle(settlements) == frozenset()
        assert await store.work.settle(settlements) == frozenset()  # Repeated, as after a lost response.
        late = [settle(attempt, Cancelled(), 0) for attempt in attempts]
        assert await store.work.settle(late) == {job.id for job in jobs}
        assert (await store.jobs.get(jobs[0].id)).status is Status.COMPLETED
        assert len(await store.jobs.attempts(jobs[0].id)) == jobs[0].attempt
        with pytest.raises(AlreadyFinal):
            await store.queue.cancel(jobs[0].id, author="ada")
        waiting = await enqueue(store, queue="other", delay=HOUR)
        assert (await store.queue.cancel(waiting, author="ada")).status is Status.CANCELLED
        assert await store.housekeeping.expire(10) == []
        await store.housekeeping.next_promotion()
        assert await store.housekeeping.prune(DAY, 10) == 0
        assert await store.jobs.page(status="FAILED")
        assert await store.statistics.depths()
        assert await store.statistics.waiting()
        while ready := await store.work.claim("default", node="n", lease=LEASE, limit=100):
            rest = [Attempt(job_id=job.id, attempt=job.attempt, failures=0, max_attempts=1) for job in ready]
            await store.work.settle([settle(attempt, Succeeded(), 0) for attempt in rest])


async def _due(store: Store, name: str) -> list[Plan]:
    """Plan the due instants of a schedule."""
    return [made for made in await due_plans(store) if made.schedule.name == name]


async def test_lifecycle_of_schedules(store: Store) -> None:
    schedules, ledger = store.schedules, store.ledger
    for number in range(3):
        name = f"s-{number}"
        assert await schedules.put(name, spec("200ms", overlap="queue")) == "created"
        assert await schedules.put(name, spec("200ms", overlap="replace")) == "changed"
        many = {ScheduleRef("default", f"{name}-{n}"): spec("1d") for n in range(50)}
        assert await schedules.put_many(many) == ["created"] * 50
        await async_wait_until(partial(_due, store, name), f"{name} to be due")
        [lease] = await store.leases.acquire(["scheduler/0"], holder="n", holder_name="", duration=LEASE)
        assert await store.leases.renew([lease], duration=LEASE)
        plans = await _due(store, name)
        assert await ledger.fire(plans, Fence(holder="n", tokens={lease.name: lease.token})) == frozenset()
        with pytest.raises(LeaseLost):
            await ledger.fire(plans, Fence(holder="n", tokens={lease.name: lease.token - 1}))
        await store.leases.release([lease])
        assert [held.name for held, runs in await store.leases.held("") if runs] == []
        assert await ledger.occurrences(name)
        assert len(await ledger.revisions(name)) == 2
        await schedules.trigger(name)
        await schedules.pause(name)
        await schedules.resume(name)
        assert await store.nodes.beat(Node(id="n", name="n", roles=("scheduler",))) is None
        [node] = await store.nodes.alive(HOUR)
        now = node.beat_at
        assert await schedules.backfill(name, now - 10 * SECOND, now - 5 * SECOND)
        await ledger.hold(name, (await schedules.get(name)).version, "test")
        assert await ledger.next_due(EVERYTHING) is not None
        assert (await ledger.summary())["total"] >= 50
        assert await ledger.revive_stranded(10) == 0
        assert await ledger.keys("", 10)
        assert await schedules.remove(name)
        assert len(await store.nodes.alive(HOUR)) == 1
    await store.nodes.leave("n")
    await schedules.put("after", after("1h", queue="after"))
    made = await async_wait_until(partial(_due, store, "after"), "the schedule to be due")
    assert await ledger.fire(made, None) == frozenset()
    await run_one(store, queue="after")
    assert (await schedules.get("after")).next_at is not None


async def test_concurrent_clients(migrated_url: str, pgbouncer: PgBouncer, store: Store) -> None:
    stores = [store] + [
        Store.on(PostgresDriver(pgbouncer.url(migrated_url)), Clock(node=f"n{number}")) for number in range(3)
    ]
    await asyncio.gather(
        *(stores[number % 4].queue.enqueue([new_job(key=f"k{number % 10}"), new_job()]) for number in range(40))
    )

    async def work(one: Store) -> int:
        done = 0
        while jobs := await one.work.claim("default", node="n", lease=LEASE, limit=3):
            for job in jobs:
                assert not await end(one, job, Succeeded())
                done += 1
        return done

    assert sum(await asyncio.gather(*(work(one) for one in stores))) == 50
    for one in stores[1:]:
        await one.close()


async def test_missing_notifications_are_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    listen = postgres.PostgresWatch._listen

    async def listen_patiently(watch: postgres.PostgresWatch) -> None:
        """Give a slow machine time to start listening. Only the wait for the missing notification is short."""
        with monkeypatch.context() as patch:
            patch.setattr(postgres, "PROBE_S_MAX", DEADLINE_S)
            await listen(watch)

    monkeypatch.setattr(postgres.PostgresWatch, "_listen", listen_patiently)
    monkeypatch.setattr(postgres, "PROBE_S_MAX", 0.5)
    events: list[EngineEvent] = []
    with subscribed(events.append):
        watch = await store.watch(lambda topic: None)
        await watch.check()
    assert watch.mode == "poll"
    [said] = [event for event in events if isinstance(event, WakeModeChanged)]
    assert (said.node, said.mode) == ("n", "poll")
    assert "pooler" in said.reason
    await watch.close()


async def test_concurrent_acquires_have_one_winner(migrated_url: str, pgbouncer: PgBouncer, store: Store) -> None:
    other = Store.on(PostgresDriver(pgbouncer.url(migrated_url)), Clock(node="other"))
    tokens = []
    for _ in range(5):
        answers = await asyncio.gather(
            *(
                one.leases.acquire(["role"], holder=f"h{number}", holder_name="", duration=LEASE)
                for number, one in enumerate((store, other) * 3)
            )
        )
        won = [lease for leases in answers for lease in leases]
        assert len(won) == 1
        tokens.append(won[0].token)
        await store.leases.release(won)
    assert tokens == sorted(set(tokens))
    await other.close()


async def test_job_is_claimed_once(store: Store) -> None:
    await enqueue(store)
    job = await claim_one(store)
    assert await store.work.claim("default", node="n", lease=LEASE, limit=1) == []
    assert job.attempt == 1


async def test_limits_rates_and_tenants(migrated_url: str, pgbouncer: PgBouncer, store: Store) -> None:
    """Claims by lanes are transactions of many statements, and definitions wait for them: no session is needed."""
    stores = [store] + [
        Store.on(PostgresDriver(pgbouncer.url(migrated_url)), Clock(node=f"n{number}")) for number in range(2)
    ]
    tenants = ("default", "acme", "globex")
    await store.limits.put(Limit.build("account-*", concurrency=2), author="ada")
    await store.tenants.put(Tenant.build("acme", weight=4), author="ada")
    jobs = [new_job(tenant=tenants[number % 3], limit_key=f"account-{number % 2}") for number in range(30)]
    await store.queue.enqueue(jobs)
    done: list[str] = []
    most = 0

    async def work(one: Store) -> None:
        nonlocal most
        while len(done) < len(jobs):
            found = await one.work.claim_lanes("default", node="n", lease=LEASE, limit=2)
            rows = await one.limit_reads.running(["account-0", "account-1"])
            most = max(most, *rows.values())
            for job in found.jobs:
                assert not await end(one, job, Succeeded())
                done.append(job.id)
            await one.work.reopen(Counter(gate for job in found.jobs for gate in job.gates))
            await one.work.charge(
                [Charge(queue="default", tenant=job.tenant, more=0, took=1, jobs=1) for job in found.jobs]
            )
            await one.limits.keep_going()

    async def change() -> None:
        for number in range(3):
            await store.limits.put(Limit.build("tenant:globex", concurrency=1 + number, rate="100/s"), author="ada")
            await store.limits.remove("tenant:globex", author="ada")

    await asyncio.gather(change(), *map(work, stores))
    assert sorted(done) == sorted({*done})
    assert most <= 2
    await store.limits.put(Limit.build("queue:default", rate="2/h"), author="ada")
    await store.queue.enqueue([new_job() for _ in range(5)])
    claims = await asyncio.gather(*(one.work.claim_lanes("default", node="n", lease=LEASE, limit=9) for one in stores))
    assert sum(len(claim.jobs) for claim in claims) == 2
    for one in stores[1:]:
        await one.close()
