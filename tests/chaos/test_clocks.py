"""S11: wrong, stepping, racing and frozen clocks of our processes create, drop and repeat nothing.

The clocks are really wrong: libfaketime intercepts the schedulers' calls of the system clock. The store's clock is
right.
"""

import os
import time
from pathlib import Path

import pytest

from tests.chaos.arena import Arena, migrate
from tests.chaos.cluster import libfaketime, set_clock
from tests.chaos.ledger import INTERVAL, check_audit, check_ledger, put_schedules, wait_until_decided
from tests.support.server import ServerMissing

STEPS = ("-7200", "+7200", "+0 x60", "2027-03-28 00:59:58", "+0 x1")  # The fourth clock is frozen.


@pytest.mark.postgres
@pytest.mark.timeout(600)
def test_wrong_clocks_change_nothing(postgres_url: str, tmp_path: Path) -> None:
    try:
        library = libfaketime()
    except ServerMissing as missing:
        pytest.fail(f"missing: {missing}") if os.environ.get("CI") else pytest.skip(f"missing: {missing}")
    wrong = [tmp_path / f"clock-{index}" for index in range(2)]
    for file, fault in zip(wrong, ("+3600", "-3600"), strict=True):
        set_clock(file, fault)
    migrate(postgres_url)
    put_schedules(postgres_url)
    arena = Arena(postgres_url, tmp_path, seed=0)
    began = time.monotonic()
    try:
        for file in wrong:
            arena.start(
                LD_PRELOAD=library,
                FAKETIME_TIMESTAMP_FILE=str(file),
                FAKETIME_NO_CACHE="1",
                FAKETIME_DONT_FAKE_MONOTONIC="1",
            )
        for step in STEPS:
            _wait_for_an_instant(postgres_url)
            for file in wrong:
                set_clock(file, step)
        seconds = time.monotonic() - began
        _wait_for_an_instant(postgres_url)
    finally:
        arena.stop()
    check_ledger(postgres_url, seconds)
    check_audit(postgres_url)


def _wait_for_an_instant(store: str) -> None:
    """Wait until each schedule has decided an instant after now, that is, with the current clocks."""
    wait_until_decided(store, time.time_ns() // 1_000 + INTERVAL)
