"""Retry or cancel many jobs at once: those that match the filters of a list, or those that are named.

A few transactions, each of one tenant with its line in that tenant's trail. What something can be done to is chosen
anew each time, so a call that was broken off, or whose answer was lost, is simply made again.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from headway.core.errors import DefinitionError
from headway.core.instants import Instant, parse_instant
from headway.core.lifecycle import Status
from headway.operations import audit_log as deeds
from headway.server.refusals import Refused
from headway.server.routes.jobs import chosen_by
from headway.server.web import TEXT_LENGTH_MAX, Answer, Call, Route, require_printable
from headway.store import Store
from headway.store.audit_log import AuditEntry
from headway.store.bulk import AT_ONCE_MAX, COUNT_MAX, BulkResult, Verb
from headway.store.job_filter import JobFilter
from headway.wire.shapes import Shape

GROUP_MAX: Final = 1_000
REFUSED_SHOWN: Final = 20
UNKNOWN: Final = "no job has this id"

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_LENGTH_MAX)]
_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Time = Annotated[str, msgspec.Meta(min_length=1, max_length=64, examples=["2027-01-31T06:00:00Z"])]
_TIMES: Final = ("created_after", "created_before", "finished_after", "finished_before")


class FilterBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which jobs: the filters of the list of jobs, by the same names."""

    status: Status | None = None
    type: _Text | None = None
    queue: _Text | None = None
    tenant: _Text | None = None
    schedule: _Text | None = None
    tag: _Text | None = None
    key: _Text | None = None
    batch: _Text | None = None
    created_after: _Time | None = None
    created_before: _Time | None = None
    finished_after: _Time | None = None
    finished_before: _Time | None = None
    rerun_of: _Text | None = None
    q: _Text | None = None

    def given(self) -> dict[str, str]:
        """Return what was said."""
        return {name: str(value) for name, value in msgspec.structs.asdict(self).items() if value is not None}


class ManyBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Many jobs: those that match a filter, oldest first, or those with these ids."""

    filter: FilterBody | None = None
    ids: Annotated[list[_Id], msgspec.Meta(min_length=1, max_length=GROUP_MAX)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=GROUP_MAX)] = GROUP_MAX
    dry_run: bool = False
    reason: Annotated[str, msgspec.Meta(max_length=300)] = ""

    def __post_init__(self) -> None:
        require_printable(self.reason, "reason")


class Bulk:
    """One thing that somebody does to many jobs. `acting` gives the store for a deed, `admit` may refuse so many."""

    def __init__(
        self,
        store: Store,
        acting: Callable[[AuditEntry], Store],
        verb: Verb,
        *,
        author: str,
        reason: str = "",
        admit: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._acting = acting
        self._verb: Verb = verb
        self._author = author
        self._reason = reason
        self._admit = admit

    async def matching(
        self, chosen: JobFilter, *, said: Mapping[str, Any], limit: int = GROUP_MAX, dry_run: bool = False
    ) -> Shape:
        """Do it to the jobs that a filter chooses, oldest first; `said` is the filter as the trail shall tell it."""
        if dry_run:
            jobs, is_exact = await self._store.bulk.count(chosen, self._verb, limit=COUNT_MAX)
            return _outcome(jobs, is_exact, more=jobs > limit)
        found = await self._store.bulk.choose(chosen, self._verb, limit + 1)
        matched, is_exact = len(found), True
        if len(found) > limit:
            matched, is_exact = await self._store.bulk.count(chosen, self._verb, limit=COUNT_MAX)
        done = await self._carry_out(found[:limit], said)
        return _outcome(matched, is_exact, done, more=len(found) > limit)

    async def named(
        self, job_ids: Sequence[str], *, tenant: str | None, limit: int = GROUP_MAX, dry_run: bool = False
    ) -> Shape:
        """Do it to the jobs with these ids, as far as they exist for the tenant."""
        ids = sorted(set(job_ids))
        found = await self._store.bulk.find(ids, self._verb, tenant=tenant)
        fit = sum(is_fit for _, is_fit in found.values())
        unknown = [(job_id, UNKNOWN) for job_id in ids if job_id not in found]
        # What nothing can be done to is tried as well: the store says why not.
        tried = [(job_id, found[job_id][0]) for job_id in ids if job_id in found]
        if dry_run:
            return _outcome(fit, True, BulkResult((), tuple(unknown)), more=fit > limit)
        done = await self._carry_out(tried[:limit], {"ids": True})
        refused = (*unknown, *done.refused)
        return _outcome(fit, True, BulkResult(done.done, refused), more=len(tried) > limit)

    async def _carry_out(self, jobs: Sequence[tuple[str, str]], said: Mapping[str, Any]) -> BulkResult:
        if self._admit is not None and jobs:
            await self._admit(len(jobs))
        by_tenant: dict[str, list[str]] = {}
        for job_id, tenant in jobs:
            by_tenant.setdefault(tenant, []).append(job_id)
        done: list[str] = []
        refused: list[tuple[str, str]] = []
        for tenant, ids in by_tenant.items():
            for start in range(0, len(ids), AT_ONCE_MAX):
                bulk = self._acting(deeds.act_on_many(self._verb, tenant, said, self._reason)).bulk
                part = ids[start : start + AT_ONCE_MAX]
                if self._verb == "retry":
                    result = await bulk.retry(part, author=self._author)
                else:
                    result = await bulk.cancel(part, author=self._author, reason=self._reason)
                done += result.done
                refused += result.refused
        return BulkResult(tuple(done), tuple(refused))


def _outcome(matched: int, is_exact: bool, done: BulkResult | None = None, *, more: bool) -> Shape:
    result = done or BulkResult((), ())
    return {
        "matched": matched,
        "is_exact": is_exact,
        "done": len(result.done),
        "refused": [{"id": job_id, "reason": reason} for job_id, reason in result.refused[:REFUSED_SHOWN]],
        "more": more,
    }


async def retry_many(call: Call) -> Answer:
    """Run many jobs that have ended once more, each as a new one."""

    async def admit(jobs: int) -> None:
        await call.services.quotas.jobs(call.principal, jobs)

    return await _act(call, "retry", admit)


async def cancel_many(call: Call) -> Answer:
    """End many jobs, or have them stop when they run."""
    return await _act(call, "cancel")


async def _act(call: Call, verb: Verb, admit: Callable[[int], Awaitable[None]] | None = None) -> Answer:
    body = await call.body(ManyBody)
    if (body.filter is None) == (body.ids is None):
        raise Refused(422, "invalid", "say which in one way: filter, or ids")
    bulk = Bulk(call.store, call.acting, verb, author=call.principal.name, reason=body.reason, admit=admit)
    if body.filter is None:
        assert body.ids is not None
        return Answer(await bulk.named(body.ids, tenant=call.tenant, limit=body.limit, dry_run=body.dry_run))
    said = body.filter.given()
    for name, text in said.items():
        require_printable(text, f"filter.{name}")
    chosen = chosen_by(call, {**said, **_times(said)})
    if said.keys() <= ({"tenant"} if call.tenant is not None else set()):
        raise Refused(422, "invalid", "filter: it is empty; who means all jobs says so, for example by their status")
    if chosen is None:
        return Answer(_outcome(0, True, more=False))
    return Answer(await bulk.matching(chosen, said=said, limit=body.limit, dry_run=body.dry_run))


def _times(said: Mapping[str, str]) -> dict[str, Instant]:
    found = {}
    for name in _TIMES:
        if name in said:
            try:
                found[name] = parse_instant(said[name])
            except DefinitionError:
                raise Refused(422, "invalid", f"filter.{name} must be a time such as 2027-01-31T08:00:00Z") from None
    return found


_EXAMPLE: Final = {"filter": {"status": "FAILED", "type": "report"}, "limit": 1_000, "dry_run": True, "reason": "fixed"}
_OUTCOME: Final = {"matched": 37, "is_exact": True, "done": 0, "refused": [], "more": False}
_WHAT: Final = (
    "Say which: `filter`, with the names that the list of jobs has, or `ids`. `matched` counts those to which it can be"
    " done, up to 10,000; with `dry_run` that is all. At most 1,000 are taken at once, oldest first: `more` says that"
    " there are others. Repeating it does nothing twice."
)

ROUTES: Final = (
    Route(
        method="POST",
        path="/api/jobs/retry",
        handler=retry_many,
        role="operator",
        summary="Run many jobs that have ended again, each as a new job",
        what=f"{_WHAT} A job that somebody has retried already is left alone.",
        body=ManyBody,
        body_example=_EXAMPLE,
        answers={200: _OUTCOME},
    ),
    Route(
        method="POST",
        path="/api/jobs/cancel",
        handler=cancel_many,
        role="operator",
        summary="Cancel many jobs, or have them stop when they run",
        what=_WHAT,
        body=ManyBody,
        body_example={**_EXAMPLE, "filter": {"status": "PENDING", "type": "report"}, "reason": "wrong month"},
        answers={200: _OUTCOME},
    ),
)
