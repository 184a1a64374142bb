"""Fixtures for several modules: the command line, migrated databases, an API on each kind of store."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.store import open_driver
from headway.store.migrations import migrate
from tests.support.command_line import Cli, be_patient
from tests.support.house import House, house
from tests.support.postgres import PostgresServer


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.chdir(tmp_path)
    for name in ("HEADWAY_STORE", "HEADWAY_APP", "HEADWAY_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADWAY_SQLITE_SYNCHRONOUS", "normal")  # Hundreds of commands would be slow with fsync.
    monkeypatch.setattr(sys, "path", [*sys.path])
    be_patient(monkeypatch)
    yield Cli(capsys, tmp_path)
    for name in ("shop", "broken", "empty"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="session")
def migrated_database(postgres_server: PostgresServer) -> str:
    """The URL of a migrated, empty database that serves as a template only."""
    url = postgres_server.create_database()

    async def prepare() -> None:
        driver = open_driver(url)
        await migrate(driver)
        await driver.close()

    asyncio.run(prepare())
    return url


@pytest.fixture
def migrated_url(postgres_server: PostgresServer, migrated_database: str) -> Iterator[str]:
    """The URL of a migrated database for this test."""
    url = postgres_server.create_database(template=migrated_database)
    yield url
    postgres_server.drop(url)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """An API with its tokens and clients, on SQLite and on PostgreSQL, for all tests of a module."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('home')}/headway.db"
    else:
        template = request.getfixturevalue("migrated_database")
        url = request.getfixturevalue("postgres_server").create_database(template=template)
    with house(url) as built:
        yield built
