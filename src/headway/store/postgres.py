"""The driver for PostgreSQL, on asyncpg: a small pool, and a timeout on every statement.

The driver closes a connection after a connection error, a read-only error, a timeout or a cancellation, and never
reuses it: after a failover the next connection finds the new primary (`primary.py`). Before it uses a connection that
was idle for two seconds, it checks that the server still accepts writes. While a statement takes longer than usual, it
looks for a promoted server, and if there is one, ends everything that waits for the old one.

NOTIFY is sent after the commit, in a transaction that writes nothing. Inside the transaction it would take a lock of
the whole server, so that only one transaction at a time could wait for its disk write or its standby.

Wake-ups arrive by LISTEN/NOTIFY on a connection of their own. A probe checks that they arrive, because a pooler in
transaction mode drops them. Behind such a pooler, prepared statements also vanish between transactions: the driver
detects the error, stops caching statements, and runs each call in a transaction.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from functools import partial
from typing import Any, Final
from zlib import crc32

import asyncpg

from headway.core.clock import cancel_until_done
from headway.core.errors import SchemaMismatch, StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from headway.core.events import WakeModeChanged, emit
from headway.store.primary import SUSPECT_S, Primary
from headway.store.statements import POSTGRES, catalogue, positional
from headway.store.transaction import Begin, ConstraintViolated, Rows, StatementCall, T, call, one, step_through_async

STATEMENT_S_MAX: Final = 10.0
IDLE_S_MAX: Final = 5.0
PROBE_S_MAX: Final = 2.0
CLOSE_S_MAX: Final = 2.0
POOL_SIZE: Final = 4
DEADLOCK_TRIES_MAX: Final = 5
CHANNEL: Final = "headway"
TOPICS_MAX: Final = 100

_UNAVAILABLE: Final = ("08", "40", "57", "53", "25006", "25P03", "55P03", "58", "XX000")
_READ_ONLY: Final = "25006"  # The server is no longer the primary.
_DEADLOCK: Final = ("40001", "40P01")
_STATEMENT_GONE: Final = ("26000", "42P05")  # A pooler in transaction mode.
_PLAN_STALE: Final = (asyncpg.InvalidCachedStatementError, asyncpg.OutdatedSchemaCacheError)  # The schema was migrated.


def translate(error: BaseException) -> StoreError | None:
    """Translate an error of asyncpg into one of Headway; return None for errors of other origin."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        text = f"PostgreSQL: {error}"
        if state == "53100":
            return StoreFull(f"{text}; nothing was written: free space on the disk of the database")
        if state == _READ_ONLY:
            return StoreReadOnly(f"{text}; nothing was written: connect to the primary, or end its read-only phase")
        if state.startswith((*_UNAVAILABLE, *_STATEMENT_GONE)) or isinstance(error, _PLAN_STALE):
            return StoreUnavailable(text)
        if state in ("42P01", "42703"):
            return SchemaMismatch(f"{error}; run `headway migrate`")
        if state.startswith("23"):
            return ConstraintViolated(text)
        return StoreError(text)
    if isinstance(error, TimeoutError):
        return StoreUnavailable("PostgreSQL did not answer in time")
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        return StoreError(f"PostgreSQL: {error}")  # An argument that cannot be encoded; a retry would not help.
    if isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError):
        return StoreUnavailable(f"PostgreSQL: {str(error) or type(error).__name__}")
    return None


def _keeps_connection(error: BaseException) -> bool:
    """Return whether the connection is usable after this error: only after a regular error of the server."""
    return isinstance(error, asyncpg.PostgresError) and isinstance(
        translate(error), ConstraintViolated | SchemaMismatch
    )


