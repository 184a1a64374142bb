"""A cell of the sizing bench decides what it should, on its own time."""

import pytest

from bench.cell import EVERY_DAY, EVERY_HOUR, EVERY_MINUTE, EVERY_QUARTER, ON_THE_DOT, simulate

SCHEDULES = 4_000
WINDOW_S = 100.0  # From half a minute before midnight to beyond one minute after it.


async def test_a_cell_decides_midnight_and_the_minute_after_it() -> None:
    found = await simulate(SCHEDULES, WINDOW_S)
    daily = EVERY_DAY * ON_THE_DOT / 24
    due = EVERY_MINUTE + (EVERY_QUARTER + EVERY_HOUR) * ON_THE_DOT
    # Daily schedules of eight zones in turn: midnight UTC is one of the hours in some of them, not in others.
    assert found.schedules == pytest.approx(SCHEDULES, rel=0.1)
    assert SCHEDULES * due * 0.9 <= found.peak <= SCHEDULES * (due + 8 * daily) * 1.1
    assert found.decisions == pytest.approx(found.peak + SCHEDULES * EVERY_MINUTE, rel=0.05)
    assert 0 < found.late_median_s <= found.peak_s <= found.busy_s < WINDOW_S
