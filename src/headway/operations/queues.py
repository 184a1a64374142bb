"""Queues: list, pause and resume them."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from headway.core.errors import InvalidTask
from headway.core.instants import SECOND, isoformat
from headway.core.lifecycle import Status
from headway.core.scaling import SECONDS_DEFAULT, gates_of_all, startable, wanted_slots
from headway.core.validation import check_name
from headway.operations.caller import Caller, require_printable
from headway.operations.job_context import alive, pauses
from headway.operations.verbs import OperationGroup, Reason, sliced, verb
from headway.operations.why import QueuePause
from headway.operations.worker_state import workers_of
from headway.store import Store
from headway.store.audit_log import AuditEntry
from headway.tasks.options import positive
from headway.wire.base import PAGE_DEFAULT, Cursor, Limit, Page
from headway.wire.queues import Queue, QueueScale

Wait = Annotated[str, msgspec.Meta(description="how long a ready job may wait, as a duration such as 20s")]

PENDING: Final = str(Status.PENDING)
RUNNING: Final = str(Status.RUNNING)


def _without_ages(page: Page[Queue], caller: Caller) -> Any:
    """Replace ages, which change with time, by the times from which they count."""
    now_s = caller.now / SECOND
    return [
        [
            msgspec.structs.replace(queue, oldest_age_seconds=round(now_s - queue.oldest_age_seconds))
            if queue.pending
            else queue
            for queue in page.items
        ],
        page.next_cursor,
    ]


class Queues(OperationGroup):
    """Queues: pending and running jobs, and whether the queue is paused."""

    @verb("GET /api/queues", id="list_queues", role="viewer", stable=_without_ages)
    async def list(self, *, limit: Limit = PAGE_DEFAULT, cursor: Cursor | None = None) -> Page[Queue]:
        """List queues with the number of pending and running jobs.

        A queue is listed while jobs wait in it or run from it, and while it is paused.
        """
        found = await read_queues(self.caller.store, self.caller.tenant)
        return sliced(found, limit, cursor, lambda queue: queue.name)

    @verb("POST /api/queues/{name:path}/pause", id="pause_queue", role="operator", errors=(InvalidTask,))
    async def pause(self, name: str, *, reason: Reason = "") -> Queue:
        """Pause a queue: workers take no more jobs from it.

        Running jobs finish, and new jobs wait. Needs a token for all tenants.
        """
        self.caller.require_all_tenants()
        check_name(name, "queue")
        what = {"before": "on", "after": "paused", "reason": require_printable(reason, "reason")}
        entry = AuditEntry("queue.pause", name, None, what)
        changed = await self.caller.acting(entry).queue.pause(name, author=self.caller.name, reason=reason)
        return await self._show(name, changed)

    @verb("POST /api/queues/{name:path}/resume", id="resume_queue", role="operator", errors=(InvalidTask,))
    async def resume(self, name: str) -> Queue:
        """Resume a queue: workers take jobs from it again.

        Needs a token for all tenants.
        """
        self.caller.require_all_tenants()
        check_name(name, "queue")
        entry = AuditEntry("queue.resume", name, None, {"before": "paused", "after": "on"})
        changed = await self.caller.acting(entry).queue.resume(name)
        return await self._show(name, changed)

    @verb("GET /api/queues/{name:path}/scale", id="scale_queue", role="viewer", errors=(InvalidTask,))
    async def scale(self, name: str, *, wait: Wait = "20s") -> QueueScale:
        """Say how many slots a queue needs so that its ready jobs start within a time.

        Never less than what runs, and never more than limits let run. Needs a token for all tenants.
        """
        self.caller.require_all_tenants()
        check_name(name, "queue")
        within = positive(wait, "wait")
        store = self.caller.store
        reads = store.limit_reads
        rules, waiting = await reads.rules(), await reads.waiting(name)
        running = await reads.running(gates_of_all(name, waiting, rules)) if waiting else {}
        ready = startable(name, waiting, rules, running)
        seconds = await reads.usual_seconds(name)
        held = (await store.statistics.running_counts()).get(name, 0)
        workers = [worker for worker in workers_of(await alive(store)) if worker.takes(name) and not worker.draining]
        each = SECONDS_DEFAULT if seconds is None else seconds
        return QueueScale(
            queue=name,
            ready=ready,
            running=held,
            slots=sum(worker.slots for worker in workers),
            work_seconds=round(ready * each, 3),
            wanted_slots=wanted_slots(held, ready, each, within),
        )

    async def _show(self, name: str, changed: bool) -> Queue:
        queue = await _read_queue(self.caller.store, name)
        return msgspec.structs.replace(queue, changed=changed)


async def read_queues(store: Store, tenant: str | None = None) -> list[Queue]:
    """Read the queues that have pending or running jobs, and the paused ones; for a tenant, those with its jobs."""
    if tenant is not None:
        return (await read_tenant_jobs(store, tenant))[0]
    waiting = {row["name"]: row for row in await store.statistics.depths()}
    running, paused = await store.statistics.running_counts(), await pauses(store)
    return [
        _queue(name, waiting.get(name), running.get(name, 0), paused.get(name))
        for name in sorted({*waiting, *running, *paused})
    ]


async def read_tenant_jobs(store: Store, tenant: str) -> tuple[list[Queue], dict[str, int]]:
    """Read the unfinished jobs of one tenant: by queue, and by status."""
    rows, paused = await store.statistics.live_counts(tenant), await pauses(store, tenant=tenant)
    waiting = {row["name"]: {**row, "pending": row["jobs"]} for row in rows if row["status"] == PENDING}
    running = {row["name"]: row["jobs"] for row in rows if row["status"] == RUNNING}
    statuses: dict[str, int] = {}
    for row in rows:
        if row["status"] != PENDING:
            statuses[row["status"]] = statuses.get(row["status"], 0) + row["jobs"]
    names = sorted({row["name"] for row in rows})
    return [_queue(name, waiting.get(name), running.get(name, 0), paused.get(name)) for name in names], statuses


async def _read_queue(store: Store, name: str) -> Queue:
    """Read one queue; an unknown queue is empty and not paused."""
    found = (queue for queue in await read_queues(store) if queue.name == name)
    return next(found, _queue(name, None, 0, None))


def _queue(name: str, waiting: Mapping[str, Any] | None, running: int, pause: QueuePause | None) -> Queue:
    return Queue(
        name=name,
        pending=waiting["pending"] if waiting is not None else 0,
        oldest_age_seconds=waiting["oldest_age_seconds"] if waiting is not None else 0.0,
        running=running,
        paused=pause is not None,
        paused_at=None if pause is None else isoformat(pause.since),
        paused_by=None if pause is None else pause.author,
        reason=None if pause is None else pause.reason,
    )
