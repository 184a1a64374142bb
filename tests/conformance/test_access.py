"""Tokens and the trail, on every database: what is kept, what counts, and that history cannot be written anew."""

import asyncio
import hashlib
import sqlite3
from dataclasses import replace

import asyncpg
import pytest

from headway.core.access import Login, Token
from headway.core.clock import Clock, wall_now
from headway.core.errors import DefinitionError, HeadwayError, NotFound
from headway.core.instants import DAY, HOUR, MINUTE, SECOND
from headway.store import Store
from headway.store.access import Deed, Doer, hash_of
from tests.conformance.arrange import enqueue
from tests.conformance.backend import Backend


async def create(store: Store, name: str = "ci", **options: object) -> tuple[Token, str]:
    given = {"tenant": "acme", "role": "viewer", "lifetime": None, "actor": "ada", "origin": "192.0.2.7", **options}
    return await store.access.create_token(name=name, **given)  # type: ignore[arg-type]


# Tokens


async def test_only_the_hash_of_a_token_is_kept(backend: Backend) -> None:
    token, value = await create(backend.store, lifetime=90 * DAY)
    assert value.startswith("hw_")
    assert len(value) >= 35
    [row] = await backend.sql("select * from headway_tokens")
    assert row["hash"] == hashlib.sha256(value.encode()).hexdigest()
    everything = [*row.values(), *(await backend.sql("select * from headway_actions"))[0].values()]
    assert not [kept for kept in everything if value[3:] in str(kept)]
    assert (token.name, token.tenant, token.role, token.state) == ("ci", "acme", "viewer", "valid")
    assert (token.created_by, token.revoked_at) == ("ada", None)
    assert token.expires_at == token.created_at + 90 * DAY
    assert abs(token.created_at - await backend.now()) < MINUTE


async def test_every_value_is_another(backend: Backend) -> None:
    values = {(await create(backend.store))[1] for _ in range(20)}
    assert len(values) == 20


async def test_a_token_is_found_by_its_value_and_by_its_id(backend: Backend) -> None:
    access = backend.store.access
    token, value = await create(backend.store)
    await create(backend.store)
    assert await access.find_token(hash_of(value)) == token == await access.token(token.id)
    for wrong in (value + "x", value[:-1], "hw_", "", value.swapcase(), hash_of(value)):
        assert await access.find_token(hash_of(wrong)) is None
    assert await access.token("tok_none") is None


async def test_a_token_expires_by_the_clock_of_the_store(backend: Backend) -> None:
    access = backend.store.access
    token, value = await create(backend.store, lifetime=HOUR)
    await backend.advance(HOUR - MINUTE)
    assert (await access.find_token(hash_of(value)) or token).state == "valid"
    await backend.advance(2 * MINUTE)
    for found in (await access.find_token(hash_of(value)), await access.token(token.id), (await access.tokens())[0]):
        assert found is not None
        assert (found.state, found.revoked_at) == ("expired", None)


async def test_a_revoked_token_counts_no_more_and_stays_revoked(backend: Backend) -> None:
    access = backend.store.access
    token, value = await create(backend.store, lifetime=HOUR)
    revoked = await access.revoke_token(token.id, actor="bob", origin="")
    assert revoked.state == "revoked"
    assert await access.find_token(hash_of(value)) == revoked
    await backend.advance(2 * HOUR)
    again = await access.revoke_token(token.id, actor="eve", origin="")
    assert (again.state, again.revoked_at) == ("revoked", revoked.revoked_at)
    assert [(line.action, line.actor) for line in await access.actions()] == [
        ("tokens.revoke", "bob"),  # The second time changed nothing, so there is nothing to tell.
        ("tokens.create", "ada"),
    ]


async def test_a_token_of_another_tenant_cannot_be_told_from_one_that_is_not(backend: Backend) -> None:
    access = backend.store.access
    token, value = await create(backend.store, tenant="acme")
    refusals = []
    for token_id in (token.id, "tok_none"):
        with pytest.raises(NotFound) as refused:
            await access.revoke_token(token_id, tenant="globex", actor="eve", origin="")
        refusals.append(str(refused.value))
    assert refusals[0] == refusals[1]
    assert (await access.find_token(hash_of(value)) or token).state == "valid"
    assert len(await access.actions()) == 1
    assert (await access.revoke_token(token.id, tenant="acme", actor="ada", origin="")).state == "revoked"


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": "a\x1b[31m"},
        {"name": "x" * 1_000},
        {"tenant": " "},
        {"tenant": "a\x00b"},
        {"role": "root"},
        {"role": ""},
        {"lifetime": 0},
        {"lifetime": -SECOND},
    ],
    ids=str,
)
async def test_what_makes_no_sense_is_not_made(store: Store, options: dict[str, object]) -> None:
    with pytest.raises(DefinitionError):
        await create(store, **{"name": "ci", **options})  # type: ignore[arg-type]
    assert await store.access.tokens() == []
    assert await store.access.actions() == []


