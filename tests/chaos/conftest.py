"""Stores of both kinds, for scenarios that run on all of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import PostgresServer


@pytest.fixture
def stores(postgres_url: str, tmp_path: Path) -> dict[str, str]:
    """Create an empty store on each database."""
    return {"sqlite": f"sqlite:///{tmp_path}/headway.db", "postgres": postgres_url}


@pytest.fixture
def second_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """Create another empty database for one test; return its URL."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop(url)
