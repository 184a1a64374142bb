"""Access with real servers: every route, every role, the lifecycle of tokens (also on open streams), the audit log."""

import contextlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from headway.cli.root import run
from headway.core.access import ROLES
from headway.server.api import ROUTES
from headway.server.routes import dashboard
from headway.server.web import Route
from tests.support.api import ApiProcess, api_process
from tests.support.command_line import Cli
from tests.support.waiting import DEADLINE_S, wait_until

SECRET = "environment-0123456789abcdef"


def address(folder: Path) -> str:
    return f"sqlite:///{folder}/headway.db"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[tuple[ApiProcess, str]]:
    """A server with a token in its environment, and the token of an admin of all tenants.

    The token of the environment is rate-limited after tests that send wrong tokens.
    """
    with api_process(address(folder), env={"HEADWAY_TOKEN": SECRET}) as api, api.client(SECRET) as client:
        yield api, create(client, "root", role="admin")["token"]


@pytest.fixture(scope="module")
def api(server: tuple[ApiProcess, str]) -> ApiProcess:
    return server[0]


@pytest.fixture(scope="module")
def root(server: tuple[ApiProcess, str]) -> Iterator[httpx.Client]:
    with server[0].client(server[1]) as client:
        yield client


def create(client: httpx.Client, name: str = "t", **options: str) -> dict[str, Any]:
    answer = client.post("/api/tokens", json={"name": name, "role": "viewer", **options})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


@pytest.fixture(scope="module")
def tokens(root: httpx.Client) -> dict[str, str]:
    """A token of each role, for all tenants."""
    return {role: create(root, role, role=role)["token"] for role in ROLES}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def anonymous(api: ApiProcess) -> Iterator[httpx.Client]:
    """A client without a token."""
    with api.client() as client:
        yield client


@pytest.fixture(scope="module")
def clients(api: ApiProcess, tokens: dict[str, str]) -> Iterator[dict[str, httpx.Client]]:
    """A client of each role."""
    with contextlib.ExitStack() as stack:
        yield {role: stack.enter_context(api.client(token)) for role, token in tokens.items()}


def path_of(route: Route) -> str:
    return re.sub(r"\{[^}]*\}", "nothing", route.path)


def ask(client: httpx.Client, route: Route, **options: Any) -> httpx.Response:
    if route.body is not None:
        options.setdefault("json", {})
    return client.request(route.method, path_of(route), **options)


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


# Every route


def test_only_health_sign_in_and_dashboard_files_are_public() -> None:
    """The files of the dashboard contain no data."""
    way_in = {"/api/session", *dashboard.FILES}
    assert {route.path for route in ROUTES if route.role is None} == {"/livez", "/readyz", *way_in}


@pytest.mark.parametrize("route", [route for route in ROUTES if route.role is not None], ids=name_of)
def test_no_route_answers_without_a_credential(anonymous: httpx.Client, route: Route) -> None:
    answers = [ask(anonymous, route), ask(anonymous, route, params={"token": SECRET, "access_token": SECRET})]
    answers.append(ask(anonymous, route, headers={"Authorization": SECRET, "X-Token": SECRET}))
    answers.append(ask(anonymous, route, headers={"Cookie": f"token={SECRET}"}))
    assert {answer.status_code for answer in answers} <= {401, 429}
    assert answers[0].status_code == 401
    assert answers[0].json()["error"]["code"] == "unauthorized"
    assert "www-authenticate" in answers[0].headers
    assert answers[0].json()["request_id"] == answers[0].headers["x-request-id"]


@pytest.mark.parametrize(
    "path",
    [
        "/livez/",
        "/livez/api/jobs",
        "/api/jobs/livez",
        "/api/jobs/readyz",
        "/api/jobs?x=/livez",
        "/api/jobs/%2e%2e/livez",
        "//livez",
        "/livez%2f..%2fapi%2fjobs",
        "/API/JOBS",
        "/api/jobs/",
        "//api/jobs",
        "/./api/jobs",
        "/docs/..%2flivez",
    ],
)
def test_no_path_variant_bypasses_authentication(anonymous: httpx.Client, path: str) -> None:
    asked = {"target": path.encode()}  # Sent unchanged: httpx would normalize it.
    assert anonymous.get("/api/jobs", extensions=asked).status_code in (401, 404)


ABOVE_VIEWER = [route for route in ROUTES if route.role in ("operator", "admin")]


@pytest.mark.parametrize("route", ABOVE_VIEWER, ids=name_of)
def test_too_low_role_is_refused(clients: dict[str, httpx.Client], route: Route) -> None:
    for role in ROLES[: ROLES.index(str(route.role))]:
        answer = ask(clients[role], route)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), role
        assert str(route.role) in answer.json()["error"]["message"]


