"""Who lives in the simulated world: scheduler nodes, workers, and an operator who changes things."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from headway.errors import Conflict, InvalidSchedule, NotFound, StoreUnavailable
from headway.instants import SECOND, Duration, Instant
from headway.lifecycle import Attempt, Backoff, Cancelled, Outcome, Raised, Released, Settlement, Succeeded, TimedOut
from headway.lifecycle import settle as settle_attempt
from headway.model import Job, NewJob
from headway.node import EngineNode, World
from headway.store import Store
from tests.simulation.faults import NO_MISHAPS, FaultyDriver, Gate, GatedClock, Sea
from tests.simulation.scenario import QUEUES, Mishaps, Scenario, draw_spec

REPEATS_MAX: Final = 3
SLOTS: Final = 4


class Place(Sea, Protocol):
    """The world as an actor sees it."""

    scenario: Scenario
    mishaps: Mishaps

    def store_now(self) -> Instant:
        """Return the store's time, which is the true one."""
        ...

    def chance(self, whose: str) -> random.Random:
        """Return randomness of one's own."""
        ...

    def log(self, actor: str, *what: object) -> None:
        """Say what happens, for people."""
        ...

    def fail(self, problem: BaseException) -> None:
        """End the simulation: something is wrong."""
        ...


class Process:
    """One incarnation of a process: its clock, its way to the store, and what can happen to it."""

    def __init__(self, place: Place, id_: str, hurt: Callable[[str], None]) -> None:
        self.id = id_
        self.gate = Gate()
        self.skew: Duration = 0
        self._place = place
        chance = place.chance(id_)
        self.driver = FaultyDriver(place, id_, self.gate, chance, hurt)
        loop = asyncio.get_running_loop()
        since, rate = chance.uniform(0, 1e5), 1 + chance.uniform(-2e-4, 2e-4)
        self.clock = GatedClock(
            monotonic=lambda: since + loop.time() * rate,
            wall=lambda: place.store_now() + self.skew,
            chance=chance,
            node=id_,
        )
        self.clock.gate = self.gate
        self.store = Store.on(self.driver, self.clock)

    def freeze(self, seconds: float) -> None:
        """Stand still for a while."""
        if not self.gate.is_frozen:
            self._place.saw("freeze")
            self._place.log(self.id, f"freezes for {seconds:.1f} s")
            self.gate.freeze()
            asyncio.get_running_loop().call_later(seconds, self.thaw)

    def thaw(self) -> None:
        """Go on, with whatever it believed before."""
        if self.gate.is_frozen:
            self._place.log(self.id, "thaws")
            self.gate.thaw()


class NodeActor:
    """One scheduler process after another in the same place."""

    def __init__(self, place: Place, index: int) -> None:
        self._place = place
        self._index = index
        self._incarnation = 0
        self._is_stopping = False
        self._chance = place.chance(f"node {index}")
        self.process: Process | None = None
        self.node: EngineNode | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def is_alive(self) -> bool:
        """Say whether the process runs."""
        return self.task is not None and not self.task.done()

    @property
    def stays(self) -> bool:
        """Say whether the process runs and was neither killed nor told to stop."""
        return self.is_alive and not self._is_stopping and self.process is not None and not self.process.gate.is_dead

    def start(self) -> None:
        """Start a new incarnation, unless one runs."""
        if self.is_alive:
            return
        self._incarnation += 1
        self._is_stopping = False
        # Their order must not follow from their age, or the fair shares would hide mistakes.
        process = Process(self._place, f"node_{self._chance.getrandbits(20):05x}_{self._index}", self._hurt)
        process.skew = self._chance.choice((0, 0, 3600, -3600)) * SECOND
        process.driver.mishaps = self._place.mishaps
        store = process.store
        world = World(ledger=store.ledger, queue=store.queue, leases=store.leases, nodes=store.nodes, watch=store.watch)
        self.process, self.node = process, EngineNode(world, self._place.scenario.settings, process.clock)
        self.task = asyncio.get_running_loop().create_task(self.node.run(), name=process.id)
        self.task.add_done_callback(self._ended)
        self._place.log(process.id, "starts")

    def crash(self, *, again_after_s: float | None = None) -> None:
        """Die without a word; perhaps come back as somebody else."""
        if self.task is None or self.process is None or not self.is_alive or self.process.gate.is_dead:
            return
        self._place.saw("crash")
        self._place.log(self.process.id, "crashes holding", self.holds())
        self.process.gate.is_dead = True
        self.process.gate.thaw()
        self.task.cancel()
        if again_after_s is not None:
            asyncio.get_running_loop().call_later(again_after_s, self._restart)

    def _restart(self) -> None:
        if self._place.mishaps is not NO_MISHAPS:  # In peace nobody comes, so that nobody has to hand anything over.
            self.start()

    def stop(self) -> None:
        """End in good order."""
        if self.node is not None and self.process is not None and self.is_alive:
            self._place.log(self.process.id, "stops")
            self._is_stopping = True
            self.node.stop()

    def holds(self) -> dict[str, int]:
        """Return the roles in which this node would act now."""
        if self.node is None or self.process is None or not self.is_alive or self.process.gate.is_dead:
            return {}
        return self.node.holds()

    def calm(self) -> None:
        """Let nothing more happen to it."""
        if self.process is not None:
            self.process.driver.mishaps = NO_MISHAPS
            self.process.gate.thaw()

    def _hurt(self, mishap: str) -> None:
        lease_s = self._place.scenario.lease_s
        if mishap == "crash":
            self.crash(again_after_s=self._chance.uniform(0.1, 2.0) * lease_s)
        elif self.process is not None:
            self.process.freeze(self._chance.uniform(0.3, 2.5) * lease_s)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._place.fail(error)


