"""Make the API of a store: everything that its routes share, wired by constructors."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from headway.core.clock import Clock, Loop
from headway.core.ports import LiveView
from headway.core.process_metrics import ProcessMetrics
from headway.core.settings import Settings
from headway.operations.caller import Caller
from headway.operations.health import Health
from headway.operations.job_reader import EncodedJobs, JobReader, NodeNames
from headway.operations.metrics import Metrics
from headway.operations.monitor import Monitor
from headway.operations.series import SeriesReader
from headway.operations.task_catalogue import TaskCatalogue, TaskLike
from headway.operations.tenant_counts import TenantCounts
from headway.server.api import ROUTES, Api
from headway.server.auth import Authenticator
from headway.server.fanout import Fanout
from headway.server.offload import ThreadOffload
from headway.server.quotas import TenantQuotas
from headway.server.services import Services
from headway.server.webhook_sender import Deliverer
from headway.store import Store

QUIET_S: Final = 0.05  # On SQLite a process is also notified of its own commits.


def new_api(
    open_store: Callable[[], Awaitable[Store]],
    settings: Settings,
    clock: Clock,
    *,
    tasks: Mapping[str, TaskLike] | None = None,
    is_loopback: bool = True,
    loops: Sequence[Loop] = (),
    live: Callable[[], LiveView | None] = lambda: None,
) -> Api:
    """Make the API of a store that is opened with the first request; its health checks cover `loops`."""
    counted = ProcessMetrics(clock)

    async def open_services() -> Services:
        return _services_on(
            await open_store(),
            settings,
            clock,
            counted,
            tasks=tasks or {},
            is_loopback=is_loopback,
            loops=loops,
            view=live(),
        )

    return Api(open_services, settings, clock, counted)


def _services_on(
    store: Store,
    settings: Settings,
    clock: Clock,
    counted: ProcessMetrics,
    *,
    tasks: Mapping[str, TaskLike],
    is_loopback: bool,
    loops: Sequence[Loop],
    view: LiveView | None,
) -> Services:
    offload, news, due = ThreadOffload(), asyncio.Event(), asyncio.Event()
    fanout = Fanout(store.feed, clock, view, offload, wake=news.set)
    deliverer = Deliverer(store.webhooks, store.feed, settings, clock, offload=offload, wake=due.set)
    quotas, catalogue = (
        TenantQuotas(TenantCounts(store), settings, clock),
        TaskCatalogue(store, clock, tasks, settings.app_version),
    )
    reader = JobReader(store, view)
    own = [
        Loop("fanout", fanout.tick, clock=clock, rest_s_max=5.0, woken=news),
        Loop("deliverer", deliverer.tick, clock=clock, rest_s_max=5.0, woken=due),
    ]
    health = Health(store, clock, [*own, *loops])
    monitor = Monitor(health.trouble, SeriesReader(store, clock))

    caller_of = partial(
        Caller,
        store=store,
        clock=clock,
        tasks=catalogue,
        quotas=quotas,
        sender=deliverer,
        jobs=reader,
        offload=offload,
        audits_enqueues=settings.audit_enqueues == "on",
        monitor=monitor,
    )
    return Services(
        caller_of=caller_of,
        watch=partial(store.watch, quiet_s=QUIET_S),
        feed=store.feed,
        sessions=store.sessions,
        fanout=fanout,
        auth=Authenticator(store.tokens, store.sessions, clock, is_loopback=is_loopback, token=settings.token or None),
        quotas=quotas,
        offload=offload,
        tasks=catalogue,
        reader=reader,
        names=NodeNames(store, clock),
        encoded=EncodedJobs(),
        health=health,
        metrics=Metrics(store, clock, counted, deliverer.counts),
        deliverer=deliverer,
        routes=ROUTES,
        live=view,
        loops=own,
    )