READABLE = [route for route in ROUTES if route.role is not None and not route.is_stream]


@pytest.mark.parametrize("route", READABLE, ids=name_of)
def test_sufficient_role_is_accepted(clients: dict[str, httpx.Client], route: Route) -> None:
    for role in ROLES[ROLES.index(str(route.role)) :]:
        assert ask(clients[role], route).status_code not in (401, 403, 405), role


def test_every_change_needs_at_least_an_operator() -> None:
    """Except previews, which store nothing, and sign-in and sign-out."""
    harmless = {"/api/schedules/preview", "/api/session"}
    changes = [route for route in ROUTES if route.method != "GET" and route.path not in harmless]
    assert [name_of(route) for route in changes if route.role not in ("operator", "admin")] == []


def test_websocket_needs_a_credential(api: ApiProcess, tokens: dict[str, str]) -> None:
    url = api.url.replace("http", "ws") + "/api/ws"
    for headers in ({}, bearer("hw_wrong")):
        with pytest.raises((InvalidStatus, ConnectionClosed)), connect(url, additional_headers=headers) as socket:
            socket.recv(timeout=DEADLINE_S)
    with connect(url, additional_headers=bearer(tokens["viewer"])) as socket:
        assert socket.ping().wait(DEADLINE_S)


# The lifecycle of a token


def test_first_token_ends_anonymous_access(tmp_path: Path) -> None:
    store = address(tmp_path)
    with api_process(store) as api, api.client() as client, api.client() as other:
        me = {"name": "anonymous", "tenant": "*", "role": "admin", "token_id": None}
        assert client.get("/api/me").json() == me
        assert client.get("/api/me", headers={"Host": "evil.example"}).status_code == 403  # DNS rebinding.
        assert client.get("/api/me", headers=bearer("hw_wrong")).status_code == 401
        stream = Follower(other)
        first = create(client, "first", role="admin")
        wait_until(lambda: client.get("/api/me").status_code == 401, "the end of anonymous access")
        stream.wait_end()
        assert client.get("/api/me", headers=bearer(first["token"])).json()["name"] == "first"
        assert client.delete(f"/api/tokens/{first['id']}", headers=bearer(first["token"])).status_code == 200
        wait_until(lambda: client.get("/api/me", headers=bearer(first["token"])).status_code == 401, "its revocation")
        assert client.get("/api/me").status_code == 401  # Anonymous access does not come back.


class Follower:
    """Read a stream in a thread until it ends."""

    def __init__(self, client: httpx.Client, path: str = "/api/stream", **options: Any) -> None:
        self._ready, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._read, args=(client, path, options), daemon=True)
        self._thread.start()
        assert self._ready.wait(DEADLINE_S), "the stream did not begin"

    def _read(self, client: httpx.Client, path: str, options: Any) -> None:
        with contextlib.suppress(httpx.HTTPError), client.stream("GET", path, **options) as answer:
            for _ in answer.iter_bytes():
                self._ready.set()
        self._ended.set()

    @property
    def is_open(self) -> bool:
        return not self._ended.is_set()

    def wait_end(self) -> None:
        assert self._ended.wait(DEADLINE_S), "the stream is still open"


def test_revoked_token_ends_its_streams_and_websockets_in_every_process(folder: Path, root: httpx.Client) -> None:
    """Valid tokens keep theirs, also after the server has checked them again."""
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(api_process(address(folder), env={"HEADWAY_TOKEN": SECRET}))
        reader = stack.enter_context(other.client())
        kept, gone = create(root, "kept"), create(root, "gone")
        staying = Follower(reader, headers=bearer(kept["token"]))
        going = Follower(reader, headers=bearer(gone["token"]))
        url = other.url.replace("http", "ws") + "/api/ws"
        socket = stack.enter_context(connect(url, additional_headers=bearer(gone["token"])))
        assert reader.get("/api/me", headers=bearer(gone["token"])).status_code == 200
        assert going.is_open
        answer = root.delete(f"/api/tokens/{gone['id']}").json()
        assert (answer["state"], answer["id"]) == ("revoked", gone["id"])
        going.wait_end()
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=DEADLINE_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4401
        wait_until(lambda: reader.get("/api/me", headers=bearer(gone["token"])).status_code == 401, "its refusal")
        assert staying.is_open
        assert reader.get("/api/me", headers=bearer(kept["token"])).status_code == 200


