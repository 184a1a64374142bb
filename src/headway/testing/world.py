"""A virtual world for a test: the production engine on virtual time, in one thread, with a store in memory.

    housekeeper   promotes, expires, prunes; never dies
    scheduler     decides schedules; can be stopped and started
    workers       real supervisors; the tasks run in an `InlineChildPool`, and workers can be killed and frozen

`processes.py` runs them; this module has the methods for tests.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from headway.app import Headway
from headway.core.instants import (
    SECOND,
    DurationLike,
    Instant,
    InstantLike,
    format_duration,
    parse_duration,
    parse_instant,
    to_datetime,
)
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.core.needs import read_amounts, read_labels
from headway.core.settings import Settings
from headway.core.tenants import DEFAULT_TENANT
from headway.core.validation import read_status
from headway.store import Store
from headway.tasks.handles import JobHandle
from headway.tasks.task import Task
from headway.testing.child_pool import at_once
from headway.testing.processes import Process, VirtualProcesses
from headway.testing.promises import Promises, all_jobs, all_occurrences

START_DEFAULT: Final = "2027-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The record of one instant of a schedule, or of `count` instants from `instant` to `until`."""

    schedule: str
    instant: datetime
    outcome: str
    reason: str
    decided_at: datetime
    until: datetime | None
    count: int
    job_id: str | None


