"""The desk of commands that talk to an API: it answers as the store does, so that they need not know the difference.

What the API sends is turned back into the values that it was written from, and shown by the same code as those of a
store, so the output is the same. What only a store can do is refused.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NoReturn, TypeVar, cast

import msgspec

from headway.cli.session import Desk
from headway.client import AsyncClient
from headway.client.remote_operations import RemoteOperations
from headway.core.clock import Clock
from headway.core.errors import (
    DefinitionError,
    JobNotFound,
    StoreError,
)
from headway.core.instants import SECOND, Instant, isoformat, parse_duration, parse_instant
from headway.core.job_summary import glance
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.store import Store
from headway.store.audit_log import AuditEntry
from headway.store.failures import DeadLetter, ErrorGroup, dead_letter_of
from headway.wire.shapes import Shape

RETRY_FOR: Final = "5s"
LOOK_S: Final = 1.0

T = TypeVar("T")


@asynccontextmanager
async def remote_desk(server: str, token: str | None) -> AsyncIterator[Desk]:
    """Talk to an API; hear first whether it lets us in, and what its time is."""
    async with AsyncClient(server, token, retry_for=RETRY_FOR) as client:
        clock = Clock(node="cli")
        sent = clock.monotonic()
        told = await client.time()
        latency_s = clock.monotonic() - sent
        if told is not None:
            _set_right(clock, told, told + SECOND + round(latency_s * SECOND))
        yield RemoteDesk(cast("Store", RemoteStore(client, clock)), clock, latency_s, server)


def _set_right(clock: Clock, earliest: Instant, latest: Instant) -> None:
    """Move a clock no further than it takes to be possible; the server tells its time in whole seconds."""
    now = clock.now()
    possible = min(max(now, earliest), latest)
    if possible != now:
        wall = clock.wall
        clock.wall = lambda: wall() + possible - now


class RemoteDesk(Desk):
    """A desk whose store is behind an API."""

    __slots__ = ()

    @property
    def _remote(self) -> "RemoteStore":
        return cast("RemoteStore", self.store)

    @property
    def now(self) -> Instant:
        """The server's time: nothing that it has told of happened later."""
        return max(self.clock.now(), self._remote.heard)

    def job_shape(self, job: Job, *, names: Mapping[str, str] | None = None, why: str | None = None) -> Shape:
        """Return a job as the API has written it, which may have looked further than was asked for."""
        shape = self._remote.told_jobs[job.id]
        if why is None:
            why = str(shape["why"]) if job.status is Status.RUNNING else glance(job, self.now)
        return {**shape, "why": why}

    @property
    def operations(self) -> RemoteOperations:
        """The operations of the server."""
        return RemoteOperations(self._remote.client, self.clock)

    def acting(self, deed: AuditEntry | Sequence[AuditEntry]) -> "Store":
        """Return the store: the server writes down what is done through it."""
        return self.store

    async def retry_dead(self, letter: DeadLetter) -> Job:
        """Have the server run a dead letter once more, unless somebody has dealt with it meanwhile."""
        return self._remote.job(await self._remote.client.dead.retry(letter.id))

    async def hear_time(self) -> None:
        """Nothing: what the server answers says what time it is."""


class RemoteStore:
    """As much of a store as an API gives."""

    def __init__(self, client: AsyncClient, clock: Clock) -> None:
        self.client = client
        self.clock = clock
        self.heard: Instant = 0
        self.told_jobs: dict[str, Shape] = {}
        self.queue = self.jobs = _Queue(self)
        self.failures = _Failures(self)

    def __getattr__(self, name: str) -> NoReturn:
        raise DefinitionError("this command works on the store itself: leave --server out, and run it where that is")

    def job(self, shape: Shape) -> Job:
        """Read a job, and remember how it was written."""
        job = _understood(lambda shape: job_of(shape, self.clock.now()), shape)
        self.told_jobs[job.id] = shape
        self.heard = max(self.heard, job.updated_at)
        return job


