"""Effects of operators and of time on jobs: parking, deadlines, pauses, dead letters, on every database."""

import asyncio
from typing import Any

import msgspec
import pytest

from headway.core.errors import JobNotFound, NotFinal
from headway.core.instants import HOUR, MINUTE, SECOND, Instant
from headway.core.jobs import Claimed
from headway.core.lifecycle import (
    AttemptOutcome,
    Backoff,
    Cancelled,
    Parked,
    Raised,
    Released,
    Status,
    Succeeded,
    settle,
)
from headway.core.schedule_names import ScheduleRef
from headway.core.schedules import FAILING_FLAGGED
from headway.store import Store
from headway.store.housekeeping import _end_overdue
from headway.store.transaction import call, one
from tests.conformance.arrange import (
    LEASE,
    bring_to,
    claim_one,
    decide,
    due_plans,
    end,
    enqueue,
    lose,
    new_job,
    run_one,
    spec,
)
from tests.conformance.backend import Backend, Interrupted, changed, columns

UNKNOWN = Parked("no worker knows the task report")
FAILED = Raised("{}", retryable=False)
LIVE = "exclusive = 1 and status in ('SCHEDULED', 'PENDING', 'RUNNING', 'RETRYING')"


async def _status(backend: Backend, *ids: str) -> str:
    """Return the first letters of the statuses, e.g. RBB."""
    return "".join([(await backend.job(job_id))["status"][0] for job_id in ids])


async def _exclusive(store: Store, **options: Any) -> str:
    """Enqueue a job of the exclusive schedule s."""
    return await enqueue(store, schedule="s", exclusive=True, **options)


# Parked: no worker can run it


async def test_parked_job_waits_until_a_worker_can_run_it(backend: Backend) -> None:
    store = backend.store
    job_id = await enqueue(store, max_attempts=1)
    await run_one(store, UNKNOWN)
    job = await store.jobs.get(job_id)
    assert (job.status, job.parked, job.reason) == (Status.BLOCKED, "unknown task", UNKNOWN.reason)
    assert (job.failures, job.finished_at, job.lease_until) == (0, None, None)
    await backend.advance(HOUR)
    assert (await store.housekeeping.promote(10), await store.housekeeping.next_promotion()) == (0, None)
    assert await store.work.unpark(["other"]) == 0
    assert await store.work.unpark(["other", "report"], cause="arguments") == 0
    assert await store.work.unpark([]) == 0
    assert await store.work.unpark(["report", "other"], cause="unknown task") == 1
    assert await store.work.unpark(["report"]) == 0  # Nothing is parked any more.
    assert await store.housekeeping.promote(10) == 1
    again = await run_one(store)
    assert (again.id, again.attempt, again.failures) == (job_id, 2, 0)
    assert columns(await store.jobs.attempts(job_id), "outcome") == [("parked",), ("completed",)]


async def test_jobs_parked_for_different_causes(backend: Backend) -> None:
    store = backend.store
    ids = {}
    for cause in ("unknown task", "arguments", "unreadable"):
        ids[cause] = await enqueue(store)
        await run_one(store, Parked("why", cause))
    assert await store.work.unpark(["report"], cause="arguments") == 1
    assert await store.housekeeping.promote(10) == 1
    assert await _status(backend, *ids.values()) == "BPB"
    assert await store.work.unpark(["report"]) == 2
    assert await store.housekeeping.promote(10) == 2


