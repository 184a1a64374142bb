"""Promise S10 with crashes between any two steps: counts, one end, one callback."""

import asyncio
from collections import Counter

import pytest

from headway.core.groups import OpenGroup
from headway.store.transaction import Transaction
from tests.simulation.batches import BatchWorld
from tests.simulation.checkers import Violation

SEEDS = 10
# A campaign in which one of these never happened proves nothing.
EXPECTED = (
    "died within a transaction",
    "lost a response",
    "an adder began anew",
    "a job added a job",
    "cancelled",
    "retried",
    "retried in a new batch",
)


def _play(seed: int, prepare: str = "") -> Counter[str]:
    world = BatchWorld(seed)
    if prepare:
        world.connection.raw.executescript(prepare)
    try:
        asyncio.run(world.play())
    except Violation as violation:
        raise Violation(f"seed {seed}: {violation}") from violation
    finally:
        world.connection.raw.close()
    return Counter(world.checker.saw)


def _play_until_violated(prepare: str = "") -> None:
    for seed in range(SEEDS):
        _play(seed, prepare)


def test_batches_keep_their_promise() -> None:
    saw: Counter[str] = Counter()
    for seed in range(SEEDS):
        saw += _play(seed)
    assert {what for what in EXPECTED if not saw[what]} == set()


def test_forgotten_end_is_caught() -> None:
    with pytest.raises(Violation, match="S10: counts differ from the jobs"):
        _play_until_violated("drop trigger headway_group_change")


def test_early_end_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_closed(group: OpenGroup) -> bool:
        return group.closed_at is not None

    monkeypatch.setattr("headway.store.groups.is_over", is_closed)
    with pytest.raises(Violation, match="S10: finished while jobs run"):
        _play_until_violated()


def test_end_without_its_callback_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def insert(_: object) -> Transaction[None]:
        yield from ()

    monkeypatch.setattr("headway.store.groups.insert", insert)
    with pytest.raises(Violation, match="S10: not one callback"):
        _play_until_violated()


def test_addition_to_a_finished_batch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.store.group_entry._takes", lambda group, member_of: True)
    with pytest.raises(Violation, match=r"S10: (changed after its end|finished while jobs run)"):
        _play_until_violated()
