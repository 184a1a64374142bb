"""The OpenAPI document is valid, complete and consistent with its examples; its page loads nothing external."""

import base64
import importlib
import pkgutil
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hatchling.builders.wheel import WheelBuilder
from schemathesis.specs.openapi.definitions import OPENAPI_31

import headway.server.routes
from headway.core.instants import SECOND
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.core.occurrences import Decided, Occurrence
from headway.core.schedules import Pause, Schedule, ScheduleSpec
from headway.core.triggers import Cron, Every
from headway.operations.schedule_instants import previews
from headway.server.routes import openapi
from headway.server.web import BULK_BYTES_MAX, Answer, Call, Param, Route
from headway.wire import jobs, schedules, schemas
from headway.wire.base import Resource
from headway.wire.jobs import attempt_of, job_of
from tests.support.waiting import DEADLINE_S

ROOT = Path(__file__).parents[3]
STATIC = resources.files("headway.server").joinpath("static")


def all_routes() -> list[Route]:
    """Return the routes of every module that has some."""
    found: list[Route] = []
    for module in pkgutil.iter_modules(headway.server.routes.__path__):
        if module.name != "api":
            found += getattr(importlib.import_module(f"headway.server.routes.{module.name}"), "ROUTES", ())
    return found


DOCUMENT = openapi.document(all_routes())


def resolved(node: Any, document: dict[str, Any] = DOCUMENT) -> Any:
    while "$ref" in node:
        inner: Any = document
        for part in node["$ref"].removeprefix("#/").split("/"):
            inner = inner[part]
        node = inner
    return node


def operations(document: dict[str, Any] = DOCUMENT) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


def fits(value: Any, schema: dict[str, Any], document: dict[str, Any] = DOCUMENT) -> None:
    jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]}).validate(value)


# --- the whole document


def test_every_route_has_a_success_response() -> None:
    """Routes that do not exist yet are not published."""
    empty = [f"{route.method} {route.path}" for route in all_routes() if not any(code < 400 for code in route.answers)]
    assert empty == []


def test_document_is_valid_openapi() -> None:
    jsonschema_rs.Draft202012Validator(OPENAPI_31).validate(DOCUMENT)


def test_every_reference_resolves_and_every_schema_is_valid() -> None:
    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                assert resolved(node)
            for name, inner in node.items():
                if name == "schema":
                    jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **inner})
                walk(inner)
        elif isinstance(node, list):
            for inner in node:
                walk(inner)

    walk(DOCUMENT)


def test_document_is_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(DOCUMENT)) == DOCUMENT


def test_every_route_is_documented() -> None:
    expected = {(route.method.lower(), re.sub(r":\w+\}", "}", route.path)) for route in all_routes()}
    assert {(method, path) for method, path, _ in operations()} == expected


def test_every_operation_has_a_unique_id_a_summary_and_a_known_tag() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    for method, path, operation in operations():
        assert operation["summary"], (method, path)
        assert set(operation["tags"]) <= openapi.TAGS.keys(), (method, path)


def test_every_path_variable_is_a_parameter() -> None:
    for _, path, operation in operations():
        named = [one["name"] for one in operation["parameters"] if one["in"] == "path"]
        assert named == re.findall(r"\{(\w+)\}", path)


def test_every_example_fits_its_schema() -> None:
    checked = 0
    for method, path, operation in operations():
        body = operation.get("requestBody", {"content": {}})
        answers = [resolved(answer) for answer in operation["responses"].values()]
        media = [one for part in (body, *answers) for one in part.get("content", {}).values()]
        for described in (*operation["parameters"], *media):
            if "example" in described:
                try:
                    fits(described["example"], described["schema"])
                except jsonschema_rs.ValidationError as error:
                    pytest.fail(f"{method} {path}: {described['example']}: {error}")
                checked += 1
    assert checked > 10


def test_every_body_has_an_example() -> None:
    for method, path, operation in operations():
        if "requestBody" in operation:
            assert "example" in operation["requestBody"]["content"]["application/json"], (method, path)


def test_every_response_with_a_body_has_an_example() -> None:
    for method, path, operation in operations():
        for status, answer in operation["responses"].items():
            if status not in ("204", "304"):
                kinds = resolved(answer)["content"]
                assert any("example" in media for media in kinds.values()), (method, path, status)


# --- derived parts


