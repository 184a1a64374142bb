"""Needs on every database: a claim takes one class, its limits and tenants hold, and what nobody offers is parked."""

import asyncio
import json

import pytest

from headway.core.instants import HOUR, MINUTE, SECOND
from headway.core.jobs import Claimed
from headway.core.lifecycle import Raised, Released, Status
from headway.core.ports import Charge
from headway.store import Store, needs
from headway.store.statements import POSTGRES, catalogue, positional
from tests.conformance.arrange import LEASE, end, enqueue, new_job
from tests.conformance.backend import Backend, PostgresBackend, SqliteBackend
from tests.conformance.limiting import claim, claimed, fill, finish, put

CPU = "cpu=2"
GPU = "cpu=1 gpu=1"


async def _classes(store: Store) -> set[tuple[str, str]]:
    return set(await store.work.classes())


async def test_plain_claim_and_other_classes_take_no_job_with_needs(store: Store) -> None:
    await fill(store, 2)
    ids = await fill(store, 3, needs=CPU)
    await fill(store, 1, needs=GPU)
    assert await store.work.ready_queues() == {"default": True}
    assert len(await store.work.claim("default", node="n", lease=LEASE, limit=9)) == 2
    first = await claim(store)
    assert not first.jobs
    assert first.classes == {CPU, GPU}
    assert await _classes(store) == {("default", CPU), ("default", GPU)}
    got = await claim(store, needs=CPU, limit=2)
    assert [(job.id, job.needs, job.share) for job in got.jobs] == [(one, CPU, "default") for one in ids[:2]]
    assert [job.id for job in (await claim(store, needs=CPU)).jobs] == ids[2:]
    assert await _classes(store) == {("default", GPU)}
    assert (await claim(store, needs="memory=1")).jobs == ()


async def test_class_is_found_again_when_a_job_comes_back(store: Store) -> None:
    await fill(store, 1, needs=CPU, max_attempts=3)
    for _ in range(3):
        await claim(store)
        assert await _classes(store) == {("default", CPU)}
        [job] = (await claim(store, needs=CPU, limit=5)).jobs
        assert await _classes(store) == set()
        await end(store, job, Released())
    await claim(store)
    [job] = (await claim(store, needs=CPU)).jobs
    await end(store, job, Raised("{}", retry_in=0))
    assert await store.housekeeping.promote(10) == 1
    assert {job.id for job in await claimed(store)} == set()
    assert len((await claim(store, needs=CPU)).jobs) == 1


async def test_class_with_jobs_of_others_stays_open(store: Store) -> None:
    """This worker does not know the task, another one may."""
    await fill(store, 2, needs=CPU, task="other")
    await fill(store, 2, needs=CPU, tenant="acme", task="other")
    await claim(store)
    found = await claim(store, needs=CPU, skip={"other"})
    assert not found.jobs
    assert found.in_vain == {"default", "acme"}
    assert await _classes(store) == {("default", CPU)}
    assert len((await claim(store, needs=CPU)).jobs) == 4
    assert await _classes(store) == set()


async def test_look_tells_how_long_the_next_job_waits_and_takes_nothing(backend: Backend) -> None:
    store = backend.store
    await fill(store, 1, needs=CPU)
    await backend.advance(20 * SECOND)
    await fill(store, 1, needs=CPU)
    await claim(store)
    look = await claim(store, needs=CPU, limit=0)
    assert look.jobs == ()
    assert look.waited is not None
    assert 20 * SECOND <= look.waited < 25 * SECOND
    assert (await claim(store, needs=CPU, limit=0, skip={"report"})).waited is None
    assert (await claim(store, needs=GPU, limit=0)).waited is None
    assert len((await claim(store, needs=CPU)).jobs) == 2
    assert (await claim(store, needs=CPU, limit=0)).waited is None


async def test_look_sees_no_job_that_limits_hold(store: Store) -> None:
    await put(store, "account-*", concurrency=1)
    await put(store, "tenant:acme", rate="1/h")
    await fill(store, 2, needs=CPU, limit_key="account-1")
    await fill(store, 2, needs=CPU, tenant="acme")
    await claim(store)
    assert (await claim(store, needs=CPU, limit=0)).waited is not None
    jobs = await claimed(store, needs=CPU)
    assert sorted(job.tenant for job in jobs) == ["acme", "default"]
    assert (await claim(store, needs=CPU, limit=0)).waited is None
    assert await _classes(store) == set()
    await finish(store, *[job for job in jobs if job.gates])
    assert await _classes(store) == {("default", CPU)}
    assert (await claim(store, needs=CPU, limit=0)).waited is not None
    assert len(await claimed(store, needs=CPU)) == 1


