"""Live updates: the server pushes changes to open pages, and pages resume after a lost connection.

`bench live` and `bench dashboard` measure latency; here the test controls the clock of the browser.
"""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, Request, expect

from tests.browser.test_actions import enqueue, wait_ended
from tests.support.api import api_process
from tests.support.browser import Visit, visiting
from tests.support.server import free_port
from tests.support.waiting import wait_until

PROMISED_MS = 1_000
A_MINUTE_MS = 60_000
# Runs before the page: records which jobs it was told had ended.
NOTE_NEWS = """
window.__ends = [];
window.EventSource = class extends EventSource {
  constructor(address) {
    super(address);
    this.addEventListener("done", (event) => window.__ends.push(JSON.parse(event.data).id));
  }
};
"""


def wait_live_state(page: Page, state: str) -> None:
    """Wait until the page shows this state of its connection."""
    expect(page.locator(f'[data-live="{state}"]')).to_be_visible()


def test_end_of_a_job_is_shown_within_a_second(visit: Visit, api: httpx.Client, tmp_path: Path) -> None:
    """The end is pushed to a page whose clock is paused, so the page cannot have polled; then it gets its second."""
    job_id = enqueue(api, "work", {"seconds": 0.3, "until": str(tmp_path / "enough")})
    visit.page.add_init_script(NOTE_NEWS)
    visit.page.clock.install()
    page = visit.open(f"jobs/{job_id}")
    title = page.get_by_role("heading", level=1)
    expect(title).to_contain_text("Running")
    wait_live_state(page, "live")
    page.clock.pause_at(datetime.fromtimestamp((page.evaluate("Date.now()") + A_MINUTE_MS) / 1_000, UTC))
    (tmp_path / "enough").touch()
    wait_ended(api, job_id)
    wait_until(lambda: job_id in page.evaluate("window.__ends"), "the event of the end")
    assert "Completed" not in title.inner_text()
    page.clock.run_for(PROMISED_MS)
    expect(title).to_contain_text("Completed")


def test_progress_moves_on_the_overview(visit: Visit, api: httpx.Client) -> None:
    page = visit.open()
    wait_live_state(page, "live")
    job_id = enqueue(api, "wander")
    bar = page.get_by_role("region", name="Running").get_by_role("progressbar", name="Progress of wander")
    expect(bar.first).to_be_visible()
    seen: set[str | None] = set()

    def has_moved() -> bool:
        seen.add(bar.first.get_attribute("aria-valuenow"))
        return len(seen) >= 4

    wait_until(has_moved, "four values of the progress bar", every_s=0.1)
    api.post(f"/api/jobs/{job_id}/cancel", json={})


def test_paused_page_does_not_change_until_resumed(visit: Visit, api: httpx.Client) -> None:
    page = visit.open("jobs?tag=pausing")
    wait_live_state(page, "live")
    page.keyboard.press(".")
    wait_live_state(page, "paused")
    other = visit.context.new_page()  # It receives the event.
    other.goto(page.url)
    wait_live_state(other, "live")
    enqueue(api, "greet", tags=["pausing"])
    expect(other.get_by_role("region", name="Jobs").locator("tbody tr")).to_have_count(1)
    expect(page.get_by_text("No job matches")).to_be_visible()
    page.keyboard.press(".")
    wait_live_state(page, "live")
    expect(page.get_by_role("region", name="Jobs").locator("tbody tr")).to_have_count(1)


def test_new_rows_are_held_back_while_the_pointer_is_over_the_list(visit: Visit, api: httpx.Client) -> None:
    enqueue(api, "greet", tags=["row"])
    page = visit.open("jobs?tag=row")
    rows = page.get_by_role("region", name="Jobs").locator("tbody tr")
    expect(rows).to_have_count(1)
    wait_live_state(page, "live")
    rows.first.hover()
    enqueue(api, "greet", tags=["row"])
    enqueue(api, "greet", tags=["row"])
    fresh = page.get_by_role("button", name="2 new — show")
    expect(fresh).to_be_visible()
    expect(rows).to_have_count(1)
    fresh.click()
    expect(rows).to_have_count(3)


def record_stream(streams: list[tuple[int, str]], number: int, asked: Request) -> None:
    """Record which page opened a stream, and from where."""
    if "/api/stream" in asked.url:
        streams.append((number, asked.url))


def test_tabs_share_one_connection_and_take_it_over(visit: Visit, api: httpx.Client) -> None:
    """A browser opens at most six connections to a server; with one tab more, no request would be answered."""
    streams: list[tuple[int, str]] = []
    pages = [visit.page, *(visit.context.new_page() for _ in range(6))]
    for number, page in enumerate(pages):
        page.on("request", partial(record_stream, streams, number))
    for page in pages:
        page.goto(f"{visit.url}/#/jobs?tag=tabs")
        wait_live_state(page, "live")
    assert [number for number, _ in streams] == [0]
    enqueue(api, "greet", tags=["tabs"])
    for page in pages:
        page.bring_to_front()
        expect(page.get_by_role("region", name="Jobs").locator("tbody tr")).to_have_count(1)
    pages[0].keyboard.press(".")  # The paused tab passes the stream on; the next tab continues after the last event.
    wait_live_state(pages[0], "paused")

    def is_taken_over() -> bool:
        pages[1].wait_for_timeout(50)  # Lets Playwright deliver request events.
        return len(streams) >= 2

    wait_until(is_taken_over, "another tab to open the stream")
    assert streams[1][0] != 0
    assert "cursor=" in streams[1][1]
    enqueue(api, "greet", tags=["tabs"])
    for page in pages[1:]:
        expect(page.get_by_role("region", name="Jobs").locator("tbody tr")).to_have_count(2)
    expect(pages[0].get_by_role("region", name="Jobs").locator("tbody tr")).to_have_count(1)
    pages[0].keyboard.press(".")
    wait_live_state(pages[0], "live")
    expect(pages[0].get_by_role("region", name="Jobs").locator("tbody tr")).to_have_count(2)
    assert len(streams) == 2


def test_page_reconnects_when_the_server_returns(browser: Browser, tmp_path: Path) -> None:
    store, port = f"sqlite:///{tmp_path}/headway.db", free_port()
    with visiting(browser, f"http://127.0.0.1:{port}") as visit:
        visit.expects += ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "ERR_CONNECTION_RESET", "ERR_EMPTY"]
        with api_process(store, port=port) as server, server.client() as client:
            enqueue(client, "first", queue="nobody")
            page = visit.open("jobs")
            rows = page.get_by_role("region", name="Jobs").locator("tbody tr")
            expect(rows).to_have_count(1)
            wait_live_state(page, "live")
        expect(page.locator('[data-live="reconnecting"], [data-live="polling"]')).to_be_visible()
        with api_process(store, port=port) as server, server.client() as client:
            enqueue(client, "second", queue="nobody")  # While no connection exists.
            wait_live_state(page, "live")
            expect(rows).to_have_count(2)
            enqueue(client, "third", queue="nobody")
            expect(rows).to_have_count(3)
