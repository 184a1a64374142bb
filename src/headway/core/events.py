"""Events of this process.

Loops call `emit(event)` and continue; log lines, the live view, the simulation's checkers and tests subscribe. These
events only describe this process. They are not the ledger: durable facts are in the store.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import msgspec

from headway.core.instants import Instant
from headway.core.lifecycle import Settlement
from headway.core.occurrences import Plan


class TermWon(msgspec.Struct, frozen=True, kw_only=True):
    """This node holds the lease on a role."""

    node: str
    role: str
    token: int


class TermLost(msgspec.Struct, frozen=True, kw_only=True):
    """This node no longer holds the lease on a role, and why; `is_handed_over` when it released the lease itself."""

    node: str
    role: str
    token: int
    reason: str
    is_handed_over: bool = False


class SchedulesDecided(msgspec.Struct, frozen=True, kw_only=True):
    """Plans were committed: every decision in them is now in the ledger."""

    node: str
    plans: tuple[Plan, ...]


class DecisionRefused(msgspec.Struct, frozen=True, kw_only=True):
    """The store refused plans: another node had decided first, or the lease was lost."""

    node: str
    schedules: tuple[str, ...]
    reason: str


class LocksLost(msgspec.Struct, frozen=True, kw_only=True):
    """Another node has the locks of these schedules' next instants and decides them. Emitted once for each instant."""

    node: str
    schedules: tuple[str, ...]


class ScheduleHeld(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule could not be planned and is set aside until an operator fixes it."""

    node: str
    schedule: str
    reason: str


class JobsPromoted(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting jobs became ready."""

    node: str
    count: int


class LeasesExpired(msgspec.Struct, frozen=True, kw_only=True):
    """Running jobs were taken back from workers that stopped extending their leases."""

    node: str
    job_ids: tuple[str, ...]


class ChildStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A child process is ready to run jobs."""

    node: str
    pid: int
    kind: str


class ChildEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A child process has exited, and why."""

    node: str
    pid: int
    kind: str
    reason: str


class JobsSettled(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes were committed, all of them successes except those listed; `tasks` has the task of each of them."""

    node: str
    completed: int
    others: tuple[Settlement, ...]
    tasks: tuple[str, ...] = ()


class JobLogged(msgspec.Struct, frozen=True, kw_only=True):
    """A running job has logged, printed or warned: streams and lines, as they are stored."""

    node: str
    job_id: str
    task: str
    lines: tuple[tuple[str, str], ...]


class AttemptsLost(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts whose leases were lost; their code was stopped and their reports were discarded.

    `is_refused` when the store refused their outcomes.
    """

    node: str
    job_ids: tuple[str, ...]
    reason: str
    is_refused: bool = False


class ReportsRefused(msgspec.Struct, frozen=True, kw_only=True):
    """The store refused reports of attempts that are over."""

    node: str
    job_ids: tuple[str, ...]


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """How long something took, for metrics: `claim`, `run` or `settle`. Each entry is (seconds, count).

    One event covers a batch, so that a measurement costs the same for one job and for thousands.
    """

    node: str
    what: str
    lots: tuple[tuple[float, int], ...]


class Draining(msgspec.Struct, frozen=True, kw_only=True):
    """The worker claims no more jobs and exits when those it has are done (graceful shutdown)."""

    node: str
    running: int
    reason: str


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """History older than the retention was deleted."""

    node: str
    rows: int


class TickFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A loop could not reach the store; it backs off and retries."""

    node: str
    loop: str
    error: str
    rest_s: float


class RequestFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A request failed because of an internal error."""

    node: str
    request_id: str
    error: BaseException


class ClockStepped(msgspec.Struct, frozen=True, kw_only=True):
    """The measured offset between this process and the store moved by more than a second."""

    node: str
    by_s: float
    store_now: Instant


class StoreWentBack(msgspec.Struct, frozen=True, kw_only=True):
    """The store has lost a heartbeat that it had acknowledged: a backup was restored, or a fail-over lost data."""

    node: str
    seen: Instant


class WakeModeChanged(msgspec.Struct, frozen=True, kw_only=True):
    """How this node learns of new work: by notification or by polling."""

    node: str
    mode: str
    reason: str


class EngineLost(msgspec.Struct, frozen=True, kw_only=True):
    """A server beside the store does not answer; the store takes over its part, or the part waits."""

    node: str
    engine: str
    error: str
    falls_back: bool


class EngineReturned(msgspec.Struct, frozen=True, kw_only=True):
    """A server beside the store answers again."""

    node: str
    engine: str


class AccessRefused(msgspec.Struct, frozen=True, kw_only=True):
    """A request had an invalid token; `is_limited` when the rate limit refuses the next ones unchecked."""

    node: str
    client: str
    reason: str
    is_limited: bool


EngineEvent: TypeAlias = (
    TermWon
    | TermLost
    | SchedulesDecided
    | DecisionRefused
    | LocksLost
    | ScheduleHeld
    | JobsPromoted
    | LeasesExpired
    | ChildStarted
    | ChildEnded
    | JobsSettled
    | JobLogged
    | AttemptsLost
    | ReportsRefused
    | Timed
    | Draining
    | Pruned
    | TickFailed
    | ClockStepped
    | StoreWentBack
    | WakeModeChanged
    | EngineLost
    | EngineReturned
    | AccessRefused
    | RequestFailed
)

_subscribers: list[Callable[[EngineEvent], None]] = []


def emit(event: EngineEvent) -> None:
    """Call every subscriber, in the order of their subscription."""
    for subscriber in tuple(_subscribers):
        subscriber(event)


@contextmanager
def subscribed(subscriber: Callable[[EngineEvent], None]) -> Iterator[None]:
    """Subscribe for the duration of a `with` block."""
    _subscribers.append(subscriber)
    try:
        yield
    finally:
        _subscribers.remove(subscriber)
