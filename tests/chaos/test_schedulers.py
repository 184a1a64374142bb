"""Three schedulers, twenty schedules of two seconds, repeated SIGKILL and SIGSTOP: every instant is decided once.

The ledger is read with plain SQL and compared with arithmetic that shares no code with the product; then the audit has
to agree.
"""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.chaos.arena import Arena, migrate
from tests.chaos.ledger import check_audit, check_ledger, put_schedules, wait_until_decided
from tests.chaos.worker_arena import FULL
from tests.support import evidence

ROUNDS = 6 if FULL else 2


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(600)
def test_every_instant_is_decided_once(stores: dict[str, str], second_postgres_url: str, tmp_path: Path) -> None:
    """Run on every database and in both modes at the same time: it mostly waits."""
    plays = {
        "sqlite-leader": (stores["sqlite"], "leader"),
        "postgres-leader": (stores["postgres"], "leader"),
        "postgres-lock": (second_postgres_url, "lock"),
    }
    seed = random.SystemRandom().getrandbits(32)
    evidence.note("seed", seed)
    with ThreadPoolExecutor(len(plays)) as pool:
        played = [pool.submit(_play, name, store, mode, seed, tmp_path / name) for name, (store, mode) in plays.items()]
    errors = [error for one in played if (error := one.exception()) is not None]
    if errors:
        raise errors[0] if len(errors) == 1 else BaseExceptionGroup("in several plays", errors)


def _play(name: str, store: str, mode: str, seed: int, folder: Path) -> None:
    try:
        folder.mkdir()
        migrate(store)
        put_schedules(store)
        arena = Arena(store, folder, seed=seed, mode=mode)
        began = time.monotonic()
        try:
            for _ in range(3):
                arena.start()
            wait_until_decided(store, time.time_ns() // 1_000)  # They are working, so the faults hit them at work.
            arena.torment(ROUNDS)
            seconds = time.monotonic() - began
            wait_until_decided(store, time.time_ns() // 1_000)
        finally:
            arena.stop()
        assert arena.faults == {"killed": 2 * ROUNDS, "frozen": 2 * ROUNDS, "terminated": ROUNDS}
        check_ledger(store, seconds)
        check_audit(store)
    except BaseException as error:
        error.add_note(f"in {name}")
        raise
