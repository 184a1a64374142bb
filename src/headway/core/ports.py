"""Ports: what each loop needs of the store and of other servers. The conformance suite tests these contracts.

Every method may raise `StoreUnavailable`; the outcome of a write is then unknown, and repeating it is safe.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from zlib import crc32

import msgspec

from headway.core.groups import GroupWork
from headway.core.instants import Duration, Instant
from headway.core.jobs import Claimed, EnqueuedRow, NewJob, Report, Suspect
from headway.core.lifecycle import Settlement
from headway.core.nodes import Lease, Node
from headway.core.occurrences import LiveJobs, Plan
from headway.core.schedules import Schedule
from headway.core.webhooks import Delivery, Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The leases that guard a write; it is refused unless all of them are still held."""

    holder: str
    tokens: dict[str, int]
    leases: dict[str, str] = field(default_factory=dict)

    def token_of(self, key: str) -> int:
        """Return the token of the lease that guards this schedule; the ledger records it."""
        lease = self.leases.get(key)
        return max(self.tokens.values(), default=0) if lease is None else self.tokens[lease]


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Schedules with undecided instants at the store's time `now`."""

    now: Instant
    schedules: tuple[tuple[Schedule, LiveJobs], ...]
    unreadable: tuple[tuple[str, int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """The shards of one scheduler: the schedules whose slot modulo `of` is in `held`."""

    of: int
    held: frozenset[int]


def slot_of(key: str) -> int:
    """Return the slot of a schedule, which the store keeps; its shard is the slot modulo the number of shards."""
    return crc32(key.encode())


class SchedulerLedger(Protocol):
    """What the scheduler needs of the store."""

    async def due(self, shards: Shards, limit: int) -> Due:
        """Return up to `limit` schedules with undecided instants, those due longest first."""
        ...

    async def next_due(self, shards: Shards) -> Instant | None:
        """Return when the next decision is due."""
        ...

    async def fire(self, plans: Sequence[Plan], fence: Fence | None) -> frozenset[str]:
        """Commit plans: decisions, their jobs and the advanced schedules in one transaction.

        A plan whose schedule changed since it was read is left out, as if it had not been given; the keys of these
        are returned. Raises `LeaseLost` when a lease of the fence is not held any more; nothing is written then. (Only
        where a plan breaks a constraint of the store are they committed one by one, and it can come in between.)
        """
        ...

    async def hold(self, key: str, version: int, reason: str) -> None:
        """Put a schedule that cannot be planned on hold for a minute, with a reason to display."""
        ...

    async def revive_stranded(self, limit: int) -> int:
        """Give fixed-delay schedules whose job is gone their next instant."""
        ...


class Leases(Protocol):
    """Named leases, each with a token that only ever grows."""

    async def acquire(self, names: Sequence[str], *, holder: str, holder_name: str, duration: Duration) -> list[Lease]:
        """Take the leases that are free, expired, or the holder's own, each with a token above all earlier ones."""
        ...

    async def renew(self, leases: Sequence[Lease], *, duration: Duration) -> list[Lease]:
        """Extend the leases that are still held; a lease that is not returned is lost."""
        ...

    async def release(self, leases: Sequence[Lease]) -> None:
        """Release leases at once. A lease that is no longer held is left alone."""
        ...


class AdoptingLeases(Leases, Protocol):
    """Leases of the store that also record leases granted by another server."""

    async def adopt(
        self, tokens: Mapping[str, int], *, holder: str, holder_name: str, duration: Duration
    ) -> list[Lease]:
        """Take leases from any holder, each with a token above all earlier ones and above the given one."""
        ...


class Engine(Protocol):
    """A coordination server beside the store. It decides only who may *try* to act.

    Its locks expire. Its tokens grow only as long as it keeps its data; the store records the highest token and refuses
    lower ones, so that they never fall. Every method may raise `EngineUnavailable` within a few seconds; the outcome is
    then unknown, and repeating it is safe.
    """

    @property
    def name(self) -> str:
        """`redis`, `etcd`, `zookeeper` or `consul`."""
        ...

    async def acquire(self, name: str, *, holder: str, duration: Duration) -> int | None:
        """Take a lock that is free, expired, or the holder's own; return its token, or None while another holds it."""
        ...

    async def renew(self, names: Iterable[str], *, holder: str, duration: Duration) -> frozenset[str]:
        """Extend locks; return those that the holder still has, and leave the others alone."""
        ...

    async def release(self, names: Iterable[str], *, holder: str) -> None:
        """Release locks at once and wake the waiting nodes; leave locks of other holders alone."""
        ...

    async def watch(self, hear: Callable[[], None]) -> None:
        """Call `hear` whenever a lock may have become free; reconnect when the connection is lost."""
        ...

    async def close(self) -> None:
        """Close every connection; held locks expire."""
        ...


class Promotion(Protocol):
    """What the promoter needs of the queue."""

    async def promote(self, limit: int) -> int:
        """Make waiting jobs ready that are due and whose predecessor has ended; return how many."""
        ...

    async def next_promotion(self) -> Instant | None:
        """Return when the next waiting job is due; the store's time when one is ready to be promoted now."""
        ...


class Cleanup(Protocol):
    """What the janitor needs of the queue."""

    async def expire(self, limit: int) -> list[str]:
        """Settle running attempts whose lease has expired; return their job ids."""
        ...

    async def end_overdue(self, limit: int) -> int:
        """Cancel jobs that did not start in time; return how many."""
        ...

    async def prune(self, retention: Duration, limit: int) -> int:
        """Delete history older than the retention; return how many rows were deleted."""
        ...


class Housekeeping(Promotion, Cleanup, Protocol):
    """What the housekeeping loops of a node need of the queue."""


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """What jobs of a tenant took in a queue, in microseconds: in all, and more than was charged for them before."""

    queue: str
    needs: str = ""
    tenant: str
    more: Duration
    took: Duration
    jobs: int


class LaneClaim(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim by lanes has taken, and what the worker needs to know for its next one."""

    jobs: tuple[Claimed, ...] = ()
    in_vain: frozenset[str] = frozenset()  # Tenants with jobs that this worker cannot take now.
    full: frozenset[str] = frozenset()  # Gates at which lanes wait now.
    unused: frozenset[str] = frozenset()  # Gates that would let more jobs start.
    look_in: Duration | None = None  # After this time a rate allows the next start.
    has_lanes: bool = False  # Whether the next claim must be one by lanes again.
    has_more: bool = False  # Whether other lanes may have jobs that may start.
    has_closed: bool = False  # Whether it closed lanes without jobs, so that the next claim sees others.
    classes: frozenset[str] = frozenset()  # Other needs of the queue that got ready jobs.
    waited: Duration | None = None  # Of a claim without room: how long the next job waits that limits let start.


class SuspectClaims(Protocol):
    """What a worker needs to run suspects: jobs that may have crashed a worker, and so run apart from others."""

    async def apart(
        self, tasks: Collection[str], queues: Collection[str], limit: int, *, unfit: Collection[str] = ()
    ) -> list[Suspect]:
        """Find ready suspects of these tasks in these queues, or in any; `claim` does not return suspects.

        Those that need one of `unfit` are left out.
        """
        ...

    async def claim_apart(self, job_id: str, *, node: str, lease: Duration) -> tuple[Claimed, Duration] | None:
        """Claim a suspect; return it and for how long it runs apart, or None if another worker was first."""
        ...


class Claims(SuspectClaims, Protocol):
    """What a worker needs to take jobs from the queue."""

    async def ready_queues(self) -> dict[str, bool]:
        """Return the queues that have ready jobs, each with whether it has lanes of tenants or limits."""
        ...

    async def claim(
        self, queue: str, *, node: str, lease: Duration, limit: int, skip: Collection[str] = ()
    ) -> list[Claimed]:
        """Claim up to `limit` ready jobs, highest priority first, then oldest; skip the tasks in `skip`."""
        ...

    async def claim_lanes(
        self,
        queue: str,
        *,
        node: str,
        lease: Duration,
        limit: int,
        skip: Collection[str] = (),
        past: Collection[str] = (),
        needs: str = "",
    ) -> LaneClaim:
        """Claim up to `limit` ready jobs of a queue with tenants or limits; skip tasks, and tenants in `past`.

        All of them need the same. With a limit of 0, only look how long the next one has waited.
        """
        ...

    async def classes(self) -> list[tuple[str, str]]:
        """Return queues and needs that have ready jobs with needs; in turns if they are many."""
        ...

    async def reopen(self, freed: Mapping[str, int]) -> frozenset[str]:
        """Let as many lanes go on as places came free at these gates, or whose rate allows it; return their queues."""
        ...

    async def charge(self, charges: Sequence[Charge]) -> None:
        """Charge tenants for what their jobs took."""
        ...

    async def hand_back_unknown(
        self, node: str, *, known: Collection[tuple[str, int]], given_up: Collection[tuple[str, int]]
    ) -> list[str]:
        """Hand back attempts that the node holds but does not know; those in `given_up` once their lease expired."""
        ...

    async def unpark(self, tasks: Iterable[str], cause: str = "") -> int:
        """Make parked jobs of these tasks ready again, all or those parked for one cause; return how many."""
        ...

    async def step_sizes(self, job_ids: Iterable[str]) -> dict[str, int]:
        """Return by job how many bytes `steps` would read."""
        ...

    async def steps(self, job_ids: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the stored results of finished steps, as JSON text by job and name."""
        ...


class AttemptLeases(Protocol):
    """What a worker needs to keep its running attempts."""

    async def extend(self, attempts: Iterable[tuple[str, int]], *, lease: Duration) -> dict[str, bool]:
        """Extend attempts given as (job id, attempt). Return those still running, with whether to stop them."""
        ...

    async def asked_to_stop(self, node: str) -> dict[tuple[str, int], str]:
        """Return the running attempts of a node that were asked to stop, each with the reason."""
        ...


class Settlements(Protocol):
    """What a worker needs to end its attempts."""

    async def settle(self, settlements: Sequence[Settlement]) -> frozenset[str]:
        """Write what ended attempts make of their jobs; return the job ids of stale ones, which change nothing."""
        ...


class ProgressReports(Protocol):
    """What a worker needs to store progress."""

    async def report(self, reports: Sequence[Report]) -> frozenset[str]:
        """Write progress, metadata and log lines; return the job ids of stale attempts, which change nothing."""
        ...


class Work(Claims, AttemptLeases, Settlements, ProgressReports, GroupWork, Protocol):
    """What a worker needs of the queue. Writes of a stale attempt are rejected, and its worker learns of it."""

    async def keep_step(self, job_id: str, attempt: int, name: str, result: str) -> None:
        """Store the result of a finished step; raise `LeaseLost` when the attempt is over."""
        ...

    async def enqueue_from(self, job_id: str, attempt: int, jobs: Sequence[NewJob]) -> list[EnqueuedRow]:
        """Enqueue jobs from a running attempt, all or none; raise `LeaseLost` when the attempt is over."""
        ...


class NodeRegistry(Protocol):
    """The live nodes."""

    async def beat(self, node: Node) -> str | None:
        """Record a heartbeat, read the store's time, and return what an operator asked of this node."""
        ...

    async def alive(self, within: Duration) -> list[Node]:
        """Return the nodes with a recent heartbeat."""
        ...

    async def leave(self, node_id: str) -> None:
        """Remove the node, but keep its counters in the totals."""
        ...


class WakeUps(Protocol):
    """A subscription to other processes' commits."""

    @property
    def mode(self) -> str:
        """`notify`, `watch` or `poll`."""
        ...

    async def check(self) -> None:
        """Make sure that wake-ups still arrive, and fall back to polling when they do not."""
        ...

    async def close(self) -> None:
        """End the subscription."""
        ...


@dataclass(frozen=True, slots=True)
class Hint:
    """A hint that a job became ready in a queue; `receipt` identifies it in the transport."""

    queue: str
    receipt: Any


class Transport(Protocol):
    """A message server beside the store that tells one worker of each ready job, instead of all of them.

    It carries hints: the ids of jobs, in a channel for each queue. The store holds the jobs and decides who gets which.
    So hints may be lost, duplicated, reordered or forged; the cost is at most one query. Every method may raise
    `EngineUnavailable` within a few seconds, and is safe to repeat.
    """

    @property
    def name(self) -> str:
        """`redis` or `rabbitmq`."""
        ...

    async def announce(self, ready: Mapping[str, Sequence[str]]) -> None:
        """Announce ready jobs, as ids by queue; with none, only check that the server answers."""
        ...

    async def attend(self, queues: Collection[str]) -> None:
        """Subscribe to these queues only; hints that were received but not taken go to other workers."""
        ...

    async def take(self, limit: int) -> list[Hint]:
        """Wait about a second for hints; return up to `limit`, or none. Discard malformed hints."""
        ...

    async def acknowledge(self, hints: Sequence[Hint]) -> None:
        """Acknowledge hints: a worker has checked the store since they arrived."""
        ...

    async def give_back(self, hints: Sequence[Hint]) -> None:
        """Return hints for another worker."""
        ...

    async def close(self) -> None:
        """Close every connection and return every taken hint."""
        ...


class Latest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The latest progress of a running attempt, and some of its log lines.

    `serial` grows with every report of the attempt. It is also stored in `detail`, so that a reader can tell which of
    the two is newer. No two lines of an attempt have the same time, and `after` is the time of the line before these: a
    reader that has that line misses nothing.
    """

    job_id: str
    attempt: int
    serial: int
    at: Instant
    progress: int | None = None
    detail: str | None = None
    metadata: str | None = None
    after: Instant = 0
    lines: tuple[tuple[Instant, str, str], ...] = ()


class Live(Protocol):
    """Publish live progress of running attempts; the store receives it a little later.

    No method waits or raises. While `trouble` is set, the store has to carry the progress.
    """

    @property
    def name(self) -> str:
        """`redis`."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why nothing is published; None while it works."""
        ...

    def begin(self, may_tell: Callable[[str, int], bool], changed: Callable[[], None]) -> None:
        """Start. Ask `may_tell` whether an attempt may still be published; call `changed` when `trouble` changes."""
        ...

    def tell(self, latest: Latest) -> None:
        """Publish this soon; of several for one job, only the last one, with the lines of all."""
        ...

    def forget(self, job_id: str) -> None:
        """Publish nothing more of this job."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class LiveView(Protocol):
    """Receive live progress. It may be missing, late, or of an attempt that is over."""

    @property
    def name(self) -> str:
        """`redis`."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why nothing is received; None while it works."""
        ...

    async def latest(self, job_ids: Collection[str]) -> dict[str, Latest]:
        """Return the latest progress of these jobs; nothing if the server does not answer quickly."""
        ...

    def listen(self, hear: Callable[[Latest, bool], None]) -> None:
        """Pass messages to `hear`, with whether they came through the subscription to all jobs."""
        ...

    async def follow(self, job_id: str) -> None:
        """Subscribe to a job, or to all with `*`; wait only briefly for the subscription."""
        ...

    def leave(self, job_id: str) -> None:
        """Unsubscribe from a job."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class WebhookSender(Protocol):
    """What operations on webhooks need of the process that sends messages."""

    async def test(self, endpoint: Endpoint, url: str) -> Delivery:
        """Send a test message to an endpoint, once, and return the outcome."""
        ...

    def wake(self) -> None:
        """Look for due messages now."""
        ...
