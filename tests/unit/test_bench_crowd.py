"""Benchmarks that need a crowd of schedules before an instant give a slow machine more time."""

import pytest

from bench.crowd import TRIES_MAX, TooLate, in_time


async def test_a_crowd_that_is_late_is_gathered_again_with_twice_the_time() -> None:
    asked: list[float] = []

    async def attempt(lead_s: float) -> str:
        asked.append(lead_s)
        if lead_s < 5:
            raise TooLate
        return "done"

    assert await in_time(attempt, 1.5) == "done"
    assert asked == [1.5, 3.0, 6.0]


async def test_gathering_a_crowd_is_given_up_at_last() -> None:
    asked: list[float] = []

    async def attempt(lead_s: float) -> None:
        asked.append(lead_s)
        raise TooLate("100 schedules were not put")

    with pytest.raises(TooLate, match="100 schedules"):
        await in_time(attempt, 1.0)
    assert len(asked) == TRIES_MAX
