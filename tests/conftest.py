"""Servers that tests share, started on first use, and the report of a failed test."""

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

# A background process group may ignore these signals, and the processes under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_runtest_logstart() -> None:
    """Start collecting the output of this test."""
    evidence.begin_test()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the output of every server and node, and the command that reruns the test, to the report of a failure."""
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
    """Write a failure to a file of its own if `scripts/run_tests.py` asks for it."""
    if folder := os.environ.get("SUITE_FAILURES"):
        name = re.sub(r"[^\w.-]+", "-", report.nodeid)[-150:]
        path = Path(folder) / f"{name}.{report.when}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = [f"---- {title} ----\n{text}" for title, text in report.sections]
        path.write_text("\n".join([report.nodeid, report.longreprtext, *parts, ""]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests in reverse order if asked: no test may depend on an earlier one."""
    if os.environ.get("SUITE_ORDER") == "reverse":
        items.reverse()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Start one PostgreSQL for the whole run. Tests that stop or restart it start their own."""
    try:
        server = PostgresServer()
    except ServerMissing as missing:
        _do_without(missing)
    with server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """Create an empty database for one test; return its URL."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop(url)


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """Start one PgBouncer in transaction mode; `pgbouncer.url(postgres_url)` connects to a database through it."""
    try:
        bouncer = PgBouncer(postgres_server)
    except ServerMissing as missing:
        _do_without(missing)
    with bouncer:
        yield bouncer


def _do_without(missing: ServerMissing) -> NoReturn:
    """Skip on a developer's machine; fail where every test must run."""
    if os.environ.get("CI"):
        pytest.fail(f"missing: {missing}")
    pytest.skip(f"missing: {missing}")
