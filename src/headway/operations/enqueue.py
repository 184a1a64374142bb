"""Build jobs from requests and enqueue them: one, or many at once, all or none."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

import msgspec

from headway.core.errors import BatchNotFound, DefinitionError, Denied, HeadwayError, TaskNotFound
from headway.core.instants import Instant, parse_start, to_datetime
from headway.core.jobs import EnqueuedRow
from headway.core.jobs import Job as StoredJob
from headway.core.jobs import NewJob as StoredNewJob
from headway.core.validation import KEY_LENGTH_MAX, check_name
from headway.operations import audit_log
from headway.operations.caller import Caller
from headway.operations.job_reads import JOB_BYTES, find_batch, names_of_nodes, shown_job
from headway.operations.job_source import length_of
from headway.wire.base import LISTED_BYTES_MAX
from headway.wire.job_requests import EnqueuedJobs
from headway.wire.jobs import CreatedJob, Job, NewJob, job_of, listed

AT_ONCE: Final = 50
BULK_ANSWER_BYTES_MAX: Final = 4 << 20
# Fields of the request that are options of the same name.
_SAME_NAME: Final = tuple(name for name in NewJob.__struct_fields__ if name not in ("type", "args", "run_at"))


async def enqueue_one(caller: Caller, job: NewJob, key: str | None) -> Job:
    """Enqueue one job; if the key was used before, return the earlier job in its current state.

    If the window of the key is open, merge the request into the job of the window and return that.
    """
    if key is not None:
        check_name(key, "Idempotency-Key", KEY_LENGTH_MAX)
        if job.has_window:
            raise DefinitionError(
                "Idempotency-Key: with debounce, throttle or unique, `key` in the body names the window; leave it out"
            )
        if job.key not in (None, key):
            raise DefinitionError("key: the body and the header Idempotency-Key differ; send one of them")
    new = await _new_job(caller, job, key)
    [row] = await _enqueue(caller, [new])
    if row.is_new:
        return await caller.convert(len(new.args), job_of, row.job_of(new), row.created_at, kind=CreatedJob)
    shown = await shown_job(caller, (await _earlier(caller, [row]))[row.id])
    return _with_merge(shown, row)


async def enqueue_many(caller: Caller, jobs: Sequence[NewJob], *, batch: str | None = None) -> EnqueuedJobs:
    """Enqueue many jobs, all or none, and add them to a batch if it is given by its name or id."""
    group_id = None if batch is None else await find_batch(caller, batch)
    if batch is not None and group_id is None:
        raise BatchNotFound(f"no batch is named {batch[:60]!r}; create it with POST /api/batches")
    new: list[StoredNewJob] = []
    for number, one in enumerate(jobs):
        if number % AT_ONCE == 0:
            await caller.clock.yield_to_loop()
        try:
            new.append(await _new_job(caller, one, None))
        except (DefinitionError, TaskNotFound, Denied) as error:
            raise cast("HeadwayError", type(error)(f"jobs[{number}]: {error}")) from None
    if group_id is not None:
        new = [msgspec.structs.replace(job, group_id=group_id) for job in new]
    rows = await _enqueue(caller, new)
    earlier = await _earlier(caller, rows)
    names, now = await names_of_nodes(caller, earlier.values()), caller.now
    shown = [row.job_of(job) if row.is_new else earlier[row.id] for job, row in zip(new, rows, strict=True)]
    size = sum(map(length_of, shown)) + JOB_BYTES * len(shown)
    items = await caller.convert(size, _bounded, shown, now, names, all_tenants=caller.tenant is None)
    created, merged = sum(row.is_new for row in rows), sum(row.is_merged for row in rows)
    if merged:
        items = [_with_merge(item, row) for item, row in zip(items, rows, strict=True)]
    return EnqueuedJobs(items, created, len(rows) - created - merged, merged)


def _with_merge(job: Job, row: EnqueuedRow) -> Job:
    """Say what the request was merged into, if it was."""
    return job if row.merged_into is None else msgspec.structs.replace(job, merged_into=row.merged_into)


def _bounded(jobs: Iterable[StoredJob], now: Instant, names: Mapping[str, str], *, all_tenants: bool) -> list[Job]:
    """Convert jobs; once the response is large enough, omit the values of the remaining ones."""
    items, size = [], 0
    for job in jobs:
        job = listed(job, largest=LISTED_BYTES_MAX if size < BULK_ANSWER_BYTES_MAX else 0)
        size += length_of(job)
        items.append(job_of(job, now, node_name=names.get(job.node or ""), all_tenants=all_tenants))
    return items


async def _enqueue(caller: Caller, jobs: list[StoredNewJob]) -> list[EnqueuedRow]:
    await caller.admit_jobs(len(jobs))
    store = caller.acting(audit_log.enqueue(jobs)) if caller.audits_enqueues else caller.store
    return await store.queue.enqueue(jobs, largest=LISTED_BYTES_MAX)


async def _new_job(caller: Caller, job: NewJob, key: str | None) -> StoredNewJob:
    own = caller.tenant
    if job.tenant is not None and own is not None and job.tenant != own:
        raise Denied("tenant: the tenant comes from the token; leave it out")
    if job.limit is not None and own is not None:
        raise Denied("limit: a token of one tenant cannot choose a limit, which others may share; set it on the task")
    if job.run_at is not None and job.delay is not None:
        raise DefinitionError("delay and run_at exclude each other: give one of them")
    defaults, args = await caller.options_of(check_name(job.type, "type"), job.args)
    options = defaults.changed(
        {
            **{name: getattr(job, name) for name in _SAME_NAME},
            "tenant": own or job.tenant,
            "key": key or job.key,
            "at": None if job.run_at is None else to_datetime(parse_start(job.run_at, what="run_at")),
        }
    )
    if own is not None and options.needs_text != defaults.needs_text:
        raise Denied(
            "needs, labels: a token of one tenant cannot choose them, as others share workers; set them on the task"
        )
    return options.new_job(caller.clock.new_id("job"), job.type, args)


async def _earlier(caller: Caller, rows: Sequence[EnqueuedRow]) -> dict[str, StoredJob]:
    """Return the jobs that already had these keys, in their current state, not as requested this time."""
    found = {row.earlier.id: row.earlier for row in rows if row.earlier is not None}
    return {job.id: job for job in await caller.job_source.overlaid([*found.values()])} if found else {}
