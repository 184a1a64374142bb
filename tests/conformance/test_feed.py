"""The feed of changes: readers miss nothing, whatever the order of commits."""

import asyncio

import asyncpg
import pytest

from headway.core.feed import EVERYTHING, low_of
from headway.core.instants import HOUR
from headway.core.jobs import Report
from headway.core.lifecycle import Status, Succeeded, settle
from headway.store import feed as feed_module
from tests.conformance.arrange import attempt_of, claim_one, enqueue
from tests.conformance.backend import Backend, PostgresBackend


async def test_feed_has_every_version_of_followed_jobs_only(shared: Backend) -> None:
    feed, store = shared.store.feed, shared.store
    other, job_id = await enqueue(shared.store, queue="other"), await enqueue(shared.store)
    await feed.follow([job_id], HOUR)
    position = await feed.position()
    claimed = await claim_one(shared.store)
    lines = ((None, "log", "one"), (None, "log", "two"))
    await store.work.report([Report(job_id=job_id, attempt=1, progress=40, detail='{"step":"x"}', lines=lines)])
    await store.queue.cancel(other, author="me")
    await store.work.settle([settle(attempt_of(claimed), Succeeded('"done"'), 0.5)])
    changes, position, is_more = await feed.read(position)
    assert [(c.job.id, c.job.status, c.job.version, c.job.progress) for c in changes] == [
        (job_id, Status.RUNNING, 2, 0),
        (job_id, Status.RUNNING, 3, 40),
        (job_id, Status.COMPLETED, 4, 100),
    ]
    assert not is_more
    assert (await feed.read(position))[0] == []
    assert [line.line for line in await feed.log_between(job_id, 2, 9)] == ["one", "two"]
    assert await feed.log_between(job_id, 3, 9) == []
    assert [change.job.version for change in await feed.of_job(job_id, 2)] == [3, 4]
    assert await feed.versions([job_id, "job_nobody"]) == {job_id: 4}


async def test_feed_has_every_job_while_all_jobs_are_followed(shared: Backend) -> None:
    feed = shared.store.feed
    first = await feed.follow([EVERYTHING], HOUR)
    position = await feed.position()
    job_ids = [await enqueue(shared.store) for _ in range(3)]
    assert await feed.follow([EVERYTHING], HOUR) == first
    changes, _, _ = await feed.read(position)
    assert [change.job.id for change in changes] == job_ids
    again = await feed.again(low_of(position))
    assert again is not None
    assert {change.job.id for change in again} >= set(job_ids)
    await shared.sql("update headway_followed set until = 0")
    unseen = await enqueue(shared.store)
    await asyncio.sleep(0.005)  # On SQLite, the start of a feed has millisecond precision.
    assert await feed.follow([EVERYTHING], HOUR) != first  # The gap is visible.
    changes, _, _ = await feed.read(position)
    assert unseen not in {change.job.id for change in changes}


async def test_late_commit_is_not_missed(shared: Backend) -> None:
    """A transaction that draws its numbers first and commits last would be missed by reading in order of numbers."""
    if not isinstance(shared, PostgresBackend):
        pytest.skip("SQLite has one writer at a time")
    feed = shared.store.feed
    slow, fast = await enqueue(shared.store), await enqueue(shared.store)
    await feed.follow([EVERYTHING], HOUR)
    position = await feed.position()
    connection = await asyncpg.connect(shared.url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("update headway_jobs set progress = 7, version = version + 1 where id = $1", slow)
        await shared.store.queue.cancel(fast, author="me")
        changes, position, _ = await feed.read(position)
        assert [change.job.id for change in changes] == [fast]
        await transaction.commit()
        late, position, _ = await feed.read(position)
        assert [change.job.id for change in late] == [slow]
        assert late[0].seq < changes[0].seq
        assert (await feed.read(position))[0] == []
    finally:
        await connection.close()


async def test_paged_read_is_complete(shared: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its last page is empty: then the next read does not start over."""
    monkeypatch.setattr(feed_module, "READ_MAX", 3)
    feed = shared.store.feed
    await feed.follow([EVERYTHING], HOUR)
    position, told = await feed.position(), []
    job_ids = [await enqueue(shared.store) for _ in range(6)]
    for _ in range(4):
        changes, position, _ = await feed.read(position)
        told += [change.job.id for change in changes]
    assert told == job_ids
    job_ids.append(await enqueue(shared.store))
    changes, position, is_more = await feed.read(position)
    assert ([change.job.id for change in changes], is_more) == (job_ids[-1:], False)


async def test_commit_between_two_pages_is_read_once(shared: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit during a paged read may have lower numbers than the previous page."""
    if not isinstance(shared, PostgresBackend):
        pytest.skip("SQLite has one writer at a time")
    monkeypatch.setattr(feed_module, "READ_MAX", 3)
    feed = shared.store.feed
    slow = await enqueue(shared.store)
    await feed.follow([EVERYTHING], HOUR)
    position = await feed.position()
    connection = await asyncpg.connect(shared.url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("update headway_jobs set progress = 7, version = version + 1 where id = $1", slow)
        fast = [await enqueue(shared.store) for _ in range(4)]
        changes, position, is_more = await feed.read(position)
        told = [change.job.id for change in changes]
        assert is_more
        await transaction.commit()
        fast.append(await enqueue(shared.store))
        while is_more:
            changes, position, is_more = await feed.read(position)
            told += [change.job.id for change in changes]
        assert sorted(told) == sorted([slow, *fast])
    finally:
        await connection.close()


async def test_feed_is_pruned(shared: Backend) -> None:
    feed = shared.store.feed
    await feed.follow([EVERYTHING], HOUR)
    await enqueue(shared.store)
    assert await feed.prune() == 0
    await shared.sql("update headway_feed set at = 0")
    await shared.sql("update headway_followed set until = 0")
    assert await feed.prune() == 1
    assert await shared.sql("select scope from headway_followed") == []
