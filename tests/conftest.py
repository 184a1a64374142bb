"""Servers for the tests that need them, started when the first one does."""

import os
import signal
from collections.abc import Iterator
from typing import NoReturn

import pytest

from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer
from tests.support.server import ServerMissing

# Whoever starts the tests in the background may have had these signals ignored, and so would the processes under test.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL for the whole run. A test that stops or restarts it makes its own."""
    try:
        server = PostgresServer()
    except ServerMissing as missing:
        _do_without(missing)
    with server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of an empty database of this test's own."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop(url)


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """One PgBouncer in transaction mode; `pgbouncer.url(postgres_url)` leads to a database through it."""
    try:
        bouncer = PgBouncer(postgres_server)
    except ServerMissing as missing:
        _do_without(missing)
    with bouncer:
        yield bouncer


def _do_without(missing: ServerMissing) -> NoReturn:
    """Skip on a developer's machine; fail where everything must have been tested."""
    if os.environ.get("CI"):
        pytest.fail(f"missing: {missing}")
    pytest.skip(f"missing: {missing}")
