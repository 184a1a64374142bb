"""Bulk operations: the jobs that match a filter are counted, retried and cancelled, each once."""

import asyncio
from typing import Any

import pytest

from headway.core.clock import Clock
from headway.core.instants import HOUR, SECOND
from headway.core.lifecycle import FINAL, Parked, Raised, Status
from headway.operations import audit_log as deeds
from headway.store import Store
from headway.store.audit_log import Actor
from headway.store.bulk import AT_ONCE_MAX
from headway.store.bulk import retry_jobs as retry_transaction
from headway.store.job_filter import JobFilter
from tests.conformance.arrange import bring_to, claim_one, decide, enqueue, run_one, spec
from tests.conformance.backend import Backend, Interrupted

ME = "ana"


async def dead(store: Store, **options: Any) -> str:
    """Create a job that has failed for good, in a queue of its own."""
    job_id = await enqueue(store, **{"queue": "dying", **options})
    await run_one(store, Raised("{}", retryable=False), options.get("queue", "dying"))
    return job_id


async def ids_of(store: Store, chosen: JobFilter) -> set[str]:
    return {job.id for job in await store.jobs.chosen(chosen, limit=200)}


async def chosen_to(store: Store, verb: Any, chosen: JobFilter, limit: int = 100) -> list[str]:
    return [job_id for job_id, _ in await store.bulk.choose(chosen, verb, limit)]


# --- selection


async def test_every_filter_selects_the_same_jobs_for_lists_and_counts(backend: Backend) -> None:
    store = backend.store
    plain = await enqueue(store)
    other = await enqueue(
        store, task="mail", queue="q", tenant="acme", schedule="s", key="k", tags=('a"b', "c%d"), rerun_of=plain
    )
    begin = await backend.now()
    await backend.advance(10 * SECOND)
    ended = await dead(store, task="late")
    middle = await backend.now()
    everything = {plain, other, ended}
    expected: list[tuple[dict[str, Any], set[str]]] = [
        ({}, everything),
        ({"status": "FAILED"}, {ended}),
        ({"task": "mail"}, {other}),
        ({"queue": "q"}, {other}),
        ({"tenant": "acme"}, {other}),
        ({"tenant": "default"}, {plain, ended}),
        ({"schedule": "s", "tenant": "acme"}, {other}),
        ({"schedule": "s"}, set()),  # The default tenant.
        ({"key": "k"}, {other}),
        ({"tag": 'a"b'}, {other}),
        ({"tag": "c%d"}, {other}),
        ({"tag": "c_d"}, set()),
        ({"words": "mai"}, {other}),
        ({"words": "%"}, set()),
        ({"since": begin + SECOND}, {ended}),
        ({"until": begin + SECOND}, {plain, other}),
        ({"finished_after": begin}, {ended}),
        ({"finished_after": middle + SECOND}, set()),
        ({"finished_before": middle + SECOND}, {ended}),
        ({"finished_before": begin}, set()),
        ({"rerun_of": plain}, {other}),
        ({"rerun_of": plain, "tenant": "acme"}, {other}),
        ({"rerun_of": plain, "tenant": "default"}, set()),
        ({"rerun_of": other}, set()),
        ({"task": "mail", "queue": "elsewhere"}, set()),
    ]
    for options, found in expected:
        chosen = JobFilter(**options)
        assert await ids_of(store, chosen) == found, options
        assert await store.bulk.count(chosen) == (len(found), True), options


async def test_count_stops_at_a_limit(store: Store) -> None:
    for _ in range(4):
        await enqueue(store, tenant="acme")
    for chosen in (JobFilter(), JobFilter(tenant="acme")):
        assert await store.bulk.count(chosen, limit=3) == (3, False)
        assert await store.bulk.count(chosen, limit=4) == (4, True)
        assert len(await chosen_to(store, "cancel", chosen, 3)) == 3


@pytest.mark.parametrize("status", Status)
async def test_ended_jobs_can_be_retried_and_live_jobs_cancelled(store: Store, status: Status) -> None:
    job_id = await bring_to(store, status)
    chosen = JobFilter(words=job_id)
    retryable, cancellable = status in FINAL, status not in FINAL
    assert await chosen_to(store, "retry", chosen) == [job_id] * retryable
    assert await chosen_to(store, "cancel", chosen) == [job_id] * cancellable
    assert await store.bulk.count(chosen, "retry") == (int(retryable), True)
    assert await store.bulk.count(chosen, "cancel") == (int(cancellable), True)
    for verb, is_fit in (("retry", retryable), ("cancel", cancellable)):
        assert await store.bulk.find([job_id, "job_absent"], verb) == {job_id: ("default", is_fit)}  # type: ignore[arg-type]
    assert await store.bulk.find([job_id], "retry", tenant="acme") == {}


