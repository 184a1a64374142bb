"""What a running task asks of the store: to enqueue jobs, and to open, fill and close batches.

Each request is fenced by the attempt: it raises `LeaseLost` when the attempt is over, so that a stale attempt leaves
nothing behind.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, Unpack

import msgspec

from headway.core.errors import InvalidTask, LeaseLost
from headway.core.groups import JobGroup, NewGroup
from headway.core.jobs import NewJob
from headway.tasks.batches import BatchOpening, BatchOptions, ContextBatch, tenant_option

ENQUEUE_BYTES_MAX: Final = 16 << 20  # Jobs in one store request.


class TaskChannel(Protocol):
    """The connection of a task's process to the supervisor."""

    def note(self, context: Any) -> None:
        """Send the news of the context soon."""
        ...

    def ask(self, context: Any, question: str, body: str) -> str:
        """Send a store request and wait for the response; raise `LeaseLost` when the attempt is over."""
        ...

    async def ask_async(self, context: Any, question: str, body: str) -> str:
        """Send a store request and await the response; raise `LeaseLost` when the attempt is over."""
        ...


class JobFactory(Protocol):
    """Make the jobs that a context enqueues; the app implements it."""

    def new_batch(self, name: str, options: BatchOptions) -> NewGroup:
        """Make a checked batch without creating it."""
        ...

    def jobs_of(self, task: Any, args: Mapping[str, Any], options: Mapping[str, Any]) -> list[NewJob]:
        """Make checked jobs without enqueuing them."""
        ...

    def jobs_of_rows(self, task: Any, rows: Iterable[Mapping[str, Any]], options: Mapping[str, Any]) -> list[NewJob]:
        """Make a checked job of each row of arguments, without enqueuing them."""
        ...


class StoreRequests:
    """The requests of a running task to the store."""

    def __init__(self, channel: TaskChannel, job_factory: JobFactory | None) -> None:
        self._channel = channel
        self._job_factory = job_factory
        self.is_over = False  # Whether a response said that this attempt is over.

    @property
    def tenant(self) -> str:
        """The tenant of the job."""
        raise NotImplementedError

    async def enqueue(self, task: Any, args: Mapping[str, Any] | None = None, **options: Any) -> str:
        """Enqueue a job of a task (or task name) and return its id; raise `LeaseLost` when this attempt is over."""
        return (await self.add_jobs_async(self._jobs(task, args, options)))[0]

    def enqueue_sync(self, task: Any, args: Mapping[str, Any] | None = None, **options: Any) -> str:
        """Enqueue a job of a task (or task name) and return its id; raise `LeaseLost` when this attempt is over."""
        return self.add_jobs(self._jobs(task, args, options))[0]

    async def enqueue_many(self, task: Any, rows: Iterable[Mapping[str, Any]], **options: Any) -> list[str]:
        """Enqueue a job per row of arguments, all or none, at most 10,000, and return their ids.

        Options may be templates over the row's arguments, or functions of them; see `Task.enqueue_many`.
        """
        return await self.add_jobs_async(self._jobs_of_rows(task, rows, options))

    def enqueue_many_sync(self, task: Any, rows: Iterable[Mapping[str, Any]], **options: Any) -> list[str]:
        """Enqueue a job per row of arguments, all or none, at most 10,000, and return their ids."""
        return self.add_jobs(self._jobs_of_rows(task, rows, options))

    def batch(self, name: str, **options: Unpack[BatchOptions]) -> BatchOpening[ContextBatch]:
        """Open a batch: `async with ctx.batch(NAME, on_done=task) as batch`, or `await` it.

        A batch with this name is found again, also by a later attempt. A job finds the batch that it is in by its name.
        The block closes the batch. Without a block, it closes when this job has completed.
        """
        body = self._new_batch(name, options)

        async def opened() -> ContextBatch:
            return ContextBatch(self, await self.ask_group_async("open_batch", body))

        return BatchOpening(opened)

    def batch_sync(self, name: str, **options: Unpack[BatchOptions]) -> ContextBatch:
        """Open a batch: `with ctx.batch_sync(NAME, on_done=task) as batch`; see `batch`."""
        return ContextBatch(self, self.ask_group("open_batch", self._new_batch(name, options)))

    def _new_batch(self, name: str, options: BatchOptions) -> tuple[NewGroup, bool]:
        """Return the batch to create, and whether it may be the one that this job is in."""
        own: BatchOptions = {"tenant": self.tenant}
        return self._required_job_factory.new_batch(name, {**own, **options}), "tenant" not in options

    def _ask(self, question: str, body: str) -> str:
        with self._hearing_the_end():
            return self._channel.ask(self, question, body)

    async def _ask_async(self, question: str, body: str) -> str:
        with self._hearing_the_end():
            return await self._channel.ask_async(self, question, body)

    @contextmanager
    def _hearing_the_end(self) -> Iterator[None]:
        """Record that the attempt is over when a response says so; other leases may be lost without that."""
        try:
            yield
        except LeaseLost:
            self.is_over = True
            raise

    def _jobs(self, task: Any, args: Mapping[str, Any] | None, options: Mapping[str, Any]) -> list[NewJob]:
        return self._required_job_factory.jobs_of(task, dict(args or {}), {"tenant": self.tenant, **options})

    def _jobs_of_rows(self, task: Any, rows: Iterable[Mapping[str, Any]], options: Mapping[str, Any]) -> list[NewJob]:
        return self._required_job_factory.jobs_of_rows(task, rows, {**tenant_option(self.tenant), **options})

    # --- for `ContextBatch`

    def jobs_for_batch(
        self, task: Any, rows: Iterable[Mapping[str, Any]] | None, args: Mapping[str, Any], options: Mapping[str, Any]
    ) -> list[NewJob]:
        """Make the jobs of rows, or one job."""
        return self._jobs(task, args, options) if rows is None else self._jobs_of_rows(task, rows, options)

    def add_jobs(self, jobs: Sequence[NewJob]) -> list[str]:
        """Enqueue jobs under the lease of this attempt; return their ids."""
        return _ids(self._ask("enqueue", _jobs_text(jobs)))

    async def add_jobs_async(self, jobs: Sequence[NewJob]) -> list[str]:
        """Enqueue jobs under the lease of this attempt; return their ids."""
        return _ids(await self._ask_async("enqueue", _jobs_text(jobs)))

    def ask_group(self, question: str, body: object) -> JobGroup:
        """Send a request about a batch."""
        return msgspec.json.decode(self._ask(question, msgspec.json.encode(body).decode()), type=JobGroup)

    async def ask_group_async(self, question: str, body: object) -> JobGroup:
        """Send a request about a batch."""
        answer = await self._ask_async(question, msgspec.json.encode(body).decode())
        return msgspec.json.decode(answer, type=JobGroup)

    @property
    def _required_job_factory(self) -> JobFactory:
        if self._job_factory is None:
            raise InvalidTask("this context belongs to no app and cannot enqueue")
        return self._job_factory


def _jobs_text(jobs: Sequence[NewJob]) -> str:
    text = msgspec.json.encode(jobs).decode()
    if len(text) > ENQUEUE_BYTES_MAX:
        raise InvalidTask(
            f"jobs enqueued at once must have at most {ENQUEUE_BYTES_MAX >> 20} MiB; enqueue them in parts"
        )
    return text


def _ids(answer: str) -> list[str]:
    return msgspec.json.decode(answer, type=list[str])
