"""Claims of several workers at the same time, and limits that change meanwhile. On PostgreSQL they really overlap."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import pytest

from headway.core.instants import Instant
from headway.core.limits import Limit, Rules
from headway.store import Store, lanes
from headway.store.claim_request import ClaimRequest
from headway.store.lanes import LaneClaims, _count_running, _Gate, _gate
from headway.store.postgres import PostgresDriver
from headway.store.statements import POSTGRES, catalogue, parse, positional
from headway.store.transaction import Transaction, as_json, call, one
from tests.conformance.arrange import LEASE, claim_all
from tests.conformance.backend import Backend, Interrupted
from tests.conformance.limiting import GATES, KINDS, claim, claimed, fill, finish, put, running
from tests.support.waiting import async_wait_until

each_kind = pytest.mark.parametrize("kind", KINDS)


def _request(queue: str, room: int = 100) -> ClaimRequest:
    return ClaimRequest(queue=queue, node="held-up", lease=LEASE, room=room)


async def _claim_beside_another(shared: Backend) -> int:
    """Claim jobs of one gate from two queues: the second claim begins while the first one is not committed."""
    store = shared.store
    await put(store, "account-*", concurrency=1)
    for queue in ("a", "b"):
        await fill(store, 3, queue=queue, limit_key="account-1")
    begin = LaneClaims()
    async with Interrupted(shared, lambda: begin.claim(_request("a")), after="claim_lanes") as other:
        await other.act(claim(store, "b"))
    return await running(shared)


async def test_second_claim_of_a_gate_waits_for_the_first(shared: Backend) -> None:
    assert await _claim_beside_another(shared) == 1


def _without_lock(names: Collection[str], rules: Rules) -> Transaction[tuple[dict[str, _Gate], Instant]]:
    counts = yield _count_running(sorted(names))
    return {row["gate"]: _gate(row, rules, "") for row in counts}, counts[0]["now"]


TOGETHER = """-- name: lock_and_count
with locked as materialized (
  insert into headway_gates (name, state, used_at)
  select r.gate, '', {now} from {rows gates as r (gate text)} where true order by r.gate
  on conflict (name) do update set used_at = case
    when headway_gates.used_at > excluded.used_at then headway_gates.used_at else excluded.used_at
  end
  returning name, state
)
select name as gate, state, {now} as now,
  (select count(*) from headway_jobs j where j.limit_key = name and j.lease_until is not null and (j.held & 8) = 8)
    as running
