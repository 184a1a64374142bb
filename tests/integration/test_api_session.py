"""Browser sessions: the cookie, its rights, CSRF protection, and its end in every process."""

import contextlib
import re
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from headway import Headway
from headway.core.access import hash_secret
from headway.core.settings import Settings
from tests.support.api import ApiProcess, api_process
from tests.support.waiting import DEADLINE_S, wait_until

SECRET = "environment-0123456789abcdef"
OURS = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("session")


@pytest.fixture(scope="module")
def store(folder: Path) -> str:
    return f"sqlite:///{folder}/headway.db"


@pytest.fixture(scope="module")
def api(store: str) -> Iterator[ApiProcess]:
    with api_process(store, env={"HEADWAY_TOKEN": SECRET}) as server:
        yield server


@pytest.fixture(scope="module")
def other(store: str) -> Iterator[ApiProcess]:
    """Another process on the same store, to which no test sends a wrong token."""
    with api_process(store, env={"HEADWAY_TOKEN": SECRET}) as server:
        yield server


@pytest.fixture(scope="module")
def root(api: ApiProcess) -> Iterator[httpx.Client]:
    with api.client(SECRET) as client:
        client.headers["Authorization"] = f"Bearer {create(client, role='admin')['token']}"
        yield client


@pytest.fixture
def browser(api: ApiProcess) -> Iterator[httpx.Client]:
    """A client like a browser: keeps cookies, and sends the headers of our own pages."""
    with api.client() as client:
        client.headers.update(OURS)
        yield client


def create(client: httpx.Client, name: str = "t", **options: str) -> dict[str, Any]:
    answer = client.post("/api/tokens", json={"name": name, "role": "viewer", **options})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def cookie_for(api: ApiProcess, answer: httpx.Response) -> dict[str, str]:
    """Return the session cookie of a response, as a browser would send it to this process."""
    value = re.search(r"=([^;]+)", answer.headers["set-cookie"])
    assert value
    return {"Cookie": f"headway_session_{api.url.rpartition(':')[2]}={value[1]}"}


def sign_in(client: httpx.Client, token: str) -> httpx.Response:
    answer = client.post("/api/session", json={"token": token})
    assert answer.status_code == 201, answer.text
    return answer


# The cookie


def test_cookie_stands_for_the_token_without_containing_it(
    api: ApiProcess, root: httpx.Client, browser: httpx.Client, folder: Path
) -> None:
    made = create(root, "ada", role="operator", tenant="acme")
    answer = sign_in(browser, made["token"])
    me = {"name": "ada", "tenant": "acme", "role": "operator", "token_id": made["id"]}
    expires_at = answer.json().pop("expires_at")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", expires_at)
    assert {name: answer.json()[name] for name in me} == me
    name, value, rest = re.fullmatch(r"([^=]+)=([^;]+)(; .*)", answer.headers["set-cookie"]).groups()  # type: ignore[union-attr]
    port = api.url.rpartition(":")[2]
    assert name == f"headway_session_{port}"  # Two servers on one host do not overwrite each other's cookies.
    assert rest == "; Path=/; Max-Age=604800; HttpOnly; SameSite=Strict"
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", value)
    assert made["token"] not in answer.text + answer.headers["set-cookie"]
    assert answer.headers["cache-control"] == "no-store"
    assert browser.get("/api/me").json() == me
    kept = b"".join(file.read_bytes() for file in folder.iterdir() if file.is_file())
    assert value.encode() not in kept
    assert hash_secret(value).encode() in kept
    assert value not in "".join(api.log)
    with api.client(value) as thief:  # It is valid only as a cookie.
        assert thief.get("/api/me").status_code == 401
    with api.client() as other:
        for cookie in (
            f"{name}={value[:-1]}",
            f"{name}={hash_secret(value)}",
            f"{name}=",
            "headway_session=x",
            f"{name}",
        ):
            assert other.get("/api/me", headers={"Cookie": cookie}).status_code == 401, cookie
        assert other.get("/api/me", headers={"Cookie": f"a=b; {name}={value}; c=d"}).status_code == 200


@pytest.mark.parametrize("headers", [{"Origin": "https://ops.example", "Host": "ops.example"}])
def test_cookie_is_secure_behind_a_tls_proxy(api: ApiProcess, root: httpx.Client, headers: dict[str, str]) -> None:
    token = create(root, "tls")["token"]
    with api.client() as client:
        answer = client.post("/api/session", json={"token": token}, headers=headers)
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-headway_session=")
        assert cookie.endswith("; Path=/; Max-Age=604800; HttpOnly; SameSite=Strict; Secure")
        sent = {"Cookie": cookie.partition(";")[0], "Host": "ops.example"}
        assert client.get("/api/me", headers=sent).json()["name"] == "tls"


