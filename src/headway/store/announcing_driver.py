"""A driver that says, after each commit, which jobs it has made ready.

Every statement that can make a job ready returns in `ready_in` the queue in which it is ready now. So whoever commits,
and whatever for, is overheard in this one place.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias, TypeVar

from headway.store.statements import SQLITE, catalogue
from headway.store.transaction import Begin, Call, Driver, Rows, Transaction
from headway.store.wrapping_driver import WrappingDriver

T = TypeVar("T")
Announce: TypeAlias = Callable[[Sequence[tuple[str, str]]], None]


class AnnouncingDriver(WrappingDriver):
    """Another driver, overheard. `announce` is called with (queue, job id) and must return at once."""

    def __init__(self, driver: Driver, announce: Announce) -> None:
        super().__init__(driver)
        self._announce = announce

    async def run(self, begin: Begin[T]) -> T:
        """Run a transaction, and say what it has made ready."""
        ready: list[tuple[str, str]] = []

        def overheard() -> Transaction[T]:
            ready.clear()  # It may be run again.
            return _overhear(begin(), ready)

        result = await self._driver.run(overheard)
        if ready:
            self._announce(ready)
        return result

    async def fetch(self, statement: Call) -> Rows:
        """Run one call, and say what it has made ready."""
        rows = await self._driver.fetch(statement)
        if statement.statement in _tellers() and (ready := _ready(rows)):
            self._announce(ready)
        return rows


@cache
def _tellers() -> frozenset[str]:
    return frozenset(name for name, statement in catalogue(SQLITE).items() if " as ready_in" in statement.text)


def _ready(rows: Rows) -> list[tuple[str, str]]:
    return [(row["ready_in"], row["id"]) for row in rows if row["ready_in"] is not None]


def _overhear(transaction: Transaction[T], ready: list[tuple[str, str]]) -> Transaction[T]:
    try:
        statement = next(transaction)
        while True:
            rows = yield statement
            if statement.statement in _tellers():
                ready += _ready(rows)
            statement = transaction.send(rows)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        transaction.close()