def test_long_poll_ends_with_its_token(api: ApiProcess, root: httpx.Client) -> None:
    job = root.post("/api/jobs", json={"type": "awaited", "queue": "nobody"}).json()
    token = create(root, "waiting")
    answers: list[httpx.Response] = []
    with api.client(token["token"]) as client:
        path = f"/api/jobs/{job['id']}?wait=60s&since={job['version'] + 1_000}"
        waiting = threading.Thread(target=lambda: answers.append(client.get(path)), daemon=True)
        waiting.start()
        # Nothing shows that the server waits; a server that does not yet wait refuses the request as well.
        time.sleep(0.5)
        assert waiting.is_alive()
        root.delete(f"/api/tokens/{token['id']}")
        waiting.join(DEADLINE_S)
        assert [answer.status_code for answer in answers] == [401]


def test_expired_token_ends_its_stream(api: ApiProcess, root: httpx.Client) -> None:
    token = create(root, "short", expires_in="2s")
    assert token["expires_at"] is not None
    with api.client(token["token"]) as client:
        stream = Follower(client)
        stream.wait_end()
    with api.client(token["token"]) as client:
        answer = client.get("/api/me")
    assert (answer.status_code, answer.json()["error"]["message"]) == (401, "the token has expired")


def test_token_value_is_shown_once_and_stored_nowhere(api: ApiProcess, root: httpx.Client, folder: Path) -> None:
    made = create(root, "secret-keeper", role="admin")
    value = made["token"]
    assert re.fullmatch(r"hw_[A-Za-z0-9_-]{32,}", value)
    with api.client(value) as client:
        assert client.get("/api/me").json()["token_id"] == made["id"]
        for path in ("/api/tokens?limit=200", "/api/trail?limit=200", "/api/me", "/openapi.json", "/metrics"):
            assert value not in client.get(path).text
        assert value not in client.delete(f"/api/tokens/{made['id']}").text
    listed = next(token for token in root.get("/api/tokens?limit=200").json()["items"] if token["id"] == made["id"])
    assert "token" not in listed
    files = [file for file in folder.iterdir() if file.is_file()]
    assert files
    for file in files:
        assert value.encode() not in file.read_bytes()
        assert SECRET.encode() not in file.read_bytes()
    for secret in (value, SECRET):
        assert secret not in "".join(api.log)
        assert secret.encode() not in Path(f"/proc/{api.process.pid}/cmdline").read_bytes()


def test_wrong_tokens_are_rate_limited_and_logged_without_their_value(tmp_path: Path) -> None:
    with api_process(address(tmp_path), env={"HEADWAY_TOKEN": SECRET}) as api, api.client() as client:
        with api.client(SECRET) as root:
            known = create(root, "known")["token"]
        assert client.get("/api/me", headers=bearer(known)).status_code == 200
        codes = [client.get("/api/me", headers=bearer(f"hw_do-not-tell-{n}")).status_code for n in range(14)]
        assert codes == [401] * 10 + [429] * 4
        refused = client.get("/api/me", headers=bearer("hw_do-not-tell"))
        assert 0 < int(refused.headers["retry-after"]) <= 60
        # Other tokens from the same address still work.
        assert client.get("/api/me", headers=bearer(known)).status_code == 200
        wait_until(lambda: "limited=true" in "".join(api.log).lower(), "the log line")
        assert len([line for line in api.log if "access_refused" in line]) == 10
        assert "do-not-tell" not in "".join(api.log)


# Listening addresses


