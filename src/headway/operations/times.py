"""Parse times from users: a time, or a duration relative to now."""

from headway.core.errors import DefinitionError
from headway.core.instants import Instant, parse_duration, parse_instant
from headway.core.zones import zone


def read_past(text: str, now: Instant, what: str, tz: str | None = None) -> Instant:
    """Parse a time, or a duration into the past: `2h` means two hours ago."""
    ago = _duration(text, what)
    return _instant(text, what, tz) if ago is None else now - ago


def read_future(text: str, now: Instant, what: str, tz: str | None = None) -> Instant:
    """Parse a time, or a duration into the future: `30m` means in thirty minutes."""
    ahead = _duration(text, what)
    return _instant(text, what, tz) if ahead is None else now + ahead


def _duration(text: str, what: str) -> int | None:
    try:
        return parse_duration(text, what=what)
    except DefinitionError:
        return None


def _instant(text: str, what: str, tz: str | None) -> Instant:
    if tz is not None:
        zone(tz)
    try:
        return parse_instant(text, tz=tz, what=what)
    except (DefinitionError, OverflowError):
        raise DefinitionError(
            f'{what} must be a time such as "2027-01-31", "2027-01-31T06:00:00Z", or a duration such as "2h",'
            f" not {text[:60]!r}"
        ) from None
