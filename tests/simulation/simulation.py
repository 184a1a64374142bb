"""One run: a world from a seed, minutes of faults, and a quiet phase in which everything has to recover."""

import asyncio
import hashlib
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from headway.core.clock import Clock
from headway.core.events import (
    AttemptsLost,
    ClockStepped,
    DecisionRefused,
    Draining,
    EngineEvent,
    JobsSettled,
    ScheduleHeld,
    SchedulesDecided,
    TermLost,
    TermWon,
    TickFailed,
    subscribed,
)
from headway.core.instants import SECOND, Instant, isoformat
from headway.core.jobs import Claimed
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import After
from headway.scheduling.audit import audit
from headway.store import Store
from headway.store.sqlite import InlineSqliteDriver, SqliteConnection
from headway.store.statements import SQLITE, Statement, migrations
from headway.store.transaction import Begin, Rows, StatementCall, T, call
from tests.simulation.actors import LimitActor, NodeActor, OperatorActor, WorkerActor
from tests.simulation.checkers import FINAL, HOUSEKEEPING, Checker, Liveness, Violation, next_instant
from tests.simulation.faults import NO_MISHAPS
from tests.simulation.limit_checker import LaneKey
from tests.simulation.recorder import Change, JobRow, LaneRow, LeaseRow, LimitRow, Recorder, ScheduleRow
from tests.simulation.scenario import TASKS, Mishaps, Scenario
from tests.simulation.virtual_loop import VirtualLoop, run_virtual