class PostgresDriver:
    """Run transactions on a bounded pool of connections, in one event loop."""

    dialect_name = "postgresql"

    def __init__(self, url: str, *, pool_size: int = POOL_SIZE, node: str = "") -> None:
        self._url = url
        self._node = node
        self._texts = {
            name: (positional(statement, lambda index: f"${index}"), statement.parameters)
            for name, statement in catalogue(POSTGRES).items()
        }
        self._notifying = frozenset(name for name, (text, _) in self._texts.items() if text.endswith(" as woke"))
        self._free: list[asyncpg.Connection] = []
        self._slots = asyncio.Semaphore(pool_size)
        self._behind_pooler = False
        self._closed = False
        self._primary = Primary(url, self._options)
        self._used_since: dict[asyncpg.Connection, float] = {}
        self._scouting: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._probing = asyncio.Lock()
        self._prober: asyncpg.Connection | None = None

    async def run(self, begin: Begin[T]) -> T:
        """Run a transaction; retry it from its beginning after a deadlock."""
        for _ in range(DEADLOCK_TRIES_MAX - 1):
            try:
                return await self._run_once(begin)
            except _Again:
                continue
        return await self._run_once(begin)

    async def fetch(self, statement: StatementCall) -> Rows:
        """Run one call in its own transaction."""
        if self._behind_pooler:
            return await self.run(lambda: one(statement))
        try:
            async with self._connection() as connection:
                topics: set[str] = set()
                rows = await self._execute(connection, topics, statement)
                if topics:
                    await self._notify(connection, topics)
                return rows
        except _Again:
            return await self.run(lambda: one(statement))

    async def peek(self, statement: StatementCall) -> Rows:
        """Run one call; on PostgreSQL this is the same as `fetch`."""
        return await self.fetch(statement)

    async def probe(self, begin: Begin[T], within_s: float) -> T:
        """Run a small transaction on a connection of its own. The server enforces the timeout as well."""
        try:
            async with asyncio.timeout(within_s), self._probing:
                if self._prober is None or self._prober.is_closed():
                    self._prober = await self.connect()
                connection = self._prober
                try:
                    return await self._transact(connection, begin, statement_s=within_s)
                except BaseException:  # Never reuse the connection after an error.
                    self._discard(connection)
                    raise
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            self._rethrow(error)
            raise

    async def script(self, statements: Iterable[str], lock: str) -> None:
        """Run schema statements under an advisory lock."""
        async with self._connection() as connection:
            async with asyncio.timeout(10 * STATEMENT_S_MAX):
                async with connection.transaction():
                    # Unprepared, because prepared statements fail behind a pooler.
                    await connection.execute(f"select pg_advisory_xact_lock({crc32(lock.encode())})")
                    for text in statements:
                        await connection.execute(text)

    async def watch(self, hear: Callable[[str], None], *, quiet_s: float = 0.0) -> "PostgresWatch":
        """Listen, and probe whether notifications arrive. `quiet_s` is not needed: every notification is relevant."""
        watch = PostgresWatch(self, hear, self._node)
        await watch.check()
        return watch

    async def close(self) -> None:
        """Close idle connections; connections in use are closed when they are returned."""
        self._closed = True
        for connection in (*self._free, *([] if self._prober is None else [self._prober])):
            self._discard(connection)
        self._free.clear()
        if self._scouting is not None:
            await cancel_until_done(self._scouting)
        if self._closing:
            await asyncio.wait(self._closing)  # Each has a timeout.

    async def connect(self) -> asyncpg.Connection:
        """Open a connection; one of several hosts must be the primary."""
        return await self._primary.connect()

    def _options(self) -> dict[str, Any]:
        return {
            "statement_cache_size": 0 if self._behind_pooler else 100,
            "server_settings": {"application_name": "headway"},
        }

    async def _run_once(self, begin: Begin[T]) -> T:
        async with self._connection() as connection:
            return await self._transact(connection, begin)

    async def _transact(
        self, connection: asyncpg.Connection, begin: Begin[T], *, statement_s: float = STATEMENT_S_MAX
    ) -> T:
        await connection.execute(_begin(statement_s), timeout=statement_s)
        topics: set[str] = set()
        try:
            result = await step_through_async(begin, partial(self._execute, connection, topics))
        except BaseException as error:
            if isinstance(error, Exception) and (translate(error) is None or _keeps_connection(error)):
                await connection.execute("rollback", timeout=statement_s)
            raise
        await connection.execute(f"commit; {_wake(topics)}" if topics else "commit", timeout=statement_s)
        return result

    async def _execute(self, connection: asyncpg.Connection, topics: set[str], statement: StatementCall) -> Rows:
        """Run one call; add the topics to notify after the commit."""
        text, order = self._texts[statement.statement]
        arguments = [statement.parameters[name] for name in order]
        rows: Rows = await connection.fetch(text, *arguments, timeout=STATEMENT_S_MAX)
        if statement.statement in self._notifying:
            topics.update(row["woke"] for row in rows if row["woke"] is not None)
        return rows

    async def _notify(self, connection: asyncpg.Connection, topics: Collection[str]) -> None:
        """Notify other processes of a commit. If that fails, they find out by polling."""
        try:
            await connection.execute(_wake(topics), timeout=STATEMENT_S_MAX)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
            connection.terminate()

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        await self._take_slot()
        try:
            connection = await self._known_good() or await self.connect()
            loop = asyncio.get_running_loop()
            self._used_since[connection] = loop.time()
            suspicion = loop.call_later(SUSPECT_S, self._suspect)
            try:
                yield connection
            except BaseException as error:  # noqa: BLE001 - it is raised again after the connection was dealt with
                self._give_back(connection, _keeps_connection(error) or _is_callers(error))
                self._rethrow(error)
            else:
                self._give_back(connection, True)
            finally:
                suspicion.cancel()
                del self._used_since[connection]
        finally:
            self._slots.release()

    async def _take_slot(self) -> None:
        if not self._slots.locked():  # The usual case; a timer would cost as much as the rest of the call.
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(STATEMENT_S_MAX):
                await self._slots.acquire()
        except TimeoutError:
            raise StoreUnavailable("all connections to PostgreSQL are in use") from None

    async def _known_good(self) -> asyncpg.Connection | None:
        """Take an idle connection; check now and then that its server still accepts writes."""
        while self._free:
            connection = self._free.pop()
            if connection.is_closed():  # The server may have closed it while it was idle.
                continue
            if self._behind_pooler or not self._primary.is_due(connection):
                return connection
            if self._primary.wants_scouting():
                self._scout()
            is_right = False
            try:
                is_right = await self._primary.check(connection)
            finally:
                if not is_right:
                    self._discard(connection)
            if is_right:
                return connection
            self._leave_free()  # The others are connected to the same server.
        return None

    def _leave_free(self) -> None:
        while self._free:
            self._free.pop().terminate()

    def _give_back(self, connection: asyncpg.Connection, is_good: bool) -> None:
        if is_good and not self._closed and not connection.is_closed() and not connection.is_in_transaction():
            self._free.append(connection)
        else:
            self._discard(connection)

    def _discard(self, connection: asyncpg.Connection) -> None:
        """Close a connection in the background and cancel its statement on the server.

        Closing the socket is not enough: a backend that waits for a lock does not notice that its client is gone.
        """
        if self._prober is connection:
            self._prober = None
        if connection.is_closed():
            return

        async def close() -> None:
            try:
                async with asyncio.timeout(CLOSE_S_MAX):
                    await connection.close(timeout=CLOSE_S_MAX)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                connection.terminate()

        task = asyncio.get_running_loop().create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _suspect(self) -> None:
        """Look for a new primary while a statement takes long: its server may be gone or demoted."""
        loop = asyncio.get_running_loop()
        if not self._behind_pooler and any(loop.time() - since >= SUSPECT_S for since in self._used_since.values()):
            self._scout()

    def _scout(self) -> None:
        if not self._closed and (self._scouting is None or self._scouting.done()):
            self._scouting = asyncio.get_running_loop().create_task(self._look_for_primary())

    async def _look_for_primary(self) -> None:
        """Look for a promoted server and close the connections to others, so that their callers fail at once."""
        for connection in await self._primary.scout():
            connection.terminate()
        asyncio.get_running_loop().call_later(SUSPECT_S, self._suspect)

    def _rethrow(self, error: BaseException) -> None:
        state = getattr(error, "sqlstate", None) or ""
        self._behind_pooler = self._behind_pooler or state in _STATEMENT_GONE
        if state in (*_STATEMENT_GONE, _READ_ONLY):
            self._leave_free()  # They rely on prepared statements, or would read stale data.
        if state in (*_STATEMENT_GONE, *_DEADLOCK) or isinstance(error, _PLAN_STALE):
            raise _Again(f"PostgreSQL: {error}") from error
        translated = translate(error)
        if translated is None:
            raise error
        raise translated from error


