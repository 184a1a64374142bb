"""The keeper extends leases and hears which jobs shall stop; the watchman ends trust in leases, and needs no store."""

from collections.abc import Callable
from typing import Final

from headway.core.clock import Clock
from headway.core.instants import SECOND, Duration
from headway.core.lifecycle import Cancelled
from headway.core.ports import AttemptLeases
from headway.worker.held import HeldAttempts

WATCH_EVERY_S: Final = 0.2


class LeaseExtender:
    """Keeps the leases of the attempts that this worker holds."""

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
        """Extend all leases when it is time; stop what shall stop."""
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
                self._held.lose([held], "the store has given them to others")


class LeaseWatchdog:
    """Stops what can no longer be defended, whatever the store does."""

    def __init__(self, held: HeldAttempts, *, clock: Clock, poll_s: float) -> None:
        self._held = held
        self._clock = clock
        self._poll_s = poll_s

    async def tick(self) -> float:
        """Stop trusting leases whose time is up, and have the child pool look after itself."""
        now = self._clock.monotonic()
        lost = [held for held in self._held if held.trust_until <= now and not held.is_ending]
        if lost:
            self._held.lose(lost, "their leases could not be extended in time")
        self._held.child_pool.watch()
        return WATCH_EVERY_S if self._held else self._poll_s
