"""A driver whose writes leave a line in the trail of actions, in the same transaction.

So no action is without its line and no line without its action, also when the process dies between two statements.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

from headway.store.statements import SQLITE, catalogue
from headway.store.transaction import Begin, Call, Driver, Rows, Transaction, one
from headway.store.wrapping_driver import WrappingDriver

T = TypeVar("T")
Lines: TypeAlias = Callable[[Any], Iterable[Call]]


class TrailingDriver(WrappingDriver):
    """Another driver; `lines` makes of what a transaction returns the lines to write: none if nothing has changed."""

    def __init__(self, driver: Driver, lines: Lines) -> None:
        super().__init__(driver)
        self._lines = lines

    async def run(self, begin: Begin[T]) -> T:
        """Run a transaction, and write its lines before it ends."""
        return await self._driver.run(lambda: _with_lines(begin, self._lines))

    async def fetch(self, statement: Call) -> Rows:
        """Run one call; if it writes, with its lines."""
        if catalogue(SQLITE)[statement.statement].text.startswith("select"):
            return await self._driver.fetch(statement)
        return await self.run(lambda: one(statement))


def _with_lines(begin: Begin[T], lines: Lines) -> Transaction[T]:
    result = yield from begin()
    for statement in lines(result):  # noqa: UP028 - what comes back is not for the lines
        yield statement
    return result
