"""Count jobs and schedules of a tenant, for its quotas."""

from headway.store import Store


class TenantCounts:
    """Counts of a tenant's rows in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def unfinished_jobs(self, tenant: str, *, limit: int) -> int:
        """Count the jobs of a tenant that have not ended, up to a limit."""
        return sum(row["jobs"] for row in await self._store.statistics.live_counts(tenant, limit=limit))

    async def schedules(self, tenant: str) -> int:
        """Count the schedules of a tenant."""
        return await self._store.schedules.count(tenant)
