"""The scheduler's tick: find due schedules, plan them, commit the plans.

In *leader* mode a node decides the schedules of the shards whose leases it holds. In *lock* mode every node evaluates
every schedule and takes a lease for each (schedule, instant) before it decides. The lease is kept past the decision,
since one that is released at once lets a slow node fire again. Both modes only save work. `SchedulerLedger.fire` makes
a decision happen exactly once: by the fencing token, the schedule's version, and the ledger's primary key.

A schedule that cannot be planned is set aside with a reason, so that it never holds up others.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from headway.core.clock import Clock
from headway.core.errors import LeaseLost
from headway.core.events import DecisionRefused, LocksLost, ScheduleHeld, SchedulesDecided, emit
from headway.core.instants import SECOND, Duration, Instant
from headway.core.nodes import Lease
from headway.core.occurrences import LiveJobs, Plan
from headway.core.ports import Due, Fence, Leases, SchedulerLedger, Shards, slot_of
from headway.core.schedule_names import key_label
from headway.core.schedules import Schedule
from headway.scheduling.planner import plan

BATCH: Final = 1_000
REST_S_MIN: Final = 0.001
OCCURRENCE_LEASE_PREFIX: Final = "occurrence/"


class Fencing(Protocol):
    """Decide which schedules this node may decide, and under which fencing tokens."""

    def shards(self) -> Shards | None:
        """Return the shards to work on; None when there is nothing to do."""
        ...

    async def fence(self, plans: Sequence[Plan]) -> tuple[list[Plan], Fence | None]:
        """Return the plans that may be committed, and the fencing tokens to check them against."""
        ...

    def lost(self) -> None:
        """Handle the store's refusal of the fencing token."""
        ...


class Scheduler:
    """Decide schedules for one node. A `Loop` runs `tick`."""

    def __init__(self, ledger: SchedulerLedger, fencing: Fencing, *, clock: Clock, poll: Duration) -> None:
        self._ledger = ledger
        self._fencing = fencing
        self._clock = clock
        self._poll_s = poll / SECOND
        self._in_vain = 0

    async def tick(self) -> float:
        """Turn every due instant of every due schedule into exactly one record."""
        shards = self._fencing.shards()
        if shards is None:
            return self._poll_s
        due = await self._ledger.due(shards, BATCH)
        for key, version, reason in due.unreadable:
            await self._hold(key, version, reason)
        if due.schedules and not await self._decide(due):
            return self._rest_in_vain_s()
        self._in_vain = 0
        if due.schedules or due.unreadable:
            return 0.0
        return self._rest_s(await self._ledger.next_due(shards))

    async def _decide(self, due: Due) -> bool:
        """Plan and commit; return whether any due schedule was decided or set aside."""
        plans = []
        for schedule, live in due.schedules:
            made = await self._plan(schedule, due.now, live)
            if made is not None:
                plans.append(made)
        was_held = len(plans) < len(due.schedules)
        plans, fence = await self._fencing.fence(plans)
        if not plans:
            return was_held
        try:
            refused = await self._ledger.fire(plans, fence)
        except LeaseLost as error:
            self._fencing.lost()
            self._refused(plans, str(error))
            return was_held
        if refused:
            self._refused([made for made in plans if made.schedule.key in refused], "another node decided first")
        done = tuple(made for made in plans if made.schedule.key not in refused)
        if done:
            emit(SchedulesDecided(node=self._clock.node, plans=done))
        return was_held or bool(done)

    async def _plan(self, schedule: Schedule, now: Instant, live: LiveJobs) -> Plan | None:
        try:
            return plan(schedule, now, live)
        except Exception as error:  # noqa: BLE001 - one bad schedule must not stop the others
            await self._hold(schedule.key, schedule.version, f"cannot be planned: {type(error).__name__}: {error}")
            return None

    async def _hold(self, key: str, version: int, reason: str) -> None:
        await self._ledger.hold(key, version, reason)
        emit(ScheduleHeld(node=self._clock.node, schedule=key_label(key), reason=reason))

    def _refused(self, plans: Sequence[Plan], reason: str) -> None:
        names = tuple(made.schedule.label for made in plans)
        emit(DecisionRefused(node=self._clock.node, schedules=names, reason=reason))

    def _rest_in_vain_s(self) -> float:
        """Return a short rest after another node had the lock or was faster, without flooding the store."""
        self._in_vain += 1
        return min(REST_S_MIN * 2.0 ** min(self._in_vain, 20), self._poll_s)

    def _rest_s(self, next_at: Instant | None) -> float:
        if next_at is None:
            return self._poll_s
        # The estimate of the store's time is never ahead of it, so at the wake-up the store agrees that the schedule is
        # due.
        return min(max((next_at - self._clock.now()) / SECOND, REST_S_MIN), self._poll_s)


