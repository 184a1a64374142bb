"""Ready jobs are announced after each commit, whatever made them ready; rolled-back changes are not."""

from collections.abc import Sequence

import pytest

from headway.core.clock import Clock
from headway.core.errors import DuplicateKey
from headway.core.instants import HOUR, SECOND
from headway.core.lifecycle import Raised, Released
from headway.store import Store
from tests.conformance.arrange import claim_one, decide, end, enqueue, new_job, run_one, spec
from tests.conformance.backend import Backend


class Told:
    """Records announcements."""

    def __init__(self) -> None:
        self.ready: list[tuple[str, str]] = []

    def __call__(self, ready: Sequence[tuple[str, str]]) -> None:
        self.ready += ready

    def all(self) -> list[tuple[str, str]]:
        """Return the announcements since the last call."""
        found, self.ready = self.ready, []
        return sorted(found)


@pytest.fixture
def told() -> Told:
    """Return the recorder of announcements."""
    return Told()


@pytest.fixture
def store(backend: Backend, told: Told) -> Store:
    """Open a store that announces to the recorder."""
    return backend.store.announcing(told, Clock(node="n"))


async def test_enqueued_jobs_are_announced(store: Store, told: Told) -> None:
    alone = await enqueue(store, queue="media")
    assert told.all() == [("media", alone)]
    rows = await store.queue.enqueue([new_job(), new_job(queue="media"), new_job(delay=HOUR)])
    assert told.all() == sorted([("default", rows[0].id), ("media", rows[1].id)])
    await store.queue.enqueue([new_job(key="k")])
    told.all()
    await store.queue.enqueue([new_job(key="k")])
    assert told.all() == []


async def test_rolled_back_jobs_are_not_announced(store: Store, told: Told) -> None:
    await store.queue.enqueue([new_job(key="k")])
    told.all()
    with pytest.raises(DuplicateKey):
        await store.queue.enqueue([new_job(), new_job(key="k", args='{"other":1}')])
    assert told.all() == []


async def test_due_jobs_are_announced(backend: Backend, store: Store, told: Told) -> None:
    waiting = await enqueue(store, delay=10 * SECOND)
    await enqueue(store, delay=HOUR)
    failing = await enqueue(store, max_attempts=2, queue="media")
    assert told.all() == [("media", failing)]
    await end(store, await claim_one(store, "media"), Raised("{}", retry_in=5 * SECOND))
    assert told.all() == []
    await backend.advance(10 * SECOND)
    assert await store.housekeeping.promote(10) == 2
    assert told.all() == sorted([("default", waiting), ("media", failing)])


async def test_released_and_retried_jobs_are_announced(store: Store, told: Told) -> None:
    job_id = await enqueue(store)
    told.all()
    await end(store, await claim_one(store), Released())
    assert told.all() == [("default", job_id)]
    await run_one(store)
    assert told.all() == []
    again = await store.queue.retry(job_id, author="ada")
    assert told.all() == [("default", again.id)]


async def test_jobs_of_schedules_and_their_successors_are_announced(backend: Backend, store: Store, told: Told) -> None:
    await store.schedules.put("s", spec("1s", overlap="queue"))
    await backend.advance(SECOND)
    await decide(store)
    [(queue, first)] = told.all()
    await backend.advance(SECOND)
    await decide(store)
    assert told.all() == []  # It waits for the first one.
    await end(store, await claim_one(store, queue), Raised("{}", retryable=False))
    [(queue, second)] = told.all()
    assert second != first


async def test_jobs_enqueued_by_an_attempt_are_announced(store: Store, told: Told) -> None:
    await enqueue(store)
    parent = await claim_one(store)
    told.all()
    [child] = await store.work.enqueue_from(parent.job_id, parent.attempt, [new_job(queue="media")])
    assert told.all() == [("media", child.id)]
