"""Close, cancel and retry a batch, with the audit log entry; used by the operations and by `Headway` itself.

The first transaction of a cancellation or retry closes or creates what is needed; the next ones do bounded pieces. If
the caller dies in between, housekeeping does the rest.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from headway.core.groups import JobGroup
from headway.operations.caller import Caller
from headway.store.audit_log import AuditEntry, if_changed
from headway.store.queue import cancel_words

STEPS_MAX: Final = 20  # Of one call: 20,000 jobs to cancel, 10,000 to retry.


async def close_batch(caller: Caller, group: JobGroup) -> tuple[JobGroup, bool]:
    """Close a batch; return it, and whether it was open."""
    changed = await caller.acting(_entry("batch.close", group, {})).groups.close(group.id)
    return await caller.store.groups.get(group.id), changed


async def cancel_batch(caller: Caller, group: JobGroup, reason: str) -> tuple[JobGroup, bool]:
    """Cancel a batch; return it, and whether it was not cancelled before."""
    acting = caller.acting(_entry("batch.cancel", group, {"reason": reason}))
    changed = await acting.groups.request_cancel(group.id, reason=cancel_words(caller.name, reason))
    for _ in range(STEPS_MAX):
        if not await caller.store.groups.cancel_step(group.id):
            break
    return await caller.store.groups.get(group.id), changed


async def retry_batch(caller: Caller, group: JobGroup) -> tuple[JobGroup, bool]:
    """Rerun the failed jobs of a batch; return the batch in which they run, and whether there were any."""
    await caller.admit_jobs(group.counts.failures)
    acting = caller.acting(_entry("batch.retry", group, {}, _target))
    target = await acting.groups.begin_retry(group.id)
    if target is None:
        return await caller.store.groups.get(group.id), False
    for _ in range(STEPS_MAX):
        if not await caller.store.groups.retry_step(group.id, target, author=caller.name):
            break
    return await caller.store.groups.get(target), True


def _entry(
    action: str, group: JobGroup, what: Mapping[str, Any], seen: Callable[[Any], Mapping[str, Any] | None] = if_changed
) -> AuditEntry:
    return AuditEntry(action, group.id, group.tenant, {"name": group.name, **what}, seen)


def _target(target: str | None) -> Mapping[str, Any] | None:
    return None if target is None else {"batch": target}
