"""The chart in docs/lifecycle.md is generated from the code."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.core.lifecycle import FINAL, Status

SCRIPT = Path(__file__).parents[2] / "scripts" / "lifecycle_chart.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_page_is_up_to_date(script: dict[str, Any]) -> None:
    page = script["PAGE"].read_text()
    assert page == script["renewed"](page), "docs/lifecycle.md is stale: run python scripts/lifecycle_chart.py"


def test_edited_page_is_detected(script: dict[str, Any]) -> None:
    page = script["PAGE"].read_text().replace("PENDING --> RUNNING: claim", "PENDING --> COMPLETED: claim")
    assert page != script["renewed"](page)


def test_page_without_markers_is_rejected(script: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match="lacks the marks"):
        script["renewed"]("no marks here")


def test_every_status_is_reachable_and_final_ones_have_no_exit(script: dict[str, Any]) -> None:
    transitions: Callable[[], list[tuple[str, Status, Status]]] = script["transitions"]
    sources = {source for _, source, _ in transitions()}
    targets = {target for _, _, target in transitions()}
    assert sources == set(Status) - FINAL
    assert targets >= FINAL | {Status.PENDING, Status.RUNNING, Status.RETRYING}