def test_without_a_token_only_loopback_is_allowed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["api", "--store", address(cli.folder), "--host", "0.0.0.0", "--port", "0"]
    monkeypatch.delenv("HEADWAY_TOKEN", raising=False)
    process = [sys.executable, "-m", "headway", *command]
    ended = subprocess.run(process, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "headway tokens create" in ended.stderr
    assert "HEADWAY_TOKEN" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "listening" not in ended.stderr
    for weak in ("changeme", "secret", "x" * 40):
        monkeypatch.setenv("HEADWAY_TOKEN", weak)
        refused = cli(*command)
        assert refused.code == 2
        assert weak not in refused.err.replace("an unguessable secret", "")
        assert "listening" not in refused.err


def test_with_a_token_any_address_is_allowed(tmp_path: Path) -> None:
    assert run(["tokens", "create", "ada", "--role", "admin", "--store", address(tmp_path)]) == 0
    with api_process(address(tmp_path), "--host", "0.0.0.0") as api, api.client() as client:
        url = api.url.replace("0.0.0.0", "127.0.0.1")
        assert client.get(f"{url}/api/me").status_code == 401
        assert client.get(f"{url}/livez").status_code == 200


# Tokens of one tenant


@pytest.fixture(scope="module")
def acme(api: ApiProcess, root: httpx.Client) -> Iterator[httpx.Client]:
    """An admin of one tenant."""
    with api.client(create(root, "acme-admin", role="admin", tenant="acme")["token"]) as client:
        yield client


def test_tenant_admin_creates_tokens_of_its_tenant_only(acme: httpx.Client, root: httpx.Client) -> None:
    made = create(acme, "inner", role="operator")
    assert (made["tenant"], made["created_by"]) == ("acme", "acme-admin")
    assert create(acme, "inner", tenant="acme")["tenant"] == "acme"
    for tenant in ("globex", "*", "default", "ACME", "acme "):
        refused = acme.post("/api/tokens", json={"name": "x", "role": "viewer", "tenant": tenant})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden"), tenant
    create(root, "foreign", tenant="globex")
    assert {token["tenant"] for token in acme.get("/api/tokens?limit=200").json()["items"]} == {"acme"}
    assert {token["tenant"] for token in root.get("/api/tokens?limit=200").json()["items"]} >= {"acme", "globex", "*"}


def test_foreign_tokens_look_like_missing_ones(acme: httpx.Client, root: httpx.Client) -> None:
    foreign = create(root, "foreign", tenant="globex")
    answers = [acme.delete(f"/api/tokens/{token_id}") for token_id in (foreign["id"], "tok_none")]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].json()["error"] == answers[1].json()["error"]
    states = {token["id"]: token["state"] for token in root.get("/api/tokens?limit=200").json()["items"]}
    assert states[foreign["id"]] == "valid"


def test_audit_log_records_who_created_and_revoked_tokens(acme: httpx.Client, root: httpx.Client) -> None:
    made = create(acme, "traced", role="operator")
    acme.delete(f"/api/tokens/{made['id']}")
    acme.delete(f"/api/tokens/{made['id']}")
    lines = acme.get("/api/audit-log", params={"target": made["id"]}).json()["items"]
    assert [(line["action"], line["actor"], line["tenant"]) for line in lines] == [
        ("tokens.revoke", "acme-admin", "acme"),
        ("tokens.create", "acme-admin", "acme"),
    ]
    assert lines[0]["origin"] == "127.0.0.1"
    assert lines[1]["detail"] == {"name": "traced", "tenant": "acme", "role": "operator"}
    create(root, "elsewhere", tenant="globex")
    assert {line["tenant"] for line in acme.get("/api/audit-log?limit=200").json()["items"]} == {"acme"}
    assert acme.get("/api/audit-log?tenant=acme&limit=200").json() == acme.get("/api/audit-log?limit=200").json()
    assert acme.get("/api/audit-log?tenant=globex").status_code == 403
    ours = root.get("/api/audit-log?tenant=globex").json()["items"]
    assert {line["tenant"] for line in ours} == {"globex"}
    assert acme.get("/api/audit-log", params={"actor": "root", "action": "tokens.create"}).json()["items"]
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert root.request(method, "/api/audit-log").status_code == 405


def test_audit_log_keeps_its_old_path(root: httpx.Client) -> None:
    create(root, "by-the-old-path")
    assert root.get("/api/trail?limit=3").json() == root.get("/api/audit-log?limit=3").json()
    described = root.get("/openapi.json").json()["paths"]
    assert (described["/api/audit-log"]["get"]["operationId"], described["/api/trail"]["get"]["operationId"]) == (
        "read_audit_log",
        "read_trail",
    )
    assert described["/api/trail"]["get"]["deprecated"] is True


