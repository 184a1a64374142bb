"""The supervisor on the real store, in virtual time: whom it no longer trusts, and what must not get lost."""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from headway.core.errors import LeaseLost, StoreError, StoreUnavailable
from headway.core.events import AttemptsLost
from headway.core.instants import SECOND
from headway.core.job_logs import LOG_BYTES_MAX, LOG_LINE_OVERHEAD
from headway.core.jobs import Claimed, NewJob, Report
from headway.core.lifecycle import AttemptOutcome, Cancelled, Raised, Released, Succeeded
from headway.core.nodes import Node
from headway.worker.child_pool_port import SupervisorPort
from headway.worker.ipc import StoreRequest, TaskInfo
from headway.worker.reporter import LINES_MAX, REPORT_EVERY_S
from headway.worker.supervisor import Supervisor
from tests.simulation.stage import Seat, Stage
from tests.simulation.virtual_loop import virtual

LEASE_S = 10.0


class Bystanders:
    """A child pool that runs nothing and writes down what it is told."""

    def __init__(self) -> None:
        info = [TaskInfo(name="work", isolation="process"), TaskInfo(name="wait", isolation="loop")]
        self.tasks: Mapping[str, TaskInfo] = {one.name: one for one in info}
        self.kinds = {"process": frozenset({"work"}), "loop": frozenset({"wait"})}
        self.rooms = {"process": 10, "loop": 10}
        self.started: list[Claimed] = []
        self.kept: dict[str, dict[str, str]] = {}
        self.stopped: list[tuple[str, AttemptOutcome]] = []
        self.abandoned: list[str] = []

    def report_to(self, supervisor_port: SupervisorPort) -> None:
        """Nothing is ever told."""

    def room(self, kind: str) -> int:
        return self.rooms[kind]

    def slots(self, kind: str | None = None) -> int:
        return {None: 20, "process": 2, "loop": 18}[kind]

    def busy(self, kind: str | None = None) -> int:
        return 0 if kind == "loop" else 2

    def count(self) -> int:
        return 2

    def start(self, jobs: Sequence[Claimed], kept: Mapping[str, dict[str, str]] | None = None) -> None:
        self.started += jobs
        self.kept.update(kept or {})

    def stop(self, job_id: str, attempt: int, outcome: AttemptOutcome) -> None:
        self.stopped.append((job_id, outcome))

    def abandon(self, job_id: str, attempt: int) -> None:
        self.abandoned.append(job_id)

    def release_waiting(self, reason: str) -> None:
        """Nothing waits here."""

    def release_all(self, reason: str) -> None:
        """Nothing runs here."""

    def watch(self) -> None:
        """Nothing to see."""


class Post:
    """A supervisor at its seat."""

    def __init__(self, stage: Stage, **options: object) -> None:
        self.stage = stage
        self.seat: Seat = stage.seat("node_w")
        self.child_pool = Bystanders()
        self.supervisor = Supervisor(
            self.seat.store.work,
            self.child_pool,
            clock=self.seat.clock,
            lease=round(LEASE_S * SECOND),
            poll=SECOND,
            **options,  # type: ignore[arg-type]
        )

    async def take(self, count: int = 1, **options: object) -> list[Claimed]:
        """Enqueue jobs and claim them."""
        jobs = [
            NewJob(**{"id": self.seat.clock.new_id("job"), "task": "work", **options})  # type: ignore[arg-type]
            for _ in range(count)
        ]
        await self.seat.store.queue.enqueue(jobs)
        self.supervisor.hear("anything")
        before = len(self.child_pool.started)
        await self.supervisor.claim()
        return self.child_pool.started[before:]

    def job(self, job: Claimed, *columns: str) -> tuple[object, ...]:
        [row] = self.stage.sql(f"select {', '.join(columns)} from headway_jobs where id = ?", job.id)
        return tuple(row)

    def log(self, job: Claimed) -> list[str]:
        return [row[0] for row in self.stage.sql("select line from headway_log where job_id = ? order by seq", job.id)]


