"""Accessibility: axe, keyboard, phones, dark mode, reduced motion."""

import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.test_actions import enqueue, wait_ended
from tests.support.api import ApiProcess
from tests.support.browser import AXE, Visit, visiting

PAGES = (
    *("", "jobs", "jobs/{failed}", "schedules", "schedules/nightly", "queues", "problems", "settings"),
    *("limits", "limits/queue%3Aseen", "tenants", "tenants/seen"),
)
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
RUN_AXE = """async (rules) => {
  const found = await axe.run(document, {resultTypes: ["violations"], runOnly: rules});
  return found.violations
    .filter((it) => ["serious", "critical"].includes(it.impact))
    .map((it) => `${it.id}: ${it.help}: ${it.nodes.slice(0, 3).map((node) => node.html.slice(0, 200)).join(" | ")}`);
}"""
# In one call: a page that follows a job may draw an element anew between finding and measuring it.
SMALL_TARGETS = """
[...document.querySelectorAll("button, main a.button, input[type=checkbox]")].filter(it => {
  const box = (it.closest("label") ?? it).getBoundingClientRect();
  return it.checkVisibility() && (box.width < 24 || box.height < 24);
}).map(it => it.outerHTML)
"""


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe."""
    if not AXE.exists():
        if os.environ.get("CI"):
            pytest.fail("missing: axe-core (make dashboard installs it)")
        pytest.skip("missing: axe-core (make dashboard installs it)")
    return AXE.read_text()


@pytest.fixture(scope="module")
def failed(api: httpx.Client) -> str:
    """A failed job."""
    job_id = enqueue(api, "fail", tags=["shown"], tenant="seen", queue="seen")
    wait_ended(api, job_id)
    api.put("/api/limits/queue:seen", json={"concurrency": 5, "rate": "10/s", "burst": 20})
    api.put("/api/limits/seen-*", json={"concurrency": 1})
    api.put("/api/tenants/seen", json={"weight": 4, "wait_slo": "1us"})
    return job_id


def open_page(visit: Visit, path: str) -> Page:
    page = visit.open(path)
    expect(page.locator("main h1")).to_have_count(1)
    expect(page.locator(".loading")).to_have_count(0)
    return page


@pytest.mark.parametrize(("theme", "rules"), [("light", RULES), ("dark", ["color-contrast"])])
def test_axe_finds_nothing_serious(
    browser: Browser, headway_server: ApiProcess, axe: str, failed: str, theme: str, rules: list[str]
) -> None:
    with visiting(browser, headway_server.url, color_scheme=theme, reduced_motion="reduce") as visit:
        found = {}
        for path in PAGES:
            page = open_page(visit, path.format(failed=failed))
            page.evaluate(axe)
            found[path] = page.evaluate(RUN_AXE, rules)
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_visible()
        found["help"] = page.evaluate(RUN_AXE, rules)
        page.keyboard.press("Escape")
        for path in ("limits?new=1", "tenants?new=1"):
            page = open_page(visit, path)
            expect(page.get_by_role("dialog")).to_be_visible()
            page.evaluate(axe)
            found[path] = page.evaluate(RUN_AXE, rules)
    assert {path: problems for path, problems in found.items() if problems} == {}


def test_phone_layout_has_no_horizontal_scrolling(browser: Browser, headway_server: ApiProcess, failed: str) -> None:
    with visiting(
        browser, headway_server.url, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True
    ) as visit:
        for path in PAGES:
            page = open_page(visit, path.format(failed=failed))
            width = page.evaluate("document.scrollingElement.scrollWidth")
            assert width <= 360, (path, width)
            small = page.evaluate(SMALL_TARGETS)
            assert small == [], path


def test_theme_follows_the_system_and_the_toggle(browser: Browser, headway_server: ApiProcess) -> None:
    def is_dark(page: Page) -> bool:
        colour: list[int] = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        return sum(colour[:3]) < 3 * 80

    with visiting(browser, headway_server.url, color_scheme="dark") as visit:
        page = open_page(visit, "")
        assert is_dark(page)
        page.emulate_media(color_scheme="light")
        assert not is_dark(page)
        toggle = page.get_by_role("button", name="the theme")
        for _ in range(3):
            toggle.click()
            if is_dark(page):
                break
        assert is_dark(page)
        page.reload()
        expect(page.locator("main h1")).to_have_count(1)
        assert is_dark(page)  # The choice is stored.


def focused(page: Page) -> dict[str, Any]:
    """Return the focused element, and whether the focus is visible."""
    found: dict[str, Any] = page.evaluate(
        "(() => { const it = document.activeElement, style = getComputedStyle(it);"
        " return {text: it.textContent.trim(), tag: it.tagName, role: it.getAttribute('role'),"
        " seen: style.outlineStyle !== 'none' || style.boxShadow !== 'none'}; })()"
    )
    return found


@pytest.mark.parametrize("slower", [1, 10], ids=["", "slow-machine"])
def test_all_actions_by_keyboard(visit: Visit, api: httpx.Client, failed: str, slower: int) -> None:
    """A key works as soon as the page shows that it does, however long the page takes to settle."""
    tag = f"typed-{slower}"
    job_id = enqueue(api, "fail", tags=[tag])
    wait_ended(api, job_id)
    visit.slow_down(slower)
    page = open_page(visit, "")
    page.keyboard.press("Tab")
    assert focused(page)["text"].startswith("Skip")
    for _ in range(4):
        page.keyboard.press("Tab")
        assert focused(page)["seen"], focused(page)
    keys = page.keyboard
    keys.press("g")
    keys.press("j")
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    keys.press("/")
    keys.type(f"tag:{tag} status:failed")
    keys.press("Enter")
    rows = page.get_by_role("region", name="Jobs").locator("tbody tr")
    expect(rows).to_have_count(1)
    page.get_by_role("search").evaluate("() => document.activeElement.blur()")
    keys.press("j")
    expect(page.locator("tr.current")).to_have_count(1)
    keys.press("x")
    expect(page.get_by_role("region", name="Selection")).to_contain_text("1 job selected")
    keys.press("R")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text("Run 1 job again?")
    assert page.evaluate("document.activeElement.closest('dialog') !== null")  # The focus is in the dialog,
    keys.press("Escape")
    expect(dialog).to_have_count(0)  # and returns afterwards.
    keys.press("Escape")
    keys.press("j")
    keys.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Failed")
    keys.press("w")
    expect(page.get_by_text("Why this status")).to_be_visible()
    keys.press("R")
    expect(page.get_by_text("Rerun of")).to_be_visible()
    keys.press("Control+k")
    keys.type("schedules")
    keys.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Schedules")
    keys.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next, previous row")
    keys.press("Escape")
    keys.press("g")
    keys.press("n")
    expect(page.get_by_role("heading", level=1)).to_have_text("Now")
    [again] = api.get("/api/jobs", params={"rerun_of": job_id}).json()["items"]
    assert tag in again["tags"]


def test_reduced_motion_disables_animations(browser: Browser, headway_server: ApiProcess) -> None:
    with visiting(browser, headway_server.url, reduced_motion="reduce") as visit:
        page = open_page(visit, "")
        moving = page.evaluate("document.getAnimations().filter(it => it.playState === 'running').length")
        assert moving == 0


def test_exact_times_are_shown_on_focus(visit: Visit, failed: str) -> None:
    page = open_page(visit, f"jobs/{failed}")
    when = page.get_by_role("region", name="About").locator("time").first
    expect(when).to_contain_text("ago")
    when.focus()
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text("UTC")
    expect(tip).to_contain_text("here")


def test_dashboard_works_under_a_path(browser: Browser, tmp_path: Path) -> None:
    """Behind a proxy, or mounted in another application."""
    from tests.browser.mounted import mounted

    with mounted(tmp_path, "/ops/headway") as (url, token), visiting(browser, url) as visit:
        visit.expects += ["status of 401"]
        page = visit.open("schedules")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Schedules")
        expect(page.locator('[data-live="live"]')).to_be_visible()
        assert [cookie["path"] for cookie in visit.context.cookies()] == ["/ops/headway"]
