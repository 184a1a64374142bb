"""/openapi.json, generated from the route tables that serve requests, and /docs, a page that shows it.

Nothing is written by hand that can be derived: the possible responses follow from what a route takes (a body, a name in
the path, a role), so a new route is documented as soon as it exists.

The specification and the page need a credential like everything else (`viewer`). A browser sends none when it opens a
page, so it is asked for a token: see `browser_credential`.
"""

import base64
import binascii
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata, resources
from typing import Any, Final

import msgspec

from headway.server.web import TEXT_LENGTH_MAX, Answer, Call, Param, Route, answer_json
from headway.wire import schemas
from headway.wire.base import EXAMPLES

REFERENCE: Final = "#/components/schemas/{name}"
JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"

ABOUT: Final = """\
Read, follow and control jobs, schedules and everything around them.

Times are ISO 8601 in UTC with `Z`; durations are strings such as `90s` or `1h30m`. Lists are paginated: repeat the
request with `cursor` = `next_cursor` until that is null. The response to a `GET` has an `ETag`; send it as
`If-None-Match` to get an empty 304 if nothing has changed. A `POST` that creates something can be repeated with the
same `Idempotency-Key`. Every response has an `X-Request-ID`; every error has `code`, `message` and perhaps a `hint`.

`GET /api/ws` is a WebSocket: send `{"subscribe": {"job": "job_…"}}`, get the events of `/api/jobs/{id}/events`.
"""

TAGS: Final = {
    "jobs": "Units of work: enqueue, read, cancel, retry.",
    "follow": "Live updates: streams of events.",
    "schedules": "When tasks run, and the decision about each instant.",
    "operations": "Queues, limits, tenants, workers, nodes, statistics, dead letters, the audit; health and metrics.",
    "webhooks": "Notifications when jobs end.",
    "access": "Tokens, sessions and the audit log.",
    "dashboard": "The page at `/`.",
    "docs": "This specification.",
}

# Status: description, error code, example message.
_ERRORS: Final[Mapping[int, tuple[str, str, str]]] = {
    400: (
        "The request is malformed, or its body is not JSON",
        "not_json",
        "the body is not JSON: Expecting value: line 1 column 1 (char 0)",
    ),
    401: ("No credential, or an invalid, revoked or expired one", "unauthorized", "a token is required"),
    403: ("The role or the tenant of the credential is not sufficient", "forbidden", "the role operator is needed"),
    404: (
        "It does not exist, or belongs to another tenant",
        "not_found",
        "no job has the id 'job_01m7h07rq30wjd03gjnmt8r3pz'",
    ),
    408: ("The body did not arrive in time", "too_slow", "the body did not arrive within 30 seconds"),
    409: ("It conflicts with the current state", "conflict", "the job has ended: COMPLETED"),
    412: ("It has changed since it was read", "changed", "schedule 'nightly' has revision 4; read it again"),
    413: ("The body is too large", "too_large", "the body may have at most 1,048,576 bytes"),
    415: ("The body is not of the type application/json", "not_json", "the body must be JSON"),
    422: ("A value is wrong; the message names it", "invalid", "limit must be a whole number from 1 to 200"),
    429: ("Too many requests or failures; try again after `Retry-After`", "too_many", "too many wrong tokens"),
    500: ("Internal error; the log of the server has it under the request id", "internal", "internal error"),
    503: ("The store does not answer; try again after `Retry-After`", "store_unavailable", "the store does not answer"),
    507: ("The store is full; nothing was written", "store_full", "the store is full and nothing was written"),
}
_WAITS: Final = (429, 503, 507)

_REQUEST_HEADERS: Final[Mapping[str, tuple[str, str]]] = {
    "Idempotency-Key": ("the same key with the same arguments returns the same job", "report-2027-01-31"),
    "If-Match": ("the ETag of the resource to change, or `*`; 412 if it has changed since", '"3"'),
    "If-None-Match": ("the ETag of the last response; 304 if nothing has changed", '"17"'),
    "Last-Event-ID": ("the id of the last event received; the stream resumes after it", "17"),
    "Accept": ("`text/event-stream` for a stream instead of one response", JSON),
}
_ONLY_NEW: Final = ("`*`: create only; 412 if the name exists", "*")

