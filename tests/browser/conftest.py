"""Fixtures of the browser tests: one browser, one server with scheduler, worker and API, and one visitor per test."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.tasks import NASTY_NAME
from tests.support.api import ApiProcess, api_process
from tests.support.browser import Visit, find_browser, launch, require_build, visiting
from tests.support.server import ServerMissing

NODE = f"here{NASTY_NAME}"  # The hostile name is visible on all pages.
APP = ("--app", "tests.browser.tasks:app", "--processes", "1", "--node", NODE, "--grace", "0s", "--worker-lease", "10m")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test in this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser for this folder. Closed before other folders run: it keeps a loop running in this thread."""
    try:
        find_browser()
        require_build()
    except ServerMissing as missing:
        if os.environ.get("CI"):
            pytest.fail(f"missing: {missing}")
        pytest.skip(f"missing: {missing}")
    with sync_playwright() as playwright:
        made = launch(playwright)
        yield made
        made.close()


@pytest.fixture(scope="package")
def headway_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    """A server without tokens, with scheduler, worker and API."""
    store = f"sqlite:///{tmp_path_factory.mktemp('server')}/headway.db"
    with api_process(store, *APP, role="serve", env={"HEADWAY_SQLITE_SYNCHRONOUS": "normal"}) as server:
        yield server


@pytest.fixture(scope="package")
def api(headway_server: ApiProcess) -> Iterator[httpx.Client]:
    """A client of the API of the server."""
    with headway_server.client() as client:
        yield client


@pytest.fixture
def visit(browser: Browser, headway_server: ApiProcess) -> Iterator[Visit]:
    """A visitor with a browser."""
    with visiting(browser, headway_server.url) as made:
        yield made
