"""The actors of the simulation: scheduler nodes, workers, and an operator who changes things."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, Protocol

import msgspec

from headway.core.errors import Conflict, InvalidLimit, InvalidSchedule, NotFound, StoreUnavailable
from headway.core.instants import SECOND, Duration, Instant
from headway.core.jobs import Claimed, NewJob
from headway.core.limits import Limit
from headway.core.settings import Settings
from headway.core.tenants import Tenant
from headway.store import Store
from headway.testing.child_pool import Gate
from headway.wiring.node import EngineNode, NodePorts
from headway.worker.supervisor import Supervisor
from tests.simulation.child import ProcessState
from tests.simulation.child_pool import SimulatedChildPool
from tests.simulation.faults import NO_MISHAPS, FaultyDriver, GatedClock, Sea
from tests.simulation.scenario import QUEUES, TASKS, TENANTS, Mishaps, Scenario, draw_limit, draw_spec, with_limits

REPEATS_MAX: Final = 3


class Place(Sea, Protocol):
    """The world as an actor sees it."""

    scenario: Scenario
    mishaps: Mishaps

    def store_now(self) -> Instant:
        """Return the store's time, which is the true one."""
        ...

    def chance(self, whose: str) -> random.Random:
        """Return a random generator for one actor."""
        ...

    def log(self, actor: str, *what: object) -> None:
        """Log an event for people who replay the seed."""
        ...

    def fail(self, problem: BaseException) -> None:
        """End the simulation with an error."""
        ...

    def ask_node(self, node_id: str, what: str) -> bool:
        """Send a request to a node through the store; False if the node is not registered."""
        ...

    def begins(self, claimed: Claimed) -> None:
        """Record that an attempt was passed to a child pool."""
        ...

    def repeats_step(self, claimed: Claimed, name: str) -> None:
        """Record that an attempt executes a step of which it knows no result."""
        ...


class Process:
    """One incarnation of a process: its clock, its connection to the store, and its faults."""

    def __init__(self, place: Place, id_: str, hurt: Callable[[str], None]) -> None:
        self.id = id_
        self.gate = Gate()
        self.skew: Duration = 0
        self.thawed_at = -1e9
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
        """Freeze for a while."""
        if not self.gate.is_frozen:
            self._place.saw("freeze")
            self._place.log(self.id, f"freezes for {seconds:.1f} s")
            self.gate.freeze()
            asyncio.get_running_loop().call_later(seconds, self.thaw)

    def thaw(self) -> None:
        """Resume with the state from before the freeze."""
        if self.gate.is_frozen:
            self._place.log(self.id, "thaws")
            self.thawed_at = asyncio.get_running_loop().time()
            self.gate.thaw()

    def reconnect(self) -> None:
        """Reach the store again."""
        self.driver.is_cut_off = False


