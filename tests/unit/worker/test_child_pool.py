"""The child pool: distribution, prefetching, suspects, frame sizes, and cleanup after a dead supervisor."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from headway.core.clock import Clock
from headway.core.instants import SECOND
from headway.core.jobs import Claimed, Report
from headway.core.lifecycle import AttemptOutcome, Cancelled, Crashed, Parked, Raised, Released, Succeeded, TimedOut
from headway.core.process_tree import descendants_of, how_it_ended, kill_each, kill_group, start_orphan_reaper
from headway.worker import ipc as ipc
from headway.worker.child_pool import GONE_S_MAX, ChildPool
from headway.worker.child_processes import ChildPoolPlan
from headway.worker.children import ChildRecord, KindPool, suspect_group_size
from headway.worker.dispatcher import RUN_BYTES_MAX, in_frames
from headway.worker.handover import Handover
from headway.worker.outcomes import WAITED, failure_of, outcome_of
from headway.worker.prefetch import PREFETCH_MAX
from headway.worker.stopper import STALLED_S_MAX, WAIT_S_MAX
from tests.simulation.virtual_loop import virtual
from tests.support.waiting import DEADLINE_S, wait_until
from tests.unit.worker.test_handover import Memory
from tests.unit.worker.test_ipc import claimed


def _child(width: int = 1, **options: object) -> ChildRecord:
    """Create a child of which only the bookkeeping is used."""
    given = {"kind": "process", "process": None, "born": 0.0, "is_ready": True, **options}
    return ChildRecord(width=width, handover=Handover(Memory(), width), **given)  # type: ignore[arg-type]


def _learned(pool: KindPool, task: str, took_s: float, jobs: int = 50) -> None:
    for _ in range(jobs):
        pool.prefetch.learn(task, took_s, 1)


def test_only_short_tasks_are_prefetched() -> None:
    pool = KindPool("process", 2, 1)
    child = _child()
    pool.prefetch.mixed({"short"})
    assert pool.capacity_of(child) == 1, "no durations are known yet"
    _learned(pool, "short", 0.001)
    assert 40 <= pool.capacity_of(child) <= 51
    _learned(pool, "short", 1e-9, 500)
    assert pool.capacity_of(child) == 1 + PREFETCH_MAX
    pool.prefetch.mixed({"short", "unknown"})
    assert pool.capacity_of(child) == 1, "one of them may take long"
    pool.prefetch.mixed({"short"})
    pool.prefetch.takes_at_least("short", 5.0)
    assert pool.capacity_of(child) == 1
    for state in ("is_leaving", "is_solo", "is_stopping"):
        assert pool.capacity_of(_child(**{state: True})) == 0
    assert pool.capacity_of(_child(is_ready=False)) == 0
    assert pool.capacity_of(_child(stalled_since=0.0)) == 0


def test_jobs_of_a_slow_task_are_not_prefetched() -> None:
    pool = KindPool("process", 2, 1)
    pool.children += [_child(), _child()]
    _learned(pool, "short", 0.001)
    _learned(pool, "long", 0.3)
    pool.prefetch.mixed({"short"})
    assert pool.room() > 50, "the last ones were short"
    parts, over = pool.spread([claimed(job_id=f"job_{number}", task="long") for number in range(80)])
    assert [len(part) for _, part in parts] == [1, 1]
    assert len(over) == 78
    for child, part in parts:
        child.handover.give(part, 0.0)
    assert pool.room() == 0, "no child gets more of them"
    parts, over = pool.spread([claimed(job_id=f"short_{number}", task="short") for number in range(20)])
    assert sum(len(part) for _, part in parts) == 20
    assert not over


def test_child_gets_no_more_jobs_than_it_may_run() -> None:
    pool = KindPool("process", 1, 1, max_jobs=3)
    child = _child()
    pool.children.append(child)
    _learned(pool, "work", 1e-5)
    pool.prefetch.mixed({"work"})
    assert pool.room() == 3
    parts, over = pool.spread([claimed(job_id=f"job_{number}") for number in range(5)])
    assert [len(part) for _, part in parts] == [3]
    assert len(over) == 2
    child.handover.give(parts[0][1], 0.0)
    child.handover.end("job_0", 1)
    assert pool.room() == 0


def test_room_accounts_for_assigned_jobs_and_suspects() -> None:
    pool = KindPool("loop", 1, 10)
    child = _child(10, kind="loop")
    pool.children.append(child)
    child.handover.give([claimed(), claimed(job_id="job_2")], 0.0)
    assert pool.room() == 8
    pool.suspects.extend([claimed()] * 3)
    assert pool.room() == 5
    pool.suspects.extend([claimed()] * 30)
    assert pool.room() == 0


@pytest.mark.parametrize(
    ("reason", "company"),
    [
        ("", 0),
        ("handed back: the worker ends", 0),
        ("handed back: its process died while 100 jobs ran in it", 25),
        ("handed back: its process died while 5 jobs ran in it", 2),
        ("handed back: its process was damaged while 2 jobs ran in it", 1),
        ("crashed, failure 1 of 3, retrying", 1),
        ("raised, failure 1 of 3, retrying", 0),
    ],
)
def test_suspects_run_in_shrinking_groups(reason: str, company: int) -> None:
    assert suspect_group_size(claimed(reason=reason)) == company


def test_culprit_is_found_within_a_few_crashes() -> None:
    running, rounds = 100_000, 0
    while running > 1:
        running = suspect_group_size(claimed(reason=f"handed back: its process died while {running} jobs ran in it"))
        rounds += 1
    assert rounds <= 9


def test_frames_are_split_at_large_arguments_or_steps() -> None:
    jobs = [claimed(job_id=f"job_{number}", args="x" * (RUN_BYTES_MAX // 3)) for number in range(10)]
    parts = list(in_frames(jobs, {}))
    assert [job for part in parts for job in part] == jobs
    assert max(map(len, parts)) <= 3
    assert list(in_frames([claimed(args="x" * 2 * RUN_BYTES_MAX)], {})) != [[]]
    small = [claimed(job_id=f"job_{number}") for number in range(1_000)]
    assert list(in_frames(small, {})) == [small]
    kept = {"job_1": {"step": "x" * RUN_BYTES_MAX}}
    assert [len(part) for part in in_frames(small[:3], kept)] == [1, 1, 1]


class Books:
    """A supervisor, a sweeper and a connection to a child that only record their calls."""

    pid, mark, has_ended, ending = 1, "MARK=1", False, "was killed by SIGKILL"

    def __init__(self, jobs: int, kind: str = "thread", width: int = 1) -> None:
        self.ends: dict[str, AttemptOutcome] = {}
        self.sent: list[ipc.ToChild] = []
        self.reports: list[Report] = []
        self.swept: list[Callable[[], None]] = []
        self.kills = 0
        self.now = 100.0
        self.counters = Memory()
        clock = Clock(monotonic=lambda: self.now)
        plan = ChildPoolPlan(command=(), processes=1, concurrency=1, threads=1)
        self.child_pool = ChildPool(plan, clock, self, start=self.start, sweeper=self)  # type: ignore[arg-type]
        infos = [ipc.TaskInfo(name="work", isolation=kind, timeout=5 * SECOND)]
        self.child_pool.processes._meet(ipc.Hello(1, "", "", infos, {}))
        self.pool = self.child_pool.processes.pools[kind]
        self.pool.width = width
        self.child = self.child_pool.processes.spawn(self.pool)
        self.child.is_ready = True
        given = [claimed(job_id=f"job_{number}") for number in range(1, 1 + jobs)]
        if given:
            self.child_pool.dispatcher.assign(self.child, given, {})

    def start(self, *_: object) -> "Books":
        return self

    def watch(self, *_: object) -> None:
        """Do nothing."""

    def sweep(self, _: object, then: Callable[[], None], *, with_head: bool) -> None:
        self.kills += with_head
        self.swept.append(then)

    def kill(self) -> None:
        self.kills += 1

    def send(self, message: ipc.ToChild) -> None:
        ipc.encode_frame([message])
        self.sent.append(message)

    def signal(self, number: signal.Signals) -> None:
        """Ignore signals."""

    def last_words(self) -> list[list[ipc.ToSupervisor]]:
        return []

    def close(self) -> None:
        """Do nothing."""

    def ended(self, claimed: Claimed, outcome: AttemptOutcome) -> None:
        assert claimed.job_id not in self.ends, "reported twice"
        self.ends[claimed.job_id] = outcome

    def reported(self, reports: Sequence[Report]) -> None:
        self.reports += reports

    async def answer(self, ask: ipc.StoreRequest) -> str:
        return "answered"

    def has_room(self) -> None:
        """Do nothing."""

    def hear(self, *messages: ipc.ToSupervisor) -> None:
        self.child_pool.hear(self.pool, self.child, messages)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.child_pool.watch()

    def die(self) -> None:
        self.has_ended = True
        self.child_pool.on_exit(self.pool, self.child)


def test_cancelled_job_that_has_not_begun_ends_at_once_and_jobs_behind_it_are_released() -> None:
    books = Books(jobs=3)
    books.counters.begun = 1
    books.child_pool.stop("job_2", 1, Cancelled("enough"))
    assert books.ends == {"job_2": Cancelled("enough"), "job_3": WAITED}
    assert books.counters.withdrawn == 3
    books.child_pool.stop("job_1", 1, Cancelled("too"))
    assert books.sent[-1] == ipc.Stop("job_1", 1)
    books.hear(ipc.Stopped("job_1", 1), ipc.Skipped(2, 3))
    assert books.ends["job_1"] == Cancelled("too")


def test_job_that_began_during_its_withdrawal_stays_with_the_child() -> None:
    books = Books(jobs=2)
    books.counters.begun = 2
    books.child_pool.stop("job_2", 1, Cancelled("enough"))
    assert books.ends == {}
    books.hear(ipc.Skipped(2, 2))  # The child saw that it may not begin.
    assert books.ends == {"job_2": Cancelled("enough")}


def test_jobs_that_wait_too_long_are_released_and_a_stalled_child_is_replaced() -> None:
    books = Books(jobs=3, kind="process")
    books.pass_time(WAIT_S_MAX * 0.9)
    assert books.ends == {}
    books.pass_time(WAIT_S_MAX * 0.2)
    assert books.ends == dict.fromkeys(("job_1", "job_2", "job_3"), WAITED)
    assert books.child_pool.room("process") == 0, "it has not shown any progress"
    books.pass_time(STALLED_S_MAX + 0.1)
    assert books.kills == 1
    books.die()
    assert books.child not in books.pool.children


def test_child_that_continues_gets_jobs_again() -> None:
    books = Books(jobs=2, kind="process")
    books.pass_time(WAIT_S_MAX + 0.1)
    books.hear(ipc.Skipped(1, 2))
    assert books.child_pool.room("process") == 1
    books.pass_time(STALLED_S_MAX + 1)
    assert books.kills == 0


def test_jobs_behind_a_long_one_are_released_and_it_continues() -> None:
    books = Books(jobs=3, kind="process")
    books.counters.begun = 1
    books.pass_time(WAIT_S_MAX + 0.1)
    assert set(books.ends) == {"job_2", "job_3"}
    books.pass_time(STALLED_S_MAX - 1)
    assert books.kills == 0, "a task may hold the interpreter as long as it needs"
    assert books.pool.prefetch.expected_s("work") > 0.4, "no more of them are prefetched"
    books.counters.ended = 1
    books.hear(ipc.Done("job_1", 1, None))
    assert books.ends["job_1"] == Succeeded(None)


def test_stalled_loop_may_finish_its_jobs_and_is_replaced() -> None:
    books = Books(jobs=3, kind="loop", width=10)
    books.counters.begun = 1
    books.pass_time(WAIT_S_MAX + 0.1)
    assert set(books.ends) == {"job_2", "job_3"}
    books.pass_time(STALLED_S_MAX + 0.1)
    assert (books.kills, books.child.is_leaving) == (0, True)
    books.pass_time(0.2)
    assert len(books.pool.children) == 2


def test_lost_outcome_is_not_awaited() -> None:
    books = Books(jobs=1, kind="process")
    books.counters.begun = books.counters.ended = 1
    books.pass_time(0.1)
    assert books.sent[-1] == ipc.Flush()
    books.pass_time(STALLED_S_MAX + 0.2)
    assert books.kills == 1
    books.die()
    assert books.ends == {}, "its subprocesses end first"
    books.swept[-1]()
    assert books.ends == {"job_1": Released("handed back: its outcome was lost")}


def test_timeouts_count_from_the_start_of_the_job() -> None:
    books = Books(jobs=1, kind="process")
    books.counters.begun = 1
    books.pass_time(0.1)
    books.pass_time(4.9)
    assert not any(isinstance(message, ipc.Stop) for message in books.sent)
    books.pass_time(0.2)
    assert books.sent[-1] == ipc.Stop("job_1", 1)
    books.hear(ipc.Stopped("job_1", 1))
    assert books.ends == {}, "its subprocesses end first"
    assert books.child_pool.room("process") == 0
    books.swept[-1]()
    assert isinstance(books.ends["job_1"], TimedOut)
    assert books.child_pool.room("process") == 1


def test_abandoned_job_reports_nothing() -> None:
    books = Books(jobs=3, kind="process")
    books.counters.begun = 1
    books.child_pool.abandon("job_2", 1)
    assert books.ends == {"job_3": WAITED}
    books.child_pool.abandon("job_1", 1)
    assert books.kills == 1
    books.die()
    books.swept[-1]()
    assert set(books.ends) == {"job_3"}


def test_crash_of_a_child_is_charged_to_the_running_job() -> None:
    books = Books(jobs=4, kind="process")
    books.counters.begun, books.counters.ended = 2, 1
    books.die()
    books.swept[-1]()
    assert isinstance(books.ends.pop("job_2"), Crashed)
    assert all(isinstance(outcome, Released) for outcome in books.ends.values())
    assert set(books.ends) == {"job_1", "job_3", "job_4"}


async def test_messages_about_jobs_of_other_children_are_ignored() -> None:
    books = Books(jobs=1)
    books.counters.begun = 1
    reports = [Report(job_id=job_id, attempt=attempt) for job_id, attempt in (("job_1", 1), ("job_1", 2), ("job_9", 1))]
    books.hear(ipc.Reports(reports), ipc.Done("job_9", 1, None), ipc.Failed("job_1", 2, "{}"))
    assert books.reports == reports[:1]
    assert books.ends == {}
    books.hear(ipc.StoreRequest(1, "job_9", 1, "step", ""), ipc.StoreRequest(2, "job_1", 1, "step", ""))
    await asyncio.gather(*books.child_pool.listener.answers)
    answers = [message for message in books.sent if isinstance(message, ipc.StoreResponse)]
    assert [(answer.number, answer.is_lost, answer.body) for answer in answers] == [
        (1, True, ""),
        (2, False, "answered"),
    ]


def test_job_too_large_for_a_frame_is_parked() -> None:
    books = Books(jobs=0)
    jobs = [claimed(job_id="job_1"), claimed(job_id="job_2"), claimed(job_id="job_3")]
    kept = {"job_2": {f"step {number}": "x" * (1 << 20) for number in range(65)}}
    books.child_pool.dispatcher.assign(books.child, jobs, kept)
    (parked,) = books.ends.values()
    assert isinstance(parked, Parked)
    assert "cannot be handed to a process" in parked.reason
    runs = [message for message in books.sent if isinstance(message, ipc.Run)]
    assert [(run.first, [job.job_id for job in run.jobs]) for run in runs] == [(1, ["job_1"]), (3, ["job_3"])]


def test_no_child_is_started_while_the_worker_drains() -> None:
    books = Books(jobs=1, kind="process")
    books.counters.begun = 1
    books.child_pool.release_waiting("handed back: the worker ends")
    books.die()
    books.pass_time(60.0)
    assert books.child_pool.count() == 0


def test_child_that_requests_replacement_releases_waiting_jobs() -> None:
    books = Books(jobs=2, kind="process")
    books.counters.begun = 1
    books.hear(ipc.Done("job_1", 1, None), ipc.ReplacementRequest("a task ran out of memory"))
    assert books.ends == {"job_1": Succeeded(None), "job_2": WAITED}
    assert books.sent[-1] == ipc.Finish()


def test_deadlines_are_sent_with_their_jobs() -> None:
    books = Books(jobs=0)
    jobs = [claimed(job_id=f"job_{number}", args="x" * (RUN_BYTES_MAX // 2)) for number in range(2, 6)]
    books.child_pool.dispatcher.assign(books.child, jobs, {})
    runs = [message for message in books.sent if isinstance(message, ipc.Run)]
    assert len(runs) == 2
    assert all([*run.deadlines] == [job.job_id for job in run.jobs] for run in runs)


def test_messages_become_outcomes() -> None:
    assert outcome_of(ipc.Stopped("job_1", 1), None) == Released("the task stopped by itself")
    assert outcome_of(ipc.Stopped("job_1", 1), Cancelled("enough")) == Cancelled("enough")
    assert outcome_of(ipc.Failed("job_2", 1, "{}", False, 5), None) == Raised("{}", False, 5)
    assert outcome_of(ipc.CancelRaised("job_1", 1, "why"), None) == Cancelled("why")
    assert outcome_of(ipc.Unrunnable("job_1", 1, "why", "arguments"), None) == Parked("why", "arguments")
    disturbed = outcome_of(ipc.FailedInDamagedProcess("job_1", 1, 7, "umask"), None)
    assert isinstance(disturbed, Released)
    assert suspect_group_size(claimed(reason=disturbed.reason)) == 2
    assert outcome_of(ipc.Reports([]), None) is None
    assert how_it_ended(-9) == "was killed by SIGKILL"
    assert how_it_ended(-250) == "was killed by signal 250"
    assert how_it_ended(3) == "ended with exit code 3"


def test_exception_during_a_stop_does_not_replace_the_stop() -> None:
    raised = ipc.Failed("job_1", 1, '{"type":"ValueError","message":"torn","traceback":"here"}', True, 5)
    assert failure_of(raised, None) == Raised(raised.error, True, 5)
    assert failure_of(raised, Cancelled("enough")) == Cancelled("enough")
    timed_out = TimedOut('{"type":"TimeoutError","message":"too long"}', retryable=False)
    outcome = failure_of(raised, timed_out)
    assert isinstance(outcome, TimedOut)
    assert not outcome.retryable
    assert json.loads(outcome.error) == {
        "type": "TimeoutError",
        "message": "too long; asked to stop, it raised ValueError: torn",
        "traceback": "here",
    }
    assert failure_of(ipc.Failed("job_1", 1, "no JSON"), timed_out) == timed_out
    # It was killed, not asked: its messages are older.
    assert failure_of(raised, Released("handed back")) == Raised(raised.error, True, 5)


@virtual
async def test_child_that_cannot_be_killed_is_not_awaited() -> None:
    now = asyncio.get_running_loop().time
    books = Books(jobs=1)
    books.counters.begun = 1
    books.child_pool._clock = Clock(monotonic=now)
    began = now()
    await books.child_pool.close(0.5)
    assert now() - began <= 0.5 + GONE_S_MAX + 0.1
    assert books.kills
    assert not books.ends, "its job may still run, so it has no outcome: its lease expires"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_all_subprocesses_are_found() -> None:
    mark = f"MARK=pool-{os.getpid()}-1"
    script = "sleep 611 & setsid sleep 611 & (setsid sleep 611 &) ; wait"
    parent = _start(script, mark)
    try:
        wait_until(lambda: len(descendants_of(parent.pid, mark)) == 3, "all its subprocesses")
        found = descendants_of(parent.pid, mark)
        assert os.getpid() not in found
        assert parent.pid not in found
        assert descendants_of(parent.pid, f"{mark}0") != [], "at least by ancestry"
        kill_group(parent.pid)
        kill_each(found)
        parent.wait(DEADLINE_S)
        while left := descendants_of(parent.pid, mark):  # Started between the scan and the kill.
            kill_each(left)
    finally:
        kill_group(parent.pid)
        kill_each(descendants_of(parent.pid, mark))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_orphan_reaper_ends_subprocesses_of_a_killed_supervisor() -> None:
    mark = f"MARK=pool-{os.getpid()}-"
    orphan_reaper = start_orphan_reaper(mark)
    assert orphan_reaper is not None
    assert orphan_reaper.stdin is not None
    ours, other = _start("setsid sleep 611 & sleep 611", f"{mark}7"), _start("sleep 611", "MARK=another-1")
    try:
        wait_until(lambda: len(descendants_of(ours.pid, f"{mark}7")) == 2, "all its subprocesses")
        orphan_reaper.stdin.close()  # As the kernel does when the supervisor dies.
        assert orphan_reaper.wait(DEADLINE_S) == 0
        assert ours.wait(DEADLINE_S) == -signal.SIGKILL
        wait_until(lambda: descendants_of(ours.pid, f"{mark}7") == [], "the end of its subprocesses")
        assert other.poll() is None
    finally:
        for process in (ours, other):
            kill_group(process.pid)
            process.wait(DEADLINE_S)


def _start(script: str, mark: str) -> "subprocess.Popen[bytes]":
    name, _, value = mark.partition("=")
    return subprocess.Popen(["sh", "-c", script], env={**os.environ, name: value}, start_new_session=True)
