"""Tokens on every database: what is stored, what is valid, and who may revoke them."""

import asyncio
import hashlib

import pytest

from headway.core.access import Token, hash_secret
from headway.core.errors import DefinitionError, NotFound
from headway.core.instants import DAY, HOUR, MINUTE, SECOND
from headway.store import Store
from tests.conformance.backend import Backend


async def create(store: Store, name: str = "ci", **options: object) -> tuple[Token, str]:
    given = {"tenant": "acme", "role": "viewer", "lifetime": None, "actor": "ada", "origin": "192.0.2.7", **options}
    return await store.tokens.create(name=name, **given)  # type: ignore[arg-type]


async def test_only_the_hash_of_a_token_is_stored(backend: Backend) -> None:
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


async def test_every_token_is_unique(backend: Backend) -> None:
    values = {(await create(backend.store))[1] for _ in range(20)}
    assert len(values) == 20


async def test_token_is_found_by_value_and_id(backend: Backend) -> None:
    store = backend.store
    token, value = await create(backend.store)
    await create(backend.store)
    assert await store.tokens.find(hash_secret(value)) == token == await store.tokens.get(token.id)
    for wrong in (value + "x", value[:-1], "hw_", "", value.swapcase(), hash_secret(value)):
        assert await store.tokens.find(hash_secret(wrong)) is None
    assert await store.tokens.get("tok_none") is None


async def test_token_expires_by_the_store_clock(backend: Backend) -> None:
    store = backend.store
    token, value = await create(backend.store, lifetime=HOUR)
    await backend.advance(HOUR - MINUTE)
    assert (await store.tokens.find(hash_secret(value)) or token).state == "valid"
    await backend.advance(2 * MINUTE)
    for found in (
        await store.tokens.find(hash_secret(value)),
        await store.tokens.get(token.id),
        (await store.tokens.page())[0],
    ):
        assert found is not None
        assert (found.state, found.revoked_at) == ("expired", None)


async def test_revoked_token_is_invalid_and_stays_revoked(backend: Backend) -> None:
    store = backend.store
    token, value = await create(backend.store, lifetime=HOUR)
    revoked = await store.tokens.revoke(token.id, actor="bob", origin="")
    assert revoked.state == "revoked"
    assert await store.tokens.find(hash_secret(value)) == revoked
    await backend.advance(2 * HOUR)
    again = await store.tokens.revoke(token.id, actor="eve", origin="")
    assert (again.state, again.revoked_at) == ("revoked", revoked.revoked_at)
    assert [(entry.action, entry.actor) for entry in await store.audit_log.page()] == [
        ("tokens.revoke", "bob"),  # The second revocation has no effect, so it adds no audit log entry.
        ("tokens.create", "ada"),
    ]


async def test_token_of_another_tenant_is_not_found(backend: Backend) -> None:
    store = backend.store
    token, value = await create(backend.store, tenant="acme")
    refusals = []
    for token_id in (token.id, "tok_none"):
        with pytest.raises(NotFound) as refused:
            await store.tokens.revoke(token_id, tenant="globex", actor="eve", origin="")
        refusals.append(str(refused.value))
    assert refusals[0] == refusals[1]
    assert (await store.tokens.find(hash_secret(value)) or token).state == "valid"
    assert len(await store.audit_log.page()) == 1
    assert (await store.tokens.revoke(token.id, tenant="acme", actor="ada", origin="")).state == "revoked"


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
async def test_invalid_tokens_are_rejected(store: Store, options: dict[str, object]) -> None:
    with pytest.raises(DefinitionError):
        await create(store, **{"name": "ci", **options})  # type: ignore[arg-type]
    assert await store.tokens.page() == []
    assert await store.audit_log.page() == []


async def test_tokens_are_listed_by_pages_and_tenants(store: Store) -> None:
    made = [(await create(store, f"t{n}", tenant="acme" if n % 2 else "globex"))[0] for n in range(7)]
    newest_first = list(reversed(made))
    seen: list[Token] = []
    while page := await store.tokens.page(before=seen[-1].id if seen else None, limit=3):
        seen += page
    assert seen == newest_first
    assert await store.tokens.page(tenant="acme") == [token for token in newest_first if token.tenant == "acme"]
    assert await store.tokens.page(tenant="*") == []


async def test_store_tells_whether_any_token_exists_and_is_valid(backend: Backend) -> None:
    store = backend.store
    assert await store.tokens.exist() == (False, False)
    token, _ = await create(backend.store)
    assert await store.tokens.exist() == (True, True)
    await store.tokens.revoke(token.id, actor="ada", origin="")
    assert await store.tokens.exist() == (True, False)
    await create(backend.store, lifetime=HOUR)
    assert await store.tokens.exist() == (True, True)
    await backend.advance(2 * HOUR)
    assert await store.tokens.exist() == (True, False)


async def test_racing_revocations_add_one_audit_log_entry(shared: Backend) -> None:
    stores = [shared.store, await shared.another(), await shared.another()]
    token, _ = await create(shared.store)
    ended = await asyncio.gather(
        *(store.tokens.revoke(token.id, actor=f"a{n}", origin="") for n, store in enumerate(stores))
    )
    assert {one.state for one in ended} == {"revoked"}
    assert len({one.revoked_at for one in ended}) == 1
    assert [entry.action for entry in await shared.store.audit_log.page()].count("tokens.revoke") == 1
