"""A database under test: stores on it, a clock that tests can advance, and plain SQL beside the store.

The clock belongs to the database, as in production, so no test has to sleep. It starts at `START` and runs so slowly
that the duration of a test does not matter, even if the machine stalls for half a minute: only what the test advances
counts. SQLite gets its time from a function; `stepping` advances by one step with each statement. On PostgreSQL, a
schema that precedes pg_catalog in the search path has its own `statement_timestamp()`, which divides the time since the
tests began and adds the value in a one-row table. The clock of the process agrees with that of the database, as in
production.
"""

import asyncio
import itertools
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg

from headway.core.clock import Clock, wall_now
from headway.core.instants import SECOND, Duration, Instant, parse_instant
from headway.store import Store
from headway.store.migrations import migrate
from headway.store.postgres import PostgresDriver
from headway.store.sqlite import SqliteDriver
from headway.store.transaction import Begin, Transaction, call
from tests.simulation.stage import migrated
from tests.support.waiting import DEADLINE_S, async_wait_until

# Far from the end of a day, a month and a year. Triggers and views of SQLite only know the system time;
# what they write must lie in the past of the test clock, whenever and however long the tests run.
START = parse_instant("2127-06-16T09:00:00Z")
STEP: Duration = 100  # The duration of a statement on SQLite.
SLOWER = 20  # How much slower time runs on PostgreSQL. Two consecutive statements still have different times.
BEGAN = wall_now()

CLOCK_SCHEMA = f"""
create schema headway_clock;
create table headway_clock.shift (by bigint);
insert into headway_clock.shift values (0);
create function headway_clock.statement_timestamp() returns timestamptz stable language sql as
  'select pg_catalog.to_timestamp({START / SECOND}) + by * interval ''1 microsecond''
     + (pg_catalog.statement_timestamp() - pg_catalog.to_timestamp({BEGAN / SECOND})) / {SLOWER}
   from headway_clock.shift';
"""
SEARCH_PATH = "?search_path=headway_clock,pg_catalog,public"


def stepping() -> Callable[[], Instant]:
    """Return a clock that advances by a step whenever it is read."""
    return itertools.count(START + STEP, STEP).__next__


class Backend:
    """The database of one test. `store` is open; `another()` opens more stores, each with its own connections."""

    name: str
    store: Store

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Open the first store."""
        self.store = self._keep(await self._open("node-1"))

    async def another(self, node: str = "node-2") -> Store:
        """Open a store with its own connections, as another process would."""
        return self._keep(await self._open(node))

    async def advance(self, duration: Duration) -> None:
        """Advance the clock of the database."""
        raise NotImplementedError

    async def sql(self, text: str) -> list[dict[str, Any]]:
        """Run plain SQL in its own transaction, as a person with a database client would."""
        raise NotImplementedError

    async def now(self) -> Instant:
        """Read the clock of the database."""
        now: Instant = (await self.store.driver.fetch(call("time")))[0]["now"]
        return now

    async def job(self, job_id: str) -> dict[str, Any]:
        """Read every column of a job."""
        return (await self.sql(f"select * from headway_jobs where id = '{job_id}'"))[0]

    async def schedule(self, name: str) -> dict[str, Any]:
        """Read every column of a schedule."""
        return (await self.sql(f"select * from headway_schedules where name = '{name}'"))[0]

    async def count(self, table: str, where: str = "true") -> int:
        """Count rows."""
        rows = await self.sql(f"select count(*) as n from {table} where {where}")
        number: int = rows[0]["n"]
        return number

    async def is_held_up(self) -> bool:
        """Return whether a session waits for a lock that another one holds."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close every store."""
        await self._stack.aclose()

    async def _open(self, node: str) -> Store:
        raise NotImplementedError

    def _keep(self, store: Store) -> Store:
        self._stack.push_async_callback(store.close)
        return store


class SqliteBackend(Backend):
    """SQLite in memory (one connection, so no second store) or in a file."""

    def __init__(self, path: str, now: Callable[[], Instant] = wall_now) -> None:
        super().__init__()
        self.name = "sqlite"
        self.path = path
        self._now = now
        self._shift: Duration = 0
        self._side: sqlite3.Connection | None = None

    @property
    def is_shared(self) -> bool:
        """Return whether a second connection can reach the database."""
        return self.path != ":memory:"

    async def advance(self, duration: Duration) -> None:
        """Advance the clock."""
        self._shift += duration

    async def sql(self, text: str) -> list[dict[str, Any]]:
        """Run plain SQL; in memory, on the store's only connection."""
        driver = self.store.driver
        assert isinstance(driver, SqliteDriver)
        if self.is_shared:
            return _dicts(self._beside().execute(text))
        return await driver._hop(lambda: _dicts(driver._connection.raw.execute(text)))

    def _beside(self) -> sqlite3.Connection:
        """Return a connection of its own to the file, opened once: reading the schema takes a while."""
        if self._side is None:
            self._side = sqlite3.connect(self.path, isolation_level=None, timeout=DEADLINE_S, check_same_thread=False)
            self._side.execute("pragma synchronous = normal")
            self._stack.callback(self._side.close)
        return self._side

    async def is_held_up(self) -> bool:
        """Return true after a moment: SQLite cannot be asked, and every writer has to wait for the one that has begun.

        The fixed time can only weaken a test on a slow machine: a writer that did not have to wait would still be
        running, and would not be noticed.
        """
        await asyncio.sleep(0.1)
        return True

    def _fill_file(self) -> None:
        if self.is_shared and not Path(self.path).exists():
            Path(self.path).write_bytes(migrated().serialize())

    async def _open(self, node: str) -> Store:
        self._fill_file()
        driver = SqliteDriver(self.path, synchronous="normal", now=lambda: self._now() + self._shift)
        if not self.is_shared:
            migrated().backup(driver._connection.raw)
        if self._now is wall_now:
            return Store.on(driver, Clock(node=node))
        return Store.on(driver, _clock(node, driver._connection._now))