class _Order(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an order."""

    count: int
    note: str | None = None


async def take(call: Call) -> Answer:
    raise NotImplementedError


async def follow(call: Call) -> Answer:
    raise NotImplementedError


def described(**given: Any) -> dict[str, Any]:
    route = Route(
        **{"method": "GET", "path": "/api/orders", "handler": take, "role": "viewer", "summary": "x", **given}
    )
    document = openapi.document([route])
    jsonschema_rs.Draft202012Validator(OPENAPI_31).validate(document)
    operation: dict[str, Any] = document["paths"][re.sub(r":\w+\}", "}", route.path)][route.method.lower()]
    return operation


def statuses(**given: Any) -> set[str]:
    return set(described(**given)["responses"])


def test_only_reads_have_304() -> None:
    assert "304" in statuses()
    assert "304" not in statuses(method="POST")
    assert "304" not in statuses(is_stream=True)


def test_only_public_routes_need_no_credential() -> None:
    assert {"401", "403"} <= statuses()
    free = described(role=None)
    assert not {"401", "403"} & set(free["responses"])
    assert free["security"] == []
    assert "security" not in described()


def test_routes_with_a_body_have_the_errors_of_a_body() -> None:
    taken = statuses(method="POST", body=_Order, answers={201: {"id": "a"}})
    assert {"201", "400", "409", "413", "415", "422", "507"} <= taken
    assert not {"409", "413", "415", "507"} & statuses()


def test_routes_with_a_name_have_404() -> None:
    assert "404" in statuses(path="/api/orders/{id}")
    assert "404" not in statuses()


def test_only_routes_with_if_match_have_412() -> None:
    assert "412" in statuses(method="PUT", headers=("If-Match",))
    assert "412" not in statuses(method="PUT")


def test_declared_errors_are_documented() -> None:
    assert "404" in statuses(answers={200: {}, 404: None})


def test_error_with_an_example_has_its_own_schema() -> None:
    answers = described(answers={200: {"status": "ready"}, 503: {"status": "unready"}})["responses"]
    assert answers["503"]["content"]["application/json"]["example"] == {"status": "unready"}
    assert answers["500"] == {"$ref": "#/components/responses/500"}


def test_body_has_the_schema_of_its_struct() -> None:
    operation = described(method="POST", body=_Order, body_example={"count": 2}, body_bytes_max=BULK_BYTES_MAX)
    content = operation["requestBody"]["content"]["application/json"]
    assert content == {"schema": {"$ref": "#/components/schemas/_Order"}, "example": {"count": 2}}
    assert operation["requestBody"]["required"]
    assert not described(method="POST", body=_Order, body_is_optional=True)["requestBody"]["required"]


@pytest.mark.parametrize(
    ("param", "schema"),
    [
        (Param("limit", "", "int", low=1, high=200), {"type": "integer", "minimum": 1, "maximum": 200}),
        (Param("cursor", ""), {"type": "string", "maxLength": 512}),
        (Param("dry_run", "", "flag"), {"type": "string", "enum": ["0", "1", "true", "false"]}),
        (Param("at", "", "instant"), {"type": "string", "format": "date-time"}),
        (Param("status", "", choices=("A", "B")), {"type": "string", "enum": ["A", "B"]}),
    ],
)
def test_parameter_has_its_bounds(param: Param, schema: dict[str, Any]) -> None:
    [found] = [one for one in described(query=(param,))["parameters"] if one["in"] == "query"]
    assert found["schema"] == schema
    assert not found["required"]


def test_stream_is_an_event_stream() -> None:
    assert list(described(is_stream=True)["responses"]["200"]["content"]) == ["text/event-stream"]
    both = described(headers=("Accept",))["responses"]["200"]["content"]
    assert list(both) == ["application/json", "text/event-stream"]


def test_page_of_jobs_refers_to_job() -> None:
    content = described(answers={200: {"items": [job()], "next_cursor": None}})["responses"]["200"]["content"]
    items = content["application/json"]["schema"]["properties"]["items"]
    assert items["anyOf"][0]["items"] == {"$ref": "#/components/schemas/Job"}


def test_short_example_of_a_job_is_completed() -> None:
    content = described(answers={200: {"id": "job_7", "type": "mail", "status": "PENDING"}})["responses"]["200"][
        "content"
    ]
    assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/Job"}
    example = content["application/json"]["example"]
    assert (example["id"], example["type"], example["status"]) == ("job_7", "mail", "PENDING")
    fits(example, content["application/json"]["schema"])


def test_operations_with_the_same_name_get_distinct_ids() -> None:
    routes = [Route(method="GET", path=path, handler=take, role="viewer", summary="x") for path in ("/a/{id}", "/b")]
    alone = Route(method="GET", path="/c", handler=follow, role="viewer", summary="x")
    names = [operation["operationId"] for _, _, operation in operations(openapi.document([*routes, alone]))]
    assert names == ["get_a_id", "get_b", "follow"]


def test_prefix_is_the_server_url() -> None:
    assert openapi.document([], prefix="/headway")["servers"] == [{"url": "/headway"}]
    assert DOCUMENT["servers"] == [{"url": "/"}]


# --- schemas match the JSON that is written

NOW = 1_800_000_000 * SECOND


def written_as_json(value: Resource) -> dict[str, Any]:
    read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    return read


def job(**given: Any) -> dict[str, Any]:
    times = dict.fromkeys(("created_at", "run_at", "updated_at"), NOW)
    place = {"tenant": "default", "queue": "default", "priority": 0, "max_attempts": 3}
    facts = {"id": "job_1", "task": "report", "status": Status.PENDING, "args": "{}", **place, **times, **given}
    return written_as_json(job_of(Job(**facts), NOW))


def written() -> Iterator[tuple[type[Resource], dict[str, Any]]]:
    error = '{"type": "OSError", "message": "gone", "traceback": "…"}'
    detail = '{"step": "Copy", "done": 1, "total": 4, "rate": 0.5, "eta": 6, "steps": [["Copy", "running", 1.5]]}'
    yield jobs.Job, job()
    yield jobs.Job, job(status=Status.FAILED, started_at=NOW, finished_at=NOW, error=error, result="[1]")
    yield jobs.Job, job(status=Status.RUNNING, started_at=NOW, detail=detail, timeout=90 * SECOND, tags=("a",))
    times = dict.fromkeys(("ready_at", "started_at", "ended_at"), NOW)
    ended = {"attempt": 1, "node": "node_1", **times, "outcome": "failed", "reason": "", "error": error}
    yield jobs.Attempt, written_as_json(attempt_of(ended))
    for until in (None, NOW + SECOND):
        decided = Occurrence(
            schedule="s",
            instant=NOW,
            until=until,
            outcome=Decided.FIRED,
            reason="on time",
            decided_at=NOW,
            job_id="job_1",
        )
        yield schedules.Occurrence, msgspec.to_builtins(schedules.occurrence_of(decided))
    trigger = Cron("30 2 * * *", tz="Europe/Berlin")
    [preview] = previews(ScheduleSpec(task="report", trigger=trigger), NOW, 1)
    yield schedules.Preview, msgspec.to_builtins(preview)
    pause = Pause(since=NOW, until=None, reason="release", author="ada")
    for pauses in ((), (pause,)):
        spec = ScheduleSpec.build(task="report", trigger=Every("10m"))
        shown = schedules.schedule_of(Schedule(name="s", spec=spec, pauses=pauses), NOW)
        yield schedules.Schedule, msgspec.to_builtins(shown)


@pytest.mark.parametrize(("shape", "value"), list(written()))
def test_schema_matches_the_written_json(shape: type[Resource], value: dict[str, Any]) -> None:
    assert schemas.shape_of(value) is shape
    msgspec.convert(value, shape)
    fits(value, {"$ref": f"#/components/schemas/{shape.__name__}"})


# --- the page


class _Page(HTMLParser):
    """Collects what a page loads, and what its content security policy would block."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.inline: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        for name, value in attrs:
            if name in ("src", "href"):
                self.loaded.append(value or "")
            if name == "style" or name.startswith("on"):
                self.inline.append(f"{tag} {name}")

    def handle_data(self, data: str) -> None:
        if self._inside in ("script", "style") and data.strip():
            self.inline.append(data)


def test_page_runs_under_a_strict_policy_and_loads_nothing_external() -> None:
    parser = _Page()
    parser.feed(STATIC.joinpath("docs.html").read_text())
    assert parser.inline == []
    beside = {"#operations", "data:,", "openapi.json"}  # Besides assets of the API: an anchor and an empty icon.
    assert set(parser.loaded) == {"docs/docs.css", "docs/docs.js", *beside}
    served = {route.path for route in openapi.ROUTES}
    assert {f"/{path}" for path in parser.loaded if path.startswith(("docs/", "openapi"))} <= served


@pytest.mark.parametrize("name", ["docs.html", "docs.js", "docs.css"])
def test_assets_refer_to_no_other_host(name: str) -> None:
    assert not re.search(r"(https?:)?//[a-z0-9-]+\.[a-z]", STATIC.joinpath(name).read_text())
    assert not re.search(r"@import|url\(", STATIC.joinpath(name).read_text())


def test_script_sets_text_and_never_html() -> None:
    script = STATIC.joinpath("docs.js").read_text()
    markup = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|DOMParser|srcdoc|\.style\b"
    kept = r"localStorage|sessionStorage|document\.cookie|indexedDB"
    assert not re.search(f"{markup}|{kept}", script)


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
def test_script_is_valid_javascript() -> None:
    subprocess.run(["node", "--check", str(STATIC.joinpath("docs.js"))], check=True, timeout=DEADLINE_S)


def test_page_is_part_of_the_wheel() -> None:
    packed = {Path(file.distribution_path) for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {Path("headway/server/static", name) for name in ("docs.html", "docs.js", "docs.css")} <= packed


# --- the browser's password prompt


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (None, None),
        ("Bearer abc", "Bearer abc"),
        (basic("ada:hw_abc"), "Bearer hw_abc"),
        (basic(":hw_a:bc"), "Bearer hw_a:bc"),
        ("basic " + basic("x:y").split()[1], "Bearer y"),
        ("Basic ***", "Basic ***"),
        ("Basic /w==", "Basic /w=="),
    ],
)
def test_password_of_basic_authentication_is_the_token(sent: str | None, read: str | None) -> None:
    assert openapi.browser_credential(sent) == read
