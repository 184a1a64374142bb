"""Debounce, throttle and unique on every database, also between racing connections."""

import asyncio
import json
from typing import Any

import pytest

from headway.core.errors import DuplicateKey, StoreUnavailable
from headway.core.instants import DAY, HOUR, MINUTE, SECOND, Duration
from headway.core.jobs import EnqueuedRow, NewJob
from headway.core.lifecycle import Status, Succeeded, settle
from headway.core.windows import MERGED_BYTES_MAX, MERGES_RECORDED_MAX, Window, WindowKind
from headway.store import Store
from headway.store.housekeeping import _promote
from headway.store.queue import enqueue
from headway.store.settlement import settle_attempts
from headway.store.transaction import Transaction
from headway.store.work import _enqueue_from
from tests.conformance.arrange import attempt_of, claim_one, end, new_job, run_one
from tests.conformance.backend import Backend, Interrupted

QUIET = 30 * SECOND
SOON = 5 * SECOND  # Longer than any of these tests takes.


def through(kind: WindowKind, n: int = 0, *, span: Duration = QUIET, key: str = "k", **options: Any) -> NewJob:
    """Make a call that goes through a window."""
    max_wait = options.pop("max_wait", None)
    delay = span if kind == "debounce" else options.pop("delay", 0)
    return new_job(args=f'{{"n":{n}}}', delay=delay, window=Window(kind, key, span, max_wait), **options)


async def send(store: Store, kind: WindowKind, n: int = 0, **options: Any) -> EnqueuedRow:
    """Enqueue one job through a window."""
    [row] = await store.queue.enqueue([through(kind, n, **options)])
    return row


async def merged_args(backend: Backend, job_id: str) -> list[Any]:
    """Return the arguments of the calls that were merged into a job."""
    rows = await backend.sql(f"select data from headway_events where job_id = '{job_id}' and event = 'merged'")
    data = sorted((json.loads(row["data"]) for row in rows), key=lambda one: one["number"])
    assert [one["number"] for one in data] == list(range(1, len(data) + 1))
    return [one["args"] for one in data]


def is_near(found: int, expected: int) -> bool:
    return abs(found - expected) < SOON


# --- debounce


async def test_debounced_job_runs_once_with_the_last_arguments(backend: Backend) -> None:
    store = backend.store
    first = await send(store, "debounce", 1, expires=HOUR)
    assert (first.is_new, first.merged_into, first.status) == (True, None, "SCHEDULED")
    assert first.run_at == first.created_at + QUIET
    for n in (2, 3):
        await backend.advance(QUIET - SOON)
        again = await send(store, "debounce", n)
        assert (again.id, again.is_new, again.merged_into) == (first.id, False, first.id)
        assert is_near(again.run_at, await backend.now() + QUIET)
    job = await store.jobs.get(first.id)
    assert again.earlier == job
    assert (job.args, job.key, job.version) == ('{"n":3}', None, 3)
    assert job.expires_at == job.run_at + HOUR  # It does not expire while it waits.
    await backend.advance(QUIET + SOON)
    assert await store.housekeeping.promote(10) == 1
    assert (await run_one(store)).args == '{"n":3}'
    assert await merged_args(backend, first.id) == [{"n": 2}, {"n": 3}]
    assert await backend.count("headway_jobs") == 1


async def test_debounce_waits_no_longer_than_its_maximum(backend: Backend) -> None:
    store = backend.store
    first = await send(store, "debounce", max_wait=MINUTE)
    for _ in range(3):
        await backend.advance(25 * SECOND)
        last = await send(store, "debounce", max_wait=MINUTE)
        assert last.merged_into == first.id
    assert last.run_at == first.created_at + MINUTE  # In the past by now.
    assert await store.housekeeping.promote(10) == 1


@pytest.mark.parametrize("status", [Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.CANCELLED])
async def test_debounce_begins_anew_once_the_job_is_no_longer_scheduled(backend: Backend, status: Status) -> None:
    store = backend.store
    first = await send(store, "debounce", 1)
    if status is Status.CANCELLED:
        await store.queue.cancel(first.id, author="me")
    else:
        await backend.advance(QUIET + SOON)
        assert await store.housekeeping.promote(10) == 1
        if status is not Status.PENDING:
            claimed = await claim_one(store)
        if status is Status.COMPLETED:
            await end(store, claimed, Succeeded())
    second = await send(store, "debounce", 2)
    assert second.is_new
    third = await send(store, "debounce", 3)
    assert third.merged_into == second.id
    jobs = {row["id"]: row for row in await backend.sql("select * from headway_jobs")}
    assert (jobs[first.id]["status"], jobs[first.id]["args"]) == (status, '{"n":1}')
    assert (jobs[second.id]["status"], jobs[second.id]["args"]) == ("SCHEDULED", '{"n":3}')


