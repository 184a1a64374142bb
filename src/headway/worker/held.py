"""The attempts that a worker holds, shared by the loops of its supervisor.

A lease is trusted until (the time its request was *sent*) + lease − margin. After that the code that runs under it is
killed without waiting for the store to answer, because another worker may already run the job.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headway.core.clock import Clock
from headway.core.events import AttemptsLost, emit
from headway.core.instants import SECOND, Duration, Instant
from headway.core.jobs import Claimed, Report
from headway.core.ports import Charge, Latest
from headway.worker.capacity import Capacity
from headway.worker.child_pool_port import ChildPoolPort

QUIET_S: Final = 5.0  # Loops that this process wakes itself rest this long; such a wake-up cannot get lost.


@dataclass(slots=True)
class HeldAttempt:
    """An attempt that this worker holds, and until when its lease is trusted."""

    claimed: Claimed
    trust_until: float
    logged: int
    report: Report | None = None
    reported_at: float = 0.0
    is_flushing: bool = False
    is_ending: bool = False  # The outcome is known, but may not be written yet.
    said: Latest | None = None
    line_at: Instant = 0
    since: float = 0.0  # When its claim was sent.
    charged: Duration = 0  # What its tenant was charged so far.


class Usage:
    """Add up what the jobs of each tenant take, to charge it to the tenant's share of the queue."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._charges: dict[tuple[str, str, str], Charge] = {}

    def ended(self, held: HeldAttempt) -> None:
        """Add an attempt that is over."""
        self._add(held, jobs=1)

    def go_on(self, attempts: Iterable[HeldAttempt]) -> None:
        """Add what running attempts took beyond what was charged: long jobs are paid for while they run."""
        for held in attempts:
            if held.claimed.share is not None and self._took(held) > held.charged:
                self._add(held, jobs=0)

    def take(self) -> list[Charge]:
        """Return what has come together, and begin anew."""
        charges, self._charges = [*self._charges.values()], {}
        return charges

    def give_back(self, charges: Iterable[Charge]) -> None:
        """Keep charges that could not be written for the next time."""
        for charge in charges:
            self._put(charge)

    def _took(self, held: HeldAttempt) -> Duration:
        return round((self._clock.monotonic() - held.since) * SECOND)

    def _add(self, held: HeldAttempt, *, jobs: int) -> None:
        if held.claimed.share is None:
            return
        took = self._took(held)
        more, held.charged = took - held.charged, took
        queue, needs, tenant = held.claimed.queue, held.claimed.needs, held.claimed.share
        self._put(Charge(queue=queue, needs=needs, tenant=tenant, more=more, took=took if jobs else 0, jobs=jobs))

    def _put(self, charge: Charge) -> None:
        key = (charge.queue, charge.needs, charge.tenant)
        known = self._charges.get(key)
        if known is not None:
            charge = Charge(
                queue=charge.queue,
                needs=charge.needs,
                tenant=charge.tenant,
                more=known.more + charge.more,
                took=known.took + charge.took,
                jobs=known.jobs + charge.jobs,
            )
        self._charges[key] = charge


