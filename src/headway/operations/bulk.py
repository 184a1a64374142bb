"""Retry or cancel many jobs at once, selected by the filters of a list or by id.

It takes a few transactions, each for one tenant and with its entry in that tenant's audit log. Each call selects the
jobs that qualify anew, so a call that was interrupted, or whose response was lost, can simply be repeated.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headway.core.errors import DefinitionError
from headway.operations import audit_log
from headway.operations.caller import Caller, require_printable
from headway.operations.job_reads import chosen_by
from headway.store.bulk import AT_ONCE_MAX, COUNT_MAX, BulkResult, Verb
from headway.store.job_filter import JobFilter
from headway.wire.job_requests import ManyJobs, ManyOutcome, RefusedJob

REFUSED_SHOWN: Final = 20
UNKNOWN: Final = "no job has this id"


class Bulk:
    """A retry or cancellation of many jobs by one caller."""

    def __init__(self, caller: Caller, verb: Verb, many: ManyJobs) -> None:
        self._caller = caller
        self._verb: Verb = verb
        self._many = many

    async def run(self) -> ManyOutcome:
        """Act on the jobs that a filter selects, oldest first, or on the jobs with these ids."""
        require_printable(self._many.reason, "reason")
        which, ids = self._many.filter, self._many.ids
        if (which is None) == (ids is None):
            raise DefinitionError("give either filter or ids")
        if ids is not None:
            return await self._named(ids)
        assert which is not None
        said = which.given()
        for name, text in said.items():
            require_printable(text, f"filter.{name}")
        chosen = await chosen_by(self._caller, which, prefix="filter.")
        if said.keys() <= ({"tenant"} if self._caller.tenant is not None else set()):
            raise DefinitionError("filter: it is empty; to select all jobs, name their statuses")
        return _outcome(0, True, more=False) if chosen is None else await self._matching(chosen, said)

    async def _matching(self, chosen: JobFilter, said: Mapping[str, Any]) -> ManyOutcome:
        bulk, limit = self._caller.store.bulk, self._many.limit
        if self._many.dry_run:
            jobs, is_exact = await bulk.count(chosen, self._verb, limit=COUNT_MAX)
            return _outcome(jobs, is_exact, more=jobs > limit)
        found = await bulk.choose(chosen, self._verb, limit + 1)
        matched, is_exact = len(found), True
        if len(found) > limit:
            matched, is_exact = await bulk.count(chosen, self._verb, limit=COUNT_MAX)
        done = await self._carry_out(found[:limit], said)
        return _outcome(matched, is_exact, done, more=len(found) > limit)

    async def _named(self, job_ids: Sequence[str]) -> ManyOutcome:
        ids, limit = sorted(set(job_ids)), self._many.limit
        found = await self._caller.store.bulk.find(ids, self._verb, tenant=self._caller.tenant)
        fit = sum(is_fit for _, is_fit in found.values())
        unknown = [(job_id, UNKNOWN) for job_id in ids if job_id not in found]
        # Jobs that do not qualify are sent as well: the store returns the reason.
        tried = [(job_id, found[job_id][0]) for job_id in ids if job_id in found]
        if self._many.dry_run:
            return _outcome(fit, True, BulkResult((), tuple(unknown)), more=fit > limit)
        done = await self._carry_out(tried[:limit], {"ids": True})
        return _outcome(fit, True, BulkResult(done.done, (*unknown, *done.refused)), more=len(tried) > limit)

    async def _carry_out(self, jobs: Sequence[tuple[str, str]], said: Mapping[str, Any]) -> BulkResult:
        if jobs and self._verb == "retry":
            await self._caller.admit_jobs(len(jobs))
        by_tenant: dict[str, list[str]] = {}
        for job_id, tenant in jobs:
            by_tenant.setdefault(tenant, []).append(job_id)
        done: list[str] = []
        refused: list[tuple[str, str]] = []
        for tenant, ids in by_tenant.items():
            for start in range(0, len(ids), AT_ONCE_MAX):
                result = await self._act(tenant, ids[start : start + AT_ONCE_MAX], said)
                done += result.done
                refused += result.refused
        return BulkResult(tuple(done), tuple(refused))

    async def _act(self, tenant: str, ids: Sequence[str], said: Mapping[str, Any]) -> BulkResult:
        reason, author = self._many.reason, self._caller.name
        bulk = self._caller.acting(audit_log.act_on_many(self._verb, tenant, said, reason)).bulk
        if self._verb == "retry":
            return await bulk.retry(ids, author=author)
        return await bulk.cancel(ids, author=author, reason=reason)


def _outcome(matched: int, is_exact: bool, done: BulkResult | None = None, *, more: bool) -> ManyOutcome:
    result = done or BulkResult((), ())
    refused = [RefusedJob(job_id, reason) for job_id, reason in result.refused[:REFUSED_SHOWN]]
    return ManyOutcome(matched, is_exact, len(result.done), refused, more)
