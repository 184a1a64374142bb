"""Write what an app declares to the store: when a process starts, and again for what has to wait for an upgrade."""

import asyncio
from collections import Counter
from typing import Final, Protocol

from headway.core.clock import RETRY_REST_S_MAX, Clock
from headway.core.errors import StoreUnavailable
from headway.operations.app_sync import Declarations, sync_app
from headway.operations.limit_sync import WAITS
from headway.operations.schedule_sync import SKIPPED
from headway.store import Store

TOLD_MAX: Final = 20  # Warnings about declarations that were not written.


class DeclarationLog(Protocol):
    """Where a process logs what became of declarations."""

    def write(self, event: str, *, level: str = ..., **facts: object) -> None:
        """Log a line."""
        ...


class DeclarationSync:
    """Writes the declarations of one app. While `is_waiting`, a `Loop` runs `tick`.

    What has another owner is left unchanged; limits and tenants that older nodes would ignore wait until those have
    ended.
    """

    def __init__(self, store: Store, declared: Declarations, clock: Clock, log: DeclarationLog) -> None:
        self._store = store
        self._declared = declared
        self._clock = clock
        self._log = log
        self.attention: list[str] = []  # What an operator should know.
        self.is_waiting = False

    async def run(self, stopping: asyncio.Event) -> None:
        """Write the declarations; wait for the store while it is down."""
        while not stopping.is_set():
            try:
                await self._write()
                return
            except StoreUnavailable as error:
                self._log.write("waiting for the store", level="warning", error=str(error))
                await self._clock.rest(RETRY_REST_S_MAX, stopping)

    async def tick(self) -> float:
        """Try again while something waits."""
        if self.is_waiting:
            await self._write()
        return RETRY_REST_S_MAX

    async def _write(self) -> None:
        owner, done = self._declared.owner, await sync_app(self._store, self._declared)
        counts = Counter(outcome.partition(":")[0] for outcome in done.values())
        skipped = [outcome.removeprefix(SKIPPED) for outcome in done.values() if outcome.startswith(SKIPPED)]
        waiting = [outcome.removeprefix(WAITS) for outcome in done.values() if outcome.startswith(WAITS)]
        attention = [f"the app {owner!r} declares it too, and that is skipped: {reason}" for reason in skipped]
        attention += [f"the app {owner!r} declares it, and that waits: {reason}" for reason in waiting]
        if attention[:TOLD_MAX] != self.attention or not waiting:
            for reason in (*skipped, *waiting)[:TOLD_MAX]:
                self._log.write("declaration skipped", level="warning", app=owner, reason=reason)
            words = ", ".join(f"{counts[word]} {word}" for word in sorted(counts))
            self._log.write("schedules synchronised", app=owner, done=words or "nothing declared")
        self.attention, self.is_waiting = attention[:TOLD_MAX], bool(waiting)
