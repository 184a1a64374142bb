"""A small environment for unit tests of the loops: the real store in memory, in virtual time, with a controllable
driver.

Nothing here is random. A test sets what fails and when, and checks how the loop reacts.
"""

import asyncio
import random
import sqlite3
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from headway.core.clock import Clock
from headway.core.errors import HeadwayError, StoreUnavailable
from headway.core.events import EngineEvent, subscribed
from headway.core.instants import SECOND, Instant, parse_instant
from headway.store import Store
from headway.store.migrations import migrate
from headway.store.sqlite import InlineSqliteDriver, SqliteConnection
from headway.store.transaction import Begin, Rows, StatementCall, T, one

START: Final = parse_instant("2027-06-16T09:00:00Z")


@cache
def migrated() -> sqlite3.Connection:
    """Return an empty database with the schema. Copying it takes a tenth of the time of a migration."""
    connection = SqliteConnection(":memory:", now=lambda: START)
    steps = migrate(InlineSqliteDriver(connection))
    try:
        steps.send(None)  # A driver without a thread never waits, so it needs no event loop.
    except StopIteration:
        return connection.raw
    raise AssertionError("the migration waits for something")


class ObedientDriver(InlineSqliteDriver):
    """Runs transactions at once, unless the test sets a fault."""

    def __init__(self, connection: SqliteConnection) -> None:
        super().__init__(connection)
        self.is_down = False
        self.refuses: HeadwayError | None = None  # The error that writers get.
        self.asking_s = 0.0
        self.answering_s = 0.0
        self.loses_answer = 0  # 1: the next one, 2: the one after it.
        self.calls = 0

    async def run(self, begin: Begin[T]) -> T:
        """Run a transaction, or fail as set."""
        self.calls += 1
        if self.asking_s:
            await asyncio.sleep(self.asking_s)
        if self.is_down:
            raise StoreUnavailable("down")
        if self.refuses is not None:
            raise self.refuses
        result = await super().run(begin)
        if self.answering_s:
            await asyncio.sleep(self.answering_s)
        if self.loses_answer:
            self.loses_answer -= 1
            if not self.loses_answer:
                raise StoreUnavailable("the response was lost")
        return result

    async def fetch(self, statement: StatementCall) -> Rows:
        """Run one call in its own transaction."""
        return await self.run(lambda: one(statement))


class Seat:
    """One process: its clock, its driver, its store."""

    def __init__(self, connection: SqliteConnection, node: str) -> None:
        loop = asyncio.get_running_loop()
        self.driver = ObedientDriver(connection)
        self.clock = Clock(monotonic=loop.time, wall=lambda: START, chance=random.Random(node), node=node)
        self.store = Store.on(self.driver, self.clock)


class Stage:
    """One store, and the events of all processes that use it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.events: list[EngineEvent] = []
        self._connection = SqliteConnection(":memory:", now=lambda: START + round(loop.time() * SECOND))
        self._subscription = subscribed(self.events.append)

    async def __aenter__(self) -> "Stage":
        migrated().backup(self._connection.raw)
        self._subscription.__enter__()
        return self

    async def __aexit__(self, *reason: object) -> None:
        self._subscription.__exit__(None, None, None)
        self._connection.raw.close()

    def seat(self, node: str = "node_a") -> Seat:
        """Add a process."""
        return Seat(self._connection, node)

    def now(self) -> Instant:
        """Return the store's time."""
        return START + round(asyncio.get_running_loop().time() * SECOND)

    def sql(self, text: str, *parameters: object) -> list[Any]:
        """Read the tables, or damage them."""
        return self._connection.raw.execute(text, parameters).fetchall()

    def said(self, kind: type[EngineEvent]) -> list[Any]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


async def until(holds: Callable[[], object], *, within_s: float, step_s: float = 0.05) -> float:
    """Wait until a condition holds; return how long it took. Fail if it takes too long."""
    began = asyncio.get_running_loop().time()
    while not holds():
        waited = asyncio.get_running_loop().time() - began
        assert waited <= within_s, f"not within {within_s} s"
        await asyncio.sleep(step_s)
    return asyncio.get_running_loop().time() - began
