"""Show future instants."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from headway.cli.output import Column
from headway.cli.text import away, is_fine, local_text, utc, utc_beside
from headway.core.instants import Instant, parse_instant
from headway.wire.schedules import Preview

PREVIEW_COLUMNS: Final = (Column("", "name"), Column("", "time"), Column("", "quiet"), Column("", "warn", wraps=True))


def preview_rows(previews: Sequence[Preview], *, tz: str, now: Instant | None) -> list[tuple[str, ...]]:
    """Return a row for each instant: local time, UTC, distance from now, note about daylight saving."""
    instants = [parse_instant(preview.instant) for preview in previews]
    rows: list[tuple[str, ...]] = []
    fine = is_fine(instants)
    for preview, instant in zip(previews, instants, strict=True):
        far = "" if now is None else away(instant, now)
        if tz == "UTC":
            rows.append((utc(instant, fine=fine), "", far, preview.note or ""))
        else:
            moment = datetime.fromisoformat(preview.local)
            beside = utc_beside(instant, moment, fine=fine)
            rows.append((local_text(moment, fine=fine), beside, far, preview.note or ""))
    return rows
