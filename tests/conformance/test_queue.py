"""The verbs of the queue, on every database: the contract of `ports.Queue`, also between racing connections."""

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from headway.core.errors import AlreadyFinal, DuplicateKey, InvalidTask, JobNotFound
from headway.core.instants import DAY, HOUR, MINUTE, SECOND
from headway.core.jobs import Claimed
from headway.core.lifecycle import (
    LOSS_WAIT_MAX,
    AttemptOutcome,
    Backoff,
    Cancelled,
    Crashed,
    LeaseExpired,
    Parked,
    Raised,
    Released,
    Settlement,
    Status,
    Succeeded,
    TimedOut,
    settle,
)
from headway.store import Store
from headway.store.queue import ENQUEUE_MAX, cancel
from tests.conformance.arrange import LEASE, attempt_of, bring_to, claim_one, end, enqueue, new_job, run_one, spec
from tests.conformance.backend import Backend, Interrupted, changed, columns

SOON = 10 * SECOND  # Longer than any of these tests takes, shorter than any delay in them.


async def test_new_job_has_its_options(backend: Backend) -> None:
    given = new_job(
        task="video.transcode",
        args='{"n":1,"text":"ö \\"quoted\\" \\\\ 🚂"}',
        tenant="acme",
        queue="media",
        priority=7,
        max_attempts=4,
        key="upload-1",
        tags=("video", "größe"),
        backoff=Backoff(first=SECOND, most=MINUTE),
    )
    before = await backend.now()
    [row] = await backend.store.queue.enqueue([given])
    job = await backend.store.jobs.get(given.id)
    assert (row.id, row.status, row.is_new) == (given.id, "PENDING", True)
    assert (row.created_at, row.run_at) == (job.created_at, job.run_at)
    assert before <= job.created_at <= await backend.now()
    assert job.created_at == job.run_at == job.ready_at
    for name in ("task", "args", "tenant", "queue", "priority", "max_attempts", "key", "tags", "backoff"):
        assert getattr(job, name) == getattr(given, name)
    assert (job.status, job.attempt, job.failures, job.version, job.progress) == (Status.PENDING, 0, 0, 1, 0)
    assert (job.finished_at, job.lease_until, job.node, job.schedule) == (None, None, None, None)


async def test_start_time_of_a_job(backend: Backend) -> None:
    store, now = backend.store, await backend.now()
    jobs = [new_job(delay=HOUR), new_job(run_at=now + HOUR), new_job(run_at=now - HOUR), new_job()]
    later, at, past, at_once = await store.queue.enqueue(jobs)
    assert [row.status for row in (later, at, past, at_once)] == ["SCHEDULED", "SCHEDULED", "PENDING", "PENDING"]
    assert (later.run_at - later.created_at, at.run_at, past.run_at) == (HOUR, now + HOUR, now - HOUR)
    assert (await store.jobs.get(later.id)).ready_at is None
    # The earlier time goes first, in any order of enqueueing.
    assert [job.id for job in await store.work.claim("default", node="n", lease=LEASE, limit=9)] == [
        past.id,
        at_once.id,
    ]


async def test_bulk_is_all_or_nothing_and_bounded(backend: Backend) -> None:
    store = backend.store
    jobs = [new_job(args=f'{{"n":{number}}}') for number in range(ENQUEUE_MAX + 1)]
    with pytest.raises(InvalidTask, match="at most 10,000"):
        await store.queue.enqueue(jobs)
    assert await backend.count("headway_jobs") == 0
    rows = await store.queue.enqueue(jobs[:-1])
    assert [row.id for row in rows] == [job.id for job in jobs[:-1]]
    assert await backend.count("headway_jobs") == ENQUEUE_MAX
    assert await store.queue.enqueue([]) == []
    with pytest.raises(Exception, match=r"(?i)unique"):  # A duplicate id: no job of the batch exists.
        await store.queue.enqueue([jobs[-1], jobs[0]])
    assert await backend.count("headway_jobs") == ENQUEUE_MAX


