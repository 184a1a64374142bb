"""Figures of one tenant, recent outcomes, and the visibility of schedules per tenant."""

import pytest

from headway.core.errors import AlreadyFinal, DuplicateKey, ScheduleChanged, ScheduleNotFound
from headway.core.instants import HOUR, SECOND
from headway.core.lifecycle import FINAL, Raised, Status
from headway.core.schedule_names import schedule_name
from headway.store import Store
from tests.conformance.arrange import bring_to, claim_one, enqueue, run_one, spec
from tests.conformance.backend import Backend


async def test_live_jobs_of_a_tenant_are_counted_up_to_a_limit(store: Store) -> None:
    for _ in range(3):
        await enqueue(store, tenant="acme", queue="a")
    await enqueue(store, tenant="acme", queue="b", delay=HOUR)
    await enqueue(store, tenant="globex", queue="a")
    assert (await claim_one(store, "a")).tenant == "acme"
    counts = {(row["name"], row["status"]): row["jobs"] for row in await store.statistics.live_counts("acme")}
    assert counts == {("a", "PENDING"): 2, ("a", "RUNNING"): 1, ("b", "SCHEDULED"): 1}
    assert [row["jobs"] for row in await store.statistics.live_counts("acme", limit=1)] == [1, 1, 1]
    assert await store.statistics.live_counts("nobody") == []


async def test_window_of_outcomes_shrinks_when_there_are_too_many(backend: Backend) -> None:
    store = backend.store
    assert await store.statistics.ended_counts(HOUR) == ({}, HOUR)
    for tenant in ("acme", "acme", "globex"):
        await enqueue(store, tenant=tenant)
        await run_one(store)
        await backend.advance(10 * SECOND)
    await enqueue(store, tenant="globex")
    await run_one(store, Raised("{}", retryable=False))
    assert await store.statistics.ended_counts(HOUR) == ({"COMPLETED": 3, "FAILED": 1}, HOUR)
    assert await store.statistics.ended_counts(HOUR, tenant="acme") == ({"COMPLETED": 2, "FAILED": 0}, HOUR)
    counts, window = await store.statistics.ended_counts(HOUR, limit=3)
    assert counts == {"COMPLETED": 2, "FAILED": 1}
    assert 20 * SECOND <= window < HOUR
    await backend.advance(2 * HOUR)
    assert await store.statistics.ended_counts(HOUR) == ({}, HOUR)


async def test_dead_letter_is_retried_once(store: Store) -> None:
    letter = await enqueue(store)
    await run_one(store, Raised("{}", retryable=False))
    again = await store.queue.retry(letter, author="me", only_dead=True)
    with pytest.raises(AlreadyFinal, match="no longer a dead letter"):
        await store.queue.retry(letter, author="me", only_dead=True)
    assert await store.jobs.reruns(letter) == [again.id]  # The rejected retry has no effect.
    assert (await store.queue.retry(letter, author="me")).id != again.id  # An explicit retry may be repeated.


async def test_schedule_of_another_tenant_is_not_found_and_its_name_is_free(store: Store) -> None:
    schedules = store.schedules
    await schedules.put("s", spec(tenant="acme"))
    for action in (schedules.show, schedules.pause, schedules.resume):
        with pytest.raises(ScheduleNotFound):
            await action("s", tenant="globex")
    with pytest.raises(ScheduleNotFound):
        await schedules.trigger_once("s", None, tenant="globex")
    with pytest.raises(ScheduleNotFound):
        await schedules.backfill("s", 0, 1, tenant="globex")
    assert not await schedules.remove("s", tenant="globex")
    assert await schedules.page(tenant="globex") == []
    assert await store.ledger.keys("", 10, tenant="globex") == []
    assert await schedules.put("s", spec(tenant="globex")) == "created"
    assert await schedules.remove("s", tenant="acme")
    assert [schedule.tenant for schedule in await schedules.page()] == ["globex"]
    assert [schedule_name(found.key) for found in await store.ledger.keys("", 10, tenant="acme")] == ["s"]


async def test_schedule_is_removed_only_at_the_expected_revision(store: Store) -> None:
    await store.schedules.put("s", spec())
    with pytest.raises(ScheduleChanged):
        await store.schedules.remove("s", expected_revision=2)
    assert await store.schedules.remove("s", expected_revision=1)


async def test_manual_job_is_created_once_per_key(store: Store) -> None:
    await store.schedules.put("s", spec("1h", overlap="allow"))
    first, is_new, _ = await store.schedules.trigger_once("s", "k")
    assert is_new
    assert (await store.schedules.trigger_once("s", "k"))[:2] == (first, False)
    with pytest.raises(DuplicateKey):
        await store.schedules.trigger_once("s", "k", args='{"n":1}')
    assert len(await store.jobs.page(schedule="s")) == 1


async def test_every_live_status_is_counted_for_its_tenant(store: Store) -> None:
    for status in Status:
        await bring_to(store, status)
    found = {row["status"] for row in await store.statistics.live_counts("default")}
    assert found == {str(status) for status in Status if status not in FINAL}
