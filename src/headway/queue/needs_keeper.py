"""The needs keeper's tick: park ready jobs that need what no worker has offered for minutes, and unpark them in time.

A parked job names the part that is missing. A worker that offers it lets the job go on, at its place in the queue.
Without any live worker nothing is parked: then everything waits.
"""

from collections.abc import Callable, Sequence
from typing import Final

from headway.core.clock import Clock
from headway.core.instants import MINUTE, SECOND
from headway.core.needs import missing_words, parse_needs
from headway.core.ports import NodeRegistry
from headway.core.upkeep_ports import NeedsUpkeep
from headway.core.worker_offers import WorkerOffer, offers_of

LOOK_EVERY_S: Final = 5.0
ALIVE_WITHIN: Final = 10 * SECOND
PARK_AFTER_S: Final = 5 * MINUTE / SECOND
FORGET_AFTER_S: Final = MINUTE / SECOND  # A class that was not seen for so long begins anew.
UNREADABLE: Final = "needs that cannot be read, so nobody offers them"


class NeedsKeeper:
    """Parks and unparks jobs by what live workers offer. A `Loop` runs `tick`."""

    def __init__(self, queue: NeedsUpkeep, nodes: NodeRegistry, *, clock: Clock, is_mine: Callable[[], bool]) -> None:
        self._queue = queue
        self._nodes = nodes
        self._clock = clock
        self._is_mine = is_mine
        self._look_at = 0.0
        self._unoffered: dict[tuple[str, str], tuple[float, float]] = {}  # Since when; when it was seen last.

    async def tick(self) -> float:
        """Look at the classes of all queues from time to time; return 0 while there is more to do."""
        now = self._clock.monotonic()
        if not self._is_mine():
            self._unoffered.clear()  # Another node has looked meanwhile, so this one knows nothing for sure.
            return LOOK_EVERY_S
        if now < self._look_at:
            return self._look_at - now
        waiting, parked = await self._queue.waiting(), await self._queue.parked()
        is_more = bool(waiting or parked) and await self._keep(waiting, parked, now)
        self._forget(now)
        if not is_more:
            self._look_at = now + LOOK_EVERY_S
        return 0.0 if is_more else LOOK_EVERY_S

    async def _keep(self, waiting: Sequence[tuple[str, str]], parked: Sequence[tuple[str, str]], now: float) -> bool:
        workers = offers_of(await self._nodes.alive(ALIVE_WITHIN))
        moved = 0
        for queue, needs in parked:
            if _missing(needs, queue, workers) is None:
                moved += await self._queue.unpark(queue, needs)
        for queue, needs in waiting:
            words = _missing(needs, queue, workers) if workers else None
            if words is None:
                self._unoffered.pop((queue, needs), None)
                continue
            since, _ = self._unoffered.get((queue, needs), (now, now))
            self._unoffered[queue, needs] = since, now
            if now - since >= PARK_AFTER_S:
                moved += await self._queue.park(queue, needs, words)
        return moved > 0

    def _forget(self, now: float) -> None:
        """Forget classes without ready jobs."""
        known = self._unoffered.items()
        self._unoffered = {one: times for one, times in known if now - times[1] < FORGET_AFTER_S}


def _missing(text: str, queue: str, workers: Sequence[WorkerOffer]) -> str | None:
    """Name what no worker of a queue offers; None if one offers all of it."""
    needs = parse_needs(text)
    if needs is None:
        return UNREADABLE
    return missing_words(needs, [worker.offer for worker in workers if worker.takes(queue)])
