"""The clock of the command line with --server."""

import pytest

from headway.cli.remote import _adjust
from headway.core.clock import Clock
from headway.core.instants import HOUR, SECOND, parse_instant

NOW = parse_instant("2027-01-31T06:00:00.123456Z")


@pytest.mark.parametrize(
    ("wall", "expected"),
    [
        (NOW, NOW),  # Within the precision of the header.
        (NOW - 900_000, NOW - 123_456),  # Behind by less than a second: its times must not be ahead.
        (NOW - HOUR, NOW - 123_456),
        (NOW + HOUR, NOW - 123_456 + SECOND),
    ],
)
def test_wrong_clock_is_adjusted_only_as_far_as_needed(wall: int, expected: int) -> None:
    clock = Clock(wall=lambda: wall)
    told = NOW - 123_456  # Truncated to whole seconds.
    _adjust(clock, told, told + SECOND)
    assert clock.now() == expected
