"""Eight shards over three schedulers: evenly spread, also after one has joined, left, died or frozen.

`headway status` shows it; afterwards every instant has exactly one decision.
"""

import json
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.arena import STOP_S_MAX, Arena, headway, migrate
from tests.chaos.ledger import INTERVAL, check_audit, put_schedules, query, wait_until_decided
from tests.chaos.worker_arena import FULL
from tests.support.waiting import wait_until

SHARDS = 8
TOKENS = "select distinct token from headway_occurrences"
HOLDERS = "select holder_name from headway_leases where name like 'scheduler/%' and until > {now}"


def _held(store: str) -> Counter[str]:
    """Return how many shards each node holds; by SQL, since repeated commands would keep the machine busy."""
    return Counter(name for (name,) in query(store, HOLDERS.format(now=time.time_ns() // 1_000)))


def _shown(store: str) -> Counter[str]:
    """Return the same as `headway status` shows it; empty if the store does not answer in time."""
    found = json.loads(headway("status", "--json", store=store).stdout or '{"shards": []}')
    return Counter(shard["name"] for shard in found["shards"])


def _wait_until_spread(store: str, over: set[str]) -> float:
    """Wait until these nodes hold all shards evenly; return how long it took."""
    began = time.monotonic()

    def is_spread() -> bool:
        held = _held(store)
        return {*held} == over and held.total() == SHARDS and max(held.values()) - min(held.values()) <= 1

    wait_until(is_spread, f"the shards to be spread over {sorted(over)}", every_s=0.1)
    return time.monotonic() - began


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "database",
    [
        pytest.param("sqlite", marks=pytest.mark.skipif(not FULL, reason="the long version has both databases")),
        pytest.param("postgres", marks=pytest.mark.postgres),
    ],
)
def test_shards_spread_over_live_schedulers(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = f"sqlite:///{tmp_path}/headway.db" if database == "sqlite" else request.getfixturevalue("postgres_url")
    migrate(store)
    put_schedules(store)
    arena = Arena(store, tmp_path, seed=0)
    shards = {"HEADWAY_SCHEDULER_SHARDS": str(SHARDS)}
    took: dict[str, float] = {}
    try:
        arena.start(**shards)
        arena.start(**shards)
        _wait_until_spread(store, {"scheduler-1", "scheduler-2"})
        wait_until_decided(store, time.time_ns() // 1_000)
        arena.start(**shards)
        everyone = {"scheduler-1", "scheduler-2", "scheduler-3"}
        took["joined"] = _wait_until_spread(store, everyone)
        assert {*wait_until(lambda: _shown(store), "the status")} <= everyone
        third = arena.processes[2]
        third.send_signal(signal.SIGSTOP)
        took["frozen"] = _wait_until_spread(store, everyone - {"scheduler-3"})
        third.send_signal(signal.SIGCONT)
        took["thawed"] = _wait_until_spread(store, everyone)
        third.kill()
        third.wait(STOP_S_MAX)
        took["killed"] = _wait_until_spread(store, everyone - {"scheduler-3"})
        arena.processes[1].terminate()
        took["left"] = _wait_until_spread(store, {"scheduler-1"})
        # The number of live nodes comes after it; a killed one counts for a while. A lease that expired on a slow
        # machine is
        # acquired again.
        alone = f"{SHARDS} shards: scheduler-1 {SHARDS}  ("
        wait_until(lambda: alone in headway("status", store=store).stdout, f"the status to say {alone!r}")
        wait_until_decided(store, time.time_ns() // 1_000 + INTERVAL)  # An instant with the current leases.
    finally:
        arena.stop()
    print(f"{database}: {', '.join(f'{what} {seconds:.1f} s' for what, seconds in took.items())}")
    assert len(query(store, TOKENS)) > SHARDS, "several nodes have decided"
    check_audit(store)
