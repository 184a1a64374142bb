"""The port between the supervisor and the child pool that runs the jobs."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from headway.core.jobs import Claimed, Report
from headway.core.lifecycle import AttemptOutcome
from headway.worker.ipc import StoreRequest, TaskInfo


class SupervisorPort(Protocol):
    """Whom the child pool tells what happens: the supervisor."""

    def ended(self, claimed: Claimed, outcome: AttemptOutcome) -> None:
        """Report that an attempt has ended: exactly once, unless it was abandoned."""
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
    """Run jobs in children and report to the supervisor how they end."""

    def report_to(self, supervisor_port: SupervisorPort) -> None:
        """Tell this supervisor from now on what happens."""
        ...

    @property
    def tasks(self) -> Mapping[str, TaskInfo]:
        """The tasks that can run here."""
        ...

    @property
    def kinds(self) -> dict[str, frozenset[str]]:
        """The tasks by the kind of child that runs them."""
        ...

    def room(self, kind: str) -> int:
        """Return how many more jobs of this kind fit."""
        ...

    def slots(self, kind: str | None = None) -> int:
        """Return how many jobs can run at the same time, of one kind or in total."""
        ...

    def busy(self, kind: str | None = None) -> int:
        """Return how many jobs have begun and not ended, of one kind or in total."""
        ...

    def count(self) -> int:
        """Return the number of children."""
        ...

    def start(self, jobs: Sequence[Claimed], kept: Mapping[str, dict[str, str]] | None = None) -> None:
        """Run jobs. Each ends exactly once, unless it is abandoned."""
        ...

    def stop(self, job_id: str, attempt: int, outcome: AttemptOutcome) -> None:
        """Stop a job; report this outcome once it has stopped."""
        ...

    def abandon(self, job_id: str, attempt: int) -> None:
        """Kill a job whose lease is lost, and report nothing about it."""
        ...

    def is_stopping(self, job_id: str, attempt: int) -> bool:
        """Return whether the code of an abandoned attempt may still run."""
        ...

    def release_waiting(self, reason: str) -> None:
        """Hand back every job that has not begun."""
        ...

    def release_all(self, reason: str) -> None:
        """Hand back every job now."""
        ...

    def watch(self) -> None:
        """Check time-outs, stalled children and dead children."""
        ...
