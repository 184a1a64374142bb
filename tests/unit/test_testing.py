"""Virtual worlds, which users rely on to test their own tasks and schedules."""

import asyncio
import gc
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headway import After, Cancel, Context, Cron, Every, Headway, JobFailed, LeaseLost, Retry, Status
from headway.testing import World, virtual
from headway.testing.loop import Livelock, VirtualLoop

START = "2027-03-27T00:00Z"


class Shop:
    """An app with tasks of every kind, and a record of what ran."""

    def __init__(self, folder: Path) -> None:
        self.app = app = Headway(f"sqlite:///{folder}/never.db", name="shop")
        self.diary: list[Any] = []

        @app.task
        def note(word: str = "ran") -> str:
            self.diary.append(word)
            return word

        @app.task
        async def work(ctx: Context, seconds: float = 60.0, parts: int = 10) -> int:
            self.diary.append(("began", ctx.attempt))
            for _ in ctx.track(range(parts), "Working"):
                await asyncio.sleep(seconds / parts)
            self.diary.append(("ended", ctx.attempt))
            return ctx.attempt

        self.note, self.work = note, work


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def world(shop: Shop) -> Iterator[World]:
    with virtual(shop.app, START, seed=7) as world:
        yield world


def when(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def outcomes(world: World, name: str) -> list[tuple[datetime, str]]:
    return [(found.instant, found.outcome) for found in world.occurrences(name)]


# --- schedules


def test_local_time_that_does_not_exist_moves_to_the_end_of_the_gap(shop: Shop) -> None:
    shop.app.schedule("daily-report", shop.note, Cron("30 2 * * *", tz="Europe/Berlin"))
    with virtual(shop.app, START, seed=7) as world:
        world.advance(hours=26)
        assert world.now == when("2027-03-28T02:00")
        assert outcomes(world, "daily-report") == [
            (when("2027-03-27T01:30"), "fired"),
            (when("2027-03-28T01:00"), "fired"),  # 02:30 does not exist; 03:00 in Berlin is the next local time.
        ]
        assert [job.created_at for job in world.jobs()] == [when("2027-03-27T01:30"), when("2027-03-28T01:00")]
        assert {job.status for job in world.jobs(schedule="daily-report")} == {Status.COMPLETED}
        world.assert_promises()
    assert shop.diary == ["ran", "ran"]


def test_month_takes_seconds(shop: Shop) -> None:
    shop.app.schedule("daily", shop.note, Cron("0 6 * * *"))
    began = time.thread_time()  # CPU time of this thread: independent of the load of the machine.
    with virtual(shop.app, START) as world:
        world.advance(days=30)
        assert len(world.occurrences("daily")) == 30
    assert time.thread_time() - began < 60  # Ticking every second would take minutes.


@pytest.mark.slow
def test_old_worlds_keep_all_history(shop: Shop) -> None:
    """After 194 days a float of seconds has no nanosecond precision; the default retention is 30 days."""
    shop.app.schedule("monthly", shop.note, Cron("0 0 1 * *"))
    with virtual(shop.app, "2027-01-01T00:00Z") as world:
        for _ in range(11):
            world.advance(days=20)
        assert [found.instant.month for found in world.occurrences("monthly")] == [2, 3, 4, 5, 6, 7, 8]
        assert len(world.jobs(task="note", status="completed")) == 7
        world.assert_promises()


@pytest.mark.parametrize("years", [0, 1, 10, 1_000])
def test_timers_fire_in_any_year(years: int) -> None:
    loop, seen = VirtualLoop(), list[float]()
    loop.run_through(years * 365 * 86_400.0 + 0.7)
    began = loop.time()
    loop.call_at(began + 0.1 + 0.2, lambda: seen.append(loop.time()))
    loop.call_at(began + 0.9, lambda: seen.append(0))
    loop.run_through(began + 0.3)
    assert seen == [pytest.approx(began + 0.3)]
    loop.close()


def test_advance_includes_the_instant_at_its_end(shop: Shop) -> None:
    shop.app.schedule("hourly", shop.note, Every("1h"))
    with virtual(shop.app, START) as world:
        world.advance("59m59s")
        assert world.occurrences("hourly") == []
        world.advance(seconds=1)
        assert outcomes(world, "hourly") == [(when("2027-03-27T01:00"), "fired")]
        assert shop.diary == ["ran"]


def test_instants_missed_without_a_scheduler_are_coalesced(shop: Shop) -> None:
    shop.app.schedule("hourly", shop.note, Every("1h"), missed="latest")
    with virtual(shop.app, START) as world:
        world.advance("2h30m")
        world.stop_schedulers()
        world.advance(hours=5)
        assert len(world.occurrences("hourly")) == 2
        world.start_schedulers()
        world.advance(seconds=10)
        found = world.occurrences("hourly")
        assert [(each.outcome, each.count) for each in found] == [
            ("fired", 1), ("fired", 1), ("coalesced", 4), ("fired", 1)
        ]  # fmt: skip
        assert (found[2].until, found[3].instant) == (when("2027-03-27T06:00"), when("2027-03-27T07:00"))
        assert shop.diary == ["ran"] * 3
        world.assert_promises()


def test_fixed_delay_counts_from_the_end_of_the_job(shop: Shop) -> None:
    shop.app.schedule("poll", shop.work, After("10m"), args={"seconds": 300})
    with virtual(shop.app, START) as world:
        world.advance("40m")
        first, second, third = (found.instant for found in world.occurrences("poll"))
        for gap in (second - first, third - second):
            assert timedelta(minutes=15) <= gap < timedelta(minutes=15, seconds=1)
        world.assert_promises()


def test_queue_overlap_with_limit_one(shop: Shop) -> None:
    shop.app.schedule("slow", shop.work, Every("1m"), overlap="queue", args={"seconds": 150})
    with virtual(shop.app, START) as world:
        world.advance("5m30s")
        assert [each for _, each in outcomes(world, "slow")] == ["fired", "fired", "skipped", "fired", "skipped"]
        statuses = [job.status for job in world.jobs(schedule="slow")]
        assert statuses == [Status.COMPLETED, Status.RUNNING, Status.BLOCKED]
        attempts = [attempt for job in world.jobs() for attempt in world.attempts(job)]
        assert attempts[0]["ended_at"] == when("2027-03-27T00:03:30")
        world.assert_promises()


def test_replace_stops_the_running_job_first(shop: Shop) -> None:
    shop.app.schedule("slow", shop.work, Every("1m"), overlap="replace", args={"seconds": 600})
    with virtual(shop.app, START) as world:
        world.advance("3m30s")
        statuses = [job.status for job in world.jobs(schedule="slow")]
        assert statuses == [Status.CANCELLED, Status.CANCELLED, Status.RUNNING]
        world.assert_promises()  # S7: never two at a time.
        assert shop.diary == [("began", 1)] * 3


# --- jobs


def test_both_ways_to_enqueue_act_on_the_world(shop: Shop, world: World, tmp_path: Path) -> None:
    soon = shop.note.enqueue_sync("soon")
    later = world.enqueue(shop.note, {"word": "later"}, delay="10m")
    assert world.job(later).status is Status.SCHEDULED
    assert soon.wait_sync("1m") == "soon"
    world.advance("9m")
    assert shop.diary == ["soon"]
    world.advance("1m")
    assert shop.diary == ["soon", "later"]
    assert world.job(later).result == "later"
    assert [job.id for job in world.jobs(task="note")] == [soon.id, later.id]
    assert not (tmp_path / "never.db").exists()


def test_app_is_restored_after_the_block(shop: Shop, tmp_path: Path) -> None:
    with virtual(shop.app, START):
        shop.note.enqueue_sync()
    job = shop.note.enqueue_sync()
    assert job.created_at > when("2020-01-01T00:00")
    assert (tmp_path / "never.db").exists()
    assert [found.id for found in shop.app.jobs_sync()] == [job.id]


def test_backoff_in_virtual_time(shop: Shop) -> None:
    @shop.app.task(retry=Retry(max_attempts=4, backoff="1m..1h"))
    def flaky(ctx: Context) -> str:
        if ctx.attempt < 4:
            raise OSError("not yet")
        return "at last"

    with virtual(shop.app, START) as world:
        job = world.enqueue(flaky)
        world.drain()
        assert world.job(job).result == "at last"
        attempts = world.attempts(job)
        assert [attempt["outcome"] for attempt in attempts] == ["failed"] * 3 + ["completed"]
        waits = [b["started_at"] - a["ended_at"] for a, b in pairwise(attempts)]
        for wait, most in zip(waits, (60, 120, 240), strict=True):
            assert timedelta(seconds=most / 2) <= wait <= timedelta(seconds=most + 1)
        world.assert_promises()


def test_task_may_raise_retry_and_cancel(shop: Shop) -> None:
    @shop.app.task(retry=Retry(max_attempts=2))
    def fickle(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Retry(after="3h")
        raise Cancel("nothing to do")

    with virtual(shop.app, START) as world:
        job = world.enqueue(fickle)
        world.advance(seconds=1)
        assert world.job(job).status is Status.RETRYING
        world.drain()
        assert world.now == when("2027-03-27T03:00")
        assert world.job(job).status is Status.CANCELLED
        assert world.job(job).job.reason == "nothing to do"


def test_retry_of_a_task_with_one_attempt_fails(shop: Shop) -> None:
    @shop.app.task
    def hopeful() -> None:
        raise Retry(after="3h")

    with virtual(shop.app, START) as world:
        job = world.enqueue(hopeful)
        world.drain()
        assert world.job(job).status is Status.FAILED
        assert "max_attempts" in world.job(job).error["message"]


def test_job_that_exceeds_its_timeout_is_stopped(shop: Shop) -> None:
    @shop.app.task(timeout="90s")
    async def endless(ctx: Context, stubborn: bool = False) -> None:
        assert ctx.deadline is not None
        shop.diary.append(ctx.deadline)
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if not stubborn:
                    raise

    with virtual(shop.app, START) as world:
        good, bad = world.enqueue(endless), world.enqueue(endless, {"stubborn": True})
        world.advance("95s")
        assert {world.job(job).status for job in (good, bad)} == {Status.TIMED_OUT}
        ends = [world.attempts(job)[0]["ended_at"] for job in (good, bad)]
        assert ends == [when("2027-03-27T00:01:30"), when("2027-03-27T00:01:33")]  # The other one had to be killed.
        assert shop.diary == [when("2027-03-27T00:01:30")] * 2


def test_cancelled_job_stops(shop: Shop, world: World) -> None:
    job = world.enqueue(shop.work, {"seconds": 600})
    world.advance("2m")
    assert job.cancel_sync().status is Status.RUNNING
    world.advance(seconds=2)
    assert world.job(job).status is Status.CANCELLED
    with pytest.raises(JobFailed):
        job.wait_sync("1m")


def test_progress_steps_log_and_metadata(shop: Shop) -> None:
    @shop.app.task
    async def render(ctx: Context) -> None:
        ctx.metadata["input"] = "video.mp4"
        with ctx.steps("Download", ("Encode", 3)) as steps:
            with steps("Download"):
                await asyncio.sleep(60)
            with steps("Encode"):
                ctx.log("first line\nsecond line")
                ctx.progress(50)
                await asyncio.sleep(60)

    with virtual(shop.app, START) as world:
        job = world.enqueue(render)
        world.advance(seconds=90)
        seen = world.job(job)
        assert (seen.progress, seen.metadata) == (62, {"input": "video.mp4"})
        assert world.log(job) == ["first line", "second line"]
        world.drain()
        assert world.job(job).progress == 100


def test_task_enqueues_jobs(shop: Shop) -> None:
    @shop.app.task
    async def parent(ctx: Context) -> str:
        return await ctx.enqueue("note", {"word": "child"}, delay="5m")

    @shop.app.task
    def sync_parent(ctx: Context) -> str:
        return ctx.enqueue_sync(shop.note, {"word": "other child"})

    with virtual(shop.app, START) as world:
        first, second = world.enqueue(parent), world.enqueue(sync_parent)
        world.advance("10m")
        assert shop.diary == ["other child", "child"]
        assert [job.job.parent for job in world.jobs(task="note")] == [first.id, second.id]
        assert world.job(first).result in {job.id for job in world.jobs(task="note")}
        world.assert_promises()


def test_threads_run_inline(shop: Shop) -> None:
    @shop.app.task
    async def threaded() -> int:
        return await asyncio.to_thread(lambda: 41) + 1

    with virtual(shop.app, START) as world:
        assert world.enqueue(threaded).wait_sync("1m") == 42


# --- failures


def test_another_worker_takes_over_from_a_dead_one(shop: Shop, world: World) -> None:
    job = world.enqueue(shop.work, {"seconds": 600})
    world.advance("5m")
    world.kill_worker(job)
    world.advance(seconds=5)
    assert world.job(job).status is Status.RUNNING  # The failure is not detected yet.
    world.advance(seconds=35)  # The lease lasts 30 s; the takeover has 10 s more.
    assert world.job(job).job.attempt == 2
    world.drain()
    assert world.job(job).result == 2
    assert [attempt["outcome"] for attempt in world.attempts(job)] == ["expired", "completed"]
    assert shop.diary == [("began", 1), ("began", 2), ("ended", 2)]
    world.assert_promises()


def test_finished_step_is_not_repeated_after_a_crash(shop: Shop) -> None:
    @shop.app.task
    async def pay(ctx: Context) -> str:
        receipt = ctx.once("charge", charge)
        await asyncio.sleep(60)
        return receipt

    def charge() -> str:
        shop.diary.append("charged")
        return "receipt"

    with virtual(shop.app, START) as world:
        job = world.enqueue(pay)
        world.advance(seconds=30)
        world.kill_worker(job)
        world.drain()
        assert world.job(job).result == "receipt"
        assert world.job(job).job.attempt == 2
        assert shop.diary == ["charged"]


def test_thawed_worker_has_lost_the_job(shop: Shop) -> None:
    @shop.app.task
    async def parent(ctx: Context) -> int:
        try:
            await asyncio.sleep(20)
        finally:
            try:
                await ctx.enqueue("note", {"word": f"of attempt {ctx.attempt}"})
            except LeaseLost:
                shop.diary.append(f"refused to attempt {ctx.attempt}")
        return ctx.attempt

    with virtual(shop.app, START) as world:
        job = world.enqueue(parent)
        world.advance(seconds=10)
        world.freeze_worker(job, "2m")
        world.drain()
        assert world.job(job).result == 2
        world.advance("5m")
        assert "of attempt 1" not in shop.diary
        assert set(shop.diary) >= {"refused to attempt 1", "of attempt 2"}
        world.assert_promises()


def test_kill_worker_needs_a_running_job(shop: Shop, world: World) -> None:
    job = world.enqueue(shop.note, delay="1h")
    with pytest.raises(ValueError, match="SCHEDULED"):
        world.kill_worker(job)


@pytest.mark.slow
def test_drain_error_names_unfinished_jobs(shop: Shop, world: World) -> None:
    job = world.enqueue(shop.work, {"seconds": 7200})
    with pytest.raises(TimeoutError, match=job.id):
        world.drain(within="1h")


# --- broken promises are detected


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("delete from headway_occurrences where outcome = 'fired'", "S1: gap"),
        ("delete from headway_jobs where schedule is not null", "S1: hourly fired at"),
        ("update headway_jobs set status = 'FAILED' where schedule is not null", "S4: "),
        ("update headway_log set at = at + 1000000000", "S3: "),
        ("update headway_jobs set started_at = started_at - 100000000000 where schedule is not null", "S7: hourly"),
    ],
)
def test_broken_promises_are_detected(shop: Shop, harm: str, words: str) -> None:
    @shop.app.task
    def logs(ctx: Context) -> None:
        ctx.log("a line")

    shop.app.schedule("hourly", logs, Every("1h"))
    with virtual(shop.app, START) as world:
        world.advance("150m")
        world.assert_promises()
        world.connection.raw.execute(harm)
        with pytest.raises(AssertionError, match=words):
            world.assert_promises()


