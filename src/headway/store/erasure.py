"""Erase the content of jobs on request: arguments, results, errors, logs, metadata, and the keys of windows.

The rows stay, with times and status, so that the ledger can still be audited: every instant keeps its decision, and
every job its final status.
"""

from typing import Final

from headway.core.webhooks import callbacks_id
from headway.store.transaction import Driver, Transaction, as_json, call

BATCH: Final = 500
NOTHING: Final = "{}"


def _erase(ids: list[str], keeps_key: bool) -> Transaction[list[str]]:
    rows = yield call("erase_jobs", ids=as_json(ids), nothing=NOTHING, keeps_key=int(keeps_key))
    erased = [row["id"] for row in rows]
    if erased:
        theirs = as_json(erased)
        for tenant in sorted({row["tenant"] for row in rows}):
            yield call("erase_callbacks", ids=theirs, endpoint=callbacks_id(tenant))
        yield call("erase_events", ids=theirs, nothing=NOTHING)
        for statement in ("erase_attempts", "erase_feed", "erase_windows", "prune_log", "prune_steps"):
            yield call(statement, ids=theirs)
    return erased


class StoreErasure:
    """Erase the content of ended jobs, in bounded batches."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def page(self, tenant: str, key: str | None, after: str = "") -> tuple[list[str], list[str]]:
        """Return a page of job ids after this one: ended jobs, and others. Both lists are empty at the end.

        With a key, return the job that has it and its reruns.
        """
        page = {"tenant": tenant, "after": after, "limit": BATCH}
        found = call("erasable", **page) if key is None else call("erasable_by_key", key=key, **page)
        rows = await self._driver.fetch(found)
        ended = [row["id"] for row in rows if row["finished_at"] is not None]
        return ended, [row["id"] for row in rows if row["finished_at"] is None]

    async def erase_batches(self, tenant: str) -> list[str]:
        """Erase the names and callbacks of the finished batches of a tenant; return their ids."""
        return [row["id"] for row in await self._driver.fetch(call("erase_groups", tenant=tenant))]

    async def erase(self, ids: list[str], *, keeps_key: bool = False) -> list[str]:
        """Erase those jobs that have ended; return their ids. With `keeps_key` a job can still be found by its key."""
        return await self._driver.run(lambda: _erase(ids, keeps_key))
