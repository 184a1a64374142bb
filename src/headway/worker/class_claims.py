"""Claim jobs with needs: only those that fit, and so that large ones are not starved by small ones.

A class is a queue with what its jobs need. This worker asks for the classes that its offer covers, as many jobs of each
as fit into what is free. The classes of a queue take turns; jobs without needs count as one of them.

A job that this worker could run if less of its offer were in use *keeps its place* after `PLACE_AFTER`: what it needs
is left free for it, so other jobs that need the same wait. One worker does so at first, and twice as many each minute
(`keeps_place`). All this only orders the claims: the store decides which job a worker gets, within all limits.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headway.core.clock import Clock
from headway.core.errors import StoreUnavailable
from headway.core.instants import SECOND, Duration
from headway.core.jobs import Claimed
from headway.core.needs import Amounts, Needs, parse_needs, times
from headway.core.ports import Claims, LaneClaim
from headway.core.worker_offers import WorkerOffer, keeps_place
from headway.worker.capacity import less
from headway.worker.held import HeldAttempts
from headway.worker.lane_book import LaneBook

CLASSES_MAX: Final = 1_000  # Classes that fit here and are remembered.
PLACE_AFTER: Final = 10 * SECOND

Class = tuple[str, str]  # A queue, and what its jobs need.
Usual = Callable[[int], Awaitable[tuple[Sequence[Claimed], bool]]]  # Claim so many jobs without needs.


@dataclass(slots=True)
class _Known:
    """A class that has ready jobs, and whose needs this worker offers."""

    needs: Needs
    look_at: float = 0.0  # Not before this time, since the last look found nothing to do.
    seen_at: float = 0.0
    waited: Duration = 0  # How long its next job had waited at the last look, if it did not fit.
    waited_at: float | None = None  # When that was; None if it fits, or nothing is waiting.


class ClassClaims:
    """Track the classes that this worker can run, and claim from them."""

    def __init__(
        self, work: Claims, held: HeldAttempts, lanes: LaneBook, *, clock: Clock, poll_s: float, queues: Collection[str]
    ) -> None:
        self._work = work
        self._held = held
        self._lanes = lanes
        self._clock = clock
        self._poll_s = poll_s
        self._queues = queues
        self._known: dict[Class, _Known] = {}
        self._turns: dict[str, int] = {}
        self._read_at = -1e9
        self._taken: Amounts = {}  # By the claims of this call; its attempts are not held yet.
        self.peers: Sequence[WorkerOffer] = ()

    @property
    def is_on(self) -> bool:
        """Whether this worker offers anything; otherwise it takes jobs without needs only."""
        return bool(self._held.capacity.offer)

    def hear(self, queue: str | None = None) -> None:
        """Look for classes soon: one of this queue, or of any, may have got ready jobs."""
        self._read_at = -1e9
        for (known, _), one in self._known.items():
            if queue == known and one.waited_at is None:  # One that waits for room does so whatever else is ready.
                one.look_at = 0.0

    async def find(self) -> set[str]:
        """Read from time to time which classes have ready jobs; return their queues."""
        now = self._clock.monotonic()
        if not self.is_on or now - self._read_at < self._poll_s:
            return set()
        self._read_at = now
        self._note(await self._work.classes(), now)
        return {queue for queue, _ in self._known}

    def _note(self, found: Iterable[Class], now: float) -> None:
        for queue, text in found:
            if self._queues and queue not in self._queues:
                continue
            needs = parse_needs(text)
            if needs is None or not self._held.capacity.offer.covers(needs):
                continue
            if (queue, text) in self._known or len(self._known) < CLASSES_MAX:
                self._known.setdefault((queue, text), _Known(needs)).seen_at = now
        # If there are many, they are read in turns.
        kept_s = 30.0 * self._poll_s if len(self._known) > CLASSES_MAX // 4 else 2.5 * self._poll_s
        self._known = {key: one for key, one in self._known.items() if now - one.seen_at < kept_s}

    async def claim(self, queue: str, limit: int, skip: Collection[str], usual: Usual) -> tuple[list[Claimed], bool]:
        """Claim up to `limit` jobs of a queue, with and without needs; return them, and whether there may be more."""
        self._taken = {}
        if len(self._turns) > CLASSES_MAX:
            self._turns.clear()
        self._turns[queue] = self._turns.get(queue, 0) + 1
        jobs: list[Claimed] = []
        done: set[str] = set()
        may_be_more = False
        while (text := next((one for one in self._order(queue) if one not in done), None)) is not None:
            room = limit - len(jobs)
            if room <= 0:
                return jobs, True
            try:
                got, is_more = await (self._claim_class(queue, text, room, skip) if text else usual(room))
            except StoreUnavailable:
                if not jobs:
                    raise
                self._held.doubt()  # The claims before were answered, so their jobs can begin.
                return jobs, True
            done.add(text)
            jobs += got
            may_be_more |= is_more
        return jobs, may_be_more

    def _order(self, queue: str) -> list[str]:
        """Return the classes of a queue: those that keep their place, then the others, which take turns."""
        texts = ["", *(text for known, text in self._known if known == queue)]
        turn = self._turns[queue] % len(texts)
        line = sorted(self._line(self._clock.monotonic()), reverse=True)
        first = [text for _, (known, text) in line if known == queue]
        return [*first, *(text for text in texts[turn:] + texts[:turn] if text not in first)]

    def _line(self, now: float) -> list[tuple[Duration, Class]]:
        """Return the classes that keep their place here, each with how long its next job has waited."""
        line = []
        for (queue, text), one in self._known.items():
            if one.waited_at is None:
                continue
            waited = one.waited + round((now - one.waited_at) * SECOND)
            if waited >= PLACE_AFTER and keeps_place(self._clock.node, self.peers, queue, one.needs, waited):
                line.append((waited, (queue, text)))
        return line

    def _free_for(self, one: Class, now: float) -> Amounts:
        """Return what is free for a class: beside what runs, and what those that keep their place before it need."""
        free = self._held.capacity.free()
        free = {name: amount - self._taken.get(name, 0) for name, amount in free.items()}
        line = sorted(self._line(now), reverse=True)
        mine = next((entry for entry in line if entry[1] == one), None)
        for entry in line:
            if entry[1] != one and (mine is None or entry > mine):
                free = less(free, self._known[entry[1]].needs)
        return free

    async def _claim_class(
        self, queue: str, text: str, room: int, skip: Collection[str]
    ) -> tuple[Sequence[Claimed], bool]:
        now = self._clock.monotonic()
        known = self._known[queue, text]
        count = times(known.needs, self._free_for((queue, text), now), room)
        if now < known.look_at and (count == 0 or known.waited_at is None):
            return (), known.waited_at is not None
        claim = await self._work.claim_lanes(
            queue,
            node=self._clock.node,
            lease=self._held.lease,
            limit=count,
            skip=skip,
            past=self._lanes.past(queue, text),
            needs=text,
        )
        self._lanes.note(queue, claim, self._poll_s, needs=text)
        self.heard_of(queue, claim.classes)
        if count == 0:
            return (), self._note_wait(known, claim, now)
        for name, amount in known.needs.amounts.items():
            self._taken[name] = self._taken.get(name, 0) + amount * len(claim.jobs)
        known.waited_at = None
        is_more = claim.has_more or len(claim.jobs) == count
        known.look_at = 0.0 if is_more else now + self._poll_s
        return claim.jobs, is_more

    def _note_wait(self, known: _Known, claim: LaneClaim, now: float) -> bool:
        """Remember how long the next job of a class waits that does not fit now."""
        known.look_at = now + self._poll_s
        known.waited_at = None if claim.waited is None else now
        known.waited = claim.waited or 0
        return claim.waited is not None

    def heard_of(self, queue: str, texts: Collection[str]) -> None:
        """Note classes of a queue that have just got ready jobs."""
        if not texts or not self.is_on:
            return
        self._note([(queue, text) for text in texts], self._clock.monotonic())
        for text in texts:
            if (one := self._known.get((queue, text))) is not None and one.waited_at is None:
                one.look_at = 0.0