def test_changed_final_result_is_detected(shop: Shop, world: World) -> None:
    shop.note.enqueue_sync()
    world.drain()
    world.assert_promises()
    world.connection.raw.execute("update headway_jobs set result = '\"another\"'")
    with pytest.raises(AssertionError, match=r"S4: .* had ended as"):
        world.assert_promises()


# --- the world itself


def test_same_seed_gives_the_same_history(shop: Shop) -> None:
    def history(seed: int) -> list[tuple[str, Any]]:
        with virtual(shop.app, START, seed=seed) as world:
            jobs = [world.enqueue(shop.work, {"seconds": 10}), world.enqueue(shop.note, {"word": "x"})]
            world.advance("30s")
            return [(job.id, world.attempts(job)) for job in jobs]

    assert history(1) == history(1)
    assert history(1) != history(2)


def test_virtual_inside_a_coroutine_is_rejected_with_the_cure(shop: Shop) -> None:
    async def test() -> None:
        with pytest.raises(RuntimeError, match="plain def"), virtual(shop.app):
            pass

    asyncio.run(test())


def test_task_cannot_advance_the_clock_of_its_world(shop: Shop) -> None:
    @shop.app.task
    def impatient() -> None:
        shop.note.enqueue_sync().wait_sync()

    with virtual(shop.app, START) as world:
        job = world.enqueue(impatient)
        world.drain()
        assert world.job(job).error["type"] == "RuntimeError"


