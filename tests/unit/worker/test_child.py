"""A child process, driven as its supervisor does: it always listens and loses no job, whatever tasks do."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headway.core.jobs import Claimed
from headway.core.process_tree import began_at
from headway.core.settings import Settings
from headway.wiring.children import child_pool_plan
from headway.worker.child import KINDS, LoopChild, ProcessChild
from headway.worker.child_base import ChildBase, ChildSetup
from headway.worker.ipc import (
    Done,
    Failed,
    Finish,
    Flush,
    Hello,
    Reports,
    Run,
    SharedCounters,
    Skipped,
    Stop,
    Stopped,
    StoreRequest,
    StoreResponse,
    ToSupervisor,
    pair,
)
from headway.worker.process import ChildProcess, child_command
from tests.support.waiting import DEADLINE_S, async_wait_until
from tests.unit.worker.test_ipc import claimed


class Line:
    """A child and the messages it has sent."""

    def __init__(self, width: int, kind: str, **environ: str) -> None:
        command = child_command("tests.unit.worker.child_tasks:app")
        environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        self.process = ChildProcess(command, kind, width, f"test-{os.getpid()}", environ)
        self.heard: list[ToSupervisor] = []

    async def hear(self, is_it: Callable[[ToSupervisor], bool]) -> ToSupervisor:
        """Return the first message that satisfies the condition."""

        def look() -> list[ToSupervisor]:
            self.heard += self.process.read() or []
            return [message for message in self.heard if is_it(message)]

        found = (await async_wait_until(look, "a message of the child", every_s=0.005))[0]
        self.heard.remove(found)
        return found

    async def ending(self) -> str:
        """Wait until the child has ended; return how."""
        await async_wait_until(lambda: self.process.has_ended, "the child to end", every_s=0.005)
        return self.process.ending


@asynccontextmanager
async def started(width: int, kind: str, **environ: str) -> AsyncIterator[Line]:
    """Start a child; end it afterwards."""
    line = Line(width, kind, **environ)
    try:
        await line.hear(lambda message: isinstance(message, Hello))
        yield line
    finally:
        line.process.kill()
        await line.ending()
        line.process.close()


@pytest.fixture
def kind() -> str:
    """Return the kind of the child."""
    return "loop"


@pytest.fixture
async def line(kind: str) -> AsyncIterator[Line]:
    """Start a child that runs one job at a time."""
    async with started(1, kind) as line:
        yield line


async def test_tasks_and_subprocesses_do_not_see_headway_variables() -> None:
    """The app sees them on import, and a `Headway()` that a task creates uses the same store."""
    own = {"HEADWAY_STORE": "sqlite:///own.db", "HEADWAY_TOKEN": "t" * 40, "HEADWAY_QUEUES": "a,b", "OTHER": "1"}
    async with started(1, "process", **own) as line:
        line.process.send(Run(1, [claimed(task="environment")]))
        ended = await line.hear(lambda message: isinstance(message, Done | Failed))
    assert isinstance(ended, Done)
    seen = json.loads(ended.result or "")
    assert seen["when imported"] == {"HEADWAY_STORE": "sqlite:///own.db", "HEADWAY_QUEUES": "a,b"}
    assert seen["settings"] == ["sqlite:///own.db", ["a", "b"], None]
    for where in ("task", "process", "program"):
        assert [name for name in seen[where] if name.startswith(("HEADWAY_", "OTHER"))] == ["HEADWAY_CHILD", "OTHER"]


async def test_variables_allowed_by_name_are_visible() -> None:
    plan = child_pool_plan(Settings(task_env=("HEADWAY_STORE",)))
    async with started(1, "process", HEADWAY_STORE="sqlite:///own.db", HEADWAY_QUEUES="a", **plan.environ) as line:
        line.process.send(Run(1, [claimed(task="environment")]))
        ended = await line.hear(lambda message: isinstance(message, Done | Failed))
    assert isinstance(ended, Done)
    names = [name for name in json.loads(ended.result or "")["program"] if name.startswith("HEADWAY_")]
    assert names == ["HEADWAY_CHILD", "HEADWAY_STORE"]


async def test_task_that_blocks_the_loop_can_be_stopped(line: Line) -> None:
    line.process.send(Run(1, [claimed(task="hold")]))
    await line.hear(lambda message: isinstance(message, Reports))  # From now on the loop does not read.
    line.process.send(Stop("job_1", 1))
    assert await line.hear(lambda message: isinstance(message, Done)) == Done("job_1", 1, '"asked"')


@pytest.mark.parametrize("kind", ["loop", "thread", "process"])
async def test_withdrawn_job_does_not_begin_and_the_next_one_does(line: Line, kind: str, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    hold, short = ("hold", "short") if kind == "loop" else ("rest", "short_sync")
    line.process.send(Run(1, [claimed(task=hold, args="{}" if kind == "loop" else _until(sign)), claimed(task=short)]))
    await async_wait_until(lambda: line.process.counters.begun == 1, "the first job to begin", every_s=0.005)
    line.process.counters.withdrawn = 2
    line.process.send(Stop("job_1", 1) if kind == "loop" else Flush())
    sign.touch()
    await line.hear(lambda message: isinstance(message, Done))
    assert await line.hear(lambda message: isinstance(message, Skipped)) == Skipped(2, 2)
    line.process.send(Run(3, [claimed(task=short, job_id="job_3")]))
    assert await line.hear(lambda message: isinstance(message, Done)) == Done("job_3", 1, '"done"')
    assert line.process.counters.begun == 3


async def test_requests_are_answered_at_once_even_on_a_blocked_loop() -> None:
    """Polling is so rare here that the test would time out if each response waited for it."""
    steps, look_every_s = 20, DEADLINE_S / 10
    async with asyncio.timeout(DEADLINE_S), started(1, "loop", CHILD_LOOK_EVERY_S=str(look_every_s)) as line:
        line.process.send(Run(1, [claimed(task="keep", args=f'{{"steps": {steps}}}')]))
        for number in range(1, steps + 1):
            ask = await line.hear(lambda message: isinstance(message, StoreRequest))
            assert isinstance(ask, StoreRequest)
            assert ask.number == number
            line.process.send(StoreResponse(ask.number))
        assert await line.hear(lambda message: isinstance(message, Done)) == Done("job_1", 1, str(steps))


async def test_job_stopped_before_its_first_step_frees_its_slot(line: Line) -> None:
    line.process.send(Run(1, [claimed(task="short")]))
    line.process.send(Stop("job_1", 1))
    line.process.send(Run(2, [claimed(task="short", job_id="job_2")]))
    ended = await line.hear(lambda message: isinstance(message, Done | Stopped))
    assert ended in (Stopped("job_1", 1), Done("job_1", 1, '"done"'))  # Depends on how the packets arrive.
    assert await line.hear(lambda message: isinstance(message, Done)) == Done("job_2", 1, '"done"')


async def test_messages_are_handled_in_order_on_any_thread(line: Line) -> None:
    """Some of these arrive while the loop is blocked, some while it is free."""
    for number in range(50):
        name = "hold" if number % 10 == 0 else "short"
        line.process.send(Run(number + 1, [claimed(task=name, job_id=f"job_{number}")]))
        if name == "hold":
            line.process.send(Stop(f"job_{number}", 1))
    ended = [await line.hear(lambda message: isinstance(message, Done | Stopped)) for _ in range(50)]
    ids = [message.job_id for message in ended if isinstance(message, Done | Stopped)]
    assert sorted(ids) == sorted(f"job_{number}" for number in range(50))
    short = [job_id for job_id in ids if not job_id.endswith("0")]
    assert short == [f"job_{number}" for number in range(50) if number % 10]


async def test_child_ends_on_request(line: Line) -> None:
    line.process.send(Finish())
    assert await line.ending() == "ended with exit code 0"


@pytest.mark.parametrize("task", [None, "hold"])
async def test_orphaned_child_ends(line: Line, task: str | None) -> None:
    if task is not None:
        line.process.send(Run(1, [claimed(task=task)]))
        await line.hear(lambda message: isinstance(message, Reports))
    line.process._socket.shutdown(socket.SHUT_RDWR)
    assert await line.ending() == "was killed by SIGKILL"


@pytest.mark.parametrize("kind", ["process"])
async def test_response_without_a_waiter_is_dropped(line: Line, tmp_path: Path) -> None:
    """The task and its loop are gone when it arrives, and the next job must not be affected."""
    sign = tmp_path / "sign"
    line.process.send(Run(1, [claimed(task="leave"), claimed(task="rest", args=_until(sign), job_id="job_2")]))
    ask = await line.hear(lambda message: isinstance(message, StoreRequest))
    assert await line.hear(lambda message: isinstance(message, Done)) == Done("job_1", 1, '"left"')
    assert isinstance(ask, StoreRequest)
    line.process.send(StoreResponse(ask.number))
    line.process.send(Run(3, [claimed(task="short_sync", job_id="job_3")]))  # Received after the response.
    sign.touch()
    assert await line.hear(lambda message: isinstance(message, Done)) == Done("job_2", 1, None)
    assert await line.hear(lambda message: isinstance(message, Done)) == Done("job_3", 1, '"done"')


def _until(sign: Path) -> str:
    return json.dumps({"sign": str(sign)})


@pytest.mark.parametrize("kind", ["thread"])
async def test_withdrawn_job_that_is_sent_again_runs_as_its_new_attempt(line: Line, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    line.process.send(Run(1, [claimed(task="rest", args=_until(sign)), claimed(task="short_sync", job_id="job_2")]))
    await async_wait_until(lambda: line.process.counters.begun == 1, "the first job to begin", every_s=0.005)
    line.process.counters.withdrawn = 2
    line.process.send(Run(3, [claimed(task="short_sync", job_id="job_2", attempt=2)]))
    sign.touch()
    assert await line.hear(lambda message: isinstance(message, Done)) == Done("job_1", 1, None)
    assert await line.hear(lambda message: isinstance(message, Done)) == Done("job_2", 2, '"done"')


@pytest.mark.parametrize("kind", ["process", "thread", "loop"])
async def test_job_ends_and_the_next_one_runs_after_any_exception(line: Line, kind: str) -> None:
    suffix = "" if kind == "loop" else "_sync"
    names = {"exit": "SystemExit", "interrupt": "KeyboardInterrupt", "generator": "GeneratorExit", "": "Noteless"}
    for number, (what, name) in enumerate(names.items(), 1):
        line.process.send(Run(number, [claimed(task=f"fail{suffix}", args=f'{{"what":"{what}"}}')]))
        failed = await line.hear(lambda message: isinstance(message, Failed))
        assert isinstance(failed, Failed)
        assert json.loads(failed.error)["type"].rpartition(".")[2] == name
    line.process.send(Run(5, [claimed(task=f"short{suffix}", job_id="job_2")]))
    assert await line.hear(lambda message: isinstance(message, Done)) == Done("job_2", 1, '"done"')


@pytest.mark.parametrize("kind", ["process"])
async def test_exception_of_a_background_task_fails_a_job_with_its_own_loop(line: Line) -> None:
    line.process.send(Run(1, [claimed(task="fail_beside", args='{"busy_s":0}')]))
    failed = await line.hear(lambda message: isinstance(message, Failed))
    assert isinstance(failed, Failed)
    assert json.loads(failed.error)["type"] == "SystemExit"


async def test_stopped_loop_ends_the_child_despite_a_running_thread(line: Line) -> None:
    line.process.send(Run(1, [claimed(task="fail_beside", args='{"busy_s":600}')]))
    assert await line.ending() == "was killed by SIGKILL"


@pytest.mark.parametrize(
    ("kind", "task"), [("process", "spoil_sync"), ("thread", "spoil_sync"), ("loop", "spoil"), ("loop", "clog")]
)
async def test_child_that_cannot_report_an_outcome_ends(line: Line, task: str) -> None:
    line.process.send(Run(1, [claimed(task=task)]))
    assert await line.ending() == "was killed by SIGKILL"


@pytest.fixture
def child(kind: str) -> Iterator[ChildBase]:
    """Create a child in this process that has not started its work."""
    ours, theirs = pair()
    counters = SharedCounters()
    child = KINDS[kind](ChildSetup(theirs, counters, {}, None, 1))
    yield child
    if isinstance(child, LoopChild):
        child._loop.run_until_complete(asyncio.sleep(0))  # Let cancelled tasks handle it.
        child._loop.close()
    counters.close()
    ours.close()
    theirs.close()


def _remembers(child: ChildBase) -> set[str]:
    """Return the jobs of which a child keeps any state."""
    return {job_id for job_id, _ in (*child._deadlines, *child._kept)} | set(child._asked_to_stop)


def _hear_of(child: ChildBase, *jobs: tuple[str, int], first: int = 1) -> None:
    ids = [job_id for job_id, _ in jobs]
    given = [claimed(job_id=job_id, attempt=attempt) for job_id, attempt in jobs]
    child._hear(Run(first, given, dict.fromkeys(ids, 5), {job_id: {"step": "1"} for job_id in ids}))
    assert _remembers(child) >= set(ids)


@pytest.mark.parametrize("kind", ["process", "thread", "loop"])
def test_withdrawn_jobs_are_forgotten(child: ChildBase, kind: str) -> None:
    _hear_of(child, ("job_1", 1), ("job_2", 1), ("job_3", 1))
    child._counters.withdrawn = 3
    assert child.skip()
    assert _remembers(child) == ({"job_1"} if kind == "loop" else set()), "on a loop the first job begins at once"


@pytest.mark.parametrize("kind", ["loop"])
def test_job_stopped_before_its_first_step_is_forgotten(child: ChildBase) -> None:
    _hear_of(child, ("job_1", 1))
    child._hear(Stop("job_1", 1))
    assert _remembers(child) == set()


@pytest.mark.parametrize("kind", ["process"])
def test_next_attempt_of_a_withdrawn_job_is_kept(child: ChildBase, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(child, ProcessChild)
    kept: list[object] = []

    def attempt(job: Claimed) -> Done:
        kept.append(dict(child._kept))
        return Done(job.job_id, job.attempt, None)

    monkeypatch.setattr(child, "_attempt", attempt)
    _hear_of(child, ("job_1", 1), ("job_2", 1))
    child._counters.withdrawn = 2
    _hear_of(child, ("job_2", 2), first=3)
    child._hear(Finish())
    child.run()
    assert kept == [{("job_2", 2): {"step": "1"}}]
    assert _remembers(child) == set()


async def _pids(line: Line, job_id: str) -> list[int]:
    """Return the process ids that a job reports."""
    said = await line.hear(lambda message: isinstance(message, Reports) and message.reports[0].job_id == job_id)
    assert isinstance(said, Reports)
    pids: list[int] = json.loads(said.reports[0].metadata or "")["pids"]
    assert all(began_at(pid) is not None for pid in pids)
    return pids


STARTS = [
    ("loop", "start", "asyncio"),
    ("loop", "start", "plain"),
    ("loop", "start", "to_thread"),
    ("loop", "start", "stubborn"),
    ("thread", "start_in_thread", "plain"),
    ("thread", "start_in_thread", "stubborn"),
]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("kind", "task", "how"), STARTS)
async def test_subprocesses_end_with_their_own_job(kind: str, task: str, how: str) -> None:
    async with started(2, kind) as line:
        neighbour = claimed(task=task, job_id="job_2", args='{"how": "plain"}')
        line.process.send(Run(1, [claimed(task=task, args=f'{{"how": "{how}"}}')]))
        ours = await _pids(line, "job_1")
        line.process.send(Run(2, [neighbour]))
        theirs = await _pids(line, "job_2")
        line.process.send(Stop("job_1", 1))
        line.process.send(Stop("job_1", 1))  # A second request does not stop it twice.
        assert await line.hear(lambda message: isinstance(message, Stopped)) == Stopped("job_1", 1)
        assert [began_at(pid) for pid in ours] == [None] * len(ours), "it has not stopped: its subprocesses continue"
        assert [began_at(pid) for pid in theirs] != [None]
        line.process.send(Stop("job_2", 1))
        assert await line.hear(lambda message: isinstance(message, Stopped)) == Stopped("job_2", 1)
        assert [began_at(pid) for pid in theirs] == [None]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("kind", "task", "how"), [STARTS[1], STARTS[4]])
async def test_leftover_subprocesses_survive_only_a_completed_job(line: Line, kind: str, task: str, how: str) -> None:
    for number, then in ((1, "fail"), (2, "return")):
        args = f'{{"how": "{how}", "then": "{then}"}}'
        line.process.send(Run(number, [claimed(task=task, job_id=f"job_{number}", args=args)]))
        said = await line.hear(lambda message: isinstance(message, Reports))
        assert isinstance(said, Reports)
        [pid] = json.loads(said.reports[0].metadata or "")["pids"]
        await line.hear(lambda message: isinstance(message, Done | Failed))
        assert (began_at(pid) is None) == (then == "fail")
