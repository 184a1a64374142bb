"""Retry policies, and the exceptions by which a task ends its own attempt."""

from typing import Any

from headway.core.errors import InvalidTask
from headway.core.instants import (
    DurationLike,
    parse_duration,
    quote,
)
from headway.core.lifecycle import Backoff
from headway.core.validation import ATTEMPTS_MAX, check_int


class TaskSignal(Exception):
    """Raised by a task to end its attempt in a certain way; not an error."""


class Retry(TaskSignal):
    """How often and how soon a failed job is retried: `retry=Retry(max_attempts=3, backoff="5s..5m")`.

    `retry_on` names the only exceptions to retry, `give_up_on` those never to retry. Time-outs are retried unless
    `retry_timeouts` is False. Within a task, `raise Retry(after="10m")` ends the attempt as a failure and sets when the
    next one is due; there is a next one only within the task's own `max_attempts`.
    """

    def __init__(
        self,
        *,
        max_attempts: int = 3,
        backoff: DurationLike = "5s..5m",
        retry_on: tuple[type[BaseException], ...] | type[BaseException] = (),
        give_up_on: tuple[type[BaseException], ...] | type[BaseException] = (),
        retry_timeouts: bool = True,
        after: DurationLike | None = None,
        reason: str = "",
    ) -> None:
        self.max_attempts = check_int(max_attempts, "max_attempts", 1, ATTEMPTS_MAX)
        self.backoff = Backoff.parse(backoff)
        self.retry_on = _exceptions(retry_on, "retry_on")
        self.give_up_on = _exceptions(give_up_on, "give_up_on")
        self.retry_timeouts = _bool(retry_timeouts, "retry_timeouts")
        self.after = None if after is None else parse_duration(after, what="after")
        super().__init__(reason or "the task asked to be retried, as far as its max_attempts allows")

    def retries(self, error: BaseException) -> bool:
        """Return whether to retry after this exception."""
        if isinstance(error, self.give_up_on):
            return False
        return not self.retry_on or isinstance(error, self.retry_on)


class Cancel(TaskSignal):
    """Raised by a task to end its job as CANCELLED: there is nothing (more) to do."""

    def __init__(self, reason: str = "cancelled by the task") -> None:
        super().__init__(reason)


def _exceptions(given: Any, what: str) -> tuple[type[BaseException], ...]:
    found = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in found):
        raise InvalidTask(f"{what} must be an exception class or a tuple of them, not {quote(given)}")
    return found


def _bool(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidTask(f"{what} must be True or False, not {quote(value)}")
    return value


def check_retry(value: object) -> Retry | None:
    """Return a retry policy; raise `InvalidTask` for anything else."""
    if value is not None and not isinstance(value, Retry):
        raise InvalidTask(f"retry must be a policy such as Retry(max_attempts=3), not {quote(value)}")
    return value
