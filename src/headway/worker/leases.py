"""Extend the leases of held attempts, and stop attempts whose leases may have expired.

The lease extender talks to the store and learns from it which jobs to stop. The lease watchdog needs no store: it goes
by the monotonic clock alone.
"""

from collections.abc import Callable
from typing import Final

from headway.core.clock import Clock
from headway.core.instants import SECOND, Duration
from headway.core.lifecycle import Cancelled
from headway.core.ports import AttemptLeases
from headway.worker.held import HeldAttempts

WATCH_EVERY_S: Final = 0.2


class LeaseExtender:
    """Extend the leases of the attempts that this worker holds."""

    def __init__(
        self,
        work: AttemptLeases,
        held: HeldAttempts,
        *,
        clock: Clock,
        lease: Duration,
        poll_s: float,
        wake: Callable[[], None],
    ) -> None:
        self._work = work
        self._held = held
        self._clock = clock
        self._lease = lease
        self._lease_s = lease / SECOND
        self._poll_s = poll_s
        self.wake = wake
        self._extend_at = 0.0

    async def tick(self) -> float:
        """Extend all leases when due, and stop jobs that were cancelled."""
        if not self._held:
            return min(self._poll_s, self._lease_s / 3)
        now = self._clock.monotonic()
        if now >= self._extend_at:
            await self._extend(now)
            self._extend_at = now + self._lease_s / 3
        asked = await self._work.asked_to_stop(self._clock.node)
        for (job_id, attempt), reason in asked.items():
            if job_id in self._held:
                self._held.child_pool.stop(job_id, attempt, Cancelled(reason))
        return min(self._poll_s, max(0.05, self._extend_at - self._clock.monotonic()))

    async def _extend(self, sent: float) -> None:
        attempts = [(held.claimed.job_id, held.claimed.attempt) for held in self._held]
        still_ours = await self._work.extend(attempts, lease=self._lease)
        for job_id, attempt in attempts:
            held = self._held.find(job_id, attempt)
            if held is None:
                continue
            if job_id in still_ours:
                held.trust_until = self._held.trusted_until(sent)
            elif not held.is_ending:
                self._held.lose([held], "the store has assigned them to other workers")


class LeaseWatchdog:
    """Stop attempts whose leases are no longer trusted, whether or not the store answers."""

    def __init__(self, held: HeldAttempts, *, clock: Clock, poll_s: float) -> None:
        self._held = held
        self._clock = clock
        self._poll_s = poll_s

    async def tick(self) -> float:
        """Abandon attempts whose leases are no longer trusted, and let the child pool check its children."""
        now = self._clock.monotonic()
        lost = [held for held in self._held if held.trust_until <= now and not held.is_ending]
        if lost:
            self._held.lose(lost, "their leases could not be extended in time")
        self._held.child_pool.watch()
        return WATCH_EVERY_S if self._held else self._poll_s
