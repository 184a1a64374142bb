"""Monitoring: statistics, alerts and series, of one tenant or of all."""

from collections.abc import Mapping
from typing import Annotated, Any, Final
from weakref import WeakKeyDictionary

import msgspec

from headway.core.instants import HOUR, SECOND, Duration, format_duration, isoformat
from headway.core.lifecycle import FINAL, Status
from headway.core.nodes import Lease
from headway.operations.attention import alerts, faults
from headway.operations.caller import Caller
from headway.operations.overview import Overview, read_overview
from headway.operations.queues import PENDING
from headway.operations.series import SeriesReader, Window
from headway.operations.store_trouble import examine
from headway.operations.verbs import OperationGroup, verb
from headway.operations.workers import workers_among
from headway.store.facts import Facts, facts
from headway.store.transaction import Driver
from headway.wire.base import PAGE_MAX, Limit
from headway.wire.nodes import node_of
from headway.wire.overview import (
    AlertList,
    ComingSchedule,
    DeadLetterFigures,
    FailingSchedule,
    FullLimits,
    LastHour,
    LateTenants,
    LeadingNode,
    MissedSchedule,
    ScheduleFigures,
    Series,
    Shard,
    Stats,
    StoreState,
)
from headway.wire.tenants import LateTenant

LISTED: Final = 10  # Limits and tenants that statistics name.
PROBE_S_MAX: Final = 5.0  # Without a server: the store counts as stuck if a write takes longer than this.

# The messages of these alerts contain a duration or a number that grows.
_PASSING: Final = ("undecided", "standstill", "long_transaction", "node_lost", "clock_off", "tenant_waits")

_facts_of: Final[WeakKeyDictionary[Driver, Facts]] = WeakKeyDictionary()

_Window = Annotated[Window, msgspec.Meta(description="how far back to read", examples=["1h"])]
_Task = Annotated[str, msgspec.Meta(description="only jobs of this task")]
_Queue = Annotated[str, msgspec.Meta(description="only jobs of this queue")]


def _without_ages(found: AlertList, _: Caller) -> Any:
    """Leave out messages that change with time."""
    items = [msgspec.structs.replace(item, message="") if item.code in _PASSING else item for item in found.items]
    return [items, found.total]


class Monitoring(OperationGroup):
    """Statistics, alerts and series."""

    @verb("GET /api/stats", id="get_stats", role="viewer")
    async def stats(self) -> Stats:
        """Return statistics of jobs, queues and schedules.

        Jobs by status, the outcomes of the last hour (`window_seconds` is less if there were too many to count), the
        age of the oldest pending job and of the oldest undecided instant. Store, leader, nodes and workers are included
        only for tokens for all tenants.
        """
        overview = await self.overview()
        ended, window = await self.caller.store.statistics.ended_counts(HOUR, tenant=self.caller.tenant)
        return stats_of(overview, ended, window)

    @verb("GET /api/alerts", id="list_alerts", role="viewer", stable=_without_ages)
    async def alerts(self, *, limit: Limit = PAGE_MAX) -> AlertList:
        """List what needs an operator now, the most severe first, each with its remedy."""
        found = list(alerts(await self.overview()))
        return AlertList(found[:limit], len(found))

    @verb("GET /api/stats/series", id="get_series", role="viewer")
    async def series(self, *, window: _Window = "1h", task: _Task | None = None, queue: _Queue | None = None) -> Series:
        """Return how jobs ended over the last hours, in 120 steps.

        Each step has the number of jobs by outcome, and the median and the 95th percentile (p95) of the durations of
        completed jobs. The newest 20,000 jobs of all tenants are read; if there were more, `truncated` is true and the
        first point is later. A response may be a few seconds old.
        """
        reader = (
            self.caller.monitor.series if self.caller.monitor else SeriesReader(self.caller.store, self.caller.clock)
        )
        return await reader.get(window, self.caller.tenant, task, queue)

    async def overview(self) -> Overview:
        """Read the overview from which statistics and alerts are built; local store only."""
        store, clock, monitor = self.caller.store, self.caller.clock, self.caller.monitor
        started = clock.monotonic()
        await store.ledger.pruned_through()  # The smallest query there is, to measure the latency.
        latency_s = clock.monotonic() - started
        if store.driver not in _facts_of:
            _facts_of[store.driver] = await facts(store.driver)
        trouble = await monitor.trouble() if monitor else (await examine(store, PROBE_S_MAX))[0]
        return await read_overview(
            store,
            now=clock.now(),
            facts=_facts_of[store.driver],
            latency_s=latency_s,
            tenant=self.caller.tenant,
            trouble=trouble,
        )


