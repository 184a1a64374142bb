"""Who has which job, and whom to tell of its end."""

from collections.abc import Iterable

from headway.core.jobs import Claimed
from headway.core.lifecycle import Outcome
from headway.worker.child_pool_port import Foreman
from headway.worker.children import Post
from headway.worker.handover import Given
from headway.worker.outcomes import WAITED


class Assignments:
    """Which child has which job. Every attempt that was given to a crew ends here exactly once, or is abandoned."""

    def __init__(self, foreman: Foreman | None) -> None:
        self.foreman = foreman  # The first child says which store it is, so it is there before the supervisor.
        self.where: dict[str, Post] = {}

    @property
    def supervisor(self) -> Foreman:
        """The supervisor, which is there before the first job."""
        assert self.foreman is not None, "a crew without a supervisor has no jobs"
        return self.foreman

    def find(self, job_id: str, attempt: int) -> tuple[Post, Given] | None:
        """Return an attempt that is with a child, and the child."""
        child = self.where.get(job_id)
        given = child.handover.find(job_id, attempt) if child is not None else None
        return None if child is None or given is None else (child, given)

    def end(self, claimed: Claimed, outcome: Outcome) -> None:
        """Tell the end of an attempt that is out of the books of its child."""
        self.where.pop(claimed.job_id, None)
        self.supervisor.ended(claimed, outcome)

    def hand_back(self, jobs: Iterable[Given]) -> None:
        """Return jobs that have not begun to the store. One that was cancelled meanwhile ends so."""
        for given in jobs:
            self.end(given.claimed, WAITED if given.stop_as is None else given.stop_as)

    def say_room(self) -> None:
        """There is room for more jobs, or the crew knows its tasks by now."""
        if self.foreman is not None:
            self.foreman.has_room()
