"""Occurrences: what is decided for the instants of a schedule.

A `Plan` is what the planner makes of a schedule: decisions, each for one instant or for a run of equal ones. An
`Occurrence` is a decision as the ledger recorded it.

`PlannedDecision` and `Plan` are msgspec structs: a struct is created ten times as fast as a frozen dataclass, which
counts when ten thousand schedules are due at once.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec

from headway.core.instants import Instant
from headway.core.schedules import Schedule
from headway.core.tenants import DEFAULT_TENANT


class Decided(StrEnum):
    """The outcome of an occurrence."""

    FIRED = "fired"
    SKIPPED = "skipped"
    MISSED = "missed"
    COALESCED = "coalesced"
    PAUSED = "paused"


class ByHand(StrEnum):
    """How an operator starts jobs of a schedule beside its instants. It creates no occurrence."""

    TRIGGERED = "triggered"
    BACKFILLED = "backfilled"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJobs:
    """The live jobs of one schedule, oldest first: running ones and waiting ones."""

    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()

    @property
    def last(self) -> str | None:
        """The job that a new one has to wait for."""
        return (self.waiting or self.running or (None,))[-1]


class PlannedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What is decided for one instant, or for a run of equal instants from `instant` to `until`."""

    instant: Instant
    outcome: Decided
    reason: str
    until: Instant | None = None
    count: int = 1
    start_at: Instant | None = None
    waits: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All decisions for one schedule up to `decided_through`, and when to look again."""

    schedule: Schedule
    now: Instant
    decisions: tuple[PlannedDecision, ...]
    decided_through: Instant
    next_at: Instant | None
    live: LiveJobs = LiveJobs()
    replaces: bool = False

    @property
    def fires(self) -> int:
        """The number of jobs that the plan creates."""
        return sum(decision.outcome is Decided.FIRED for decision in self.decisions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One recorded decision of the ledger; the runs of a schedule also include jobs started by hand."""

    schedule: str
    instant: Instant
    outcome: Decided | ByHand
    reason: str
    decided_at: Instant
    until: Instant | None = None
    count: int = 1
    revision: int = 1
    token: int = 0
    job_id: str | None = None
    tenant: str = DEFAULT_TENANT


class Cursor(NamedTuple):
    """How far a schedule is decided: its key, the time, and its tenant."""

    key: str
    decided_through: Instant
    tenant: str = DEFAULT_TENANT
