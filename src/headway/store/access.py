"""Who may: tokens and sessions, of which only hashes are kept, and the trail of what people did, which only grows.

A token's value is 256 random bits, so nobody can guess it from its hash, however fast the hash is: SHA-256 does, and a
slow one would only make every request slow. It is found by its hash, so what a stranger sends is never compared with
a secret byte by byte. What the browser of somebody who has signed in keeps is a value of the same kind.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from headway.core.access import Action, Login, Token
from headway.core.clock import Clock
from headway.core.errors import DefinitionError, NotFound
from headway.core.instants import Duration, Instant
from headway.core.tenants import ALL_TENANTS
from headway.core.validation import check_name, storable
from headway.store.transaction import Call, Driver, Row, Transaction, as_json, call

ROLES: Final = ("viewer", "operator", "admin")  # Each may what those before it may.
TOKEN_PREFIX: Final = "hw_"  # So that people and scanners of leaked secrets know what they see.
TOKEN_BYTES: Final = 32
PAGE_MAX: Final = 200
SESSIONS_MAX: Final = 100  # With one token; of more, those that began first end.
_DETAIL_LENGTH_MAX: Final = 16_384
_TEXT_LENGTH_MAX: Final = 512
_LAST_ID: Final = "~"  # Sorts after every id.
_LAST_SEQ: Final = 2**63 - 1


def hash_of(value: str) -> str:
    """Return what is kept of a token's value."""
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def changed(result: Any) -> Mapping[str, Any] | None:
    """Take a result that is empty or false for: nothing was done, and there is nothing to tell."""
    return {} if result else None


@dataclass(frozen=True, slots=True)
class Deed:
    """What somebody is about to do, to what, and of which tenant; of none where it concerns all.

    Target and tenant may only be known from what the transaction returns. `seen` tells from it what more there is to
    say, or that nothing was done.
    """

    action: str
    target: str | Callable[[Any], str]
    tenant: str | Callable[[Any], str] | None
    detail: Mapping[str, Any] = field(default_factory=dict)
    seen: Callable[[Any], Mapping[str, Any] | None] = changed

    def nth(self, number: int) -> "Deed":
        """Return the same, done by a transaction that returns results of several deeds in their order."""
        return replace(self, seen=lambda results: self.seen(results[number]))

    def row(self, doer: "Doer", result: Any) -> dict[str, str] | None:
        """Return the line of the trail; None when nothing was done."""
        more = self.seen(result)
        if more is None:
            return None
        target = self.target(result) if callable(self.target) else self.target
        tenant = self.tenant(result) if callable(self.tenant) else self.tenant
        detail = msgspec.json.encode({**self.detail, **more}).decode()
        return _row(doer.actor, tenant or doer.tenant, doer.origin, self.action, target, detail)


@dataclass(frozen=True, slots=True)
class Doer:
    """Who does it, from where, and whose tenant he is."""

    actor: str
    origin: str
    tenant: str = ALL_TENANTS


def lines_of(doer: Doer, deeds: Iterable[Deed], result: Any) -> Iterator[Call]:
    """Write the lines of the trail, at one go; nothing where nothing was done."""
    rows = [row for deed in deeds if (row := deed.row(doer, result)) is not None]
    if rows:
        yield _lines(rows)


