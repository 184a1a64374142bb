"""One browser, one server with scheduler, worker and API, and one person in front of it, for every test."""

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

NODE = f"here{NASTY_NAME}"  # What is hostile is seen beside everything else.
APP = ("--app", "tests.browser.tasks:app", "--processes", "1", "--node", NODE, "--grace", "0s", "--worker-lease", "10m")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser for this folder. It must be gone when others come: it keeps a loop running in this very thread."""
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
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    """A server without tokens, with everything in it."""
    store = f"sqlite:///{tmp_path_factory.mktemp('house')}/headway.db"
    with api_process(store, *APP, role="serve", env={"HEADWAY_SQLITE_SYNCHRONOUS": "normal"}) as server:
        yield server


@pytest.fixture(scope="package")
def api(house: ApiProcess) -> Iterator[httpx.Client]:
    """Asks the server without a browser."""
    with house.client() as client:
        yield client


@pytest.fixture
def visit(browser: Browser, house: ApiProcess) -> Iterator[Visit]:
    """Somebody with a browser."""
    with visiting(browser, house.url) as made:
        yield made
