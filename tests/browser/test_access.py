"""Sign-in, roles, and CSRF: pages of other sites can do nothing with a signed-in browser."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.test_actions import enqueue
from tests.support.api import ApiProcess, api_process
from tests.support.browser import Visit, visiting
from tests.support.waiting import DEADLINE_S

SECRET = "environment-0123456789abcdef"


@pytest.fixture(scope="module")
def secured_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    """A server that requires a token."""
    store = f"sqlite:///{tmp_path_factory.mktemp('secured_server')}/headway.db"
    with api_process(store, env={"HEADWAY_TOKEN": SECRET}) as server:
        yield server


@pytest.fixture(scope="module")
def root(secured_server: ApiProcess) -> Iterator[httpx.Client]:
    with secured_server.client(SECRET) as client:
        yield client


@pytest.fixture
def guest(browser: Browser, secured_server: ApiProcess) -> Iterator[Visit]:
    """A visitor who has not signed in."""
    with visiting(browser, secured_server.url) as visit:
        visit.expects += ["status of 401", "status of 403"]
        yield visit


def token_of(root: httpx.Client, role: str, tenant: str = "*") -> dict[str, str]:
    made: dict[str, str] = root.post("/api/tokens", json={"name": f"{role}-1", "role": role, "tenant": tenant}).json()
    return made


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_sign_in_browse_sign_out(guest: Visit, root: httpx.Client) -> None:
    job_id = enqueue(root, "report", queue="nobody", tenant="acme")
    page = guest.open(f"jobs/{job_id}")
    sign_in(page, "hw_wrong")
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_label("Token")).to_have_attribute("type", "password")
    sign_in(page, token_of(root, "viewer", "acme")["token"])
    expect(page.get_by_role("heading", level=1)).to_contain_text("report")  # The page that was requested.
    assert page.evaluate("document.cookie") == ""  # HttpOnly.
    [cookie] = guest.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    kept = page.evaluate("JSON.stringify([localStorage, sessionStorage])")
    assert "hw_" not in kept
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_contain_text("report")
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)  # A viewer has no buttons,
    status = page.evaluate("id => fetch(`api/jobs/${id}/cancel`, {method: 'POST'}).then(it => it.status)", job_id)
    assert status == 403  # and the server enforces it.
    page = guest.open("settings")
    page.get_by_role("button", name="Sign out").first.click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert guest.context.cookies() == []


def test_operator_acts_on_its_own_tenant_only(guest: Visit, root: httpx.Client) -> None:
    ours = enqueue(root, "ours", queue="nobody", tenant="acme")
    enqueue(root, "theirs", queue="nobody", tenant="globex")
    page = guest.open("jobs")
    sign_in(page, token_of(root, "operator", "acme")["token"])
    table = page.get_by_role("region", name="Jobs")
    expect(table).to_contain_text("ours")
    expect(table).not_to_contain_text("theirs")
    page = guest.open(f"jobs/{ours}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Cancelled")


def test_revoked_token_leads_to_sign_in(guest: Visit, root: httpx.Client) -> None:
    token = token_of(root, "viewer")
    page = guest.open()
    sign_in(page, token["token"])
    expect(page.locator('[data-live="live"]')).to_be_visible()
    root.delete(f"/api/tokens/{token['id']}")
    expect(page.get_by_label("Token")).to_be_visible()


def test_admin_creates_and_revokes_a_token(guest: Visit, root: httpx.Client) -> None:
    page = guest.open("settings")
    sign_in(page, token_of(root, "admin")["token"])
    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name of the user or program").fill("the night shift")
    dialog.get_by_label("Role").select_option("viewer")
    dialog.get_by_role("button", name="Create").click()
    secret = dialog.locator(".secret code").inner_text()
    dialog.get_by_role("button", name="Done").click()
    known = {"Authorization": f"Bearer {secret}"}
    assert (
        httpx.get(f"{guest.url}/api/me", headers=known, trust_env=False, timeout=DEADLINE_S).json()["role"] == "viewer"
    )
    row = page.get_by_role("region", name="Tokens", exact=True).get_by_role("row").filter(has_text="the night shift")
    expect(row).to_contain_text("Valid")
    assert secret not in page.content()
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke it").click()
    expect(row).to_contain_text("Revoked")


class _Evil(BaseHTTPRequestHandler):
    """Serve a page of another site."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>evil</title><form method=post enctype=text/plain></form>")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def evil() -> Iterator[int]:
    """The port of a server with pages of another site."""
    server = HTTPServer(("127.0.0.1", 0), _Evil)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


ATTACK = """async ([url, body]) => {
  const told = [];
  for (const type of ["application/json", "text/plain"])
    for (const mode of ["cors", "no-cors"])
      for (const [method, path] of [["POST", "/api/jobs"], ["POST", "/api/tokens"], ["GET", "/api/jobs"]])
        try {
          const sent = method === "GET" ? {} : {body, headers: {"Content-Type": type}};
          const answer = await fetch(url + path, {method, mode, credentials: "include", ...sent});
          told.push(answer.type === "opaque" ? "opaque" : `${method} ${answer.status} ${await answer.text()}`);
        } catch (error) { told.push("refused"); }
  try {
    const source = new EventSource(url + "/api/stream", {withCredentials: true});
    await new Promise((done, failed) => { source.onopen = done; source.onerror = failed; });
    told.push("stream opened");
  } catch { told.push("refused"); }
  await new Promise((done) => {
    const socket = new WebSocket(url.replace("http", "ws") + "/api/ws");
    socket.onopen = () => { told.push("socket opened"); done(); };
    socket.onclose = socket.onerror = () => { told.push("refused"); done(); };
  });
  return told;
}"""


# To a browser, another port is the same site, so it sends the cookie; another host name is another site.
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_pages_of_other_sites_read_and_change_nothing(guest: Visit, root: httpx.Client, evil: int, host: str) -> None:
    guest.expects.append("CORS|Failed to load|ERR_FAILED|WebSocket|blocked|MIME")
    page = guest.open("settings")
    sign_in(page, token_of(root, "admin")["token"])
    expect(page.get_by_role("button", name="Sign out").first).to_be_visible()
    before = len(root.get("/api/tokens?limit=200").json()["items"])
    page.goto(f"http://{host}:{evil}/")
    told = page.evaluate(ATTACK, [guest.url, '{"type": "forged", "name": "forged", "role": "admin"}'])
    assert set(told) <= {"refused", "opaque"}, told
    # A form needs no script to submit, and navigates the browser.
    page.evaluate(
        "url => { const form = document.forms[0]; form.action = url + '/api/jobs'; form.submit(); }", guest.url
    )
    page.wait_for_url("**/api/jobs")
    expect(page.locator("body")).to_contain_text("forbidden")
    assert root.get("/api/jobs", params={"type": "forged"}).json()["items"] == []
    assert len(root.get("/api/tokens?limit=200").json()["items"]) == before


def test_page_cannot_be_framed(guest: Visit, evil: int, tmp_path: Path) -> None:
    guest.expects.append("frame-ancestors|Refused to frame|Framing")
    page = guest.page
    page.goto(f"http://127.0.0.1:{evil}/")
    # A blocked frame fires a load event, too: that of the error page.
    page.evaluate(
        "url => new Promise((done) => { const frame = document.createElement('iframe'); frame.src = url;"
        " frame.onload = done; document.body.append(frame); })",
        guest.url,
    )
    assert not [frame for frame in page.frames[1:] if frame.url.startswith(guest.url) and frame.locator("h1").count()]
