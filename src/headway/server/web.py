"""Building blocks of routes: the checked request (`Call`), the response (`Answer`) and the route table.

A module of routes lists them as data:

    ROUTES = (
        Route("GET", "/api/queues", list_queues, role="viewer", summary="List queues", query=(...), answers={200: …}),
    )

and each handler is `async def handler(call: Call) -> Answer`. The router, the checks (role, parameters, body) and
/openapi.json are all made from this table, so that they cannot differ.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from headway.core.clock import Clock
from headway.core.errors import (
    DefinitionError,
)
from headway.core.instants import Instant, parse_instant
from headway.core.settings import Settings
from headway.operations.caller import Caller, Principal
from headway.server.json_bodies import VALUES_MAX, read_json_strictly
from headway.server.offload import SMALL_BYTES_MAX, ThreadOffload
from headway.server.refusals import Refused
from headway.wire.base import PAGE_DEFAULT

BODY_BYTES_MAX: Final = 1 << 20
BULK_BYTES_MAX: Final = 16 << 20
BULK_VALUES_MAX: Final = 500_000
PAGE_BYTES_MAX: Final = 1 << 20
BODY_S_MAX: Final = 30.0
TEXT_LENGTH_MAX: Final = 512

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of the query. `kind` is text, int, flag, instant, duration or one of `choices`."""

    name: str
    what: str
    kind: str = "text"
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    is_required: bool = False
    example: Any = None


class Answer(msgspec.Struct, frozen=True):
    """A response. `body` is anything that msgspec can encode, or text of another content type."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = {}
    etag: str | None = None
    media_type: str = "application/json"


Handler = Callable[["Call"], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation of the API. With the role None it needs no credential."""

    method: str
    path: str
    handler: Handler
    role: str | None
    summary: str
    what: str = ""
    tag: str = "jobs"
    query: tuple[Param, ...] = ()
    body: Any = None
    body_is_optional: bool = False
    body_bytes_max: int = BODY_BYTES_MAX
    body_example: Any = None
    answers: Mapping[int, Any] = field(default_factory=lambda: {200: None})
    other_answers: tuple[Any, ...] = ()  # Examples of other resources in a 200, such as the plan of a dry run.
    headers: tuple[str, ...] = ()
    is_stream: bool = False
    is_deprecated: bool = False
    media_type: str = ""  # The content type of a response that is neither JSON nor a stream.


class Call(msgspec.Struct):
    """An admitted request: the principal, the route and the parameters."""

    request: Request
    route: Route
    principal: Principal
    settings: Settings
    clock: Clock
    request_id: str
    services: Any = None
    _values: dict[str, Any] | None = None

    # --- the query

    @property
    def query(self) -> dict[str, Any]:
        """The given parameters, parsed and checked."""
        if self._values is None:
            self._values = _read_query(self.request, self.route)
        return self._values

    def path(self, name: str) -> str:
        """Return a path parameter."""
        text: str = self.request.path_params[name]
        if len(text) > TEXT_LENGTH_MAX or not text.isprintable():
            raise Refused(404, "not_found", "not found: it does not exist or belongs to another tenant")
        return text

    def accepts(self, media_type: str) -> bool:
        """Return whether the Accept header names this type."""
        headers = self.request.scope["headers"]
        return b"accept" in headers_of(self.request.scope) and any(
            name == b"accept" and media_type.encode() in value for name, value in headers
        )

    def page(self, form: re.Pattern[str] | None = None) -> tuple[int, str | None]:
        """Return limit and cursor; refuse a cursor that does not have this form."""
        cursor = self.query.get("cursor")
        if cursor is not None and form is not None and not form.fullmatch(cursor):
            raise Refused(422, "invalid", "cursor must be the `next_cursor` of the previous page")
        return self.query.get("limit", PAGE_DEFAULT), cursor

    # --- the body

    async def body(self, kind: type[T]) -> T:
        """Parse the body as this type; `Refused` names the wrong field."""
        return convert(await self.json(), kind)

    async def json(self) -> Any:
        """Parse the body as JSON, strictly; a missing optional body is an empty object."""
        headers = self.request.headers
        if (
            not self.route.body_is_optional
            or headers.get("content-length", "0") != "0"
            or "transfer-encoding" in headers
        ):
            kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise Refused(415, "not_json", "the body must be JSON with Content-Type: application/json")
        limit = self.route.body_bytes_max
        length = min(_announced(self.request), limit)
        if length <= SMALL_BYTES_MAX:
            data = await read_body(self.request, limit)
            return {} if not data and self.route.body_is_optional else read_json_strictly(data)
        offload: ThreadOffload = self.services.offload
        with self.services.quotas.body(self.principal, length):
            data = await read_body(self.request, limit)
            most = VALUES_MAX if limit <= BODY_BYTES_MAX else BULK_VALUES_MAX
            return await offload.take_turn(self.principal.holder, len(data), read_json_strictly, data, most)

    # --- the caller

    @property
    def tenant(self) -> str | None:
        """The only tenant that the caller sees; None for all."""
        return self.principal.one_tenant

    def need_all_tenants(self) -> None:
        """Refuse a caller that sees one tenant only."""
        if self.tenant is not None:
            raise Refused(403, "forbidden", "this concerns all tenants; a token for all of them is needed")

    @property
    def origin(self) -> str:
        """The origin of the request, for the audit log."""
        return self.request.client.host if self.request.client else ""

    @property
    def caller(self) -> Caller:
        """The caller of the operations."""
        caller: Caller = self.services.caller_of(self.principal, self.origin)
        return caller


