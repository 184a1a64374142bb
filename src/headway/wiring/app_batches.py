"""The calls of an app on batches."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Unpack

from headway.core.errors import InvalidTask
from headway.core.groups import JobGroup
from headway.core.jobs import EnqueuedRow, NewJob
from headway.core.tenants import ALL_TENANTS
from headway.core.validation import read_status
from headway.operations import audit_log, batch_actions
from headway.operations.caller import Caller, Principal
from headway.store.caller_transaction import run_inside, run_inside_async
from headway.store.groups import close_group, open_group, require_group
from headway.store.transaction import Transaction
from headway.tasks.batches import Batch, BatchOpening, BatchOptions
from headway.tasks.handles import JobHandle
from headway.tasks.registry import TaskRegistry
from headway.wiring.connections import Connections

LOOK_S: Final = 0.5


def _closed(group_id: str) -> Transaction[JobGroup]:
    yield from close_group(group_id)
    return (yield from require_group(group_id))


class BatchCalls(Connections, TaskRegistry):
    """The batches of an app."""

    def batch(self, name: str, *, tx: Any = None, **options: Unpack[BatchOptions]) -> BatchOpening[Batch]:
        """Open a batch: `async with app.batch(NAME, on_done=task) as batch`, or `batch = await app.batch(NAME)`.

        A batch of the tenant with this name is found again, also after it has finished. The block closes the batch; if
        it raises, the batch stays open. Without a block, close it when all jobs are added. `tx` is the caller's own
        transaction, for everything that the batch writes.
        """
        new = self.new_batch(name, options)

        async def opened() -> Batch:
            if tx is not None:
                group, _ = await run_inside_async(tx, lambda: open_group(new), self._dialect)
            else:
                group, _ = await (await self.store()).groups.open(new)
            return Batch(self, group, tx)

        return BatchOpening(opened)

    def batch_sync(self, name: str, *, tx: Any = None, **options: Unpack[BatchOptions]) -> Batch:
        """Open a batch: `with app.batch_sync(NAME, on_done=task) as batch`; see `batch`."""
        new = self.new_batch(name, options)
        if tx is not None:
            return Batch(self, run_inside(tx, lambda: open_group(new), self._dialect)[0], tx)

        async def opened() -> JobGroup:
            return (await (await self.store()).groups.open(new))[0]

        return Batch(self, self.blocking(opened()))

    async def batches(
        self, *, tenant: str | None = None, finished: bool | None = None, before: str | None = None, limit: int = 50
    ) -> list[Batch]:
        """Return a page of batches, newest first; `before` is the last id of the previous page."""
        found = await (await self.store()).groups.page(tenant=tenant, finished=finished, before=before, limit=limit)
        return [Batch(self, group) for group in found]

    def batches_sync(
        self, *, tenant: str | None = None, finished: bool | None = None, before: str | None = None, limit: int = 50
    ) -> list[Batch]:
        """Return a page of batches, newest first."""
        return self.blocking(self.batches(tenant=tenant, finished=finished, before=before, limit=limit))

    # --- for `Batch`

    def new_id(self, prefix: str) -> str:
        """Make an id."""
        return self._clock.new_id(prefix)

    def jobs_for_batch(
        self, task: Any, rows: Iterable[Mapping[str, Any]] | None, args: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[list[NewJob], Any]:
        """Make the jobs of rows, or one job; return them and the caller's transaction."""
        name = getattr(task, "name", task)
        if not isinstance(name, str):
            raise InvalidTask("add a task, or the name of one")
        if rows is None:
            job, tx = self._job_by_name(name, args, options)
            return [job], tx
        jobs, common = self._rows_by_name(name, rows, options)
        return jobs, common.tx

    async def enqueue_jobs(self, jobs: list[NewJob], tx: Any = None) -> list[JobHandle]:
        """Enqueue jobs, all or none; inside the caller's transaction when `tx` is its connection."""
        return self._handles(jobs, await self._insert(jobs, tx))

    def enqueue_jobs_sync(self, jobs: list[NewJob], tx: Any = None) -> list[JobHandle]:
        """Enqueue jobs, all or none; inside the caller's transaction when `tx` is its connection."""
        return self._handles(jobs, self._insert_sync(jobs, tx))

    async def close_batch(self, group: JobGroup, tx: Any = None) -> JobGroup:
        """Close a batch."""
        if tx is not None:
            return await run_inside_async(tx, lambda: _closed(group.id), self._dialect)
        return (await batch_actions.close_batch(await self._caller(), group))[0]

    def close_batch_sync(self, group: JobGroup, tx: Any = None) -> JobGroup:
        """Close a batch."""
        if tx is not None:
            return run_inside(tx, lambda: _closed(group.id), self._dialect)
        return self.blocking(self.close_batch(group))

    async def read_batch(self, group: JobGroup) -> JobGroup:
        """Read a batch."""
        return await (await self.store()).groups.get(group.id)

    async def cancel_batch(self, group: JobGroup, reason: str) -> JobGroup:
        """Cancel a batch."""
        return (await batch_actions.cancel_batch(await self._caller(), group, reason))[0]

    async def retry_batch(self, group: JobGroup) -> JobGroup:
        """Rerun the failed jobs of a batch; return the batch of the reruns."""
        return (await batch_actions.retry_batch(await self._caller(), group))[0]

    async def jobs_of_batch(
        self, group: JobGroup, status: str | None, before: str | None, limit: int
    ) -> list[JobHandle]:
        """Return a page of the jobs of a batch."""
        known = None if status is None else read_status(status)
        found = await (await self.store()).jobs.page(group_id=group.id, status=known, before=before, limit=limit)
        return [JobHandle(self, job) for job in found]

    async def wait_for_batch(self, group: JobGroup, limit_s: float | None) -> JobGroup:
        """Wait until a batch has finished, by polling it."""
        until, wake = None if limit_s is None else self._clock.monotonic() + limit_s, asyncio.Event()
        while (group := await self.read_batch(group)).finished_at is None:
            if until is not None and self._clock.monotonic() >= until:
                raise TimeoutError(f"the batch {group.name!r} has not finished within {limit_s:g} s")
            await self._clock.rest(LOOK_S, wake)
        return group

    # --- for all calls

    @property
    def _author(self) -> str:
        return f"app:{self.name}"

    async def _caller(self) -> Caller:
        return Caller(
            Principal(self._author, ALL_TENANTS, "admin"), audit_log.origin(), await self.store(), self._clock
        )

    def _handles(self, jobs: Sequence[NewJob], rows: Sequence[EnqueuedRow]) -> list[JobHandle]:
        return [
            JobHandle(self, row.job_of(job), merged_into=row.merged_into) for job, row in zip(jobs, rows, strict=True)
        ]
