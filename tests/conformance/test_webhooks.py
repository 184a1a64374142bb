"""Webhooks on every database: the deliveries that triggers write, who may claim them, and for how long."""

import asyncio
from typing import Any

import pytest

from headway.core.clock import Clock
from headway.core.errors import Conflict, DefinitionError, NotFound
from headway.core.instants import DAY, HOUR, MINUTE, SECOND
from headway.core.lifecycle import Cancelled, Raised, TimedOut
from headway.core.webhooks import EVENTS, Delivery, Endpoint, Outcome, callbacks_id, tenant_of_callbacks
from headway.store import Store
from headway.store.webhooks import ENDPOINTS_MAX, OUTCOMES_MAX, SECRETS_MAX
from tests.conformance.arrange import decide, enqueue, run_one, spec
from tests.conformance.backend import Backend
from tests.support.waiting import async_wait_until

URL = "https://example.org/hook"
LEASE = MINUTE
FAILED = Raised('{"type": "E", "message": "m"}', retryable=False)


async def add(store: Store, *events: str, tenant: str = "default", url: str = URL) -> Endpoint:
    return await store.webhooks.add(tenant=tenant, url=url, events=events or ("*",), author="ada")


async def claim(store: Store, **options: Any) -> list[Delivery]:
    return await store.webhooks.claim(**{"limit": 100, "lease": LEASE, **options})


async def finish(store: Store, outcome: Any = None, **options: Any) -> str:
    """Run one job to its end; return its id."""
    job_id = await enqueue(store, **options)
    await run_one(store, outcome)
    return job_id


def outcome(at: int = 1, code: int | None = 500) -> Outcome:
    return Outcome(at=at, took_ms=7, code=code)


# --- deliveries written when a job ends


async def test_no_delivery_without_a_webhook(backend: Backend) -> None:
    await finish(backend.store)
    assert await backend.count("headway_deliveries") == 0
    assert (await backend.store.webhooks.next_due())[0] is None


async def test_every_end_is_delivered_to_its_subscribers(backend: Backend) -> None:
    store = backend.store
    everything = await add(store)
    failures = await add(store, "job.failed", "job.timed_out")
    others = await add(store, tenant="other")
    told: dict[str, set[tuple[str, str]]] = {}
    for kind, end in {"completed": None, "failed": FAILED, "timed_out": TimedOut("slow")}.items():
        told[kind] = set()
        job_id = await finish(store, end, max_attempts=1)
        for delivery in await claim(store):
            told[kind].add((delivery.endpoint, delivery.event))
            assert (delivery.job_id, delivery.tenant, delivery.url) == (job_id, "default", URL)
            assert (delivery.status, delivery.tries, delivery.outcomes) == ("WAITING", 0, ())
    assert told == {
        "completed": {(everything.id, "job.completed")},
        "failed": {(everything.id, "job.failed"), (failures.id, "job.failed")},
        "timed_out": {(everything.id, "job.timed_out"), (failures.id, "job.timed_out")},
    }
    assert others.id not in {delivery.endpoint for delivery in await store.webhooks.deliveries()}


async def test_job_cancelled_before_it_ran_is_delivered(backend: Backend) -> None:
    store = backend.store
    await add(store)
    job_id = await enqueue(store)
    await store.queue.cancel(job_id, author="ada")
    [delivery] = await claim(store)
    assert (delivery.event, delivery.job_id) == ("job.cancelled", job_id)


async def test_retried_attempt_is_not_delivered(backend: Backend) -> None:
    store = backend.store
    await add(store)
    await enqueue(store, max_attempts=2)
    await run_one(store, Raised("{}"))
    assert await claim(store) == []


async def test_webhook_for_all_tenants_gets_jobs_of_all(backend: Backend) -> None:
    store = backend.store
    await add(store, tenant="*")
    for tenant in ("a", "b"):
        await finish(store, tenant=tenant)
    assert {delivery.tenant for delivery in await claim(store)} == {"a", "b"}


async def test_disabled_webhook_gets_no_new_deliveries(backend: Backend) -> None:
    store = backend.store
    endpoint = await add(store)
    off = await store.webhooks.change(endpoint.id, is_on=False)
    assert off.disabled_at is not None
    await finish(store)
    assert await claim(store) == []
    on = await store.webhooks.change(endpoint.id, is_on=True)
    assert on.disabled_at is None
    await finish(store)
    assert len(await claim(store)) == 1


