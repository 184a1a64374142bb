"""What children say: outcomes, reports, questions, and that they want to be replaced."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from headway.core.clock import Clock
from headway.core.errors import HeadwayError, LeaseLost
from headway.core.events import Timed, emit
from headway.core.lifecycle import Succeeded
from headway.worker.assignments import Assignments
from headway.worker.child_processes import Staff
from headway.worker.children import Pool, Post
from headway.worker.handover import Given
from headway.worker.ipc import (
    Answer,
    Ask,
    Done,
    Failed,
    Hello,
    LeftOut,
    Reports,
    Spent,
    Stopped,
    ToSupervisor,
)
from headway.worker.outcomes import outcome_of
from headway.worker.stopper import Stopper
from headway.worker.sweeper import Sweeper


class Listener:
    """Hears what children say. Each speaks for its own jobs only."""

    def __init__(
        self, staff: Staff, assignments: Assignments, stopper: Stopper, sweeper: Sweeper, clock: Clock
    ) -> None:
        self._staff = staff
        self._assignments = assignments
        self._stopper = stopper
        self._sweeper = sweeper
        self._clock = clock
        self.answers: set[asyncio.Task[None]] = set()

    def hear(self, pool: Pool, child: Post, messages: Sequence[ToSupervisor]) -> None:
        """Take note of messages of a child."""
        now = self._clock.monotonic()
        if messages:
            child.stalled_since = None
        ended: list[Given] = []
        end, foreman = child.handover.end, self._assignments.foreman
        for message in messages:
            if isinstance(message, Done):  # What most of them are.
                given = end(message.job_id, message.attempt)
                if given is not None and foreman is not None:
                    del self._assignments.where[message.job_id]
                    ended.append(given)
                    foreman.ended(given.claimed, Succeeded(message.result))
            else:
                self._hear_other(pool, child, message, ended)
        if ended:
            child.is_stopping = False
            self._learn(pool, child, ended, now)
            child.heard_at = now
        child.handover.look(now)
        self._assignments.say_room()

    def _hear_other(self, pool: Pool, child: Post, message: ToSupervisor, ended: list[Given]) -> None:
        match message:
            case Hello():
                self._staff.greet(pool, child, message)
            case Reports(reports):
                find = child.handover.find  # A child speaks for its own jobs only.
                ours = [report for report in reports if find(report.job_id, report.attempt) is not None]
                if ours:
                    self._assignments.supervisor.reported(ours)
            case Ask():
                self._answer(child, message)
            case LeftOut(first, last):
                self._assignments.hand_back(child.handover.left_out(first, last))
            case Spent(_, is_harmful):
                self._assignments.hand_back(child.handover.withdraw(self._clock.monotonic()))
                self._staff.retire(child)
                if is_harmful and len(child.handover.running()) > 1:
                    child.is_damaged = True
                    self._stopper.kill(child, "a job in it did harm to the others")
            case _:
                self._hear_end(child, message, ended)

    def _hear_end(self, child: Post, message: ToSupervisor, ended: list[Given]) -> None:
        """An attempt has ended, in another way than by returning."""
        job_id, attempt = message.job_id, message.attempt  # type: ignore[union-attr]
        given = child.handover.find(job_id, attempt)
        if given is None or given.is_ending:
            return  # It was abandoned, or this is not its child.
        outcome = outcome_of(message, given.stop_as)
        assert outcome is not None, f"a child says {message!r}"
        if child.kind == "process" and given.stop_as is not None and isinstance(message, Stopped | Failed):
            # What it has started ends first; a child of many jobs has seen to it itself.
            given.is_ending, given.stop_as = True, outcome
            self._sweeper.sweep(child.process, lambda: self._end_swept(child, given), with_head=False)
            return
        child.handover.end(job_id, attempt)
        ended.append(given)
        self._assignments.end(given.claimed, outcome)

    def _end_swept(self, child: Post, given: Given) -> None:
        if child.handover.end(given.claimed.job_id, given.claimed.attempt) is given:
            assert given.stop_as is not None
            child.is_stopping = False
            self._assignments.end(given.claimed, given.stop_as)
            self._assignments.say_room()

    def _learn(self, pool: Pool, child: Post, ended: Sequence[Given], now: float) -> None:
        """Take note of what jobs took."""
        if child.width > 1:
            took = [now - (given.at if given.since is None else given.since) for given in ended]
            emit(Timed(node=self._clock.node, what="run", lots=tuple((took_s, 1) for took_s in took)))
            mean_s = sum(took) / len(took)
        else:  # One after the other, they ended before we heard of them: only the time of all together is known.
            mean_s = (now - max(child.heard_at, ended[0].at)) / len(ended)
            emit(Timed(node=self._clock.node, what="run", lots=((mean_s, len(ended)),)))
        for task, count in Counter([given.claimed.task for given in ended]).items():
            pool.pace.learn(task, mean_s, count)

    def _answer(self, child: Post, ask: Ask) -> None:
        async def reply() -> None:
            try:
                if child.handover.find(ask.job_id, ask.attempt) is None:
                    raise LeaseLost(f"attempt {ask.attempt} of {ask.job_id} is not in this process")
                answer = Answer(ask.number, await self._assignments.supervisor.answer(ask))
            except LeaseLost as error:
                answer = Answer(ask.number, error=str(error), is_lost=True)
            except HeadwayError as error:
                answer = Answer(ask.number, error=str(error))
            child.process.send(answer)

        task = asyncio.get_running_loop().create_task(reply())
        self.answers.add(task)
        task.add_done_callback(self.answers.discard)
