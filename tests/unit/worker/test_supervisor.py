"""The supervisor on the real store, in virtual time: which leases it still trusts, and what must not get lost."""

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
    """A child pool that runs nothing and records its calls."""

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
        """Ignore the supervisor: nothing is ever reported."""

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

    def is_stopping(self, job_id: str, attempt: int) -> bool:
        return False

    def release_waiting(self, reason: str) -> None:
        """Do nothing: no job waits here."""

    def release_all(self, reason: str) -> None:
        """Do nothing: no job runs here."""

    def watch(self) -> None:
        """Do nothing."""


class Post:
    """A supervisor on a seat."""

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
        await self.supervisor.claimer.tick()
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
async def test_slots_are_counted_by_kind() -> None:
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
async def test_announced_job_is_claimed_before_the_periodic_look() -> None:
    async with Stage() as stage:
        post = Post(stage)
        await post.take()
        await asyncio.sleep(10)  # It is time to look for other queues and unannounced jobs.
        await post.seat.store.queue.enqueue([NewJob(id="job_new", task="work")])
        await post.seat.store.queue.enqueue([NewJob(id="job_elsewhere", task="work", queue="other")])
        post.seat.driver.asking_s = 1.0
        post.supervisor.hear("ready default")
        claiming = asyncio.ensure_future(post.supervisor.claimer.tick())
        await asyncio.sleep(1.5)
        assert [job.job_id for job in post.child_pool.started[1:]] == ["job_new"], "one query was enough"
        await claiming
        assert [job.job_id for job in post.child_pool.started[1:]] == ["job_new", "job_elsewhere"], (
            "the periodic look comes afterwards"
        )


@virtual
async def test_end_does_not_overtake_earlier_reports() -> None:
    async with Stage() as stage:
        post = Post(stage)
        [job] = await post.take()
        post.supervisor.reported([_said(job, "one", progress=10)])
        await asyncio.sleep(1)
        post.seat.driver.asking_s = 0.3  # The report is in flight,
        reporting = asyncio.ensure_future(post.supervisor.reporter.tick())
        await asyncio.sleep(0.1)
        post.seat.driver.asking_s = 0.0  # and the statement after it is faster.
        post.supervisor.reported([_said(job, "two", progress=20)])
        post.supervisor.ended(job, Raised('{"type":"X"}'))
        await post.supervisor.settle()
        await reporting
        assert post.log(job) == ["one", "two"]
        assert post.job(job, "status", "progress") == ("FAILED", 20)
        assert post.supervisor.running() == 0


@virtual
async def test_failed_report_is_written_later() -> None:
    async with Stage() as stage:
        post = Post(stage)
        [job] = await post.take()
        post.supervisor.reported([_said(job, "one", progress=10)])
        post.seat.driver.is_down = True
        await asyncio.sleep(1)
        with pytest.raises(StoreUnavailable):
            await post.supervisor.reporter.tick()
        post.supervisor.reported([_said(job, "two")])
        post.supervisor.ended(job, Succeeded())
        with pytest.raises(StoreUnavailable):
            await post.supervisor.settle()
        post.seat.driver.is_down = False
        await post.supervisor.settle()
        assert post.log(job) == ["one", "two"]
        assert post.job(job, "status", "progress") == ("COMPLETED", 100)


class Picky:
    """A store that rejects two reports in one call, and is unavailable after the first."""

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
async def test_reports_written_one_by_one_are_each_written_once() -> None:
    async with Stage() as stage:
        post = Post(stage)
        jobs = await post.take(3)
        post.supervisor.reporter._work = Picky(post.supervisor.reporter._work)
        post.supervisor.reported([_said(job, job.id) for job in jobs])
        await asyncio.sleep(1)
        with pytest.raises(StoreUnavailable):
            await post.supervisor.reporter.tick()
        assert len([job for job in jobs if post.log(job)]) == 1
        await asyncio.sleep(1)
        await post.supervisor.reporter.tick()
        assert [post.log(job) for job in jobs] == [[job.id] for job in jobs], "each of them, and once"


@virtual
async def test_progress_is_written_twice_a_second_and_the_latest_wins() -> None:
    async with Stage() as stage:
        post = Post(stage)
        [job] = await post.take()
        written = set()
        for percent in range(80):
            post.supervisor.reported([_said(job, progress=percent)])
            await post.supervisor.reporter.tick()
            written.add(post.job(job, "version", "progress"))
            await asyncio.sleep(REPORT_EVERY_S / 10)
        assert 7 <= len(written) <= 10
        post.supervisor.ended(job, Released("enough"))
        await post.supervisor.settle()
        assert post.job(job, "progress") == (79,)


@virtual
async def test_log_is_truncated_with_a_notice() -> None:
    async with Stage() as stage:
        post = Post(stage)
        [job] = await post.take(max_attempts=3)
        for _ in range(12):
            post.supervisor.reported([_said(job, *["x" * (1_000 - LOG_LINE_OVERHEAD)] * 100)])
            await asyncio.sleep(1)
            await post.supervisor.lease_extender.tick()
            await post.supervisor.reporter.tick()
        log = post.log(job)
        assert sum(len(line) + LOG_LINE_OVERHEAD for line in log) <= LOG_BYTES_MAX + 100
        assert len(log) == LOG_BYTES_MAX // 1000 + 1
        assert "full" in log[-1]
        post.supervisor.ended(job, Released("enough"))
        await post.supervisor.settle()
        [again] = await post.take(0)
        assert again.log_bytes == sum(len(line) + LOG_LINE_OVERHEAD for line in log), "the store has the same count"


