"""What limits must survive: wrong clocks, claims that take long, lanes without jobs, and definitions that overlap."""

import asyncio

import pytest

from headway.core.errors import InvalidLimit
from headway.core.instants import DAY, HOUR, MINUTE, SECOND
from headway.core.lifecycle import Raised
from headway.core.limit_audit import audit_limits
from headway.core.limits import Limit
from headway.store import Store
from headway.store.claim_request import ClaimRequest
from headway.store.lanes import AHEAD_MAX, ROUNDS_MAX, LaneClaims
from headway.store.limits import LATE_AFTER, _enforce, _put
from headway.store.transaction import call, one
from tests.conformance.arrange import LEASE, claim_all, end
from tests.conformance.backend import Backend, Interrupted, columns
from tests.conformance.limiting import GATES, KINDS, claim, claimed, fill, finish, put, running

each_kind = pytest.mark.parametrize("kind", KINDS)
REQUEST = ClaimRequest(queue="default", node="held-up", lease=LEASE, room=100)


async def _excesses(store: Store) -> list[str]:
    spans, is_complete = await store.limit_reads.spans(0)
    revisions, knows_all = await store.limit_reads.revisions()
    assert is_complete
    assert knows_all
    return [f"{found}" for found in audit_limits(spans, revisions)]


# --- rates and time


@pytest.mark.parametrize("burst", [None, 3])
async def test_slow_claim_counts_its_starts_when_they_happen(shared: Backend, burst: int | None) -> None:
    """A claim may take seconds between its look at a rate and its starts: they count from then on."""
    store = shared.store
    await put(store, "account-*", rate="3/10s", burst=burst)
    await fill(store, 9, limit_key="account-1")
    begin = LaneClaims()
    async with Interrupted(shared, lambda: begin.claim(REQUEST), after="count_running"):
        await shared.advance(9 * SECOND)
    assert await running(shared) == 3
    await shared.advance(2 * SECOND)
    await store.work.reopen({})
    assert await claimed(store) == []
    assert not await _excesses(store)


async def test_suspect_that_is_claimed_slowly_counts_when_it_starts(shared: Backend) -> None:
    store = shared.store
    await put(store, "account-*", rate="1/10s")
    suspect, _ = await fill(store, 2, limit_key="account-1")
    await shared.sql(f"update headway_jobs set company = 0, apart_for = 1 where id = '{suspect}'")
    begin = LaneClaims()
    transaction = lambda: begin.claim_apart(suspect, node="n", lease=LEASE)  # noqa: E731
    async with Interrupted(shared, transaction, after="count_running"):
        await shared.advance(9 * SECOND)
    await shared.advance(2 * SECOND)
    assert await claimed(store) == []
    assert not await _excesses(store)


@each_kind
@pytest.mark.parametrize("burst", [None, 1])
async def test_lane_does_not_wait_for_a_time_before_the_clock_was_set_back(
    backend: Backend, kind: str, burst: int | None
) -> None:
    store = backend.store
    name, options = KINDS[kind]
    await put(store, name, rate="1/m", burst=burst)
    await fill(store, 3, **options)
    [first] = await claimed(store)
    assert await claimed(store) == []  # The lane waits for its time, a minute from now,
    await finish(store, first)
    await backend.advance(-DAY)  # which is now more than a day away.
    await store.limits.sweep()
    assert await claimed(store) == []  # The clock has forgotten when the first one started.
    await backend.advance(MINUTE)
    await store.limits.sweep()
    assert len(await claimed(store)) == 1


async def test_bucket_that_fills_slowly_outlives_pruning(backend: Backend) -> None:
    """A gate that nobody uses is pruned when its bucket is full again, and not before."""
    store = backend.store
    await put(store, "account-*", rate="1/31d", burst=5)
    await fill(store, 5, limit_key="account-1")
    await finish(store, *await claimed(store))
    await backend.advance(40 * DAY)
    await store.work.reopen({})
    assert await claimed(store) == []  # The lane is empty now, and waits at no gate.
    await backend.advance(40 * DAY)
    await store.housekeeping.prune(400 * DAY, 100)
    await fill(store, 5, limit_key="account-1")
    assert len(await claimed(store)) == 2
    await backend.sql("update headway_jobs set status = 'CANCELLED', finished_at = 1 where status = 'PENDING'")
    await backend.advance(200 * DAY)
    await store.work.reopen({})
    assert await claimed(store) == []
    await backend.advance(40 * DAY)
    await store.housekeeping.prune(400 * DAY, 100)
    assert await backend.count("headway_gates") == 0


# --- lanes without jobs


@pytest.mark.parametrize("options", [{"rate": "1/h"}, {"rate": "1/d", "burst": 1}, {"concurrency": 1}])
async def test_cancelled_jobs_of_others_keep_no_place(backend: Backend, options: dict[str, object]) -> None:
    """Each claim looks into some lanes only. Those that turn out to be empty must not make others wait."""
    store = backend.store
    await put(store, "task:report", **options)
    for number in range(ROUNDS_MAX + 2):
        await fill(store, 1, tenant=f"a{number}")
    await claim(store, limit=0)  # Their lanes are open.
    await backend.sql("update headway_jobs set status = 'CANCELLED', finished_at = 1 where status = 'PENDING'")
    await fill(store, 1, tenant="late")
    for _ in range(ROUNDS_MAX):
        found = await claim(store)
        if found.jobs:
            break
        assert found.has_more
        assert found.has_closed
    assert [job.tenant for job in found.jobs] == ["late"]


