"""Queues: what waits in each, pause and resume."""

from collections.abc import Mapping
from typing import Any

import msgspec

from headway.core.instants import SECOND
from headway.core.validation import check_name
from headway.operations import audit_log
from headway.operations.caller import Caller, require_printable
from headway.operations.overview import queue_shape, queue_shapes
from headway.operations.verbs import Group, Reason, sliced, verb
from headway.wire.base import PAGE_DEFAULT, Cursor, Limit, Page
from headway.wire.queues import Queue


def _without_ages(page: Page[Queue], caller: Caller) -> Any:
    """Replace ages, which grow all the time, by the times that they count from."""
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


class Queues(Group):
    """Queues: what waits in each, and whether workers take jobs from it."""

    @verb("GET /api/queues", id="list_queues", role="viewer", stable=_without_ages)
    async def list(self, *, limit: Limit = PAGE_DEFAULT, cursor: Cursor | None = None) -> Page[Queue]:
        """List queues with the number of pending and running jobs.

        A queue is listed while jobs wait in it or run from it, and while it is paused.
        """
        found = [_queue(shape) for shape in await queue_shapes(self.caller.store, self.caller.tenant)]
        return sliced(found, limit, cursor, lambda queue: queue.name)

    @verb("POST /api/queues/{name:path}/pause", id="pause_queue", role="operator")
    async def pause(self, name: str, *, reason: Reason = "") -> Queue:
        """Pause a queue: workers take no more jobs from it.

        Running jobs finish, and new jobs wait. Needs a token for all tenants.
        """
        self.caller.require_all_tenants()
        check_name(name, "queue")
        entry = audit_log.pause_queue(name, require_printable(reason, "reason"))
        changed = await self.caller.acting(entry).queue.pause(name, author=self.caller.name, reason=reason)
        return await self._show(name, changed)

    @verb("POST /api/queues/{name:path}/resume", id="resume_queue", role="operator")
    async def resume(self, name: str) -> Queue:
        """Resume a queue: workers take jobs from it again.

        Needs a token for all tenants.
        """
        self.caller.require_all_tenants()
        check_name(name, "queue")
        changed = await self.caller.acting(audit_log.resume_queue(name)).queue.resume(name)
        return await self._show(name, changed)

    async def _show(self, name: str, changed: bool) -> Queue:
        queue = _queue(await queue_shape(self.caller.store, name))
        return msgspec.structs.replace(queue, changed=changed)


def _queue(shape: Mapping[str, Any]) -> Queue:
    return Queue(**shape)
