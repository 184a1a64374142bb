"""What a worker knows of lanes: which queues have them, and when to look again. Only hints: the store decides."""

from typing import Final

from headway.core.clock import Clock
from headway.core.instants import SECOND
from headway.core.ports import LaneClaim

QUEUES_MAX: Final = 1_000
PAST_MAX: Final = 1_000
CHARGE_EVERY_S: Final = 1.0


class LaneBook:
    """Remember the results of claims by lanes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: set[str] = set()
        # Until when a tenant's jobs in a queue, with some needs, are not looked at.
        self._past: dict[tuple[str, str, str], float] = {}
        self._unused: set[str] = set()
        self._full: set[str] = set()  # Gates at which lanes wait, as far as we have seen.
        self._look_at: float | None = None
        self._charge_at = 0.0

    def __contains__(self, queue: str) -> bool:
        return queue in self._queues

    def __len__(self) -> int:
        return len(self._queues)

    def add(self, queue: str) -> None:
        """Claim from this queue by lanes."""
        if len(self._queues) < QUEUES_MAX:
            self._queues.add(queue)

    def past(self, queue: str, needs: str = "") -> list[str]:
        """Return the tenants of whose jobs this worker could take none a moment ago."""
        now = self._clock.monotonic()
        self._past = {key: until for key, until in self._past.items() if until > now}
        return [tenant for of_queue, of_needs, tenant in self._past if (of_queue, of_needs) == (queue, needs)]

    def note(self, queue: str, claim: LaneClaim, past_s: float, *, needs: str = "") -> None:
        """Remember what a claim has found."""
        now = self._clock.monotonic()
        for tenant in claim.in_vain:
            if len(self._past) < PAST_MAX:
                self._past[queue, needs, tenant] = now + past_s
        self._full |= claim.full
        self._unused |= claim.unused & self._full
        if claim.look_in is not None:
            look_at = now + claim.look_in / SECOND
            self._look_at = look_at if self._look_at is None else min(self._look_at, look_at)
        if not needs and not claim.has_lanes and not claim.in_vain:
            self._queues.discard(queue)

    def take_unused(self) -> set[str]:
        """Return gates at which lanes wait although they have places."""
        unused, self._unused = self._unused, set()
        self._full -= unused
        return unused

    def is_due(self) -> bool:
        """Return whether a rate allows a start again, and forget it."""
        is_due = self._look_at is not None and self._look_at <= self._clock.monotonic()
        if is_due:
            self._look_at = None
        return is_due

    def rest_s(self) -> float:
        """Return the seconds until a rate allows a start."""
        if self._unused:
            return 0.0
        return 1e9 if self._look_at is None else max(0.001, self._look_at - self._clock.monotonic())

    def charges_now(self) -> bool:
        """Return whether it is time to charge tenants."""
        now = self._clock.monotonic()
        if now < self._charge_at:
            return False
        self._charge_at = now + CHARGE_EVERY_S
        return True
