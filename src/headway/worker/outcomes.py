"""What the messages and the death of a child mean for its jobs. Pure functions."""

from typing import Final

import msgspec

from headway.core import lifecycle
from headway.core.lifecycle import AttemptOutcome, Crashed, Parked, Raised, Released, TimedOut
from headway.worker.ipc import CancelRaised, Failed, FailedInDamagedProcess, Stopped, ToSupervisor, Unrunnable

WAITED: Final = Released("handed back: it had to wait")
OUTCOME_LOST: Final = Released("handed back: its outcome was lost")
CHILD_DIED: Final = Released("handed back: its child died before it began")


def outcome_of(message: ToSupervisor, stop_as: AttemptOutcome | None) -> AttemptOutcome | None:
    """Return the outcome that a message reports for an attempt; None if the message reports none."""
    match message:
        case Failed():
            return failure_of(message, stop_as)
        case CancelRaised(_, _, reason):
            return lifecycle.Cancelled(reason)
        case Stopped():
            return stop_as or Released("the task stopped by itself")
        case Unrunnable(_, _, reason, cause):
            return Parked(reason, cause)
        case FailedInDamagedProcess(_, _, company):
            return stop_as or Released(f"handed back: its process was damaged while {company} jobs ran in it")
    return None


def failure_of(failed: Failed, stop_as: AttemptOutcome | None) -> AttemptOutcome:
    """Return the outcome of an attempt whose task raised: if it was asked to stop, the outcome of the stop.

    A job that is handed back was killed, not asked, so its exception was raised before that.
    """
    match stop_as:
        case TimedOut(error, retryable):
            return TimedOut(_error_while_stopping(error, failed.error), retryable)
        case lifecycle.Cancelled():
            return stop_as
    return Raised(failed.error, failed.retryable, failed.retry_in)


def loss_of(ending: str, killed_because: str | None, company: int) -> AttemptOutcome:
    """Return the outcome of a job that was running in a process that died, alone or beside others."""
    if killed_because is not None:
        return Released(f"handed back: {killed_because}")
    if company > 1:
        return Released(f"handed back: its process died while {company} jobs ran in it")
    return Crashed(error("Crashed", f"its process {ending}"))


def out_of_time(timeout_s: float, *, retries: bool) -> TimedOut:
    """Return the outcome of a job that exceeded its timeout."""
    return TimedOut(error("TimeoutError", f"it ran for {timeout_s:g} s, which is its time-out"), retries)


def error(kind: str, message: str) -> str:
    """Write an error as JSON."""
    return msgspec.json.encode({"type": kind, "message": message}).decode()


class _Words(msgspec.Struct, omit_defaults=True):
    """An error in its JSON form."""

    type: str
    message: str
    traceback: str = ""


def _error_while_stopping(error: str, raised: str) -> str:
    """Add the exception that a task raised when it was asked to stop to the error of its attempt."""
    try:
        words, more = (msgspec.json.decode(text, type=_Words) for text in (error, raised))
    except msgspec.DecodeError:  # Not written by Headway.
        return error
    words.message += f"; asked to stop, it raised {more.type}: {more.message}"
    words.traceback = more.traceback
    return msgspec.json.encode(words).decode()
