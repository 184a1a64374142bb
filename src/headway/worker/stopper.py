"""Stop jobs and children: ask, then SIGTERM, then SIGKILL. Detect time-outs and stalled children."""

import signal
from typing import Final

from headway.core.clock import Clock
from headway.core.instants import SECOND
from headway.core.lifecycle import AttemptOutcome
from headway.worker.assignments import Assignments
from headway.worker.child_processes import START_S_MAX, ChildProcesses
from headway.worker.children import ChildRecord, KindPool
from headway.worker.dispatcher import Dispatcher
from headway.worker.handover import AssignedJob
from headway.worker.ipc import Flush, Stop
from headway.worker.outcomes import out_of_time
from headway.worker.sweeper import Sweeper

WAIT_S_MAX: Final = 0.4  # A job that has not begun in its child by then is handed back.
STALLED_S_MAX: Final = 5.0  # How long a stalled child may take to make progress before it is replaced.
SOFT_S: Final = 1.0  # From the request to SIGTERM.
HARD_S: Final = 2.0  # From SIGTERM to SIGKILL.
DEAF_S_MAX: Final = 1.0


class Stopper:
    """Stop jobs and children, on request and when their time is up."""

    def __init__(
        self,
        processes: ChildProcesses,
        assignments: Assignments,
        dispatcher: Dispatcher,
        sweeper: Sweeper,
        clock: Clock,
    ) -> None:
        self._processes = processes
        self._assignments = assignments
        self._dispatcher = dispatcher
        self._sweeper = sweeper
        self._clock = clock

    def stop(self, job_id: str, attempt: int, outcome: AttemptOutcome) -> None:
        """Stop a job; report this outcome once it has stopped."""
        found = self._assignments.find(job_id, attempt)
        if found is None:
            self._dispatcher.drop_suspect(job_id, attempt, outcome)
            return
        child, assigned = found
        if assigned.stop_as is not None:
            return
        now = self._clock.monotonic()
        child.handover.look(now)
        if child.kind == "process" or not child.handover.has_begun(assigned):
            assigned.stop_as = outcome
            self._assignments.hand_back(child.handover.withdraw(now))  # Including this job, unless it has begun.
            if child.handover.find(job_id, attempt) is None:
                return
        assigned.stop_as, assigned.stop_since = outcome, now
        if child.kind == "process" and not child.handover.is_running(assigned):
            child.process.send(Flush())  # It has ended; its outcome is on the way.
            assigned.stop_as = None
            return
        child.is_stopping = child.kind == "process"
        child.process.send(Stop(job_id, attempt))

    def abandon(self, job_id: str, attempt: int) -> None:
        """Kill a job whose lease is lost, and report nothing about it."""
        found = self._assignments.find(job_id, attempt)
        if found is None:
            self._dispatcher.drop_suspect(job_id, attempt, None)
            return
        child, assigned = found
        back = child.handover.withdraw(self._clock.monotonic())
        if assigned not in back:
            if child.handover.is_running(assigned):
                self.kill(child, f"the lease of {job_id} was lost")
                self._assignments.stopping[job_id, attempt] = child
            child.handover.end(job_id, attempt)
        del self._assignments.where[job_id]
        self._assignments.hand_back(each for each in back if each is not assigned)

    def kill(self, child: ChildRecord, reason: str) -> None:
        """Kill a child with all that it has started, including processes that have left its process group."""
        if child.killed_because is None:
            child.killed_because = reason
            child.kill_sent = self._clock.monotonic()
            self._sweeper.sweep(child.process, _do_nothing, with_head=True)

    def watch(self, pool: KindPool, child: ChildRecord, now: float) -> None:
        """Check a living child and its jobs."""
        if child.killed_because is None and self._processes.is_late(child):
            self.kill(child, f"it did not start within {START_S_MAX:g} s")
        if child.deaf_since is not None and now - child.deaf_since > DEAF_S_MAX:
            child.process.kill()  # Its socket is broken, by whatever crashed it.
        if child.killed_because is not None and now - child.kill_sent > HARD_S:
            child.process.kill()
        child.handover.look(now)
        for assigned in child.handover.running():
            self._watch_job(child, assigned, now)
        self._watch_hand_over(pool, child, now)
        if not child.is_leaving and self._processes.is_spent(pool, child):
            self._processes.retire(child)

    def _watch_job(self, child: ChildRecord, assigned: AssignedJob, now: float) -> None:
        if assigned.is_ending:
            return
        if assigned.stop_as is not None:
            self._press(child, assigned, now)
            return
        info = self._processes.tasks[assigned.claimed.task]
        timeout = assigned.claimed.timeout or info.timeout
        if timeout is not None and assigned.since is not None and now - assigned.since >= timeout / SECOND:
            outcome = out_of_time(timeout / SECOND, retries=info.retries_timeouts)
            self.stop(assigned.claimed.job_id, assigned.claimed.attempt, outcome)

    def _watch_hand_over(self, pool: KindPool, child: ChildRecord, now: float) -> None:
        """Take back jobs that waited too long, and replace a stalled child."""
        handover = child.handover
        running = handover.running()
        if now - handover.waiting_since() > WAIT_S_MAX:
            for assigned in running:
                if assigned.since is not None:
                    pool.prefetch.takes_at_least(assigned.claimed.task, now - assigned.since)
            back = handover.withdraw(now)
            if back and len(running) < child.width and child.stalled_since is None:
                child.stalled_since = now  # It had free slots and did not begin them.
            self._assignments.hand_back(back)
        is_silent = bool(handover.unheard()) and not running
        child.unheard_since = (child.unheard_since or now) if is_silent else None
        if handover.unheard():
            child.process.send(Flush())
        since = min((at for at in (child.stalled_since, child.unheard_since) if at is not None), default=now)
        if now - since > STALLED_S_MAX:
            if running:
                self._processes.retire(child)  # It may finish the jobs that it has begun; others begin elsewhere.
            else:
                self.kill(child, "it was stalled")

    def _press(self, child: ChildRecord, assigned: AssignedJob, now: float) -> None:
        """Escalate: ask, then SIGTERM, then SIGKILL.

        A signal cannot interrupt one thread or one coroutine, so SIGKILL ends all jobs of such a child.
        """
        waited = now - assigned.stop_since
        if assigned.stop_stage == 0 and waited >= SOFT_S:
            assigned.stop_stage = 1
            if child.kind == "process":
                child.process.signal(signal.SIGTERM)
        elif assigned.stop_stage == 1 and waited >= SOFT_S + HARD_S:
            assigned.stop_stage = 2
            self.kill(child, f"{assigned.claimed.job_id} did not stop")


def _do_nothing() -> None:
    """Do nothing: the death of the child is noticed elsewhere."""
