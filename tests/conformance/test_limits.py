"""Limits on every database: what runs is counted from leases, so every end of an attempt frees its place."""

from collections.abc import Awaitable, Callable

import pytest

from headway.core.errors import InvalidLimit, LimitOwned
from headway.core.instants import DAY, HOUR, MINUTE, SECOND
from headway.core.jobs import Claimed
from headway.core.lifecycle import (
    AttemptOutcome,
    Cancelled,
    Crashed,
    Parked,
    Raised,
    Released,
    Succeeded,
    TimedOut,
)
from headway.core.limits import Limit
from headway.store import Store
from headway.store.limits import LATE_AFTER, _put
from tests.conformance.arrange import LEASE, claim_all, end, enqueue
from tests.conformance.backend import Backend, columns
from tests.conformance.limiting import GATES, KINDS, claim, claimed, fill, finish, put, running

each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
async def test_no_more_than_the_limit_run_at_a_time(backend: Backend, kind: str) -> None:
    store = backend.store
    name, options = KINDS[kind]
    await put(store, name, concurrency=2)
    ids = await fill(store, 5, **options)
    assert await store.work.ready_queues() == {"default": True}
    assert await store.work.claim("default", node="n", lease=LEASE, limit=9) == []  # The plain claim takes none.
    first = await claim(store)
    assert [job.id for job in first.jobs] == ids[:2]
    assert {job.gates for job in first.jobs} == {(GATES[kind],)}
    assert GATES[kind] in first.full
    assert not first.has_more
    assert (await claim(store)).jobs == ()
    done = [*first.jobs]
    while job := next(iter(done), None):
        await finish(store, done.pop(0))
        assert job.id in ids
        done += await claimed(store)
        assert await running(backend) == len(done) <= 2
    assert await backend.count("headway_jobs", "status = 'COMPLETED'") == 5


async def test_each_name_of_a_pattern_has_its_own_places(store: Store) -> None:
    await put(store, "account-*", concurrency=1)
    await put(store, "account-big", concurrency=3)
    for name in ("account-1", "account-2", "account-big"):
        await fill(store, 4, limit_key=name)
    assert sorted(job.gates[0] for job in await claimed(store)) == [
        "account-1",
        "account-2",
        *("account-big",) * 3,
    ]


async def test_job_passes_all_of_its_gates(store: Store) -> None:
    await put(store, "queue:default", concurrency=4)
    await put(store, "tenant:*", concurrency=3)
    await put(store, "task:report", concurrency=2)
    await put(store, "account-*", concurrency=1)
    for tenant in ("acme", "globex"):
        for task in ("report", "other"):
            for key in ("account-1", "account-2", ""):
                await fill(store, 3, tenant=tenant, task=task, limit_key=key)
    jobs = await claimed(store)
    assert len(jobs) == 4
    assert max(sum(job.tenant == tenant for job in jobs) for tenant in ("acme", "globex")) <= 3
    assert sum(job.task == "report" for job in jobs) <= 2
    for key in ("account-1", "account-2"):
        assert sum(key in job.gates for job in jobs) <= 1
    assert all({"queue:default", f"tenant:{job.tenant}"} <= {*job.gates} for job in jobs)


async def test_job_cannot_name_a_limit_that_does_not_exist(store: Store) -> None:
    with pytest.raises(InvalidLimit, match=r"account-\*"):
        await enqueue(store, limit_key="account-1")


OUTCOMES: dict[str, AttemptOutcome] = {
    "success": Succeeded("1"),
    "failure": Raised("{}", retryable=False),
    "retry": Raised("{}", retry_in=HOUR),
    "crash": Crashed("{}"),
    "timeout": TimedOut("{}", retryable=False),
    "cancelled": Cancelled(),
    "released": Released("draining"),
    "parked": Parked("unknown task", "unknown task"),
}


async def _by_outcome(backend: Backend, job: Claimed, how: str) -> None:
    assert not await end(backend.store, job, OUTCOMES[how])


async def _by_expiry(backend: Backend, job: Claimed, how: str) -> None:
    assert how == "expired"
    await backend.advance(LEASE + SECOND)
    assert await backend.store.housekeeping.expire(10) == [job.id]


async def _by_request(backend: Backend, job: Claimed, how: str) -> None:
    assert how == "asked to stop"
    await backend.store.queue.cancel(job.id, author="ada")
    assert await claimed(backend.store) == []  # It is still running.
    assert not await end(backend.store, job, Cancelled())


