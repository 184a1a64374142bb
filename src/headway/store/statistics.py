"""Count jobs by queue, status and time. Every count is bounded, so that a large backlog does not slow it down."""

from typing import Any

from headway.core.instants import Duration, Instant
from headway.store.transaction import Driver, call


class StoreStatistics:
    """Counts of jobs for the overview, the command line and the dashboard."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def waiting(self) -> dict[str, int]:
        """Count the jobs that are running or blocked, by status."""
        return {row["status"]: row["waiting"] for row in await self._driver.fetch(call("waiting_counts"))}

    async def depths(self) -> list[dict[str, Any]]:
        """Count pending jobs by queue, with the age of the oldest in seconds."""
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
        """Count running jobs by queue."""
        return {row["queue"]: row["running"] for row in await self._driver.fetch(call("running_counts"))}

    async def dead_counts(self, limit: int = 10_000, *, tenant: str | None = None) -> list[dict[str, Any]]:
        """Count dead letters by task, most first, each with the newest; read up to a limit."""
        rows = await self._driver.fetch(call("dead_counts", limit=limit, tenant=tenant))
        return [{column: row[column] for column in ("task", "letters", "newest")} for row in rows]

    async def live_counts(self, tenant: str, limit: int = 100_000) -> list[dict[str, Any]]:
        """Count the live jobs of a tenant by queue and status, with the age of the oldest in seconds."""
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
        """Count recently ended jobs by status; return the window too, which is shorter if the limit was reached."""
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
        """Count ended jobs by time step and status, with p50 and p95 of the durations of completed ones.

        Read the newest jobs up to a limit; if there are more, return the time from which on they were read.
        """
        rows = await self._driver.fetch(
            call("ended_series", since=since, step=step, tenant=tenant, task=task, queue=queue, limit=limit)
        )
        looked_at = next(row for row in rows if row["step"] is None)
        oldest: Instant | None = looked_at["half"] if looked_at["ended"] >= limit else None
        columns = ("step", "status", "ended", "half", "most")
        return [{column: row[column] for column in columns} for row in rows if row["step"] is not None], oldest
