"""What operators do, as the trail tells it: the same words whether it was done over HTTP or at a terminal.

Each function says in advance what is about to be done. The store writes it together with what it changes, or not at all
where nothing changes; see `Store.acting`.
"""

import getpass
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from headway.core.failures import DeadLetter
from headway.core.instants import Instant
from headway.core.jobs import EnqueuedRow, Job, NewJob
from headway.core.nodes import Node
from headway.core.schedules import Schedule, ScheduleSpec
from headway.core.settings import mask_url
from headway.core.webhooks import Delivery, Endpoint
from headway.store.audit_log import AuditEntry
from headway.store.bulk import BulkResult
from headway.store.schedules import Triggered
from headway.wire.base import stamp
from headway.wire.schedules import short_definition
from headway.wire.webhooks import webhook_of

_SHOWN_MAX: Final = 50  # Of the jobs and tasks that were enqueued at once.
_SAID_MAX: Final = 200  # Of a filter; a line of the trail has its bounds, and has to name the jobs too.


def origin() -> str:
    """Say which user of which machine acts, for what is done on the store itself."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # A user without a name, as in many containers.
        user = "?"
    return f"{user}@{socket.gethostname()}"


def enqueue(jobs: Sequence[NewJob]) -> list[AuditEntry]:
    """Enqueue jobs: an entry for each tenant. Keys are not told, as they may be names."""
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
    """End a job, or have it stop."""
    return AuditEntry("job.cancel", job.id, job.tenant, {"before": str(job.status), "reason": reason}, _cancelled)


def _cancelled(result: tuple[Sequence[str], Sequence[str]]) -> Mapping[str, Any] | None:
    """Tell of a cancellation that ended a job or asked one to stop, not of one that found nothing to do."""
    return {} if any(result) else None


def retry(job: Job, *, other_args: bool = False) -> AuditEntry:
    """Run a job that has ended once more, perhaps with other arguments."""
    what = {"other_args": True} if other_args else {}
    return AuditEntry("job.retry", job.id, job.tenant, what, lambda new: {"new": new})


def act_on_many(verb: str, tenant: str, chosen: Mapping[str, Any], reason: str) -> AuditEntry:
    """Retry or cancel many jobs of one tenant at once: those that a filter has chosen, or that were named."""
    said = {name: value[:_SAID_MAX] if isinstance(value, str) else value for name, value in chosen.items()}
    return AuditEntry(f"job.{verb}", "*", tenant, {"filter": said, "reason": reason}, _jobs)


def _jobs(result: BulkResult) -> Mapping[str, Any] | None:
    return {"jobs": list(result.done)} if result.done else None


def retry_dead(letter: Job | DeadLetter) -> AuditEntry:
    """Run a dead letter once more."""
    return AuditEntry("dead.retry", letter.id, letter.tenant, {"before": str(letter.status)}, lambda new: {"new": new})


def drop_dead(letter: Job | DeadLetter) -> AuditEntry:
    """Take a dead letter off the list."""
    return AuditEntry("dead.drop", letter.id, letter.tenant, {"before": str(letter.status)})


def drop_dead_group(tenant: str, filters: Mapping[str, str]) -> AuditEntry:
    """Take many dead letters of one tenant off the list."""
    return AuditEntry("dead.drop", "*", tenant, {"filters": dict(filters)}, _letters)


def _letters(dropped: Sequence[str]) -> Mapping[str, Any] | None:
    return {"letters": list(dropped)} if dropped else None


def purge(tenant: str, key: str | None) -> AuditEntry:
    """Erase the content of jobs. The key is not told: it is erased, too."""
    return AuditEntry(
        "purge", "*", tenant, {"of_one_job": key is not None}, lambda ids: {"jobs": len(ids)} if ids else None
    )


def pause_queue(queue: str, reason: str) -> AuditEntry:
    """Take nothing more from a queue."""
    return AuditEntry("queue.pause", queue, None, {"before": "on", "after": "paused", "reason": reason})


def resume_queue(queue: str) -> AuditEntry:
    """Take from a queue again."""
    return AuditEntry("queue.resume", queue, None, {"before": "paused", "after": "on"})


def drain(node: Node) -> AuditEntry:
    """Have a worker leave."""
    return AuditEntry("worker.drain", node.id, None, {"name": node.name, "before": node.asked, "after": "drain"})


def put_schedule(name: str, before: ScheduleSpec | None, after: ScheduleSpec) -> AuditEntry:
    """Make a schedule, or another one of it."""
    definitions = {"before": _definition(before), "after": _definition(after)}
    return AuditEntry("schedule.put", name, after.tenant, definitions, _put)


def _put(outcome: str) -> Mapping[str, Any] | None:
    return {} if outcome in ("created", "changed") else None


def pause_schedule(schedule: Schedule, reason: str, until: Instant | None) -> AuditEntry:
    """Stop a schedule."""
    what = {"before": "on", "after": "paused", "reason": reason, "until": stamp(until)}
    return AuditEntry("schedule.pause", schedule.name, schedule.spec.tenant, what)


def resume_schedule(schedule: Schedule, now: Instant) -> AuditEntry:
    """Let a paused schedule run again."""
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


def add_webhook(tenant: str, url: str, events: Sequence[str]) -> AuditEntry:
    """Make a webhook."""
    what = {"url": mask_url(url), "events": list(events)}
    return AuditEntry("webhooks.add", lambda rows: str(rows[0]["id"]), tenant, what)


def change_webhook(before: Endpoint, now: Instant) -> AuditEntry:
    """Change a webhook."""

    def changes(after: Endpoint) -> Mapping[str, Any]:
        old, new = (msgspec.structs.asdict(webhook_of(endpoint, now)) for endpoint in (before, after))
        return {"changes": {name: [old[name], new[name]] for name in new if old[name] != new[name]}}

    return AuditEntry("webhooks.change", before.id, before.tenant, detail_from=changes)


def rotate_secret(webhook_id: str, keep: str) -> AuditEntry:
    """Make a new secret for a webhook."""
    return AuditEntry("webhooks.rotate", webhook_id, lambda endpoint: str(endpoint.tenant), {"keep": keep})


def remove_webhook(endpoint: Endpoint) -> AuditEntry:
    """Remove a webhook."""
    return AuditEntry("webhooks.remove", endpoint.id, endpoint.tenant, {"url": mask_url(endpoint.url)}, lambda _: {})


def replay(delivery_id: str) -> AuditEntry:
    """Send a message again."""
    return AuditEntry("deliveries.replay", delivery_id, lambda sent: str(sent.tenant), detail_from=_replayed)


def _replayed(delivery: Delivery) -> Mapping[str, Any]:
    return {"endpoint": delivery.endpoint}
