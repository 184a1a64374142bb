"""Sessions on every database: only hashes are stored, and sessions expire."""

import pytest

from headway.core.access import Login, hash_secret
from headway.core.instants import HOUR, MINUTE, SECOND
from headway.store import Store
from tests.conformance.backend import Backend


async def sign_in(store: Store, token_hash: str, **options: object) -> tuple[Login, str]:
    given = {"lifetime": HOUR, "actor": "ada", "tenant": "acme", "target": "tok_1", "origin": "192.0.2.7", **options}
    return await store.sessions.sign_in(token_hash, **given)  # type: ignore[arg-type]


async def test_only_hashes_of_a_session_are_stored(backend: Backend) -> None:
    store = backend.store
    login, value = await sign_in(backend.store, hash_secret("hw_t"))
    [row] = await backend.sql("select * from headway_sessions")
    assert (row["hash"], row["token_hash"]) == (hash_secret(value), hash_secret("hw_t"))
    assert len(value) >= 43
    assert await store.sessions.get(hash_secret(value)) == login
    assert login.expires_at == row["created_at"] + HOUR
    assert await store.sessions.get(value) is None
    [entry] = await store.audit_log.page()
    assert (entry.actor, entry.tenant, entry.action, entry.target, entry.origin) == (
        *("ada", "acme", "sessions.create"),
        *("tok_1", "192.0.2.7"),
    )


async def test_session_ends_by_the_store_clock_or_by_sign_out(backend: Backend) -> None:
    store = backend.store
    (_, one), (_, two) = await sign_in(backend.store, "a"), await sign_in(backend.store, "b", lifetime=2 * HOUR)
    await store.sessions.sign_out(hash_secret("nobody's"))
    await backend.advance(HOUR + MINUTE)
    assert await store.sessions.get(hash_secret(one)) is None
    assert (await store.sessions.get(hash_secret(two))) is not None
    await store.sessions.sign_out(hash_secret(two))
    await store.sessions.sign_out(hash_secret(two))
    assert await store.sessions.get(hash_secret(two)) is None
    await sign_in(backend.store, "c")  # The next sign-in deletes expired sessions.
    assert len(await backend.sql("select * from headway_sessions")) == 1


async def test_number_of_sessions_per_token_is_limited(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.store.sessions.SESSIONS_MAX", 3)
    _, other = await sign_in(backend.store, "other")
    values = []
    for _ in range(5):
        values.append((await sign_in(backend.store, "one"))[1])
        await backend.advance(SECOND)
    found = [await backend.store.sessions.get(hash_secret(value)) for value in (*values, other)]
    assert [login is not None for login in found] == [False, False, True, True, True, True]