async def test_queued_jobs_wait_behind_a_parked_one(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1s", overlap="queue"))
    head = await _exclusive(store)
    second = await _exclusive(store, blocked_by=head)
    await run_one(store, UNKNOWN)
    third = await _exclusive(store, blocked_by=second)
    await store.housekeeping.promote(10)
    assert await _status(backend, head, second, third) == "BBB"
    await backend.advance(2 * SECOND)
    plans = await decide(store)  # The queue is full, and due instants are skipped: nothing overtakes.
    assert sum(made.fires for made in plans) == 0
    await store.work.unpark(["report"])
    await store.housekeeping.promote(10)
    assert await _status(backend, head, second, third) == "PBB"
    assert (await run_one(store)).id == head
    assert (await run_one(store, UNKNOWN)).id == second
    await store.housekeeping.promote(10)
    assert await _status(backend, head, second, third) == "CBB"
    await store.queue.cancel(second, author="ada")  # An operator cancels it, and the next one moves up.
    assert await _status(backend, head, second, third) == "CCP"
    assert (await backend.job(second))["parked"] is None


async def test_unparked_job_waits_for_the_live_one(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1d"))
    parked = await _exclusive(store)
    await run_one(store, UNKNOWN)
    await _exclusive(store)
    live = await claim_one(store)
    await store.work.unpark(["report"])
    assert (await store.housekeeping.promote(10), await store.housekeeping.next_promotion()) == (0, None)
    assert await backend.count("headway_jobs", LIVE) == 1
    await end(store, live, Succeeded())
    assert await store.housekeeping.promote(10) == 1
    assert (await run_one(store)).id == parked


async def test_retry_of_a_parked_job_unparks_it(backend: Backend) -> None:
    store = backend.store
    job_id = await enqueue(store)
    await run_one(store, UNKNOWN)
    assert (await store.queue.retry(job_id, author="ada")).id == job_id  # It has not ended, so no new job is created.
    assert await store.housekeeping.promote(10) == 1
    await run_one(store, UNKNOWN)
    await store.queue.cancel(job_id, author="ada")
    again = await store.queue.retry(job_id, author="ada")
    assert (again.status, again.rerun_of) == (Status.PENDING, job_id)
    events = [event["event"] for event in await store.jobs.events(job_id)]
    assert events.count("unparked") == 1


# Expired: it did not start in time


async def _waiting(store: Store, how: str) -> str:
    """Create a job that waits in one of the possible ways, and expires a minute after its time."""
    options: dict[str, Any] = {"expires": MINUTE, "max_attempts": 3}
    match how:
        case "SCHEDULED":
            return await enqueue(store, **options, delay=SECOND)
        case "BLOCKED":
            return await enqueue(store, **options, blocked_by=await enqueue(store, queue="before"))
    job_id = await enqueue(store, **options)
    if how != "PENDING":
        await run_one(store, UNKNOWN if how == "parked" else Raised("{}", retry_in=HOUR))
    return job_id


@pytest.mark.parametrize("how", ["SCHEDULED", "PENDING", "RETRYING", "BLOCKED", "parked"])
async def test_job_that_did_not_start_in_time_is_ended(backend: Backend, how: str) -> None:
    store = backend.store
    job_id = await _waiting(store, how)
    assert (await backend.job(job_id))["status"] == ("BLOCKED" if how == "parked" else how)
    await backend.advance(MINUTE - SECOND)
    assert await store.housekeeping.end_overdue(10) == 0
    await backend.advance(3 * SECOND)
    assert await store.work.claim("default", node="n", lease=LEASE, limit=9) == []  # Also before the janitor ends it.
    assert await store.housekeeping.end_overdue(10) == 1
    assert await store.housekeeping.end_overdue(10) == 0
    job = await store.jobs.get(job_id)
    assert (job.status, job.parked, job.reason.partition(":")[0]) == (Status.CANCELLED, None, "expired")
    assert [event["event"] for event in await store.jobs.events(job_id)][-1] == "cancelled"
    assert (await store.jobs.dead()) == []


async def test_expired_jobs_are_ended_in_batches_and_free_the_next_ones(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1d"))
    running = await enqueue(store, expires=MINUTE)
    await claim_one(store)
    head = await _exclusive(store, expires=MINUTE)
    second = await _exclusive(store, blocked_by=head, expires=MINUTE)
    third = await _exclusive(store, blocked_by=second)
    late = [await enqueue(store, expires=MINUTE) for _ in range(3)]
    await backend.advance(MINUTE + SECOND)
    assert await store.housekeeping.end_overdue(2) == 2
    assert await store.housekeeping.end_overdue(9) == 3
    assert await _status(backend, running, head, second, third) == "RCCP"
    assert await _status(backend, *late) == "CCC"
    assert (await backend.job(running))["cancel_requested_at"] is None  # It started in time.


async def test_job_claimed_at_the_last_moment_runs(shared: Backend) -> None:
    """The claim begins before the deadline and commits after it."""
    job_id = await enqueue(shared.store, expires=MINUTE)
    parameters = {"queue": "default", "node": "n", "lease": LEASE, "limit": 1, "skip": "[]"}
    async with Interrupted(shared, lambda: one(call("claim", **parameters)), after="claim") as in_between:
        await shared.advance(MINUTE + SECOND)
        await in_between.act(shared.store.driver.run(lambda: _end_overdue(10)))
    row = await shared.job(job_id)
    assert (row["status"], row["cancel_requested_at"]) == ("RUNNING", None)


# Paused queues


async def test_paused_queue_is_not_claimed_from(backend: Backend) -> None:
    store = backend.store
    low, high = await enqueue(store), await enqueue(store, priority=5)
    other = await enqueue(store, queue="other")
    running = await enqueue(store, queue="busy")
    job = await claim_one(store, "busy")
    assert await store.queue.paused() == {}
    assert await store.queue.resume("default") is False
    for queue in ("default", "busy"):
        assert await store.queue.pause(queue, author="ada", reason="disk") is True
    assert await store.queue.pause("default", author="bob") is False
    paused = await store.queue.paused()
    assert paused.keys() == {"busy", "default"}
    assert (paused["default"]["paused_by"], paused["default"]["reason"]) == ("ada", "disk")
    assert abs(paused["default"]["paused_at"] - await backend.now()) < MINUTE
    later = await enqueue(store, priority=9)  # Jobs can still be enqueued.
    assert await store.work.claim("default", node="n", lease=LEASE, limit=9) == []
    assert (await claim_one(store, "other")).id == other
    await end(store, job, Succeeded())  # Running jobs continue to their end.
    assert (await backend.job(running))["status"] == "COMPLETED"
    assert await store.queue.resume("default") is True
    assert await store.queue.resume("default") is False
    claimed = await store.work.claim("default", node="n", lease=LEASE, limit=9)
    assert [job.id for job in claimed] == [later, high, low]
    assert (await store.queue.paused()).keys() == {"busy"}
    assert await store.queue.pause("default", author="bob") is True
    assert (await store.queue.paused())["default"]["paused_by"] == "bob"


# Dead letters


async def test_dead_letters_are_listed_until_they_are_handled(backend: Backend) -> None:
    store = backend.store
    for status in (Status.COMPLETED, Status.CANCELLED, Status.RETRYING, Status.RUNNING):
        await bring_to(store, status)
    failed, out_of_time, again = [
        await bring_to(store, status) for status in (Status.FAILED, Status.TIMED_OUT, Status.FAILED)
    ]
    await enqueue(store, task="other", queue="q", tenant="acme", schedule="s")
    special = (await run_one(store, FAILED, "q")).id
    assert [job.id for job in await store.jobs.dead()] == [special, again, out_of_time, failed]
    assert [job.id for job in await store.jobs.dead(limit=2, before=special)] == [again, out_of_time]
    for filters in ({"task": "other"}, {"queue": "q"}, {"tenant": "acme"}, {"schedule": "s", "tenant": "acme"}):
        assert [job.id for job in await store.jobs.dead(**filters)] == [special]  # type: ignore[arg-type]
    assert await store.jobs.dead(schedule="s") == []  # The default tenant.
    counts = await store.statistics.dead_counts()
    assert columns(counts, "task", "letters", "newest") == [("report", 3, again), ("other", 1, special)]
    before = await backend.job(failed)
    assert await store.queue.drop_dead([again, failed, "job_none"], author="ada") == [failed, again]
    assert await store.queue.drop_dead([failed], author="ada") == []
    assert changed(before, await backend.job(failed)).keys() == {"reviewed_at", "version"}  # Still final.
    assert [job.id for job in await store.jobs.dead()] == [special, out_of_time]
    last = (await store.jobs.events(failed))[-1]
    assert (last["event"], msgspec.json.decode(last["data"])) == ("dropped", {"author": "ada"})


async def test_retry_is_a_new_job_linked_to_the_old_one(backend: Backend) -> None:
    store = backend.store
    given = new_job(
        args='{"n":1}',
        tenant="acme",
        queue="q",
        priority=3,
        key="k",
        max_attempts=2,
        tags=("a",),
        backoff=Backoff(first=SECOND, most=MINUTE),
        timeout=HOUR,
        parent="job_parent",
    )
    await store.queue.enqueue([given])
    with pytest.raises(NotFinal, match="PENDING"):
        await store.queue.retry(given.id, author="ada")
    await run_one(store, FAILED, "q")
    before = await backend.job(given.id)
    new = await store.queue.retry(given.id, author="ada")
    names = ("task", "args", "tenant", "queue", "priority", "max_attempts", "tags", "backoff", "timeout", "parent")
    for name in names:
        assert getattr(new, name) == getattr(given, name), name
    assert (new.status, new.rerun_of, new.key, new.attempt, new.failures) == (Status.PENDING, given.id, None, 0, 0)
    assert changed(before, await backend.job(given.id)).keys() == {"reviewed_at", "version"}
    assert await store.jobs.dead() == []
    assert await store.jobs.reruns(given.id) == [new.id]
    events = (await store.jobs.events(given.id))[-2:]
    assert sorted(event["event"] for event in events) == ["retried", "reviewed"]
    await run_one(store, queue="q")
    once_more = await store.queue.retry(new.id, author="ada")  # Also a completed job, repeatedly.
    assert once_more.rerun_of == new.id
    with pytest.raises(JobNotFound):
        await store.queue.retry("job_none", author="ada")


async def test_retry_of_an_exclusive_schedule_is_queued(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1d"))
    old = await _exclusive(store, occurrence_at=5)
    await run_one(store, FAILED)
    first = await store.queue.retry(old, author="ada")  # No job is live: it is ready.
    assert (first.status, first.schedule, first.occurrence_at, first.exclusive) == (Status.PENDING, "s", 5, True)
    second = await store.queue.retry(old, author="ada")
    third = await store.queue.retry(old, author="ada")
    assert [(job.status, job.blocked_by) for job in (second, third)] == [
        (Status.BLOCKED, first.id),
        (Status.BLOCKED, second.id),
    ]
    ran = []
    for _ in range(3):
        await store.housekeeping.promote(10)
        assert await backend.count("headway_jobs", LIVE) == 1
        ran.append((await run_one(store)).id)
    assert ran == [first.id, second.id, third.id]


async def test_retry_follows_the_current_schedule(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1d"))
    old = await _exclusive(store)
    await run_one(store, FAILED)
    await store.queue.retry(old, author="ada")
    await store.schedules.put("s", spec("1d", overlap="allow"))
    beside = await store.queue.retry(old, author="ada")
    assert (beside.status, beside.exclusive, beside.blocked_by) == (Status.PENDING, False, None)


async def test_racing_retries_and_decisions_leave_one_live_job(shared: Backend) -> None:
    stores = [shared.store, await shared.another(), await shared.another()]
    await shared.store.schedules.put("s", spec("1s", overlap="queue", queue_limit=1000, max_attempts=1))
    old = await _exclusive(shared.store)
    await run_one(shared.store, FAILED)

    async def fire(store: Store) -> None:
        await store.ledger.fire(await due_plans(store), None)

    for _ in range(4):
        await shared.advance(SECOND)
        await asyncio.gather(*(store.queue.retry(old, author="ada") for store in stores), fire(stores[0]))
        await shared.store.housekeeping.promote(10)
        assert await shared.count("headway_jobs", LIVE) == 1
    count = await shared.count("headway_jobs", "finished_at is null")
    for left in reversed(range(count)):  # Each end frees exactly one.
        await run_one(shared.store)
        await shared.store.housekeeping.promote(100)
        assert await shared.count("headway_jobs", LIVE) == min(left, 1)


# Schedules whose jobs fail


async def test_schedule_counts_consecutive_failures(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1d"))
    await store.schedules.put("t", spec("1d"))

    async def run(*outcomes: AttemptOutcome, schedule: str = "s") -> int:
        """Run jobs of the schedule with these outcomes, settled together; return its count of failures."""
        for _ in outcomes:
            await enqueue(store, schedule=schedule, max_attempts=2)
        jobs: list[Claimed] = await store.work.claim("default", node="n", lease=LEASE, limit=9)
        stale = await store.work.settle([settle(job, each, 0) for job, each in zip(jobs, outcomes, strict=True)])
        assert not stale
        return (await store.schedules.get(schedule)).failing

    revision = (await backend.schedule("s"))["version"]
    assert await run(FAILED) == 1
    assert await run(FAILED, FAILED) == FAILING_FLAGGED
    assert await run(Cancelled()) == FAILING_FLAGGED
    assert await run(Raised("{}", retry_in=9 * HOUR), UNKNOWN) == FAILING_FLAGGED  # Neither of them has ended.
    assert await run(FAILED, schedule="t") == 1
    assert await store.ledger.failing(FAILING_FLAGGED) == [(ScheduleRef("default", "s"), FAILING_FLAGGED)]
    assert await store.ledger.failing(1) == [
        (ScheduleRef("default", "s"), FAILING_FLAGGED),
        (ScheduleRef("default", "t"), 1),
    ]
    assert await run(FAILED, Succeeded(), FAILED) == 1
    assert await run(FAILED, Succeeded()) == 0
    assert await run(Succeeded()) == 0
    await enqueue(store, schedule="s")
    await claim_one(store)
    await lose(backend, times=3)
    assert (await store.schedules.get("s")).failing == 1
    assert (await backend.schedule("s"))["version"] == revision  # Its plans do not become stale.


async def test_rejected_settlement_is_not_counted(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1d"))
    await enqueue(store, schedule="s", max_attempts=3)
    stale = await claim_one(store)
    await end(store, stale, Released())
    assert await end(store, stale, FAILED) == {stale.id}
    job = await claim_one(store)
    for _ in range(2):  # The second time as after a lost response.
        assert await end(store, job, FAILED) == frozenset()
    assert (await store.schedules.get("s")).failing == 1


async def _times(backend: Backend, job_id: str) -> list[Instant]:
    return [event["at"] for event in await backend.store.jobs.events(job_id)]


async def test_actions_of_operators_are_in_the_history_in_order(backend: Backend) -> None:
    store = backend.store
    job_id = await enqueue(store)
    await run_one(store, UNKNOWN)
    await store.queue.retry(job_id, author="ada")
    await store.housekeeping.promote(10)
    await run_one(store, FAILED)
    await store.queue.retry(job_id, author="ada")
    names = [event["event"] for event in await store.jobs.events(job_id)]
    assert names[:7] == ["enqueued", "claimed", "settled", "unparked", "promoted", "claimed", "settled"]
    assert sorted(names[7:]) == ["retried", "reviewed"]
    assert await _times(backend, job_id) == sorted(await _times(backend, job_id))
