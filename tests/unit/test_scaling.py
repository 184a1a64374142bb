"""How many slots autoscalers are told to offer."""

from hypothesis import given
from hypothesis import strategies as st

from headway.core.instants import SECOND
from headway.core.limits import Lane, Limit, Rules
from headway.core.scaling import startable, wanted_slots


@given(st.integers(0, 10_000), st.integers(0, 100_000), st.floats(0, 3_600), st.integers(1, 3_600))
def test_what_runs_is_never_scaled_away(running: int, ready: int, seconds: float, wait_s: int) -> None:
    wanted = wanted_slots(running, ready, seconds, wait_s * SECOND)
    assert running <= wanted <= running + ready
    assert wanted > running or not ready


def test_slots_are_as_many_as_start_the_work_in_time() -> None:
    assert wanted_slots(8, 120, 0.5, 20 * SECOND) == 8 + 3
    assert wanted_slots(0, 1, 3_600, 20 * SECOND) == 1
    assert wanted_slots(0, 10, 60, 20 * SECOND) == 10


def test_jobs_behind_a_full_limit_want_no_slots() -> None:
    rules = Rules([Limit.build("queue:media", concurrency=10), Limit.build("account-*", concurrency=1)])
    lanes = {Lane("default"): 100, Lane("default", "account-1"): 50, Lane("default", "account-2"): 50}
    assert startable("media", lanes, rules, {"queue:media": 4}) == 6
    assert startable("media", lanes, rules, {"queue:media": 10}) == 0
    free = {lane: jobs for lane, jobs in lanes.items() if lane.limit_key}
    assert startable("media", free, rules, {"queue:media": 1, "account-1": 1}) == 1
    assert startable("other", lanes, rules, {}) == 102