async def test_oldest_jobs_are_selected_first(store: Store) -> None:
    ids = [await enqueue(store) for _ in range(5)]
    assert await chosen_to(store, "cancel", JobFilter(status="PENDING"), 3) == ids[:3]


# --- retry


async def test_ended_jobs_are_retried_once(backend: Backend) -> None:
    store = backend.store
    letters = [await dead(store, args=f'{{"n":{n}}}', tags=("a",), tenant="acme", priority=n) for n in range(3)]
    done = await bring_to(store, Status.COMPLETED)
    result = await store.bulk.retry([*letters, done], author=ME)
    assert (result.done, result.refused) == (tuple(sorted([*letters, done])), ())
    for n, letter in enumerate(letters):
        [rerun] = await store.jobs.reruns(letter)
        job = await store.jobs.get(rerun)
        assert (job.args, job.tags, job.tenant, job.priority) == (f'{{"n":{n}}}', ("a",), "acme", n)
        assert (job.rerun_of, job.status, job.queue, job.attempt) == (letter, Status.PENDING, "dying", 0)
        old = await store.jobs.get(letter)
        assert (old.status, old.reviewed_at is not None) == (Status.FAILED, True)  # No longer a dead letter.
        events = [event["event"] for event in await store.jobs.events(letter)]
        assert events[-2:] == ["reviewed", "retried"]
    assert await store.jobs.dead() == []
    assert await chosen_to(store, "retry", JobFilter()) == []
    again = await store.bulk.retry([*letters, done], author=ME)
    assert again.done == ()
    assert {reason.endswith("repeats it already") for _, reason in again.refused} == {True}
    assert await backend.count("headway_jobs", "rerun_of is not null") == 4


async def test_next_retry_applies_to_the_failed_retry(store: Store) -> None:
    letter = await dead(store)
    await store.bulk.retry([letter], author=ME)
    [rerun] = await store.jobs.reruns(letter)
    await run_one(store, Raised("{}", retryable=False), "dying")
    assert await chosen_to(store, "retry", JobFilter(status="FAILED")) == [rerun]


async def test_jobs_that_cannot_be_retried_are_rejected_with_the_reason(store: Store) -> None:
    waiting, letter = await enqueue(store), await dead(store)
    result = await store.bulk.retry([waiting, letter, "job_absent"], author=ME)
    assert result.done == (letter,)
    assert dict(result.refused) == {
        waiting: "it is PENDING; only a job that has ended can be retried",
        "job_absent": "no job has this id",
    }


async def test_parked_jobs_become_ready_again(store: Store) -> None:
    job_id = await enqueue(store)
    await run_one(store, Parked("nobody knows it"))
    assert await chosen_to(store, "retry", JobFilter()) == [job_id]
    assert (await store.bulk.retry([job_id], author=ME)).done == (job_id,)
    assert (await store.jobs.get(job_id)).parked is None
    assert await store.jobs.reruns(job_id) == []
    assert "unparked" in [event["event"] for event in await store.jobs.events(job_id)]


@pytest.mark.parametrize("is_live", [False, True])
async def test_retried_jobs_of_an_exclusive_schedule_are_queued(backend: Backend, is_live: bool) -> None:
    store = backend.store
    await store.schedules.put("s", spec(overlap="skip"))
    letters = []
    for _ in range(3):
        await backend.advance(2 * SECOND)
        await decide(store)
        letters.append((await run_one(store, Raised("{}", retryable=False))).id)
    live = None
    if is_live:
        await backend.advance(2 * SECOND)
        await decide(store)
        live = (await claim_one(store)).id
    assert set((await store.bulk.retry(letters, author=ME)).done) == set(letters)
    jobs = [await store.jobs.get((await store.jobs.reruns(letter))[0]) for letter in sorted(letters)]
    assert [job.blocked_by for job in jobs] == [live, jobs[0].id, jobs[1].id]
    first = Status.BLOCKED if is_live else Status.PENDING
    assert [job.status for job in jobs] == [first, Status.BLOCKED, Status.BLOCKED]
    assert all(job.exclusive for job in jobs)


async def test_retried_jobs_of_an_overlapping_schedule_do_not_wait(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec(overlap="allow"))
    for _ in range(2):
        await backend.advance(SECOND)
        await decide(store)
    letters = [(await run_one(store, Raised("{}", retryable=False))).id for _ in range(2)]
    await store.bulk.retry(letters, author=ME)
    for letter in letters:
        job = await store.jobs.get((await store.jobs.reruns(letter))[0])
        assert (job.status, job.blocked_by, job.exclusive) == (Status.PENDING, None, False)


