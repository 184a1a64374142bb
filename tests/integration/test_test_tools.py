"""The tools around the tests: the report of a failed test, and the report of a soak."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import marked
from tests.support.server import free_port
from tests.support.waiting import DEADLINE_S, wait_until

ROOT = Path(__file__).parents[2]
SOMETIMES = """
import sys, subprocess
from pathlib import Path
from tests.support import evidence

def test_that_fails_in_the_second_run():
    evidence.note("seed", 4711)
    with evidence.log_file("node 1").open("wb") as log:
        subprocess.run([sys.executable, "-c", "print('the node stumbled')"], stdout=log, check=True)
    marker = Path(__file__).with_name("runs")
    runs = int(marker.read_text()) + 1 if marker.exists() else 1
    marker.write_text(str(runs))
    assert runs != 2

def test_that_passes():
    evidence.note("seed", 4712)
"""

DEAF = """
import time
from pathlib import Path

def test_that_swallows_the_first_interrupt():
    folder = Path(__file__).parent
    try:
        (folder / "began").touch()
        time.sleep(300)
    except KeyboardInterrupt:
        (folder / "interrupted").touch()
    time.sleep(300)
"""


def _soak(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"{ROOT}/scripts/soak_tests.py", "--reports", f"{folder}/soak", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False)


def test_soak_reports_failed_tests_counts_and_logs(tmp_path: Path) -> None:
    (tmp_path / "test_sometimes.py").write_text(SOMETIMES)
    stale = tmp_path / "soak" / "01-idle" / "failures" / "stale.log"
    stale.parent.mkdir(parents=True)
    stale.write_text("a failure of an earlier soak")
    chosen = ["-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)]
    done = _soak(tmp_path, "--runs", "2", "--conditions", "idle,cpu+disk+reverse", *chosen)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(": ")[2].partition(",")[0] for line in lines if line.startswith("run ")] == [
        "2 passed",
        "1 passed",
    ]
    assert "1 tests failed in 2 runs:" in lines
    assert any("1 of 2" in line and "test_that_fails_in_the_second_run" in line for line in lines)
    log = Path(lines[-1].strip()).read_text()
    for words in ("assert 2 != 2", "4711", "the node stumbled", ".venv/bin/pytest ", "::test_that_fails_in_the_second"):
        assert words in log
    assert "4712" not in log
    assert not list(tmp_path.rglob("synced"))


@pytest.mark.parametrize("conditions", ["warm", "cpu+warm"])
def test_soak_rejects_unknown_conditions(tmp_path: Path, conditions: str) -> None:
    done = _soak(tmp_path, "--conditions", conditions)
    assert done.returncode == 2
    assert "unknown: warm; known are cpu, disk, idle, reverse" in done.stderr


def test_stopped_soak_ends_its_tests_and_its_load(tmp_path: Path) -> None:
    """Also while a test takes the first interrupt for that of a command that it runs."""
    (tmp_path / "test_deaf.py").write_text(DEAF)
    command = [sys.executable, f"{ROOT}/scripts/soak_tests.py", "--reports", f"{tmp_path}/soak", "--conditions", "cpu"]
    chosen = ["-p", "no:cacheprovider", "-s", str(tmp_path)]
    mark = f"SOAK={tmp_path}"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SOAK": str(tmp_path)}
    soak = subprocess.Popen([*command, *chosen], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        wait_until((tmp_path / "began").exists, "the test to begin")
        assert len(marked(mark)) >= 2 + (os.cpu_count() or 1)
        soak.terminate()
        output, _ = soak.communicate(timeout=DEADLINE_S)
    finally:
        soak.kill()
    assert (tmp_path / "interrupted").exists()
    assert b"KeyboardInterrupt" in output
    wait_until(lambda: not marked(mark), "the tests and the load to end")


def test_concurrent_test_runs_get_different_ports() -> None:
    code = (
        "from tests.support import server; server.PORTS = range(31_990, 32_000)\n"
        "print(server.free_port(), flush=True); input()"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    try:
        ports = [run.stdout.readline() for run in runs if run.stdout]
        assert len(set(ports)) == len(runs)
    finally:
        for run in runs:
            run.communicate("\n", timeout=60)
    assert free_port() != free_port()
