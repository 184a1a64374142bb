"""API tokens, of which the store keeps only a hash.

A token is 256 random bits, so a fast hash is safe: its SHA-256 cannot be inverted by guessing, and a slow hash would
slow down every request. A token is looked up by its hash, so a secret is never compared byte by byte.
"""

import secrets
from typing import Final

import msgspec

from headway.core.access import ROLES, SECRET_BYTES, TOKEN_PREFIX, Token, hash_secret
from headway.core.clock import Clock
from headway.core.errors import DefinitionError, NotFound
from headway.core.instants import Duration
from headway.core.validation import check_name
from headway.store.audit_log import add_entry
from headway.store.transaction import Driver, Row, Transaction, call

PAGE_MAX: Final = 200
_LAST_ID: Final = "~"  # Sorts after every id.


class StoreTokens:
    """The tokens of one store. Creating and revoking one is recorded in the audit log in the same transaction."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def create(
        self, *, name: str, tenant: str, role: str, lifetime: Duration | None, actor: str, origin: str
    ) -> tuple[Token, str]:
        """Create a token; return it with its value, which cannot be read again."""
        check_name(name, "name")
        check_name(tenant, "tenant")
        if role not in ROLES:
            raise DefinitionError(f"role must be one of {', '.join(ROLES)}, not {role[:40]!r}")
        if lifetime is not None and lifetime <= 0:
            raise DefinitionError("a token must live longer than no time at all")
        token_id, value = self._clock.new_id("tok"), TOKEN_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        detail = msgspec.json.encode({"name": name, "tenant": tenant, "role": role}).decode()

        def create() -> Transaction[Row]:
            rows = yield call(
                "add_token",
                id=token_id,
                hash=hash_secret(value),
                tenant=tenant,
                role=role,
                name=name,
                created_by=actor,
                lifetime=lifetime,
            )
            yield add_entry(actor, tenant, origin, "tokens.create", token_id, detail)
            return rows[0]

        return _read_token(await self._driver.run(create)), value

    async def revoke(self, token_id: str, *, tenant: str | None = None, actor: str, origin: str) -> Token:
        """Revoke a token, of this tenant if one is given. Revoking it again changes nothing."""

        def revoke() -> Transaction[Row]:
            revoked = yield call("revoke_token", id=token_id, tenant=tenant)
            rows = yield call("token_by_id", id=token_id)
            if not rows or (tenant is not None and rows[0]["tenant"] != tenant):
                raise NotFound("no token has this id")
            if revoked:
                detail = msgspec.json.encode({"name": rows[0]["name"], "role": rows[0]["role"]}).decode()
                yield add_entry(actor, rows[0]["tenant"], origin, "tokens.revoke", token_id, detail)
            return rows[0]

        return _read_token(await self._driver.run(revoke))

    async def find(self, value_hash: str) -> Token | None:
        """Return the token whose value has this hash, valid or not."""
        rows = await self._driver.fetch(call("token_by_hash", hash=value_hash))
        return _read_token(rows[0]) if rows else None

    async def get(self, token_id: str) -> Token | None:
        """Return a token by its id, valid or not."""
        rows = await self._driver.fetch(call("token_by_id", id=token_id))
        return _read_token(rows[0]) if rows else None

    async def page(self, *, tenant: str | None = None, before: str | None = None, limit: int = PAGE_MAX) -> list[Token]:
        """Read tokens with an id below `before`, newest first."""
        rows = await self._driver.fetch(call("tokens", tenant=tenant, before=before or _LAST_ID, limit=limit))
        return [_read_token(row) for row in rows]

    async def exist(self) -> tuple[bool, bool]:
        """Return whether a token was ever created, and whether one is valid."""
        row = (await self._driver.fetch(call("any_token")))[0]
        return bool(row["made"]), bool(row["usable"])


def _read_token(row: Row) -> Token:
    return Token(
        id=row["id"],
        tenant=row["tenant"],
        role=row["role"],
        name=row["name"],
        created_at=row["created_at"],
        created_by=row["created_by"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        state=row["state"],
    )
