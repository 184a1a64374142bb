"""Open batches, add jobs and let them end, for tests."""

from typing import Any

from headway.core.errors import StoreUnavailable
from headway.core.groups import JobGroup, NewGroup
from headway.core.jobs import NewJob
from headway.core.lifecycle import AttemptOutcome, Raised, Succeeded
from headway.store import Store
from headway.store.transaction import Transaction
from tests.conformance.arrange import claim_all, end, new_job
from tests.conformance.backend import Backend

FAILURE = Raised('{"type":"ValueError","message":"no"}', retryable=False)
DONE = NewJob(id="", task="mail", queue="mail")
ALARM = NewJob(id="", task="alarm", queue="mail")


def new_batch(name: str = "reports", **options: Any) -> NewGroup:
    """Describe a batch."""
    number = new_job().id.removeprefix("job_")
    return NewGroup(**{"id": f"batch_{number}", "name": name, "tenant": "default", **options})


async def open_batch(store: Store, name: str = "reports", **options: Any) -> str:
    """Create a batch and return its id."""
    group, _ = await store.groups.open(new_batch(name, **options))
    return group.id


async def add(store: Store, batch: str, count: int = 1, **options: Any) -> list[str]:
    """Add jobs in one call and return their ids."""
    rows = await store.queue.enqueue([new_job(group_id=batch, **options) for _ in range(count)])
    return [row.id for row in rows]


async def settle_all(store: Store, outcome: AttemptOutcome | None = None, *, limit: int = 100) -> int:
    """Claim up to this many jobs and end them alike; return how many there were."""
    claimed = await claim_all(store, limit=limit)
    for job in claimed:
        assert not await end(store, job, outcome or Succeeded())
    return len(claimed)


async def keep(store: Store) -> None:
    """Let housekeeping do all that is due."""
    while await store.groups.keep_going():
        pass


async def numbers(store: Store, batch: str) -> tuple[int, ...]:
    """Return total, waiting, running, completed, failed, timed out and cancelled, and check that they add up."""
    group = await store.groups.get(batch)
    found = numbers_of(group)
    check_sum(found)
    return found


def numbers_of(group: JobGroup) -> tuple[int, ...]:
    """Return total, waiting, running, completed, failed, timed out and cancelled."""
    counts = group.counts
    total = counts.total
    return total, group.waiting, group.running, counts.completed, counts.failed, counts.timed_out, counts.cancelled


def check_sum(found: tuple[int, ...]) -> None:
    """Check that no count is negative, and that they add up."""
    assert min(found) >= 0, found
    assert found[0] == sum(found[1:]), found


async def callbacks(backend: Backend) -> list[dict[str, Any]]:
    """Return the callback jobs of all batches."""
    return await backend.sql("select * from headway_jobs where key like 'group:%' order by key")


def dying(transaction: Transaction[Any], after: str) -> Transaction[Any]:
    """Run a transaction of a process that dies after this statement."""
    statement = next(transaction)
    while True:
        rows = yield statement
        if statement.statement == after:
            raise StoreUnavailable("the process dies")
        statement = transaction.send(rows)
