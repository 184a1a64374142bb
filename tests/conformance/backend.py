"""A database under test: stores on it, a clock that tests can move, and plain SQL beside the store.

The clock belongs to the database, as in production, so no test has to sleep. It begins at `START` and goes on so slowly
that no test notices how long it takes itself, also not on a machine that stops for half a minute: what passes is what
the test lets pass. SQLite takes its time from a function that is handed in; `stepping` goes on by a step with each
statement. On PostgreSQL a schema that comes before pg_catalog in the search path has a `statement_timestamp()` of its
own; it divides what has passed since the tests began, and adds what is in a table of one row. The clock of the process
agrees with that of the database, as it does in production.
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

# Far from the end of a day, a month and a year. Triggers and views of SQLite know no other time than that of the
# system; what they write must be over by our time, whenever and however long the tests run.
START = parse_instant("2127-06-16T09:00:00Z")
STEP: Duration = 100  # So long does a statement take on SQLite.
SLOWER = 20  # By so much is time slower on PostgreSQL. Two statements in turn still have different times.
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
    """Return a clock that goes on by a step whenever it is read."""
    return itertools.count(START + STEP, STEP).__next__


class Backend:
    """One database of one test. `store` is open; `another()` opens further ones, each with connections of its own."""

    name: str
    store: Store

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Open the first store."""
        self.store = self._keep(await self._open("node-1"))

    async def another(self, node: str = "node-2") -> Store:
        """Open a store on connections of its own, as another process would."""
        return self._keep(await self._open(node))

    async def advance(self, duration: Duration) -> None:
        """Move the clock of the database."""
        raise NotImplementedError

    async def sql(self, text: str) -> list[dict[str, Any]]:
        """Run plain SQL, committed by itself, as a person with a database client would."""
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
        """Say whether somebody waits for a lock that somebody else has."""
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

    @property
    def is_shared(self) -> bool:
        """Say whether a second connection can reach the database."""
        return self.path != ":memory:"

    async def advance(self, duration: Duration) -> None:
        """Move the clock."""
        self._shift += duration

    async def sql(self, text: str) -> list[dict[str, Any]]:
        """Run plain SQL; in memory there is only the store's own connection to run it on."""
        driver = self.store.driver
        assert isinstance(driver, SqliteDriver)
        if self.is_shared:
            with sqlite3.connect(self.path, isolation_level=None, timeout=DEADLINE_S) as raw:
                rows = _dicts(raw.execute(text))
            raw.close()
            return rows
        return await driver._hop(lambda: _dicts(driver._connection.raw.execute(text)))

    async def is_held_up(self) -> bool:
        """Say so after a moment: nobody can be asked, and every writer should wait for the one that has begun.

        The fixed time can only make a test weaker on a slow machine: a writer that did not have to wait would still be
        under way then, and would not be noticed.
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
    """A copy of a migrated database, with a clock that can be moved."""

    is_shared = True

    def __init__(self, url: str) -> None:
        super().__init__()
        self.name = "postgresql"
        self.url = url
        self._side: asyncpg.Connection | None = None
        self._shift: Duration = 0

    async def advance(self, duration: Duration) -> None:
        """Move the clock."""
        await self.sql(f"update headway_clock.shift set by = by + {duration}")
        self._shift += duration

    async def sql(self, text: str) -> list[dict[str, Any]]:
        """Run plain SQL on a connection of its own."""
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
    """Make the clock of a process that goes as fast as that of the database."""
    return Clock(node=node, wall=now, monotonic=lambda: (now() - START) / SECOND)


class Interrupted:
    """A transaction of another process that is held up after one of its statements, while the test acts.

    Runs on a thread with an event loop of its own. Whoever has to wait for it (for a row that it has locked) is not
    waited for: the transaction goes on then, as every process does in the end.
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
        """Do something in between, to its end or until it has to wait for the transaction."""
        task = asyncio.create_task(work)
        self._acts.append(task)
        await asyncio.sleep(0)  # It begins.
        await async_wait_until(self._has_acted(task), "an act to end, or to wait for the transaction")

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
    """Migrate a database that copies are made of, and give it a clock that can be moved."""
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
    """Return what differs between two readings of one row."""
    return {name: value for name, value in after.items() if before[name] != value}


def columns(rows: Sequence[Mapping[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    """Return some columns of rows."""
    return [tuple(row[name] for name in names) for row in rows]
