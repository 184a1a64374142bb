"""The life of a job, decided once.

               promote              claim                settle
    SCHEDULED ─────────▶ PENDING ───────▶ RUNNING ───────────▶ COMPLETED · FAILED · TIMED_OUT · CANCELLED
    RETRYING  ─────────▶    ▲                │
    BLOCKED   ─────────▶    │                ├──▶ RETRYING   (failed, another attempt is due later)
                            └────────────────┤    PENDING    (handed back, costs no attempt)
                                             └──▶ BLOCKED    (parked: no worker can run it)
    SCHEDULED · PENDING · RETRYING · BLOCKED ── cancel ──▶ CANCELLED

Four verbs change a status and nothing else does: `TRANSITIONS` is the whole of it. The SQL statements of
these names apply what is decided here, guarded by (id, attempt); the chart in docs/lifecycle.md, the CHECK
constraint and the conformance tests are derived from the same table. Final states never change: a rerun is
a new job.

`settle()` decides what a finished attempt makes of its job. `attempt` is the fence and only ever rises;
what counts against `max_attempts` is `failures`. Cancelling a *running* job only asks for it; the worker that runs it
settles with `Cancelled()` once the code has stopped, so that CANCELLED means "has stopped".

A lost worker does not count as a failure of its jobs. After the first loss a job starts again at once. One that was
lost twice is a suspect: suspects of one loss run apart, an eighth of them together, then one by one, in the end with
nothing else on their worker. A job fails when its worker is lost while it runs alone, at the third loss at the
earliest; so jobs that merely ran beside it are never blamed.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias, TypedDict, Unpack

import msgspec

from headway.core.backoff import backoff
from headway.core.errors import DefinitionError
from headway.core.instants import (
    DAY,
    MINUTE,
    SECOND,
    Duration,
    DurationLike,
    format_duration,
    parse_duration,
    quote,
)


class Status(StrEnum):
    """The status of a job."""

    SCHEDULED = "SCHEDULED"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RETRYING = "RETRYING"
    BLOCKED = "BLOCKED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended for good."""
        return self in FINAL


FINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.TIMED_OUT, Status.CANCELLED})
ATTEMPT_MAX: Final = 2**31 - 1  # No attempt has this number: a job with it is not run any more.
LOSSES_MAX: Final = 3
LOSS_WAIT_MAX: Final = 5 * SECOND
SUSPECT_GROUPS: Final = 8  # The suspects of one loss are split into this many groups.
APART_MIN: Final = 10 * SECOND
APART_MAX: Final = DAY

