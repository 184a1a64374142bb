"""A crowd: many different schedules that are all due at one instant, as on the hour in real life.

Cron texts in several zones and fixed rates, each with arguments of its own and the default policies.
"""

from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Final, TypeVar

from headway.core.clock import wall_now
from headway.core.instants import SECOND, Instant, to_datetime
from headway.core.schedule_names import ScheduleRef
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import Cron, Every, Trigger
from headway.core.zones import zone
from headway.store import Store
from headway.store.schedules import in_pieces

T = TypeVar("T")
TRIES_MAX: Final = 7
ZONES: Final = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "America/Santiago",
    "Asia/Tokyo",
    "Europe/London",
)


class TooLate(Exception):
    """The crowd was not ready before its instant; it needs more time ahead."""


def triggers(at: Instant) -> Iterator[Trigger]:
    """Yield triggers without end whose next instant is `at`, a whole second in the near future."""
    while True:
        for name in ZONES:
            local = to_datetime(at).astimezone(zone(name))
            clock = f"{local.second} {local.minute} {local.hour}"
            yield Cron(f"{clock} * * * *", name)
            yield Cron(f"{clock} * * MON-SUN *", name)
            yield Cron(f"{local.second} {local.minute} * * * * *", name)
            yield Every("1h", at)


def specs(count: int, at: Instant, prefix: str) -> dict[ScheduleRef, ScheduleSpec]:
    """Make schedules that are all due at one instant."""
    return {
        ScheduleRef("default", f"{prefix}-{number:07d}"): ScheduleSpec.build(
            task="report", trigger=trigger, args={"tenant_id": number}
        )
        for number, trigger in enumerate(islice(triggers(at), count))
    }


async def in_time(attempt: Callable[[float], Awaitable[T]], lead_s: float) -> T:
    """Call an attempt with the seconds that it has to gather a crowd; on a slow machine again, with twice as many."""
    for _ in range(TRIES_MAX - 1):
        try:
            return await attempt(lead_s)
        except TooLate:
            lead_s *= 2
    return await attempt(lead_s)


async def gather(store: Store, count: int, *, lead_s: float, prefix: str = "crowd") -> Instant:
    """Create a crowd that is due in `lead_s` seconds; return that instant."""
    at = (wall_now() // SECOND + 1) * SECOND + round(lead_s * SECOND)
    for piece in in_pieces(specs(count, at, prefix)):
        await store.schedules.put_many(piece)
    if wall_now() > at - SECOND // 2:
        raise TooLate(f"{count} schedules were not put within {lead_s:g} s")
    return at