async def _handed_back(backend: Backend, job: Claimed, how: str) -> None:
    assert how == "handed back"
    assert await backend.store.work.hand_back_unknown("worker-1", known=(), given_up=()) == [job.id]


ENDS: dict[str, Callable[[Backend, Claimed, str], Awaitable[None]]] = {
    **dict.fromkeys(OUTCOMES, _by_outcome),
    "expired": _by_expiry,
    "asked to stop": _by_request,
    "handed back": _handed_back,
}


@each_kind
@pytest.mark.parametrize("how", ENDS)
async def test_every_end_of_an_attempt_frees_its_place(backend: Backend, kind: str, how: str) -> None:
    """Also if its worker does not say so: the sweep finds the free place."""
    store = backend.store
    name, options = KINDS[kind]
    await put(store, name, concurrency=1)
    await fill(store, 3, **options, max_attempts=3)
    [job] = await claimed(store)
    assert await claimed(store) == []
    await ENDS[how](backend, job, how)
    assert await running(backend) == 0
    await store.limits.keep_going()
    assert len(await claimed(store)) == 1
    assert await running(backend) == 1


@each_kind
async def test_lowered_limit_kills_nobody_and_starts_nobody(backend: Backend, kind: str) -> None:
    store = backend.store
    name, options = KINDS[kind]
    await put(store, name, concurrency=3)
    await fill(store, 6, **options)
    jobs = await claimed(store)
    assert len(jobs) == 3
    await put(store, name, concurrency=1)
    assert await running(backend) == 3
    for job in jobs[:2]:
        assert await claimed(store) == []
        await finish(store, job)
    assert await claimed(store) == []
    await finish(store, jobs[2])
    assert len(await claimed(store)) == 1


@each_kind
async def test_raised_limit_lets_more_start_and_a_removed_one_all(backend: Backend, kind: str) -> None:
    store = backend.store
    name, options = KINDS[kind]
    await put(store, name, concurrency=1)
    await fill(store, 9, **options)
    assert len(await claimed(store)) == 1
    assert len(await claimed(store)) == 0
    await put(store, name, concurrency=4)
    assert len(await claimed(store)) == 3
    assert len(await claimed(store)) == 0
    assert await store.limits.remove(name, author="ada")
    assert not await store.limits.remove(name, author="ada")
    assert len(await claim_all(store)) == 5
    assert await running(backend) == 9


@each_kind
async def test_new_limit_counts_attempts_that_run_already(backend: Backend, kind: str) -> None:
    store = backend.store
    name, options = KINDS[kind]
    if kind == "key":  # A job cannot name a limit that does not exist.
        await put(store, name, concurrency=100)
        name = GATES[kind]
    await fill(store, 3, **options)
    jobs = await claim_all(store)
    assert len(jobs) == 3
    await put(store, name, concurrency=3)
    await fill(store, 3, **options)
    assert await claim_all(store) == []
    assert await claimed(store) == []
    assert not await end(store, jobs[0], Succeeded())  # Its worker does not know of the limit.
    await store.limits.keep_going()
    assert len(await claimed(store)) == 1
    assert await running(backend) == 3


async def test_limit_of_one_queue_or_tenant_leaves_others_alone(store: Store) -> None:
    await put(store, "queue:media", concurrency=1)
    await put(store, "tenant:acme", concurrency=1)
    await fill(store, 3)
    assert await store.work.ready_queues() == {"default": False}
    assert len(await store.work.claim("default", node="n", lease=LEASE, limit=9)) == 3
    await fill(store, 3, tenant="globex")
    await fill(store, 3, tenant="acme")
    await fill(store, 3, queue="media")
    assert sorted(job.tenant for job in await claimed(store)) == ["acme", "globex", "globex", "globex"]
    assert len(await claimed(store, "media")) == 1


