"""The benchmarks run and report their figures; the speed of this machine does not matter."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.peers.catalogue import PEERS
from tests.support.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
PATIENCE_S = 560  # A safety net: all of them in one run, on a busy machine.
pytestmark = pytest.mark.timeout(PATIENCE_S + 40)
STORES = ("postgresql", "sqlite")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def figures_of(folder: Path, *arguments: str) -> tuple[list[dict[str, Any]], subprocess.CompletedProcess[str]]:
    """Run benchmarks in quick mode; check that every figure is also in the printed table."""
    found = folder / "figures.jsonl"
    done = bench("--quick", *arguments, "--json", str(found))
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in found.read_text().splitlines()]
    for figure in figures:
        assert figure["what"] in done.stdout
        assert figure["ratio"] is None or f"{figure['ratio']:.2f}" in done.stdout
    return figures, done


@dataclass(frozen=True)
class Found:
    """The results of one run of all benchmarks."""

    figures: list[dict[str, Any]]
    stderr: str

    def of(self, *names: str) -> list[dict[str, Any]]:
        return [figure for figure in self.figures if figure["bench"] in names]


@pytest.fixture(scope="module")
def found(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """One run with one PostgreSQL for all benchmarks."""
    names = ("decide", "enqueue", "drain", "latency", "flat", "worker-idle", "sleepers")
    figures, done = figures_of(tmp_path_factory.mktemp("bench"), *names)
    return Found(figures, done.stderr)


@pytest.mark.postgres
@pytest.mark.slow
def test_scheduler_is_compared_with_the_bare_database(found: Found) -> None:
    figures = found.of("decide", "enqueue")
    compared = {(figure["bench"], figure["store"]) for figure in figures if figure["ratio"]}
    assert compared == {(bench, store) for bench in ("decide", "enqueue") for store in STORES}
    assert all(figure["value"] > 0 for figure in figures)


@pytest.mark.postgres
@pytest.mark.slow
def test_worker_is_measured_without_peers(found: Found) -> None:
    figures = found.of("drain", "latency", "flat")
    measured = {(figure["bench"], figure["store"]) for figure in figures}
    assert measured == {(bench, store) for bench in ("drain", "latency", "flat") for store in STORES}
    assert all(figure["value"] > 0 for figure in figures)
    assert "left out: every comparison with peers" in found.stderr


@pytest.mark.postgres
@pytest.mark.slow
def test_idle_and_sleeping_workers_are_measured(found: Found) -> None:
    figures = found.of("worker-idle", "sleepers")
    measured = {(figure["bench"], figure["store"]) for figure in figures}
    assert measured == {(bench, store) for bench in ("worker-idle", "sleepers") for store in STORES}
    writes = [figure["value"] for figure in figures if "progress writes of a job" in figure["what"]]
    assert len(writes) == len(STORES)
    assert all(rate >= 0 for rate in writes)  # The rate depends on the machine.
    for figure in figures:
        if "attempts beyond the first" in figure["what"]:
            assert figure["value"] == 0
        if "memory" in figure["what"]:
            assert 1 < figure["value"] < 1_000


@pytest.mark.slow
@pytest.mark.skipif(PEERS["huey-sqlite"].missing() is not None, reason="bench/peers/setup has not been run")
def test_peer_is_measured_beside_headway(tmp_path: Path) -> None:
    figures, _ = figures_of(tmp_path, "drain", "latency", "--store", "sqlite", "--peers", "huey-sqlite")
    against = {figure["bench"] for figure in figures if "against huey-sqlite" in figure["what"] and figure["ratio"] > 0}
    assert against == {"drain", "latency"}


def error_of(*arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error message of the benchmark command line."""
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_unknown_benchmark_is_rejected(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    message = error_of("nothing", monkeypatch=monkeypatch, capsys=capsys)
    assert "no benchmark is named 'nothing'" in message


def test_unknown_peer_is_rejected(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    message = error_of("drain", "--peers", "pgqueuer,nobody", monkeypatch=monkeypatch, capsys=capsys)
    assert "no peer is named 'nobody'" in message
