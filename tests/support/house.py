"""A real API with tokens for several roles: all tenants and two single ones, viewers and operators."""

import asyncio
import sqlite3
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psycopg

from headway.core.clock import Clock
from headway.core.instants import DAY, Duration
from headway.core.schedule_names import schedule_key
from headway.store import Store
from headway.store.migrations import migrate
from tests.support.api import ApiProcess, api_process
from tests.support.tuned import tuned
from tests.support.waiting import DEADLINE_S

T = TypeVar("T")
SECRET = "environment-0123456789abcdef"
# Acknowledged data need not survive a power cut here, so commits do not wait for the disk.
HASTE = {"HEADWAY_SQLITE_SYNCHRONOUS": "normal"}


class Beside:
    """A store that is open beside the API, on an event loop in its own thread."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._store = self._wait(_opened(url))

    def do(self, action: Callable[[Store], Awaitable[T]]) -> T:
        """Run something with the store."""

        async def act() -> T:
            return await action(self._store)

        return self._wait(act())

    def close(self) -> None:
        """Close the store and end the thread."""
        self._wait(self._store.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)


async def _opened(url: str) -> Store:
    """Open a store; migrate it to the current schema first."""
    unchecked = await Store.open(url, Clock(node="test"), synchronous="normal", checked=False)
    if unchecked.driver.dialect_name != "sqlite":  # SQLite was migrated when it was opened.
        await migrate(unchecked.driver)
    return unchecked


@dataclass
class House:
    """An API, its store, and clients by name: `root` is an admin of all tenants, `acme` and `globex` are operators."""

    api: ApiProcess
    url: str
    beside: Beside
    clients: dict[str, httpx.Client] = field(default_factory=dict)

    def __getattr__(self, name: str) -> httpx.Client:
        return self.clients[name]

    def on_store(self, action: Callable[[Store], Awaitable[T]]) -> T:
        """Use the store directly, as a worker or scheduler on another host would."""
        return self.beside.do(action)

    def write(self, *statements: str) -> None:
        """Change the store directly, with SQL."""
        if self.url.startswith("sqlite"):
            with sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=DEADLINE_S) as connection:
                for statement in statements:
                    connection.execute(statement)
            connection.close()
        else:
            with psycopg.connect(self.url) as connected:
                for statement in statements:
                    connected.execute(statement)

    def keep_alive(self, node_id: str) -> None:
        """Keep a node alive for another day, however slow this machine is."""
        self.write(f"update headway_nodes set beat_at = beat_at + {DAY} where id = '{node_id}'")

    def grow_older(self, schedule: str, by: Duration) -> None:
        """Backdate the creation of a schedule, as if it had not been decided since."""
        columns = ", ".join(f"{name} = {name} - {by}" for name in ("created_at", "decided_through", "next_at"))
        of_any = f"like '{schedule_key('%', schedule)}'"
        self.write(
            f"update headway_schedules set {columns} where name = '{schedule}' or name {of_any}",
            f"update headway_revisions set effective_at = effective_at - {by}"
            f" where schedule = '{schedule}' or schedule {of_any}",
        )


@contextmanager
def house(url: str) -> Iterator[House]:
    """Run an API on a store until the block ends."""
    beside = Beside(url)
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            patience = {"PYTHONPATH": tuned(folder, {"headway.operations.store_trouble.PROBE_S_MAX": DEADLINE_S})}
            api = stack.enter_context(api_process(url, env={"HEADWAY_TOKEN": SECRET, **HASTE, **patience}))
            built = House(api, url, beside, {"root": stack.enter_context(api.client(SECRET))})
            for name, tenant, role in (
                ("everybody", "*", "operator"),
                ("acme", "acme", "operator"),
                ("globex", "globex", "operator"),
                ("viewer", "acme", "viewer"),
            ):
                body = {"name": name, "tenant": tenant, "role": role}
                made: dict[str, Any] = built.clients["root"].post("/api/tokens", json=body).json()
                built.clients[name] = stack.enter_context(api.client(made["token"]))
            yield built
    finally:
        beside.close()