async def test_callbacks_of_jobs(backend: Backend) -> None:
    store = backend.store
    endpoint_id = await store.webhooks.ensure_callbacks("default")
    first = await store.webhooks.get(endpoint_id)
    assert await store.webhooks.ensure_callbacks("default") == endpoint_id == callbacks_id("default")
    assert await store.webhooks.get(endpoint_id) == first  # The same secret.
    assert (first.is_callbacks, first.events, len(first.signing(0))) == (True, ("*",), 1)
    assert (tenant_of_callbacks(endpoint_id), tenant_of_callbacks("wh_1")) == ("default", None)
    await finish(store)
    await finish(store, callback="https://one.example/a")
    await finish(store, Cancelled(), callback="https://two.example/b")
    found = sorted((delivery.url, delivery.event) for delivery in await claim(store))
    assert found == [("https://one.example/a", "job.completed"), ("https://two.example/b", "job.cancelled")]
    with pytest.raises(Conflict, match="disable"):
        await store.webhooks.remove(endpoint_id)
    with pytest.raises(Conflict, match="of its own"):
        await store.webhooks.change(endpoint_id, url=URL)
    assert (await store.webhooks.change(endpoint_id, is_on=False)).disabled_at is not None


async def test_ids_sort_by_time(backend: Backend) -> None:
    store = backend.store
    if backend.name == "sqlite":
        store.webhooks._clock = Clock()  # The triggers use the system time.
    endpoint = await add(store)
    jobs = []
    for _ in range(3):
        jobs.append(await finish(store))
        await asyncio.sleep(0.005)
        await backend.advance(5 * SECOND // 1_000)
    await store.webhooks.add_test(endpoint, URL, LEASE)
    found = await store.webhooks.deliveries()
    assert [delivery.job_id for delivery in found] == [None, *reversed(jobs)]
    assert all(delivery.id.startswith("msg_") and len(delivery.id) == 38 for delivery in found)


async def test_end_of_a_job_wakes_the_senders(shared: Backend) -> None:
    heard: list[str] = []
    other = await shared.another()
    wake_ups = await shared.store.watch(heard.append)
    try:
        endpoint = await add(other)
        topic = "deliveries" if shared.name == "postgresql" else "anything"
        for what in ("an end", "a replay"):
            heard.clear()
            if what == "an end":
                await finish(other)
            else:
                await other.webhooks.replay((await other.webhooks.deliveries(endpoint=endpoint.id))[0].id)
            await async_wait_until(lambda: topic in heard, f"news of {what}")
    finally:
        await wake_ups.close()


# --- claiming and recording deliveries


async def test_claim_of_a_delivery_is_a_lease(shared: Backend) -> None:
    store, other = shared.store, await shared.another()
    await add(store)
    await finish(store)
    [mine] = await claim(store)
    assert await claim(other) == []
    due, now = await other.webhooks.next_due()
    assert due is not None
    assert 0 < due - now <= LEASE
    await shared.advance(LEASE + SECOND)  # Its sender is lost.
    [again] = await claim(other)
    assert again.id == mine.id
    assert await store.webhooks.record(mine, outcome(), status="DELIVERED", delay=None) is None  # Too late.
    done = await other.webhooks.record(again, outcome(code=200), status="DELIVERED", delay=None)
    assert done is not None
    assert (done.status, done.tries, done.next_at) == ("DELIVERED", 1, None)
    assert done.ended_at is not None
    assert await other.webhooks.record(again, outcome(), status="FAILED", delay=None) is None  # It has already ended.


async def test_racing_senders_claim_each_delivery_once(shared: Backend) -> None:
    stores = [shared.store, await shared.another(), await shared.another("node-3")]
    await add(stores[0])
    for _ in range(40):
        await finish(stores[0])

    async def take(store: Store) -> list[str]:
        taken: list[str] = []
        while found := await claim(store, limit=3):
            taken += [delivery.id for delivery in found]
        return taken

    taken = [id_ for ids in await asyncio.gather(*map(take, stores)) for id_ in ids]
    assert len(taken) == len(set(taken))
    taken += await take(stores[0])  # A sender may have stopped early when it saw a row that another had just claimed.
    assert len(set(taken)) == 40


async def test_failed_delivery_is_retried_later(backend: Backend) -> None:
    store = backend.store
    await add(store)
    await finish(store)
    for number in range(1, OUTCOMES_MAX + 6):
        [delivery] = await claim(store)
        recorded = await store.webhooks.record(delivery, outcome(number), status="WAITING", delay=5 * SECOND)
        assert recorded is not None
        assert await claim(store) == []
        await backend.advance(6 * SECOND)
    assert recorded is not None
    assert recorded.tries == OUTCOMES_MAX + 5
    assert [entry.at for entry in recorded.outcomes] == list(range(6, OUTCOMES_MAX + 6))  # Only the last ones are kept.


async def test_postponed_delivery_does_not_count_as_an_attempt(backend: Backend) -> None:
    store = backend.store
    await add(store)
    await finish(store)
    [delivery] = await claim(store)
    put_off = await store.webhooks.record(delivery, None, status="WAITING", delay=MINUTE)
    assert put_off is not None
    assert (put_off.tries, put_off.outcomes, put_off.status) == (0, (), "WAITING")


async def test_excluded_endpoints_and_targets_are_not_claimed(backend: Backend) -> None:
    store = backend.store
    slow = await add(store, url="https://slow.example/a")
    fast = await add(store, url="https://fast.example/b")
    alike = await add(store, url="https://slow.example.org/c")  # The same prefix, but another host.
    for _ in range(5):
        await finish(store)
    found = await claim(store, limit=100, endpoints=[fast.id], targets=["https://slow.example/"])
    assert {delivery.endpoint for delivery in found} == {alike.id}
    found = await claim(store, limit=100, targets=["https://slow.example/", "https://nobody.example/"])
    assert {delivery.endpoint for delivery in found} == {fast.id}
    assert {delivery.endpoint for delivery in await claim(store)} == {slow.id}


async def test_longest_due_deliveries_come_first(backend: Backend) -> None:
    store = backend.store
    await add(store)
    jobs = []
    for _ in range(4):
        jobs.append(await finish(store))
        await asyncio.sleep(0.005)
        await backend.advance(5 * SECOND // 1_000)
    assert [delivery.job_id for delivery in await claim(store, limit=2)] == jobs[:2]
    assert [delivery.job_id for delivery in await claim(store, limit=9)] == jobs[2:]


# --- changes of webhooks


async def test_new_url_applies_to_waiting_deliveries(backend: Backend) -> None:
    store = backend.store
    endpoint, other = await add(store), await add(store)
    await finish(store)
    done = next(delivery for delivery in await claim(store) if delivery.endpoint == endpoint.id)
    await store.webhooks.record(done, outcome(code=200), status="DELIVERED", delay=None)
    await finish(store)
    changed = await store.webhooks.change(endpoint.id, url="https://new.example/", events=["job.failed"], note="moved")
    assert (changed.url, changed.events, changed.note) == ("https://new.example/", ("job.failed",), "moved")
    assert changed.secrets == endpoint.secrets
    urls = {(delivery.endpoint, delivery.status): delivery.url for delivery in await store.webhooks.deliveries()}
    assert urls == {
        (endpoint.id, "DELIVERED"): URL,
        (endpoint.id, "WAITING"): "https://new.example/",
        (other.id, "WAITING"): URL,
    }
    again = await store.webhooks.replay(done.id)
    assert (again.url, again.status, again.tries, len(again.outcomes)) == ("https://new.example/", "WAITING", 0, 1)


async def test_rotation_keeps_the_old_secret_for_a_while(backend: Backend) -> None:
    store = backend.store
    endpoint = await add(store)
    now = await backend.now()
    [first] = endpoint.signing(now)
    rotated = await store.webhooks.rotate(endpoint.id, keep=HOUR)
    assert rotated.signing(now)[1:] == [first]
    assert rotated.signing(now + 2 * HOUR) == rotated.signing(now)[:1]
    for _ in range(SECRETS_MAX + 3):
        rotated = await store.webhooks.rotate(endpoint.id, keep=HOUR)
    assert len(rotated.secrets) == SECRETS_MAX
    leaked = await store.webhooks.rotate(endpoint.id, keep=0)
    assert len(leaked.secrets) == len(leaked.signing(now)) == 1
    assert leaked.secrets[0].value not in {secret.value for secret in rotated.secrets}
    assert await store.webhooks.get(endpoint.id) == leaked


async def test_removed_webhook(backend: Backend) -> None:
    store = backend.store
    endpoint = await add(store)
    job_id = await finish(store)
    await store.webhooks.remove(endpoint.id)
    for gone in (
        store.webhooks.get(endpoint.id),
        store.webhooks.remove(endpoint.id),
        store.webhooks.rotate(endpoint.id),
    ):
        with pytest.raises(NotFound):
            await gone
    [delivery] = await claim(store)
    assert (delivery.job_id, await store.webhooks.named([endpoint.id])) == (job_id, {})
    assert await store.webhooks.delivery(delivery.id) == (delivery, None)
    await finish(store)
    assert len(await store.webhooks.deliveries()) == 1


async def test_bounds(backend: Backend) -> None:
    store = backend.store
    for _ in range(ENDPOINTS_MAX):
        await add(store)
    with pytest.raises(Conflict, match="at most"):
        await add(store)
    await add(store, tenant="other")
    for events in (["job.started"], [], ["job.completed", "x"]):
        with pytest.raises(DefinitionError, match=r"job\.completed"):
            await store.webhooks.add(tenant="other", url=URL, events=events, author="ada")
    assert (await add(store, "job.failed", "*", tenant="other")).events == ("*",)
    assert (await add(store, "job.failed", "job.failed", tenant="other")).events == ("job.failed",)
    assert EVENTS == ("job.cancelled", "job.completed", "job.failed", "job.timed_out")


async def test_pages(backend: Backend) -> None:
    store = backend.store
    mine = [(await add(store)).id for _ in range(3)]
    theirs = (await add(store, tenant="other")).id
    assert [endpoint.id for endpoint in await store.webhooks.page(tenant="default")] == mine
    assert [endpoint.id for endpoint in await store.webhooks.page(limit=3)] == mine
    assert [endpoint.id for endpoint in await store.webhooks.page(after=mine[-1])] == [theirs]
    job_id = await finish(store)
    await finish(store)
    everything = await store.webhooks.deliveries()
    assert len(everything) == 6
    first = await store.webhooks.deliveries(limit=4)
    assert first + await store.webhooks.deliveries(before=first[-1].id) == everything
    of_job = await store.webhooks.deliveries(job=job_id)
    assert {delivery.endpoint for delivery in of_job} == set(mine)
    assert of_job == [delivery for delivery in everything if delivery.job_id == job_id]
    assert await store.webhooks.deliveries(job=job_id, owner="other") == []
    assert await store.webhooks.deliveries(owner="other") == []
    assert await store.webhooks.deliveries(endpoint=mine[0], job=job_id) == [
        delivery for delivery in of_job if delivery.endpoint == mine[0]
    ]
    await store.webhooks.record((await claim(store, limit=1))[0], outcome(), status="FAILED", delay=None)
    assert len(await store.webhooks.deliveries(status="FAILED")) == 1
    assert len(await store.webhooks.deliveries(status="WAITING", owner="default")) == 5


async def test_deliveries_are_visible_only_to_the_owner_of_the_webhook(backend: Backend) -> None:
    """An operator's webhook gets the jobs of every tenant, and no tenant sees its URL."""
    store = backend.store
    await add(store, tenant="*", url="https://operator.example/secret-path")
    await finish(store)
    assert await store.webhooks.deliveries(owner="default") == []
    [delivery] = await store.webhooks.deliveries(owner="*")
    assert (delivery.tenant, await store.webhooks.delivery(delivery.id)) == ("default", (delivery, "*"))


async def test_old_deliveries_are_pruned(backend: Backend) -> None:
    store = backend.store
    await add(store)
    for _ in range(3):
        await finish(store)
    for delivery in (await claim(store))[:2]:
        await store.webhooks.record(delivery, outcome(code=200), status="DELIVERED", delay=None)
    assert await store.webhooks.prune(30 * DAY, 100) == 0
    await backend.advance(31 * DAY)
    assert await store.webhooks.prune(30 * DAY, 1) == 1
    assert await store.webhooks.prune(30 * DAY, 100) == 1
    assert [delivery.status for delivery in await store.webhooks.deliveries()] == ["WAITING"]


async def test_unreadable_delivery_blocks_no_other(backend: Backend) -> None:
    store = backend.store
    await add(store)
    await finish(store)
    await finish(store)
    [first, _] = await store.webhooks.deliveries()
    await backend.sql(f"update headway_deliveries set outcomes = 'nonsense' where id = '{first.id}'")
    assert len(await claim(store)) == 2


async def test_unknown_webhooks_and_deliveries(backend: Backend) -> None:
    for absent in (
        backend.store.webhooks.get("wh_x"),
        backend.store.webhooks.change("wh_x", note="n"),
        backend.store.webhooks.delivery("msg_x"),
        backend.store.webhooks.replay("msg_x"),
    ):
        with pytest.raises(NotFound):
            await absent


async def test_ends_of_scheduled_jobs_are_delivered_to_the_callback_url(backend: Backend) -> None:
    store, url = backend.store, "https://example.org/done?n="
    for number, name in enumerate(("fired", "triggered", "backfilled")):
        await store.schedules.put(name, spec("1d", callback_url=f"{url}{number}", queue=name))
    begin = await backend.now()
    await store.schedules.trigger("triggered", author="ada")
    await backend.advance(3 * DAY)
    await store.schedules.backfill("backfilled", begin, begin + DAY, author="ada")
    await decide(store)
    for name in ("fired", "triggered", "backfilled"):
        await run_one(store, queue=name)
    told = {delivery.url for delivery in await store.webhooks.deliveries(limit=50)}
    assert told == {f"{url}{number}" for number in range(3)}