TRANSITIONS: Final[dict[str, tuple[frozenset[Status], frozenset[Status]]]] = {
    "promote": (
        frozenset({Status.SCHEDULED, Status.RETRYING, Status.BLOCKED}),
        frozenset({Status.PENDING}),
    ),
    "claim": (frozenset({Status.PENDING}), frozenset({Status.RUNNING})),
    "settle": (frozenset({Status.RUNNING}), frozenset({Status.PENDING, Status.RETRYING, Status.BLOCKED}) | FINAL),
    "cancel": (
        frozenset({Status.SCHEDULED, Status.PENDING, Status.RETRYING, Status.BLOCKED}),
        frozenset({Status.CANCELLED}),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before the next attempt: exponential from `first` up to `most`, with jitter."""

    first: Duration = 5 * SECOND
    most: Duration = 300 * SECOND

    @classmethod
    def parse(cls, text: DurationLike) -> "Backoff":
        """Read `5s..5m`, or one duration for a constant wait."""
        first, dots, most = text.partition("..") if isinstance(text, str) else (text, "", "")
        backoff = cls(
            first=parse_duration(first, what="backoff"), most=parse_duration(most if dots else first, what="backoff")
        )
        if backoff.first > backoff.most:
            raise DefinitionError(f'backoff must look like "5s..5m", shortest first, not {quote(text)}')
        return backoff

    def __str__(self) -> str:
        return f"{format_duration(self.first)}..{format_duration(self.most)}"

    def wait(self, failures: int, spread: float) -> Duration:
        """Return the wait after this many failures; `spread` in [0, 1) picks the point in its upper half."""
        return round(backoff(failures, first=self.first, most=self.most, spread=spread))


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a job under one lease: everything that `settle` needs to know of it."""

    job_id: str
    attempt: int
    failures: int
    max_attempts: int
    schedule: str | None = None
    backoff: Backoff = Backoff()


class Succeeded(msgspec.Struct, frozen=True):
    """The task returned; `result` is JSON text."""

    result: str | None = None


class Raised(msgspec.Struct, frozen=True):
    """The task raised; `error` is JSON text, `retry_in` overrides the back-off."""

    error: str
    retryable: bool = True
    retry_in: Duration | None = None


class Crashed(msgspec.Struct, frozen=True):
    """The process of the task died."""

    error: str


class TimedOut(msgspec.Struct, frozen=True):
    """The task exceeded its timeout and was stopped."""

    error: str
    retryable: bool = True


class Cancelled(msgspec.Struct, frozen=True):
    """The task was asked to stop, and has stopped."""

    reason: str = "cancelled"


class Released(msgspec.Struct, frozen=True):
    """The worker hands the job back unfinished; it costs no attempt."""

    reason: str = "handed back"


class Parked(msgspec.Struct, frozen=True):
    """No worker here can run the job as it is; it waits, costs no attempt, and has a reason."""

    reason: str
    cause: str = "unknown task"


class LeaseExpired(msgspec.Struct, frozen=True):
    """The lease was not extended in time: the worker is dead, frozen or partitioned."""

    losses: int = 1  # How many workers were lost with the job, including this one.
    beside: int = 0  # How many other jobs the worker had.
    suspects: int = 0  # How many of those were suspects already.
    was_suspect: bool = False
    longest: Duration = 0  # The longest time from a start of the job to the loss of its worker.


AttemptOutcome: TypeAlias = Succeeded | Raised | Crashed | TimedOut | Cancelled | Released | Parked | LeaseExpired


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What an ended attempt makes of its job, to be written by the statement `settle`."""

    job_id: str
    attempt: int
    status: Status
    outcome: str
    reason: str
    failures: int
    schedule: str | None = None
    retry_in: Duration = 0
    result: str | None = None
    error: str | None = None
    parked: str | None = None
    company: int | None = None
    apart_for: Duration | None = None


def settle(attempt: Attempt, outcome: AttemptOutcome, spread: float) -> Settlement:
    """Decide what an ended attempt makes of its job; `spread` in [0, 1) jitters a back-off."""
    match outcome:
        case Succeeded(result):  # The common case; written out, it takes half the time.
            return Settlement(
                job_id=attempt.job_id,
                attempt=attempt.attempt,
                status=Status.COMPLETED,
                outcome="completed",
                reason="",
                failures=attempt.failures,
                schedule=attempt.schedule,
                result=result,
            )
        case Cancelled(reason):
            return _settlement(attempt, Status.CANCELLED, "cancelled", reason)
        case Released(reason):
            return _settlement(attempt, Status.PENDING, "released", reason)
        case Parked(reason, cause):
            return _settlement(attempt, Status.BLOCKED, "parked", reason, parked=cause)
        case Raised(error, retryable, retry_in):
            if not retryable:
                return _failure(attempt, Status.FAILED, "failed", "not retryable", error)
            return _retry_or(Status.FAILED, attempt, "failed", error, spread, retry_in)
        case Crashed(error):
            return _retry_or(Status.FAILED, attempt, "crashed", error, spread, None)
        case TimedOut(error, retryable):
            if not retryable:
                return _failure(attempt, Status.TIMED_OUT, "timed_out", "out of time, not retried", error)
            return _retry_or(Status.TIMED_OUT, attempt, "timed_out", error, spread, None)
        case LeaseExpired():
            return _lost(attempt, outcome, spread)


def _lost(attempt: Attempt, lost: LeaseExpired, spread: float) -> Settlement:
    """Retry the job soon, regardless of its own back-off: losing a worker is not a failure of the job."""
    error = '{"type":"LeaseExpired","message":"the worker stopped extending its lease"}'
    words = "worker lost" if lost.losses <= 1 else f"worker lost {lost.losses} times"
    if lost.losses >= max(attempt.max_attempts, LOSSES_MAX) and not lost.beside:
        reason = f"{words}, the last time with no other job on it"
        return _settlement(attempt, Status.FAILED, "expired", reason, error=error)
    if lost.losses <= 1:
        return _settlement(attempt, Status.RETRYING, "expired", f"{words}, retrying", error=error)
    company = _company(lost)
    apart = "alone" if not company else "apart from other suspects"
    return _settlement(
        attempt,
        Status.RETRYING,
        "expired",
        f"{words}, to be run {apart}, retrying",
        retry_in=min(attempt.backoff.wait(lost.losses, spread), LOSS_WAIT_MAX),
        error=error,
        company=company,
        apart_for=max(APART_MIN, min(2 * lost.longest, MINUTE << min(lost.losses, 12), APART_MAX)),
    )


def _company(lost: LeaseExpired) -> int:
    """Return how many suspects of this loss may run together; 0 means alone."""
    others = lost.suspects if lost.was_suspect else lost.beside
    return max(1, (others + 1) // SUSPECT_GROUPS) if others else 0


def _retry_or(
    last: Status,
    attempt: Attempt,
    outcome: str,
    error: str,
    spread: float,
    retry_in: Duration | None,
) -> Settlement:
    failures, most = min(attempt.failures + 1, ATTEMPT_MAX), attempt.max_attempts
    if failures >= most:
        of_most = f" of {most}" if failures <= most else ""
        return _failure(attempt, last, outcome, f"{_WORDS[outcome]}, failure {failures}{of_most}", error)
    wait = attempt.backoff.wait(failures, spread) if retry_in is None else retry_in
    reason = f"{_WORDS[outcome]}, failure {failures} of {most}, retrying"
    return _settlement(attempt, Status.RETRYING, outcome, reason, failures=failures, retry_in=wait, error=error)


class _More(TypedDict, total=False):
    """What not every settlement has."""

    failures: int
    retry_in: Duration
    error: str
    parked: str
    company: int
    apart_for: Duration


_WORDS: Final = {"failed": "raised", "crashed": "crashed", "timed_out": "out of time"}


def _failure(attempt: Attempt, status: Status, outcome: str, reason: str, error: str) -> Settlement:
    failures = min(attempt.failures + 1, ATTEMPT_MAX)
    return _settlement(attempt, status, outcome, reason, failures=failures, error=error)


def _settlement(attempt: Attempt, status: Status, outcome: str, reason: str, **more: Unpack[_More]) -> Settlement:
    plain = Settlement(
        job_id=attempt.job_id,
        attempt=attempt.attempt,
        status=status,
        outcome=outcome,
        reason=reason,
        failures=attempt.failures,
        schedule=attempt.schedule,
    )
    return msgspec.structs.replace(plain, **more) if more else plain