class NodeActor:
    """A sequence of scheduler processes in the same place."""

    kind = "node"

    def __init__(self, place: Place, index: int) -> None:
        self._place = place
        self._index = index
        self._incarnation = 0
        self._is_stopping = False
        self._chance = place.chance(f"{self.kind} {index}")
        self.process: Process | None = None
        self.node: EngineNode | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self.task is not None and not self.task.done()

    @property
    def stays(self) -> bool:
        """Return whether the process runs and was neither killed nor told to stop."""
        return self.is_alive and not self._is_stopping and self.process is not None and not self.process.gate.is_dead

    def start(self) -> None:
        """Start a new incarnation, unless one runs."""
        if self.is_alive:
            return
        self._incarnation += 1
        self._is_stopping = False
        # The order of ids must not follow the order of starts, or fair shares would hide mistakes.
        process = Process(self._place, f"{self.kind}_{self._chance.getrandbits(20):05x}_{self._index}", self._hurt)
        process.skew = self._chance.choice((0, 0, 3600, -3600)) * SECOND
        process.driver.mishaps = self._place.mishaps
        store = process.store
        world = NodePorts(
            ledger=store.ledger,
            housekeeping=store.housekeeping,
            leases=store.leases,
            nodes=store.nodes,
            watch=store.watch,
            lanes=store.limits if self._place.scenario.has_limits else None,
        )
        settings = replace(self._place.scenario.settings, node=f"{self.kind}-{self._index}")
        self.process, self.node = process, self._make(process, world, settings)
        self.task = asyncio.get_running_loop().create_task(self.node.run(), name=process.id)
        self.task.add_done_callback(self._ended)
        self._place.log(process.id, "starts")

    def _make(self, process: Process, world: NodePorts, settings: Settings) -> EngineNode:
        return EngineNode(world, settings, process.clock)

    def crash(self, *, again_after_s: float | None = None) -> None:
        """Die without cleanup; perhaps restart as another node."""
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
        if self._place.mishaps is not NO_MISHAPS:  # None joins in the quiet phase.
            self.start()

    def ask_to_drain(self) -> None:
        """Drain the node, as an operator would."""
        if self.process is not None and self.stays:
            self._place.log(self.process.id, "is asked to drain")
            if self._place.ask_node(self.process.id, "drain"):  # False if the store does not know it yet.
                self._place.saw("asked to drain")
                self._is_stopping = True

    def stop(self) -> None:
        """Stop cleanly."""
        if self.node is not None and self.process is not None and self.is_alive:
            self._place.log(self.process.id, "stops")
            self._is_stopping = True
            self.node.stop()

    def holds(self) -> dict[str, int]:
        """Return the roles that this node holds now."""
        if self.node is None or self.process is None or not self.is_alive or self.process.gate.is_dead:
            return {}
        return self.node.holds()

    def calm(self) -> None:
        """Inject no more faults here."""
        if self.process is not None:
            self.process.driver.mishaps = NO_MISHAPS
            self.process.reconnect()
            self.process.thaw()

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


