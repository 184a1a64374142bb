"""Cron timetables: the instants at which a local clock shows the labels that an expression selects.

    text ──parse──► Expression ──with a zone and a DST policy──► Timetable ──► next_after, count_between, note
                    which labels                                 which instants

A `Timetable` walks the segments of its zone. Within a segment a label is an instant, so all of daylight saving is one
question: *from which label on does a segment count?*

    dst     counts from            so that
    shift   the mark               skipped labels run when the segment opens; doubled ones ran the first time
    skip    mark or opening, the   skipped labels do not run; doubled ones ran the first time
            later one
    both    mark or opening, the   skipped labels run when the segment opens; doubled ones run again
            earlier one
    (hour)  its opening            whatever the clock shows runs: every real hour

The last line is not a policy: it is how every expression runs whose hour field is a wildcard or has a step (`*`, `*/2`,
`8-18/2`) or names all 24 hours. Such a schedule means an interval, not a time of day.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Final, Literal, TypeAlias, cast, get_args

from headway.core.cron_expression import DAYS_END, Expression, parse
from headway.core.errors import InvalidSchedule
from headway.core.instants import SECOND, Instant
from headway.core.zones import DAY_S, Segment, Timeline, shorten, timeline

Dst: TypeAlias = Literal["shift", "skip", "both"]

_Entry: TypeAlias = Callable[[Segment], int]

_BY_POLICY: Final[dict[Dst, _Entry]] = {
    "shift": attrgetter("mark"),
    "skip": lambda segment: max(segment.mark, segment.opens),
    "both": lambda segment: min(segment.mark, segment.opens),
}
_EVERY_HOUR: Final[_Entry] = attrgetter("opens")

# Seconds outside this range show no label of the supported years, in any zone.
_SECOND_MIN: Final = -2 * DAY_S
_SEGMENTS_BACK_MAX: Final = 20  # Ten years of clock changes, for a schedule that runs that rarely.
_SECOND_MAX: Final = (DAYS_END + 2) * DAY_S

# No clock was ever moved by more than a day, so a change has no effect two days away from it.
_SAFE_S: Final = 2 * DAY_S


class Timetable:
    """The instants of an expression in one zone under one DST policy. It is stateless and may be shared."""

    __slots__ = ("_dst", "_entry", "_expression", "_timeline")

    def __init__(self, expression: Expression, timeline: Timeline, dst: Dst) -> None:
        self._expression = expression
        self._timeline = timeline
        self._dst = dst
        self._entry = _EVERY_HOUR if expression.every_hour else _BY_POLICY[dst]

    def next_after(self, instant: Instant) -> Instant | None:
        """Return the first strictly later instant, or None if there is none until the last year."""
        second = max(instant // SECOND + 1, _SECOND_MIN)
        if second > _SECOND_MAX:
            return None
        segment = self._timeline.at(second)
        since = self._since(segment, second)
        label = self._expression.next(since)
        while label >= segment.closes:
            # The expression has nothing from `since` to `label`. Unless the clock is about to fall back
            # behind `since`, nothing happens before it comes near `label`: skip what lies between.
            far = label - _SAFE_S if segment.closes - since > _SAFE_S else segment.end
            second = max(segment.end, far)
            if second > _SECOND_MAX:
                return None
            segment = self._timeline.at(second)
            earlier, since = since, self._since(segment, second)
            if not earlier <= since <= label:
                label = self._expression.next(since)
        return (max(label, segment.opens) - segment.offset) * SECOND

    def count_between(self, after: Instant, until: Instant) -> int:
        """Count the instants later than `after` and not later than `until`, without visiting each."""
        second, stop = max(after // SECOND + 1, _SECOND_MIN), min(until // SECOND, _SECOND_MAX) + 1
        total = 0
        while second < stop:
            segment = self._timeline.at(second)
            since = self._since(segment, second)
            total += self._count(segment, since, min(segment.end, stop) + segment.offset)
            second = segment.end
        return total

    def note(self, instant: Instant) -> str | None:
        """Describe what a clock change does to this instant; None if there is none."""
        second = instant // SECOND
        if not _SECOND_MIN <= second <= _SECOND_MAX:
            return None
        segment = self._timeline.at(second)
        label = second + segment.offset
        if label == segment.opens:
            left_out = self._expression.next(self._entry(segment))
            if left_out < label:
                return self._left_out_note(left_out, label)
        if label < segment.mark:
            return self._doubled_note(label, "second")
        if self._comes_again(label, segment):
            return self._doubled_note(label, "first")
        return self._skipped_note(instant, segment) if self._dst == "skip" else None

    def _skipped_note(self, instant: Instant, segment: Segment) -> str | None:
        """Name the local times that were skipped since the previous instant."""
        for _ in range(_SEGMENTS_BACK_MAX):
            if segment.start <= _SECOND_MIN or self.next_after(segment.start * SECOND - 1) != instant:
                return None
            earlier = self._timeline.at(segment.start - 1)
            left_out = self._expression.next(earlier.closes)
            if left_out < segment.opens and not self._expression.every_hour:
                return f"{self._missing(left_out, segment.opens)} (DST); left out before this one, dst=skip"
            segment = earlier
        return None

    def _since(self, segment: Segment, second: int) -> int:
        """Return the label from which on the segment counts, seen from this second of it."""
        entry = self._entry(segment)
        return entry if second <= segment.start else max(entry, second + segment.offset)

    def _count(self, segment: Segment, since: int, until: int) -> int:
        if since >= segment.opens:
            return self._expression.count(since, until)
        # All skipped labels are one instant, which may also be that of the opening label.
        left_out = self._expression.next(since) <= segment.opens
        return left_out + self._expression.count(segment.opens + 1, until)

    def _comes_again(self, label: int, segment: Segment) -> bool:
        end = label - segment.offset + DAY_S
        while segment.end <= end:
            segment = self._timeline.at(segment.end)
            if segment.opens <= label < segment.mark:
                return True
        return False

    def _left_out_note(self, left_out: int, label: int) -> str:
        missing, runs = _clock(left_out), _clock(label)
        at = _time(runs) if runs.date() == missing.date() else f"{runs:%Y-%m-%d} {_time(runs)}"
        verb = "run once" if self._expression.count(left_out + 1, label) else "runs"
        return f"{self._missing(left_out, label)} (DST); {verb} at {at}, dst={self._dst}"

    def _missing(self, left_out: int, label: int) -> str:
        """Name the local times from the first skipped one up to a label."""
        missing, others = _clock(left_out), self._expression.count(left_out + 1, label)
        subject = f"{_time(missing)} and {others} more do" if others else f"{_time(missing)} does"
        return f"{subject} not exist on {missing:%Y-%m-%d}"

    def _doubled_note(self, label: int, which: str) -> str:
        moment = _clock(label)
        twice = f"{_time(moment)} happens twice on {moment:%Y-%m-%d} (DST)"
        if self._expression.every_hour:
            return f"{twice}; this is the {which}, every real hour runs"
        if self._dst == "both":
            return f"{twice}; runs at both, this is the {which}, dst=both"
        return f"{twice}; runs at the first, dst={self._dst}"


def _clock(label: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(seconds=label)  # noqa: DTZ001 - a label has no zone


def _time(moment: datetime) -> str:
    return f"{moment:%H:%M:%S}" if moment.second else f"{moment:%H:%M}"


@lru_cache(maxsize=16_384)
def timetable(text: str, tz: str = "UTC", dst: str = "shift", seconds: str | None = None) -> Timetable:
    """Return the timetable of a cron expression; the same one for the same arguments."""
    if dst not in get_args(Dst):
        raise InvalidSchedule(f'dst {shorten(dst)} is not known; use "shift", "skip" or "both"')
    made = Timetable(parse(text, seconds), timeline(tz), cast("Dst", dst))
    if made.next_after(_SECOND_MIN * SECOND) is None:
        raise InvalidSchedule(f"cron text {shorten(text)} never runs in {tz} with dst={dst}")
    return made
