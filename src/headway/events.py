"""What happens inside a process, said once.

Loops call `emit(Event(...))` and go on; log lines, the live view, the simulation's checkers and tests subscribe.
These events are a commentary on this process. They are not the ledger: what must survive is in the store.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from headway.instants import Instant
from headway.lifecycle import Settlement
from headway.model import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class TermWon:
    """This node holds the lease on a role."""

    node: str
    role: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TermLost:
    """This node no longer holds the lease on a role, and why; `is_handed_over` when it gave it up itself."""

    node: str
    role: str
    token: int
    reason: str
    is_handed_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulesDecided:
    """Plans were committed: every decision in them is now in the ledger."""

    node: str
    plans: tuple[Plan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRefused:
    """The store refused plans: somebody else had decided first, or our lease was gone."""

    node: str
    schedules: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleHeld:
    """A schedule could not be planned and is set aside until somebody looks at it."""

    node: str
    schedule: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsPromoted:
    """Waiting jobs became ready."""

    node: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesExpired:
    """Running jobs were taken back from workers that stopped extending their leases."""

    node: str
    job_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStarted:
    """A child process is ready to run jobs."""

    node: str
    pid: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildEnded:
    """A child process is gone, and why."""

    node: str
    pid: int
    kind: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSettled:
    """Ended attempts were committed, all of which had succeeded but these."""

    node: str
    completed: int
    others: tuple[Settlement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptsLost:
    """Attempts that are not ours any more; their code was stopped and what they said is not kept.

    `is_refused` when we found out because the store did not take their end.
    """

    node: str
    job_ids: tuple[str, ...]
    reason: str
    is_refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportsRefused:
    """Attempts that are over had something to say about themselves, and the store did not keep it."""

    node: str
    job_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """How long something took, for those who measure: `claim`, `run` or `settle`. Each is (seconds, how many of them).

    One is said for a batch, so that a measurement costs the same for one job and for thousands.
    """

    node: str
    what: str
    lots: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draining:
    """The worker takes no more jobs and ends when those it has are done."""

    node: str
    running: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """History older than the retention was deleted."""

    node: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TickFailed:
    """A loop could not reach the store; it rests and tries again."""

    node: str
    loop: str
    error: str
    rest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """A request could not be answered through a mistake of ours."""

    node: str
    request_id: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStepped:
    """The measured offset between this process and the store moved by more than a second."""

    node: str
    by_s: float
    store_now: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeModeChanged:
    """How this node learns of new work: by notification or by polling."""

    node: str
    mode: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLost:
    """A server beside the store does not answer; what it does for us is done by the store, or waits."""

    node: str
    engine: str
    error: str
    falls_back: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReturned:
    """A server beside the store answers again."""

    node: str
    engine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRefused:
    """Somebody came with a token that does not count; `is_limited` when the next ones are not even looked at."""

    node: str
    client: str
    reason: str
    is_limited: bool


Event: TypeAlias = (
    TermWon
    | TermLost
    | SchedulesDecided
    | DecisionRefused
    | ScheduleHeld
    | JobsPromoted
    | LeasesExpired
    | ChildStarted
    | ChildEnded
    | JobsSettled
    | AttemptsLost
    | ReportsRefused
    | Timed
    | Draining
    | Pruned
    | TickFailed
    | ClockStepped
    | WakeModeChanged
    | EngineLost
    | EngineReturned
    | AccessRefused
    | RequestFailed
)

_subscribers: list[Callable[[Event], None]] = []


def emit(event: Event) -> None:
    """Tell every subscriber, in the order in which they came."""
    for subscriber in tuple(_subscribers):
        subscriber(event)


@contextmanager
def subscribed(subscriber: Callable[[Event], None]) -> Iterator[None]:
    """Subscribe for the time of a `with` block."""
    _subscribers.append(subscriber)
    try:
        yield
    finally:
        _subscribers.remove(subscriber)
