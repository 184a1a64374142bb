"""Declare operations: the server and the remote client are derived from a method and its HTTP route.

    class Queues(Group):
        @verb("POST /api/queues/{name:path}/pause", id="pause_queue", role="operator")
        async def pause(self, name: str, *, reason: Reason = "") -> Queue:
            '''Pause a queue: …'''

The server makes a route of it (`headway.server.operation_routes`), the command line with `--server` makes a request
(`headway.client.remote_operations`), and `/openapi.json` gets an entry. Parameters are in the path, in the query of a
GET, or in the JSON body otherwise. Their annotations and the docstring are the descriptions.
"""

import functools
import inspect
import re
import sys
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as default_field
from typing import Annotated, Any, Final, TypedDict, TypeVar, Unpack, cast

import msgspec

from headway.core.errors import DefinitionError, HeadwayError, InvalidTask
from headway.operations.caller import Caller
from headway.wire.base import PAGE_MAX, Page

E = TypeVar("E", bound=HeadwayError)
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
REASON_LENGTH_MAX: Final = 300

Reason = Annotated[
    str,
    msgspec.Meta(max_length=REASON_LENGTH_MAX, description="recorded in the audit log", examples=["the disk is full"]),
]

_GENERAL: Final = (DefinitionError, InvalidTask)  # Raised by checks that many operations share.
_VERB: Final = "__headway_verb__"
_PATH_PART: Final = re.compile(r"\{(\w+)(?::\w+)?\}")


class _InQuery:
    """Marks a parameter that travels in the query although the request has a body."""


IN_QUERY: Final = _InQuery()


@dataclass(frozen=True, slots=True)
class InHeader:
    """Marks a parameter that travels in this header."""

    name: str


@dataclass(frozen=True, slots=True)
class Named:
    """Marks a parameter that has another name in the request, such as `from`."""

    name: str


class OperationGroup:
    """The operations on one kind of resource."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of an operation; `key` is its name in the request."""

    name: str
    key: str
    kind: Any
    place: str  # path, query, filters (several parameters of the query), header or body
    is_required: bool
    default: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """An operation as it travels over HTTP."""

    name: str
    id: str
    method: str
    path: str
    role: str
    status: int
    summary: str
    details: str
    parameters: tuple[Parameter, ...]
    result: Any
    is_repeatable: bool | Callable[[Mapping[str, Any]], bool] = False
    idempotent_by: str | None = None
    idempotent_if: Callable[[Mapping[str, Any]], bool] | None = None
    errors: tuple[type[HeadwayError], ...] = ()
    is_bulk: bool = False
    created: Callable[[Any], bool] | None = None
    location: Callable[[Any], str] | None = None
    stable: Callable[[Any, Caller], Any] | None = None
    aliases: Mapping[str, str] = default_field(default_factory=dict)
    etag: Callable[[Any], str | None] | None = None

    def placed(self, place: str) -> tuple[Parameter, ...]:
        """Return the parameters in the path, the query, the headers or the body."""
        return tuple(parameter for parameter in self.parameters if parameter.place == place)

    def lacks_key(self, given: Mapping[str, Any]) -> bool:
        """Return whether a remote caller has to add an idempotency key to these arguments."""
        if self.idempotent_by is None or given.get(self.idempotent_by) is not None:
            return False
        return self.idempotent_if is None or self.idempotent_if(given)

    def meant(self, kind: type[E]) -> type[E]:
        """Return the error that a refusal stands for: the declared one of this kind, if there is one."""
        return next((error for error in self.errors if issubclass(error, kind)), kind)

    @property
    def filters(self) -> Parameter | None:
        """The parameter whose fields are parameters of the query."""
        return next(iter(self.placed("filters")), None)

    @property
    def in_query(self) -> tuple[Parameter, ...]:
        """The parameters of the query, filters one by one."""
        return (
            *(field for filters in self.placed("filters") for field in fields_of(filters.kind)),
            *self.placed("query"),
        )

    @property
    def body_struct(self) -> Parameter | None:
        """The parameter that is the whole body: the only one there, and a struct."""
        body = self.placed("body")
        is_struct = len(body) == 1 and isinstance(body[0].kind, type) and issubclass(body[0].kind, msgspec.Struct)
        return body[0] if is_struct else None


