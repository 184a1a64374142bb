"""Where operations read jobs: the store, overlaid with live values of running jobs.

Live values of a running job may be ahead of the store. They count only while the store has the job running in the same
attempt, and only if they are from a later report than the stored one.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec

from headway.core.job_details import read_detail
from headway.core.jobs import METADATA_BYTES_MAX, UNFINISHED_MAX, Job
from headway.core.lifecycle import Status
from headway.core.ports import Latest, LiveView
from headway.store import Store

DETAIL_LENGTH_MAX: Final = 256 * 1024


class JobSource(Protocol):
    """Reads jobs."""

    async def get(self, job_id: str) -> Job:
        """Return a job; raise `JobNotFound` when there is none."""
        ...

    async def overlaid(self, jobs: Sequence[Job]) -> list[Job]:
        """Return jobs with what they have said live."""
        ...

    async def whole(self, job: Job) -> Job:
        """Return a job with everything that belongs to it, also what is large."""
        ...


class StoredJobs:
    """Reads jobs one by one from a store; an id may be the beginning of one."""

    def __init__(self, store: Store, overlay: Callable[[Sequence[Job]], Awaitable[list[Job]]] | None = None) -> None:
        self._store = store
        self._overlay = overlay

    async def get(self, job_id: str) -> Job:
        """Return a job; raise `JobNotFound` when there is none."""
        [job] = await self.overlaid([await self._store.jobs.get(job_id)])
        return job

    async def overlaid(self, jobs: Sequence[Job]) -> list[Job]:
        """Return jobs with what they have said live."""
        return list(jobs) if self._overlay is None else await self._overlay(jobs)

    async def whole(self, job: Job) -> Job:
        """Return a job with everything that belongs to it, also what is large."""
        return await self.get(job.id) if job.omitted else job


def serial_of(job: Job) -> int:
    """Return which of its reports a running job made last, as far as this job knows; 0 where they are not counted."""
    return read_detail(job).serial if job.status is Status.RUNNING else 0


def overlaid(job: Job, latest: Latest | None) -> Job:
    """Return a job with what it has said live, if that is newer; its version stays, since nothing is stored."""
    if latest is None or job.status is not Status.RUNNING or latest.attempt != job.attempt:
        return job
    detail, metadata = latest.detail, latest.metadata
    if latest.serial <= serial_of(job) or len(detail or "") > DETAIL_LENGTH_MAX:
        return job
    has_metadata = metadata is not None and len(metadata) <= 2 * METADATA_BYTES_MAX
    return msgspec.structs.replace(
        job,
        progress=job.progress if latest.progress is None else max(0, min(latest.progress, UNFINISHED_MAX)),
        detail=detail,
        metadata=metadata if has_metadata else job.metadata,
        updated_at=max(job.updated_at, latest.at),
    )


async def overlaid_all(live: LiveView | None, jobs: Sequence[Job]) -> list[Job]:
    """Return jobs with what they have said live, asked for together."""
    running = [job.id for job in jobs if job.status is Status.RUNNING] if live is not None else []
    if live is None or not running:
        return list(jobs)
    latest = await live.latest(running)
    return [overlaid(job, latest.get(job.id)) for job in jobs]


def length_of(job: Job) -> int:
    """Return the approximate size of a job's content."""
    return sum(len(text) for text in (job.args, job.result, job.error, job.detail, job.metadata) if text is not None)