@dataclass(slots=True)
class _Run:
    job: Job
    ends_at: float
    outcome: Outcome | None


class WorkerActor:
    """Claims, extends, settles, and sometimes dies with what it holds."""

    def __init__(self, place: Place, index: int) -> None:
        self._place = place
        self._index = index
        self._chance = place.chance(f"worker {index}")
        self._wake = asyncio.Event()
        self._running: dict[str, _Run] = {}
        self._lives = 0
        self._process = self._born()
        self.is_calm = False

    async def run(self) -> None:
        """Work for ever."""
        await self._process.driver.watch(self._hear)
        while True:
            self._wake.clear()
            with suppress(StoreUnavailable):
                await self._work()
            await self._process.clock.rest(self._chance.uniform(0.5, 3.0), self._wake)

    def calm(self) -> None:
        """Let nothing more happen to it."""
        self.is_calm = True
        self._process.driver.mishaps = NO_MISHAPS
        self._process.gate.thaw()

    def _hear(self, topic: str) -> None:
        if topic.startswith("ready"):
            self._wake.set()

    def _born(self) -> Process:
        self._lives += 1
        process = Process(self._place, f"worker_{self._index}_{self._lives}", self._hurt)
        process.driver.mishaps = self._place.mishaps
        return process

    def _hurt(self, mishap: str) -> None:
        if mishap == "freeze":
            self._process.freeze(self._chance.uniform(0.5, 2.0) * self._lease / SECOND)
        else:
            self._running.clear()  # Dead, and restarted: what it ran is left to the janitor.

    @property
    def _lease(self) -> Duration:
        return self._place.scenario.settings.worker_lease

    async def _work(self) -> None:
        queue, now = self._process.store.queue, asyncio.get_running_loop().time()
        if self._running:
            attempts = [(run.job.id, run.job.attempt) for run in self._running.values()]
            extended = await queue.extend(attempts, lease=self._lease)
            self._heed(extended)
            done = [run for run in self._running.values() if run.outcome is not None and run.ends_at <= now]
            if done:
                stale = await queue.settle([self._settlement(run) for run in done])
                for run in done:
                    self._running.pop(run.job.id, None)
                if stale:
                    self._place.saw("stale attempt refused")
        free = SLOTS - len(self._running)
        if free:
            claimed = await queue.claim(
                self._chance.choice(QUEUES), node=self._process.id, lease=self._lease, limit=free
            )
            for job in claimed:
                self._running[job.id] = _Run(job, now + self._length(), self._fate())

    def _heed(self, extended: dict[str, bool]) -> None:
        for job_id, run in tuple(self._running.items()):
            if job_id not in extended:
                # A good worker stops here. One that was settled without hearing so must be refused by the store.
                if self._chance.random() < 0.5 or self.is_calm:
                    del self._running[job_id]
            elif extended[job_id]:
                run.outcome, run.ends_at = Cancelled(), 0.0

    def _length(self) -> float:
        return self._chance.choice((0.0, 0.0, 0.5, 1.0, 2.0, 6.0, 15.0 if not self.is_calm else 1.0))

    def _fate(self) -> Outcome | None:
        draw = self._chance.random()
        if draw < 0.7 or self.is_calm:
            return Succeeded("1")
        fates: tuple[Outcome, ...] = (
            Raised('{"type":"Simulated"}'),
            Raised('{"type":"Simulated"}', retryable=False),
            Raised('{"type":"Simulated"}', retry_in=SECOND),
            TimedOut('{"type":"Simulated"}'),
            Released(),
        )
        return self._chance.choice(fates)

    def _settlement(self, run: _Run) -> Settlement:
        job = run.job
        attempt = Attempt(
            job_id=job.id,
            attempt=job.attempt,
            failures=job.failures,
            max_attempts=job.max_attempts,
            schedule=job.schedule,
            backoff=job.backoff or Backoff(),
        )
        assert run.outcome is not None
        return settle_attempt(attempt, run.outcome, self._chance.random())


