"""A transaction is a generator: it yields calls of named statements and is sent their rows.

    def fire(plans) -> Transaction[int]:
        rows = yield call("advance", plans=as_json(plans))
        yield call("record", occurrences=...)
        return len(rows)

It does not depend on a driver, a thread or an event loop, so one text serves them all: asyncpg awaits each call,
sqlite3 runs the whole generator in one hop to its thread, a caller's own connection runs it inside the caller's
transaction, and the simulation fails it before or after any step. After a deadlock the driver runs the transaction
again from its beginning, so it must change nothing but the store.
"""

import re
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

from headway.core.errors import StoreError
from headway.core.ports import WakeUps

_NUL: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")  # Skips escaped backslashes.

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Row(Protocol):
    """A row of a result: read a column by name, or iterate over all columns in order."""

    def __getitem__(self, column: str) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...


Rows: TypeAlias = "list[Row]"


@dataclass(frozen=True, slots=True)
class StatementCall:
    """One execution of a named statement."""

    statement: str
    parameters: Mapping[str, object]


Transaction: TypeAlias = Generator[StatementCall, Rows, T]
Begin: TypeAlias = Callable[[], Transaction[T]]


class ConstraintViolated(StoreError):
    """The database refused a row that breaks one of its constraints."""


def call(statement: str, **parameters: object) -> StatementCall:
    """Name a statement and its parameters."""
    return StatementCall(statement, parameters)


def as_json(rows: Iterable[object]) -> str:
    """Encode rows, or plain values, as the one JSON parameter that a statement unfolds.

    PostgreSQL cannot store NUL characters. They are replaced, so that one in a log line does not fail the whole write.
    """
    text = msgspec.json.encode(rows if isinstance(rows, list) else list(rows)).decode()
    return _NUL.sub(r"\1␀", text) if "\\u0000" in text else text


def one(statement: StatementCall) -> Transaction[Rows]:
    """Wrap a single call as a transaction."""
    return (yield statement)


def step_through(begin: Begin[T], execute: Callable[[StatementCall], Rows]) -> T:
    """Run every call of a transaction with a blocking function; return what the transaction returns."""
    transaction = begin()
    try:
        statement = next(transaction)
        while True:
            statement = transaction.send(execute(statement))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        transaction.close()


async def step_through_async(begin: Begin[T], execute: Callable[[StatementCall], Awaitable[Rows]]) -> T:
    """Run every call of a transaction with a coroutine function; return what the transaction returns."""
    transaction = begin()
    try:
        statement = next(transaction)
        while True:
            statement = transaction.send(await execute(statement))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        transaction.close()


class Driver(Protocol):
    """Run transactions on one database. Every error that it raises is one of `headway.core.errors`."""

    @property
    def dialect_name(self) -> str:
        """`sqlite` or `postgresql`."""
        ...

    async def run(self, begin: Begin[T]) -> T:
        """Run a transaction: all of its calls are committed together, or none.

        After `StoreUnavailable` the outcome is unknown: the commit may have happened.
        """
        ...

    async def fetch(self, statement: StatementCall) -> Rows:
        """Run one call in its own transaction."""
        ...

    async def peek(self, statement: StatementCall) -> Rows:
        """Read a few rows by their keys, on SQLite in the calling thread: a hop to another would take longer."""
        ...

    async def probe(self, begin: Begin[T], within_s: float) -> T:
        """Run a small transaction on a connection of its own, so that only the database can delay it, with a timeout.

        Probes run one at a time, and none leaves a connection behind.
        """
        ...

    async def script(self, statements: Iterable[str], lock: str) -> None:
        """Run schema statements in one transaction, while holding the lock of this name."""
        ...

    async def watch(self, hear: Callable[[str], None], *, quiet_s: float = 0.0) -> WakeUps:
        """Call `hear` after other processes' commits, with a topic such as `ready default` or `schedules`.

        Where a process hears its own commits too, those within `quiet_s` are reported once.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...
