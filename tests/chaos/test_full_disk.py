"""A full disk refuses writes clearly; once there is room again, everything goes on without a restart."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.arena import Arena, headway
from tests.chaos.ledger import check_audit, check_ledger, put_schedules, wait_until_decided

FULL_S = 5.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of eight megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_stops_nothing_for_good(small_disk: Path, tmp_path: Path) -> None:
    store = f"sqlite:///{small_disk}/headway.db"
    assert headway("migrate", store=store).returncode == 0
    put_schedules(store, tmp_path)
    arena = Arena(store, tmp_path, seed=0)
    began = time.monotonic()
    try:
        scheduler = arena.start()
        wait_until_decided(store, time.time_ns() // 1_000 + 2_000_000)
        filler = small_disk / "filler"
        _fill(filler)
        refused = headway("enqueue", "work", store=store)
        assert refused.returncode == 5, refused.stderr
        assert "full" in refused.stderr
        time.sleep(FULL_S)
        assert scheduler.poll() is None, "the scheduler did not survive the full disk"
        filler.unlink()
        wait_until_decided(store, time.time_ns() // 1_000)
    finally:
        arena.stop()
    check_ledger(store, time.monotonic() - began - 8)
    check_audit(store)


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(bytes(4096))
        except OSError:
            return
