"""A crew whose jobs are made up: how long they take, what they say, keep and enqueue on the way, and how they end.

The code of a job is somewhere else than its supervisor: it goes on while that one is frozen, and what it says is heard
after the thaw. It ends when it is done, when the crew is told to stop or abandon it, or with its worker.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from headway.errors import LeaseLost
from headway.instants import SECOND
from headway.lifecycle import Cancelled as CancelledOutcome
from headway.lifecycle import Crashed, Outcome, Parked, Raised, Released, Succeeded, TimedOut
from headway.model import Claimed, NewJob, Report
from headway.worker.frames import Ask, TaskInfo
from headway.worker.supervisor import Supervisor
from tests.simulation.scenario import CHILDREN, TASKS

SLOTS: Final = {"loop": 4, "process": 2}
SPARE: Final = 2  # As many more may wait behind those that run.
STEPS: Final = ("fetch", "convert")
CULPRITS: Final = 0.01
ERROR: Final = '{"type":"Simulated"}'


class Stage(Protocol):
    """The world as a crew sees it."""

    def begins(self, claimed: Claimed) -> None:
        """An attempt is given to the crew."""
        ...

    def repeats_step(self, claimed: Claimed, name: str) -> None:
        """An attempt does a step that it knows no result of."""
        ...

    def saw(self, what: str) -> None:
        """Count something that a campaign wants to have seen."""
        ...

    def chance(self, whose: str) -> random.Random:
        """Return randomness of one's own."""
        ...


@dataclass(slots=True, eq=False)
class _Run:
    claimed: Claimed
    kind: str
    kept: Mapping[str, str]
    task: asyncio.Task[None] | None = None
    stop_as: Outcome | None = None


