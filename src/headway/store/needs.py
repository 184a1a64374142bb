"""Classes of queues: jobs of a queue that need the same. Find them, park those that no worker offers, unpark them.

Nothing here reads all jobs: a loose index scan visits one row for each class, a bounded number of classes at a time.
"""

from typing import Final

from headway.core.instants import MINUTE
from headway.core.lifecycle import Parked, settle
from headway.core.validation import REASON_LENGTH_MAX, storable
from headway.store.job_rows import read_lost_attempt
from headway.store.settlement import settle_attempts
from headway.store.transaction import Driver, Transaction, call

CLASSES_MAX: Final = 500  # Of all queues, looked at in one statement.
PARK_MAX: Final = 500  # Jobs that are parked or unparked in one transaction.
CAUSE: Final = "needs"
_LEASE: Final = MINUTE  # Of jobs that are parked in the transaction that claims them.


class ClassPages:
    """Read classes page by page, and begin again after the last page."""

    def __init__(self, statement: str) -> None:
        self._statement = statement
        self._after = ("", "")

    async def following(self, driver: Driver) -> list[tuple[str, str]]:
        """Return the next page: classes as queue and needs, those with needs only."""
        queue, needs = self._after
        rows = await driver.fetch(call(self._statement, queue=queue, needs=needs, limit=CLASSES_MAX))
        found = [(row["queue"], row["needs"]) for row in rows]
        self._after = found[-1] if len(found) == CLASSES_MAX else ("", "")
        return [one for one in found if one[1]]


def _park(queue: str, needs: str, reason: str, node: str) -> Transaction[int]:
    """Claim ready jobs and park them at once, so that each has an attempt that says why."""
    rows = yield call("claim_unoffered", queue=queue, needs=needs, node=node, lease=_LEASE, limit=PARK_MAX)
    parked = Parked(storable(reason, REASON_LENGTH_MAX), CAUSE)
    if rows:
        yield from settle_attempts([settle(read_lost_attempt(row), parked, 0.0) for row in rows])
    return len(rows)


class StoreNeeds:
    """Implement the port `NeedsUpkeep` on one store."""

    def __init__(self, driver: Driver, node: str) -> None:
        self._driver = driver
        self._node = node
        self._waiting = ClassPages("waiting_needs")
        self._parked = ClassPages("parked_needs")

    async def waiting(self) -> list[tuple[str, str]]:
        """Return the classes with ready jobs; in turns if they are many."""
        return await self._waiting.following(self._driver)

    async def parked(self) -> list[tuple[str, str]]:
        """Return the classes with jobs that are parked because of their needs; in turns if they are many."""
        return await self._parked.following(self._driver)

    async def park(self, queue: str, needs: str, reason: str) -> int:
        """Park ready jobs of a class, at most 500; return how many."""
        return await self._driver.run(lambda: _park(queue, needs, reason, self._node))

    async def unpark(self, queue: str, needs: str) -> int:
        """Let parked jobs of a class go on, at most 500; return how many."""
        return len(await self._driver.fetch(call("unpark_needs", queue=queue, needs=needs, limit=PARK_MAX)))
