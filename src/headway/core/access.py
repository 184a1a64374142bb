"""Tokens, sessions and entries of the audit log."""

from dataclasses import dataclass

from headway.core.instants import Instant
from headway.core.json_values import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is known of a token; its value is known to its holder only. `state` is valid, expired or revoked."""

    id: str
    tenant: str
    role: str
    name: str
    created_at: Instant
    created_by: str
    expires_at: Instant | None
    revoked_at: Instant | None
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A session of somebody who has signed in: it may what the token with this hash may, until then at most."""

    token_hash: str
    expires_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A line of the trail: who did what to what, of which tenant, from where."""

    seq: int
    at: Instant
    actor: str
    tenant: str
    origin: str
    action: str
    target: str
    detail: JsonObject
