"""Batches on every database: exact counts, one end, one callback."""

import asyncio
import itertools
import json

import pytest

from headway.core.errors import (
    BatchClosed,
    BatchNotFound,
    Conflict,
    DuplicateKey,
    InvalidTask,
    LeaseLost,
    StoreUnavailable,
)
from headway.core.groups import OPENER_LOOK, SOON
from headway.core.instants import DAY, HOUR, MINUTE, SECOND
from headway.core.lifecycle import AttemptOutcome, Cancelled, Raised, Succeeded, TimedOut
from headway.core.windows import Window
from headway.store import Store
from headway.store.groups import _cancel_step, _look, close_group, open_group
from headway.store.job_filter import JobFilter
from headway.store.queue import enqueue
from tests.conformance.arrange import LEASE, claim_all, claim_one, end, new_job
from tests.conformance.backend import Backend, Interrupted
from tests.conformance.grouping import (
    ALARM,
    DONE,
    FAILURE,
    add,
    callbacks,
    check_sum,
    dying,
    keep,
    new_batch,
    numbers,
    numbers_of,
    open_batch,
    settle_all,
)

# --- counts


async def test_counts_follow_every_step_of_the_jobs(store: Store) -> None:
    batch = await open_batch(store)
    assert await numbers(store, batch) == (0, 0, 0, 0, 0, 0, 0)
    await add(store, batch, 6, max_attempts=2)
    assert await numbers(store, batch) == (6, 6, 0, 0, 0, 0, 0)
    jobs = await claim_all(store, limit=5)
    assert await numbers(store, batch) == (6, 1, 5, 0, 0, 0, 0)
    outcomes: list[AttemptOutcome] = [
        Succeeded(),
        FAILURE,
        TimedOut("{}", retryable=False),
        Cancelled(),
        Raised("{}", retry_in=HOUR),
    ]
    for job, outcome in zip(jobs, outcomes, strict=True):
        await end(store, job, outcome)
        await numbers(store, batch)
    assert await numbers(store, batch) == (6, 2, 0, 1, 1, 1, 1)
    await keep(store)
    assert await numbers(store, batch) == (6, 2, 0, 1, 1, 1, 1)
    group = await store.groups.get(batch)
    assert (group.progress, group.finished_at) == (66, None)


async def test_counts_of_lost_and_expired_attempts(backend: Backend) -> None:
    store = backend.store
    batch = await open_batch(store)
    await add(store, batch, 1, max_attempts=1)
    await add(store, batch, 1, expires=MINUTE, queue="later")
    await claim_one(store)
    await backend.advance(LEASE + MINUTE)
    assert await store.housekeeping.end_overdue(10) == 1
    assert await numbers(store, batch) == (2, 0, 1, 0, 0, 0, 1)
    await store.housekeeping.expire(10)
    assert (await numbers(store, batch))[2] == 0
    await numbers(store, batch)


async def test_jobs_of_several_batches_and_of_none_settle_together(store: Store) -> None:
    one, other = await open_batch(store, "one"), await open_batch(store, "other")
    await store.queue.enqueue([new_job(group_id=group) for group in (one, other, one, None, other, one)])
    assert await settle_all(store) == 6
    await keep(store)
    assert (await numbers(store, one))[:4] == (3, 0, 0, 3)
    assert (await numbers(store, other))[:4] == (2, 0, 0, 2)


