"""Handle the messages of children: outcomes, reports, store requests, and requests to be replaced."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from headway.core.clock import Clock
from headway.core.errors import HeadwayError, LeaseLost
from headway.core.events import Timed, emit
from headway.core.lifecycle import Succeeded
from headway.worker.assignments import Assignments
from headway.worker.child_processes import ChildProcesses
from headway.worker.children import ChildRecord, KindPool
from headway.worker.handover import AssignedJob
from headway.worker.ipc import (
    Done,
    Failed,
    Hello,
    ReplacementRequest,
    Reports,
    Skipped,
    Stopped,
    StoreRequest,
    StoreResponse,
    ToSupervisor,
)
from headway.worker.outcomes import outcome_of
from headway.worker.stopper import Stopper
from headway.worker.sweeper import Sweeper


class Listener:
    """Handle the messages of children. A child can only report on its own jobs."""

    def __init__(
        self, processes: ChildProcesses, assignments: Assignments, stopper: Stopper, sweeper: Sweeper, clock: Clock
    ) -> None:
        self._processes = processes
        self._assignments = assignments
        self._stopper = stopper
        self._sweeper = sweeper
        self._clock = clock
        self.answers: set[asyncio.Task[None]] = set()

    def hear(self, pool: KindPool, child: ChildRecord, messages: Sequence[ToSupervisor]) -> None:
        """Handle messages of one child."""
        now = self._clock.monotonic()
        if messages:
            child.stalled_since = None
        ended: list[AssignedJob] = []
        end, supervisor_port = child.handover.end, self._assignments.supervisor_port
        for message in messages:
            if isinstance(message, Done):  # The common case.
                assigned = end(message.job_id, message.attempt)
                if assigned is not None and supervisor_port is not None:
                    del self._assignments.where[message.job_id]
                    ended.append(assigned)
                    supervisor_port.ended(assigned.claimed, Succeeded(message.result))
            else:
                self._hear_other(pool, child, message, ended)
        if ended:
            child.is_stopping = False
            self._learn(pool, child, ended, now)
            child.heard_at = now
        child.handover.look(now)
        self._assignments.say_room()

    def _hear_other(self, pool: KindPool, child: ChildRecord, message: ToSupervisor, ended: list[AssignedJob]) -> None:
        match message:
            case Hello():
                self._processes.greet(pool, child, message)
            case Reports(reports):
                find = child.handover.find  # A child can only report on its own jobs.
                ours = [report for report in reports if find(report.job_id, report.attempt) is not None]
                if ours:
                    self._assignments.supervisor.reported(ours)
            case StoreRequest():
                self._answer(child, message)
            case Skipped(first, last):
                self._assignments.hand_back(child.handover.left_out(first, last))
            case ReplacementRequest(_, is_harmful):
                self._assignments.hand_back(child.handover.withdraw(self._clock.monotonic()))
                self._processes.retire(child)
                if is_harmful and len(child.handover.running()) > 1:
                    child.is_damaged = True
                    self._stopper.kill(child, "one of its jobs damaged the process")
            case _:
                self._hear_end(child, message, ended)

    def _hear_end(self, child: ChildRecord, message: ToSupervisor, ended: list[AssignedJob]) -> None:
        """Handle the end of an attempt that did not return normally."""
        job_id, attempt = message.job_id, message.attempt  # type: ignore[union-attr]
        assigned = child.handover.find(job_id, attempt)
        if assigned is None or assigned.is_ending:
            return  # It was abandoned, or this child does not have it.
        outcome = outcome_of(message, assigned.stop_as)
        assert outcome is not None, f"a child says {message!r}"
        if child.kind == "process" and assigned.stop_as is not None and isinstance(message, Stopped | Failed):
            # Its processes end first; a child of many jobs has done that itself.
            assigned.is_ending, assigned.stop_as = True, outcome
            self._sweeper.sweep(child.process, lambda: self._end_swept(child, assigned), with_head=False)
            return
        child.handover.end(job_id, attempt)
        ended.append(assigned)
        self._assignments.end(assigned.claimed, outcome)

    def _end_swept(self, child: ChildRecord, assigned: AssignedJob) -> None:
        if child.handover.end(assigned.claimed.job_id, assigned.claimed.attempt) is assigned:
            assert assigned.stop_as is not None
            child.is_stopping = False
            self._assignments.end(assigned.claimed, assigned.stop_as)
            self._assignments.say_room()

    def _learn(self, pool: KindPool, child: ChildRecord, ended: Sequence[AssignedJob], now: float) -> None:
        """Record the durations of jobs."""
        if child.width > 1:
            took = [now - (assigned.at if assigned.since is None else assigned.since) for assigned in ended]
            emit(Timed(node=self._clock.node, what="run", lots=tuple((took_s, 1) for took_s in took)))
            mean_s = sum(took) / len(took)
        else:  # They ended one after another before we read of it: only their total time is known.
            mean_s = (now - max(child.heard_at, ended[0].at)) / len(ended)
            emit(Timed(node=self._clock.node, what="run", lots=((mean_s, len(ended)),)))
        for task, count in Counter([assigned.claimed.task for assigned in ended]).items():
            pool.prefetch.learn(task, mean_s, count)

    def _answer(self, child: ChildRecord, ask: StoreRequest) -> None:
        async def reply() -> None:
            try:
                if child.handover.find(ask.job_id, ask.attempt) is None:
                    raise LeaseLost(f"attempt {ask.attempt} of {ask.job_id} is not in this process")
                answer = StoreResponse(ask.number, await self._assignments.supervisor.answer(ask))
            except LeaseLost as error:
                answer = StoreResponse(ask.number, error=str(error), is_lost=True)
            except HeadwayError as error:
                answer = StoreResponse(ask.number, error=str(error))
            child.process.send(answer)

        task = asyncio.get_running_loop().create_task(reply())
        self.answers.add(task)
        task.add_done_callback(self.answers.discard)
