"""How the command line writes instants to come."""

from collections.abc import Iterable
from typing import Final
from zoneinfo import ZoneInfo

from headway.cli.output import Column
from headway.cli.text import away, is_fine, local, local_text, utc, utc_beside
from headway.core.instants import Instant
from headway.core.triggers import Cron, Trigger


def preview_rows(
    trigger: Trigger, instants: Iterable[Instant], *, now: Instant | None, clock: ZoneInfo
) -> list[tuple[str, ...]]:
    """Write instants to come: local time, UTC, how far away, what daylight saving does."""
    instants = list(instants)
    rows: list[tuple[str, ...]] = []
    fine = is_fine(instants)
    for instant in instants:
        moment = local(instant, clock)
        note = (trigger.note(instant) if isinstance(trigger, Cron) else None) or ""
        far = "" if now is None else away(instant, now)
        if clock.key == "UTC":
            rows.append((utc(instant, fine=fine), "", far, note))
        else:
            rows.append((local_text(moment, fine=fine), utc_beside(instant, moment, fine=fine), far, note))
    return rows


PREVIEW_COLUMNS: Final = (Column("", "name"), Column("", "time"), Column("", "quiet"), Column("", "warn", wraps=True))
