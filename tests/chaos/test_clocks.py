"""S11: wrong, stepping, racing and frozen clocks of our processes create, drop and repeat nothing.

The clocks are really wrong: libfaketime stands between the schedulers and the system. The store's clock is right.
"""

import glob
import os
import time
from pathlib import Path

import pytest

from tests.chaos.arena import Arena, headway
from tests.chaos.ledger import check_audit, check_ledger, put_schedules, wait_until_decided

SECONDS = 20


def _libfaketime() -> str:
    found = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")
    if not found:
        pytest.fail("libfaketime is missing") if os.environ.get("CI") else pytest.skip("libfaketime is missing")
    return found[0]


@pytest.mark.postgres
def test_wrong_clocks_change_nothing(postgres_url: str, tmp_path: Path) -> None:
    wrong = [tmp_path / f"clock-{index}" for index in range(2)]
    for file, fault in zip(wrong, ("+3600", "-3600"), strict=True):
        file.write_text(fault)
    assert headway("migrate", store=postgres_url).returncode == 0
    put_schedules(postgres_url, tmp_path)
    arena = Arena(postgres_url, tmp_path, seed=0)
    try:
        for file in wrong:
            arena.start(
                LD_PRELOAD=_libfaketime(),
                FAKETIME_TIMESTAMP_FILE=str(file),
                FAKETIME_NO_CACHE="1",
                FAKETIME_DONT_FAKE_MONOTONIC="1",
            )
        for step in ("-7200", "+7200", "+0 x60", "2027-03-28 00:59:58", "+0"):  # The fourth one stands still.
            time.sleep(SECONDS / 5)
            for file in wrong:
                file.write_text(step)
        wait_until_decided(postgres_url, time.time_ns() // 1_000)
    finally:
        arena.stop()
    check_ledger(postgres_url, SECONDS)
    check_audit(postgres_url)