@pytest.mark.parametrize("name", ["queue:default", "task:report", "tenant:*"])
async def test_limits_count_jobs_with_and_without_needs_together(store: Store, name: str) -> None:
    await put(store, name, concurrency=3)
    await fill(store, 4, tenant="acme")
    await fill(store, 4, tenant="acme", needs=CPU)
    running = [*(await claim(store, limit=2)).jobs]
    running += (await claim(store, needs=CPU)).jobs
    assert sorted(job.needs for job in running) == ["", "", CPU]
    done = 0
    while running:
        assert len(running) <= 3
        await finish(store, *running)
        done += len(running)
        running = [*await claimed(store), *await claimed(store, needs=CPU)]
        assert len(running) <= 3
    assert done == 8


async def test_tenants_are_charged_in_their_class(backend: Backend) -> None:
    store = backend.store
    await fill(store, 1, tenant="acme", needs=CPU)
    await fill(store, 1, tenant="acme")
    await claim(store, limit=0)
    [job] = (await claim(store, needs=CPU)).jobs
    await claim(store)
    before = await _used(backend)
    await store.work.charge([Charge(queue="default", needs=CPU, tenant="acme", more=7, took=SECOND, jobs=1)])
    after = await _used(backend)
    assert job.share == "acme"
    assert {key: after[key][0] - before[key][0] for key in after} == {"": 0, CPU: SECOND}


async def _used(backend: Backend) -> dict[str, tuple[int, int]]:
    rows = await backend.sql("select needs, used, vtime from headway_shares where tenant = 'acme'")
    return {row["needs"]: (row["used"], row["vtime"]) for row in rows}


async def test_suspects_tell_what_they_need(backend: Backend) -> None:
    store = backend.store
    await fill(store, 1, needs=CPU, max_attempts=9)
    await claim(store)
    assert len((await claim(store, needs=CPU)).jobs) == 1
    for number in range(2):
        await backend.advance(LEASE + SECOND)
        assert len(await store.housekeeping.expire(10)) == 1
        await backend.advance(MINUTE)
        await store.housekeeping.promote(10)
        if number == 0:
            await claim(store)
            assert len((await claim(store, needs=CPU, node="worker-2")).jobs) == 1
    [suspect] = await store.work.apart(["report"], (), 10)
    assert suspect.needs == CPU
    assert await store.work.apart(["report"], (), 10, unfit=[CPU]) == []
    await claim(store)
    assert (await claim(store, needs=CPU)).jobs == ()
    taken = await store.work.claim_apart(suspect.job_id, node="n", lease=LEASE)
    assert taken is not None
    assert taken[0].needs == CPU


async def test_rerun_keeps_needs(backend: Backend) -> None:
    store = backend.store
    job_id = await enqueue(store, needs=CPU)
    await store.queue.cancel(job_id, author="ada")
    again = await store.queue.retry(job_id, author="ada")
    assert (again.id != job_id, again.needs, again.status) == (True, CPU, Status.PENDING)


# --- parking


async def test_park_and_unpark_a_class(backend: Backend) -> None:
    store = backend.store
    early = await enqueue(store, needs=GPU)
    late = await enqueue(store, needs=GPU, queue="media")
    other = await enqueue(store, needs=CPU)
    await enqueue(store)
    assert await store.needs.waiting() == [("default", GPU), ("default", CPU), ("media", GPU)]
    assert await store.needs.parked() == []
    assert await store.needs.park("default", GPU, "needs gpu=1, nobody offers it") == 1
    assert await store.needs.park("default", GPU, "needs gpu=1, nobody offers it") == 0
    parked = await store.jobs.get(early)
    assert (parked.status, parked.parked, parked.reason) == (Status.BLOCKED, "needs", "needs gpu=1, nobody offers it")
    assert (parked.failures, parked.lease_until) == (0, None)
    [attempt] = await store.jobs.attempts(early)
    assert (attempt["outcome"], attempt["reason"]) == ("parked", "needs gpu=1, nobody offers it")
    assert await store.needs.waiting() == [("default", CPU), ("media", GPU)]
    assert await store.needs.parked() == [("default", GPU)]
    await backend.advance(HOUR)
    await store.housekeeping.promote(10)
    assert await store.work.unpark(["report"]) == 0  # A new worker does not offer it either.
    assert (await store.jobs.get(early)).status is Status.BLOCKED
    assert await store.needs.unpark("default", GPU) == 1
    assert await store.housekeeping.promote(10) == 1
    back = await store.jobs.get(early)
    assert (back.status, back.run_at) == (Status.PENDING, parked.run_at)  # It keeps its place.
    await claim(store)
    assert [job.id for job in (await claim(store, needs=GPU)).jobs] == [early]
    for job_id in (late, other):
        assert (await store.jobs.get(job_id)).status is Status.PENDING