async def test_cookie_of_a_mounted_api_is_limited_to_its_path(tmp_path: Path) -> None:
    app = Headway(f"sqlite:///{tmp_path}/headway.db", settings=Settings(token=SECRET))
    api = app.api()
    transport = httpx.ASGITransport(app=Starlette(routes=[Mount("/ops/headway", api)]))
    for base, name, tail in (
        ("http://web.example", "headway_session", ""),
        ("https://web.example", "__Secure-headway_session", "; Secure"),
    ):
        async with httpx.AsyncClient(transport=transport, base_url=base, headers=OURS) as client:
            answer = await client.post("/ops/headway/api/session", json={"token": SECRET})
            assert answer.status_code == 201, answer.text
            cookie = answer.headers["set-cookie"]
            assert cookie.startswith(f"{name}=")
            assert cookie.endswith(f"; Path=/ops/headway; Max-Age=604800; HttpOnly; SameSite=Strict{tail}")
            assert (await client.get("/ops/headway/api/me")).json()["name"] == "HEADWAY_TOKEN"
            assert (await client.delete("/ops/headway/api/session")).status_code == 204
            assert (await client.get("/ops/headway/api/me")).status_code == 401
    await api.close()


def test_session_works_in_every_process(api: ApiProcess, other: ApiProcess, root: httpx.Client) -> None:
    """A restarted process knows as much about a session as one that has never seen it."""
    token = create(root, "wanderer")["token"]
    with api.client() as client:
        begun = sign_in(client, token)
    with other.client() as client:
        assert client.get("/api/me", headers=cookie_for(other, begun)).json()["name"] == "wanderer"


# Rights


@pytest.mark.parametrize(
    ("role", "codes"), [("viewer", (200, 403, 403)), ("operator", (200, 201, 403)), ("admin", (200, 201, 200))]
)
def test_session_has_the_role_of_its_token(
    root: httpx.Client, browser: httpx.Client, role: str, codes: tuple[int, ...]
) -> None:
    sign_in(browser, create(root, role, role=role)["token"])
    answers = (
        browser.get("/api/jobs"),
        browser.post("/api/jobs", json={"type": "x", "queue": "nobody"}),
        browser.get("/api/tokens"),
    )
    assert tuple(answer.status_code for answer in answers) == codes


def test_session_sees_its_tenant_only(root: httpx.Client, browser: httpx.Client) -> None:
    jobs = {
        tenant: root.post("/api/jobs", json={"type": "x", "queue": "nobody", "tenant": tenant}).json()["id"]
        for tenant in ("acme", "globex")
    }
    sign_in(browser, create(root, "acme", role="admin", tenant="acme")["token"])
    assert {job["tenant"] for job in browser.get("/api/jobs").json()["items"]} == {"acme"}
    assert browser.get(f"/api/jobs/{jobs['acme']}").status_code == 200
    assert browser.get(f"/api/jobs/{jobs['globex']}").status_code == 404
    assert browser.post(f"/api/jobs/{jobs['globex']}/cancel", json={}).status_code == 404
    trail = browser.get("/api/trail", params={"action": "sessions.create"}).json()["items"]
    assert {(line["actor"], line["tenant"], line["origin"]) for line in trail} >= {("acme", "acme", "127.0.0.1")}
    assert {line["tenant"] for line in trail} == {"acme"}


def test_bearer_token_takes_precedence_over_the_cookie(root: httpx.Client, browser: httpx.Client) -> None:
    sign_in(browser, create(root, "cookie")["token"])
    other = create(root, "header", role="operator")["token"]
    assert browser.get("/api/me").json()["name"] == "cookie"
    bearer = {"Authorization": f"Bearer {other}"}
    assert browser.get("/api/me", headers=bearer).json()["name"] == "header"
    elsewhere = {**bearer, "Sec-Fetch-Site": "none"}
    assert browser.post("/api/jobs", json={"type": "x", "queue": "nobody"}, headers=elsewhere).status_code == 201
    assert browser.get("/api/me", headers={"Authorization": "Bearer hw_wrong"}).status_code == 401
    # The browser also sends the password that it asked for on /docs, which is ignored.
    assert browser.get("/api/me", headers={"Authorization": "Basic eDp5"}).json()["name"] == "cookie"
    assert browser.get("/docs").status_code == 200


