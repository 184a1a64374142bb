"""A full disk rejects writes clearly; once there is room again, everything continues without a restart."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.arena import Arena, headway, migrate
from tests.chaos.ledger import INTERVAL, check_audit, check_ledger, put_schedules, wait_until_decided
from tests.support.waiting import wait_until

FULL = "database or disk is full"
SUSPENDED = "no_longer_leading role=scheduler/0"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of eight megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_schedulers_recover_from_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    store = f"sqlite:///{small_disk}/headway.db"
    migrate(store)
    put_schedules(store)
    arena = Arena(store, tmp_path, seed=0)
    began = time.monotonic()
    try:
        scheduler = arena.start()
        wait_until_decided(store, time.time_ns() // 1_000 + INTERVAL)
        filler = small_disk / "filler"
        _fill(filler)
        # The store's files may have room for a few more, and on a slow machine one may be rejected for another reason.
        [refused] = wait_until(lambda: _refusals(store), "a job to be rejected because the disk is full")
        assert refused.returncode == 5, refused.stderr
        assert "free space on its disk" in refused.stderr
        wait_until(lambda: _is_said_to_be_full(store), "`status` to report a full store, not that no node is alive")
        wait_until(
            lambda: arena.said(FULL) and arena.said(SUSPENDED),
            "the scheduler to notice, for longer than its lease",
        )
        assert scheduler.poll() is None, "the scheduler did not survive the full disk"
        filler.unlink()
        seconds = time.monotonic() - began
        wait_until_decided(store, time.time_ns() // 1_000)
        assert scheduler.poll() is None, "the scheduler did not survive the full disk"
    finally:
        arena.stop()
    check_ledger(store, seconds)
    check_audit(store)


def _is_said_to_be_full(store: str) -> bool:
    said = headway("status", store=store)
    return "the store is full" in said.stdout and "no scheduler is alive" not in said.stdout


def _refusals(store: str) -> list[subprocess.CompletedProcess[str]]:
    enqueued = headway("enqueue", "work", store=store)
    return [enqueued] if "full" in enqueued.stderr else []


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(bytes(4096))
        except OSError:
            return
