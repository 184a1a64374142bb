"""Which jobs a claim takes: within its room and all gates, of the tenants that have used least."""

from collections import Counter, deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.fairness import COST_MIN, TURN, ClaimPlan, Share, plan_claim
from headway.core.instants import MILLISECOND, SECOND
from headway.core.limits import Lane

GATES = ("queue:q", "g0", "g1", "g2")
COSTS = st.integers(0, 200 * MILLISECOND)


@st.composite
def shares_and_gates(draw: st.DrawFn) -> tuple[list[Share], dict[Lane, tuple[str, ...]], dict[str, int]]:
    shares, gates_of = [], {}
    for number in range(draw(st.integers(0, 5))):
        lanes = deque(Lane(f"t{number}", str(key)) for key in range(draw(st.integers(0, 3))))
        vtime = draw(st.integers(0, SECOND))
        shares.append(Share(f"t{number}", vtime, draw(st.integers(1, 4)), draw(COSTS), lanes))
        for lane in lanes:
            gates_of[lane] = tuple(draw(st.sets(st.sampled_from(GATES), max_size=3)))
    return shares, gates_of, {gate: draw(st.integers(0, 8)) for gate in GATES}


@given(shares_and_gates(), st.integers(0, 40))
def test_plan_keeps_room_and_gates_and_wastes_neither(
    drawn: tuple[list[Share], dict[Lane, tuple[str, ...]], dict[str, int]], room: int
) -> None:
    shares, gates_of, free = drawn
    before = [(share.vtime, list(share.lanes)) for share in shares]
    plan = plan_claim(shares, room, gates_of.__getitem__, free)
    assert [(share.vtime, list(share.lanes)) for share in shares] == before
    taken = sum(plan.most.values())
    assert taken <= room
    assert all(most > 0 for most in plan.most.values())
    used = Counter(gate for lane, most in plan.most.items() for gate in gates_of[lane] for _ in range(most))
    assert all(used[gate] <= free[gate] for gate in GATES)
    lanes = {lane for share in shares for lane in share.lanes}
    assert plan.most.keys() | plan.held.keys() <= lanes
    for lane, gate in plan.held.items():  # It really is full.
        assert gate in gates_of[lane]
        assert used[gate] == free[gate]
    if taken < room:
        assert plan.held.keys() == lanes


def _plan(room: int, *shares: Share) -> ClaimPlan:
    return plan_claim(shares, room, lambda _: (), {})


def _share(tenant: str, vtime: int = 0, weight: int = 1, cost: int = 50 * MILLISECOND, lanes: int = 1) -> Share:
    return Share(tenant, vtime, weight, cost, deque(Lane(tenant, str(key)) for key in range(lanes)))


def _of(plan: ClaimPlan, tenant: str) -> int:
    return sum(most for lane, most in plan.most.items() if lane.tenant == tenant)


@given(st.lists(st.integers(0, SECOND), min_size=2, max_size=6), COSTS, st.integers(1, 60))
def test_tenant_furthest_behind_gets_at_least_as_much(vtimes: list[int], cost: int, room: int) -> None:
    shares = [_share(f"t{number}", vtime, cost=cost) for number, vtime in enumerate(vtimes)]
    plan = _plan(room, *shares)
    ordered = [_of(plan, share.tenant) for share in sorted(shares, key=lambda share: share.vtime)]
    assert sum(ordered) == room
    turn = shares[0].at_once  # The last turn may be cut off by the room.
    assert all(more + turn >= less for more, less in pairwise(ordered))
    assert room < turn or ordered[0] >= max(ordered) - (0 if turn == 1 else turn)


@given(st.integers(COST_MIN, 10 * SECOND), st.integers(COST_MIN, 10 * SECOND), st.integers(1, 5), st.integers(10, 400))
def test_seconds_are_divided_by_weight(cost: int, other: int, weight: int, room: int) -> None:
    """Used seconds divided by weight differ by no more than a turn of the one that is ahead."""
    heavy, light = _share("heavy", weight=weight, cost=cost), _share("light", cost=other)
    plan = _plan(room, heavy, light)
    used = [_of(plan, share.tenant) * share.charge for share in (heavy, light)]
    turns = [share.at_once * share.charge for share in (heavy, light)]
    assert abs(used[0] - used[1]) <= max(turns)


def test_weight_of_two_gets_two_of_three_jobs() -> None:
    plan = _plan(300, _share("two", weight=2), _share("one"))
    assert abs(_of(plan, "two") - 200) <= 1


def test_share_far_ahead_waits_until_others_have_caught_up() -> None:
    cost = 100 * MILLISECOND
    plan = _plan(12, _share("ahead", vtime=10 * cost, cost=cost), _share("behind", cost=cost))
    assert (_of(plan, "behind"), _of(plan, "ahead")) == (11, 1)


def test_short_jobs_are_taken_together_and_long_ones_one_by_one() -> None:
    short, long = _share("short", cost=MILLISECOND), _share("long", vtime=1, cost=SECOND)
    assert short.at_once == TURN // MILLISECOND
    assert long.at_once == 1
    assert _plan(5, short, long).most == {Lane("short", "0"): 5}


def test_lanes_of_a_tenant_take_turns() -> None:
    assert set(_plan(9, _share("a", lanes=3)).most.values()) == {3}


@pytest.mark.parametrize("weight", [1, 7, 1_000_000])
def test_every_job_costs_something(weight: int) -> None:
    """Otherwise a tenant with a large weight and short jobs would never be behind anybody."""
    assert _share("a", weight=weight, cost=0).charge > 0


def test_held_lane_does_not_stop_other_lanes_of_its_tenant() -> None:
    share = _share("a", lanes=2)
    first, second = share.lanes
    gates = {first: ("full",), second: ("free",)}
    plan = plan_claim([share], 5, gates.__getitem__, {"full": 0, "free": 3})
    assert (plan.most, plan.held) == ({second: 3}, {first: "full", second: "free"})