def _said(job: Claimed, *lines: str, progress: int | None = None) -> Report:
    texts = tuple((None, "log", line) for line in lines)
    return Report(job_id=job.id, attempt=job.attempt, progress=progress, lines=texts)


@virtual
async def test_the_slots_of_each_kind_are_told_apart() -> None:
    async with Stage() as stage:
        post = Post(stage)
        post.child_pool.rooms["process"] = 2
        await post.take(2)
        post.child_pool.rooms["process"] = 0
        assert post.supervisor.state()["places"] == {
            "process": {"slots": 2, "free": 0, "tasks": ["work"]},
            "loop": {"slots": 18, "free": 10, "tasks": ["wait"]},
        }


@virtual
async def test_a_job_that_was_heard_of_does_not_wait_for_a_look_around() -> None:
    async with Stage() as stage:
        post = Post(stage)
        await post.take()
        await asyncio.sleep(10)  # It is time to look for other queues, and at jobs that nobody knew.
        await post.seat.store.queue.enqueue([NewJob(id="job_new", task="work")])
        await post.seat.store.queue.enqueue([NewJob(id="job_elsewhere", task="work", queue="other")])
        post.seat.driver.asking_s = 1.0
        post.supervisor.hear("ready default")
        claiming = asyncio.ensure_future(post.supervisor.claim())
        await asyncio.sleep(1.5)
        assert [job.job_id for job in post.child_pool.started[1:]] == ["job_new"], "one question was enough"
        await claiming
        assert [job.job_id for job in post.child_pool.started[1:]] == ["job_new", "job_elsewhere"], "and then it looked"


@virtual
async def test_an_end_does_not_overtake_what_was_said_before() -> None:
    async with Stage() as stage:
        post = Post(stage)
        [job] = await post.take()
        post.supervisor.reported([_said(job, "one", progress=10)])
        await asyncio.sleep(1)
        post.seat.driver.asking_s = 0.3  # The report is on its way,
        reporting = asyncio.ensure_future(post.supervisor.report())
        await asyncio.sleep(0.1)
        post.seat.driver.asking_s = 0.0  # and what comes after it is faster.
        post.supervisor.reported([_said(job, "two", progress=20)])
        post.supervisor.ended(job, Raised('{"type":"X"}'))
        await post.supervisor.settle()
        await reporting
        assert post.log(job) == ["one", "two"]
        assert post.job(job, "status", "progress") == ("FAILED", 20)
        assert post.supervisor.running() == 0


@virtual
async def test_a_report_that_could_not_be_written_is_written_later() -> None:
    async with Stage() as stage:
        post = Post(stage)
        [job] = await post.take()
        post.supervisor.reported([_said(job, "one", progress=10)])
        post.seat.driver.is_down = True
        await asyncio.sleep(1)
        with pytest.raises(StoreUnavailable):
            await post.supervisor.report()
        post.supervisor.reported([_said(job, "two")])
        post.supervisor.ended(job, Succeeded())
        with pytest.raises(StoreUnavailable):
            await post.supervisor.settle()
        post.seat.driver.is_down = False
        await post.supervisor.settle()
        assert post.log(job) == ["one", "two"]
        assert post.job(job, "status", "progress") == ("COMPLETED", 100)


