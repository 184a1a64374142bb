"""How jobs and children are made to stop: asked, then SIGTERM, then SIGKILL; and what only time can show."""

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

WAIT_S_MAX: Final = 0.4  # A job that was given to a child and has not begun by then is handed back.
STALLED_S_MAX: Final = 5.0  # So long a child that stands still may take to show that it goes on; then it is replaced.
SOFT_S: Final = 1.0  # From asking to SIGTERM
HARD_S: Final = 2.0  # and from there to SIGKILL.
DEAF_S_MAX: Final = 1.0


class Stopper:
    """Stops jobs and children, on request and when their time is up."""

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
        """Have a job stop; it ends with this outcome once it has."""
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
            self._assignments.hand_back(child.handover.withdraw(now))  # With it, unless it has begun.
            if child.handover.find(job_id, attempt) is None:
                return
        assigned.stop_as, assigned.stop_since = outcome, now
        if child.kind == "process" and not child.handover.is_running(assigned):
            child.process.send(Flush())  # It is done; its outcome is on the way.
            assigned.stop_as = None
            return
        child.is_stopping = child.kind == "process"
        child.process.send(Stop(job_id, attempt))

    def abandon(self, job_id: str, attempt: int) -> None:
        """Stop a job that is no longer ours, at once and without a word about its end."""
        found = self._assignments.find(job_id, attempt)
        if found is None:
            self._dispatcher.drop_suspect(job_id, attempt, None)
            return
        child, assigned = found
        back = child.handover.withdraw(self._clock.monotonic())
        if assigned not in back:
            if child.handover.is_running(assigned):
                self.kill(child, f"the lease of {job_id} was lost")
            child.handover.end(job_id, attempt)
        del self._assignments.where[job_id]
        self._assignments.hand_back(each for each in back if each is not assigned)

    def kill(self, child: ChildRecord, reason: str) -> None:
        """Kill a child with all that it has started, also what has left its process group."""
        if child.killed_because is None:
            child.killed_because = reason
            child.kill_sent = self._clock.monotonic()
            self._sweeper.sweep(child.process, _do_nothing, with_head=True)

    def watch(self, pool: KindPool, child: ChildRecord, now: float) -> None:
        """Look after a child that lives."""
        if child.killed_because is None and self._processes.is_late(child):
            self.kill(child, f"it did not start within {START_S_MAX:g} s")
        if child.deaf_since is not None and now - child.deaf_since > DEAF_S_MAX:
            child.process.kill()  # Nobody can speak with it. Whatever closed its line has crashed it.
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
        """Take back what has waited for too long, and replace a child that stands still."""
        handover = child.handover
        running = handover.running()
        if now - handover.waiting_since() > WAIT_S_MAX:
            for assigned in running:
                if assigned.since is not None:
                    pool.prefetch.takes_at_least(assigned.claimed.task, now - assigned.since)
            back = handover.withdraw(now)
            if back and len(running) < child.width and child.stalled_since is None:
                child.stalled_since = now  # It could have begun more.
            self._assignments.hand_back(back)
        is_silent = bool(handover.unheard()) and not running
        child.unheard_since = (child.unheard_since or now) if is_silent else None
        if handover.unheard():
            child.process.send(Flush())
        since = min((at for at in (child.stalled_since, child.unheard_since) if at is not None), default=now)
        if now - since > STALLED_S_MAX:
            if running:
                self._processes.retire(child)  # It may end what it has begun; others begin elsewhere.
            else:
                self.kill(child, "it stood still")

    def _press(self, child: ChildRecord, assigned: AssignedJob, now: float) -> None:
        """Ask, then SIGTERM, then SIGKILL. Threads and loops cannot be interrupted by a signal, so it ends them all."""
        waited = now - assigned.stop_since
        if assigned.stop_stage == 0 and waited >= SOFT_S:
            assigned.stop_stage = 1
            if child.kind == "process":
                child.process.signal(signal.SIGTERM)
        elif assigned.stop_stage == 1 and waited >= SOFT_S + HARD_S:
            assigned.stop_stage = 2
            self.kill(child, f"{assigned.claimed.job_id} did not stop")


def _do_nothing() -> None:
    """Nobody waits for it: the death of the child is seen."""