async def test_unlabelled_job_is_found_in_a_lane_that_is_never_empty(backend: Backend) -> None:
    """Transactions older than the limit of a task, and processes of older releases, write jobs without their lane."""
    store = backend.store
    await put(store, "task:report", concurrency=1)
    while await store.limits.keep_going():
        pass
    await fill(store, AHEAD_MAX // 2, tenant="acme")
    await backend.sql("update headway_jobs set limited_task = ''")
    await fill(store, 3, tenant="acme", task="other")
    for _ in range(4):
        await fill(store, 1, tenant="acme", task="other")
        found = await claim(store, limit=1)
        await finish(store, *found.jobs)
        if any(job.task == "report" for job in found.jobs):
            break
    else:
        pytest.fail("it is overtaken for ever")


# --- definitions that overlap


async def test_limit_that_is_put_again_is_not_put_in_force_by_the_first_author(shared: Backend) -> None:
    """Between two definitions no limit holds, so a claim may be under way that the first author does not know of."""
    store = shared.store
    await fill(store, 3)
    limit = Limit.build("queue:default", concurrency=1)
    first = await store.driver.run(lambda: _put(limit, "ada", replaces=True))
    await store.limits.remove("queue:default", author="bob")
    statement = call("claim", queue="default", node="n", lease=LEASE, limit=1, skip="[]")
    async with Interrupted(shared, lambda: one(statement), after="claim") as other:

        async def put_again() -> None:
            again = await store.driver.run(lambda: _put(limit, "eve", replaces=True))
            await store.driver.run(lambda: _enforce("queue:default", first))  # The first author has waited enough.
            assert again > first

        await other.act(put_again())
    assert [found.in_force for found in await store.limits.all()] == [False]
    assert await claimed(store) == []
    await shared.advance(LATE_AFTER + SECOND)
    await store.limits.keep_going()
    assert await running(shared) == 1
    assert await claimed(store) == []  # The attempt of the plain claim is counted.
    assert not await _excesses(store)


@each_kind
async def test_many_callers_define_change_and_remove_one_limit(shared: Backend, kind: str) -> None:
    """Whatever the order: afterwards the limit counts all that runs, and every job ends."""
    name, options = KINDS[kind]
    queue = options.get("queue", "default")
    if kind == "key":
        await put(shared.store, "account-*", concurrency=100)
        name = GATES[kind]
    stores = [shared.store, await shared.another(), await shared.another("node-3")]
    await fill(shared.store, 30, **options)
    done: list[str] = []

    async def define(store: Store, number: int) -> None:
        for turn in range(3):
            await store.limits.put(Limit.build(name, concurrency=1 + (turn + number) % 3), author=f"a{number}")
            if (turn + number) % 2:
                await store.limits.remove(name, author=f"a{number}")

    async def work(store: Store) -> None:
        while len(done) < 20:
            for job in await claim_all(store, queue, limit=2):
                await finish(store, job)
                done.append(job.id)
            await store.limits.keep_going()

    await asyncio.gather(*(define(store, number) for number, store in enumerate(stores)), *map(work, stores))
    await put(shared.store, name, concurrency=2)
    while await shared.store.limits.keep_going():
        pass
    jobs = await claimed(shared.store, queue)
    assert len(jobs) == await running(shared) == 2
    assert await claimed(shared.store, queue) == []
    assert not await _excesses(shared.store)


async def test_jobs_of_a_removed_limit_run_and_new_ones_are_refused(backend: Backend) -> None:
    """Waiting jobs, retries and reruns start without it: none of them is stuck."""
    store = backend.store
    await put(store, "account-*", concurrency=1)
    await fill(store, 3, limit_key="account-1", max_attempts=3)
    [job] = await claimed(store)
    assert await claimed(store) == []
    await store.limits.remove("account-*", author="ada")
    rest = await claimed(store)
    assert len(rest) == 2
    assert not await end(store, job, Raised("{}", retry_in=SECOND))
    assert not await end(store, rest[0], Raised("{}", retryable=False))
    again = await store.queue.retry(rest[0].id, author="ada")
    await backend.advance(2 * SECOND)
    await store.housekeeping.promote(10)
    assert {one.id for one in await claimed(store)} == {job.id, again.id}
    with pytest.raises(InvalidLimit, match=r"no limit matches 'account-1'; define one"):
        await fill(store, 1, limit_key="account-1")
    await put(store, "account-*", concurrency=3)  # Under another definition all of them count again.
    await fill(store, 1, limit_key="account-1")
    assert await claimed(store) == []


# --- the history


async def test_history_of_limits_is_pruned_up_to_what_the_audit_needs(backend: Backend) -> None:
    store = backend.store
    for number in range(1, 4):
        await put(store, "queue:a", concurrency=number)
        await backend.advance(HOUR)
    await put(store, "queue:b", concurrency=9)
    await backend.advance(10 * DAY)
    await put(store, "queue:a", concurrency=4)
    await store.housekeeping.prune(DAY, 100)
    rows = await backend.sql("select name, concurrency from headway_limit_revisions order by revision")
    assert columns(rows, "name", "concurrency") == [("queue:a", 3), ("queue:b", 9), ("queue:a", 4)]
    revisions, knows_all = await store.limit_reads.revisions()
    assert [revision.limit.concurrency for revision in revisions if revision.limit] == [3, 9, 4]
    assert knows_all


async def test_audit_reads_the_newest_definitions(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.store.limit_reads.REVISIONS_MAX", 2)
    for number in range(1, 4):
        await put(backend.store, "queue:a", concurrency=number)
    revisions, knows_all = await backend.store.limit_reads.revisions()
    assert [revision.limit.concurrency for revision in revisions if revision.limit] == [2, 3]
    assert not knows_all
