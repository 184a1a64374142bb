"""Track which child has which job, and report the end of each attempt to the supervisor."""

from collections.abc import Iterable

from headway.core.jobs import Claimed
from headway.core.lifecycle import AttemptOutcome
from headway.worker.child_pool_port import SupervisorPort
from headway.worker.children import ChildRecord
from headway.worker.handover import AssignedJob
from headway.worker.outcomes import WAITED


class Assignments:
    """Track which child has which job. Every attempt given to a child pool ends here exactly once, or is abandoned."""

    def __init__(self, supervisor_port: SupervisorPort | None) -> None:
        self.supervisor_port = (
            supervisor_port  # The first child says which store it is, so it is there before the supervisor.
        )
        self.where: dict[str, ChildRecord] = {}
        self.stopping: dict[
            tuple[str, int], ChildRecord
        ] = {}  # Abandoned attempts that ran in children that are killed.

    @property
    def supervisor(self) -> SupervisorPort:
        """The supervisor; it is attached before the first job."""
        assert self.supervisor_port is not None, "a child pool without a supervisor has no jobs"
        return self.supervisor_port

    def find(self, job_id: str, attempt: int) -> tuple[ChildRecord, AssignedJob] | None:
        """Return an assigned attempt and its child; None when no child has it."""
        child = self.where.get(job_id)
        assigned = child.handover.find(job_id, attempt) if child is not None else None
        return None if child is None or assigned is None else (child, assigned)

    def bury(self, child: ChildRecord) -> None:
        """Note that a child and all that it started are gone."""
        self.stopping = {attempt: where for attempt, where in self.stopping.items() if where is not child}

    def end(self, claimed: Claimed, outcome: AttemptOutcome) -> None:
        """Report the outcome of an attempt that its child no longer has."""
        self.where.pop(claimed.job_id, None)
        self.supervisor.ended(claimed, outcome)

    def hand_back(self, jobs: Iterable[AssignedJob]) -> None:
        """Hand back jobs that have not begun. A job that was cancelled in the meantime ends as cancelled."""
        for assigned in jobs:
            self.end(assigned.claimed, WAITED if assigned.stop_as is None else assigned.stop_as)

    def say_room(self) -> None:
        """Tell the supervisor that there is room for more jobs, or that the tasks are known now."""
        if self.supervisor_port is not None:
            self.supervisor_port.has_room()