_EVENTS: Final = """\
retry: 1000

event: progress
id: 17
data: {"id": "job_01m7h07rq30wjd03gjnmt8r3pz", "type": "report", "status": "RUNNING", "progress": 65, "version": 17}

: still here

"""

_PATH_PART: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
_PATH_EXAMPLES: Final = {
    "jobs": "job_01m7h07rq30wjd03gjnmt8r3pz",
    "dead": "job_01m7h07rq30wjd03gjnmt8r3pz",
    "schedules": "daily-report",
    "queues": "default",
    "workers": "node_01m7h0en7803x23x7364a4cyve",
    "tokens": "tok_01m7h07rq30wjd03gjnmt8r3pz",
    "webhooks": "wh_01m7h07rq30wjd03gjnmt8r3pz",
    "deliveries": "msg_01m7h07rq30wjd03gjnmt8r3pz",
}


def document(routes: Sequence[Route], *, prefix: str = "") -> dict[str, Any]:
    """Describe the routes as OpenAPI 3.1; `prefix` is the path under which the API is mounted."""
    described = [route for route in routes if route.method in ("GET", "POST", "PUT", "PATCH", "DELETE")]
    bodies = [route.body for route in described if route.body is not None]
    references, components = _components([*bodies, *EXAMPLES, schemas.Error])
    written = {id(kind): reference for kind, reference in zip(bodies, references, strict=False)}
    names = _operation_ids(described)
    paths: dict[str, dict[str, Any]] = {}
    for route in described:
        operation = _operation(route, names[id(route)], written.get(id(route.body)))
        paths.setdefault(_PATH_PART.sub(r"{\1}", route.path), {})[route.method.lower()] = operation
    used = {route.tag for route in described}
    described_api: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Headway",
            "version": metadata.version("headway"),
            "description": ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": prefix or "/"}],
        "tags": [{"name": tag, "description": TAGS[tag]} for tag in TAGS if tag in used]
        + [{"name": tag} for tag in sorted(used - TAGS.keys())],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {str(status): _error(status) for status in _ERRORS},
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Created with `headway tokens create`. Not needed on loopback until one exists.",
                }
            },
        },
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(described_api))
    return plain


def _components(kinds: Iterable[Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    return msgspec.json.schema_components(kinds, schema_hook=_schema_of_anything, ref_template=REFERENCE)


def _schema_of_anything(kind: type) -> dict[str, Any]:
    if kind is object:
        return {}
    raise NotImplementedError(kind)


def _operation_ids(routes: Sequence[Route]) -> dict[int, str]:
    """Name each operation after its function; if two have the same name, prefix it with the tag."""
    names = Counter(route.handler.__name__ for route in routes)
    return {
        id(route): route.handler.__name__ if names[route.handler.__name__] == 1 else _long_name(route)
        for route in routes
    }


def _long_name(route: Route) -> str:
    return re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_")


def _operation(route: Route, name: str, body: dict[str, Any] | None) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": route.summary,
        "description": _description(route),
        "tags": [route.tag],
        "parameters": list(_parameters(route)),
        "responses": {str(status): answer for status, answer in sorted(_responses(route))},
    }
    if route.is_deprecated:
        operation["deprecated"] = True
    if route.role is None:
        operation["security"] = []
    if body is not None:
        content: dict[str, Any] = {"schema": body}
        if route.body_example is not None:
            content["example"] = route.body_example
        operation["requestBody"] = {"required": not route.body_is_optional, "content": {JSON: content}}
    return operation


def _description(route: Route) -> str:
    role = "Needs no credential." if route.role is None else f"Needs the role `{route.role}`."
    return f"{route.what}\n\n{role}".strip()


# --- requests


def _parameters(route: Route) -> Iterator[dict[str, Any]]:
    for name in _PATH_PART.findall(route.path):
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": TEXT_LENGTH_MAX},
            "example": _path_example(route, name),
        }
    for param in route.query:
        yield {
            "name": param.name,
            "in": "query",
            "required": param.is_required,
            "description": param.what,
            "schema": _param_schema(param),
            **({} if param.example is None else {"example": param.example}),
        }
    for header in _request_headers(route):
        what, example = _ONLY_NEW if header == "If-None-Match" and route.method != "GET" else _REQUEST_HEADERS[header]
        schema = {"type": "string", "maxLength": TEXT_LENGTH_MAX}
        yield {"name": header, "in": "header", "description": what, "schema": schema, "example": example}


