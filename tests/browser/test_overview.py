"""Overviews: finished jobs over time, the latest occurrences, the calendar of a year."""

import itertools
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.test_actions import enqueue, wait_ended
from tests.support.browser import Visit
from tests.support.waiting import wait_until

NUMBERS = itertools.count(1)


@pytest.fixture
def many(api: httpx.Client) -> Iterator[list[str]]:
    """More schedules than a page shows; the last one by name needs attention."""
    prefix = f"many{next(NUMBERS)}"  # Failures are remembered by name, also for a new schedule of that name.
    names = [f"{prefix}-{number:03d}" for number in range(60)]
    for name in names:
        made = api.put(f"/api/schedules/{name}", json={"task": "fail", "cron": "0 6 * * *", "tz": "Asia/Tokyo"})
        assert made.status_code == 201, made.text
    yield names
    for name in names:
        api.delete(f"/api/schedules/{name}")


def test_finished_jobs_are_shown_as_chart_and_text(visit: Visit, api: httpx.Client) -> None:
    wait_ended(api, enqueue(api, "fail"))
    wait_ended(api, enqueue(api, "greet"))
    asked: list[str] = []
    visit.page.on("request", lambda request: asked.append(request.url))
    page = visit.open()
    card = page.get_by_role("region", name="Ended")
    picture = card.get_by_role("img").first
    expect(picture.locator("canvas")).to_be_visible()
    expect(picture).to_have_attribute("aria-label", re.compile(r"\d+ completed, [1-9]\d* failed"))
    expect(card).to_contain_text("failed.")
    with page.expect_request(lambda request: "window=24h" in request.url):
        card.get_by_label("Time range").select_option("24h")
    expect(card).to_contain_text("Jobs per")
    series = [url for url in asked if "/api/stats/series" in url]
    assert any("window=1h" in url for url in series)
    # The chart does not page through jobs.
    assert not [url for url in asked if "/api/jobs?" in url and "cursor=" in url]


def test_failures_of_the_last_hour_link_to_their_jobs(visit: Visit, api: httpx.Client) -> None:
    wait_ended(api, enqueue(api, "fail", {"message": "the roof leaks"}))
    page = visit.open()
    card = page.get_by_role("region", name="Failed in the last hour")
    expect(card.locator(".times").first).to_be_visible()
    if card.locator("summary").count():  # Other tests may have left more errors than are shown at once.
        card.locator("summary").click()
    expect(card).to_contain_text("OSError: the roof leaks")
    card.get_by_role("link", name=re.compile("^[0-9,]+ jobs?$")).click()
    expect(page.get_by_role("combobox", name="Ended")).to_have_value("1h")
    expect(page.get_by_role("region", name="Jobs")).to_contain_text("fail")


def test_schedules_are_filtered_by_text_and_state(visit: Visit, api: httpx.Client, many: list[str]) -> None:
    page = visit.open("schedules")
    rows = page.get_by_role("region", name="Schedules").locator("tbody tr")
    expect(rows).to_have_count(50)
    text = many[50][:-1].upper()
    page.get_by_role("searchbox", name="Filter").fill(text)
    expect(rows).to_have_count(10)
    expect(rows.first).to_contain_text("06:00 Asia/Tokyo")  # In the time zone of the schedule, beside the local time.
    assert f"q={text}" in page.url
    api.post(f"/api/schedules/{many[55]}/pause", json={"reason": "a test"})
    page.get_by_label("State").select_option("paused")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text(many[55])
    page.reload()  # Both filters are in the URL.
    expect(rows).to_have_count(1)
    page.get_by_role("searchbox", name="Filter").fill("nothing is called that")
    expect(page.get_by_text("No schedule matches")).to_be_visible()


def test_schedules_that_need_attention_are_first(visit: Visit, api: httpx.Client, many: list[str]) -> None:
    for _ in range(3):
        job = api.post(f"/api/schedules/{many[59]}/trigger", json={}).json()
        wait_ended(api, job["id"])
    wait_until(lambda: api.get(f"/api/schedules/{many[59]}").json()["failing"] >= 3, "three failures to be counted")
    page = visit.open("schedules")
    first = page.get_by_role("region", name="Schedules").locator("tbody tr").first
    expect(first).to_contain_text(many[59])
    expect(first).to_contain_text("Failing")


def wait_quick(api: httpx.Client) -> None:
    """Wait until a job of the schedule `quick` has ended."""
    asked = {"schedule": "quick", "status": "COMPLETED"}
    wait_until(lambda: api.get("/api/jobs", params=asked).json()["items"], "a job of the schedule quick")


def test_latest_occurrences_have_text_labels(visit: Visit, api: httpx.Client) -> None:
    wait_quick(api)
    page = visit.open("schedules")
    row = page.get_by_role("row").filter(has_text="quick")
    marks = row.get_by_role("link", name="The last occurrences of quick")
    expect(marks.locator("svg")).to_be_visible()
    expect(marks).to_have_attribute("aria-label", re.compile("completed"))
    marks.locator(".dot").last.hover()
    expect(marks.locator("title")).to_have_text(re.compile(r"^20\d\d-.*Z: \w+, .+"))
    assert marks.locator(".dot").count() <= 20


def test_decisions_of_a_year_are_a_calendar(visit: Visit, api: httpx.Client) -> None:
    wait_quick(api)
    page = visit.open("schedules/quick")
    card = page.get_by_role("region", name="Calendar")
    picture = card.locator(".heat-frame")
    expect(picture).to_have_attribute("aria-label", re.compile(r"decisions on [1-9]\d* days?: [1-9]\d* fired well"))
    today = datetime.now(UTC).date().isoformat()
    known = api.get("/api/schedules/quick/calendar", params={"year": today[:4]}).json()["days"]
    assert known[-1]["outcomes"]["fired"] >= 1
    of_that_day = re.compile(rf"^{known[-1]['day']}: .*\d+ fired")  # The previous day, if it is midnight now.
    expect(picture.locator("title").filter(has_text=of_that_day)).to_have_count(1)
    assert len(picture.locator("title").all_text_contents()) > 365
    card.get_by_label("Which year").select_option(today[:4])
    expect(picture.locator("title").first).to_have_text(f"{today[:4]}-01-01: nothing")
    expect(picture.locator("title").last).to_have_text(re.compile(f"^{today[:4]}-12-31"))
    assert len(picture.locator("title").all_text_contents()) in (365, 366)
