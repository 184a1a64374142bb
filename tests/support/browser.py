"""A real browser on the real pages, which records every blocked script and every error of a page."""

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, Request, expect

from tests.support import evidence
from tests.support.server import ServerMissing

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "src" / "headway" / "server" / "static" / "dashboard" / "index.html"
AXE = ROOT / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# A timeout against hanging; `bench` measures latency.
PATIENCE_MS = 60_000
# Injected before the page: records CSP violations, and what a hostile text would execute.
LISTENER = """
window.__refused = [];
window.__ran = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.__refused.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""


def find_browser() -> str:
    """Return the path of a browser."""
    for name in PROGRAMS:
        if found := shutil.which(name):
            return found
    raise ServerMissing("chromium (scripts/install-servers installs it)")


def require_build() -> None:
    """Raise if the pages are not built."""
    if not BUILT.exists():
        raise ServerMissing("the dashboard (make dashboard builds it)")


def launch(playwright: Playwright) -> Browser:
    """Start a headless browser."""
    expect.set_options(timeout=PATIENCE_MS)
    return playwright.chromium.launch(executable_path=find_browser(), args=["--disable-dev-shm-usage"])


@dataclass
class Visit:
    """One user on one page."""

    context: BrowserContext
    page: Page
    url: str
    problems: list[str] = field(default_factory=list)
    expects: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def open(self, path: str = "") -> Page:
        """Open a page by its path below `#/`; the same path again reloads it."""
        self.page.goto(f"{self.url}/#/{path}")
        return self.page

    def slow_down(self, times: int) -> None:
        """Throttle the CPU of the page by this factor."""
        self.context.new_cdp_session(self.page).send("Emulation.setCPUThrottlingRate", {"rate": times})

    def hear(self, said: ConsoleMessage) -> None:
        """Record the console output and its errors."""
        self.said.append(f"console: {said.type}: {said.text}")
        if said.type == "error":
            self.problems.append(f"console: {said.text}")

    def miss(self, asked: Request) -> None:
        """Record a failed request."""
        self.said.append(f"{asked.method} {asked.url}: {asked.failure}")

    def refused(self) -> list[str]:
        """Return what the policy of the page blocked, and what ran although it must not."""
        return list(self.page.evaluate("[...window.__refused, ...window.__ran]"))

    def check(self) -> None:
        """Fail if anything went wrong that is not visible."""
        assert self.refused() == []
        found = [text for text in self.problems if not any(re.search(known, text) for known in self.expects)]
        assert found == []


@contextlib.contextmanager
def visiting(browser: Browser, url: str, **options: Any) -> Iterator[Visit]:
    """Open a separate browser context: no cookies, no storage. Check at the end that nothing went wrong."""
    given = {"viewport": {"width": 1280, "height": 720}, "locale": "en-GB", "timezone_id": "Europe/Berlin", **options}
    context = browser.new_context(**given)
    context.add_init_script(LISTENER)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    visit = Visit(context, page, url)
    page.on("pageerror", lambda error: visit.problems.append(f"error: {error}"))
    page.on("console", visit.hear)
    page.on("requestfailed", visit.miss)
    page.on("framenavigated", lambda frame: visit.said.append(f"at {frame.url}"))
    evidence.attach(f"browser at {url}", lambda: "\n".join([*visit.said, *visit.problems]))
    try:
        yield visit
        visit.check()
    finally:
        context.close()
