"""The driver for SQLite: one connection on one thread per process.

A hop to the thread costs more than most statements, so a whole transaction runs there in one hop, and small reads by
key (`peek`) run in the calling thread. Writers take the write lock first (`begin immediate`); readers see the last
commit (WAL). `synchronous=full` makes every acknowledged commit survive a power failure; `normal` is faster and may
lose the last commits, but stays consistent.

The simulation and users' tests run the same class inline, without a thread and with their own clock.
"""

import asyncio
import contextlib
import getpass
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from headway.core.clock import wall_now
from headway.core.errors import (
    HeadwayError,
    InvalidConfig,
    SchemaMismatch,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from headway.core.instants import Instant
from headway.store.file_access import create_private
from headway.store.inotify import FileWatch
from headway.store.statements import SQLITE, catalogue
from headway.store.transaction import Begin, ConstraintViolated, Rows, StatementCall, T, step_through

STATEMENT_S_MAX: Final = 30.0
BUSY_S_MAX: Final = 10.0
WATCH_INTERVAL_S: Final = 0.05
WATCH_QUIET_S: Final = 0.01  # Commits within this time are reported once.
WATCH_SOON_S: Final = 0.001
WATCH_SOON_S_MAX: Final = 0.01  # Reached in steps of a quarter, for a commit that takes 40 ms to reach the disk.
WATCH_FALLBACK_S: Final = 0.5
VERSION_MIN: Final = (3, 38, 0)


def path_of(url: str) -> str:
    """Return the file of `sqlite:///relative`, `sqlite:////absolute` or `sqlite://` (in memory)."""
    path = url.removeprefix("sqlite://").removeprefix("/")
    return path or ":memory:"


def translate(error: sqlite3.Error) -> StoreError:
    """Translate an error of SQLite into one of Headway."""
    text = str(error)
    if isinstance(error, sqlite3.IntegrityError):
        return ConstraintViolated(text)
    if "no such table" in text or "no such column" in text or "has no column" in text:
        return SchemaMismatch(f"{text}; run `headway migrate`")
    if "full" in text:
        return StoreFull(f"SQLite: {text}; nothing was written: free space on its disk")
    if "readonly" in text:
        return StoreReadOnly(f"SQLite: {text}; nothing was written: let this user write to the file and to its folder")
    if "not a database" in text or "malformed" in text:
        return StoreError(f"SQLite: {text}")
    if isinstance(error, sqlite3.OperationalError) or "closed database" in text:
        return StoreUnavailable(f"SQLite: {text}")
    return StoreError(f"SQLite: {text}")


def _cannot_open(path: str, error: sqlite3.Error) -> HeadwayError:
    """Return an error with the file, the reason and the cure; `InvalidConfig` where a retry cannot help."""
    told = translate(error)
    if path == ":memory:":
        return told
    file = Path(path).absolute()
    if os.path.isdir(file):
        return InvalidConfig(
            f"the store {file} is a folder; name a file in it: HEADWAY_STORE=sqlite:///{file}/headway.db"
        )
    if "not a database" in str(error):
        return StoreError(
            f"the store {file} is not a database of SQLite; move the file away, or set another HEADWAY_STORE"
        )
    for place in (file, file.parent):
        if os.path.exists(place) and not os.access(place, os.R_OK | os.W_OK):
            return InvalidConfig(
                f"the store {file} cannot be opened: {_user()} may not read and write {place}; change its owner,"
                " run Headway as another user, or set another HEADWAY_STORE"
            )
    return type(told)(f"the store {file} cannot be opened: {told}")


def _user() -> str:
    """Return the name of the user of this process, or the number if it has no name."""
    try:
        return f"the user {getpass.getuser()}"
    except (OSError, KeyError):
        return f"the user {os.getuid()}"


def _has_temporary_folder() -> bool:
    """Return whether SQLite finds a folder for temporary files; it tries the same ones."""
    named = (os.environ.get("SQLITE_TMPDIR"), os.environ.get("TMPDIR"), "/var/tmp", "/usr/tmp", "/tmp", ".")
    return any(folder and os.access(folder, os.W_OK | os.X_OK) for folder in named)


class SqliteConnection:
    """Run transactions on one connection; used by one thread at a time."""

    def __init__(self, path: str, *, synchronous: str = "full", now: Callable[[], Instant] = wall_now) -> None:
        if sqlite3.sqlite_version_info < VERSION_MIN:
            raise InvalidConfig(f"SQLite {sqlite3.sqlite_version} is too old; Headway needs 3.38 or later")
        self._now = now
        self._statement_now: Instant = 0
        self._statements = catalogue(SQLITE)
        if path != ":memory:" and not os.path.isdir(Path(path).parent):
            raise InvalidConfig(f"the folder of {path} does not exist; create it or set another HEADWAY_STORE")
        create_private(path)
        try:
            self.raw = sqlite3.connect(path, isolation_level=None, timeout=BUSY_S_MAX, check_same_thread=False)
            self.raw.row_factory = sqlite3.Row
            # Other programs may write invalid UTF-8 into the file. It must not fail the statement that reads it:
            # a claim would have taken jobs without returning them.
            self.raw.text_factory = lambda text: text.decode("utf-8", "replace")
            # The time is constant within a statement, so SQLite may evaluate the function once and not for every row.
            self.raw.create_function("headway_now", 0, lambda: self._statement_now, deterministic=True)
            self.raw.execute("pragma journal_mode = wal")
            self.raw.execute(f"pragma synchronous = {synchronous}")
            if not _has_temporary_folder():
                self.raw.execute("pragma temp_store = memory")
        except sqlite3.Error as error:
            raise _cannot_open(path, error) from error

    def execute(self, statement: StatementCall) -> Rows:
        """Run one call. The time is constant within it, as in PostgreSQL."""
        self._statement_now = self._now()
        text = self._statements[statement.statement].text
        return self.raw.execute(text, statement.parameters).fetchall()

    def run(self, begin: Begin[T]) -> T:
        """Run a transaction to its end."""
        try:
            self.raw.execute("begin immediate")
            result = step_through(begin, self.execute)
            self.raw.execute("commit")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                if self.raw.in_transaction:
                    self.raw.execute("rollback")
            if isinstance(error, sqlite3.Error):
                raise translate(error) from error
            raise
        return result

    def fetch(self, statement: StatementCall) -> Rows:
        """Run one call in its own transaction."""
        try:
            return self.execute(statement)
        except sqlite3.Error as error:
            raise translate(error) from error

    def script(self, statements: Iterable[str]) -> None:
        """Run schema statements in one transaction."""
        try:
            self.raw.execute("begin immediate")
            for text in statements:
                self.raw.execute(text)
            self.raw.execute("commit")
        except sqlite3.Error as error:
            if self.raw.in_transaction:
                self.raw.execute("rollback")
            raise translate(error) from error


class SqliteDriver:
    """Run transactions on a connection in a thread of its own."""

    dialect_name = "sqlite"

    def __init__(self, path: str, *, synchronous: str = "full", now: Callable[[], Instant] = wall_now) -> None:
        self.path = path
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._connection = SqliteConnection(path, synchronous=synchronous, now=now)
        self._peeking: SqliteConnection | None = None
        self._closed = False
        self._probe: asyncio.Future[Any] | None = None
        self._thread = threading.Thread(target=self._serve, name="headway-sqlite", daemon=True)
        self._thread.start()

    async def run(self, begin: Begin[T]) -> T:
        """Run a transaction in one hop to the thread."""
        return await self._hop(lambda: self._connection.run(begin))

    async def fetch(self, statement: StatementCall) -> Rows:
        """Run one call in one hop to the thread."""
        return await self._hop(lambda: self._connection.fetch(statement))

    async def peek(self, statement: StatementCall) -> Rows:
        """Read in the calling thread, on a connection that never waits for writers; fall back to `fetch`."""
        if self._closed or self.path == ":memory:":
            return await self.fetch(statement)
        try:
            if self._peeking is None:
                self._peeking = SqliteConnection(self.path)
                self._peeking.raw.execute("pragma query_only = on")
                self._peeking.raw.execute("pragma busy_timeout = 0")
            return self._peeking.fetch(statement)
        except StoreUnavailable:  # Another process recovers or locks the whole file: wait for it in the thread.
            return await self.fetch(statement)

    async def probe(self, begin: Begin[T], within_s: float) -> T:
        """Run a small transaction on a connection and in a thread of its own, after a probe that is under way."""
        try:
            async with asyncio.timeout(within_s):
                if self.path == ":memory:":
                    return await self.run(begin)
                while self._probe is not None and not self._probe.done():
                    await asyncio.wait([self._probe])
                probe = self._probe = asyncio.ensure_future(asyncio.to_thread(self._run_apart, begin, within_s))
                probe.add_done_callback(lambda done: done.cancelled() or done.exception())
                return await asyncio.shield(probe)
        except TimeoutError:
            raise StoreUnavailable(f"SQLite did not answer within {within_s:g} s") from None

    def _run_apart(self, begin: Begin[T], within_s: float) -> T:
        if not Path(self.path).exists():  # Opening it would create an empty one.
            raise StoreUnavailable(f"SQLite: the file {self.path} is gone")
        connection = SqliteConnection(self.path)
        try:
            connection.raw.execute(f"pragma busy_timeout = {round(within_s * 1_000)}")
            return connection.run(begin)
        finally:
            connection.raw.close()

    async def script(self, statements: Iterable[str], lock: str) -> None:
        """Run schema statements under the write lock."""
        await self._hop(lambda: self._connection.script(statements))

    async def watch(self, hear: Callable[[str], None], *, quiet_s: float = 0.0) -> "SqliteWatch":
        """Watch the data version of the file."""
        return SqliteWatch(self.path, hear, quiet_s)

    async def close(self) -> None:
        """Stop the thread after the queued calls, and close the connections."""
        self._closed = True
        if self._thread.is_alive():
            self._calls.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join, STATEMENT_S_MAX)
        self._connection.raw.close()
        if self._peeking is not None:
            self._peeking.raw.close()

    def _serve(self) -> None:
        while (job := self._calls.get()) is not None:
            job()

    async def _hop(self, work: Callable[[], T]) -> T:
        if self._closed:  # The thread would not run the call.
            raise StoreUnavailable("SQLite: the store is closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def deliver(set_it: Callable[[Any], None], value: object) -> None:
            if not answer.done():
                set_it(value)

        def job() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - it is raised in the caller
                outcome: tuple[Callable[[Any], None], object] = (answer.set_exception, error)
            else:
                outcome = (answer.set_result, result)
            with contextlib.suppress(RuntimeError):  # The loop is closed, and the caller gone.
                loop.call_soon_threadsafe(deliver, *outcome)

        self._calls.put(job)
        try:
            async with asyncio.timeout(STATEMENT_S_MAX):
                return await answer
        except TimeoutError:
            self._connection.raw.interrupt()
            raise StoreUnavailable(f"SQLite did not answer within {STATEMENT_S_MAX:g} s") from None


class SqliteWatch:
    """Detect commits of other connections by the data version of the file, which is cheap to read.

    With inotify, read it only after a write to the WAL: a moment later, because a commit becomes visible when it has
    reached the disk. Without inotify, read it twenty times a second.
    """

    def __init__(self, path: str, hear: Callable[[str], None], quiet_s: float) -> None:
        self.mode = "poll" if path == ":memory:" else "watch"
        self._hear = hear
        self._raw: sqlite3.Connection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writes: FileWatch | None = None
        self._rest_s = WATCH_INTERVAL_S
        self._quiet_s = max(WATCH_QUIET_S, quiet_s)
        self._told_at = 0.0
        if self.mode == "watch":
            try:
                self._raw = sqlite3.connect(path, isolation_level=None, timeout=BUSY_S_MAX)
                self._seen = self._version()
                self._raw.execute("pragma busy_timeout = 0")  # From now on, trying again later is better than waiting.
            except sqlite3.Error as error:
                raise translate(error) from error
            with contextlib.suppress(OSError):
                self._writes = FileWatch(f"{path}-wal")
                self._rest_s = WATCH_FALLBACK_S
                asyncio.get_running_loop().add_reader(self._writes.number, self._written)
            self._again(self._rest_s)

    async def check(self) -> None:
        """Do nothing: the file itself is watched, so no commit is missed."""

    async def close(self) -> None:
        """Stop watching."""
        if self._timer:
            self._timer.cancel()
        if self._writes:
            asyncio.get_running_loop().remove_reader(self._writes.number)
            self._writes.close()
        if self._raw:
            self._raw.close()

    def _written(self) -> None:
        """Look soon after a write, then less and less often until the commit is visible."""
        assert self._writes
        asyncio.get_running_loop().remove_reader(self._writes.number)  # Until the next look: a commit is many writes.
        self._writes.take()
        quiet_s = self._told_at + self._quiet_s - asyncio.get_running_loop().time()
        self._again(WATCH_SOON_S, after_s=quiet_s)

    def _again(self, rest_s: float, *, after_s: float = 0.0) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(rest_s, after_s), self._look, rest_s)

    def _look(self, rested_s: float) -> None:
        has_changed = False
        with contextlib.suppress(sqlite3.Error):  # The loops report a busy or missing file themselves.
            version = self._version()
            has_changed = version != self._seen
            self._seen = version
        if self._writes and rested_s < WATCH_SOON_S_MAX and not has_changed:
            self._again(1.25 * rested_s)
            return
        if self._writes:
            asyncio.get_running_loop().add_reader(self._writes.number, self._written)
        self._again(self._rest_s)
        if has_changed:
            self._told_at = asyncio.get_running_loop().time()
            self._hear("anything")

    def _version(self) -> int:
        assert self._raw
        version: int = self._raw.execute("pragma data_version").fetchone()[0]
        return version


