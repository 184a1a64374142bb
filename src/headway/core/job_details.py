"""Read what a job has stored as JSON: arguments, metadata, errors, and what it last said about its own progress.

Users write this data, so every reader accepts anything: what cannot be decoded is shown as text or left out.
"""

from typing import Annotated, Any, Final

import msgspec

from headway.core.instants import DURATION_MAX, INSTANT_MAX, SECOND, Instant, span
from headway.core.jobs import Job
from headway.core.lifecycle import Status

MESSAGE_LENGTH_MAX: Final = 300
RAW_LENGTH_MAX: Final = 4_096

# As large as a number may be that is still shown as one.
_Number = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=DURATION_MAX // SECOND)]


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One of the steps that a job has named: `done`, `running` or `waiting`, and how long it took."""

    name: str
    state: str
    seconds: _Seconds | None = None


class Detail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a running job last said about itself."""

    step: str | None = None
    done: _Number | None = None
    total: _Number | None = None
    rate: _Number | None = None
    eta: _Seconds | None = None
    steps: tuple[Step, ...] = ()
    serial: Annotated[int, msgspec.Meta(ge=0)] = 0  # The number of the report, if reports are published live.

    @property
    def steps_done(self) -> int:
        """How many of the named steps are done."""
        return sum(step.state == "done" for step in self.steps)


_NO_DETAIL: Final = Detail()
_decode_detail: Final = msgspec.json.Decoder(Detail).decode


def read_detail(job: Job) -> Detail:
    """Read what the job last said about itself."""
    if job.detail is None:
        return _NO_DETAIL
    try:
        return _decode_detail(job.detail)
    except (msgspec.DecodeError, RecursionError):
        return _NO_DETAIL


def read_json(text: str | None) -> Any:
    """Read stored JSON; what cannot be read is shown as the text that it is, not at any length."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return text[:RAW_LENGTH_MAX]


def read_metadata(job: Job) -> dict[str, Any]:
    """Return the facts that the task has noted, and at which step it is."""
    noted = read_json(job.metadata)
    metadata: dict[str, Any] = {}
    if noted is not None:
        metadata = dict(noted) if isinstance(noted, dict) else {"unreadable": noted}
    detail = read_detail(job)
    if detail.step is not None:
        metadata["current_step"] = detail.step
    if detail.steps:
        metadata |= {"steps_completed": detail.steps_done, "steps_total": len(detail.steps)}
    return metadata


def read_error(text: str | None) -> dict[str, Any] | None:
    """Return what went wrong as an object with at least `type` and `message`."""
    error = read_json(text)
    if error is None:
        return None
    if not isinstance(error, dict):
        return {"type": "Error", "message": str(error)}
    return {**error, "type": str(error.get("type", "Error")), "message": str(error.get("message", ""))}


def error_line(text: str | None) -> str:
    """Say in one line what went wrong: `ConnectionError: refused`."""
    error = read_error(text)
    return "" if error is None else error_words(error["type"], error["message"])


def error_words(kind: str, message: str) -> str:
    """Say in one line what went wrong."""
    words = " ".join(message.split())
    if len(words) > MESSAGE_LENGTH_MAX:
        words = words[: MESSAGE_LENGTH_MAX - 1] + "…"
    return f"{kind}: {words}" if words else kind


def eta_at(job: Job) -> Instant | None:
    """Return when a running job will end by its own account; that time may have passed."""
    eta = read_detail(job).eta
    if job.status is not Status.RUNNING or eta is None:
        return None
    return min(job.updated_at + round(eta * SECOND), INSTANT_MAX)


def eta_seconds(job: Job, now: Instant) -> int | None:
    """Return how long a running job will still take by its own account; None once that time has passed."""
    return seconds_left(eta_at(job), job.updated_at, now)


def seconds_left(at: Instant | None, said_at: Instant, now: Instant) -> int | None:
    """Return how long it is until a job has said that it will end; None once that time has passed."""
    if at is None or at <= now:
        return None
    left = min(at - now, at - said_at)  # Less the time since it said so, unless our clock is behind.
    return max(1, round(left / SECOND))


def left_words(job: Job, now: Instant) -> str:
    """Describe the time left of a running job: `4m 12s left`; empty if it is unknown or the estimate has passed."""
    eta = eta_seconds(job, now)
    return "" if eta is None else f"{span(eta * SECOND)} left"
