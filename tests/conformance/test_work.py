"""The queue as a worker uses it, on every database: `ports.Work`. Writes of an attempt that is over are rejected."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from headway.core.clock import Clock
from headway.core.errors import LeaseLost
from headway.core.instants import DAY, DURATION_MAX, HOUR, MINUTE, SECOND
from headway.core.jobs import Claimed, Report
from headway.core.json_values import ARGS_BYTES_MAX
from headway.core.lifecycle import (
    Backoff,
    Cancelled,
    Parked,
    Raised,
    Released,
    Settlement,
    Status,
    Succeeded,
    settle,
)
from headway.store import Store
from headway.store.housekeeping import _expire
from headway.store.transaction import Begin
from headway.store.work import _enqueue_from, _keep_step, _report
from tests.conformance.arrange import LEASE, claim_one, end, enqueue, new_job, run_one, spec
from tests.conformance.backend import Backend, Interrupted, changed, columns

ERROR = '{"type":"ValueError"}'


def _success(job: Claimed, result: str | None = None) -> Settlement:
    return settle(job, Succeeded(result), 0.5)


async def _claim(store: Store, count: int, **options: Any) -> list[Claimed]:
    """Enqueue and claim some jobs."""
    await store.queue.enqueue([new_job(**options) for _ in range(count)])
    jobs = await store.work.claim("default", node="worker-1", lease=LEASE, limit=count)
    assert len(jobs) == count
    return jobs


async def test_claim_returns_everything_that_a_worker_needs(backend: Backend) -> None:
    given = new_job(
        args='{"n":1}',
        tenant="acme",
        queue="media",
        priority=7,
        max_attempts=4,
        backoff=Backoff(first=SECOND, most=MINUTE),
        timeout=HOUR,
        metadata='{"input":"x"}',
        schedule="s",
        occurrence_at=5,
    )
    plain = new_job(queue="media")
    await backend.store.queue.enqueue([given, plain])
    assert [job.id for job in await backend.store.work.claim("media", node="n", lease=LEASE, limit=2)] == [plain.id]
    await backend.sql(f"update headway_jobs set status = 'PENDING', attempt = 0 where id = '{plain.id}'")
    job, other = (await backend.store.work.claim_lanes("media", node="n", lease=LEASE, limit=2)).jobs
    for name in ("id", "task", "args", "tenant", "queue", "priority", "max_attempts", "backoff", "timeout", "metadata"):
        assert getattr(job, name) == getattr(given, name), name
    assert (job.schedule, job.occurrence_at, job.attempt, job.failures, job.log_bytes) == ("s", 5, 1, 0, 0)
    assert (job.reason, job.unreadable) == ("", None)
    assert (other.id, other.backoff, other.timeout, other.metadata) == (plain.id, Backoff(), None, None)
    await end(backend.store, job, Released("draining"))
    assert (await claim_one(backend.store, "media")).reason == "draining"


@pytest.mark.parametrize("among_others", [False, True], ids=["successes alone", "among others"])
async def test_successes_are_fenced_one_by_one(backend: Backend, among_others: bool) -> None:
    """Without other outcomes they take a shorter path through the store, with the same effect."""
    store = backend.store
    stale, known, fresh, failed = await _claim(store, 4, max_attempts=5)
    await store.work.report([Report(job_id=job.id, attempt=1, progress=40) for job in (fresh, failed)])
    await end(store, stale, Released())
    again = await claim_one(store)
    await end(store, known, Succeeded("1"))  # Its response is lost, so it is sent again.
    before = {job.id: await backend.job(job.id) for job in (stale, known)}
    batch = [_success(stale, '"late"'), _success(known, "1"), _success(fresh, '{"ö":"\\u0000"}')]
    others = [settle(failed, Raised(ERROR), 0.5)] if among_others else []
    ghost = msgspec.structs.replace(batch[0], job_id="job_ghost")
    assert await store.work.settle([*batch, *others, ghost]) == {stale.id, "job_ghost"}
    assert again.id == stale.id
    for job_id, row in before.items():
        assert changed(row, await backend.job(job_id)) == {}
    row = await backend.job(fresh.id)
    assert {name: row[name] for name in ("status", "result", "progress", "reason", "error", "lease_until")} == {
        "status": "COMPLETED",
        "result": '{"ö":"\\u0000"}',
        "progress": 100,
        "reason": "",
        "error": None,
        "lease_until": None,
    }
    assert row["finished_at"] == row["updated_at"]
    row = await backend.job(failed.id)
    assert (row["status"], row["progress"]) == (("RETRYING", 40) if among_others else ("RUNNING", 40))
    refused = await backend.sql("select job_id from headway_events where event = 'settle_refused' order by job_id")
    assert columns(refused, "job_id") == [(stale.id,), ("job_ghost",)]
    written = await backend.sql("select job_id, outcome from headway_attempts order by job_id")
    assert columns(written, "job_id", "outcome") == [
        (stale.id, "released"),
        *([(failed.id, "failed")] if among_others else []),
    ]


async def test_attempts_and_events_are_derived_in_order(backend: Backend) -> None:
    store = backend.store
    job_id = await enqueue(store, max_attempts=3, delay=SECOND)
    await backend.advance(MINUTE)
    await store.housekeeping.promote(10)
    await run_one(store, Raised(ERROR, retry_in=0))
    await store.housekeeping.promote(10)
    await run_one(store, Released("draining"))
    last = await claim_one(store)
    running = await store.jobs.events(job_id)
    await end(store, last, Succeeded())
    attempts = await store.jobs.attempts(job_id)
    assert columns(attempts, "attempt", "outcome") == [(1, "failed"), (2, "released"), (3, "completed")]
    job = await store.jobs.get(job_id)
    for name, value in {"node": "worker-1", "started_at": job.started_at, "ended_at": job.finished_at}.items():
        assert attempts[-1][name] == value
    assert all(one["ended_at"] <= two["started_at"] for one, two in pairwise(attempts))
    events = await store.jobs.events(job_id)
    assert [event["event"] for event in events] == [
        "enqueued",
        *("promoted", "claimed", "settled"),
        *("promoted", "claimed", "settled"),
        *("claimed", "settled"),
    ]
    assert events[:-1] == running  # Rows shown while it ran are unchanged.
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    assert (events[0]["at"], events[-1]["at"]) == (job.created_at, job.finished_at)
    assert msgspec.json.decode(events[-1]["data"]) == {"attempt": 3, "outcome": "completed", "reason": ""}
    assert await store.jobs.events(job_id, limit=2) == events[:2]
    assert await store.jobs.events("job_none") == []


async def test_report_is_stored_as_far_as_possible(backend: Backend) -> None:
    store = backend.store
    [job] = await _claim(store, 1, metadata='{"a":1}')
    before = await backend.job(job.id)
    full = Report(
        job_id=job.id, attempt=1, progress=30, detail='{"step":"x"}', metadata='{"b":2}', lines=((5, "stdout", "ö"),)
    )
    assert await store.work.report([full]) == frozenset()
    after = await backend.job(job.id)
    assert set(changed(before, after)) == {"progress", "detail", "metadata", "log_bytes", "version", "updated_at"}
    assert (after["progress"], after["detail"], after["metadata"]) == (30, '{"step":"x"}', '{"b":2}')
    now = await backend.now()
    part = Report(job_id=job.id, attempt=1, progress=31, lines=((None, "log", "nul \x00 and half"), (7, "stderr", "")))
    assert await store.work.report([part]) == frozenset()
    last = await backend.job(job.id)
    assert set(changed(after, last)) == {"progress", "log_bytes", "version", "updated_at"}
    assert last["log_bytes"] > after["log_bytes"] > 0
    log = await store.jobs.log(job.id)
    # PostgreSQL cannot store a NUL; a line with one must not fail the rest of the batch.
    assert columns(log, "attempt", "stream", "line") == [
        (1, "stdout", "ö"),
        (1, "log", "nul ␀ and half"),
        (1, "stderr", ""),
    ]
    assert (log[0]["at"], log[2]["at"]) == (5, 7)
    assert abs(log[1]["at"] - now) < MINUTE
    await end(store, job, Released())
    assert (await claim_one(store)).log_bytes == last["log_bytes"]
    assert await store.work.report([]) == frozenset()


async def test_report_of_a_stale_attempt_is_discarded(backend: Backend) -> None:
    """Even if the worker that sends it holds the current attempt of the same job."""
    store = backend.store
    old, done, good = await _claim(store, 3)
    await end(store, old, Released())
    new = await claim_one(store)
    await end(store, done, Succeeded())
    before, held = await backend.job(done.id), await backend.job(new.id)
    assert await store.work.report([Report(job_id=old.id, attempt=old.attempt, progress=9)]) == {old.id}
    assert changed(held, await backend.job(new.id)) == {}
    for with_lines in (True, False):
        reports = [
            Report(job_id=job.id, attempt=job.attempt, progress=50 + job.attempt, lines=lines if with_lines else ())
            for job, lines in (
                (old, ((1, "log", "old"),)),
                (new, ((2, "log", "new"),)),
                (done, ((3, "log", "done"),)),
                (good, ((4, "log", "good"),)),
            )
        ]
        assert await store.work.report(reports) == {old.id, done.id}
    lines = await backend.sql("select job_id, attempt, line from headway_log order by line")
    assert columns(lines, "job_id", "attempt", "line") == [(good.id, 1, "good"), (new.id, 2, "new")]
    assert (await backend.job(new.id))["progress"] == 52
    assert changed(before, await backend.job(done.id)) == {}


async def test_log_is_paged(backend: Backend) -> None:
    store = backend.store
    one, two = await _claim(store, 2)
    for start in (0, 5):
        await store.work.report(
            [
                Report(job_id=job.id, attempt=1, lines=tuple((0, "log", f"{n}") for n in range(start, start + 5)))
                for job in (one, two)
            ]
        )
    first = await store.jobs.log(one.id, limit=4)
    rest = await store.jobs.log(one.id, after=first[-1]["seq"])
    assert [line["line"] for line in (*first, *rest)] == [str(n) for n in range(10)]
    assert [line["line"] for line in await store.jobs.log(two.id)] == [str(n) for n in range(10)]
    assert len(await store.jobs.log(one.id, limit=-5)) == 1
    assert await store.jobs.log(one.id, after=rest[-1]["seq"]) == []


async def test_steps_survive_into_the_next_attempt(backend: Backend) -> None:
    store = backend.store
    [first] = await _claim(store, 1, max_attempts=3)
    other = await enqueue(store, queue="other")
    await store.work.keep_step(first.id, 1, "download", '"/tmp/ö"')
    await store.work.keep_step(first.id, 1, "download", '"again"')  # Its response was lost; the first value stays.
    await end(store, first, Raised(ERROR, retry_in=0))
    with pytest.raises(LeaseLost, match="over"):
        await store.work.keep_step(first.id, 1, "late", "1")
    await store.housekeeping.promote(10)
    second = await claim_one(store)
    with pytest.raises(LeaseLost):
        await store.work.keep_step(first.id, 1, "late", "1")
    await store.work.keep_step(second.id, 2, "upload", "2")
    assert await store.work.steps([first.id, other, "job_none"]) == {first.id: {"download": '"/tmp/ö"', "upload": "2"}}
    assert await store.work.steps([]) == {}


async def test_jobs_of_an_attempt_exist_only_while_it_runs(backend: Backend) -> None:
    store = backend.store
    [job] = await _claim(store, 1, max_attempts=3)
    children = [new_job(parent=job.id, queue="children", key="k"), new_job(parent=job.id, queue="children")]
    rows = await store.work.enqueue_from(job.id, 1, children)
    assert [(row.id, row.is_new) for row in rows] == [(child.id, True) for child in children]
    assert (await store.jobs.get(children[0].id)).parent == job.id
    [again] = await store.work.enqueue_from(job.id, 1, [new_job(key="k")])  # As a later attempt would.
    assert (again.id, again.is_new) == (children[0].id, False)
    await end(store, job, Released())
    for attempt in (1, 2):
        with pytest.raises(LeaseLost):
            await store.work.enqueue_from(job.id, attempt, [new_job(parent=job.id, queue="children")])
    with pytest.raises(LeaseLost):
        await store.work.enqueue_from("job_none", 1, [new_job(queue="children")])
    assert await backend.count("headway_jobs", "queue = 'children'") == 2


# Each kind of write of an attempt: as a call, as a transaction, and as the query for its rows.
Write = tuple[Callable[[Store, Claimed], Awaitable[Any]], Callable[[Claimed], Begin[Any]], str]


def _lines(job: Claimed) -> list[Report]:
    return [Report(job_id=job.id, attempt=job.attempt, progress=9, lines=((1, "log", "x"),))]


def _child(job: Claimed) -> Any:
    return [new_job(parent=job.id, queue="children")]


WRITES: dict[str, Write] = {
    "report": (
        lambda store, job: store.work.report(_lines(job)),
        lambda job: lambda: _report(_lines(job)),
        "select at from headway_log where job_id = '{}'",
    ),
    "keep_step": (
        lambda store, job: store.work.keep_step(job.id, job.attempt, "s", "1"),
        lambda job: lambda: _keep_step(job.id, job.attempt, "s", "1"),
        "select at from headway_steps where job_id = '{}'",
    ),
    "enqueue_from": (
        lambda store, job: store.work.enqueue_from(job.id, job.attempt, _child(job)),
        lambda job: lambda: _enqueue_from(job.id, job.attempt, _child(job)),
        "select created_at from headway_jobs where parent = '{}'",
    ),
}

HOWS = ["report", *(pytest.param(how, marks=pytest.mark.slow) for how in ("keep_step", "enqueue_from"))]


async def _is_stale(write: Awaitable[Any]) -> bool:
    """Return whether the store rejected the write of an attempt."""
    try:
        return isinstance(answer := await write, frozenset) and bool(answer)
    except LeaseLost:
        return True


@pytest.mark.parametrize("how", HOWS)
async def test_attempt_that_is_being_expired_writes_nothing(shared: Backend, how: str) -> None:
    write, _, trace = WRITES[how]
    [job] = await _claim(shared.store, 1)
    await shared.advance(LEASE + SECOND)
    refused: list[bool] = []

    async def try_it() -> None:
        refused.append(await _is_stale(write(shared.store, job)))

    async with Interrupted(shared, lambda: _expire(10, Clock()), after="settle") as in_between:
        await in_between.act(try_it())
    assert refused == [True]
    assert await shared.sql(trace.format(job.id)) == []
    assert (await shared.job(job.id))["progress"] == 0


@pytest.mark.parametrize("how", HOWS)
async def test_attempt_is_not_expired_during_its_write(shared: Backend, how: str) -> None:
    _, transaction, trace = WRITES[how]
    [job] = await _claim(shared.store, 1)
    after = "report" if how == "report" else "hold_attempt"
    async with Interrupted(shared, transaction(job), after=after) as in_between:
        await in_between.act(end(shared.store, job, Succeeded()))
        assert (await shared.job(job.id))["status"] == "RUNNING"
    assert len(await shared.sql(trace.format(job.id))) == 1
    assert (await shared.job(job.id))["status"] == "COMPLETED"


async def test_racing_expirers_and_writers(shared: Backend) -> None:
    """An acknowledged write is stored, and a rejected write leaves nothing."""
    stores = [shared.store, await shared.another(), await shared.another()]
    jobs = await _claim(shared.store, 12)
    await shared.advance(LEASE + SECOND)
    refused = await asyncio.gather(
        *(
            _is_stale(write(stores[number % 3], job))
            for number, job in enumerate(jobs)
            for write, _, _ in WRITES.values()
        ),
        *(stores[number].housekeeping.expire(4) for number in range(3)),
    )
    told = iter(refused)
    for job in jobs:
        for _, _, trace in WRITES.values():
            assert len(await shared.sql(trace.format(job.id))) == (0 if next(told) else 1)
    await shared.store.housekeeping.expire(99)  # The rest were being written to.
    assert await shared.count("headway_attempts", "outcome = 'expired'") == len(jobs)


async def test_skipped_tasks_are_left_to_other_workers(backend: Backend) -> None:
    store, claimed = backend.store, []
    ids = [await enqueue(store, task=task, priority=n) for n, task in enumerate(("a", "b", "c", "a", "ö'\""))]
    for skip in (["a", "b", "c", "ö'\""], ("a", "ö'\""), {"b"}, ()):
        claimed.append([job.id for job in await store.work.claim("default", node="n", lease=LEASE, limit=2, skip=skip)])
    assert claimed == [[], [ids[2], ids[1]], [ids[4], ids[3]], [ids[0]]]


async def test_ready_queues(backend: Backend) -> None:
    store = backend.store
    assert await store.work.ready_queues() == {}
    for queue in ("b", "a", "b", "Z", "größe"):
        await enqueue(store, queue=queue)
    await enqueue(store, queue="later", delay=HOUR)
    await enqueue(store, queue="running")
    await claim_one(store, "running")
    await enqueue(store, queue="shared", tenant="acme")
    plain = dict.fromkeys(["Z", "a", "b", "größe"], False)
    assert await store.work.ready_queues() == {**plain, "shared": True}
    await claim_one(store, "a")
    await claim_one(store, "shared")
    del plain["a"]
    assert await store.work.ready_queues() == plain


async def test_attempts_with_a_requested_cancel(backend: Backend) -> None:
    store = backend.store
    ours = await _claim(store, 3, max_attempts=3)
    await enqueue(store)
    [theirs] = await store.work.claim("default", node="worker-2", lease=LEASE, limit=1)
    assert await store.work.asked_to_stop("worker-1") == {}
    for job in (ours[0], ours[1], theirs):
        await store.queue.cancel(job.id, author="ada", reason="enough")
    reason = "cancelled by ada: enough"
    assert await store.work.asked_to_stop("worker-1") == {(ours[0].id, 1): reason, (ours[1].id, 1): reason}
    assert await store.work.asked_to_stop("worker-2") == {(theirs.id, 1): reason}
    await end(store, ours[0], Cancelled())
    await end(store, ours[1], Released())  # Its cancel was requested, so it does not run again.
    await end(store, ours[2], Released())
    assert await store.work.asked_to_stop("worker-1") == {}
    assert [(job.id, job.attempt) for job in await store.work.claim("default", node="n", lease=LEASE, limit=9)] == [
        (ours[2].id, 2)
    ]


async def test_running_jobs_and_jobs_ahead_in_the_queue(backend: Backend) -> None:
    store, now = backend.store, await backend.now()
    early, late, high, low = (
        new_job(run_at=now - MINUTE),
        new_job(run_at=now - SECOND),
        new_job(priority=5),
        new_job(priority=-5),
    )
    twin = new_job(run_at=late.run_at)
    await store.queue.enqueue([twin, low, late, early, high, new_job(queue="other", priority=9), new_job(delay=HOUR)])
    order = [high.id, early.id, late.id, twin.id, low.id]
    for place, job_id in enumerate(order):
        assert await store.jobs.ahead(await store.jobs.get(job_id)) == place
    assert await store.jobs.ahead(await store.jobs.get(low.id), limit=2) == 2
    for _ in range(2):
        await claim_one(store)
        await backend.advance(SECOND)
    assert [job.id for job in await store.jobs.running()] == order[:2]
    assert [job.id for job in await store.jobs.running(limit=1)] == order[:1]
    assert await store.statistics.running_counts() == {"default": 2}
    assert await store.jobs.ahead(await store.jobs.get(low.id)) == 2


async def test_logs_and_steps_are_pruned_with_their_job(backend: Backend) -> None:
    store = backend.store
    old, live = await _claim(store, 2)
    for job in (old, live):
        await store.work.report(_lines(job))
        await store.work.keep_step(job.id, 1, "s", "1")
    await store.work.extend([(live.id, 1)], lease=9 * DAY)
    await end(store, old, Succeeded())
    await backend.advance(2 * DAY)
    assert await store.housekeeping.prune(DAY, 100) == 1
    for table in ("headway_log", "headway_steps"):
        assert columns(await backend.sql(f"select job_id from {table}"), "job_id") == [(live.id,)]


HUGE = {"sqlite": "replace(hex(zeroblob(5000000)), '00', 'xx')", "postgresql": "repeat('x', 10000000)"}
LONG = {"sqlite": "replace(hex(zeroblob(100000)), '00', 'xx')", "postgresql": "repeat('x', 200000)"}
DEEP = {"sqlite": "replace(hex(zeroblob(5000)), '00', '[[')", "postgresql": "repeat('[', 10000)"}
# Manual changes of a row: the column, the value as SQL, and whether the job can still run.
UNREADABLE: list[tuple[str, str | dict[str, str], bool]] = [
    ("options", "'garbage'", False),
    ("options", "''", False),
    ("options", DEEP, False),
    ("options", LONG, False),
    ("options", '\'{"backoff":[1,"x"]}\'', False),
    ("options", f"'{{\"backoff\":[1,{DURATION_MAX + 1}]}}'", False),  # Its sum with a time would overflow.
    ("options", "'{\"timeout\":-1}'", False),
    ("options", "'{\"later\":1}'", True),  # From a newer version.
    ("args", HUGE, False),
    ("args", "'garbage'", True),  # The worker decides what it means.
    ("tags", "'garbage'", True),
    ("tags", LONG, True),
    ("tags", "'[1]'", True),
    ("metadata", DEEP, True),
    ("detail", LONG, True),
]


@pytest.mark.slow
async def test_unreadable_rows_block_no_other_job(backend: Backend) -> None:
    store = backend.store
    cases = [*UNREADABLE, *([("args", "x'ff00'", False)] if backend.name == "sqlite" else [])]
    bad = {}
    for number, (column, value, is_fit) in enumerate(cases):
        bad[await enqueue(store, id=f"job_{number:03}", priority=9, max_attempts=9)] = is_fit
        text = value if isinstance(value, str) else value[backend.name]
        await backend.sql(f"update headway_jobs set {column} = {text} where id = 'job_{number:03}'")
    good = await enqueue(store, max_attempts=9)
    jobs = await store.work.claim("default", node="n", lease=LEASE, limit=99)
    assert {job.id: job.unreadable is None for job in jobs} == {**bad, good: True}
    assert all(len(job.args) <= ARGS_BYTES_MAX for job in jobs)
    assert {job.id for job in await store.jobs.page(limit=200)} == {job.id for job in await store.jobs.running()}
    assert all([(await store.jobs.get(job_id)).id == job_id for job_id in bad])
    await backend.advance(LEASE + SECOND)
    assert len(await store.housekeeping.expire(99)) == len(jobs)
    await store.housekeeping.promote(99)
    again = await store.work.claim("default", node="n", lease=LEASE, limit=99)
    assert len(again) == len(jobs)
    outcomes = [
        settle(job, Parked(job.unreadable, "unreadable") if job.unreadable else Raised(ERROR), 0.5) for job in again
    ]
    assert await store.work.settle(outcomes) == frozenset()
    parked = await backend.sql("select id from headway_jobs where status = 'BLOCKED' and parked = 'unreadable'")
    assert {row["id"] for row in parked} == {job_id for job_id, is_fit in bad.items() if not is_fit}
    for job_id in bad:  # They can be cancelled and retried like other jobs.
        await store.queue.cancel(job_id, author="ada")
        assert (await store.queue.retry(job_id, author="ada")).status is Status.PENDING
    assert len(await store.work.claim("default", node="n", lease=LEASE, limit=99)) == len(bad)


async def test_success_of_a_scheduled_job_frees_the_next(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1d"))
    first = await enqueue(store, schedule="s", exclusive=True)
    behind = await enqueue(store, schedule="s", exclusive=True, blocked_by=first)
    plain = await enqueue(store, queue="other")
    jobs = [await claim_one(store), await claim_one(store, "other")]
    assert await store.work.settle([_success(job) for job in jobs]) == frozenset()
    statuses = [(await store.jobs.get(job_id)).status for job_id in (first, behind, plain)]
    assert statuses == [Status.COMPLETED, Status.PENDING, Status.COMPLETED]
