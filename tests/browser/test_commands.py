"""Every command that a page shows has the effect of the button beside it: the same jobs, the same options."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.test_actions import count_unfinished, enqueue, wait_ended
from tests.support.browser import Visit
from tests.support.waiting import DEADLINE_S, wait_until

FULL, LATE = 110, 15
USAGE = 2


def headway(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell would."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    return subprocess.run(
        [sys.executable, "-m", "headway", *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=DEADLINE_S,
        check=False,
    )


def shown_command(where: Page | Locator) -> list[str]:
    """Return the arguments of the one command that is shown there, without the program name."""
    line = where.locator(".command code").inner_text()
    program, *words = shlex.split(line)
    assert program == "headway"
    return words


def run(words: list[str], *more: str) -> Any:
    """Run a shown command, which must succeed; return its JSON output."""
    place = words.index("--") if "--" in words else len(words)  # Nothing after it is an option.
    done = headway(*words[:place], *more, "--json", *words[place:])
    assert done.returncode == 0, (words, done.stderr)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def letters(api: httpx.Client) -> Iterator[dict[str, list[str]]]:
    """More dead letters of one task than a page loads, with two errors."""
    wait_until(lambda: not count_unfinished(api, "fail"), "the jobs of other tests to end")
    api.post("/api/dead/drop", json={"type": "fail", "limit": 1_000})
    messages = [f"tape {number} is torn" for number in range(FULL)] + ["the courier is late"] * LATE
    jobs = [{"type": "fail", "args": {"message": message}} for message in messages]
    made = api.post("/api/jobs/bulk", json={"jobs": jobs})
    assert made.status_code == 201, made.text
    wait_until(lambda: not count_unfinished(api, "fail"), "all of them to fail")
    ids = [job["id"] for job in made.json()["items"]]
    yield {"tape … is torn": ids[:FULL], "the courier is late": ids[FULL:]}
    api.post("/api/dead/drop", json={"type": "fail", "limit": 1_000})


def group_of(page: Page, words: str) -> Locator:
    return page.get_by_role("region", name="Dead letters").locator(".groups > li").filter(has_text=words)


def test_dead_letter_commands_cover_exactly_their_group(
    visit: Visit, api: httpx.Client, letters: dict[str, list[str]]
) -> None:
    page = visit.open()
    alert = page.locator(".alerts li").filter(has_text="dead letters of fail")
    expect(alert).to_contain_text(f"{FULL + LATE} dead letters")
    for words, ids in letters.items():  # The alert names both errors; the card counts the jobs of each.
        expect(alert).to_contain_text(f"OSError: {words} ({len(ids)})")
        card = page.get_by_role("region", name="Failed in the last hour").locator("li").filter(has_text=words)
        expect(card).to_contain_text(re.compile(rf"^{len(ids)}×"))
    page = visit.open("problems")
    for words, ids in letters.items():
        group = group_of(page, words)
        expect(group).to_contain_text(re.compile(rf"^{len(ids)}×"))
        for verb in ("Retry all", "Drop"):
            group.get_by_role("button", name=re.compile(f"^{verb} ")).click()
            question = page.get_by_role("dialog")
            expect(question.get_by_role("heading")).to_contain_text(f"{len(ids)} dead letters")
            assert run(shown_command(question), "--dry-run")["ids"] == sorted(ids)
            page.keyboard.press("Escape")
            expect(question).to_have_count(0)
        group.locator("summary").click()
        expect(group.locator(".lines li")).to_have_count(min(100, len(ids)))
        listed = run(shown_command(group), "--limit", "1000")
        assert [job["id"] for job in listed] == sorted(ids, reverse=True)
    whole = page.get_by_role("region", name="Dead letters").locator(":scope > .command")
    groups = run(shlex.split(whole.locator("code").inner_text())[1:])
    assert {group["error"]: group["count"] for group in groups if group["type"] == "fail"} == {
        f"OSError: {words}": len(ids) for words, ids in letters.items()
    }


def test_concurrent_drops_report_what_each_did(visit: Visit, api: httpx.Client) -> None:
    ids = [enqueue(api, "fail", {"message": "the plumber is late"}) for _ in range(3)]
    for job_id in ids:
        wait_ended(api, job_id)
    page = visit.open("problems")
    group_of(page, "the plumber is late").get_by_role("button", name="Drop 3 jobs of fail").click()
    question = page.get_by_role("dialog")
    # The focus is neither on the close button nor on the irreversible action.
    expect(question.get_by_role("button", name="Keep")).to_be_focused()
    assert run(shown_command(question), "--yes")["ids"] == sorted(ids)  # Another operator is faster;
    again = enqueue(api, "fail", {"message": "the plumber is late"})  # then one more job fails.
    wait_ended(api, again)
    question.get_by_role("button", name="Drop").click()
    expect(page.get_by_text("0 dead letters dropped. Someone else already handled 3.")).to_be_visible()
    assert api.get(f"/api/jobs/{again}").json()["reviewed_at"] is None  # It was not part of the confirmed count.


def without_volatile_fields(made: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a job or a schedule without the fields that always differ."""
    passing = {
        "id",
        "created_at",
        "run_at",
        "ready_at",
        "updated_at",
        "version",
        "why",
        "revision",
        "next",
        "decided_through",
        *names,
    }
    return {name: value for name, value in made.items() if name not in passing}