class WorkerActor(NodeActor):
    """A sequence of worker processes with the same name: a real supervisor with a simulated child pool."""

    kind = "worker"

    def __init__(self, place: Place, index: int) -> None:
        super().__init__(place, index)
        self.child_pool: SimulatedChildPool | None = None
        self._supervisor: Supervisor | None = None

    def knows(self) -> tuple[str, ...]:
        """Return the tasks of this worker; only the first worker knows all of them."""
        return tuple(name for name in TASKS if name != "rare" or self._index == 0)

    def queues(self) -> tuple[str, ...]:
        """Return the queues of this worker; none means all, as for the first worker."""
        own = self._place.chance(f"queues of {self.kind} {self._index}")
        return () if self._index == 0 or own.random() < 0.5 else (own.choice(QUEUES),)

    def _make(self, process: Process, world: NodePorts, settings: Settings) -> EngineNode:
        work, clock = process.store.work, process.clock
        is_calm = self._place.mishaps is NO_MISHAPS
        around = ProcessState(
            stage=self._place,
            knows=self.knows(),
            heard=process.gate.passed,
            is_frozen=lambda: process.gate.is_frozen,
            new_id=lambda: clock.new_id("job"),
            kill_worker=lambda: self._killed(process),
            is_calm=is_calm,
            has_limits=self._place.scenario.has_limits,
        )
        self.child_pool = SimulatedChildPool(around, clock)
        self._supervisor = supervisor = Supervisor(
            work,
            self.child_pool,
            clock=clock,
            lease=settings.worker_lease,
            poll=settings.poll,
            queues=self.queues(),
        )
        schedules = self._chance.random() < 0.3 and not is_calm
        return EngineNode(world, settings, clock, schedules=schedules, supervisor=supervisor)

    def _killed(self, process: Process) -> None:
        """Die because of a job."""
        if self.process is process:
            self.crash(again_after_s=self._chance.uniform(0.1, 1.0) * self._place.scenario.job_lease_s)

    def pause_a_child(self) -> None:
        """Pause one child process for a while."""
        if self.child_pool is not None and self.stays and self.child_pool.children:
            self._chance.choice(self.child_pool.children).pause(self._chance.choice((0.6, 2.0, 12.0)))

    def crash(self, *, again_after_s: float | None = None) -> None:
        """Die together with all children."""
        if self.stays and self.child_pool is not None:
            self.child_pool.die()
        super().crash(again_after_s=again_after_s)

    def calm(self) -> None:
        """Inject no more faults here."""
        super().calm()
        if self.child_pool is not None:
            self.child_pool.calm()

    def hurry(self) -> None:
        """End at once, and release running jobs."""
        if self.node is not None and self.process is not None and self.is_alive:
            self._place.log(self.process.id, "hurries")
            self._is_stopping = True
            self.node.hurry()

    def freeze_past_its_leases(self) -> None:
        """Freeze for longer than a job's lease."""
        if self.process is not None and self.is_alive:
            self.process.freeze(self._chance.uniform(1.1, 2.5) * self._place.scenario.job_lease_s)

    @property
    def is_awake(self) -> bool:
        """Return whether the supervisor lives and was not frozen recently."""
        process = self.process
        if process is None or not self.is_alive or process.gate.is_dead or process.gate.is_frozen:
            return False
        return asyncio.get_running_loop().time() - process.thawed_at > 1.0

    @property
    def keeps_others_out(self) -> bool:
        """Return whether it claims nothing because a job has to run alone."""
        return self._supervisor is not None and self._supervisor.claimer.keeps_others_out

    def takes(self, task: str, queue: str) -> bool:
        """Return whether jobs of this task and queue are for this worker."""
        is_ours = not self.queues() or queue in self.queues()
        return is_ours and self.child_pool is not None and task in self.child_pool.tasks

    def has_free_slot(self, task: str, queue: str) -> bool:
        """Return whether a job of this task and queue could begin here now."""
        child_pool = self.child_pool
        return child_pool is not None and self.takes(task, queue) and child_pool.has_free_slot(TASKS[task])

    def runs(self, job_id: str) -> int:
        """Return the attempt whose code runs here; 0 if none does."""
        return self.child_pool.runs(job_id) if self.child_pool is not None and self.is_alive else 0


