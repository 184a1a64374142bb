"""Authentication: turn the credential of a request into a principal, or refuse it.

A token is looked up by the hash of its value, and the result is cached for two seconds. So a revoked or expired token
is refused within five seconds, also on open streams, and a busy client costs one read every two seconds. If the store
does not answer, no one is let in.

Wrong tokens are rate limited: ten a minute from one address get 401, further ones get 429. A valid token is accepted
even then: many clients share the address of a proxy, and one with a wrong token must not lock out the others. So the
token is compared first. The token from the settings costs nothing to compare, and settings reject one that could be
guessed. Tokens in the store are looked up only a few times a second for addresses over the limit.

A signed-in browser sends a session instead. It stands for the token that it was created with, and has the current
rights of that token. An expired session is not a wrong token, so it is not counted, but lookups of unknown sessions are
rate limited too.
"""

import asyncio
import ipaddress
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import lru_cache
from hmac import compare_digest
from math import ceil
from typing import Final, Generic, TypeVar

from headway.core.access import TOKEN_PREFIX, Login, SessionRecords, Token, TokenRecords, hash_secret
from headway.core.clock import Clock
from headway.core.errors import InvalidConfig, StoreUnavailable
from headway.core.events import AccessRefused, emit
from headway.core.settings import read_secret
from headway.core.tenants import ALL_TENANTS
from headway.operations.caller import Principal
from headway.server.refusals import Refused

FRESH_S: Final = 2.0
CHECK_EVERY_S: Final = 2.0  # Open streams call `still_valid` at this interval.
FAILURES_MAX: Final = 10
FAILURES_WINDOW_S: Final = 60.0
LOOKS_A_SECOND: Final = 200  # Lookups of tokens from addresses over the limit.
SESSION_LOOKS_A_SECOND: Final = 100  # Lookups of sessions that are not cached.
CLIENTS_MAX: Final = 10_000
TOKENS_MAX: Final = 10_000
VALUE_LENGTH_MAX: Final = 512

ANONYMOUS: Final = Principal("anonymous", ALL_TENANTS, "admin")
ENVIRONMENT: Final = Principal("HEADWAY_TOKEN", ALL_TENANTS, "admin", token_id="environment")
_INVALID: Final = ', error="invalid_token"'

T = TypeVar("T")


