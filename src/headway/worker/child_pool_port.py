"""What the supervisor needs of whoever runs the jobs."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from headway.core.jobs import Claimed, Report
from headway.core.lifecycle import AttemptOutcome
from headway.worker.ipc import StoreRequest, TaskInfo


class SupervisorPort(Protocol):
    """Whom the child pool tells what happens: the supervisor."""

    def ended(self, claimed: Claimed, outcome: AttemptOutcome) -> None:
        """An attempt has ended; told exactly once, unless it was abandoned."""
        ...

    def reported(self, reports: Sequence[Report]) -> None:
        """Running attempts say something about themselves."""
        ...

    async def answer(self, ask: StoreRequest) -> str:
        """Answer a question of a task; `LeaseLost` when its attempt is over."""
        ...

    def has_room(self) -> None:
        """There is room for more jobs, or the child pool knows its tasks by now."""
        ...


class ChildPoolPort(Protocol):
    """Runs jobs in children, and tells the supervisor how they end."""

    def report_to(self, supervisor_port: SupervisorPort) -> None:
        """Tell this supervisor from now on what happens."""
        ...

    @property
    def tasks(self) -> Mapping[str, TaskInfo]:
        """The tasks that can be run here."""
        ...

    @property
    def kinds(self) -> dict[str, frozenset[str]]:
        """The tasks by the kind of place where they run."""
        ...

    def room(self, kind: str) -> int:
        """How many more jobs of this kind can be taken."""
        ...

    def slots(self, kind: str | None = None) -> int:
        """How many jobs can run at the same time; of one kind, or in all."""
        ...

    def busy(self, kind: str | None = None) -> int:
        """How many jobs have begun and not ended; of one kind, or in all."""
        ...

    def count(self) -> int:
        """How many children there are."""
        ...

    def start(self, jobs: Sequence[Claimed], kept: Mapping[str, dict[str, str]] | None = None) -> None:
        """Run jobs; each ends exactly once, unless it is abandoned."""
        ...

    def stop(self, job_id: str, attempt: int, outcome: AttemptOutcome) -> None:
        """Have a job stop; it ends with this outcome once it has."""
        ...

    def abandon(self, job_id: str, attempt: int) -> None:
        """Stop a job that is no longer ours, at once and without a word about its end."""
        ...

    def release_waiting(self, reason: str) -> None:
        """Hand back what has not begun."""
        ...

    def release_all(self, reason: str) -> None:
        """Hand back everything now."""
        ...

    def watch(self) -> None:
        """Look after what only time can show."""
        ...
