"""How a task runs: its isolation, timeout, memory limit and retry policy."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from headway.core.errors import InvalidTask
from headway.core.instants import (
    Duration,
    DurationLike,
    quote,
)
from headway.core.settings import parse_memory
from headway.tasks.options import positive
from headway.tasks.retry import Retry


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPolicy:
    """How a task runs: where, for how long, with how much memory, and which failures are retried."""

    isolation: str
    timeout: Duration | None = None
    memory: int | None = None
    retry: Retry | None = None

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        *,
        isolation: str | None,
        timeout: DurationLike | None,
        memory: str | int | None,
        retry: Retry | None,
    ) -> "ExecutionPolicy":
        """Read the arguments of the task's author."""
        is_async = inspect.iscoroutinefunction(function)
        choices = ("loop", "process") if is_async else ("process", "thread")
        chosen = isolation or choices[0]
        if chosen not in choices:
            kind = "an async def" if is_async else "a def"
            raise InvalidTask(f"isolation of {kind} task must be {' or '.join(choices)}, not {quote(isolation)}")
        limit = None if memory is None else memory_limit(memory)
        if limit is not None and chosen != "process":
            raise InvalidTask('memory= needs a process of its own: isolation="process"')
        return cls(
            isolation=chosen,
            timeout=None if timeout is None else positive(timeout, "timeout"),
            memory=limit,
            retry=retry,
        )


MEMORY_MIN: Final = 32 * 1024 * 1024


def memory_limit(value: str | int) -> int:
    """Read the memory limit of a process, in bytes."""
    size = parse_memory(value)
    if size is None or size < MEMORY_MIN:
        raise InvalidTask(f'memory must be a size like "512MB" and at least 32MB, not {quote(value)}')
    return size