class World(VirtualProcesses):
    """The result of `virtual`: an app with its own time."""

    def __init__(self, app: Headway, start: Instant, seed: int, workers: int, offers: Sequence[Settings] = ()) -> None:
        super().__init__(app, start, seed, workers, offers)
        self._promises = Promises(self.store)

    # --- time

    @property
    def now(self) -> datetime:
        """The time of this world."""
        return to_datetime(self._instant())

    def advance(
        self, by: DurationLike = 0, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Advance the time and run everything that happens meanwhile: `advance(hours=26)`, `advance("1d2h")`."""
        more = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        self.play(parse_duration(by, what="advance") / SECOND + more)

    def drain(self, within: DurationLike = "7d") -> None:
        """Advance the time until no job is pending, running, retrying or blocked; jobs for a later time stay."""
        until = self._loop.time() + parse_duration(within, what="within") / SECOND
        self._through(self._loop.time())
        while (left := at_once(self._unfinished())) is not None:
            seen = self.connection.raw.total_changes
            while seen == self.connection.raw.total_changes:
                following = self._loop.next_timer()
                if following is None or following > until:
                    name = f"{left.id} of {left.task} is {left.status}"
                    raise TimeoutError(f"after {format_duration(parse_duration(within))} {name}: {left.reason}")
                self._through(following)

    async def _unfinished(self) -> Job | None:
        paused = await self.store.queue.paused()
        for status in (Status.PENDING, Status.RUNNING, Status.RETRYING, Status.BLOCKED):
            async for job in all_jobs(self.store, status=status):
                if job.parked is None and not (status is Status.PENDING and job.queue in paused):
                    return job
        return None

    # --- jobs and schedules

    def enqueue(self, task: "Task[..., Any] | str", args: Mapping[str, Any] | None = None, **options: Any) -> JobHandle:
        """Enqueue a job; the options are those of `task.options`."""
        return self.app.enqueue_sync(task if isinstance(task, str) else task.name, args, **options)

    def job(self, job: JobHandle | str) -> JobHandle:
        """Return the current state of a job."""
        return self.app.job_sync(job if isinstance(job, str) else job.id)

    def jobs(
        self,
        *,
        task: str | None = None,
        status: str | None = None,
        schedule: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
    ) -> list[JobHandle]:
        """Return all jobs, or those of a task, status, schedule, queue or tenant; oldest first."""
        known = None if status is None else read_status(status)
        filters = {"task": task, "status": known, "schedule": schedule, "queue": queue, "tenant": tenant}
        found = at_once(_collect(self.store, filters))
        return [JobHandle(self.app, job) for job in reversed(found)]

    def attempts(self, job: JobHandle | str) -> list[dict[str, Any]]:
        """Return the ended attempts of a job: number, outcome, reason, when it started and ended."""
        job_id = job if isinstance(job, str) else job.id
        rows = at_once(self.store.jobs.attempts(job_id))
        return [
            {**row, **{name: _moment(row[name]) for name in ("ready_at", "started_at", "ended_at")}} for row in rows
        ]

    def log(self, job: JobHandle | str) -> list[str]:
        """Return the log lines of a job."""
        job_id = job if isinstance(job, str) else job.id
        return [line["line"] for line in at_once(self.store.jobs.log(job_id, limit=10_000))]

    def occurrences(self, schedule: str, *, tenant: str = DEFAULT_TENANT) -> list[Decision]:
        """Return the decisions of a schedule of a tenant, oldest first."""
        key = at_once(self.store.schedules.key(schedule, tenant=tenant))
        return [
            Decision(
                schedule=schedule,
                instant=to_datetime(found.instant),
                outcome=str(found.outcome),
                reason=found.reason,
                decided_at=to_datetime(found.decided_at),
                until=None if found.until is None else to_datetime(found.until),
                count=found.count,
                job_id=found.job_id,
            )
            for found in at_once(all_occurrences(self.store, key))
        ]

    def assert_promises(self) -> None:
        """Raise an AssertionError that says which promises the records break: S1, S3, S4, S7."""
        broken = at_once(self._promises.broken())
        if broken:
            raise AssertionError("\n".join(["broken promises:", *broken]))

    # --- faults

    def kill_worker(self, job: JobHandle | str) -> None:
        """Kill the worker that runs a job, like `kill -9`; a new one replaces it, and others go on."""
        process = self._worker_of(job)
        number = self._workers.index(process)
        self._workers[number] = self._start_process("worker", offer=self._offers[number], has_child_pool=True)
        self._run(self._kill(process))

    def freeze_worker(self, job: JobHandle | str, duration: DurationLike) -> None:
        """Freeze the worker that runs a job and its tasks for a time; then it goes on, unaware of the freeze."""
        process = self._worker_of(job)
        process.gate.freeze()
        self._loop.call_later(parse_duration(duration, what="duration") / SECOND, process.gate.thaw)

    def _worker_of(self, job: JobHandle | str) -> Process:
        self._through(self._loop.time())
        found = self.job(job)
        for process in self._workers:
            if process.child_pool is not None and process.child_pool.has(found.id):
                return process
        raise ValueError(f"no worker runs {found.id}: it is {found.status}")


async def _collect(store: Store, filters: dict[str, str | None]) -> list[Job]:
    return [job async for job in all_jobs(store, **filters)]


def _moment(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


Offered = Mapping[str, "int | float | str"]  # Such as {"cpu": 8, "memory": "32G"}.


def _offering(settings: Settings, offer: Offered | None, labels: Mapping[str, str] | None) -> Settings:
    """Return settings with another offer of a worker and other labels."""
    return replace(
        settings,
        offer=settings.offer if offer is None else read_amounts(offer, "offers"),
        labels=settings.labels if labels is None else read_labels(labels, "labels"),
    )


@contextmanager
def virtual(
    app: Headway,
    start: InstantLike = START_DEFAULT,
    *,
    seed: int = 0,
    workers: int = 2,
    offers: Sequence[Offered] | Offered | None = None,
    labels: Mapping[str, str] | None = None,
) -> Iterator[World]:
    """Run an app in a virtual world, with its schedules, a scheduler and workers, starting at a time of your choice.

    Until the block ends, the app's own calls (`task.enqueue_sync`, `job.wait_sync`, …) use this world. The same app,
    start and seed produce the same history. `offers` says what each worker offers to jobs with needs, or what all of
    them do; without it, the settings of the app say so. All workers have these `labels`, too.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError("virtual() runs its own event loop: use it in a plain def, not in a coroutine")
    each = [offers or None] * workers if offers is None or isinstance(offers, Mapping) else [*offers]
    settings = [_offering(app.settings, one, labels) for one in each]
    with World(app, parse_instant(start, what="start"), seed, len(settings), settings).entered() as world:
        yield world