async def test_parked_job_can_be_cancelled_and_retried_by_hand(store: Store) -> None:
    first, second = await enqueue(store, needs=GPU), await enqueue(store, needs=GPU)
    assert await store.needs.park("default", GPU, "nobody offers it") == 2
    assert (await store.queue.cancel(first, author="ada")).status is Status.CANCELLED
    await store.queue.retry(second, author="ada")
    await store.housekeeping.promote(10)
    assert (await store.jobs.get(second)).status is Status.PENDING
    assert await store.needs.parked() == []


async def test_many_classes_are_read_in_turns(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "CLASSES_MAX", 4)
    texts = sorted(f"cpu={number}" for number in range(1, 8))
    await store.queue.enqueue([new_job(needs=text) for text in texts for _ in range(2)])
    await claim(store)
    found = [await store.work.classes() for _ in range(3)]
    assert all(len(page) <= 4 for page in found)
    assert {text for page in found for _, text in page} == {*texts}
    waiting = [await store.needs.waiting() for _ in range(3)]
    assert {text for page in waiting for _, text in page} == {*texts}


@pytest.mark.parametrize("statement", ["open_classes", "waiting_needs", "parked_needs"])
async def test_search_for_classes_reads_no_more_when_there_are_more_jobs(backend: Backend, statement: str) -> None:
    """Counted in pages of PostgreSQL, which a scan of all jobs or lanes would read by the hundred."""
    if not isinstance(backend, PostgresBackend):
        pytest.skip("SQLite does not count what it reads")
    await backend.sql(
        "insert into headway_jobs (id, tenant, task, queue, priority, status, run_at, attempt, failures, max_attempts,"
        " version, exclusive, args, created_at, updated_at, progress, reason, needs, parked)"
        " select 'job_' || n, 't-' || n % 5000, 'report', 'q-' || n % 2, 0,"
        "   case when n % 3 = 0 then 'BLOCKED' else 'PENDING' end, n, 0, 0, 1, 1, 0, '{}', 1, 1, 0, '',"
        "   case when n % 7 = 0 then 'cpu=' || 1 + n % 4 else '' end, case when n % 3 = 0 then 'needs' end"
        " from generate_series(1, 30000) as n"
    )
    await backend.sql(
        "insert into headway_lanes (queue, needs, tenant, limit_key, limited_task, turn, open)"
        " select distinct queue, needs, tenant, '', '', 1, 1 from headway_jobs"
    )
    await backend.sql("vacuum analyze headway_jobs")
    await backend.sql("vacuum analyze headway_lanes")
    text = positional(catalogue(POSTGRES)[statement], lambda index: ("''", "''", "500")[index - 1])
    rows = await backend.sql(f"explain (analyze, buffers, format json) {text}")
    plan = json.loads(rows[0]["QUERY PLAN"])[0]["Plan"]
    assert plan["Actual Rows"] == 6  # Of each queue: two classes, and the jobs without needs.
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 400


async def test_closed_classes_are_forgotten(backend: Backend) -> None:
    store = backend.store
    for number in range(1, 6):
        await fill(store, 1, needs=f"cpu={number}", tenant="acme")
    await fill(store, 1, tenant="acme")
    await finish(store, *await claimed(store))
    for number in range(1, 6):
        await finish(store, *await claimed(store, needs=f"cpu={number}"))
    assert await backend.count("headway_shares", "needs <> ''") == 5
    await backend.advance(40 * 24 * HOUR)
    await store.housekeeping.prune(HOUR, 100)
    await store.housekeeping.prune(HOUR, 100)
    assert await backend.count("headway_shares", "needs <> ''") == 0
    assert await backend.count("headway_shares", "needs = ''") >= 1


# --- two connections


async def test_two_workers_get_each_job_of_a_class_once(backend: Backend) -> None:
    if isinstance(backend, SqliteBackend) and not backend.is_shared:
        pytest.skip("a database in memory has one connection")
    one, other = backend.store, await backend.another()
    ids = await fill(one, 40, needs=CPU)
    await claim(one)

    async def take(store: Store, node: str) -> list[Claimed]:
        jobs: list[Claimed] = []
        for _ in range(30):
            jobs += (await claim(store, needs=CPU, limit=3, node=node)).jobs
        return jobs

    taken = [job for part in await asyncio.gather(take(one, "a"), take(other, "b")) for job in part]
    assert sorted(job.id for job in taken) == sorted(ids)
