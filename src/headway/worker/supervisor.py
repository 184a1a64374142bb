"""The supervisor: takes jobs, keeps their leases, writes what becomes of them. No user code runs in its process.

Five loops share the attempts that this worker holds:

    claimer    takes jobs while the crew has room, one queue after the other, in batches as large as the room
    keeper     extends all leases in one statement, and hears which jobs shall stop
    settler    writes outcomes: whatever has ended while the last batch was written is the next batch
    reporter   writes progress, metadata and logs, at most twice a second per job, the latest value only; where they
               are told live (the port `Live`), every few seconds
    watchman   never touches the store: ends trust in leases by the monotonic clock, and looks after the crew

A lease is trusted until (the moment the request that got it was *sent*) + lease − margin. Past that the code that runs
under it is killed without waiting to hear "no": somebody else may have the job. An outcome that is known is written
whenever the store answers again; the store refuses it if the attempt is over.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from headway.clock import Clock
from headway.errors import LeaseLost, StoreError, StoreFull, StoreUnavailable
from headway.events import AttemptsLost, Draining, JobsSettled, ReportsRefused, Timed, emit
from headway.instants import SECOND, Duration, Instant
from headway.lifecycle import Cancelled, Outcome, Parked, Released, Settlement, Status, settle
from headway.model import (
    LOG_BYTES_MAX,
    LOG_LINE_OVERHEAD,
    REASON_LENGTH_MAX,
    Claimed,
    JsonObject,
    NewJob,
    Node,
    Report,
    storable,
)
from headway.ports import Latest, Live, Work
from headway.worker.frames import Ask, TaskInfo
from headway.worker.hints import HintTaker

CLAIM_MAX: Final = 2_000
SETTLE_MAX: Final = 2_000
REPORT_EVERY_S: Final = 0.5
CHECKPOINT_EVERY_S: Final = 5.0  # Instead, while it is told live;
LINES_EVERY_S: Final = 2.0  # and so much of a log at most goes down with a worker.
REPORTS_MAX: Final = 1_000
LINES_MAX: Final = 2_000  # In one write: leases are extended between two of them.
WATCH_EVERY_S: Final = 0.2
UNPARK_EVERY_S: Final = 5.0
QUIET_S: Final = 5.0  # What is woken from within this process rests so long; a wake-up within it cannot get lost.
QUEUE_USUAL: Final = "default"
SEEN_MAX: Final = 1_000
PROBE_EVERY_S: Final = 0.25
PROBE_SHARE: Final = 20.0
HAND_BACK_S_MAX: Final = 1.0


class CrewPort(Protocol):
    """What the supervisor needs of whoever runs the jobs."""

    @property
    def tasks(self) -> Mapping[str, TaskInfo]:
        """The tasks that can be run here."""
        ...

    @property
    def kinds(self) -> dict[str, frozenset[str]]:
        """The tasks by the kind of place where they run."""
        ...

    def room(self, kind: str) -> int:
        """How many more jobs of this kind can be taken."""
        ...

    def slots(self) -> int:
        """How many jobs can run at the same time."""
        ...

    def count(self) -> int:
        """How many children there are."""
        ...

    def start(self, jobs: Sequence[Claimed], kept: Mapping[str, dict[str, str]] | None = None) -> None:
        """Run jobs; each ends exactly once, unless it is abandoned."""
        ...

    def stop(self, job_id: str, attempt: int, outcome: Outcome) -> None:
        """Have a job stop; it ends with this outcome once it has."""
        ...

    def abandon(self, job_id: str, attempt: int) -> None:
        """Stop a job that is no longer ours, at once and without a word about its end."""
        ...

    def release_waiting(self, reason: str) -> None:
        """Hand back what has not begun."""
        ...

    def release_all(self, reason: str) -> None:
        """Hand back everything now."""
        ...

    def watch(self) -> None:
        """Look after what only time can show."""
        ...


@dataclass(slots=True)
class _Held:
    """An attempt of ours, and how long we may believe that it is."""

    claimed: Claimed
    trust_until: float
    logged: int
    report: Report | None = None
    reported_at: float = 0.0
    is_flushing: bool = False
    is_ending: bool = False  # Its outcome is known, and perhaps not yet written.
    said: Latest | None = None
    line_at: Instant = 0


class Supervisor:
    """One worker's side of the store. Its ticks are run by `Loop`s, which are woken when there is something to do."""

    def __init__(
        self,
        work: Work,
        *,
        clock: Clock,
        lease: Duration,
        poll: Duration,
        queues: Sequence[str] = (),
        live: Live | None = None,
    ) -> None:
        self._work = work
        self._live = live
        self._clock = clock
        self._lease = lease
        self._lease_s = lease / SECOND
        self._poll_s = poll / SECOND
        self._queues = tuple(queues)
        self.crew: CrewPort | None = None
        self.claimer_wake: Callable[[], None] = _nobody
        self.settler_wake: Callable[[], None] = _nobody
        self.reporter_wake: Callable[[], None] = _nobody
        self.keeper_wake: Callable[[], None] = _nobody
        self.hints: HintTaker | None = None
        self._held: dict[str, _Held] = {}
        self._ended: deque[tuple[_Held, Outcome]] = deque()
        self._settling: list[tuple[_Held, Outcome]] = []
        self._reporting: dict[str, _Held] = {}
        self._flushing = asyncio.Lock()
        self._ready: deque[str] = deque(queues)  # The next queue to take from is in front.
        self._mixes: dict[str, frozenset[str]] = {}  # Of which kinds the last jobs of a queue were.
        self._probe_at: dict[str, float] = {}
        self._heard: set[str] = set()  # Queues that got a job while we looked into them.
        self._queues_seen_at = -1e9
        self._foreign: frozenset[str] = frozenset()  # Tasks that others know and we do not.
        self._is_alike = True  # Whether all who take from our queues know the same tasks.
        self._seen: set[str] = set(queues) or {QUEUE_USUAL}  # The queues that we take from, as far as we know them.
        self._looked: set[str] = set()  # Queues that were looked into, with nothing heard of them meanwhile.
        self._unpark_at = 0.0
        self._extend_at = 0.0
        self._draining: str | None = None
        self._is_claiming = False
        self._idle = asyncio.Event()
        self._idle.set()

    # --- what others may know

    @property
    def margin_s(self) -> float:
        """How long before a lease ends we stop to trust it."""
        return min(2.0, self._lease_s / 5)

    @property
    def is_draining(self) -> bool:
        """Whether no more jobs are taken."""
        return self._draining is not None

    def running(self) -> int:
        """How many attempts this worker holds."""
        return len(self._held)

    def state(self) -> JsonObject:
        """Describe this worker for those who look at nodes."""
        crew = self.crew
        return {
            "tasks": sorted(crew.tasks) if crew else [],
            "defaults": {name: info.defaults for name, info in crew.tasks.items() if info.defaults} if crew else {},
            "queues": list(self._queues) or ["*"],
            "slots": crew.slots() if crew else 0,
            "running": self.running(),
            "draining": self.is_draining,
            "children": crew.count() if crew else 0,
        }

    def live_state(self) -> JsonObject | None:
        """Describe what tells live how far jobs are; None where the store does it alone."""
        return None if self._live is None else {"name": self._live.name, "trouble": self._live.trouble}

    def hear(self, topic: str) -> None:
        """Take note of a commit by somebody else."""
        what, _, queue = topic.partition(" ")
        if what in ("ready", "resumed"):
            is_ours = not self._queues or queue in self._queues
            if is_ours and (what == "resumed" or not self._is_hinted(queue)):
                self._see(queue)
                self.claimer_wake()
        elif topic == "stop":
            self.keeper_wake()
        elif topic == "anything":
            if self.hints is None or not self.hints.is_working or not self._is_alike:
                self._queues_seen_at = -1e9
                self.claimer_wake()
            if self._held:
                self.keeper_wake()

    def _see(self, queue: str) -> None:
        """A queue may have something for us."""
        self._heard.add(queue)
        if queue not in self._ready:
            self._ready.append(queue)
        if len(self._seen) < SEEN_MAX:
            self._seen.add(queue)

    def meet(self, peers: Collection[Node]) -> None:
        """Learn which tasks other workers know: jobs of theirs are left for them."""
        crew = self.crew
        if crew is None or not crew.tasks:
            return
        known: set[str] = set()
        is_alike = True
        for peer in peers:
            worker = peer.state.get("worker")
            if peer.id != self._clock.node and isinstance(worker, dict):
                tasks = worker.get("tasks", ())
                known.update(tasks)
                is_alike &= set(tasks) == crew.tasks.keys() or not self._shares_queues(worker.get("queues", ()))
        self._foreign = frozenset(known - crew.tasks.keys())
        self._is_alike = is_alike

    def _shares_queues(self, queues: Collection[str]) -> bool:
        return not self._queues or "*" in queues or not set(queues).isdisjoint(self._queues)

    # --- hints of a transport

    def wants_hints(self) -> frozenset[str]:
        """Return the queues for whose jobs there is room, whatever kind they are of, as far as we know their kinds."""
        crew = self.crew
        if crew is None or self.is_draining or not crew.tasks:
            return frozenset()
        full = {kind for kind in crew.kinds if crew.room(kind) <= 0}
        if not full:
            return frozenset(self._seen)
        return frozenset(queue for queue in self._seen if not self._mixes.get(queue, crew.kinds.keys()) & full)

    def take_hint(self, queues: Collection[str]) -> None:
        """Look into these queues now; into all of them when hints do not come any more."""
        if not queues:
            self._queues_seen_at = -1e9
        for queue in queues:
            self._see(queue)
        self.claimer_wake()

    def _is_hinted(self, queue: str) -> bool:
        """Say whether one of us is told of each job in this queue, so that the others need not look.

        Only among equals: a hint may go to a worker that does not know the task.
        """
        return self._is_alike and self.hints is not None and self.hints.brings(queue)

    # --- claimer

    async def claim(self) -> float:
        """Fill the room that the crew has."""
        crew = self.crew
        if crew is None or self.is_draining or not crew.tasks:
            return self._poll_s
        self._is_claiming = True  # Nobody is idle who may have jobs and has not heard of it yet.
        self._idle.clear()
        self._looked.clear()
        try:
            rest_s = await self._claim(crew)
        finally:
            self._is_claiming = False
            self._note_idle()
        if self.hints is not None:
            self.hints.looked_into(self._looked)
        return rest_s

    async def _claim(self, crew: CrewPort) -> float:
        """Take from the queues that we know to have something; who waits there does not wait for a look around."""
        rest_s = await self._fill(crew)
        await self._unpark(crew)
        return min(rest_s, await self._fill(crew)) if await self._finds_queues() else rest_s

    async def _fill(self, crew: CrewPort) -> float:
        room = {kind: min(crew.room(kind), CLAIM_MAX) for kind in crew.kinds}
        may_be_more = False
        for _ in range(len(self._ready)):
            if max(room.values()) <= 0 or self.is_draining:
                break
            may_be_more |= await self._claim_from(crew, self._ready[0], room)
        return 0.0 if may_be_more and max(room.values()) > 0 else self._poll_s

    async def _unpark(self, crew: CrewPort) -> None:
        """Look again at jobs that nobody knew. All parked ones when we are new here: perhaps our code is."""
        now = self._clock.monotonic()
        if now >= self._unpark_at:
            await self._work.unpark(crew.tasks, "unknown task" if self._unpark_at else "")
            self._unpark_at = now + UNPARK_EVERY_S

    async def _finds_queues(self) -> bool:
        """Look now and then for queues of which we have not heard; say whether there are any."""
        now = self._clock.monotonic()
        if self._queues or now - self._queues_seen_at < self._poll_s:
            return False
        self._queues_seen_at = now
        known = set(self._ready)
        for queue in await self._work.ready_queues():
            self._see(queue)
        return not known.issuperset(self._ready)

    async def _claim_from(self, crew: CrewPort, queue: str, room: dict[str, int]) -> bool:
        """Take from one queue its share of the room; say whether there may be more in it."""
        self._heard.discard(queue)
        jobs, may_be_more = await self._claim_mixed(crew, queue, room)
        if queue not in self._heard and (jobs or not may_be_more):
            self._looked.add(queue)
        if queue in self._ready:
            self._ready.remove(queue)
            if may_be_more or self._queues or queue in self._heard:  # After the others, it is its turn again.
                self._ready.append(queue)
        return may_be_more and bool(jobs)

    async def _claim_mixed(self, crew: CrewPort, queue: str, room: dict[str, int]) -> tuple[int, bool]:
        """Claim jobs of whatever kind is next, going by the kinds that came last; return how many, and whether more.

        While one of these kinds has no room the others are looked for alone. That has to read past all that is not
        wanted, so it is done now and then, the more rarely the longer it takes.
        """
        mix = self._mixes.get(queue) or frozenset(room)
        full = {kind for kind in room if room[kind] <= 0}
        skip = set(self._foreign)
        started = self._clock.monotonic()
        if mix & full:
            if started < self._probe_at.get(queue, 0.0):
                return 0, True
            skip.update(*(crew.kinds[kind] for kind in full))
        limit = -(-min(room[kind] for kind in (mix - full or room.keys() - full)) // max(1, len(self._ready)))
        jobs = await self._work.claim(queue, node=self._clock.node, lease=self._lease, limit=limit, skip=skip)
        took_s = self._clock.monotonic() - started
        emit(Timed(node=self._clock.node, what="claim", lots=((took_s, 1),)))
        if mix & full:
            # A store that was slow once, or a process that stood still, must not make these jobs wait for long.
            self._probe_at[queue] = started + max(PROBE_EVERY_S, min(PROBE_SHARE * took_s, self._poll_s))
        kinds = [crew.tasks[job.task].isolation for job in jobs if job.task in crew.tasks]
        for kind in kinds:
            room[kind] -= 1
        if kinds and not mix & full:
            self._mixes[queue] = frozenset(kinds)
        if jobs:
            await self._take(crew, jobs, started)
        return len(jobs), len(jobs) == limit or bool(mix & full)

    async def _take(self, crew: CrewPort, jobs: Sequence[Claimed], sent: float) -> None:
        trust_until = sent + self._lease_s - self.margin_s
        self._idle.clear()
        fit: list[Claimed] = []
        again: list[str] = []
        for claimed in jobs:
            self._held[claimed.job_id] = _Held(claimed, trust_until, claimed.log_bytes)
            if claimed.attempt > 1:
                again.append(claimed.job_id)
            if claimed.task in crew.tasks and claimed.unreadable is None:
                fit.append(claimed)
            else:
                self.ended(claimed, self._unfit(claimed))
        kept = await self._kept(again) if again else None
        if self._draining is not None:
            for claimed in fit:
                self.ended(claimed, Released(self._draining))
        elif fit:
            crew.start(self._trusted(fit), kept)

    def _trusted(self, jobs: Sequence[Claimed]) -> list[Claimed]:
        """Leave out what may not be ours any more: we stood still, or waited too long for the store."""
        now, ours = self._clock.monotonic(), self._held
        late = [held for job in jobs if (held := ours.get(job.job_id)) is not None and held.trust_until <= now]
        if late:
            self._lose(late, "their leases ran out before they began")
        return [job for job in jobs if job.job_id in ours]

    async def _kept(self, job_ids: Iterable[str]) -> dict[str, dict[str, str]]:
        """Read the steps that earlier attempts finished, however long it takes: without them they would be repeated."""
        wake = asyncio.Event()
        while True:
            try:
                return await self._work.steps(job_ids)
            except (StoreUnavailable, StoreFull):
                await self._clock.rest(self._poll_s, wake)

    def _unfit(self, claimed: Claimed) -> Outcome:
        if claimed.unreadable is not None:
            return Parked(storable(claimed.unreadable, REASON_LENGTH_MAX), "unreadable")
        if claimed.task in self._foreign:
            return Released("handed back: another worker knows the task")
        return Parked(f"no worker here knows the task {claimed.task!r}")

    # --- what the crew tells

    def has_room(self) -> None:
        """The crew can take more."""
        self.claimer_wake()

    def ended(self, claimed: Claimed, outcome: Outcome) -> None:
        """An attempt has ended: have it written."""
        held = self._held.get(claimed.job_id)
        if held is None or held.claimed.attempt != claimed.attempt:
            return  # It was lost; nothing of it is kept.
        held.is_ending = True
        self._ended.append((held, outcome))
        if len(self._ended) == 1:
            self.settler_wake()

    def reported(self, reports: Sequence[Report]) -> None:
        """Take what attempts say about themselves; the latest counts, lines are all kept."""
        now, is_new = self._clock.monotonic(), self._live is None
        for report in reports:
            held = self._held.get(report.job_id)
            if held is None or held.claimed.attempt != report.attempt or held.trust_until <= now:
                continue
            after, bounded = held.line_at, self._bounded(held, report)
            held.report = _merge(held.report, bounded)
            is_new |= report.job_id not in self._reporting
            self._reporting[report.job_id] = held
            if self._live is not None:
                held.said = _said(held.said, bounded, after, self._clock.now())
                self._live.tell(held.said)
        if self._reporting and is_new:
            self.reporter_wake()

    def begin_live(self) -> None:
        """Start to tell live what attempts say: of those that are surely ours, and of no others."""
        if self._live is not None:
            self._live.begin(self._may_tell, lambda: self.reporter_wake())

    async def close(self) -> None:
        """Tell nothing more."""
        if self._live is not None:
            await self._live.close()

    def _may_tell(self, job_id: str, attempt: int) -> bool:
        held = self._held.get(job_id)
        return held is not None and held.claimed.attempt == attempt and held.trust_until > self._clock.monotonic()

    def _bounded(self, held: _Held, report: Report) -> Report:
        """Keep the log of a job within its bound, say where it was cut off, and note when each line was heard."""
        if not report.lines:
            return report
        now = self._clock.now()
        kept: list[tuple[Instant | None, str, str]] = []
        for at, stream, line in report.lines:
            if held.logged > LOG_BYTES_MAX:
                break
            held.logged += len(line) + LOG_LINE_OVERHEAD
            is_full = held.logged > LOG_BYTES_MAX
            if self._live is not None:  # There they are known by their time.
                held.line_at = at = max(at or now, held.line_at + 1)
            text = (stream, line) if not is_full else ("log", "… the log is full: 1 MiB is kept")
            kept.append((at or now, *text))
        return msgspec.structs.replace(report, lines=tuple(kept))

    async def answer(self, ask: Ask) -> str:
        """Do for a running attempt what needs the store, which is waited for as long as the lease is trusted."""
        wake = asyncio.Event()
        while True:
            held = self._held.get(ask.job_id)
            is_ours = held is not None and held.claimed.attempt == ask.attempt
            if held is None or not is_ours or held.trust_until <= self._clock.monotonic():
                raise LeaseLost(f"attempt {ask.attempt} of {ask.job_id} is over")
            try:
                return await self._answer(ask)
            except (StoreUnavailable, StoreFull):
                await self._clock.rest(self._poll_s / 4, wake)

    async def _answer(self, ask: Ask) -> str:
        if ask.question == "step":
            name, result = msgspec.json.decode(ask.body, type=tuple[str, str])
            await self._work.keep_step(ask.job_id, ask.attempt, name, result)
            return ""
        jobs = msgspec.json.decode(ask.body, type=list[NewJob])
        made = [msgspec.structs.replace(job, parent=ask.job_id) for job in jobs]
        rows = await self._work.enqueue_from(ask.job_id, ask.attempt, made)
        return msgspec.json.encode([row.id for row in rows]).decode()

    # --- settler

    async def settle(self) -> float:
        """Write every outcome that is known, the last reports of these attempts first."""
        batch = self._settling or self._next_batch()
        if not batch:
            return QUIET_S
        self._settling = batch  # Until it is written, also when the store does not answer now.
        while spoke := [held for held, _ in batch if held.report is not None or held.is_flushing]:
            await self._flush(spoke)
        settlements = [settle(held.claimed, outcome, self._clock.chance.random()) for held, outcome in batch]
        sent = self._clock.monotonic()
        stale = await self._write(settlements)
        emit(Timed(node=self._clock.node, what="settle", lots=((self._clock.monotonic() - sent, 1),)))
        self._settling = []
        for held, _ in batch:
            if self._held.get(held.claimed.job_id) is held:
                del self._held[held.claimed.job_id]
                self._hush(held)
        self._tell(settlements, stale)
        self._note_idle()
        return 0.0 if self._ended else QUIET_S

    def _next_batch(self) -> list[tuple[_Held, Outcome]]:
        ended = self._ended
        return [ended.popleft() for _ in range(min(len(ended), SETTLE_MAX))]

    async def _write(self, settlements: Sequence[Settlement]) -> frozenset[str]:
        try:
            return await self._work.settle(settlements)
        except (StoreUnavailable, StoreFull):
            raise
        except StoreError as error:
            if len(settlements) == 1:
                return await self._work.settle([_unwritable(settlements[0], error)])
        stale: set[str] = set()
        for settlement in settlements:  # One of them cannot be written; the others must not suffer for it.
            stale |= await self._write([settlement])
        return frozenset(stale)

    def _tell(self, settlements: Sequence[Settlement], stale: frozenset[str]) -> None:
        others = tuple([s for s in settlements if s.status is not Status.COMPLETED and s.job_id not in stale])
        completed = len(settlements) - len(others) - len(stale)
        emit(JobsSettled(node=self._clock.node, completed=completed, others=others))
        if stale:
            lost, reason = tuple(sorted(stale)), "their end was refused"
            emit(AttemptsLost(node=self._clock.node, job_ids=lost, reason=reason, is_refused=True))

    # --- reporter

    async def report(self) -> float:
        """Write what is new about running attempts, of each at most twice a second."""
        now = self._clock.monotonic()
        due = [held for held in self._reporting.values() if now - held.reported_at >= self._every_s(held) - 0.01]
        await self._flush(due[:REPORTS_MAX])
        if len(due) > REPORTS_MAX:
            return 0.0
        if not self._reporting:
            return QUIET_S
        earliest = min(held.reported_at + self._every_s(held) for held in self._reporting.values())
        return max(0.01, min(REPORT_EVERY_S, earliest - self._clock.monotonic()))

    def _every_s(self, held: _Held) -> float:
        """Return how often an attempt's reports are written: rarely while they are told live."""
        if self._live is None or self._live.trouble is not None:
            return REPORT_EVERY_S
        return LINES_EVERY_S if held.report is not None and held.report.lines else CHECKPOINT_EVERY_S

    def _hush(self, held: _Held) -> None:
        if self._live is not None and held.said is not None:
            self._live.forget(held.claimed.job_id)

    async def _flush(self, held_ones: Sequence[_Held]) -> None:
        """Write reports, one batch after the other: the end of an attempt must not overtake what it said before.

        Of many lines the first are written. The rest stays for the next time, as what was said later.
        """
        if not held_ones:
            return
        async with self._flushing:
            reports = self._next_reports(held_ones)
            if not reports:
                return
            try:
                refused = await self._work.report(reports)
            except (StoreUnavailable, StoreFull):
                self._put_back(held_ones, reports)
                raise
            except StoreError:
                await self._report_singly(held_ones, reports)
            else:
                if refused:
                    emit(ReportsRefused(node=self._clock.node, job_ids=tuple(sorted(refused))))
            finally:
                for held in held_ones:
                    held.is_flushing = False

    def _next_reports(self, held_ones: Sequence[_Held]) -> list[Report]:
        """Take what is written now, no more lines than fit; who has more to say stands at the end of the line."""
        now, room, reports = self._clock.monotonic(), LINES_MAX, []
        for held in held_ones:
            report = held.report
            if report is None or (report.lines and not room):
                continue
            rest = report.lines[room:]
            reports.append(_numbered(msgspec.structs.replace(report, lines=report.lines[:room]), held.said))
            room = max(0, room - len(report.lines))
            held.report, held.reported_at, held.is_flushing = None, now, True
            self._reporting.pop(held.claimed.job_id, None)
            if rest:
                held.report = Report(job_id=report.job_id, attempt=report.attempt, lines=rest)
                self._reporting[held.claimed.job_id] = held
        return reports

    def _put_back(self, held_ones: Sequence[_Held], reports: Sequence[Report]) -> None:
        by_job = {report.job_id: report for report in reports}
        for held in held_ones:
            earlier = by_job.get(held.claimed.job_id)
            if earlier is not None and self._held.get(held.claimed.job_id) is held:
                held.report = earlier if held.report is None else _merge(earlier, held.report)
                self._reporting[held.claimed.job_id] = held

    async def _report_singly(self, held_ones: Sequence[_Held], reports: Sequence[Report]) -> None:
        for at, report in enumerate(reports):
            try:
                await self._report_one(report)
            except (StoreUnavailable, StoreFull):
                self._put_back(held_ones, reports[at:])
                raise

    async def _report_one(self, report: Report) -> None:
        try:
            await self._work.report([report])
        except (StoreUnavailable, StoreFull):
            raise
        except StoreError as error:  # This one cannot be written; say so in its place.
            note = storable(f"a report could not be stored: {error}", REASON_LENGTH_MAX)
            lines = ((None, "log", note),)
            await self._work.report([Report(job_id=report.job_id, attempt=report.attempt, lines=lines)])

    # --- keeper

    async def keep(self) -> float:
        """Extend all leases when it is time; stop what shall stop."""
        if not self._held:
            return min(self._poll_s, self._lease_s / 3)
        now = self._clock.monotonic()
        if now >= self._extend_at:
            await self._extend(now)
            self._extend_at = now + self._lease_s / 3
        asked = await self._work.asked_to_stop(self._clock.node)
        for (job_id, attempt), reason in asked.items():
            self._stop(job_id, attempt, reason)
        return min(self._poll_s, max(0.05, self._extend_at - self._clock.monotonic()))

    async def _extend(self, sent: float) -> None:
        attempts = {job_id: held.claimed.attempt for job_id, held in self._held.items()}
        still_ours = await self._work.extend(attempts.items(), lease=self._lease)
        for job_id, attempt in attempts.items():
            held = self._held.get(job_id)
            if held is None or held.claimed.attempt != attempt:
                continue
            if job_id in still_ours:
                held.trust_until = sent + self._lease_s - self.margin_s
            elif not held.is_ending:
                self._lose([held], "the store has given them to others")

    def _stop(self, job_id: str, attempt: int, reason: str) -> None:
        if self.crew is not None and job_id in self._held:
            self.crew.stop(job_id, attempt, Cancelled(reason))

    def _lose(self, lost: Sequence[_Held], reason: str) -> None:
        """Give up attempts that we can no longer defend: kill their code, keep nothing of what they said."""
        for held in lost:
            job_id = held.claimed.job_id
            if self.crew is not None:
                self.crew.abandon(job_id, held.claimed.attempt)
            self._held.pop(job_id, None)
            self._reporting.pop(job_id, None)
            self._hush(held)
        emit(AttemptsLost(node=self._clock.node, job_ids=tuple(h.claimed.job_id for h in lost), reason=reason))
        self._note_idle()

    # --- watchman

    async def watch(self) -> float:
        """Stop trusting leases whose time is up, and have the crew look after itself."""
        now = self._clock.monotonic()
        lost = [held for held in self._held.values() if held.trust_until <= now and not held.is_ending]
        if lost:
            self._lose(lost, "their leases could not be extended in time")
        if self.crew is not None:
            self.crew.watch()
        return WATCH_EVERY_S if self._held else self._poll_s

    # --- the end

    def drain(self, reason: str) -> None:
        """Take no more jobs; what has not begun is handed back now."""
        if self._draining is None:
            self._draining = reason
            emit(Draining(node=self._clock.node, running=self.running(), reason=reason))
            if self.hints is not None:
                self.hints.stop()
            if self.crew is not None:
                self.crew.release_waiting(f"handed back: {reason}")

    def hand_back(self) -> None:
        """Hand back everything that still runs, now."""
        if self.crew is not None:
            self.crew.release_all(f"handed back: {self._draining or 'the worker ends'}")

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held, and nothing is on its way to us."""
        return self._idle.is_set()

    async def idle(self) -> None:
        """Wait until nothing is held any more."""
        await self._idle.wait()

    def _note_idle(self) -> None:
        if not self._held and not self._is_claiming:
            self._idle.set()


def _nobody() -> None:
    """Wake nobody: before the loops are there."""


def _merge(earlier: Report | None, later: Report) -> Report:
    if earlier is None:
        return later
    return Report(
        job_id=later.job_id,
        attempt=later.attempt,
        progress=earlier.progress if later.progress is None else later.progress,
        detail=earlier.detail if later.detail is None else later.detail,
        metadata=earlier.metadata if later.metadata is None else later.metadata,
        lines=earlier.lines + later.lines,
    )


def _said(before: Latest | None, report: Report, after: Instant, now: Instant) -> Latest:
    """Add a report to what an attempt has said before. Its number is written into the detail, for the store too."""
    serial = 1 if before is None else before.serial + 1
    detail = report.detail if report.detail is not None or before is None else before.detail
    try:
        fields = {} if detail is None else msgspec.json.decode(detail, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:  # Not of our making. Nobody could read it.
        fields = {}
    return Latest(
        job_id=report.job_id,
        attempt=report.attempt,
        serial=serial,
        at=now,
        progress=report.progress if report.progress is not None or before is None else before.progress,
        detail=msgspec.json.encode({**fields, "serial": serial}).decode(),
        metadata=report.metadata if report.metadata is not None or before is None else before.metadata,
        after=after,
        lines=tuple((at or now, stream, line) for at, stream, line in report.lines),
    )


def _numbered(report: Report, said: Latest | None) -> Report:
    """Have the store know which of its reports an attempt made last."""
    return report if said is None else msgspec.structs.replace(report, detail=said.detail)


def _unwritable(settlement: Settlement, error: StoreError) -> Settlement:
    """Replace what cannot be stored by the reason why."""
    words = {"type": "StoreError", "message": storable(f"the outcome could not be stored: {error}", REASON_LENGTH_MAX)}
    text = msgspec.json.encode(words).decode()
    status = Status.FAILED if settlement.status is Status.COMPLETED else settlement.status
    return msgspec.structs.replace(
        settlement, status=status, outcome="failed", result=None, error=text, reason="its outcome could not be stored"
    )
