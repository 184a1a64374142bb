"""A driver whose writes leave a line in the trail of actions, in the same transaction.

So no action is without its line and no line without its action, also when the process dies between two statements.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from headway.store.statements import SQLITE, catalogue
from headway.store.transaction import Begin, Call, Driver, Rows, Transaction, one
from headway.store.wrapping import WrappingDriver

T = TypeVar("T")
Line: TypeAlias = Callable[[Any], Call | None]


class TrailingDriver(WrappingDriver):
    """Another driver; `line` makes of what a transaction returns the line to write, or none if nothing has changed."""

    def __init__(self, driver: Driver, line: Line) -> None:
        super().__init__(driver)
        self._line = line

    async def run(self, begin: Begin[T]) -> T:
        """Run a transaction, and write its line before it ends."""
        return await self._driver.run(lambda: _with_line(begin, self._line))

    async def fetch(self, statement: Call) -> Rows:
        """Run one call; if it writes, with its line."""
        if catalogue(SQLITE)[statement.statement].text.startswith("select"):
            return await self._driver.fetch(statement)
        return await self.run(lambda: one(statement))


def _with_line(begin: Begin[T], line: Line) -> Transaction[T]:
    result = yield from begin()
    statement = line(result)
    if statement is not None:
        yield statement
    return result