class Authenticator:
    """Authenticates requests. `is_loopback` means that only this machine can reach the server."""

    def __init__(
        self, tokens: TokenRecords, sessions: SessionRecords, clock: Clock, *, is_loopback: bool, token: str | None
    ) -> None:
        self._clock = clock
        self._is_loopback = is_loopback
        self._environment_hash = None if token is None else hash_secret(read_secret("the setting token", token))
        self._by_hash = _Lookups(clock, tokens.find)
        self._by_id = _Lookups(clock, tokens.get)
        self._by_session = _Lookups(clock, sessions.get)
        self._is_closed = _Lookups(clock, lambda _: _was_made(tokens))
        self._failures = _Failures(clock)
        self._looks = _Looks(clock, LOOKS_A_SECOND)
        self._session_looks = _Looks(clock, SESSION_LOOKS_A_SECOND)

    async def admit(self, authorization: str | None, client: str, session: str | None = None) -> Principal:
        """Return the principal; raise `Refused`: 401 without a valid credential, 429 after too many wrong tokens.

        A session counts only if no token is sent.
        """
        if authorization is None:
            found = None if session is None else await self._admit_session(hash_secret(session), client)
            if found is not None:
                return found
            if await self._is_open(client):
                return ANONYMOUS
            raise _unauthorized(
                "a token is required: send the header Authorization: Bearer …"
                if session is None
                else "the session has ended: sign in again"
            )
        scheme, _, value = authorization.strip().partition(" ")
        value = value.strip()
        is_readable = scheme.lower() == "bearer" and 0 < len(value) <= VALUE_LENGTH_MAX and value.isascii()
        if not is_readable:
            raise self._failed(client, "the header Authorization must have the form: Bearer TOKEN")
        digest, is_ours = hash_secret(value), value.startswith(TOKEN_PREFIX)
        is_known = self._is_environment(digest) or self._was_let_in(digest)
        if not is_known and self._is_limited(client) and not (is_ours and self._looks.take()):
            raise self._failed(client, "the token was not checked")
        token = await self._by_hash.get(digest) if is_ours else None
        if token is None and self._is_environment(digest):
            return ENVIRONMENT
        if token is None:
            raise self._failed(client, "unknown token")
        if not self._is_valid(token):
            raise self._ended(client, token)
        return Principal(token.name, token.tenant, token.role, token.id)

    async def _admit_session(self, session_hash: str, client: str) -> Principal | None:
        """Return the principal of a session, if it is valid and the token that it was created with still is."""
        login = await self._login(session_hash)
        if login is None or not self._is_going_on(login):
            return None
        if self._is_environment(login.token_hash):
            return replace(ENVIRONMENT, session=session_hash)
        token = await self._by_hash.get(login.token_hash)
        if token is None:  # The session was created with an earlier token of the settings.
            return None
        if not self._is_valid(token):
            raise self._ended(client, token)
        return Principal(token.name, token.tenant, token.role, token.id, session=session_hash)

    async def _login(self, session_hash: str) -> Login | None:
        """Look up a session; lookups of sessions that are not cached are rate limited."""
        if self._by_session.last(session_hash) is None and not self._session_looks.take():
            raise Refused(429, "too_many", "too many unknown sessions", headers={"Retry-After": "1"})
        return await self._by_session.get(session_hash)

    async def knows_session(self, session_hash: str) -> bool:
        """Return whether this session exists, valid or not."""
        return await self._login(session_hash) is not None

    def forget_session(self, session_hash: str) -> None:
        """Remove a session that was ended here from the cache."""
        self._by_session.forget(session_hash)

    async def still_valid(self, principal: Principal) -> bool:
        """Return whether a principal would still be admitted; for streams, which live long.

        While the store does not answer, a stream has nothing to send, so it may stay open.
        """
        if principal.session is not None and not await self._goes_on(principal.session):
            return False
        if principal.token_id == ENVIRONMENT.token_id:
            return True
        try:
            if principal.token_id is None:
                return await self._is_open("")
            token = await self._by_id.get(principal.token_id)
        except StoreUnavailable:
            token = self._by_id.last(principal.token_id or "")
            return token is None or self._is_valid(token)
        return token is not None and self._is_valid(token)

    async def _goes_on(self, session_hash: str) -> bool:
        try:
            login = await self._by_session.get(session_hash)
        except StoreUnavailable:
            login = self._by_session.last(session_hash)
            return login is None or self._is_going_on(login)
        return login is not None and self._is_going_on(login)

    def _is_going_on(self, login: Login) -> bool:
        return self._clock.now() < login.expires_at

    async def _is_open(self, client: str) -> bool:
        """Return whether no credential is needed: on loopback, as long as no token was ever created."""
        if not self._is_loopback or self._environment_hash is not None or _is_remote(client):
            return False
        return not await self._is_closed.get("")

    def _is_limited(self, client: str) -> bool:
        return self._failures.wait_s(client) > 0

    def _is_environment(self, digest: str) -> bool:
        return self._environment_hash is not None and compare_digest(digest, self._environment_hash)

    def _was_let_in(self, digest: str) -> bool:
        token = self._by_hash.last(digest)
        return token is not None and self._is_valid(token)

    def _is_valid(self, token: Token) -> bool:
        return token.state == "valid" and (token.expires_at is None or self._clock.now() < token.expires_at)

    def _failed(self, client: str, reason: str) -> Refused:
        """Return the refusal for a wrong token."""
        wait_s = self._failures.wait_s(client)
        if wait_s > 0:
            return Refused(
                429,
                "too_many_failures",
                f"too many wrong tokens from this address; try again in {wait_s} s",
                headers={"Retry-After": str(wait_s)},
            )
        self._tell(client, client, reason)
        return _unauthorized(reason, _INVALID)

    def _ended(self, client: str, token: Token) -> Refused:
        """Refuse a revoked or expired token. It is not counted as wrong: its holder is not guessing."""
        reason = "the token was revoked" if token.revoked_at else "the token has expired"
        if self._failures.wait_s(token.id) == 0:
            self._tell(token.id, client, f"{reason}: {token.id}")
        return _unauthorized(reason, _INVALID)

    def _tell(self, key: str, client: str, reason: str) -> None:
        """Count a failure and log it, without the value of the token."""
        self._failures.count(key)
        is_limited = self._failures.wait_s(key) > 0
        emit(AccessRefused(node=self._clock.node, client=client, reason=reason, is_limited=is_limited))


