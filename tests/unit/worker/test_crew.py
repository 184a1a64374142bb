"""How the crew spreads, prefetches, suspects and cuts; and that what a dead supervisor leaves is ended."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from headway.clock import Clock
from headway.lifecycle import Cancelled, Outcome, Parked, Raised, Released, TimedOut
from headway.model import Claimed, Report
from headway.worker import frames
from headway.worker.crew import GONE_S_MAX, RUN_BYTES_MAX, Crew, CrewPlan, _in_frames, _outcome_of
from headway.worker.descendants import descendants_of, kill_group, start_warden
from headway.worker.pool import PREFETCH_MAX, Pool, Post, Running, company_of
from headway.worker.process import how_it_ended
from tests.simulation.virtual_loop import virtual
from tests.support.waiting import DEADLINE_S, wait_until
from tests.unit.worker.test_frames import claimed


def _child(**options: object) -> Post:
    """A child of which only the books are looked at."""
    given = {"kind": "process", "width": 1, "process": None, "born": 0.0, "is_ready": True, **options}
    return Post(**given)  # type: ignore[arg-type]


def test_only_short_jobs_are_prefetched() -> None:
    pool = Pool("process", 2, 1)
    child = _child()
    assert pool.capacity_of(child) == 1, "nothing is known yet"
    for _ in range(50):
        pool.learn(0.001, 1)
    assert 40 <= pool.capacity_of(child) <= 51
    for _ in range(50):
        pool.learn(1e-9, 20)
    assert pool.capacity_of(child) == 1 + PREFETCH_MAX
    pool.learn(5.0, 1)
    assert pool.capacity_of(child) == 1
    for state in ({"is_ready": False}, {"is_leaving": True}, {"is_solo": True}):
        assert pool.capacity_of(_child(**state)) == 0


def test_room_counts_what_runs_waits_and_is_suspected() -> None:
    pool = Pool("loop", 1, 10)
    child = _child(kind="loop", width=10)
    pool.children.append(child)
    child.running["a"] = Running(claimed(), 1, 0.0, None, True)
    child.unheard["b"] = claimed()
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
        ("handed back: its process died while 2 jobs ran in it", 1),
        ("crashed, failure 1 of 3, retrying", 1),
        ("raised, failure 1 of 3, retrying", 0),
    ],
)
def test_suspects_have_ever_less_company(reason: str, company: int) -> None:
    assert company_of(claimed(reason=reason)) == company


def test_the_one_is_found_within_a_few_crashes() -> None:
    running, rounds = 100_000, 0
    while running > 1:
        running = company_of(claimed(reason=f"handed back: its process died while {running} jobs ran in it"))
        rounds += 1
    assert rounds <= 9


def test_frames_are_cut_where_arguments_are_large() -> None:
    jobs = [claimed(job_id=f"job_{number}", args="x" * (RUN_BYTES_MAX // 3)) for number in range(10)]
    parts = list(_in_frames(jobs))
    assert [job for part in parts for job in part] == jobs
    assert max(map(len, parts)) <= 3
    assert list(_in_frames([claimed(args="x" * 2 * RUN_BYTES_MAX)])) != [[]]
    small = [claimed()] * 1_000
    assert list(_in_frames(small)) == [small]


class Books:
    """A foreman and the line to a child: both only write down what they are told."""

    def __init__(self, waiting: int, running: int = 1) -> None:
        self.ends: dict[str, Outcome] = {}
        self.sent: list[frames.ToChild] = []
        self.crew = Crew(CrewPlan(command=(), processes=1, concurrency=1, threads=1), Clock(), self)
        self.crew.tasks = {"work": frames.TaskInfo(name="work", isolation="thread", timeout=5)}
        self.child = _child(kind="thread", process=self)
        self.crew._pools["thread"].children.append(self.child)
        jobs = [claimed(job_id=f"job_{number}") for number in range(1, 1 + running + waiting)]
        self.crew._assign(self.child, jobs, {})

    def send(self, message: frames.ToChild) -> None:
        self.sent.append(message)

    def ended(self, claimed: Claimed, outcome: Outcome) -> None:
        self.ends[claimed.job_id] = outcome

    def reported(self, reports: Sequence[Report]) -> None:
        """Nobody reports."""

    async def answer(self, ask: frames.Ask) -> str:
        raise AssertionError("nobody asks")

    def has_room(self) -> None:
        """Nobody wants to know."""

    def hear(self, *messages: frames.ToSupervisor) -> None:
        self.crew._hear(self.crew._pools["thread"], self.child, messages)


def test_each_answer_is_about_the_jobs_that_were_asked_for() -> None:
    books = Books(waiting=3)
    for number in (2, 3, 4):
        books.crew.stop(f"job_{number}", 1, Cancelled(f"reason {number}"))
    assert [message for message in books.sent if isinstance(message, frames.Revoke)] == [
        frames.Revoke(["job_2"]),
        frames.Revoke(["job_3"]),
        frames.Revoke(["job_4"]),
    ]
    books.hear(frames.Revoked(["job_2"]), frames.Revoked([], ["job_3"]), frames.Revoked(["job_4"]))
    assert books.ends == {"job_2": Cancelled("reason 2"), "job_4": Cancelled("reason 4")}
    books.hear(frames.Done("job_1", 1, None))
    books.crew.stop("job_3", 1, Cancelled("again"))  # It had begun; it is asked like any other.
    assert books.sent[-1] == frames.Stop("job_3", 1)


@pytest.mark.parametrize("seems_to_run", [False, True])
def test_a_job_that_is_cancelled_while_it_is_taken_back_is_cancelled(seems_to_run: bool) -> None:
    books = Books(waiting=2)
    books.crew.release_waiting("the worker ends")
    if seems_to_run:  # The first is done, so the next one has begun, as far as we know.
        books.hear(frames.Done("job_1", 1, None))
    books.crew.stop("job_2", 1, Cancelled("enough"))
    books.hear(frames.Revoked(["job_2", "job_3"]))
    assert books.ends["job_2"] == Cancelled("enough")
    assert books.ends["job_3"] == Released("handed back: it had to wait")
    assert not books.crew._reasons


def test_deadlines_are_sent_with_their_jobs() -> None:
    books = Books(waiting=0)
    jobs = [claimed(job_id=f"job_{number}", args="x" * (RUN_BYTES_MAX // 2)) for number in range(2, 6)]
    books.crew._assign(books.child, jobs, {})
    runs = [message for message in books.sent if isinstance(message, frames.Run)]
    assert len(runs) == 3
    assert all([*run.deadlines] == [job.job_id for job in run.jobs] for run in runs)


def test_what_messages_mean() -> None:
    child = _child()
    child.running["job_1"] = Running(claimed(), 1, 0.0, None, True)
    assert _outcome_of(child, frames.Stopped("job_1", 1)) == Released("the task stopped by itself")
    child.running["job_1"].stop_as = Cancelled("enough")
    assert _outcome_of(child, frames.Stopped("job_1", 1)) == Cancelled("enough")
    assert _outcome_of(child, frames.Failed("job_2", 1, "{}", False, 5)) == Raised("{}", False, 5)
    assert _outcome_of(child, frames.Cancelled("job_1", 1, "why")) == Cancelled("why")
    assert _outcome_of(child, frames.Unfit("job_1", 1, "why", "arguments")) == Parked("why", "arguments")
    assert _outcome_of(child, frames.Reports([])) is None
    assert how_it_ended(-9) == "was killed by SIGKILL"
    assert how_it_ended(-250) == "was killed by signal 250"
    assert how_it_ended(3) == "ended with exit code 3"


def test_what_is_raised_while_a_task_is_stopped_does_not_replace_the_stop() -> None:
    child = _child()
    running = child.running["job_1"] = Running(claimed(), 1, 0.0, None, True)
    raised = frames.Failed("job_1", 1, '{"type":"ValueError","message":"torn","traceback":"here"}', True, 5)
    assert _outcome_of(child, raised) == Raised(raised.error, True, 5)
    running.stop_as = Cancelled("enough")
    assert _outcome_of(child, raised) == Cancelled("enough")
    running.stop_as = TimedOut('{"type":"TimeoutError","message":"too long"}', retryable=False)
    outcome = _outcome_of(child, raised)
    assert isinstance(outcome, TimedOut)
    assert not outcome.retryable
    assert json.loads(outcome.error) == {
        "type": "TimeoutError",
        "message": "too long; asked to stop, it raised ValueError: torn",
        "traceback": "here",
    }
    assert _outcome_of(child, frames.Failed("job_1", 1, "no JSON")) == running.stop_as
    running.stop_as = Released("handed back")  # It was killed, not asked: what it said it had said before.
    assert _outcome_of(child, raised) == Raised(raised.error, True, 5)


class Undying:
    """A process that no signal ends, as one that waits for a broken disk."""

    pid = 1
    has_ended = False
    kills = 0

    def kill(self) -> None:
        self.kills += 1

    def send(self, message: frames.ToChild) -> None:
        """It hears nothing."""


@virtual
async def test_nobody_waits_for_a_child_that_cannot_be_killed() -> None:
    now = asyncio.get_running_loop().time
    books, process = Books(waiting=0), Undying()
    books.crew._clock = Clock(monotonic=now)
    books.child.process = process  # type: ignore[assignment]
    began = now()
    await books.crew.close(0.5)
    assert now() - began <= 0.5 + GONE_S_MAX + 0.1
    assert process.kills
    assert not books.ends, "its job still runs, and nobody may say otherwise: its lease runs out"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_everything_that_a_process_has_started_is_found() -> None:
    mark = f"MARK=crew-{os.getpid()}-1"
    script = "sleep 611 & setsid sleep 611 & (setsid sleep 611 &) ; wait"
    parent = _start(script, mark)
    try:
        wait_until(lambda: len(descendants_of(parent.pid, mark)) == 3, "all that it starts")
        found = descendants_of(parent.pid, mark)
        assert os.getpid() not in found
        assert parent.pid not in found
        assert descendants_of(parent.pid, f"{mark}0") != [], "by ancestry, at least"
        kill_group(parent.pid, found)
        parent.wait(DEADLINE_S)
        while left := descendants_of(parent.pid, mark):  # Started between looking and killing.
            kill_group(parent.pid, left)
    finally:
        kill_group(parent.pid, descendants_of(parent.pid, mark))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_warden_ends_what_a_killed_supervisor_leaves() -> None:
    mark = f"MARK=crew-{os.getpid()}-"
    warden = start_warden(mark)
    assert warden is not None
    assert warden.stdin is not None
    ours, other = _start("setsid sleep 611 & sleep 611", f"{mark}7"), _start("sleep 611", "MARK=another-1")
    try:
        wait_until(lambda: len(descendants_of(ours.pid, f"{mark}7")) == 2, "all that it starts")
        warden.stdin.close()  # As the kernel does when the supervisor dies.
        assert warden.wait(DEADLINE_S) == 0
        assert ours.wait(DEADLINE_S) == -signal.SIGKILL
        wait_until(lambda: descendants_of(ours.pid, f"{mark}7") == [], "the end of what it has started")
        assert other.poll() is None
    finally:
        for process in (ours, other):
            kill_group(process.pid, [])
            process.wait(DEADLINE_S)


def _start(script: str, mark: str) -> "subprocess.Popen[bytes]":
    name, _, value = mark.partition("=")
    return subprocess.Popen(["sh", "-c", script], env={**os.environ, name: value}, start_new_session=True)