async def test_tokens_are_listed_by_pages_and_tenants(store: Store) -> None:
    made = [(await create(store, f"t{n}", tenant="acme" if n % 2 else "globex"))[0] for n in range(7)]
    newest_first = list(reversed(made))
    seen: list[Token] = []
    while page := await store.access.tokens(before=seen[-1].id if seen else None, limit=3):
        seen += page
    assert seen == newest_first
    assert await store.access.tokens(tenant="acme") == [token for token in newest_first if token.tenant == "acme"]
    assert await store.access.tokens(tenant="*") == []


async def test_it_is_known_whether_a_token_was_made_and_whether_one_counts(backend: Backend) -> None:
    access = backend.store.access
    assert await access.any_token() == (False, False)
    token, _ = await create(backend.store)
    assert await access.any_token() == (True, True)
    await access.revoke_token(token.id, actor="ada", origin="")
    assert await access.any_token() == (True, False)
    await create(backend.store, lifetime=HOUR)
    assert await access.any_token() == (True, True)
    await backend.advance(2 * HOUR)
    assert await access.any_token() == (True, False)


async def test_of_racing_revocations_one_is_in_the_trail(shared: Backend) -> None:
    stores = [shared.store, await shared.another(), await shared.another()]
    token, _ = await create(shared.store)
    ended = await asyncio.gather(
        *(store.access.revoke_token(token.id, actor=f"a{n}", origin="") for n, store in enumerate(stores))
    )
    assert {one.state for one in ended} == {"revoked"}
    assert len({one.revoked_at for one in ended}) == 1
    assert [line.action for line in await shared.store.access.actions()].count("tokens.revoke") == 1


# Sessions


async def sign_in(store: Store, token_hash: str, **options: object) -> tuple[Login, str]:
    given = {"lifetime": HOUR, "actor": "ada", "tenant": "acme", "target": "tok_1", "origin": "192.0.2.7", **options}
    return await store.access.sign_in(token_hash, **given)  # type: ignore[arg-type]


async def test_only_hashes_of_a_session_are_kept(backend: Backend) -> None:
    access = backend.store.access
    login, value = await sign_in(backend.store, hash_of("hw_t"))
    [row] = await backend.sql("select * from headway_sessions")
    assert (row["hash"], row["token_hash"]) == (hash_of(value), hash_of("hw_t"))
    assert len(value) >= 43
    assert await access.login(hash_of(value)) == login
    assert login.expires_at == row["created_at"] + HOUR
    assert await access.login(value) is None
    [line] = await access.actions()
    assert (line.actor, line.tenant, line.action, line.target, line.origin) == (
        *("ada", "acme", "sessions.create"),
        *("tok_1", "192.0.2.7"),
    )


async def test_a_session_ends_by_the_clock_of_the_store_or_when_it_is_ended(backend: Backend) -> None:
    access = backend.store.access
    (_, one), (_, two) = await sign_in(backend.store, "a"), await sign_in(backend.store, "b", lifetime=2 * HOUR)
    await access.sign_out(hash_of("nobody's"))
    await backend.advance(HOUR + MINUTE)
    assert await access.login(hash_of(one)) is None
    assert (await access.login(hash_of(two))) is not None
    await access.sign_out(hash_of(two))
    await access.sign_out(hash_of(two))
    assert await access.login(hash_of(two)) is None
    await sign_in(backend.store, "c")  # Who comes next cleans up.
    assert len(await backend.sql("select * from headway_sessions")) == 1


