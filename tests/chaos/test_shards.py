"""Eight shards over three schedulers: they spread evenly, also after one has joined, left, died or frozen.

`headway status` shows it; afterwards every instant has its one decision.
"""

import json
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.arena import LEASE_S, Arena, headway
from tests.chaos.ledger import check_audit, put_schedules, query, wait_until_decided
from tests.chaos.worker_arena import FULL

SHARDS = 8
START_S_MAX = 60.0
REBALANCE_S_MAX = LEASE_S + 20.0  # A lease, a beat, a renewal; nearly all of it is for a busy machine.
TOKENS = "select distinct token from headway_occurrences"
HOLDERS = "select holder_name from headway_leases where name like 'scheduler/%' and until > {now}"


def _held(store: str) -> Counter[str]:
    """Return how many shards each node holds; by SQL, since a command each time would keep the machine busy."""
    return Counter(name for (name,) in query(store, HOLDERS.format(now=time.time_ns() // 1_000)))


def _shown(store: str) -> Counter[str]:
    """Return the same as an operator sees it."""
    found = json.loads(headway("status", "--json", store=store).stdout)
    return Counter(shard["name"] for shard in found["shards"])


def _wait_until_spread(store: str, over: set[str], within_s: float = REBALANCE_S_MAX) -> float:
    """Wait until all shards are held by these nodes, none with two more than another; return how long it took."""
    began = time.monotonic()
    while True:
        held = _held(store)
        waited_s = time.monotonic() - began
        if {*held} == over and held.total() == SHARDS and max(held.values()) - min(held.values()) <= 1:
            return waited_s
        assert waited_s < within_s, f"not spread over {sorted(over)} after {waited_s:.1f} s: {dict(held)}"
        time.sleep(0.1)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "database",
    [
        pytest.param("sqlite", marks=pytest.mark.skipif(not FULL, reason="the long version has both databases")),
        pytest.param("postgres", marks=pytest.mark.postgres),
    ],
)
def test_shards_spread_over_whoever_lives(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = f"sqlite:///{tmp_path}/headway.db" if database == "sqlite" else request.getfixturevalue("postgres_url")
    assert headway("migrate", store=store).returncode == 0
    put_schedules(store, tmp_path)
    arena = Arena(store, tmp_path, seed=0)
    shards = {"HEADWAY_SCHEDULER_SHARDS": str(SHARDS)}
    took: dict[str, float] = {}
    try:
        arena.start(**shards)
        arena.start(**shards)
        _wait_until_spread(store, {"scheduler-1", "scheduler-2"}, START_S_MAX)
        arena.start(**shards)
        everybody = {"scheduler-1", "scheduler-2", "scheduler-3"}
        took["joined"] = _wait_until_spread(store, everybody, START_S_MAX)
        assert {*_shown(store)} <= everybody
        third = arena.processes[2]
        third.send_signal(signal.SIGSTOP)
        took["frozen"] = _wait_until_spread(store, everybody - {"scheduler-3"})
        third.send_signal(signal.SIGCONT)
        took["thawed"] = _wait_until_spread(store, everybody)
        third.kill()
        third.wait()
        took["killed"] = _wait_until_spread(store, everybody - {"scheduler-3"})
        arena.processes[1].terminate()
        took["left"] = _wait_until_spread(store, {"scheduler-1"})
        said = headway("status", store=store).stdout
        # How many are alive is said after it; one that was killed counts for a while.
        assert f"{SHARDS} shards: scheduler-1 {SHARDS}  (" in said, said
        wait_until_decided(store, time.time_ns() // 1_000)
    finally:
        arena.stop()
    print(f"{database}: {', '.join(f'{what} {seconds:.1f} s' for what, seconds in took.items())}")
    assert len(query(store, TOKENS)) > SHARDS, "several have decided"
    check_audit(store)