@virtual
async def test_many_short_lines_are_written_in_order_in_batches() -> None:
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
        await post.supervisor.reporter.tick()
        assert post.log(flooding) == said[:LINES_MAX]
        assert post.job(flooding, "progress") == (5,)
        await asyncio.sleep(REPORT_EVERY_S)
        await post.supervisor.reporter.tick()
        assert post.log(other) == ["a word"], "no job is always first"
        await asyncio.sleep(REPORT_EVERY_S)
        with pytest.raises(StoreUnavailable):
            await post.supervisor.reporter.tick()
        post.supervisor.reported([_said(flooding, *said[10_000:], progress=7)])
        post.supervisor.ended(flooding, Succeeded(None))
        await post.supervisor.settle()
        *lines, note = post.log(flooding)
        assert lines == said[: len(lines)]
        assert len(lines) == LOG_BYTES_MAX // (1 + LOG_LINE_OVERHEAD)
        assert "full" in note
        assert max(writes) <= LINES_MAX


@virtual
async def test_lease_that_cannot_be_extended_is_not_trusted() -> None:
    async with Stage() as stage:
        post = Post(stage)
        lost, known = await post.take(2)
        post.supervisor.ended(known, Succeeded("1"))
        post.seat.driver.is_down = True
        await asyncio.sleep(LEASE_S - post.supervisor.margin_s - 0.1)
        await post.supervisor.lease_watchdog.tick()
        assert post.child_pool.abandoned == []
        await asyncio.sleep(0.2)
        await post.supervisor.lease_watchdog.tick()
        assert post.child_pool.abandoned == [lost.id], "it must stop before another worker can claim the job"
        assert [event.job_ids for event in stage.said(AttemptsLost)] == [(lost.id,)]
        post.supervisor.reported([_said(lost, "late", progress=50)])
        post.supervisor.ended(lost, Succeeded("2"))
        for question in ("step", "enqueue"):
            with pytest.raises(LeaseLost):
                await post.supervisor.answer(StoreRequest(1, lost.id, lost.attempt, question, "[]"))
        post.seat.driver.is_down = False
        await post.supervisor.settle()
        await post.supervisor.reporter.tick()
        assert post.job(known, "status", "result") == ("COMPLETED", "1"), (
            "known outcomes are written once the store is back"
        )
        assert post.job(lost, "status", "progress", "result") == ("RUNNING", 0, None)
        assert post.log(lost) == []


class Unread(deque[Any]):
    """A queue that is popped but must not be scanned: it may be long, and is checked often."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("looked through")


@virtual
async def test_ended_jobs_are_not_scanned_during_a_store_outage() -> None:
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
        await post.supervisor.lease_watchdog.tick()
        assert post.child_pool.abandoned == [jobs[2].id]
        post.seat.driver.is_down = False
        await post.supervisor.settle()
        assert [post.job(job, "status") for job in jobs] == [("COMPLETED",), ("COMPLETED",), ("RUNNING",)]


@virtual
async def test_attempt_taken_over_by_another_worker_is_abandoned_and_fenced() -> None:
    async with Stage() as stage:
        post = Post(stage)
        [job] = await post.take(max_attempts=3)
        other = stage.seat("node_other").store
        await asyncio.sleep(LEASE_S + 1)  # This worker was frozen.
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
async def test_cancellations_and_steps_of_earlier_attempts_reach_the_child_pool() -> None:
    async with Stage() as stage:
        post = Post(stage)
        [job] = await post.take(max_attempts=3)
        await post.supervisor.answer(StoreRequest(1, job.id, job.attempt, "step", '["first","41"]'))
        post.supervisor.ended(job, Released("moved"))
        await post.supervisor.settle()
        [again] = await post.take(0)
        assert (again.attempt, post.child_pool.kept) == (2, {job.id: {"first": "41"}})
        await post.seat.store.queue.cancel(job.id, author="me", reason="enough")
        await post.supervisor.lease_extender.tick()
        assert post.child_pool.stopped == [(job.id, Cancelled("cancelled by me: enough"))]


@virtual
async def test_jobs_without_free_slots_or_known_tasks_are_not_claimed() -> None:
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
async def test_draining_worker_claims_nothing() -> None:
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
async def test_idle_supervisor_rests() -> None:
    """Also after a job: no lease extension may remain due."""
    async with Stage() as stage:
        post = Post(stage)
        [job] = await post.take()
        await post.supervisor.lease_extender.tick()
        post.supervisor.ended(job, Succeeded())
        await post.supervisor.settle()
        await asyncio.sleep(LEASE_S)
        supervisor = post.supervisor
        for tick in (
            supervisor.claimer.tick,
            supervisor.lease_extender.tick,
            supervisor.settle,
            supervisor.reporter.tick,
            supervisor.lease_watchdog.tick,
        ):
            assert await tick() >= 1.0


@virtual
async def test_job_too_large_for_ipc_is_parked_and_the_others_run() -> None:
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
async def test_malformed_node_state_ends_no_worker() -> None:
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