LOG_LINES_MAX: Final = 4_000
BURST: Final = 20  # Jobs enqueued at once, more than one worker has slots.
TAKEOVER_S: Final = 5.0  # Promise L4: the lease plus this time.
RESCUE_S: Final = 10.0  # Promise L3: the job's lease plus this time.
LOSS_WAIT_S: Final = 5.0
DRAIN_S_MAX: Final = 120.0  # Longer than any simulated job.
FORCE_S: Final = 20.0  # After this time others complete a limit whose author has died.
STOP_S: Final = 2.0  # Promise L7: the grace plus this time.
CALLS_PER_S_MAX: Final = 50.0  # Busy nodes reach half of this.
CALLS_WINDOW_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sabotage:
    """A deliberately broken copy: replacements for parts of the schema and of statements."""

    schema: Mapping[str, str] = field(default_factory=dict)
    statements: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one seed."""

    seed: int
    problem: str | None
    seen: Mapping[str, int]
    digest: str
    log: tuple[str, ...]


def simulate(
    seed: int, *, sabotage: Sabotage | None = None, mishaps: Mishaps | None = None, verbose: bool = False
) -> Result:
    """Run one seed to its end, or to the first broken promise."""
    scenario = Scenario.of(seed)
    scenario = replace(scenario, mishaps=mishaps or scenario.mishaps)
    loop = VirtualLoop()
    connection = _open(scenario, loop, sabotage or Sabotage())
    simulation = Simulation(scenario, loop, connection, verbose=verbose)
    problem = None
    try:
        with subscribed(simulation.hear):
            run_virtual(simulation.run(), loop)
    except Exception as error:  # noqa: BLE001 - whatever ends a run is its result
        problem = f"{type(error).__name__}: {error}"
        simulation.log("simulation", problem)
    digest = _digest(connection)
    connection.raw.close()  # It keeps the recorder alive, and with it everything else.
    return Result(
        seed=seed, problem=problem, seen=dict(simulation.checker.seen), digest=digest, log=tuple(simulation.lines)
    )


def _open(scenario: Scenario, loop: VirtualLoop, sabotage: Sabotage) -> SqliteConnection:
    connection = SqliteConnection(":memory:", now=lambda: scenario.start + round(loop.time() * SECOND))
    statements = dict(connection._statements)
    for name, (text, instead) in sabotage.statements.items():
        statement = statements[name]
        assert text in statement.text, f"{text!r} is not in {name}"
        replaced = statement.text.replace(text, instead)
        statements[name] = Statement(name, replaced, statement.parameters, statement.transition)
    connection._statements = statements
    scripts = ["\n;\n".join(step.statements) for step in migrations(SQLITE)]
    for text, instead in sabotage.schema.items():
        assert any(text in script for script in scripts), f"{text!r} is not in the schema"
        scripts = [script.replace(text, instead) for script in scripts]
    for script in scripts:
        connection.script(script.split("\n;\n"))
    return connection


def _digest(connection: SqliteConnection) -> str:
    digest = hashlib.sha256()
    tables = connection.raw.execute("select name from sqlite_master where type = 'table' order by name").fetchall()
    for (table,) in tables:
        digest.update(table.encode())
        for row in connection.raw.execute(f"select * from {table} order by 1, 2"):
            digest.update(repr(tuple(row)).encode())
    return digest.hexdigest()


class _WakeUps:
    """One subscription; its notifications may be late or lost."""

    def __init__(self, mode: str, close: Callable[[], None]) -> None:
        self.mode = mode
        self._close = close

    async def check(self) -> None:
        """Do nothing: faults of wake-ups are injected elsewhere."""

    async def close(self) -> None:
        """Unsubscribe."""
        self._close()


class Simulation:
    """The world of one seed."""

    def __init__(self, scenario: Scenario, loop: VirtualLoop, connection: SqliteConnection, *, verbose: bool) -> None:
        self.scenario = scenario
        self._loop = loop
        self.mishaps = NO_MISHAPS
        self.is_down = False
        self.lines: list[str] = []
        self._verbose = verbose
        self._chance = self.chance("world")
        self._recorder = Recorder(connection)
        self._connection = connection
        self._listeners: dict[str, Callable[[str], None]] = {}
        self._on_their_way: set[tuple[str, str]] = set()
        self._nodes: list[NodeActor] = []
        self._workers: list[WorkerActor] = []
        self._operator: OperatorActor | None = None
        self._stops_at_claim = False
        self._unheard_at = -1e9
        self._failed: asyncio.Future[None] | None = None
        self._calls: Counter[str] = Counter()
        self.checker = Checker(
            shards=scenario.shards,
            retention=scenario.settings.retention,
            holds=self._holds,
            beat_at=self._beat_at,
            has=self._has,
        )

    # The interface for actors.

    def store_now(self) -> Instant:
        """Return the store's time."""
        return self.scenario.start + round(self._loop.time() * SECOND)

    def chance(self, whose: str) -> random.Random:
        """Return a random generator that depends only on the seed and the name."""
        return random.Random(f"{self.scenario.seed} {whose}")

    def _beat_at(self, node: str) -> Instant:
        rows = self._connection.raw.execute("select beat_at from headway_nodes where id = ?", (node,)).fetchall()
        return rows[0][0] if rows else 0

    def _has(self, node: str, job_id: str) -> bool:
        """Return whether a worker runs a job, or is about to."""
        return any(
            worker.child_pool.has(job_id)
            for worker in self._workers
            if worker.child_pool is not None and worker.process is not None and worker.process.id == node
        )

    def saw(self, what: str) -> None:
        """Count an event."""
        if what == "claim unheard":
            self._unheard_at = self._loop.time()
        self.checker.seen[what] += 1

    def log(self, actor: str, *what: object) -> None:
        """Keep a line for the replay of this seed."""
        if not self._verbose:
            return
        at = isoformat(self.store_now())[11:23]
        self.lines.append(f"{at} {actor:>16} " + " ".join(str(part) for part in what))
        del self.lines[:-LOG_LINES_MAX]

    def fail(self, problem: BaseException) -> None:
        """End the run at once."""
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(problem)

    def commit(self, actor: str, begin: Begin[T]) -> T:
        """Run a transaction, check its changes, and notify the others."""
        result, changes = self._recorder.run(begin)
        self._look(actor, changes)
        return result

    def fetch(self, actor: str, statement: StatementCall) -> Rows:
        """Run one call, check its changes, and notify the others."""
        rows, changes = self._recorder.fetch(statement)
        self._look(actor, changes)
        return rows

    def _look(self, actor: str, changes: list[Change]) -> None:
        self._calls[actor] += 1
        if changes:
            if self._verbose:
                self._log_changes(actor, changes)
            try:
                self.checker.look(actor, self.store_now(), changes)
            except Violation as violation:
                self.fail(violation)
            self._look_at_code(changes)
            self._notify(actor, changes)
            self._wake_the_robbed(changes)

    def ask_node(self, node_id: str, what: str) -> bool:
        """Send a request to a node through the store; False if the node is not registered."""
        return bool(self.fetch("operator", call("ask_node", id=node_id, asked=what)))

    # Notifications of child pools.

    def begins(self, claimed: Claimed) -> None:
        """Check that no code begins with an expired lease."""
        job = self.checker.jobs.get(claimed.job_id)
        holds = job is not None and (job.status, job.attempt) == ("RUNNING", claimed.attempt)
        if not holds or job is None or (job.lease_until or 0) <= self.store_now():
            self.fail(Violation(f"S3: the code of a stale attempt begins: {claimed} {job}"))

    def repeats_step(self, claimed: Claimed, name: str) -> None:
        """Check that a step finished by an earlier attempt is not repeated."""
        if (claimed.job_id, name) in self.checker.steps and self._runs(claimed):
            self.fail(Violation(f"a finished step is repeated: {name} {claimed}"))

    def _runs(self, claimed: Claimed) -> bool:
        job = self.checker.jobs.get(claimed.job_id)
        return job is not None and (job.status, job.attempt) == ("RUNNING", claimed.attempt)

    def _look_at_code(self, changes: list[Change]) -> None:
        """Check that no awake worker still runs the code of an earlier attempt when a new one begins."""
        for change in changes:
            match change.old, change.new:
                case JobRow(status="PENDING"), JobRow(status="RUNNING") as job:
                    for worker in self._workers:
                        runs = worker.runs(job.id)
                        if runs and runs < job.attempt and worker.is_awake:
                            self.fail(Violation(f"S3: the code of attempt {runs} still runs: {job}"))
                        if self._stops_at_claim and worker.process is not None and worker.process.id == job.node:
                            self._loop.call_soon(worker.stop)  # It has not received the response to its claim yet.

    async def listen(self, actor: str, hear: Callable[[str], None]) -> _WakeUps:
        """Subscribe to commits of other processes."""
        mode = self.scenario.wake_ups
        if mode != "poll":
            self._listeners[actor] = hear
        return _WakeUps(mode, lambda: self._listeners.pop(actor, None) and None)

    def _wake_the_robbed(self, changes: list[Change]) -> None:
        """Thaw a frozen node at the worst moment: its lease was taken over, and not used yet."""
        for change in changes:
            match change.old, change.new:
                case LeaseRow() as old, LeaseRow() as new if old.holder != new.holder and self._chance.random() < 0.5:
                    for node in (*self._nodes, *self._workers):
                        if node.process is not None and node.process.id == old.holder:
                            self._loop.call_later(self._chance.uniform(0, 0.02), node.process.thaw)

    # The run.

    async def run(self) -> None:
        """Run the faults first, then the quiet phase."""
        self._failed = self._loop.create_future()
        story = self._loop.create_task(self._story())
        await asyncio.wait({story, self._failed}, return_when=asyncio.FIRST_COMPLETED)
        if self._failed.done():
            story.cancel()
            self._failed.result()
        await story

    async def _story(self) -> None:
        operator = self._operator = OperatorActor(self)
        await operator.set_up()
        self.mishaps = self.scenario.mishaps  # Before any actor exists that could have one.
        self._nodes = [NodeActor(self, index) for index in range(self.scenario.nodes)]
        self._workers = [WorkerActor(self, index) for index in range(self.scenario.workers)]
        loop = self._loop
        watching = loop.create_task(self._watch_calls())
        watching.add_done_callback(self._ended)
        operating = [loop.create_task(operator.run())]
        if self.scenario.has_limits:
            limiter = LimitActor(self)
            await limiter.set_up()
            operating.append(loop.create_task(limiter.run()))
        for acting in operating:
            acting.add_done_callback(self._ended)
        await self._trouble()
        for acting in operating:
            acting.cancel()
        await self._peace()
        watching.cancel()
        Audit(self._connection, self.checker).check(self.scenario.settings.retention >= 3600 * SECOND)
        report = await audit(Store.on(InlineSqliteDriver(self._connection), Clock(wall=self.store_now)).ledger)
        if not report.ok:
            raise Violation(f"headway audit: {report.to_dict()}")

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)

    async def _trouble(self) -> None:
        for node in (*self._nodes, *self._workers):
            await asyncio.sleep(self._chance.uniform(0, 3))
            node.start()
        events = sorted(self._timeline(), key=lambda event: event[0])
        passed = 0.0
        for at, act in [*events, (self.scenario.chaos_s, lambda: None)]:
            await asyncio.sleep(max(0.0, at - passed))
            passed = max(at, passed)
            act()

    def _timeline(self) -> Iterator[tuple[float, Callable[[], None]]]:
        until, lease_s, chance = self.scenario.chaos_s, self.scenario.lease_s, self._chance
        for _ in range(self.scenario.outages):
            at = chance.uniform(0, until)
            yield at, lambda: self._set_down(True)
            yield min(until, at + chance.uniform(0.3, 2.5) * lease_s), lambda: self._set_down(False)
        for _ in range(chance.randint(0, 2)):
            at, node = chance.uniform(0, until), chance.choice(self._nodes)
            yield at, node.stop
            yield min(until, at + chance.uniform(0.2, 3) * lease_s), node.start
        for _ in range(chance.randint(1, 4)):
            at, worker = chance.uniform(0, until), chance.choice(self._workers)
            yield at, chance.choice((worker.stop, worker.hurry, worker.ask_to_drain))
            yield min(until, at + chance.uniform(0.2, 3) * self.scenario.job_lease_s), worker.start
        for _ in range(chance.randint(0, 3)):
            at, worker = chance.uniform(0, until), chance.choice(self._workers)
            yield at, worker.freeze_past_its_leases
        for _ in range(chance.randint(1, 4)):
            at, actor = chance.uniform(0, until), chance.choice([*self._workers, *self._workers, *self._nodes])
            yield at, partial(self._cut_off, actor)
        for _ in range(chance.randint(1, 5)):
            yield chance.uniform(0, until), chance.choice(self._workers).pause_a_child
        for _ in range(chance.randint(0, 3)):
            yield chance.uniform(0, until), self._step_a_clock
        for _ in range(chance.randint(0, 2)):
            yield chance.uniform(0, until), self._crash_a_leader

    def _set_down(self, is_down: bool) -> None:
        self.log("store", "goes down" if is_down else "is back")
        self.is_down = is_down
        if is_down:
            self.saw("outage")

    def _cut_off(self, actor: NodeActor) -> None:
        """Disconnect one process from the store for a while."""
        process = actor.process
        if process is not None:
            self.saw("cut off")
            self.log(process.id, "is cut off")
            longest_s = max(self.scenario.lease_s, self.scenario.job_lease_s)
            process.driver.is_cut_off = True
            self._loop.call_later(self._chance.uniform(0.5, 2.0) * longest_s, process.reconnect)

    def _step_a_clock(self) -> None:
        process = self._chance.choice(self._nodes).process
        if process is not None:
            process.skew += self._chance.choice((3600, -3600)) * SECOND
            self.saw("wall clock stepped")

    def _crash_a_leader(self) -> None:
        leaders = [node for node in self._nodes if node.holds()]
        if leaders:
            lease_s = self.scenario.lease_s
            self._chance.choice(leaders).crash(again_after_s=self._chance.uniform(0.1, 3) * lease_s)

    async def _peace(self) -> None:
        """End all faults; from here on the liveness promises apply."""
        self.log("simulation", "peace")
        self.mishaps = NO_MISHAPS
        self._set_down(False)
        for node in (*self._nodes, *self._workers):
            node.calm()
        staying = [node for node in self._nodes if node.stays]
        leaders = [node for node in staying if node.holds()]
        if len(staying) > 1 and leaders and self._chance.random() < 0.5:
            self._chance.choice(leaders).crash()
        elif not staying:
            self._nodes.append(NodeActor(self, len(self._nodes)))
            self._nodes[-1].start()
        await self._man_the_workers()
        watching = [self._loop.create_task(self._watch_slots())]
        if self.scenario.has_limits:
            watching.append(self._loop.create_task(self._watch_lanes()))
            watching[-1].add_done_callback(self._ended)
        rescue = self._loop.create_task(self._see_a_rescue(self._kill_a_worker()))
        await self._recover()
        await rescue
        for watch in watching:
            watch.cancel()
        await self._stop_all()

    async def _man_the_workers(self) -> None:
        """Start the first worker, which knows every task, and keep the others that run."""
        until = self._loop.time() + DRAIN_S_MAX
        while self._workers[0].is_alive and not self._workers[0].stays:
            if self._loop.time() > until:
                raise Violation(f"L7: a drain does not end: {self._workers[0].task}")
            await asyncio.sleep(0.5)
        self._workers[0].start()

    def _kill_a_worker(self) -> tuple[list[JobRow], bool]:
        """Kill a worker; return its jobs, and whether the housekeeping role is free now."""
        others = [worker for worker in self._workers[1:] if worker.stays]
        if not others:
            return [], False
        victim = self._chance.choice(others)
        assert victim.process is not None
        held = self.checker.held_by(victim.process.id)
        victim.crash()
        return held, not any(HOUSEKEEPING in roles for roles in self._holds().values())

    async def _see_a_rescue(self, left: tuple[list[JobRow], bool]) -> None:
        """Check that all jobs of a dead worker run again in time."""
        held, is_untidy = left
        # The promise assumes a poll of one second: expiry, promotion and claim each wait for one without a wake-up.
        budget_s = max(RESCUE_S, LOSS_WAIT_S + 3 * self.scenario.poll_s + 1.0)
        if is_untidy:
            budget_s += self.scenario.lease_s + TAKEOVER_S
        await asyncio.sleep(self.scenario.job_lease_s + budget_s)
        for job in held:
            now = self.checker.jobs.get(job.id)
            if now is None or now.status in FINAL or now.parked or now.attempt > job.attempt:
                self.saw("rescued from a dead worker")
            elif now.company is not None:
                self.saw("suspect waits")  # It waits for its turn.
            elif now.status != "PENDING" or await self._is_ignored(now):
                raise Violation(f"L3: not restarted in time: {job} is {now}")

    @property
    def _start_s(self) -> float:
        """Return within how many seconds a job that could start must have started, besides the poll and a second.

        With limits, another worker's sweep may have to open its lane first.
        """
        return 2 * self.scenario.poll_s + 1.0 if self.scenario.has_limits else 0.0

    def _held_at(self, job: JobRow) -> float:
        """Return when a job had to wait for a limit for the last time."""
        if not self.scenario.has_limits:
            return -1e9
        return self._seconds(self.checker.limits.held_at(job, self.store_now()))

    async def _is_ignored(self, job: JobRow) -> bool:
        """Return whether a job waits despite room for it; a slot that just became free is for the next job."""
        until = self._loop.time() + self.scenario.poll_s + 1.0 + self._start_s
        began = self._loop.time()
        while self._has_room(job) and self.checker.jobs.get(job.id) == job and self._held_at(job) < began:
            if self._loop.time() > until:
                return True
            await asyncio.sleep(0.01)
        return False

    def _has_room(self, job: JobRow) -> bool:
        kind = TASKS[job.task]
        return any(
            worker.child_pool is not None
            and worker.stays
            and worker.takes(job.task, job.queue)
            and worker.child_pool.room(kind)
            for worker in self._workers
            if not worker.keeps_others_out
        )

    async def _recover(self) -> None:
        settings = self.scenario.settings
        poll_s = self.scenario.poll_s
        roles = [HOUSEKEEPING, *(f"scheduler/{shard}" for shard in range(self.scenario.shards))]
        liveness = Liveness(self.checker, roles=roles, poll_s=poll_s)
        await asyncio.sleep(self.scenario.lease_s + TAKEOVER_S)
        await self._has_leaders(liveness)
        await asyncio.sleep(poll_s + 1.0)
        orphans: Counter[tuple[str, int]] = Counter()
        ignored: Counter[str] = Counter()
        for worker in self._workers:
            if worker.stays and worker.process is not None:
                worker.process.driver.loses_claims = 2
        for _ in range(12):
            await self._has_leaders(liveness)
            now = self.store_now()
            liveness.decided(now, round((poll_s + 1.0) * SECOND))
            liveness.moving(now, round((poll_s + 2.0) * SECOND + settings.worker_lease))
            orphans = self._orphans(orphans)
            ignored = self._ignored(ignored)
            await asyncio.sleep(1.0)

    async def _has_leaders(self, liveness: Liveness) -> None:
        """Check that every role has a holder; a process that ends now hands its roles over."""
        leaving = [actor for actor in (*self._nodes, *self._workers) if not actor.stays]
        try:
            liveness.leaders(self._holds())
        except Violation:
            if not leaving:
                raise
            await asyncio.sleep(self.scenario.lease_s)
            liveness.leaders(self._holds())

    def _orphans(self, before: Counter[tuple[str, int]]) -> Counter[tuple[str, int]]:
        """Check that a live worker has every job that the store assigns to it, or is about to write its end."""
        found: Counter[tuple[str, int]] = Counter()
        for worker in self._workers:
            if worker.stays and worker.process is not None and worker.child_pool is not None:
                for job in self.checker.held_by(worker.process.id):
                    if not worker.child_pool.has(job.id):
                        found[job.id, job.attempt] = before[job.id, job.attempt] + 1
                        if found[job.id, job.attempt] * 1.0 > self.scenario.poll_s + 2.0:
                            raise Violation(f"L3: nobody runs it, and its lease goes on: {job}")
        return found

    def _ignored(self, before: Counter[str]) -> Counter[str]:
        """Check that a ready job is started while there is room for it."""
        ready = [
            job
            for job in self.checker.jobs.values()
            if job.status == "PENDING"
            and job.company is None
            and self._has_room(job)
            and self._held_at(job) < self._loop.time() - 1.0
        ]
        found = Counter({job.id: before[job.id] + 1 for job in ready})
        for job in ready:
            if found[job.id] > self.scenario.poll_s + 2.0 + self._start_s:
                raise Violation(f"L2: ready, with room for it, and not started: {job}")
        return found

    async def _watch_slots(self) -> None:
        """Check that a job that could begin and a free slot that knows of it do not coexist for more than a second.

        It makes no difference whether the store still has the job, or a worker holds it without beginning it. A worker
        that missed the wake-up learns of the job by its next poll.
        """
        since: dict[str, float] = {}
        await asyncio.sleep(self.scenario.lease_s + TAKEOVER_S)  # Until all have recovered from the faults.
        assert self._operator is not None
        await self._operator.enqueue_some(BURST)
        while True:
            now = self._loop.time()
            waiting = [job for job in self.checker.jobs.values() if self._could_begin(job)]
            if now - self._unheard_at < self.scenario.poll_s + 1.0:  # The store failed meanwhile.
                waiting = []
            since = {job.id: max(since.get(job.id, now), self._held_at(job)) for job in waiting}
            for job in waiting:
                if now - since[job.id] > self.scenario.poll_s + 1.0 + self._start_s:
                    self.fail(Violation(f"L2: it has not begun although there is a free slot for it: {job}"))
            await asyncio.sleep(0.1)

    async def _watch_lanes(self) -> None:
        """Check that no lane waits at a gate where jobs may start, that rings are taken, and limits get in force."""
        since: dict[LaneKey, float] = {}
        rung: dict[int, float] = {}
        await asyncio.sleep(self.scenario.lease_s + TAKEOVER_S)
        limits, began, within_s = self.checker.limits, self._loop.time(), self.scenario.poll_s + self._start_s
        while True:
            now, at = self._loop.time(), self.store_now()
            held = {key: lane.held_by for key, lane in limits.lanes.items() if lane.held_by is not None}
            since = {
                key: max(since.get(key, now), self._seconds(limits.full_at(gate, at))) for key, gate in held.items()
            }
            for key, gate in held.items():
                if now - since[key] > within_s:
                    raise Violation(f"L2: a lane waits at {gate}, where jobs may start: {limits.lanes[key]}")
            rung = {seq: rung.get(seq, now) for seq in self._untaken_rings()}
            for seq, since_s in rung.items():
                if now - since_s > within_s:
                    raise Violation(f"L2: nobody takes the ring {seq}, and there is room for its job")
            for limit in limits.limits.values():
                late_s = self._seconds(limits.put_at[limit.name]) + FORCE_S
                if not limit.in_force and now - max(began, late_s) > within_s:
                    raise Violation(f"L2: a limit does not get in force: {limit}")
            await asyncio.sleep(0.1)

    def _untaken_rings(self) -> list[int]:
        """Return the rings of lanes with a job for which a worker has room, whether or not a gate is full."""
        rings = self._connection.raw.execute("select * from headway_rings").fetchall()
        if not rings:
            return []
        ready = {
            (job.queue, job.tenant, job.limit_key, job.limited_task)
            for job in self.checker.jobs.values()
            if job.status == "PENDING" and job.company is None and self._has_room(job)
        }
        columns = ("queue", "tenant", "limit_key", "limited_task")
        return [ring["seq"] for ring in rings if tuple(ring[column] for column in columns) in ready]

    def _seconds(self, at: Instant) -> float:
        return (at - self.scenario.start) / SECOND

    def _could_begin(self, job: JobRow) -> bool:
        is_kept = job.status == "RUNNING" and any(
            worker.child_pool.keeps_waiting(job.id)
            for worker in self._workers
            if worker.child_pool is not None and worker.stays
        )
        if job.company is not None or not (is_kept or job.status == "PENDING"):
            return False
        return any(
            worker.is_awake
            and worker.stays
            and not worker.keeps_others_out
            and worker.has_free_slot(job.task, job.queue)
            for worker in self._workers
        )

    async def _stop_all(self) -> None:
        assert self._operator is not None
        ids = [worker.process.id for worker in self._workers if worker.process is not None and worker.stays]
        self._stops_at_claim = self._chance.random() < 0.5
        await self._operator.enqueue_some()
        await asyncio.sleep(self._chance.uniform(0, 0.1))
        grace_s = self.scenario.settings.grace / SECOND
        for actors, within_s in ((self._workers, grace_s + STOP_S), (self._nodes, 5.0)):
            for actor in actors:
                actor.stop()
            tasks = [actor.task for actor in actors if actor.task is not None]
            _, late = await asyncio.wait(tasks, timeout=within_s) if tasks else (set(), set())
            if late:
                raise Violation(f"L7: a clean stop takes longer than {within_s} s: {late}")
            left = [job for id_ in ids for job in self.checker.held_by(id_)]
            if left:
                raise Violation(f"L7: a clean stop left jobs behind: {left}")
        now = self.store_now()
        held = [
            lease for lease in self.checker.leases.values() if lease.until > now and "occurrence/" not in lease.name
        ]
        if held:
            raise Violation(f"a clean stop left leases behind: {held}")

    async def _watch_calls(self) -> None:
        """Check that no loop calls the store too often."""
        while True:
            self._calls.clear()
            await asyncio.sleep(CALLS_WINDOW_S)
            for actor, calls in self._calls.items():
                if calls > CALLS_PER_S_MAX * CALLS_WINDOW_S:
                    raise Violation(f"bounded load: {actor} called the store {calls} times in {CALLS_WINDOW_S} s")

    # Events and logs.

    def _holds(self) -> dict[str, dict[str, int]]:
        actors = (*self._nodes, *self._workers)
        return {actor.process.id: actor.holds() for actor in actors if actor.process is not None}

    def hear(self, event: EngineEvent) -> None:
        """Count the events of the engine."""
        match event:
            case DecisionRefused() if "no longer ours" in event.reason:
                self.saw("stale token refused")
            case DecisionRefused():
                self.saw("another node decided first")
            case AttemptsLost() if event.reason == "the store refused their outcomes":
                self.saw("stale attempt refused")
            case AttemptsLost():
                self.saw(f"attempt lost: {event.reason}")
            case Draining():
                self.saw("drained with jobs" if event.running else "drained")
            case JobsSettled():
                self.saw("batch settled")
            case TermLost():
                self.saw(f"term lost: {event.reason}")
            case TickFailed():
                self.saw("tick failed")
            case ScheduleHeld():
                self.fail(Violation(f"a good schedule was held: {event}"))
            case ClockStepped() if self._verbose:
                self.saw("clock stepped")
            case _:
                pass
        if self._verbose and isinstance(event, _TOLD):
            self.log(str(getattr(event, "node", "")), _brief(event))

    def _log_changes(self, actor: str, changes: list[Change]) -> None:
        for change in changes:
            self.log(actor, "  ", change.new if change.old is None else f"{change.old} -> {change.new}")

    def _notify(self, actor: str, changes: list[Change]) -> None:
        if not self._listeners:
            return
        topics = self._topics(changes) if self.scenario.wake_ups == "notify" else {"anything": None}
        for listener in tuple(self._listeners):
            for topic in topics:
                if listener != actor and (listener, topic) not in self._on_their_way:
                    self._send(listener, topic)

    def _topics(self, changes: list[Change]) -> dict[str, None]:
        topics: dict[str, None] = {}
        for change in changes:
            match change.old, change.new:
                case old, JobRow() as job if old is None or old.status != job.status:  # type: ignore[union-attr]
                    topics[_ready_topic(job)] = None
                case JobRow() as old, JobRow(status="PENDING") as job if old.limited_task != job.limited_task:
                    topics[_ready_topic(job)] = None
                case JobRow() as old, JobRow() as job if old.cancel_requested_at != job.cancel_requested_at:
                    topics["stop"] = None
                case None, ScheduleRow():
                    topics["schedules"] = None
                case ScheduleRow() as old, ScheduleRow() as new if (
                    old.revision != new.revision or old.decided_through == new.decided_through
                ):
                    topics["schedules"] = None
                case LeaseRow() as old, LeaseRow() as new if new.until < old.until:
                    topics["leases"] = None
                case LaneRow() as old, LaneRow(open=1, held_by=None) as new if old.held_by is not None:
                    topics["lanes " + new.queue] = None
                case (LimitRow(), _) | (_, LimitRow()):
                    topics["limits"] = None
        return topics

    def _send(self, listener: str, topic: str) -> None:
        delay_s = 0.05 if topic == "anything" else self._chance.choice((0.001, 0.005, 0.05))
        if self.mishaps is not NO_MISHAPS:
            if self._chance.random() < 0.2:
                self.saw("wake-up lost")
                return
            if self._chance.random() < 0.1:
                self.saw("wake-up delayed")
                delay_s = self._chance.uniform(0.5, 4)
        self._on_their_way.add((listener, topic))
        self._loop.call_later(delay_s, self._deliver, listener, topic)

    def _deliver(self, listener: str, topic: str) -> None:
        self._on_their_way.discard((listener, topic))
        hear = self._listeners.get(listener)
        if hear is not None:
            hear(topic)


