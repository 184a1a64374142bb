"""The crew: the child processes of one worker, who runs what in them, and how they are made to stop.

The crew knows nothing of the store. It is given claimed jobs and ends each of them exactly once with an outcome, unless
it is told to abandon a job. What it guarantees, whatever the code in the children does:

- a child that dies is noticed at once. The job that ran in it has crashed; jobs that only waited in it are handed back.
  Where several ran side by side, nobody knows which one it was: all are handed back as suspects, and run in ever
  smaller groups until the one that kills its process is alone. Its neighbours lose no attempt, and little time.
- a job that is to stop is asked first, then its process group gets SIGTERM, then SIGKILL, and with it everything that
  it started. The outcome is told when it *has* stopped.
- time-outs are measured here, by the monotonic clock, so code that holds the interpreter does not escape them.

A child may be given more jobs than it can run at once, when its jobs are short: so many as it ends within
`PREFETCH_S`, going by those before. Should one of them turn out to be long, the rest is taken back.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, assert_never

import msgspec

from headway import lifecycle
from headway.clock import Clock
from headway.errors import HeadwayError, LeaseLost
from headway.events import ChildEnded, ChildStarted, Timed, emit
from headway.instants import SECOND, Instant
from headway.lifecycle import Crashed, Outcome, Parked, Raised, Released, Succeeded, TimedOut
from headway.model import Claimed, Report
from headway.worker.descendants import MARK, start_warden
from headway.worker.frames import (
    Answer,
    Ask,
    Cancelled,
    Done,
    Failed,
    Finish,
    Flush,
    Hello,
    Reports,
    Revoke,
    Revoked,
    Run,
    Spent,
    Stop,
    Stopped,
    TaskInfo,
    ToSupervisor,
    Unfit,
    Voided,
)
from headway.worker.pool import Pool, Post, Running, company_of
from headway.worker.process import ChildProcess

STUCK_S: Final = 0.5  # So long a job may make others wait in its child before they are taken back.
NOT_BEGUN_S_MAX: Final = 10.0  # A child that is given a job and does not begin it for so long stands still,
STALLED_S_MAX: Final = 5.0  # and so long it may take to show that it goes on. Then it is replaced.
SOFT_S: Final = 1.0  # From asking to SIGTERM
HARD_S: Final = 2.0  # and from there to SIGKILL.
GONE_S_MAX: Final = 0.2  # So long we wait at the end for what was killed: not all can be, at every moment,
WARDEN_S_MAX: Final = 0.5  # and so long for the warden. A worker has promised to be gone two seconds after its grace.
DEAF_S_MAX: Final = 1.0
START_S_MAX: Final = 60.0
RESPAWN_S: Final = 0.5
RESPAWN_S_MAX: Final = 15.0
RUN_BYTES_MAX: Final = 8 << 20  # Of arguments in one frame.
SOLO_MAX: Final = 10


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewPlan:
    """How many children of which kind, and when they are replaced."""

    command: tuple[str, ...]
    processes: int
    concurrency: int
    threads: int
    max_jobs: int = 0
    max_memory: int = 0
    environ: Mapping[str, str] = field(default_factory=dict)


class Crew:
    """The children of one worker. Used by one event loop."""

    def __init__(self, plan: CrewPlan, clock: Clock, foreman: Foreman | None = None) -> None:
        self._plan = plan
        self._clock = clock
        self.foreman = foreman  # The first child says which store it is, so it is there before the supervisor.
        self._pools = {
            "process": Pool("process", plan.processes, 1),
            "loop": Pool("loop", 1, plan.concurrency),
            "thread": Pool("thread", 1, plan.threads),
        }
        self._where: dict[str, Post] = {}
        self._reasons: dict[str, Outcome] = {}  # Of jobs that are being taken back: what they end with.
        self._answers: set[asyncio.Task[None]] = set()
        self._closing = False
        self._numbers = 0
        self._warden: subprocess.Popen[bytes] | None = None
        self.hello: Hello | None = None
        self.greeted = asyncio.Event()
        self.tasks: Mapping[str, TaskInfo] = {}
        self.kinds: dict[str, frozenset[str]] = {}  # The tasks by the kind of child that runs them.

    @property
    def _name(self) -> str:
        return self._clock.node or str(os.getpid())

    @property
    def _foreman(self) -> Foreman:
        assert self.foreman is not None, "a crew without a supervisor has no jobs"
        return self.foreman

    # --- who runs what

    def room(self, kind: str) -> int:
        """How many more jobs of this kind can be taken; few free places count as none while many are taken."""
        pool = self._pools[kind]
        room, capacity = pool.room(), pool.capacity()
        return room if room * 4 >= capacity or capacity <= pool.width * len(pool.children) else 0

    def slots(self, kind: str | None = None) -> int:
        """How many jobs can run at the same time; of one kind, or in all."""
        pools = [self._pools[each] for each in self.kinds if kind in (None, each)]
        return sum(pool.children_max * pool.width for pool in pools)

    def count(self) -> int:
        """How many children there are."""
        return sum(len(pool.children) for pool in self._pools.values())

    def start(self, jobs: Sequence[Claimed], kept: Mapping[str, dict[str, str]] | None = None) -> None:
        """Give jobs to children that have room for them."""
        for kind, names in self.kinds.items():
            mine = jobs if len(self.kinds) == 1 else [claimed for claimed in jobs if claimed.task in names]
            if mine:
                self._distribute(self._pools[kind], mine, kept or {})

    def _distribute(self, pool: Pool, jobs: Sequence[Claimed], kept: Mapping[str, dict[str, str]]) -> None:
        """Spread jobs over the children so that all have about the same to do."""
        if pool.kind != "process":
            suspects = [claimed for claimed in jobs if claimed.reason and company_of(claimed)]
            pool.suspects.extend(suspects)
            pool.kept.update({claimed.job_id: kept[claimed.job_id] for claimed in suspects if claimed.job_id in kept})
            jobs = [claimed for claimed in jobs if not (claimed.reason and company_of(claimed))]
        children = sorted((child for child in pool.children if pool.capacity_of(child)), key=lambda child: child.load)
        if not children:  # They have all just gone.
            for claimed in jobs:
                self._foreman.ended(claimed, Released("handed back: its child went away"))
        else:
            total = sum(child.load for child in children) + len(jobs)
            start = 0
            for left, child in zip(range(len(children), 0, -1), children, strict=True):
                share = max(0, -(-total // left) - child.load)
                total -= child.load + share
                part = list(jobs[start : start + share])
                start += share
                if part:
                    self._assign(child, part, kept)
        if pool.suspects:
            self._try_suspects(pool)

    def _assign(self, child: Post, jobs: list[Claimed], kept: Mapping[str, dict[str, str]]) -> None:
        first, now = child.jobs + 1, self._clock.monotonic()
        child.jobs += len(jobs)
        where, waiting = self._where, child.waiting
        for number, claimed in enumerate(jobs, first):
            where[claimed.job_id] = child
            if len(child.running) < child.width:
                self._begin(child, claimed, number, now)
            else:
                waiting.append((claimed, number))
        self._send_jobs(child, first, jobs, kept)

    def _begin(self, child: Post, claimed: Claimed, number: int, now: float) -> None:
        info = self.tasks[claimed.task]
        timeout = claimed.timeout or info.timeout
        child.running[claimed.job_id] = Running(
            claimed, number, now, None if timeout is None else timeout / SECOND, info.retries_timeouts
        )

    def _send_jobs(self, child: Post, first: int, jobs: list[Claimed], kept: Mapping[str, dict[str, str]]) -> None:
        for part in _in_frames(jobs):
            deadlines: dict[str, Instant] = {}
            for claimed in part:
                timeout = claimed.timeout or self.tasks[claimed.task].timeout
                if timeout is not None:
                    deadlines[claimed.job_id] = self._clock.now() + timeout
            steps = {claimed.job_id: kept[claimed.job_id] for claimed in part if claimed.job_id in kept} if kept else {}
            child.process.send(Run(first, part, deadlines, steps))
            first += len(part)

    def _try_suspects(self, pool: Pool) -> None:
        """Let suspects run in children of their own, each with as much company as it may have."""
        solos = [child for child in pool.children if child.is_solo and not child.is_leaving]
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
        coming = sum(child.width for child in solos if not child.is_ready)
        free = SOLO_MAX - len(solos)
        while coming < len(pool.suspects) and free > 0:
            width = company_of(pool.suspects[coming])
            self._spawn(pool, solo_width=width)
            coming, free = coming + width, free - 1

    # --- how jobs are made to stop

    def stop(self, job_id: str, attempt: int, outcome: Outcome) -> None:
        """Have a job stop; it ends with this outcome once it has."""
        child = self._where.get(job_id)
        if child is None:
            self._drop_suspect(job_id, attempt, outcome)
            return
        running = child.running.get(job_id)
        if job_id in child.unheard:
            child.process.send(Flush())  # It is done; its outcome is on the way.
        elif running is None:
            self._take_back(child, [job_id], outcome)
        elif running.claimed.attempt == attempt and running.stop_as is None:
            running.stop_as, running.stop_since = outcome, self._clock.monotonic()
            child.process.send(Stop(job_id, attempt))

    def _drop_suspect(self, job_id: str, attempt: int, outcome: Outcome) -> None:
        for pool in self._pools.values():
            for claimed in list(pool.suspects):
                if (claimed.job_id, claimed.attempt) == (job_id, attempt):
                    pool.suspects.remove(claimed)
                    self._foreman.ended(claimed, outcome)

    def abandon(self, job_id: str, attempt: int) -> None:
        """Stop a job that is no longer ours, at once and without a word about its end."""
        child = self._where.get(job_id)
        if child is None:
            for pool in self._pools.values():
                pool.suspects = deque(claimed for claimed in pool.suspects if claimed.job_id != job_id)
            return
        running = child.running.get(job_id)
        if running is None:
            child.waiting = deque(item for item in child.waiting if item[0].job_id != job_id)
            child.unheard.pop(job_id, None)
            del self._where[job_id]
            child.process.send(Revoke([job_id]))
        elif running.claimed.attempt == attempt:
            self._kill(child, f"the lease of {job_id} was lost")
            child.running.pop(job_id)
            del self._where[job_id]

    def release_waiting(self, reason: str) -> None:
        """Hand back what has not begun."""
        for pool in self._pools.values():
            while pool.suspects:
                self._foreman.ended(pool.suspects.popleft(), Released(reason))
            for child in pool.children:
                self._take_back_all(child)

    def release_all(self, reason: str) -> None:
        """Hand back everything now: children are killed, their jobs are released when they are dead."""
        self.release_waiting(reason)
        for pool in self._pools.values():
            for child in list(pool.children):
                for running in child.running.values():
                    running.stop_as = running.stop_as or Released(reason)
                self._kill(child, reason)

    def _take_back(self, child: Post, job_ids: Iterable[str], outcome: Outcome | None = None) -> None:
        """Ask a child for jobs that wait in it; they come back with its answer, or begin before it is asked."""
        wanted = set(job_ids)
        if outcome is not None:
            self._reasons.update({item.job_id: outcome for item, _ in child.waiting if item.job_id in wanted})
        unasked = wanted - child.revoked
        if unasked:
            child.revoked |= unasked
            child.process.send(Revoke(sorted(unasked)))

    def _take_back_all(self, child: Post) -> None:
        """Take back what has not begun in a child. One that runs a job at a time need not answer: it may be deaf."""
        if child.kind != "process":
            self._take_back(child, [claimed.job_id for claimed, _ in child.waiting])
        elif child.waiting or child.running:
            now = self._clock.monotonic()
            child.process.place.void(child.jobs)
            self._catch_up(child, now)  # What has begun by now goes on.
            unbegun = self._unbegun(child)
            for running in unbegun:
                self._forget_running(child, running)
            if unbegun:
                child.stalled_since = now
            back = [*(running.claimed for running in unbegun), *(claimed for claimed, _ in child.waiting)]
            child.waiting.clear()
            self._give_back(back)

    def _unbegun(self, child: Post) -> list[Running]:
        """Return the jobs that were given to a child to run now and that it has not begun."""
        at = child.process.place.get()
        return [running for running in child.running.values() if running.number > at]

    def _forget_running(self, child: Post, running: Running) -> None:
        """Take a job that has not begun out of the running ones. One that is cancelled meanwhile ends so."""
        del child.running[running.claimed.job_id]
        if isinstance(running.stop_as, lifecycle.Cancelled):
            self._reasons[running.claimed.job_id] = running.stop_as

    def _voided(self, child: Post, job_id: str, attempt: int) -> None:
        """A child has left out a job that was taken back: it goes on, whatever had kept it."""
        child.stalled_since = None
        running = child.running.get(job_id)
        if running is not None and running.claimed.attempt == attempt:  # We thought that it had just begun.
            self._forget_running(child, running)
            self._give_back([running.claimed])
            self._begin_waiting(child)

    def _begin_waiting(self, child: Post) -> None:
        now = self._clock.monotonic()
        while child.waiting and len(child.running) < child.width:
            self._begin(child, *child.waiting.popleft(), now)

    def watch(self) -> None:
        """Look after everything that only time can show; called several times a second."""
        now = self._clock.monotonic()
        for pool in self._pools.values():
            for child in list(pool.children):
                self._watch_child(pool, child, now)
            self._keep_staffed(pool, now)

    def _watch_child(self, pool: Pool, child: Post, now: float) -> None:
        if child.process.has_ended:
            self._bury(pool, child)
            return
        if not child.is_ready and child.killed_because is None and now - child.born > START_S_MAX:
            self._kill(child, f"it did not start within {START_S_MAX:g} s")
        if child.deaf_since is not None and now - child.deaf_since > DEAF_S_MAX:
            child.process.kill()  # Nobody can speak with it. Whatever closed its line has crashed it.
        if child.killed_because is not None and now - child.kill_sent > HARD_S:
            self._kill(child, child.killed_because)
        if child.kind == "process":
            self._catch_up(child, now)
        oldest, unbegun = now, self._unbegun(child) if child.kind == "process" else []
        for running in child.running.values():
            oldest = min(oldest, running.since)
            if running.stop_as is not None:
                self._press(child, running, now)
            elif running in unbegun:
                continue  # Its time has not begun either.
            elif running.timeout_s is not None and now - running.since >= running.timeout_s:
                text = f"it ran for {running.timeout_s:g} s, which is all it may"
                self.stop(
                    running.claimed.job_id,
                    running.claimed.attempt,
                    TimedOut(_error("TimeoutError", text), running.retries_timeouts),
                )
        if child.waiting and now - oldest > STUCK_S:
            pool.job_s = max(pool.job_s, now - oldest)
            self._take_back_all(child)
        if unbegun and now - oldest > NOT_BEGUN_S_MAX:
            self._take_back_all(child)
        if child.stalled_since is not None and now - child.stalled_since > STALLED_S_MAX:
            self._kill(child, "it stood still")
        if not child.is_leaving and (self._is_spent(child) or self._is_idle_solo(pool, child)):
            self._retire(child)

    def _is_idle_solo(self, pool: Pool, child: Post) -> bool:
        """Say whether a child for suspects has none left that it could take."""
        if not child.is_solo or not child.is_ready or child.load:
            return False
        return not any(child.width <= company_of(suspect) for suspect in pool.suspects)

    def _catch_up(self, child: Post, now: float) -> None:
        """See which job a child is really at: outcomes of short ones before it may not have been sent yet."""
        at = child.process.place.get()
        done = [running for running in child.running.values() if running.number < at]
        for running in done:
            del child.running[running.claimed.job_id]
            child.unheard[running.claimed.job_id] = running.claimed
        while child.waiting and child.waiting[0][1] <= at:
            claimed, number = child.waiting.popleft()
            if number < at:
                child.unheard[claimed.job_id] = claimed
            else:
                self._begin(child, claimed, number, now)
        if child.unheard and not child.is_gone:
            child.process.send(Flush())

    def _press(self, child: Post, running: Running, now: float) -> None:
        """Ask, then SIGTERM, then SIGKILL. Threads and loops cannot be interrupted by a signal, so it ends them all."""
        waited = now - running.stop_since
        if running.stage == 0 and waited >= SOFT_S:
            running.stage = 1
            if child.kind == "process":
                child.process.signal(signal.SIGTERM)
        elif running.stage == 1 and waited >= SOFT_S + HARD_S:
            running.stage = 2
            self._kill(child, f"{running.claimed.job_id} did not stop")

    def _is_spent(self, child: Post) -> bool:
        plan = self._plan
        if plan.max_jobs and child.jobs >= plan.max_jobs:
            return True
        return bool(plan.max_memory) and child.is_ready and child.process.resident_bytes() > plan.max_memory

    def _retire(self, child: Post) -> None:
        """Let a child end what it has and go; another takes its place at once."""
        child.is_leaving = True
        child.process.send(Finish())

    # --- the life of a child

    def open(self) -> None:
        """Start the first child; it tells which tasks there are."""
        self._warden = start_warden(f"{MARK}={self._name}-")
        self._spawn(self._pools["process"])

    def _keep_staffed(self, pool: Pool, now: float) -> None:
        if self._closing or (self.hello is None and pool.kind != "process"):
            return
        wanted = pool.children_max if self.hello is None or pool.kind in self.kinds else 0
        wanted = min(wanted, 1) if self.hello is None else wanted
        staff = [child for child in pool.children if not child.is_leaving and not child.is_solo]
        if len(staff) < wanted and now >= pool.spawn_at:
            self._spawn(pool)
        if self.hello is not None and wanted == 0:
            for child in staff:
                self._retire(child)
        if pool.suspects:
            self._try_suspects(pool)
        else:
            pool.kept.clear()

    def _spawn(self, pool: Pool, *, solo_width: int = 0) -> None:
        self._numbers += 1
        width = solo_width or pool.width
        mark = f"{self._name}-{self._numbers}"
        process = ChildProcess(self._plan.command, pool.kind, width, mark, self._plan.environ)
        child = Post(pool.kind, width, process, self._clock.monotonic(), is_solo=solo_width > 0)
        pool.children.append(child)
        process.watch(lambda: self._read(pool, child), lambda: self._bury(pool, child))

    def _read(self, pool: Pool, child: Post) -> None:
        messages = child.process.read()
        if messages is None:
            child.deaf_since = self._clock.monotonic()  # It is about to end, most likely.
        else:
            self._hear(pool, child, messages)

    def _hear(self, pool: Pool, child: Post, messages: Sequence[ToSupervisor]) -> None:
        now = self._clock.monotonic()
        took: list[float] = []
        for message in messages:
            if isinstance(message, Done):  # What most of them are.
                took.append(self._end(child, message.job_id, message.attempt, Succeeded(message.result), now))
            elif isinstance(message, Stopped | Failed) and self._left_processes(child, message.job_id):
                running = child.running[message.job_id]
                running.stop_as = _outcome_of(child, message)
                self._kill(child, f"{message.job_id} left processes behind")  # With them, it will have stopped.
            elif (outcome := _outcome_of(child, message)) is not None:
                took.append(self._end(child, message.job_id, message.attempt, outcome, now))  # type: ignore[union-attr]
            else:
                self._hear_other(pool, child, message)
        if took:
            mean_s = sum(took) / len(took)
            pool.learn(mean_s, len(took))
            # One after the other, they ended before we heard of them: only the time of all together is known.
            self._measure([(mean_s, len(took))] if child.width == 1 else [(took_s, 1) for took_s in took])
        self._say_room()
        if pool.suspects:
            self._try_suspects(pool)

    def _left_processes(self, child: Post, job_id: str) -> bool:
        """Say whether a job that was made to stop has started what goes on. A child of many jobs sees to it itself."""
        running = child.running.get(job_id)
        if child.kind != "process" or running is None or running.stop_as is None:
            return False
        return not child.process.has_ended and child.process.has_company()

    def _hear_other(self, pool: Pool, child: Post, message: ToSupervisor) -> None:
        match message:
            case Reports(reports):
                self._foreman.reported(reports)
            case Revoked(job_ids, begun):
                self._revoked(child, job_ids, begun)
            case Voided(job_id, attempt):
                self._voided(child, job_id, attempt)
            case Ask():
                self._answer(child, message)
            case Hello():
                self._greet(pool, child, message)
            case Spent():
                if not child.is_leaving:
                    self._retire(child)
            case Done() | Failed() | Cancelled() | Stopped() | Unfit():
                raise AssertionError("the end of an attempt is heard elsewhere")
            case _:
                assert_never(message)

    def _say_room(self) -> None:
        if self.foreman is not None:
            self.foreman.has_room()

    def _end(self, child: Post, job_id: str, attempt: int, outcome: Outcome, now: float) -> float:
        """An attempt has ended; return how long it took."""
        running = child.running.get(job_id)
        if running is None:
            return self._end_unseen(child, job_id, attempt, outcome)
        if running.claimed.attempt != attempt:
            return 0.0  # It was abandoned.
        del child.running[job_id]
        del self._where[job_id]
        if child.waiting:
            claimed, number = child.waiting.popleft()
            self._begin(child, claimed, number, now)
        self._foreman.ended(running.claimed, outcome)
        return now - running.since

    def _end_unseen(self, child: Post, job_id: str, attempt: int, outcome: Outcome) -> float:
        """End a job that we had not seen begin: it was done before we looked, or others before it were given back."""
        claimed = child.unheard.pop(job_id, None)
        if claimed is None:
            claimed = next((item for item, _ in child.waiting if item.job_id == job_id), None)
            child.waiting = deque(item for item in child.waiting if item[0].job_id != job_id)
        if claimed is not None and claimed.attempt == attempt:
            del self._where[job_id]
            self._foreman.ended(claimed, outcome)
        return 0.0

    def _revoked(self, child: Post, job_ids: Sequence[str], begun: Sequence[str]) -> None:
        """Hand back what a child gave back. What had begun goes on; about others that were asked for we will hear."""
        given = set(job_ids)
        back = [claimed for claimed, _ in child.waiting if claimed.job_id in given]
        child.waiting = deque(item for item in child.waiting if item[0].job_id not in given)
        # A job that we took for running may not have begun yet: it is behind one whose end we have not read.
        for running in [child.running[job_id] for job_id in given if job_id in child.running]:
            back.append(running.claimed)
            self._forget_running(child, running)
        for job_id in begun:
            self._reasons.pop(job_id, None)  # Whoever wants it to stop will say so again.
        child.revoked.difference_update(job_ids, begun)
        self._give_back(back)
        self._begin_waiting(child)

    def _give_back(self, jobs: Iterable[Claimed]) -> None:
        for claimed in jobs:
            del self._where[claimed.job_id]
            self._foreman.ended(claimed, self._reasons.pop(claimed.job_id, Released("handed back: it had to wait")))

    def _greet(self, pool: Pool, child: Post, hello: Hello) -> None:
        if hello.error is not None:
            pool.failures += 1
            emit(ChildEnded(node=self._clock.node, pid=child.process.pid, kind=child.kind, reason=hello.error))
            if self.hello is None:
                self.hello = hello
                self.greeted.set()
            return
        child.is_ready = True
        pool.failures = 0
        emit(ChildStarted(node=self._clock.node, pid=child.process.pid, kind=child.kind))
        if self.hello is None or self.hello.error is not None:
            self.hello = hello
            self.tasks = {info.name: info for info in hello.tasks}
            isolations = {info.isolation for info in hello.tasks}
            self.kinds = {
                kind: frozenset(info.name for info in hello.tasks if info.isolation == kind) for kind in isolations
            }
            self.greeted.set()
            for each in self._pools.values():
                self._keep_staffed(each, self._clock.monotonic())

    def _answer(self, child: Post, ask: Ask) -> None:
        async def reply() -> None:
            try:
                answer = Answer(ask.number, await self._foreman.answer(ask))
            except LeaseLost as error:
                answer = Answer(ask.number, error=str(error), is_lost=True)
            except HeadwayError as error:
                answer = Answer(ask.number, error=str(error))
            child.process.send(answer)

        task = asyncio.get_running_loop().create_task(reply())
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    def _kill(self, child: Post, reason: str) -> None:
        """Kill a child with all that it has started, also what has left its process group."""
        now = self._clock.monotonic()
        if child.killed_because is not None and now - child.kill_sent <= HARD_S:
            return  # It is dying; a hundred jobs may be in it, and each would have all processes looked at.
        child.killed_because = child.killed_because or reason
        child.kill_sent = now
        child.process.kill()

    def _bury(self, pool: Pool, child: Post) -> None:
        """A child is dead: hear its last words, and settle what was in it."""
        if child.is_gone or not child.process.has_ended:
            return
        for messages in child.process.last_words():
            self._hear(pool, child, messages)
        child.is_gone = True
        if child.kind == "process":
            self._catch_up(child, self._clock.monotonic())
        pool.children.remove(child)
        self._settle_dead(pool, child)
        child.process.close()
        now = self._clock.monotonic()
        if child.killed_because is None and not child.is_leaving:
            pool.failures += 1 if not child.jobs else 0
            pool.spawn_at = now + (min(RESPAWN_S * 2.0**pool.failures, RESPAWN_S_MAX) if pool.failures else 0.0)
            reason = child.process.ending
        else:
            reason = child.killed_because or "it was replaced"
        if not self._closing:
            emit(ChildEnded(node=self._clock.node, pid=child.process.pid, kind=child.kind, reason=reason))
        if self.hello is None and not child.is_ready:
            error = f"the child process {reason} before it was ready"
            self.hello = Hello(child.process.pid, "", "", [], {}, error=error)
            self.greeted.set()
        self._keep_staffed(pool, now)
        self._say_room()

    def _measure(self, lots: Sequence[tuple[float, int]]) -> None:
        emit(Timed(node=self._clock.node, what="run", lots=tuple(lots)))

    def _settle_dead(self, pool: Pool, child: Post) -> None:
        now = self._clock.monotonic()
        if child.running:
            self._measure([(now - running.since, 1) for running in child.running.values()])
        ended = [(running.claimed, self._end_of(child, running)) for running in child.running.values()]
        ended += [(claimed, Released("handed back: its outcome was lost")) for claimed in child.unheard.values()]
        ended += [
            (claimed, self._reasons.pop(claimed.job_id, Released("handed back: its child died")))
            for claimed, _ in child.waiting
        ]
        child.running.clear()
        child.waiting.clear()
        child.unheard.clear()
        for claimed, outcome in ended:
            self._where.pop(claimed.job_id, None)
            self._foreman.ended(claimed, outcome)

    def _end_of(self, child: Post, running: Running) -> Outcome:
        if running.stop_as is not None:
            return running.stop_as
        if child.killed_because is not None:
            return Released(f"handed back: {child.killed_because}")
        if child.kind == "process" and running.number > child.process.place.get():
            return Released("handed back: its child died before it began")
        if len(child.running) > 1:
            return Released(f"handed back: its process died while {len(child.running)} jobs ran in it")
        text = f"its process {child.process.ending}"
        return Crashed(_error("Crashed", text))

    async def close(self, within_s: float) -> None:
        """End every child: those that are idle by themselves, the others by force."""
        self._closing = True
        children = [child for pool in self._pools.values() for child in pool.children]
        for child in children:
            if child.load or not child.is_ready:
                self._kill(child, "the worker ends")
            else:
                self._retire(child)
        until = self._clock.monotonic() + within_s
        wake = asyncio.Event()
        while self.count() and self._clock.monotonic() < until:
            self.watch()
            await self._clock.rest(0.02, wake)
        for pool in self._pools.values():
            for child in list(pool.children):
                self._kill(child, "the worker ends")
        while self.count() and self._clock.monotonic() < until + GONE_S_MAX:
            self.watch()
            await self._clock.rest(0.02, wake)
        if self._warden is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # It goes on without us: something cannot be killed.
                self._warden.communicate(timeout=WARDEN_S_MAX)  # It ends, after a last look.


def _in_frames(jobs: list[Claimed]) -> Iterator[list[Claimed]]:
    """Cut jobs into as many frames as their arguments need."""
    part: list[Claimed] = []
    size = 0
    for claimed in jobs:
        if part and size + len(claimed.args) > RUN_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(claimed)
        size += len(claimed.args)
    yield part


def _outcome_of(child: Post, message: ToSupervisor) -> Outcome | None:
    """Return what a message says about the end of an attempt; None when it is about something else."""
    match message:
        case Failed(job_id, _):
            running = child.running.get(job_id)
            return failure_of(message, running.stop_as if running else None)
        case Cancelled(_, _, reason):
            return lifecycle.Cancelled(reason)
        case Stopped(job_id, _):
            running = child.running.get(job_id)
            return (running.stop_as if running else None) or Released("the task stopped by itself")
        case Unfit(_, _, reason, cause):
            return Parked(reason, cause)
    return None


def failure_of(failed: Failed, stop_as: Outcome | None) -> Outcome:
    """Say what an exception makes of an attempt: what was asked of it, if it was raised while the task was stopped.

    What is handed back was not asked, but killed; so whatever it still said was said before.
    """
    match stop_as:
        case TimedOut(error, retryable):
            return TimedOut(_error_while_stopping(error, failed.error), retryable)
        case lifecycle.Cancelled():
            return stop_as
    return Raised(failed.error, failed.retryable, failed.retry_in)


def _error_while_stopping(error: str, raised: str) -> str:
    """Add to the error of an attempt what its task raised when it was asked to stop."""
    try:
        words, more = (msgspec.json.decode(text, type=_Words) for text in (error, raised))
    except msgspec.DecodeError:  # Not of our making.
        return error
    words.message += f"; asked to stop, it raised {more.type}: {more.message}"
    words.traceback = more.traceback
    return msgspec.json.encode(words).decode()


class _Words(msgspec.Struct, omit_defaults=True):
    """An error, as it is written down."""

    type: str
    message: str
    traceback: str = ""


def _error(kind: str, message: str) -> str:
    return msgspec.json.encode({"type": kind, "message": message}).decode()
