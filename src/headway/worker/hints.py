"""Hints: a worker that has room waits for word of ready jobs, so that each job wakes one worker and not all of them.

A hint is taken only while there is room for its job. It makes the claimer look into its queue, in the ordinary way: the
store decides who gets what. It is acknowledged once a look that began after it came has ended, and given back when the
room went to another job meanwhile. While hints arrive, the store's own wake-ups about ready jobs are not listened to;
the sweep goes on, and finds what nobody announced.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from headway.core.clock import RETRY_REST_S_MAX, RETRY_REST_S_MIN, Clock, cancel_until_done
from headway.core.errors import EngineUnavailable
from headway.core.ports import Hint, Transport

TAKE_MAX: Final = 10  # Few, so that one worker does not take all that is announced of a burst.
LOOK_S_MAX: Final = 5.0  # How long a look into the store is waited for before its hints are left to others.


class HealthPort(Protocol):
    """Who hears whether the transport answers."""

    @property
    def trouble(self) -> str | None:
        """Why it is not relied on; None while it works."""
        ...

    def miss(self, who: str, error: EngineUnavailable) -> None:
        """It did not answer."""
        ...

    def meet(self, who: str) -> None:
        """It answered."""
        ...


class HintSource(Protocol):
    """The transport that hints come from, and its health."""

    @property
    def transport(self) -> Transport:
        """Who carries the hints."""
        ...

    @property
    def health(self) -> HealthPort:
        """Who hears whether it answers."""
        ...


class ClaimerPort(Protocol):
    """Who claims the jobs that hints are about."""

    def wants_hints(self) -> frozenset[str]:
        """Return the queues for whose jobs there is room now."""
        ...

    def take_hint(self, queues: Collection[str]) -> None:
        """Look into these queues now; into all of them when hints do not come any more."""
        ...


class HintTaker:
    """Takes hints for one worker. `tick` is run by a `Loop`; the claimer says where it has looked."""

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
        self._known: set[str] = set()  # The queues that we have ever attended: the server keeps their hints for us.
        self._open: set[str] = set()  # Queues with hints that nobody has looked into yet.
        self._looked = asyncio.Event()
        self._stopping = asyncio.Event()
        self._failures = 0

    def brings(self, queue: str) -> bool:
        """Say whether word of this queue's jobs comes as hints."""
        return queue in self._known and self.is_working

    @property
    def is_working(self) -> bool:
        """Whether hints arrive, as far as we know."""
        return bool(self._known) and self._health.trouble is None

    def looked_into(self, queues: Collection[str]) -> None:
        """The claimer has looked into these queues, after all hints for them had come."""
        self._open.difference_update(queues)
        wanted = self._claimer.wants_hints()
        if not self._open & wanted:
            self._looked.set()
        if wanted != self._attended:
            self._wake()

    def stop(self) -> None:
        """Take no more."""
        self._stopping.set()
        self._looked.set()
        self._wake()

    async def tick(self) -> float:
        """Take hints, have them looked into, and acknowledge them."""
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
        self._known.clear()  # Who hears nothing relies on the store again, until we have a channel again.
        self._health.miss("worker", error)
        if self._failures == 1:
            self._claimer.take_hint(())  # What was announced lately may not have reached us.
        return self._clock.backoff_s(self._failures + 1, first_s=RETRY_REST_S_MIN, most_s=RETRY_REST_S_MAX)

    async def _attend(self) -> None:
        wanted = frozenset() if self._stopping.is_set() else self._claimer.wants_hints()
        if wanted != self._attended:
            await self._transport.attend(wanted)
            self._attended = wanted
            self._known |= wanted

    async def _take(self) -> list[Hint]:
        """Wait for hints, unless we shall stop; what a wait that is broken off had taken is left to others."""
        taking = asyncio.ensure_future(self._transport.take(TAKE_MAX))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((taking, stopping), return_when=asyncio.FIRST_COMPLETED)
            return taking.result() if taking.done() else []
        finally:
            await cancel_until_done(taking, stopping)
            if not taking.cancelled():
                taking.exception()  # It may have failed at the same moment; then the next one says so.

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
