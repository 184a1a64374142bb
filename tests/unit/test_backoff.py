"""The shared jittered back-off and the `Retry-After` parser."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.backoff import RETRY_AFTER_MAX, backoff, retry_after
from headway.core.instants import SECOND, from_datetime

NEW_YEAR = "Fri, 01 Jan 2027 00:00:00 GMT"
TWO_MINUTES_LATER = "Fri, 01 Jan 2027 00:02:00 GMT"


def test_delay_doubles_up_to_the_maximum() -> None:
    waits = [backoff(failures, first=1, most=10, spread=0.0) for failures in range(1, 7)]
    assert waits == [0.5, 1, 2, 4, 5, 5]
    assert [backoff(failures, first=1, most=100, factor=3, spread=0.0) for failures in (1, 2, 3)] == [0.5, 1.5, 4.5]


@given(st.integers(-5, 10**9), st.floats(0, 1, exclude_max=True))
def test_delay_stays_within_its_bounds(failures: int, spread: float) -> None:
    assert 0.1 <= backoff(failures, first=0.2, most=5, spread=spread) <= 5
    assert 0.15 <= backoff(failures, first=0.2, most=5, spread=spread, least_part=0.75, most_part=1.25) <= 6.25


def test_spread_selects_the_point_within_the_jitter() -> None:
    assert backoff(1, first=8, most=8, spread=0.5) == 6
    assert backoff(1, first=8, most=8, spread=0.5, least_part=0.75, most_part=1.25) == 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        (" 120 ", 120 * SECOND),
        ("99999999", RETRY_AFTER_MAX),
        (TWO_MINUTES_LATER, 120 * SECOND),
        (NEW_YEAR, 0),
    ],
)
def test_retry_after_accepts_seconds_or_a_date(text: str, expected: int) -> None:
    assert retry_after(text, NEW_YEAR) == expected


def test_retry_after_in_the_past_is_zero() -> None:
    assert retry_after(NEW_YEAR, TWO_MINUTES_LATER) == 0


def test_retry_after_date_is_relative_to_the_date_header_or_local_clock() -> None:
    now = from_datetime(datetime(2027, 1, 1, 0, 1, tzinfo=UTC))
    assert retry_after(TWO_MINUTES_LATER, NEW_YEAR, now=now) == 120 * SECOND
    assert retry_after(TWO_MINUTES_LATER, "nonsense", now=now) == 60 * SECOND
    assert retry_after(TWO_MINUTES_LATER, None) is None


@pytest.mark.parametrize("text", [None, "", "soon", "-5", "1.5", "1e9", "9" * 50, "Fri, 99 Jan 2027 00:02:00 GMT"])
def test_invalid_retry_after_is_ignored(text: str | None) -> None:
    assert retry_after(text, NEW_YEAR) is None