async def test_key_creates_one_job(backend: Backend) -> None:
    store = backend.store
    [first] = await store.queue.enqueue([new_job(key="k", args='{"a":1}')])
    [again] = await store.queue.enqueue([new_job(key="k", args='{"a":1}')])
    assert (again.id, again.is_new, again.status) == (first.id, False, "PENDING")
    [elsewhere] = await store.queue.enqueue([new_job(key="k", args='{"a":1}', tenant="acme")])
    assert elsewhere.is_new
    for other in (new_job(key="k", args='{"a":2}'), new_job(key="k", args='{"a":1}', task="other")):
        with pytest.raises(DuplicateKey, match=first.id):
            await store.queue.enqueue([other])
    assert {(await run_one(store)).id for _ in range(2)} == {first.id, elsewhere.id}
    # Also after the job has ended: its key is taken until it is pruned.
    assert (await store.queue.enqueue([new_job(key="k", args='{"a":1}')]))[0].status == "COMPLETED"
    assert await backend.count("headway_jobs") == 2


async def test_keys_in_a_batch(backend: Backend) -> None:
    store = backend.store
    first, second = new_job(key="a"), new_job(key="a")
    rows = await store.queue.enqueue([first, second, new_job(key="b"), new_job()])
    assert [row.is_new for row in rows] == [True, False, True, True]
    assert rows[1].id == first.id
    with pytest.raises(DuplicateKey):
        await store.queue.enqueue([new_job(key="c"), new_job(key="a", args='{"other":1}')])
    assert await backend.count("headway_jobs", "key = 'c'") == 0


async def test_concurrent_enqueues_with_one_key_create_one_job(shared: Backend) -> None:
    stores = [shared.store, await shared.another(), await shared.another()]
    for round_number in range(5):
        key = f"key-{round_number}"
        answers = await asyncio.gather(
            *(stores[number % 3].queue.enqueue([new_job(key=key), new_job(key=key + "x")]) for number in range(12))
        )
        assert len({row.id for [row, _] in answers}) == 1
        assert sum(row.is_new for [row, _] in answers) == 1
    assert await shared.count("headway_jobs") == 10


async def test_claim_order(backend: Backend) -> None:
    store, now = backend.store, await backend.now()
    low, high_new, high_old, twin = (
        new_job(priority=-5),
        new_job(priority=9, run_at=now - SECOND),
        new_job(priority=9, run_at=now - HOUR),
        new_job(priority=9, run_at=now - HOUR),
    )
    other = new_job(queue="other", priority=1000)
    await store.queue.enqueue([low, high_new, high_old, twin, other, new_job(delay=HOUR, priority=1000)])
    ids = [high_old.id, twin.id, high_new.id, low.id]
    first = await store.work.claim("default", node="worker-1", lease=LEASE, limit=3)
    rest = await store.work.claim("default", node="worker-2", lease=LEASE, limit=3)
    assert [job.id for job in (*first, *rest)] == ids
    job = await store.jobs.get(rest[0].id)
    assert (job.status, job.attempt, job.node) == (Status.RUNNING, rest[0].attempt, "worker-2")
    assert job.started_at is not None
    assert job.lease_until == job.started_at + LEASE
    assert await store.work.claim("default", node="worker-1", lease=LEASE, limit=3) == []


async def test_racing_claims_claim_each_job_once(shared: Backend) -> None:
    stores = [shared.store, await shared.another(), await shared.another()]
    ids = [row.id for row in await shared.store.queue.enqueue([new_job() for _ in range(400)])]

    async def work(store: Store, node: str) -> list[Claimed]:
        taken: list[Claimed] = []
        while batch := await store.work.claim("default", node=node, lease=LEASE, limit=7):
            taken += batch
        return taken

    taken = await asyncio.gather(*(work(stores[number % 3], f"worker-{number}") for number in range(6)))
    assert sorted(job.id for jobs in taken for job in jobs) == sorted(ids)
    assert {job.attempt for jobs in taken for job in jobs} == {1}
    assert await shared.count("headway_jobs", "status = 'RUNNING' and attempt = 1") == 400