def stats_of(overview: Overview, ended: Mapping[str, int], window: Duration) -> Stats:
    """Convert an overview to statistics; callers of one tenant do not see store, leader, nodes and workers."""
    schedules = dict(overview.schedules)
    undecided = schedules.pop("oldest_undecided_seconds")
    stats = Stats(
        queues=overview.queues,
        jobs={PENDING: overview.pending, **overview.waiting},
        schedules=ScheduleFigures(
            **schedules
            | {
                "next_at": None if schedules["next_at"] is None else isoformat(schedules["next_at"]),
                "coming": [_coming(coming, overview.now) for coming in schedules["coming"]],
            },
        ),
        oldest_undecided_seconds=undecided,
        dead=DeadLetterFigures(overview.dead_letters, overview.dead),
        failing=[FailingSchedule(ref.name, ref.tenant, number) for ref, number in overview.failing],
        missed=[
            MissedSchedule(one.schedule, one.tenant, one.instants, isoformat(one.latest)) for one in overview.missed
        ],
        limits=FullLimits(len(overview.limits), overview.limits[:LISTED]),
        tenants=LateTenants(
            len(overview.late_tenants),
            [
                LateTenant(one.tenant, format_duration(one.wait_slo), one.waited / SECOND)
                for one in overview.late_tenants[:LISTED]
            ],
        ),
        degraded=[fault.message for fault in faults(overview)],
        at=isoformat(overview.now),
        tenant=overview.tenant,
        oldest_pending_seconds=max((queue.oldest_age_seconds for queue in overview.queues), default=0.0),
        last_hour=_last_hour(ended, window),
    )
    if overview.tenant is None:
        stats.store = StoreState(
            kind=overview.facts.kind, version=overview.facts.version, latency_ms=round(overview.latency_s * 1000, 3)
        )
        stats.leader = None if overview.leader is None else LeadingNode(**_lease(overview.leader))
        stats.shards = [Shard(role=lease.name, **_lease(lease)) for lease in overview.leases]
        stats.nodes = [node_of(node) for node in overview.nodes]
        stats.workers = workers_among(overview.nodes)
    return stats


def _coming(coming: Mapping[str, Any], now: int) -> ComingSchedule:
    return ComingSchedule(
        name=coming["name"],
        tenant=coming["tenant"],
        decided_through=isoformat(coming["decided_through"]),
        next_at=isoformat(coming["next_at"]),
        undecided_seconds=max(0, now - coming["next_at"]) / SECOND,
    )


def _lease(lease: Lease) -> dict[str, Any]:
    return {"name": lease.holder_name, "id": lease.holder, "token": lease.token, "since": isoformat(lease.since)}


def _last_hour(ended: Mapping[str, int], window: Duration) -> LastHour:
    failed = sum(ended.get(status, 0) for status in (Status.FAILED, Status.TIMED_OUT))
    finished = failed + ended.get(Status.COMPLETED, 0)
    return LastHour(
        **{str(status): ended.get(status, 0) for status in FINAL},
        window_seconds=window / SECOND,
        per_second=round(finished / (window / SECOND), 3),
        failure_rate=round(failed / finished, 4) if finished else 0.0,
    )
