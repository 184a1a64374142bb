"""Decide which jobs a claim takes: fair between tenants by the seconds they use, within all limits.

Each tenant of a queue has a *share*: the microseconds that its jobs took, divided by its weight. The tenant that has
used least is served next. A claim charges what a job is expected to take; what it really took is charged when it ends.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headway.core.instants import MILLISECOND, Duration
from headway.core.limits import Lane

COST_DEFAULT: Final = 50 * MILLISECOND  # Of a job, until the first ones of a tenant have ended.
COST_MIN: Final = MILLISECOND
TURN: Final = 20 * MILLISECOND  # Jobs of one tenant that together take less are claimed together.


@dataclass(slots=True)
class Share:
    """A tenant's share of a queue, as a claim reads it."""

    tenant: str
    vtime: int
    weight: int
    cost: Duration
    lanes: deque[Lane] = field(default_factory=deque)

    @property
    def charge(self) -> int:
        """What one job adds to the share."""
        return max(1, max(self.cost, COST_MIN) // max(1, self.weight))

    @property
    def at_once(self) -> int:
        """How many jobs are taken in one turn."""
        return max(1, TURN // max(self.cost, COST_MIN))


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """How many jobs to take of each lane, and the gate at which its next job has to wait."""

    most: dict[Lane, int]
    held: dict[Lane, str]


def plan_claim(
    shares: Iterable[Share],
    room: int,
    gates_of: Callable[[Lane], Sequence[str]],
    free: Mapping[str, int],
) -> ClaimPlan:
    """Divide the room between tenants, and the turns of a tenant between its lanes.

    `free` says how many jobs each gate lets start. A lane at a full gate, perhaps after some of its jobs, is in `held`.
    """
    left = dict(free)
    most: dict[Lane, int] = {}
    held: dict[Lane, str] = {}
    line = [(share.vtime, number, share) for number, share in enumerate(shares) if share.lanes]
    lanes = {share.tenant: deque(share.lanes) for _, _, share in line}
    heapq.heapify(line)
    while line and room > 0:
        vtime, number, share = heapq.heappop(line)
        mine = lanes[share.tenant]
        lane = mine.popleft()
        gates = gates_of(lane)
        full = next((gate for gate in gates if left[gate] <= 0), None)
        if full is not None:
            held[lane] = full
        else:
            taken = min(share.at_once, room, *(left[gate] for gate in gates))
            most[lane] = most.get(lane, 0) + taken
            room -= taken
            for gate in gates:
                left[gate] -= taken
            vtime += taken * share.charge
            mine.append(lane)
        if mine:
            heapq.heappush(line, (vtime, number, share))
    return ClaimPlan(most, held)
