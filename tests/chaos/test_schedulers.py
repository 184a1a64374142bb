"""Three schedulers, twenty schedules of two seconds, half a minute of SIGKILL and SIGSTOP: every instant decided once.

The ledger is read with plain SQL and compared with arithmetic that shares no code with the product; then
`headway audit` has to come to the same verdict.
"""

import random
import time
from pathlib import Path

import pytest

from tests.chaos.arena import Arena, headway
from tests.chaos.ledger import check_audit, check_ledger, put_schedules, wait_until_decided
from tests.chaos.worker_arena import FULL


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("database", "mode", "seconds"),
    [
        pytest.param("sqlite", "leader", 60 if FULL else 30, id="sqlite-leader"),
        pytest.param("postgres", "leader", 60 if FULL else 30, id="postgres-leader", marks=pytest.mark.postgres),
        pytest.param("postgres", "lock", 25, id="postgres-lock", marks=pytest.mark.postgres),
    ],
)
def test_every_instant_is_decided_once(
    database: str, mode: str, seconds: float, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = f"sqlite:///{tmp_path}/headway.db" if database == "sqlite" else request.getfixturevalue("postgres_url")
    assert headway("migrate", store=store).returncode == 0
    put_schedules(store, tmp_path)
    arena = Arena(store, tmp_path, seed=random.SystemRandom().getrandbits(32), mode=mode)
    print(f"seed {arena.seed}")
    try:
        for _ in range(3):
            arena.start()
        arena.torment(seconds)
        wait_until_decided(store, time.time_ns() // 1_000)
    finally:
        arena.stop()
    assert min(arena.faults["killed"], arena.faults["frozen"]) >= 2, arena.faults
    check_ledger(store, seconds)
    check_audit(store)
