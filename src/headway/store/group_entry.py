"""Add jobs to groups: who adds holds the group, so that it is neither closed nor finished before the jobs are there."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from headway.core.errors import BatchClosed, BatchNotFound, InvalidTask
from headway.core.jobs import NewJob
from headway.store.transaction import Row, Transaction, as_json, call

_KEYS_AT_ONCE: Final = 1_000


def group_rows(ids: Iterable[str]) -> str:
    """Encode ids of groups as the parameter of a statement."""
    return as_json([{"id": group_id} for group_id in ids])


def hold_groups(jobs: Iterable[NewJob]) -> Transaction[dict[str, Row]]:
    """Keep the groups of new jobs from being closed; return them by id. Nothing is read for jobs without a group."""
    ids = sorted({job.group_id for job in jobs if job.group_id is not None})
    if not ids:
        return {}
    return {row["id"]: row for row in (yield call("hold_groups", groups=group_rows(ids)))}


def enter_groups(jobs: Sequence[NewJob], member_of: str | None) -> Transaction[tuple[Sequence[NewJob], bool]]:
    """Hold the groups of new jobs; return the jobs, and whether they can only be ones that are in the groups already.

    A group takes new jobs until it is closed, and from its own running jobs until it finishes. Whoever repeats a call
    with the same keys finds the jobs of the first one even then.
    """
    groups = yield from hold_groups(jobs)
    if not any(job.group_id is not None for job in jobs):
        return jobs, False
    is_closed = False
    for job in jobs:
        if job.group_id is None:
            continue
        if job.window is not None:
            raise InvalidTask("a job of a batch cannot have debounce, throttle or unique: it must be a job of its own")
        group = groups.get(job.group_id)
        if group is None:
            raise BatchNotFound(f"no batch has the id {job.group_id!r}")
        is_closed = is_closed or not _takes(group, member_of)
    if is_closed:
        yield from _require_earlier(jobs, groups, member_of)
    return [_of_tenant(job, groups) for job in jobs], is_closed


def _of_tenant(job: NewJob, groups: dict[str, Row]) -> NewJob:
    tenant = job.tenant if job.group_id is None else groups[job.group_id]["tenant"]
    return job if tenant == job.tenant else msgspec.structs.replace(job, group_tenant=tenant)


def _takes(group: Row, member_of: str | None) -> bool:
    if group["cancel_requested_at"] is not None or group["finished_at"] is not None:
        return False
    return group["closed_at"] is None or group["id"] == member_of


def _require_earlier(jobs: Sequence[NewJob], groups: dict[str, Row], member_of: str | None) -> Transaction[None]:
    """Raise an error if a closed group would get a new job."""
    late = [job for job in jobs if job.group_id is not None and not _takes(groups[job.group_id], member_of)]
    known: set[tuple[str, str]] = set()
    for start in range(0, len(late), _KEYS_AT_ONCE):
        keys = [{"tenant": job.tenant, "key": job.key} for job in late[start : start + _KEYS_AT_ONCE] if job.key]
        rows = (yield call("keys_in_use", keys=as_json(keys))) if keys else []
        known |= {(row["tenant"], row["key"]) for row in rows}
    new = next((job for job in late if job.key is None or (job.tenant, job.key) not in known), None)
    if new is not None:
        group = groups[new.group_id or ""]
        raise BatchClosed(f"the batch {group['name']!r} {_why_closed(group)}, so it takes no more jobs")


def _why_closed(group: Row) -> str:
    if group["finished_at"] is not None:
        return "has finished"
    return "was cancelled" if group["cancel_requested_at"] is not None else "is closed"


def join_groups(job_ids: Iterable[str]) -> Transaction[dict[str, str]]:
    """Hold the groups of jobs that are to be rerun; return those that the reruns join, each with itself.

    The rerun of a job whose group has finished, or was cancelled, belongs to no group.
    """
    rows = yield call("hold_groups_of", ids=as_json(sorted(job_ids)))
    return {row["id"]: row["id"] for row in rows if row["finished_at"] is None and row["cancel_requested_at"] is None}


def count_retries(groups: Iterable[str | None]) -> Transaction[None]:
    """Count dead letters that were rerun in their group, by the group of each."""
    counts = Counter(group for group in groups if group is not None)
    if counts:
        yield call("record_retries", groups=as_json([{"id": id_, "retried": counts[id_]} for id_ in sorted(counts)]))
