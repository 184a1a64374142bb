"""Open the foreign systems that the settings name: coordination engine, transport, live progress.

Each function returns None, or the plain store, where the settings leave the work to the store alone. Clients of
foreign systems are imported only where one is used.
"""

from headway.coordination.admission import AdmittedLeases
from headway.coordination.locks import Grants
from headway.core.clock import Clock
from headway.core.ports import Live, LiveView, Transport
from headway.core.settings import Settings
from headway.queue.announcer import Dispatch
from headway.store import Store


def admission_of(store: Store, settings: Settings, clock: Clock) -> AdmittedLeases | None:
    """Put the coordination engine in front of the store's leases; None where the store grants leases alone."""
    if settings.coordination == "store":
        return None
    from headway.adapters.engines import open_engine

    engine = open_engine(settings.coordination, clock=clock, node=clock.node)
    return AdmittedLeases(engine, store.leases, clock=clock, falls_back=settings.coordination_fallback == "store")


def grants_of(store: Store, admission: AdmittedLeases | None) -> Grants:
    """Return what users' locks need of a store and of its coordination engine."""
    if admission is None:
        return Grants(store.leases, store.leases.held)
    return Grants(admission, store.leases.held, lambda: admission.state["trouble"])


def transport_of(settings: Settings, clock: Clock) -> Transport:
    """Open the transport that the settings name."""
    from headway.adapters.transports import open_transport

    return open_transport(settings.transport, clock=clock, node=clock.node)


def dispatched(store: Store, settings: Settings, clock: Clock) -> tuple[Store, Dispatch | None]:
    """Have a transport announce the ready jobs of a store; None where the store wakes workers alone."""
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
    if settings.redis is None:
        return None
    from headway.adapters.redis.live_progress import RedisView

    return RedisView(settings.redis, clock=clock, node=clock.node)