async def test_due_job_that_is_not_promoted_yet_is_still_debounced(backend: Backend) -> None:
    first = await send(backend.store, "debounce", 1)
    await backend.advance(QUIET + MINUTE)
    again = await send(backend.store, "debounce", 2)
    assert again.merged_into == first.id
    assert await backend.store.housekeeping.promote(10) == 0
    await backend.advance(QUIET + SOON)
    assert await backend.store.housekeeping.promote(10) == 1


# --- throttle and unique


async def test_throttle_makes_one_job_per_window(backend: Backend) -> None:
    store = backend.store
    first = await send(store, "throttle", 1, span=MINUTE)
    assert (first.is_new, first.status) == (True, "PENDING")
    assert (await send(store, "throttle", 2, span=MINUTE)).merged_into == first.id
    await run_one(store)
    await backend.advance(MINUTE - SOON)  # Counted from the first call, although the job has ended.
    late = await send(store, "throttle", 3, span=MINUTE)
    assert (late.merged_into, late.status) == (first.id, "COMPLETED")
    assert (await store.jobs.get(first.id)).args == '{"n":1}'
    assert await merged_args(backend, first.id) == [{"n": 2}, {"n": 3}]
    await backend.advance(2 * SOON)
    second = await send(store, "throttle", 4, span=MINUTE)
    assert second.is_new
    assert (await send(store, "throttle", 5, span=MINUTE)).merged_into == second.id
    assert await merged_args(backend, second.id) == [{"n": 5}]


async def test_unique_merges_while_the_job_lives(backend: Backend) -> None:
    store = backend.store
    first = await send(store, "unique", 1, span=HOUR, delay=MINUTE)
    assert first.status == "SCHEDULED"
    assert (await send(store, "unique", 2, span=HOUR)).merged_into == first.id
    await backend.advance(MINUTE + SOON)
    await store.housekeeping.promote(10)
    running = await claim_one(store)
    assert (await send(store, "unique", 3, span=HOUR)).merged_into == first.id
    await end(store, running, Succeeded())
    second = await send(store, "unique", 4, span=HOUR)
    assert second.is_new
    await backend.advance(HOUR + SOON)  # A job that never ends does not block its key for longer.
    assert (await send(store, "unique", 5, span=HOUR)).is_new
    assert await merged_args(backend, first.id) == [{"n": 2}, {"n": 3}]


# --- keys, batches, events


@pytest.mark.parametrize("kind", ["debounce", "throttle", "unique"])
async def test_open_window_belongs_to_one_task_and_one_kind(backend: Backend, kind: WindowKind) -> None:
    store = backend.store
    first = await send(store, kind)
    other: WindowKind = "throttle" if kind == "unique" else "unique"
    for call in (through(kind, task="other"), through(other)):
        with pytest.raises(DuplicateKey, match=f"'k' is in use for {kind} of the task 'report' by {first.id}"):
            await store.queue.enqueue([call])
        with pytest.raises(DuplicateKey, match=r"^jobs\[1\]: "):
            await store.queue.enqueue([new_job(), call])
    assert (await send(store, kind, tenant="acme", task="other")).is_new
    assert (await send(store, kind, key="K")).is_new
    assert await backend.count("headway_jobs") == 3
    await store.queue.cancel(first.id, author="me")
    await backend.advance(QUIET + SOON)
    assert (await send(store, other, task="other")).is_new  # The window has ended.


async def test_key_of_a_window_is_no_idempotency_key(backend: Backend) -> None:
    store = backend.store
    [plain] = await store.queue.enqueue([new_job(key="k", args='{"n":1}')])
    merging = await send(store, "unique", 2)
    assert merging.is_new
    [again] = await store.queue.enqueue([new_job(key="k", args='{"n":1}')])
    assert (again.id, again.is_merged) == (plain.id, False)


