"""Prometheus metrics of limits and tenants. The number of label values is bounded, whatever is defined in the store."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from headway.core.instants import SECOND, Instant
from headway.core.process_metrics import OTHER
from headway.operations.limit_state import describe
from headway.store import Store
from headway.store.tenants import Objective
from headway.wire.limits import Limit

LABELS_MAX: Final = 50
LIMITS_MAX: Final = 1_000  # Limits that are read, the first by name.


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitGauges:
    """What is shown of limits and tenants, read at one time."""

    limits: list[Limit]
    objectives: list[Objective]


async def read_limit_gauges(store: Store, now: Instant) -> LimitGauges:
    """Read what limits let run, and how long the jobs of tenants wait."""
    rules = await store.limit_reads.rules()
    first = [rules.limits[name] for name in sorted(rules.limits)[:LIMITS_MAX]]
    return LimitGauges(limits=await describe(store, first, rules, now), objectives=await store.tenants.objectives())


class Labels:
    """The first names that were seen keep a label of their own for the life of the process; all others share one."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def of(self, names: Iterable[str]) -> dict[str, str]:
        """Return the label of each name; names that come first get the labels that are left."""
        listed = list(names)
        for name in listed:
            if len(self._names) < LABELS_MAX and name != OTHER:
                self._names.setdefault(name)
        return {name: name if name in self._names else OTHER for name in listed}


class LimitMetrics:
    """The metrics of limits and tenants; it remembers which of them have labels."""

    def __init__(self) -> None:
        self._limits = Labels()
        self._tenants = Labels()

    def families(self, found: LimitGauges) -> Iterator[Metric]:
        """Return the metric families."""
        yield from self._of_limits(found.limits)
        yield from self._of_tenants(found.objectives)

    def _of_limits(self, limits: list[Limit]) -> Iterator[Metric]:
        busiest = sorted(limits, key=lambda limit: (-(limit.held or 0), -(limit.running or 0), limit.name))
        labels = self._limits.of(limit.name for limit in busiest)
        exact = [limit for limit in limits if limit.running is not None]
        for name, what, values in (
            ("running", "Running jobs that a limit counts", {limit.name: limit.running or 0 for limit in exact}),
            (
                "concurrency",
                "Jobs that a limit allows at a time",
                {limit.name: limit.concurrency for limit in exact if limit.concurrency is not None},
            ),
            ("waiting_lanes", "Lanes that wait for a limit", {limit.name: limit.held or 0 for limit in limits}),
        ):
            yield _family(f"headway_limit_{name}", what, "limit", _sums(labels, values))

    def _of_tenants(self, objectives: list[Objective]) -> Iterator[Metric]:
        worst = sorted(objectives, key=lambda one: (-one.waited / one.wait_slo, one.tenant))
        labels = self._tenants.of(one.tenant for one in worst)
        waits = {one.tenant: one.waited / SECOND for one in objectives}
        parts = {one.tenant: one.waited / one.wait_slo for one in objectives}
        oldest = "How long the oldest ready job of a tenant has waited"
        yield _family("headway_tenant_oldest_wait_seconds", oldest, "tenant", _maxima(labels, waits))
        ratio = "The same, divided by the wait_slo of the tenant"
        yield _family("headway_tenant_wait_slo_ratio", ratio, "tenant", _maxima(labels, parts))
        late = sum(one.waited > one.wait_slo for one in objectives)
        yield GaugeMetricFamily("headway_tenants_late", "Tenants that wait longer than their wait_slo", value=late)


def _sums(labels: Mapping[str, str], values: Mapping[str, int]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name, value in values.items():
        sums[labels[name]] = sums.get(labels[name], 0) + value
    return sums


def _maxima(labels: Mapping[str, str], values: Mapping[str, float]) -> dict[str, float]:
    maxima: dict[str, float] = {}
    for name, value in values.items():
        maxima[labels[name]] = max(maxima.get(labels[name], 0.0), value)
    return maxima


def _family(name: str, what: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, what, labels=[label])
    for value, number in sorted(values.items()):
        family.add_metric([value], number)
    return family
