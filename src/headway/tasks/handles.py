"""Job handles: a job as a program holds it.

A `JobHandle` is a snapshot of a job; `refresh` reads it again. It acts through the app that it belongs to.
"""

from collections.abc import Coroutine, Mapping
from datetime import datetime
from typing import Any, Protocol, TypeVar

import msgspec

from headway.core.errors import JobFailed
from headway.core.instants import (
    SECOND,
    DurationLike,
    Instant,
    parse_duration,
    to_datetime,
)
from headway.core.jobs import Job, NewJob
from headway.core.lifecycle import Status
from headway.tasks.options import Options

R = TypeVar("R")


class AppPort(Protocol):
    """What tasks and job handles need of their app."""

    def new_job(self, task: str, args: Mapping[str, Any], options: "Options") -> NewJob:
        """Make a checked job, ready to be enqueued."""
        ...

    def new_id(self, prefix: str) -> str:
        """Make an id."""
        ...

    async def enqueue_jobs(self, jobs: list[NewJob], tx: Any = None) -> "list[JobHandle]":
        """Enqueue jobs, all or none."""
        ...

    def enqueue_jobs_sync(self, jobs: list[NewJob], tx: Any = None) -> "list[JobHandle]":
        """Enqueue jobs, all or none."""
        ...

    async def job(self, job_id: str) -> "JobHandle":
        """Look up a job."""
        ...

    async def cancel(self, job_id: str, reason: str = "") -> "JobHandle":
        """Cancel a job: end it, or ask it to stop while it runs."""
        ...

    def glance(self, job: Job) -> str:
        """Explain a job's state as far as the job alone can tell."""
        ...

    async def wait_for(self, handle: "JobHandle", limit_s: float | None) -> Any:
        """Wait for the end of a job."""
        ...

    def wait_for_sync(self, handle: "JobHandle", limit_s: float | None) -> Any:
        """Wait for the end of a job."""
        ...

    def blocking(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine and wait for it."""
        ...


class JobHandle:
    """A job as of the last read; `refresh` reads it again."""

    __slots__ = ("_app", "_why", "job", "merged_into")

    def __init__(self, app: AppPort, job: Job, why: str | None = None, merged_into: str | None = None) -> None:
        self._app = app
        self.merged_into = merged_into  # The id of this job, if the call that returned it was merged into it.
        self.take(job, why)

    def take(self, job: Job, why: str | None = None) -> None:
        """Replace the state of the job."""
        self.job = job
        self._why = why

    @property
    def id(self) -> str:
        """The id of the job."""
        return self.job.id

    @property
    def status(self) -> Status:
        """The status of the job."""
        return self.job.status

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.job.task

    @property
    def args(self) -> Any:
        """The arguments of the job."""
        return msgspec.json.decode(self.job.args)

    @property
    def progress(self) -> int:
        """The progress of the job, in percent."""
        return self.job.progress

    @property
    def run_at(self) -> datetime:
        """When it may start."""
        return to_datetime(self.job.run_at)

    @property
    def created_at(self) -> datetime:
        """When it was enqueued."""
        return to_datetime(self.job.created_at)

    @property
    def started_at(self) -> datetime | None:
        """When its latest attempt began; None before the first."""
        return _maybe_datetime(self.job.started_at)

    @property
    def updated_at(self) -> datetime:
        """When it last changed."""
        return to_datetime(self.job.updated_at)

    @property
    def finished_at(self) -> datetime | None:
        """When it ended; None before it has."""
        return _maybe_datetime(self.job.finished_at)

    @property
    def attempts(self) -> int:
        """How many attempts have begun; `failures` of these count against `max_attempts`."""
        return self.job.attempt

    @property
    def failures(self) -> int:
        """How many attempts have failed."""
        return self.job.failures

    @property
    def max_attempts(self) -> int:
        """How many attempts may fail."""
        return self.job.max_attempts

    @property
    def why(self) -> str:
        """Why it is in its state, in one sentence, as the API says it."""
        return self._app.glance(self.job) if self._why is None else self._why

    @property
    def result(self) -> Any:
        """What the task returned; None before that."""
        return None if self.job.result is None else msgspec.json.decode(self.job.result)

    @property
    def error(self) -> Any:
        """The error of the last attempt: type, message, traceback; None when there was none."""
        return None if self.job.error is None else msgspec.json.decode(self.job.error)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that the task has set."""
        return {} if self.job.metadata is None else msgspec.json.decode(self.job.metadata)

    async def wait(self, timeout: DurationLike | None = None) -> Any:
        """Wait until the job has ended; return its result or raise `JobFailed` (`TimeoutError` after `timeout`)."""
        limit = None if timeout is None else parse_duration(timeout, what="timeout") / SECOND
        return await self._app.wait_for(self, limit)

    def wait_sync(self, timeout: DurationLike | None = None) -> Any:
        """Wait until the job has ended; return its result or raise `JobFailed` (`TimeoutError` after `timeout`)."""
        limit = None if timeout is None else parse_duration(timeout, what="timeout") / SECOND
        return self._app.wait_for_sync(self, limit)

    def outcome(self) -> Any:
        """Return the result of a job that has ended, or raise `JobFailed`."""
        if self.status is Status.COMPLETED:
            return self.result
        error = self.error if isinstance(self.error, dict) else {}
        words = ": ".join(str(error[part]) for part in ("type", "message") if error.get(part))
        raise JobFailed(f"{self.id} ended as {self.status}: {words or self.job.reason}")

    async def refresh(self) -> "JobHandle":
        """Read the job again."""
        seen = await self._app.job(self.id)
        self.take(seen.job, seen.why)
        return self

    def refresh_sync(self) -> "JobHandle":
        """Read the job again."""
        return self._app.blocking(self.refresh())

    async def cancel(self, reason: str = "") -> "JobHandle":
        """Cancel the job: end it, or ask it to stop while it runs."""
        self.take((await self._app.cancel(self.id, reason)).job)
        return self

    def cancel_sync(self, reason: str = "") -> "JobHandle":
        """Cancel the job: end it, or ask it to stop while it runs."""
        return self._app.blocking(self.cancel(reason))

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.task} {self.status}>"


def _maybe_datetime(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)
