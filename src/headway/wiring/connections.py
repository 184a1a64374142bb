"""The connections of an app: its settings, its clock, and a store per event loop or per blocking thread.

A coroutine uses the store of the running event loop. A blocking call on a SQLite file uses a connection of the calling
thread and runs there, since every hop to another thread costs about as much as a commit. Every other blocking call runs
on an event loop in the background.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from headway.coordination.admission import AdmittedLeases
from headway.coordination.locks import TTL_DEFAULT, Grants, Leader, LeaderTerm, Lock, SyncLock, Wish
from headway.core.clock import Clock
from headway.core.instants import DurationLike
from headway.core.jobs import EnqueuedRow, NewJob
from headway.core.settings import Settings
from headway.core.sync_bridge import Portal, run_inline
from headway.queue.background_announcer import BackgroundAnnouncer
from headway.store import Store
from headway.store.caller_transaction import run_inside, run_inside_async
from headway.store.queue import enqueue
from headway.store.sqlite import path_of
from headway.tasks.task import Task
from headway.wiring.engines import admission_of, grants_of, transport_of

if TYPE_CHECKING:
    from headway.server.api import Api

R = TypeVar("R")


class _Thread(threading.local):
    """The state of each thread for blocking calls on SQLite: a store, and whether such a call is in progress."""

    store: Store | None = None
    process: int = 0
    calls: int = 0


class Connections:
    """The connected side of an app."""

    tasks: dict[str, Task[Any, Any]]  # Of the registry.

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._stores: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Store]] = (
            weakref.WeakKeyDictionary()
        )
        self._admissions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AdmittedLeases] = (
            weakref.WeakKeyDictionary()
        )
        self._portal = Portal()
        self._moved_to: Store | None = None
        self._thread = _Thread()
        self._announcer = BackgroundAnnouncer(lambda: transport_of(self.settings, clock), clock)

    async def store(self) -> Store:
        """Return the store of the running event loop, opened on first use."""
        if self._moved_to is not None:
            return self._moved_to
        if self._thread.calls:
            return await self._store_of_thread()
        loop = asyncio.get_running_loop()
        opening = self._stores.get(loop)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception())):
            opening = loop.create_task(self._open_store())
            self._stores[loop] = opening
        return opening.result() if opening.done() else await asyncio.shield(opening)

    async def _store_of_thread(self) -> Store:
        if self._thread.store is None or self._thread.process != os.getpid():
            self._thread.store = await self._open_store(inline=True)
            self._thread.process = os.getpid()
        return self._thread.store

    async def _open_store(self, inline: bool = False) -> Store:
        synchronous = self.settings.sqlite_synchronous
        store = await Store.open(self.settings.store, self._clock, synchronous=synchronous, inline=inline)
        return store if self.settings.transport == "store" else store.announcing(self._announcer.announce, self._clock)

    @contextmanager
    def moved_to(self, store: Store, clock: Clock) -> Iterator[None]:
        """Use another store and clock within a block. The store must answer without waiting."""
        before = self._moved_to, self._clock
        self._moved_to, self._clock = store, clock
        try:
            yield
        finally:
            self._moved_to, self._clock = before

    async def close(self) -> None:
        """Close the store of the running event loop."""
        admission = self._admissions.pop(asyncio.get_running_loop(), None)
        if admission is not None:
            await admission.close()
        opening = self._stores.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            await self._announcer.flush_async()
            await (await opening).close()

    # --- the blocking facade

    def blocking(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine of this app and wait for it: in this thread for a SQLite file, else in the background."""
        is_file = self._dialect == "sqlite" and path_of(self.settings.store) != ":memory:"
        return self._inline(coroutine) if self._is_moved or is_file else self._portal.call(coroutine)

    def _renewing(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine of a lock and wait for it, on the background event loop, where the lock can be renewed."""
        return self._inline(coroutine) if self._is_moved else self._portal.call(coroutine)

    def _inline(self, coroutine: Coroutine[Any, Any, R]) -> R:
        self._thread.calls += 1
        try:
            return run_inline(coroutine, else_say="a blocking call on SQLite awaited something other than SQLite")
        finally:
            self._thread.calls -= 1

    @property
    def _is_moved(self) -> bool:
        return self._moved_to is not None

    # --- locks

    def lock(
        self, name: str, *, ttl: DurationLike = TTL_DEFAULT, timeout: DurationLike | None = None, blocking: bool = True
    ) -> Lock:
        """Return a lock on a name, across all hosts, for `async with`; it renews itself while the body runs.

        Entering waits for the lock up to `timeout`, or not at all if `blocking` is false; then it raises `LockHeld`.
        After a crash others get it when `ttl` is over. If it is lost, the body is cancelled and `LeaseLost` is raised.
        """
        wish = Wish.of(name, ttl, timeout, blocking)
        return Lock(wish, self._grants, clock=self._clock, holder_name=self.settings.node)

    def lock_sync(
        self, name: str, *, ttl: DurationLike = TTL_DEFAULT, timeout: DurationLike | None = None, blocking: bool = True
    ) -> SyncLock:
        """Return a lock on a name, across all hosts, for `with`; it is renewed in the background.

        The body cannot be stopped if the lock is lost: `lock.check()` raises then, and so does the end of the body.
        """
        return SyncLock(
            Wish.of(name, ttl, timeout, blocking),
            self._grants,
            clock=self._clock,
            holder_name=self.settings.node,
            call=self._renewing,
            is_alone=self._is_moved,
        )

    def leader(self, name: str, *, ttl: DurationLike = TTL_DEFAULT) -> Leader:
        """Return a role that one process holds at a time: `async with` waits for one term, `async for` for all."""
        wish = Wish.of(name, ttl, None, blocking=True)
        return Leader(
            lambda: LeaderTerm(wish, self._grants, clock=self._clock, holder_name=self.settings.node),
            lambda: Lock(wish, self._grants, clock=self._clock, holder_name=self.settings.node),
        )

    def leader_sync(self, name: str, *, ttl: DurationLike = TTL_DEFAULT) -> SyncLock:
        """Return a role that one process holds at a time; `with` waits for one term."""
        return self.lock_sync(name, ttl=ttl)

    # --- the API

    def api(self) -> "Api":
        """Return the API as an ASGI application, to serve alone or to mount into another one.

        It starts with its first request and ends with the event loop. Access is by token, as always. Since requests can
        come from anywhere through your application, it refuses all of them until there is a token.
        """
        from headway.wiring.roles import mounted_api

        return mounted_api(self.store, self.settings, self._clock, self.tasks)

    # --- the store

    async def _grants(self) -> Grants:
        """Return the source of locks for users."""
        store = await self.store()
        if self._is_moved or self.settings.coordination == "store":
            return grants_of(store, None)
        loop = asyncio.get_running_loop()
        admission = self._admissions.get(loop) or admission_of(store, self.settings, self._clock)
        assert admission is not None
        self._admissions[loop] = admission
        return grants_of(store, admission)

    async def _insert(self, jobs: list[NewJob], tx: Any = None) -> list[EnqueuedRow]:
        """Insert jobs, all or none; inside the caller's transaction when `tx` is its connection."""
        if tx is not None:
            return await run_inside_async(tx, lambda: enqueue(jobs), self._dialect)
        return await (await self.store()).queue.enqueue(jobs)

    def _insert_sync(self, jobs: list[NewJob], tx: Any = None) -> list[EnqueuedRow]:
        """Insert jobs, all or none; a blocking `tx` belongs to the caller's own thread."""
        if tx is not None:
            return run_inside(tx, lambda: enqueue(jobs), self._dialect)
        return self.blocking(self._insert(jobs))

    @property
    def _dialect(self) -> str:
        return "sqlite" if self.settings.store.startswith("sqlite") else "postgresql"
