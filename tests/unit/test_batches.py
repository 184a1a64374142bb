"""Batches in an app and in running tasks, in virtual time."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway import Context, Headway, Retry, Status
from headway.core.errors import BatchClosed, InvalidTask, TaskNotFound
from headway.core.groups import (
    Delta,
    GroupCounts,
    JobGroup,
    OpenGroup,
    callback_args,
    closed,
    folded,
    is_over,
    next_look,
    outcome_of,
)
from headway.core.instants import HOUR, SECOND
from headway.testing import World, virtual

CALLS, ROWS = 20, 5


class Platform:
    """An app whose tasks use batches, and a record of what ran."""

    def __init__(self, folder: Path) -> None:
        self.app = app = Headway(f"sqlite:///{folder}/never.db", name="platform")
        self.mails: list[dict[str, Any]] = []
        self.alarms: list[dict[str, Any]] = []
        self.broken: set[int] = set()
        self.calls = 0

        @app.task
        def mail(batch: dict[str, Any]) -> None:
            self.mails.append(batch)

        @app.task
        def alarm(batch: dict[str, Any]) -> None:
            self.alarms.append(batch)

        @app.task
        async def report(n: int) -> int:
            await asyncio.sleep(1.0)
            if n in self.broken:
                raise ValueError(f"no data for {n}")
            return n

        @app.task(retry=Retry(max_attempts=3, backoff="1s"))
        async def reports(ctx: Context, name: str) -> int:
            async with ctx.batch(name, on_done=mail, on_failure="alarm") as batch:
                for call in range(CALLS):
                    self.calls += 1
                    rows = ({"n": call * ROWS + n} for n in range(ROWS))
                    await batch.add_many(report, rows, key=f"{name}:{{n}}")
                    await asyncio.sleep(10.0)
            return batch.total

        @app.task
        async def tree(ctx: Context, depth: int) -> None:
            batch = await ctx.batch("tree")
            if depth:
                await batch.add_many(tree, [{"depth": depth - 1}] * 2)

        self.mail, self.alarm, self.report, self.reports, self.tree = mail, alarm, report, reports, tree


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    return Platform(tmp_path)


@pytest.fixture
def world(platform: Platform) -> Iterator[World]:
    with virtual(platform.app, "2027-03-27T00:00Z", seed=7) as world:
        yield world


def test_block_adds_and_closes_and_the_callback_runs_once(platform: Platform, world: World) -> None:
    with platform.app.batch_sync("reports", on_done=platform.mail, on_failure=platform.alarm) as batch:
        batch.add_many_sync(platform.report, [{"n": n} for n in range(8)], tenant="t-{n}")
        job = batch.add_sync(platform.report, {"n": 8})
    assert job.job.group_id == batch.id
    assert (batch.total, batch.counts["waiting"], batch.progress, batch.outcome) == (9, 9, 0, None)
    assert batch.closed_at is not None
    world.drain()
    world.advance(minutes=2)
    batch.refresh_sync()
    assert (batch.progress, batch.outcome, batch.counts["completed"]) == (100, "completed", 9)
    assert batch.finished_at is not None
    assert [one["counts"] for one in platform.mails] == [{"completed": 9, "failed": 0, "timed_out": 0, "cancelled": 0}]
    assert platform.alarms == []
    assert {one.job.tenant for one in batch.jobs_sync()} == {"default", *(f"t-{n}" for n in range(8))}
    world.advance(days=2)
    assert len(platform.mails) == 1
    assert platform.app.batch_sync("reports").id == batch.id
    assert [one.name for one in platform.app.batches_sync(finished=True)] == ["reports"]
    world.assert_promises()


def test_block_that_raises_leaves_the_batch_open(platform: Platform, world: World) -> None:
    def fail() -> None:
        with platform.app.batch_sync("reports", on_done=platform.mail) as batch:
            batch.add_sync(platform.report, {"n": 1})
            raise RuntimeError("the adding program fails")

    with pytest.raises(RuntimeError):
        fail()
    batch = platform.app.batch_sync("reports")
    world.drain()
    world.advance(minutes=30)
    assert batch.refresh_sync().closed_at is None
    assert platform.mails == []
    world.advance(minutes=45)  # Forgotten: an hour after the last addition it closes.
    assert batch.refresh_sync().outcome == "completed"
    assert len(platform.mails) == 1


def test_adding_worker_is_killed_after_the_seventh_of_twenty_calls(platform: Platform, world: World) -> None:
    job = platform.reports.enqueue_sync("2027-01-01")
    world.advance(seconds=65)
    assert platform.calls == 7
    world.kill_worker(job)
    world.drain()
    world.advance(minutes=2)
    assert world.job(job).attempts == 2
    assert world.job(job).result == CALLS * ROWS
    batch = platform.app.batch_sync("2027-01-01")
    assert (batch.total, batch.counts["completed"], batch.outcome) == (CALLS * ROWS, CALLS * ROWS, "completed")
    assert sorted(found.args["n"] for found in world.jobs(task="report")) == list(range(CALLS * ROWS))
    assert len(platform.mails) == 1
    world.assert_promises()


def test_jobs_add_to_their_own_batch_after_it_was_closed(platform: Platform, world: World) -> None:
    with platform.app.batch_sync("tree", on_done=platform.mail) as batch:
        batch.add_sync(platform.tree, {"depth": 5}, tenant="acme")  # Finds the batch, although it is of another tenant.
    world.drain()
    world.advance(minutes=2)
    assert batch.refresh_sync().total == 2**6 - 1
    assert [one["total"] for one in platform.mails] == [2**6 - 1]
    with pytest.raises(BatchClosed, match="has finished, so it takes no more jobs"):
        batch.add_sync(platform.tree, {"depth": 1})


def test_failed_jobs_are_rerun_in_a_new_batch(platform: Platform, world: World) -> None:
    platform.broken = {3, 5}
    with platform.app.batch_sync("reports", on_done=platform.mail, on_failure=platform.alarm) as batch:
        batch.add_many_sync(platform.report, [{"n": n} for n in range(8)])
    world.drain()
    world.advance(minutes=2)
    assert batch.refresh_sync().outcome == "failed"
    assert len(platform.mails) == len(platform.alarms) == 1
    assert {one.args["n"] for one in batch.jobs_sync(status="FAILED")} == {3, 5}
    platform.broken = set()
    again = batch.retry_sync()
    assert (again.id != batch.id, again.total, again.group.rerun_of) == (True, 2, batch.id)
    world.drain()
    world.advance(minutes=2)
    assert again.refresh_sync().outcome == "completed"
    assert [one["rerun_of"] for one in platform.mails] == [None, batch.id]
    assert len(platform.alarms) == 1
    assert batch.refresh_sync().counts["failed"] == 2


def test_cancel_ends_waiting_and_running_jobs(platform: Platform, world: World) -> None:
    batch = platform.app.batch_sync("reports", on_done=platform.mail)
    batch.add_many_sync(platform.report, [{"n": n} for n in range(40)], delay="1h")
    batch.add_sync(platform.report, {"n": 41})
    world.advance(seconds=0.5)
    assert batch.refresh_sync().counts["running"] == 1
    batch.cancel_sync("wrong day")
    world.advance(minutes=2)
    assert batch.refresh_sync().outcome == "cancelled"
    assert batch.counts["cancelled"] == 41
    assert batch.group.reason == "cancelled by app:platform: wrong day"
    assert [one["outcome"] for one in platform.mails] == ["cancelled"]


def test_wrong_batches_are_refused_before_anything_is_stored(platform: Platform, world: World) -> None:
    app = platform.app
    for name in ("", "x" * 600, "a\nb", "batch_01", None):
        with pytest.raises(InvalidTask, match="the name of a batch"):
            app.batch_sync(name)  # type: ignore[arg-type]
    with pytest.raises(TaskNotFound, match="on_done: no task is named 'nobody'"):
        app.batch_sync("reports", on_done="nobody")
    with pytest.raises(InvalidTask, match=r"on_failure: task 'report'.*it is called with one argument, batch"):
        app.batch_sync("reports", on_failure=platform.report)
    with pytest.raises(InvalidTask, match="a callback has a key of its own"):
        app.batch_sync("reports", on_done=platform.mail.options(key="mine"))
    with pytest.raises(InvalidTask, match="a batch has no option 'on_end'"):
        app.batch_sync("reports", on_end=platform.mail)  # type: ignore[call-arg]
    with pytest.raises(InvalidTask, match="open_for"):
        app.batch_sync("reports", open_for="0s")
    batch = app.batch_sync("reports")
    with pytest.raises(InvalidTask, match="cannot have debounce, throttle or unique"):
        batch.add_sync(platform.report, {"n": 1}, unique="1m", key="once")
    assert world.jobs() == []


def test_wait_returns_when_the_batch_has_finished(platform: Platform, world: World) -> None:
    with platform.app.batch_sync("reports") as batch:
        batch.add_sync(platform.report, {"n": 1})
    world.drain()
    world.advance(minutes=2)
    found = platform.app.blocking(batch.wait("1m"))
    assert found.outcome == "completed"
    assert world.jobs()[0].status is Status.COMPLETED


# --- what follows from counts


def _open_group(**changes: Any) -> OpenGroup:
    plain: dict[str, Any] = {
        "counts": GroupCounts(),
        "now": 1_000 * SECOND,
        "open_for": HOUR,
        "open_until": 2 * HOUR,
        "began_at": None,
        "closed_at": None,
        "is_cancelled": False,
        "is_finished": False,
        "has_opener": False,
        "is_rerun": False,
        "reason": "",
    }
    return OpenGroup(**{**plain, **changes})


def test_deltas_add_up_in_any_order() -> None:
    deltas = [
        Delta(GroupCounts(total=3), added_at=5 * HOUR),
        Delta(GroupCounts(completed=2), began_at=7),
        Delta(GroupCounts(failed=1), began_at=5),
    ]
    for order in (deltas, deltas[::-1]):
        found = folded(_open_group(counts=GroupCounts(total=1)), order)
        assert found.counts == GroupCounts(total=4, completed=2, failed=1)
        assert (found.open_until, found.began_at) == (6 * HOUR, 5)


def test_group_closes_by_itself_only_when_its_time_is_over() -> None:
    assert closed(_open_group(), opener_completed=False).closed_at is None
    late = _open_group(now=2 * HOUR)
    assert closed(late, opener_completed=False).closed_at == 2 * HOUR
    assert closed(_open_group(), opener_completed=True).closed_at is not None
    rerun = _open_group(now=9 * HOUR, is_rerun=True)  # It closes when all reruns are in it.
    assert closed(rerun, opener_completed=False).closed_at is None


def test_group_is_over_only_when_it_is_closed_and_all_jobs_have_ended() -> None:
    ended = GroupCounts(total=2, completed=1, cancelled=1)
    assert not is_over(_open_group(counts=ended))
    assert is_over(_open_group(counts=ended, closed_at=1))
    assert not is_over(_open_group(counts=GroupCounts(total=3, completed=2), closed_at=1))
    assert is_over(_open_group(closed_at=1))


def test_outcomes() -> None:
    assert outcome_of(GroupCounts(total=1, completed=1), is_cancelled=False) == "completed"
    assert outcome_of(GroupCounts(), is_cancelled=False) == "completed"
    assert outcome_of(GroupCounts(total=2, completed=1, timed_out=1), is_cancelled=False) == "failed"
    assert outcome_of(GroupCounts(total=3, completed=2, failed=1, retried=1), is_cancelled=False) == "completed"
    assert outcome_of(GroupCounts(total=2, completed=1, cancelled=1), is_cancelled=False) == "cancelled"
    assert outcome_of(GroupCounts(total=1, failed=1), is_cancelled=True) == "cancelled"


def test_every_unfinished_group_is_looked_at_again() -> None:
    assert next_look(_open_group()) == 2 * HOUR
    for changes in ({"has_opener": True}, {"closed_at": 1}, {"is_cancelled": True}, {"is_rerun": True}):
        at = next_look(_open_group(**changes))
        assert at is not None
        assert 1_000 * SECOND < at <= 1_060 * SECOND
    assert next_look(_open_group(is_finished=True)) is None


def test_rate_of_a_batch_that_has_not_begun() -> None:
    group = JobGroup(
        id="batch_x",
        kind="batch",
        tenant="default",
        name="x",
        counts=GroupCounts(total=5),
        running=2,
        read_at=HOUR,
        created_at=0,
        open_until=HOUR,
        began_at=None,
        closed_at=None,
        cancel_requested_at=None,
        finished_at=None,
        outcome=None,
        reason="",
        on_done=None,
        on_failure=None,
        rerun_of=None,
    )
    assert (group.rate, group.eta_seconds, group.progress, group.waiting) == (None, None, 0, 3)
    assert callback_args(group)["batch"]["total"] == 5
