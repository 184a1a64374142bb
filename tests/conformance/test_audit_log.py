"""The audit log on every database: complete and append-only."""

import sqlite3
from dataclasses import replace

import asyncpg
import pytest

from headway.core.clock import Clock, wall_now
from headway.core.errors import HeadwayError
from headway.core.instants import DAY, HOUR, MINUTE
from headway.store import Store
from headway.store.audit_log import Actor, AuditEntry
from tests.conformance.arrange import enqueue
from tests.conformance.backend import Backend


async def record(store: Store, number: int = 0, **options: str) -> None:
    given = {
        "actor": "ada",
        "tenant": "acme",
        "origin": "192.0.2.7",
        "action": "jobs.cancel",
        "target": f"job_{number}",
    }
    await store.audit_log.record(**{**given, "detail": f'{{"n":{number}}}', **options})


async def test_entry_has_actor_action_and_origin(backend: Backend) -> None:
    await record(backend.store, 7)
    [entry] = await backend.store.audit_log.page()
    assert (entry.actor, entry.tenant, entry.origin) == ("ada", "acme", "192.0.2.7")
    assert (entry.action, entry.target, entry.detail) == ("jobs.cancel", "job_7", {"n": 7})
    assert abs(entry.at - await backend.now()) < MINUTE


async def test_entries_are_read_by_pages_and_filters(backend: Backend) -> None:
    store = backend.store
    for number in range(5):
        await record(backend.store, number)
    await backend.advance(HOUR)
    await record(backend.store, 5, actor="bob", tenant="globex", action="queues.pause", target="default")
    seen: list[str] = []
    before = None
    while page := await store.audit_log.page(before=before, limit=2):
        seen += [entry.target for entry in page]
        before = page[-1].seq
    assert seen == ["default", "job_4", "job_3", "job_2", "job_1", "job_0"]
    for filters in ({"actor": "bob"}, {"tenant": "globex"}, {"action": "queues.pause"}, {"target": "default"}):
        assert [entry.target for entry in await store.audit_log.page(**filters)] == ["default"]  # type: ignore[arg-type]
    assert await store.audit_log.page(tenant="globex", actor="ada") == []
    middle = await backend.now() - 30 * MINUTE
    assert [entry.target for entry in await store.audit_log.page(since=middle)] == ["default"]
    assert [entry.target for entry in await store.audit_log.page(until=middle)] == seen[1:]


async def test_entry_with_any_content_is_kept(store: Store) -> None:
    await record(store, target="a\x00b\ud800", actor="x" * 10_000, detail='{"long":"' + "x" * 100_000 + '"}')
    [entry] = await store.audit_log.page()
    assert entry.target.startswith("a␀b")
    assert len(entry.actor) < 1_000
    assert entry.detail == {"omitted": "too long"}


REWRITES = [
    "update headway_actions set actor = 'nobody'",
    "delete from headway_actions",
]
EVE = "select seq, 0, 'eve', '', '', '', '', '' from headway_actions"
ON_SQLITE = [
    "update headway_actions set seq = seq + 100",
    f"insert or replace into headway_actions {EVE}",
    f"replace into headway_actions {EVE}",
]
ON_POSTGRES = [
    "truncate headway_actions",
    f"insert into headway_actions overriding system value {EVE} on conflict (seq) do update set actor = excluded.actor",
]


async def test_audit_log_cannot_be_rewritten(backend: Backend) -> None:
    await record(backend.store, 1)
    await record(backend.store, 2)
    before = await backend.sql("select * from headway_actions order by seq")
    for statement in REWRITES + (ON_SQLITE if backend.name == "sqlite" else ON_POSTGRES):
        with pytest.raises((sqlite3.Error, asyncpg.PostgresError), match="the trail of actions is only added to"):
            await backend.sql(statement)
        assert await backend.sql("select * from headway_actions order by seq") == before, statement
    await record(backend.store, 3)
    assert len(await backend.store.audit_log.page()) == 3


async def test_old_entries_are_pruned_in_batches_and_recent_ones_are_protected(backend: Backend) -> None:
    store, now = backend.store, wall_now()  # The database protects them by its own clock.
    ahead = await backend.now() - now
    for days in (400, 399, 370, 366, 364, 31, 28):
        await backend.sql(
            "insert into headway_actions (at, actor, tenant, origin, action, target, detail)"
            f" values ({now - days * DAY}, '{days}', '*', '', 'x', 'y', '{{}}')"
        )
    assert [await store.audit_log.prune(ahead + 365 * DAY, 2) for _ in range(3)] == [2, 2, 0]
    assert [entry.actor for entry in await store.audit_log.page()] == ["28", "31", "364"]
    with pytest.raises(HeadwayError, match="only added to"):  # Whatever the caller asks for.
        await store.audit_log.prune(ahead + DAY, 10)
    assert await store.audit_log.prune(ahead + 30 * DAY, 10) == 2
    assert [entry.actor for entry in await store.audit_log.page()] == ["28"]


async def test_change_and_entry_are_one_transaction(backend: Backend) -> None:
    store, actor = backend.store, Actor("ada", "192.0.2.7", "acme")
    paused = AuditEntry("queue.pause", "slow", None, {"reason": "x"})
    assert await store.auditing(actor, paused, Clock()).queue.pause("slow", author="ada", reason="x")
    [entry] = await store.audit_log.page()
    assert (entry.actor, entry.tenant, entry.origin, entry.target) == ("ada", "acme", "192.0.2.7", "slow")
    assert (entry.action, entry.detail) == ("queue.pause", {"reason": "x"})
    # A change without effect adds no entry,
    assert not await store.auditing(actor, paused, Clock()).queue.pause("slow", author="bob", reason="y")
    assert len(await store.audit_log.page()) == 1

    def fail(_: object) -> None:
        raise RuntimeError("the process dies before the entry is written")

    # and a change whose entry cannot be written is rolled back.
    with pytest.raises(RuntimeError):
        await store.auditing(actor, replace(paused, detail_from=fail), Clock()).queue.resume("slow")
    assert "slow" in await store.queue.paused()


async def test_entry_may_take_target_and_tenant_from_the_result(backend: Backend) -> None:
    store = backend.store
    job_id = await enqueue(store, tenant="globex")
    change = AuditEntry("x", lambda new: f"{new}!", lambda _: "globex", detail_from=lambda new: {"new": new})
    await store.queue.cancel(job_id, author="me")
    again = await store.auditing(Actor("ada", ""), change, Clock()).queue.retry(job_id, author="ada")
    [entry] = await store.audit_log.page()
    assert (entry.target, entry.tenant, entry.detail) == (f"{again.id}!", "globex", {"new": again.id})
