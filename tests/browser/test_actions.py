"""User journeys on the dashboard, each from the page where it starts, with a real server and real jobs."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Page, expect

from tests.support.browser import Visit
from tests.support.waiting import wait_until


def enqueue(api: httpx.Client, task: str, args: dict[str, Any] | None = None, **options: Any) -> str:
    answer = api.post("/api/jobs", json={"type": task, "args": args or {}, **options})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def wait_ended(api: httpx.Client, job_id: str) -> dict[str, Any]:
    """Wait until a job has ended; return it."""

    def job_if_ended() -> dict[str, Any] | None:
        job: dict[str, Any] = api.get(f"/api/jobs/{job_id}", params={"wait": "20s"}).json()
        return job if job["finished_at"] is not None else None

    found = wait_until(job_if_ended, f"the end of {job_id}")
    assert found
    return found


def count_unfinished(api: httpx.Client, task: str) -> int:
    """Return how many jobs of a task are pending or running."""
    counts = (
        api.get("/api/jobs/count", params={"type": task, "status": status}).json()["count"]
        for status in ("PENDING", "RUNNING")
    )
    return sum(counts)


def shown_id(page: Page) -> str:
    """Return the id of the job whose page is open."""
    return page.url.rpartition("/")[2]


def toast(page: Page) -> Any:
    return page.locator(".toast")


def test_retry_a_failed_job_from_its_page(visit: Visit, api: httpx.Client) -> None:
    job_id = enqueue(api, "fail", {"message": "no paper left", "api_key": "hw-secret"})
    wait_ended(api, job_id)
    page = visit.open(f"jobs/{job_id}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Failed")
    error = page.get_by_role("region", name="Error")
    expect(error).to_contain_text("OSError: no paper left")
    expect(error.locator(".own").last).to_contain_text("raise OSError(message)")  # The user's own frames stand out.
    expect(page.get_by_role("region", name="Arguments")).not_to_contain_text("hw-secret")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.get_by_text("Rerun of")).to_be_visible()
    again = shown_id(page)
    assert again != job_id
    assert api.get(f"/api/jobs/{again}").json()["rerun_of"] == job_id
    expect(toast(page)).to_contain_text(f"jobs retry {job_id}")  # The equivalent command.


def test_retry_all_matching_jobs_after_confirming_the_count(visit: Visit, api: httpx.Client) -> None:
    jobs = [enqueue(api, "fail", tags=["many"]) for _ in range(3)]
    for job_id in jobs:
        wait_ended(api, job_id)
    page = visit.open("jobs?status=FAILED&tag=many")
    rows = page.get_by_role("region", name="Jobs").locator("tbody tr")
    expect(rows).to_have_count(3)
    page.get_by_role("checkbox", name="Select all on this page").check()
    page.get_by_role("region", name="Selection").get_by_role("button", name="Retry").click()
    question = page.get_by_role("dialog")
    expect(question.get_by_role("heading")).to_have_text("Run 3 jobs again?")
    expect(question).to_contain_text("Failed 3")
    question.get_by_role("button", name="Run again").click()
    expect(toast(page)).to_contain_text("3 jobs will run again.")
    found = api.get("/api/jobs", params={"tag": "many", "limit": 50}).json()["items"]
    assert sorted(job["rerun_of"] for job in found if job["rerun_of"]) == sorted(jobs)
    assert "status=FAILED" in page.url  # The filter is in the URL, so a reload or a shared link shows the same.
    page.reload()
    expect(page.get_by_role("link", name=re.compile("^Failed"))).to_have_attribute("aria-current", "true")


def test_cancel_a_job_and_see_it_stop(visit: Visit, api: httpx.Client) -> None:
    job_id = enqueue(api, "work")
    page = visit.open(f"jobs/{job_id}")
    expect(page.get_by_role("progressbar")).to_be_visible()
    page.get_by_role("button", name="Cancel", exact=True).click()
    question = page.get_by_role("dialog")
    question.get_by_label("Reason (recorded in the audit log)").fill("wrong month")
    question.get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Cancelled")
    assert "wrong month" in str(api.get(f"/api/jobs/{job_id}").json())


def test_cancel_more_jobs_than_a_page_shows(visit: Visit, api: httpx.Client) -> None:
    """The server counts and selects the jobs; the browser never loads all of them."""
    jobs = [{"type": "greet", "tags": ["crowd"], "delay": "1h", "queue": "crowd"} for _ in range(70)]
    assert api.post("/api/jobs/bulk", json={"jobs": jobs}).status_code == 201
    page = visit.open("jobs?tag=crowd")
    rows = page.get_by_role("region", name="Jobs").locator("tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("checkbox", name="Select all on this page").check()
    selection = page.get_by_role("region", name="Selection")
    expect(selection).to_contain_text("50 jobs selected")
    selection.get_by_role("button", name="Select all that match").click()
    expect(selection).to_contain_text("All 70 jobs that match selected")
    selection.get_by_role("button", name="Cancel").click()
    question = page.get_by_role("dialog")
    expect(question.get_by_role("heading")).to_have_text("Cancel 70 jobs?")
    expect(question.locator(".command")).to_contain_text("jobs cancel --tag crowd")
    question.get_by_label("Reason (recorded in the audit log)").fill("a wrong import")
    assert api.get("/api/jobs/count", params={"tag": "crowd", "status": "SCHEDULED"}).json()["count"] == 70
    question.get_by_role("button", name="Cancel them").click()
    expect(toast(page)).to_contain_text("70 jobs cancelled or asked to stop.")
    assert api.get("/api/jobs/count", params={"tag": "crowd", "status": "CANCELLED"}).json()["count"] == 70
    assert "a wrong import" in api.get("/api/audit-log", params={"action": "job.cancel"}).text
    expect(selection).to_have_count(0)


def test_all_jobs_cannot_be_selected_by_accident(visit: Visit, api: httpx.Client) -> None:
    wait_ended(api, enqueue(api, "greet"))
    page = visit.open("jobs")
    expect(page.get_by_role("region", name="Jobs").locator("tbody tr").first).to_be_visible()
    page.keyboard.press("a")
    expect(toast(page)).to_contain_text("Set a filter first")
    expect(page.get_by_role("region", name="Selection")).to_have_count(0)


def test_run_again_with_other_arguments_keeps_large_numbers(visit: Visit, api: httpx.Client) -> None:
    job_id = enqueue(api, "greet", {"name": "ada"})
    wait_ended(api, job_id)
    page = visit.open(f"jobs/{job_id}")
    expect(page.get_by_role("region", name="Result")).to_contain_text("9007199254740993")
    page.get_by_role("button", name="Run again with other arguments").click()
    dialog = page.get_by_role("dialog")
    field = dialog.get_by_label("Arguments as JSON")
    field.fill('{"name": ')
    expect(dialog.get_by_role("button", name="Enqueue")).to_be_disabled()
    field.fill('{"name": "grace 9007199254740993"}')
    dialog.get_by_role("button", name="Enqueue").click()
    expect(page.get_by_role("region", name="Result")).to_contain_text("hello grace 9007199254740993")
    again = shown_id(page)
    assert again != job_id
    assert api.get(f"/api/jobs/{again}").json()["rerun_of"] == job_id
    page = visit.open(f"jobs/{job_id}")  # It links to its rerun,
    facts = page.get_by_role("region", name="About")
    expect(facts).to_contain_text("Run again as")
    facts.locator(f'a[href="#/jobs/{again}"]').click()
    expect(page.get_by_role("region", name="Result")).to_contain_text("hello grace")
    page.get_by_role("region", name="About").locator(f'a[href="#/jobs/{job_id}"]').click()  # and back.
    expect(page.get_by_role("region", name="Result")).to_contain_text("hello ada")


def test_rejected_arguments_keep_the_form_open(visit: Visit, api: httpx.Client) -> None:
    visit.expects.append("status of 422")
    job_id = enqueue(api, "greet", {"name": "ada"})
    wait_ended(api, job_id)
    page = visit.open(f"jobs/{job_id}")
    page.get_by_role("button", name="Run again with other arguments").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Arguments as JSON").fill('{"name": ' + "[" * 70 + "]" * 70 + "}")
    dialog.get_by_role("button", name="Enqueue").click()
    expect(dialog.get_by_role("alert")).to_contain_text("deep")
    expect(dialog.get_by_label("Arguments as JSON")).to_have_value(re.compile("name"))
    assert shown_id(page) == job_id


def test_why_explains_the_status_of_a_job(visit: Visit, api: httpx.Client) -> None:
    job_id = enqueue(api, "greet", queue="nobody-takes-this", delay="1h")
    page = visit.open(f"jobs/{job_id}")
    expect(page.locator(".why")).to_contain_text("due in")
    page.get_by_role("button", name="Why?").click()
    expect(page.get_by_text("Why this status")).to_be_visible()
    expect(page.locator("code").filter(has_text=f"jobs why {job_id}")).to_be_visible()
    api.post(f"/api/jobs/{job_id}/cancel", json={})


def test_log_follows_new_lines(visit: Visit, api: httpx.Client, tmp_path: Path) -> None:
    job_id = enqueue(api, "work", {"seconds": 3, "until": str(tmp_path / "enough")})
    page = visit.open(f"jobs/{job_id}")
    log = page.get_by_role("log")
    expect(log).to_contain_text("Load line 0")
    expect(log).to_contain_text("Transform line 3")
    is_at_end = "element => element.scrollHeight - element.scrollTop - element.clientHeight < 40"
    assert log.evaluate(is_at_end)
    # Lines that arrive between a scroll and its event do not stop following; scrolling up does.
    log.evaluate("element => { element.style.height = '20px'; element.dispatchEvent(new Event('scroll')); }")
    page.evaluate("() => new Promise(requestAnimationFrame)")
    expect(page.get_by_label("follow")).to_be_checked()
    log.evaluate("element => { element.scrollTop = 60; }")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    log.evaluate("element => { element.scrollTop = 0; }")
    expect(page.get_by_label("follow")).not_to_be_checked()
    expect(page.locator(".steps li").first).to_contain_text("Load")
    page.get_by_label("Search the log").fill("load line 3")
    expect(log.locator(".log-line")).to_have_count(1)
    (tmp_path / "enough").touch()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Completed")


def test_long_log_is_loaded_from_its_end(visit: Visit, api: httpx.Client) -> None:
    job_id = enqueue(api, "tell", {"lines": 450})
    wait_ended(api, job_id)
    page = visit.open(f"jobs/{job_id}")
    log = page.get_by_role("log")
    lines = log.locator(".log-line")
    expect(lines.last).to_contain_text("told line 449.")
    expect(lines).to_have_count(200)
    log.get_by_role("button", name="Older lines").click()
    expect(lines).to_have_count(400)
    seen = "element => element.scrollTop > 100"
    assert log.evaluate(seen)  # The scroll position is kept.
    page.get_by_label("Search the log").fill("told line 7.")
    expect(page.get_by_text("older ones are not read yet")).to_be_visible()
    page.get_by_label("Search the log").fill("")
    log.get_by_role("button", name="Older lines").click()
    expect(lines.first).to_contain_text("told line 0.")
    expect(lines).to_have_count(450)
    expect(log.get_by_role("button", name="Older lines")).to_have_count(0)


def test_log_lines_show_level_and_logger(visit: Visit, api: httpx.Client) -> None:
    job_id = enqueue(api, "chat")
    wait_ended(api, job_id)
    page = visit.open(f"jobs/{job_id}")
    lines = page.get_by_role("log").locator(".log-line")
    expect(lines).to_have_count(3)
    expect(lines.filter(has_text="seven left")).to_contain_text("WARNING shop.stock")
    expect(lines.filter(has_text="none left")).to_contain_text("ERROR shop.stock")  # A word in addition to the colour.
    expect(lines.filter(has_text="a plain line").locator(".log-source")).to_have_count(0)
    page.get_by_role("searchbox", name="Search the log").fill("error shop")
    expect(lines).to_have_count(1)


def test_run_a_schedule_now(visit: Visit, api: httpx.Client) -> None:
    page = visit.open("schedules")
    row = page.get_by_role("row").filter(has_text="nightly")
    expect(row).to_contain_text("Europe/Berlin")
    page.get_by_role("button", name="Run now: nightly").click()
    toast(page).get_by_role("link", name="Open it").click()
    expect(page.get_by_role("region", name="Result")).to_contain_text("hello night")
    assert api.get(f"/api/jobs/{shown_id(page)}").json()["schedule"] == "nightly"


def test_pause_a_schedule_with_a_note_and_resume_it(visit: Visit, api: httpx.Client) -> None:
    page = visit.open("schedules")
    page.get_by_role("button", name="Pause nightly").click()
    question = page.get_by_role("dialog")
    question.get_by_label("Reason (recorded in the audit log)").fill("the release")
    question.get_by_role("button", name="Pause it").click()
    row = page.get_by_role("row").filter(has_text="nightly")
    expect(row).to_contain_text("Paused")
    assert api.get("/api/schedules/nightly").json()["paused"]
    assert "the release" in api.get("/api/audit-log", params={"target": "nightly"}).text
    page.get_by_role("button", name="Resume nightly").click()
    expect(row).to_contain_text("On")
    assert not api.get("/api/schedules/nightly").json()["paused"]


def test_pause_a_schedule_for_a_while(visit: Visit, api: httpx.Client) -> None:
    visit.expects.append("status of 422")
    api.put("/api/schedules/resting", json={"task": "greet", "cron": "0 6 * * *"})
    page = visit.open("schedules/resting")
    page.get_by_role("button", name="Pause", exact=True).click()
    question = page.get_by_role("dialog")
    field = question.get_by_label("Duration or end time")
    field.fill("a while")
    question.get_by_role("button", name="Pause it").click()
    expect(question.get_by_role("alert")).to_contain_text("Until must be")
    field.fill("2h")
    expect(question.locator(".command")).to_contain_text("schedules pause resting --until 2h")
    question.get_by_role("button", name="Pause it").click()
    expect(page.get_by_text("Paused by")).to_contain_text("until in")
    pause = api.get("/api/schedules/resting").json()["pause"]
    length = datetime.fromisoformat(pause["until"]) - datetime.fromisoformat(pause["since"])
    assert abs(length.total_seconds() - 7_200) < 60
    api.delete("/api/schedules/resting")


def test_pause_a_queue_with_a_note_and_resume_it(visit: Visit, api: httpx.Client) -> None:
    job_id = enqueue(api, "work", queue="side")
    page = visit.open("queues")
    page.get_by_role("button", name="Pause the queue side").click()
    question = page.get_by_role("dialog")
    expect(question).to_contain_text("running job will finish")
    question.get_by_label("Reason (recorded in the audit log)").fill("a look at the disk")
    question.get_by_role("button", name="Pause it").click()
    row = page.get_by_role("region", name="Queues", exact=True).get_by_role("row").filter(has_text="side")
    expect(row).to_contain_text("a look at the disk")
    page.get_by_role("button", name="Resume the queue side").click()
    expect(row).to_contain_text("Open")
    api.post(f"/api/jobs/{job_id}/cancel", json={})


def test_change_a_schedule_after_a_preview(visit: Visit, api: httpx.Client) -> None:
    made = api.put("/api/schedules/edited", json={"task": "greet", "cron": "0 6 * * *", "tz": "Europe/Berlin"})
    assert made.status_code == 201, made.text
    visit.expects.append("status of 422")  # The browser logs it, too, for an invalid rule.
    page = visit.open("schedules/edited")
    page.get_by_role("button", name="Change", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("This changes nothing.")
    field = dialog.get_by_role("textbox", name="Cron expression")
    field.fill("61 6 * * *")
    expect(dialog.get_by_role("alert")).to_contain_text("61")
    expect(dialog.get_by_role("button", name="Save")).to_be_disabled()
    field.fill("30 2 * * *")
    expect(dialog).to_contain_text("Next, after the change")
    expect(dialog.locator(".plan .moved").first).to_contain_text("02:30")
    assert api.get("/api/schedules/edited").json()["revision"] == made.json()["revision"]
    dialog.get_by_role("button", name="Save").click()
    expect(toast(page)).to_contain_text("edited is changed.")
    assert api.get("/api/schedules/edited").json()["trigger"]["expr"] == "30 2 * * *"


def test_create_and_remove_a_schedule(visit: Visit, api: httpx.Client) -> None:
    visit.expects.append("status of 412")  # A preview after the creation finds that the schedule exists.
    page = visit.open("schedules")
    page.get_by_role("link", name="New schedule").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("weekly/sales report")
    dialog.get_by_label("Task").fill("greet")
    dialog.get_by_role("textbox", name="Cron expression").fill("0 9 * * MON")
    expect(dialog).to_contain_text("This creates a schedule.")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("weekly/sales report")
    expect(page.get_by_role("region", name="Audit")).to_contain_text("Complete")
    visit.expects.append("status of 404")  # A page that follows the schedule may still ask for it.
    page.get_by_role("button", name="Remove", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Remove it").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Schedules")
    assert api.get("/api/schedules/weekly%2Fsales%20report").status_code == 404


def test_backfill_a_range_after_confirming_the_count(visit: Visit, api: httpx.Client) -> None:
    api.put("/api/schedules/filled", json={"task": "greet", "cron": "0 12 * * *", "args": {"name": "past"}})
    page = visit.open("schedules/filled")
    page.get_by_role("button", name="Backfill").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("From").fill("2026-03-01T00:00")
    dialog.get_by_label("To").fill("2026-03-04T00:00")
    dialog.get_by_role("button", name="Count").click()
    expect(dialog).to_contain_text("3 jobs would be enqueued.")
    assert api.get("/api/jobs", params={"schedule": "filled"}).json()["items"] == []
    dialog.get_by_role("button", name="Enqueue 3 jobs").click()
    expect(toast(page)).to_contain_text("3 jobs enqueued")
    found = api.get("/api/jobs", params={"schedule": "filled"}).json()["items"]
    assert sorted(job["occurrence_at"] for job in found) == [f"2026-03-0{day}T12:00:00Z" for day in (1, 2, 3)]


def test_dead_letters_are_handled_by_error(visit: Visit, api: httpx.Client) -> None:
    wait_until(lambda: not count_unfinished(api, "fail"), "the reruns of other tests to end")
    for letters in api.get("/api/dead", params={"limit": 200}).json()["items"]:
        api.post(f"/api/dead/{letters['id']}/drop")
    for number in (1, 2):
        wait_ended(api, enqueue(api, "fail", {"message": f"disk {number} is full"}))
    wait_ended(api, enqueue(api, "fail", {"message": "nobody is at home"}))
    page = visit.open("problems")
    groups = page.get_by_role("region", name="Dead letters").locator(".groups > li")
    expect(groups).to_have_count(2)
    page.get_by_role("button", name="Retry all 2 jobs of fail").click()
    question = page.get_by_role("dialog")
    expect(question.get_by_role("heading")).to_have_text("Run 2 dead letters again?")
    question.get_by_role("button", name="Run again").click()
    expect(toast(page).first).to_contain_text("2 jobs will run again.")
    # A rerun fails again and soon forms its own group beside this one.
    groups.filter(has_text="nobody is at home").get_by_role("button", name="Drop 1 job of fail").click()
    page.get_by_role("dialog").get_by_role("button", name="Drop").click()
    expect(page.get_by_text("1 dead letter dropped.")).to_be_visible()


def test_new_webhook_secret_is_shown_once(visit: Visit, api: httpx.Client) -> None:
    made = api.post("/api/webhooks", json={"url": "https://hooks.invalid/told", "note": "tells the shop"}).json()
    page = visit.open("settings")
    row = page.get_by_role("region", name="Webhooks", exact=True).get_by_role("row").filter(has_text="tells the shop")
    row.get_by_role("button", name="New secret").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".command")).to_contain_text(f"webhooks rotate {made['id']} --keep 24h")
    dialog.get_by_role("button", name="Create").click()
    secret = dialog.locator(".secret code").inner_text()
    assert secret.startswith("whsec_")
    assert secret != made["secret"]
    dialog.get_by_role("button", name="Done").click()
    expect(dialog).to_have_count(0)
    page.reload()
    expect(row).to_contain_text("signed with 2 secrets")
    assert secret not in page.content()
    row.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove it").click()
    expect(row).to_have_count(0)