async def test_windows_in_a_batch(backend: Backend) -> None:
    store = backend.store
    old = await send(store, "debounce", 1, key="old")
    batch = [
        through("debounce", 2, key="old"),
        through("debounce", 3, key="new"),
        new_job(key="plain"),
        through("debounce", 4, key="new", span=MINUTE),
        through("debounce", 5, key="old"),
        through("unique", 6, key="u"),
        through("unique", 7, key="u"),
        new_job(key="plain"),
    ]
    rows = await store.queue.enqueue(batch)
    new, plain, unique = batch[1].id, batch[2].id, batch[5].id
    assert [row.id for row in rows] == [old.id, new, plain, new, old.id, unique, unique, plain]
    assert [row.is_new for row in rows] == [False, True, True, False, False, True, False, False]
    assert [row.merged_into for row in rows] == [old.id, None, None, new, old.id, None, unique, None]
    for row, call in zip(rows, batch, strict=True):
        assert row.job_of(call) == await store.jobs.get(row.id)
    assert [(await store.jobs.get(job_id)).args for job_id in (old.id, new, unique)] == [
        '{"n":5}',
        '{"n":4}',
        '{"n":6}',
    ]
    assert (await store.jobs.get(new)).run_at == rows[1].created_at + MINUTE
    assert await merged_args(backend, old.id) == [{"n": 2}, {"n": 5}]
    again = await store.queue.enqueue([through("debounce", 8, key="new"), through("unique", 9, key="u")])
    assert [row.merged_into for row in again] == [new, unique]


async def test_failed_batch_leaves_no_trace(backend: Backend) -> None:
    store = backend.store
    first = await send(store, "debounce", 1)
    before = await backend.sql("select * from headway_windows"), await backend.job(first.id)
    with pytest.raises(DuplicateKey):
        await store.queue.enqueue(
            [through("debounce", 2), through("unique", key="x"), through("unique", key="x", task="t")]
        )
    assert (await backend.sql("select * from headway_windows"), await backend.job(first.id)) == before
    assert await backend.count("headway_events") == 0


async def test_large_batch(backend: Backend) -> None:
    store = backend.store
    batch = [through("debounce", n, key=f"k{n % 1_200}") for n in range(2_400)]
    rows = await store.queue.enqueue(batch)
    assert sum(row.is_new for row in rows) == sum(row.is_merged for row in rows) == 1_200
    assert await backend.count("headway_jobs") == await backend.count("headway_events") == 1_200
    again = await store.queue.enqueue([through("debounce", n, key=f"k{n}") for n in range(1_200)])
    assert [row.id for row in again] == [row.id for row in rows[:1_200]]


async def test_events_are_bounded(backend: Backend) -> None:
    store = backend.store
    first = await send(store, "throttle", span=HOUR)
    large = new_job(
        args=json.dumps({"blob": "x" * 200_000, "n": 1}), window=Window("throttle", "k", HOUR, None), delay=0
    )
    await store.queue.enqueue([large])
    [event] = await backend.sql("select data from headway_events")
    data = json.loads(event["data"])
    assert (data["args"], data["omitted"], data["bytes"]) == ({"n": 1}, ["blob"], len(large.args))
    assert len(event["data"]) < 2 * MERGED_BYTES_MAX
    await store.queue.enqueue([through("throttle", n, span=HOUR) for n in range(MERGES_RECORDED_MAX + 50)])
    rows = await backend.sql("select data from headway_events")
    assert len(rows) == MERGES_RECORDED_MAX
    assert sum("later merged calls are not recorded" in row["data"] for row in rows) == 1
    assert (await send(store, "throttle")).merged_into == first.id


async def test_running_task_enqueues_through_windows(backend: Backend) -> None:
    store = backend.store
    await store.queue.enqueue([new_job(queue="parents")])
    parent = await claim_one(store, "parents")
    earlier = await send(store, "unique", 1, key="u")
    calls = [through("debounce", 2), through("unique", 3, key="u")]
    rows = await store.work.enqueue_from(parent.job_id, parent.attempt, calls)
    assert [(row.id, row.is_merged) for row in rows] == [(calls[0].id, False), (earlier.id, True)]
    # The response was lost, and the worker repeats the request.
    again = await store.work.enqueue_from(parent.job_id, parent.attempt, calls)
    assert [row.id for row in again] == [row.id for row in rows]
    assert await backend.count("headway_jobs") == 3


# --- pruning and erasure