async def test_racing_settlements_end_a_job_once(shared: Backend) -> None:
    """The worker, the janitor and an operator end the same job: one of them wins."""
    others = [await shared.another(), await shared.another()]
    for _ in range(10):
        await enqueue(shared.store)
        job = await claim_one(shared.store)
        await shared.advance(LEASE + SECOND)
        outcomes: list[AttemptOutcome] = [Succeeded(), Raised("{}", retryable=False)]
        answers = await asyncio.gather(
            end(shared.store, job, outcomes[0]), end(others[0], job, outcomes[1]), others[1].housekeeping.expire(10)
        )
        [attempt] = await shared.store.jobs.attempts(job.id)
        refused = await shared.count("headway_events", f"job_id = '{job.id}' and event = 'settle_refused'")
        assert refused == sum(bool(stale) for stale in answers[:2])
        assert refused >= 1
        ends = {"completed": Status.COMPLETED, "failed": Status.FAILED, "expired": Status.RETRYING}
        status = (await shared.store.jobs.get(job.id)).status
        assert status is ends[attempt["outcome"]]
        if status is Status.RETRYING:
            await shared.store.queue.cancel(job.id, author="test")


async def test_cancel_during_a_release_is_not_lost(shared: Backend) -> None:
    """A worker releases a job while it is being cancelled: it is ended or asked to stop, never neither."""
    other = await shared.another()
    await enqueue(shared.store)
    job = await claim_one(shared.store)
    async with Interrupted(shared, lambda: cancel([job.id], "test"), after="cancel") as in_between:
        await in_between.act(end(other, job, Released()))
    assert (await shared.job(job.id))["status"] == "CANCELLED"


