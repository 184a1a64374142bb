"""Sessions of users who signed in to the dashboard with a token. The store keeps only hashes of both."""

import secrets
from typing import Final

from headway.core.access import SECRET_BYTES, Login, hash_secret
from headway.core.instants import Duration
from headway.store.audit_log import add_entry
from headway.store.transaction import Driver, Row, Transaction, call

SESSIONS_MAX: Final = 100  # Per token; beyond that the oldest sessions end.


class StoreSessions:
    """The sessions of one store."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def sign_in(
        self, token_hash: str, *, lifetime: Duration, actor: str, tenant: str, target: str, origin: str
    ) -> tuple[Login, str]:
        """Start a session for a token and record it in the audit log; return it with the value for the cookie."""
        value = secrets.token_urlsafe(SECRET_BYTES)

        def begin() -> Transaction[Row]:
            rows = yield call("add_session", hash=hash_secret(value), token_hash=token_hash, lifetime=lifetime)
            yield call("end_old_sessions", token_hash=token_hash, kept=SESSIONS_MAX)
            yield add_entry(actor, tenant, origin, "sessions.create", target, "{}")
            return rows[0]

        row = await self._driver.run(begin)
        return Login(token_hash=token_hash, expires_at=row["expires_at"]), value

    async def get(self, session_hash: str) -> Login | None:
        """Return the session whose value has this hash, unless it is over."""
        rows = await self._driver.fetch(call("session_by_hash", hash=session_hash))
        return Login(token_hash=rows[0]["token_hash"], expires_at=rows[0]["expires_at"]) if rows else None

    async def sign_out(self, session_hash: str) -> None:
        """End a session."""
        await self._driver.fetch(call("end_session", hash=session_hash))