def test_environment_token_can_sign_in(store: str, api: ApiProcess, other: ApiProcess) -> None:
    with other.client() as client:
        client.headers.update(OURS)
        begun = sign_in(client, f" {SECRET}\n")  # With whitespace, as after copy and paste.
        assert begun.json()["token_id"] == "environment"
        assert client.get("/api/me").json()["role"] == "admin"
    with api.client() as client:
        assert client.get("/api/me", headers=cookie_for(api, begun)).status_code == 200
    with api_process(store, env={"HEADWAY_TOKEN": "another-" + SECRET}) as third, third.client() as client:
        refused = client.get("/api/me", headers=cookie_for(third, begun))
        assert (refused.status_code, refused.json()["error"]["message"]) == (
            401,
            "the session has ended: sign in again",
        )


def test_foreign_cookie_does_not_end_anonymous_access(tmp_path: Path) -> None:
    with api_process(f"sqlite:///{tmp_path}/headway.db") as api, api.client() as client:
        name = f"headway_session_{api.url.rpartition(':')[2]}"
        me = client.get("/api/me", headers={"Cookie": f"{name}=of-a-server-that-was-here-before"})
        assert me.json()["name"] == "anonymous"


# CSRF

FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "{own}"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "{own}.evil.example"},
    {},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_other_sites_cannot_change_anything(api: ApiProcess, root: httpx.Client, headers: dict[str, str]) -> None:
    headers = {name: value.replace("{own}", api.url) for name, value in headers.items()}
    with api.client() as client:
        sign_in(client, create(root, "prey", role="admin")["token"])
        for method, path, body in (
            ("POST", "/api/jobs", {"type": "forged", "queue": "nobody"}),
            ("POST", "/api/tokens", {"name": "forged", "role": "admin"}),
            ("PUT", "/api/schedules/forged", {"task": "x", "every": "1h"}),
            ("DELETE", "/api/schedules/forged", None),
            ("DELETE", "/api/session", None),
        ):
            answer = client.request(method, path, json=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), (method, path)
        assert client.get("/api/me").status_code == 200  # The session is still valid, too.
    assert root.get("/api/jobs", params={"type": "forged"}).json()["items"] == []


@pytest.mark.parametrize("headers", [OURS, {"Origin": "{own}"}, {**OURS, "Origin": "https://proxy.example"}], ids=str)
def test_own_pages_can_change_things(api: ApiProcess, root: httpx.Client, headers: dict[str, str]) -> None:
    headers = {name: value.replace("{own}", api.url) for name, value in headers.items()}
    with api.client() as client:
        sign_in(client, create(root, "ours", role="operator")["token"])
        body = {"type": "x", "queue": "nobody"}
        assert client.post("/api/jobs", json=body, headers=headers).status_code == 201
        assert client.delete("/api/session", headers=headers).status_code == 204


def test_other_sites_cannot_sign_in(browser: httpx.Client, root: httpx.Client) -> None:
    token = create(root, "mallory")["token"]
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "none", "Origin": "http://evil.example"}):
        refused = browser.post("/api/session", json={"token": token}, headers=headers)
        assert refused.status_code == 403
        assert "set-cookie" not in refused.headers
    plain = browser.post("/api/session", content=f'{{"token": "{token}"}}', headers={"Content-Type": "text/plain"})
    assert (plain.status_code, "set-cookie" in plain.headers) == (415, False)


def test_websocket_with_a_cookie_needs_our_origin(api: ApiProcess, root: httpx.Client) -> None:
    with api.client() as client:
        sign_in(client, create(root, "talker")["token"])
        cookie = {"Cookie": str(client.build_request("GET", "/").headers["cookie"])}
    url = api.url.replace("http", "ws") + "/api/ws"
    for headers in ({}, {"Origin": "http://evil.example"}):
        with (
            pytest.raises((InvalidStatus, ConnectionClosed)),
            connect(url, additional_headers={**cookie, **headers}) as socket,
        ):
            socket.recv(timeout=DEADLINE_S)
    with connect(url, additional_headers={**cookie, "Origin": api.url}) as socket:
        assert socket.ping().wait(DEADLINE_S)


# The end of a session


class Follower:
    """Read the stream of a session in a thread until it ends."""

    def __init__(self, api: ApiProcess, cookies: httpx.Cookies) -> None:
        self._began, self.ended = threading.Event(), threading.Event()
        threading.Thread(target=self._read, args=(api, cookies), daemon=True).start()
        assert self._began.wait(DEADLINE_S), "the stream did not begin"

    def _read(self, api: ApiProcess, cookies: httpx.Cookies) -> None:
        with (
            contextlib.suppress(httpx.HTTPError),
            api.client(cookies=cookies) as client,
            client.stream("GET", "/api/stream") as answer,
        ):
            for _ in answer.iter_bytes():
                self._began.set()
        self.ended.set()


