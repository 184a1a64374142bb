"""Future instants of a schedule, or of a trigger that is not stored."""

from collections.abc import Iterator
from typing import Final
from zoneinfo import ZoneInfo

from headway.core.errors import InvalidSchedule
from headway.core.instants import DAY, INSTANT_MAX, INSTANT_MIN, Instant, isoformat, to_datetime
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import After, At, Cron, Trigger, describe
from headway.core.zones import zone
from headway.operations.times import read_future
from headway.scheduling.planner import first_at, next_instant
from headway.wire.schedules import Preview, Previews

_WRITABLE: Final = (INSTANT_MIN + DAY, INSTANT_MAX - DAY)  # The times that can be written as a date in every zone.


def zone_of(trigger: Trigger) -> ZoneInfo:
    """Return the time zone of a trigger, by default UTC."""
    return zone(trigger.tz) if isinstance(trigger, Cron | At) and trigger.tz else zone("UTC")


def instants_after(spec: ScheduleSpec, after: Instant, limit: int) -> Iterator[Instant]:
    """Yield the next instants of a definition; those of a fixed delay are unknown until its job ends."""
    if isinstance(spec.trigger, After):
        return
    after = max(after, _WRITABLE[0])
    for _ in range(limit):
        instant = next_instant(spec, spec.trigger, after)
        if instant is None or instant > _WRITABLE[1]:
            return
        yield instant
        after = instant


def previews(spec: ScheduleSpec, after: Instant, limit: int, tz: ZoneInfo | None = None) -> list[Preview]:
    """Return the next instants of a definition, with local times and notes about daylight saving."""
    clock = tz or zone_of(spec.trigger)
    return [_preview(instant, spec.trigger, clock) for instant in instants_after(spec, after, limit)]


def _preview(instant: Instant, trigger: Trigger, tz: ZoneInfo) -> Preview:
    note = trigger.note(instant) if isinstance(trigger, Cron) else None
    return Preview(isoformat(instant), to_datetime(instant).astimezone(tz).isoformat(), note)


def preview_spec(
    spec: ScheduleSpec, now: Instant, *, since: str | None, number: int, tz: str | None = None, what: str = "from"
) -> Previews:
    """Preview a definition from a given time, or from now; errors call that time `what`."""
    clock = zone(tz) if tz else zone_of(spec.trigger)
    after = now if since is None else read_future(since, now, what, clock.key) - 1
    return Previews(
        rule=describe(spec.trigger),
        tz=clock.key,
        note="its instants depend on when its jobs end" if isinstance(spec.trigger, After) else None,
        items=previews(spec, after, number, clock),
    )


def require_instants(name: str, spec: ScheduleSpec, now: Instant) -> None:
    """Raise an error for a definition that would never fire, before anything is written."""
    if first_at(spec, now) is None:
        raise InvalidSchedule(f"schedule {name!r} has no instant after {isoformat(now)}: {describe(spec.trigger)}")
