"""The benchmarks run and say what they found; how fast this machine is does not matter here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
PATIENCE_S = 100


@pytest.mark.postgres
@pytest.mark.slow
def test_the_benchmarks_print_their_ratios(postgres_server: PostgresServer, tmp_path: Path) -> None:
    found = tmp_path / "figures.jsonl"
    command = [sys.executable, "-m", "bench", "--quick", "decide", "enqueue", "--json", str(found)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in found.read_text().splitlines()]
    compared = {(figure["bench"], figure["store"]) for figure in figures if figure["ratio"]}
    assert compared == {(bench, store) for bench in ("decide", "enqueue") for store in ("postgresql", "sqlite")}
    for figure in figures:
        assert figure["value"] > 0
        assert figure["what"] in done.stdout
        assert figure["ratio"] is None or f"{figure['ratio']:.2f}" in done.stdout


def test_an_unknown_benchmark_is_refused() -> None:
    command = [sys.executable, "-m", "bench", "nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert "no benchmark is named 'nothing'" in done.stderr