class StoreAccess:
    """Tokens and the trail as rows of the store."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def record(self, *, actor: str, tenant: str, origin: str, action: str, target: str, detail: str) -> None:
        """Add a line to the trail; the detail is JSON."""
        await self._driver.fetch(_line(actor, tenant, origin, action, target, detail))

    async def actions(
        self,
        *,
        tenant: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        target: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        before: int | None = None,
        limit: int = PAGE_MAX,
    ) -> list[Action]:
        """Read lines of the trail, the newest first, those with a number below `before`."""
        rows = await self._driver.fetch(
            call(
                "actions",
                tenant=tenant,
                actor=actor,
                action=action,
                target=target,
                since=since,
                until=until,
                before=_LAST_SEQ if before is None else before,
                limit=limit,
            )
        )
        return [_action(row) for row in rows]

    async def prune(self, retention: Duration, limit: int) -> int:
        """Delete lines of the trail that are older than the retention, the oldest first; return how many."""
        return len(await self._driver.fetch(call("prune_actions", age=retention, limit=limit)))

    async def create_token(
        self, *, name: str, tenant: str, role: str, lifetime: Duration | None, actor: str, origin: str
    ) -> tuple[Token, str]:
        """Make a token; return it with its value, which nobody can find out later. The trail tells who made it."""
        check_name(name, "name")
        check_name(tenant, "tenant")
        if role not in ROLES:
            raise DefinitionError(f"role must be one of {', '.join(ROLES)}, not {role[:40]!r}")
        if lifetime is not None and lifetime <= 0:
            raise DefinitionError("a token must live longer than no time at all")
        token_id, value = self._clock.new_id("tok"), TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
        detail = msgspec.json.encode({"name": name, "tenant": tenant, "role": role}).decode()

        def create() -> Transaction[Row]:
            rows = yield call(
                "add_token",
                id=token_id,
                hash=hash_of(value),
                tenant=tenant,
                role=role,
                name=name,
                created_by=actor,
                lifetime=lifetime,
            )
            yield _line(actor, tenant, origin, "tokens.create", token_id, detail)
            return rows[0]

        return _token(await self._driver.run(create)), value

    async def revoke_token(self, token_id: str, *, tenant: str | None = None, actor: str, origin: str) -> Token:
        """Let a token count no more; of one tenant only where one is given. To revoke it again changes nothing."""

        def revoke() -> Transaction[Row]:
            revoked = yield call("revoke_token", id=token_id, tenant=tenant)
            rows = yield call("token_by_id", id=token_id)
            if not rows or (tenant is not None and rows[0]["tenant"] != tenant):
                raise NotFound("no token has this id")
            if revoked:
                detail = msgspec.json.encode({"name": rows[0]["name"], "role": rows[0]["role"]}).decode()
                yield _line(actor, rows[0]["tenant"], origin, "tokens.revoke", token_id, detail)
            return rows[0]

        return _token(await self._driver.run(revoke))

    async def find_token(self, value_hash: str) -> Token | None:
        """Return the token whose value has this hash, valid or not."""
        rows = await self._driver.fetch(call("token_by_hash", hash=value_hash))
        return _token(rows[0]) if rows else None

    async def token(self, token_id: str) -> Token | None:
        """Return a token by its id, valid or not."""
        rows = await self._driver.fetch(call("token_by_id", id=token_id))
        return _token(rows[0]) if rows else None

    async def tokens(
        self, *, tenant: str | None = None, before: str | None = None, limit: int = PAGE_MAX
    ) -> list[Token]:
        """Read tokens, the newest first, those with an id below `before`."""
        rows = await self._driver.fetch(call("tokens", tenant=tenant, before=before or _LAST_ID, limit=limit))
        return [_token(row) for row in rows]

    async def any_token(self) -> tuple[bool, bool]:
        """Say whether a token was ever made, and whether one still counts."""
        row = (await self._driver.fetch(call("any_token")))[0]
        return bool(row["made"]), bool(row["usable"])

    async def sign_in(
        self, token_hash: str, *, lifetime: Duration, actor: str, tenant: str, target: str, origin: str
    ) -> tuple[Login, str]:
        """Begin a session for the holder of a token; return it with what the browser keeps. The trail tells of it."""
        value = secrets.token_urlsafe(TOKEN_BYTES)

        def begin() -> Transaction[Row]:
            rows = yield call("add_session", hash=hash_of(value), token_hash=token_hash, lifetime=lifetime)
            yield call("end_old_sessions", token_hash=token_hash, kept=SESSIONS_MAX)
            yield _line(actor, tenant, origin, "sessions.create", target, "{}")
            return rows[0]

        row = await self._driver.run(begin)
        return Login(token_hash=token_hash, expires_at=row["expires_at"]), value

    async def login(self, session_hash: str) -> Login | None:
        """Return the session whose value has this hash, unless it is over."""
        rows = await self._driver.fetch(call("session_by_hash", hash=session_hash))
        return Login(token_hash=rows[0]["token_hash"], expires_at=rows[0]["expires_at"]) if rows else None

    async def sign_out(self, session_hash: str) -> None:
        """Let a session count no more."""
        await self._driver.fetch(call("end_session", hash=session_hash))


def _line(actor: str, tenant: str, origin: str, action: str, target: str, detail: str) -> Call:
    return _lines([_row(actor, tenant, origin, action, target, detail)])


def _lines(rows: Sequence[Mapping[str, str]]) -> Call:
    return call("add_action", lines=as_json(rows))


def _row(actor: str, tenant: str, origin: str, action: str, target: str, detail: str) -> dict[str, str]:
    if len(detail) > _DETAIL_LENGTH_MAX:
        detail = '{"omitted":"too long"}'
    return {
        "actor": storable(actor, _TEXT_LENGTH_MAX),
        "tenant": storable(tenant, _TEXT_LENGTH_MAX),
        "origin": storable(origin, _TEXT_LENGTH_MAX),
        "action": storable(action, _TEXT_LENGTH_MAX),
        "target": storable(target, _TEXT_LENGTH_MAX),
        "detail": storable(detail, _DETAIL_LENGTH_MAX),
    }


def _token(row: Row) -> Token:
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


def _action(row: Row) -> Action:
    return Action(
        seq=row["seq"],
        at=row["at"],
        actor=row["actor"],
        tenant=row["tenant"],
        origin=row["origin"],
        action=row["action"],
        target=row["target"],
        detail=msgspec.json.decode(row["detail"]),
    )
