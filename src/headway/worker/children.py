"""State of the children of one kind: how many jobs each may have, and how suspects are grouped.

Nothing here talks to a process; `child_pool.py` does and keeps this state up to date.
"""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headway.core.jobs import Claimed
from headway.worker.handover import Handover
from headway.worker.prefetch import PrefetchEstimator
from headway.worker.process import ChildProcess

SUSPECT: Final = re.compile("handed back: its process (?:died|was damaged) while ([0-9]{1,6}) jobs ran in it")
SUSPECT_GROUPS: Final = 4
LEAVING_MAX: Final = 4  # Children that only finish their jobs, in addition to those that take more.


@dataclass(slots=True, eq=False)
class ChildRecord:
    """A running child process and the jobs assigned to it."""

    kind: str
    width: int
    process: ChildProcess
    handover: Handover
    born: float
    is_solo: bool = False
    is_ready: bool = False
    is_leaving: bool = False
    deaf_since: float | None = None
    killed_because: str | None = None
    is_damaged: bool = False  # By one of its jobs; all of them are suspects.
    kill_sent: float = 0.0
    heard_at: float = 0.0  # When its last outcomes came.
    stalled_since: float | None = None  # It did not begin assigned jobs, and has sent nothing since.
    is_gone: bool = False
    is_stopping: bool = False  # A job in it was asked to stop; no other job may begin in it.
    unheard_since: float | None = None  # It has ended jobs without sending their outcomes.

    @property
    def load(self) -> int:
        """How many jobs it has."""
        return len(self.handover.jobs)


class KindPool:
    """The children of one kind."""

    def __init__(self, kind: str, children_max: int, width: int, max_jobs: int = 0) -> None:
        self.kind = kind
        self.children_max = children_max
        self.width = width
        self.max_jobs = max_jobs
        self.children: list[ChildRecord] = []
        self.prefetch = PrefetchEstimator()
        self.suspects: deque[Claimed] = deque()
        self.kept: dict[str, dict[str, str]] = {}  # Stored steps of waiting suspects.
        self.failures = 0
        self.spawn_at = 0.0

    def capacity_of(self, child: ChildRecord) -> int:
        """Return how many jobs a child may hold."""
        if (
            not child.is_ready
            or child.is_leaving
            or child.is_solo
            or child.is_stopping
            or child.stalled_since is not None
        ):
            return 0
        most = child.width + self.prefetch.prefetch_for(child.width)
        return min(most, child.load + self.max_jobs - child.handover.last) if self.max_jobs else most

    def capacity(self) -> int:
        """Return how many jobs the pool may hold."""
        return sum(map(self.capacity_of, self.children))

    def room(self) -> int:
        """Return how many more jobs fit. Waiting suspects count as taken."""
        free = sum(max(0, self.capacity_of(child) - child.load) for child in self.children)
        return max(0, free - len(self.suspects))

    def busy(self) -> int:
        """Return how many jobs have begun and not ended."""
        return sum(len(child.handover.running()) for child in self.children)

    def spread(self, jobs: Sequence[Claimed]) -> tuple[list[tuple[ChildRecord, list[Claimed]]], list[Claimed]]:
        """Divide jobs evenly over the children, giving none more than it can end soon.

        Return the parts, and the jobs that do not fit.
        """
        self.prefetch.mixed({claimed.task for claimed in jobs})
        children = sorted((child for child in self.children if self.capacity_of(child)), key=lambda child: child.load)
        total = sum(child.load for child in children) + len(jobs)
        parts: list[tuple[ChildRecord, list[Claimed]]] = []
        over: list[Claimed] = []
        start = 0
        for left, child in zip(range(len(children), 0, -1), children, strict=True):
            load = child.load
            share = max(0, -(-total // left) - load)
            total -= load + share
            part = jobs[start : start + share]
            start += share
            most = self.prefetch.fits((claimed.task for claimed in part), child.width, load)
            if self.max_jobs:
                most = min(most, self.max_jobs - child.handover.last)
            if most > 0:
                parts.append((child, list(part[:most])))
            over += part[max(0, most) :]
        return parts, [*over, *jobs[start:]]


def suspect_group_size(claimed: Claimed) -> int:
    """Return the largest group in which a suspect of its process's death may run; 0 if it is not a suspect.

    Suspects run in a few groups. The culprit's group dies again and is split further, until the culprit is alone and
    its crash is its own. All other jobs continue as before.
    """
    if claimed.reason.startswith("crashed, "):
        return 1
    suspect = SUSPECT.fullmatch(claimed.reason)
    return -(-int(suspect[1]) // SUSPECT_GROUPS) if suspect else 0