def test_failing_test_leaves_nothing_behind(shop: Shop) -> None:
    def fail() -> None:
        with virtual(shop.app, START) as world:
            world.enqueue(shop.work)
            world.advance(seconds=1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with virtual(shop.app, START) as world:
        assert world.jobs() == []
    gc.collect()  # Pending tasks or unclosed resources would raise warnings now, and fail the test.


@pytest.mark.parametrize("gives_up", [True, False], ids=["gentle", "stubborn"])
def test_busy_loop_raises_livelock(shop: Shop, gives_up: bool) -> None:
    @shop.app.task
    async def busy() -> None:
        while True:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                shop.diary.append("stop")
                if gives_up:
                    raise

    def play() -> None:
        with virtual(shop.app, START) as world:
            world.enqueue(busy)
            world.advance(seconds=1)

    with pytest.raises(Livelock, match="time stands still") as told:
        play()
    assert told.value.__context__ is None
    assert "stop" in shop.diary
    gc.collect()  # As above: leftovers would raise warnings.


def test_task_that_ignores_cancellation_does_not_block_the_exit(shop: Shop) -> None:
    @shop.app.task
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                shop.diary.append("no")

    with virtual(shop.app, START) as world:
        world.enqueue(stubborn)
        world.advance(seconds=1)
    gc.collect()
    assert "no" in shop.diary
