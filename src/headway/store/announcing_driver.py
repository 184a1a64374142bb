"""A driver that announces, after each commit, which jobs became ready.

Every statement that can make a job ready returns the queue of the job in the column `ready_in`. So this one place sees
all of them.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias, TypeVar

from headway.store.statements import SQLITE, catalogue
from headway.store.transaction import Begin, Driver, Rows, StatementCall, Transaction
from headway.store.wrapping_driver import WrappingDriver

T = TypeVar("T")
Announce: TypeAlias = Callable[[Sequence[tuple[str, str]]], None]


class AnnouncingDriver(WrappingDriver):
    """Wrap a driver. `announce` is called with pairs of queue and job id, and must not block."""

    def __init__(self, driver: Driver, announce: Announce) -> None:
        super().__init__(driver)
        self._announce = announce

    async def run(self, begin: Begin[T]) -> T:
        """Run a transaction and announce the jobs that it made ready."""
        ready: list[tuple[str, str]] = []

        def observed() -> Transaction[T]:
            ready.clear()  # The driver may run it again.
            return _observe(begin(), ready)

        result = await self._driver.run(observed)
        if ready:
            self._announce(ready)
        return result

    async def fetch(self, statement: StatementCall) -> Rows:
        """Run one call and announce the jobs that it made ready."""
        rows = await self._driver.fetch(statement)
        if statement.statement in _announcing() and (ready := _ready(rows)):
            self._announce(ready)
        return rows


@cache
def _announcing() -> frozenset[str]:
    return frozenset(name for name, statement in catalogue(SQLITE).items() if " as ready_in" in statement.text)


def _ready(rows: Rows) -> list[tuple[str, str]]:
    return [(row["ready_in"], row["id"]) for row in rows if row["ready_in"] is not None]


def _observe(transaction: Transaction[T], ready: list[tuple[str, str]]) -> Transaction[T]:
    try:
        statement = next(transaction)
        while True:
            rows = yield statement
            if statement.statement in _announcing():
                ready += _ready(rows)
            statement = transaction.send(rows)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        transaction.close()
