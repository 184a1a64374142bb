"""A cell of the sizing benchmark makes the expected decisions in virtual time."""

import pytest

from bench.cell import EVERY_DAY, EVERY_HOUR, EVERY_MINUTE, EVERY_QUARTER, ON_THE_DOT, simulate

SCHEDULES = 4_000
WINDOW_S = 100.0  # From 30 s before midnight to more than a minute after it.


async def test_cell_decides_midnight_and_the_next_minute() -> None:
    found = await simulate(SCHEDULES, WINDOW_S)
    daily = EVERY_DAY * ON_THE_DOT / 24
    due = EVERY_MINUTE + (EVERY_QUARTER + EVERY_HOUR) * ON_THE_DOT
    # Daily schedules are in eight time zones: midnight UTC is a full hour in some of them only.
    assert found.schedules == pytest.approx(SCHEDULES, rel=0.1)
    assert SCHEDULES * due * 0.9 <= found.peak <= SCHEDULES * (due + 8 * daily) * 1.1
    assert found.decisions == pytest.approx(found.peak + SCHEDULES * EVERY_MINUTE, rel=0.05)
    assert 0 < found.late_median_s <= found.peak_s <= found.busy_s < WINDOW_S
