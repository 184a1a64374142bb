"""Erasure, on every database: the content of a job is deleted, the record of its run stays."""

import pytest

from headway.core.errors import Conflict
from headway.core.feed import EVERYTHING
from headway.core.instants import MINUTE
from headway.core.jobs import Report
from headway.core.lifecycle import Raised, Status, Succeeded
from tests.conformance.arrange import attempt_of, claim_one, end, enqueue
from tests.conformance.backend import Backend

SECRET = "Ada Lovelace, 12 Elm Street"


async def _told(backend: Backend) -> str:
    """Return everything in the store, as text."""
    tables = ("jobs", "attempts", "events", "log", "steps", "feed", "occurrences", "deliveries")
    return str([await backend.sql(f"select * from headway_{table}") for table in tables])


async def test_all_content_of_a_job_is_erased(backend: Backend) -> None:
    store = backend.store
    await store.feed.follow([EVERYTHING], MINUTE)
    quoted = f'{{"who":"{SECRET}"}}'
    options = {
        "tenant": "acme",
        "args": quoted,
        "key": SECRET,
        "tags": (SECRET,),
        "metadata": quoted,
        "max_attempts": 2,
    }
    job_id = await enqueue(store, **options)
    other = await enqueue(store, tenant="globex", queue="other", args=quoted)
    waiting = await enqueue(store, tenant="acme", queue="later", args='{"n":1}')
    job = await claim_one(store)
    lines = ((None, "log", SECRET),)
    await store.work.report([Report(job_id=job.id, attempt=1, detail=quoted, metadata=quoted, lines=lines)])
    await store.work.keep_step(job.id, 1, "first", f'"{SECRET}"')
    await end(store, job, Raised(quoted))
    await backend.advance(60 * MINUTE)
    await store.housekeeping.promote(10)
    again = await claim_one(store)
    await end(store, again, Succeeded(quoted))
    await store.queue.cancel(other, author=SECRET)

    assert await store.erasure.page("acme", None) == ([job_id], [waiting])
    assert await store.erasure.page("acme", SECRET) == ([job_id], [])
    assert await store.erasure.erase([job_id, waiting]) == [job_id]
    assert await store.erasure.page("acme", None, after=waiting) == ([], [])
    await backend.sql(f"delete from headway_events where job_id = '{other}'")
    await backend.sql(f"delete from headway_feed where job_id = '{other}'")
    await backend.sql(f"delete from headway_jobs where id = '{other}'")
    assert SECRET not in await _told(backend)
    erased = await store.jobs.get(job_id)
    assert (erased.status, erased.attempt, erased.args, erased.result) == (Status.COMPLETED, 2, "{}", None)
    assert erased.finished_at is not None
    assert [attempt["outcome"] for attempt in await store.jobs.attempts(job_id)] == ["failed", "completed"]
    assert (await store.jobs.get(waiting)).args == '{"n":1}'
    assert attempt_of(again).attempt == 2
    with pytest.raises(Conflict, match="erased"):  # It would run without its arguments.
        await store.queue.retry(job_id, author="ada")
    assert (await store.bulk.retry([job_id], author="ada")).refused == (
        (job_id, "it was erased, and its arguments with it"),
    )
    assert (await store.queue.retry(job_id, author="ada", args='{"n":2}')).rerun_of == job_id


async def test_key_finds_every_retry_of_its_job(backend: Backend) -> None:
    store = backend.store
    url, quoted = "https://example.org/ada-lovelace", f'{{"who":"{SECRET}"}}'
    first = await enqueue(store, tenant="acme", key="k", args=quoted, callback=url)
    foreign = await enqueue(store, tenant="globex", queue="other", key="k", args='{"n":1}', callback="https://x.org/")
    family = [first]
    for _ in range(2):  # Each retries the one before, and the first is retried twice.
        await end(store, await claim_one(store), Raised(quoted, retryable=False))
        family.append((await store.queue.retry(family[-1], author="ada")).id)
    family.append((await store.queue.retry(first, author="ada")).id)
    await end(store, await claim_one(store), Succeeded(quoted))
    await end(store, await claim_one(store, "other"), Succeeded())
    ended, waiting = await store.erasure.page("acme", "k")
    assert sorted([*ended, *waiting]) == sorted(family)
    assert len(waiting) == 1
    assert sorted(await store.erasure.erase(ended, keeps_key=True)) == sorted(ended)
    assert await store.erasure.page("acme", "k") == (ended, waiting)  # The key still finds them.
    await end(store, await claim_one(store), Succeeded(quoted))
    assert await store.erasure.erase([*ended, *waiting]) == sorted(family)
    told = await _told(backend)
    assert SECRET not in told
    assert url not in told
    assert await store.erasure.page("acme", "k") == ([], [])
    deliveries = {one.job_id: one for one in await store.webhooks.deliveries(limit=50)}
    assert deliveries.keys() == {*family, foreign}
    assert {deliveries[job_id].status for job_id in family} == {"FAILED"}  # No longer delivered.
    assert (deliveries[foreign].status, deliveries[foreign].url) == ("WAITING", "https://x.org/")
    claimed = await store.webhooks.claim(limit=50, lease=MINUTE)
    assert [one.job_id for one in claimed] == [foreign]
