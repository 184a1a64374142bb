"""Read jobs with their attempts, events and logs. Nothing here writes."""

from typing import Any, Final, Unpack

from headway.core.errors import JobNotFound
from headway.core.jobs import Job
from headway.store.job_filter import Index, JobFilter, JobFilterValues, has_index, tenant_of
from headway.store.job_rows import ANY_SIZE, read_job, read_listed_job
from headway.store.transaction import Driver, as_json, call

PAGE_MAX: Final = 200
LOG_PAGE_MAX: Final = 10_000
_PAGES: Final[dict[Index, str]] = {"group": "jobs_of_group", "tenant": "jobs_of_tenant", "all": "jobs"}
_LAST_ID: Final = "~"  # Sorts after every id.
_LAST_SEQ: Final = 2**63 - 1
_LINE: Final = ("seq", "attempt", "at", "stream", "line", "version")


class StoreJobs:
    """Reads of jobs, their attempts, events and logs."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def get(self, job_id: str) -> Job:
        """Read a job by its id, or by a unique prefix of its id."""
        rows = await self._driver.fetch(call("job", id=job_id))
        if not rows and len(job_id) >= 4 and job_id.startswith("job_"):
            rows = await self._driver.fetch(call("jobs_by_prefix", low=job_id, high=job_id + _LAST_ID))
        if len(rows) != 1:
            raise JobNotFound(f"no job has the id {job_id!r}" if not rows else f"several jobs begin with {job_id!r}")
        return read_job(rows[0])

    async def page(
        self, *, before: str | None = None, limit: int = 50, **filters: Unpack[JobFilterValues]
    ) -> list[Job]:
        """Read a page of jobs, newest first."""
        return await self.chosen(JobFilter(**filters), before=before, limit=limit)

    async def chosen(
        self, chosen: JobFilter, *, before: str | None = None, limit: int = 50, largest: int = ANY_SIZE
    ) -> list[Job]:
        """Read a page of the jobs that match a filter, newest first; leave out texts of more than `largest` bytes."""
        statement = "jobs_rerunning" if chosen.rerun_of is not None else _PAGES[chosen.index]
        most = max(1, min(limit, PAGE_MAX))
        place = {"before": before or _LAST_ID, "limit": most, "largest": largest}
        rows = await self._driver.fetch(call(statement, **chosen.parameters(), **place))
        return [read_listed_job(row) for row in rows]

    async def latest(
        self, task: str, *, tenant: str | None = None, key: str | None = None, status: str | None = None
    ) -> Job | None:
        """Read the newest job of a task, or its newest job with this status."""
        statement = "latest_of_tenant" if has_index(tenant) else "latest"
        rows = await self._driver.fetch(call(statement, task=task, tenant=tenant, key=key, status=status))
        return read_job(rows[0]) if rows else None

    async def running(self, limit: int = PAGE_MAX, *, largest: int = ANY_SIZE) -> list[Job]:
        """Read running jobs, longest running first."""
        rows = await self._driver.fetch(call("running", limit=limit, largest=largest))
        return [read_listed_job(row) for row in rows]

    async def ahead(self, job: Job, limit: int = 10_000, *, tenant: str | None = None) -> int:
        """Count the ready jobs, or those of one tenant, that a worker takes before this one, up to a limit."""
        place = {"queue": job.queue, "priority": job.priority, "run_at": job.run_at, "id": job.id, "tenant": tenant}
        jobs: int = (await self._driver.fetch(call("ahead", **place, limit=limit)))[0]["jobs"]
        return jobs

    async def dead(
        self,
        *,
        task: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        schedule: str | None = None,
        before: str | None = None,
        limit: int = 50,
        largest: int = ANY_SIZE,
    ) -> list[Job]:
        """Read a page of dead letters, newest first; `schedule` belongs to the tenant, or to the default tenant."""
        whose = tenant_of(tenant, schedule)
        filters = {"task": task, "queue": queue, "tenant": whose, "schedule": schedule, "largest": largest}
        limit = max(1, min(limit, PAGE_MAX))
        rows = await self._driver.fetch(call("dead", **filters, before=before or _LAST_ID, limit=limit))
        return [read_listed_job(row) for row in rows]

    async def attempts(self, job_id: str, *, newest: int = 1_000_000) -> list[dict[str, Any]]:
        """Read the ended attempts of a job, oldest first, at most the newest `newest`."""
        columns = ("attempt", "node", "ready_at", "started_at", "ended_at", "outcome", "reason", "error")
        rows = await self._driver.fetch(call("attempts", id=job_id, limit=newest))
        return [{column: row[column] for column in columns} for row in reversed(rows)]

    async def events(self, job_id: str, limit: int = 1_000) -> list[dict[str, Any]]:
        """Read the events of a job, oldest first."""
        columns = ("seq", "event", "data")
        rows = await self._driver.fetch(call("events", id=job_id, limit=limit))
        return [{**{column: row[column] for column in columns}, "at": row["seq"] // 8} for row in rows]

    async def reruns(self, job_id: str) -> list[str]:
        """Return the ids of the reruns of a job."""
        return [row["id"] for row in await self._driver.fetch(call("reruns", ids=as_json([job_id])))]

    async def log(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[dict[str, Any]]:
        """Read a page of a job's log, oldest first."""
        rows = await self._driver.fetch(call("log", id=job_id, after=after, limit=max(1, min(limit, LOG_PAGE_MAX))))
        return [{column: row[column] for column in _LINE} for row in rows]

    async def log_newest(self, job_id: str, *, before: int | None = None, limit: int = 1_000) -> list[dict[str, Any]]:
        """Read a page of a job's log, newest first, lines with a number below `before`."""
        last = _LAST_SEQ if before is None else before
        rows = await self._driver.fetch(
            call("log_newest", id=job_id, before=last, limit=max(1, min(limit, LOG_PAGE_MAX)))
        )
        return [{column: row[column] for column in _LINE} for row in rows]