class _Again(StoreUnavailable):
    """The transaction was aborted by the server and can be retried."""


def _begin(statement_s: float = STATEMENT_S_MAX) -> str:
    """Begin a transaction that the server aborts when this process freezes or disappears.

    Otherwise its locks would outlive its leases, and no other process could take over.
    """
    idle = f"set local idle_in_transaction_session_timeout = {round(IDLE_S_MAX * 1_000)}"
    return f"begin; {idle}; set local statement_timeout = {round(statement_s * 1_000)}"


def _wake(topics: Collection[str]) -> str:
    """Build one NOTIFY statement without parameters, so that it can be sent together with the commit."""
    sent = sorted(topics) if len(topics) <= TOPICS_MAX else ["anything"]
    escaped = (topic.replace("\\", "\\\\").replace("'", "''") for topic in sent)
    return "select " + ", ".join(f"pg_notify('{CHANNEL}', E'{topic}')" for topic in escaped)


def _is_callers(error: BaseException) -> bool:
    """Return whether the error came from the transaction's own code; it was rolled back then."""
    return isinstance(error, Exception) and translate(error) is None


class PostgresWatch:
    """Listen for NOTIFY on a connection of its own, and detect when notifications do not arrive."""

    def __init__(self, driver: PostgresDriver, hear: Callable[[str], None], node: str) -> None:
        self.mode = "poll"
        self._is_known = False
        self._driver = driver
        self._hear = hear
        self._node = node
        self._connection: asyncpg.Connection | None = None
        self._probe: tuple[str, asyncio.Event] = ("", asyncio.Event())

    async def check(self) -> None:
        """Send a notification to ourselves; if it does not arrive within two seconds, fall back to polling."""
        reason = "notifications arrive"
        try:
            arrived = await self._round_trip()
            if not arrived:
                reason = "notifications do not arrive (a pooler in transaction mode?)"
        except StoreError as error:
            arrived, reason = False, str(error)
        if not arrived:
            await self._disconnect()
        mode = "notify" if arrived else "poll"
        if mode != self.mode or not self._is_known:
            self.mode, self._is_known = mode, True
            emit(WakeModeChanged(node=self._node, mode=mode, reason=reason))

    async def close(self) -> None:
        """Stop listening."""
        await self._disconnect()

    async def _round_trip(self) -> bool:
        if self._connection is None or self._connection.is_closed():
            await self._listen()
        self._probe = (f"probe {secrets.token_hex(8)}", asyncio.Event())
        await self._driver.fetch(call("notify", payload=self._probe[0]))
        try:
            async with asyncio.timeout(PROBE_S_MAX):
                await self._probe[1].wait()
        except TimeoutError:
            return False
        return True

    async def _listen(self) -> None:
        connection = await self._driver.connect()
        try:
            async with asyncio.timeout(PROBE_S_MAX):
                await connection.add_listener(CHANNEL, self._arrived)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            connection.terminate()
            raise StoreUnavailable(f"cannot listen: {error}") from None
        self._connection = connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    def _arrived(self, connection: object, pid: int, channel: str, payload: object) -> None:
        if payload == self._probe[0]:
            self._probe[1].set()
        elif not str(payload).startswith("probe "):
            self._hear(str(payload))
