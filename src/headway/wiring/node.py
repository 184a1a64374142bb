"""One process of Headway: the loops of its roles, and the order in which they begin and end.

    heartbeat     says that the node lives, hears the store's time, learns who else is there
    shards        holds leases on shards of schedules        (role scheduler)
    scheduler     decides due instants                       (with a shard's lease, or with a lock per instant)
    housekeeping  holds the lease on the housekeeping        (any role: whoever lives keeps house)
    promoter      makes due jobs ready                       (with the housekeeping lease)
    janitor       expires, ends, revives, prunes             (with the housekeeping lease)
    claimer · keeper · settler · reporter · watchman         (role worker, see worker/supervisor.py)
    announcer     tells a transport of ready jobs            (with a transport)
    hinter        takes its hints                            (role worker, with a transport)

They start in any order, since each asks the store what it may do. Stop: take no more jobs and decide no more, let what
runs end within the grace, hand the rest back, hand the leases over, say goodbye; so a clean stop makes nobody
wait, and a crash costs one lease.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway.coordination.admission import AdmittedLeases
from headway.coordination.elector import Elector
from headway.coordination.heartbeat import Heartbeat
from headway.core.clock import Clock, Loop
from headway.core.errors import StoreError
from headway.core.events import subscribed
from headway.core.instants import SECOND
from headway.core.json_values import JsonObject
from headway.core.nodes import Node
from headway.core.ports import AuditLog, Housekeeping, Leases, Ledger, Nodes, WakeUps
from headway.core.process_metrics import ProcessMetrics
from headway.core.settings import Settings
from headway.queue.announcer import Dispatch
from headway.queue.janitor import Janitor
from headway.queue.promoter import Promoter
from headway.scheduling.scheduler import Fencing, LeaderFencing, LockFencing, Scheduler
from headway.worker.supervisor import HAND_BACK_S_MAX, Supervisor

SCHEDULER: Final = "scheduler"
WORKER: Final = "worker"
API: Final = "api"
HOUSEKEEPING: Final = "housekeeping"
GOODBYE_S_MAX: Final = 2.0
TRANSPORT_GOODBYE_S_MAX: Final = 0.3
WORKER_GOODBYE_S_MAX: Final = 0.7  # A worker that ends has promised to be gone two seconds after its grace.


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that a node needs of the outside."""

    ledger: Ledger
    housekeeping: Housekeeping
    leases: Leases
    nodes: Nodes
    watch: Callable[[Callable[[str], None]], Awaitable[WakeUps]]
    admission: AdmittedLeases | None = None  # The leases again, where another server than the store grants them.
    audit_log: AuditLog | None = None  # Where there is one to be kept in bounds.
    dispatch: Dispatch | None = None  # Who carries hints about ready jobs, where the store does not do it alone.


