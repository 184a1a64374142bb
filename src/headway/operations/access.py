"""Access: the caller, tokens, and the audit log.

An admin of one tenant creates, sees and revokes tokens of that tenant only, and reads its part of the audit log.
"""

from typing import Annotated, Final

import msgspec

from headway.core.errors import DefinitionError, Denied
from headway.core.instants import parse_duration, parse_instant
from headway.core.validation import NAME_LENGTH_MAX
from headway.operations.caller import Caller
from headway.operations.verbs import OperationGroup, verb
from headway.wire.access import (
    AuditLogEntry,
    CreatedToken,
    Me,
    Role,
    Token,
    audit_log_entry_of,
    created_token_of,
    token_of,
)
from headway.wire.base import PAGE_DEFAULT, Cursor, Limit, Page, Time

_SEQUENCE_DIGITS_MAX: Final = 18

_Name = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX, description="who or what will use it", examples=["ci"]),
]
_Role = Annotated[
    Role, msgspec.Meta(description="each role includes the rights of the roles before it", examples=["operator"])
]
_TokenTenant = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=NAME_LENGTH_MAX,
        description="the tenant that it sees, `*` for all; by default that of the caller",
        examples=["acme"],
    ),
]
_ExpiresIn = Annotated[
    str,
    msgspec.Meta(
        min_length=2,
        max_length=64,
        description="how long it is valid; by default until it is revoked",
        examples=["90d"],
    ),
]
_Tenant = Annotated[str, msgspec.Meta(description="only of this tenant", examples=["acme"])]
_Actor = Annotated[str, msgspec.Meta(description="only actions of this actor", examples=["ada"])]
_Action = Annotated[str, msgspec.Meta(description="only this kind of action", examples=["tokens.create"])]
_Target = Annotated[
    str, msgspec.Meta(description="only actions on this target", examples=["tok_01m7h07rq30wjd03gjnmt8r3pz"])
]
_Since = Annotated[Time, msgspec.Meta(description="only from this time on", examples=["2027-01-31T00:00:00Z"])]
_Until = Annotated[Time, msgspec.Meta(description="only before this time", examples=["2027-02-01T00:00:00Z"])]


class Identity(OperationGroup):
    """The caller."""

    @verb("GET /api/me", id="who_am_i", role="viewer")
    async def show(self) -> Me:
        """Return the caller.

        The name, tenant and role of the credential that came with the request.
        """
        principal = self.caller.principal
        return msgspec.convert(
            {
                "name": principal.name,
                "tenant": principal.tenant,
                "role": principal.role,
                "token_id": principal.token_id,
            },
            Me,
        )


class Tokens(OperationGroup):
    """Tokens for the API."""

    @verb("GET /api/tokens", id="list_tokens", role="admin")
    async def list(
        self, *, tenant: _Tenant | None = None, limit: Limit = PAGE_DEFAULT, cursor: Cursor | None = None
    ) -> Page[Token]:
        """List tokens, the newest first.

        Their values are not stored, so they cannot be shown.
        """
        found = await self.caller.store.tokens.page(tenant=_visible(self.caller, tenant), before=cursor, limit=limit)
        return Page([token_of(token) for token in found], found[-1].id if len(found) == limit else None)

    @verb(
        "POST /api/tokens",
        id="create_token",
        role="admin",
        status=201,
        location=lambda token: f"/api/tokens/{token.id}",
    )
    async def create(
        self, *, name: _Name, role: _Role, tenant: _TokenTenant | None = None, expires_in: _ExpiresIn | None = None
    ) -> CreatedToken:
        """Create a token.

        The response contains its value. This is the only time: only a hash of it is stored. Creating the first token
        turns on sign-in.
        """
        whose = self.caller.principal.tenant if tenant is None else tenant
        if not self.caller.principal.sees(whose):
            raise Denied("tenant: your token belongs to another tenant and cannot create tokens for this one")
        token, value = await self.caller.store.tokens.create(
            name=name,
            tenant=whose,
            role=role,
            lifetime=None if expires_in is None else parse_duration(expires_in, what="expires_in"),
            actor=self.caller.name,
            origin=self.caller.origin,
        )
        return created_token_of(token, value)

    @verb("DELETE /api/tokens/{id}", id="revoke_token", role="admin")
    async def revoke(self, id: str) -> Token:
        """Revoke a token.

        It is refused within five seconds, also on open streams. Revoking it again changes nothing.
        """
        return token_of(
            await self.caller.store.tokens.revoke(
                id, tenant=self.caller.tenant, actor=self.caller.name, origin=self.caller.origin
            )
        )


class AuditLog(OperationGroup):
    """The audit log: what operators and admins did."""

    @verb("GET /api/audit-log", id="read_audit_log", role="admin", aliases={"/api/trail": "read_trail"})
    async def list(
        self,
        *,
        actor: _Actor | None = None,
        action: _Action | None = None,
        target: _Target | None = None,
        tenant: _Tenant | None = None,
        since: _Since | None = None,
        until: _Until | None = None,
        limit: Limit = PAGE_DEFAULT,
        cursor: Cursor | None = None,
    ) -> Page[AuditLogEntry]:
        """Read the audit log, the newest entries first.

        It contains every action of an operator or admin. The database refuses to change or delete an entry.
        """
        found = await self.caller.store.audit_log.page(
            tenant=_visible(self.caller, tenant),
            actor=actor,
            action=action,
            target=target,
            since=None if since is None else parse_instant(since),
            until=None if until is None else parse_instant(until),
            before=None if cursor is None else _sequence(cursor),
            limit=limit,
        )
        following = str(found[-1].seq) if len(found) == limit else None
        return Page([audit_log_entry_of(entry) for entry in found], following)


def _sequence(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= _SEQUENCE_DIGITS_MAX):
        raise DefinitionError("cursor must be the `next_cursor` of the page before")
    return int(cursor)


def _visible(caller: Caller, tenant: str | None) -> str | None:
    """Return the tenant to read; None for all. A caller with one tenant sees no other tenant."""
    if caller.tenant is not None and tenant not in (None, caller.tenant):
        raise Denied("tenant: this token sees one tenant only; leave it out")
    return caller.tenant or tenant
