"""Suspects are jobs that were running when workers were lost. They run apart, so the next loss shows the culprit.

A suspect's row says how many suspects may run together on its worker, and for how long after its start it stays apart:
twice the longest time it ever ran before its worker was lost. A suspect that must run alone is claimed by a worker with
no other job, which then claims nothing else. When all workers are busy, one of them makes room: it claims no jobs for
one minute of every four. A hash of the worker ids chooses which one. See ADR 33.
"""

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from headway.core.clock import Clock
from headway.core.errors import StoreUnavailable
from headway.core.instants import MINUTE, SECOND, Duration
from headway.core.jobs import Claimed, Suspect
from headway.core.needs import Offer, parse_needs
from headway.core.ports import SuspectClaims
from headway.worker.held import HeldAttempts

LOOK_MAX: Final = 50
UNFIT_MAX: Final = 1_000
ROUNDS: Final = 4  # Room is made in one minute of this many.


@dataclass(frozen=True, slots=True)
class _Watched:
    attempt: int
    company: int
    until: float


@dataclass(frozen=True, slots=True)
class Rival:
    """Another worker that shares our queues: its tasks, and what it offers."""

    tasks: frozenset[str]
    offer: Offer


class Suspects:
    """Track the suspects that this worker runs, and choose the next one to claim."""

    def __init__(
        self,
        work: SuspectClaims,
        held: HeldAttempts,
        *,
        clock: Clock,
        lease: Duration,
        poll_s: float,
        queues: Collection[str],
    ) -> None:
        self._work = work
        self._held = held
        self._clock = clock
        self._lease = lease
        self._poll_s = poll_s
        self._queues = queues
        self._look_at = 0.0
        self._found: list[Suspect] = []
        self._is_making_room = False
        self._watched: dict[str, _Watched] = {}
        self._unfit: set[str] = set()  # Needs of suspects that this worker does not offer.
        self.peers: Mapping[str, Rival] = {}  # Other workers that share our queues, by node.

    def keep_others_out(self) -> bool:
        """Return whether nothing else may be claimed now, because a suspect must run alone."""
        return self._is_making_room or any(one.company == 0 for one in self._still_watched().values())

    async def look(self, tasks: Collection[str]) -> None:
        """Look for ready suspects from time to time."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + self._poll_s
        found = await self._work.apart(tasks, self._queues, LOOK_MAX, unfit=self._unfit)
        self._found = [one for one in found if self._is_offered(one)]
        self._is_making_room = bool(self._held) and any(self._makes_room_for(one) for one in self._found)

    async def claim(self, tasks: Collection[str]) -> tuple[Claimed, float] | None:
        """Claim one of the suspects that were found, if it may run beside the current jobs.

        Return it and the time when the claim was sent.
        """
        suspect = self._choose(tasks)
        if suspect is None:
            return None
        self._found.remove(suspect)
        sent = self._clock.monotonic()
        try:
            taken = await self._work.claim_apart(suspect.job_id, node=self._clock.node, lease=self._lease)
        except StoreUnavailable:
            self._held.doubt()
            raise
        if taken is None:
            return None
        claimed, apart_for = taken
        self._watched[claimed.job_id] = _Watched(claimed.attempt, suspect.company, sent + apart_for / SECOND)
        return claimed, sent

    def _choose(self, tasks: Collection[str]) -> Suspect | None:
        if not self._found or not tasks:
            return None
        watched = self._still_watched()
        if self._is_making_room and self._held:
            return None
        if watched and len(watched) >= min(one.company for one in watched.values()):
            return None
        return next((one for one in self._found if one.task in tasks and self._fits(one, len(watched))), None)

    def _is_offered(self, suspect: Suspect) -> bool:
        """Return whether this worker offers what a suspect needs; leave out those like it from now on if not."""
        if not suspect.needs or self._held.capacity.offer.covers(parse_needs(suspect.needs)):
            return True
        if len(self._unfit) < UNFIT_MAX:
            self._unfit.add(suspect.needs)
        return False

    def _fits(self, suspect: Suspect, watched: int) -> bool:
        if suspect.needs and not self._held.capacity.fits(suspect.needs):
            return False
        return suspect.company > watched or (suspect.company <= 0 and not self._held)

    def _makes_room_for(self, suspect: Suspect) -> bool:
        minute = suspect.waited // MINUTE
        if suspect.company > 0 or minute % ROUNDS:
            return False
        needs = parse_needs(suspect.needs)
        able = [
            node
            for node, rival in self.peers.items()
            if suspect.task in rival.tasks and (not suspect.needs or rival.offer.covers(needs))
        ]
        return self._clock.node == min(
            [*able, self._clock.node], key=lambda node: zlib.crc32(f"{minute} {suspect.job_id} {node}".encode())
        )

    def _still_watched(self) -> dict[str, _Watched]:
        now = self._clock.monotonic()
        self._watched = {
            job_id: one
            for job_id, one in self._watched.items()
            if one.until > now and self._held.find(job_id, one.attempt) is not None
        }
        return self._watched