class VerbOptions(TypedDict, total=False):
    """The options of a declaration beyond route, id and role.

    `is_repeatable` says that the operation is idempotent; it may be a function of the arguments. `idempotent_by` names
    the parameter that is the idempotency key; remote callers fill it in, unless `idempotent_if` says that the arguments
    must not have one. `errors` are the exceptions for refusals: a
    `NotFound`, a `Conflict` and a `DefinitionError`, since a remote caller knows only their status. `is_bulk` allows
    large bodies. `created` tells whether a result is new (201), and `location` returns its path. `stable` returns the
    input of the ETag, for results with fields that change with time; `etag` returns an ETag of another form. `aliases`
    are old paths that keep working, each with its old operation id.
    """

    is_repeatable: bool | Callable[[Mapping[str, Any]], bool]
    idempotent_by: str
    idempotent_if: Callable[[Mapping[str, Any]], bool]
    errors: tuple[type[HeadwayError], ...]
    is_bulk: bool
    created: Callable[[Any], bool]
    location: Callable[[Any], str]
    stable: Callable[[Any, Caller], Any]
    aliases: Mapping[str, str]
    etag: Callable[[Any], str | None]


def verb(route: str, *, id: str, role: str, status: int = 200, **options: Unpack[VerbOptions]) -> Callable[[F], F]:
    """Declare an operation; callers without the role get an error."""
    method, path = route.split(" ", 1)

    def declare(function: F) -> F:
        summary, _, details = (inspect.getdoc(function) or "").partition("\n")
        hints = typing.get_type_hints(function, include_extras=True)
        plain = Verb(
            name=function.__name__,
            id=id,
            method=method,
            path=path,
            role=role,
            status=status,
            summary=summary.rstrip("."),
            details=" ".join(details.split()),
            parameters=tuple(_parameters(function, hints, method, {*_PATH_PART.findall(path)})),
            result=hints.get("return"),
        )
        declared = replace(plain, **options)
        if method != "POST":
            declared = replace(declared, is_repeatable=True)

        @functools.wraps(function)
        async def checked(group: OperationGroup, *args: Any, **given: Any) -> Any:
            group.caller.require_role(role)
            try:
                return await function(group, *args, **given)
            except DefinitionError as error:
                kind = declared.meant(DefinitionError)
                if type(error) in _GENERAL and not isinstance(error, kind):
                    raise kind(str(error)) from None
                raise

        setattr(checked, _VERB, declared)
        return cast("F", checked)

    return declare


def _parameters(function: Any, hints: dict[str, Any], method: str, in_path: set[str]) -> typing.Iterator[Parameter]:
    for name, parameter in [*inspect.signature(function).parameters.items()][1:]:
        kind = hints[name]
        marks = getattr(kind, "__metadata__", ())
        header = next((mark.name for mark in marks if isinstance(mark, InHeader)), None)
        in_query = method in ("GET", "DELETE") or IN_QUERY in marks
        yield Parameter(
            name=name,
            key=header or next((mark.name for mark in marks if isinstance(mark, Named)), name),
            kind=kind,
            place="path" if name in in_path else "header" if header else _place(kind) if in_query else "body",
            is_required=parameter.default is inspect.Parameter.empty,
            default=parameter.default,
        )


def _place(kind: Any) -> str:
    return "filters" if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else "query"


def fields_of(filters: type[msgspec.Struct]) -> typing.Iterator[Parameter]:
    """Yield the fields of filters as parameters of the query."""
    for field in msgspec.structs.fields(filters):
        yield Parameter(
            name=field.name,
            key=field.encode_name,
            kind=field.type,
            place="query",
            is_required=field.required,
            default=field.default,
        )


def verb_of(function: object) -> Verb | None:
    """Return the declaration of an operation."""
    return getattr(function, _VERB, None)


def verbs_of(group: type[OperationGroup]) -> tuple[Verb, ...]:
    """Return the operations of a group in the order in which they were declared."""
    return tuple(declared for function in vars(group).values() if (declared := verb_of(function)) is not None)


async def pages(
    read: Callable[..., Awaitable[Page[T]]], *args: Any, most: int | None = None, **given: Any
) -> AsyncIterator[T]:
    """Iterate over a paginated list, up to a number of items; `limit` is the page size."""
    cursor: str | None = given.pop("cursor", None)
    size = given.pop("limit", PAGE_MAX)
    left = sys.maxsize if most is None else most
    while left > 0:
        page = await read(*args, **given, limit=min(left, size), cursor=cursor)
        for item in page.items:
            yield item
        left -= len(page.items)
        cursor = page.next_cursor
        if cursor is None:
            return


def check_cursor(cursor: str | None, form: re.Pattern[str]) -> str | None:
    """Return the cursor, or raise an error if it does not have the form of these ids."""
    if cursor is not None and not form.fullmatch(cursor):
        raise DefinitionError("cursor must be the `next_cursor` of the page before")
    return cursor


def sliced(items: list[T], limit: int, cursor: str | None, key: Callable[[T], str]) -> Page[T]:
    """Return a page of a complete list, sorted by the key that the cursor names (keyset pagination)."""
    found = sorted((item for item in items if cursor is None or key(item) > cursor), key=key)
    return Page(found[:limit], key(found[limit - 1]) if len(found) > limit else None)