async def test_ended_windows_are_pruned_in_pieces(backend: Backend) -> None:
    store = backend.store
    kept = await send(store, "debounce", key="waiting")
    await store.queue.enqueue([through("throttle", key=f"k{n}", span=MINUTE) for n in range(5)])
    await send(store, "unique", key="open", span=DAY)
    assert await store.housekeeping.prune(30 * DAY, 2) == 0
    await backend.advance(HOUR)
    assert [await store.housekeeping.prune(30 * DAY, 2) for _ in range(4)] == [2, 2, 1, 0]
    rows = await backend.sql("select key from headway_windows order by key")
    assert [row["key"] for row in rows] == ["open", "waiting"]
    assert (await send(store, "debounce", 2, key="waiting")).merged_into == kept.id  # Its promoter was late.


async def test_window_of_a_pruned_job_ends(backend: Backend) -> None:
    store = backend.store
    await send(store, "throttle", span=30 * DAY)
    await run_one(store)
    await backend.advance(2 * DAY)
    await store.housekeeping.prune(DAY, 100)
    assert await backend.count("headway_windows") == await backend.count("headway_jobs") == 0
    row = await send(store, "throttle", span=30 * DAY)
    await backend.sql(f"delete from headway_jobs where id = '{row.id}'")  # Only the job.
    assert (await send(store, "throttle", span=30 * DAY)).is_new


async def test_erasure_empties_windows_and_merged_arguments(backend: Backend) -> None:
    store, secret = backend.store, "Ada Lovelace"
    for _ in range(2):
        call = new_job(args=f'{{"who":"{secret}"}}', tenant="acme", window=Window("throttle", secret, DAY))
        [row] = await store.queue.enqueue([call])
    other = await send(store, "unique", tenant="acme", queue="later")
    await run_one(store)
    ended, unfinished = await store.erasure.page("acme", None)
    assert (ended, unfinished) == ([row.id], [other.id])
    assert await store.erasure.erase([*ended, *unfinished]) == ended
    tables = [await backend.sql(f"select * from headway_{table}") for table in ("jobs", "events", "windows", "feed")]
    assert secret not in str(tables)
    assert [window["job_id"] for window in tables[2]] == [other.id]


# --- races


@pytest.mark.parametrize("kind", ["debounce", "throttle", "unique"])
async def test_concurrent_calls_make_one_job(shared: Backend, kind: WindowKind) -> None:
    stores = [shared.store, await shared.another(), await shared.another()]
    for turn in range(3):
        rows = await asyncio.gather(*(send(stores[n % 3], kind, n, key=f"{kind}-{turn}", span=HOUR) for n in range(12)))
        assert len({row.id for row in rows}) == 1
        assert sum(row.is_new for row in rows) == 1
        assert len(await merged_args(shared, rows[0].id)) == 11
    assert await shared.count("headway_jobs") == 3


async def test_batches_in_opposite_order_do_not_block_each_other(shared: Backend) -> None:
    stores = [shared.store, await shared.another()]
    keys = [f"k{n}" for n in range(50)]
    batches = [[through("debounce", key=key) for key in order] for order in (keys, keys[::-1]) for _ in range(3)]
    await asyncio.gather(*(stores[n % 2].queue.enqueue(batch) for n, batch in enumerate(batches)))
    assert await shared.count("headway_jobs") == 50


async def test_second_call_waits_for_the_first(shared: Backend) -> None:
    calls = [through("debounce", 1), through("debounce", 2)]
    async with Interrupted(shared, lambda: enqueue(calls[:1]), after="open_windows") as first:
        await first.act(shared.store.queue.enqueue(calls[1:]))
    job = await shared.store.jobs.get(calls[0].id)
    assert (job.args, await shared.count("headway_jobs")) == ('{"n":2}', 1)


async def test_call_that_waited_sees_the_reopened_window(shared: Backend) -> None:
    """Both calls find a window whose job has ended; the second must merge into the job of the first."""
    store = shared.store
    await send(store, "unique", 1)
    await run_one(store)
    calls = [through("unique", 2), through("unique", 3)]
    answers: list[EnqueuedRow] = []

    async def second() -> None:
        answers.extend(await store.queue.enqueue(calls[1:]))

    async with Interrupted(shared, lambda: enqueue(calls[:1]), after="window_jobs") as first:
        await first.act(second())
    assert answers[0].merged_into == calls[0].id
    assert await shared.count("headway_jobs") == 2


