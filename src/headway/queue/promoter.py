"""The promoter's tick: make due jobs ready."""

from collections.abc import Callable
from typing import Final

from headway.core.clock import Clock
from headway.core.events import JobsPromoted, emit
from headway.core.instants import SECOND, Duration
from headway.core.ports import Promotion

BATCH: Final = 1_000
REST_S_MIN: Final = 0.001


class Promoter:
    """Moves due SCHEDULED, RETRYING and BLOCKED jobs to PENDING. A `Loop` runs `tick`."""

    def __init__(self, queue: Promotion, *, clock: Clock, is_mine: Callable[[], bool], poll: Duration) -> None:
        self._queue = queue
        self._clock = clock
        self._is_mine = is_mine
        self._poll_s = poll / SECOND
        self._in_vain = 0

    async def tick(self) -> float:
        """Promote due jobs and return the seconds until the next one."""
        if not self._is_mine():
            return self._poll_s
        next_at = await self._queue.next_promotion()
        if next_at is None:
            return self._poll_s
        rest_s = (next_at - self._clock.now()) / SECOND
        if rest_s > 0:
            return min(max(rest_s, REST_S_MIN), self._poll_s)
        promoted = await self._queue.promote(BATCH)
        if not promoted:  # We woke a moment early, or a job is blocked: ask again, with back-off.
            self._in_vain += 1
            return min(REST_S_MIN * 2.0 ** min(self._in_vain, 20), self._poll_s)
        self._in_vain = 0
        emit(JobsPromoted(node=self._clock.node, count=promoted))
        return 0.0
