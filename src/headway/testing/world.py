"""A world of its own for a test: the engine of production on virtual time, in one thread, with a store in memory.

    housekeeper   keeps house: promotes, expires, prunes; never dies
    scheduler     decides schedules; can be stopped and started
    workers       real supervisors; the tasks run in an `InlineChildPool`, and workers can be killed and frozen

All share one SQLite in memory, and every commit wakes the others at once, so nobody has to poll. While nothing can
happen before some later time, the loops' rests are stretched up to it: a quiet day costs milliseconds.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from headway.app import Headway
from headway.core.clock import Clock
from headway.core.errors import StoreUnavailable
from headway.core.instants import (
    DAY,
    SECOND,
    DurationLike,
    Instant,
    InstantLike,
    format_duration,
    parse_duration,
    parse_instant,
    to_datetime,
)
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.core.ports import Shards, WakeUps
from headway.core.settings import Settings
from headway.core.tenants import DEFAULT_TENANT
from headway.core.validation import read_status
from headway.operations.schedule_sync import sync_schedules
from headway.store import Store
from headway.store.migrations import migrate
from headway.store.sqlite import InlineSqliteDriver, SqliteConnection
from headway.store.transaction import Begin, Rows, StatementCall, T
from headway.tasks.task import JobHandle, Task
from headway.testing.child_pool import Gate, InlineChildPool, at_once
from headway.testing.loop import Livelock, VirtualLoop
from headway.testing.promises import Promises, all_jobs, all_occurrences
from headway.wiring.children import hello_of
from headway.wiring.node import EngineNode
from headway.wiring.roles import worker_node, world_of

START_DEFAULT: Final = "2027-01-01T00:00:00Z"
LEADER_LEASE: Final = DAY  # Nobody here dies with a leader's lease.
RETENTION: Final = 365_000 * DAY  # A test looks at what was recorded, however long ago.
STRETCH_S_MAX: Final = 6 * 3600.0
LOOK_S: Final = 10.0  # How often to look while jobs wait for something that no timer tells.
EVERYTHING: Final = Shards(of=1, held=frozenset({0}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was recorded for one instant of a schedule, or for `count` instants from `instant` to `until`."""

    schedule: str
    instant: datetime
    outcome: str
    reason: str
    decided_at: datetime
    until: datetime | None
    count: int
    job_id: str | None


class _Driver(InlineSqliteDriver):
    """The way of one process to the store: closed while it is frozen or dead."""

    def __init__(self, world: "World", gate: Gate, name: str) -> None:
        super().__init__(world.connection)
        self._world = world
        self._gate = gate
        self._name = name

    async def run(self, begin: Begin[T]) -> T:
        """Run a transaction, and let everybody know if it changed anything."""
        await self._pass()
        result = self.connection.run(begin)
        self._world.may_have_changed()
        return result

    async def fetch(self, statement: StatementCall) -> Rows:
        """Run one call, and let everybody know if it changed anything."""
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
        """Hear of every commit."""
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
        """Nothing gets lost here."""

    async def close(self) -> None:
        """Hear no more."""
        self._listeners.pop(self._name, None)


class _Clock(Clock):
    """The clock of a process: its rests are stretched while nothing can happen, and last as long as it is frozen."""

    world: "World"
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
        """Wait in the test, by playing the world forward."""
        self.world.play(seconds)


