"""Write each call of the client once, for blocking and for asynchronous callers.

A call is a function that returns steps (see `requests`). `operation` makes a method of it that returns the result,
`listing` one that returns an iterator; on an `AsyncClient` the same methods are awaited, or iterated with `async for`.
"""

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeAlias, TypeVar, overload

from headway.client.requests import (
    Flow,
    Give,
    Request,
    Shape,
    Steps,
    ask,
    body_of,
    query_of,
    read,
)
from headway.client.transport import AwaitingWire, BlockingWire

PAGE: Final = 200

Shapes: TypeAlias = list[Shape]
P = ParamSpec("P")
T = TypeVar("T")
W_co = TypeVar("W_co", bound=BlockingWire | AwaitingWire, covariant=True)


class Group(Generic[W_co]):
    """A group of calls, and the transport that executes them."""

    def __init__(self, wire: W_co) -> None:
        self._wire = wire


class operation(Generic[P, T]):
    """Turns a call with one result into a method."""

    def __init__(self, plan: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self._plan = plan
        functools.update_wrapper(self, plan)  # type: ignore[arg-type]

    @overload
    def __get__(self, group: None, owner: object = None) -> "operation[P, T]": ...
    @overload
    def __get__(self, group: Group[BlockingWire], owner: object = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, group: Group[AwaitingWire], owner: object = None) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, group: Group[Any] | None, owner: object = None) -> Any:
        """Bind it to a client."""
        return self if group is None else _bound(self._plan, group, group._wire.run)


class listing(Generic[P, T]):
    """Turns a call that yields items into a method that returns an iterator."""

    def __init__(self, plan: Callable[Concatenate[Any, P], Flow[T]]) -> None:
        self._plan = plan
        functools.update_wrapper(self, plan)  # type: ignore[arg-type]

    @overload
    def __get__(self, group: None, owner: object = None) -> "listing[P, T]": ...
    @overload
    def __get__(self, group: Group[BlockingWire], owner: object = None) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, group: Group[AwaitingWire], owner: object = None) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, group: Group[Any] | None, owner: object = None) -> Any:
        """Bind it to a client."""
        return self if group is None else _bound(self._plan, group, group._wire.iterate)


def _bound(plan: Callable[..., Any], group: object, carry_out: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(plan)
    def call(*args: Any, **kwargs: Any) -> Any:
        return carry_out(plan(group, *args, **kwargs))

    return call


# --- requests


def send(request: Request) -> Steps[Any]:
    return read((yield from ask(request)))


def get(path: str, query: Mapping[str, Any] | None = None, **meaning: Any) -> Steps[Any]:
    return send(Request(method="GET", path=path, query=query_of(query or {}), **meaning))


def post(path: str, body: Mapping[str, Any] | None = None, **meaning: Any) -> Steps[Any]:
    return send(Request(method="POST", path=path, body=None if body is None else body_of(body), **meaning))


def delete(path: str, **meaning: Any) -> Steps[Any]:
    return send(Request(method="DELETE", path=path, **meaning))


def pages(path: str, query: Mapping[str, Any], limit: int | None, **meaning: Any) -> Flow[Shape]:
    """Yield the items of a paginated list, starting at the cursor in the query; read pages as the caller needs them."""
    left, cursor = limit, query.get("cursor")
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        page = yield from get(path, {**query, "limit": size, "cursor": cursor}, **meaning)
        items: list[Shape] = page["items"]
        for item in items:
            yield Give(item)
        cursor, left = page["next_cursor"], None if left is None else left - len(items)
        if cursor is None:
            return


def items_of(steps: Steps[Any]) -> Steps[Shapes]:
    answer = yield from steps
    items: Shapes = answer["items"] if isinstance(answer, dict) else answer
    return items


def require_known(given: Mapping[str, object], options: type, call: str) -> None:
    """Raise for an option that a call does not have."""
    if unknown := sorted(given.keys() - options.__annotations__.keys()):
        known = ", ".join(options.__annotations__)
        raise TypeError(f"{call}() has no option {unknown[0]!r}; known are {known}")