class InlineSqliteDriver:
    """Run transactions in the calling thread.

    For blocking callers, and for virtual time, where a thread would break determinism.
    """

    dialect_name = "sqlite"

    def __init__(self, connection: SqliteConnection) -> None:
        self.connection = connection

    async def run(self, begin: Begin[T]) -> T:
        """Run a transaction."""
        return self.connection.run(begin)

    async def fetch(self, statement: StatementCall) -> Rows:
        """Run one call in its own transaction."""
        return self.connection.fetch(statement)

    async def peek(self, statement: StatementCall) -> Rows:
        """Run one call; inline this is the same as `fetch`."""
        return await self.fetch(statement)

    async def probe(self, begin: Begin[T], within_s: float) -> T:
        """Run a small transaction; only simulated delays can time it out."""
        try:
            async with asyncio.timeout(within_s):
                return await self.run(begin)
        except TimeoutError:
            raise StoreUnavailable(f"SQLite did not answer within {within_s:g} s") from None

    async def script(self, statements: Iterable[str], lock: str) -> None:
        """Run schema statements."""
        self.connection.script(statements)

    async def watch(self, hear: Callable[[str], None], *, quiet_s: float = 0.0) -> SqliteWatch:
        """Return a watch that reports nothing: there is no loop to report to."""
        return SqliteWatch(":memory:", hear, quiet_s)

    async def close(self) -> None:
        """Do nothing: the connection belongs to the caller."""
