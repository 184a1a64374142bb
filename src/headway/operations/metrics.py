"""Prometheus metrics: /metrics.

There are three kinds. Label values are bounded by the lists here, whatever is in the store:

    counted by nodes    decisions, attempts, durations, losses: sums over all nodes, including those that have left
    in the store        how many jobs wait and for how long, read at the scrape
    of this process     requests answered, webhook messages delivered, memory

The first two concern the whole installation, and every API process reports the same values. Values from the store are
cached for a second, or longer if reading them is slow, so that scrapes never cost the store more than a twentieth of
its time. While it does not answer, `headway_store_up` is 0, gauges from the store are absent rather than stale, and
counters keep their values.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headway.core.clock import Clock
from headway.core.errors import StoreError
from headway.core.occurrences import Decided
from headway.core.process_metrics import OTHER, ProcessMetrics, histogram_of
from headway.core.single_flight import CachedRead
from headway.operations.engine_state import engines_of
from headway.operations.job_context import ALIVE_WITHIN
from headway.operations.limit_metrics import LimitGauges, LimitMetrics, read_limit_gauges
from headway.operations.store_trouble import SHARD_PREFIX
from headway.store import Store
from headway.store.metrics import Depth, LiveNode, NodeCounters, Undecided

FRESH_S: Final = 1.0
COST_MAX: Final = 0.025  # The share of time that the store may spend on each of the two reads.
LOOK_S_MAX: Final = 5.0  # Prometheus waits for ten seconds by default.
QUEUES_MAX: Final = 50
# Pending jobs of a queue are counted up to the larger of: its share of the total, or the number for each queue.
COUNTED_IN_ALL: Final = 200_000
COUNTED_IN_EACH: Final = 10_000
RESULTS: Final = ("completed", "failed", "crashed", "timed_out", "cancelled", "released", "parked", "expired")
REFUSALS: Final = ("settlement", "report", "decision")
LOSSES: Final = ("attempt", "term")
LOOPS: Final = (
    *("heartbeat", "shards", "scheduler", "housekeeping", "promoter", "janitor", "lane_keeper", "group_keeper"),
    "declarations",
    *("claimer", "lease_extender", "settler", "reporter", "lease_watchdog"),
)
ROLES: Final = ("scheduler", "worker", "api")
ENGINES: Final = ("redis", "etcd", "zookeeper", "consul", "rabbitmq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The gauges from the store, read at one time."""

    backlog: dict[str, Depth]
    undecided: Undecided
    dead_letters: int
    deliveries: Depth
    leases: int
    limits: LimitGauges


class DeliveryCounts(Protocol):
    """The counters of the webhook sender since it started."""

    delivered: int
    failed: int
    retried: int
    in_flight: int


