"""A simulated child process: the duration of its jobs, what they log, keep and enqueue, and how they end.

It uses the real protocol: the real `Inbox` on a page that it shares with the real child pool, and the messages of
`ipc.py`. It continues while its supervisor is frozen; its messages are received after the thaw. It can also pause
itself, for any time.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from headway.core.errors import LeaseLost
from headway.core.instants import SECOND
from headway.core.jobs import Claimed, NewJob, Report
from headway.worker.handover import Inbox
from headway.worker.ipc import (
    CancelRaised,
    Done,
    Failed,
    Finish,
    Hello,
    Reports,
    Run,
    Skipped,
    Stop,
    Stopped,
    StoreRequest,
    StoreResponse,
    TaskInfo,
    ToChild,
    ToSupervisor,
    Unrunnable,
)
from tests.simulation.scenario import CHILDREN, TASKS, with_limits

STEPS: Final = ("fetch", "convert")
CULPRITS: Final = 0.01
ERROR: Final = '{"type":"Simulated"}'
TIMEOUT: Final = 40 * SECOND


class Stage(Protocol):
    """The world as a child sees it."""

    def begins(self, claimed: Claimed) -> None:
        """Record that the code of an attempt begins."""
        ...

    def repeats_step(self, claimed: Claimed, name: str) -> None:
        """Record that an attempt executes a step of which it knows no result."""
        ...

    def saw(self, what: str) -> None:
        """Count an event of the campaign."""
        ...

    def chance(self, whose: str) -> random.Random:
        """Return a random generator for one child."""
        ...


@dataclass(slots=True)
class ProcessState:
    """State that the children of one worker share."""

    stage: Stage
    knows: tuple[str, ...]
    heard: Callable[[], Awaitable[None]]
    is_frozen: Callable[[], bool]
    new_id: Callable[[], str]
    kill_worker: Callable[[], None]
    is_calm: bool = False
    has_limits: bool = False


@dataclass(slots=True)
class Memory:
    """The shared page."""

    begun: int = 0
    ended: int = 0
    withdrawn: int = 0

    def fence(self) -> None:
        """Do nothing: the steps are sequential anyway."""


@dataclass(slots=True, eq=False)
class _Run:
    claimed: Claimed
    number: int
    kept: dict[str, str]
    answers: dict[int, "asyncio.Future[StoreResponse]"] = field(default_factory=dict)
    task: "asyncio.Task[None] | None" = None


class SimulatedChild:
    """Implements the interface of `ChildProcess`."""

    ending = "was killed by SIGKILL"

    def __init__(self, around: ProcessState, kind: str, width: int, mark: str, pid: int) -> None:
        self._around = around
        self._kind = kind
        self._width = width
        self.pid = pid
        self.mark = mark
        self.counters = Memory()
        self.has_ended = False
        self.running: dict[str, _Run] = {}
        self._inbox: Inbox[Claimed] = Inbox(self.counters)
        self._kept: dict[str, dict[str, str]] = {}
        self._is_finishing = False
        self._unread: deque[ToChild] = deque()
        self._said: list[ToSupervisor] = []
        self._asked = 0
        self._awake = asyncio.Event()
        self._awake.set()
        self._errands: dict[asyncio.Task[None], None] = {}  # In order, which must depend only on the seed.
        self._readable: Callable[[], None] = lambda: None
        self._died: Callable[[], None] = lambda: None

    # The interface for the child pool.

    def watch(self, readable: Callable[[], None], died: Callable[[], None]) -> None:
        """Register the callbacks for readable messages and for death."""
        self._readable, self._died = readable, died
        self._do(self._greet())

    def read(self) -> list[ToSupervisor]:
        """Return the messages that have arrived."""
        said, self._said = self._said, []
        return said

    def last_words(self) -> Iterator[list[ToSupervisor]]:
        """Yield the messages that it sent before it died."""
        yield self.read()

    def send(self, message: ToChild) -> None:
        """Send a message; it arrives a moment later, in order."""
        if not self.has_ended:
            self._unread.append(message)
            self._do(self._listen())

    def signal(self, number: int) -> None:
        """Interrupt the running job."""
        for run in list(self.running.values()):
            self._end(run, Stopped(run.claimed.job_id, run.claimed.attempt))

    def kill(self) -> None:
        """Die with everything that runs."""
        if self.has_ended:
            return
        self.has_ended = True
        for run in self.running.values():
            if run.task is not None and run.task is not asyncio.current_task():
                run.task.cancel()
        self.running.clear()
        self._do(self._tell_of_death())

    def resident_bytes(self) -> int:
        """Return zero."""
        return 0

    def close(self) -> None:
        """Do nothing."""

    # The interface for the simulation.

    def pause(self, seconds: float) -> None:
        """Pause for a while."""
        if self._awake.is_set() and not self.has_ended:
            self._around.stage.saw("child paused")
            self._awake.clear()
            asyncio.get_running_loop().call_later(seconds, self._awake.set)

    def vanish(self) -> None:
        """Disappear with the worker, without a notification."""
        self.has_ended = True
        for task in [*self._errands, *(run.task for run in self.running.values() if run.task is not None)]:
            if task is not asyncio.current_task():
                task.cancel()
        self.running.clear()

    # The process.

    async def _greet(self) -> None:
        await asyncio.sleep(0.3)
        infos = [TaskInfo(name=name, isolation=TASKS[name], timeout=TIMEOUT) for name in self._around.knows]
        self._say(Hello(self.pid, "app", "", infos, {}))

    async def _listen(self) -> None:
        await asyncio.sleep(0.0002)
        await self._awake.wait()
        while self._unread and not self.has_ended:
            message = self._unread.popleft()
            match message:
                case Run(first, jobs, _, kept):
                    self._kept.update(kept)
                    self._inbox.put(first, jobs)
                case Stop(job_id, attempt):
                    self._stop(job_id, attempt)
                case StoreResponse(number):
                    for run in self.running.values():
                        if (answered := run.answers.pop(number, None)) is not None and not answered.done():
                            answered.set_result(message)
                case Finish():
                    self._is_finishing = True
        self._begin()

    def _begin(self) -> None:
        if self.has_ended or not self._awake.is_set():
            return
        while len(self.running) < self._width and (begun := self._inbox.begin()) is not None:
            number, claimed = begun
            if not self._around.is_frozen():  # A frozen supervisor cannot withdraw anything.
                self._around.stage.begins(claimed)
            run = _Run(claimed, number, dict(self._kept.pop(claimed.job_id, {})))
            self.running[claimed.job_id] = run
            run.task = asyncio.get_running_loop().create_task(self._live(run))
        skipped = self._inbox.skip()
        if skipped:
            self._around.stage.saw("job left out")
            self._say(Skipped(skipped[0][0], skipped[-1][0]))
            self._begin()
        if self._is_finishing and not self.running and not len(self._inbox):
            self.kill()

    def _stop(self, job_id: str, attempt: int) -> None:
        run = self.running.get(job_id)
        if run is not None and run.claimed.attempt == attempt:
            delay_s = self._around.stage.chance(f"stop {job_id} {attempt}").choice((0.0, 0.2, 1.5, 9.0))
            self._do(self._stop_after(run, delay_s))

    async def _stop_after(self, run: _Run, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self._awake.wait()
        if self.running.get(run.claimed.job_id) is run:
            self._end(run, Stopped(run.claimed.job_id, run.claimed.attempt))

    def _end(self, run: _Run, message: ToSupervisor) -> None:
        del self.running[run.claimed.job_id]
        if run.task is not None and run.task is not asyncio.current_task():
            run.task.cancel()
        self.counters.ended = run.number
        self._say(message)
        self._begin()

    def _say(self, message: ToSupervisor) -> None:
        self._said.append(message)
        self._do(self._deliver())

    async def _deliver(self) -> None:
        await asyncio.sleep(0.0002)
        await self._around.heard()
        if not self.has_ended:
            self._readable()

    async def _tell_of_death(self) -> None:
        await asyncio.sleep(0)
        await self._around.heard()
        self._died()

    def _do(self, coroutine: Coroutine[Any, Any, None]) -> None:
        errand = asyncio.get_running_loop().create_task(coroutine)
        self._errands[errand] = None
        errand.add_done_callback(lambda done: self._errands.pop(done, None))

    # The code of a job.

    async def _live(self, run: _Run) -> None:
        claimed, around = run.claimed, self._around
        chance = around.stage.chance(f"run {claimed.job_id} {claimed.attempt}")
        if self._is_culprit(claimed):
            await asyncio.sleep(chance.choice((0.0, 0.5, 2.0)))
            if self.running.get(claimed.job_id) is run and not around.is_calm:
                around.stage.saw("worker killed by its job")
                asyncio.get_running_loop().call_soon(around.kill_worker)
                return
        try:
            for at in range(chance.choice((0, 1, 1, 2, 4))):
                await self._take_time(chance)
                await self._act(run, at, chance)
            await self._take_time(chance)
            message = self._fate(chance, claimed)
        except LeaseLost:
            around.stage.saw("answer: LeaseLost")
            message = Stopped(claimed.job_id, claimed.attempt)
        if self.running.get(claimed.job_id) is run:
            if message is None:
                around.stage.saw("child crashed with jobs" if len(self.running) > 1 else "child crashed")
                self.kill()
            else:
                self._end(run, message)

    def _is_culprit(self, claimed: Claimed) -> bool:
        """Return whether a job kills its whole worker whenever it runs."""
        return not self._around.is_calm and self._around.stage.chance(f"culprit {claimed.job_id}").random() < CULPRITS

    async def _take_time(self, chance: random.Random) -> None:
        length_s = chance.choice((0.0, 0.0, 0.0, 0.3, 0.3, 1.0, 1.0, 2.0, 9.0, 20.0))
        await asyncio.sleep(min(length_s, 1.0) if self._around.is_calm else length_s)
        await self._awake.wait()

    async def _act(self, run: _Run, at: int, chance: random.Random) -> None:
        claimed = run.claimed
        mark = str(claimed.attempt)  # Marks everything that it writes.
        draw = chance.random()
        if draw < 0.5:
            detail = msgspec.json.encode({"step": mark}).decode()
            lines = tuple((None, "log", mark) for _ in range(chance.choice((0, 0, 1, 2))))
            self._say(Reports([Report(
                job_id=claimed.job_id, attempt=claimed.attempt, progress=at * 10, detail=detail, lines=lines
            )]))  # fmt: skip
        elif draw < 0.75:
            name = chance.choice(STEPS)
            if name in run.kept:
                self._around.stage.saw("step reused")
            else:
                self._around.stage.repeats_step(claimed, name)
                await self._ask(run, "step", msgspec.json.encode((name, mark)).decode())
                run.kept = {**run.kept, name: mark}
        elif draw < 0.9 and claimed.queue != CHILDREN and not self._around.is_calm:
            key = f"{claimed.job_id}/{claimed.attempt}/{at}" if chance.random() < 0.5 else None
            child = NewJob(
                id=self._around.new_id(), task=chance.choice(tuple(TASKS)), queue=CHILDREN, args=f'{{"by":{mark}}}',
                key=key, delay=chance.choice((0, 0, 2)) * SECOND,
            )  # fmt: skip
            if self._around.has_limits:
                limits = self._around.stage.chance(f"limits {claimed.job_id} {claimed.attempt} {at}")
                child = with_limits(child, limits)
            await self._ask(run, "enqueue", msgspec.json.encode([child]).decode())

    async def _ask(self, run: _Run, question: str, body: str) -> None:
        """Send a request to the supervisor and wait for the response."""
        self._asked += 1
        run.answers[self._asked] = asyncio.get_running_loop().create_future()
        answered = run.answers[self._asked]
        self._say(StoreRequest(self._asked, run.claimed.job_id, run.claimed.attempt, question, body))
        answer = await answered
        if answer.is_lost:
            raise LeaseLost(answer.error)

    def _fate(self, chance: random.Random, claimed: Claimed) -> ToSupervisor | None:
        """Draw how a job ends; None if it crashes its process."""
        job_id, attempt = claimed.job_id, claimed.attempt
        if chance.random() < 0.7 or self._around.is_calm:
            return Done(job_id, attempt, str(attempt))
        fates = (
            Failed(job_id, attempt, ERROR),
            Failed(job_id, attempt, ERROR, retryable=False),
            Failed(job_id, attempt, ERROR, retry_in=SECOND),
            None,
            CancelRaised(job_id, attempt, "it said so"),
            Unrunnable(job_id, attempt, "arguments that nobody understands", "arguments"),
            Stopped(job_id, attempt),
        )
        return chance.choice(fates)