async def test_reader_sees_exact_counts_at_every_commit(shared: Backend) -> None:
    """Poll while jobs are added, claimed, settled and folded on other connections."""
    store, reader = shared.store, await shared.another("reader")
    folders = [await shared.another("folder-1"), await shared.another("folder-2")]
    batch = await open_batch(store)
    seen: list[tuple[int, ...]] = []
    settled: list[int] = []
    is_over = asyncio.Event()

    async def read() -> None:
        while not is_over.is_set():
            known = sum(settled)
            found = numbers_of(await reader.groups.get(batch))
            check_sum(found)
            assert found[3] >= known, "a count lags behind"
            seen.append(found)

    async def fold(folder: Store) -> None:
        while not is_over.is_set():
            await folder.groups.keep_going()
            await asyncio.sleep(0)

    async def work() -> None:
        for _ in range(6):
            await add(store, batch, 7)
            for _ in range(5):
                settled.append(await settle_all(store, limit=1))
        while await settle_all(store, limit=1):
            settled.append(1)
        is_over.set()

    await asyncio.gather(read(), *map(fold, folders), work())
    assert await numbers(store, batch) == (42, 0, 0, 42, 0, 0, 0)
    for before, after in itertools.pairwise(seen):
        assert after[0] >= before[0], "the total shrank"
        assert all(new >= old for old, new in zip(before[3:], after[3:], strict=True)), "a final count shrank"


async def test_view_shows_the_same_counts(backend: Backend) -> None:
    store = backend.store
    batch = await open_batch(store, "reports")
    await add(store, batch, 4)
    await settle_all(store, limit=1)
    await claim_one(store)
    [row] = await backend.sql("select * from headway_batches_v")
    assert (row["id"], row["tenant"], row["name"]) == (batch, "default", "reports")
    columns = ("total", "waiting", "running", "completed", "failed", "timed_out", "cancelled")
    assert tuple(row[column] for column in columns) == await numbers(store, batch) == (4, 2, 1, 1, 0, 0, 0)
    assert (row["closed_at"], row["finished_at"], row["outcome"]) == (None, None, None)


async def test_rate_and_time_left(backend: Backend) -> None:
    store = backend.store
    batch = await open_batch(store)
    await add(store, batch, 4)
    await backend.advance(HOUR)  # Waiting does not count.
    found = await store.groups.get(batch)
    assert (found.rate, found.eta_seconds) == (None, None)
    job = await claim_one(store)
    await backend.advance(10 * SECOND)
    await end(store, job, Succeeded())
    found = await store.groups.get(batch)
    assert found.rate == pytest.approx(0.1, rel=0.5)
    assert found.eta_seconds == pytest.approx(30, rel=0.5)
    await keep(store)
    assert (await store.groups.get(batch)).began_at == found.began_at


# --- the end


async def test_finishes_once_with_one_callback(backend: Backend) -> None:
    store = backend.store
    batch = await open_batch(store, on_done=DONE, on_failure=ALARM)
    await add(store, batch, 3)
    await settle_all(store)
    await keep(store)
    assert (await store.groups.get(batch)).finished_at is None  # It is open.
    assert await store.groups.close(batch)
    assert not await store.groups.close(batch)
    await keep(store)
    found = await store.groups.get(batch)
    assert (found.outcome, found.progress, found.eta_seconds) == ("completed", 100, None)
    [job] = await callbacks(backend)
    assert (job["task"], job["queue"], job["key"], job["status"]) == ("mail", "mail", f"group:{batch}:done", "PENDING")
    assert json.loads(job["args"])["batch"] == {
        "id": batch,
        "name": "reports",
        "tenant": "default",
        "outcome": "completed",
        "total": 3,
        "counts": {"completed": 3, "failed": 0, "timed_out": 0, "cancelled": 0},
        "retried": 0,
        "rerun_of": None,
    }
    await backend.advance(2 * DAY)
    await keep(store)
    assert len(await callbacks(backend)) == 1
    assert (await store.groups.get(batch)).finished_at == found.finished_at


async def test_failure_has_both_callbacks(backend: Backend) -> None:
    store = backend.store
    batch = await open_batch(store, tenant="acme", on_done=DONE, on_failure=ALARM)
    await add(store, batch, 2)
    await settle_all(store, FAILURE, limit=1)
    await store.groups.close(batch)
    await keep(store)
    assert not await callbacks(backend)  # One job still waits.
    await settle_all(store)
    await backend.advance(MINUTE)
    await keep(store)
    assert (await store.groups.get(batch)).outcome == "failed"
    jobs = await callbacks(backend)
    assert [(job["task"], job["tenant"]) for job in jobs] == [("mail", "acme"), ("alarm", "acme")]


