"""What the loops need of the world, as narrow as they need it. The conformance suite tests these contracts.

Every method may raise `StoreUnavailable`; the outcome of a write is then unknown, and repeating it is safe.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from zlib import crc32

import msgspec

from headway.core.instants import Duration, Instant
from headway.core.jobs import Claimed, EnqueuedRow, NewJob, Report, Suspect
from headway.core.lifecycle import Settlement
from headway.core.nodes import Lease, Node
from headway.core.occurrences import LiveJobs, Plan
from headway.core.schedules import Schedule
from headway.core.webhooks import Delivery, Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The leases under which something is written; the write is refused unless all of them are still held."""

    holder: str
    tokens: dict[str, int]
    leases: dict[str, str] = field(default_factory=dict)

    def token_of(self, key: str) -> int:
        """Return the token of the lease under which this schedule is decided, which is what is recorded."""
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
    """Which part of all schedules: those whose slot modulo `of` is in `held`."""

    of: int
    held: frozenset[int]


def slot_of(key: str) -> int:
    """Return the slot of a schedule, which the store keeps with it; slot modulo the number of shards is its shard."""
    return crc32(key.encode())


class Ledger(Protocol):
    """What the scheduler writes into."""

    async def due(self, shards: Shards, limit: int) -> Due:
        """Return up to `limit` schedules that have undecided instants, those that are due longest first."""
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
        """Set a schedule aside for a minute that cannot be planned, with a reason for people to read."""
        ...

    async def revive_stranded(self, limit: int) -> int:
        """Give fixed-delay schedules whose job is gone their next instant."""
        ...


class Leases(Protocol):
    """Rights to act on names, each with a token that only ever grows."""

    async def acquire(self, names: Sequence[str], *, holder: str, holder_name: str, duration: Duration) -> list[Lease]:
        """Take those leases that are free, have run out or are the holder's own; each with a token above all before."""
        ...

    async def renew(self, leases: Sequence[Lease], *, duration: Duration) -> list[Lease]:
        """Extend those leases that are still ours; one that does not come back is lost."""
        ...

    async def release(self, leases: Sequence[Lease]) -> None:
        """Give leases back at once. One that is no longer ours is left alone."""
        ...


class AdoptingLeases(Leases, Protocol):
    """Leases of the store that also record what another server has granted."""

    async def adopt(
        self, tokens: Mapping[str, int], *, holder: str, holder_name: str, duration: Duration
    ) -> list[Lease]:
        """Take leases whoever has them; each with a token above all before, and above the one that is given."""
        ...


class Engine(Protocol):
    """A server beside the store that says who may act. It is believed only as far as who may *try*.

    Its locks run out by themselves. Its tokens grow as long as it keeps its data; the store, which records the highest
    that it has seen and refuses lower ones, is what makes them grow for ever. Every method may raise
    `EngineUnavailable`, within a few seconds at most; the outcome is then unknown, and repeating it is safe.
    """

    @property
    def name(self) -> str:
        """What people call it: `redis`, `etcd`, `zookeeper` or `consul`."""
        ...

    async def acquire(self, name: str, *, holder: str, duration: Duration) -> int | None:
        """Take a lock that is free, has run out or is the holder's own; its token, or None while it is another's."""
        ...

    async def renew(self, names: Iterable[str], *, holder: str, duration: Duration) -> frozenset[str]:
        """Extend locks; those that are still the holder's come back, the others are left alone."""
        ...

    async def release(self, names: Iterable[str], *, holder: str) -> None:
        """Give locks back at once, and wake who waits for them; what is another's is left alone."""
        ...

    async def watch(self, hear: Callable[[], None]) -> None:
        """From now on call `hear` whenever a lock may have come free; a connection that is lost is made again."""
        ...

    async def close(self) -> None:
        """Give back every connection; locks that are held run out by themselves."""
        ...


class Promotion(Protocol):
    """What the promoter needs of the queue."""

    async def promote(self, limit: int) -> int:
        """Make waiting jobs ready whose time has come and whose predecessor has ended; return how many."""
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


class AuditLog(Protocol):
    """What housekeeping needs of the log of what people did."""

    async def prune(self, retention: Duration, limit: int) -> int:
        """Delete entries older than the retention, the oldest first; return how many went."""
        ...


class SuspectClaims(Protocol):
    """What a worker needs to run suspects: jobs that may have crashed a worker, and so run apart from others."""

    async def apart(self, tasks: Collection[str], queues: Collection[str], limit: int) -> list[Suspect]:
        """Find ready suspects of these tasks in these queues, or in any; `claim` does not return suspects."""
        ...

    async def claim_apart(self, job_id: str, *, node: str, lease: Duration) -> tuple[Claimed, Duration] | None:
        """Claim a suspect; return it and for how long it runs apart, or None if another worker was first."""
        ...


class Claims(SuspectClaims, Protocol):
    """What a worker needs to take jobs from the queue."""

    async def ready_queues(self) -> list[str]:
        """Return the queues that have ready jobs."""
        ...

    async def claim(
        self, queue: str, *, node: str, lease: Duration, limit: int, skip: Collection[str] = ()
    ) -> list[Claimed]:
        """Claim up to `limit` ready jobs, highest priority first, then oldest; skip the tasks in `skip`."""
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


