"""Audit entries of jobs, dead letters and schedules, described before the action.

The store writes an entry together with what it changes, or not at all where nothing changes; see `Store.auditing`. An
entry that one short operation uses is written there.
"""

import getpass
import socket
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from headway.core.failures import DeadLetter
from headway.core.instants import Instant
from headway.core.jobs import EnqueuedRow, Job, NewJob
from headway.core.schedules import Schedule, ScheduleSpec
from headway.store.audit_log import AuditEntry
from headway.store.bulk import BulkResult
from headway.store.schedules import Triggered
from headway.wire.base import stamp
from headway.wire.schedules import short_definition

_SHOWN_MAX: Final = 50  # Jobs and tasks listed when many are enqueued at once.
_SAID_MAX: Final = 200  # Characters of a filter: an entry is bounded and must also name the jobs.


@cache
def origin() -> str:
    """Return `user@host`, the origin of actions that work directly on the store. Looking up the user can be slow."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # The user has no name, as in many containers.
        user = "?"
    return f"{user}@{socket.gethostname()}"


def enqueue(jobs: Sequence[NewJob]) -> list[AuditEntry]:
    """Enqueue jobs: one entry per tenant. Keys are left out, since they may contain personal data."""
    by_tenant: dict[str, dict[str, str]] = {}
    for job in jobs:
        by_tenant.setdefault(job.tenant, {})[job.id] = job.task
    return [_enqueue(tenant, tasks) for tenant, tasks in by_tenant.items()]


def _enqueue(tenant: str, tasks: Mapping[str, str]) -> AuditEntry:
    types = sorted(set(tasks.values()))

    def made(rows: Sequence[Any]) -> list[str]:
        new = (row.id if isinstance(row, EnqueuedRow) else row["id"] for row in rows if getattr(row, "is_new", True))
        return [job_id for job_id in new if job_id in tasks]

    def target(rows: Sequence[Any]) -> str:
        ids = made(rows)
        return ids[0] if len(ids) == 1 else "*"

    def seen(rows: Sequence[Any]) -> Mapping[str, Any] | None:
        ids = made(rows)
        shown = {"jobs": ids[:_SHOWN_MAX]} if len(ids) > 1 else {}
        return {"types": types[:_SHOWN_MAX], "count": len(ids), **shown} if ids else None

    return AuditEntry("job.enqueue", target, tenant, detail_from=seen)


def cancel(job: Job, reason: str) -> AuditEntry:
    """Cancel a job."""
    return AuditEntry("job.cancel", job.id, job.tenant, {"before": str(job.status), "reason": reason}, _cancelled)


def _cancelled(result: tuple[Sequence[str], Sequence[str]]) -> Mapping[str, Any] | None:
    """Record a cancellation that ended a job or asked one to stop; one that changed nothing leaves no entry."""
    return {} if any(result) else None


def retry(job: Job, *, other_args: bool = False) -> AuditEntry:
    """Run a finished job again, perhaps with other arguments."""
    what = {"other_args": True} if other_args else {}
    return AuditEntry("job.retry", job.id, job.tenant, what, lambda new: {"new": new})


def act_on_many(verb: str, tenant: str, chosen: Mapping[str, Any], reason: str) -> AuditEntry:
    """Retry or cancel many jobs of one tenant, chosen by a filter or by id."""
    said = {name: value[:_SAID_MAX] if isinstance(value, str) else value for name, value in chosen.items()}
    return AuditEntry(f"job.{verb}", "*", tenant, {"filter": said, "reason": reason}, _jobs)


def _jobs(result: BulkResult) -> Mapping[str, Any] | None:
    return {"jobs": list(result.done)} if result.done else None


def retry_dead(letter: Job | DeadLetter) -> AuditEntry:
    """Retry a dead letter."""
    return AuditEntry("dead.retry", letter.id, letter.tenant, {"before": str(letter.status)}, lambda new: {"new": new})


def drop_dead(letter: Job | DeadLetter) -> AuditEntry:
    """Drop a dead letter."""
    return AuditEntry("dead.drop", letter.id, letter.tenant, {"before": str(letter.status)})


def drop_dead_group(tenant: str, filters: Mapping[str, str]) -> AuditEntry:
    """Drop many dead letters of one tenant."""
    return AuditEntry("dead.drop", "*", tenant, {"filters": dict(filters)}, _letters)


def _letters(dropped: Sequence[str]) -> Mapping[str, Any] | None:
    return {"letters": list(dropped)} if dropped else None


def put_schedule(name: str, before: ScheduleSpec | None, after: ScheduleSpec) -> AuditEntry:
    """Create or change a schedule."""
    definitions = {"before": _definition(before), "after": _definition(after)}
    return AuditEntry("schedule.put", name, after.tenant, definitions, _put)


def _put(outcome: str) -> Mapping[str, Any] | None:
    return {} if outcome in ("created", "changed") else None


def pause_schedule(schedule: Schedule, reason: str, until: Instant | None) -> AuditEntry:
    """Pause a schedule."""
    what = {"before": "on", "after": "paused", "reason": reason, "until": stamp(until)}
    return AuditEntry("schedule.pause", schedule.name, schedule.spec.tenant, what)


def resume_schedule(schedule: Schedule, now: Instant) -> AuditEntry:
    """Resume a paused schedule."""
    pause = schedule.paused_at(now)
    what = {"before": "paused", "after": "on", "paused_since": None if pause is None else stamp(pause.since)}
    return AuditEntry("schedule.resume", schedule.name, schedule.spec.tenant, what)


def trigger_schedule(schedule: Schedule) -> AuditEntry:
    """Enqueue a job of a schedule now."""
    return AuditEntry("schedule.trigger", schedule.name, schedule.spec.tenant, detail_from=_triggered)


def _triggered(made: Triggered) -> Mapping[str, Any] | None:
    return {"job": made.job_id} if made.is_new else None


def backfill_schedule(schedule: Schedule, first: Instant, last: Instant) -> AuditEntry:
    """Enqueue jobs for past instants."""
    window = {"from": stamp(first), "to": stamp(last)}
    return AuditEntry("schedule.backfill", schedule.name, schedule.spec.tenant, window, _backfilled)


def _backfilled(instants: Sequence[Instant]) -> Mapping[str, Any] | None:
    return {"jobs": len(instants)} if instants else None


def remove_schedule(schedule: Schedule) -> AuditEntry:
    """Remove a schedule."""
    return AuditEntry("schedule.remove", schedule.name, schedule.spec.tenant, {"before": _definition(schedule.spec)})


def _definition(spec: ScheduleSpec | None) -> Mapping[str, Any] | None:
    return None if spec is None else short_definition(spec)