class LeaderFencing:
    """Leader mode: the shards whose leases this node holds and trusts."""

    def __init__(
        self, shards: int, held: Callable[[], dict[str, Lease]], holder: str, lose: Callable[[str], None]
    ) -> None:
        self._count = shards
        self._held = held
        self._holder = holder
        self._lose = lose

    @staticmethod
    def role(shard: int) -> str:
        """Return the name of a shard's lease."""
        return f"scheduler/{shard}"

    def shards(self) -> Shards | None:
        """Return the shards that this node may decide now."""
        held = self._held()
        mine = frozenset(shard for shard in range(self._count) if self.role(shard) in held)
        return Shards(of=self._count, held=mine) if mine else None

    async def fence(self, plans: Sequence[Plan]) -> tuple[list[Plan], Fence | None]:
        """Return the plans of shards that are still held, each under the fencing token of its own shard."""
        held = self._held()  # Read again: a shard may have been lost or handed over while its schedules were read.
        roles = {made.schedule.key: self.role(slot_of(made.schedule.key) % self._count) for made in plans}
        mine = [made for made in plans if roles[made.schedule.key] in held]
        leases = {made.schedule.key: roles[made.schedule.key] for made in mine}
        tokens = {role: held[role].token for role in leases.values()}
        return mine, Fence(holder=self._holder, tokens=tokens, leases=leases)

    def lost(self) -> None:
        """Step down at once."""
        self._lose("the store refused its token")


class LockFencing:
    """Lock mode: every node evaluates every schedule and locks each (schedule, instant) before deciding it."""

    def __init__(self, leases: Leases, *, node_id: str, node_name: str, duration: Duration) -> None:
        self._leases = leases
        self._node_id = node_id
        self._node_name = node_name
        self._duration = duration
        self._lost: frozenset[str] = frozenset()  # The locks that other nodes held at the last attempt.

    def shards(self) -> Shards | None:
        """Return all shards."""
        return Shards(of=1, held=frozenset({0}))

    async def fence(self, plans: Sequence[Plan]) -> tuple[list[Plan], Fence | None]:
        """Take the locks of the first undecided instants; return the plans whose lock was won."""
        names = {self._name(made): made for made in plans}
        won = await self._leases.acquire(
            list(names), holder=self._node_id, holder_name=self._node_name, duration=self._duration
        )
        tokens = {lease.name: lease.token for lease in won}
        self._leave(names, tokens)
        leases = {names[name].schedule.key: name for name in tokens}
        return [names[name] for name in tokens], Fence(holder=self._node_id, tokens=tokens, leases=leases)

    def _leave(self, names: Mapping[str, Plan], won: Collection[str]) -> None:
        """Report instants that another node decides, once for each, however often they are evaluated."""
        lost = frozenset(names) - frozenset(won)
        if new := sorted(lost - self._lost):
            emit(LocksLost(node=self._node_id, schedules=tuple(names[name].schedule.label for name in new)))
        self._lost = lost

    def lost(self) -> None:
        """Do nothing: the lock expired, and another node may take it."""

    @staticmethod
    def _name(made: Plan) -> str:
        # The cursor names the instant and stays the same until it is decided. So a holder that dies blocks the instant
        # only until its lease expires, and the instant is never lost.
        return f"{OCCURRENCE_LEASE_PREFIX}{made.schedule.key}/{made.schedule.next_at}"
