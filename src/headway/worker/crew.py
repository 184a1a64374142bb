"""The crew: the child processes of one worker, who runs what in them, and how they are made to stop.

The crew knows nothing of the store. It is given claimed jobs and ends each of them exactly once with an outcome, unless
it is told to abandon a job. What it guarantees, whatever the code in the children does:

- a child that dies is noticed at once. The job that ran in it has crashed; jobs that had not begun are handed back.
  Where several ran side by side, nobody knows which one it was: all are handed back as suspects, and run in ever
  smaller groups until the one that kills its process is alone. Its neighbours lose no attempt, and little time.
- a job that is to stop is asked first, then its process group gets SIGTERM, then SIGKILL, and with it everything that
  it started. The outcome is told when it *has* stopped.
- time-outs are measured here, by the monotonic clock, so code that holds the interpreter does not escape them.
- no job waits in a child for longer than `WAIT_S_MAX`: what has not begun by then is handed back, to run wherever there
  is a free slot, and a child that stood still instead of beginning it is replaced.

How jobs are passed to a child and taken back is `handover.py`; how many a child is given ahead is `pace.py`.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from headway.clock import Clock
from headway.errors import HeadwayError, LeaseLost
from headway.events import Timed, emit
from headway.instants import SECOND, Instant
from headway.lifecycle import Outcome, Parked, Released, Succeeded
from headway.model import Claimed, Report
from headway.worker.frames import (
    Answer,
    Ask,
    Done,
    Failed,
    Flush,
    FrameTooLarge,
    Hello,
    LeftOut,
    Reports,
    Run,
    Spent,
    Stop,
    Stopped,
    TaskInfo,
    ToSupervisor,
)
from headway.worker.handover import Given
from headway.worker.outcomes import CHILD_DIED, OUTCOME_LOST, WAITED, loss_of, out_of_time, outcome_of
from headway.worker.pool import Pool, Post, company_of
from headway.worker.process import ChildProcess
from headway.worker.staff import START_S_MAX, CrewPlan, Staff
from headway.worker.sweeper import Sweeper

WAIT_S_MAX: Final = 0.4  # A job that was given to a child and has not begun by then is handed back.
STALLED_S_MAX: Final = 5.0  # So long a child that stands still may take to show that it goes on; then it is replaced.
SOFT_S: Final = 1.0  # From asking to SIGTERM
HARD_S: Final = 2.0  # and from there to SIGKILL.
SWEEP_S_MAX: Final = 3.0  # So long the jobs of a dead child wait for the end of what they have started.
GONE_S_MAX: Final = 0.2  # So long we wait at the end for what was killed: not all can be, at every moment.
DEAF_S_MAX: Final = 1.0
RUN_BYTES_MAX: Final = 8 << 20  # Of arguments and steps in one frame.


class Foreman(Protocol):
    """Whom the crew tells what happens: the supervisor."""

    def ended(self, claimed: Claimed, outcome: Outcome) -> None:
        """An attempt has ended; told exactly once, unless it was abandoned."""
        ...

    def reported(self, reports: Sequence[Report]) -> None:
        """Running attempts say something about themselves."""
        ...

    async def answer(self, ask: Ask) -> str:
        """Answer a question of a task; `LeaseLost` when its attempt is over."""
        ...

    def has_room(self) -> None:
        """There is room for more jobs, or the crew knows its tasks by now."""
        ...


class Crew:
    """The children of one worker. Used by one event loop."""

    def __init__(
        self,
        plan: CrewPlan,
        clock: Clock,
        foreman: Foreman | None = None,
        *,
        start: Callable[..., ChildProcess] = ChildProcess,
        sweeper: Sweeper | None = None,
    ) -> None:
        self._clock = clock
        self.foreman = foreman  # The first child says which store it is, so it is there before the supervisor.
        self.staff = Staff(plan, clock, self, start)
        self._sweeper = sweeper or Sweeper()
        self._where: dict[str, Post] = {}
        # Dead children whose processes are still being ended: since when, and what becomes of their jobs.
        self._unswept: dict[Post, tuple[float, list[tuple[Claimed, Outcome]]]] = {}
        self._answers: set[asyncio.Task[None]] = set()

    # --- what others may know

    @property
    def hello(self) -> Hello | None:
        """What the first child said of the app; None before."""
        return self.staff.hello

    @property
    def greeted(self) -> asyncio.Event:
        """Set when the first child has said what is in the app."""
        return self.staff.greeted

    @property
    def tasks(self) -> Mapping[str, TaskInfo]:
        """The tasks that can be run here."""
        return self.staff.tasks

    @property
    def kinds(self) -> dict[str, frozenset[str]]:
        """The tasks by the kind of child that runs them."""
        return self.staff.kinds

    def room(self, kind: str) -> int:
        """How many more jobs of this kind can be taken; few free places count as none while many are taken."""
        pool = self.staff.pools[kind]
        room, capacity = pool.room(), pool.capacity()
        return room if room * 4 >= capacity or capacity <= pool.width * len(pool.children) else 0

    def slots(self, kind: str | None = None) -> int:
        """How many jobs can run at the same time; of one kind, or in all."""
        pools = [self.staff.pools[each] for each in self.kinds if kind in (None, each)]
        return sum(pool.children_max * pool.width for pool in pools)

    def busy(self, kind: str | None = None) -> int:
        """How many jobs have begun and not ended; of one kind, or in all."""
        return sum(self.staff.pools[each].busy() for each in self.kinds if kind in (None, each))

    def count(self) -> int:
        """How many children there are."""
        return self.staff.count()

    def open(self) -> None:
        """Start the first child; it tells which tasks there are."""
        self.staff.open()

    # --- who runs what

    def start(self, jobs: Sequence[Claimed], kept: Mapping[str, dict[str, str]] | None = None) -> None:
        """Give jobs to children that have room for them."""
        for kind, names in self.kinds.items():
            mine = jobs if len(self.kinds) == 1 else [claimed for claimed in jobs if claimed.task in names]
            if mine:
                self._distribute(self.staff.pools[kind], mine, kept or {})

    def _distribute(self, pool: Pool, jobs: Sequence[Claimed], kept: Mapping[str, dict[str, str]]) -> None:
        if pool.kind != "process":
            suspects = [claimed for claimed in jobs if claimed.reason and company_of(claimed)]
            pool.suspects.extend(suspects)
            pool.kept.update({claimed.job_id: kept[claimed.job_id] for claimed in suspects if claimed.job_id in kept})
            jobs = [claimed for claimed in jobs if not (claimed.reason and company_of(claimed))]
        parts, over = pool.spread(jobs)
        for child, part in parts:
            self._assign(child, part, kept)
        for claimed in over:  # They take longer than those before, or the children have just gone.
            self._foreman.ended(claimed, WAITED)
        self._try_suspects(pool)

    def _assign(self, child: Post, jobs: list[Claimed], kept: Mapping[str, dict[str, str]]) -> None:
        first = child.handover.give(jobs, self._clock.monotonic())
        for claimed in jobs:
            self._where[claimed.job_id] = child
        for part in _in_frames(jobs, kept):
            self._send_jobs(child, first, part, kept)
            first += len(part)

    def _send_jobs(self, child: Post, first: int, jobs: list[Claimed], kept: Mapping[str, dict[str, str]]) -> None:
        deadlines: dict[str, Instant] = {}
        for claimed in jobs:
            timeout = claimed.timeout or self.tasks[claimed.task].timeout
            if timeout is not None:
                deadlines[claimed.job_id] = self._clock.now() + timeout
        steps = {claimed.job_id: kept[claimed.job_id] for claimed in jobs if claimed.job_id in kept} if kept else {}
        try:
            child.process.send(Run(first, jobs, deadlines, steps))
        except FrameTooLarge as error:
            if len(jobs) > 1:
                middle = len(jobs) // 2
                self._send_jobs(child, first, jobs[:middle], kept)
                self._send_jobs(child, first + middle, jobs[middle:], kept)
            elif (given := child.handover.end(jobs[0].job_id, jobs[0].attempt)) is not None:
                reason = f"its arguments and finished steps cannot be handed to a process: {error}"
                self._end(given, Parked(reason, "too large"))

    def _try_suspects(self, pool: Pool) -> None:
        """Let suspects run in children of their own, each with as much company as it may have."""
        if not pool.suspects:
            pool.kept.clear()
            return
        solos = self.staff.solos(pool)
        for _ in range(len(pool.suspects)):
            suspect = pool.suspects.popleft()
            company = company_of(suspect)
            fit = (child for child in solos if child.is_ready and child.load < child.width <= company)
            solo = next(fit, None)
            if solo is None:
                pool.suspects.append(suspect)
            else:
                kept = pool.kept.pop(suspect.job_id, None)
                self._assign(solo, [suspect], {} if kept is None else {suspect.job_id: kept})

    # --- how jobs are made to stop

    def stop(self, job_id: str, attempt: int, outcome: Outcome) -> None:
        """Have a job stop; it ends with this outcome once it has."""
        child = self._where.get(job_id)
        given = child.handover.find(job_id, attempt) if child is not None else None
        if child is None or given is None:
            self._drop_suspect(job_id, attempt, outcome)
            return
        if given.stop_as is not None:
            return
        now = self._clock.monotonic()
        child.handover.look(now)
        if child.kind == "process" or not child.handover.has_begun(given):
            given.stop_as = outcome
            self._hand_back(child.handover.withdraw(now))  # With it, unless it has begun.
            if child.handover.find(job_id, attempt) is None:
                return
        given.stop_as, given.stop_since = outcome, now
        if child.kind == "process" and not child.handover.is_running(given):
            child.process.send(Flush())  # It is done; its outcome is on the way.
            given.stop_as = None
            return
        child.is_stopping = child.kind == "process"
        child.process.send(Stop(job_id, attempt))

    def _drop_suspect(self, job_id: str, attempt: int, outcome: Outcome | None) -> None:
        for pool in self.staff.pools.values():
            for claimed in [each for each in pool.suspects if (each.job_id, each.attempt) == (job_id, attempt)]:
                pool.suspects.remove(claimed)
                if outcome is not None:
                    self._foreman.ended(claimed, outcome)

    def abandon(self, job_id: str, attempt: int) -> None:
        """Stop a job that is no longer ours, at once and without a word about its end."""
        child = self._where.get(job_id)
        given = child.handover.find(job_id, attempt) if child is not None else None
        if child is None or given is None:
            self._drop_suspect(job_id, attempt, None)
            return
        back = child.handover.withdraw(self._clock.monotonic())
        if given not in back:
            if child.handover.is_running(given):
                self._kill(child, f"the lease of {job_id} was lost")
            child.handover.end(job_id, attempt)
        del self._where[job_id]
        self._hand_back(each for each in back if each is not given)

    def release_waiting(self, reason: str) -> None:
        """Hand back what has not begun; the worker drains."""
        self.staff.is_closing = True
        for pool, child in self.staff:
            while pool.suspects:
                self._foreman.ended(pool.suspects.popleft(), Released(reason))
            self._hand_back(child.handover.withdraw(self._clock.monotonic()))

    def release_all(self, reason: str) -> None:
        """Hand back everything now: children are killed, their jobs are released when they are dead."""
        self.release_waiting(reason)
        for _, child in self.staff:
            for given in child.handover.jobs.values():
                given.stop_as = given.stop_as or Released(reason)
            self._kill(child, reason)

    def _hand_back(self, jobs: Iterable[Given]) -> None:
        """Return jobs that have not begun to the store. One that was cancelled meanwhile ends so."""
        for given in jobs:
            self._end(given, WAITED if given.stop_as is None else given.stop_as)

    def _end(self, given: Given, outcome: Outcome) -> None:
        """Tell the end of an attempt that is out of the books of its child."""
        self._where.pop(given.claimed.job_id, None)
        self._foreman.ended(given.claimed, outcome)

    # --- what only time can show

    def watch(self) -> None:
        """Look after everything that only time can show; called several times a second."""
        for pool in self.staff.pools.values():
            for child in list(pool.children):
                self._watch_child(pool, child, self._clock.monotonic())
            self.staff.keep(pool)
            self._try_suspects(pool)
        for child, (since, _) in list(self._unswept.items()):
            if self._clock.monotonic() - since > SWEEP_S_MAX:
                self._settle_dead(child)

    def _watch_child(self, pool: Pool, child: Post, now: float) -> None:
        if child.process.has_ended:
            self.died(pool, child)
            return
        if child.killed_because is None and self.staff.is_late(child):
            self._kill(child, f"it did not start within {START_S_MAX:g} s")
        if child.deaf_since is not None and now - child.deaf_since > DEAF_S_MAX:
            child.process.kill()  # Nobody can speak with it. Whatever closed its line has crashed it.
        if child.killed_because is not None and now - child.kill_sent > HARD_S:
            child.process.kill()
        child.handover.look(now)
        for given in child.handover.running():
            self._watch_job(child, given, now)
        self._watch_hand_over(pool, child, now)
        if not child.is_leaving and self.staff.is_spent(pool, child):
            self.staff.retire(child)

    def _watch_job(self, child: Post, given: Given, now: float) -> None:
        if given.is_ending:
            return
        if given.stop_as is not None:
            self._press(child, given, now)
            return
        info = self.tasks[given.claimed.task]
        timeout = given.claimed.timeout or info.timeout
        if timeout is not None and given.since is not None and now - given.since >= timeout / SECOND:
            outcome = out_of_time(timeout / SECOND, retries=info.retries_timeouts)
            self.stop(given.claimed.job_id, given.claimed.attempt, outcome)

    def _watch_hand_over(self, pool: Pool, child: Post, now: float) -> None:
        """Take back what has waited for too long, and replace a child that stands still."""
        handover = child.handover
        running = handover.running()
        if now - handover.waiting_since() > WAIT_S_MAX:
            for given in running:
                if given.since is not None:
                    pool.pace.takes_at_least(given.claimed.task, now - given.since)
            back = handover.withdraw(now)
            if back and len(running) < child.width and child.stalled_since is None:
                child.stalled_since = now  # It could have begun more.
            self._hand_back(back)
        is_silent = bool(handover.unheard()) and not running
        child.unheard_since = (child.unheard_since or now) if is_silent else None
        if handover.unheard():
            child.process.send(Flush())
        since = min((at for at in (child.stalled_since, child.unheard_since) if at is not None), default=now)
        if now - since > STALLED_S_MAX:
            if running:
                self.staff.retire(child)  # It may end what it has begun; others begin elsewhere.
            else:
                self._kill(child, "it stood still")

    def _press(self, child: Post, given: Given, now: float) -> None:
        """Ask, then SIGTERM, then SIGKILL. Threads and loops cannot be interrupted by a signal, so it ends them all."""
        waited = now - given.stop_since
        if given.stop_stage == 0 and waited >= SOFT_S:
            given.stop_stage = 1
            if child.kind == "process":
                child.process.signal(signal.SIGTERM)
        elif given.stop_stage == 1 and waited >= SOFT_S + HARD_S:
            given.stop_stage = 2
            self._kill(child, f"{given.claimed.job_id} did not stop")

    # --- what children say

    def heard_from(self, pool: Pool, child: Post) -> None:
        """There is something to read from a child."""
        messages = child.process.read()
        if messages is None:
            child.deaf_since = self._clock.monotonic()  # It is about to end, most likely.
        else:
            self._hear(pool, child, messages)

    def _hear(self, pool: Pool, child: Post, messages: Sequence[ToSupervisor]) -> None:
        now = self._clock.monotonic()
        if messages:
            child.stalled_since = None
        ended: list[Given] = []
        end, foreman = child.handover.end, self.foreman
        for message in messages:
            if isinstance(message, Done):  # What most of them are.
                given = end(message.job_id, message.attempt)
                if given is not None and foreman is not None:
                    del self._where[message.job_id]
                    ended.append(given)
                    foreman.ended(given.claimed, Succeeded(message.result))
            else:
                self._hear_other(pool, child, message, ended)
        if ended:
            child.is_stopping = False
            self._learn(pool, child, ended, now)
            child.heard_at = now
        child.handover.look(now)
        self._say_room()
        self._try_suspects(pool)

    def _hear_other(self, pool: Pool, child: Post, message: ToSupervisor, ended: list[Given]) -> None:
        match message:
            case Hello():
                self.staff.greet(pool, child, message)
            case Reports(reports):
                find = child.handover.find  # A child speaks for its own jobs only.
                ours = [report for report in reports if find(report.job_id, report.attempt) is not None]
                if ours:
                    self._foreman.reported(ours)
            case Ask():
                self._answer(child, message)
            case LeftOut(first, last):
                self._hand_back(child.handover.left_out(first, last))
            case Spent(_, is_harmful):
                self._hand_back(child.handover.withdraw(self._clock.monotonic()))
                self.staff.retire(child)
                if is_harmful and len(child.handover.running()) > 1:
                    child.is_damaged = True
                    self._kill(child, "a job in it did harm to the others")
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
        self._end(given, outcome)

    def _end_swept(self, child: Post, given: Given) -> None:
        if child.handover.end(given.claimed.job_id, given.claimed.attempt) is given:
            assert given.stop_as is not None
            child.is_stopping = False
            self._end(given, given.stop_as)
            self._say_room()

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
                answer = Answer(ask.number, await self._foreman.answer(ask))
            except LeaseLost as error:
                answer = Answer(ask.number, error=str(error), is_lost=True)
            except HeadwayError as error:
                answer = Answer(ask.number, error=str(error))
            child.process.send(answer)

        task = asyncio.get_running_loop().create_task(reply())
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    @property
    def _foreman(self) -> Foreman:
        assert self.foreman is not None, "a crew without a supervisor has no jobs"
        return self.foreman

    def _say_room(self) -> None:
        if self.foreman is not None:
            self.foreman.has_room()

    # --- the end of a child

    def _kill(self, child: Post, reason: str) -> None:
        """Kill a child with all that it has started, also what has left its process group."""
        if child.killed_because is None:
            child.killed_because = reason
            child.kill_sent = self._clock.monotonic()
            self._sweeper.sweep(child.process, _do_nothing, with_head=True)

    def died(self, pool: Pool, child: Post) -> None:
        """A child is dead: hear its last words, and settle what was in it when all that it started is gone too."""
        if child.is_gone or not child.process.has_ended:
            return
        for messages in child.process.last_words():
            self._hear(pool, child, messages)
        self._unswept[child] = (self._clock.monotonic(), self._ends_of(child))
        self.staff.bury(pool, child)
        child.process.close()
        self._sweeper.sweep(child.process, lambda: self._settle_dead(child), with_head=True)
        self._say_room()

    def _ends_of(self, child: Post) -> list[tuple[Claimed, Outcome]]:
        """Say what becomes of the jobs that were in a dead child."""
        now = self._clock.monotonic()
        running, unheard, waiting = child.handover.bury(now)
        if running:
            emit(Timed(node=self._clock.node, what="run", lots=tuple((now - (g.since or g.at), 1) for g in running)))
        ends: list[tuple[Given, Outcome]] = []
        killed_because = None if child.is_damaged else child.killed_because
        ends += [(given, loss_of(child.process.ending, killed_because, len(running))) for given in running]
        ends += [(given, OUTCOME_LOST) for given in unheard]
        ends += [(given, CHILD_DIED) for given in waiting]
        return [(given.claimed, given.stop_as or outcome) for given, outcome in ends]

    def _settle_dead(self, child: Post) -> None:
        _, ends = self._unswept.pop(child, (0.0, ()))
        for claimed, outcome in ends:
            if self._where.get(claimed.job_id) is child:
                del self._where[claimed.job_id]
                self._foreman.ended(claimed, outcome)

    async def close(self, within_s: float) -> None:
        """End every child: those that are idle by themselves, the others by force."""
        self.staff.is_closing = True
        for _, child in self.staff:
            if child.load or not child.is_ready:
                self._kill(child, "the worker ends")
            else:
                self.staff.retire(child)
        until = self._clock.monotonic() + within_s
        await self._wait_for_ends(until)
        for _, child in self.staff:
            self._kill(child, "the worker ends")
        await self._wait_for_ends(until + GONE_S_MAX)
        self._sweeper.close()
        await self.staff.dismiss_warden()

    async def _wait_for_ends(self, until: float) -> None:
        wake = asyncio.Event()
        while (self.count() or self._unswept) and self._clock.monotonic() < until:
            self.watch()
            await self._clock.rest(0.02, wake)


def _do_nothing() -> None:
    """Nobody waits for it: the death of the child is seen."""


def _in_frames(jobs: list[Claimed], kept: Mapping[str, dict[str, str]]) -> Iterator[list[Claimed]]:
    """Cut jobs into as many frames as their arguments and finished steps need."""
    part: list[Claimed] = []
    size = 0
    for claimed in jobs:
        more = len(claimed.args)
        if kept and claimed.job_id in kept:
            more += sum(map(len, kept[claimed.job_id].values()))
        if part and size + more > RUN_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(claimed)
        size += more
    yield part
