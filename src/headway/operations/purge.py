"""Purge: erase the content of finished jobs. It works on the store only; there is no HTTP route."""

from dataclasses import dataclass
from typing import Final

from headway.core.validation import check_name
from headway.operations.verbs import OperationGroup
from headway.store.audit_log import AuditEntry

_AT_ONCE: Final = 200


@dataclass(frozen=True, slots=True)
class Erasable:
    """The jobs to erase, and the number of matching jobs that have not ended yet."""

    tenant: str
    key: str | None
    ids: list[str]
    unfinished: int


class Purge(OperationGroup):
    """Erase arguments, results, errors, logs, steps, keys and callback URLs of jobs, and names of batches."""

    async def find(self, tenant: str, *, key: str | None = None) -> Erasable:
        """Find the finished jobs of a tenant; with a key, the job that has it and its reruns."""
        self.caller.require_role("admin")
        check_name(tenant, "--tenant")
        ids: list[str] = []
        unfinished, after = 0, ""
        while True:
            page, waiting = await self.caller.store.erasure.page(tenant, key, after)
            if not page and not waiting:
                return Erasable(tenant, key, ids, unfinished)
            ids += page
            unfinished += len(waiting)
            after = max([*page, *waiting])

    async def erase(self, found: Erasable) -> int:
        """Erase the content of these jobs and return their number; a key that unfinished jobs use is kept."""
        self.caller.require_role("admin")
        erased, keeps_key = 0, found.key is not None and found.unfinished > 0
        for start in range(0, len(found.ids), _AT_ONCE):
            # The key is not told: it is erased, too.
            what = {"of_one_job": found.key is not None}
            entry = AuditEntry("purge", "*", found.tenant, what, lambda ids: {"jobs": len(ids)} if ids else None)
            acting = self.caller.acting(entry)
            erased += len(await acting.erasure.erase(found.ids[start : start + _AT_ONCE], keeps_key=keeps_key))
        if found.key is None:
            said = AuditEntry("purge", "*", found.tenant, {}, lambda rows: {"batches": len(rows)} if rows else None)
            await self.caller.acting(said).erasure.erase_batches(found.tenant)
        return erased
