"""The heartbeat on the real store."""

import asyncio
from collections.abc import Callable

import pytest

from headway.coordination.heartbeat import WATCH_CHECK_S, Heartbeat
from headway.core.errors import StoreUnavailable
from headway.core.instants import SECOND
from headway.core.nodes import Node
from headway.core.ports import WakeUps
from tests.simulation.stage import START, Seat, Stage
from tests.simulation.virtual_loop import virtual

LEASE_S = 10.0


class Ears:
    """Counts the calls of the subscription."""

    mode = "notify"

    def __init__(self) -> None:
        self.listened = 0
        self.checked = 0
        self.closed = 0
        self.is_deaf = False

    async def listen(self) -> WakeUps:
        self.listened += 1
        if self.is_deaf:
            raise StoreUnavailable("cannot listen")
        return self

    async def check(self) -> None:
        self.checked += 1

    async def close(self) -> None:
        self.closed += 1


def heart(
    seat: Seat,
    ears: Ears,
    on_peers: Callable[[list[Node]], None] = lambda peers: None,
    on_asked: Callable[[str], None] = lambda what: None,
) -> Heartbeat:
    """Create a heartbeat on a seat."""
    return Heartbeat(
        seat.store.nodes,
        ears.listen,
        Node(id=seat.clock.node, name=f"the {seat.clock.node}", roles=("scheduler",)),
        clock=seat.clock,
        lease=round(LEASE_S * SECOND),
        state=lambda: {"mood": "fine"},
        on_peers=on_peers,
        on_asked=on_asked,
    )


@virtual
async def test_beat_is_recorded_and_returns_the_store_time() -> None:
    async with Stage() as stage:
        seat, met = stage.seat(), list[list[Node]]()
        await asyncio.sleep(100.0)
        assert seat.clock.now() == START  # The wall clock of this process is frozen.
        rest_s = await heart(seat, Ears(), met.append).tick()
        assert seat.clock.now() == stage.now()
        assert 0 < rest_s <= LEASE_S / 3
        (peers,) = met
        assert [(peer.id, peer.name, peer.state) for peer in peers] == [("node_a", "the node_a", {"mood": "fine"})]


@virtual
async def test_peers_are_nodes_with_a_recent_beat() -> None:
    async with Stage() as stage:
        first, second, met = stage.seat("node_a"), stage.seat("node_b"), list[list[Node]]()
        beating = heart(first, Ears(), met.append)
        await heart(second, Ears()).tick()
        await beating.tick()
        await asyncio.sleep(LEASE_S + 0.1)
        await beating.tick()
        assert [[peer.id for peer in peers] for peers in met] == [["node_a", "node_b"], ["node_a"]]


@virtual
async def test_leaving_is_announced_at_once() -> None:
    async with Stage() as stage:
        first, second, ears, met = stage.seat("node_a"), stage.seat("node_b"), Ears(), list[list[Node]]()
        leaving = heart(second, ears)
        await leaving.tick()
        await leaving.leave()
        assert ears.closed == 1
        await heart(first, Ears(), met.append).tick()
        assert [peer.id for peer in met[0]] == ["node_a"]


@virtual
async def test_heartbeat_listens_once_and_checks_periodically() -> None:
    async with Stage() as stage:
        ears = Ears()
        beating = heart(stage.seat(), ears)
        assert beating.wake_mode == "poll"
        for _ in range(30):
            await beating.tick()
            await asyncio.sleep(1.0)
        assert beating.wake_mode == "notify"
        assert (ears.listened, ears.checked) == (1, int(29 // WATCH_CHECK_S))


@virtual
async def test_node_receives_requests_of_operators() -> None:
    async with Stage() as stage:
        seat, asked = stage.seat(), list[str]()
        beating = heart(seat, Ears(), on_asked=asked.append)
        await beating.tick()
        assert asked == []
        assert await seat.store.nodes.ask(seat.clock.node, "drain")
        for _ in range(2):  # With every beat, so that it cannot be missed.
            await beating.tick()
        assert asked == ["drain", "drain"]


@virtual
async def test_node_that_cannot_listen_beats_and_retries() -> None:
    async with Stage() as stage:
        ears = Ears()
        ears.is_deaf = True
        beating = heart(stage.seat(), ears)
        with pytest.raises(StoreUnavailable):
            await beating.tick()
        assert len(stage.sql("select * from headway_nodes")) == 1
        ears.is_deaf = False
        await beating.tick()
        assert (beating.wake_mode, ears.listened) == ("notify", 2)