class Picky:
    """A store that takes no two reports at once, and goes away after the first."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self.taken = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    async def report(self, reports: Sequence[Report]) -> frozenset[str]:
        if len(reports) > 1:
            raise StoreError("one of them")
        self.taken += 1
        if self.taken == 2:
            raise StoreUnavailable("gone")
        return await self._work.report(reports)  # type: ignore[no-any-return]


@virtual
async def test_reports_that_are_written_one_by_one_are_all_written() -> None:
    async with Stage() as stage:
        post = Post(stage)
        jobs = await post.take(3)
        post.supervisor.reporter._work = Picky(post.supervisor.reporter._work)
        post.supervisor.reported([_said(job, job.id) for job in jobs])
        await asyncio.sleep(1)
        with pytest.raises(StoreUnavailable):
            await post.supervisor.report()
        assert len([job for job in jobs if post.log(job)]) == 1
        await asyncio.sleep(1)
        await post.supervisor.report()
        assert [post.log(job) for job in jobs] == [[job.id] for job in jobs], "each of them, and once"


@virtual
async def test_progress_is_written_twice_a_second_and_the_latest_wins() -> None:
    async with Stage() as stage:
        post = Post(stage)
        [job] = await post.take()
        written = set()
        for percent in range(80):
            post.supervisor.reported([_said(job, progress=percent)])
            await post.supervisor.report()
            written.add(post.job(job, "version", "progress"))
            await asyncio.sleep(REPORT_EVERY_S / 10)
        assert 7 <= len(written) <= 10
        post.supervisor.ended(job, Released("enough"))
        await post.supervisor.settle()
        assert post.job(job, "progress") == (79,)


@virtual
async def test_a_log_has_an_end_and_says_so() -> None:
    async with Stage() as stage:
        post = Post(stage)
        [job] = await post.take(max_attempts=3)
        for _ in range(12):
            post.supervisor.reported([_said(job, *["x" * (1_000 - LOG_LINE_OVERHEAD)] * 100)])
            await asyncio.sleep(1)
            await post.supervisor.keep()
            await post.supervisor.report()
        log = post.log(job)
        assert sum(len(line) + LOG_LINE_OVERHEAD for line in log) <= LOG_BYTES_MAX + 100
        assert len(log) == LOG_BYTES_MAX // 1000 + 1
        assert "full" in log[-1]
        post.supervisor.ended(job, Released("enough"))
        await post.supervisor.settle()
        [again] = await post.take(0)
        assert again.log_bytes == sum(len(line) + LOG_LINE_OVERHEAD for line in log), "the store counts as we do"


@virtual
async def test_many_short_lines_are_written_in_parts_and_in_order() -> None:
    async with Stage() as stage:
        post = Post(stage)
        [flooding, other] = await post.take(2)
        writes: list[int] = []
        work = post.supervisor.reporter._work
        write = work.report

        async def report(reports: Sequence[Report]) -> frozenset[str]:
            writes.append(sum(len(report.lines) for report in reports))
            if len(writes) == 3:
                raise StoreUnavailable("at this moment")
            return await write(reports)

        work.report = report  # type: ignore[method-assign]
        said = [str(number % 10) for number in range(LOG_BYTES_MAX)]
        post.supervisor.reported([_said(flooding, *said[:10_000], progress=5), _said(other, "a word")])
        await asyncio.sleep(REPORT_EVERY_S)
        await post.supervisor.report()
        assert post.log(flooding) == said[:LINES_MAX]
        assert post.job(flooding, "progress") == (5,)
        await asyncio.sleep(REPORT_EVERY_S)
        await post.supervisor.report()
        assert post.log(other) == ["a word"], "it is not always the turn of the same"
        await asyncio.sleep(REPORT_EVERY_S)
        with pytest.raises(StoreUnavailable):
            await post.supervisor.report()
        post.supervisor.reported([_said(flooding, *said[10_000:], progress=7)])
        post.supervisor.ended(flooding, Succeeded(None))
        await post.supervisor.settle()
        *lines, note = post.log(flooding)
        assert lines == said[: len(lines)]
        assert len(lines) == LOG_BYTES_MAX // (1 + LOG_LINE_OVERHEAD)
        assert "full" in note
        assert max(writes) <= LINES_MAX


@virtual
async def test_a_lease_that_cannot_be_extended_is_not_trusted() -> None:
    async with Stage() as stage:
        post = Post(stage)
        lost, known = await post.take(2)
        post.supervisor.ended(known, Succeeded("1"))
        post.seat.driver.is_down = True
        await asyncio.sleep(LEASE_S - post.supervisor.margin_s - 0.1)
        await post.supervisor.watch()
        assert post.child_pool.abandoned == []
        await asyncio.sleep(0.2)
        await post.supervisor.watch()
        assert post.child_pool.abandoned == [lost.id], "it must not go on until somebody else can have it"
        assert [event.job_ids for event in stage.said(AttemptsLost)] == [(lost.id,)]
        post.supervisor.reported([_said(lost, "late", progress=50)])
        post.supervisor.ended(lost, Succeeded("2"))
        for question in ("step", "enqueue"):
            with pytest.raises(LeaseLost):
                await post.supervisor.answer(StoreRequest(1, lost.id, lost.attempt, question, "[]"))
        post.seat.driver.is_down = False
        await post.supervisor.settle()
        await post.supervisor.report()
        assert post.job(known, "status", "result") == ("COMPLETED", "1"), "what is known is written when it can be"
        assert post.job(lost, "status", "progress", "result") == ("RUNNING", 0, None)
        assert post.log(lost) == []


class Unread(deque[Any]):
    """A line that is taken from, but not looked through: it may be long, and is looked after often."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("looked through")


