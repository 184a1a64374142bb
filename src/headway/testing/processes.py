"""The processes of a virtual world: real nodes on one event loop, one SQLite in memory, and clocks that can freeze.

Every commit wakes the other processes at once, so that none has to poll. If nothing can happen before some later time,
the rests of the loops are stretched up to it, so a quiet day costs milliseconds.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, Self

from headway.app import Headway
from headway.core.clock import Clock
from headway.core.errors import StoreUnavailable
from headway.core.instants import DAY, SECOND, Instant
from headway.core.lifecycle import Status
from headway.core.ports import Shards, WakeUps
from headway.core.settings import Settings
from headway.operations.app_sync import Declarations, sync_app
from headway.store import Store
from headway.store.migrations import migrate
from headway.store.sqlite import InlineSqliteDriver, SqliteConnection
from headway.store.transaction import Begin, Rows, StatementCall, T
from headway.testing.child_pool import Gate, InlineChildPool, at_once
from headway.testing.loop import Livelock, VirtualLoop
from headway.wiring.children import hello_of
from headway.wiring.node import EngineNode
from headway.wiring.roles import worker_node, world_of

LEADER_LEASE: Final = DAY  # The leader never dies here.
RETENTION: Final = 365_000 * DAY  # Keep everything: a test may check old records.
STRETCH_S_MAX: Final = 6 * 3600.0
LOOK_S: Final = 10.0  # Poll interval while jobs wait for something without a timer.
EVERYTHING: Final = Shards(of=1, held=frozenset({0}))


class _Driver(InlineSqliteDriver):
    """The connection of one process to the store: blocked while it is frozen, closed when it is dead."""

    def __init__(self, world: "VirtualProcesses", gate: Gate, name: str) -> None:
        super().__init__(world.connection)
        self._world = world
        self._gate = gate
        self._name = name

    async def run(self, begin: Begin[T]) -> T:
        """Run a transaction, and wake all processes if it changed anything."""
        await self._pass()
        try:
            result = self.connection.run(begin)
        except BaseException:
            self._world.has_not_changed()
            raise
        self._world.may_have_changed()
        return result

    async def fetch(self, statement: StatementCall) -> Rows:
        """Run one call, and wake all processes if it changed anything."""
        await self._pass()
        rows = self.connection.fetch(statement)
        self._world.may_have_changed()
        return rows

    async def watch(  # type: ignore[override]
        self,
        hear: Callable[[str], None],
        *,
        quiet_s: float = 0.0,
    ) -> WakeUps:
        """Listen for every commit."""
        return _WakeUps(self._world.listeners, self._name, hear)

    async def _pass(self) -> None:
        await self._gate.passed()
        if self._gate.is_dead:
            raise StoreUnavailable("this process is dead")


class _WakeUps:
    mode = "notify"

    def __init__(self, listeners: dict[str, Callable[[str], None]], name: str, hear: Callable[[str], None]) -> None:
        self._listeners, self._name = listeners, name
        listeners[name] = hear

    async def check(self) -> None:
        """Do nothing: no notification gets lost here."""

    async def close(self) -> None:
        """Stop listening."""
        self._listeners.pop(self._name, None)


class _Clock(Clock):
    """The clock of a process: its rests are stretched while nothing can happen, and last as long as it is frozen."""

    world: "VirtualProcesses"
    gate: Gate

    async def rest(self, seconds: float, wake: asyncio.Event) -> None:
        """Wait until the time is up or the event is set."""
        resting, due = self.world.resting, asyncio.get_running_loop().time() + seconds
        limit = asyncio.timeout_at(self.world.stretched(due))
        try:
            async with limit:
                resting[limit] = due
                await wake.wait()
        except TimeoutError:
            pass
        finally:
            resting.pop(limit, None)
        await self.gate.passed()

    def nap(self, seconds: float) -> None:
        """Wait in the test, by advancing virtual time."""
        self.world.play(seconds)


class Process:
    """One process of the world."""

    def __init__(self, world: "VirtualProcesses", name: str) -> None:
        self.name = name
        self.gate = Gate()
        self.clock = world.new_clock(name, self.gate)
        self.store = Store.on(_Driver(world, self.gate, name), self.clock)
        self.child_pool: InlineChildPool | None = None
        self.task: asyncio.Task[None] | None = None
        self.node: EngineNode | None = None


class VirtualProcesses:
    """Starts, stops and kills processes, and lets their time pass."""

    def __init__(self, app: Headway, start: Instant, seed: int, workers: int, offers: Sequence[Settings] = ()) -> None:
        self.app = app
        self.connection = SqliteConnection(":memory:", now=self._instant)
        self.listeners: dict[str, Callable[[str], None]] = {}
        self.resting: dict[asyncio.Timeout, float] = {}
        self._start = start
        self._seed = seed
        self._loop = VirtualLoop()
        self._changes = 0
        self._horizon: float | None = None
        self._is_telling = False
        self._problems: list[BaseException] = []
        self._names = 0
        self._hello = hello_of(app, app.settings.store)
        self._settings = self._settings_of(app.settings)
        self._observer = Process(self, "test")  # The test itself, which is never frozen.
        self.store = self._observer.store
        self._processes: list[Process] = []
        self._schedulers: list[Process] = []
        self._workers: list[Process] = []
        self._offers = [*offers] or [app.settings] * workers  # Of each worker: its offer and labels.

    def _open(self) -> None:
        self._run(self._prepare())
        self._start_process("housekeeper")
        self._through(self._loop.time())  # So that only this process does the housekeeping.
        self.start_schedulers()
        for offer in self._offers:
            self._workers.append(self._start_process("worker", offer=offer, has_child_pool=True))
        self._through(self._loop.time())

    @staticmethod
    def _settings_of(settings: Settings) -> Settings:
        return replace(
            settings,
            store="sqlite://",
            coordination="store",
            coordination_mode="leader",
            scheduler_shards=1,
            leader_lease=LEADER_LEASE,
            retention=RETENTION,
            queues=(),
        )

    async def _prepare(self) -> None:
        await migrate(self.store.driver)
        await sync_app(self.store, Declarations.of(self.app))

    def play(self, seconds: float) -> None:
        """Let seconds pass."""
        if self._loop.is_running():
            raise RuntimeError("a task cannot advance the time of its own world; in an async task, await")
        if seconds < 0:
            raise ValueError("virtual time cannot go back")
        self._through(self._loop.time() + seconds)

    def stop_schedulers(self) -> None:
        """Stop the scheduler gracefully."""
        stopping, self._schedulers = self._schedulers, []
        for process in stopping:
            assert process.node is not None
            process.node.stop()
            self._run(_ended(process.task))
        self._horizon = None

    def start_schedulers(self) -> None:
        """Start the scheduler again; missed instants follow the policy of each schedule."""
        if not self._schedulers:
            self._schedulers.append(self._start_process("scheduler", schedules=True))
            self._horizon = None
            self._through(self._loop.time())

    async def _kill(self, process: Process) -> None:
        process.gate.is_dead = True
        process.gate.thaw()
        self.listeners.pop(process.name, None)
        if process.child_pool is not None:
            process.child_pool.die()
        if process.task is not None:
            process.task.cancel()
        await _ended(process.task)

    # --- starting

    def new_clock(self, name: str, gate: Gate) -> Clock:
        """Make the clock of a process."""
        chance = random.Random(f"{self._seed} {name}")
        clock = _Clock(monotonic=self._loop.time, wall=self._instant, chance=chance, node=name)
        clock.world, clock.gate = self, gate
        return clock

    def _start_process(
        self, role: str, *, offer: Settings | None = None, schedules: bool = False, has_child_pool: bool = False
    ) -> Process:
        self._names += 1
        process = Process(self, f"{role}-{self._names}")
        settings = replace(self._settings, node=process.name)
        if offer is not None:
            settings = replace(settings, offer=offer.offer, labels=offer.labels, app_version=self.app.version)
        if has_child_pool:
            process.child_pool = InlineChildPool(
                self.app.tasks, self._hello.tasks, self.app, process.clock, process.gate, self._note_end
            )
            process.child_pool.width = settings.concurrency
            process.node = worker_node(process.store, settings, process.clock, process.child_pool, schedules=False)
        else:
            process.node = EngineNode(world_of(process.store), settings, process.clock, schedules=schedules)
        process.task = self._loop.create_task(process.node.run(), name=process.name)
        process.task.add_done_callback(self._note_end)
        self._processes.append(process)
        return process

    def _note_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._problems.append(error)

    # --- the loop

    def _instant(self) -> Instant:
        return self._start + round(self._loop.time() * SECOND)

    def _through(self, when: float) -> None:
        self._loop.run_through(when)
        if self._problems:
            raise self._problems[0]

    def _run(self, coroutine: Any) -> None:
        self._loop.run_until_complete(coroutine)

    def has_not_changed(self) -> None:
        """Ignore the changes of a call that was rolled back."""
        self._changes = self.connection.raw.total_changes

    def may_have_changed(self) -> None:
        """Wake all processes if the last call changed the store."""
        changes = self.connection.raw.total_changes
        if changes != self._changes:
            self._changes = changes
            self._horizon = None
            if not self._is_telling:
                self._is_telling = True
                self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._is_telling = False
        for hear in tuple(self.listeners.values()):
            hear("anything")
        for limit, due in tuple(self.resting.items()):
            when = self.stretched(due)
            if not limit.expired() and limit.when() != when:
                limit.reschedule(when)

    def stretched(self, due: float) -> float:
        """Return when a rest that should end at this time may end: later while nothing can happen."""
        if self._horizon is None:
            self._horizon = at_once(self._look_ahead())
        return max(due, min(self._horizon, due + STRETCH_S_MAX))

    async def _look_ahead(self) -> float:
        """Return the time before which nothing can happen by itself."""
        store, now = self.store, self._loop.time()
        times = [await store.housekeeping.next_promotion(), await store.groups.next_look()]
        if self._schedulers:
            times.append(await self.store.ledger.next_due(EVERYTHING))
        # A live worker extends its leases after a third of their duration.
        early = self._settings.worker_lease * 2 // 3
        times += [job.lease_until - early for job in await store.jobs.running() if job.lease_until is not None]
        horizon = min(((at - self._start) / SECOND for at in times if at is not None), default=float("inf"))
        is_anything_waiting = await store.statistics.depths() or (await store.statistics.waiting()).get(Status.BLOCKED)
        return min(horizon, now + LOOK_S) if is_anything_waiting else horizon

    @contextmanager
    def entered(self) -> Iterator[Self]:
        """Connect the app to this world during a block."""
        try:
            self._open()
            with self.app.moved_to(self.store, self._observer.clock):
                yield self
        finally:
            self._close()

    def _close(self) -> None:
        """End everything, whatever has happened, so that nothing leaks into later tests."""
        try:
            for process in self._processes:
                if not process.gate.is_dead:
                    with suppress(Livelock):  # Code that lets no time pass ends with the loop.
                        self._run(self._kill(process))
        finally:
            self._loop.close()
            self.connection.raw.close()


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        await asyncio.wait([task])
