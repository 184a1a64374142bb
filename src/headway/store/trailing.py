"""A driver whose writes leave a line in the trail of actions, in the same transaction.

So no action is without its line and no line without its action, also when the process dies between two statements.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

from headway.ports import WakeUps
from headway.store.statements import SQLITE, catalogue
from headway.store.transaction import Begin, Call, Driver, Rows, Transaction, one

T = TypeVar("T")
Line: TypeAlias = Callable[[Any], Call | None]


class TrailingDriver:
    """Another driver; `line` makes of what a transaction returns the line to write, or none if nothing has changed."""

    def __init__(self, driver: Driver, line: Line) -> None:
        self._driver = driver
        self._line = line

    @property
    def dialect_name(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._driver.dialect_name

    async def run(self, begin: Begin[T]) -> T:
        """Run a transaction, and write its line before it ends."""
        return await self._driver.run(lambda: _with_line(begin, self._line))

    async def fetch(self, statement: Call) -> Rows:
        """Run one call; if it writes, with its line."""
        if catalogue(SQLITE)[statement.statement].text.startswith("select"):
            return await self._driver.fetch(statement)
        return await self.run(lambda: one(statement))

    async def peek(self, statement: Call) -> Rows:
        """Read a few rows by their keys."""
        return await self._driver.peek(statement)

    async def script(self, statements: Iterable[str], lock: str) -> None:
        """Run schema statements."""
        await self._driver.script(statements, lock)

    async def watch(self, hear: Callable[[str], None]) -> WakeUps:
        """Start to hear of other processes' commits."""
        return await self._driver.watch(hear)

    async def close(self) -> None:
        """Give back every connection."""
        await self._driver.close()


def _with_line(begin: Begin[T], line: Line) -> Transaction[T]:
    result = yield from begin()
    statement = line(result)
    if statement is not None:
        yield statement
    return result