@virtual
async def test_what_has_ended_is_not_looked_through_while_the_store_is_away() -> None:
    async with Stage() as stage:
        post = Post(stage)
        jobs = await post.take(3)
        post.supervisor.settler._ended = Unread()
        for job in jobs[:2]:
            post.supervisor.ended(job, Succeeded())
        post.seat.driver.is_down = True
        with pytest.raises(StoreUnavailable):
            await post.supervisor.settle()
        await asyncio.sleep(LEASE_S)
        await post.supervisor.watch()
        assert post.child_pool.abandoned == [jobs[2].id]
        post.seat.driver.is_down = False
        await post.supervisor.settle()
        assert [post.job(job, "status") for job in jobs] == [("COMPLETED",), ("COMPLETED",), ("RUNNING",)]


@virtual
async def test_an_attempt_that_was_given_to_others_is_abandoned_and_can_write_nothing() -> None:
    async with Stage() as stage:
        post = Post(stage)
        [job] = await post.take(max_attempts=3)
        other = stage.seat("node_other").store
        await asyncio.sleep(LEASE_S + 1)  # We stood still.
        assert await other.housekeeping.expire(10) == [job.id]
        await other.housekeeping.promote(10)
        [again] = await other.work.claim("default", node="node_other", lease=60 * SECOND, limit=1)
        post.supervisor.ended(job, Succeeded('"stale"'))
        await post.supervisor.settle()
        assert post.job(job, "status", "attempt", "result") == ("RUNNING", 2, None)
        refused = stage.sql("select data from headway_events where event = 'settle_refused'")
        assert [msgspec.json.decode(row[0]) for row in refused] == [{"attempt": 1, "outcome": "completed"}]
        assert again.attempt == 2
        assert post.supervisor.running() == 0


@virtual
async def test_cancels_and_the_steps_of_earlier_attempts_reach_the_child_pool() -> None:
    async with Stage() as stage:
        post = Post(stage)
        [job] = await post.take(max_attempts=3)
        await post.supervisor.answer(StoreRequest(1, job.id, job.attempt, "step", '["first","41"]'))
        post.supervisor.ended(job, Released("moved"))
        await post.supervisor.settle()
        [again] = await post.take(0)
        assert (again.attempt, post.child_pool.kept) == (2, {job.id: {"first": "41"}})
        await post.seat.store.queue.cancel(job.id, author="me", reason="enough")
        await post.supervisor.keep()
        assert post.child_pool.stopped == [(job.id, Cancelled("cancelled by me: enough"))]


