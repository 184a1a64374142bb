"""Ports of the housekeeping loops that keep lanes, groups, needs and the audit log."""

from typing import Protocol

from headway.core.instants import Duration


class Upkeep(Protocol):
    """Keep lanes or groups going."""

    async def keep_going(self) -> bool:
        """Do one bounded piece of what is due; return whether there may be more."""
        ...


class AuditLogPruning(Protocol):
    """What the janitor needs of the audit log."""

    async def prune(self, retention: Duration, limit: int) -> int:
        """Delete entries older than the retention, oldest first; return how many."""
        ...


class NeedsUpkeep(Protocol):
    """What the keeper of needs asks of the queue. A class is a queue with what jobs in it need."""

    async def waiting(self) -> list[tuple[str, str]]:
        """Return the classes with ready jobs, as queue and needs; in turns if they are many."""
        ...

    async def parked(self) -> list[tuple[str, str]]:
        """Return the classes with jobs that are parked because of their needs; in turns if they are many."""
        ...

    async def park(self, queue: str, needs: str, reason: str) -> int:
        """Park ready jobs of a class; return how many, a bounded number at a time."""
        ...

    async def unpark(self, queue: str, needs: str) -> int:
        """Let parked jobs of a class go on; return how many, a bounded number at a time."""
        ...