def test_sign_out_ends_the_session_everywhere(api: ApiProcess, root: httpx.Client, browser: httpx.Client) -> None:
    token = create(root, "leaver")["token"]
    sign_in(browser, token)
    kept = httpx.Cookies(browser.cookies)
    follower = Follower(api, kept)
    answer = browser.delete("/api/session")
    assert (answer.status_code, answer.content) == (204, b"")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert not browser.cookies
    with api.client(cookies=kept) as thief:  # A copied cookie is worthless.
        assert thief.get("/api/me").status_code == 401
    assert follower.ended.wait(DEADLINE_S), "the stream is still open"
    assert browser.delete("/api/session").status_code == 204
    assert browser.get("/api/me", headers={"Authorization": f"Bearer {token}"}).status_code == 200


def test_revoked_token_ends_its_sessions(api: ApiProcess, root: httpx.Client, browser: httpx.Client) -> None:
    gone, stays = create(root, "gone"), create(root, "stays")
    sign_in(browser, gone["token"])
    follower = Follower(api, httpx.Cookies(browser.cookies))
    with api.client() as other:
        sign_in(other, stays["token"])
        assert root.delete(f"/api/tokens/{gone['id']}").status_code == 200
        wait_until(lambda: browser.get("/api/me").status_code == 401, "the end of the session")
        assert follower.ended.wait(DEADLINE_S), "the stream is still open"
        assert browser.post("/api/session", json={"token": gone["token"]}).status_code == 401
        assert other.get("/api/me").json()["name"] == "stays"


def test_expired_token_ends_its_sessions(root: httpx.Client, browser: httpx.Client, folder: Path) -> None:
    token = create(root, "brief", expires_in="1h")
    sign_in(browser, token["token"])
    assert browser.get("/api/me").status_code == 200
    with sqlite3.connect(folder / "headway.db", timeout=DEADLINE_S) as connection:  # As if an hour had passed.
        connection.execute("update headway_tokens set expires_at = created_at where id = ?", [token["id"]])
    connection.close()
    wait_until(lambda: browser.get("/api/me").status_code == 401, "the end of the session")


def test_second_sign_in_replaces_the_session(root: httpx.Client, browser: httpx.Client, api: ApiProcess) -> None:
    sign_in(browser, create(root, "first")["token"])
    former = httpx.Cookies(browser.cookies)
    sign_in(browser, create(root, "second")["token"])
    assert browser.get("/api/me").json()["name"] == "second"
    with api.client(cookies=former) as client:
        assert client.get("/api/me").status_code == 401


# Invalid requests


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"token": "hw_wrong"}, 401),
        ({"token": "two words"}, 401),
        ({"token": "ümlaut"}, 401),
        ({"token": " "}, 401),
        ({"token": ""}, 422),
        ({"token": "x" * 600}, 422),
        ({"token": 7}, 422),
        ({}, 422),
        ({"token": "x", "role": "admin"}, 422),
        ([], 422),
    ],
    ids=lambda value: str(value)[:30],
)
def test_invalid_credentials_do_not_sign_in(body: object, code: int, api: ApiProcess) -> None:
    with api.client() as client:
        answer = client.post("/api/session", json=body)
    assert answer.status_code in ((code, 429) if code == 401 else (code,))
    assert "set-cookie" not in answer.headers


def test_guessing_is_rate_limited_and_logged_without_the_value(tmp_path: Path) -> None:
    with api_process(f"sqlite:///{tmp_path}/headway.db", env={"HEADWAY_TOKEN": SECRET}) as api, api.client() as client:
        codes = [client.post("/api/session", json={"token": f"do-not-tell-{n}"}).status_code for n in range(12)]
        assert codes == [401] * 10 + [429] * 2
        assert client.post("/api/session", json={"token": SECRET}).status_code == 201  # The right token still works.
        wait_until(lambda: "limited=true" in "".join(api.log).lower(), "the log line")
        assert "do-not-tell" not in "".join(api.log)


def test_expired_cookie_does_not_count_as_a_guess(other: ApiProcess) -> None:
    """An open page keeps sending requests with an expired session; this must not block the next sign-in."""
    with other.client() as client:
        name = f"headway_session_{other.url.rpartition(':')[2]}"
        for number in range(30):
            assert client.get("/api/me", headers={"Cookie": f"{name}=old-{number}"}).status_code in (401, 429)
        assert client.post("/api/session", json={"token": SECRET}).status_code == 201
