"""Helpers for operations on jobs: find the jobs, check that the caller may see them, convert them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Unpack

from headway.core.errors import DefinitionError, Denied, JobNotFound
from headway.core.groups import is_batch_id
from headway.core.instants import Instant, parse_instant
from headway.core.jobs import Job as StoredJob
from headway.core.lifecycle import Status
from headway.core.tenants import DEFAULT_TENANT
from headway.operations.caller import Caller
from headway.operations.job_context import look_around, node_names
from headway.operations.job_source import length_of
from headway.operations.why import Explanation, explain
from headway.store import job_filter
from headway.wire.base import Page
from headway.wire.job_requests import JobFilter
from headway.wire.jobs import Job, JobViews, job_of, listed

JOB_BYTES: Final = 1_024  # The approximate size of a job as JSON without its texts.
PAGE_BYTES_MAX: Final = 1 << 20
JOB_ID: Final = re.compile(r"job_[0-9a-z]{26}")

# The job alone explains these statuses; the others need a read of the store.
PLAIN: Final = frozenset({Status.COMPLETED, Status.RUNNING, Status.CANCELLED, Status.SCHEDULED})


def etag_of_job(job: Job) -> str:
    """Return the version as a weak ETag: relative times in the JSON change without a new version."""
    return f'W/"{job.version}.{job.live}"' if job.live else f'W/"{job.version}"'


def versions_of(page: Page[Job], caller: Caller) -> Any:
    """Return the versions on a page; the passing of time alone is not a change."""
    shown = [(job.id, job.version, job.live or 0) for job in page.items]
    return [caller.principal.may("operator"), page.next_cursor, shown]


async def visible_job(caller: Caller, job_id: str) -> StoredJob:
    """Read a job; a job of another tenant is reported as not found."""
    job = await caller.job_source.get(job_id)
    if not caller.principal.sees(job.tenant):
        raise JobNotFound(f"no job has the id {job_id!r}")
    return job


def tenant_asked_for(caller: Caller, tenant: str | None) -> str | None:
    """Return the tenant whose jobs are requested; a caller of one tenant may request only its own."""
    if caller.tenant is not None and tenant not in (None, caller.tenant):
        raise Denied("tenant: this token sees one tenant only; leave it out")
    return caller.tenant or tenant


async def chosen_by(caller: Caller, which: JobFilter, *, prefix: str = "") -> job_filter.JobFilter | None:
    """Return the filter for the store; None if nothing can match, since there is no such batch for the caller."""
    tenant = tenant_asked_for(caller, which.tenant)
    group_id = None if which.batch is None else await find_batch(caller, which.batch)
    if which.batch is not None and group_id is None:
        return None
    return job_filter.JobFilter(
        status=which.status,
        task=which.type,
        queue=which.queue,
        tenant=tenant,
        schedule=which.schedule,
        key=which.key,
        tag=which.tag,
        words=which.q,
        since=_instant(which.created_after, f"{prefix}created_after"),
        until=_instant(which.created_before, f"{prefix}created_before"),
        finished_after=_instant(which.finished_after, f"{prefix}finished_after"),
        finished_before=_instant(which.finished_before, f"{prefix}finished_before"),
        rerun_of=which.rerun_of,
        group_id=group_id,
    )


async def find_batch(caller: Caller, name_or_id: str, tenant: str | None = None) -> str | None:
    """Return the id of a batch that the caller sees, by its id, or by its name in this or the caller's tenant."""
    if not is_batch_id(name_or_id):
        return await caller.store.groups.find_batch(tenant or caller.tenant or DEFAULT_TENANT, name_or_id)
    if caller.tenant is None or name_or_id in await caller.store.groups.of_tenant([name_or_id], caller.tenant):
        return name_or_id
    return None


def _instant(text: str | None, what: str) -> Instant | None:
    try:
        return None if text is None else parse_instant(text)
    except DefinitionError:
        raise DefinitionError(f"{what} must be a time such as 2027-01-31T08:00:00Z") from None


async def explained_job(caller: Caller, job: StoredJob) -> Explanation:
    """Say why a job is where it is; a caller of one tenant learns nothing about others."""
    return explain(job, await look_around(caller.store, job, caller.now, tenant=caller.tenant))


async def needed_explanation(caller: Caller, job: StoredJob) -> str | None:
    """Say why a job is where it is; None where its status alone tells, so that the store need not be read."""
    return None if job.status in PLAIN else (await explained_job(caller, job)).why


async def shown_job(caller: Caller, job: StoredJob, kind: type[Job] = Job) -> Job:
    """Return a job with its whole content and the explanation of its state."""
    now, words = caller.now, await needed_explanation(caller, job)
    name = (await names_of_nodes(caller, [job])).get(job.node or "")
    views = views_of(caller)
    if not job.omitted:
        return await caller.convert(length_of(job), job_of, job, now, why=words, node_name=name, kind=kind, **views)
    async with caller.turn():
        job = await caller.job_source.whole(job)
        return await caller.convert_now(length_of(job), job_of, job, now, why=words, node_name=name, kind=kind, **views)


def views_of(caller: Caller) -> JobViews:
    """Return what the caller may see of a job."""
    return {"with_traceback": caller.principal.may("operator"), "all_tenants": caller.tenant is None}


async def page_of_jobs(
    caller: Caller, found: Sequence[StoredJob], limit: int, *, following: str | None = None
) -> Page[Job]:
    """Return a page of jobs, bounded by number and by bytes.

    `following` is the start of the next page if this page contains all jobs found and they are fewer than the limit.
    """
    shown = _fitting(found)
    if len(shown) < len(found) or len(found) == limit:
        following = shown[-1].id
    names, now = await names_of_nodes(caller, shown), caller.now
    size = sum(map(length_of, shown))
    items = await caller.convert(size, jobs_of, shown, now, names, **views_of(caller))
    return Page(items, following)


def _fitting(found: Sequence[StoredJob]) -> list[StoredJob]:
    """Return the first jobs whose texts fit into a page, at least one; values too large for a list are left out."""
    shown: list[StoredJob] = []
    size = 0
    for job in map(listed, found):
        size += length_of(job) + JOB_BYTES
        if shown and size > PAGE_BYTES_MAX:
            break
        shown.append(job)
    return shown


def jobs_of(jobs: Iterable[StoredJob], now: Instant, names: Mapping[str, str], **views: Unpack[JobViews]) -> list[Job]:
    """Convert jobs to their JSON form, with what the caller may see."""
    return [job_of(job, now, node_name=names.get(job.node or ""), **views) for job in jobs]


async def names_of_nodes(caller: Caller, jobs: Iterable[StoredJob]) -> Mapping[str, str]:
    """Return the names of nodes by id; empty if none of these jobs runs."""
    return await node_names(caller.store) if any(job.status is Status.RUNNING for job in jobs) else {}
