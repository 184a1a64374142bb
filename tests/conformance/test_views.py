"""The SQL views for users: the same names, columns and meaning on every database."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from headway.core.instants import HOUR, MINUTE, SECOND, from_datetime
from headway.core.lifecycle import Raised, Released, Succeeded
from headway.core.nodes import Node
from tests.conformance.arrange import LEASE, claim_one, decide, end, enqueue, run_one, spec
from tests.conformance.backend import Backend, columns

VIEWS = {
    "headway_jobs_v": "id, tenant, task, status, queue, priority, key, schedule, occurrence_at, progress, attempts,"
    " created_at, run_at, started_at, finished_at",
    "headway_occurrences_v": "schedule, instant, outcome, reason, decided_at, job_id",
    "headway_attempts_v": "job_id, attempt, node, started_at, ended_at, outcome",
    "headway_events_v": "seq, job_id, event, at, data",
    "headway_nodes_v": "id, name, roles, started_at, beat_at",
    "headway_leases_v": "name, holder, token, until",
    "headway_schedules_v": "name, trigger, next_at, decided_through, paused",
}


def _instant(value: Any) -> int:
    """Parse a time of a view: a timestamp, or ISO 8601 text in UTC with milliseconds."""
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    assert moment.utcoffset() == UTC.utcoffset(None)
    return from_datetime(moment)


def _same(value: Any, instant: int | None) -> bool:
    return value is None if instant is None else abs(_instant(value) - instant) <= 1_000


@pytest.mark.parametrize("view", VIEWS)
async def test_every_view_has_its_columns_even_without_rows(backend: Backend, view: str) -> None:
    assert await backend.sql(f"select {VIEWS[view]} from {view}") == []


async def test_jobs_and_attempts(backend: Backend) -> None:
    store = backend.store
    job_id = await enqueue(store, tenant="acme", task="t", queue="q", priority=3, key="k", max_attempts=2)
    await run_one(store, Released(), "q")
    [first] = await store.jobs.attempts(job_id)
    await claim_one(store, "q")
    running = await store.jobs.get(job_id)
    [row] = await backend.sql("select * from headway_jobs_v")
    assert {name: row[name] for name in ("id", "tenant", "task", "status", "queue", "priority", "key", "attempts")} == {
        "id": job_id,
        "tenant": "acme",
        "task": "t",
        "status": "RUNNING",
        "queue": "q",
        "priority": 3,
        "key": "k",
        "attempts": 2,
    }
    for name in ("created_at", "run_at", "started_at", "finished_at", "occurrence_at"):
        assert _same(row[name], getattr(running, name)), name
    rows = await backend.sql("select * from headway_attempts_v order by attempt")
    assert columns(rows, "job_id", "attempt", "node", "outcome") == [
        (job_id, 1, "worker-1", "released"),
        (job_id, 2, "worker-1", "running"),
    ]
    assert _same(rows[0]["started_at"], first["started_at"])
    assert _same(rows[0]["ended_at"], first["ended_at"])
    assert rows[1]["ended_at"] is None


async def test_schedules_and_occurrences(backend: Backend) -> None:
    store = backend.store
    await store.schedules.put("s", spec("1s"))
    await store.schedules.put("gone", spec("1s"))
    await store.schedules.remove("gone")
    await backend.advance(2 * SECOND)
    await decide(store)
    await store.schedules.put("p", spec("1d"))
    await store.schedules.pause("p")
    rows = await backend.sql("select * from headway_schedules_v order by name")
    assert [(row["name"], row["trigger"], bool(row["paused"])) for row in rows] == [
        ("p", "every 1d", True),
        ("s", "every 1s", False),
    ]
    schedule = await store.schedules.get("s")
    assert _same(rows[1]["next_at"], schedule.next_at)
    assert _same(rows[1]["decided_through"], schedule.decided_through)
    [first, *_] = reversed(await store.ledger.occurrences("s"))
    shown = (await backend.sql("select * from headway_occurrences_v where schedule = 's' order by instant"))[0]
    assert (shown["outcome"], shown["reason"], shown["job_id"]) == (first.outcome, first.reason, first.job_id)
    assert _same(shown["instant"], first.instant)
    assert _same(shown["decided_at"], first.decided_at)


async def test_nodes_and_leases(backend: Backend) -> None:
    await backend.store.nodes.beat(Node(id="n1", name="host", roles=("scheduler", "worker")))
    [known] = await backend.store.nodes.alive(HOUR)
    [node] = await backend.sql("select * from headway_nodes_v")
    assert (node["id"], node["name"], node["roles"]) == ("n1", "host", "scheduler,worker")
    assert _same(node["started_at"], known.started_at)
    assert _same(node["beat_at"], known.beat_at)
    [lease] = await backend.store.leases.acquire(["role"], holder="n1", holder_name="host", duration=LEASE)
    [shown] = await backend.sql("select * from headway_leases_v")
    assert (shown["name"], shown["holder"], shown["token"]) == ("role", "n1", lease.token)
    assert _same(shown["until"], lease.until)


async def _events(backend: Backend, job_id: str) -> list[dict[str, Any]]:
    return await backend.sql(f"select * from headway_events_v where job_id = '{job_id}' order by seq")


async def test_events_of_a_job_are_complete_and_in_order(backend: Backend) -> None:
    store = backend.store
    job_id = await enqueue(store, delay=MINUTE, max_attempts=3)
    seen: list[list[dict[str, Any]]] = [await _events(backend, job_id)]

    async def look() -> None:
        """Check that earlier rows are unchanged, and that new rows come after them."""
        events = await _events(backend, job_id)
        assert [event["seq"] for event in events] == sorted({event["seq"] for event in events})
        assert events[: len(seen[-1])] == seen[-1]
        seen.append(events)

    await backend.advance(HOUR)
    await store.housekeeping.promote(10)
    await look()
    first = await claim_one(store)
    await look()
    await end(store, first, Raised("{}", retry_in=MINUTE))
    await look()
    await backend.advance(HOUR)
    await store.housekeeping.promote(10)
    await look()
    second = await claim_one(store)
    await look()
    await end(store, second, Released("draining"))
    await look()
    third = await claim_one(store)
    await end(store, first, Succeeded())  # Stale: rejected, and shown as such.
    await look()
    await store.queue.cancel(job_id, author="ada")
    await look()
    await end(store, third, Succeeded())
    await look()
    assert [event["event"] for event in seen[-1]] == [
        "enqueued",
        *("promoted", "claimed", "settled"),
        *("promoted", "claimed", "settled"),
        *("claimed", "settle_refused", "cancel_requested", "settled"),
    ]
    settled = [msgspec.json.decode(event["data"]) for event in seen[-1] if event["event"] == "settled"]
    assert [(data["attempt"], data["outcome"]) for data in settled] == [
        (1, "failed"),
        (2, "released"),
        (3, "completed"),
    ]
    times = [_instant(event["at"]) for event in seen[-1]]
    assert times == sorted(times)


async def test_events_of_jobs_that_were_never_claimed(backend: Backend) -> None:
    store = backend.store
    ready = await enqueue(store)
    later = await enqueue(store, delay=MINUTE)
    await backend.advance(HOUR)
    await store.housekeeping.promote(10)
    for job_id in (ready, later):
        await store.queue.cancel(job_id, author="ada")
    assert columns(await _events(backend, ready), "event") == [("enqueued",), ("cancelled",)]
    assert columns(await _events(backend, later), "event") == [("enqueued",), ("promoted",), ("cancelled",)]
    assert await backend.count("headway_events_v") == 5