def _path_example(route: Route, name: str) -> str:
    """Return an example for a path parameter, by the segment before it."""
    before = route.path.partition(f"/{{{name}")[0].rpartition("/")[2]
    return _PATH_EXAMPLES.get(before, "x")


def _param_schema(param: Param) -> dict[str, Any]:
    if param.choices:
        return {"type": "string", "enum": list(param.choices)}
    match param.kind:
        case "int":
            return {"type": "integer", "minimum": param.low, "maximum": param.high}
        case "flag":
            return {"type": "string", "enum": ["0", "1", "true", "false"]}
        case "instant":
            return {"type": "string", "format": "date-time"}
        case "duration":
            return {
                "type": "string",
                "pattern": r"^( *[0-9]{1,12}(\.[0-9]{1,6})? ?(us|ms|[smhdw]))+ *$",
                "maxLength": 64,
            }
        case _:
            return {"type": "string", "maxLength": TEXT_LENGTH_MAX}


def _request_headers(route: Route) -> list[str]:
    """Return the request headers: those that the route names, and `If-None-Match` for cacheable responses."""
    named = [header for header in route.headers if header in _REQUEST_HEADERS and header != "Accept"]
    return named + (["If-None-Match"] if _can_be_unchanged(route) and "If-None-Match" not in named else [])


def _can_be_unchanged(route: Route) -> bool:
    return route.method == "GET" and not route.is_stream and not isinstance(route.answers.get(200, ""), str)


# --- responses


def _responses(route: Route) -> Iterator[tuple[int, dict[str, Any]]]:
    shown = {status: schemas.whole(example) for status, example in route.answers.items()}
    usual = next((example for status, example in shown.items() if status < 400 and example is not None), None)
    for status, example in shown.items():
        if status < 400:
            yield status, _answer(route, status, usual if example is None else example)
        elif example is not None:
            yield status, {**_answer(route, status, example), "description": _ERRORS[status][0]}
    if _can_be_unchanged(route):
        yield 304, {"description": "Unchanged since the response with that ETag", "headers": _etag()}
    for status in error_statuses(route) - {status for status, example in shown.items() if example is not None}:
        yield status, {"$ref": f"#/components/responses/{status}"}


def error_statuses(route: Route) -> set[int]:
    """Derive the possible error responses of a route from what it takes."""
    writes = route.method != "GET"
    found = {status for status in route.answers if status >= 400} | {400, 422, 500, 503}
    if route.role is not None:
        found |= {401, 403, 429}
    if "{" in route.path or any(param.is_required for param in route.query):
        found |= {404}
    if writes:
        found |= {409, 507}
    if route.body is not None:
        found |= {404, 408, 413, 415}
    if "If-Match" in route.headers:
        found |= {412}
    return found


def _answer(route: Route, status: int, example: Any) -> dict[str, Any]:
    described: dict[str, Any] = {"description": _words(status)}
    if _can_be_unchanged(route):
        described["headers"] = _etag()
    if status != 204:
        described["content"] = _content(route, example, route.other_answers if status == 200 else ())
    return described


def _words(status: int) -> str:
    return {200: "Done", 201: "Created; it is durable", 202: "Accepted; it is durable", 204: "Done; no content"}.get(
        status, "Done"
    )


def _content(route: Route, example: Any, others: Iterable[Any] = ()) -> dict[str, Any]:
    if route.is_stream:
        return {EVENT_STREAM: {"schema": {"type": "string"}, "example": example or _EVENTS}}
    if isinstance(example, str):
        return {_media_type(route): {"schema": {"type": "string"}, "example": example}}
    choices = [_inferred(one) for one in (example, *others)]
    both = {JSON: {"schema": choices[0] if len(choices) == 1 else {"anyOf": choices}, **_as_example(example)}}
    if "Accept" in route.headers:
        both[EVENT_STREAM] = {"schema": {"type": "string"}}
    return both


def _media_type(route: Route) -> str:
    if route.media_type:
        return route.media_type.partition(";")[0]
    return _PAGES[route.path][1].partition(";")[0] if route.path in _PAGES else "text/plain"


