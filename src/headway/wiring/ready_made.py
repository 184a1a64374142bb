"""Tasks that need no Python: the functions behind commands and HTTP requests, and which of their errors are final."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.tasks.execution import memory_limit
from headway.tasks.retry import Retry, check_retry
from headway.worker.command import CommandRefused, command
from headway.worker.http import HttpRefused, http_request


@dataclass(frozen=True, slots=True)
class ReadyMade:
    """A function to register as a task, and the error after which a retry would not help."""

    function: Callable[..., dict[str, Any]]
    gives_up_on: type[Exception]

    def policy(self, retry: Retry | None) -> Retry:
        """Return a retry policy that also gives up on the final error; without one there is a single attempt."""
        policy = check_retry(retry) or Retry(max_attempts=1)
        return Retry(
            max_attempts=policy.max_attempts,
            backoff=str(policy.backoff),
            retry_on=policy.retry_on,
            give_up_on=(*policy.give_up_on, self.gives_up_on),
            retry_timeouts=policy.retry_timeouts,
        )


def program(
    argv: Sequence[str], *, env: Mapping[str, str] | None, cwd: str | Path | None, memory: str | int | None
) -> ReadyMade:
    """Make the function that runs a program."""
    limit = None if memory is None else memory_limit(memory)
    return ReadyMade(command(argv, env=env, cwd=cwd, memory=limit), CommandRefused)


def request(url: str, *, method: str, headers: Mapping[str, str] | None, allow: Sequence[str]) -> ReadyMade:
    """Make the function that sends a request; `allow` names the private addresses that it may reach."""
    return ReadyMade(http_request(url, method=method, headers=headers, allow=allow), HttpRefused)
