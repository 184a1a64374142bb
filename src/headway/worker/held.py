"""The attempts that a worker holds, shared by the loops of its supervisor.

A lease is trusted until (the moment the request that got it was *sent*) + lease − margin. Past that the code that runs
under it is killed without waiting to hear "no": somebody else may have the job.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headway.core.clock import Clock
from headway.core.events import AttemptsLost, emit
from headway.core.instants import SECOND, Duration, Instant
from headway.core.jobs import Claimed, Report
from headway.core.ports import Latest
from headway.worker.child_pool_port import ChildPoolPort

QUIET_S: Final = 5.0  # What is woken from within this process rests so long; a wake-up within it cannot get lost.


@dataclass(slots=True)
class HeldAttempt:
    """An attempt of ours, and how long we may believe that it is."""

    claimed: Claimed
    trust_until: float
    logged: int
    report: Report | None = None
    reported_at: float = 0.0
    is_flushing: bool = False
    is_ending: bool = False  # Its outcome is known, and perhaps not yet written.
    said: Latest | None = None
    line_at: Instant = 0


class HeldAttempts:
    """What this worker holds, how long it may trust that, and whether it is idle."""

    def __init__(self, child_pool: ChildPoolPort, *, clock: Clock, lease: Duration) -> None:
        self.child_pool = child_pool
        self.lease = lease
        self._clock = clock
        self.margin_s = min(2.0, lease / SECOND / 5)  # So long before a lease ends we stop to trust it.
        self._trust_s = lease / SECOND - self.margin_s
        self.draining: str | None = None  # Why no more jobs are taken.
        self.on_removed: Callable[[HeldAttempt], None] = lambda _: None
        self.given_up: set[tuple[str, int]] = set()  # Attempts that we lost and the store may still call ours.
        self.doubted_at = -1e9  # When we last could not know what the store says that we have.
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
        """Return how long a lease is trusted whose request was sent at this moment."""
        return sent + self._trust_s

    def add(self, claimed: Claimed, sent: float) -> None:
        """Hold an attempt whose claim was sent at this moment."""
        self._idle.clear()
        self._by_id[claimed.job_id] = HeldAttempt(claimed, self.trusted_until(sent), claimed.log_bytes)

    def find(self, job_id: str, attempt: int) -> HeldAttempt | None:
        """Return an attempt of ours; None when it is over."""
        held = self._by_id.get(job_id)
        return held if held is not None and held.claimed.attempt == attempt else None

    def find_trusted(self, job_id: str, attempt: int) -> HeldAttempt | None:
        """Return an attempt that is surely ours at this moment."""
        held = self.find(job_id, attempt)
        return held if held is not None and held.trust_until > self._clock.monotonic() else None

    def is_held(self, held: HeldAttempt) -> bool:
        """Whether this attempt has not been removed."""
        return self._by_id.get(held.claimed.job_id) is held

    def remove(self, held: HeldAttempt) -> None:
        """Forget an attempt that is over."""
        if self.is_held(held):
            del self._by_id[held.claimed.job_id]
            self.on_removed(held)

    def lose(self, lost: Sequence[HeldAttempt], reason: str) -> None:
        """Give up attempts that we can no longer defend: kill their code, keep nothing of what they said."""
        for held in lost:
            self.child_pool.abandon(held.claimed.job_id, held.claimed.attempt)
            self.remove(held)
            self.given_up.add((held.claimed.job_id, held.claimed.attempt))
        self.doubt()
        emit(AttemptsLost(node=self._clock.node, job_ids=tuple(h.claimed.job_id for h in lost), reason=reason))
        self.note_idle()

    # --- doubt

    def doubt(self) -> None:
        """Note that the store may say that we have what we have not: the answer to a claim was lost, or a lease."""
        self.doubted_at = self._clock.monotonic()

    def attempts(self) -> set[tuple[str, int]]:
        """Return all attempts that are held."""
        return {(held.claimed.job_id, held.claimed.attempt) for held in self}

    # --- idle

    @contextlib.contextmanager
    def claiming(self) -> Iterator[None]:
        """Nobody is idle who may have jobs and has not heard of it yet."""
        self._is_claiming = True
        self._idle.clear()
        try:
            yield
        finally:
            self._is_claiming = False
            self.note_idle()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held, and nothing is on its way to us."""
        return self._idle.is_set()

    async def idle(self) -> None:
        """Wait until nothing is held any more."""
        await self._idle.wait()

    def note_idle(self) -> None:
        """Tell those who wait for it if nothing is held any more."""
        if not self._by_id and not self._is_claiming:
            self._idle.set()
