"""Group failed jobs by error, and find dead letters by error."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from headway.core.failures import DeadLetter, ErrorGroup, error_kind, error_text, is_meant
from headway.core.instants import Instant
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.store.job_filter import tenant_of
from headway.store.job_rows import ANY_SIZE, read_listed_job
from headway.store.transaction import Driver, Row, as_json, call

COUNTED_MAX: Final = 10_000
PAGE: Final = 1_000
SCANNED_MAX: Final = 100_000  # Dead letters read to find those with one error.
HEAD: Final = 640  # Characters read of a stored error; its type and its message come first.
_LAST_ID: Final = "~"  # Sorts after every id.


def _letter(row: Row) -> DeadLetter:
    status = Status(row["status"])
    return DeadLetter(
        id=row["id"],
        tenant=row["tenant"],
        task=row["task"],
        status=status,
        finished_at=row["finished_at"],
        error=error_text(row["error"], status=status, reason=row["reason"]),
        is_dead=status in (Status.FAILED, Status.TIMED_OUT) and row["reviewed_at"] is None,
    )


def grouped(rows: Iterable[Row]) -> list[ErrorGroup]:
    """Group dead letters by task and kind of error, largest group first, then newest."""
    found: dict[tuple[str, str], ErrorGroup] = {}
    for row in rows:
        text = error_text(row["error"], status=row["status"], reason=row["reason"])
        kind = error_kind(text)
        known = found.get((row["task"], kind))
        is_newest = known is None or row["newest"] > known.newest
        found[row["task"], kind] = ErrorGroup(
            task=row["task"],
            error=kind,
            jobs=row["jobs"] + (known.jobs if known else 0),
            newest=row["newest"] if known is None else max(row["newest"], known.newest),
            example=text if known is None or is_newest else known.example,
            newest_at=max(row["newest_at"] or 0, known.newest_at if known else 0),
            oldest_at=min(row["oldest_at"] or 0, known.oldest_at) if known else row["oldest_at"] or 0,
        )
    newest_first = sorted(found.values(), key=lambda group: group.newest, reverse=True)
    return sorted(newest_first, key=lambda group: -group.jobs)


class StoreFailures:
    """Failed jobs of one store, by error."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def groups(
        self,
        *,
        since: Instant | None = None,
        task: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        schedule: str | None = None,
        limit: int = COUNTED_MAX,
    ) -> list[ErrorGroup]:
        """Count the newest dead letters by task and error, or with `since` all jobs that failed since then."""
        whose = tenant_of(tenant, schedule)
        filters: dict[str, Any] = {"task": task, "queue": queue, "tenant": whose, "schedule": schedule}
        filters |= {"limit": max(1, min(limit, COUNTED_MAX)), "head": HEAD}
        if since is None:
            return grouped(await self._driver.fetch(call("dead_errors", **filters)))
        return grouped(await self._driver.fetch(call("failed_errors", **filters, since=since)))

    async def letters(
        self,
        *,
        error: str | None = None,
        before: str | None = None,
        limit: int = PAGE,
        **filters: str | None,
    ) -> tuple[list[DeadLetter], str | None]:
        """Find dead letters, newest first; return the next `before` when there may be more."""
        found: list[DeadLetter] = []
        wanted = {name: filters.get(name) for name in ("task", "queue", "tenant", "schedule")}
        wanted["tenant"] = tenant_of(wanted["tenant"], wanted["schedule"])
        for _ in range(SCANNED_MAX // PAGE):
            rows = await self._driver.fetch(
                call("dead_letters_page", **wanted, before=before or _LAST_ID, limit=PAGE, head=HEAD)
            )
            for letter in map(_letter, rows):
                if error is None or is_meant(letter.kind, error):
                    if len(found) == limit:
                        return found, found[-1].id
                    found.append(letter)
            if len(rows) < PAGE:
                return found, None
            before = rows[-1]["id"]
        return found, before

    async def among(self, job_ids: Sequence[str]) -> dict[str, DeadLetter]:
        """Read jobs by their ids; missing ones are left out."""
        rows = await self._driver.fetch(call("dead_letters_among", ids=as_json(sorted(set(job_ids))), head=HEAD))
        return {row["id"]: _letter(row) for row in rows}

    async def jobs(self, job_ids: Sequence[str], *, largest: int = ANY_SIZE) -> list[Job]:
        """Read jobs by their ids, newest first; leave out texts of more than `largest` bytes."""
        rows = await self._driver.fetch(call("failed_jobs", ids=as_json(sorted(set(job_ids))), largest=largest))
        return [read_listed_job(row) for row in rows]