class OperatorActor:
    """Changes schedules and jobs, and repeats calls whose response was lost."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._chance = place.chance("operator")
        self._process = self._born()
        self._lives = 0
        self._names = [f"schedule-{index}" for index in range(place.scenario.schedules)]
        self._keys = 0
        self._limits = place.chance("limits of jobs") if place.scenario.has_limits else None

    async def set_up(self) -> None:
        """Create the schedules, without faults."""
        now = self._place.store_now()
        self._process.driver.mishaps = NO_MISHAPS
        for name in self._names:
            spec = draw_spec(self._chance, now)
            await self._process.store.schedules.put(name, spec, author="operator", may_be_over=True)

    async def enqueue_some(self, count: int = 5) -> None:
        """Enqueue some jobs at once, without faults."""
        process = self._process = self._born()
        process.driver.mishaps = NO_MISHAPS
        jobs = [
            NewJob(id=process.clock.new_id("job"), task="work", queue=self._chance.choice(QUEUES)) for _ in range(count)
        ]
        if self._limits is not None:
            known = {limit.name for limit in await process.store.limits.all()}
            jobs = [with_limits(job, self._limits) for job in jobs]
            if not {"account-*"} & known:
                jobs = [
                    msgspec.structs.replace(job, limit_key=job.limit_key if job.limit_key in known else "")
                    for job in jobs
                ]
        await process.store.queue.enqueue(jobs)

    async def run(self) -> None:
        """Act every few seconds."""
        while True:
            await asyncio.sleep(self._chance.uniform(0.5, 9.0))
            if self._chance.random() < 0.3:
                self._process = self._born()  # A new command-line process, whose clock is not synced.
            act = self._draw()
            for _ in range(REPEATS_MAX):
                try:
                    await act()
                    break
                except StoreUnavailable:
                    self._place.saw("operator repeats")
                except (InvalidSchedule, InvalidLimit, NotFound, Conflict):
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
            (4, self._enqueue),
            (3, self._cancel),
            (2, self._retry),
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
        task, expires = chance.choice(tuple(TASKS)), 5 * SECOND if chance.random() < 0.3 else None
        limits = None if self._limits is None else self._limits.getrandbits(64)

        async def act() -> None:
            job = NewJob(
                id=ids.new_id("job"), task=task, key=key, queue=queue, delay=delay, expires=expires, max_attempts=2
            )
            if limits is not None:
                job = with_limits(job, random.Random(limits))  # A repeated call enqueues the same job.
            await self._process.store.queue.enqueue([job])

        return act

    def _cancel(self, name: str) -> object:
        async def act() -> None:
            store = self._process.store
            jobs = await store.jobs.page(schedule=name, limit=8)
            live = [job for job in jobs if not job.status.is_final]
            if live:
                job = self._chance.choice(live)
                self._place.log("operator", "cancels", job.id, job.status)
                await store.queue.cancel(job.id, author="operator")

        return act

    def _retry(self, name: str) -> object:
        async def act() -> None:
            store = self._process.store
            dead = await store.jobs.dead(limit=8)
            if dead:
                job = self._chance.choice(dead)
                self._place.log("operator", "retries", job.id, job.status)
                await store.queue.retry(job.id, author="operator")
                self._place.saw("retried by hand")

        return act


class LimitActor:
    """Puts, changes and removes limits, and enqueues jobs under them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._chance = place.chance("limits")
        self._lives = 0
        self._process = self._born()

    async def set_up(self) -> None:
        """Put the first limits, without faults."""
        self._process.driver.mishaps = NO_MISHAPS
        await self._process.store.limits.put(Limit.build("account-*", concurrency=2), author="operator")

    async def run(self) -> None:
        """Act every few seconds."""
        while True:
            await asyncio.sleep(self._chance.uniform(0.5, 6.0))
            if self._chance.random() < 0.3:
                self._process = self._born()
            act = self._chance.choices((self._put, self._remove, self._weigh, self._enqueue), (8, 4, 1, 8))[0]()
            for _ in range(self._chance.randint(1, REPEATS_MAX)):  # It may also give up.
                try:
                    await act()
                    break
                except StoreUnavailable:
                    self._place.saw("limits repeat")
                except InvalidLimit:
                    break

    def _born(self) -> Process:
        self._lives += 1
        process = Process(self._place, f"limiter_{self._lives}", lambda mishap: None)
        process.driver.mishaps = self._place.mishaps
        return process

    def _put(self) -> Callable[[], Awaitable[object]]:
        limit = draw_limit(self._chance)
        self._place.log("limiter", "puts", limit)
        return lambda: self._process.store.limits.put(limit, author="operator")

    def _remove(self) -> Callable[[], Awaitable[object]]:
        name = draw_limit(self._chance).name
        self._place.log("limiter", "removes", name)
        return lambda: self._process.store.limits.remove(name, author="operator")

    def _weigh(self) -> Callable[[], Awaitable[object]]:
        tenant = Tenant(name=self._chance.choice(TENANTS), weight=self._chance.choice((1, 2, 10)))
        self._place.log("limiter", "weighs", tenant)
        return lambda: self._process.store.tenants.put(tenant, author="operator")

    def _enqueue(self) -> Callable[[], Awaitable[object]]:
        chance, new_id = self._chance, self._process.clock.new_id
        task, queue = chance.choice(tuple(TASKS)), chance.choice(QUEUES)
        jobs = [
            with_limits(NewJob(id=new_id("job"), task=task, queue=queue, key=f"limited {new_id('key')}"), chance)
            for _ in range(chance.choice((1, 2, 6)))
        ]
        return lambda: self._process.store.queue.enqueue(jobs)
