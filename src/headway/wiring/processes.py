"""Run the roles of a process until a signal ends it: scheduler, worker, API.

A worker starts a child first. The child's process imports the app, the supervisor's never does: the child reports which
tasks there are.
"""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, Protocol

from headway.core.clock import RETRY_REST_S_MAX, RETRY_REST_S_MIN, Clock
from headway.core.errors import InvalidConfig, StoreUnavailable
from headway.core.events import ChildEnded, EngineEvent, subscribed
from headway.core.schedules import ScheduleSpec
from headway.core.settings import Settings, store_kind
from headway.core.version import VERSION
from headway.operations.app_sync import Declarations
from headway.store import Store
from headway.store.file_access import exposures
from headway.store.sqlite import path_of
from headway.tasks.definitions import Definitions
from headway.tasks.registry import TaskRegistry
from headway.tasks.task import Task
from headway.wiring.children import child_pool_plan
from headway.wiring.declarations import DeclarationSync
from headway.wiring.node import EngineNode
from headway.wiring.roles import api_node, api_of, new_node_id, scheduler_node, worker_node
from headway.worker.child_pool import ChildPool
from headway.worker.ipc import Hello

INTERRUPTED: Final = 130
CHILD_POOL_GOODBYE_S: Final = 0.3
PORT_REST_S: Final = 2.0  # Between two attempts to bind the port of the API.


class ProcessLog(Protocol):
    """Where a process logs what it does."""

    def write(self, event: str, *, level: str = ..., **facts: object) -> None:
        """Log a line of the process itself."""
        ...

    def __call__(self, event: EngineEvent) -> None:
        """Log an event of the engine."""
        ...


async def run_scheduler(
    settings: Settings, app: TaskRegistry | None, log: ProcessLog, stopping: asyncio.Event | None = None
) -> None:
    """Run a scheduler until a signal, or the caller's event, stops it."""
    stopping = stopping or asyncio.Event()
    clock = Clock()
    clock.node = new_node_id(clock)
    with stopped_by_signals(stopping, log), subscribed(log):
        kind = store_kind(settings.store)
        log.write("starting", node=clock.node, name=settings.node, store=kind, version=VERSION)
        store = await open_store(settings, clock, stopping, log)
        if store is None:
            return
        try:
            declared = None if app is None else DeclarationSync(store, Declarations.of(app), clock, log)
            if declared is not None:
                await declared.run(stopping)
            node = scheduler_node(store, settings, clock, VERSION, declared=declared)
            await run_node(node, stopping)
        finally:
            await store.close()
        log.write("stopped", node=clock.node)


async def run_worker(
    settings: Settings,
    log: ProcessLog,
    *,
    store: str | None,
    schedules: bool,
    api: str | None = None,
    stopping: asyncio.Event | None = None,
) -> None:
    """Run a worker, and optionally a scheduler and an API, until a signal or the caller's event stops it.

    `store` is the one from the command line; without it the app names one. The API `may` be served, where its port is
    free, or it `must`.
    """
    if settings.app is None and not Definitions.load().tasks:
        raise InvalidConfig("a worker needs tasks: --app module:app, HEADWAY_APP, or [tasks.…] in headway.toml")
    stopping, hurrying = stopping or asyncio.Event(), asyncio.Event()
    clock = Clock()
    clock.node = new_node_id(clock)
    child_pool = ChildPool(child_pool_plan(settings, store), clock)
    with stopped_by_signals(stopping, log, hurrying), subscribed(_after_greeting(log, child_pool)):
        child_pool.open()
        try:
            hello = await _hello(child_pool, stopping)
            if hello is None:
                return
            version = hello.version or settings.app_version
            settings = replace(settings, store=store or hello.store, app_version=version)
            log.write(
                "starting",
                node=clock.node,
                name=settings.node,
                store=store_kind(settings.store),
                tasks=len(hello.tasks),
                version=VERSION,
            )
            await _work(settings, clock, child_pool, hello, log, (stopping, hurrying), schedules=schedules, api=api)
        finally:
            await child_pool.close(CHILD_POOL_GOODBYE_S)
        log.write("stopped", node=clock.node)


async def _work(
    settings: Settings,
    clock: Clock,
    child_pool: ChildPool,
    hello: Hello,
    log: ProcessLog,
    ends: tuple[asyncio.Event, asyncio.Event],
    *,
    schedules: bool,
    api: str | None,
) -> None:
    stopping, hurrying = ends
    store = await open_store(settings, clock, stopping, log)
    if store is None:
        return
    try:
        declared = DeclarationSync(store, _declared_by(hello), clock, log) if schedules else None
        if declared is not None:
            await declared.run(stopping)
        node = worker_node(store, settings, clock, child_pool, VERSION, schedules=schedules, declared=declared)
        async with asyncio.TaskGroup() as group:
            if api:
                listening = _bind(settings, log, must=api == "must")
                group.create_task(_serve_api_when_free(store, settings, clock, listening, log, stopping, node))
            await run_node(node, stopping, hurrying)
            stopping.set()  # The node may have been drained remotely; the API stops with it.
    finally:
        await store.close()


def _declared_by(hello: Hello) -> Declarations:
    return Declarations(
        owner=hello.app,
        schedules={key: ScheduleSpec.from_json(text) for key, text in hello.schedules.items()},
        limits={limit.name: limit for limit in hello.limits},
        tenants={tenant.name: tenant for tenant in hello.tenants},
    )


def free_port(host: str, port: int) -> int:
    """Return a port that nothing listens on, this one or, for 0, any; fail when it is taken."""
    from headway.server.http_server import bind

    with bind(host, port) as listening:
        return int(listening.getsockname()[1])


