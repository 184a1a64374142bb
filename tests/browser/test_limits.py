"""The pages of limits and tenants: what they show and change, by keyboard alone, and for two operators at once."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.test_access import sign_in, token_of
from tests.browser.test_actions import enqueue
from tests.support.api import ApiProcess, api_process
from tests.support.browser import Visit, visiting
from tests.support.waiting import wait_until


@dataclass(frozen=True)
class Held:
    """Jobs under a limit of each kind: those that run, and one that waits."""

    runs: str
    waits: str
    rated: str


@pytest.fixture(scope="module")
def held(api: httpx.Client) -> Iterator[Held]:
    """Jobs that wait for limits; acme waits longer than it should."""
    for name, limit in {
        "place-*": {"concurrency": 1},
        "slow-api": {"rate": "1/h"},
        "queue:seats": {"concurrency": 3},
    }.items():
        assert api.put(f"/api/limits/{name}", json=limit).status_code == 200
    api.put("/api/tenants/acme", json={"weight": 4, "wait_slo": "1us"})
    common: dict[str, Any] = {"queue": "seats", "tenant": "acme"}
    runs = enqueue(api, "work", limit="place-7", **common)
    wait_until(lambda: api.get(f"/api/jobs/{runs}").json()["status"] == "RUNNING", "the job to run")
    waits = enqueue(api, "work", limit="place-7", **common)
    rated = [enqueue(api, "greet", limit="slow-api", **common) for _ in range(2)]
    wait_until(lambda: is_held(api, waits) and is_held(api, rated[1]), "jobs to wait for their limits")
    yield Held(runs, waits, rated[1])
    for job_id in (waits, rated[1], runs):
        api.post(f"/api/jobs/{job_id}/cancel", json={})
    for name in ("place-*", "slow-api", "queue:seats"):
        api.delete(f"/api/limits/{name}")


def is_held(api: httpx.Client, job_id: str) -> bool:
    return "limit " in str(api.get(f"/api/jobs/{job_id}").json()["why"])


def row_of(page: Page, name: str) -> Locator:
    return page.locator("tbody tr").filter(has=page.get_by_role("link", name=name, exact=True))


def test_limits_show_what_runs_and_waits(visit: Visit, held: Held) -> None:
    page = visit.open("limits")
    seats = row_of(page, "queue:seats")
    expect(seats.get_by_role("meter")).to_have_attribute("aria-valuemax", "3")
    expect(seats).to_contain_text(" of 3")
    expect(row_of(page, "place-*")).to_contain_text("1 for each name")
    expect(row_of(page, "place-*")).to_contain_text("1 lane")
    slow = row_of(page, "slow-api")
    expect(slow).to_contain_text("1/h")
    expect(slow.locator("time")).to_contain_text(re.compile("in (59m|1h)"))  # The next start.
    row_of(page, "place-*").get_by_role("link", name="place-*").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("place-*")
    holders = page.get_by_role("region", name="Jobs that hold its places", exact=True)
    expect(holders).to_contain_text("place-7")
    holders.get_by_role("link", name=held.runs[-6:]).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("work")


def test_job_links_to_the_limit_that_it_waits_for(visit: Visit, held: Held) -> None:
    page = visit.open(f"jobs/{held.waits}")
    expect(page.locator(".why")).to_contain_text("limit place-7 allows 1 at a time")
    expect(page.locator(".why").get_by_role("link", name=held.runs[-6:])).to_be_visible()
    page.keyboard.press("w")
    page.get_by_role("region").get_by_role("link", name="place-*").or_(
        page.get_by_role("link", name="place-*")
    ).first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("place-*")


def test_tenants_show_their_use_and_their_wait(visit: Visit, held: Held) -> None:
    page = visit.open("tenants")
    late = page.get_by_role("region", name="Waiting too long")
    expect(late).to_contain_text("of 1us allowed")
    row = row_of(page, "acme")
    expect(row.get_by_role("meter", name="What acme has used")).to_be_visible()
    expect(row).to_contain_text("of 1us")
    expect(row.locator("td").nth(3)).to_have_text("2")  # Ready jobs.
    row.get_by_role("link", name="acme").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("acme")
    expect(page.get_by_role("region", name="What it has used", exact=True)).to_contain_text("seats")
    expect(page.get_by_role("region", name="About")).to_contain_text("p95")
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", level=1)).to_have_text("Tenants")


def test_alert_leads_to_the_tenant(visit: Visit, held: Held) -> None:
    page = visit.open()
    alert = page.locator(".alerts li").filter(has_text="tenant acme waits longer than its wait_slo")
    alert.get_by_role("link", name="Review").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("acme")


def test_limit_by_keyboard_alone(visit: Visit, api: httpx.Client) -> None:
    visit.expects += ["status of 4(?:04|22)"]  # There is no such limit yet, and what is typed first is wrong.
    page, keys = visit.open(), visit.page.keyboard
    expect(page.locator("main h1, main h2").first).to_be_visible()
    keys.press("Control+k")
    keys.type("new limit")
    keys.press("Enter")
    dialog = page.get_by_role("dialog", name="New limit")
    expect(dialog).to_be_visible()
    keys.type("queue:typed")  # The first field has the focus.
    keys.press("Tab")
    keys.type("many")
    expect(dialog.locator(".command")).to_contain_text("headway limits put queue:typed --concurrency many")
    keys.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("Concurrency: Expected `int")  # What the server says;
    keys.press("Control+a")
    keys.type("0")
    keys.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("from 1 to 10000")
    assert api.get("/api/limits/queue:typed").status_code == 404  # nothing is stored,
    keys.press("Control+a")
    keys.type("5")
    keys.press("Enter")
    expect(dialog).to_have_count(0)  # and the form can be corrected.
    expect(page.locator(".toast").filter(has_text="queue:typed allows 5 at a time")).to_be_visible()
    keys.press("g")
    keys.press("n")
    expect(page.get_by_role("heading", level=1)).to_have_text("Now")
    keys.press("g")
    keys.press("l")
    expect(row_of(page, "queue:typed")).to_contain_text("0 of 5")
    for _ in range(row_number(page, "queue:typed")):
        keys.press("j")
    keys.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("queue:typed")
    page.get_by_role("button", name="Remove the limit queue:typed").press("Enter")
    question = page.get_by_role("dialog")
    expect(question).to_contain_text("Jobs that wait for it may start")
    question.get_by_role("button", name="Remove it").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Limits")
    expect(row_of(page, "queue:typed")).to_have_count(0)
    assert api.get("/api/limits/queue:typed").status_code == 404


def row_number(page: Page, name: str) -> int:
    names = page.locator("tbody tr .cell-main").all_inner_texts()
    return [text.strip() for text in names].index(name) + 1


def test_second_operator_sees_what_the_first_did(
    browser: Browser, headway_server: ApiProcess, api: httpx.Client
) -> None:
    api.put("/api/limits/queue:contested", json={"concurrency": 5})
    api.put("/api/tenants/contested", json={"weight": 2})
    with visiting(browser, headway_server.url) as visit:
        for path, button, change, field, words in (
            (
                "limits/queue%3Acontested",
                "Change the limit queue:contested",
                {"concurrency": 7},
                "at a time",
                "allows 7 at a time",
            ),
            ("tenants/contested", "Change", {"weight": 7}, "Weight", "has the weight 7"),
        ):
            page = visit.open(path)
            page.get_by_role("button", name=button, exact=True).click()
            dialog = page.get_by_role("dialog")
            dialog.get_by_label(field).fill("9")
            address = "/api/" + path.replace("%3A", ":")
            assert api.put(address, json=change).status_code == 200  # The other operator is faster.
            dialog.locator("button[type=submit]").click()
            expect(dialog.get_by_role("alert")).to_contain_text(f"Somebody else has changed it meanwhile: it {words}")
            assert {**api.get(address).json(), **change} == api.get(address).json()  # Nothing is overwritten unseen.
            dialog.locator("button[type=submit]").click()
            expect(dialog).to_have_count(0)
            assert 9 in api.get(address).json().values()
    api.delete("/api/limits/queue:contested")


def test_changes_are_shown_without_a_reload(visit: Visit, api: httpx.Client) -> None:
    page = visit.open("limits")
    expect(page.locator("main h1")).to_have_text("Limits")
    api.put("/api/limits/queue:fresh", json={"concurrency": 5})
    expect(row_of(page, "queue:fresh")).to_contain_text("0 of 5")
    api.put("/api/limits/queue:fresh", json={"concurrency": 6})
    expect(row_of(page, "queue:fresh")).to_contain_text("0 of 6")
    api.delete("/api/limits/queue:fresh")
    expect(row_of(page, "queue:fresh")).to_have_count(0)


def test_lists_have_pages(visit: Visit, api: httpx.Client) -> None:
    names = [f"paged-{number:03d}" for number in range(60)]
    for name in names:
        api.put(f"/api/limits/{name}", json={"concurrency": 1})
        api.put(f"/api/tenants/{name}", json={"weight": 1})
    for path in ("limits", "tenants"):
        page = visit.open(path)
        expect(page.locator("tbody tr")).to_have_count(50)
        page.get_by_role("link", name="More").click()
        expect(row_of(page, names[-1])).to_be_visible()
        page.get_by_role("link", name="First").click()
        expect(row_of(page, names[0])).to_be_visible()
    page = visit.open("tenants")
    page.keyboard.press("/")
    page.keyboard.type(names[-1])
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(names[-1])
    for name in names:
        api.delete(f"/api/limits/{name}")


def test_unknown_limit_says_which_one_holds(visit: Visit, held: Held) -> None:
    visit.expects += ["status of 404"]
    page = visit.open("limits/place-7")
    expect(page.locator("main")).to_contain_text("'place-*' holds for it")


def test_empty_pages_teach(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:
    store = f"sqlite:///{tmp_path_factory.mktemp('empty')}/headway.db"
    secret = "environment-0123456789abcdef"
    with api_process(store, env={"HEADWAY_TOKEN": secret}) as server, server.client(secret) as root:
        tokens = {tenant: token_of(root, "viewer", tenant)["token"] for tenant in ("*", "acme")}
        for tenant, words in (("*", "No limits yet"), ("acme", "No limit concerns your jobs")):
            with visiting(browser, server.url) as visit:
                visit.expects += ["status of 401"]
                page = visit.open("limits")
                sign_in(page, tokens[tenant])
                expect(page.get_by_role("heading", name=words)).to_be_visible()
                expect(page.get_by_role("link", name="New limit")).to_have_count(0)  # A viewer has no buttons.
                page = visit.open("tenants")
                if tenant == "*":
                    expect(page.get_by_role("heading", name="No tenants yet")).to_be_visible()
                else:
                    expect(row_of(page, "acme")).to_be_visible()
                    expect(page.locator("tbody tr")).to_have_count(1)


def test_hostile_names_are_shown_verbatim(visit: Visit, api: httpx.Client) -> None:
    name = "<img src=x onerror=window.__ran.push(3)>"
    for path, body in (("limits", {"concurrency": 1}), ("tenants", {"weight": 2})):
        assert api.put(f"/api/{path}/{quote(name, safe='')}", json=body).status_code == 200
        page = visit.open(path)
        row_of(page, name).get_by_role("button", name="Change").click()
        expect(page.get_by_role("dialog").get_by_role("heading")).to_contain_text(name)
        page.keyboard.press("Escape")
        row_of(page, name).get_by_role("link", name=name).click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(name)
        assert visit.refused() == []
        assert page.locator("main img").count() == 0
    api.delete(f"/api/limits/{quote(name, safe='')}")
