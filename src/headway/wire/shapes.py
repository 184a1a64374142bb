"""Schedules, decisions and previews as JSON objects: the same for the HTTP API, the command line and webhooks.

Times are ISO 8601 with `Z`. Secrets are masked by their names, so that no output forgets it.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final
from zoneinfo import ZoneInfo

from headway.core.errors import InvalidSchedule
from headway.core.instants import DAY, INSTANT_MAX, INSTANT_MIN, Instant, to_datetime
from headway.core.job_details import read_json
from headway.core.occurrences import Occurrence
from headway.core.schedules import Pause, Schedule, ScheduleSpec
from headway.core.settings import mask_url
from headway.core.triggers import After, At, Cron, Trigger, describe, trigger_to_dict
from headway.core.zones import zone
from headway.scheduling.planner import first_at, next_instant
from headway.wire.base import LISTED_BYTES_MAX, duration, is_longer
from headway.wire.base import stamp as stamp
from headway.wire.masking import masked

# What can be written as a date in every zone.
_WRITABLE: Final = (INSTANT_MIN + DAY, INSTANT_MAX - DAY)

Shape = dict[str, Any]


def occurrence_shape(occurrence: Occurrence) -> Shape:
    """Write a decision; a run of equal ones has `until` and `count`."""
    until = {} if occurrence.until is None else {"until": stamp(occurrence.until)}
    return {
        "schedule": occurrence.schedule,
        "tenant": occurrence.tenant,
        "instant": stamp(occurrence.instant),
        **until,
        "count": occurrence.count,
        "outcome": str(occurrence.outcome),
        "reason": occurrence.reason,
        "decided_at": stamp(occurrence.decided_at),
        "job_id": occurrence.job_id,
    }


def listed_schedule(schedule: Schedule, now: Instant) -> Shape:
    """Write a schedule for a list: arguments of more than so many bytes are left out, and named in `omitted`."""
    if not is_longer(schedule.spec.args, LISTED_BYTES_MAX):
        return schedule_shape(schedule, now)
    brief = replace(schedule, spec=replace(schedule.spec, args="null"))
    return {**schedule_shape(brief, now), "omitted": ["args"]}


def schedule_shape(schedule: Schedule, now: Instant) -> Shape:
    """Write a schedule with every policy, also where it is the default."""
    pause = schedule.paused_at(now)
    return {
        "name": schedule.name,
        **spec_shape(schedule.spec),
        "owner": schedule.owner,
        "revision": schedule.revision,
        "created_at": stamp(schedule.created_at),
        "decided_through": stamp(schedule.decided_through),
        "next_at": stamp(schedule.next_at),
        "paused": pause is not None,
        "pause": None if pause is None else _pause_shape(pause),
        "attention": schedule.attention,
        "failing": schedule.failing,
    }


def _pause_shape(pause: Pause) -> Shape:
    return {
        "since": stamp(pause.since),
        "until": stamp(pause.until),
        "reason": pause.reason,
        "author": pause.author,
    }


def spec_shape(spec: ScheduleSpec) -> Shape:
    """Write a definition with every policy."""
    return {
        "task": spec.task,
        "trigger": trigger_to_dict(spec.trigger),
        "rule": describe(spec.trigger),
        "args": masked(read_json(spec.args)),
        "tenant": spec.tenant,
        "queue": spec.queue,
        "priority": spec.priority,
        "max_attempts": spec.max_attempts,
        "backoff": None if spec.backoff is None else str(spec.backoff),
        "tags": list(spec.tags),
        "overlap": str(spec.overlap),
        "queue_limit": spec.queue_limit,
        "missed": str(spec.missed),
        "deadline": duration(spec.deadline),
        "grace": duration(spec.grace),
        "catch_up_limit": spec.catch_up_limit,
        "catch_up_rate": None if spec.catch_up_rate is None else str(spec.catch_up_rate),
        "jitter": duration(spec.jitter),
        "start": stamp(spec.start),
        "end": stamp(spec.end),
        "expect": duration(spec.expect),
        "callback_url": None if spec.callback_url is None else mask_url(spec.callback_url),
        "expires": duration(spec.expires),
    }


def definition_shape(spec: ScheduleSpec) -> Shape:
    """Write a definition as its author would: what is the default is left out, and secrets are masked."""
    shape: Shape = masked(spec.to_dict())
    return shape if spec.callback_url is None else {**shape, "callback_url": mask_url(spec.callback_url)}


def zone_of(trigger: Trigger) -> ZoneInfo:
    """Return the zone whose clock a trigger goes by."""
    return zone(trigger.tz) if isinstance(trigger, Cron | At) and trigger.tz else zone("UTC")


def instants_after(spec: ScheduleSpec, after: Instant, limit: int) -> Iterator[Instant]:
    """Yield the next instants of a definition; a fixed delay has none that are known before its job ends."""
    if isinstance(spec.trigger, After):
        return
    after = max(after, _WRITABLE[0])
    for _ in range(limit):
        instant = next_instant(spec, spec.trigger, after)
        if instant is None or instant > _WRITABLE[1]:
            return
        yield instant
        after = instant


def previews(spec: ScheduleSpec, after: Instant, limit: int, tz: ZoneInfo | None = None) -> list[Shape]:
    """Write the next instants of a definition."""
    clock = tz or zone_of(spec.trigger)
    return [preview_shape(instant, spec.trigger, clock) for instant in instants_after(spec, after, limit)]


def require_instants(name: str, spec: ScheduleSpec, now: Instant) -> None:
    """Refuse a definition that would never fire, before anything is written."""
    if first_at(spec, now) is None:
        raise InvalidSchedule(f"schedule {name!r} has no instant after {stamp(now)}: {describe(spec.trigger)}")


def preview_shape(instant: Instant, trigger: Trigger, tz: ZoneInfo) -> Shape:
    """Write one instant to come, with its local time and what daylight saving does to it."""
    note = trigger.note(instant) if isinstance(trigger, Cron) else None
    return {"instant": stamp(instant), "local": to_datetime(instant).astimezone(tz).isoformat(), "note": note}
