"""One process of Headway (a node): the loops of its roles, and the order in which they start and stop.

    heartbeat     renews the node's row, reads the store's time and the other nodes
    shards        holds leases on shards of schedules        (role scheduler)
    scheduler     decides due instants                       (with a shard's lease, or with a lock per instant)
    housekeeping  holds the lease on the housekeeping        (any role: every node can do it)
    promoter      makes due jobs ready                       (with the housekeeping lease)
    janitor       expires, ends, revives, prunes             (with the housekeeping lease)
    lane_keeper   lets jobs go on that wait at a limit       (with the housekeeping lease)
    needs_keeper  parks what no worker can run               (with the housekeeping lease)
    group_keeper  counts, closes and finishes batches        (with the housekeeping lease)
    claimer · lease_extender · settler · reporter · lease_watchdog    (role worker, see worker/supervisor.py)
    declarations  writes limits of the app that wait for older nodes to end
    announcer     sends hints about ready jobs               (with a transport)
    hinter        receives those hints                       (role worker, with a transport)

They start in any order, since each asks the store what it may do. To stop, a node takes no more jobs and decides no
more, lets running jobs end within the grace period, hands the rest back, releases its leases and signs off. So after a
clean stop no other node has to wait; a crash costs the duration of one lease.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from headway.coordination.admission import AdmittedLeases
from headway.coordination.elector import Elector
from headway.coordination.heartbeat import Heartbeat
from headway.core.clock import RETRY_REST_S_MAX, Clock, Loop
from headway.core.errors import StoreError
from headway.core.events import subscribed
from headway.core.instants import SECOND
from headway.core.json_values import JsonObject
from headway.core.nodes import Node
from headway.core.ports import Housekeeping, Leases, NodeRegistry, SchedulerLedger, WakeUps
from headway.core.process_metrics import ProcessMetrics
from headway.core.settings import Settings
from headway.core.upkeep_ports import AuditLogPruning, NeedsUpkeep, Upkeep
from headway.queue.announcer import Dispatch
from headway.queue.janitor import Janitor
from headway.queue.keeper import Keeper
from headway.queue.needs_keeper import NeedsKeeper
from headway.queue.promoter import Promoter
from headway.scheduling.scheduler import Fencing, LeaderFencing, LockFencing, Scheduler
from headway.wiring.declarations import DeclarationSync
from headway.worker.supervisor import HAND_BACK_S_MAX, Supervisor

SCHEDULER: Final = "scheduler"
WORKER: Final = "worker"
API: Final = "api"
HOUSEKEEPING: Final = "housekeeping"
GOODBYE_S_MAX: Final = 2.0
TRANSPORT_GOODBYE_S_MAX: Final = 0.3
WORKER_GOODBYE_S_MAX: Final = 0.7  # A stopping worker must be gone two seconds after its grace period.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """Everything that a node needs from outside."""

    ledger: SchedulerLedger
    housekeeping: Housekeeping
    leases: Leases
    nodes: NodeRegistry
    watch: Callable[[Callable[[str], None]], Awaitable[WakeUps]]
    admission: AdmittedLeases | None = None  # The leases again, if a coordination engine grants them.
    audit_log: AuditLogPruning | None = None  # Set if its size must be limited.
    lanes: Upkeep | None = None
    groups: Upkeep | None = None
    needs: NeedsUpkeep | None = None
    dispatch: Dispatch | None = None  # Carries hints about ready jobs, if the store does not do it alone.


class EngineNode:
    """One process in one role or several. Its id is `clock.node`, new with every start."""

    def __init__(
        self,
        world: NodePorts,
        settings: Settings,
        clock: Clock,
        *,
        version: str = "",
        schedules: bool = True,
        supervisor: Supervisor | None = None,
        is_api: bool = False,
        declared: DeclarationSync | None = None,
    ) -> None:
        self._world = world
        self._settings = settings
        self._clock = clock
        self._supervisor = supervisor
        self._schedules = schedules
        self._declared = declared
        self.live_state: Callable[[], JsonObject | None] = (
            supervisor.reporter.live_state if supervisor else lambda: None
        )
        self._tally = ProcessMetrics(clock)
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._leaving = asyncio.Event()  # The grace period starts here; a drain alone lasts as long as the jobs do.
        self._grace_s = settings.grace / SECOND
        self._shards = self._elector(lambda: self._scheduler_loop.idle_s())
        self._housekeeping = self._elector(
            lambda: max(loop.idle_s() for loop in (self._promoter_loop, self._janitor_loop, *self._keeper_loops))
        )
        self._scheduler_loop = self._scheduler()
        self._promoter_loop = self._promoter()
        self._janitor_loop = self._janitor()
        self._keeper_loops = self._keepers(world)
        self._declaring_loops = () if declared is None or not declared.is_waiting else (self._declaring(declared),)
        self._shards_loop = Loop("shards", self._shards.tick, clock=clock, rest_s_max=self._rest_s_max)
        self._house_loop = Loop(HOUSEKEEPING, self._housekeeping.tick, clock=clock, rest_s_max=self._rest_s_max)
        roles = (
            *((SCHEDULER,) if schedules else ()),
            *((WORKER,) if supervisor else ()),
            *((API,) if is_api else ()),
        )
        self._heartbeat = Heartbeat(
            world.nodes,
            lambda: world.watch(self._hear),
            Node(id=clock.node, name=settings.node, roles=roles, version=version),
            clock=clock,
            lease=settings.leader_lease,
            state=self._state,
            on_peers=self._meet,
            on_asked=self._asked,
        )
        self._heartbeat_loop = Loop("heartbeat", self._heartbeat.tick, clock=clock, rest_s_max=self._rest_s_max)
        self._meet([])

    async def run(self) -> None:
        """Work until `stop`. Any error except an unavailable store ends the node, after it has released its leases."""
        with subscribed(self._tally):
            if self._supervisor is not None:
                self._supervisor.reporter.begin_live()
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = {loop: group.create_task(self._run(loop), name=loop.name) for loop in self.loops}
                    await self._stopping.wait()
                    if self._supervisor is not None:
                        await self._stop_deciding([tasks[loop] for loop in self._deciding_loops()])
                        await self._drain(self._supervisor)
                    self._stop_loops()
            finally:
                await self._say_goodbye()
                if self._supervisor is not None:
                    await self._supervisor.reporter.close()
                if self._world.admission is not None:
                    await self._world.admission.close()
                if self._world.dispatch is not None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(TRANSPORT_GOODBYE_S_MAX):
                            await self._world.dispatch.transport.close()

    async def _run(self, loop: Loop) -> None:
        """Run a loop. If one fails, the others are cancelled; a loop that swallows its cancellation must still end."""
        try:
            await loop.run()
        except BaseException:
            self._stop_loops()
            raise

    def _stop_loops(self) -> None:
        for loop in self.loops:
            loop.stop()

    def stop(self) -> None:
        """Stop gracefully: running jobs have the grace period to end."""
        self._leaving.set()
        self._wind_down()

    def _wind_down(self) -> None:
        self._stopping.set()
        if self._supervisor is not None:
            self._supervisor.drain("the worker ends")

    def hurry(self) -> None:
        """Stop now: running jobs are handed back at once."""
        self._hurrying.set()
        self.stop()

    def holds(self) -> dict[str, int]:
        """Return the roles that this node holds now, with their tokens."""
        held = {**self._shards.held(), **self._housekeeping.held()}
        return {role: lease.token for role, lease in held.items()}

    async def _stop_deciding(self, deciding: list[asyncio.Task[None]]) -> None:
        """Release the schedules before waiting for the jobs."""
        for loop in self._deciding_loops():
            loop.stop()
        if deciding:
            with contextlib.suppress(TimeoutError, StoreError):
                async with asyncio.timeout(WORKER_GOODBYE_S_MAX):
                    await asyncio.wait(deciding)
                    await self._shards.resign()

    async def _drain(self, supervisor: Supervisor) -> None:
        """Let running jobs end, within the grace period once it has started; then, or when hurried, hand them back."""
        await _first_of(supervisor.idle(), self._hurrying.wait(), self._grace_over())
        with contextlib.suppress(TimeoutError, StoreError):  # If it is unavailable, the leases expire by themselves.
            async with asyncio.timeout(HAND_BACK_S_MAX):
                if not supervisor.is_idle:
                    supervisor.hand_back()
                    await supervisor.idle()
                await supervisor.claimer.hand_back_unknown()

    async def _grace_over(self) -> None:
        await self._leaving.wait()
        await self._clock.rest(self._grace_s, asyncio.Event())

    def _asked(self, what: str) -> None:
        """Handle a request of an operator. A drain lasts as long as the jobs do, unless a signal follows."""
        if what == "drain":
            self._wind_down()

    @property
    def _rest_s_max(self) -> float:
        return max(self._settings.leader_lease, self._settings.poll) / SECOND

    def _deciding_loops(self) -> tuple[Loop, ...]:
        return (self._shards_loop, self._scheduler_loop) if self._schedules else ()

    @property
    def loops(self) -> tuple[Loop, ...]:
        """All loops of this node, also for health checks."""
        return (
            self._heartbeat_loop,
            self._house_loop,
            self._promoter_loop,
            self._janitor_loop,
            *self._keeper_loops,
            *self._declaring_loops,
            *self._deciding_loops(),
            *(self._supervisor.loops if self._supervisor else ()),
            *((self.dispatch.loop,) if self.dispatch else ()),
        )

    @property
    def dispatch(self) -> Dispatch | None:
        """The announcer of ready jobs, for other code in this process that commits some."""
        return self._world.dispatch

    def _elector(self, silence_s: Callable[[], float]) -> Elector:
        return Elector(
            self._world.leases,
            clock=self._clock,
            node_id=self._clock.node,
            node_name=self._settings.node,
            duration=self._settings.leader_lease,
            silence_s=silence_s,
            on_change=self._wake_workers,
        )

    def _scheduler(self) -> Loop:
        scheduler = Scheduler(self._world.ledger, self._fencing(), clock=self._clock, poll=self._settings.poll)
        return Loop("scheduler", scheduler.tick, clock=self._clock, rest_s_max=self._settings.poll / SECOND)

    def _fencing(self) -> Fencing:
        if self._settings.coordination_mode == "lock":
            return LockFencing(
                self._world.leases,
                node_id=self._clock.node,
                node_name=self._settings.node,
                duration=self._settings.leader_lease,
            )
        return LeaderFencing(self._settings.scheduler_shards, self._shards.held, self._clock.node, self._shards.lose)

    def _promoter(self) -> Loop:
        poll = self._settings.poll
        promoter = Promoter(self._world.housekeeping, clock=self._clock, is_mine=self._keeps_house, poll=poll)
        return Loop("promoter", promoter.tick, clock=self._clock, rest_s_max=poll / SECOND)

    def _janitor(self) -> Loop:
        janitor = Janitor(
            self._world.housekeeping,
            self._world.ledger,
            clock=self._clock,
            is_mine=self._keeps_house,
            poll=self._settings.poll,
            retention=self._settings.retention,
            audit_log=self._world.audit_log,
            audit_retention=self._settings.audit_retention,
        )
        return Loop("janitor", janitor.tick, clock=self._clock, rest_s_max=self._settings.poll / SECOND)

    def _keepers(self, world: NodePorts) -> tuple[Loop, ...]:
        """Return the loops that keep lanes, groups and needs, as far as the store has them."""
        poll, mine = self._settings.poll, self._keeps_house
        kept = {"lane_keeper": world.lanes, "group_keeper": world.groups}
        ticks = {name: Keeper(upkeep, is_mine=mine, poll=poll).tick for name, upkeep in kept.items() if upkeep}
        if world.needs is not None:
            ticks["needs_keeper"] = NeedsKeeper(world.needs, world.nodes, clock=self._clock, is_mine=mine).tick
        return tuple(Loop(name, tick, clock=self._clock, rest_s_max=poll / SECOND) for name, tick in ticks.items())

    def _declaring(self, declared: DeclarationSync) -> Loop:
        return Loop("declarations", declared.tick, clock=self._clock, rest_s_max=RETRY_REST_S_MAX)

    def _keeps_house(self) -> bool:
        return HOUSEKEEPING in self._housekeeping.held()

    def _wake_workers(self) -> None:
        self._scheduler_loop.wake()
        self._promoter_loop.wake()

    def _hear(self, topic: str) -> None:
        """Wake the loops that could find work after this commit; `anything` means all of them."""
        if self._supervisor is not None:
            self._supervisor.hear(topic)
        if topic == f"beat {self._clock.node}":
            self._heartbeat_loop.wake()
        if topic in ("schedules", "anything"):
            self._scheduler_loop.wake()
        if topic in ("waiting", "anything"):
            self._promoter_loop.wake()
        for elector, loop in ((self._shards, self._shards_loop), (self._housekeeping, self._house_loop)):
            # A leader's renewal must not wake it: it would wake itself for ever.
            if topic in ("leases", "anything") and elector.is_waiting():
                loop.wake()

    def _meet(self, peers: list[Node]) -> None:
        """Take a fair share of the shards: the same arithmetic on every node, by the order of their ids."""
        self._housekeeping.seek([HOUSEKEEPING], 1)
        if self._supervisor is not None:
            self._supervisor.meet(peers)
        if self._settings.coordination_mode == "lock" or not self._schedules:
            return
        shards = self._settings.scheduler_shards
        ids = sorted({peer.id for peer in peers if self._shares_work(peer)} | {self._clock.node})
        share, rest = divmod(shards, len(ids))
        mine = share + (ids.index(self._clock.node) < rest)
        # With fewer shards than nodes every node may try, so that no shard stays free.
        if self._shards.seek([LeaderFencing.role(shard) for shard in range(shards)], max(mine, 1)):
            self._shards_loop.wake()

    def _shares_work(self, peer: Node) -> bool:
        """A scheduler whose loop is stuck has stepped down despite its heartbeat; others take its shards."""
        said = peer.state.get("loops", {}).get("scheduler")
        silence_s = said if isinstance(said, int | float) else 0.0
        return SCHEDULER in peer.roles and silence_s <= self._settings.leader_lease / SECOND

    def _state(self) -> JsonObject:
        return {
            "loops": {loop.name: round(loop.idle_s(), 3) for loop in self.loops},
            "holds": self.holds(),
            "wake_ups": self._heartbeat.wake_mode,
            "skew_s": round(self._clock.skew_s(), 3),
            "mode": self._settings.coordination_mode,
            "shards": self._settings.scheduler_shards,
            **({} if self._world.admission is None else {"coordination": self._world.admission.state}),
            **({} if self._world.dispatch is None else {"transport": self._world.dispatch.state()}),
            **({} if (live := self.live_state()) is None else {"live": live}),
            **({"attention": list(self._declared.attention)} if self._declared and self._declared.attention else {}),
            "tally": self._tally.cells(),
            **({} if self._supervisor is None else {"worker": self._supervisor.state()}),
        }

    async def _say_goodbye(self) -> None:
        """Release our leases. If the store does not answer, they expire by themselves."""
        try:
            async with asyncio.timeout(GOODBYE_S_MAX if self._supervisor is None else WORKER_GOODBYE_S_MAX):
                await self._shards.resign()
                await self._housekeeping.resign()
                await self._heartbeat.leave()
        except (TimeoutError, StoreError):
            pass


async def _first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of several events is set."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
