"""Batches: many jobs as one thing, with exact counts, one progress and one callback.

    async with app.batch("reports:2027-01-01", on_done=mail_summary) as batch:
        await batch.add_many(report, rows, key="report:{tenant_id}:2027-01-01")

A batch is found again by its name, and its jobs by their keys, so code that runs again after a crash goes on where it
stopped. The block closes the batch at its end; if the block raises, the batch stays open for the next run.

`Batch` belongs to an app. `ContextBatch` belongs to a running task: what it writes is fenced by the attempt.
"""

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypedDict, TypeVar

import msgspec

from headway.core.groups import JobGroup
from headway.core.instants import SECOND, DurationLike, parse_duration, to_datetime
from headway.core.jobs import NewJob
from headway.core.tenants import DEFAULT_TENANT
from headway.tasks.handles import JobHandle

B = TypeVar("B", bound="_ClosedAtTheEnd")


class BatchOptions(TypedDict, total=False):
    """The options of a new batch; one that exists keeps its own.

    `on_done` is enqueued when the batch finishes, `on_failure` too if jobs of it failed: tasks, or names of tasks, that
    take one argument, `batch`. A batch to which nothing is added for `open_for` (an hour by default) closes by itself.
    """

    tenant: str
    on_done: Any
    on_failure: Any
    open_for: DurationLike


