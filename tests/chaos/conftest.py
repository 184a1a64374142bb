"""Stores of both kinds for scenarios that are played on all of them."""

from pathlib import Path

import pytest


@pytest.fixture
def stores(postgres_url: str, tmp_path: Path) -> dict[str, str]:
    """An empty store on each database."""
    return {"sqlite": f"sqlite:///{tmp_path}/headway.db", "postgres": postgres_url}
