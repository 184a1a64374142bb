"""The books of a crew: which jobs are in which child, how many more it may have, and with whom a suspect may run.

Nothing here talks to a process; `crew.py` does, and keeps these books.
"""

import math
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from headway.lifecycle import Outcome
from headway.model import Claimed
from headway.worker.process import ChildProcess

PREFETCH_S: Final = 0.05
PREFETCH_MAX: Final = 2_000
SUSPECT: Final = re.compile("handed back: its process died while ([0-9]{1,6}) jobs ran in it")
SUSPECT_GROUPS: Final = 4


@dataclass(slots=True)
class Running:
    """A job that runs in a child, since when, and whether it is to stop."""

    claimed: Claimed
    number: int
    since: float
    timeout_s: float | None
    retries_timeouts: bool
    stop_as: Outcome | None = None
    stop_since: float = 0.0
    stage: int = 0


@dataclass(slots=True, eq=False)
class Post:
    """A child process at work: the jobs that run in it, and those that wait behind them."""

    kind: str
    width: int
    process: ChildProcess
    born: float
    is_solo: bool = False
    is_ready: bool = False
    is_leaving: bool = False
    deaf_since: float | None = None
    killed_because: str | None = None
    kill_sent: float = 0.0
    running: dict[str, Running] = field(default_factory=dict)
    waiting: deque[tuple[Claimed, int]] = field(default_factory=deque)
    unheard: dict[str, Claimed] = field(default_factory=dict)  # Done, but their outcomes are still over there.
    revoked: set[str] = field(default_factory=set)
    jobs: int = 0
    is_gone: bool = False
    stalled_since: float | None = None  # It was given jobs and began none; nothing was heard of it since.

    @property
    def load(self) -> int:
        """How many jobs are in it."""
        return len(self.running) + len(self.waiting) + len(self.unheard)


class Pool:
    """The children of one kind."""

    def __init__(self, kind: str, children_max: int, width: int) -> None:
        self.kind = kind
        self.children_max = children_max
        self.width = width
        self.children: list[Post] = []
        self.job_s = math.inf  # How long its jobs take, lately; nothing is prefetched until that is known.
        self.seen = 0
        self.suspects: deque[Claimed] = deque()
        self.kept: dict[str, dict[str, str]] = {}  # Finished steps of suspects, for when it is their turn.
        self.failures = 0
        self.spawn_at = 0.0

    def capacity_of(self, child: Post) -> int:
        """How many jobs a child may hold."""
        if not child.is_ready or child.is_leaving or child.is_solo or child.stalled_since is not None:
            return 0
        short = min(int(child.width * PREFETCH_S / self.job_s), PREFETCH_MAX)
        return child.width + short

    def capacity(self) -> int:
        """How many jobs the pool may hold."""
        return sum(map(self.capacity_of, self.children))

    def room(self) -> int:
        """How many more jobs the pool may be given. Suspects that wait for their turn count."""
        free = sum(max(0, self.capacity_of(child) - child.load) for child in self.children)
        return max(0, free - len(self.suspects))

    def learn(self, took_s: float, jobs: int) -> None:
        """Take note of how long some jobs took, one by one."""
        before = 2 * PREFETCH_S if math.isinf(self.job_s) else self.job_s
        # The mean of all at first, so that short jobs are soon recognised; later the last few dozen count.
        weight = min(0.8 ** min(jobs, 20), (self.seen + 1) / (self.seen + 1 + jobs))
        self.seen += jobs
        self.job_s = max(weight * before + (1 - weight) * took_s, 1e-5)


def company_of(claimed: Claimed) -> int:
    """Say with how many others at most a job may run that took part in the death of its process; 0 when it did not.

    They are tried in a few groups. The group of the one that did it dies again and is split further, until that one
    is alone and its crash is its own; all others go on as they were.
    """
    if claimed.reason.startswith("crashed, "):
        return 1
    suspect = SUSPECT.fullmatch(claimed.reason)
    return -(-int(suspect[1]) // SUSPECT_GROUPS) if suspect else 0
