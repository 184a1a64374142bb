"""A driver that adds entries to the audit log in the transaction of each write."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

from headway.store.statements import SQLITE, catalogue
from headway.store.transaction import Begin, Driver, Rows, StatementCall, Transaction, one
from headway.store.wrapping_driver import WrappingDriver

T = TypeVar("T")
Entries: TypeAlias = Callable[[Any], Iterable[StatementCall]]


class AuditingDriver(WrappingDriver):
    """Wrap a driver. `entries` returns the inserts for what a transaction returned: none if nothing changed."""

    def __init__(self, driver: Driver, entries: Entries) -> None:
        super().__init__(driver)
        self._entries = entries

    async def run(self, begin: Begin[T]) -> T:
        """Run a transaction and add its entries before it commits."""
        return await self._driver.run(lambda: _with_entries(begin, self._entries))

    async def fetch(self, statement: StatementCall) -> Rows:
        """Run one call; add its entries if it writes."""
        if catalogue(SQLITE)[statement.statement].text.startswith("select"):
            return await self._driver.fetch(statement)
        return await self.run(lambda: one(statement))


def _with_entries(begin: Begin[T], entries: Entries) -> Transaction[T]:
    result = yield from begin()
    for statement in entries(result):  # noqa: UP028 - the results of the inserts are not sent back to `entries`
        yield statement
    return result
