"""Count jobs by queue, status and time. Every count is bounded, so that a large backlog does not slow it down."""

from typing import Any

from headway.core.instants import Duration, Instant
from headway.store.transaction import Driver, call


class StoreStatistics:
    """Counts of jobs for the overview, the command line and the dashboard."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def waiting(self) -> dict[str, int]:
        """Count the jobs that run or wait for something, by status."""
        return {row["status"]: row["waiting"] for row in await self._driver.fetch(call("waiting_counts"))}

    async def depths(self) -> list[dict[str, Any]]:
        """Count what waits, by queue, with the age of the oldest in seconds."""
        rows = await self._driver.fetch(call("queue_depths"))
        return [
            {
                "name": row["queue"],
                "pending": row["pending"],
                "oldest_age_seconds": max(0, row["now"] - row["oldest_at"]) / 1e6,
            }
            for row in rows
        ]

    async def running_counts(self) -> dict[str, int]:
        """Count the jobs that run, by queue."""
        return {row["queue"]: row["running"] for row in await self._driver.fetch(call("running_counts"))}

    async def dead_counts(self, limit: int = 10_000, *, tenant: str | None = None) -> list[dict[str, Any]]:
        """Count dead letters by task, most first, each with the newest of them; up to a limit in all."""
        rows = await self._driver.fetch(call("dead_counts", limit=limit, tenant=tenant))
        return [{column: row[column] for column in ("task", "letters", "newest")} for row in rows]

    async def live_counts(self, tenant: str, limit: int = 100_000) -> list[dict[str, Any]]:
        """Count what one tenant has waiting and running, by queue and status, with the age of the oldest in seconds."""
        rows = await self._driver.fetch(call("live_counts", tenant=tenant, limit=limit))
        return [
            {
                "name": row["queue"],
                "status": row["status"],
                "jobs": row["jobs"],
                "oldest_age_seconds": max(0, row["now"] - row["oldest_at"]) / 1e6,
            }
            for row in rows
        ]

    async def ended_counts(
        self, window: Duration, *, tenant: str | None = None, limit: int = 100_000
    ) -> tuple[dict[str, int], Duration]:
        """Count by status the jobs that ended lately, and say how far back that is: less when there were too many."""
        rows = await self._driver.fetch(call("ended_counts", window=window, tenant=tenant, limit=limit))
        counts = {row["status"]: int(row["jobs"]) for row in rows}
        if sum(row["looked_at"] for row in rows) < limit:
            return counts, window
        return counts, max(1, max(row["now"] for row in rows) - min(row["since_at"] for row in rows))

    async def ended_series(
        self,
        since: Instant,
        step: Duration,
        *,
        tenant: str | None = None,
        task: str | None = None,
        queue: str | None = None,
        limit: int = 20_000,
    ) -> tuple[list[dict[str, Any]], Instant | None]:
        """Count by steps of time and status the jobs that ended, and how long half and most of the completed took.

        Of everybody's jobs the newest are looked at, up to a limit; if there were more, say from when on.
        """
        rows = await self._driver.fetch(
            call("ended_series", since=since, step=step, tenant=tenant, task=task, queue=queue, limit=limit)
        )
        looked_at = next(row for row in rows if row["step"] is None)
        oldest: Instant | None = looked_at["half"] if looked_at["ended"] >= limit else None
        columns = ("step", "status", "ended", "half", "most")
        return [{column: row[column] for column in columns} for row in rows if row["step"] is not None], oldest