def convert(value: Any, kind: type[T]) -> T:
    """Convert a value to this type; an error names the wrong field and the reason."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        name = where.rstrip("`").lstrip(".") or "the body"
        raise Refused(422, "invalid", f"{name}: {text}") from None


def _announced(request: Request) -> int:
    """Return the length of the body; without Content-Length, the maximum."""
    length = request.headers.get("content-length")
    if length is None:
        return BULK_BYTES_MAX if "transfer-encoding" in request.headers else 0
    return int(length[:18]) if length.isdecimal() else 0


async def read_body(request: Request, limit: int) -> bytes:
    """Read the body, up to the limit."""
    length = request.headers.get("content-length", "0")
    too_large = Refused(413, "too_large", f"the body may have at most {limit:,} bytes")
    if not length.isdecimal() or int(length[:18]) > limit:
        raise too_large
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_S_MAX):
            async for chunk in request.stream():
                data += chunk
                if len(data) > limit:
                    raise too_large
    except TimeoutError:
        raise Refused(408, "too_slow", f"the body did not arrive within {BODY_S_MAX:g} seconds") from None
    except ClientDisconnect:
        raise Refused(400, "cut_off", "the connection ended before the body did") from None  # No client receives it.
    return bytes(data)


def _read_query(request: Request, route: Route) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if request.scope["query_string"]:
        values = _read_params(request, {param.name: param for param in route.query})
    for param in route.query:
        if param.is_required and param.name not in values:
            raise Refused(422, "invalid", f"{param.name} is missing: {param.what}")
    return values


def _read_params(request: Request, known: Mapping[str, Param]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise Refused(422, "unknown_parameter", f"unknown parameter {name[:80]!r}; known are {names}")
        if name in values:
            raise Refused(422, "duplicate_name", f"{name} is given twice")
        values[name] = _read_param(known[name], text)
    return values


def _read_param(param: Param, text: str) -> Any:
    if len(text) > TEXT_LENGTH_MAX or not text.isprintable():
        raise Refused(422, "invalid", f"{param.name} must have at most {TEXT_LENGTH_MAX} printable characters")
    if param.choices and text not in param.choices:
        raise Refused(422, "invalid", f"{param.name} must be one of {', '.join(param.choices)}")
    match param.kind:
        case "int":
            if not text.isascii() or not text.isdecimal() or not param.low <= (number := int(text)) <= param.high:
                raise Refused(422, "invalid", f"{param.name} must be a whole number from {param.low} to {param.high}")
            return number
        case "flag":
            if text not in ("0", "1", "true", "false"):
                raise Refused(422, "invalid", f"{param.name} must be 0 or 1")
            return text in ("1", "true")
        case "instant":
            return _read_instant(param.name, text)
        case _:
            return text


def _read_instant(name: str, text: str) -> Instant:
    try:
        return parse_instant(text)
    except DefinitionError:
        raise Refused(422, "invalid", f"{name} must be a time such as 2027-01-31T08:00:00Z") from None


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers of a request by lowercase name; of repeated headers the last."""
    known: dict[bytes, bytes] | None = scope.get("headway.headers")
    if known is None:
        known = scope["headway.headers"] = dict(scope["headers"])
    return known


def etag_of(facts: Any) -> str:
    """Make an ETag from facts that change only with the resource; weak, since relative times are left out."""
    return f'W/"{hashlib.blake2b(answer_json(facts), digest_size=9).hexdigest()}"'


def answer_json(value: Any) -> bytes:
    """Encode a value as JSON; None becomes an empty body, and bytes are returned unchanged."""
    if isinstance(value, bytes):
        return value
    return b"" if value is None else msgspec.json.encode(value)