class Reports(Protocol):
    """What a worker needs to store progress."""

    async def report(self, reports: Sequence[Report]) -> frozenset[str]:
        """Write progress, metadata and log lines; return the job ids of stale attempts, which change nothing."""
        ...


class Work(Claims, AttemptLeases, Settlements, Reports, Protocol):
    """What a worker needs of the queue. A stale attempt can write nothing, and its worker is told so."""

    async def keep_step(self, job_id: str, attempt: int, name: str, result: str) -> None:
        """Store the result of a finished step; raise `LeaseLost` when the attempt is over."""
        ...

    async def enqueue_from(self, job_id: str, attempt: int, jobs: Sequence[NewJob]) -> list[EnqueuedRow]:
        """Enqueue jobs from a running attempt, all or none; raise `LeaseLost` when the attempt is over."""
        ...


class Nodes(Protocol):
    """Who is alive."""

    async def beat(self, node: Node) -> str | None:
        """Say that the node lives, hear the store's time, and return what an operator asks of this node."""
        ...

    async def alive(self, within: Duration) -> list[Node]:
        """Return the nodes that were heard of lately."""
        ...

    async def leave(self, node_id: str) -> None:
        """Forget the node, but not what it has counted."""
        ...


class WakeUps(Protocol):
    """The subscription to other processes' commits."""

    @property
    def mode(self) -> str:
        """`notify`, `watch` or `poll`."""
        ...

    async def check(self) -> None:
        """Make sure that wake-ups still arrive, and fall back to polling when they do not."""
        ...

    async def close(self) -> None:
        """Stop hearing."""
        ...


@dataclass(frozen=True, slots=True)
class Hint:
    """Word that a job became ready in a queue; `receipt` is what the transport knows it by."""

    queue: str
    receipt: Any


class Transport(Protocol):
    """A server beside the store that tells one worker of each ready job, instead of all of them.

    It carries hints: the ids of jobs, in a channel for each queue. The store has the jobs, and says who gets which; so
    hints may be lost, doubled, reordered or made up, and all that they can cost is a look into the store. Every method
    may raise `EngineUnavailable`, within a few seconds at most, and is safe to repeat.
    """

    @property
    def name(self) -> str:
        """What people call it: `redis` or `rabbitmq`."""
        ...

    async def announce(self, ready: Mapping[str, Sequence[str]]) -> None:
        """Tell of jobs that are ready, as ids by queue; with none, only ask whether the server answers."""
        ...

    async def attend(self, queues: Collection[str]) -> None:
        """From now on receive hints of these queues and no others; those received and not taken are for others."""
        ...

    async def take(self, limit: int) -> list[Hint]:
        """Wait about a second for hints; return up to `limit`, or none. What cannot be a hint is thrown away."""
        ...

    async def acknowledge(self, hints: Sequence[Hint]) -> None:
        """Forget hints: somebody has looked into the store after they came."""
        ...

    async def give_back(self, hints: Sequence[Hint]) -> None:
        """Leave hints to another worker."""
        ...

    async def close(self) -> None:
        """Give back every connection, and every hint that was taken."""
        ...


class Latest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that a running attempt has said of itself so far, and some of the lines that it logged.

    `serial` grows with every report of the attempt. It is also in the detail, and so in the store, which lets everybody
    see whether what is stored is newer. No two lines of an attempt have the same time, and `after` is the time of the
    line before these: who was told that one misses nothing.
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
    """Carries what running attempts say to whoever looks, at once; the store keeps the record, a little later.

    No method waits or raises. While `trouble` says why nothing gets through, the store has to carry it.
    """

    @property
    def name(self) -> str:
        """What people call it: `redis`."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why nothing gets through, in words; None while it does."""
        ...

    def begin(self, may_tell: Callable[[str, int], bool], changed: Callable[[], None]) -> None:
        """Start. What may not be told any more is asked by job and attempt; `changed` hears of trouble and its end."""
        ...

    def tell(self, latest: Latest) -> None:
        """Have this told soon; of several for one job the last one is, with the lines of all."""
        ...

    def forget(self, job_id: str) -> None:
        """Tell nothing more of this job."""
        ...

    async def close(self) -> None:
        """Give back every connection."""
        ...


class LiveView(Protocol):
    """What running attempts say, from where it is looked at. It may be missing, late, or of an attempt that is over."""

    @property
    def name(self) -> str:
        """What people call it: `redis`."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why nothing comes through, in words; None while it does."""
        ...

    async def latest(self, job_ids: Collection[str]) -> dict[str, Latest]:
        """Return what is there of these jobs; nothing when it does not come within a moment."""
        ...

    def listen(self, hear: Callable[[Latest, bool], None]) -> None:
        """From now on hand what comes to `hear`, with whether it came because everything is followed."""
        ...

    async def follow(self, job_id: str) -> None:
        """Have what is said of this job come, `*` for all; waits no more than a moment until it does."""
        ...

    def leave(self, job_id: str) -> None:
        """Have no more of this job come."""
        ...

    async def close(self) -> None:
        """Give back every connection."""
        ...


class WebhookSender(Protocol):
    """What operations on webhooks need of the process that sends messages."""

    async def test(self, endpoint: Endpoint, url: str) -> Delivery:
        """Send a test message to an endpoint, once, and return what came of it."""
        ...

    def wake(self) -> None:
        """Look for due messages now."""
        ...