@virtual
async def test_full_kinds_and_tasks_of_others_are_left_alone() -> None:
    async with Stage() as stage:
        post = Post(stage)
        peer = Node(id="node_x", name="x", roles=("worker",), state={"worker": {"tasks": ["theirs", "work"]}})
        post.supervisor.meet([peer])
        post.child_pool.rooms["process"] = 0
        await post.take(3, task="work")
        await post.take(1, task="theirs")
        await asyncio.sleep(1)
        waiting = await post.take(2, task="wait")
        assert [job.task for job in waiting] == ["wait", "wait"]
        assert {job.task for job in post.child_pool.started} == {"wait"}
        statuses = stage.sql("select task, status, count(*) from headway_jobs group by 1, 2 order by 1")
        assert [tuple(row) for row in statuses] == [
            ("theirs", "PENDING", 1),
            ("wait", "RUNNING", 2),
            ("work", "PENDING", 3),
        ]


@virtual
async def test_whoever_drains_takes_nothing_more() -> None:
    async with Stage() as stage:
        post = Post(stage)
        [job] = await post.take()
        post.supervisor.drain("the worker ends")
        assert await post.take(2) == []
        post.supervisor.ended(job, Succeeded())
        assert post.supervisor.running() == 1
        await post.supervisor.settle()
        async with asyncio.timeout(1):
            await post.supervisor.idle()


@virtual
async def test_who_has_nothing_to_do_rests() -> None:
    """Also after a job, of which no moment may be left over in which a lease has to be extended."""
    async with Stage() as stage:
        post = Post(stage)
        [job] = await post.take()
        await post.supervisor.keep()
        post.supervisor.ended(job, Succeeded())
        await post.supervisor.settle()
        await asyncio.sleep(LEASE_S)
        supervisor = post.supervisor
        for tick in (supervisor.claim, supervisor.keep, supervisor.settle, supervisor.report, supervisor.watch):
            assert await tick() >= 1.0


@virtual
async def test_what_is_too_large_to_be_handed_over_is_parked_and_the_others_run() -> None:
    async with Stage() as stage:
        post = Post(stage)
        jobs = await post.take(5)
        for job in jobs:
            post.supervisor.ended(job, Released("once more"))
        await post.supervisor.settle()
        large = "insert into headway_steps select ?, ?, 1, 1, '\"' || replace(hex(zeroblob(?)), '0', 'x') || '\"'"
        for job, mebibytes in zip(jobs, (70, 40, 40), strict=False):
            stage.sql(large, job.id, "fetch", mebibytes << 19)
        stage.sql("update headway_jobs set metadata = hex(zeroblob(?)) where id = ?", 35 << 20, jobs[3].id)
        started = {job.id for job in await post.take(0)}
        await post.supervisor.settle()
        assert started == {job.id for job in (jobs[1], jobs[2], jobs[4])}
        assert [post.job(job, "status", "parked") for job in jobs[:4]] == [
            ("BLOCKED", "too large"),
            ("RUNNING", None),
            ("RUNNING", None),
            ("BLOCKED", "unreadable"),
        ]
        assert "73,400,322 bytes" in str(post.job(jobs[0], "reason"))
        assert "metadata" in str(post.job(jobs[3], "reason"))
        assert sorted(post.child_pool.kept) == sorted(job.id for job in jobs[1:3])


@virtual
async def test_a_node_that_tells_nonsense_ends_nobody() -> None:
    async with Stage() as stage:
        post = Post(stage)
        for number, state in enumerate(
            (
                "nonsense",
                "[]",
                '{"worker": 7, "tally": 3}',
                '{"worker": {"tasks": 5, "queues": {}}, "tally": {"a": "b"}}',
            )
        ):
            stage.sql(
                "insert into headway_nodes (id, name, roles, version, started_at, beat_at, state)"
                " values (?, '', 'worker', '', 1, ?, ?)", f"node_{number}", stage.now(), state,
            )  # fmt: skip
        nodes = post.seat.store.nodes
        post.supervisor.meet(await nodes.alive(60 * SECOND))
        assert len(await post.take()) == 1
        for number in range(4):
            await nodes.leave(f"node_{number}")