def _as_example(example: Any) -> dict[str, Any]:
    return {} if example is None else {"example": example}


def _inferred(example: Any) -> dict[str, Any]:
    """Derive a schema from an example: a known struct, else from its values; fields that are null are nullable."""
    match example:
        case dict():
            shape = schemas.shape_of(example)
            if shape is not None:
                return {"$ref": REFERENCE.format(name=shape.__name__)}
            return {"type": "object", "properties": {name: _part(value) for name, value in example.items()}}
        case list() | tuple():
            return {"type": "array", "items": _inferred(example[0]) if example else {}}
        case _:
            return {}


def _part(value: Any) -> dict[str, Any]:
    match value:
        case dict() | list() | tuple():
            return {"anyOf": [_inferred(value), {"type": "null"}]}
        case bool():
            return {"type": ["boolean", "null"]}
        case int() | float():
            return {"type": ["number", "null"]}
        case str():
            return {"type": ["string", "null"]}
        case _:
            return {}


def _etag() -> dict[str, Any]:
    return {"ETag": {"description": "of this version", "schema": {"type": "string"}}}


def _error(status: int) -> dict[str, Any]:
    what, code, message = _ERRORS[status]
    example = {"error": {"code": code, "message": message}, "request_id": "req_01m7h07rq30wjd03gjnmt8r3pz"}
    described: dict[str, Any] = {
        "description": what,
        "content": {JSON: {"schema": {"$ref": REFERENCE.format(name="Error")}, "example": example}},
    }
    headers: dict[str, Any] = {"X-Request-ID": {"description": "as in the body", "schema": {"type": "string"}}}
    if status in _WAITS:
        headers["Retry-After"] = {"description": "seconds", "schema": {"type": "integer", "minimum": 1}}
    return {**described, "headers": headers}


# --- the page


# Path: file, type.
_PAGES: Final[Mapping[str, tuple[str, str]]] = {
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/docs/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
    "/docs/docs.css": ("docs.css", "text/css; charset=utf-8"),
}


_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)


_PREFIXES_MAX: Final = 8
_written: Final[dict[str, bytes]] = {}  # Cached by prefix: generating it costs as much as a hundred other responses.


async def specification(call: Call) -> Answer:
    """Return the OpenAPI specification of this server."""
    prefix = call.request.scope.get("root_path", "")
    if prefix not in _written:
        if len(_written) >= _PREFIXES_MAX:
            _written.clear()
        _written[prefix] = answer_json(document(call.services.routes, prefix=prefix))
    return Answer(_written[prefix])


async def page(call: Call) -> Answer:
    """Return the page or one of its files."""
    name, media_type = _PAGES[call.route.path]
    return Answer(_static(name), headers={"Content-Security-Policy": _POLICY}, media_type=media_type)


@cache
def _static(name: str) -> bytes:
    return resources.files("headway.server").joinpath("static", name).read_bytes()


def is_page(route: Route) -> bool:
    """Return whether people open this path in a browser, which sends no token by itself."""
    return route.tag == "docs"


def browser_credential(authorization: str | None) -> str | None:
    """Return the token that a browser sends as the password of HTTP Basic, with any user name.

    This is accepted for pages only. A browser also adds the password to cross-site requests, so it must not authorize
    changes (CSRF).
    """
    scheme, _, value = (authorization or "").strip().partition(" ")
    if scheme.lower() != "basic":
        return authorization
    try:
        password = base64.b64decode(value, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return authorization
    return f"Bearer {password}"


ROUTES: Final = (
    Route(
        method="GET",
        path="/openapi.json",
        handler=specification,
        role="viewer",
        summary="Read this specification",
        tag="docs",
        answers={200: {"openapi": "3.1.0", "info": {"title": "Headway"}, "paths": {}}},
    ),
    *(
        Route(
            method="GET",
            path=path,
            handler=page,
            role="viewer",
            summary=summary,
            what="A browser asks for credentials: enter any user name, and the token as the password.",
            tag="docs",
            answers={200: "…"},
        )
        for path, summary in (
            ("/docs", "Read this specification as a page"),
            ("/docs/docs.js", "The script of the page"),
            ("/docs/docs.css", "The style of the page"),
        )
    ),
)
