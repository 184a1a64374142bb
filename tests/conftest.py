"""Servers for the tests that need them, started when the first one does, and what a failed test reports."""

import os
import re
import shlex
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support import evidence
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer
from tests.support.server import ServerMissing

# Whoever starts the tests in the background may have had these signals ignored, and so would the processes under test.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_runtest_logstart() -> None:
    """Start collecting what belongs to this test."""
    evidence.begin_test()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the output of every server and node, and the command that runs the test alone, to a failure."""
    try:
        report = yield
    except SystemError:  # Python 3.11 cannot always parse the source of a test while other threads run.
        item.config.option.tbstyle = "native"
        report = pytest.TestReport.from_item_and_call(item, call)
        item.config.option.tbstyle = "auto"
    if report.failed:
        report.sections += evidence.sections()
        report.sections.append(("run it alone", f".venv/bin/pytest {shlex.quote(item.nodeid)}"))
        _keep(report)
    return report


def _keep(report: pytest.TestReport) -> None:
    """Write a failure to a file of its own where `scripts/run_tests.py` asks for it."""
    if folder := os.environ.get("SUITE_FAILURES"):
        name = re.sub(r"[^\w.-]+", "-", report.nodeid)[-150:]
        path = Path(folder) / f"{name}.{report.when}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = [f"---- {title} ----\n{text}" for title, text in report.sections]
        path.write_text("\n".join([report.nodeid, report.longreprtext, *parts, ""]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests in reverse where that is asked for: no test may need another one to come first."""
    if os.environ.get("SUITE_ORDER") == "reverse":
        items.reverse()


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
