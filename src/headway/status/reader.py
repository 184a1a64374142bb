"""Reads jobs for everybody who asks at the same time with one statement.

While one read is on its way, those who come later wait for the next one together. Nobody gets an answer that was read
before he asked, and who is alone does not wait.
"""

import asyncio
from typing import Final

from headway.clock import Clock
from headway.errors import JobNotFound
from headway.model import Job
from headway.status.around import node_names
from headway.store import Store

NAMES_FRESH_S: Final = 10.0
NAMES_AGAIN_S: Final = 0.5


class JobReader:
    """Reads jobs by their whole id."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, asyncio.Future[Job]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def get(self, job_id: str) -> Job:
        """Return a job; `JobNotFound` when there is none."""
        waiting = self._waiting.get(job_id)
        if waiting is None:
            waiting = self._waiting[job_id] = asyncio.get_running_loop().create_future()
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        return await asyncio.shield(waiting)

    async def _read(self) -> None:
        try:
            while self._waiting:
                asked, self._waiting = self._waiting, {}
                try:
                    found = {job.id: job for job in await self._store.feed.jobs(asked)}
                except BaseException as error:  # noqa: BLE001 - it is for those who asked
                    for future in asked.values():
                        if not future.done():
                            future.set_exception(error)
                            future.exception()  # Somebody who asked may have gone meanwhile.
                    continue
                for job_id, future in asked.items():
                    if future.done():
                        continue
                    if job_id in found:
                        future.set_result(found[job_id])
                    else:
                        future.set_exception(JobNotFound(f"no job has the id {job_id!r}"))
                        future.exception()
        finally:
            self._reading = None


class NodeNames:
    """What people call the nodes; read again when a node is met for the first time, and every few seconds."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._names: dict[str, str] = {}
        self._read_at = -1e9

    async def of(self, node_id: str | None) -> str | None:
        """Return the name of a node; None when nobody knows it."""
        if node_id is None:
            return None
        now = self._clock.monotonic()
        if now - self._read_at > (NAMES_FRESH_S if node_id in self._names else NAMES_AGAIN_S):
            self._read_at = now
            self._names = await node_names(self._store)
        return self._names.get(node_id)