class _Failures:
    """Failed jobs by error."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store
        self._client = store.client
        self._found: dict[str, Job] = {}

    async def groups(
        self, *, task: str | None, queue: str | None, tenant: str | None, schedule: str | None
    ) -> list[ErrorGroup]:
        found = await self._client.failures(type=task, queue=queue, tenant=tenant, schedule=schedule)
        return [_understood(error_group_of, shape) for shape in found]

    async def letters(
        self, *, task: str | None = None, before: str | None = None, limit: int, **filters: str | None
    ) -> tuple[list[DeadLetter], str | None]:
        shapes = self._client.dead.list(type=task, before=before, limit=limit + 1, **filters)
        jobs = [self._store.job(shape) async for shape in shapes]
        self._found = {job.id: job for job in jobs[:limit]}
        following = jobs[limit - 1].id if len(jobs) > limit else None
        return [dead_letter_of(job) for job in jobs[:limit]], following

    async def jobs(self, job_ids: Sequence[str]) -> list[Job]:
        """Return jobs that were among the letters read last."""
        return [self._found[job_id] for job_id in job_ids]


class _Queue:
    """Jobs and queues."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store
        self._client = store.client

    async def dead(
        self, *, before: str | None, limit: int, task: str | None = None, **filters: str | None
    ) -> list[Job]:
        found = self._client.dead.list(type=task, before=before, limit=limit, **filters)
        return [self._store.job(shape) async for shape in found]

    async def running(self, limit: int) -> list[Job]:
        found = self._client.jobs(status=Status.RUNNING, limit=limit)
        return [self._store.job(shape) async for shape in found]

    async def get(self, job_id: str) -> Job:
        return self._store.job(await self._client.job(job_id))

    async def drop_dead(self, job_ids: Sequence[str], *, author: str) -> list[str]:
        try:
            answer = await self._client.dead.drop_many(job_ids)
        except JobNotFound:  # Somebody has dealt with one of them meanwhile; the others are still to do.
            return [job_id for job_id in job_ids if await self._drop_one(job_id)]
        return [str(job_id) for job_id in answer["dropped"]]

    async def _drop_one(self, job_id: str) -> bool:
        with suppress(JobNotFound):
            await self._client.dead.drop(job_id)
            return True
        return False


# --- from what the API writes to what it was written from


def _understood(convert: Callable[[Shape], T], shape: Shape) -> T:
    try:
        return convert(shape)
    except (KeyError, TypeError, ValueError, AttributeError, DefinitionError, msgspec.MsgspecError) as error:
        raise StoreError(
            f"an answer of the server is not understood ({type(error).__name__}: {error}); has it another version?"
        ) from None


def _instant(text: str) -> Instant:
    return parse_instant(text)


def _maybe(text: str | None) -> Instant | None:
    return None if text is None else parse_instant(text)


def _text(instant: Instant | None) -> str | None:
    return None if instant is None else isoformat(instant)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _maybe_json(value: Any) -> str | None:
    return None if value is None else _json(value)


def error_group_of(shape: Shape) -> ErrorGroup:
    """Read jobs that failed alike."""
    return ErrorGroup(
        task=shape["type"],
        error=shape["error"],
        jobs=shape["count"],
        newest=shape["newest"],
        example=shape["example"],
        newest_at=_instant(shape["newest_at"]),
        oldest_at=_instant(shape["oldest_at"]),
    )


def job_of(shape: Shape, now: Instant) -> Job:
    """Read a job that was written now."""
    return Job(
        id=shape["id"],
        task=shape["type"],
        status=Status(shape["status"]),
        tenant=shape["tenant"],
        queue=shape["queue"],
        priority=shape["priority"],
        args=_json(shape["args"]),
        created_at=_instant(shape["created_at"]),
        run_at=_instant(shape["run_at"]),
        max_attempts=shape["max_attempts"],
        attempt=shape["attempts"],
        failures=shape["failures"],
        version=shape["version"],
        key=shape["key"],
        tags=tuple(shape["tags"]),
        schedule=shape["schedule"],
        occurrence_at=_maybe(shape["occurrence_at"]),
        blocked_by=shape["blocked_by"],
        node=shape["node"],
        ready_at=_maybe(shape["ready_at"]),
        started_at=_maybe(shape["started_at"]),
        finished_at=_maybe(shape["finished_at"]),
        updated_at=_instant(shape["updated_at"]),
        cancel_requested_at=_maybe(shape["cancel_requested_at"]),
        progress=shape["progress"],
        reason=shape["reason"],
        result=_maybe_json(shape["result"]),
        error=_maybe_json(shape["error"]),
        timeout=None if shape["timeout"] is None else parse_duration(shape["timeout"]),
        metadata=_maybe_json(shape["metadata"]),
        detail=_detail(shape, now),
        parent=shape["parent"],
        rerun_of=shape["rerun_of"],
        parked=shape["parked"],
        expires_at=_maybe(shape["expires_at"]),
        reviewed_at=_maybe(shape["reviewed_at"]),
        omitted=tuple(shape.get("omitted", ())),
    )


def _detail(shape: Shape, now: Instant) -> str | None:
    """Write what a job says about itself as it has said it; how long it takes counts from when it said so."""
    if shape["detail"] is None and shape["eta_seconds"] is None:
        return None
    detail = dict(shape["detail"] or {})
    if "steps" in detail:
        detail["steps"] = [[step["name"], step["state"], step["seconds"]] for step in detail["steps"]]
    if shape["eta_seconds"] is not None:
        detail["eta"] = shape["eta_seconds"] + max(0, now - _instant(shape["updated_at"])) / SECOND
    return _json(detail)
