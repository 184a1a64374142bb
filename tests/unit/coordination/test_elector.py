"""Electors on the real store: who holds a role, how long that can be trusted, and how it changes hands."""

import asyncio

import pytest

from headway.coordination.elector import Elector
from headway.core.clock import Loop
from headway.core.errors import StoreUnavailable
from headway.core.events import TermLost, TermWon
from headway.core.instants import SECOND
from headway.core.nodes import LEASE_MARGIN
from tests.simulation.stage import Seat, Stage, until
from tests.simulation.virtual_loop import virtual

LEASE_S = 10.0
TRUST_S = LEASE_S * (1 - LEASE_MARGIN)
ROLE = "scheduler/0"


class Candidate:
    """An elector on a seat, and the role changes that it reported."""

    def __init__(self, seat: Seat, roles: tuple[str, ...] = (ROLE,), share: int = 1) -> None:
        self.seat = seat
        self.silence_s = 0.0
        self.changes = 0
        self.elector = Elector(
            seat.store.leases,
            clock=seat.clock,
            node_id=seat.clock.node,
            node_name=f"the {seat.clock.node}",
            duration=round(LEASE_S * SECOND),
            silence_s=lambda: self.silence_s,
            on_change=self._changed,
        )
        self.elector.seek(roles, share)

    def _changed(self) -> None:
        self.changes += 1

    def held(self) -> set[str]:
        return set(self.elector.held())

    def token(self, role: str = ROLE) -> int:
        return self.elector.held()[role].token

    def run(self) -> Loop:
        """Tick in the background."""
        loop = Loop("elector", self.elector.tick, clock=self.seat.clock, rest_s_max=LEASE_S)
        self.task = asyncio.get_running_loop().create_task(loop.run())
        return loop


@virtual
async def test_first_candidate_leads_and_second_waits() -> None:
    async with Stage() as stage:
        first, second = Candidate(stage.seat("node_a")), Candidate(stage.seat("node_b"))
        rest_s = await first.elector.tick()
        await second.elector.tick()
        assert (first.held(), second.held()) == ({ROLE}, set())
        assert 0 < rest_s <= TRUST_S / 2  # There is time for more than one renewal before trust ends.
        assert [event.node for event in stage.said(TermWon)] == ["node_a"]
        assert first.changes == 1


@virtual
async def test_trust_counts_from_when_the_request_was_sent() -> None:
    async with Stage() as stage:
        candidate = Candidate(stage.seat())
        candidate.seat.driver.asking_s, candidate.seat.driver.answering_s = 1.0, 2.0
        await candidate.elector.tick()  # Query: 0 to 3 s. Acquired at 4 s until 14 s; response at 6 s.
        assert candidate.held() == {ROLE}
        await asyncio.sleep(TRUST_S - 6.0 - 0.001)
        assert candidate.held() == {ROLE}
        await asyncio.sleep(0.002)
        assert candidate.held() == set()


@virtual
async def test_late_response_is_not_trusted() -> None:
    async with Stage() as stage:
        candidate = Candidate(stage.seat())
        candidate.seat.driver.answering_s = TRUST_S + 1.0
        await candidate.elector.tick()
        assert candidate.held() == set()


@virtual
async def test_renewals_keep_the_role_and_its_token() -> None:
    async with Stage() as stage:
        first, second = Candidate(stage.seat("node_a")), Candidate(stage.seat("node_b"))
        first.run()
        await asyncio.sleep(0.1)
        second.run()
        token = first.token()
        for _ in range(100):
            await asyncio.sleep(1.0)
            assert first.held() == {ROLE}
            assert second.held() == set()
        assert first.token() == token


@virtual
async def test_leader_that_cannot_renew_stops_before_another_can_start() -> None:
    async with Stage() as stage:
        first, second = Candidate(stage.seat("node_a")), Candidate(stage.seat("node_b"))
        first.run()
        await asyncio.sleep(0.1)
        second.run()
        token = first.token()
        await asyncio.sleep(30.0)
        first.seat.driver.is_down = True
        began = asyncio.get_running_loop().time()
        while not second.held():
            assert not (first.held() and second.held())
            assert asyncio.get_running_loop().time() - began < LEASE_S + 5.0
            await asyncio.sleep(0.01)
        assert first.held() == set()
        assert second.token() > token
        await until(lambda: stage.said(TermLost), within_s=5.0)
        lost = stage.said(TermLost)
        assert [(event.node, event.reason) for event in lost] == [("node_a", "not renewed in time")]


@virtual
async def test_holder_that_was_frozen_steps_down() -> None:
    async with Stage() as stage:
        first, second = Candidate(stage.seat("node_a")), Candidate(stage.seat("node_b"))
        await first.elector.tick()
        stage.sql("update headway_leases set until = 0")  # As if it had been frozen for long.
        await second.elector.tick()
        assert second.held() == {ROLE}
        await first.elector.tick()
        assert first.held() == set()
        assert stage.said(TermLost)[0].reason == "taken by another node"