def _time(instant: int | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


class BatchView:
    """A batch as of the last read; `refresh` reads it again."""

    def __init__(self, group: JobGroup) -> None:
        self.group = group

    @property
    def id(self) -> str:
        """The id of the batch."""
        return self.group.id

    @property
    def name(self) -> str:
        """Its name, by which it is found again."""
        return self.group.name

    @property
    def tenant(self) -> str:
        """The tenant that it belongs to; its jobs may belong to others."""
        return self.group.tenant

    @property
    def total(self) -> int:
        """How many jobs it has."""
        return self.group.counts.total

    @property
    def counts(self) -> dict[str, int]:
        """How many jobs wait, run, and ended in each way. The sum is `total`."""
        counts = self.group.counts
        return {
            "waiting": self.group.waiting,
            "running": self.group.running,
            "completed": counts.completed,
            "failed": counts.failed,
            "timed_out": counts.timed_out,
            "cancelled": counts.cancelled,
        }

    @property
    def progress(self) -> int:
        """The ended jobs in percent; 100 only when it has finished."""
        return self.group.progress

    @property
    def rate(self) -> float | None:
        """Ended jobs per second; None before the first one has ended."""
        return self.group.rate

    @property
    def eta_seconds(self) -> int | None:
        """In how many seconds its jobs will have ended, by the rate so far."""
        return self.group.eta_seconds

    @property
    def closed_at(self) -> datetime | None:
        """When it was closed; None while it is open."""
        return _time(self.group.closed_at)

    @property
    def finished_at(self) -> datetime | None:
        """When it finished: it was closed, and all of its jobs had ended."""
        return _time(self.group.finished_at)

    @property
    def outcome(self) -> str | None:
        """`completed`, `failed` or `cancelled`; None before it has finished."""
        return self.group.outcome

    def __repr__(self) -> str:
        return f"<Batch {self.id} {self.name!r} {self.progress} %>"


class _ClosedAtTheEnd(BatchView):
    """A batch that is closed at the end of a block, unless the block raises."""

    async def close(self) -> Self:
        raise NotImplementedError

    def close_sync(self) -> Self:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close_sync()


class BatchOpening(Generic[B]):
    """A batch that is about to be opened: `await` it, or enter it with `async with`."""

    def __init__(self, open_batch: Callable[[], Awaitable[B]]) -> None:
        self._open = open_batch
        self._batch: B | None = None

    def __await__(self) -> Generator[Any, None, B]:
        return self._open().__await__()

    async def __aenter__(self) -> B:
        self._batch = await self._open()
        return self._batch

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._batch is not None
        await self._batch.__aexit__(kind, error, trace)


def in_group(jobs: Sequence[NewJob], group_id: str) -> list[NewJob]:
    """Return new jobs as jobs of a group."""
    return [msgspec.structs.replace(job, group_id=group_id) for job in jobs]


def tenant_option(tenant: str) -> dict[str, Any]:
    """Return the tenant as an option of rows, where it is not a template."""
    return {"tenant": tenant.replace("{", "{{").replace("}", "}}")}


class BatchPort(Protocol):
    """What a batch needs of its app."""

    def jobs_for_batch(
        self, task: Any, rows: Iterable[Mapping[str, Any]] | None, args: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[list[NewJob], Any]:
        """Make the jobs of rows, or one job; return them and the caller's transaction."""
        ...

    async def enqueue_jobs(self, jobs: list[NewJob], tx: Any = None) -> list[JobHandle]:
        """Enqueue jobs, all or none."""
        ...

    def enqueue_jobs_sync(self, jobs: list[NewJob], tx: Any = None) -> list[JobHandle]:
        """Enqueue jobs, all or none."""
        ...

    async def close_batch(self, group: JobGroup, tx: Any = None) -> JobGroup:
        """Close a batch."""
        ...

    def close_batch_sync(self, group: JobGroup, tx: Any = None) -> JobGroup:
        """Close a batch."""
        ...

    async def read_batch(self, group: JobGroup) -> JobGroup:
        """Read a batch."""
        ...

    async def cancel_batch(self, group: JobGroup, reason: str) -> JobGroup:
        """Cancel a batch."""
        ...

    async def retry_batch(self, group: JobGroup) -> JobGroup:
        """Rerun the failed jobs of a batch; return the batch of the reruns."""
        ...

    async def jobs_of_batch(
        self, group: JobGroup, status: str | None, before: str | None, limit: int
    ) -> list[JobHandle]:
        """Return a page of the jobs of a batch."""
        ...

    async def wait_for_batch(self, group: JobGroup, limit_s: float | None) -> JobGroup:
        """Wait until a batch has finished."""
        ...

    def blocking(self, coroutine: Any) -> Any:
        """Run a coroutine and wait for it."""
        ...


class Batch(_ClosedAtTheEnd):
    """A batch as a program holds it."""

    def __init__(self, app: BatchPort, group: JobGroup, tx: Any = None) -> None:
        super().__init__(group)
        self._app = app
        self._tx = tx

    async def add(self, task: Any, args: Mapping[str, Any] | None = None, **options: Any) -> JobHandle:
        """Add a job of a task, or of the name of one."""
        return (await self._app.enqueue_jobs(*self._jobs(task, None, args, options)))[0]

    def add_sync(self, task: Any, args: Mapping[str, Any] | None = None, **options: Any) -> JobHandle:
        """Add a job of a task, or of the name of one."""
        return self._app.enqueue_jobs_sync(*self._jobs(task, None, args, options))[0]

    async def add_many(self, task: Any, rows: Iterable[Mapping[str, Any]], **options: Any) -> list[JobHandle]:
        """Add one job per row of arguments, all or none, at most 10,000 at once; see `Task.enqueue_many`.

        With a key it is safe to repeat: a row whose job is in the batch already gives that job.
        """
        return await self._app.enqueue_jobs(*self._jobs(task, rows, None, options))

    def add_many_sync(self, task: Any, rows: Iterable[Mapping[str, Any]], **options: Any) -> list[JobHandle]:
        """Add one job per row of arguments, all or none, at most 10,000 at once."""
        return self._app.enqueue_jobs_sync(*self._jobs(task, rows, None, options))

    def _jobs(
        self,
        task: Any,
        rows: Iterable[Mapping[str, Any]] | None,
        args: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> tuple[list[NewJob], Any]:
        if self.tenant != DEFAULT_TENANT:
            own = {"tenant": self.tenant} if rows is None else tenant_option(self.tenant)
            options = {**own, **options}
        jobs, tx = self._app.jobs_for_batch(task, rows, args or {}, options)
        return in_group(jobs, self.id), self._tx if tx is None else tx

    async def close(self) -> Self:
        """Close it: it takes no more jobs from outside, and finishes when all of them have ended."""
        self.group = await self._app.close_batch(self.group, self._tx)
        return self

    def close_sync(self) -> Self:
        """Close it: it takes no more jobs from outside, and finishes when all of them have ended."""
        self.group = self._app.close_batch_sync(self.group, self._tx)
        return self

    async def refresh(self) -> Self:
        """Read it again."""
        self.group = await self._app.read_batch(self.group)
        return self

    def refresh_sync(self) -> Self:
        """Read it again."""
        self._app.blocking(self.refresh())
        return self

    async def cancel(self, reason: str = "") -> Self:
        """Cancel it: close it, cancel the jobs that wait, and ask those that run to stop."""
        self.group = await self._app.cancel_batch(self.group, reason)
        return self

    def cancel_sync(self, reason: str = "") -> Self:
        """Cancel it: close it, cancel the jobs that wait, and ask those that run to stop."""
        self._app.blocking(self.cancel(reason))
        return self

    async def retry(self) -> "Batch":
        """Rerun the jobs that failed, in this batch while it runs, else in a new one; return that batch."""
        return Batch(self._app, await self._app.retry_batch(self.group))

    def retry_sync(self) -> "Batch":
        """Rerun the jobs that failed, in this batch while it runs, else in a new one; return that batch."""
        made: Batch = self._app.blocking(self.retry())
        return made

    async def jobs(self, *, status: str | None = None, before: str | None = None, limit: int = 50) -> list[JobHandle]:
        """Return a page of its jobs, newest first; `before` is the last id of the previous page."""
        return await self._app.jobs_of_batch(self.group, status, before, limit)

    def jobs_sync(self, *, status: str | None = None, before: str | None = None, limit: int = 50) -> list[JobHandle]:
        """Return a page of its jobs, newest first."""
        found: list[JobHandle] = self._app.blocking(self.jobs(status=status, before=before, limit=limit))
        return found

    async def wait(self, timeout: DurationLike | None = None) -> Self:
        """Wait until it has finished; raise `TimeoutError` after `timeout`."""
        limit = None if timeout is None else parse_duration(timeout, what="timeout") / SECOND
        self.group = await self._app.wait_for_batch(self.group, limit)
        return self


class ContextPort(Protocol):
    """What the batch of a running task needs of its context."""

    def jobs_for_batch(
        self, task: Any, rows: Iterable[Mapping[str, Any]] | None, args: Mapping[str, Any], options: Mapping[str, Any]
    ) -> list[NewJob]:
        """Make the jobs of rows, or one job."""
        ...

    def add_jobs(self, jobs: Sequence[NewJob]) -> list[str]:
        """Enqueue jobs under the lease of the attempt; return their ids."""
        ...

    async def add_jobs_async(self, jobs: Sequence[NewJob]) -> list[str]:
        """Enqueue jobs under the lease of the attempt; return their ids."""
        ...

    def ask_group(self, question: str, body: object) -> JobGroup:
        """Send a request about a group."""
        ...

    async def ask_group_async(self, question: str, body: object) -> JobGroup:
        """Send a request about a group."""
        ...


class ContextBatch(_ClosedAtTheEnd):
    """A batch as a running task holds it; its calls raise `LeaseLost` when the attempt is over."""

    def __init__(self, context: ContextPort, group: JobGroup) -> None:
        super().__init__(group)
        self._context = context

    async def add(self, task: Any, args: Mapping[str, Any] | None = None, **options: Any) -> str:
        """Add a job of a task, or of the name of one; return its id."""
        return (await self._context.add_jobs_async(self._jobs(task, None, args, options)))[0]

    def add_sync(self, task: Any, args: Mapping[str, Any] | None = None, **options: Any) -> str:
        """Add a job of a task, or of the name of one; return its id."""
        return self._context.add_jobs(self._jobs(task, None, args, options))[0]

    async def add_many(self, task: Any, rows: Iterable[Mapping[str, Any]], **options: Any) -> list[str]:
        """Add one job per row of arguments, all or none, at most 10,000 at once; return their ids.

        With a key it is safe to repeat, also in a later attempt.
        """
        return await self._context.add_jobs_async(self._jobs(task, rows, None, options))

    def add_many_sync(self, task: Any, rows: Iterable[Mapping[str, Any]], **options: Any) -> list[str]:
        """Add one job per row of arguments, all or none, at most 10,000 at once; return their ids."""
        return self._context.add_jobs(self._jobs(task, rows, None, options))

    def _jobs(
        self,
        task: Any,
        rows: Iterable[Mapping[str, Any]] | None,
        args: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> list[NewJob]:
        return in_group(self._context.jobs_for_batch(task, rows, args or {}, options), self.id)

    async def close(self) -> Self:
        """Close it: it takes no more jobs from outside, and finishes when all of them have ended."""
        self.group = await self._context.ask_group_async("close_batch", self.id)
        return self

    def close_sync(self) -> Self:
        """Close it: it takes no more jobs from outside, and finishes when all of them have ended."""
        self.group = self._context.ask_group("close_batch", self.id)
        return self

    async def refresh(self) -> Self:
        """Read it again."""
        self.group = await self._context.ask_group_async("read_batch", self.id)
        return self

    def refresh_sync(self) -> Self:
        """Read it again."""
        self.group = self._context.ask_group("read_batch", self.id)
        return self
