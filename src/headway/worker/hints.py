"""Hints: a worker with room waits for a message about ready jobs, so that each job wakes one worker only.

A worker takes a hint only while it has room for the job. The hint makes the claimer look into the queue as usual; the
store decides who gets the job. The worker acknowledges the hint after a claim that began later than the hint came. It
gives the hint back when another job has taken the room in the meantime. While hints arrive, the store's own
notifications about ready jobs are ignored. The periodic sweep continues and finds jobs that were not announced.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from headway.core.clock import RETRY_REST_S_MAX, RETRY_REST_S_MIN, Clock, cancel_until_done
from headway.core.errors import EngineUnavailable
from headway.core.ports import Hint, Transport

TAKE_MAX: Final = 10  # Few, so that one worker does not take every hint of a burst.
LOOK_S_MAX: Final = 5.0  # After this long, hints are given back to other workers.


class HealthPort(Protocol):
    """Track whether the transport answers."""

    @property
    def trouble(self) -> str | None:
        """Why the transport is not used; None while it works."""
        ...

    def miss(self, who: str, error: EngineUnavailable) -> None:
        """Record that the transport did not answer."""
        ...

    def meet(self, who: str) -> None:
        """Record that the transport answered."""
        ...


class HintSource(Protocol):
    """The transport that hints come from, and its health."""

    @property
    def transport(self) -> Transport:
        """The transport that carries hints."""
        ...

    @property
    def health(self) -> HealthPort:
        """The health of the transport."""
        ...


class ClaimerPort(Protocol):
    """Claim the jobs that hints announce."""

    def wants_hints(self) -> frozenset[str]:
        """Return the queues whose jobs fit now."""
        ...

    def take_hint(self, queues: Collection[str]) -> None:
        """Look into these queues now; into all queues when hints have stopped coming."""
        ...


class HintTaker:
    """Take hints for one worker. A `Loop` runs `tick`; the claimer reports where it has looked."""

    def __init__(
        self, source: HintSource, claimer: ClaimerPort, *, clock: Clock, poll_s: float, wake: Callable[[], None]
    ) -> None:
        self._transport = source.transport
        self._health = source.health
        self._claimer = claimer
        self._wake = wake
        self._clock = clock
        self._poll_s = poll_s
        self._attended: frozenset[str] = frozenset()
        self._known: set[str] = set()  # Queues that were ever attended: the server keeps their hints for this worker.
        self._open: set[str] = set()  # Queues with hints that the claimer has not followed yet.
        self._looked = asyncio.Event()
        self._stopping = asyncio.Event()
        self._failures = 0

    def brings(self, queue: str) -> bool:
        """Return whether jobs of this queue are announced by hints."""
        return queue in self._known and self.is_working

    @property
    def is_working(self) -> bool:
        """Whether hints arrive, as far as is known."""
        return bool(self._known) and self._health.trouble is None

    def looked_into(self, queues: Collection[str]) -> None:
        """Record that the claimer has looked into these queues after all hints for them had come."""
        self._open.difference_update(queues)
        wanted = self._claimer.wants_hints()
        if not self._open & wanted:
            self._looked.set()
        if wanted != self._attended:
            self._wake()

    def stop(self) -> None:
        """Take no more hints."""
        self._stopping.set()
        self._looked.set()
        self._wake()

    async def tick(self) -> float:
        """Take hints, let the claimer follow them, and acknowledge them."""
        try:
            await self._attend()
            if not self._attended:
                return self._poll_s
            hints = await self._take()
            self._failures = 0
            self._health.meet("worker")
            if hints:
                await self._follow(hints)
        except EngineUnavailable as error:
            return self._missed(error)
        return 0.0

    def _missed(self, error: EngineUnavailable) -> float:
        self._failures += 1
        self._attended = frozenset()
        self._known.clear()  # Without a channel the worker relies on the store's notifications.
        self._health.miss("worker", error)
        if self._failures == 1:
            self._claimer.take_hint(())  # Recent hints may not have arrived.
        return self._clock.backoff_s(self._failures + 1, first_s=RETRY_REST_S_MIN, most_s=RETRY_REST_S_MAX)

    async def _attend(self) -> None:
        wanted = frozenset() if self._stopping.is_set() else self._claimer.wants_hints()
        if wanted != self._attended:
            await self._transport.attend(wanted)
            self._attended = wanted
            self._known |= wanted

    async def _take(self) -> list[Hint]:
        """Wait for hints until asked to stop; hints of an interrupted wait are left to other workers."""
        taking = asyncio.ensure_future(self._transport.take(TAKE_MAX))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((taking, stopping), return_when=asyncio.FIRST_COMPLETED)
            return taking.result() if taking.done() else []
        finally:
            await cancel_until_done(taking, stopping)
            if not taking.cancelled():
                taking.exception()  # It may have failed at the same time; the next wait reports that.

    async def _follow(self, hints: Sequence[Hint]) -> None:
        wanted = self._claimer.wants_hints()
        good = [hint for hint in hints if hint.queue in wanted and not self._stopping.is_set()]
        self._open = {hint.queue for hint in good}
        if good:
            self._looked.clear()
            self._claimer.take_hint(self._open)
            await self._clock.rest(LOOK_S_MAX, self._looked)
        left = {hint.queue for hint in hints} - wanted | self._open
        self._open = set()
        done = [hint for hint in hints if hint.queue not in left]
        back = [hint for hint in hints if hint.queue in left]
        if done:
            await self._transport.acknowledge(done)
        if back:
            await self._transport.give_back(back)