async def test_extend(backend: Backend) -> None:
    store = backend.store
    for _ in range(3):
        await enqueue(backend.store, max_attempts=3)
    running, taken, asked = await store.work.claim("default", node="n", lease=LEASE, limit=3)
    await end(backend.store, taken, Released())
    second = await claim_one(backend.store)  # The same job with a new attempt.
    assert (second.id, second.attempt) == (taken.id, 2)
    await store.queue.cancel(asked.id, author="ops", reason="enough")
    await backend.advance(LEASE // 2)
    before, earlier = await backend.job(second.id), await backend.job(running.id)
    said = await store.work.extend([(job.id, job.attempt) for job in (running, taken, asked)], lease=LEASE)
    assert said == {running.id: False, asked.id: True}
    assert changed(before, await backend.job(second.id)) == {}
    extended = await backend.job(running.id)
    assert extended["lease_until"] > earlier["lease_until"] + LEASE // 3
    assert await store.work.extend([("job_none", 1)], lease=LEASE) == {}
    assert await store.work.extend([], lease=LEASE) == {}


CASES: list[tuple[AttemptOutcome, int, dict[str, Any]]] = [
    (Succeeded('{"url":"x"}'), 1, {"status": "COMPLETED", "failures": 0, "result": '{"url":"x"}', "progress": 100}),
    (Raised('{"e":1}'), 1, {"status": "FAILED", "failures": 1, "error": '{"e":1}', "progress": 0}),
    (Raised('{"e":1}'), 2, {"status": "RETRYING", "failures": 1, "error": '{"e":1}'}),
    (Raised('{"e":1}', retryable=False), 9, {"status": "FAILED", "failures": 1, "error": '{"e":1}'}),
    (TimedOut('{"e":2}'), 1, {"status": "TIMED_OUT", "failures": 1, "error": '{"e":2}'}),
    (TimedOut('{"e":2}'), 2, {"status": "RETRYING", "failures": 1}),
    (Cancelled("enough"), 2, {"status": "CANCELLED", "failures": 0, "reason": "enough"}),
    (Released("draining"), 1, {"status": "PENDING", "failures": 0, "reason": "draining"}),
    (Crashed('{"e":3}'), 1, {"status": "FAILED", "failures": 1, "error": '{"e":3}'}),
    (Parked("nobody knows it"), 1, {"status": "BLOCKED", "parked": "unknown task", "reason": "nobody knows it"}),
    (LeaseExpired(), 1, {"status": "RETRYING", "failures": 0, "company": None}),  # Not charged to the job.
]


@pytest.mark.parametrize(("outcome", "max_attempts", "expected"), CASES)
async def test_settle(backend: Backend, outcome: AttemptOutcome, max_attempts: int, expected: dict[str, Any]) -> None:
    await enqueue(backend.store, max_attempts=max_attempts)
    claimed = await claim_one(backend.store)
    job = await backend.store.jobs.get(claimed.id)
    settlement = settle(claimed, outcome, 0.5)
    assert await backend.store.work.settle([settlement]) == frozenset()
    after = await backend.job(job.id)
    assert {name: after[name] for name in expected} == expected
    is_final = Status(after["status"]).is_final
    assert (after["finished_at"] == after["updated_at"]) == is_final
    assert (after["attempt"], after["lease_until"]) == (1, None)
    if after["status"] == "RETRYING":
        assert after["run_at"] == after["updated_at"] + settlement.retry_in
    [attempt] = await backend.store.jobs.attempts(job.id)
    assert attempt["outcome"] == settlement.outcome
    assert attempt["reason"] == settlement.reason
    assert attempt["error"] == settlement.error
    assert (attempt["attempt"], attempt["node"], attempt["started_at"]) == (1, "worker-1", job.started_at)
    assert (attempt["ready_at"], attempt["ended_at"]) == (job.ready_at, after["updated_at"])
    assert await backend.count("headway_attempts") == (after["status"] != "COMPLETED")  # Recorded in the job itself.
    # Once more, as after a lost response: nothing changes, and it is not stale.
    assert await backend.store.work.settle([settlement]) == frozenset()
    assert changed(after, await backend.job(job.id)) == {}
    assert await backend.count("headway_events") == 0


async def test_retrying_job_waits_and_runs_again(backend: Backend) -> None:
    store = backend.store
    await enqueue(backend.store, max_attempts=2)
    job = await run_one(backend.store, Raised("{}", retry_in=MINUTE))
    assert await store.housekeeping.promote(10) == 0
    assert await store.work.claim("default", node="n", lease=LEASE, limit=1) == []
    next_at = await store.housekeeping.next_promotion()
    assert next_at == (await backend.job(job.id))["run_at"]
    await backend.advance(MINUTE + SECOND)
    assert await store.housekeeping.promote(10) == 1
    again = await claim_one(backend.store)
    assert (again.id, again.attempt, again.failures) == (job.id, 2, 1)
    await end(backend.store, again, Raised("{}"))
    assert (await store.jobs.get(job.id)).status is Status.FAILED
    assert columns(await store.jobs.attempts(job.id), "attempt", "outcome") == [(1, "failed"), (2, "failed")]


async def test_stale_attempt_changes_nothing_and_is_recorded(backend: Backend) -> None:
    store = backend.store
    await enqueue(store, max_attempts=5)
    stale = await claim_one(store)
    await end(store, stale, Released())
    current = await claim_one(store)
    before = await backend.job(current.id)
    assert await end(store, stale, Succeeded('"late"')) == {stale.id}
    assert changed(before, await backend.job(current.id)) == {}
    assert len(await store.jobs.attempts(current.id)) == 1
    [event] = await backend.sql(f"select event, data from headway_events where job_id = '{current.id}'")
    assert event["event"] == "settle_refused"
    assert msgspec.json.decode(event["data"]) == {"attempt": 1, "outcome": "completed"}
    assert await end(store, current, Succeeded()) == frozenset()
    assert await end(store, current, Raised("{}", retryable=False)) == {current.id}


async def test_settlements_of_a_batch_are_independent(backend: Backend) -> None:
    """A worker may hold a stale and the current attempt of one job: each is fenced by its own number."""
    store = backend.store
    for _ in range(3):
        await enqueue(store, max_attempts=5)
    old, good, bad = await store.work.claim("default", node="n", lease=LEASE, limit=3)
    await end(store, old, Released())
    new = await claim_one(store)
    batch: list[tuple[Claimed, AttemptOutcome]] = [
        (new, Succeeded('"new"')),
        (old, Raised('{"old":1}', retryable=False)),
        (good, Succeeded()),
        (bad, Raised("{}", retryable=False)),
    ]
    stale = await store.work.settle([settle(attempt_of(job), outcome, 0.0) for job, outcome in batch])
    assert stale == {old.id}
    statuses = [(await store.jobs.get(job.id)).status for job in (new, good, bad)]
    assert statuses == [Status.COMPLETED, Status.COMPLETED, Status.FAILED]
    outcomes = columns(await store.jobs.attempts(new.id), "attempt", "outcome", "error")
    assert outcomes == [(1, "released", None), (2, "completed", None)]
    assert await backend.count("headway_events", "event = 'settle_refused'") == 1


async def test_settling_an_unknown_job(backend: Backend) -> None:
    ghost = Settlement(
        job_id="job_ghost", attempt=1, status=Status.COMPLETED, outcome="completed", reason="", failures=0
    )
    assert await backend.store.work.settle([ghost]) == {"job_ghost"}
    assert await backend.store.work.settle([]) == frozenset()


async def test_only_an_expired_lease_expires_an_attempt(backend: Backend) -> None:
    store = backend.store
    for _ in range(3):
        await enqueue(store, max_attempts=2)
    frozen, alive, done = await store.work.claim("default", node="n", lease=LEASE, limit=3)
    await end(store, done, Succeeded())
    await backend.advance(LEASE - SOON)
    assert await store.housekeeping.expire(10) == []
    await store.work.extend([(alive.id, 1)], lease=HOUR)
    await backend.advance(2 * SOON)
    assert await store.housekeeping.expire(10) == [frozen.id]
    assert await store.housekeeping.expire(10) == []
    row = await backend.job(frozen.id)
    assert (row["status"], row["failures"], row["lease_until"]) == ("RETRYING", 0, None)
    [attempt] = await store.jobs.attempts(frozen.id)
    assert (attempt["outcome"], "LeaseExpired" in attempt["error"]) == ("expired", True)
    assert await end(store, frozen, Succeeded()) == {frozen.id}  # The worker resumes too late.
    await backend.advance(HOUR)
    await store.housekeeping.promote(10)
    assert (await claim_one(store)).id == frozen.id
    await backend.advance(2 * HOUR)
    assert set(await store.housekeeping.expire(10)) == {frozen.id, alive.id}
    assert [(await backend.job(job.id))["status"] for job in (frozen, alive)] == ["RETRYING", "RETRYING"]


@pytest.mark.parametrize("first", [SECOND, 2 * HOUR])
async def test_expire_is_bounded_and_starts_jobs_again_soon(backend: Backend, first: int) -> None:
    """At once after the first loss; then after the job's back-off, but sooner than after a failure."""
    store = backend.store
    backoff = Backoff(first=first, most=first)
    await store.queue.enqueue([new_job(max_attempts=3, backoff=backoff) for _ in range(5)])
    for losses in (1, 2):
        await store.housekeeping.promote(10)
        assert len(await store.work.claim("default", node=f"n{losses}", lease=LEASE, limit=9)) == 5
        await backend.advance(HOUR)
        assert len(await store.housekeeping.expire(3)) == 3
        assert len(await store.housekeeping.expire(3)) == 2
        for row in await backend.sql("select run_at, updated_at from headway_jobs"):
            wait = row["run_at"] - row["updated_at"]
            assert wait == 0 if losses == 1 else min(first, LOSS_WAIT_MAX) // 2 <= wait <= min(first, LOSS_WAIT_MAX)


async def test_two_janitors_expire_each_job_once(shared: Backend) -> None:
    other = await shared.another()
    await shared.store.queue.enqueue([new_job(max_attempts=3) for _ in range(60)])
    await shared.store.work.claim("default", node="n", lease=LEASE, limit=60)
    await shared.advance(HOUR)
    found = await asyncio.gather(*(store.housekeeping.expire(20) for store in (shared.store, other) * 4))
    counts = Counter(job_id for ids in found for job_id in ids)
    assert set(counts.values()) <= {1}
    left = await shared.store.housekeeping.expire(100)
    assert len(counts) + len(left) == 60
    assert await shared.count("headway_attempts") == 60
    assert await shared.count("headway_events") == 0


@pytest.mark.parametrize("status", [status for status in Status if not status.is_final])
async def test_cancel(backend: Backend, status: Status) -> None:
    store = backend.store
    job_id = await bring_to(backend.store, status)
    job = await store.queue.cancel(job_id, author="ada", reason="wrong file")
    assert job.reason == "cancelled by ada: wrong file"
    [event] = await backend.sql(f"select event, data from headway_events where job_id = '{job_id}'")
    assert msgspec.json.decode(event["data"]) == {"reason": "cancelled by ada: wrong file"}
    if status is Status.RUNNING:
        assert (job.status, event["event"]) == (Status.RUNNING, "cancel_requested")
        before = await backend.job(job_id)
        assert (await store.queue.cancel(job_id, author="bob")).status is Status.RUNNING  # Already requested.
        assert changed(before, await backend.job(job_id)) == {}
    else:
        assert (job.status, event["event"]) == (Status.CANCELLED, "cancelled")
        assert job.finished_at is not None
        with pytest.raises(AlreadyFinal):
            await store.queue.cancel(job_id, author="ada")


async def test_cancel_accepts_the_beginning_of_an_id(backend: Backend) -> None:
    store = backend.store
    job_id = await enqueue(backend.store, id="job_abc123")
    assert (await store.queue.cancel("job_abc", author="ada")).status is Status.CANCELLED
    assert (await backend.job(job_id))["status"] == "CANCELLED"
    with pytest.raises(JobNotFound):
        await store.queue.cancel("job_zzz", author="ada")


@pytest.mark.parametrize("outcome", [Raised("{}"), TimedOut("{}"), Released(), Parked("?"), LeaseExpired()])
async def test_job_with_a_requested_cancel_does_not_run_again(backend: Backend, outcome: AttemptOutcome) -> None:
    """Whatever ends the attempt: the cancel was acknowledged, so it applies."""
    store = backend.store
    await enqueue(store, max_attempts=5)
    job = await claim_one(store)
    await store.queue.cancel(job.id, author="ada")
    if isinstance(outcome, LeaseExpired):
        await backend.advance(2 * LEASE)
        assert await store.housekeeping.expire(10) == [job.id]
    else:
        assert await end(store, job, outcome) == frozenset()
    ended = await store.jobs.get(job.id)
    assert (ended.status, ended.parked) == (Status.CANCELLED, None)
    assert len(await store.jobs.attempts(job.id)) == 1


async def _line(store: Store, length: int) -> list[str]:
    """Create a chain of queued jobs, each waiting for the previous one; the first runs."""
    await store.schedules.put("s", spec("1d"))
    ids = [await enqueue(store, schedule="s", exclusive=True)]
    await claim_one(store)
    for _ in range(length - 1):
        ids.append(await enqueue(store, schedule="s", exclusive=True, blocked_by=ids[-1]))
    return ids


async def _statuses(backend: Backend, ids: list[str]) -> str:
    """Return the first letters of the statuses, e.g. RBB."""
    return "".join([(await backend.job(job_id))["status"][0] for job_id in ids])


@pytest.mark.parametrize("gone", [(1,), (2,), (1, 2), (2, 1), (1, 3), (3, 2, 1)])
async def test_queued_jobs_stay_in_order_when_one_is_cancelled(backend: Backend, gone: tuple[int, ...]) -> None:
    store = backend.store
    ids = await _line(store, 5)
    for position in gone:
        await store.queue.cancel(ids[position], author="test")
    await store.housekeeping.promote(100)
    left = [job_id for position, job_id in enumerate(ids) if position not in gone]
    assert await _statuses(backend, left) == "R" + "B" * (len(left) - 1)
    first = await store.jobs.get(left[0])
    await end(store, first, Succeeded())
    for position in range(1, len(left)):  # Each end frees exactly the next one, in order.
        assert await _statuses(backend, left[position:]) == "P" + "B" * (len(left) - position - 1)
        assert (await run_one(store)).id == left[position]
    assert await _statuses(backend, left) == "C" * len(left)


async def test_cancelling_the_first_queued_job_frees_the_next(backend: Backend) -> None:
    store = backend.store
    ids = await _line(store, 3)
    await end(store, await store.jobs.get(ids[0]), Succeeded())
    assert await _statuses(backend, ids) == "CPB"
    await store.queue.cancel(ids[1], author="test")
    assert await _statuses(backend, ids) == "CCP"


async def test_racing_cancels_keep_the_order_of_queued_jobs(shared: Backend) -> None:
    """Two operators cancel adjacent queued jobs: the job behind them still waits for the one before them."""
    other = await shared.another()
    for _ in range(6):
        ids = await _line(shared.store, 6)
        await asyncio.gather(
            shared.store.queue.cancel(ids[2], author="ada"),
            other.queue.cancel(ids[3], author="bob"),
            other.queue.cancel(ids[1], author="bob"),
        )
        rows = {job_id: (await shared.job(job_id))["blocked_by"] for job_id in ids}
        assert rows[ids[4]] == ids[0]
        assert rows[ids[5]] == ids[4]
        await shared.store.housekeeping.promote(100)
        assert await _statuses(shared, ids) == "RCCCBB"
        await end(shared.store, await shared.store.jobs.get(ids[0]), Succeeded())
        await run_one(shared.store)
        await run_one(shared.store)
        assert await _statuses(shared, ids) == "CCCCCC"


async def test_promote_waits_for_the_predecessor_and_the_time(backend: Backend) -> None:
    store, now = backend.store, await backend.now()
    before = await enqueue(store, queue="before")
    waiting = await enqueue(store, blocked_by=before)
    later = await enqueue(store, blocked_by=before, run_at=now + HOUR)
    orphan = await enqueue(store, blocked_by="job_pruned")
    assert await store.housekeeping.promote(10) == 1
    assert await _statuses(backend, [before, waiting, later, orphan]) == "PBBP"
    await run_one(store, queue="before")
    assert await store.housekeeping.promote(10) == 1
    assert await _statuses(backend, [before, waiting, later, orphan]) == "CPBP"
    await backend.advance(HOUR + SECOND)
    assert await store.housekeeping.promote(10) == 1
    row = await backend.job(later)
    assert (row["status"], row["version"]) == ("PENDING", 2)
    assert row["ready_at"] == row["updated_at"] > row["created_at"] + HOUR


async def test_promote_takes_the_longest_due_first_up_to_its_limit(backend: Backend) -> None:
    store, now = backend.store, await backend.now()
    ids = [await enqueue(store, run_at=now + minute * MINUTE) for minute in (3, 1, 2, 600)]
    assert await store.housekeeping.next_promotion() == now + MINUTE
    await backend.advance(5 * MINUTE)
    assert await store.housekeeping.promote(1) == 1
    assert await _statuses(backend, ids) == "SPSS"
    assert await store.housekeeping.promote(10) == 2
    assert await _statuses(backend, ids) == "PPPS"
    assert await store.housekeeping.next_promotion() == now + 600 * MINUTE
    assert [job.id for job in await store.work.claim("default", node="n", lease=LEASE, limit=9)] == [
        ids[1],
        ids[2],
        ids[0],
    ]


async def test_housekeeping_of_an_empty_store(backend: Backend) -> None:
    assert await backend.store.housekeeping.next_promotion() is None
    assert await backend.store.housekeeping.promote(10) == 0
    assert await backend.store.housekeeping.expire(10) == []
    assert await backend.store.housekeeping.prune(DAY, 10) == 0


async def test_racing_promoters_promote_once(shared: Backend) -> None:
    other = await shared.another()
    await shared.store.queue.enqueue([new_job(delay=MINUTE) for _ in range(200)])
    await shared.advance(HOUR)
    counts = await asyncio.gather(*(store.housekeeping.promote(30) for store in (shared.store, other) * 8))
    assert sum(counts) == 200 - await shared.count("headway_jobs", "status = 'SCHEDULED'")
    assert await shared.count("headway_jobs", "version > 2") == 0


@pytest.mark.parametrize("ended_first", [0, 1])
async def test_inconsistent_queue_order_blocks_no_job(backend: Backend, ended_first: int) -> None:
    """Two jobs of one exclusive schedule are both next: one runs, one waits, nothing fails."""
    store = backend.store
    running = [await enqueue(store, schedule="s", exclusive=flag) for flag in (True, False)]
    jobs = await store.work.claim("default", node="n", lease=LEASE, limit=2)
    behind = [await enqueue(store, schedule="s", exclusive=True, blocked_by=job_id) for job_id in running]
    neighbour = await enqueue(store, blocked_by="job_pruned", queue="other")
    await end(store, jobs[ended_first], Succeeded())
    await store.housekeeping.promote(10)
    assert (await backend.job(neighbour))["status"] == "PENDING"
    assert await _statuses(backend, behind) == "BB"  # The other one still runs.
    assert await store.housekeeping.next_promotion() is None  # So the promoter has no reason to hurry.
    await end(store, jobs[1 - ended_first], Succeeded())
    await store.housekeeping.promote(10)
    await store.housekeeping.promote(10)
    assert sorted(await _statuses(backend, behind)) == ["B", "P"]
    first = await run_one(store)
    await store.housekeeping.promote(10)
    second = await run_one(store)
    assert {first.id, second.id} == set(behind)


async def test_prune_keeps_recent_and_live_jobs(backend: Backend) -> None:
    store = backend.store
    live = [await bring_to(store, status) for status in Status if not status.is_final]
    old = [await bring_to(store, status) for status in Status if status.is_final]
    await end(store, await store.jobs.get(old[0]), Cancelled())  # Stale: adds its own event.
    await backend.advance(2 * DAY)
    young = await bring_to(store, Status.COMPLETED)
    assert await store.housekeeping.prune(3 * DAY, 100) == 0
    assert await store.housekeeping.prune(DAY, 3) == 3
    assert await store.housekeeping.prune(DAY, 100) == 1
    for job_id in old:
        with pytest.raises(JobNotFound):
            await store.jobs.get(job_id)
        assert await store.jobs.attempts(job_id) == []
    assert await backend.count("headway_events") == 0
    for job_id in (*live, young):
        await store.jobs.get(job_id)
    assert len(await store.jobs.attempts(young)) == 1


async def test_key_can_be_reused_after_its_retention(backend: Backend) -> None:
    store = backend.store
    await enqueue(backend.store, key="k")
    await run_one(backend.store)
    await backend.advance(2 * DAY)
    assert await store.housekeeping.prune(DAY, 100) == 1
    assert (await store.queue.enqueue([new_job(key="k", args='{"other":1}')]))[0].is_new


async def test_reading_jobs(backend: Backend) -> None:
    store = backend.store
    ids = [await enqueue(backend.store, queue="a" if n % 2 else "b", tenant="t", task=f"t{n}") for n in range(5)]
    assert [job.id for job in await store.jobs.page()] == ids[::-1]
    assert [job.id for job in await store.jobs.page(limit=2)] == [ids[4], ids[3]]
    assert [job.id for job in await store.jobs.page(limit=2, before=ids[3])] == [ids[2], ids[1]]
    assert [job.id for job in await store.jobs.page(queue="a")] == [ids[3], ids[1]]
    assert [job.id for job in await store.jobs.page(task="t2", status="PENDING", tenant="t")] == [ids[2]]
    assert await store.jobs.page(schedule="none") == []
    assert (await store.jobs.get(ids[0])).id == ids[0]
    with pytest.raises(JobNotFound, match="several"):
        await store.jobs.get("job_0")
    for missing in ("", "job_", "job_x%", "' or 1=1 --"):
        with pytest.raises(JobNotFound):
            await store.jobs.get(missing)
    assert [(depth["name"], depth["pending"]) for depth in await store.statistics.depths()] == [("a", 2), ("b", 3)]
    await claim_one(store, "a")
    await enqueue(backend.store, delay=HOUR)
    assert (await store.statistics.waiting())["SCHEDULED"] == 1
    assert (await store.statistics.waiting())["RUNNING"] == 1


async def test_exclusive_job_does_not_become_ready_beside_one_of_an_older_definition(store: Store) -> None:
    """S7: while the schedule had overlap=allow, it made jobs that do not wait for others. Some are left."""
    before = await enqueue(store, queue="before")
    exclusive, older = [
        await enqueue(store, schedule="s", exclusive=is_exclusive, blocked_by=before) for is_exclusive in (True, False)
    ]
    await run_one(store, queue="before")
    assert await store.housekeeping.promote(10) == 1
    assert (await store.jobs.get(older)).status is Status.PENDING
    assert (await store.jobs.get(exclusive)).status is Status.BLOCKED
    assert await store.housekeeping.promote(10) == 0
    assert (await run_one(store)).id == older
    await store.housekeeping.promote(10)
    assert (await store.jobs.get(exclusive)).status is Status.PENDING
