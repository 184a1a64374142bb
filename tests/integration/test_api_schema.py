"""The server conforms to its specification for generated requests of every caller.

Requests are generated from /openapi.json, valid and invalid ones: by an admin, by a viewer of one tenant, and without a
credential. No response may be a server error, or have a status, type or schema that is not in the specification.
"""

import asyncio
import base64
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from requests.structures import CaseInsensitiveDict
from schemathesis import Case, GenerationMode
from schemathesis.checks import (
    CheckFunction,
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.schemas import APIOperation
from starlette.applications import Starlette
from starlette.routing import Mount

from headway import Every, Headway
from headway.core import lifecycle
from headway.core.instants import SECOND
from headway.core.limits import Limit
from headway.server.api import ROUTES
from headway.server.routes import dashboard, openapi
from tests.support.api import api_process
from tests.support.claiming import claim
from tests.support.waiting import DEADLINE_S

CHECKS: list[CheckFunction] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
TENANT = "42"
PUBLIC = {route.path for route in ROUTES if route.role is None}
SIGN_IN = "/api/session"  # Public, too, but a generated token is never valid.
PAGE = {*dashboard.FILES} - {"/"}  # Present only after a build of the dashboard.
# Statuses of public routes and of all others.
ANONYMOUS_STATUSES = {True: (200, 204, 404, 422, 503), False: (401, 429)}
DOCUMENT = openapi.document(ROUTES)
STREAMS = [route.path for route in ROUTES if route.is_stream]
OPERATIONS = [
    (method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item if path not in STREAMS
]


@dataclass
class Server:
    """A server with its own data, and a client without a token."""

    url: str
    client: httpx.Client
    tokens: dict[str, str]
    ended_job: str
    waiting_job: str
    dead_jobs: tuple[str, str]
    specification: Any = field(init=False)

    def __post_init__(self) -> None:
        answer = self.client.get("/openapi.json", headers=self.headers("admin"))
        assert answer.status_code == 200, answer.text
        self.specification = schemathesis.openapi.from_dict(answer.json())
        self.specification.config.update(base_url=self.url)

    def headers(self, who: str) -> dict[str, str]:
        """Return the headers of a caller."""
        return {"Authorization": f"Bearer {self.tokens[who]}"} if who in self.tokens else {}

    def real(self, method: str, path: str) -> dict[str, str]:
        """Return path parameters of existing objects. The job has ended, so no request waits for it."""
        if "/api/jobs/" in path or "/api/dead/" in path:
            return {"job_id": self.ended_job if method == "GET" else self.waiting_job}
        return {"name": "default" if "/queues/" in path else "every-hour"}


async def fill(url: str) -> tuple[dict[str, str], str, str, tuple[str, str]]:
    """Create tokens, jobs, a schedule and a limit."""
    async with Headway(url, name="shop") as app:
        for tenant in (TENANT, "default"):
            await app.put_schedule("every-hour", task="report", trigger=Every("1h"), tenant=tenant)
        ended = await app.enqueue("report", {"kind": "sales"}, tenant=TENANT, key="first")
        await app.cancel(ended.id)
        waiting = await app.enqueue("report", {"kind": "sales"}, tenant=TENANT)
        dead = await fail(app), await fail(app)
        store = await app.store()
        await store.limits.put(Limit.build("every-hour", concurrency=5), author="test")
        tokens = {}
        for role, tenant in (("admin", "*"), ("viewer", TENANT)):
            _, tokens[role] = await store.tokens.create(
                name=role, tenant=tenant, role=role, lifetime=None, actor="test", origin=""
            )
    return tokens, ended.id, waiting.id, dead


async def fail(app: Headway) -> str:
    """Create a dead letter."""
    job, store = await app.enqueue("report", tenant=TENANT, queue="once"), await app.store()
    (claimed,) = await claim(store, "once", node="node", lease=SECOND, limit=1)
    error = '{"type": "OSError", "message": "gone", "traceback": "…"}'
    await store.work.settle([lifecycle.settle(claimed, lifecycle.Raised(error=error, retryable=False), 0.5)])
    return job.id


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Run a server on its own store; it must still run at the end."""
    store = f"sqlite:///{folder}/headway.db"
    filled = asyncio.run(fill(store))
    with api_process(store) as api, api.client() as client:
        yield Server(api.url, client, *filled)
        assert api.process.poll() is None, "".join(api.log)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("api")) as server:
        yield server


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that receives no generated requests."""
    with running(tmp_path_factory.mktemp("fresh")) as server:
        yield server


def test_served_specification_is_complete(server: Server) -> None:
    assert server.specification.raw_schema == DOCUMENT


def drive(server: Server, operation: APIOperation[Any, Any, Any, Any], who: str, examples: int) -> None:
    """Send generated requests of an operation, half of them invalid, half of them for existing objects."""
    number = 0
    is_public = operation.path in PUBLIC
    real = server.real(operation.method.upper(), operation.path)

    @seed(7)
    @settings(
        max_examples=examples,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(GenerationMode.POSITIVE) | operation.as_strategy(GenerationMode.NEGATIVE))
    def send(case: Case[Any]) -> None:
        nonlocal number
        number += 1
        if number % 2:
            for name in case.path_parameters.keys() & real.keys():
                case.path_parameters[name] = real[name]
        generated = {name: value for name, value in case.headers.items() if name.lower() != "authorization"}
        case.headers = CaseInsensitiveDict({**generated, **server.headers(who)})
        answer = case.call_and_validate(checks=CHECKS, timeout=DEADLINE_S)
        if operation.path == SIGN_IN:
            assert answer.status_code not in (200, 201)
            return
        is_known = who in server.tokens
        assert answer.status_code not in (401, 429) if is_known else answer.status_code in ANONYMOUS_STATUSES[is_public]

    send()


def operation_of(server: Server, method: str, path: str) -> APIOperation[Any, Any, Any, Any]:
    found: APIOperation[Any, Any, Any, Any] = server.specification[path][method]
    return found


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_admin_gets_documented_responses_only(server: Server, method: str, path: str) -> None:
    drive(server, operation_of(server, method, path), "admin", examples=16)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_tenant_viewer_gets_documented_responses_only(server: Server, method: str, path: str) -> None:
    drive(server, operation_of(server, method, path), "viewer", examples=8)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_anonymous_caller_gets_no_data(server: Server, method: str, path: str) -> None:
    drive(server, operation_of(server, method, path), "nobody", examples=3)
    answer = server.client.request(method, re.sub(r"\{\w+\}", "x", path))
    assert answer.status_code in (*ANONYMOUS_STATUSES[path in PUBLIC], *((415,) if path == SIGN_IN else ())), (
        answer.text
    )


NOT_THERE = ("/api/workers/{id}/drain",)
# They leave no dead letter for the others, and no batch that can be retried.
AT_LAST = ("/api/dead/retry", "/api/dead/drop", "/api/batches/{name}/cancel")


def test_every_request_example_works(fresh: Server) -> None:
    """The examples of the specification work: reads first, then changes, deletes last."""
    order = ["GET", "PUT", "POST", "DELETE"]
    server = fresh
    with httpx.Client(base_url=server.url, headers=server.headers("admin"), timeout=DEADLINE_S) as client:
        ids = {
            "/webhooks/": hook_of(client),
            "/deliveries/": client.get("/api/deliveries").json()["items"][0]["id"],
            "/tokens/": client.get("/api/me").json()["token_id"],
            **dict(zip(("/dead/{id}/retry", "/dead/{id}/drop"), server.dead_jobs, strict=True)),
        }
        batch = server.real("GET", "/api/batches/{name}")["name"]
        assert client.post("/api/batches", json={"name": batch}).is_success
        waiting = {"jobs": [{"type": "report"}], "batch": batch}  # Otherwise the batch finishes when it is closed.
        assert client.post("/api/jobs/bulk", json=waiting).is_success
        for method, path in sorted(OPERATIONS, key=lambda one: (order.index(one[0]), one[1] in AT_LAST)):
            parts = {"id": next((it for part, it in ids.items() if part in path), "x"), **server.real(method, path)}
            query, body = example_of(server.specification.raw_schema["paths"][path][method.lower()])
            if path == SIGN_IN and method == "POST":
                body = {"token": server.tokens["viewer"]}
            answer = client.request(method, path.format(**parts), params=query, json=body)
            is_good = answer.status_code == 404 if path in NOT_THERE else answer.status_code < 300 or path in PAGE
            assert is_good, f"{method} {path} {body}: {answer.text}"


def example_of(operation: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the required parameters and the body of the example of an operation."""
    needed = (one for one in operation["parameters"] if one["in"] == "query" and one["required"])
    content = operation.get("requestBody", {"content": {"application/json": {}}})["content"]
    return {one["name"]: one["example"] for one in needed}, content["application/json"].get("example")


def hook_of(client: httpx.Client) -> str:
    """Create a webhook and a message for it; nothing listens at its URL."""
    made = client.post("/api/webhooks", json={"url": "https://hooks.invalid/x"})
    assert made.status_code == 201, made.text
    hook = str(made.json()["id"])
    tested = client.post(f"/api/webhooks/{hook}/test", json={})
    assert tested.status_code == 200, tested.text
    return hook


@pytest.mark.parametrize(
    ("who", "query", "status"),
    [("admin", {}, 200), ("viewer", {}, 200), ("viewer", {"nonsense": "1"}, 422), ("nobody", {}, 401)],
)
@pytest.mark.parametrize("path", STREAMS)
def test_streams_match_the_specification(
    server: Server, path: str, who: str, query: dict[str, str], status: int
) -> None:
    described = server.specification.raw_schema["paths"][path]["get"]["responses"][str(status)]
    address = path.format(job_id=server.waiting_job)
    with server.client.stream("GET", address, params=query, headers=server.headers(who)) as answer:
        assert answer.status_code == status
        assert answer.headers["content-type"].partition(";")[0] == (
            next(iter(described["content"])) if status == 200 else "application/json"
        )
        if status == 200:
            assert next(answer.iter_lines()).startswith("retry:")


def test_accept_header_selects_a_stream_of_the_job(server: Server) -> None:
    address, headers, http = f"/api/jobs/{server.ended_job}", server.headers("viewer"), server.client
    streamed = http.get(address, headers={**headers, "Accept": "text/event-stream"})
    assert streamed.headers["content-type"] == "text/event-stream"
    assert "event: done\n" in streamed.text
    assert http.get(address, headers={**headers, "Accept": "*/*"}).headers["content-type"] == "application/json"


async def test_mounted_api_stays_under_its_path(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/headway.db"
    tokens, ended, *_ = await fill(store)
    async with Headway(store) as app:
        api = app.api()
        web = httpx.ASGITransport(app=Starlette(routes=[Mount("/headway", api)]))
        headers = {"Authorization": f"Bearer {tokens['viewer']}"}
        async with httpx.AsyncClient(transport=web, base_url="http://shop.example", headers=headers) as client:
            described = (await client.get("/headway/openapi.json")).json()
            assert described["servers"] == [{"url": "/headway"}]
            assert described["paths"] == DOCUMENT["paths"]
            assert "docs/docs.js" in (await client.get("/headway/docs")).text
            assert (await client.get("/headway/docs/docs.js")).status_code == 200
            assert (await client.get(f"/headway/api/jobs/{ended}")).json()["status"] == "CANCELLED"
            assert (await client.get("/headway/docs", headers={"Authorization": ""})).status_code == 401
        await api.close()


# --- /docs


def test_docs_page_asks_the_browser_for_a_token(fresh: Server) -> None:
    pages = {"/docs": "text/html", "/docs/docs.js": "text/javascript", "/docs/docs.css": "text/css"}
    viewer = fresh.tokens["viewer"]
    for path, kind in pages.items():
        asked = fresh.client.get(path)
        assert asked.status_code == 401
        assert asked.headers["www-authenticate"].startswith("Basic ")
        for credential in (fresh.headers("viewer"), basic(viewer)):
            answer = fresh.client.get(path, headers=credential)
            assert answer.status_code == 200
            assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
    assert fresh.client.get("/openapi.json", headers=basic(viewer)).status_code == 200
    assert fresh.client.get("/docs", headers=basic("wrong")).status_code == 401
    elsewhere = fresh.client.get("/api/jobs", headers=basic(viewer))
    assert elsewhere.status_code == 401
    assert elsewhere.headers["www-authenticate"].startswith("Bearer ")


def basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()}