def _ready_topic(job: JobRow) -> str:
    if job.status != "PENDING":
        return "waiting"
    is_usual = (job.tenant, job.limit_key, job.limited_task) == ("default", "", "")
    return f"ready {job.queue}" if is_usual else f"lanes {job.queue}"


_TOLD: Final = (TermWon, TermLost, DecisionRefused, TickFailed, SchedulesDecided, AttemptsLost, Draining)


def _brief(event: EngineEvent) -> str:
    if isinstance(event, SchedulesDecided):
        plans = ", ".join(f"{plan.schedule.name} v{plan.schedule.version}" for plan in event.plans)
        return f"decided {plans}"
    return str(event)


class Audit:
    """The ledger against the definitions: every instant is enumerated, and must have its record."""

    def __init__(self, connection: SqliteConnection, checker: Checker) -> None:
        self._raw = connection.raw
        self._checker = checker

    def check(self, complete: bool) -> None:
        """Compare the recorded with the expected instants."""
        if not complete:
            return  # Old records were pruned; the checkers saw each of them when it was written.
        records = defaultdict(list)
        for row in self._raw.execute("select * from headway_occurrences order by schedule, instant"):
            records[row["schedule"], row["revision"]].append(
                (row["instant"], row["until"] or row["instant"], row["count"])
            )
        for (name, revision), (effective_at, spec) in self._checker.revisions.items():
            following = self._checker.revisions.get((name, revision + 1))
            end = following[0] if following else self._checker.schedules[name].decided_through
            found = records.pop((name, revision), [])
            if spec is not None and isinstance(spec.trigger, After):
                continue  # Its instants follow from its jobs; the checkers compared them one by one.
            self._compare(f"{name}, revision {revision}", list(_instants(spec, effective_at, end)), found)
        if records:
            raise Violation(f"audit: decisions for no revision: {records}")

    def _compare(self, name: str, expected: list[Instant], records: list[tuple[Instant, Instant, int]]) -> None:
        undecided = iter(expected)
        for low, high, count in records:
            for instant in itertools.islice(undecided, count):
                if not low <= instant <= high:
                    raise Violation(
                        f"audit: {name}: {isoformat(instant)} is not in {isoformat(low)}..{isoformat(high)}"
                    )
        left = next(undecided, None)
        if left is not None or sum(count for _, _, count in records) != len(expected):
            raise Violation(f"audit: {name}: {len(expected)} expected, {records} recorded")
        self._checker.seen["audited instants"] += len(expected)


def _instants(spec: ScheduleSpec | None, after: Instant, until: Instant) -> Iterator[Instant]:
    instant = None if spec is None else next_instant(spec, after)
    while spec is not None and instant is not None and instant <= until:
        yield instant
        instant = next_instant(spec, instant)