class EngineNode:
    """One process in one role or several. Its id is `clock.node`, made anew with every start."""

    def __init__(
        self,
        world: World,
        settings: Settings,
        clock: Clock,
        *,
        version: str = "",
        schedules: bool = True,
        supervisor: Supervisor | None = None,
        is_api: bool = False,
        attention: Sequence[str] = (),
    ) -> None:
        self._world = world
        self._settings = settings
        self._clock = clock
        self._supervisor = supervisor
        self._schedules = schedules
        self._attention = attention  # What an operator should know of this node.
        self.live_state: Callable[[], JsonObject | None] = (
            supervisor.reporter.live_state if supervisor else lambda: None
        )
        self._tally = ProcessMetrics(clock)
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._leaving = asyncio.Event()  # The grace runs from here; a drain alone takes as long as the jobs do.
        self._grace_s = settings.grace / SECOND
        self._shards = self._elector(lambda: self._scheduler_loop.idle_s())
        self._housekeeping = self._elector(lambda: max(self._promoter_loop.idle_s(), self._janitor_loop.idle_s()))
        self._scheduler_loop = self._scheduler()
        self._promoter_loop = self._promoter()
        self._janitor_loop = self._janitor()
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
        """Work until `stop`. An error that is not the store's absence ends the node, and leaves its leases in order."""
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
        """Run a loop. When it fails, the others are cancelled; one that loses the word of that must not live on."""
        try:
            await loop.run()
        except BaseException:
            self._stop_loops()
            raise

    def _stop_loops(self) -> None:
        for loop in self.loops:
            loop.stop()

    def stop(self) -> None:
        """End soon, in good order: what runs has the grace to end."""
        self._leaving.set()
        self._wind_down()

    def _wind_down(self) -> None:
        self._stopping.set()
        if self._supervisor is not None:
            self._supervisor.drain("the worker ends")

    def hurry(self) -> None:
        """End now: what runs is handed back at once."""
        self._hurrying.set()
        self.stop()

    def holds(self) -> dict[str, int]:
        """Return the roles that this node may act in at this moment, with their tokens."""
        held = {**self._shards.held(), **self._housekeeping.held()}
        return {role: lease.token for role, lease in held.items()}

    async def _stop_deciding(self, deciding: list[asyncio.Task[None]]) -> None:
        """Leave the schedules to others before the jobs are waited for."""
        for loop in self._deciding_loops():
            loop.stop()
        if deciding:
            with contextlib.suppress(TimeoutError, StoreError):
                async with asyncio.timeout(WORKER_GOODBYE_S_MAX):
                    await asyncio.wait(deciding)
                    await self._shards.resign()

    async def _drain(self, supervisor: Supervisor) -> None:
        """Let what runs end, within the grace once it runs; then, or when told to hurry, hand it back."""
        await _first_of(supervisor.idle(), self._hurrying.wait(), self._grace_over())
        with contextlib.suppress(TimeoutError, StoreError):  # It may be away: then the leases run out by themselves.
            async with asyncio.timeout(HAND_BACK_S_MAX):
                if not supervisor.is_idle:
                    supervisor.hand_back()
                    await supervisor.idle()
                await supervisor.claimer.hand_back_unknown()

    async def _grace_over(self) -> None:
        await self._leaving.wait()
        await self._clock.rest(self._grace_s, asyncio.Event())

    def _asked(self, what: str) -> None:
        """An operator wants something of this node. A drain takes as long as the jobs do, unless a signal follows."""
        if what == "drain":
            self._wind_down()

    @property
    def _rest_s_max(self) -> float:
        return max(self._settings.leader_lease, self._settings.poll) / SECOND

    def _deciding_loops(self) -> tuple[Loop, ...]:
        return (self._shards_loop, self._scheduler_loop) if self._schedules else ()

    @property
    def loops(self) -> tuple[Loop, ...]:
        """Everything that turns here, also for whoever watches over it."""
        return (
            self._heartbeat_loop,
            self._house_loop,
            self._promoter_loop,
            self._janitor_loop,
            *self._deciding_loops(),
            *(self._supervisor.loops if self._supervisor else ()),
            *((self.dispatch.loop,) if self.dispatch else ()),
        )

    @property
    def dispatch(self) -> Dispatch | None:
        """What carries hints about ready jobs, for whoever commits some beside this node."""
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

    def _keeps_house(self) -> bool:
        return HOUSEKEEPING in self._housekeeping.held()

    def _wake_workers(self) -> None:
        self._scheduler_loop.wake()
        self._promoter_loop.wake()

    def _hear(self, topic: str) -> None:
        """Wake whoever could find work after this commit; `anything` may be all of it."""
        if self._supervisor is not None:
            self._supervisor.hear(topic)
        if topic == f"beat {self._clock.node}":
            self._heartbeat_loop.wake()
        if topic in ("schedules", "anything"):
            self._scheduler_loop.wake()
        if topic in ("waiting", "anything"):
            self._promoter_loop.wake()
        for elector, loop in ((self._shards, self._shards_loop), (self._housekeeping, self._house_loop)):
            # A leader's renewal must not wake it: its own commit would wake it for ever.
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
        # With fewer shards than nodes everybody may try, so that a free one is never left lying.
        if self._shards.seek([LeaderFencing.role(shard) for shard in range(shards)], max(mine, 1)):
            self._shards_loop.wake()

    def _shares_work(self, peer: Node) -> bool:
        """A scheduler that beats while its loop stands still has stepped down; its shards are for the others."""
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
            **({"attention": list(self._attention)} if self._attention else {}),
            "tally": self._tally.cells(),
            **({} if self._supervisor is None else {"worker": self._supervisor.state()}),
        }

    async def _say_goodbye(self) -> None:
        """Hand over what we hold. If the store does not answer, the leases run out by themselves."""
        try:
            async with asyncio.timeout(GOODBYE_S_MAX if self._supervisor is None else WORKER_GOODBYE_S_MAX):
                await self._shards.resign()
                await self._housekeeping.resign()
                await self._heartbeat.leave()
        except (TimeoutError, StoreError):
            pass


async def _first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of several has come."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