async def test_empty_batch_completes(backend: Backend) -> None:
    store = backend.store
    batch = await open_batch(store, on_done=DONE)
    await keep(store)
    assert (await store.groups.get(batch)).finished_at is None
    await store.groups.close(batch)
    await keep(store)
    found = await store.groups.get(batch)
    assert (found.outcome, found.counts.total, found.progress) == ("completed", 0, 100)
    assert len(await callbacks(backend)) == 1


async def test_forgotten_batch_ends_an_hour_after_its_last_addition(backend: Backend) -> None:
    store = backend.store
    batch = await open_batch(store, on_done=DONE)
    await backend.advance(50 * MINUTE)
    await add(store, batch)
    await settle_all(store)
    await keep(store)
    await backend.advance(50 * MINUTE)
    await keep(store)
    assert (await store.groups.get(batch)).closed_at is None
    await backend.advance(11 * MINUTE)
    await keep(store)
    found = await store.groups.get(batch)
    assert found.outcome == "completed"
    assert found.reason == "closed: nothing was added for too long"
    assert len(await callbacks(backend)) == 1


async def test_batch_of_a_job_closes_when_the_job_completes(backend: Backend) -> None:
    store = backend.store
    await store.queue.enqueue([new_job(queue="opening", max_attempts=2)])
    opener = await claim_one(store, "opening")
    group = await store.work.open_group_from(opener.id, opener.attempt, new_batch(opened_by=opener.id), own=True)
    await end(store, opener, Raised("{}", retry_in=0))
    await backend.advance(2 * OPENER_LOOK)
    await keep(store)
    assert (await store.groups.get(group.id)).closed_at is None  # It will run again.
    await store.housekeeping.promote(10)
    await end(store, await claim_one(store, "opening"), Succeeded())
    await backend.advance(2 * OPENER_LOOK)
    await keep(store)
    assert (await store.groups.get(group.id)).outcome == "completed"


async def test_two_folders_finish_a_batch_once(shared: Backend) -> None:
    stores = [shared.store, await shared.another("folder-2")]
    batches = [await open_batch(stores[0], f"batch {number}", on_done=DONE) for number in range(10)]
    for batch in batches:
        await add(stores[0], batch, 2)
        await stores[0].groups.close(batch)
    await settle_all(stores[0])
    await asyncio.gather(*(keep(store) for store in stores))
    await shared.advance(2 * MINUTE)
    await asyncio.gather(*(keep(store) for store in stores))
    assert {(await stores[0].groups.get(batch)).outcome for batch in batches} == {"completed"}
    assert len(await callbacks(shared)) == len(batches)


@pytest.mark.parametrize("statement", ["take_deltas", "update_group", "finish_group", "enqueue"])
async def test_folder_that_dies_leaves_nothing_behind(backend: Backend, statement: str) -> None:
    store = backend.store
    batch = await open_batch(store, on_done=DONE)
    await add(store, batch)
    await settle_all(store)
    await store.groups.close(batch)
    with pytest.raises(StoreUnavailable, match="dies"):
        await store.driver.run(lambda: dying(_look(batch, store.groups._clock), statement))
    assert not await callbacks(backend)
    assert (await numbers(store, batch))[3] == 1
    await keep(store)
    assert len(await callbacks(backend)) == 1


# --- adding


async def test_name_finds_the_batch_and_keys_find_the_jobs(store: Store) -> None:
    first, is_new = await store.groups.open(new_batch("reports", on_done=DONE))
    again, is_new_again = await store.groups.open(new_batch("reports"))
    assert (is_new, is_new_again, again.id) == (True, False, first.id)
    other, _ = await store.groups.open(new_batch("reports", tenant="acme"))
    assert other.id != first.id  # Names are unique for a tenant.
    jobs = [new_job(group_id=first.id, key=f"report:{number}") for number in range(10)]
    made = await store.queue.enqueue(jobs[:7])
    found = await store.queue.enqueue([new_job(group_id=first.id, key=job.key) for job in jobs])
    assert [row.id for row in found[:7]] == [row.id for row in made]
    assert (await numbers(store, first.id))[0] == 10
    with pytest.raises(DuplicateKey, match="exists with another on_done"):
        await store.groups.open(new_batch("reports", on_done=ALARM))