class OperatorActor:
    """Changes schedules and jobs, and repeats what it did not hear an answer to."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._chance = place.chance("operator")
        self._process = self._born()
        self._lives = 0
        self._names = [f"schedule-{index}" for index in range(place.scenario.schedules)]
        self._keys = 0

    async def set_up(self) -> None:
        """Create the schedules, in peace."""
        now = self._place.store_now()
        self._process.driver.mishaps = NO_MISHAPS
        for name in self._names:
            spec = draw_spec(self._chance, now)
            await self._process.store.schedules.put(name, spec, author="operator", may_be_over=True)

    async def run(self) -> None:
        """Do something every few seconds."""
        while True:
            await asyncio.sleep(self._chance.uniform(0.5, 9.0))
            if self._chance.random() < 0.3:
                self._process = self._born()  # Another command line, with a clock that was never compared.
            act = self._draw()
            for _ in range(REPEATS_MAX):
                try:
                    await act()
                    break
                except StoreUnavailable:
                    self._place.saw("operator repeats")
                except (InvalidSchedule, NotFound, Conflict):
                    break

    def _born(self) -> Process:
        self._lives = getattr(self, "_lives", 0) + 1
        process = Process(self._place, f"operator_{self._lives}", lambda mishap: None)
        process.skew = self._chance.choice((0, 0, 3600, -3600)) * SECOND
        process.driver.mishaps = self._place.mishaps
        return process

    def _draw(self) -> "Callable[[], asyncio.Future[object]]":
        name = self._chance.choice(self._names)
        acts = (
            (4, self._edit),
            (1, self._remove),
            (3, self._pause),
            (3, self._resume),
            (4, self._trigger),
            (2, self._backfill),
            (2, self._enqueue),
            (3, self._cancel),
        )
        act = self._chance.choices([act for _, act in acts], [weight for weight, _ in acts])[0]
        return act(name)  # type: ignore[return-value]

    def _edit(self, name: str) -> object:
        spec = draw_spec(self._chance, self._place.store_now())
        self._place.log("operator", "puts", name, spec.to_json())
        return lambda: self._process.store.schedules.put(name, spec, author="operator")

    def _remove(self, name: str) -> object:
        self._place.log("operator", "removes", name)
        return lambda: self._process.store.schedules.remove(name, author="operator")

    def _pause(self, name: str) -> object:
        seconds = self._chance.choice((None, 2, 10, 30))
        until = None if seconds is None else self._place.store_now() + seconds * SECOND
        self._place.log("operator", "pauses", name, seconds)
        return lambda: self._process.store.schedules.pause(name, author="operator", until=until)

    def _resume(self, name: str) -> object:
        self._place.log("operator", "resumes", name)
        return lambda: self._process.store.schedules.resume(name, author="operator")

    def _trigger(self, name: str) -> object:
        self._place.log("operator", "triggers", name)
        return lambda: self._process.store.schedules.trigger(name, author="operator")

    def _backfill(self, name: str) -> object:
        now = self._place.store_now()
        since = now - self._chance.randint(5, 60) * SECOND
        until, again = since + self._chance.randint(5, 20) * SECOND, self._chance.random() < 0.3
        self._place.log("operator", "backfills", name, since, until)
        return lambda: self._process.store.schedules.backfill(name, since, until, again=again, author="operator")

    def _enqueue(self, name: str) -> object:
        self._keys += 1
        ids, chance = self._process.clock, self._chance
        key = None if chance.random() < 0.2 else f"key-{self._keys}"
        queue, delay = chance.choice(QUEUES), chance.choice((0, 0, 3)) * SECOND

        async def act() -> None:
            job = NewJob(id=ids.new_id("job"), task="work", key=key, queue=queue, delay=delay)
            await self._process.store.queue.enqueue([job])

        return act

    def _cancel(self, name: str) -> object:
        async def act() -> None:
            queue = self._process.store.queue
            jobs = await queue.page(schedule=name, limit=8)
            live = [job for job in jobs if not job.status.is_final]
            if live:
                job = self._chance.choice(live)
                self._place.log("operator", "cancels", job.id, job.status)
                await queue.cancel(job.id, author="operator")

        return act
