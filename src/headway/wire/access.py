"""Tokens, callers and the audit log as JSON."""

from typing import Annotated, Any, Final, Literal

import msgspec

from headway.core import access as model
from headway.core.instants import isoformat
from headway.wire.base import Resource, Time, example, stamp
from headway.wire.masking import masked

Role = Literal["viewer", "operator", "admin"]

_TOKEN: Final[dict[str, Any]] = {
    "id": "tok_01m7h07rq30wjd03gjnmt8r3pz",
    "name": "ci",
    "tenant": "acme",
    "role": "operator",
    "state": "valid",
    "created_at": "2027-01-31T06:00:00Z",
    "created_by": "ada",
    "expires_at": "2027-05-01T06:00:00Z",
    "revoked_at": None,
}


@example(_TOKEN, known_by=frozenset({"id", "role", "state"}))
class Token(Resource):
    """A token. Only a hash of its value is stored, so the value cannot be shown again."""

    id: str
    name: Annotated[str, msgspec.Meta(description="who or what uses it")]
    tenant: Annotated[str, msgspec.Meta(description="the tenant that it sees, `*` for all")]
    role: Role
    state: Literal["valid", "expired", "revoked"]
    created_at: Time
    created_by: str
    expires_at: Time | None
    revoked_at: Time | None


@example({**_TOKEN, "token": "hw_…"}, known_by=frozenset({"id", "role", "state", "token"}))
class CreatedToken(Token):
    """A new token with its value, which is shown only once."""

    token: Annotated[str, msgspec.Meta(description="the value to send as `Authorization: Bearer`")]


@example(
    {"name": "ci", "tenant": "acme", "role": "operator", "token_id": "tok_01m7h07rq30wjd03gjnmt8r3pz"},
    known_by=frozenset({"name", "tenant", "role", "token_id"}),
)
class Me(Resource):
    """The caller: the name, tenant and role of the credential."""

    name: str
    tenant: str
    role: Role
    token_id: str | None


@example(
    {
        "name": "ada",
        "tenant": "*",
        "role": "admin",
        "token_id": "tok_01m7h07rq30wjd03gjnmt8r3pz",
        "expires_at": "2027-02-07T06:00:00Z",
    },
    known_by=frozenset({"name", "tenant", "role", "token_id", "expires_at"}),
)
class BrowserSession(Me):
    """A signed-in browser, and when its session ends."""

    expires_at: Time


@example(
    {
        "at": "2027-01-31T06:00:00Z",
        "actor": "ada",
        "tenant": "acme",
        "origin": "192.0.2.7",
        "action": "tokens.create",
        "target": "tok_01m7h07rq30wjd03gjnmt8r3pz",
        "detail": {"name": "ci", "tenant": "acme", "role": "operator"},
    },
    known_by=frozenset({"actor", "action", "target"}),
)
class AuditLogEntry(Resource):
    """An action of an operator or admin."""

    at: Time
    actor: Annotated[str, msgspec.Meta(description="the name of the token that was used; `cli` on the store itself")]
    tenant: str
    origin: Annotated[str, msgspec.Meta(description="the address or the user and machine that the action came from")]
    action: str
    target: str
    detail: Any


def token_of(token: model.Token) -> Token:
    """Return a token as the API shows it."""
    return Token(**_fields(token))


def created_token_of(token: model.Token, value: str) -> CreatedToken:
    """Return a new token with its value."""
    return CreatedToken(**_fields(token), token=value)


def _fields(token: model.Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "tenant": token.tenant,
        "role": token.role,
        "state": token.state,
        "created_at": stamp(token.created_at),
        "created_by": token.created_by,
        "expires_at": stamp(token.expires_at),
        "revoked_at": stamp(token.revoked_at),
    }


def audit_log_entry_of(action: model.AuditRecord) -> AuditLogEntry:
    """Return an entry of the audit log; values that look like secrets are masked."""
    return AuditLogEntry(
        at=isoformat(action.at),
        actor=action.actor,
        tenant=action.tenant,
        origin=action.origin,
        action=action.action,
        target=action.target,
        detail=masked(action.detail),
    )
