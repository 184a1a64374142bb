"""The clock of the command line with --server."""

import pytest

from headway.cli.remote import _adjust
from headway.core.clock import Clock
from headway.core.instants import HOUR, SECOND, parse_instant

NOW = parse_instant("2027-01-31T06:00:00.123456Z")


@pytest.mark.parametrize(
    ("wall", "expected"),
    [
        (NOW, NOW),  # It may be right.
        (NOW - 900_000, NOW - 123_456),  # Too early by a part of a second: what the server has told is not to come.
        (NOW - HOUR, NOW - 123_456),
        (NOW + HOUR, NOW - 123_456 + SECOND),
    ],
)
def test_a_wrong_clock_is_adjust_no_further_than_needed(wall: int, expected: int) -> None:
    clock = Clock(wall=lambda: wall)
    told = NOW - 123_456  # In whole seconds.
    _adjust(clock, told, told + SECOND)
    assert clock.now() == expected