class SimulatedCrew:
    """Runs made-up jobs; the supervisor takes it for its children."""

    def __init__(
        self,
        stage: Stage,
        supervisor: Supervisor,
        knows: Sequence[str],
        *,
        heard: Callable[[], Awaitable[None]],
        new_id: Callable[[], str],
        kill: Callable[[], None],
    ) -> None:
        self._stage = stage
        self._supervisor = supervisor
        self._heard = heard
        self._new_id = new_id
        self._kill = kill
        self.tasks = {name: TaskInfo(name=name, isolation=TASKS[name]) for name in knows}
        kinds = {info.isolation for info in self.tasks.values()}
        self.kinds = {kind: frozenset(name for name in knows if TASKS[name] == kind) for kind in sorted(kinds)}
        self.is_calm = False
        self._running: dict[str, _Run] = {}
        self._waiting: deque[_Run] = deque()
        self._errands: set[asyncio.Task[Any]] = set()

    # What the supervisor wants.

    def room(self, kind: str) -> int:
        """How many more jobs of this kind can be taken."""
        held = [run for run in (*self._running.values(), *self._waiting) if run.kind == kind]
        return max(0, SLOTS[kind] + SPARE - len(held))

    def slots(self, kind: str | None = None) -> int:
        """How many jobs can run at the same time."""
        return sum(SLOTS[each] for each in self.kinds if kind in (None, each))

    def busy(self, kind: str | None = None) -> int:
        """How many jobs have begun and not ended."""
        return sum(kind in (None, run.kind) for run in self._running.values())

    def count(self) -> int:
        """There are no processes."""
        return 0

    def start(self, jobs: Sequence[Claimed], kept: Mapping[str, dict[str, str]] | None = None) -> None:
        """Run jobs."""
        for claimed in jobs:
            self._stage.begins(claimed)
            known = (kept or {}).get(claimed.job_id, {})
            self._waiting.append(_Run(claimed, self.tasks[claimed.task].isolation, known))
        self._begin()

    def stop(self, job_id: str, attempt: int, outcome: Outcome) -> None:
        """Have a job stop, which takes a while; it may be done before."""
        run = self._running.get(job_id)
        if run is not None and run.claimed.attempt == attempt and run.stop_as is None:
            run.stop_as = outcome
            delay_s = self._stage.chance(f"stop {job_id} {attempt}").choice((0.0, 0.2, 1.5))
            self._send(self._stop_after(run, delay_s))
        for waiting in [run for run in self._waiting if (run.claimed.job_id, run.claimed.attempt) == (job_id, attempt)]:
            self._waiting.remove(waiting)
            self._supervisor.ended(waiting.claimed, outcome)

    def abandon(self, job_id: str, attempt: int) -> None:
        """Kill the code of a job, without a word about its end."""
        self._waiting = deque(run for run in self._waiting if run.claimed.job_id != job_id)
        run = self._running.get(job_id)
        if run is not None and run.claimed.attempt == attempt:
            self._end(run)
            self._begin()

    def release_waiting(self, reason: str) -> None:
        """Hand back what has not begun."""
        while self._waiting:
            self._supervisor.ended(self._waiting.popleft().claimed, Released(reason))

    def release_all(self, reason: str) -> None:
        """Hand back everything now."""
        self.release_waiting(reason)
        for run in list(self._running.values()):
            self._end(run)
            self._supervisor.ended(run.claimed, run.stop_as or Released(reason))

    def watch(self) -> None:
        """Nothing happens here by time alone."""

    # What the world wants.

    def runs(self, job_id: str) -> int:
        """Return the attempt whose code runs here; 0 when none does."""
        run = self._running.get(job_id)
        return 0 if run is None else run.claimed.attempt

    def has(self, job_id: str) -> bool:
        """Say whether a job runs or waits here."""
        return job_id in self._running or any(run.claimed.job_id == job_id for run in self._waiting)

    def die(self) -> None:
        """Be gone, with everything that runs."""
        self._waiting.clear()
        for run in list(self._running.values()):
            self._end(run)
        for errand in self._errands:
            errand.cancel()

    # The code of a job.

    def _begin(self) -> None:
        for kind, slots in SLOTS.items():
            running = sum(run.kind == kind for run in self._running.values())
            for run in [run for run in self._waiting if run.kind == kind][: max(0, slots - running)]:
                self._waiting.remove(run)
                self._running[run.claimed.job_id] = run
                run.task = asyncio.get_running_loop().create_task(self._live(run))

    async def _live(self, run: _Run) -> None:
        claimed = run.claimed
        chance = self._stage.chance(f"run {claimed.job_id} {claimed.attempt}")
        if self._is_culprit(claimed):
            await asyncio.sleep(chance.choice((0.0, 0.5, 2.0)))
            await self._hears()
            if self._running.get(claimed.job_id) is run and not self.is_calm:
                self._stage.saw("worker killed by its job")
                asyncio.get_running_loop().call_soon(self._kill)
                return
        try:
            for at in range(chance.choice((0, 1, 1, 2, 4))):
                await asyncio.sleep(self._length(chance))
                await self._act(run, at, chance)
            await asyncio.sleep(self._length(chance))
            outcome = self._fate(chance, claimed)
        except LeaseLost:
            outcome = run.stop_as or Released("the task stopped by itself")
        await self._hears()
        if self._running.get(claimed.job_id) is run:
            self._end(run)
            self._supervisor.ended(claimed, outcome)
            self._take_down_neighbours(outcome)
            self._begin()
            self._supervisor.has_room()

    def _is_culprit(self, claimed: Claimed) -> bool:
        """Say whether a job kills its whole worker, whenever it runs."""
        return not self.is_calm and self._stage.chance(f"culprit {claimed.job_id}").random() < CULPRITS

    async def _act(self, run: _Run, at: int, chance: random.Random) -> None:
        claimed = run.claimed
        mark = str(claimed.attempt)  # On all that it leaves behind.
        draw = chance.random()
        if draw < 0.5:
            detail = msgspec.json.encode({"step": mark}).decode()
            lines = tuple((None, "log", mark) for _ in range(chance.choice((0, 0, 1, 2))))
            report = Report(
                job_id=claimed.job_id, attempt=claimed.attempt, progress=at * 10, detail=detail, lines=lines
            )
            await self._hears()
            self._supervisor.reported([report])
        elif draw < 0.75:
            name = chance.choice(STEPS)
            if name in run.kept:
                self._stage.saw("step reused")
            else:
                self._stage.repeats_step(claimed, name)
                await self._ask(claimed, "step", msgspec.json.encode((name, mark)).decode())
                run.kept = {**run.kept, name: mark}
        elif draw < 0.9 and claimed.queue != CHILDREN and not self.is_calm:
            key = f"{claimed.job_id}/{claimed.attempt}/{at}" if chance.random() < 0.5 else None
            child = NewJob(
                id=self._new_id(), task=chance.choice(tuple(TASKS)), queue=CHILDREN, args=f'{{"by":{mark}}}', key=key,
                delay=chance.choice((0, 0, 2)) * SECOND,
            )  # fmt: skip
            await self._ask(claimed, "enqueue", msgspec.json.encode([child]).decode())

    async def _ask(self, claimed: Claimed, question: str, body: str) -> None:
        """Ask the supervisor, who goes on with it even if the code is gone when it has the answer."""
        await self._hears()
        ask = Ask(0, claimed.job_id, claimed.attempt, question, body)
        await asyncio.shield(self._send(self._supervisor.answer(ask)))
        await self._hears()

    def _send(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        errand = asyncio.get_running_loop().create_task(coroutine)
        self._errands.add(errand)
        errand.add_done_callback(self._forget)
        return errand

    def _forget(self, errand: "asyncio.Task[Any]") -> None:
        self._errands.discard(errand)
        if not errand.cancelled() and errand.exception() is not None:
            self._stage.saw(f"answer: {type(errand.exception()).__name__}")

    async def _hears(self) -> None:
        """Wait while the supervisor is frozen: it hears everything after the thaw."""
        await self._heard()

    async def _stop_after(self, run: _Run, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self._hears()
        if self._running.get(run.claimed.job_id) is run and run.stop_as is not None:
            self._end(run)
            self._supervisor.ended(run.claimed, run.stop_as)
            self._begin()

    def _take_down_neighbours(self, outcome: Outcome) -> None:
        """A job that kills its process takes others with it, who have done nothing."""
        if isinstance(outcome, Crashed):
            for run in list(self._running.values()):
                if run.kind == "loop":
                    self._end(run)
                    self._supervisor.ended(run.claimed, run.stop_as or Released("handed back: its process died"))

    def _end(self, run: _Run) -> None:
        del self._running[run.claimed.job_id]
        if run.task is not None and run.task is not asyncio.current_task():
            run.task.cancel()

    def _length(self, chance: random.Random) -> float:
        length_s = chance.choice((0.0, 0.0, 0.0, 0.3, 0.3, 1.0, 1.0, 2.0, 9.0, 20.0))
        return min(length_s, 1.0) if self.is_calm else length_s

    def _fate(self, chance: random.Random, claimed: Claimed) -> Outcome:
        if chance.random() < 0.7 or self.is_calm:
            return Succeeded(str(claimed.attempt))
        fates: tuple[Outcome, ...] = (
            Raised(ERROR),
            Raised(ERROR, retryable=False),
            Raised(ERROR, retry_in=SECOND),
            Crashed(ERROR),
            TimedOut(ERROR),
            CancelledOutcome("it said so"),
            Parked("arguments that nobody understands", "arguments"),
            Released("handed back"),
        )
        return chance.choice(fates)