async def run_api(settings: Settings, tasks: Mapping[str, Task[Any, Any]], log: ProcessLog) -> None:
    """Run the API, as a node that neither schedules nor works, until a signal ends it."""
    stopping = asyncio.Event()
    clock = Clock()
    clock.node = new_node_id(clock)
    with stopped_by_signals(stopping, log), subscribed(log):
        from headway.server.http_server import bind

        listening = bind(settings.host, settings.port)
        kind = store_kind(settings.store)
        log.write("starting", node=clock.node, name=settings.node, store=kind, version=VERSION)
        store = await open_store(settings, clock, stopping, log)
        if store is None:
            return
        try:
            async with asyncio.TaskGroup() as group:
                node = api_node(store, settings, clock, VERSION)
                group.create_task(run_node(node, stopping))
                await serve_api(store, settings, clock, listening, log, stopping, tasks, node)
                stopping.set()
        finally:
            with suppress(OSError):
                listening.close()
            await store.close()
        log.write("stopped", node=clock.node)


def _bind(settings: Settings, log: ProcessLog, *, must: bool) -> socket.socket | None:
    """Bind the port of the API; unless it is required, another Headway process may have it."""
    from headway.server.http_server import bind

    try:
        return bind(settings.host, settings.port)
    except InvalidConfig as error:
        if must:
            raise
        log.write("no API here", level="warning", reason=str(error), again_in=f"{PORT_REST_S:g}s")
        return None


async def _serve_api_when_free(
    store: Store,
    settings: Settings,
    clock: Clock,
    listening: socket.socket | None,
    log: ProcessLog,
    stopping: asyncio.Event,
    node: EngineNode,
) -> None:
    """Serve the API once its port is free: the process that has it may exit, and then this one takes over."""
    from headway.server.http_server import bind

    while listening is None:
        await clock.rest(PORT_REST_S, stopping)
        if stopping.is_set():
            return
        with suppress(InvalidConfig):
            listening = bind(settings.host, settings.port)
    await serve_api(store, settings, clock, listening, log, stopping, node=node)


async def serve_api(
    store: Store,
    settings: Settings,
    clock: Clock,
    listening: socket.socket,
    log: ProcessLog,
    stopping: asyncio.Event,
    tasks: Mapping[str, Task[Any, Any]] | None = None,
    node: EngineNode | None = None,
) -> None:
    """Serve the API in this process until asked to stop."""
    from headway.server.auth import require_credential
    from headway.server.http_server import serve, url_of

    await require_credential(store.tokens, host=settings.host, token=settings.token)
    log.write("listening", url=url_of(listening))
    await serve(api_of(store, settings, clock, tasks, node), listening, stopping)


def _after_greeting(log: ProcessLog, child_pool: ChildPool) -> Callable[[EngineEvent], None]:
    """Suppress the exit of the first child when it could not load the app: the command reports the same error."""

    def hear(event: EngineEvent) -> None:
        has_app = child_pool.hello is not None and child_pool.hello.error is None
        if has_app or not isinstance(event, ChildEnded):
            log(event)

    return hear


async def _hello(child_pool: ChildPool, stopping: asyncio.Event) -> Hello | None:
    """Wait until the first child reports what is in the app; None when stopped before that."""
    waits = [asyncio.ensure_future(child_pool.greeted.wait()), asyncio.ensure_future(stopping.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    if child_pool.hello is not None and child_pool.hello.error is not None:
        raise InvalidConfig(child_pool.hello.error)
    return child_pool.hello


async def run_node(node: EngineNode, stopping: asyncio.Event, hurrying: asyncio.Event | None = None) -> None:
    """Run a node until it ends, or an event stops it."""
    gc.freeze()  # Exclude imported objects from garbage collection, which would pause everything for 10 ms.

    async def stop_when_told() -> None:
        await stopping.wait()
        node.stop()
        if hurrying is not None:
            await hurrying.wait()
            node.hurry()

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(stop_when_told())
        await node.run()
        waiting.cancel()


async def open_store(settings: Settings, clock: Clock, stopping: asyncio.Event, log: ProcessLog) -> Store | None:
    """Open the store, retrying until it answers; None when stopped before that."""
    rest_s = RETRY_REST_S_MIN
    while not stopping.is_set():
        try:
            store = await Store.open(settings.store, clock, synchronous=settings.sqlite_synchronous)
            for words in _exposures(settings.store):
                log.write("the store is exposed", level="warning", what=words)
            return store
        except StoreUnavailable as error:
            log.write("waiting for the store", level="warning", error=str(error), again_in=f"{rest_s:.1f}s")
        await clock.rest(rest_s, stopping)
        rest_s = min(2 * rest_s, RETRY_REST_S_MAX)
    return None


def _exposures(url: str) -> Iterable[str]:
    return exposures(path_of(url)) if store_kind(url) == "sqlite" else ()


@contextmanager
def stopped_by_signals(
    stopping: asyncio.Event, log: ProcessLog, hurrying: asyncio.Event | None = None
) -> Iterator[None]:
    """Set one event after another at SIGTERM, SIGINT or SIGHUP; after the last one, exit at once."""
    events = [stopping] if hurrying is None else [stopping, hurrying]

    def hear(name: str) -> Callable[[], None]:
        def stop() -> None:
            event = next((event for event in events if not event.is_set()), None)
            if event is None:
                os._exit(INTERRUPTED)
            log.write("stopping" if event is stopping else "hurrying", signal=name)
            event.set()

        return stop

    loop = asyncio.get_running_loop()
    signals = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # Ignored under nohup; otherwise the terminal is gone.
        signals.append(signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, hear(number.name))
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