async def test_job_of_an_unreadable_schedule_is_retried_unchanged(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec(overlap="skip"))
    await backend.advance(SECOND)
    await decide(store)
    letter = (await run_one(store, Raised("{}", retryable=False))).id
    await backend.sql("update headway_schedules set definition = 'nonsense'")
    assert (await store.bulk.retry([letter], author=ME)).done == (letter,)


async def test_large_arguments_are_copied_in_batches(store: Store) -> None:
    args = '{"x":"' + "y" * 900_000 + '"}'
    letters = [await dead(store, args=args) for _ in range(6)]
    assert len((await store.bulk.retry(letters, author=ME)).done) == 6
    for letter in letters:
        assert (await store.jobs.get((await store.jobs.reruns(letter))[0])).args == args


async def test_concurrent_retries_create_one_job_each(shared: Backend) -> None:
    letters = [await dead(shared.store) for _ in range(20)]
    stores = [shared.store, await shared.another(), await shared.another("node-3")]
    results = await asyncio.gather(*(store.bulk.retry(letters, author=ME) for store in stores))
    assert sorted(job_id for result in results for job_id in result.done) == sorted(letters)
    assert await shared.count("headway_jobs", "rerun_of is not null") == 20


async def test_retry_during_another_waits_and_finds_the_jobs_retried(shared: Backend) -> None:
    letter = await dead(shared.store)
    clock = Clock(node="other")
    results = []

    async def act() -> None:
        results.append(await shared.store.bulk.retry([letter], author=ME))

    async with Interrupted(shared, lambda: retry_transaction([letter], ME, clock), after="reruns") as other:
        await other.act(act())
    assert other.result.done == (letter,)
    assert results[0].done == ()
    assert len(await shared.store.jobs.reruns(letter)) == 1


# --- cancel


async def test_waiting_jobs_end_and_running_ones_are_asked_to_stop(store: Store) -> None:
    waiting, running, done = [
        await bring_to(store, status) for status in (Status.SCHEDULED, Status.RUNNING, Status.COMPLETED)
    ]
    ids = [waiting, running, done, "job_absent"]
    result = await store.bulk.cancel(ids, author=ME, reason="wrong month")
    assert set(result.done) == {waiting, running}
    assert dict(result.refused) == {done: "it has ended as COMPLETED", "job_absent": "no job has this id"}
    assert (await store.jobs.get(waiting)).reason == "cancelled by ana: wrong month"
    assert (await store.jobs.get(running)).cancel_requested_at is not None
    again = await store.bulk.cancel([waiting, running], author=ME)
    assert dict(again.refused) == {waiting: "it has ended as CANCELLED", running: "it was asked to stop already"}
    assert await chosen_to(store, "cancel", JobFilter()) == []


# --- the audit log


@pytest.mark.parametrize("verb", ["retry", "cancel"])
async def test_bulk_operation_adds_at_most_one_audit_log_entry(store: Store, verb: Any) -> None:
    make = dead if verb == "retry" else enqueue
    ids = sorted([await make(store, tenant="acme") for _ in range(3)])
    deed = deeds.act_on_many(verb, "acme", {"status": "FAILED"}, "because")
    bulk = store.auditing(Actor(ME, "here"), deed, Clock()).bulk
    for _ in range(2):  # The second time there is nothing to do, and nothing to record.
        await (bulk.retry(ids, author=ME) if verb == "retry" else bulk.cancel(ids, author=ME))
        [line] = await store.audit_log.page(tenant="acme")
        assert (line.actor, line.action, line.target, line.tenant) == (ME, f"job.{verb}", "*", "acme")
        assert line.detail == {"filter": {"status": "FAILED"}, "reason": "because", "jobs": ids}


async def test_entry_of_the_largest_bulk_operation_fits_into_the_audit_log(store: Store) -> None:
    ids = [await enqueue(store, delay=HOUR) for _ in range(AT_ONCE_MAX)]
    said = dict.fromkeys(("type", "queue", "tenant", "schedule", "tag", "key", "rerun_of", "q"), "\x01" * 512)
    deed = deeds.act_on_many("cancel", "default", said, "r" * 300)
    await store.auditing(Actor(ME, "here"), deed, Clock()).bulk.cancel(ids, author=ME)
    [line] = await store.audit_log.page()
    assert line.detail["jobs"] == sorted(ids)