async def test_promotion_under_way_begins_a_new_job(shared: Backend) -> None:
    store = shared.store
    first = await send(store, "debounce", 1)
    await shared.advance(QUIET + SOON)
    call = through("debounce", 2)
    async with Interrupted(shared, lambda: _promote(10), after="promote") as promotion:
        await promotion.act(store.queue.enqueue([call]))
    old, new = await store.jobs.get(first.id), await store.jobs.get(call.id)
    assert (old.status, old.args) == (Status.PENDING, '{"n":1}')
    assert (new.status, new.args) == (Status.SCHEDULED, '{"n":2}')
    await shared.advance(QUIET + SOON)
    assert await store.housekeeping.promote(10) == 1
    assert [(await run_one(store)).args for _ in range(2)] == ['{"n":1}', '{"n":2}']


async def test_debounce_under_way_is_not_promoted(shared: Backend) -> None:
    store = shared.store
    first = await send(store, "debounce", 1)
    await shared.advance(QUIET + SOON)
    async with Interrupted(shared, lambda: enqueue([through("debounce", 2)]), after="window_jobs") as call:
        await call.act(store.housekeeping.promote(10))
    job = await store.jobs.get(first.id)
    assert (job.status, job.args) == (Status.SCHEDULED, '{"n":2}')
    await shared.advance(QUIET + SOON)
    assert await store.housekeeping.promote(10) == 1
    assert (await run_one(store)).args == '{"n":2}'


async def test_without_the_lock_a_promotion_would_be_missed(shared: Backend) -> None:
    """Prove that the races above depend on the lock: without it, the call reads a status that is about to change."""
    if shared.name == "sqlite":
        pytest.skip("SQLite has one writer at a time, which is the lock")

    def unlocked() -> Transaction[Any]:
        transaction = enqueue([through("debounce", 2)])
        rows: Any = None
        while True:
            statement = transaction.send(rows)
            rows = [] if statement.statement == "lock_scheduled" else (yield statement)

    await send(shared.store, "debounce", 1)
    await shared.advance(QUIET + SOON)
    with pytest.raises(StoreUnavailable, match="was promoted at this moment"):
        async with Interrupted(shared, unlocked, after="window_jobs") as call:
            await call.act(shared.store.housekeeping.promote(10))


async def test_unique_call_during_a_settlement(shared: Backend) -> None:
    """It is merged into the job while that lives, or begins a new one; afterwards a new one begins in any case."""
    store = shared.store
    first = await send(store, "unique", 1, span=HOUR)
    claimed = await claim_one(store)
    settlement = settle(attempt_of(claimed), Succeeded(), 0.5)
    call = through("unique", 2, span=HOUR)
    async with Interrupted(shared, lambda: settle_attempts([settlement]), after="settle_completed") as settling:
        await settling.act(store.queue.enqueue([call]))
    assert (await store.jobs.get(first.id)).status is Status.COMPLETED
    was_merged = await merged_args(shared, first.id) == [{"n": 2}]
    assert await shared.count("headway_jobs") == (1 if was_merged else 2)
    assert (await send(store, "unique", 3, span=HOUR)).is_new == was_merged


async def test_settlement_during_a_unique_call(shared: Backend) -> None:
    store = shared.store
    first = await send(store, "unique", 1, span=HOUR)
    claimed = await claim_one(store)
    call = through("unique", 2, span=HOUR)
    async with Interrupted(shared, lambda: enqueue([call]), after="window_jobs") as calling:
        await calling.act(end(store, claimed, Succeeded()))
    [row] = calling.result
    assert (row.merged_into, await merged_args(shared, first.id)) == (first.id, [{"n": 2}])
    assert (await store.jobs.get(first.id)).status is Status.COMPLETED
    assert (await send(store, "unique", 3, span=HOUR)).is_new


async def test_running_job_that_enqueues_its_own_successor_blocks_nobody(shared: Backend) -> None:
    """The attempt holds its job and will want the window; a call that has the window must not wait for the job."""
    store = shared.store
    await send(store, "debounce", 1)
    await shared.advance(QUIET + SOON)
    await store.housekeeping.promote(10)
    running = await claim_one(store)
    mine, other = through("debounce", 2), through("debounce", 3)
    begin = lambda: _enqueue_from(running.job_id, running.attempt, [mine])  # noqa: E731
    async with Interrupted(shared, begin, after="hold_attempt") as asking:
        await asking.act(store.queue.enqueue([other]))
        assert shared.name == "sqlite" or asking._acts[0].done()
    rows = await shared.sql("select id, args from headway_jobs where status = 'SCHEDULED'")
    assert [row["args"] for row in rows] == (['{"n":3}'] if shared.name == "sqlite" else ['{"n":2}'])
