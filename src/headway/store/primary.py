"""Find the primary among PostgreSQL servers, and check whether a connection still leads to it.

After a failover the old primary may be unreachable, may be read-only, or may still accept writes although no standby
confirms its commits. The *timeline*, a number that grows with each promotion, tells them apart: of all servers that
accept writes, the one with the highest timeline is the primary. Behind one address (a virtual IP, a DNS name), a server
that was started later is the primary too.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit
from weakref import WeakKeyDictionary

import asyncpg

from headway.core.errors import StoreError, StoreUnavailable
from headway.core.settings import mask_url

CONNECT_S_MAX: Final = 5.0
IDENTIFY_S_MAX: Final = 1.5
SCOUT_S_MAX: Final = 1.5  # How long to wait for the others after one server accepts writes.
SUSPECT_S: Final = 1.5  # A statement that takes longer may wait for a server that is no longer primary.
CHECK_EVERY_S: Final = 1.5  # A connection is checked again after this time.
SCOUT_EVERY_S: Final = 2.0  # How often to check the other servers while all is well.
SPARE_S: Final = 0.1
FORGET_AFTER_S: Final = 30.0  # How long only the server promoted last is accepted as primary.

# A standby has no timeline of its own, and the function that reads it would fail.
_IDENTITY: Final = """\
select pg_is_in_recovery() or current_setting('transaction_read_only') = 'on' as is_read_only,
  cast(date_part('epoch', pg_postmaster_start_time()) * 1000000 as bigint) as started,
  case when pg_is_in_recovery() then 0
    else ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint end as timeline"""
_MODEST_IDENTITY: Final = "select current_setting('transaction_read_only') = 'on' as is_read_only"


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Timeline and start of a server; zero where unknown."""

    timeline: int = 0
    started: int = 0
    is_read_only: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """A server that was promoted, or else started, later ranks higher."""
        return self.timeline, self.started


UNKNOWN: Final = ServerIdentity()


def hosts_of(url: str) -> list[tuple[str, int | None]]:
    """Return the hosts of a URL, each with its port; none if the URL is malformed."""
    try:
        named = urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        return []
    return [_host_of(part) for part in named.split(",") if part]