async def test_closed_batch_takes_no_new_jobs_but_finds_earlier_ones(backend: Backend) -> None:
    store = backend.store
    batch = await open_batch(store)
    [job_id] = await add(store, batch, key="report:1")
    await store.groups.close(batch)
    with pytest.raises(BatchClosed, match=r"the batch 'reports' is closed, so it takes no more jobs"):
        await add(store, batch)
    with pytest.raises(BatchClosed):
        await store.queue.enqueue([new_job(group_id=batch, key=f"report:{number}") for number in (1, 2)])
    assert await add(store, batch, key="report:1") == [job_id]
    await settle_all(store)
    await backend.advance(2 * MINUTE)
    await keep(store)
    with pytest.raises(BatchClosed, match="has finished"):
        await add(store, batch)
    assert await add(store, batch, key="report:1") == [job_id]
    assert await backend.count("headway_jobs") == 1


async def test_what_no_batch_takes(store: Store) -> None:
    batch = await open_batch(store)
    with pytest.raises(BatchNotFound):
        await add(store, "batch_unknown")
    with pytest.raises(InvalidTask, match="cannot have debounce, throttle or unique"):
        await add(store, batch, window=Window("unique", "k", MINUTE, None))
    await store.queue.enqueue([new_job(key="elsewhere")])
    with pytest.raises(DuplicateKey, match="which is not in this batch"):
        await add(store, batch, key="elsewhere")
    assert (await numbers(store, batch))[0] == 0


async def test_job_adds_to_its_own_batch_and_ends_at_the_same_moment(backend: Backend) -> None:
    store = backend.store
    batch = await open_batch(store, on_done=DONE)
    await add(store, batch)
    await store.groups.close(batch)
    job = await claim_one(store)
    await store.work.enqueue_from(job.id, job.attempt, [new_job(group_id=batch)])
    await end(store, job, Succeeded())
    await backend.advance(2 * MINUTE)
    await keep(store)
    assert not await callbacks(backend)
    assert await numbers(store, batch) == (2, 1, 0, 1, 0, 0, 0)
    await settle_all(store)
    await backend.advance(2 * MINUTE)
    await keep(store)
    assert len(await callbacks(backend)) == 1


async def test_additions_of_a_stale_attempt_are_refused(store: Store) -> None:
    batch = await open_batch(store)
    await add(store, batch)
    job = await claim_one(store)
    await end(store, job, Succeeded())
    with pytest.raises(LeaseLost):
        await store.work.enqueue_from(job.id, job.attempt, [new_job(group_id=batch)])
    with pytest.raises(LeaseLost):
        await store.work.open_group_from(job.id, job.attempt, new_batch("late"), own=True)
    with pytest.raises(LeaseLost):
        await store.work.close_group_from(job.id, job.attempt, batch)
    assert (await numbers(store, batch))[0] == 1
    assert (await store.groups.get(batch)).closed_at is None


async def test_job_finds_its_own_batch_by_name(store: Store) -> None:
    batch = await open_batch(store, "reports")
    await add(store, batch, tenant="acme")
    job = await claim_one(store)
    found = await store.work.open_group_from(job.id, job.attempt, new_batch("reports", tenant="acme"), own=True)
    assert found.id == batch
    other = await store.work.open_group_from(job.id, job.attempt, new_batch("reports", tenant="acme"), own=False)
    assert other.id != batch


async def test_addition_whose_response_was_lost_is_found_after_the_batch_was_closed(store: Store) -> None:
    await store.queue.enqueue([new_job(queue="adding")])
    adder = await claim_one(store, "adding")
    batch = await open_batch(store)
    jobs = [new_job(group_id=batch) for _ in range(3)]
    first = await store.work.enqueue_from(adder.id, adder.attempt, jobs)
    await store.groups.close(batch)
    again = await store.work.enqueue_from(adder.id, adder.attempt, jobs)
    assert [row.id for row in again] == [row.id for row in first]
    with pytest.raises(BatchClosed):
        await store.work.enqueue_from(adder.id, adder.attempt, [new_job(group_id=batch)])


