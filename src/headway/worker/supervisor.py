"""The supervisor claims jobs, extends their leases and writes their outcomes. No user code runs in its process.

Five loops share the attempts that this worker holds (`held.py`):

    claimer          claims jobs while the child pool has room (`claimer.py`)
    lease extender   extends all leases and learns which jobs to stop (`leases.py`)
    lease watchdog   stops attempts whose leases may have expired; it never touches the store (`leases.py`)
    settler          writes outcomes (`settler.py`)
    reporter         writes progress, metadata and logs (`reporter.py`)

This module wires them together. It is their interface to the child pool and the node.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from headway.core.clock import Clock, Loop
from headway.core.errors import LeaseLost, StoreFull, StoreUnavailable
from headway.core.events import Draining, emit
from headway.core.groups import JobGroup, NewGroup
from headway.core.instants import SECOND, Duration
from headway.core.jobs import Claimed, NewJob, Report
from headway.core.json_values import JsonObject
from headway.core.lifecycle import AttemptOutcome
from headway.core.needs import Offer
from headway.core.nodes import Node
from headway.core.ports import Live, Work
from headway.core.worker_offers import offer_state
from headway.worker.child_pool_port import ChildPoolPort
from headway.worker.claimer import Claimer
from headway.worker.held import QUIET_S, HeldAttempts
from headway.worker.hints import HintSource, HintTaker
from headway.worker.ipc import StoreRequest
from headway.worker.leases import LeaseExtender, LeaseWatchdog
from headway.worker.reporter import Reporter
from headway.worker.settler import Settler

HAND_BACK_S_MAX: Final = 1.0


class Supervisor:
    """Run one worker's side of the store. `Loop`s run its ticks and are woken when there is something to do."""

    def __init__(
        self,
        work: Work,
        child_pool: ChildPoolPort,
        *,
        clock: Clock,
        lease: Duration,
        poll: Duration,
        queues: Sequence[str] = (),
        live: Live | None = None,
        hints: HintSource | None = None,
    ) -> None:
        poll_s = poll / SECOND
        self._work = work
        self._child_pool = child_pool
        self._clock = clock
        self._poll_s = poll_s
        claims, extends, settles, reports, hinted = (asyncio.Event() for _ in range(5))

        def new_hints(claimer: Claimer) -> HintTaker | None:
            if hints is None:
                return None
            return HintTaker(hints, claimer, clock=clock, poll_s=poll_s, wake=hinted.set)

        self._held = held = HeldAttempts(child_pool, clock=clock, lease=lease)
        self.reporter = Reporter(work, held, clock=clock, wake=reports.set, live=live)
        self.settler = Settler(work, held, self.reporter, clock=clock, wake=settles.set)
        self.claimer = Claimer(
            work,
            held,
            self.settler.ended,
            clock=clock,
            poll_s=poll_s,
            wake=claims.set,
            queues=queues,
            new_hints=new_hints,
        )
        self.lease_extender = LeaseExtender(work, held, clock=clock, lease=lease, poll_s=poll_s, wake=extends.set)
        self.lease_watchdog = LeaseWatchdog(held, clock=clock, poll_s=poll_s)
        self.loops = (
            Loop("claimer", self.claimer.tick, clock=clock, rest_s_max=poll_s, woken=claims),
            Loop("lease_extender", self.lease_extender.tick, clock=clock, rest_s_max=poll_s, woken=extends),
            Loop("settler", self.settle, clock=clock, rest_s_max=QUIET_S, woken=settles),
            Loop("reporter", self.reporter.tick, clock=clock, rest_s_max=QUIET_S, woken=reports),
            Loop("lease_watchdog", self.lease_watchdog.tick, clock=clock, rest_s_max=poll_s),
            *(
                [Loop("hinter", taker.tick, clock=clock, rest_s_max=QUIET_S, woken=hinted)]
                if (taker := self.claimer.hints)
                else []
            ),
        )
        child_pool.report_to(self)

    async def settle(self) -> float:
        """Write every known outcome. The end of a job that ran alone makes room for others."""
        was_closed = self.claimer.keeps_others_out
        rest_s = await self.settler.tick()
        if self._held.freed or self._held.has_freed_needs or (was_closed and not self.claimer.keeps_others_out):
            self.claimer.wake()
        return rest_s

    def offer(self, offer: Offer) -> None:
        """Set what jobs with needs may use here; without it, no such job is claimed."""
        self._held.capacity.offer = offer

    # --- state

    @property
    def margin_s(self) -> float:
        """How many seconds before a lease expires this worker stops trusting it."""
        return self._held.margin_s

    @property
    def is_draining(self) -> bool:
        """Whether the worker has stopped claiming jobs."""
        return self._held.draining is not None

    def running(self) -> int:
        """Return how many attempts this worker holds."""
        return len(self._held)

    def state(self) -> JsonObject:
        """Describe this worker for node listings."""
        child_pool = self._child_pool
        return {
            "tasks": sorted(child_pool.tasks),
            "defaults": {name: info.defaults for name, info in child_pool.tasks.items() if info.defaults},
            "queues": list(self.claimer.queues) or ["*"],
            "slots": child_pool.slots(),
            "running": child_pool.busy(),
            "draining": self.is_draining,
            "children": child_pool.count(),
            "places": {kind: self._place(kind, names) for kind, names in child_pool.kinds.items()},
            **(offer_state(capacity.offer, capacity.free()) if (capacity := self._held.capacity).offer else {}),
        }

    def _place(self, kind: str, names: Collection[str]) -> JsonObject:
        """Describe the slots of one kind; a job can only use slots of its own kind."""
        slots = self._child_pool.slots(kind)
        free = max(0, min(slots - self._child_pool.busy(kind), self._child_pool.room(kind)))
        return {"slots": slots, "free": free, "tasks": sorted(names)}

    def hear(self, topic: str) -> None:
        """Handle a notification about a commit by another process."""
        what, _, queue = topic.partition(" ")
        if what in ("ready", "resumed"):
            self.claimer.hear_ready(queue, is_resumed=what == "resumed")
        elif what == "lanes":
            self.claimer.hear_lanes(queue)
        elif topic == "limits":
            self.claimer.hear_limits()
        elif topic == "stop":
            self.lease_extender.wake()
        elif topic == "anything":
            self.claimer.hear_anything()
            if self._held:
                self.lease_extender.wake()

    def meet(self, peers: Collection[Node]) -> None:
        """Update which tasks other workers register, so that their jobs are left for them."""
        self.claimer.meet(peers)

    # --- callbacks of the child pool

    def has_room(self) -> None:
        """Claim more jobs: the child pool has room."""
        self.claimer.wake()

    def ended(self, claimed: Claimed, outcome: AttemptOutcome) -> None:
        """Queue the outcome of an ended attempt for writing."""
        self.settler.ended(claimed, outcome)

    def reported(self, reports: Sequence[Report]) -> None:
        """Queue reports of running attempts for writing."""
        self.reporter.reported(reports)

    async def answer(self, ask: StoreRequest) -> str:
        """Serve a store request of a running attempt; retry while the lease is trusted and the store is down."""
        wake = asyncio.Event()
        while True:
            if self._held.find_trusted(ask.job_id, ask.attempt) is None:
                raise LeaseLost(f"attempt {ask.attempt} of {ask.job_id} is over")
            try:
                return await self._answer(ask)
            except (StoreUnavailable, StoreFull):
                await self._clock.rest(self._poll_s / 4, wake)

    async def _answer(self, ask: StoreRequest) -> str:
        if ask.question == "step":
            name, result = msgspec.json.decode(ask.body, type=tuple[str, str])
            await self._work.keep_step(ask.job_id, ask.attempt, name, result)
            return ""
        if ask.question in ("open_batch", "read_batch", "close_batch"):
            return msgspec.json.encode(await self._group(ask)).decode()
        jobs = msgspec.json.decode(ask.body, type=list[NewJob])
        made = [msgspec.structs.replace(job, parent=ask.job_id) for job in jobs]
        rows = await self._work.enqueue_from(ask.job_id, ask.attempt, made)
        return msgspec.json.encode([row.id for row in rows]).decode()

    async def _group(self, ask: StoreRequest) -> JobGroup:
        if ask.question == "open_batch":
            new, is_own = msgspec.json.decode(ask.body, type=tuple[NewGroup, bool])
            opened = msgspec.structs.replace(new, opened_by=ask.job_id)
            return await self._work.open_group_from(ask.job_id, ask.attempt, opened, own=is_own)
        group_id = msgspec.json.decode(ask.body, type=str)
        if ask.question == "close_batch":
            return await self._work.close_group_from(ask.job_id, ask.attempt, group_id)
        return await self._work.read_group_from(ask.job_id, ask.attempt, group_id)

    # --- shutdown

    def drain(self, reason: str) -> None:
        """Start a graceful shutdown: claim no more jobs and hand back those that have not begun."""
        if not self.is_draining:
            self._held.draining = reason
            emit(Draining(node=self._clock.node, running=self.running(), reason=reason))
            if self.claimer.hints is not None:
                self.claimer.hints.stop()
            self._child_pool.release_waiting(f"handed back: {reason}")

    def hand_back(self) -> None:
        """Hand back every running job now."""
        self._child_pool.release_all(f"handed back: {self._held.draining or 'the worker ends'}")

    @property
    def is_idle(self) -> bool:
        """Whether no attempt is held and no claim is in flight."""
        return self._held.is_idle

    async def idle(self) -> None:
        """Wait until no attempt is held."""
        await self._held.idle()