async def test_a_token_has_only_so_many_sessions(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.store.access.SESSIONS_MAX", 3)
    _, other = await sign_in(backend.store, "other")
    values = []
    for _ in range(5):
        values.append((await sign_in(backend.store, "one"))[1])
        await backend.advance(SECOND)
    found = [await backend.store.access.login(hash_of(value)) for value in (*values, other)]
    assert [login is not None for login in found] == [False, False, True, True, True, True]


# The trail


async def record(store: Store, number: int = 0, **options: str) -> None:
    given = {
        "actor": "ada",
        "tenant": "acme",
        "origin": "192.0.2.7",
        "action": "jobs.cancel",
        "target": f"job_{number}",
    }
    await store.access.record(**{**given, "detail": f'{{"n":{number}}}', **options})


async def test_the_trail_tells_who_did_what_from_where(backend: Backend) -> None:
    await record(backend.store, 7)
    [line] = await backend.store.access.actions()
    assert (line.actor, line.tenant, line.origin) == ("ada", "acme", "192.0.2.7")
    assert (line.action, line.target, line.detail) == ("jobs.cancel", "job_7", {"n": 7})
    assert abs(line.at - await backend.now()) < MINUTE


async def test_the_trail_is_read_by_pages_and_filters(backend: Backend) -> None:
    access = backend.store.access
    for number in range(5):
        await record(backend.store, number)
    await backend.advance(HOUR)
    await record(backend.store, 5, actor="bob", tenant="globex", action="queues.pause", target="default")
    seen: list[str] = []
    before = None
    while page := await access.actions(before=before, limit=2):
        seen += [line.target for line in page]
        before = page[-1].seq
    assert seen == ["default", "job_4", "job_3", "job_2", "job_1", "job_0"]
    for filters in ({"actor": "bob"}, {"tenant": "globex"}, {"action": "queues.pause"}, {"target": "default"}):
        assert [line.target for line in await access.actions(**filters)] == ["default"]  # type: ignore[arg-type]
    assert await access.actions(tenant="globex", actor="ada") == []
    middle = await backend.now() - 30 * MINUTE
    assert [line.target for line in await access.actions(since=middle)] == ["default"]
    assert [line.target for line in await access.actions(until=middle)] == seen[1:]


async def test_a_line_of_the_trail_is_kept_whatever_was_done(store: Store) -> None:
    await record(store, target="a\x00b\ud800", actor="x" * 10_000, detail='{"long":"' + "x" * 100_000 + '"}')
    [line] = await store.access.actions()
    assert line.target.startswith("a␀b")
    assert len(line.actor) < 1_000
    assert line.detail == {"omitted": "too long"}


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


async def test_nobody_writes_the_trail_anew(backend: Backend) -> None:
    await record(backend.store, 1)
    await record(backend.store, 2)
    before = await backend.sql("select * from headway_actions order by seq")
    for statement in REWRITES + (ON_SQLITE if backend.name == "sqlite" else ON_POSTGRES):
        with pytest.raises((sqlite3.Error, asyncpg.PostgresError), match="the trail of actions is only added to"):
            await backend.sql(statement)
        assert await backend.sql("select * from headway_actions order by seq") == before, statement
    await record(backend.store, 3)
    assert len(await backend.store.access.actions()) == 3


async def test_old_lines_leave_in_pieces_and_young_ones_cannot(backend: Backend) -> None:
    access, now = backend.store.access, wall_now()  # The database guards them by its own clock.
    ahead = await backend.now() - now
    for days in (400, 399, 370, 366, 364, 31, 28):
        await backend.sql(
            "insert into headway_actions (at, actor, tenant, origin, action, target, detail)"
            f" values ({now - days * DAY}, '{days}', '*', '', 'x', 'y', '{{}}')"
        )
    assert [await access.prune(ahead + 365 * DAY, 2) for _ in range(3)] == [2, 2, 0]
    assert [line.actor for line in await access.actions()] == ["28", "31", "364"]
    with pytest.raises(HeadwayError, match="only added to"):  # Whatever somebody asks for.
        await access.prune(ahead + DAY, 10)
    assert await access.prune(ahead + 30 * DAY, 10) == 2
    assert [line.actor for line in await access.actions()] == ["28"]


async def test_a_deed_and_its_line_are_written_together_or_not_at_all(backend: Backend) -> None:
    store, doer = backend.store, Doer("ada", "192.0.2.7", "acme")
    paused = Deed("queue.pause", "slow", None, {"reason": "x"})
    assert await store.acting(doer, paused, Clock()).queue.pause("slow", author="ada", reason="x")
    [line] = await store.access.actions()
    assert (line.actor, line.tenant, line.origin, line.target) == ("ada", "acme", "192.0.2.7", "slow")
    assert (line.action, line.detail) == ("queue.pause", {"reason": "x"})
    # What changes nothing is nothing to tell,
    assert not await store.acting(doer, paused, Clock()).queue.pause("slow", author="bob", reason="y")
    assert len(await store.access.actions()) == 1

    def fail(_: object) -> None:
        raise RuntimeError("the process dies before the line is written")

    # and what cannot be told is not done.
    with pytest.raises(RuntimeError):
        await store.acting(doer, replace(paused, seen=fail), Clock()).queue.resume("slow")
    assert "slow" in await store.queue.paused()


async def test_a_deed_may_find_out_late_what_it_was_done_to(backend: Backend) -> None:
    store = backend.store
    job_id = await enqueue(store, tenant="globex")
    deed = Deed("x", lambda new: f"{new}!", lambda _: "globex", seen=lambda new: {"new": new})
    await store.queue.cancel(job_id, author="me")
    again = await store.acting(Doer("ada", ""), deed, Clock()).queue.retry(job_id, author="ada")
    [line] = await store.access.actions()
    assert (line.target, line.tenant, line.detail) == (f"{again.id}!", "globex", {"new": again.id})