def test_lists_are_paged(root: httpx.Client) -> None:
    for number in range(5):
        create(root, f"page-{number}", tenant="paged")
    for path, name in (("/api/tokens", "id"), ("/api/audit-log", "target"), ("/api/trail", "target")):
        whole = [item[name] for item in root.get(path, params={"limit": 200}).json()["items"]]
        found: list[str] = []
        cursor: str | None = None
        while len(found) <= len(whole):
            page = root.get(path, params={"limit": 3, **({"cursor": cursor} if cursor else {})}).json()
            found += [item[name] for item in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert found == whole


# Invalid requests


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": "x"}, "role"),
        ({"name": "", "role": "viewer"}, "name"),
        ({"name": "x" * 300, "role": "viewer"}, "name"),
        ({"name": "a\u0000b", "role": "viewer"}, "NUL"),
        ({"name": "a\u001b[31m", "role": "viewer"}, "name"),
        ({"name": 5, "role": "viewer"}, "name"),
        ({"name": "x", "role": "root"}, "role"),
        ({"name": "x", "role": "Admin"}, "role"),
        ({"name": "x", "role": ["admin"]}, "role"),
        ({"name": "x", "role": "viewer", "tenant": ""}, "tenant"),
        ({"name": "x", "role": "viewer", "tenant": "a\tb"}, "tenant"),
        ({"name": "x", "role": "viewer", "tenant": {}}, "tenant"),
        ({"name": "x", "role": "viewer", "expires_in": "soon"}, "expires_in"),
        ({"name": "x", "role": "viewer", "expires_in": "0s"}, "token"),
        ({"name": "x", "role": "viewer", "expires_in": "-1h"}, "expires_in"),
        ({"name": "x", "role": "viewer", "expires_in": "99999999w"}, "expires_in"),
        ({"name": "x", "role": "viewer", "expires_in": 90}, "expires_in"),
        ({"name": "x", "role": "viewer", "scopes": ["all"]}, "scopes"),
        ({"name": "x", "role": "viewer", "token": "hw_mine"}, "token"),
        ([], "body"),
        ("x", "body"),
    ],
    ids=str,
)
def test_invalid_token_request_is_rejected(root: httpx.Client, body: object, field: str) -> None:
    before = root.get("/api/tokens?limit=1").json()["items"][:1]
    answer = root.post("/api/tokens", json=body)
    assert answer.status_code == 422, answer.text
    assert field in answer.json()["error"]["message"]
    assert root.get("/api/tokens?limit=1").json()["items"][:1] == before


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=x",
        "cursor=x",
        "cursor=-1",
        "cursor=%D9%A3",
        "cursor=9999999999999999999",
        "since=yesterday",
        "until=1",
        "who=ada",
        "actor=a&actor=b",
        "target=%00",
        "target=" + "x" * 600,
    ],
)
def test_invalid_audit_log_query_is_rejected(root: httpx.Client, query: str) -> None:
    assert root.get(f"/api/trail?{query}").status_code == 422


@pytest.mark.parametrize("token_id", ["tok_none", "%00", "x" * 2_000, "..", "%2e%2e%2fjobs", "'; drop table x;--"])
def test_unknown_token_cannot_be_revoked(root: httpx.Client, token_id: str) -> None:
    assert root.delete(f"/api/tokens/{token_id}").status_code in (404, 405)


# The command line


def test_tokens_on_the_command_line(cli: Cli) -> None:
    made = cli("tokens", "create", "ada", "--role", "admin", "--expires", "90d", "--json").json
    assert (made["name"], made["role"], made["tenant"], made["state"]) == ("ada", "admin", "*", "valid")
    plain = cli("tokens", "create", "ci", "--tenant", "acme")
    assert re.fullmatch(r"hw_[A-Za-z0-9_-]{43}\n", plain.out)  # Nothing else on stdout, so it can be piped.
    assert "viewer of tenant acme" in plain.err
    listed = cli("tokens", "list", "--json").json
    assert [token["name"] for token in listed] == ["ci", "ada"]
    assert made["token"] not in cli("tokens", "list").out
    assert cli("tokens", "revoke", made["id"]).out == f"{made['id']} (ada) is revoked\n"
    assert [token["name"] for token in cli("tokens", "list", "--json").json] == ["ci"]
    everything = cli("tokens", "list", "--all", "--json").json
    assert [(token["name"], token["state"]) for token in everything] == [("ci", "valid"), ("ada", "revoked")]
    assert [token["name"] for token in cli("tokens", "list", "--tenant", "acme", "--json").json] == ["ci"]
    lines = cli("trail", "--json").json
    assert [(line["action"], line["actor"]) for line in lines] == [
        ("tokens.revoke", "cli"),
        ("tokens.create", "cli"),
        ("tokens.create", "cli"),
    ]
    assert "@" in lines[0]["origin"]
    assert len(cli("trail", "--limit", "2", "--json").json) == 2
    assert len(cli("trail", "--action", "tokens.revoke", "--json").json) == 1
    assert cli("trail", "--since", "1h", "--tenant", "acme").out.count("tokens.create") == 1
    for secret in (made["token"], plain.out.strip()):
        assert secret not in cli("trail", "--json").out + cli("trail").out


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("create", "x", "--role", "root"), 2),
        (("create", "x", "--expires", "soon"), 2),
        (("create", " "), 2),
        (("create",), 2),
        (("revoke", "tok_none"), 3),
    ],
    ids=str,
)
def test_wrong_commands_fail_with_one_line(cli: Cli, args: tuple[str, ...], code: int) -> None:
    cli("tokens", "create", "ada")
    result = cli("tokens", *args)
    assert (result.code, result.out) == (code, "")
    assert result.err.count("\n") == 1
    assert len(cli("tokens", "list", "--json").json) == 1