async def test_closing_waits_for_an_addition_in_progress(shared: Backend) -> None:
    store = shared.store
    batch = await open_batch(store, on_done=DONE)
    jobs = [new_job(group_id=batch) for _ in range(3)]

    async def close_and_finish() -> None:
        await store.groups.close(batch)
        await keep(store)

    async with Interrupted(shared, lambda: enqueue(jobs), after="hold_groups") as adding:
        await adding.act(close_and_finish())
    await keep(store)
    assert (await numbers(store, batch))[0] == 3
    assert not await callbacks(shared)


async def test_addition_during_the_close_is_refused(shared: Backend) -> None:
    store = shared.store
    batch = await open_batch(store)
    refused: list[BaseException] = []

    async def try_to_add() -> None:
        try:
            await add(store, batch)
        except BatchClosed as error:
            refused.append(error)

    async with Interrupted(shared, lambda: close_group(batch), after="close_group") as closing:
        await closing.act(try_to_add())
    assert len(refused) == 1
    assert (await numbers(store, batch))[0] == 0


async def test_two_adders_do_not_wait_for_each_other(shared: Backend) -> None:
    if shared.store.driver.dialect_name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    store = shared.store
    batch = await open_batch(store)
    jobs = [new_job(group_id=batch, key=f"a{number}") for number in range(3)]
    async with Interrupted(shared, lambda: enqueue(jobs), after="enqueue"):
        await add(store, batch, 4)  # Ends while the other transaction is open.
        assert (await numbers(store, batch))[0] == 4
        assert not await store.groups.keep_going()  # The group is held.
    await keep(store)
    assert (await numbers(store, batch))[0] == 7


async def test_cancellation_and_addition_by_a_running_job_do_not_deadlock(shared: Backend) -> None:
    store = shared.store
    batch = await open_batch(store)
    await add(store, batch)
    job = await claim_one(store)
    await store.groups.request_cancel(batch, reason="enough")
    refused: list[BaseException] = []

    async def try_to_add() -> None:
        try:
            await store.work.enqueue_from(job.id, job.attempt, [new_job(group_id=batch)])
        except BatchClosed as error:
            refused.append(error)

    async with Interrupted(shared, lambda: _cancel_step(batch), after="lock_group") as cancelling:
        await cancelling.act(try_to_add())
    assert [str(error) for error in refused] == ["the batch 'reports' was cancelled, so it takes no more jobs"]
    assert (await shared.job(job.id))["cancel_requested_at"] is not None


async def test_rolled_back_batch_never_was(shared: Backend) -> None:
    store = shared.store
    new = new_batch(on_done=DONE)

    def both():  # type: ignore[no-untyped-def]
        yield from open_group(new)
        yield from enqueue([new_job(group_id=new.id)])
        raise RuntimeError("the caller changes its mind")

    with pytest.raises(RuntimeError):
        await store.driver.run(both)
    with pytest.raises(BatchNotFound):
        await store.groups.get(new.id)
    assert await shared.count("headway_jobs") == await shared.count("headway_deltas") == 0


# --- cancel


