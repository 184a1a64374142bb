"""Needs in virtual time, with the production engine: what fits, who waits, who keeps its place, what is parked."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from headway import Context, Cron, Headway
from headway.core.errors import InvalidTask
from headway.core.needs import parse_needs, read_amounts
from headway.core.settings import Settings
from headway.testing import virtual
from headway.testing.child_pool import at_once
from headway.testing.world import World


class Meter:
    """What runs on each worker now, and the most of each resource that ever ran."""

    def __init__(self) -> None:
        self.now: dict[str, Counter[str]] = {}
        self.most: dict[str, Counter[str]] = {}
        self.started: list[tuple[str, float]] = []

    async def run(self, ctx: Context, label: str, needs: Mapping[str, Any], seconds: float) -> str:
        node = _node_of(ctx)
        amounts = read_amounts(needs, "needs") if needs else {}
        now = self.now.setdefault(node, Counter())
        self.started.append((label, asyncio.get_running_loop().time()))
        now.update(amounts)
        self.most[node] = self.most.get(node, Counter()) | now
        try:
            await asyncio.sleep(seconds)
        finally:
            now.subtract(amounts)
        return node


def _node_of(ctx: Context) -> str:
    return str(ctx._channel._clock.node)  # type: ignore[attr-defined]


def new_app(meter: Meter, **options: Any) -> Headway:
    app = Headway("sqlite:///test.db", name="needs", settings=Settings(node="test", **options))

    @app.task
    async def work(ctx: Context, label: str = "", seconds: float = 1.0, needs: dict[str, Any] | None = None) -> str:
        return await meter.run(ctx, label, needs or {}, seconds)

    return app


def put(world: World, label: str, needs: dict[str, Any], seconds: float = 1.0, **options: Any) -> Any:
    args = {"label": label, "seconds": seconds, "needs": needs}
    return world.enqueue("work", args, needs=needs, **options)


def test_workers_take_only_what_they_offer_and_never_more_at_a_time() -> None:
    meter = Meter()
    with virtual(new_app(meter), workers=2, offers=[{"cpu": 4, "memory": "8G"}, {"cpu": 2, "gpu": 1}]) as world:
        small = [put(world, "small", {"cpu": 1}, 3.0, queue=f"q{n % 3}") for n in range(24)]
        with_memory = [put(world, "memory", {"memory": "3G"}, 2.0) for _ in range(6)]
        with_gpu = [put(world, "gpu", {"gpu": 1, "cpu": 2}, 2.0) for _ in range(3)]
        plain = [put(world, "plain", {}, 1.0, queue=f"q{n % 3}") for n in range(12)]
        world.drain()
        jobs = [*small, *with_memory, *with_gpu, *plain]
        assert {world.job(job).status for job in jobs} == {"COMPLETED"}
        first, second = sorted(meter.most)
        offers = {first: {"cpu": 4000, "memory": 8 << 33}, second: {"cpu": 2000, "gpu": 1000}}
        assert meter.most[first]["cpu"] == 4000
        assert meter.most[second]["cpu"] == 2000
        assert {world.job(job).result for job in with_memory} == {first}
        assert {world.job(job).result for job in with_gpu} == {second}
        assert meter.most[first]["memory"] == read_amounts({"memory": "6G"}, "x")["memory"]
        assert all(amount <= offers[node].get(name, 0) or name == "memory"
                   for node, most in meter.most.items() for name, amount in most.items())  # fmt: skip
        world.assert_promises()


def test_worker_that_offers_nothing_takes_only_jobs_without_needs() -> None:
    with virtual(new_app(Meter()), workers=1) as world:
        plain, needy = put(world, "plain", {}), put(world, "needy", {"cpu": 1})
        world.advance(seconds=20)
        assert world.job(plain).status == "COMPLETED"
        assert world.job(needy).status == "PENDING"
        assert "needs cpu=1, nobody offers it" in world.app.job_sync(needy.id).why


def test_large_job_is_not_starved_by_small_ones() -> None:
    """Small jobs would always use some of the four cores; after ten seconds they wait until the large one fits."""
    meter = Meter()
    with virtual(new_app(meter), workers=1, offers={"cpu": 4}) as world:
        for number in range(200):
            put(world, "small", {"cpu": 1}, 4.0, delay=number * 0.9)
        world.advance(seconds=20)
        big = put(world, "big", {"cpu": 4}, 5.0)
        world.advance(seconds=8)
        assert world.job(big).status == "PENDING"
        world.advance(seconds=12)
        assert world.job(big).status in ("RUNNING", "COMPLETED")
        [began] = [at for label, at in meter.started if label == "big"]
        assert 30.0 <= began <= 20.0 + 10.0 + 4.0 + 2.0
        world.drain()
        assert {job.status for job in world.jobs()} == {"COMPLETED"}
        assert max(most["cpu"] for most in meter.most.values()) == 4000


def test_large_job_does_not_stop_jobs_that_need_something_else_or_nothing() -> None:
    meter = Meter()
    with virtual(new_app(meter), workers=1, offers={"cpu": 4, "gpu": 1}) as world:
        put(world, "long", {"cpu": 1}, 300.0)
        world.advance(seconds=1)
        put(world, "big", {"cpu": 4}, 5.0)
        world.advance(seconds=30)
        held = [put(world, "held", {"cpu": 1}, 1.0) for _ in range(3)]
        others = [put(world, "plain", {}, 1.0), put(world, "gpu", {"gpu": 1}, 1.0)]
        world.advance(seconds=30)
        assert {world.job(job).status for job in others} == {"COMPLETED"}
        assert {world.job(job).status for job in held} == {"PENDING"}
        world.drain()
        assert {job.status for job in world.jobs()} == {"COMPLETED"}


def test_large_job_that_fits_nowhere_stops_no_small_ones() -> None:
    meter = Meter()
    with virtual(new_app(meter), workers=2, offers={"cpu": 2}) as world:
        put(world, "huge", {"cpu": 64})
        put(world, "elsewhere", {"cpu": 1}, labels={"zone": "eu"})
        world.advance(seconds=30)
        small = [put(world, "small", {"cpu": 1}, 1.0) for _ in range(8)]
        world.advance(seconds=12)
        assert {world.job(job).status for job in small} == {"COMPLETED"}


def test_job_under_a_full_limit_keeps_no_place() -> None:
    meter = Meter()
    app = new_app(meter)
    app.limit("account-*", concurrency=1)
    with virtual(app, workers=1, offers={"cpu": 4}) as world:
        put(world, "holder", {"cpu": 1}, 600.0, limit="account-1")
        world.advance(seconds=1)
        put(world, "big", {"cpu": 4}, 1.0, limit="account-1")
        world.advance(seconds=30)
        small = [put(world, "small", {"cpu": 1}, 1.0) for _ in range(9)]
        world.advance(seconds=30)
        assert {world.job(job).status for job in small} == {"COMPLETED"}
        world.drain()
        assert {job.status for job in world.jobs()} == {"COMPLETED"}


def test_tenants_share_a_class_by_what_they_use() -> None:
    meter = Meter()
    with virtual(new_app(meter), workers=1, offers={"cpu": 2}) as world:
        for _ in range(30):
            put(world, "acme", {"cpu": 1}, 2.0, tenant="acme")
        world.advance(seconds=5)
        late = put(world, "globex", {"cpu": 1}, 1.0, tenant="globex")
        world.advance(seconds=5)
        assert world.job(late).status in ("RUNNING", "COMPLETED")
        world.drain()


def test_what_nobody_offers_is_parked_and_goes_on_when_somebody_does() -> None:
    meter = Meter()
    with virtual(new_app(meter), workers=1, offers={"cpu": 2}) as world:
        job = put(world, "gpu", {"gpu": 1})
        world.advance(minutes=4)
        assert world.job(job).status == "PENDING"
        world.advance(minutes=2)
        parked = world.job(job)
        assert parked.status == "BLOCKED"
        assert "needs gpu=1, nobody offers it" in parked.why
        assert [attempt["outcome"] for attempt in world.attempts(job)] == ["parked"]
        assert at_once(world.store.jobs.get(job.id)).parked == "needs"
        world._workers.append(world._start_process("worker", offer=Settings(offer={"gpu": 1000}), has_child_pool=True))
        world.advance(seconds=30)
        assert world.job(job).status == "COMPLETED"
        assert at_once(world.store.jobs.get(job.id)).failures == 0


def test_class_that_is_offered_now_and_then_is_not_parked() -> None:
    with virtual(new_app(Meter()), workers=1, offers={"cpu": 2}) as world:
        job = put(world, "gpu", {"gpu": 1})
        world.advance(minutes=4)
        busy = put(world, "gpu", {"gpu": 1}, 10**6)
        process = world._start_process("worker", offer=Settings(offer={"gpu": 1000}), has_child_pool=True)
        world._workers.append(process)
        world.advance(minutes=3)
        statuses = {world.job(job).status, world.job(busy).status}
        assert "BLOCKED" not in statuses
        assert "RUNNING" in statuses


def test_labels_and_pinned_version_choose_the_worker() -> None:
    meter = Meter()
    app = new_app(meter, app_version="2.0")

    @app.task(pin=True)
    async def pinned(ctx: Context) -> str:
        return "ran"

    with virtual(app, workers=1, offers={"cpu": 1}, labels={"zone": "eu"}) as world:
        here = put(world, "eu", {}, labels={"zone": "eu"})
        there = put(world, "us", {}, labels={"zone": "us"})
        mine = pinned.enqueue_sync()
        assert at_once(world.store.jobs.get(mine.id)).needs == "@2.0"
        app.version = "3.0"
        newer = world.enqueue(pinned)  # The options of the task were made by the earlier code.
        world.advance(seconds=20)
        assert world.job(here).status == "COMPLETED"
        assert world.job(there).status == "PENDING"
        assert world.job(mine).status == "COMPLETED"
        assert world.job(newer).status == "COMPLETED"


def test_pinned_task_without_a_version_is_an_error_with_its_cure() -> None:
    app = new_app(Meter())
    with pytest.raises(InvalidTask, match=r"HEADWAY_APP_VERSION.*version="):

        @app.task(pin=True)
        def pinned() -> None: ...

    with pytest.raises(InvalidTask, match="True or False"):
        app.task(pin="yes")(lambda: None)  # type: ignore[call-overload]


def test_reruns_retries_and_schedules_keep_their_needs() -> None:
    app = new_app(Meter(), app_version="7")
    failures = Counter[str]()

    @app.task(needs={"cpu": 1, "memory": "1G"}, labels={"zone": "eu"}, pin=True)
    async def fragile(ctx: Context, name: str = "a") -> None:
        failures[name] += 1
        if failures[name] < 2:
            raise ValueError(name)

    app.schedule("hourly", fragile, Cron("0 * * * *"), args={"name": "s"}, overlap="queue")
    text = "cpu=1 memory=1073741824 zone:eu @7"
    with virtual(app, workers=1, offers={"cpu": 1, "memory": "2G"}, labels={"zone": "eu"}) as world:
        job = fragile.enqueue_sync()
        world.advance(minutes=1)
        assert world.job(job).status == "FAILED"
        again = app.retry_sync(job.id)
        world.advance(minutes=1)
        assert world.job(again).status == "COMPLETED"
        world.advance(hours=2)
        scheduled = world.jobs(schedule="hourly")
        assert len(scheduled) == 2
        stored = [at_once(world.store.jobs.get(one.id)) for one in (job, again, *scheduled)]
        assert {one.needs for one in stored} == {text}
        assert parse_needs(text) is not None
        world.drain()


def test_capacity_of_a_job_that_does_not_stop_counts_until_it_has_stopped() -> None:
    meter = Meter()
    app = new_app(meter)
    stubborn_until = [0.0]

    @app.task
    async def stubborn(ctx: Context) -> None:
        """Take two seconds to stop."""
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await asyncio.sleep(2)
            stubborn_until[0] = asyncio.get_running_loop().time()
            raise

    with virtual(app, workers=1, offers={"cpu": 1}) as world:
        holder = world.enqueue(stubborn, needs={"cpu": 1})
        world.advance(seconds=5)
        following = put(world, "next", {"cpu": 1}, 1.0)
        app.cancel_sync(holder.id)
        world.advance(seconds=20)
        assert world.job(following).status == "COMPLETED"
        assert stubborn_until[0] > 0
        assert meter.started[0][1] >= stubborn_until[0]
