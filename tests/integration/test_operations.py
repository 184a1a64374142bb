"""Every declared operation on a store and through a server: the same result, audit entry, refusal and race.

`SCENARIOS` has an entry for each operation, so a new one fails here until it is compared, too. Both sides begin with
the same records; what differs between two equal histories (ids, times) is left out of the comparison.
"""

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headway.client import AsyncClient
from headway.client.remote_operations import RemoteOperations
from headway.core.clock import Clock
from headway.core.errors import HeadwayError
from headway.core.instants import DAY
from headway.core.nodes import Node
from headway.core.settings import Settings
from headway.operations.caller import Caller, Principal
from headway.operations.everything import LocalOperations, Operations
from headway.operations.verbs import Group, Verb, verbs_of
from headway.store import Store
from headway.wiring.webhooks import OneOffSender
from tests.support.api import api_process
from tests.support.waiting import DEADLINE_S

ROOT, VIEWER, ACME = "root", "viewer", "acme"
PRINCIPALS = {
    ROOT: Principal(ROOT, "*", "admin"),
    VIEWER: Principal(VIEWER, "*", "viewer"),
    ACME: Principal(ACME, "acme", "operator"),
}
IDS = re.compile(r"\b(job|node|tok|wh|msg|auto|req)_[0-9a-z]{26,34}\b")
TIMES = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)")
PASSING = {"oldest_age_seconds", "eta_seconds", "beat_at", "latency_ms", "took_ms", "url", "secret"}
HOOK = "http://127.0.0.1:1/hook"  # Nothing listens there.

Call = Callable[[Operations], Awaitable[Any]]


@dataclass(frozen=True)
class Scenario:
    """How an operation is called, and what there is before; `raced` is called twice at once."""

    call: Call
    before: Sequence[Call] = ()
    raced: bool = True


async def hook(on: Operations, note: str) -> str:
    """Return the id of the webhook with this note."""
    return next((webhook.id for webhook in (await on.webhooks.list()).items if webhook.note == note), "wh_nobody")


def with_hook(note: str, call: Callable[[Operations, str], Awaitable[Any]]) -> Scenario:
    """Call an operation on a webhook that was added before."""

    async def on_it(on: Operations) -> Any:
        return await call(on, await hook(on, note))

    return Scenario(on_it, [lambda on: on.webhooks.add(HOOK, note=note)])


def with_message(note: str, call: Callable[[Operations, str], Awaitable[Any]]) -> Scenario:
    """Call an operation on a test message that was sent before."""

    async def send(on: Operations) -> None:
        await on.webhooks.add(HOOK, note=note)
        await on.webhooks.test(await hook(on, note))

    async def on_it(on: Operations) -> Any:
        sent = await on.deliveries.list(endpoint=await hook(on, note))
        return await call(on, sent.items[0].id)

    return Scenario(on_it, [send])


async def replay(on: Operations, message_id: str) -> object:
    """Send a message again; leave out its tries, since a server begins with the next one at once."""
    again = await on.deliveries.replay(message_id)
    return again.id, again.endpoint, again.event, again.status


SCENARIOS: dict[str, Scenario] = {
    "list_queues": Scenario(lambda on: on.queues.list(), [lambda on: on.queues.pause("seen", reason="why")]),
    "pause_queue": Scenario(lambda on: on.queues.pause("media", reason="the disk is full")),
    "resume_queue": Scenario(lambda on: on.queues.resume("tap"), [lambda on: on.queues.pause("tap")]),
    "list_workers": Scenario(lambda on: on.workers.list()),
    "drain_worker": Scenario(lambda on: on.workers.drain("web-1")),
    "list_nodes": Scenario(lambda on: on.nodes.list(gone=True)),
    "list_webhooks": with_hook("listed", lambda on, _: on.webhooks.list()),
    "add_webhook": Scenario(lambda on: on.webhooks.add(HOOK, events=["job.failed"], note="added", tenant="acme")),
    "get_webhook": with_hook("shown", lambda on, id: on.webhooks.get(id)),
    "change_webhook": with_hook("changed", lambda on, id: on.webhooks.change(id, events=["*"], enabled=False)),
    "remove_webhook": with_hook("removed", lambda on, id: on.webhooks.remove(id)),
    "rotate_secret": with_hook("rotated", lambda on, id: on.webhooks.rotate(id, keep="1h")),
    "test_webhook": with_hook("tested", lambda on, id: on.webhooks.test(id)),
    "list_deliveries": with_message("sent", lambda on, _: on.deliveries.list(status="FAILED", limit=1)),
    "get_delivery": with_message("seen", lambda on, id: on.deliveries.get(id)),
    "replay_delivery": with_message("replayed", replay),
}


