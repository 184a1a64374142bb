"""Make HTTP routes of declared operations: read the parameters, call the operation, write its result."""

import typing
from typing import Any, Final, Literal, get_args, get_origin

import msgspec

from headway.core.instants import isoformat
from headway.operations.caller import Caller
from headway.operations.verbs import Group, Parameter, Verb, verbs_of
from headway.server.web import Answer, Call, Handler, Param, Route, etag_of
from headway.wire import schemas
from headway.wire.base import EXAMPLES, Page

_NONE: Final = type(None)


def routes_of(group: type[Group], tag: str) -> tuple[Route, ...]:
    """Return the routes of a group of operations."""
    return tuple(_route(group, declared, tag) for declared in verbs_of(group))


def _route(group: type[Group], declared: Verb, tag: str) -> Route:
    body = declared.placed("body")
    return Route(
        method=declared.method,
        path=declared.path,
        handler=_handler(group, declared, kind := _body_kind(group, declared)),
        role=declared.role,
        summary=declared.summary,
        what=declared.details,
        tag=tag,
        query=tuple(_query_param(parameter) for parameter in declared.placed("query")),
        body=kind,
        body_is_optional=not any(parameter.is_required for parameter in body),
        body_example=_body_example(body),
        answers={declared.status: _example(declared.result)},
    )


def _handler(group: type[Group], declared: Verb, body_kind: Any) -> Handler:
    instants = {param.name for param in map(_query_param, declared.placed("query")) if param.kind == "instant"}
    in_path, in_query = declared.placed("path"), {parameter.name for parameter in declared.placed("query")}
    is_struct = isinstance(body_kind, type) and len(declared.placed("body")) == 1 and _is_struct(declared)

    async def handle(call: Call) -> Answer:
        given: dict[str, Any] = {parameter.name: call.path(parameter.name) for parameter in in_path}
        for name, value in call.query.items():
            if name in in_query:
                given[name] = isoformat(value) if name in instants else value
        if body_kind is not None:
            body = await call.body(body_kind)
            given |= {declared.placed("body")[0].name: body} if is_struct else msgspec.structs.asdict(body)
        caller = call.caller
        result = await getattr(group(caller), declared.name)(**given)
        return Answer(result, declared.status, etag=_etag(declared, result, caller))

    handle.__name__ = declared.id
    return handle


def _etag(declared: Verb, result: Any, caller: Caller) -> str | None:
    return None if declared.stable is None else etag_of(declared.stable(result, caller))


# --- parameters


def _plain(kind: Any) -> tuple[Any, list[msgspec.Meta]]:
    """Take an annotation apart: the type without None, and its notes."""
    notes: list[msgspec.Meta] = []
    while True:
        if get_origin(kind) is typing.Annotated:
            kind, *more = get_args(kind)
            notes += [note for note in more if isinstance(note, msgspec.Meta)]
        elif _NONE in get_args(kind):
            [kind] = [inner for inner in get_args(kind) if inner is not _NONE]
        else:
            return kind, notes


def _note(notes: list[msgspec.Meta], name: str) -> Any:
    return next((value for note in notes if (value := getattr(note, name)) is not None), None)


def _query_param(parameter: Parameter) -> Param:
    plain, notes = _plain(parameter.kind)
    examples = _note(notes, "examples")
    kind = {int: "int", bool: "flag"}.get(plain, "text")
    if (_note(notes, "extra_json_schema") or {}).get("format") == "date-time":
        kind = "instant"
    return Param(
        parameter.name,
        _note(notes, "description") or "",
        kind,
        low=_note(notes, "ge") or 0,
        high=_note(notes, "le") or 0,
        choices=get_args(plain) if get_origin(plain) is Literal else (),
        is_required=parameter.is_required,
        example=examples[0] if examples else None,
    )


def _is_struct(declared: Verb) -> bool:
    return any(_struct_of(parameter) is not None for parameter in declared.placed("body"))


def _struct_of(parameter: Parameter) -> Any:
    plain, _ = _plain(parameter.kind)
    return plain if isinstance(plain, type) and issubclass(plain, msgspec.Struct) else None


def _body_kind(group: type[Group], declared: Verb) -> Any:
    """Return the type of the body: the one parameter that is a struct, or a struct of all parameters."""
    parameters = declared.placed("body")
    if not parameters:
        return None
    if len(parameters) == 1 and (struct := _struct_of(parameters[0])) is not None:
        return struct
    fields = [
        (parameter.name, parameter.kind)
        if parameter.is_required
        else (parameter.name, parameter.kind, parameter.default)
        for parameter in parameters
    ]
    name = "".join(word.capitalize() for word in declared.id.split("_"))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True, module=group.__module__)


def _body_example(parameters: tuple[Parameter, ...]) -> Any:
    found = {}
    for parameter in parameters:
        examples = _note(_plain(parameter.kind)[1], "examples")
        if examples:
            found[parameter.name] = examples[0]
    return found or None


def _example(kind: Any) -> Any:
    if get_origin(kind) is Page:
        return {"items": [_example(get_args(kind)[0])], "next_cursor": None}
    if get_origin(kind) is list:
        return [_example(get_args(kind)[0])]
    return schemas.whole(dict(EXAMPLES[kind][0])) if kind in EXAMPLES else None