class PostgresBackend(Backend):
    """A copy of a migrated database, with a clock that can be advanced."""

    is_shared = True

    def __init__(self, url: str) -> None:
        super().__init__()
        self.name = "postgresql"
        self.url = url
        self._side: asyncpg.Connection | None = None
        self._shift: Duration = 0

    async def advance(self, duration: Duration) -> None:
        """Advance the clock."""
        await self.sql(f"update headway_clock.shift set by = by + {duration}")
        self._shift += duration

    async def sql(self, text: str) -> list[dict[str, Any]]:
        """Run plain SQL on its own connection."""
        if self._side is None:
            self._side = await asyncpg.connect(self.url, timeout=DEADLINE_S)
            self._stack.push_async_callback(self._side.close)
        return [dict(row) for row in await self._side.fetch(text, timeout=DEADLINE_S)]

    async def is_held_up(self) -> bool:
        """Ask the server."""
        waits = "datname = current_database() and wait_event_type = 'Lock'"
        return bool(await self.sql(f"select from pg_stat_activity where {waits}"))

    async def _open(self, node: str) -> Store:
        return Store.on(PostgresDriver(self.url + SEARCH_PATH, node=node), _clock(node, self._wall))

    def _wall(self) -> Instant:
        return START + self._shift + (wall_now() - BEGAN) // SLOWER


def _clock(node: str, now: Callable[[], Instant]) -> Clock:
    """Create a process clock that runs as fast as that of the database."""
    return Clock(node=node, wall=now, monotonic=lambda: (now() - START) / SECOND)


class Interrupted:
    """A transaction of another process that pauses after one of its statements while the test acts.

    It runs on a thread with its own event loop. If the test's action has to wait for a row lock of the transaction, the
    transaction continues, as every process does in the end.
    """

    def __init__(self, backend: Backend, begin: Begin[Any], *, after: str) -> None:
        self._backend = backend
        self._begin = begin
        self._after = after
        self._reached, self._go_on = threading.Event(), threading.Event()
        self._acts: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> "Interrupted":
        self._done = asyncio.create_task(asyncio.to_thread(asyncio.run, self._run()))
        assert await asyncio.to_thread(self._reached.wait, DEADLINE_S), f"never came to {self._after}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._go_on.set()
        self.result = await self._done
        await asyncio.gather(*self._acts)

    async def act(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run an action meanwhile, to its end or until it has to wait for the transaction."""
        task = asyncio.create_task(work)
        self._acts.append(task)
        await asyncio.sleep(0)  # Let it start.
        await async_wait_until(self._has_acted(task), "an action to end, or to wait for the transaction")

    def _has_acted(self, task: "asyncio.Task[Any]") -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            return task.done() or await self._backend.is_held_up()

        return look

    async def _run(self) -> Any:
        store = await self._backend._open("held-up")
        try:
            return await store.driver.run(self._steps)
        finally:
            await store.close()

    def _steps(self) -> Transaction[Any]:
        transaction = self._begin()
        statement = next(transaction)
        while True:
            rows = yield statement
            if statement.statement == self._after:
                self._reached.set()
                self._go_on.wait(DEADLINE_S)
            try:
                statement = transaction.send(rows)
            except StopIteration as stop:
                return stop.value


async def make_template(url: str) -> None:
    """Migrate the database that serves as template, and give it a clock that can be advanced."""
    driver = PostgresDriver(url)
    await migrate(driver)
    await driver.close()
    connection = await asyncpg.connect(url, timeout=DEADLINE_S)
    await connection.execute(CLOCK_SCHEMA)
    await connection.close()


def _dicts(cursor: sqlite3.Cursor) -> list[dict[str, Any]]:
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the differences between two readings of one row."""
    return {name: value for name, value in after.items() if before[name] != value}


def columns(rows: Sequence[Mapping[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    """Return some columns of rows."""
    return [tuple(row[name] for name in names) for row in rows]
