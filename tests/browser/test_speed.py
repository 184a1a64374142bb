"""The size of the dashboard, and a quick run of its benchmark."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser

from tests.support.browser import BUILT, ROOT

PACKED_BYTES_MAX = 64_000
PATIENCE_S = 280


def test_bundle_is_small(browser: Browser) -> None:
    """The build enforces the limit; this checks its output."""
    files = [BUILT.with_name(name) for name in ("index.html", "app.js", "app.css")]
    assert sum(len(gzip.compress(file.read_bytes())) for file in files) <= PACKED_BYTES_MAX


def test_benchmark_measures_paints_and_filters(browser: Browser, tmp_path: Path) -> None:
    found = tmp_path / "figures.jsonl"
    command = [sys.executable, "-m", "bench", "dashboard", "--quick", "--store", "sqlite", "--json", str(found)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in found.read_text().splitlines()]
    assert {figure["unit"] for figure in figures} == {"s", "ms"}
    assert all(figure["target"] and figure["value"] > 0 for figure in figures)
    assert len(figures) == 8
