"""The claimer claims jobs while the child pool has room: one queue after another, in batches as large as the room."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, TypeVar

from headway.core.clock import Clock
from headway.core.errors import StoreFull, StoreUnavailable
from headway.core.events import AttemptsLost, Timed, emit
from headway.core.instants import MINUTE, SECOND
from headway.core.jobs import Claimed
from headway.core.lifecycle import AttemptOutcome, Parked, Released
from headway.core.nodes import Node
from headway.core.ports import Claims
from headway.core.validation import REASON_LENGTH_MAX, storable
from headway.core.worker_offers import offer_of, offers_of
from headway.worker.child_pool_port import ChildPoolPort
from headway.worker.class_claims import ClassClaims
from headway.worker.held import HeldAttempts
from headway.worker.hints import HintTaker
from headway.worker.ipc import FRAME_BYTES_MAX
from headway.worker.lane_accounts import LaneAccounts
from headway.worker.lane_book import LaneBook
from headway.worker.suspects import Rival, Suspects

CLAIM_MAX: Final = 2_000
EMPTY_MAX: Final = 100  # Claims in a row that only find lanes without jobs.
UNPARK_EVERY_S: Final = 5.0
QUEUE_USUAL: Final = "default"
SEEN_MAX: Final = 1_000
PROBE_EVERY_S: Final = 0.25
PROBE_SHARE: Final = 20.0
RIVAL_SILENT_MAX: Final = 10 * SECOND  # Workers that were silent for longer are not expected to make room.


T = TypeVar("T")


class Claimer:
    """Claim as many jobs as the child pool has room for."""

    def __init__(
        self,
        work: Claims,
        held: HeldAttempts,
        ended: Callable[[Claimed, AttemptOutcome], None],
        *,
        clock: Clock,
        poll_s: float,
        wake: Callable[[], None],
        queues: Sequence[str] = (),
        new_hints: "Callable[[Claimer], HintTaker | None]" = lambda _: None,
    ) -> None:
        self._work = work
        self._held = held
        self._ended = ended
        self._clock = clock
        self._lease = held.lease
        self._poll_s = poll_s
        self.queues = tuple(queues)
        self.wake = wake
        self._ready: deque[str] = deque(queues)  # The next queue to claim from is in front.
        self._mixes: dict[str, frozenset[str]] = {}  # The kinds of the last jobs of a queue.
        self._probe_at: dict[str, float] = {}
        self._heard: set[str] = set()  # Queues that got a job while they were searched.
        self._queues_seen_at = -1e9
        self._foreign: frozenset[str] = frozenset()  # Tasks that only other workers register.
        self._is_alike = True  # Whether all workers of our queues register the same tasks.
        self._seen: set[str] = set(queues) or {QUEUE_USUAL}  # The queues to claim from, as far as they are known.
        self._looked: set[str] = set()  # Queues that were searched with no notification in the meantime.
        self._lanes = LaneBook(clock)
        self._accounts = LaneAccounts(work, held, self._lanes)
        self._classes = ClassClaims(work, held, self._lanes, clock=clock, poll_s=poll_s, queues=self.queues)
        self._unpark_at = 0.0
        self._compared_at = -1e9  # When held attempts were last compared with the store.
        self._suspects = Suspects(work, held, clock=clock, lease=held.lease, poll_s=poll_s, queues=self.queues)
        self.hints = new_hints(self)

    @property
    def keeps_others_out(self) -> bool:
        """Whether nothing is claimed now, because a job must run alone."""
        return self._suspects.keep_others_out()

    # --- notifications

    def hear_ready(self, queue: str, *, is_resumed: bool) -> None:
        """Handle the notification that a queue got a job or was resumed."""
        is_ours = not self.queues or queue in self.queues
        if is_ours and (is_resumed or not self._is_hinted(queue)):
            self._see(queue)
            self.wake()

    def hear_lanes(self, queue: str) -> None:
        """Handle the notification that a tenant or a limit of a queue has jobs that may start."""
        if not self.queues or queue in self.queues:
            self._lanes.add(queue)
            self._classes.hear(queue)
            self._see(queue)
            self.wake()

    def hear_limits(self) -> None:
        """Handle the notification that limits have changed."""
        self._queues_seen_at = -1e9
        self.wake()

    def hear_anything(self) -> None:
        """Handle a notification about a commit of any kind."""
        if self.hints is None or not self.hints.is_working or not self._is_alike:
            self._queues_seen_at = -1e9
            self._classes.hear()
            self.wake()

    def _see(self, queue: str) -> None:
        """Remember a queue that may have jobs."""
        self._heard.add(queue)
        if queue not in self._ready:
            self._ready.append(queue)
        if len(self._seen) < SEEN_MAX:
            self._seen.add(queue)

    def meet(self, peers: Collection[Node]) -> None:
        """Update which tasks other workers register, so that their jobs are left for them."""
        child_pool = self._held.child_pool
        if not child_pool.tasks:
            return
        newest = max((peer.beat_at for peer in peers if peer.beat_at <= self._clock.now() + MINUTE), default=0)
        known: set[str] = set()
        rivals: dict[str, Rival] = {}
        is_alike = True
        for peer in peers:
            worker = peer.state.get("worker")
            if peer.id != self._clock.node and isinstance(worker, dict):
                tasks = _names(worker.get("tasks"))
                known.update(tasks)
                if self._shares_queues(_names(worker.get("queues"))):
                    is_alike &= tasks == child_pool.tasks.keys()
                    if peer.beat_at >= newest - RIVAL_SILENT_MAX and not worker.get("draining"):
                        rivals[peer.id] = Rival(tasks, offer_of(worker))
        self._foreign = frozenset(known - child_pool.tasks.keys())
        self._is_alike = is_alike
        self._suspects.peers = rivals
        able = [peer for peer in peers if peer.id in rivals]
        self._classes.peers = offers_of(able) if self._classes.is_on else ()

    def _shares_queues(self, queues: Collection[str]) -> bool:
        return not self.queues or "*" in queues or not set(queues).isdisjoint(self.queues)

    # --- hints of a transport

    def wants_hints(self) -> frozenset[str]:
        """Return the queues whose jobs fit now, of whatever kind their last jobs were."""
        child_pool = self._held.child_pool
        if not child_pool.tasks or self._held.draining is not None:
            return frozenset()
        full = {kind for kind in child_pool.kinds if child_pool.room(kind) <= 0}
        if not full:
            return frozenset(self._seen)
        return frozenset(queue for queue in self._seen if not self._mixes.get(queue, child_pool.kinds.keys()) & full)

    def take_hint(self, queues: Collection[str]) -> None:
        """Look into these queues now; into all queues when hints have stopped coming."""
        if not queues:
            self._queues_seen_at = -1e9
        for queue in queues:
            self._see(queue)
        self.wake()

    def _is_hinted(self, queue: str) -> bool:
        """Return whether hints announce each job of this queue to one worker, so the others need not look.

        This holds only while all workers register the same tasks: a hint may go to a worker that lacks the task.
        """
        return self._is_alike and self.hints is not None and self.hints.brings(queue)

    # --- claiming

    async def tick(self) -> float:
        """Claim as many jobs as the child pool has room for, then charge tenants: no job waits for that."""
        for queue in await self._accounts.reopen():
            if not self.queues or queue in self.queues:
                self._lanes.add(queue)
                self._classes.hear(queue)
                self._see(queue)
        rest_s = await self._claim_what_fits(self._held.child_pool)
        await self._accounts.charge()
        return rest_s

    async def _claim_what_fits(self, child_pool: ChildPoolPort) -> float:
        if not child_pool.tasks or self._held.draining is not None:
            return self._poll_s
        self._looked.clear()
        with self._held.claiming():
            rest_s = await self._claim(child_pool)
        if self.hints is not None:
            self.hints.looked_into(self._looked)
        return min(rest_s, self._until_look_s(), self._lanes.rest_s())

    async def _claim(self, child_pool: ChildPoolPort) -> float:
        """Claim from known queues first, so that their jobs do not wait for the search for other queues."""
        await self.hand_back_unknown()
        await self._claim_suspects(child_pool)
        self._held.has_freed_needs = False
        for queue in await self._classes.find():
            self._see(queue)
        rest_s = self._poll_s if self.keeps_others_out else await self._fill(child_pool)
        await self._suspects.look(child_pool.tasks)
        await self._claim_suspects(child_pool)
        await self._unpark(child_pool)
        if self.keeps_others_out:
            return self._poll_s
        return min(rest_s, await self._fill(child_pool)) if await self._finds_queues() else rest_s

    async def hand_back_unknown(self) -> None:
        """Hand back attempts that the store lists as ours and we do not hold, instead of letting their leases expire.

        A claim whose answer was lost may be committed later. So this is repeated for as long as such a lease would
        last.
        """
        now, lease_s = self._clock.monotonic(), self._lease / SECOND
        if now > self._held.doubted_at + lease_s + self._poll_s:
            self._held.given_up.clear()
            return
        if self._compared_at > self._held.doubted_at and now - self._compared_at < lease_s / 6:
            return
        known = self._held.attempts()  # Read before the query: an attempt that ends meanwhile is not unknown.
        returned = await self._work.hand_back_unknown(self._clock.node, known=known, given_up=self._held.given_up)
        self._compared_at = now
        if returned:
            emit(
                AttemptsLost(node=self._clock.node, job_ids=tuple(returned), reason="the answer to the claim was lost")
            )

    async def _claim_suspects(self, child_pool: ChildPoolPort) -> None:
        while True:
            tasks = [name for kind, names in child_pool.kinds.items() if child_pool.room(kind) > 0 for name in names]
            taken = await self._suspects.claim(tasks)
            if taken is None:
                break
            claimed, sent = taken
            await self._take(child_pool, [claimed], sent)

    async def _fill(self, child_pool: ChildPoolPort) -> float:
        room = {kind: min(child_pool.room(kind), CLAIM_MAX) for kind in child_pool.kinds}
        may_be_more = False
        for _ in range(len(self._ready)):
            if max(room.values()) <= 0 or self._held.draining is not None:
                break
            may_be_more |= await self._claim_from(child_pool, self._ready[0], room)
        return 0.0 if may_be_more and max(room.values()) > 0 else self._poll_s

    async def _unpark(self, child_pool: ChildPoolPort) -> None:
        """Retry parked jobs whose task was unknown.

        On the first tick retry all parked jobs: this worker may have newer code.
        """
        now = self._clock.monotonic()
        if now >= self._unpark_at:
            await self._work.unpark(child_pool.tasks, "unknown task" if self._unpark_at else "")
            self._unpark_at = now + UNPARK_EVERY_S

    def _until_look_s(self) -> float:
        """Return the seconds until the next search for queues; earlier wake-ups do not postpone it."""
        return max(0.001, self._queues_seen_at + self._poll_s - self._clock.monotonic())

    async def _finds_queues(self) -> bool:
        """Search from time to time for unknown queues, and for queues with lanes; return whether there are any.

        A notification about lanes may be lost, or be older than this worker.
        """
        now = self._clock.monotonic()
        if now - self._queues_seen_at < self._poll_s:
            return False
        self._queues_seen_at = now
        known, lanes = set(self._ready), len(self._lanes)
        for queue, has_lanes in (await self._work.ready_queues()).items():
            if self.queues and queue not in self.queues:
                continue
            self._see(queue)
            if has_lanes:
                self._lanes.add(queue)
        return not known.issuperset(self._ready) or len(self._lanes) > lanes

    async def _claim_from(self, child_pool: ChildPoolPort, queue: str, room: dict[str, int]) -> bool:
        """Claim one queue's share of the room; return whether it may have more jobs."""
        self._heard.discard(queue)
        jobs, may_be_more = await self._claim_mixed(child_pool, queue, room)
        if queue not in self._heard and (jobs or not may_be_more):
            self._looked.add(queue)
        if queue in self._ready:
            self._ready.remove(queue)
            if may_be_more or self.queues or queue in self._heard:  # It goes to the back of the queue.
                self._ready.append(queue)
        return may_be_more and bool(jobs)

    async def _claim_mixed(self, child_pool: ChildPoolPort, queue: str, room: dict[str, int]) -> tuple[int, bool]:
        """Claim the next jobs of the kinds that came last; return how many, and whether there may be more.

        While one of these kinds has no room, the others are claimed alone. Such a claim reads past every unwanted job,
        so it happens rarely, and the more rarely the longer it takes.
        """
        mix = self._mixes.get(queue) or frozenset(room)
        full = {kind for kind in room if room[kind] <= 0}
        skip = set(self._foreign)
        started = self._clock.monotonic()
        if mix & full:
            if started < self._probe_at.get(queue, 0.0):
                return 0, True
            skip.update(*(child_pool.kinds[kind] for kind in full))
        limit = -(-min(room[kind] for kind in (mix - full or room.keys() - full)) // max(1, len(self._ready)))
        try:
            jobs, others = await self._claim_ready(queue, limit, skip)
        except StoreUnavailable:
            self._held.doubt()
            raise
        took_s = self._clock.monotonic() - started
        emit(Timed(node=self._clock.node, what="claim", lots=((took_s, 1),)))
        if mix & full:
            # A store that was slow once, or a process that stood still, must not delay these jobs for long.
            self._probe_at[queue] = started + max(PROBE_EVERY_S, min(PROBE_SHARE * took_s, self._poll_s))
        kinds = [child_pool.tasks[job.task].isolation for job in jobs if job.task in child_pool.tasks]
        for kind in kinds:
            room[kind] -= 1
        if kinds and not mix & full:
            self._mixes[queue] = frozenset(kinds)
        if jobs:
            await self._take(child_pool, jobs, started)
        return len(jobs), len(jobs) == limit or bool(mix & full) or others

    async def _claim_ready(self, queue: str, limit: int, skip: Collection[str]) -> tuple[Sequence[Claimed], bool]:
        """Claim jobs of a queue; return them, and whether there may be more that the room does not show."""
        if not self._classes.is_on:
            return await self._claim_usual(queue, limit, skip)
        return await self._classes.claim(queue, limit, skip, lambda room: self._claim_usual(queue, room, skip))

    async def _claim_usual(self, queue: str, limit: int, skip: Collection[str]) -> tuple[Sequence[Claimed], bool]:
        """Claim jobs without needs, by lanes if the queue has any; return them, and whether lanes may have more."""
        node, lease = self._clock.node, self._lease
        if queue not in self._lanes:
            return await self._work.claim(queue, node=node, lease=lease, limit=limit, skip=skip), False
        for _ in range(EMPTY_MAX):  # Lanes whose jobs were all cancelled must not delay others by a poll for each.
            past = self._lanes.past(queue)
            claim = await self._work.claim_lanes(queue, node=node, lease=lease, limit=limit, skip=skip, past=past)
            self._lanes.note(queue, claim, self._poll_s)
            self._classes.heard_of(queue, claim.classes)
            if claim.jobs or not (claim.has_more and claim.has_closed):
                break
        return claim.jobs, claim.has_more

    async def _take(self, child_pool: ChildPoolPort, jobs: Sequence[Claimed], sent: float) -> None:
        fit: list[Claimed] = []
        for claimed in jobs:
            self._held.add(claimed, sent)
            if claimed.task in child_pool.tasks and claimed.unreadable is None:
                fit.append(claimed)
            else:
                self._ended(claimed, self._unrunnable(claimed))
        for part in await self._parts(fit):
            again = [claimed.job_id for claimed in part if claimed.attempt > 1]
            kept = await self._patiently(self._work.steps, again) if again else None
            if self._held.draining is not None:
                for claimed in part:
                    self._ended(claimed, Released(self._held.draining))
            else:
                child_pool.start(self._trusted(part), kept)

    async def _parts(self, jobs: list[Claimed]) -> list[list[Claimed]]:
        """Divide jobs so that the steps stored by earlier attempts fit into memory; park a job that never fits."""
        again = [claimed.job_id for claimed in jobs if claimed.attempt > 1]
        sizes = await self._patiently(self._work.step_sizes, again) if again else {}
        if sum(sizes.values()) <= FRAME_BYTES_MAX:
            return [jobs] if jobs else []
        parts: list[list[Claimed]] = [[]]
        total = 0
        for claimed in jobs:
            size = sizes.get(claimed.job_id, 0)
            if size > FRAME_BYTES_MAX:
                words = (
                    f"its finished steps have {size:,} bytes, at most {FRAME_BYTES_MAX:,} can be handed to a process"
                )
                self._ended(claimed, Parked(words, "too large"))
                continue
            if total + size > FRAME_BYTES_MAX:
                parts.append([])
                total = 0
            total += size
            parts[-1].append(claimed)
        return [part for part in parts if part]

    def _trusted(self, jobs: Sequence[Claimed]) -> list[Claimed]:
        """Drop jobs whose leases may have expired while this process stood still or waited for the store."""
        now = self._clock.monotonic()
        ours = [held for job in jobs if (held := self._held.find(job.job_id, job.attempt)) is not None]
        late = [held for held in ours if held.trust_until <= now]
        if late:
            self._held.lose(late, "their leases ran out before they began")
        return [held.claimed for held in ours if held.trust_until > now]

    async def _patiently(self, read: Callable[[list[str]], Awaitable[T]], job_ids: list[str]) -> T:
        """Read what earlier attempts have stored, for as long as it takes: without it their steps would be repeated."""
        wake = asyncio.Event()
        while True:
            try:
                return await read(job_ids)
            except (StoreUnavailable, StoreFull):
                await self._clock.rest(self._poll_s, wake)

    def _unrunnable(self, claimed: Claimed) -> AttemptOutcome:
        if claimed.unreadable is not None:
            return Parked(storable(claimed.unreadable, REASON_LENGTH_MAX), "unreadable")
        if claimed.task in self._foreign:
            return Released("handed back: another worker knows the task")
        return Parked(f"no worker here knows the task {claimed.task!r}")


def _names(value: object) -> frozenset[str]:
    """Read a list of names from another node's state; ignore malformed values."""
    return frozenset(name for name in value if isinstance(name, str)) if isinstance(value, list) else frozenset()
