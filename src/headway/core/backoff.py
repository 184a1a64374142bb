"""The one jittered exponential back-off, for loops, clients, webhooks and jobs; and the one `Retry-After` parser."""

import re
from typing import Final

from headway.core.instants import DAY, SECOND, Duration, Instant, from_datetime

RETRY_AFTER_MAX: Final = DAY
_EXPONENT_MAX: Final = 60
_SECONDS: Final = re.compile("[0-9]{1,9}")


def backoff(
    failures: int,
    *,
    first: float,
    most: float,
    spread: float,
    factor: float = 2.0,
    least_part: float = 0.5,
    most_part: float = 1.0,
) -> float:
    """Return the wait after this many consecutive failures.

    The wait grows by `factor` from `first` to `most`. The random number `spread` in [0, 1) then picks a point between
    `least_part` and `most_part` of it, so that many clients do not come back at the same moment.
    """
    wait = min(first * factor ** min(max(failures - 1, 0), _EXPONENT_MAX), most)
    return wait * (least_part + (most_part - least_part) * spread)


def retry_after(text: str | None, date: str | None, *, now: Instant | None = None) -> Duration | None:
    """Read a `Retry-After` header; None where it is missing or makes no sense.

    It is a number of seconds or a date. A date counts from the server's own clock, as its `Date` header shows it, or
    from `now`; without either it is ignored.
    """
    text = (text or "").strip()
    if _SECONDS.fullmatch(text):
        return min(int(text) * SECOND, RETRY_AFTER_MAX)
    until, since = _date(text), _date(date or "") or now
    return None if until is None or since is None else max(0, min(until - since, RETRY_AFTER_MAX))


def _date(text: str) -> Instant | None:
    from email.utils import parsedate_to_datetime  # Slow to import, and seldom needed.

    try:
        return from_datetime(parsedate_to_datetime(text))
    except (ValueError, TypeError, OverflowError):
        return None