class _Process:
    """One process of the world."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self.gate = Gate()
        self.clock = world.new_clock(name, self.gate)
        self.store = Store.on(_Driver(world, self.gate, name), self.clock)
        self.child_pool: InlineChildPool | None = None
        self.task: asyncio.Task[None] | None = None
        self.node: EngineNode | None = None


class World:
    """What `virtual` gives: an app with its own time."""

    def __init__(self, app: Headway, start: Instant, seed: int, workers: int) -> None:
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
        self._observer = _Process(self, "test")  # The test itself, which is never frozen.
        self.store = self._observer.store
        self._promises = Promises(self.store)
        self._processes: list[_Process] = []
        self._schedulers: list[_Process] = []
        self._workers: list[_Process] = []
        self._worker_count = workers

    def _open(self) -> None:
        self._run(self._prepare())
        self._start_process("housekeeper")
        self._through(self._loop.time())  # So that it, and nobody else, keeps house.
        self.start_schedulers()
        for _ in range(self._worker_count):
            self._workers.append(self._start_process("worker", has_child_pool=True))
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
        await sync_schedules(self.store, self.app.name, self.app.declared)

    # --- time

    @property
    def now(self) -> datetime:
        """The time of this world."""
        return to_datetime(self._instant())

    def advance(
        self, by: DurationLike = 0, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Let time pass, with all that happens in it: `advance(hours=26)`, `advance("1d2h")`."""
        more = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        self.play(parse_duration(by, what="advance") / SECOND + more)

    def play(self, seconds: float) -> None:
        """Let seconds pass."""
        if self._loop.is_running():
            raise RuntimeError("a task cannot let the time of its own world pass; in an async task, await")
        if seconds < 0:
            raise ValueError("time does not go back, here neither")
        self._through(self._loop.time() + seconds)

    def drain(self, within: DurationLike = "7d") -> None:
        """Let time pass until no job is ready, running, retrying or in line; those for a later time stay."""
        until = self._loop.time() + parse_duration(within, what="within") / SECOND
        self._through(self._loop.time())
        while (left := at_once(self._unfinished())) is not None:
            seen = self.connection.raw.total_changes
            while seen == self.connection.raw.total_changes:
                following = self._loop.next_timer()
                if following is None or following > until:
                    name = f"{left.id} of {left.task} is {left.status}"
                    raise TimeoutError(f"after {format_duration(parse_duration(within))} {name}: {left.reason}")
                self._through(following)

    async def _unfinished(self) -> Job | None:
        paused = await self.store.queue.paused()
        for status in (Status.PENDING, Status.RUNNING, Status.RETRYING, Status.BLOCKED):
            async for job in all_jobs(self.store, status=status):
                if job.parked is None and not (status is Status.PENDING and job.queue in paused):
                    return job
        return None

    # --- jobs and schedules

    def enqueue(self, task: "Task[..., Any] | str", args: Mapping[str, Any] | None = None, **options: Any) -> JobHandle:
        """Enqueue a job; the options are those of `task.options`."""
        return self.app.enqueue_sync(task if isinstance(task, str) else task.name, args, **options)

    def job(self, job: JobHandle | str) -> JobHandle:
        """Look at a job as it is now."""
        return self.app.job_sync(job if isinstance(job, str) else job.id)

    def jobs(
        self,
        *,
        task: str | None = None,
        status: str | None = None,
        schedule: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
    ) -> list[JobHandle]:
        """Return all jobs, or those of a task, status, schedule, queue or tenant; oldest first."""
        known = None if status is None else read_status(status)
        filters = {"task": task, "status": known, "schedule": schedule, "queue": queue, "tenant": tenant}
        found = at_once(_collect(self.store, filters))
        return [JobHandle(self.app, job) for job in reversed(found)]

    def attempts(self, job: JobHandle | str) -> list[dict[str, Any]]:
        """Return the ended attempts of a job: number, outcome, reason, when it started and ended."""
        job_id = job if isinstance(job, str) else job.id
        rows = at_once(self.store.jobs.attempts(job_id))
        return [
            {**row, **{name: _moment(row[name]) for name in ("ready_at", "started_at", "ended_at")}} for row in rows
        ]

    def log(self, job: JobHandle | str) -> list[str]:
        """Return the log lines of a job."""
        job_id = job if isinstance(job, str) else job.id
        return [line["line"] for line in at_once(self.store.jobs.log(job_id, limit=10_000))]

    def occurrences(self, schedule: str, *, tenant: str = DEFAULT_TENANT) -> list[Decision]:
        """Return what was decided for a schedule of a tenant, oldest first."""
        key = at_once(self.store.schedules.key(schedule, tenant=tenant))
        return [
            Decision(
                schedule=schedule,
                instant=to_datetime(found.instant),
                outcome=str(found.outcome),
                reason=found.reason,
                decided_at=to_datetime(found.decided_at),
                until=None if found.until is None else to_datetime(found.until),
                count=found.count,
                job_id=found.job_id,
            )
            for found in at_once(all_occurrences(self.store, key))
        ]

    def assert_promises(self) -> None:
        """Raise an AssertionError that says which promises the records break: S1, S3, S4, S7."""
        broken = at_once(self._promises.broken())
        if broken:
            raise AssertionError("\n".join(["broken promises:", *broken]))

    # --- what can go wrong

    def kill_worker(self, job: JobHandle | str) -> None:
        """Kill the worker that runs a job, as `kill -9` does; a new one takes its place, others go on."""
        process = self._worker_of(job)
        self._workers[self._workers.index(process)] = self._start_process("worker", has_child_pool=True)
        self._run(self._kill(process))

    def freeze_worker(self, job: JobHandle | str, duration: DurationLike) -> None:
        """Let the worker that runs a job stand still for a time, its tasks too; then it goes on and knows nothing."""
        process = self._worker_of(job)
        process.gate.freeze()
        self._loop.call_later(parse_duration(duration, what="duration") / SECOND, process.gate.thaw)

    def stop_schedulers(self) -> None:
        """Stop deciding schedules, in good order."""
        stopping, self._schedulers = self._schedulers, []
        for process in stopping:
            assert process.node is not None
            process.node.stop()
            self._run(_ended(process.task))
        self._horizon = None

    def start_schedulers(self) -> None:
        """Decide schedules again; what was missed is dealt with as each schedule says."""
        if not self._schedulers:
            self._schedulers.append(self._start_process("scheduler", schedules=True))
            self._horizon = None
            self._through(self._loop.time())

    def _worker_of(self, job: JobHandle | str) -> _Process:
        self._through(self._loop.time())
        found = self.job(job)
        for process in self._workers:
            if process.child_pool is not None and process.child_pool.has(found.id):
                return process
        raise ValueError(f"no worker runs {found.id}: it is {found.status}")

    async def _kill(self, process: _Process) -> None:
        process.gate.is_dead = True
        process.gate.thaw()
        self.listeners.pop(process.name, None)
        if process.child_pool is not None:
            process.child_pool.die()
        if process.task is not None:
            process.task.cancel()
        await _ended(process.task)

    # --- processes

    def new_clock(self, name: str, gate: Gate) -> Clock:
        """Make the clock of a process."""
        chance = random.Random(f"{self._seed} {name}")
        clock = _Clock(monotonic=self._loop.time, wall=self._instant, chance=chance, node=name)
        clock.world, clock.gate = self, gate
        return clock

    def _start_process(self, role: str, *, schedules: bool = False, has_child_pool: bool = False) -> _Process:
        self._names += 1
        process = _Process(self, f"{role}-{self._names}")
        settings = replace(self._settings, node=process.name)
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

    def may_have_changed(self) -> None:
        """Have everybody look, if the last call changed the store."""
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
        """Return until when a rest may last that should end at this time: while nothing can happen, longer."""
        if self._horizon is None:
            self._horizon = at_once(self._look_ahead())
        return max(due, min(self._horizon, due + STRETCH_S_MAX))

    async def _look_ahead(self) -> float:
        """Find the time before which nothing can happen by itself."""
        store, now = self.store, self._loop.time()
        times = [await store.housekeeping.next_promotion()]
        if self._schedulers:
            times.append(await self.store.ledger.next_due(EVERYTHING))
        # A living worker extends its leases after a third of their time.
        early = self._settings.worker_lease * 2 // 3
        times += [job.lease_until - early for job in await store.jobs.running() if job.lease_until is not None]
        horizon = min(((at - self._start) / SECOND for at in times if at is not None), default=float("inf"))
        is_anything_waiting = await store.statistics.depths() or (await store.statistics.waiting()).get(Status.BLOCKED)
        return min(horizon, now + LOOK_S) if is_anything_waiting else horizon

    @contextmanager
    def entered(self) -> Iterator["World"]:
        """Have the app live in this world for the time of a block."""
        try:
            self._open()
            with self.app.moved_to(self.store, self._observer.clock):
                yield self
        finally:
            self._close()

    def _close(self) -> None:
        """End everything, whatever has happened: what is left of it would haunt later tests."""
        try:
            for process in self._processes:
                if not process.gate.is_dead:
                    with suppress(Livelock):  # Who lets no time pass is ended with the loop.
                        self._run(self._kill(process))
        finally:
            self._loop.close()
            self.connection.raw.close()


async def _collect(store: Store, filters: dict[str, str | None]) -> list[Job]:
    return [job async for job in all_jobs(store, **filters)]


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        await asyncio.wait([task])


def _moment(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


@contextmanager
def virtual(app: Headway, start: InstantLike = START_DEFAULT, *, seed: int = 0, workers: int = 2) -> Iterator[World]:
    """Put an app into a world of its own, with its schedules, a scheduler and workers, at a time of your choice.

    Until the block ends the app's own calls (`task.enqueue_sync`, `job.wait_sync`, …) are about this world. The same
    app, start and seed give the same history.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError("virtual() plays its own event loop forward: use it in a plain def, not in a coroutine")
    with World(app, parse_instant(start, what="start"), seed, workers).entered() as world:
        yield world
