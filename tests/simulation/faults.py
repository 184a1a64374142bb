"""Faults between an actor and the store: delay, failure before and after the commit, freeze, crash.

The driver of a crashed actor is dead, so that nothing that its code still does reaches the store. A frozen actor stops
at whatever it waits for and continues after the thaw with its old state.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from headway.core.clock import Clock
from headway.core.errors import StoreUnavailable
from headway.core.ports import LaneClaim, WakeUps
from headway.store.transaction import Begin, Rows, StatementCall, T, Transaction, one
from headway.testing.child_pool import Gate
from tests.simulation.scenario import Mishaps

NO_MISHAPS = Mishaps(before=0.0, after=0.0, freeze=0.0, crash=0.0)

# Where stale state is dangerous: between reading and deciding, and around the writes of workers. The other statements
# run far more often, and would take most of the faults.
_LIKELY: Final = {
    "_fire": 15.0,
    "claim": 6.0,
    "extend": 4.0,
    "settle_completed": 6.0,
    "settle_attempts": 6.0,
    "report": 4.0,
    "_report": 4.0,
    "_keep_step": 6.0,
    "_enqueue_from": 6.0,
    "_enforce": 15.0,
}


class Sea(Protocol):
    """The world as a driver sees it."""

    @property
    def is_down(self) -> bool:
        """Return whether the store is unreachable for every process."""
        ...

    def commit(self, actor: str, begin: Begin[T]) -> T:
        """Run a transaction on the store and let the checkers see it."""
        ...

    def fetch(self, actor: str, statement: StatementCall) -> Rows:
        """Run one call on the store and let the checkers see it."""
        ...

    def saw(self, what: str) -> None:
        """Count an event of the campaign."""
        ...

    async def listen(self, actor: str, hear: Callable[[str], None]) -> WakeUps:
        """Subscribe to commits of other processes; notifications may be late or lost."""
        ...


class GatedClock(Clock):
    """The clock of a process that can be frozen while it rests."""

    gate: Gate

    async def rest(self, seconds: float, wake: asyncio.Event) -> None:
        """Wait for the time or the signal, and for the thaw."""
        await super().rest(seconds, wake)
        await self.gate.passed()


class FaultyDriver:
    """The driver of one actor. `hurt` is called for faults of the whole process."""

    dialect_name = "sqlite"

    def __init__(
        self, sea: Sea, actor: str, gate: Gate, chance: random.Random, hurt: Callable[[str], None] | None = None
    ) -> None:
        self.mishaps = NO_MISHAPS
        self.is_cut_off = False
        self.calls = 0
        self.loses_claims = 0  # How many of the next successful claims lose their response.
        self._sea = sea
        self._actor = actor
        self._gate = gate
        self._chance = chance
        self._hurt = hurt or (lambda mishap: None)

    async def run(self, begin: Begin[T]) -> T:
        """Run a transaction, unless a fault prevents it."""
        # A generator that is not started has had no effect.
        likely = _LIKELY.get(getattr(begin(), "__name__", ""), 1.0)
        result = await self._send(begin, lambda: self._sea.commit(self._actor, begin), likely)
        if isinstance(result, LaneClaim) and result.jobs:
            self._lose_a_claim()
        return result

    async def fetch(self, statement: StatementCall) -> Rows:
        """Run one call."""
        likely = _LIKELY.get(statement.statement, 1.0)
        rows = await self._send(lambda: one(statement), lambda: self._sea.fetch(self._actor, statement), likely)
        if statement.statement == "claim" and rows:
            self._lose_a_claim()
        return rows

    def _lose_a_claim(self) -> None:
        if self.loses_claims:
            self.loses_claims -= 1
            self._sea.saw("claim unheard")
            raise StoreUnavailable("simulated: claimed, but the response was lost")

    async def peek(self, statement: StatementCall) -> Rows:
        """Run one call."""
        return await self.fetch(statement)

    async def probe(self, begin: Begin[T], within_s: float) -> T:
        """Run a transaction."""
        return await self.run(begin)

    async def _send(self, begin: Begin[T], commit: Callable[[], T], likely: float) -> T:
        self.calls += 1
        await self._travel(likely)
        if self._chance.random() < self.mishaps.before * likely:
            self._fail_within(begin)
        result = commit()
        lost = self._chance.random() < self.mishaps.after * likely
        await self._travel(likely)
        if lost:
            self._sea.saw("unknown commit")
            raise StoreUnavailable("simulated: committed, but the response was lost")
        return result

    async def script(self, statements: Iterable[str], lock: str) -> None:
        """Fail: the schema exists before the first actor."""
        raise AssertionError("no actor migrates")

    async def watch(self, hear: Callable[[str], None], *, quiet_s: float = 0.0) -> WakeUps:
        """Subscribe to commits of other processes."""
        await self._travel(1.0)
        return await self._sea.listen(self._actor, hear)

    async def close(self) -> None:
        """Do nothing: the store belongs to the world."""

    async def _travel(self, likely: float) -> None:
        """Simulate the network delay; any fault of a process may happen here."""
        self._refuse_the_dead()
        draw = self._chance.random()
        if draw < self.mishaps.freeze * likely / 2:
            self._hurt("freeze")
        elif draw > 1 - self.mishaps.crash * likely / 2:
            self._hurt("crash")
        await asyncio.sleep(0.0005 + 0.03 * draw**4)
        await self._gate.passed()
        self._refuse_the_dead()
        if self._sea.is_down or self.is_cut_off:
            await asyncio.sleep(self._chance.choice((0.0, 0.5, 2.0)))
            raise StoreUnavailable("simulated: the store is out of reach")

    def _refuse_the_dead(self) -> None:
        if self._gate.is_dead:
            raise StoreUnavailable("simulated: this process is dead")

    def _fail_within(self, begin: Begin[T]) -> None:
        """Fail the transaction after some of its statements; the store rolls it back."""
        steps = self._chance.randint(0, 4)
        if steps:
            self._sea.commit(self._actor, lambda: _broken(begin(), steps))
        raise StoreUnavailable("simulated: failed before the commit")


def _broken(transaction: Transaction[T], steps: int) -> Transaction[T]:
    statement = next(transaction)
    for _ in range(steps):
        rows = yield statement
        try:
            statement = transaction.send(rows)
        except StopIteration:
            break
    transaction.close()
    raise StoreUnavailable("simulated: failed before the commit")