def _host_of(part: str) -> tuple[str, int | None]:
    if part.startswith("["):
        host, _, port = part[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = part.partition(":")
    return unquote(host), int(port) if port.isdecimal() else None


class Primary:
    """Open connections to the primary, and detect those that no longer lead to it."""

    def __init__(self, url: str, options: Callable[[], dict[str, Any]]) -> None:
        self._url = url
        self._options = options
        hosts = hosts_of(url)
        self._hosts = hosts if len(hosts) > 1 else []  # With one host, asyncpg connects by the URL itself.
        self._found: tuple[str, int | None] | None = None
        self._best = UNKNOWN  # The server that was promoted, or started, last.
        self._servers: WeakKeyDictionary[asyncpg.Connection, ServerIdentity] = WeakKeyDictionary()
        self._checked_at: WeakKeyDictionary[asyncpg.Connection, float] = WeakKeyDictionary()
        self._best_heard_at = float("-inf")
        self._scouted_at = float("-inf")

    @property
    def is_one_of_several(self) -> bool:
        """Whether the URL names several servers."""
        return bool(self._hosts)

    async def connect(self) -> asyncpg.Connection:
        """Open a connection to the primary; with a single host, to that host."""
        if not self._hosts:
            return await self._open(None, CONNECT_S_MAX)
        if self._found is not None:
            with contextlib.suppress(StoreUnavailable):
                connection = await self._open(self._found, SCOUT_S_MAX)  # Else try the others soon.
                if self._is_right(connection):
                    return connection
                connection.terminate()
            self._found = None
        return await self._search(CONNECT_S_MAX)

    def is_due(self, connection: asyncpg.Connection) -> bool:
        """Return whether a connection should be checked before it is used."""
        return _now() - self._checked_at.get(connection, 0.0) >= CHECK_EVERY_S

    async def check(self, connection: asyncpg.Connection) -> bool:
        """Return whether a connection still leads to the primary."""
        try:
            await self._identify(connection, IDENTIFY_S_MAX)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
            self._found = None
            return False
        return self._is_right(connection)

    def wants_scouting(self) -> bool:
        """Return whether it is time to check the other servers."""
        return self.is_one_of_several and _now() - self._scouted_at >= SCOUT_EVERY_S

    async def scout(self) -> list[asyncpg.Connection]:
        """Check whether another server became the primary; return the connections that do not lead to it."""
        self._scouted_at = _now()
        try:
            async with asyncio.timeout(SCOUT_S_MAX + SPARE_S):
                connection = await (self._search(SCOUT_S_MAX) if self._hosts else self._open(None, SCOUT_S_MAX))
        except (StoreError, TimeoutError):
            return []
        try:
            return [known for known in self._servers if not known.is_closed() and not self._is_current(known)]
        finally:
            connection.terminate()

    def _is_right(self, connection: asyncpg.Connection) -> bool:
        """Return whether the server accepts writes and none was promoted after it."""
        return self._is_current(connection) and not self._servers.get(connection, UNKNOWN).is_read_only

    def _is_current(self, connection: asyncpg.Connection) -> bool:
        server, best = self._servers.get(connection, UNKNOWN), self._best
        if server.timeline == 0 or best.timeline == 0:
            return True
        if self._hosts:
            return server.timeline >= best.timeline
        return server.rank >= best.rank

    async def _search(self, within_s: float) -> asyncpg.Connection:
        """Connect to all servers concurrently; keep the one that accepts writes and was promoted last."""
        if _now() - self._best_heard_at > FORGET_AFTER_S:
            self._best = UNKNOWN  # It is replaced by servers with another history.
        tries = {asyncio.create_task(self._open(host, within_s)): host for host in self._hosts}
        try:
            await self._hear(set(tries), within_s)
            opened = {task: host for task, host in tries.items() if _is_open(task)}
            fit = [task for task in opened if self._is_right(task.result())]
            if not fit:
                where = f"PostgreSQL at {_place(self._url)}"
                raise StoreUnavailable(
                    f"cannot connect to {where}: {_reasons(tries)}; does HEADWAY_STORE name the primary?"
                )
            best = max(fit, key=lambda task: self._servers[task.result()].timeline)
            self._found = opened.pop(best)
            return best.result()
        finally:
            for task in tries:
                if not _is_open(task):
                    task.cancel()
                elif tries[task] != self._found:
                    task.result().terminate()

    async def _hear(self, waiting: set["asyncio.Task[asyncpg.Connection]"], within_s: float) -> None:
        """Wait for all answers, or only a moment longer once one server accepts writes."""
        ends = _now() + within_s
        while waiting and (rest_s := ends - _now()) > 0:
            done, waiting = await asyncio.wait(waiting, timeout=rest_s, return_when=asyncio.FIRST_COMPLETED)
            if any(_is_open(task) and self._is_right(task.result()) for task in done):
                ends = min(ends, _now() + SCOUT_S_MAX)

    async def _open(self, host: tuple[str, int | None] | None, within_s: float) -> asyncpg.Connection:
        where: dict[str, Any] = {} if host is None else {"host": host[0]}
        if host is not None and host[1] is not None:
            where["port"] = host[1]
        is_alone = host is None
        async with _translated(within_s, self._url, is_alone=is_alone):
            connection = await asyncpg.connect(
                self._url, timeout=within_s, target_session_attrs="any", **where, **self._options()
            )
        try:
            async with _translated(within_s, self._url, is_alone=is_alone):
                await self._identify(connection, within_s, is_new=True)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _identify(self, connection: asyncpg.Connection, within_s: float, *, is_new: bool = False) -> None:
        """Read the identity of a server; behind a pooler, or without the rights, only a part of it."""
        server = UNKNOWN
        try:
            row = await connection.fetchrow(_IDENTITY, timeout=within_s)
            server = ServerIdentity(row["timeline"], row["started"], row["is_read_only"])
        except asyncpg.PostgresError as error:
            if (error.sqlstate or "")[:2] in ("08", "57"):
                raise
            with contextlib.suppress(asyncpg.PostgresError):
                row = await connection.fetchrow(_MODEST_IDENTITY, timeout=within_s)
                server = ServerIdentity(is_read_only=row["is_read_only"])
        self._servers[connection] = server
        self._checked_at[connection] = _now()
        if server.is_read_only:
            return
        # Behind one address, the server of a new connection is the primary, even with a lower timeline.
        if (is_new and not self._hosts) or server.rank >= self._best.rank:
            self._best, self._best_heard_at = server, _now()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _is_open(task: "asyncio.Task[asyncpg.Connection]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _reasons(tries: "dict[asyncio.Task[asyncpg.Connection], tuple[str, int | None]]") -> str:
    """Describe why each server cannot be used."""
    said = []
    for task, (host, _) in tries.items():
        if _is_open(task):
            said.append(f"{host} is read-only")
        else:
            said.append(f"{host}: {task.exception() if task.done() and not task.cancelled() else 'no answer'}")
    return "; ".join(said)


@contextlib.asynccontextmanager
async def _translated(within_s: float, url: str, *, is_alone: bool) -> AsyncIterator[None]:
    """Translate errors of connecting into those of Headway."""
    try:
        async with asyncio.timeout(within_s + SPARE_S):  # The timeout of asyncpg does not cover all it does.
            yield
    except (ValueError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        raise _cannot_connect(error, url, is_alone=is_alone) from None


def _cannot_connect(error: Exception, url: str, *, is_alone: bool) -> StoreError:
    """Return an error with the address, the reason and the cure, but without the password.

    Of one of several servers only the reason is said; the caller tells of all of them.
    """
    reason = str(error) or type(error).__name__
    if isinstance(error, OSError) and (missing := _unreadable_file(url)):
        return StoreError(f"the PostgreSQL address cannot be used: {missing} cannot be read")
    if isinstance(error, asyncpg.exceptions.ClientConfigurationError):
        return StoreError(f"the PostgreSQL address cannot be used: {reason}")
    if isinstance(error, ValueError):  # Its text may quote a part of a password that has a / or @ in it.
        return StoreError(
            "the PostgreSQL address cannot be used; it must look like postgresql://user:password@host:5432/database,"
            " special characters of the password percent-encoded"
        )
    if not is_alone:
        return StoreUnavailable(reason)
    return StoreUnavailable(f"cannot connect to PostgreSQL at {_place(url)}: {reason}{_cure(error)}")


def _place(url: str) -> str:
    """Return hosts and database of a URL, without user and password, for logs."""
    return mask_url(url).partition("://")[2].removeprefix("***@").partition("?")[0]


def _cure(error: Exception) -> str:
    if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):  # For instance a wrong password.
        return "; check the user and the password in HEADWAY_STORE"
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return "; create the database, or name another one in HEADWAY_STORE"
    return "; is it running, and does HEADWAY_STORE name it?" if isinstance(error, OSError | TimeoutError) else ""


def _unreadable_file(url: str) -> str | None:
    """Return the TLS file of a URL that cannot be read."""
    named = parse_qs(urlsplit(url).query)
    files = [(name, named[name][-1]) for name in ("sslrootcert", "sslcert", "sslkey", "sslcrl") if name in named]
    return next((f"{name} {file}" for name, file in files if not os.access(file, os.R_OK)), None)
