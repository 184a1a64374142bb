"""Concurrent reads of jobs: one query for all of them, and never a result older than the request."""

import asyncio

import msgspec
import pytest

from headway.core.errors import JobNotFound
from headway.core.instants import SECOND
from headway.core.lifecycle import Status
from headway.operations import job_reader as module
from headway.operations.job_reader import EncodedJobs, JobReader
from headway.wire.jobs import job_of
from tests.conformance.arrange import LEASE, claim_one, enqueue
from tests.conformance.backend import Backend


async def test_cached_job_is_current(shared: Backend) -> None:
    reader, store = JobReader(shared.store), shared.store
    job_id = await enqueue(shared.store)
    assert (await reader.get(job_id)).status is Status.PENDING
    claimed = await claim_one(shared.store)
    running = await reader.get(job_id)
    assert (running.status, running.version) == (Status.RUNNING, 2)
    assert await reader.get(job_id) is running  # Nothing has changed, so only the stamp is read.
    await store.work.extend([(job_id, claimed.attempt)], lease=10 * LEASE)  # Same version, later end.
    extended = await reader.get(job_id)
    assert extended.version == 2
    assert extended.lease_until is not None
    assert running.lease_until is not None
    assert extended.lease_until > running.lease_until + 8 * LEASE
    await store.queue.cancel(job_id, author="me")
    assert (await reader.get(job_id)).cancel_requested_at is not None


async def test_deleted_job_is_not_served_from_the_cache(shared: Backend) -> None:
    reader = JobReader(shared.store)
    job_id = await enqueue(shared.store)
    await reader.get(job_id)
    await shared.sql(f"delete from headway_jobs where id = '{job_id}'")
    with pytest.raises(JobNotFound, match=job_id):
        await reader.get(job_id)


async def test_large_job_is_not_cached(shared: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = await enqueue(shared.store)
    reader, shown = JobReader(shared.store), EncodedJobs()
    small = await reader.get(job_id)
    assert shown.get(small, with_traceback=True) is shown.get(small, with_traceback=True)
    monkeypatch.setattr(module, "KEPT_LENGTH_MAX", 1)
    reader, shown = JobReader(shared.store), EncodedJobs()
    large = await reader.get(job_id)
    assert large == small
    assert await reader.get(job_id) is not large
    assert shown.get(large, with_traceback=True) is not shown.get(large, with_traceback=True)


async def test_cached_json_equals_the_full_encoding(shared: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHOWN_MAX", 3)
    shown, reader = EncodedJobs(), JobReader(shared.store)
    for job_id in [await enqueue(shared.store, delay=SECOND) for _ in range(5)]:
        job = await reader.get(job_id)
        for later in (0, 5 * SECOND, 5 * SECOND):
            now = job.created_at + later
            page = shown.get(job, with_traceback=False)
            body = page.at(now // SECOND) or page.encode(now, why=None, node_name=None)
            assert msgspec.json.decode(body) == msgspec.json.decode(msgspec.json.encode(job_of(job, now)))
    assert len(shown._kept) == 3


async def test_concurrent_reads_return_the_right_jobs(shared: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN_MAX", 5)
    reader = JobReader(shared.store)
    job_ids = [await enqueue(shared.store, delay=SECOND) for _ in range(20)]
    for _ in range(2):
        answers = await asyncio.gather(*map(reader.get, [*job_ids, "job_nobody", *job_ids]), return_exceptions=True)
        assert isinstance(answers.pop(20), JobNotFound)
        assert [job.id for job in answers if not isinstance(job, BaseException)] == job_ids * 2
    assert len(reader._known) == 5
