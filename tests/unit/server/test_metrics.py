"""/metrics: names and types, bounded labels, sums over nodes, and absent values where nothing is known."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from headway.core.instants import MINUTE, SECOND
from headway.core.jobs import NewJob
from headway.core.nodes import Node
from headway.core.process_metrics import ProcessMetrics
from headway.operations.engine_state import engines_of
from headway.operations.metrics import LOOPS, QUEUES_MAX, Metrics
from tests.simulation.stage import Seat, Stage
from tests.simulation.virtual_loop import virtual

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


def metrics_of(seat: Seat, tally: ProcessMetrics | None = None) -> Metrics:
    return Metrics(seat.store, seat.clock, tally or ProcessMetrics())


async def scrape(metrics: Metrics) -> dict[str, Metric]:
    """Parse the output with the library's parser, which is as strict as Prometheus."""
    text = (await metrics.text()).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    names = [
        sample.name + str(sorted(sample.labels.items())) for family in families.values() for sample in family.samples
    ]
    assert len(names) == len(set(names)), "duplicate series: Prometheus rejects the whole response"
    return families


def values(family: Metric, label: str) -> dict[str, float]:
    return {sample.labels[label]: sample.value for sample in family.samples if not sample.name.endswith("_created")}


def value(family: Metric) -> float:
    (sample,) = family.samples
    return sample.value


async def enqueue(seat: Seat, queue: str, number: int = 1) -> None:
    await seat.store.queue.enqueue([NewJob(id=f"job_{queue}_{n}", task="work", queue=queue) for n in range(number)])


async def beat(seat: Seat, name: str, roles: tuple[str, ...] = ("worker",), **state: object) -> None:
    await seat.store.nodes.beat(Node(id=f"node_{name}", name=name, roles=roles, state=state))


@virtual
async def test_engine_is_up_when_it_answers_every_node() -> None:
    async with Stage() as stage:
        seat = stage.seat()
        metrics = metrics_of(seat)
        assert not (await scrape(metrics))["headway_engine_up"].samples, "the store alone grants leases"
        for name, engine, trouble in (
            ("a", "redis", None),
            ("b", "redis", "connection refused"),
            ("c", "etcd", None),
            ("d", "of a later version", None),
            ("e", "of another one", "away"),
        ):
            await beat(seat, name, coordination={"engine": engine, "trouble": trouble, "fallback": "store"})
        await asyncio.sleep(2.0)
        found = await scrape(metrics)
        assert values(found["headway_engine_up"], "engine") == {"redis": 0, "etcd": 1, "other": 0}
        assert values(found["headway_engine_cut_off_nodes"], "engine") == {"redis": 1, "etcd": 0, "other": 1}


@virtual
async def test_engine_metrics_are_labelled_by_purpose() -> None:
    async with Stage() as stage:
        seat = stage.seat()
        metrics = metrics_of(seat)
        live, transport = {"name": "redis", "trouble": "away"}, {"name": "rabbitmq", "trouble": None}
        leases = {"engine": "redis", "trouble": None, "fallback": "store"}
        await beat(seat, "a", live=live, transport=transport, coordination=leases)
        up = (await scrape(metrics))["headway_engine_up"].samples
        assert {(sample.labels["engine"], sample.labels["part"]): sample.value for sample in up} == {
            ("redis", "coordination"): 1,
            ("redis", "live"): 0,
            ("rabbitmq", "transport"): 1,
        }
        [words] = [engine.words for engine in engines_of(await seat.store.nodes.alive(60 * SECOND)) if engine.troubles]
        assert words == "redis for live values does not answer any node"


@virtual
async def test_counters_sum_over_nodes_and_never_decrease() -> None:
    async with Stage() as stage:
        seat = stage.seat()
        metrics = metrics_of(seat)
        await beat(seat, "a", tally={"attempts|completed": 5, "decided|fired": 2, "claim|0.005": 3, "claim|us": 9_000})
        await beat(seat, "b", tally={"attempts|completed": 40, "attempts|new kind": 1, "claim|inf": 1})
        found = await scrape(metrics)
        attempts = values(found["headway_attempts"], "result")
        assert (attempts["completed"], attempts["failed"], attempts["other"]) == (45, 0, 1)
        assert found["headway_attempts"].type == "counter"
        assert values(found["headway_decisions"], "outcome")["fired"] == 2
        claims = found["headway_claim_duration_seconds"]
        assert claims.type == "histogram"
        buckets = {s.labels["le"]: s.value for s in claims.samples if s.name.endswith("_bucket")}
        assert (buckets["0.0025"], buckets["0.005"], buckets["10.0"], buckets["+Inf"]) == (0, 3, 3, 4)
        assert {s.name: s.value for s in claims.samples if not s.labels} == {
            "headway_claim_duration_seconds_count": 4,
            "headway_claim_duration_seconds_sum": 0.009,
        }
        await seat.store.nodes.leave("node_b")
        await asyncio.sleep(2)
        assert values((await scrape(metrics))["headway_attempts"], "result")["completed"] == 45
        assert values((await scrape(metrics_of(seat)))["headway_attempts"], "result")["completed"] == 45, (
            "also in an API process that has just started"
        )


@virtual
async def test_unknown_loops_are_labelled_other() -> None:
    async with Stage() as stage:
        seat = stage.seat()
        await beat(seat, "a", tally={f"failed|loop {n}": 1 for n in range(200)} | {"failed|lease_extender": 3})
        failures = values((await scrape(metrics_of(seat)))["headway_tick_failures"], "loop")
        assert failures.keys() == {*LOOPS, "other"}
        assert (failures["lease_extender"], failures["other"]) == (3, 200)


