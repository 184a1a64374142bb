"""A child for async tasks, spoken with as its supervisor does: it is never deaf, whatever a task does to the loop."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable

import pytest

from headway.worker.child import LOOK_EVERY_S
from headway.worker.frames import (
    Answer,
    Ask,
    Done,
    Finish,
    Hello,
    Reports,
    Revoke,
    Revoked,
    Run,
    Stop,
    Stopped,
    ToSupervisor,
)
from headway.worker.process import ChildProcess, child_command
from tests.unit.worker.test_frames import claimed

PATIENCE_S = 20.0


class Line:
    """A child, and what it has said."""

    def __init__(self, width: int) -> None:
        command = child_command("tests.unit.worker.child_tasks:app")
        self.process = ChildProcess(
            command, "loop", width, f"test-{os.getpid()}", {"PYTHONPATH": os.pathsep.join(sys.path)}
        )
        self.heard: list[ToSupervisor] = []

    async def hear(self, is_it: Callable[[ToSupervisor], bool]) -> ToSupervisor:
        """Return the first message that is the one."""
        async with asyncio.timeout(PATIENCE_S):
            while not (found := [message for message in self.heard if is_it(message)]):
                self.heard += self.process.read() or []
                await asyncio.sleep(0.001)
        self.heard.remove(found[0])
        return found[0]

    async def ending(self) -> str:
        """Wait until the child is gone; return how it ended."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.process.has_ended:
                await asyncio.sleep(0.01)
        return self.process.ending


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    """A child that runs one job at a time."""
    line = Line(1)
    try:
        await line.hear(lambda message: isinstance(message, Hello))
        yield line
    finally:
        line.process.kill()
        await line.ending()
        line.process.close()


async def test_a_task_that_keeps_the_loop_busy_can_be_stopped(line: Line) -> None:
    line.process.send(Run(1, [claimed(task="hold")]))
    await line.hear(lambda message: isinstance(message, Reports))  # From now on the loop does not read.
    line.process.send(Stop("job_1", 1))
    assert await line.hear(lambda message: isinstance(message, Done)) == Done("job_1", 1, '"asked"')


async def test_what_waits_behind_it_is_given_back(line: Line) -> None:
    jobs = [claimed(task="hold"), claimed(task="short", job_id="job_2")]
    line.process.send(Run(1, jobs))
    line.process.send(Revoke(["job_1", "job_2"]))
    assert await line.hear(lambda message: isinstance(message, Revoked)) == Revoked(["job_2"])
    line.process.send(Stop("job_1", 1))
    assert await line.hear(lambda message: isinstance(message, Done)) == Done("job_1", 1, '"asked"')
    line.process.send(Run(3, [claimed(task="short", job_id="job_3")]))
    assert await line.hear(lambda message: isinstance(message, Done)) == Done("job_3", 1, '"done"')


async def test_questions_are_answered_at_once_also_on_a_loop_that_stands_still(line: Line) -> None:
    steps = 20
    started = time.monotonic()
    line.process.send(Run(1, [claimed(task="keep", args=f'{{"steps": {steps}}}')]))
    for number in range(1, steps + 1):
        ask = await line.hear(lambda message: isinstance(message, Ask))
        assert isinstance(ask, Ask)
        assert ask.number == number
        line.process.send(Answer(ask.number))
    assert await line.hear(lambda message: isinstance(message, Done)) == Done("job_1", 1, str(steps))
    assert time.monotonic() - started < steps * LOOK_EVERY_S, "each answer waited for a look"


async def test_a_job_that_is_stopped_before_its_first_step_makes_room(line: Line) -> None:
    line.process.send(Run(1, [claimed(task="short")]))
    line.process.send(Stop("job_1", 1))
    line.process.send(Run(2, [claimed(task="short", job_id="job_2")]))
    ended = await line.hear(lambda message: isinstance(message, Done | Stopped))
    assert ended in (Stopped("job_1", 1), Done("job_1", 1, '"done"'))  # As the packets fall.
    assert await line.hear(lambda message: isinstance(message, Done)) == Done("job_2", 1, '"done"')


async def test_messages_are_heard_in_their_order_whoever_reads_them(line: Line) -> None:
    """Some of these come while the loop is held, some while it is free."""
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


async def test_a_child_ends_when_it_is_told_to(line: Line) -> None:
    line.process.send(Finish())
    assert await line.ending() == "ended with exit code 0"


@pytest.mark.parametrize("task", [None, "hold"])
async def test_a_child_that_is_left_alone_ends_whatever_it_does(line: Line, task: str | None) -> None:
    if task is not None:
        line.process.send(Run(1, [claimed(task=task)]))
        await line.hear(lambda message: isinstance(message, Reports))
    line.process._line.shutdown(socket.SHUT_RDWR)
    assert await line.ending() == "was killed by SIGKILL"