async def test_limit_of_a_task_that_has_waiting_jobs(backend: Backend) -> None:
    """Jobs get into the lane of their task later, and none of them starts beyond the limit meanwhile."""
    store = backend.store
    tenants = ("default", "acme")
    for tenant in tenants:
        await fill(store, 8, tenant=tenant, task="report")
        await fill(store, 2, tenant=tenant, task="other")
        await enqueue(store, tenant=tenant, task="report", delay=MINUTE)
    await put(store, "task:rep*", concurrency=3)
    assert await store.work.claim("default", node="n", lease=LEASE, limit=9) == []
    first = await claim(store)
    assert sum(job.task == "report" for job in first.jobs) <= 3
    while await store.limits.keep_going():
        assert await backend.count("headway_jobs", "lease_until is not null and task = 'report'") <= 3
    assert await backend.count("headway_jobs", "limited_task = task") == 18
    jobs = [*first.jobs, *await claimed(store)]
    assert sorted(job.task for job in jobs) == [*("other",) * 4, *("report",) * 3]
    await backend.advance(2 * MINUTE)
    assert await store.housekeeping.promote(10) == 2
    jobs = [job for job in jobs if job.task == "report"]
    done = 0
    while jobs:
        assert await backend.count("headway_jobs", "lease_until is not null and task = 'report'") <= 3
        await finish(store, *jobs)
        done += len(jobs)
        jobs = await claimed(store)
    assert done == 18


@pytest.mark.parametrize("tenant", ["default", "acme"])
async def test_job_of_a_transaction_older_than_the_limit_of_its_task_starts_too(backend: Backend, tenant: str) -> None:
    """Such a transaction does not see the limit, and may commit after waiting jobs were put into their lanes."""
    store = backend.store
    await put(store, "task:report", concurrency=2)
    while await store.limits.keep_going():
        pass
    await fill(store, 5, tenant=tenant)
    await backend.sql("update headway_jobs set limited_task = ''")
    assert len(await claimed(store)) == 2
    assert await claimed(store) == []


async def test_old_labels_do_no_harm_when_the_limit_of_a_task_is_removed(store: Store) -> None:
    await put(store, "task:report", concurrency=1)
    await fill(store, 3)
    await store.limits.remove("task:report", author="ada")
    await fill(store, 2)
    assert await store.work.ready_queues() == {"default": True}
    assert len(await claimed(store)) == 5


async def test_limit_whose_author_died_is_finished_by_others(backend: Backend) -> None:
    store = backend.store
    await fill(store, 2)
    assert len(await claim_all(store, limit=1)) == 1
    for name, options in (("queue:default", {"concurrency": 2}), ("tenant:default", {"rate": "5/s"})):
        limit = Limit.build(name, **options)
        await store.driver.run(lambda limit=limit: _put(limit, "ada", replaces=True))  # type: ignore[misc]
    found = await claim(store)
    assert found.jobs == ()  # Nothing starts until the running attempts are counted.
    assert found.look_in is not None
    await store.limits.keep_going()
    assert await claimed(store) == []
    await backend.advance(LATE_AFTER + SECOND)
    await store.limits.keep_going()
    assert [limit.in_force for limit in await store.limits.all()] == [True, True]
    assert len(await claimed(store)) == 1
    await fill(store, 2)
    assert await claimed(store) == []


async def test_owner_and_history_of_a_limit(backend: Backend) -> None:
    store = backend.store
    await store.limits.put(Limit.build("queue:a", concurrency=1, owner="shop"), author="shop", replaces=False)
    for owner in ("", "other"):
        with pytest.raises(LimitOwned, match="shop"):
            await store.limits.put(Limit.build("queue:a", rate="1/s", owner=owner), author="x", replaces=False)
    await store.limits.put(Limit.build("queue:a", rate="5/m", burst=7), author="ada")
    await store.limits.remove("queue:a", author="bob")
    assert await store.limits.all() == []
    rows = await backend.sql("select * from headway_limit_revisions order by revision")
    assert columns(rows, "name", "author", "concurrency", "rate", "per", "burst", "removed") == [
        ("queue:a", "shop", 1, None, None, None, 0),
        ("queue:a", "ada", None, 5, MINUTE, 7, 0),
        ("queue:a", "bob", None, None, None, None, 1),
    ]
    assert len({row["revision"] for row in rows}) == 3


# --- rates


@each_kind
async def test_rate_counts_starts_in_any_window(backend: Backend, kind: str) -> None:
    store = backend.store
    name, options = KINDS[kind]
    await put(store, name, rate="3/10s")
    await fill(store, 9, **options)
    first = await claim(store, limit=2)
    assert len(first.jobs) == 2
    await backend.advance(4 * SECOND)
    second = await claim(store)
    assert len(second.jobs) == 1
    assert second.look_in is not None
    assert 0 < second.look_in <= 10 * SECOND
    for job in (*first.jobs, *second.jobs):
        assert job.gates == ()  # It holds no place.
        assert not await end(store, job, Succeeded())  # So its end frees none.
    await store.limits.keep_going()
    assert await claimed(store) == []
    await backend.advance(second.look_in)
    assert await store.work.reopen({}) == {"default"}
    third = await claim(store)
    assert len(third.jobs) == 2
    assert third.look_in is not None
    assert 0 < third.look_in <= 10 * SECOND
    await backend.advance(third.look_in)
    await store.limits.keep_going()  # Nobody has asked: the sweep opens lanes whose time has come.
    assert len((await claim(store)).jobs) == 1


