"""Bring jobs and schedules into the state that a test needs, through the public verbs only."""

import itertools
from typing import Any

from headway.core.instants import HOUR, SECOND, Instant
from headway.core.jobs import Claimed, Job, NewJob
from headway.core.lifecycle import (
    LOSS_WAIT_MAX,
    Attempt,
    AttemptOutcome,
    Cancelled,
    Raised,
    Status,
    Succeeded,
    TimedOut,
    settle,
)
from headway.core.occurrences import LiveJobs, Plan
from headway.core.ports import Shards
from headway.core.schedules import Schedule, ScheduleSpec
from headway.core.triggers import After, Every, Trigger
from headway.scheduling.planner import plan
from headway.store import Store
from tests.conformance.backend import Backend

LEASE = 30 * SECOND
EVERYTHING = Shards(of=1, held=frozenset({0}))
_numbers = itertools.count(1)


def new_job(**options: Any) -> NewJob:
    """Create a job whose id sorts by the order of the calls."""
    return NewJob(**{"id": f"job_{next(_numbers):026d}", "task": "report", **options})


async def enqueue(store: Store, **options: Any) -> str:
    """Enqueue one job and return its id."""
    return (await store.queue.enqueue([new_job(**options)]))[0].id


async def claim_all(store: Store, queue: str = "default", *, limit: int = 100, node: str = "worker-1") -> list[Claimed]:
    """Claim ready jobs as a worker does: by lanes where the queue has tenants or limits, else with the plain claim."""
    if (await store.work.ready_queues()).get(queue):
        return [*(await store.work.claim_lanes(queue, node=node, lease=LEASE, limit=limit)).jobs]
    return await store.work.claim(queue, node=node, lease=LEASE, limit=limit)


async def claim_one(store: Store, queue: str = "default") -> Claimed:
    """Claim exactly one job."""
    [job] = await claim_all(store, queue, limit=1)
    return job


def attempt_of(job: Job | Claimed) -> Attempt:
    """Return the attempt as its worker knows it."""
    return Attempt(
        job_id=job.id,
        attempt=job.attempt,
        failures=job.failures,
        max_attempts=job.max_attempts,
        schedule=job.schedule,
    )


async def end(store: Store, job: Job | Claimed, outcome: AttemptOutcome) -> frozenset[str]:
    """Settle a claimed job."""
    return await store.work.settle([settle(attempt_of(job), outcome, 0.5)])


async def run_one(store: Store, outcome: AttemptOutcome | None = None, queue: str = "default") -> Claimed:
    """Claim one job and settle it; return it as claimed."""
    job = await claim_one(store, queue)
    assert not await end(store, job, outcome or Succeeded())
    return job


async def lose(backend: Backend, times: int = 1) -> None:
    """Lose the worker of the running job several times; the job is claimed again in between."""
    for left in reversed(range(times)):
        await backend.advance(LEASE + SECOND)
        assert len(await backend.store.housekeeping.expire(10)) == 1
        await backend.advance(LOSS_WAIT_MAX)
        if left:
            await backend.store.housekeeping.promote(10)
            await _claim_elsewhere(backend, f"worker-x{left}")


async def _claim_elsewhere(backend: Backend, node: str) -> None:
    """Claim the only ready job with another worker, even if the job has to run alone."""
    store = backend.store
    if not await store.work.claim("default", node=node, lease=LEASE, limit=1):
        [row] = await backend.sql("select id from headway_jobs where status = 'PENDING'")
        assert await store.work.claim_apart(row["id"], node=node, lease=LEASE)


async def bring_to(store: Store, status: Status) -> str:
    """Create a job in a queue of its own and bring it to a status; return its id."""
    queue = f"queue-{next(_numbers)}"
    options: dict[str, Any] = {"queue": queue, "max_attempts": 3}
    match status:
        case Status.SCHEDULED:
            return await enqueue(store, **options, delay=HOUR)
        case Status.PENDING:
            return await enqueue(store, **options)
        case Status.BLOCKED:
            before = await enqueue(store, queue=f"{queue}-before")
            return await enqueue(store, **options, blocked_by=before)
        case Status.RUNNING:
            await enqueue(store, **options)
            return (await claim_one(store, queue)).id
        case Status.RETRYING:
            await enqueue(store, **options)
            return (await run_one(store, Raised("{}", retry_in=HOUR), queue)).id
        case Status.TIMED_OUT:
            await enqueue(store, queue=queue)
            return (await run_one(store, TimedOut("{}"), queue)).id
        case Status.COMPLETED | Status.FAILED | Status.CANCELLED:
            await enqueue(store, **options)
            outcomes: dict[Status, AttemptOutcome] = {
                Status.COMPLETED: Succeeded('{"n":1}'),
                Status.FAILED: Raised("{}", retryable=False),
                Status.CANCELLED: Cancelled(),
            }
            return (await run_one(store, outcomes[status], queue)).id


def spec(trigger: Trigger | str = "1s", **options: Any) -> ScheduleSpec:
    """Create a spec; a text is the interval of a fixed rate."""
    return ScheduleSpec.build(task="report", trigger=Every(trigger) if isinstance(trigger, str) else trigger, **options)


def after(delay: str = "10s", **options: Any) -> ScheduleSpec:
    """Create a spec with a fixed delay."""
    return spec(After(delay), **options)


async def due_plans(store: Store, limit: int = 1_000) -> list[Plan]:
    """Read and plan what is due, as the scheduler does."""
    due = await store.ledger.due(EVERYTHING, limit)
    return [plan(schedule, due.now, live) for schedule, live in due.schedules]


async def decide(store: Store) -> list[Plan]:
    """Decide everything that is due, without a lease."""
    plans = await due_plans(store)
    if plans:
        assert not await store.ledger.fire(plans, None)
    return plans


def plan_at(schedule: Schedule, now: Instant, live: LiveJobs | None = None) -> Plan:
    """Plan one schedule for a given time and given live jobs."""
    return plan(schedule, now, live or LiveJobs())