from locked;
"""


def _in_one_statement(names: Collection[str], rules: Rules) -> Transaction[tuple[dict[str, _Gate], Instant]]:
    rows = yield call("lock_and_count", gates=as_json([{"gate": name} for name in sorted(names)]))
    return {row["gate"]: _gate(row, rules, row["state"]) for row in rows}, rows[0]["now"]


@pytest.mark.postgres
@pytest.mark.parametrize("broken", [_without_lock, _in_one_statement])
@pytest.mark.parametrize("shared", ["postgres"], indirect=True)
async def test_the_race_is_real(shared: Backend, monkeypatch: pytest.MonkeyPatch, broken: Callable[..., Any]) -> None:
    """Without the lock, or with lock and count in one statement, two jobs run where one may."""
    [statement] = parse(TOGETHER, POSTGRES)
    driver = shared.store.driver
    assert isinstance(driver, PostgresDriver)
    driver._texts[statement.name] = (positional(statement, lambda index: f"${index}"), statement.parameters)
    real = lanes._lock_gates
    beside = iter([real])  # The first claim is the usual one.

    def lock(names: Collection[str], rules: Rules) -> Transaction[tuple[dict[str, _Gate], Instant]]:
        return (yield from (next(beside, broken) if names else real)(names, rules))

    monkeypatch.setattr(lanes, "_lock_gates", lock)
    assert await _claim_beside_another(shared) == 2


@each_kind
async def test_many_claimers_never_exceed_a_limit_and_leave_no_job_behind(shared: Backend, kind: str) -> None:
    name, options = KINDS[kind]
    await put(shared.store, name, concurrency=3)
    jobs = 40
    for queue in ("default", "other"):
        given = {**options, "queue": queue} if kind != "queue" else options
        await fill(shared.store, jobs // 2, **given)
    done: list[str] = []
    seen: list[int] = []

    async def work(store: Store, queue: str) -> None:
        while len(done) < jobs:
            for job in (await claim(store, queue, limit=2)).jobs:
                await asyncio.sleep(0)
                done.append(job.id)
                await finish(store, job)
            await store.limits.keep_going()

    async def watch() -> None:
        while len(done) < jobs:
            seen.append(await running(shared))
            await asyncio.sleep(0.001)

    stores = [shared.store, await shared.another(), await shared.another("node-3")]
    workers = [work(store, queue) for store in stores for queue in ("default", "other")]
    await asyncio.gather(watch(), *workers)
    assert sorted(done) == sorted({*done})
    assert len(done) == jobs
    assert max(seen) <= 3
    assert await running(shared) == 0


async def test_claimers_of_many_tenants_take_every_job_once(shared: Backend) -> None:
    tenants = [f"t{number}" for number in range(20)]
    for tenant in tenants:
        await fill(shared.store, 10, tenant=tenant)
    await fill(shared.store, 10)
    taken: list[str] = []

    async def work(store: Store) -> None:
        while found := (await claim(store, limit=3)).jobs:
            taken.extend(job.id for job in found)

    stores = [shared.store, await shared.another(), await shared.another("node-3")]
    await asyncio.gather(*(work(store) for store in stores))
    assert len(taken) == len({*taken}) == 210


async def _is_put(shared: Backend) -> bool:
    return shared.name == "sqlite" or await shared.count("headway_limits") == 1


async def test_limit_that_is_defined_while_a_plain_claim_is_under_way_counts_it(shared: Backend) -> None:
    store = shared.store
    await fill(store, 3)
    statement = call("claim", queue="default", node="n", lease=LEASE, limit=1, skip="[]")
    async with Interrupted(shared, lambda: one(statement), after="claim"):
        defining = asyncio.create_task(put(store, "queue:default", concurrency=1))

        async def is_put() -> bool:
            return await _is_put(shared)

        await async_wait_until(is_put, "the limit to be written")
        if shared.name == "postgresql":
            assert await claimed(store) == []  # Nothing starts until it is counted.
            assert not defining.done()
    await defining
    assert await running(shared) == 1
    assert await claim_all(store) == []
    assert await claimed(store) == []


async def test_claim_that_read_the_old_limits_is_finished_before_they_change(shared: Backend) -> None:
    store = shared.store
    await put(store, "queue:default", concurrency=5)
    await fill(store, 9)
    begin = LaneClaims()
    async with Interrupted(shared, lambda: begin.claim(_request("default", 4)), after="count_running") as other:
        await other.act(put(store, "queue:default", concurrency=2))
        assert len(other.result.jobs if hasattr(other, "result") else ()) == 0
    assert len(other.result.jobs) == 4
    assert await claimed(store) == []
    assert [limit.concurrency for limit in await store.limits.all()] == [2]


async def test_limits_change_under_constant_load(shared: Backend) -> None:
    """Claims that follow one another without a gap keep nobody from changing a limit."""
    await put(shared.store, "queue:default", concurrency=1)
    await fill(shared.store, 3)
    stores = [await shared.another(f"node-{number}") for number in range(2, 6)]
    changed = asyncio.Event()

    async def work(store: Store) -> None:
        while not changed.is_set():
            await claim(store)

    async def change() -> None:
        try:
            for concurrency in (2, 3):
                await put(shared.store, "queue:default", concurrency=concurrency)
            await shared.store.limits.remove("queue:default", author="ada")
            await shared.store.limits.put(Limit.build("queue:default", concurrency=3), author="ada")
        finally:
            changed.set()

    await asyncio.gather(change(), *(work(store) for store in stores for _ in range(3)))
    await claimed(shared.store)
    assert await running(shared) == 3


async def test_freed_place_is_not_lost_while_a_lane_is_held_up(shared: Backend) -> None:
    """The end of an attempt does not see the lane that a claim is about to hold at its gate: the sweep finds it."""
    store = shared.store
    await put(store, "account-*", concurrency=1)
    await fill(store, 1, queue="a", limit_key="account-1")
    [job] = await claimed(store, "a")
    await fill(store, 1, queue="b", limit_key="account-1")
    begin = LaneClaims()
    async with Interrupted(shared, lambda: begin.claim(_request("b")), after="mark_lanes") as other:
        await other.act(finish(store, job))
    await store.limits.keep_going()
    assert len(await claimed(store, "b")) == 1


async def test_job_that_gets_ready_while_its_lane_is_closed_is_found(shared: Backend) -> None:
    store = shared.store
    for tenant in ("acme", "globex"):
        await fill(store, 1, tenant=tenant)
    begin = LaneClaims()
    async with Interrupted(shared, lambda: begin.claim(_request("default")), after="mark_lanes") as other:
        await other.act(fill(store, 1, tenant="acme"))
    assert len(other.result.jobs) == 2
    assert await store.work.ready_queues() == {"default": True}
    assert len(await claimed(store)) == 1


@pytest.mark.parametrize("step", ["take_rings", "claim_lanes", "lanes_left"])
async def test_job_that_gets_ready_while_the_only_tenant_is_claimed_is_found(shared: Backend, step: str) -> None:
    store = shared.store
    await fill(store, 1, tenant="acme")
    begin = LaneClaims()
    async with Interrupted(shared, lambda: begin.claim(_request("default")), after=step) as other:
        await other.act(fill(store, 1, tenant="acme"))
    rest = await claimed(store) if (await store.work.ready_queues()) else []
    assert len([*other.result.jobs, *rest]) == 2


async def test_limit_of_the_only_tenant_is_defined_while_it_is_claimed(shared: Backend) -> None:
    store = shared.store
    await fill(store, 3, tenant="acme")
    begin = LaneClaims()
    async with Interrupted(shared, lambda: begin.claim(_request("default", 1)), after="claim_lanes") as other:
        await other.act(put(store, "tenant:*", concurrency=1))
    assert len(other.result.jobs) == await running(shared) == 1
    assert await claimed(store) == []


@each_kind
async def test_suspect_and_usual_claim_of_one_gate(shared: Backend, kind: str) -> None:
    store = shared.store
    name, options = KINDS[kind]
    await put(store, name, concurrency=1)
    suspect, _ = await fill(store, 2, **options)
    await shared.sql(f"update headway_jobs set company = 0, apart_for = 1 where id = '{suspect}'")
    begin = LaneClaims()
    transaction = lambda: begin.claim_apart(suspect, node="n", lease=LEASE)  # noqa: E731
    async with Interrupted(shared, transaction, after="claim_apart") as other:
        await other.act(claim(store))
    assert other.result[0].gates == (GATES[kind],)
    assert await running(shared) == 1


def test_statements_of_the_broken_claim_are_like_the_real_ones() -> None:
    """Otherwise the test of the race would prove nothing."""
    [broken] = parse(TOGETHER, POSTGRES)
    real = catalogue(POSTGRES)["lock_gates"].text
    assert " ".join(real.split()) in " ".join(broken.text.split())