class Metrics:
    """The contents of /metrics."""

    def __init__(
        self, store: Store, clock: Clock, tally: ProcessMetrics, deliveries: DeliveryCounts | None = None
    ) -> None:
        self._store = store
        self._clock = clock
        self._tally = tally
        self._deliveries = deliveries
        self._queues: dict[str, None] = {}  # The queues with their own label, kept for the life of the process.
        self._queues_met = 1
        self._limits = LimitMetrics()
        self._tallies = CachedRead(self._read_tallies, clock=clock, fresh_s=FRESH_S, cost=COST_MAX)
        self._gauges = CachedRead(self._read_gauges, clock=clock, fresh_s=FRESH_S, cost=COST_MAX)
        self._cells: dict[str, int] = {}
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    async def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        counted = found = None
        with contextlib.suppress(StoreError, TimeoutError):  # Unknown values are left out.
            async with asyncio.timeout(LOOK_S_MAX):
                counted = await self._tallies.get()
                self._cells = counted.cells
                found = await self._gauges.get()
        families = [
            _gauge("headway_store_up", "1 if the store answers", 0 if counted is None else 1),
            *_of_nodes(self._cells),
            *([] if counted is None else _of_living(counted.alive)),
            *([] if found is None else self._of_store(found)),
            *_of_answers(self._tally),
            *([] if self._deliveries is None else _of_deliveries(self._deliveries)),
        ]
        return generate_latest(_Families(families)) + generate_latest(self._process)

    async def _read_tallies(self) -> NodeCounters:
        return await self._store.metrics.counters(ALIVE_WITHIN)

    async def _read_gauges(self) -> Gauges:
        store = self._store
        backlog = await store.metrics.backlog(max(COUNTED_IN_EACH, COUNTED_IN_ALL // max(1, self._queues_met)))
        self._queues_met = len(backlog)
        return Gauges(
            backlog=backlog,
            undecided=await store.metrics.undecided(),
            dead_letters=await store.metrics.dead_letters(),
            deliveries=await store.metrics.deliveries_waiting(),
            limits=await read_limit_gauges(store, self._clock.now()),
            leases=sum(is_running for _, is_running in await store.leases.held(SHARD_PREFIX)),
        )

    def _of_store(self, found: Gauges) -> Iterator[Metric]:
        name = "headway_oldest_undecided_seconds"
        yield _gauge(name, "Age of the oldest undecided instant", found.undecided.oldest_s)
        yield _gauge("headway_schedules_held", "Schedules that cannot be planned", found.undecided.held)
        yield _gauge("headway_scheduler_leases", "Scheduler leases that are held", found.leases)
        depth = GaugeMetricFamily("headway_queue_depth", "Pending jobs", labels=["queue"])
        oldest = GaugeMetricFamily("headway_queue_oldest_seconds", "Age of the oldest pending job", labels=["queue"])
        for queue, here in self._labelled(found.backlog).items():
            depth.add_metric([queue], here.pending)
            oldest.add_metric([queue], here.oldest_s)
        yield depth
        yield oldest
        yield from self._limits.families(found.limits)
        yield _gauge("headway_dead_letters", "Jobs that failed for good and await review", found.dead_letters)
        waiting = found.deliveries
        yield _gauge("headway_webhook_waiting", "Pending webhook deliveries", waiting.pending)
        yield _gauge("headway_webhook_oldest_seconds", "Age of the oldest pending webhook delivery", waiting.oldest_s)
        yield _gauge("headway_gauges_age_seconds", "Age of the gauges of the store", self._gauges.age_s())

    def _labelled(self, backlog: Mapping[str, Depth]) -> dict[str, Depth]:
        """Label the first queues seen, the largest of them first, and sum up all others.

        A queue keeps its label when it is empty or others are larger, so that lines in graphs do not come and go.
        """
        for queue in sorted(backlog, key=lambda queue: (-backlog[queue].pending, queue)):
            if len(self._queues) < QUEUES_MAX and queue != OTHER:
                self._queues.setdefault(queue)
        others = [here for queue, here in backlog.items() if queue not in self._queues]
        rest = Depth(
            pending=sum(here.pending for here in others),
            oldest_s=max((here.oldest_s for here in others), default=0.0),
        )
        return {**{queue: backlog.get(queue, _NOTHING) for queue in self._queues}, OTHER: rest}


_NOTHING: Final = Depth(pending=0, oldest_s=0.0)


def _of_nodes(cells: Mapping[str, int]) -> Iterator[Metric]:
    yield _counter("decisions", "Decisions about instants", "outcome", "decided", tuple(map(str, Decided)), cells)
    yield _histogram("decision_lateness", "Time from an instant to the decision to run it", "late", cells)
    yield _counter("attempts", "Finished attempts", "result", "attempts", RESULTS, cells)
    yield _histogram("claim_duration", "Duration of statements that claim jobs", "claim", cells)
    yield _histogram("run_duration", "Duration of attempts", "run", cells)
    yield _histogram("settle_duration", "Duration of statements that write outcomes", "settle", cells)
    yield _counter("leases_lost", "Leases that a live node could not keep", "of", "lost", LOSSES, cells)
    yield _counter(
        "stale_refusals", "Rejected writes of processes that had lost their lease", "of", "refused", REFUSALS, cells
    )
    yield _counter("tick_failures", "Ticks that could not reach the store", "loop", "failed", LOOPS, cells)
    for name, what, cell in (
        ("terms_won", "Leases on roles that were acquired", "won"),
        ("jobs_promoted", "Scheduled jobs that became ready", "promoted"),
        ("schedules_set_aside", "Schedules held because they could not be planned", "held"),
    ):
        yield CounterMetricFamily(f"headway_{name}", what, value=cells.get(cell, 0))


def _of_living(alive: Collection[LiveNode]) -> Iterator[Metric]:
    nodes = dict.fromkeys((*ROLES, OTHER), 0)
    slots = running = draining = 0
    for node in alive:
        for role in node.roles:
            nodes[role if role in ROLES else OTHER] += 1
        worker = node.state.get("worker")
        if isinstance(worker, dict):
            slots += int(worker.get("slots", 0))
            running += int(worker.get("running", 0))
            draining += bool(worker.get("draining"))
    family = GaugeMetricFamily("headway_nodes", "Live nodes", labels=["role"])
    for role, number in nodes.items():
        family.add_metric([role], number)
    yield family
    yield _gauge("headway_worker_slots", "Slots of all workers", slots)
    yield _gauge("headway_worker_slots_used", "Jobs that are running in workers", running)
    yield _gauge("headway_workers_draining", "Workers that are draining", draining)
    yield from _of_engines(alive)


def _of_engines(alive: Iterable[LiveNode]) -> Iterator[Metric]:
    labels = ["engine", "part"]
    up = GaugeMetricFamily("headway_engine_up", "1 if all nodes can reach this server beside the store", labels=labels)
    cut_off = GaugeMetricFamily("headway_engine_cut_off_nodes", "Nodes that cannot reach this server", labels=labels)
    absent: Counter[tuple[str, str]] = Counter()
    for engine in engines_of(alive):
        absent[engine.name if engine.name in ENGINES else OTHER, engine.part] += len(engine.troubles)
    for seen, nodes in absent.items():
        up.add_metric(seen, 0 if nodes else 1)
        cut_off.add_metric(seen, nodes)
    yield up
    yield cut_off


def _of_answers(tally: ProcessMetrics) -> Iterator[Metric]:
    requests = CounterMetricFamily("headway_api_requests", "Requests answered", labels=["route", "method", "status"])
    for (route, method, digit), number in sorted(tally.answers.items()):
        requests.add_metric([route, method, f"{digit}xx"], number)
    yield requests
    times = HistogramMetricFamily(
        "headway_api_request_duration_seconds", "Time from request to start of response", labels=["route", "method"]
    )
    for kind, histogram in sorted(tally.answer_times.items()):
        times.add_metric(kind, histogram.cumulated(), histogram.sum_s)
    yield times


def _of_deliveries(counts: DeliveryCounts) -> Iterator[Metric]:
    tries = CounterMetricFamily("headway_webhook_deliveries", "Attempts to deliver webhook messages", labels=["result"])
    for result, number in (("delivered", counts.delivered), ("failed", counts.failed), ("retried", counts.retried)):
        tries.add_metric([result], number)
    yield tries
    yield _gauge("headway_webhook_in_flight", "Webhook messages being sent", counts.in_flight)


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(name, what, value=value)


def _counter(
    name: str, what: str, label: str, head: str, values: tuple[str, ...], cells: Mapping[str, int]
) -> CounterMetricFamily:
    """Build a counter from the cells with this prefix. Labels unknown to this version are counted as `other`."""
    numbers = dict.fromkeys((*values, OTHER), 0)
    for cell, number in cells.items():
        start, _, value = cell.partition("|")
        if start == head:
            numbers[value if value in numbers else OTHER] += number
    family = CounterMetricFamily(f"headway_{name}", what, labels=[label])
    for value, number in numbers.items():
        family.add_metric([value], number)
    return family


def _histogram(name: str, what: str, head: str, cells: Mapping[str, int]) -> HistogramMetricFamily:
    times = histogram_of(head, cells)
    return HistogramMetricFamily(f"headway_{name}_seconds", what, buckets=times.cumulated(), sum_value=times.sum_s)


class _Families(Collector):
    """Metric families that were collected already, in the form that the library expects."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families
