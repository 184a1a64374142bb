"""Tokens, sessions and records of the audit log."""

import hashlib
from dataclasses import dataclass
from typing import Final, Protocol

from headway.core.instants import Duration, Instant
from headway.core.json_values import JsonObject

ROLES: Final = ("viewer", "operator", "admin")  # Each includes the rights of those before it.
TOKEN_PREFIX: Final = "hw_"  # Lets people and secret scanners recognise a token.
SECRET_BYTES: Final = 32
COMMAND_LINE: Final = "cli"  # The actor in the audit log for commands on a store.


def hash_secret(value: str) -> str:
    """Return the hash of a token or of a session's value; only this is stored."""
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token without its value, which only its holder knows. `state` is valid, expired or revoked."""

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
    """A session of a signed-in user: it has the rights of the token with this hash until it expires."""

    token_hash: str
    expires_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """An entry of the audit log as it was recorded: who did what to what, of which tenant, from where."""

    seq: int
    at: Instant
    actor: str
    tenant: str
    origin: str
    action: str
    target: str
    detail: JsonObject


class TokenRecords(Protocol):
    """The tokens that exist."""

    async def find(self, value_hash: str) -> Token | None:
        """Return the token whose value has this hash."""
        ...

    async def get(self, token_id: str) -> Token | None:
        """Return a token by its id."""
        ...

    async def exist(self) -> tuple[bool, bool]:
        """Return whether a token was ever created, and whether one is valid."""
        ...


class SessionRecords(Protocol):
    """The sessions that are open."""

    async def get(self, session_hash: str) -> Login | None:
        """Return the session whose value has this hash, unless it is over."""
        ...


class BrowserSessions(SessionRecords, Protocol):
    """The sessions of signed-in browsers."""

    async def sign_in(
        self, token_hash: str, *, lifetime: Duration, actor: str, tenant: str, target: str, origin: str
    ) -> tuple[Login, str]:
        """Begin a session with a token; return it, and the value that only the browser keeps."""
        ...

    async def sign_out(self, session_hash: str) -> None:
        """End a session."""
        ...