def groups() -> dict[str, type[Group]]:
    """Return the groups of operations by the names that they have on `Operations`."""
    kinds = Operations.__annotations__.items()
    return {name: kind for name, kind in kinds if isinstance(kind, type) and issubclass(kind, Group)}


VERBS: dict[str, Verb] = {verb.id: verb for group in groups().values() for verb in verbs_of(group)}


def test_every_operation_is_compared() -> None:
    assert SCENARIOS.keys() <= VERBS.keys()


@dataclass
class Side:
    """One way to the operations, with its own store."""

    store: Store
    ways: dict[str, Operations] = field(default_factory=dict)

    async def outcome(self, who: str, call: Call) -> Any:
        """Call an operation; return its result, or the kind and words of its refusal."""
        try:
            return normal(msgspec.to_builtins(await call(self.ways[who])))
        except HeadwayError as error:
            return type(error).__name__, normal(str(error))

    async def entries(self) -> list[Any]:
        """Return the audit log, oldest first, without where the actions came from."""
        found = await self.store.audit_log.page(limit=200)
        return [normal([entry.actor, entry.tenant, entry.action, entry.target, entry.detail]) for entry in found[::-1]]


def normal(value: Any, name: str = "") -> Any:
    """Leave out what differs between two equal histories."""
    if isinstance(value, dict):
        return {key: normal(inner, key) for key, inner in value.items() if key not in PASSING}
    if isinstance(value, list | tuple):
        return [normal(inner) for inner in value if not (isinstance(inner, dict) and inner.get("roles") == ["api"])]
    return TIMES.sub("T", IDS.sub(r"\1", value)) if isinstance(value, str) else value


@dataclass(frozen=True)
class Places:
    """A store, and another one behind a server."""

    here: Path
    there: Path
    server: str


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    folder = tmp_path_factory.mktemp("operations")
    with api_process(f"sqlite:///{folder}/there.db") as api:
        found = Places(folder / "here.db", folder / "there.db", api.url)
        for path in (found.here, found.there):
            asyncio.run(_furnish(path))
        yield found


async def _furnish(path: Path) -> None:
    """Let a worker live for as long as these tests take."""
    async with _opened(path) as store:
        state = {"worker": {"tasks": ["report"], "queues": ["*"], "slots": 4, "running": 1, "children": 1}}
        await store.nodes.beat(Node(id="node_1", name="web-1", roles=("worker",), version="1", state=state))
    with contextlib.closing(sqlite3.connect(path, timeout=DEADLINE_S)) as connection, connection:
        connection.execute("update headway_nodes set beat_at = beat_at + ? where name = 'web-1'", [DAY])


@asynccontextmanager
async def sides(places: Places) -> AsyncIterator[tuple[Side, Side]]:
    """Open both, with the same credentials."""
    async with AsyncExitStack() as stack:
        here, there = [await stack.enter_async_context(_opened(path)) for path in (places.here, places.there)]
        local, remote = Side(here), Side(there)
        for name, principal in PRINCIPALS.items():
            clock = Clock(node="here")
            sender = OneOffSender(here, Settings(), clock)
            local.ways[name] = LocalOperations(Caller(principal, "", here, clock, sender=sender))
            _, token = await there.tokens.create(
                name=name, tenant=principal.tenant, role=principal.role, lifetime=None, actor="test", origin=""
            )
            client = await stack.enter_async_context(AsyncClient(places.server, token))
            remote.ways[name] = RemoteOperations(client, Clock(node="there"))
        yield local, remote


@asynccontextmanager
async def _opened(path: Path) -> AsyncIterator[Store]:
    store = await Store.open(f"sqlite:///{path}", Clock(node="test"), synchronous="normal")
    yield store
    await store.close()


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_store_and_a_server_do_the_same(name: str, places: Places) -> None:
    scenario, verb = SCENARIOS[name], VERBS[name]
    async with sides(places) as (local, remote):
        seen = []
        for side in (local, remote):
            before = len(await side.entries())
            for call in scenario.before:
                await call(side.ways[ROOT])
            refused = [await side.outcome(who, scenario.call) for who in (VIEWER, ACME)] if verb.method != "GET" else []
            done = [await side.outcome(ROOT, scenario.call) for _ in range(2)]
            raced: list[Any] = []
            if scenario.raced:
                raced = await asyncio.gather(*(side.outcome(ROOT, scenario.call) for _ in range(2)))
            seen.append(
                {
                    "refused": refused,
                    "done": done,
                    "raced": sorted(raced, key=repr),
                    "entries": (await side.entries())[before:],
                }
            )
        assert seen[0] == seen[1]
