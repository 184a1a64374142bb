"""Run every test of this folder on SQLite in memory, SQLite in a file and PostgreSQL, with the same expectations."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from headway.store import Store, postgres, primary, sqlite
from tests.conformance.backend import Backend, PostgresBackend, SqliteBackend, make_template, stepping
from tests.support.postgres import PostgresServer, database_name
from tests.support.waiting import DEADLINE_S

SHARED = ["sqlite-file", pytest.param("postgres", marks=pytest.mark.postgres)]
ALL = ["sqlite-memory", *SHARED]


@pytest.fixture(scope="session")
def postgres_databases(postgres_server: PostgresServer) -> "Databases":
    """Provide migrated databases; they are emptied and reused, which is faster than a new copy."""
    url = postgres_server.create_database()
    with ThreadPoolExecutor(1) as thread:  # The fixture may be requested while an event loop runs here.
        thread.submit(asyncio.run, make_template(url)).result(timeout=DEADLINE_S)
    return Databases(postgres_server, url)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the store's timeouts, so that no test depends on the machine. Tests of timeouts set their own."""
    for module, names in (
        (sqlite, ("STATEMENT_S_MAX", "BUSY_S_MAX")),
        (postgres, ("STATEMENT_S_MAX", "IDLE_S_MAX", "PROBE_S_MAX", "CLOSE_S_MAX")),
        (primary, ("CONNECT_S_MAX", "IDENTIFY_S_MAX")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, DEADLINE_S)


@pytest.fixture(params=ALL)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """Provide a database for one test."""
    async with _opened(request, tmp_path) as backend:
        yield backend


@pytest.fixture(params=SHARED)
async def shared(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """Provide a database that several connections can reach, for races: `another()` opens a second store on it."""
    async with _opened(request, tmp_path) as backend:
        yield backend


@pytest.fixture
def store(backend: Backend) -> Store:
    """Return the store of `backend`."""
    return backend.store


class Databases:
    """Copies of a template, reused in turn."""

    def __init__(self, server: PostgresServer, template: str) -> None:
        self._server = server
        self._template = template
        self._free: list[str] = []
        self._numbers = itertools.count(1)

    def take(self) -> str:
        """Return the URL of an empty database."""
        if self._free:
            return self._free.pop()
        name = f"conformance_{next(self._numbers)}"
        copy = "create database {} template {} strategy file_copy"
        names = sql.Identifier(name), sql.Identifier(database_name(self._template))
        self._server.execute(sql.SQL(copy).format(*names))
        return self._server.url(name)

    def give_back(self, url: str) -> None:
        """Empty a database for the next test, or drop it if a connection is still open."""
        try:
            with psycopg.connect(url, autocommit=True, connect_timeout=60) as connection:
                connection.execute("set lock_timeout = '2s'")
                connection.execute(EMPTY)
        except psycopg.Error:
            self.drop(url)
        else:
            self._free.append(url)

    def drop(self, url: str) -> None:
        """Drop a database that cannot be reused."""
        self._server.drop(url)


# The audit log rejects deletions, so this connection disables its triggers.
EMPTY = """
set session_replication_role = replica;
truncate headway_schedules, headway_revisions, headway_occurrences, headway_jobs, headway_attempts, headway_events,
  headway_leases, headway_nodes, headway_log, headway_steps, headway_queues, headway_followed, headway_feed,
  headway_endpoints, headway_deliveries, headway_tokens, headway_actions, headway_sessions, headway_windows,
  headway_limits, headway_limit_revisions, headway_gates, headway_tenants, headway_shares, headway_lanes, headway_rings,
  headway_groups, headway_deltas
  restart identity;
delete from headway_counters where name like 'origin|%';
update headway_counters set value = 0;
update headway_clock.shift set by = 0;
"""


@asynccontextmanager
async def _opened(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Backend]:
    async with AsyncExitStack() as stack:
        backend: Backend
        if request.param == "postgres":
            databases: Databases = request.getfixturevalue("postgres_databases")
            url = databases.take()
            stack.callback(databases.give_back, url)
            backend = PostgresBackend(url)
        elif request.param == "sqlite-memory":
            backend = SqliteBackend(":memory:", stepping())
        else:
            backend = SqliteBackend(str(folder / "headway.db"), stepping())
        stack.push_async_callback(backend.close)
        await backend.start()
        yield backend
