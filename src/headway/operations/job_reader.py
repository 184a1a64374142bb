"""Read jobs for all concurrent callers with one statement (batched single-flight).

Callers that arrive while a read is under way share the next one. No caller gets a result that was read before its call,
and a single caller does not wait. For cached jobs only the stamp is read, which is much smaller than the job; the rest
is read only if the stamp has changed.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final, Unpack

import msgspec

from headway.core.clock import Clock
from headway.core.errors import JobNotFound
from headway.core.instants import SECOND, Instant
from headway.core.jobs import Job
from headway.core.ports import LiveView
from headway.operations.job_context import node_names
from headway.operations.job_source import length_of, overlaid_all
from headway.store import Store
from headway.wire.base import LISTED_BYTES_MAX
from headway.wire.jobs import JobViews, job_of, set_outlook

NAMES_FRESH_S: Final = 10.0
NAMES_AGAIN_S: Final = 0.5
SHOWN_MAX: Final = 2_000
KNOWN_MAX: Final = 2_000
KEPT_LENGTH_MAX: Final = 16 * 1024  # Larger jobs are not cached: they are read and encoded each time.


class JobReader:
    """Reads jobs by complete id, without large arguments and results, which `omitted` names."""

    def __init__(self, store: Store, live: LiveView | None = None) -> None:
        self._store = store
        self._live = live
        self._known: dict[str, Job] = {}
        self._waiting: dict[str, list[asyncio.Future[Job]]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def overlaid(self, jobs: Sequence[Job]) -> list[Job]:
        """Return jobs with their live values."""
        return await overlaid_all(self._live, jobs)

    async def whole(self, job: Job) -> Job:
        """Return the current job with all its content."""
        if not job.omitted:
            return job
        for found in await self.overlaid(await self._store.feed.jobs([job.id])):
            return found
        raise JobNotFound(f"no job has the id {job.id!r}")

    async def get(self, job_id: str) -> Job:
        """Return a job; `JobNotFound` when there is none."""
        mine: asyncio.Future[Job] = self._loop.create_future()
        self._waiting.setdefault(job_id, []).append(mine)  # One future per caller: each can be cancelled alone.
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        return await mine

    async def _read(self) -> None:
        """Read for the waiting callers until none is left."""
        try:
            while self._waiting:
                asked, self._waiting = self._waiting, {}
                await self._answer(asked)
        finally:
            self._reading = None

    async def _answer(self, asked: dict[str, list[asyncio.Future[Job]]]) -> None:
        try:
            stored = await self._find(asked)
            found = {job.id: job for job in await overlaid_all(self._live, tuple(stored.values()))}
        except Exception as error:  # noqa: BLE001 - it is for those who asked
            for futures in asked.values():
                _refuse(futures, error)
            return
        for job_id, futures in asked.items():
            job = found.get(job_id)
            if job is None:
                _refuse(futures, JobNotFound(f"no job has the id {job_id!r}"))
                continue
            for future in futures:
                if not future.done():
                    future.set_result(job)

    async def _find(self, job_ids: Collection[str]) -> dict[str, Job]:
        found = {}
        if again := [job_id for job_id in job_ids if job_id in self._known]:
            stamps = await self._store.feed.stamps(again)
            for job_id in again:
                known = self._known.pop(job_id)
                if stamps.get(job_id) == (known.version, known.lease_until):
                    found[job_id] = self._known[job_id] = known
        if len(found) < len(job_ids):
            missing = [job_id for job_id in job_ids if job_id not in found]
            for job in await self._store.feed.jobs(missing, largest=LISTED_BYTES_MAX):
                found[job.id] = job
                if length_of(job) <= KEPT_LENGTH_MAX:
                    self._known[job.id] = job
        while len(self._known) > KNOWN_MAX:  # The least recently used ones.
            del self._known[next(iter(self._known))]
        return found


def _refuse(futures: list[asyncio.Future[Job]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)


class EncodedJobs:
    """Jobs as JSON: each is converted once, and encoded at most once a second, since some fields change with time."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, bool, bool], EncodedJob] = {}

    def get(self, job: Job, *, with_traceback: bool, all_tenants: bool = False) -> "EncodedJob":
        """Return a job as JSON; the same object for as long as the reader returns the same job."""
        key = (job.id, with_traceback, all_tenants)
        encoded = self._kept.get(key)
        if encoded is None or encoded.job is not job:
            encoded = EncodedJob(job, with_traceback=with_traceback, all_tenants=all_tenants)
            if length_of(job) <= KEPT_LENGTH_MAX:
                self._kept[key] = encoded
                while len(self._kept) > SHOWN_MAX:
                    del self._kept[next(iter(self._kept))]
        return encoded


class EncodedJob:
    """One job as JSON, with what its readers may see."""

    __slots__ = ("_body", "_second", "_shown", "job")

    def __init__(self, job: Job, **views: Unpack[JobViews]) -> None:
        self.job = job
        self._shown = job_of(job, 0, why="", **views)
        self._second = -1
        self._body = b""

    def at(self, second: int) -> bytes | None:
        """Return what was encoded in this second, or None."""
        return self._body if second == self._second else None

    def encode(self, now: Instant, *, why: str | None, node_name: str | None) -> bytes:
        """Encode the job with its time-dependent fields as of now."""
        set_outlook(self._shown, self.job, now, why=why, node_name=node_name)
        self._second, self._body = now // SECOND, msgspec.json.encode(self._shown)
        return self._body


class NodeNames:
    """The names of the nodes; read again for an unknown id, and every few seconds."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._names: dict[str, str] = {}
        self._read_at = -1e9

    async def of(self, node_id: str | None) -> str | None:
        """Return the name of a node, or None if it is unknown."""
        if node_id is None:
            return None
        now = self._clock.monotonic()
        if now - self._read_at > (NAMES_FRESH_S if node_id in self._names else NAMES_AGAIN_S):
            self._read_at = now
            self._names = await node_names(self._store)
        return self._names.get(node_id)