async def test_bucket_allows_a_burst_then_its_rate(backend: Backend) -> None:
    store = backend.store
    await put(store, "account-*", rate="1/10s", burst=4)
    await fill(store, 9, limit_key="account-1")
    assert len(await claimed(store)) == 4
    for _ in range(2):
        assert await claimed(store) == []
        await backend.advance(10 * SECOND)
        await store.work.reopen({})
        assert len(await claimed(store)) == 1
    await backend.advance(HOUR)
    await store.work.reopen({})
    assert len(await claimed(store)) == 3


async def test_rate_and_concurrency_together(backend: Backend) -> None:
    store = backend.store
    await put(store, "tenant:*", concurrency=2, rate="3/h")
    await fill(store, 9, tenant="acme")
    jobs = await claimed(store)
    assert len(jobs) == 2
    await finish(store, *jobs)
    [third] = await claimed(store)
    await finish(store, third)
    assert await claimed(store) == []
    await store.limits.keep_going()
    assert await backend.count("headway_lanes", "held_by is not null and open = 0") == 1  # It waits for its time.
    await backend.advance(HOUR)
    await store.work.reopen({})
    assert len(await claimed(store)) == 2


async def test_changed_rate_is_in_force_at_once(backend: Backend) -> None:
    store = backend.store
    await put(store, "account-*", rate="1/d")
    await fill(store, 9, limit_key="account-1")
    assert len(await claimed(store)) == 1
    assert await claimed(store) == []
    await put(store, "account-*", rate="5/d")  # Nobody waits for the time of the old rate.
    assert len(await claimed(store)) == 4
    await put(store, "account-*", rate="1/d")
    assert await claimed(store) == []
    await store.limits.remove("account-*", author="ada")
    assert len(await claimed(store)) == 4


async def test_clock_of_the_database_that_is_set_back_stops_no_rate(backend: Backend) -> None:
    store = backend.store
    for number, options in enumerate(({}, {"burst": 1})):
        await put(store, f"account-{number}", rate="1/m", **options)
        await fill(store, 3, limit_key=f"account-{number}")
    assert len(await claimed(store)) == 2
    await backend.advance(-DAY)
    await backend.sql("update headway_lanes set look_at = 0 where look_at is not null")
    await store.work.reopen({})
    assert await claimed(store) == []
    await backend.advance(MINUTE)
    await store.work.reopen({})
    assert len(await claimed(store)) == 2


@each_kind
async def test_state_of_a_rate_outlives_pruning(backend: Backend, kind: str) -> None:
    store = backend.store
    name, options = KINDS[kind]
    await put(store, name, rate="1/31d")
    await fill(store, 2, **options)
    [job] = await claimed(store)
    await finish(store, job)
    await backend.advance(30 * DAY)
    await store.housekeeping.prune(HOUR, 100)
    await store.work.reopen({})
    assert await claimed(store) == []
    await backend.advance(DAY)
    await store.work.reopen({})
    assert len(await claimed(store)) == 1


async def test_gates_and_lanes_that_nobody_uses_are_pruned(backend: Backend) -> None:
    store = backend.store
    await put(store, "account-*", concurrency=1)
    await fill(store, 1, limit_key="account-1")
    await fill(store, 2, limit_key="account-2")
    await finish(store, *await claimed(store))
    [job] = await claimed(store)
    await fill(store, 1, limit_key="account-2")
    assert await claimed(store) == []
    await backend.advance(100 * DAY)
    await store.housekeeping.prune(HOUR, 100)
    rows = await backend.sql("select limit_key from headway_lanes where limit_key <> ''")
    assert columns(rows, "limit_key") == [("account-2",)]  # One of its jobs waits.
    assert columns(await backend.sql("select name from headway_gates"), "name") == [("account-2",)]
    await finish(store, job)
    assert len(await claimed(store)) == 1
