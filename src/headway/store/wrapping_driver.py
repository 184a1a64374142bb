"""A driver that delegates to another one; subclasses override what they change."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from headway.core.ports import WakeUps
from headway.store.transaction import Begin, Driver, Rows, StatementCall

T = TypeVar("T")


class WrappingDriver:
    """Delegate everything to another driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    @property
    def dialect_name(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._driver.dialect_name

    async def run(self, begin: Begin[T]) -> T:
        """Run a transaction."""
        return await self._driver.run(begin)

    async def fetch(self, statement: StatementCall) -> Rows:
        """Run one call."""
        return await self._driver.fetch(statement)

    async def peek(self, statement: StatementCall) -> Rows:
        """Read a few rows by their keys."""
        return await self._driver.peek(statement)

    async def probe(self, begin: Begin[T], within_s: float) -> T:
        """Run a small transaction on a connection of its own."""
        return await self._driver.probe(begin, within_s)

    async def script(self, statements: Iterable[str], lock: str) -> None:
        """Run schema statements."""
        await self._driver.script(statements, lock)

    async def watch(self, hear: Callable[[str], None], *, quiet_s: float = 0.0) -> WakeUps:
        """Call `hear` after other processes' commits."""
        return await self._driver.watch(hear, quiet_s=quiet_s)

    async def close(self) -> None:
        """Close every connection."""
        await self._driver.close()


def unwrapped(driver: Driver) -> Driver:
    """Return the innermost driver."""
    while isinstance(driver, WrappingDriver):
        driver = driver._driver
    return driver