async def test_cancel_is_bounded_and_goes_on_after_a_crash(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.store.groups.CANCEL_STEP", 10)
    store = backend.store
    batch = await open_batch(store, on_done=DONE)
    await add(store, batch, 25)
    running = await claim_all(store, limit=3)
    assert await store.groups.request_cancel(batch, reason="cancelled by ada: enough")
    assert not await store.groups.request_cancel(batch, reason="again")
    with pytest.raises(BatchClosed, match="was cancelled"):
        await add(store, batch)
    assert await store.groups.cancel_step(batch)  # One step; then the caller dies.
    assert (await numbers(store, batch))[6] < 22
    await keep(store)
    await backend.advance(2 * SOON)
    await keep(store)
    assert await numbers(store, batch) == (25, 0, 3, 0, 0, 0, 22)
    assert {job.id for job in running} == {
        row["id"] for row in await backend.sql("select id from headway_jobs where cancel_requested_at is not null")
    }
    assert not await callbacks(backend)
    for job in running:
        await end(store, job, Cancelled())
    await backend.advance(2 * SOON)
    await keep(store)
    found = await store.groups.get(batch)
    assert (found.outcome, found.reason) == ("cancelled", "cancelled by ada: enough")
    assert len(await callbacks(backend)) == 1
    other = await open_batch(store, "other")
    await store.groups.close(other)
    await keep(store)
    with pytest.raises(BatchClosed, match="has finished already"):
        await store.groups.request_cancel(other, reason="late")


# --- retry


async def test_retry_joins_a_running_batch(backend: Backend) -> None:
    store = backend.store
    batch = await open_batch(store, on_done=DONE, on_failure=ALARM)
    await add(store, batch, 4)
    await settle_all(store, FAILURE, limit=2)
    await store.groups.close(batch)
    assert await store.groups.begin_retry(batch) == batch
    assert not await store.groups.retry_step(batch, batch, author="ada")
    assert await numbers(store, batch) == (6, 4, 0, 0, 2, 0, 0)
    assert await store.groups.begin_retry(batch) is None  # None is left.
    await settle_all(store)
    await backend.advance(2 * MINUTE)
    await keep(store)
    found = await store.groups.get(batch)
    assert (found.outcome, found.counts.retried, found.counts.failures) == ("completed", 2, 0)
    assert [job["task"] for job in await callbacks(backend)] == ["mail"]


async def test_retry_of_one_dead_letter_joins_its_batch_while_it_runs(backend: Backend) -> None:
    store = backend.store
    batch = await open_batch(store)
    await add(store, batch, 3)
    await settle_all(store, FAILURE)
    dead = [row["id"] for row in await backend.sql("select id from headway_jobs order by id")]
    again = await store.queue.retry(dead[0], author="ada", only_dead=True)
    await store.bulk.retry([dead[1]], author="ada")
    assert again.group_id == batch
    assert await numbers(store, batch) == (5, 2, 0, 0, 3, 0, 0)
    await settle_all(store)
    await store.groups.close(batch)
    await backend.advance(2 * MINUTE)
    await keep(store)
    found = await store.groups.get(batch)
    assert (found.outcome, found.counts.retried) == ("failed", 2)
    late = await store.queue.retry(dead[2], author="ada")
    assert late.group_id is None  # A finished batch does not change.
    assert (await numbers(store, batch))[0] == 5


async def test_retry_of_a_finished_batch_makes_one_new_batch(shared: Backend) -> None:
    store, other = shared.store, await shared.another("ada")
    batch = await open_batch(store, on_done=DONE)
    await add(store, batch, 6)
    await settle_all(store, FAILURE, limit=4)
    await settle_all(store)
    await store.groups.close(batch)
    await keep(store)
    finished = await store.groups.get(batch)

    async def retry(by: Store) -> str | None:
        target = await by.groups.begin_retry(batch)
        while target is not None and await by.groups.retry_step(batch, target, author="ada"):
            pass
        return target

    targets = set(await asyncio.gather(retry(store), retry(other)))
    [again] = targets
    assert again is not None
    assert again != batch
    found = await store.groups.get(again)
    assert (found.rerun_of, found.name, found.counts.total) == (batch, "reports retry 1", 4)
    assert found.closed_at is not None
    assert (await store.groups.get(batch)).counts == finished.counts
    reruns = await shared.sql("select rerun_of from headway_jobs where rerun_of is not null")
    assert len({row["rerun_of"] for row in reruns}) == len(reruns) == 4  # Nothing ran twice.
    await settle_all(store)
    await shared.advance(2 * MINUTE)
    await keep(store)
    assert (await store.groups.get(again)).outcome == "completed"
    assert len(await callbacks(shared)) == 2  # One for each batch.
    assert await retry(store) == again  # It was retried already.


async def test_retry_of_a_finished_batch_goes_on_after_a_crash(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.store.groups.RETRY_STEP", 2)
    store = backend.store
    batch = await open_batch(store)
    await add(store, batch, 5)
    await settle_all(store, FAILURE)
    await store.groups.close(batch)
    await keep(store)
    target = await store.groups.begin_retry(batch)
    assert target is not None
    assert await store.groups.retry_step(batch, target, author="ada")  # Then the caller dies.
    assert (await numbers(store, target))[0] == 2
    await backend.advance(2 * SOON)
    await keep(store)
    assert (await numbers(store, target))[0] == 5
    assert (await store.groups.get(target)).closed_at is not None


async def test_retry_waits_for_a_cancellation(store: Store) -> None:
    batch = await open_batch(store)
    await add(store, batch, 2)
    await settle_all(store, FAILURE, limit=1)
    await claim_one(store)
    await store.groups.request_cancel(batch, reason="enough")
    with pytest.raises(Conflict, match="is being cancelled"):
        await store.groups.begin_retry(batch)
    [dead] = await store.jobs.page(status="FAILED")
    assert (await store.queue.retry(dead.id, author="ada")).group_id is None


# --- members


async def test_members_are_listed_counted_and_chosen(store: Store) -> None:
    batch, other = await open_batch(store), await open_batch(store, "other")
    ids = await add(store, batch, 3)
    await add(store, other, 2)
    assert [job.id for job in await store.jobs.page(group_id=batch)] == ids[::-1]
    assert [job.id for job in await store.jobs.page(group_id=batch, before=ids[2], limit=1)] == [ids[1]]
    assert await store.jobs.page(group_id=batch, status="FAILED") == []
    assert await store.bulk.count(JobFilter(group_id=batch)) == (3, True)
    assert [job_id for job_id, _ in await store.bulk.choose(JobFilter(group_id=batch), "cancel", 2)] == ids[:2]
    found = await store.groups.page()
    assert [group.id for group in found] == [other, batch]
    assert [group.id for group in await store.groups.page(before=other, limit=1)] == [batch]
    assert await store.groups.page(tenant="acme") == await store.groups.page(finished=True) == []
    assert await store.groups.of_tenant([batch, "batch_x"], "default") == {batch}


async def test_jobs_of_unfinished_batches_are_not_pruned(backend: Backend) -> None:
    store = backend.store
    batch = await open_batch(store, open_for=100 * DAY)
    await add(store, batch, 3)
    await store.queue.enqueue([new_job()])
    await settle_all(store)
    await keep(store)
    await backend.advance(40 * DAY)
    await store.housekeeping.prune(30 * DAY, 100)
    assert await backend.count("headway_jobs") == 3
    await store.groups.close(batch)
    await keep(store)
    await store.housekeeping.prune(30 * DAY, 100)
    assert await backend.count("headway_jobs") == 0
    assert await numbers(store, batch) == (3, 0, 0, 3, 0, 0, 0)  # The counts stay.
    await backend.advance(31 * DAY)
    await store.housekeeping.prune(30 * DAY, 100)
    assert await backend.count("headway_groups") == await backend.count("headway_deltas") == 0


async def test_erased_jobs_stay_counted(backend: Backend) -> None:
    store = backend.store
    batch = await open_batch(store)
    ids = await add(store, batch, 2)
    await settle_all(store)
    await store.erasure.erase(ids)
    await keep(store)
    assert await numbers(store, batch) == (2, 0, 0, 2, 0, 0, 0)


async def test_counts_follow_a_status_that_was_changed_by_hand(backend: Backend) -> None:
    store = backend.store
    batch = await open_batch(store)
    [job_id, *_] = await add(store, batch, 2)
    await settle_all(store, FAILURE)
    await backend.sql(
        f"update headway_jobs set status = 'PENDING', finished_at = null where id = '{job_id}' returning id"
    )
    assert await numbers(store, batch) == (2, 1, 0, 0, 1, 0, 0)
    await settle_all(store)
    await keep(store)
    assert await numbers(store, batch) == (2, 0, 0, 1, 1, 0, 0)
