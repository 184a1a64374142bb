"""Make HTTP routes from declared operations: parse the parameters, call the operation, encode its result."""

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final, Literal, get_args, get_origin

import msgspec

from headway.core.errors import Conflict, NotFound
from headway.core.instants import isoformat
from headway.operations.caller import Caller
from headway.operations.verbs import OperationGroup, Parameter, Verb, fields_of, verbs_of
from headway.server.web import BODY_BYTES_MAX, BULK_BYTES_MAX, Answer, Call, Handler, Param, Route, etag_of
from headway.wire import schemas
from headway.wire.base import EXAMPLES, Page

ITEM_BYTES: Final = 1_024  # The approximate size of a list item as JSON.
_NOTHING: Final = {type(None), msgspec.UnsetType}


def routes_of(
    group: type[OperationGroup], tag: str, changes: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[Route, ...]:
    """Return the routes of a group of operations; `changes`, by operation id, add what only HTTP has."""
    routes = [route for declared in verbs_of(group) for route in _routes(group, declared, tag)]
    return tuple(replace(route, **(changes or {}).get(route.handler.__name__, {})) for route in routes)


def _routes(group: type[OperationGroup], declared: Verb, tag: str) -> Iterator[Route]:
    route = _route(group, declared, tag)
    yield route
    for path, id in declared.aliases.items():
        words = f"The old path of `{declared.method} {declared.path}`, which does the same."
        yield replace(
            route, path=path, handler=_handler(group, declared, route.body, id), what=words, is_deprecated=True
        )


def _route(group: type[OperationGroup], declared: Verb, tag: str) -> Route:
    body = declared.placed("body")
    return Route(
        method=declared.method,
        path=declared.path,
        handler=_handler(group, declared, kind := _body_kind(group, declared), declared.id),
        role=declared.role,
        summary=declared.summary,
        what=declared.details,
        tag=tag,
        query=tuple(map(_query_param, declared.in_query)),
        headers=tuple(parameter.key for parameter in declared.placed("header")),
        body=kind,
        body_is_optional=not any(parameter.is_required for parameter in body),
        body_bytes_max=BULK_BYTES_MAX if declared.is_bulk else BODY_BYTES_MAX,
        body_example=_body_example(declared),
        answers=_answers(declared),
        other_answers=_other_examples(declared.result),
    )


def _answers(declared: Verb) -> dict[int, Any]:
    example = _example(declared.result)
    answers = {declared.status: example} if declared.created is None else {201: example, declared.status: None}
    for kind, status in ((NotFound, 404), (Conflict, 409)):
        if any(issubclass(error, kind) for error in declared.errors):
            answers[status] = None
    return answers


def _handler(group: type[OperationGroup], declared: Verb, body_kind: Any, id: str) -> Handler:
    instants = {param.name for param in map(_query_param, declared.in_query) if param.kind == "instant"}
    struct = declared.body_struct
    in_path, in_query, in_headers = declared.placed("path"), declared.in_query, declared.placed("header")
    filters = declared.filters

    async def handle(call: Call) -> Answer:
        given: dict[str, Any] = {parameter.name: call.path(parameter.name) for parameter in in_path}
        for parameter in in_query:
            if (key := parameter.key) in call.query:
                given[parameter.name] = isoformat(call.query[key]) if key in instants else call.query[key]
        if filters is not None:
            names = filters.kind.__struct_fields__
            given[filters.name] = filters.kind(**{name: given.pop(name) for name in names if name in given})
        for parameter in in_headers:
            given[parameter.name] = call.request.headers.get(parameter.key)
        if body_kind is not None:
            body = await call.body(body_kind)
            given |= msgspec.structs.asdict(body) if struct is None else {struct.name: body}
        caller = call.caller
        answer = _answer(declared, caller, await getattr(group(caller), declared.name)(**given))
        return await _encoded(call, answer) if declared.is_bulk else answer

    handle.__name__ = id
    return handle


async def _encoded(call: Call, answer: Answer) -> Answer:
    """Encode the items of a long response one by one, outside the event loop."""
    items = getattr(answer.body, "items", None)
    if not isinstance(items, list):
        return answer
    offload, holder = call.services.offload, call.principal.holder
    encoded = await offload.take_turn(holder, len(items) * ITEM_BYTES, _encode_each, items)
    return msgspec.structs.replace(answer, body=msgspec.structs.replace(answer.body, items=encoded))


def _encode_each(items: list[Any]) -> list[msgspec.Raw]:
    return [msgspec.Raw(msgspec.json.encode(item)) for item in items]


def _answer(declared: Verb, caller: Caller, result: Any) -> Answer:
    is_new = declared.created is not None and declared.created(result)
    headers = {} if declared.location is None else {"Location": declared.location(result)}
    etag = None if declared.stable is None else etag_of(declared.stable(result, caller))
    if declared.etag is not None and (etag := declared.etag(result)) is not None:
        headers["ETag"] = etag
    return Answer(result, 201 if is_new else declared.status, headers, etag=etag)


# --- parameters


def _plain(kind: Any) -> tuple[Any, list[msgspec.Meta]]:
    """Split an annotation into the type without None and UNSET, and its metadata, the outermost first."""
    notes: list[msgspec.Meta] = []
    while True:
        if get_origin(kind) is typing.Annotated:
            kind, *more = get_args(kind)
            notes += [note for note in reversed(more) if isinstance(note, msgspec.Meta)]
        elif _NOTHING & {*get_args(kind)}:
            [kind] = [inner for inner in get_args(kind) if inner not in _NOTHING]
        else:
            return kind, notes


def _note(notes: list[msgspec.Meta], name: str) -> Any:
    return next((value for note in notes if (value := getattr(note, name)) is not None), None)


def params_of(filters: type[msgspec.Struct], *names: str) -> tuple[Param, ...]:
    """Return some fields of filters as query parameters, for a route that is not an operation."""
    return tuple(_query_param(field) for field in fields_of(filters) if field.name in names)


def _query_param(parameter: Parameter) -> Param:
    plain, notes = _plain(parameter.kind)
    examples = _note(notes, "examples")
    kind = {int: "int", bool: "flag"}.get(plain, "text")
    if (_note(notes, "extra_json_schema") or {}).get("format") == "date-time":
        kind = "instant"
    return Param(
        parameter.key,
        _note(notes, "description") or "",
        kind,
        low=_note(notes, "ge") or 0,
        high=_note(notes, "le") or 0,
        choices=_choices(plain),
        is_required=parameter.is_required,
        example=examples[0] if examples else None,
    )


def _choices(kind: Any) -> tuple[str, ...]:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return tuple(kind)
    return get_args(kind) if get_origin(kind) is Literal else ()


def _body_kind(group: type[OperationGroup], declared: Verb) -> Any:
    """Return the type of the body: the one parameter that is a struct, or a struct of all parameters."""
    parameters = declared.placed("body")
    if not parameters:
        return None
    if (struct := declared.body_struct) is not None:
        return struct.kind
    fields = [
        (parameter.name, parameter.kind)
        if parameter.is_required
        else (parameter.name, parameter.kind, parameter.default)
        for parameter in parameters
    ]
    name = "".join(word.capitalize() for word in declared.id.split("_"))
    keys = {parameter.name: parameter.key for parameter in parameters}
    return msgspec.defstruct(
        name, fields, kw_only=True, forbid_unknown_fields=True, module=group.__module__, rename=keys
    )


def _body_example(declared: Verb) -> Any:
    if (struct := declared.body_struct) is not None:
        return getattr(struct.kind, "EXAMPLE", None)
    examples = {param.key: _note(_plain(param.kind)[1], "examples") for param in declared.placed("body")}
    return {key: found[0] for key, found in examples.items() if found} or None


def _other_examples(kind: Any) -> tuple[Any, ...]:
    """Return examples of the other resources that an operation may return."""
    return tuple(map(_example, get_args(kind)[1:])) if isinstance(kind, types.UnionType) else ()


def _example(kind: Any) -> Any:
    if isinstance(kind, types.UnionType):
        return _example(get_args(kind)[0])
    if get_origin(kind) is Page:
        return {"items": [_example(get_args(kind)[0])], "next_cursor": None}
    if get_origin(kind) is list:
        return [_example(get_args(kind)[0])]
    return schemas.whole(dict(EXAMPLES[kind][0])) if kind in EXAMPLES else None