class HeldAttempts:
    """Hold this worker's attempts, know how long their leases are trusted, and whether the worker is idle."""

    def __init__(self, child_pool: ChildPoolPort, *, clock: Clock, lease: Duration) -> None:
        self.child_pool = child_pool
        self.lease = lease
        self._clock = clock
        self.usage = Usage(clock)
        self.margin_s = min(2.0, lease / SECOND / 5)  # Trust ends this many seconds before the lease does.
        self._trust_s = lease / SECOND - self.margin_s
        self.draining: str | None = None  # The reason, once the worker drains.
        self.on_removed: Callable[[HeldAttempt], None] = lambda _: None
        self.given_up: set[tuple[str, int]] = set()  # Lost attempts that the store may still list as ours.
        self.doubted_at = -1e9  # When it was last unclear what the store lists as ours.
        self.freed: Counter[str] = Counter()  # Places at gates that ended attempts have left.
        self.capacity = Capacity(self._claimed, self._may_run)
        self.has_freed_needs = False  # Whether an attempt with needs has ended since the last claim.
        self._by_id: dict[str, HeldAttempt] = {}
        self._is_claiming = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[HeldAttempt]:
        return iter(self._by_id.values())

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._by_id

    def trusted_until(self, sent: float) -> float:
        """Return until when to trust a lease whose request was sent at this time."""
        return sent + self._trust_s

    def add(self, claimed: Claimed, sent: float) -> None:
        """Add an attempt whose claim was sent at this time."""
        self._idle.clear()
        earlier = self._by_id.get(claimed.job_id)
        if earlier is not None and not earlier.is_ending:
            self._give_up(earlier)
        self._by_id[claimed.job_id] = HeldAttempt(
            claimed, self.trusted_until(sent), claimed.log_bytes, since=sent, charged=claimed.reserved
        )

    def find(self, job_id: str, attempt: int) -> HeldAttempt | None:
        """Return a held attempt; None when it is over."""
        held = self._by_id.get(job_id)
        return held if held is not None and held.claimed.attempt == attempt else None

    def find_trusted(self, job_id: str, attempt: int) -> HeldAttempt | None:
        """Return a held attempt whose lease is trusted now."""
        held = self.find(job_id, attempt)
        return held if held is not None and held.trust_until > self._clock.monotonic() else None

    def is_held(self, held: HeldAttempt) -> bool:
        """Return whether this attempt has not been removed."""
        return self._by_id.get(held.claimed.job_id) is held

    def remove(self, held: HeldAttempt) -> None:
        """Remove an attempt that is over."""
        if self.is_held(held):
            del self._by_id[held.claimed.job_id]
            self.freed.update(held.claimed.gates)
            self.usage.ended(held)
            self.has_freed_needs |= held.claimed.needs != ""
            self.on_removed(held)

    def lose(self, lost: Sequence[HeldAttempt], reason: str) -> None:
        """Abandon attempts whose leases are lost: kill their code and discard their reports."""
        for held in lost:
            self.child_pool.abandon(held.claimed.job_id, held.claimed.attempt)
            self._give_up(held)
            self.remove(held)
        self.doubt()
        emit(AttemptsLost(node=self._clock.node, job_ids=tuple(h.claimed.job_id for h in lost), reason=reason))
        self.note_idle()

    def _give_up(self, held: HeldAttempt) -> None:
        self.given_up.add((held.claimed.job_id, held.claimed.attempt))
        self.capacity.lose(held.claimed)

    def _claimed(self) -> Iterator[Claimed]:
        return (held.claimed for held in self)

    def _may_run(self, job_id: str, attempt: int) -> bool:
        """Return whether the code of a lost attempt may still run, or the store may still list it as ours."""
        return (job_id, attempt) in self.given_up or self.child_pool.is_stopping(job_id, attempt)

    # --- lost answers

    def doubt(self) -> None:
        """Note that the store may list attempts as ours that we do not hold: a claim's answer or a lease was lost."""
        self.doubted_at = self._clock.monotonic()

    def attempts(self) -> set[tuple[str, int]]:
        """Return all held attempts."""
        return {(held.claimed.job_id, held.claimed.attempt) for held in self}

    # --- idle

    @contextlib.contextmanager
    def claiming(self) -> Iterator[None]:
        """Count as busy while a claim is in flight: it may return jobs."""
        self._is_claiming = True
        self._idle.clear()
        try:
            yield
        finally:
            self._is_claiming = False
            self.note_idle()

    @property
    def is_idle(self) -> bool:
        """Whether no attempt is held and no claim is in flight."""
        return self._idle.is_set()

    async def idle(self) -> None:
        """Wait until no attempt is held."""
        await self._idle.wait()

    def note_idle(self) -> None:
        """Wake the callers that wait for `idle` when no attempt is held."""
        if not self._by_id and not self._is_claiming:
            self._idle.set()
