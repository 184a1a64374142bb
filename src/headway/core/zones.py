"""Time zones as segments: periods in which the offset from UTC does not change.

    UTC      ──────────────────────┬──────────────────────────►   two segments meet at one second
    local    … 01:58 01:59 │ 03:00 03:01 …                        a gap: labels jump forward
             … 01:58 01:59 │ 01:00 01:01 …                        a doubled hour: labels fall back

Everything the calendar needs to know about a zone is in that picture. A *label* is what the local clock shows, counted
in seconds from 1970-01-01 00:00 of that same clock, so `label = second + offset` within a segment. Where two segments
meet, the second one opens at one label. The clock's *mark*, the highest label shown until then, says whether labels
were skipped (mark < opens) or come a second time (mark > opens).

`zoneinfo` answers "which offset at this second" and does not list its changes; `Timeline` finds them once per zone and
period and caches them. Names are checked before `zoneinfo` sees them: it opens files by name (path traversal).
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from headway.core.errors import InvalidSchedule

DAY_S: Final = 86_400

_NAME: Final = re.compile(r"[A-Za-z0-9_+\-]+(/[A-Za-z0-9_+\-]+)*")
_NAME_LENGTH_MAX: Final = 64
# Files beside the zones that are none: they differ between machines, or count leap seconds.
_NOT_ZONES: Final = re.compile(r"(posix|right)/.*|posixrules|localtime|Factory")

# Since 1970 no zone has changed its offset twice within six days, so no change is missed.
_PROBE_S: Final = 3 * DAY_S


@lru_cache(maxsize=1024)
def zone(name: str) -> ZoneInfo:
    """Load a zone by its IANA name; refuse everything else before it can reach the file system."""
    if len(name) <= _NAME_LENGTH_MAX and _NAME.fullmatch(name) and not _NOT_ZONES.fullmatch(name):
        with suppress(KeyError, ValueError, OSError):
            return ZoneInfo(name)
    raise InvalidSchedule(
        f'tz {shorten(name)} is not a known time zone; use an IANA name such as "Europe/Berlin" or "UTC"'
    )


@dataclass(frozen=True, slots=True)
class Segment:
    """The seconds from `start` up to `end` with one offset, and the labels that the local clock shows then."""

    start: int
    end: int
    offset: int
    opens: int  # The first label shown: start + offset.
    closes: int  # The label that would follow the last one shown: end + offset.
    mark: int  # The lowest label not yet shown when the segment starts.


class Timeline:
    """The segments of one zone, found on demand and cached."""

    __slots__ = ("_stretch_s", "_stretches", "_zone")

    def __init__(self, zone: ZoneInfo, stretch_s: int = 120 * _PROBE_S) -> None:
        self._zone = zone
        self._stretch_s = stretch_s
        self._stretches: dict[int, tuple[Segment, ...]] = {}

    def at(self, second: int) -> Segment:
        """Return the segment that contains this second.

        Segments also end where a cached period ends. No label is skipped or doubled there, so callers need not care.
        """
        index = second // self._stretch_s
        stretch = self._stretches.get(index)
        if stretch is None:
            stretch = self._stretches[index] = tuple(self._segments(index * self._stretch_s))
        for segment in stretch:
            if second < segment.end:
                return segment
        raise AssertionError("a stretch covers all its seconds")

    def reach(self, label: int) -> tuple[int, bool]:
        """Find the second at which the local clock first shows this label (True) or skips it (False)."""
        segment = self.at(label - 2 * DAY_S)
        while label >= segment.closes:
            segment = self.at(segment.end)
        return max(label, segment.opens) - segment.offset, label >= segment.opens

    def _segments(self, start: int) -> Iterator[Segment]:
        # One probe earlier, so that a doubled hour that reaches into this period has set its mark.
        begins, offset, stop = start - _PROBE_S, self._offset(start - _PROBE_S), start + self._stretch_s
        mark = begins + offset
        for ends in (*self._changes(begins, start), start, *self._changes(start, stop)):
            if begins >= start:
                yield Segment(begins, ends, offset, begins + offset, ends + offset, mark)
            mark = max(mark, ends + offset)
            begins, offset = ends, self._offset(ends)
        yield Segment(begins, stop, offset, begins + offset, stop + offset, mark)

    def _changes(self, start: int, stop: int) -> Iterator[int]:
        """Yield the seconds after `start` and before `stop` at which a new offset begins."""
        before = self._offset(start)
        for second in range(start, stop, _PROBE_S):
            after = self._offset(second + _PROBE_S)
            if after != before:
                change = self._change(second, second + _PROBE_S)
                if change < stop:
                    yield change
                before = after

    def _change(self, low: int, high: int) -> int:
        before = self._offset(low)
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset(middle) == before:
                low = middle
            else:
                high = middle
        return high

    def _offset(self, second: int) -> int:
        offset = datetime.fromtimestamp(second, self._zone).utcoffset()
        assert offset is not None
        return offset // timedelta(seconds=1)


@lru_cache(maxsize=1024)
def timeline(name: str) -> Timeline:
    """Return the timeline of a zone, one per name for the life of the process."""
    return Timeline(zone(name))


def shorten(value: object, length_max: int = 40) -> str:
    """Quote user input for an error message, shortened."""
    if isinstance(value, str):
        value = value[: length_max + 1]
    text = repr(value)
    return text if len(text) <= length_max else text[: length_max - 1] + "…"
