"""The real child pool with simulated children."""

import asyncio
from collections.abc import Callable
from typing import Final

from headway.core.clock import Clock
from headway.worker.child_pool import ChildPool
from headway.worker.child_processes import ChildPoolPlan
from tests.simulation.child import ProcessState, SimulatedChild

SLOTS: Final = {"loop": 4, "process": 2}


class Sweeper:
    """Ends process trees at once: simulated jobs start no processes."""

    def __init__(self, around: ProcessState) -> None:
        self._around = around
        self._tasks: dict[asyncio.Task[None], None] = {}

    def sweep(self, family: SimulatedChild, then: Callable[[], None], *, with_head: bool) -> None:
        """Kill a child if asked to; call `then` when the supervisor is awake."""
        if with_head:
            family.kill()
        task = asyncio.get_running_loop().create_task(self._tell(then))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _tell(self, then: Callable[[], None]) -> None:
        await asyncio.sleep(0.05)
        await self._around.heard()
        then()

    def close(self) -> None:
        """Forget all waiting callbacks."""
        for task in list(self._tasks):
            task.cancel()


class SimulatedChildPool(ChildPool):
    """Runs simulated jobs with the real protocol."""

    def __init__(self, around: ProcessState, clock: Clock) -> None:
        self._around = around
        self._sweeping = Sweeper(around)
        self._pids = 0
        plan = ChildPoolPlan(command=(), processes=SLOTS["process"], concurrency=SLOTS["loop"], threads=1)
        super().__init__(plan, clock, start=self._start, sweeper=self._sweeping)  # type: ignore[arg-type]
        self.processes.spawn(self.processes.pools["process"])

    def _start(self, _: object, kind: str, width: int, mark: str, __: object) -> SimulatedChild:
        self._pids += 1
        return SimulatedChild(self._around, kind, width, mark, self._pids)

    @property
    def children(self) -> list[SimulatedChild]:
        """Return the live children."""
        return [child.process for _, child in self.processes]  # type: ignore[misc]

    def calm(self) -> None:
        """Make jobs short and successful."""
        self._around.is_calm = True

    def runs(self, job_id: str) -> int:
        """Return the attempt whose code runs here; 0 if none does."""
        return max(
            (child.running[job_id].claimed.attempt for child in self.children if job_id in child.running), default=0
        )

    def has(self, job_id: str) -> bool:
        """Return whether a job runs, waits or is being ended here."""
        suspects = (claimed.job_id for pool in self.processes.pools.values() for claimed in pool.suspects)
        return job_id in self.assignments.where or job_id in suspects

    def keeps_waiting(self, job_id: str) -> bool:
        """Return whether a job was assigned to a child here and has not begun."""
        for _, child in self.processes:
            assigned = child.handover.jobs.get(job_id)
            if assigned is not None and assigned.number > child.process.counters.begun:
                return True
        return False

    def has_free_slot(self, kind: str) -> bool:
        """Return whether a job of this kind could begin here now."""
        pool = self.processes.pools[kind]
        return any(pool.capacity_of(child) and child.load < child.width for child in pool.children)

    def die(self) -> None:
        """Die with everything that runs."""
        for child in self.children:
            child.vanish()
        self._sweeping.close()
        for answer in sorted(self.listener.answers, key=lambda task: (len(task.get_name()), task.get_name())):
            answer.cancel()
