"""The janitor's tick: clean up after dead workers and old history.

It ends the leases of dead workers and jobs that did not start in time, gives fixed-delay schedules whose job is gone
their next instant, and deletes history older than the retention in bounded pieces; the audit log has its own retention.
"""

from collections.abc import Callable
from typing import Final

from headway.core.clock import Clock
from headway.core.events import LeasesExpired, Pruned, emit
from headway.core.instants import DAY, SECOND, Duration
from headway.core.ports import Cleanup, SchedulerLedger
from headway.core.upkeep_ports import AuditLogPruning

BATCH: Final = 500
REVIVE_EVERY_S: Final = 5.0
PRUNE_EVERY_S: Final = 30.0


class Janitor:
    """Cleans up after dead workers and old history. A `Loop` runs `tick`."""

    def __init__(
        self,
        queue: Cleanup,
        ledger: SchedulerLedger,
        *,
        clock: Clock,
        is_mine: Callable[[], bool],
        poll: Duration,
        retention: Duration,
        audit_log: AuditLogPruning | None = None,
        audit_retention: Duration = 365 * DAY,
    ) -> None:
        self._queue = queue
        self._ledger = ledger
        self._clock = clock
        self._is_mine = is_mine
        self._poll_s = poll / SECOND
        self._retention = retention
        self._audit_log = audit_log
        self._audit_retention = audit_retention
        self._revive_at = self._prune_at = clock.monotonic()

    async def tick(self) -> float:
        """Expire, revive and prune; return 0 while there is more."""
        if not self._is_mine():
            return self._poll_s
        expired = await self._queue.expire(BATCH)
        if expired:
            emit(LeasesExpired(node=self._clock.node, job_ids=tuple(expired)))
        overdue = await self._queue.end_overdue(BATCH)
        await self._revive()
        pruned = await self._prune()
        return 0.0 if BATCH in (len(expired), overdue) or pruned >= BATCH else self._poll_s

    async def _revive(self) -> None:
        if self._clock.monotonic() < self._revive_at:
            return
        if await self._ledger.revive_stranded(BATCH) < BATCH:
            self._revive_at = self._clock.monotonic() + REVIVE_EVERY_S

    async def _prune(self) -> int:
        if self._clock.monotonic() < self._prune_at:
            return 0
        rows = await self._queue.prune(self._retention, BATCH)
        if self._audit_log is not None:
            rows += await self._audit_log.prune(self._audit_retention, BATCH)
        if rows:
            emit(Pruned(node=self._clock.node, rows=rows))
        if rows < BATCH:
            self._prune_at = self._clock.monotonic() + PRUNE_EVERY_S
        return rows
