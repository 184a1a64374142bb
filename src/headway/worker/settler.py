"""The settler writes outcomes in batches: attempts that end during one write form the next batch.

A known outcome is retried until the store answers; the store refuses it when the attempt is no longer current.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from headway.core.clock import Clock
from headway.core.errors import StoreError, StoreFull, StoreUnavailable
from headway.core.events import AttemptsLost, JobsSettled, Timed, emit
from headway.core.jobs import Claimed
from headway.core.lifecycle import AttemptOutcome, Settlement, Status, settle
from headway.core.ports import Settlements
from headway.core.validation import REASON_LENGTH_MAX, storable
from headway.worker.held import QUIET_S, HeldAttempt, HeldAttempts
from headway.worker.reporter import Reporter

SETTLE_MAX: Final = 2_000


class Settler:
    """Write the outcomes of this worker's attempts."""

    def __init__(
        self, work: Settlements, held: HeldAttempts, reporter: Reporter, *, clock: Clock, wake: Callable[[], None]
    ) -> None:
        self._work = work
        self._held = held
        self._reporter = reporter
        self._clock = clock
        self._wake = wake
        self._ended: deque[tuple[HeldAttempt, AttemptOutcome]] = deque()
        self._settling: list[tuple[HeldAttempt, AttemptOutcome]] = []

    def ended(self, claimed: Claimed, outcome: AttemptOutcome) -> None:
        """Queue the outcome of an ended attempt for writing."""
        held = self._held.find(claimed.job_id, claimed.attempt)
        if held is None:
            return  # Its lease was lost, so its outcome is discarded.
        held.is_ending = True
        self._ended.append((held, outcome))
        if len(self._ended) == 1:
            self._wake()

    async def tick(self) -> float:
        """Write every known outcome, after the last reports of these attempts."""
        batch = self._settling or self._next_batch()
        if not batch:
            return QUIET_S
        self._settling = batch  # Kept until it is written, also while the store is down.
        await self._reporter.flush_all([held for held, _ in batch])
        settlements = [settle(held.claimed, outcome, self._clock.chance.random()) for held, outcome in batch]
        sent = self._clock.monotonic()
        stale = await self._write(settlements)
        emit(Timed(node=self._clock.node, what="settle", lots=((self._clock.monotonic() - sent, 1),)))
        self._settling = []
        for held, _ in batch:
            self._held.remove(held)
        self._tell(batch, settlements, stale)
        self._held.note_idle()
        return 0.0 if self._ended else QUIET_S

    def _next_batch(self) -> list[tuple[HeldAttempt, AttemptOutcome]]:
        ended = self._ended
        return [ended.popleft() for _ in range(min(len(ended), SETTLE_MAX))]

    async def _write(self, settlements: Sequence[Settlement]) -> frozenset[str]:
        try:
            return await self._work.settle(settlements)
        except (StoreUnavailable, StoreFull):
            raise
        except StoreError as error:
            if len(settlements) == 1:
                return await self._work.settle([_unwritable(settlements[0], error)])
        stale: set[str] = set()
        for settlement in settlements:  # One cannot be written; write the others singly.
            stale |= await self._write([settlement])
        return frozenset(stale)

    def _tell(
        self,
        batch: Sequence[tuple[HeldAttempt, AttemptOutcome]],
        settlements: Sequence[Settlement],
        stale: frozenset[str],
    ) -> None:
        others = [
            (settlement, held.claimed.task)
            for settlement, (held, _) in zip(settlements, batch, strict=True)
            if settlement.status is not Status.COMPLETED and settlement.job_id not in stale
        ]
        emit(
            JobsSettled(
                node=self._clock.node,
                completed=len(settlements) - len(others) - len(stale),
                others=tuple([settlement for settlement, _ in others]),
                tasks=tuple([task for _, task in others]),
            )
        )
        if stale:
            lost, reason = tuple(sorted(stale)), "the store refused their outcomes"
            emit(AttemptsLost(node=self._clock.node, job_ids=lost, reason=reason, is_refused=True))


def _unwritable(settlement: Settlement, error: StoreError) -> Settlement:
    """Replace an outcome that cannot be stored with the reason."""
    words = {"type": "StoreError", "message": storable(f"the outcome could not be stored: {error}", REASON_LENGTH_MAX)}
    text = msgspec.json.encode(words).decode()
    status = Status.FAILED if settlement.status is Status.COMPLETED else settlement.status
    return msgspec.structs.replace(
        settlement, status=status, outcome="failed", result=None, error=text, reason="its outcome could not be stored"
    )
