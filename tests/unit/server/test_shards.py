"""The distribution of shards, and warnings about it."""

import pytest

from headway.cli.status import _shards_text
from headway.core.nodes import Lease, Node
from headway.operations.attention import faults
from headway.operations.store_trouble import SHARD_PREFIX
from headway.wire.overview import Shard
from tests.unit.cli.test_top import NOW, overview


def lease(shard: int, holder: str) -> Lease:
    return Lease(name=f"{SHARD_PREFIX}{shard}", holder=holder, holder_name=holder, token=1, until=NOW, since=NOW)


def scheduler(name: str, shards: int, mode: str = "leader") -> Node:
    return Node(id=name, name=name, roles=("scheduler",), beat_at=NOW, state={"mode": mode, "shards": shards})


def said(nodes: list[Node], leases: list[Lease]) -> list[str]:
    found = faults(overview(nodes=nodes, leases=leases, queues=[]))
    return [fault.message for fault in found if fault.code.startswith("shards")]


def test_every_shard_has_a_leader() -> None:
    assert said([scheduler("a", 2), scheduler("b", 2)], [lease(0, "a"), lease(1, "b")]) == []


def test_shard_without_a_leader() -> None:
    assert said([scheduler("a", 3)], [lease(0, "a")]) == ["2 of 3 shards of the schedules have no leader"]


def test_schedulers_with_different_shard_counts() -> None:
    words = said([scheduler("a", 1), scheduler("b", 2)], [lease(0, "a"), lease(1, "b")])
    assert words == ["schedulers do not agree on the number of shards: 1, 2"]


def test_lock_mode_has_no_shards() -> None:
    assert said([scheduler("a", 4, "lock")], []) == []


@pytest.mark.parametrize(
    ("holders", "text"),
    [
        ("aab", "3 shards: a 2 · b 1"),
        ("aabcdef", "7 shards led by 6 nodes, 1 to 2 each"),
    ],
)
def test_description_of_the_distribution(holders: str, text: str) -> None:
    shards = [Shard(f"{SHARD_PREFIX}{number}", holder, holder, 1, "") for number, holder in enumerate(holders)]
    assert _shards_text(shards) == text