@virtual
async def test_queue_labels_are_bounded_and_stable() -> None:
    async with Stage() as stage:
        seat = stage.seat()
        metrics = metrics_of(seat)
        await enqueue(seat, "other", 3)
        for n in range(QUEUES_MAX + 20):
            await enqueue(seat, f"q{n:03d}", 2 if n < QUEUES_MAX else 1)
        await asyncio.sleep(5)
        depth = values((await scrape(metrics))["headway_queue_depth"], "queue")
        assert len(depth) == QUEUES_MAX + 1
        assert depth["q000"] == 2
        assert depth["other"] == 3 + 20, "a queue of that name, and the queues without a label"
        await enqueue(seat, "zz-large", 100)
        await seat.store.work.claim("q000", node="node_a", lease=MINUTE, limit=10)
        await asyncio.sleep(2)
        found = await scrape(metrics)
        depth, oldest = (
            values(found["headway_queue_depth"], "queue"),
            values(found["headway_queue_oldest_seconds"], "queue"),
        )
        assert (depth["q000"], depth["other"], len(depth)) == (0, 123, QUEUES_MAX + 1)
        assert (oldest["q000"], round(oldest["q001"]), round(oldest["other"])) == (0, 7, 7)


@virtual
async def test_live_workers_have_slots() -> None:
    async with Stage() as stage:
        seat = stage.seat()
        await beat(seat, "dead", ("worker",), worker={"slots": 99, "running": 9})
        await asyncio.sleep(60)
        await beat(seat, "a", ("scheduler", "worker"), worker={"slots": 10, "running": 3})
        await beat(seat, "b", ("worker",), worker={"slots": 5, "running": 5, "draining": True})
        await beat(seat, "c", ("gardener",))
        found = await scrape(metrics_of(seat))
        assert values(found["headway_nodes"], "role") == {"scheduler": 1, "worker": 2, "api": 0, "other": 1}
        assert value(found["headway_worker_slots"]) == 15
        assert value(found["headway_worker_slots_used"]) == 8
        assert value(found["headway_workers_draining"]) == 1


@virtual
async def test_store_outage_is_reported_and_gauges_are_absent() -> None:
    async with Stage() as stage:
        seat = stage.seat()
        metrics = metrics_of(seat)
        await beat(seat, "a", tally={"attempts|completed": 5})
        assert value((await scrape(metrics))["headway_store_up"]) == 1
        await asyncio.sleep(2)
        seat.driver.is_down = True
        found = await scrape(metrics)
        assert value(found["headway_store_up"]) == 0
        assert values(found["headway_attempts"], "result")["completed"] == 5, "a decreasing counter would be a reset"
        assert not {"headway_queue_depth", "headway_oldest_undecided_seconds", "headway_nodes"} & found.keys()
        seat.driver.is_down = False
        found = await scrape(metrics)
        assert value(found["headway_store_up"]) == 1
        assert "headway_queue_depth" in found


@virtual
async def test_hanging_store_does_not_block_the_scrape() -> None:
    async with Stage() as stage:
        seat = stage.seat()
        metrics = metrics_of(seat)
        seat.driver.asking_s = 60.0
        began = seat.clock.monotonic()
        assert value((await scrape(metrics))["headway_store_up"]) == 0
        assert seat.clock.monotonic() - began < 9.0


@virtual
async def test_concurrent_scrapes_share_one_query() -> None:
    async with Stage() as stage:
        seat = stage.seat()
        metrics = metrics_of(seat)
        seat.driver.answering_s = 0.01
        before = seat.driver.calls
        await asyncio.gather(*(metrics.text() for _ in range(50)))
        per_look = seat.driver.calls - before
        assert per_look <= 8
        await metrics.text()
        assert seat.driver.calls - before == per_look


@virtual
async def test_slow_store_is_queried_less_often() -> None:
    async with Stage() as stage:
        seat = stage.seat()
        metrics = metrics_of(seat)
        seat.driver.answering_s = 0.5
        began, before, busy_s = seat.clock.monotonic(), seat.driver.calls, 0.0
        for _ in range(200):
            await metrics.text()
            await asyncio.sleep(1)
        busy_s = 0.5 * (seat.driver.calls - before)
        assert busy_s <= 0.15 * (seat.clock.monotonic() - began)


@virtual
async def test_responses_of_this_process() -> None:
    async with Stage() as stage:
        tally = ProcessMetrics()
        tally.request("/api/jobs/{id}", "GET", 200, 0.002)
        tally.request("/api/jobs/{id}", "GET", 503, 0.3)
        found = await scrape(metrics_of(stage.seat(), tally))
        assert values(found["headway_api_requests"], "status") == {"2xx": 1, "5xx": 1}
        (count,) = [
            sample.value
            for sample in found["headway_api_request_duration_seconds"].samples
            if sample.name.endswith("_count")
        ]
        assert count == 2


def documented() -> Iterator[str]:
    for line in DOCS.read_text().splitlines():
        if found := re.match(r"\| `(headway_\w+)", line):
            yield found[1]


@virtual
async def test_docs_list_exactly_the_metrics() -> None:
    from headway.core.settings import Settings
    from headway.server.webhook_sender import Deliverer

    async with Stage() as stage:
        seat = stage.seat()
        deliverer = Deliverer(seat.store.webhooks, seat.store.feed, Settings(), seat.clock)
        text = (await Metrics(seat.store, seat.clock, ProcessMetrics(), deliverer.counts).text()).decode()
        said = re.findall(r"^# TYPE (headway_\w+) (\w+)$", text, re.MULTILINE)
        assert sorted(documented()) == sorted(name for name, _ in said)
        for name, kind in said:
            assert re.search(rf"\| `{name}` \| {kind} \|", DOCS.read_text()), f"{name} is a {kind}"
