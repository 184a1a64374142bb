"""The benchmarks run and say what they found; how fast this machine is does not matter here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.peers.catalogue import PEERS
from tests.support.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
PATIENCE_S = 220  # With others beside it.
pytestmark = pytest.mark.timeout(PATIENCE_S + 20)
STORES = ("postgresql", "sqlite")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def figures_of(folder: Path, *arguments: str) -> tuple[list[dict[str, Any]], subprocess.CompletedProcess[str]]:
    """Run benchmarks in their quick sizes; every figure that they found is also in the table that they print."""
    found = folder / "figures.jsonl"
    done = bench("--quick", *arguments, "--json", str(found))
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in found.read_text().splitlines()]
    for figure in figures:
        assert figure["what"] in done.stdout
        assert figure["ratio"] is None or f"{figure['ratio']:.2f}" in done.stdout
    return figures, done


@pytest.mark.postgres
@pytest.mark.slow
def test_the_scheduler_is_compared_with_the_bare_database(postgres_server: PostgresServer, tmp_path: Path) -> None:
    figures, _ = figures_of(tmp_path, "decide", "enqueue")
    compared = {(figure["bench"], figure["store"]) for figure in figures if figure["ratio"]}
    assert compared == {(bench, store) for bench in ("decide", "enqueue") for store in STORES}
    assert all(figure["value"] > 0 for figure in figures)


@pytest.mark.postgres
@pytest.mark.slow
def test_the_worker_is_measured_without_peers(postgres_server: PostgresServer, tmp_path: Path) -> None:
    figures, done = figures_of(tmp_path, "drain", "latency", "flat")
    measured = {(figure["bench"], figure["store"]) for figure in figures}
    assert measured == {(bench, store) for bench in ("drain", "latency", "flat") for store in STORES}
    assert all(figure["value"] > 0 for figure in figures)
    assert "left out: every comparison with peers" in done.stderr


@pytest.mark.postgres
@pytest.mark.slow
def test_idle_and_sleeping_workers_are_watched(postgres_server: PostgresServer, tmp_path: Path) -> None:
    figures, _ = figures_of(tmp_path, "worker-idle", "sleepers")
    measured = {(figure["bench"], figure["store"]) for figure in figures}
    assert measured == {(bench, store) for bench in ("worker-idle", "sleepers") for store in STORES}
    for figure in figures:
        if "attempts beyond the first" in figure["what"]:
            assert figure["value"] == 0
        if "memory" in figure["what"]:
            assert 1 < figure["value"] < 1_000
        if "progress writes of a job" in figure["what"]:
            assert 0.5 < figure["value"] <= 3


@pytest.mark.slow
@pytest.mark.skipif(PEERS["huey-sqlite"].missing() is not None, reason="bench/peers/setup has not been run")
def test_a_peer_is_measured_beside_headway(tmp_path: Path) -> None:
    figures, _ = figures_of(tmp_path, "drain", "latency", "--store", "sqlite", "--peers", "huey-sqlite")
    against = {figure["bench"] for figure in figures if "against huey-sqlite" in figure["what"] and figure["ratio"] > 0}
    assert against == {"drain", "latency"}


def test_an_unknown_benchmark_is_refused() -> None:
    done = bench("nothing")
    assert done.returncode == 2
    assert "no benchmark is named 'nothing'" in done.stderr


def test_an_unknown_peer_is_refused() -> None:
    done = bench("drain", "--peers", "pgqueuer,nobody")
    assert done.returncode == 2
    assert "no peer is named 'nobody'" in done.stderr