@virtual
async def test_leader_with_a_stalled_loop_steps_down_and_lets_others_try_first() -> None:
    async with Stage() as stage:
        first, second = Candidate(stage.seat("node_a")), Candidate(stage.seat("node_b"))
        await first.elector.tick()
        first.silence_s = LEASE_S + 0.1
        await first.elector.tick()
        assert first.held() == set()
        assert stage.said(TermLost)[0].reason == "the loop is stuck"
        first.silence_s = 0.0
        await first.elector.tick()
        assert first.held() == set()  # It rests for one lease.
        await second.elector.tick()
        assert second.held() == {ROLE}  # The lease was released, not left to expire.


@virtual
async def test_only_candidate_takes_the_role_again_after_its_rest() -> None:
    async with Stage() as stage:
        candidate = Candidate(stage.seat())
        await candidate.elector.tick()
        candidate.silence_s = LEASE_S + 0.1
        await candidate.elector.tick()
        candidate.silence_s = 0.0
        candidate.run()
        assert LEASE_S - 1 <= await until(candidate.held, within_s=LEASE_S + 5.0) <= LEASE_S + 5.0


@virtual
async def test_silent_follower_does_not_rest_for_a_lease() -> None:
    """After a store outage every loop of every node was silent: if all rested, no node would decide."""
    async with Stage() as stage:
        candidate = Candidate(stage.seat())
        candidate.silence_s = LEASE_S + 0.1
        await candidate.elector.tick()
        assert candidate.held() == set()
        candidate.silence_s = 0.0
        await candidate.elector.tick()
        assert candidate.held() == {ROLE}


@virtual
async def test_resign_hands_the_role_over_at_once() -> None:
    async with Stage() as stage:
        first, second = Candidate(stage.seat("node_a")), Candidate(stage.seat("node_b"))
        await first.elector.tick()
        token = first.token()
        await first.elector.resign()
        assert first.held() == set()
        await second.elector.tick()
        assert second.held() == {ROLE}
        assert second.token() > token


@virtual
async def test_elector_stops_acting_before_it_releases_the_lease() -> None:
    async with Stage() as stage:
        candidate = Candidate(stage.seat())
        await candidate.elector.tick()
        candidate.seat.driver.is_down = True
        with pytest.raises(StoreUnavailable):
            await candidate.elector.resign()
        assert candidate.held() == set()


@virtual
async def test_losing_needs_no_store() -> None:
    async with Stage() as stage:
        candidate = Candidate(stage.seat(), ("scheduler/0", "scheduler/1"), share=2)
        await candidate.elector.tick()
        candidate.seat.driver.is_down = True
        candidate.elector.lose("the store refused its token")
        assert candidate.held() == set()
        assert len(stage.said(TermLost)) == 2


@virtual
async def test_lease_with_a_lost_response_is_acquired_again() -> None:
    async with Stage() as stage:
        candidate = Candidate(stage.seat())
        candidate.seat.driver.loses_answer = 2
        with pytest.raises(StoreUnavailable):
            await candidate.elector.tick()
        assert candidate.held() == set()
        (row,) = stage.sql("select holder, token from headway_leases")
        assert row["holder"] == "node_a"
        await candidate.elector.tick()  # Its own lease does not block it, and it does not wait.
        assert candidate.held() == {ROLE}
        assert candidate.token() > row["token"]


@virtual
async def test_renewal_with_a_lost_response_adds_no_trust() -> None:
    async with Stage() as stage:
        candidate = Candidate(stage.seat())
        await candidate.elector.tick()
        await asyncio.sleep(5.0)
        candidate.seat.driver.loses_answer = 1
        with pytest.raises(StoreUnavailable):
            await candidate.elector.tick()
        await asyncio.sleep(TRUST_S - 5.0 + 0.01)
        assert candidate.held() == set()


@virtual
async def test_elector_takes_its_share_and_releases_the_surplus() -> None:
    roles = tuple(f"scheduler/{shard}" for shard in range(4))
    async with Stage() as stage:
        first, second = Candidate(stage.seat("node_a"), roles, share=4), Candidate(stage.seat("node_b"), roles, share=2)
        await first.elector.tick()
        assert first.held() == set(roles)
        assert first.elector.seek(roles, 2)  # A node joined.
        assert not first.elector.seek(roles, 2)
        await first.elector.tick()
        await second.elector.tick()
        assert len(first.held()) == len(second.held()) == 2
        assert first.held() | second.held() == set(roles)


@virtual
async def test_role_that_is_no_longer_wanted_is_released() -> None:
    async with Stage() as stage:
        candidate = Candidate(stage.seat(), ("scheduler/0", "scheduler/1"), share=2)
        await candidate.elector.tick()
        candidate.elector.seek(("scheduler/0",), 2)
        await candidate.elector.tick()
        assert candidate.held() == {"scheduler/0"}
        (row,) = stage.sql("select until from headway_leases where name = 'scheduler/1'")
        assert row["until"] <= stage.now()
