"""Stored XSS: hostile texts in every field and on every page are shown, and never run."""

from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.tasks import NASTY, NASTY_NAME, NASTY_URL
from tests.browser.test_actions import wait_ended
from tests.support.browser import Visit

HOOK = "https://hooks.invalid/<script>window.__ran.push('hook')</script>?q=\"'><img src=x onerror=window.__ran.push(2)>"


@pytest.fixture(scope="module")
def traps(api: httpx.Client) -> Iterator[dict[str, str]]:
    """Objects with a hostile text in every field."""
    common = {
        "type": NASTY_NAME,
        "queue": NASTY_NAME,
        "tenant": NASTY_NAME,
        "tags": [NASTY_NAME, "trap"],
        "metadata": {NASTY: [NASTY, {NASTY: NASTY}]},
    }
    failed, completed, waiting = (
        api.post("/api/jobs", json={**common, **more})
        for more in (
            {"key": NASTY_NAME, "args": {"text": NASTY}},
            {"args": {"text": NASTY, "fails": False}},
            {"args": {"text": NASTY}, "delay": "1h"},
        )
    )
    assert {one.status_code for one in (failed, completed, waiting)} == {201}, failed.text
    schedule = {"task": NASTY_NAME, "cron": "0 6 * * *", "args": {NASTY: NASTY}, "tags": [NASTY_NAME]}
    made = api.put(f"/api/schedules/{quote(NASTY_NAME, safe='')}", json=schedule)
    assert made.status_code == 201, made.text
    paused = api.post(f"/api/schedules/{quote(NASTY_NAME, safe='')}/pause", json={"reason": NASTY})
    assert paused.status_code == 200, paused.text
    hook = api.post("/api/webhooks", json={"url": HOOK})
    noted = api.post("/api/webhooks", json={"url": "https://hooks.invalid/noted", "note": NASTY_NAME})
    assert noted.status_code == 201, noted.text
    wait_ended(api, failed.json()["id"])
    wait_ended(api, completed.json()["id"])
    cancelled = api.post(f"/api/jobs/{waiting.json()['id']}/cancel", json={"reason": NASTY})
    assert cancelled.status_code == 200, cancelled.text
    yield {
        "failed": failed.json()["id"],
        "completed": completed.json()["id"],
        "waiting": waiting.json()["id"],
        "schedule": quote(NASTY_NAME, safe=""),
    }
    api.delete(f"/api/schedules/{quote(NASTY_NAME, safe='')}")
    api.delete(f"/api/webhooks/{noted.json()['id']}")
    if hook.status_code == 201:
        api.delete(f"/api/webhooks/{hook.json()['id']}")


PAGES = {
    "now": "",
    "jobs": "jobs?tag=trap",
    "jobs by text": f"jobs?q={quote(NASTY)}&status={quote(NASTY_NAME)}&type={quote(NASTY_NAME)}",
    "failed job": "jobs/{failed}",
    "completed job": "jobs/{completed}",
    "cancelled job": "jobs/{waiting}",
    "no such job": f"jobs/{quote(NASTY, safe='')}",
    "schedules": "schedules",
    "schedule": "schedules/{schedule}",
    "queues": "queues",
    "limits": "limits",
    "no such limit": f"limits/{quote(NASTY, safe='')}",
    "tenants": "tenants",
    "tenant": f"tenants/{quote(NASTY_NAME, safe='')}",
    "problems": "problems",
    "settings": "settings",
    "nowhere": quote(NASTY, safe=""),
}


# An image requested after everything that the page requested: when it has failed, all others have.
LOAD_ANOTHER = """() => new Promise((done) => {
  const image = new Image();
  image.onload = image.onerror = () => requestAnimationFrame(() => setTimeout(done));
  image.src = "x";
})"""


def test_no_script_runs_and_csp_reports_nothing(visit: Visit, traps: dict[str, str]) -> None:
    visit.expects += ["status of 4[0-9][0-9]"]  # The browser logs error responses, such as 404 for an unknown job.
    for name, path in PAGES.items():
        page = visit.open(path.format(**traps))
        expect(page.locator("main :is(h1, h2, h3)").first).to_be_visible()
        page.locator("main details").evaluate_all("found => found.forEach(fold => { fold.open = true; })")
        expect(page.locator(".loading")).to_have_count(0)
        page.evaluate(LOAD_ANOTHER)
        assert visit.refused() == [], name
        assert page.locator("main img, main script, main iframe, main object, main embed").count() == 0, name
        links = page.locator("a[href]").evaluate_all("found => found.map(link => link.protocol)")
        assert set(links) <= {"http:", "https:"}, name


def test_hostile_text_is_shown_verbatim(visit: Visit, traps: dict[str, str]) -> None:
    page = visit.open(f"jobs/{traps['failed']}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(NASTY_NAME)
    expect(page.get_by_role("region", name="Error")).to_contain_text(NASTY)
    log = page.get_by_role("log")
    expect(log).to_contain_text(NASTY)
    # Control characters are escaped, so that they are visible.
    assert not {"\x1b", "\x07", "\u202e", "\u2066"} & set(log.inner_text())
    assert "red" in log.inner_text()
    page = visit.open(f"jobs/{traps['completed']}")
    result = page.get_by_role("region", name="Result")
    expect(result).to_contain_text(NASTY_URL)
    expect(result.get_by_role("link")).to_have_count(0)


def test_dialogs_show_hostile_text_verbatim(visit: Visit, traps: dict[str, str]) -> None:
    opened = (
        (f"jobs/{traps['failed']}", "Run again with other arguments", NASTY_NAME),
        (f"schedules/{traps['schedule']}", "Change", NASTY_NAME),
        ("settings", "New secret", "hooks.invalid"),
    )
    for path, button, text in opened:
        page = visit.open(path)
        page.get_by_role("button", name=button, exact=True).first.click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text(text)
        assert visit.refused() == [], path
        assert page.locator("dialog img, dialog script").count() == 0, path
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
