"""The operations over HTTP: each call is the declared request, and each response has the declared type."""

import inspect
import re
from collections.abc import Mapping
from types import UnionType
from typing import Any, Final, TypeVar, cast, get_args

import msgspec

from headway.client import AsyncClient
from headway.client.jobs import new_key
from headway.client.requests import Request, ask, body_of, part, query_of
from headway.core.clock import Clock
from headway.core.errors import Conflict, DefinitionError, NotFound, StoreError
from headway.operations.access import AuditLog, Identity, Tokens
from headway.operations.batches import Batches
from headway.operations.dead_letters import DeadLetters, FailedJobs
from headway.operations.everything import Operations
from headway.operations.jobs import Jobs
from headway.operations.ledger_audit import Ledger
from headway.operations.limits import Limits
from headway.operations.monitoring import Monitoring
from headway.operations.purge import Purge
from headway.operations.queues import Queues
from headway.operations.schedules import Schedules
from headway.operations.tenants import Tenants
from headway.operations.verbs import OperationGroup, Verb, verb_of
from headway.operations.webhooks import Deliveries, Webhooks
from headway.operations.workers import Nodes, Workers

G = TypeVar("G", bound=OperationGroup)
_PATH_PART: Final = re.compile(r"\{(\w+)(?::\w+)?\}")


class RemoteOperations(Operations):
    """The operations of a server."""

    def __init__(self, client: AsyncClient, clock: Clock) -> None:
        self.clock = clock
        self.jobs = _remote(Jobs, client)
        self.queues = _remote(Queues, client)
        self.batches = _remote(Batches, client)
        self.limits = _remote(Limits, client)
        self.tenants = _remote(Tenants, client)
        self.workers = _remote(Workers, client)
        self.nodes = _remote(Nodes, client)
        self.monitoring = _remote(Monitoring, client)
        self.identity = _remote(Identity, client)
        self.tokens = _remote(Tokens, client)
        self.audit_log = _remote(AuditLog, client)
        self.webhooks = _remote(Webhooks, client)
        self.deliveries = _remote(Deliveries, client)
        self.dead_letters = _remote(DeadLetters, client)
        self.failures = _remote(FailedJobs, client)
        self.purge = _remote(Purge, client)
        self.schedules = _remote(Schedules, client)
        self.ledger = _remote(Ledger, client)


def _remote(group: type[G], client: AsyncClient) -> G:
    return cast("G", _RemoteGroup(group, client))


class _RemoteGroup:
    """Has the methods of a group; each sends a request."""

    def __init__(self, group: type[OperationGroup], client: AsyncClient) -> None:
        self._group = group
        self._client = client

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._group, name)
        declared = verb_of(function)
        if declared is None:
            raise DefinitionError("this works on the store itself: run it without --server, on a host with the store")
        signature = inspect.signature(function)

        async def call(*args: Any, **given: Any) -> Any:
            arguments = signature.bind(None, *args, **given).arguments
            if (key := declared.idempotent_by) is not None and declared.lacks_key(arguments):
                arguments[key] = new_key()
            reply = await self._client._wire.run(ask(_request(declared, arguments)))
            return None if declared.result is type(None) else _read(reply.body, declared.result)

        return call


def _request(declared: Verb, given: Mapping[str, Any]) -> Request:
    def placed(place: str) -> dict[str, Any]:
        return {one.key: given[one.name] for one in declared.placed(place) if given.get(one.name) is not None}

    struct, repeats, filters = declared.body_struct, declared.is_repeatable, declared.filters
    chosen = {} if filters is None or filters.name not in given else msgspec.to_builtins(given[filters.name])
    body = placed("body") if struct is None else msgspec.to_builtins(given[struct.name])
    return Request(
        method=declared.method,
        path=_PATH_PART.sub(lambda match: part(str(given[match[1]])), declared.path),
        query=query_of({**chosen, **placed("query")}),
        headers=placed("header"),
        body=body_of(body) if body else None,
        is_keyed=declared.idempotent_by is not None or (repeats(given) if callable(repeats) else repeats),
        missing=declared.meant(NotFound),
        conflict=declared.meant(Conflict),
        invalid=declared.meant(DefinitionError),
    )


def _read(body: bytes, kind: Any) -> Any:
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    for number, one in enumerate(kinds, 1):
        try:
            return msgspec.json.decode(body, type=one)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            if number == len(kinds):
                raise StoreError(
                    f"the response could not be decoded ({type(error).__name__}: {error}); is it another version?"
                ) from None
    raise AssertionError(kind)
