"""The operations over HTTP: each call is the request that its declaration describes, each answer the declared type."""

import inspect
import re
from typing import Any, Final, TypeVar, cast

import msgspec

from headway.client import AsyncClient
from headway.client.requests import Request, ask, body_of, part, query_of
from headway.core.clock import Clock
from headway.core.errors import StoreError
from headway.operations.everything import Operations
from headway.operations.queues import Queues
from headway.operations.verbs import Group, Verb, verb_of
from headway.operations.workers import Nodes, Workers

G = TypeVar("G", bound=Group)
_PATH_PART: Final = re.compile(r"\{(\w+)(?::\w+)?\}")


class RemoteOperations(Operations):
    """The operations of a server."""

    def __init__(self, client: AsyncClient, clock: Clock) -> None:
        self.clock = clock
        self.queues = _remote(Queues, client)
        self.workers = _remote(Workers, client)
        self.nodes = _remote(Nodes, client)


def _remote(group: type[G], client: AsyncClient) -> G:
    return cast("G", _RemoteGroup(group, client))


class _RemoteGroup:
    """Has the methods of a group; each sends a request."""

    def __init__(self, group: type[Group], client: AsyncClient) -> None:
        self._group = group
        self._client = client

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._group, name)
        declared = verb_of(function)
        if declared is None:
            raise AttributeError(name)
        signature = inspect.signature(function)

        async def call(*args: Any, **given: Any) -> Any:
            bound = signature.bind(None, *args, **given)
            reply = await self._client._wire.run(ask(_request(declared, bound.arguments)))
            return _read(reply.body, declared.result)

        return call


def _request(declared: Verb, given: dict[str, Any]) -> Request:
    places = {place: [one.name for one in declared.placed(place)] for place in ("path", "query", "body")}
    path = _PATH_PART.sub(lambda match: part(str(given[match[1]])), declared.path)
    query = query_of({name: given.get(name) for name in places["query"]})
    body = {name: given[name] for name in places["body"] if name in given}
    return Request(
        method=declared.method,
        path=path,
        query=query,
        body=body_of(body) if body else None,
        is_keyed=declared.is_repeatable,
    )


def _read(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StoreError(
            f"the server's answer was not understood ({type(error).__name__}: {error}); is it another version?"
        ) from None
