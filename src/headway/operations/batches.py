"""Batches: create, list, show, close, cancel and retry them."""

from typing import Annotated, Literal

import msgspec

from headway.core.errors import BatchClosed, BatchNotFound, Conflict, Denied, DuplicateKey, InvalidTask, TaskNotFound
from headway.core.groups import CALLBACK_SAMPLE, OPEN_FOR, JobGroup, NewGroup, check_batch_name
from headway.core.jobs import NewJob
from headway.core.tenants import DEFAULT_TENANT, check_tenant
from headway.operations import batch_actions
from headway.operations.caller import require_printable
from headway.operations.job_reads import find_batch, tenant_asked_for
from headway.operations.schedule_parameters import Whose
from headway.operations.verbs import OperationGroup, Reason, verb
from headway.store.groups import UNFINISHED_MAX
from headway.tasks.batch_definitions import as_callback
from headway.tasks.options import positive
from headway.wire.base import PAGE_DEFAULT, Cursor, Limit, Page
from headway.wire.batches import Batch, CreatedBatch, NewBatch, batch_of

State = Annotated[
    Literal["unfinished", "finished"] | None, msgspec.Meta(description="only those that have finished, or have not")
]


class Batches(OperationGroup):
    """Batches: many jobs as one thing, with exact counts, one progress and one callback."""

    @verb(
        "POST /api/batches",
        id="create_batch",
        role="operator",
        is_repeatable=True,
        errors=(TaskNotFound, DuplicateKey, InvalidTask),
        created=lambda batch: isinstance(batch, CreatedBatch),
        location=lambda batch: f"/api/batches/{batch.id}",
    )
    async def create(self, new: NewBatch) -> Batch:
        """Create a batch, or return the one that has this name.

        Add jobs with `POST /api/jobs/bulk` and `batch`, then close it. 201 for a new one, 200 for an existing one; 409
        if that has other callbacks.
        """
        own = self.caller.tenant
        if new.tenant is not None and own is not None and new.tenant != own:
            raise Denied("tenant: the tenant comes from the token; leave it out")
        tenant = check_tenant(own or new.tenant or DEFAULT_TENANT, "tenant")
        group = NewGroup(
            id=self.caller.clock.new_id("batch"),
            name=check_batch_name(new.name),
            tenant=tenant,
            on_done=await self._callback("on_done", new.on_done),
            on_failure=await self._callback("on_failure", new.on_failure),
            open_for=OPEN_FOR if new.open_for is None else positive(new.open_for, "open_for"),
        )
        limit = UNFINISHED_MAX if self.caller.is_bounded else None
        made, is_new = await self.caller.store.groups.open(group, unfinished_max=limit)
        return batch_of(made, kind=CreatedBatch if is_new else Batch)

    async def _callback(self, which: str, task: str | None) -> NewJob | None:
        """Make the job of a callback; its task must take the argument `batch`, where that is known here."""
        if task is None:
            return None
        try:
            options, args = await self.caller.options_of(task, dict(CALLBACK_SAMPLE))
            return as_callback(options.new_job("", task, args), options)
        except (InvalidTask, TaskNotFound) as error:
            raise type(error)(f"{which}: {error}; it is called with one argument, batch") from None

    @verb("GET /api/batches", id="list_batches", role="viewer")
    async def list(
        self,
        *,
        state: State = None,
        tenant: Whose = None,
        limit: Limit = PAGE_DEFAULT,
        cursor: Cursor | None = None,
    ) -> Page[Batch]:
        """List batches, newest first, with exact counts."""
        owner = tenant_asked_for(self.caller, tenant)
        finished = None if state is None else state == "finished"
        found = await self.caller.store.groups.page(tenant=owner, finished=finished, before=cursor, limit=limit)
        return Page([batch_of(group) for group in found], found[-1].id if len(found) == limit else None)

    @verb("GET /api/batches/{name:path}", id="get_batch", role="viewer", errors=(BatchNotFound,))
    async def show(self, name: str, *, tenant: Whose = None) -> Batch:
        """Show a batch, by its name or id: exact counts, progress, rate and time left."""
        return batch_of(await self._find(name, tenant))

    @verb("POST /api/batches/{name:path}/close", id="close_batch", role="operator", errors=(BatchNotFound,))
    async def close(self, name: str, *, tenant: Whose = None) -> Batch:
        """Close a batch: it takes no more jobs from outside, and finishes when all of its jobs have ended.

        Its own running jobs can still add to it.
        """
        group, changed = await batch_actions.close_batch(self.caller, await self._find(name, tenant))
        return batch_of(group, changed=changed)

    @verb(
        "POST /api/batches/{name:path}/cancel",
        id="cancel_batch",
        role="operator",
        is_repeatable=True,
        errors=(BatchNotFound, BatchClosed),
    )
    async def cancel(self, name: str, *, reason: Reason = "", tenant: Whose = None) -> Batch:
        """Cancel a batch: close it, cancel the jobs that wait, and ask those that run to stop.

        Very large batches are cancelled in the background.
        """
        require_printable(reason, "reason")
        group, changed = await batch_actions.cancel_batch(self.caller, await self._find(name, tenant), reason)
        return batch_of(group, changed=changed)

    @verb(
        "POST /api/batches/{name:path}/retry",
        id="retry_batch",
        role="operator",
        is_repeatable=True,
        errors=(BatchNotFound, Conflict),
    )
    async def retry(self, name: str, *, tenant: Whose = None) -> Batch:
        """Rerun the jobs of a batch that failed or timed out, each once.

        While the batch runs, the reruns join it. If it has finished, they make a new batch with the same callbacks;
        its `rerun_of` names this one. Returns the batch in which they run.
        """
        group, changed = await batch_actions.retry_batch(self.caller, await self._find(name, tenant))
        return batch_of(group, changed=changed)

    async def _find(self, name: str, tenant: str | None) -> JobGroup:
        owner = tenant_asked_for(self.caller, tenant)
        group_id = await find_batch(self.caller, name, owner)
        if group_id is None:
            whose = f" of the tenant {owner!r}" if owner is not None else ""
            raise BatchNotFound(f"no batch{whose} is named {name[:60]!r}; `headway batches list` lists them")
        return await self.caller.store.groups.get(group_id)
