"""Assign jobs to children with room, in as many IPC frames as needed; run suspects in children of their own."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from headway.core.clock import Clock
from headway.core.instants import Instant
from headway.core.jobs import Claimed
from headway.core.lifecycle import AttemptOutcome, Parked, Released
from headway.worker.assignments import Assignments
from headway.worker.child_processes import ChildProcesses
from headway.worker.children import ChildRecord, KindPool, suspect_group_size
from headway.worker.ipc import FrameTooLarge, Run
from headway.worker.outcomes import WAITED

RUN_BYTES_MAX: Final = 8 << 20  # Arguments and stored steps in one frame.


class Dispatcher:
    """Assign jobs to children."""

    def __init__(self, processes: ChildProcesses, assignments: Assignments, clock: Clock) -> None:
        self._processes = processes
        self._assignments = assignments
        self._clock = clock

    def start(self, jobs: Sequence[Claimed], kept: Mapping[str, dict[str, str]] | None = None) -> None:
        """Assign jobs to children that have room for them."""
        for kind, names in self._processes.kinds.items():
            mine = jobs if len(self._processes.kinds) == 1 else [claimed for claimed in jobs if claimed.task in names]
            if mine:
                self._distribute(self._processes.pools[kind], mine, kept or {})

    def _distribute(self, pool: KindPool, jobs: Sequence[Claimed], kept: Mapping[str, dict[str, str]]) -> None:
        if pool.kind != "process":
            suspects = [claimed for claimed in jobs if claimed.reason and suspect_group_size(claimed)]
            pool.suspects.extend(suspects)
            pool.kept.update({claimed.job_id: kept[claimed.job_id] for claimed in suspects if claimed.job_id in kept})
            jobs = [claimed for claimed in jobs if not (claimed.reason and suspect_group_size(claimed))]
        parts, over = pool.spread(jobs)
        for child, part in parts:
            self.assign(child, part, kept)
        for claimed in over:  # They take longer than estimated, or children have just exited.
            self._assignments.end(claimed, WAITED)
        self.try_suspects(pool)

    def assign(self, child: ChildRecord, jobs: list[Claimed], kept: Mapping[str, dict[str, str]]) -> None:
        """Assign jobs to one child."""
        first = child.handover.give(jobs, self._clock.monotonic())
        for claimed in jobs:
            self._assignments.where[claimed.job_id] = child
        for part in in_frames(jobs, kept):
            self._send_jobs(child, first, part, kept)
            first += len(part)

    def _send_jobs(
        self, child: ChildRecord, first: int, jobs: list[Claimed], kept: Mapping[str, dict[str, str]]
    ) -> None:
        deadlines: dict[str, Instant] = {}
        for claimed in jobs:
            timeout = claimed.timeout or self._processes.tasks[claimed.task].timeout
            if timeout is not None:
                deadlines[claimed.job_id] = self._clock.now() + timeout
        steps = {claimed.job_id: kept[claimed.job_id] for claimed in jobs if claimed.job_id in kept} if kept else {}
        try:
            child.process.send(Run(first, jobs, deadlines, steps))
        except FrameTooLarge as error:
            if len(jobs) > 1:
                middle = len(jobs) // 2
                self._send_jobs(child, first, jobs[:middle], kept)
                self._send_jobs(child, first + middle, jobs[middle:], kept)
            elif (assigned := child.handover.end(jobs[0].job_id, jobs[0].attempt)) is not None:
                reason = f"its arguments and finished steps cannot be handed to a process: {error}"
                self._assignments.end(assigned.claimed, Parked(reason, "too large"))

    def try_suspects(self, pool: KindPool) -> None:
        """Start suspects in children of their own, in groups of the size that each allows."""
        if not pool.suspects:
            pool.kept.clear()
            return
        solos = self._processes.solos(pool)
        for _ in range(len(pool.suspects)):
            suspect = pool.suspects.popleft()
            company = suspect_group_size(suspect)
            fit = (child for child in solos if child.is_ready and child.load < child.width <= company)
            solo = next(fit, None)
            if solo is None:
                pool.suspects.append(suspect)
            else:
                kept = pool.kept.pop(suspect.job_id, None)
                self.assign(solo, [suspect], {} if kept is None else {suspect.job_id: kept})

    def drop_suspect(self, job_id: str, attempt: int, outcome: AttemptOutcome | None) -> None:
        """Remove a waiting suspect; report this outcome, or nothing."""
        for pool in self._processes.pools.values():
            for claimed in [each for each in pool.suspects if (each.job_id, each.attempt) == (job_id, attempt)]:
                pool.suspects.remove(claimed)
                if outcome is not None:
                    self._assignments.end(claimed, outcome)

    def release_suspects(self, outcome: Released) -> None:
        """Hand back the suspects that are waiting."""
        for pool in self._processes.pools.values():
            while pool.suspects:
                self._assignments.end(pool.suspects.popleft(), outcome)


def in_frames(jobs: list[Claimed], kept: Mapping[str, dict[str, str]]) -> Iterator[list[Claimed]]:
    """Divide jobs into as many frames as their arguments and stored steps need."""
    part: list[Claimed] = []
    size = 0
    for claimed in jobs:
        more = len(claimed.args)
        if kept and claimed.job_id in kept:
            more += sum(map(len, kept[claimed.job_id].values()))
        if part and size + more > RUN_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(claimed)
        size += more
    yield part