def _unauthorized(message: str, problem: str = "") -> Refused:
    return Refused(
        401,
        "unauthorized",
        message,
        hint="create one with `headway tokens create`",
        headers={"WWW-Authenticate": f'Bearer realm="headway"{problem}'},
    )


async def _was_made(tokens: TokenRecords) -> bool:
    made, _ = await tokens.exist()
    return made


@lru_cache(1_024)
def _is_remote(client: str) -> bool:
    """Return whether a proxy reports that the request came from another machine."""
    try:
        return not ipaddress.ip_address(client).is_loopback
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether an address or host name is loopback: only this machine can reach it."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(address).is_loopback for address in found)


async def require_credential(tokens: TokenRecords, *, host: str, token: str | None) -> None:
    """Raise an error if other machines can reach this address and there is no valid token."""
    if token is not None or is_loopback(host):
        return
    made, usable = await tokens.exist()
    if not usable:
        reason = "every token has expired or was revoked" if made else "there is no token yet"
        raise InvalidConfig(
            f"other machines can reach {host}, and {reason}: create one with `headway tokens create`, or set"
            " HEADWAY_TOKEN, or listen at 127.0.0.1"
        )


class _Lookups(Generic[T]):
    """A cache of store reads for two seconds; concurrent callers share one read (single-flight)."""

    def __init__(self, clock: Clock, load: Callable[[str], Awaitable[T | None]]) -> None:
        self._clock = clock
        self._load = load
        self._found: OrderedDict[str, tuple[float, T]] = OrderedDict()
        self._loading: dict[str, asyncio.Task[T | None]] = {}

    def last(self, key: str) -> T | None:
        """Return the last result, however old, or None."""
        known = self._found.get(key)
        return None if known is None else known[1]

    def forget(self, key: str) -> None:
        """Drop a cached result, so that the next call reads the store."""
        self._found.pop(key, None)

    async def get(self, key: str) -> T | None:
        """Return the value from the store, or the cached one."""
        known = self._found.get(key)
        if known is not None and self._clock.monotonic() - known[0] < FRESH_S:
            self._found.move_to_end(key)
            return known[1]
        task = self._loading.get(key)
        if task is None:
            task = self._loading[key] = asyncio.create_task(self._read(key))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # Even if all callers left.
        return await asyncio.shield(task)

    async def _read(self, key: str) -> T | None:
        asked_at = self._clock.monotonic()
        try:
            value = await self._load(key)
        finally:
            del self._loading[key]
        if value is None:  # Misses are not cached, so that strangers cannot fill the memory.
            self._found.pop(key, None)
        else:
            self._found[key] = (asked_at, value)
            self._found.move_to_end(key)
            if len(self._found) > TOKENS_MAX:
                self._found.popitem(last=False)
        return value


class _Failures:
    """Counts wrong tokens by address, for a minute from the first; evicts the oldest address first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clients: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def count(self, client: str) -> None:
        """Count one more."""
        now, key = self._clock.monotonic(), _network(client)
        while self._clients and next(iter(self._clients.values()))[0] <= now - FAILURES_WINDOW_S:
            self._clients.popitem(last=False)
        since, number = self._clients.get(key, (now, 0))
        self._clients[key] = (since, number + 1)
        if len(self._clients) > CLIENTS_MAX:
            self._clients.popitem(last=False)

    def wait_s(self, client: str) -> int:
        """Return how many more seconds this client is over the limit."""
        since, number = self._clients.get(_network(client), (0.0, 0))
        left_s = since + FAILURES_WINDOW_S - self._clock.monotonic()
        return max(0, ceil(left_s)) if number >= FAILURES_MAX else 0


class _Looks:
    """A rate limit for store lookups on behalf of unauthenticated clients."""

    def __init__(self, clock: Clock, most: int) -> None:
        self._clock = clock
        self._most = most
        self._second = -1
        self._left = 0

    def take(self) -> bool:
        """Take one lookup from the budget of this second; return whether one was left."""
        second = int(self._clock.monotonic())
        if second != self._second:
            self._second, self._left = second, self._most
        self._left -= 1
        return self._left >= 0


def _network(client: str) -> str:
    """Return the key of a client: its IPv4 address, or its IPv6 network, since a host can use many IPv6 addresses."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(getattr(address, "ipv4_mapped", None) or address)
