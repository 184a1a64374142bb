"""Text for people: without control characters, with relative times and thousands separators.

Pure functions. Data may be hostile (a task's error, a reason, a file), so every character that is not printable is
shown as its escape: C0, C1, ESC, line and paragraph separators, and bidirectional controls.
"""

from collections.abc import Iterable
from datetime import datetime
from zoneinfo import ZoneInfo

from headway.core.instants import MINUTE, Instant, to_datetime
from headway.core.instants import away as away  # Re-exported for modules that format times.
from headway.core.instants import span as span


def clean(text: object) -> str:
    """Escape every character that is not printable."""
    plain = str(text)
    return plain if plain.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in plain)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def utc(instant: Instant, *, fine: bool = False) -> str:
    """Format an instant in UTC, with seconds if it has some or `fine` is set: `2027-03-28 01:00Z`."""
    return _short(to_datetime(instant), fine) + "Z"


def is_fine(instants: Iterable[Instant]) -> bool:
    """Return whether one of these needs seconds; then all of them are formatted with seconds."""
    return any(instant % MINUTE for instant in instants)


def local(instant: Instant, zone: ZoneInfo) -> datetime:
    """Return the local time of an instant."""
    return to_datetime(instant).astimezone(zone)


def local_text(moment: datetime, *, fine: bool = False) -> str:
    """Format a local time with its offset: `2027-03-28 03:00 +02:00`."""
    return f"{_short(moment, fine)} {moment.isoformat()[-6:]}"


def utc_beside(instant: Instant, moment: datetime, *, fine: bool = False) -> str:
    """Format the UTC time next to a local one: with its date only if that differs."""
    text = utc(instant, fine=fine)
    return text[11:] if to_datetime(instant).date() == moment.date() else text


def _short(moment: datetime, fine: bool) -> str:
    if moment.microsecond:
        return moment.strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0")
    return moment.strftime("%Y-%m-%d %H:%M:%S" if fine or moment.second else "%Y-%m-%d %H:%M")


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Format a number with its noun: `1 job`, `1,204 jobs`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