def test_job_commands_match_their_buttons(visit: Visit, api: httpx.Client) -> None:
    options = {
        "queue": "apart",
        "priority": 7,
        "max_attempts": 4,
        "tags": ["a", "b c"],
        "timeout": "90s",
        "delay": "1h",
    }
    first, second = (enqueue(api, "greet", {"name": "it's me"}, **options) for _ in range(2))
    page = visit.open(f"jobs/{first}")
    page.get_by_role("button", name="Run again with other arguments").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Arguments as JSON")).to_be_focused()
    dialog.get_by_label("Arguments as JSON").fill('{"name": "-x"}')
    words = shown_command(dialog)
    dialog.get_by_role("button", name="Enqueue").click()
    expect(page).not_to_have_url(re.compile(first))
    by_button = api.get(f"/api/jobs/{page.url.rpartition('/')[2]}").json()
    by_command = api.get(f"/api/jobs/{run(words)['id']}").json()
    assert by_button["priority"] == 7
    moments = ("key", "started_at", "finished_at", "status", "progress", "attempts", "reason", "result", "node")
    assert without_volatile_fields(by_command, *moments) == without_volatile_fields(by_button, *moments)

    page = visit.open(f"jobs/{first}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    reason = dialog.get_by_label("Reason (recorded in the audit log)")
    expect(reason).to_be_focused()
    reason.fill("yes")  # A reason that looks like a flag.
    assert run(shown_command(dialog))["status"] == "CANCELLED"
    assert api.get(f"/api/jobs/{first}").json()["reason"].endswith("yes")
    page.keyboard.press("Escape")

    page = visit.open("jobs?tag=b c&status=SCHEDULED")
    page.get_by_role("checkbox", name="Select all on this page").check()
    page.get_by_role("region", name="Selection").get_by_role("button", name="Cancel").click()
    expect(dialog.get_by_role("heading")).to_have_text("Cancel 1 job?")
    assert shown_command(dialog)[:3] == ["jobs", "cancel", second]
    page.keyboard.press("Escape")
    page.keyboard.press("a")
    expect(page.get_by_role("region", name="Selection")).to_contain_text("All 1 job that match selected")
    page.get_by_role("region", name="Selection").get_by_role("button", name="Cancel").click()
    assert run(shown_command(dialog), "--dry-run")["matched"] == 1
    assert run(shown_command(dialog))["done"] == 1
    assert api.get(f"/api/jobs/{second}").json()["status"] == "CANCELLED"
    page.keyboard.press("Escape")

    page = visit.open(f"jobs/{second}")
    terminal = page.locator("section.card").filter(has=page.get_by_role("heading", name="In a terminal"))
    expect(terminal.locator(".command code").first).to_be_visible()
    for line in terminal.locator(".command code").all():
        told = run(shlex.split(line.inner_text())[1:])
        assert second in (told["id"], told["rerun_of"])


DEFINITION = {
    "task": "greet",
    "cron": "30 2 * * *",
    "tz": "Europe/Berlin",
    "dst": "both",
    "args": {"name": "it's"},
    "overlap": "queue",
    "queue_limit": 3,
    "missed": "all",
    "catch_up_limit": 5,
    "catch_up_rate": "10/m",
    "deadline": "4h",
    "grace": "2m",
    "jitter": "30s",
    "expect": "10m",
    "queue": "apart",
    "priority": 2,
    "max_attempts": 4,
    "backoff": "5s..5m",
    "tags": ["x", "y z"],
    "start": "2026-01-01T00:00:00Z",
    "end": "2037-01-01T00:00:00Z",
    "callback_url": "https://hooks.invalid/ended",
}


def test_schedule_commands_match_their_buttons(visit: Visit, api: httpx.Client) -> None:
    name = "-odd one"  # It looks like an option and contains a space.
    assert api.put(f"/api/schedules/{name}", json=DEFINITION).status_code in (200, 201)
    page = visit.open("schedules/-odd%20one")
    dialog = page.get_by_role("dialog")

    def change(priority: str) -> None:
        page.get_by_role("button", name="Change", exact=True).click()
        dialog.locator("summary").filter(has_text="Policies").click()
        dialog.get_by_label("Priority").fill(priority)
        expect(dialog.get_by_text("This changes priority.")).to_be_visible()

    change("3")
    words = shown_command(dialog)
    run(words)
    by_command = api.get(f"/api/schedules/{name}").json()
    assert by_command["priority"] == 3
    api.put(f"/api/schedules/{name}", json=DEFINITION)
    page.keyboard.press("Escape")
    page.reload()
    change("3")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    assert without_volatile_fields(api.get(f"/api/schedules/{name}").json()) == without_volatile_fields(by_command)

    page.get_by_role("button", name="Pause").click()
    dialog.get_by_label("Duration or end time").fill("2h")
    dialog.get_by_label("Reason").fill("a b")
    run(shown_command(dialog))
    pause = api.get(f"/api/schedules/{name}").json()["pause"]
    assert (pause["reason"], pause["until"] is not None) == ("a b", True)
    page.keyboard.press("Escape")
    page.reload()
    page.get_by_role("button", name="Resume").click()
    run(shown_command(page.locator(".toast").last))

    page.get_by_role("button", name="Backfill").click()
    dialog.get_by_label("From").fill("2026-03-01T00:00")
    dialog.get_by_label("To").fill("2026-03-03T12:00")
    planned = run(shown_command(dialog), "--dry-run")
    dialog.get_by_role("button", name="Count").click()
    expect(dialog.get_by_text(f"{planned['count']} jobs would be enqueued.")).to_be_visible()
    page.keyboard.press("Escape")

    for line in page.locator("article .command code").all():  # Read-only commands.
        assert headway(*shlex.split(line.inner_text())[1:]).returncode == 0, line.inner_text()
    visit.expects.append("status of 404")  # A page that follows the schedule may still ask for it.
    page.get_by_role("button", name="Remove").click()
    run(shown_command(dialog), "--yes")
    assert api.get(f"/api/schedules/{name}").status_code == 404
    page.keyboard.press("Escape")


def test_queue_and_settings_commands_match_their_buttons(visit: Visit, api: httpx.Client) -> None:
    running = enqueue(api, "work", queue="-apart")
    page = visit.open("queues")
    dialog = page.get_by_role("dialog")
    row = page.get_by_role("row").filter(has_text="-apart")
    row.get_by_role("button", name="Pause").click()
    dialog.get_by_label("Reason").fill("a look")
    assert run(shown_command(dialog))["paused"]
    page.keyboard.press("Escape")
    page.reload()
    row.get_by_role("button", name="Resume").click()
    assert headway(*shown_command(page.locator(".toast").last)).returncode == 0
    api.post(f"/api/jobs/{running}/cancel")
    page.get_by_role("button", name=re.compile("^Drain")).first.click()
    assert is_parsed(shown_command(dialog))
    page.keyboard.press("Escape")

    page = visit.open("settings")
    page.get_by_role("button", name="New webhook").click()
    dialog.get_by_label("URL").fill("https://hooks.invalid/a?b=c&d")
    dialog.get_by_label("Events").fill("job.failed, job.timed_out")
    dialog.get_by_label("Note").fill("one's own")
    words = shown_command(dialog)
    dialog.get_by_role("button", name="Create").click()
    dialog.get_by_role("button", name="Done").click()
    run(words)
    hooks = [hook for hook in api.get("/api/webhooks").json()["items"] if hook["note"] == "one's own"]
    assert without_volatile_fields(hooks[0], "created_by", "secret") == without_volatile_fields(
        hooks[1], "created_by", "secret"
    )
    page.reload()
    own = page.get_by_role("region", name="Webhooks", exact=True).get_by_role("row").filter(has_text="one's own")
    own.first.get_by_role("button", name="Disable").click()
    run(shown_command(page.locator(".toast").last))
    own.first.get_by_role("button", name="Remove").click()
    run(shown_command(dialog))
    page.keyboard.press("Escape")
    page.get_by_role("button", name="New token").click()
    dialog.get_by_label("Name of the user or program").fill("it's me")
    assert is_parsed(shown_command(dialog))
    page.keyboard.press("Escape")
    page = visit.open("settings?action=webhooks.remove")
    entries = page.get_by_role("region", name="Audit log")
    expect(entries.locator("tbody tr").first).to_be_visible()
    told = run(shown_command(entries))
    assert {line["action"] for line in told} == {"webhooks.remove"}
    for hook in hooks:
        api.delete(f"/api/webhooks/{hook['id']}")


def is_parsed(words: list[str]) -> bool:
    """Return whether a command that must not run here is parsed: it fails only because its server is unreachable."""
    place = words.index("--server")
    done = headway(*words[:place], "--server", "http://127.0.0.1:9", *words[place + 2 :])
    assert done.returncode != USAGE, done.stderr
    return done.returncode == 5


def test_escape_goes_up_and_never_leaves_the_dashboard(visit: Visit, api: httpx.Client) -> None:
    job_id = enqueue(api, "greet", delay="1h", queue="apart")
    visit.page.goto("about:blank")
    page = visit.open(f"jobs/{job_id}")
    why = page.get_by_role("heading", name="Why this status")
    page.keyboard.press("w")
    expect(why).to_be_visible()
    page.keyboard.press("Escape")
    expect(why).to_have_count(0)
    assert page.url.endswith(job_id)  # The page stays open.
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile("#/jobs$"))
    expect(page.get_by_role("heading", name="Jobs", level=1)).to_be_attached()
    page.get_by_role("region", name="Jobs").locator("tbody a").first.click()
    page.reload()
    expect(page.get_by_role("button", name="Why?")).to_be_visible()
    page.keyboard.press("Escape")  # Back to the previous page.
    expect(page).to_have_url(re.compile("#/jobs$"))
    page = visit.open("schedules/quick")
    expect(page.get_by_role("button", name="Run now")).to_be_visible()
    visit.page.goto("about:blank")
    page = visit.open("schedules/quick")
    expect(page.get_by_role("button", name="Run now")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile("#/schedules$"))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog").get_by_role("heading")).to_be_focused()


