"""Open the external systems that the settings name: coordination engine, transport, live progress.

Each function returns None, or the plain store, if the settings leave the work to the store alone. Clients of external
systems are imported only if they are used.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headway.coordination.admission import AdmittedLeases
from headway.coordination.locks import Grants
from headway.core.clock import Clock
from headway.core.ports import Engine, Live, LiveView, Transport
from headway.core.settings import Settings
from headway.queue.announcer import Dispatch
from headway.queue.background_announcer import BackgroundAnnouncer
from headway.store import Store


def engine_of(settings: Settings, clock: Clock, node: str | None = None) -> Engine:
    """Open the coordination engine that the settings name; `node` names this process to the server."""
    from headway.adapters.engines import open_engine

    return open_engine(settings.coordination, clock=clock, node=node or clock.node)


def admission_of(store: Store, settings: Settings, clock: Clock) -> AdmittedLeases | None:
    """Put the coordination engine in front of the store's leases; None if the store grants leases alone."""
    if settings.coordination == "store":
        return None
    return AdmittedLeases(
        engine_of(settings, clock), store.leases, clock=clock, falls_back=settings.coordination_fallback == "store"
    )


def grants_of(store: Store, admission: AdmittedLeases | None) -> Grants:
    """Return the source of locks for users: a store and its coordination engine."""
    if admission is None:
        return Grants(store.leases, store.leases.held)
    return Grants(admission, store.leases.held, lambda: admission.state["trouble"])


def transport_of(settings: Settings, clock: Clock) -> Transport:
    """Open the transport that the settings name."""
    from headway.adapters.transports import open_transport

    return open_transport(settings.transport, clock=clock, node=clock.node)


def dispatched(store: Store, settings: Settings, clock: Clock) -> tuple[Store, Dispatch | None]:
    """Let a transport announce the ready jobs of a store; None if the store wakes workers alone."""
    if settings.transport == "store":
        return store, None
    dispatch = Dispatch.by(transport_of(settings, clock), clock)
    return store.announcing(dispatch.announcer.announce, clock), dispatch


def live_of(settings: Settings, clock: Clock) -> Live | None:
    """Open the channel that publishes live progress; None where the store carries it alone."""
    if settings.redis is None:
        return None
    from headway.adapters.redis.live_progress import RedisLive

    return RedisLive(settings.redis, clock=clock, node=clock.node)


def live_view_of(settings: Settings, clock: Clock) -> LiveView | None:
    """Open the subscription to live progress; None where the store carries it alone."""
    return None if settings.redis is None else live_view_at(settings.redis, clock)


def live_view_at(url: str, clock: Clock) -> LiveView:
    """Open the subscription to live progress on a server."""
    from headway.adapters.redis.live_progress import RedisView

    return RedisView(url, clock=clock, node=clock.node)


@asynccontextmanager
async def opened_store(settings: Settings, clock: Clock) -> AsyncIterator[Store]:
    """Open a store for a block; jobs that become ready meanwhile are announced to the transport, if there is one."""
    store = await Store.open(settings.store, clock, synchronous=settings.sqlite_synchronous)
    announcer = BackgroundAnnouncer(lambda: transport_of(settings, clock), clock)
    try:
        yield store if settings.transport == "store" else store.announcing(announcer.announce, clock)
    finally:
        await announcer.flush_async()
        await store.close()
