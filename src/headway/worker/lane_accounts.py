"""What a worker settles with the lanes of ended and running attempts: freed places, and what tenants are charged."""

from collections import Counter

from headway.core.errors import StoreUnavailable
from headway.core.ports import Claims
from headway.worker.held import HeldAttempts
from headway.worker.lane_book import LaneBook


class LaneAccounts:
    """Let lanes go on that waited for our ended attempts, and charge tenants for what their jobs took."""

    def __init__(self, work: Claims, held: HeldAttempts, lanes: LaneBook) -> None:
        self._work = work
        self._held = held
        self._lanes = lanes

    async def reopen(self) -> list[str]:
        """Let lanes go on that waited for our ended attempts or for their rate; return their queues."""
        freed, self._held.freed = self._held.freed, Counter()
        freed.update(self._lanes.take_unused())
        if not freed and not self._lanes.is_due():
            return []
        try:
            return sorted(await self._work.reopen(freed))
        except StoreUnavailable:
            self._held.freed.update(freed)
            raise

    async def charge(self) -> None:
        """Charge tenants for what their jobs took, once a second."""
        if not self._lanes.charges_now():
            return
        self._held.usage.go_on(self._held)
        charges = self._held.usage.take()
        try:
            if charges:
                await self._work.charge(charges)
        except StoreUnavailable:
            self._held.usage.give_back(charges)
            raise
