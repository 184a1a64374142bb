"""A real API with a token for everybody who matters: all tenants and two of them, viewers and operators."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from headway.clock import Clock
from headway.store import Store
from headway.store.migrations import migrate
from tests.support.api import ApiProcess, api_process

T = TypeVar("T")
SECRET = "environment-0123456789abcdef"


@dataclass
class House:
    """An API, its store, and clients by name: `root` is an admin of all tenants, `acme` and `globex` operators."""

    api: ApiProcess
    url: str
    clients: dict[str, httpx.Client] = field(default_factory=dict)

    def __getattr__(self, name: str) -> httpx.Client:
        return self.clients[name]

    def on_store(self, action: Callable[[Store], Awaitable[T]]) -> T:
        """Do something with the store itself, as a worker or scheduler on another host would."""
        return asyncio.run(_with_store(self.url, action))


async def _with_store(url: str, action: Callable[[Store], Awaitable[T]]) -> T:
    store = await Store.open(url, Clock(node="test"))
    try:
        return await action(store)
    finally:
        await store.close()


async def _prepare(url: str) -> None:
    store = await Store.open(url, Clock(), checked=False)
    await migrate(store.driver)
    await store.close()


@contextmanager
def house(url: str) -> Iterator[House]:
    """Run an API on a store until the block ends."""
    asyncio.run(_prepare(url))
    with api_process(url, env={"HEADWAY_TOKEN": SECRET}) as api, ExitStack() as stack:
        built = House(api, url, {"root": stack.enter_context(api.client(SECRET))})
        for name, tenant, role in (
            ("everybody", "*", "operator"),
            ("acme", "acme", "operator"),
            ("globex", "globex", "operator"),
            ("viewer", "acme", "viewer"),
        ):
            made: dict[str, Any] = (
                built.clients["root"].post("/api/tokens", json={"name": name, "tenant": tenant, "role": role}).json()
            )
            built.clients[name] = stack.enter_context(api.client(made["token"]))
        yield built
