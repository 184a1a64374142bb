"""A transaction is a generator: it yields calls of named statements and is sent their rows.

    def fire(plans) -> Transaction[int]:
        rows = yield call("advance", plans=as_json(plans))
        yield call("record", occurrences=...)
        return len(rows)

It knows nothing of drivers, threads or event loops, so one text serves them all: asyncpg awaits each call,
sqlite3 runs the whole generator in one hop to its thread, a caller's own connection runs it inside the caller's
transaction, and the simulation fails it before or after any step. A transaction that meets a deadlock is run again from
its beginning, so it must not change anything but the store.
"""

import re
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

from headway.core.errors import StoreError
from headway.core.ports import WakeUps

_NUL: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")  # Not a backslash that is itself written with one.

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Row(Protocol):
    """A row of a result, read by column name, or all columns in their order."""

    def __getitem__(self, column: str) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...


Rows: TypeAlias = "list[Row]"


@dataclass(frozen=True, slots=True)
class Call:
    """One execution of a named statement."""

    statement: str
    parameters: Mapping[str, object]


Transaction: TypeAlias = Generator[Call, Rows, T]
Begin: TypeAlias = Callable[[], Transaction[T]]


class ConstraintViolated(StoreError):
    """The database refused a row that breaks one of its constraints."""


def call(statement: str, **parameters: object) -> Call:
    """Name a statement and its parameters."""
    return Call(statement, parameters)


def as_json(rows: Iterable[object]) -> str:
    """Write rows, or plain values, as the one JSON parameter that a statement unfolds.

    PostgreSQL cannot keep a NUL, and one in what somebody's task logs must not refuse what goes with it.
    """
    text = msgspec.json.encode(rows if isinstance(rows, list) else list(rows)).decode()
    return _NUL.sub(r"\1␀", text) if "\\u0000" in text else text


def one(statement: Call) -> Transaction[Rows]:
    """Wrap a single call as a transaction."""
    return (yield statement)


def step_through(begin: Begin[T], execute: Callable[[Call], Rows]) -> T:
    """Run every call of a transaction with a function that answers at once; return what the transaction returns."""
    transaction = begin()
    try:
        statement = next(transaction)
        while True:
            statement = transaction.send(execute(statement))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        transaction.close()


async def step_through_async(begin: Begin[T], execute: Callable[[Call], Awaitable[Rows]]) -> T:
    """Run every call of a transaction with a function that has to be awaited."""
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
    """Runs transactions on one database. Every error that leaves it is one of `headway.core.errors`."""

    @property
    def dialect_name(self) -> str:
        """`sqlite` or `postgresql`."""
        ...

    async def run(self, begin: Begin[T]) -> T:
        """Run a transaction: all of its calls are committed together, or none.

        `StoreUnavailable` may mean that the commit happened and its answer was lost.
        """
        ...

    async def fetch(self, statement: Call) -> Rows:
        """Run one call, committed by itself."""
        ...

    async def peek(self, statement: Call) -> Rows:
        """Read a few rows by their keys: what is so short that handing it to somebody else takes longer."""
        ...

    async def probe(self, begin: Begin[T], within_s: float) -> T:
        """Run a small transaction apart from all others, so that only the database can hold it up; give up in time.

        One at a time: who asks while another one is under way waits for it, and no connection is left behind.
        """
        ...

    async def script(self, statements: Iterable[str], lock: str) -> None:
        """Run schema statements in one transaction that excludes every other one with this lock name."""
        ...

    async def watch(self, hear: Callable[[str], None], *, quiet_s: float = 0.0) -> WakeUps:
        """Start to hear of other processes' commits; each is a topic such as `ready default` or `schedules`.

        Who can wait so long says so: where one's own commits are heard, too, those within that time are heard as one.
        """
        ...

    async def close(self) -> None:
        """Give back every connection."""
        ...
