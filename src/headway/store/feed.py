"""The change feed: every change of the followed jobs, in commit order.

Sequence numbers are assigned when a row is written, but rows commit in another order, so "everything above the last
number" would miss rows. A *position* is therefore what the database itself knows about order: on PostgreSQL a snapshot,
which says exactly which commits were visible; on SQLite, with one writer at a time, the number. `read` returns what is
new since a position, each row once. `again` returns everything that may be new, possibly twice, for clients that
reconnect with only a number.
"""

from collections.abc import Iterable
from typing import Final

from headway.core.feed import Change, Line
from headway.core.instants import MINUTE, SECOND, Duration, Instant
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.store.job_rows import ANY_SIZE, read_listed_job, read_tags
from headway.store.transaction import Driver, Row, Rows, as_json, call

FEED_KEPT: Final = 10 * MINUTE
READ_MAX: Final = 2_000
AGAIN_MAX: Final = 5_000
PRUNE_MAX: Final = 20_000
LOG_PAGE: Final = 1_000
PEEK_MAX: Final = 100
JOBS_PEEK_MAX: Final = 20  # Jobs can be large, and a peek blocks the event loop on SQLite.


class StoreFeed:
    """Followed jobs and their changes."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def follow(self, scopes: Iterable[str], duration: Duration) -> dict[str, int]:
        """Record changes of these jobs for a while; return since when each is recorded without a gap."""
        rows = as_json([{"scope": scope} for scope in sorted(set(scopes))])
        followed = await self._driver.fetch(call("follow_jobs", scopes=rows, duration=duration))
        return {row["scope"]: row["since"] for row in followed}

    async def position(self) -> str:
        """Return the current position."""
        rows = await self._driver.fetch(call("feed_position"))
        return str(rows[0]["position"])

    async def read(self, position: str) -> tuple[list[Change], str, bool]:
        """Read the changes since a position; return them, the next position, and whether there may be more.

        A long result is read in parts, all as of the first part: rows that commit meanwhile may have lower numbers, and
        would be missed or read twice. A position between parts has three components.
        """
        base, seq, until = position.split("/") if "/" in position else (position, "0", None)
        rows = await self._driver.fetch(call("feed", position=base, seq=int(seq), until=until, limit=READ_MAX))
        changes = [_change(row) for row in rows]
        end = until or (str(rows[0]["position"]) if rows else base)
        if len(rows) == READ_MAX:
            return changes, f"{base}/{rows[-1]['seq']}/{end}", True
        return changes, end, until is not None

    async def again(self, low: int) -> list[Change] | None:
        """Read everything that may have been committed since; return None when that is too much."""
        position = f"{low}:{low}:" if self._driver.dialect_name == "postgresql" else str(low)
        rows = await self._driver.fetch(call("feed_again", position=position, limit=AGAIN_MAX))
        return None if len(rows) == AGAIN_MAX else [_change(row) for row in rows]

    async def of_job(self, job_id: str, after: int) -> list[Change]:
        """Read the recorded versions of one job after this one."""
        rows = await self._driver.fetch(call("feed_of_job", id=job_id, after=after, limit=AGAIN_MAX))
        return [_change(row) for row in rows]

    async def versions(self, job_ids: Iterable[str]) -> dict[str, int]:
        """Read the current versions of jobs; missing jobs are left out."""
        rows = await self._driver.fetch(call("versions", ids=as_json(sorted(job_ids))))
        return {row["id"]: row["version"] for row in rows}

    async def jobs(self, job_ids: Iterable[str], *, largest: int = ANY_SIZE) -> list[Job]:
        """Read jobs; texts of more than `largest` bytes are left out and named in `omitted`."""
        rows = await self._by_id("jobs_by_id", job_ids, peek_max=JOBS_PEEK_MAX, largest=largest)
        return [read_listed_job(row) for row in rows]

    async def stamps(self, job_ids: Iterable[str]) -> dict[str, tuple[int, Instant | None]]:
        """Read version and lease end of jobs; while both are the same, the job has not changed."""
        rows = await self._by_id("stamps", job_ids)
        return {row["id"]: (row["version"], row["lease_until"]) for row in rows}

    async def _by_id(
        self, statement: str, job_ids: Iterable[str], *, peek_max: int = PEEK_MAX, **parameters: object
    ) -> Rows:
        ids = sorted(job_ids)
        read = self._driver.peek if len(ids) <= peek_max else self._driver.fetch
        return await read(call(statement, ids=as_json(ids), **parameters))

    async def log_between(self, job_id: str, after: int, until: int) -> list[Line]:
        """Read the lines that a job logged after one version up to another."""
        lines: list[Line] = []
        while len(page := await self._log_page(job_id, after, lines[-1].seq if lines else 0)) == LOG_PAGE:
            lines += page
        return [line for line in lines + page if line.version <= until]

    async def last_line(self, job_id: str, version: int) -> tuple[int, int]:
        """Return attempt and time of the last line that a job had logged by a version; zeroes if none."""
        rows = await self._driver.fetch(call("last_line", id=job_id, version=version))
        return (rows[0]["attempt"], rows[0]["at"]) if rows else (0, 0)

    async def _log_page(self, job_id: str, version: int, seq: int) -> list[Line]:
        rows = await self._driver.fetch(call("log_since", id=job_id, after=version, seq=seq, limit=LOG_PAGE))
        return [
            Line(
                seq=row["seq"],
                attempt=row["attempt"],
                at=row["at"],
                stream=row["stream"],
                line=row["line"],
                version=row["version"],
            )
            for row in rows
        ]

    async def prune(self) -> int:
        """Delete old changes and expired subscriptions; return how many changes were deleted."""
        await self._driver.fetch(call("forget_followed", age=60 * SECOND))
        return len(await self._driver.fetch(call("prune_feed", age=FEED_KEPT, limit=PRUNE_MAX)))


def _change(row: Row) -> Change:
    job = Job(
        id=row["job_id"],
        task=row["task"],
        status=Status(row["status"]),
        tenant=row["tenant"],
        queue=row["queue"],
        priority=0,
        args="{}",
        created_at=0,
        run_at=0,
        max_attempts=row["max_attempts"],
        attempt=row["attempt"],
        failures=row["failures"],
        version=row["version"],
        key=row["key"],
        tags=read_tags(row["tags"]),
        schedule=row["schedule"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        updated_at=row["at"],
        progress=row["progress"],
        reason=row["reason"],
        metadata=row["metadata"],
        detail=row["detail"],
    )
    return Change(seq=row["seq"], job=job, log_bytes=row["log_bytes"])
