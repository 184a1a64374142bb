"""What all kinds of children share: which jobs they have, and how an attempt begins and ends.

A task may fork. The copy must not act for the job: it exits where its task returns.
"""

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, assert_never

from headway.core.jobs import Claimed
from headway.tasks.context import Context
from headway.tasks.store_requests import JobFactory
from headway.worker.attempt import Ended, TasksByName
from headway.worker.child_connection import ChildConnection
from headway.worker.handover import Inbox
from headway.worker.ipc import (
    Failed,
    FailedInDamagedProcess,
    Finish,
    Flush,
    ReplacementRequest,
    Reports,
    Run,
    SharedCounters,
    Skipped,
    Stop,
    StoreResponse,
    ToChild,
)
from headway.worker.process_state import ProcessState


class ChildSetup(NamedTuple):
    """What a child is created with; `width` is how many jobs it runs at a time."""

    socket: socket.socket
    counters: SharedCounters
    registry: TasksByName
    job_factory: JobFactory | None
    width: int


class ChildBase(ChildConnection):
    """Run jobs for the supervisor; subclasses decide where the jobs run."""

    def __init__(self, setup: ChildSetup) -> None:
        super().__init__(setup.socket)
        self._counters = setup.counters
        self._registry = setup.registry
        self._job_factory = setup.job_factory
        self._width = setup.width
        self._inbox: Inbox[Claimed] = Inbox(setup.counters)
        self._finishing = False
        self._is_spent = False
        self._process_state = ProcessState()
        self._active = 0  # Jobs that run now.
        self._company = 0  # Jobs that ran since the process state was last known to be intact.
        self._contexts: dict[str, Context] = {}
        self._deadlines: dict[tuple[str, int], int] = {}  # By job and attempt.
        self._kept: dict[tuple[str, int], Mapping[str, str]] = {}  # Stored steps, by job and attempt.
        self._asked_to_stop: dict[str, int] = {}  # The attempt, by job.

    # --- messages of the supervisor

    def _hear(self, message: ToChild) -> None:
        match message:
            case Run(first, jobs, deadlines, kept):
                if deadlines or kept or self._asked_to_stop:
                    self._note_terms(jobs, deadlines, kept)
                self._inbox.put(first, jobs)
                self.wake(len(jobs))
            case Stop(job_id, attempt):
                self._asked_to_stop[job_id] = attempt
                context = self._contexts.get(job_id)
                if context is not None and context.attempt == attempt:
                    context.stop()
                self.stop(job_id, attempt)
            case StoreResponse(number):
                hear = self._questions.pop(number, None)
                if hear is not None:
                    hear(message)
            case Flush():
                self.flush()
            case Finish():
                self._finishing = True
                self.wake(self._width)
            case _:
                assert_never(message)

    def _note_terms(self, jobs: list[Claimed], deadlines: Mapping[str, int], kept: Mapping[str, Any]) -> None:
        """Remember the deadlines and stored steps of attempts until they begin."""
        for claimed in jobs:
            job_id, attempt = claimed.job_id, claimed.attempt
            if job_id in deadlines:
                self._deadlines[job_id, attempt] = deadlines[job_id]
            if job_id in kept:
                self._kept[job_id, attempt] = kept[job_id]
            self._asked_to_stop.pop(job_id, None)  # That request was for an earlier attempt, after its end.

    def _forget(self, job_id: str, attempt: int) -> None:
        """Drop the terms of an attempt that has ended or will not begin; a later attempt may be here already."""
        if self._deadlines:
            self._deadlines.pop((job_id, attempt), None)
        if self._kept:
            self._kept.pop((job_id, attempt), None)
        if self._asked_to_stop and self._asked_to_stop.get(job_id) == attempt:
            self._asked_to_stop.pop(job_id, None)

    # --- overridden by each kind

    def wake(self, jobs: int) -> None:
        """Begin jobs that have arrived, or exit when there is nothing more to do."""
        raise NotImplementedError

    def stop(self, job_id: str, attempt: int) -> None:
        """Ask a job to stop, in addition to telling its context."""

    def run(self) -> None:
        """Run jobs until there is nothing more to do."""
        raise NotImplementedError

    # --- one attempt

    def context_of(self, claimed: Claimed) -> Callable[[], Context]:
        """Return a function that makes the context of a job; most tasks never need one."""

        def make() -> Context:
            context = Context(
                claimed,
                self,
                job_factory=self._job_factory,
                kept=self._kept.get((claimed.job_id, claimed.attempt)),
                deadline_at=self._deadlines.get((claimed.job_id, claimed.attempt)),
                clock=self._clock,
            )
            self._contexts[claimed.job_id] = context
            if claimed.job_id in self._asked_to_stop:  # It was asked to stop before it had a context.
                context.stop()
            return context

        return make

    def was_asked(self, job_id: str) -> bool:
        """Return whether a job has been asked to stop."""
        return job_id in self._asked_to_stop

    def skip(self) -> bool:
        """Drop withdrawn jobs and report them; return whether there were any."""
        skipped = self._inbox.skip()
        if skipped:
            for _, claimed in skipped:
                self._forget(claimed.job_id, claimed.attempt)
            self.buffer(Skipped(skipped[0][0], skipped[-1][0]))
        return bool(skipped)

    def enter(self) -> None:
        """Count a job that begins."""
        self._active += 1
        self._company += 1

    def leave(self, claimed: Claimed, ended: Ended) -> None:
        """Finish an attempt. A failure in a damaged process does not count, unless the job was alone in it."""
        if self._is_copy:
            _end_copy()
        self._active -= 1
        if isinstance(ended, Failed) and self._company > 1 and (damage := self.damage()):
            self.ended(
                claimed, FailedInDamagedProcess(claimed.job_id, claimed.attempt, self._company, ", ".join(damage))
            )
            self.tidy()
        else:
            self.ended(claimed, ended)

    def damage(self) -> list[str]:
        """Name the shared state that tasks have changed."""
        return self._process_state.changes()

    def repair(self) -> str | None:
        """Restore the shared state that tasks have changed; return what cannot be restored."""
        return self._process_state.restore()

    def tidy(self) -> None:
        """Restore the process state, or ask to be replaced and begin nothing more. Called while no job runs."""
        left = self.repair()
        if self._active == 0:
            self._company = 0
        if left is not None and not self._is_spent:
            self._is_spent = True
            self.buffer(ReplacementRequest(f"a task changed process state that cannot be restored: {left}"))

    def ended(self, claimed: Claimed, ended: Ended | FailedInDamagedProcess) -> None:
        """Buffer the outcome of an attempt, after its last report."""
        context = self._contexts.pop(claimed.job_id, None) if self._contexts else None
        if context is not None:
            with self._telling:
                self._noted.pop(claimed.job_id, None)
                report = context.take_report()
                if report is not None:
                    self.buffer(Reports([report]))
        self._forget(claimed.job_id, claimed.attempt)
        self.buffer(ended)


def _end_copy() -> NoReturn:
    """Exit from the forked copy of a child: its task has returned, and the job belongs to the parent."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)
