"""A context for tasks that run without a worker, and a record of their messages."""

from typing import Any

from headway.core.jobs import Claimed
from headway.tasks.context import Context


class Listener:
    """Replaces the connection to the supervisor, and records messages."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.progress: list[tuple[int | None, str | None]] = []

    def note(self, context: Context) -> None:
        """Record a report."""
        report = context.take_report()
        if report is None:
            return
        self.lines += [(stream, text) for _, stream, text in report.lines]
        if report.progress is not None or report.detail is not None:
            self.progress.append((report.progress, report.detail))

    def ask(self, context: Context, question: str, body: str) -> str:
        """Fail: no supervisor answers."""
        raise NotImplementedError

    async def ask_async(self, context: Context, question: str, body: str) -> str:
        """Fail: no supervisor answers."""
        raise NotImplementedError

    def texts(self, stream: str) -> list[str]:
        """Return the lines of one stream."""
        return [text for name, text in self.lines if name == stream]


def new_context(*, attempt: int = 2, **facts: Any) -> tuple[Context, Listener]:
    """Create the context of a job, and its listener."""
    claimed = Claimed(
        job_id="job_test",
        attempt=attempt,
        failures=0,
        max_attempts=3,
        task="t",
        args="{}",
        queue="default",
        priority=0,
        run_at=0,
        **{"tenant": "default", **facts},
    )
    listener = Listener()
    return Context(claimed, listener), listener