TWINS = ("default", "acme")


def test_manual_runs_belong_to_the_schedule_of_their_tenant(visit: Visit, api: httpx.Client) -> None:
    """Two tenants have a schedule of the same name: each page, button and command refers to its own."""
    rule = {"task": "greet", "cron": "30 2 * * *", "overlap": "allow"}
    for tenant in TWINS:
        assert api.put("/api/schedules/twins", params={"tenant": tenant}, json=rule).status_code in (200, 201)
    page = visit.open("schedules?q=twins")
    rows = page.get_by_role("region", name="Schedules").locator("tbody tr")
    expect(rows).to_have_count(2)
    rows.filter(has_text="acme").get_by_role("link", name="twins", exact=True).click()
    expect(page).to_have_url(re.compile(r"schedules/twins\?tenant=acme$"))
    occurrences = page.get_by_role("region", name="Occurrences", exact=True)
    expect(occurrences).to_contain_text("Nothing has been decided yet.")
    page.get_by_role("button", name="Run now").click()
    expect(occurrences.locator("tbody tr")).to_have_count(1)
    expect(occurrences).to_contain_text("Triggered")
    run(shown_command(page.locator(".toast").last))
    expect(occurrences.locator("tbody tr")).to_have_count(2)
    jobs = [api.get("/api/jobs", params={"schedule": "twins", "tenant": whose}).json()["items"] for whose in TWINS]
    assert [len(found) for found in jobs] == [0, 2]
    told = run(["schedules", "history", "acme/twins", "--server", visit.url])
    assert [one["outcome"] for one in told] == ["triggered", "triggered"]
    occurrences.get_by_role("link").first.click()
    page.get_by_role("link", name="twins", exact=True).click()
    expect(page).to_have_url(re.compile(r"schedules/twins\?tenant=acme$"))
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Pause").click()
    run(shown_command(dialog))
    page.keyboard.press("Escape")
    page.reload()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.get_by_role("button", name="Change", exact=True).click()
    dialog.get_by_role("textbox", name="Cron expression").fill("31 2 * * *")
    expect(dialog.get_by_text("This changes rule.")).to_be_visible()
    run(shown_command(dialog))
    page.keyboard.press("Escape")
    for line in page.locator("article .command code").all():
        assert headway(*shlex.split(line.inner_text())[1:]).returncode == 0, line.inner_text()
    page.reload()  # The command has created a new revision; an unseen revision cannot be removed.
    visit.expects.append("status of 404")  # A page that follows the schedule may still ask for it.
    page.get_by_role("button", name="Remove").click()
    dialog.get_by_role("button", name="Remove it").click()
    expect(page).to_have_url(re.compile("#/schedules$"))
    assert api.get("/api/schedules/twins", params={"tenant": "acme"}).status_code == 404
    assert api.get("/api/schedules/twins").json()["trigger"]["expr"] == "30 2 * * *"
    api.delete("/api/schedules/twins")
