"""The child pool: the child processes of one worker, the jobs in them, and how both are stopped.

The child pool knows nothing of the store. It gets claimed jobs and ends each of them exactly once with an outcome,
unless it is asked to abandon a job. It guarantees the following, whatever the code in the children does:

- A dead child is noticed at once. The job that ran in it has crashed; jobs that had not begun are handed back. When
  several jobs ran side by side, the culprit is unknown: all are handed back as suspects and run in ever smaller groups
  until the one that kills its process is alone. Its neighbours lose no attempt, and little time.
- A job that must stop is asked first. Then its process group gets SIGTERM, then SIGKILL, and so does everything that it
  started. The outcome is reported when the job *has* stopped.
- Time-outs are measured here, by the monotonic clock, so code that holds the GIL cannot escape them.
- No job waits in a child for longer than `WAIT_S_MAX`. Jobs that have not begun by then are handed back, to run
  wherever there is a free slot, and a child that stalled instead of beginning them is replaced.

`handover.py` passes jobs to a child and takes them back; `prefetch.py` decides how many a child gets in advance.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headway.core.clock import Clock
from headway.core.events import Timed, emit
from headway.core.jobs import Claimed
from headway.core.lifecycle import AttemptOutcome, Released
from headway.worker.assignments import Assignments
from headway.worker.child_pool_port import SupervisorPort
from headway.worker.child_processes import ChildPoolPlan, ChildProcesses
from headway.worker.children import ChildRecord, KindPool
from headway.worker.dispatcher import Dispatcher
from headway.worker.handover import AssignedJob
from headway.worker.ipc import Hello, TaskInfo, ToSupervisor
from headway.worker.listener import Listener
from headway.worker.outcomes import CHILD_DIED, OUTCOME_LOST, loss_of
from headway.worker.process import ChildProcess
from headway.worker.stopper import Stopper
from headway.worker.sweeper import Sweeper

SWEEP_S_MAX: Final = 3.0  # How long the jobs of a dead child wait until its processes have ended.
GONE_S_MAX: Final = 0.2  # How long `close` waits for killed processes; some cannot be killed at every moment.


class ChildPool:
    """Run jobs in the children of one worker. Used by one event loop."""

    def __init__(
        self,
        plan: ChildPoolPlan,
        clock: Clock,
        supervisor_port: SupervisorPort | None = None,
        *,
        start: Callable[..., ChildProcess] = ChildProcess,
        sweeper: Sweeper | None = None,
    ) -> None:
        self._clock = clock
        self.processes = ChildProcesses(plan, clock, self, start)
        self.assignments = Assignments(supervisor_port)
        self._sweeper = sweeper or Sweeper()
        self.dispatcher = Dispatcher(self.processes, self.assignments, clock)
        self.stopper = Stopper(self.processes, self.assignments, self.dispatcher, self._sweeper, clock)
        self.listener = Listener(self.processes, self.assignments, self.stopper, self._sweeper, clock)
        # Dead children whose processes are still being ended: since when, and the outcomes of their jobs.
        self._unswept: dict[ChildRecord, tuple[float, list[tuple[Claimed, AttemptOutcome]]]] = {}

    # --- state

    def report_to(self, supervisor_port: SupervisorPort) -> None:
        """Tell this supervisor from now on what happens."""
        self.assignments.supervisor_port = supervisor_port

    @property
    def hello(self) -> Hello | None:
        """What the first child reported about the app; None before that."""
        return self.processes.hello

    @property
    def greeted(self) -> asyncio.Event:
        """Set when the first child has reported what is in the app."""
        return self.processes.greeted

    @property
    def tasks(self) -> Mapping[str, TaskInfo]:
        """The tasks that can run here."""
        return self.processes.tasks

    @property
    def kinds(self) -> dict[str, frozenset[str]]:
        """The tasks by the kind of child that runs them."""
        return self.processes.kinds

    def room(self, kind: str) -> int:
        """Return how many more jobs of this kind fit; a few free slots count as none while many are taken."""
        pool = self.processes.pools[kind]
        room, capacity = pool.room(), pool.capacity()
        return room if room * 4 >= capacity or capacity <= pool.width * len(pool.children) else 0

    def slots(self, kind: str | None = None) -> int:
        """Return how many jobs can run at the same time, of one kind or in total."""
        pools = [self.processes.pools[each] for each in self.kinds if kind in (None, each)]
        return sum(pool.children_max * pool.width for pool in pools)

    def busy(self, kind: str | None = None) -> int:
        """Return how many jobs have begun and not ended, of one kind or in total."""
        return sum(self.processes.pools[each].busy() for each in self.kinds if kind in (None, each))

    def count(self) -> int:
        """Return the number of children."""
        return self.processes.count()

    def open(self) -> None:
        """Start the first child; it reports which tasks there are."""
        self.processes.open()

    # --- requests of the supervisor

    def start(self, jobs: Sequence[Claimed], kept: Mapping[str, dict[str, str]] | None = None) -> None:
        """Assign jobs to children that have room for them."""
        self.dispatcher.start(jobs, kept)

    def stop(self, job_id: str, attempt: int, outcome: AttemptOutcome) -> None:
        """Stop a job; report this outcome once it has stopped."""
        self.stopper.stop(job_id, attempt, outcome)

    def abandon(self, job_id: str, attempt: int) -> None:
        """Kill a job whose lease is lost, and report nothing about it."""
        self.stopper.abandon(job_id, attempt)

    def is_stopping(self, job_id: str, attempt: int) -> bool:
        """Return whether the code of an abandoned attempt may still run."""
        return (job_id, attempt) in self.assignments.stopping

    def release_waiting(self, reason: str) -> None:
        """Hand back every job that has not begun; the worker drains."""
        self.processes.is_closing = True
        self.dispatcher.release_suspects(Released(reason))
        for _, child in self.processes:
            self.assignments.hand_back(child.handover.withdraw(self._clock.monotonic()))

    def release_all(self, reason: str) -> None:
        """Hand back every job now: kill the children and release their jobs when they are dead."""
        self.release_waiting(reason)
        for _, child in self.processes:
            for assigned in child.handover.jobs.values():
                assigned.stop_as = assigned.stop_as or Released(reason)
            self.stopper.kill(child, reason)

    def watch(self) -> None:
        """Check time-outs, stalled children and dead children; called several times a second."""
        for pool in self.processes.pools.values():
            for child in list(pool.children):
                if child.process.has_ended:
                    self.on_exit(pool, child)
                else:
                    self.stopper.watch(pool, child, self._clock.monotonic())
            self.processes.keep(pool)
            self.dispatcher.try_suspects(pool)
        for child, (since, _) in list(self._unswept.items()):
            if self._clock.monotonic() - since > SWEEP_S_MAX:
                self._settle_dead(child)

    # --- events of the children

    def on_readable(self, pool: KindPool, child: ChildRecord) -> None:
        """Handle messages that arrived from a child."""
        messages = child.process.read()
        if messages is None:
            child.deaf_since = self._clock.monotonic()  # Most likely it is about to exit.
        else:
            self.hear(pool, child, messages)

    def hear(self, pool: KindPool, child: ChildRecord, messages: Sequence[ToSupervisor]) -> None:
        """Handle messages of a child, then start suspects that fit into the free slots."""
        self.listener.hear(pool, child, messages)
        self.dispatcher.try_suspects(pool)

    def on_exit(self, pool: KindPool, child: ChildRecord) -> None:
        """Handle the death of a child: read its last messages, and settle its jobs when all that it started is gone."""
        if child.is_gone or not child.process.has_ended:
            return
        for messages in child.process.last_words():
            self.hear(pool, child, messages)
        self._unswept[child] = (self._clock.monotonic(), self._ends_of(child))
        self.processes.bury(pool, child)
        child.process.close()
        self._sweeper.sweep(child.process, lambda: self._settle_dead(child), with_head=True)
        self.assignments.say_room()

    def _ends_of(self, child: ChildRecord) -> list[tuple[Claimed, AttemptOutcome]]:
        """Return the outcomes of the jobs that were in a dead child."""
        now = self._clock.monotonic()
        running, unheard, waiting = child.handover.bury(now)
        if running:
            emit(Timed(node=self._clock.node, what="run", lots=tuple((now - (g.since or g.at), 1) for g in running)))
        ends: list[tuple[AssignedJob, AttemptOutcome]] = []
        killed_because = None if child.is_damaged else child.killed_because
        ends += [(assigned, loss_of(child.process.ending, killed_because, len(running))) for assigned in running]
        ends += [(assigned, OUTCOME_LOST) for assigned in unheard]
        ends += [(assigned, CHILD_DIED) for assigned in waiting]
        return [(assigned.claimed, assigned.stop_as or outcome) for assigned, outcome in ends]

    def _settle_dead(self, child: ChildRecord) -> None:
        _, ends = self._unswept.pop(child, (0.0, ()))
        self.assignments.bury(child)
        for claimed, outcome in ends:
            if self.assignments.where.get(claimed.job_id) is child:
                self.assignments.end(claimed, outcome)

    async def close(self, within_s: float) -> None:
        """End every child: idle ones by themselves, the others by force."""
        self.processes.is_closing = True
        for _, child in self.processes:
            if child.load or not child.is_ready:
                self.stopper.kill(child, "the worker ends")
            else:
                self.processes.retire(child)
        until = self._clock.monotonic() + within_s
        await self._wait_for_ends(until)
        for _, child in self.processes:
            self.stopper.kill(child, "the worker ends")
        await self._wait_for_ends(until + GONE_S_MAX)
        self._sweeper.close()
        await self.processes.stop_orphan_reaper()

    async def _wait_for_ends(self, until: float) -> None:
        wake = asyncio.Event()
        while (self.count() or self._unswept) and self._clock.monotonic() < until:
            self.watch()
            await self._clock.rest(0.02, wake)
