"""The context: what a running task knows about its job, and how it reports progress.

    async def report(ctx: Context, day: str) -> str:
        for row in ctx.track(rows, "Writing"):      # progress, rate and time left, like tqdm
            ...

These methods are cheap: they record what is new, and the child process sends the latest value a few times a second. Two
of them wait for the store: `once`, which returns when the result is stored, and `enqueue`. Both raise `LeaseLost` when
the attempt is over, so a stale attempt leaves nothing behind.
"""

import inspect
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from headway.core.clock import Clock
from headway.core.errors import InvalidTask
from headway.core.instants import Instant, to_datetime
from headway.core.job_logs import LOG_BYTES_MAX, LOG_LINE_LENGTH_MAX
from headway.core.jobs import RESULT_BYTES_MAX, STEP_LENGTH_MAX, Claimed, Report
from headway.core.json_values import check_finite
from headway.core.schedule_names import schedule_name
from headway.core.validation import check_name, storable
from headway.tasks.metadata import Metadata
from headway.tasks.progress import STEPS_MAX, ProgressTracker
from headway.tasks.store_requests import JobFactory, StoreRequests, TaskChannel

T = TypeVar("T")

LINES_WAITING_MAX: Final = 2_000  # Unsent lines of one job; beyond that the task waits (backpressure).


class TaskStopped(BaseException):
    """The job was asked to stop. Let it propagate; `except Exception` does not catch it."""


@dataclass(frozen=True, slots=True)
class JobOccurrence:
    """The schedule and instant that a job belongs to."""

    schedule: str
    instant: datetime | None


class Context(StoreRequests):
    """What a running task knows about its job. The worker makes it; do not make your own."""

    def __init__(
        self,
        claimed: Claimed,
        channel: TaskChannel,
        *,
        job_factory: JobFactory | None = None,
        kept: Mapping[str, str] | None = None,
        deadline_at: Instant | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(channel, job_factory)
        self._claimed = claimed
        self._kept = dict(kept or {})
        self._deadline_at = deadline_at
        self._monotonic = (clock or Clock()).monotonic
        self._stopped = False
        self._metadata: Metadata | None = None
        self._tracker: ProgressTracker | None = None
        self._lines: deque[tuple[Instant | None, str, str]] = deque()
        self._logged = 0
        self._sent_progress: int | None = None
        self._sent_detail: str | None = None

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return self._claimed.job_id

    @property
    def task(self) -> str:
        """The name of the task."""
        return self._claimed.task

    @property
    def attempt(self) -> int:
        """The number of this attempt. The first is 1, but may have been handed back before it began."""
        return self._claimed.attempt

    @property
    def token(self) -> int:
        """The fencing token: it only grows from attempt to attempt.

        Pass it to the systems that you write to, and let them refuse a token smaller than the largest one seen for this
        job.
        """
        return self._claimed.attempt

    @property
    def tenant(self) -> str:
        """The tenant of the job."""
        return self._claimed.tenant

    @property
    def queue(self) -> str:
        """The queue that the job came from."""
        return self._claimed.queue

    @property
    def occurrence(self) -> JobOccurrence | None:
        """The schedule and its instant, when a schedule made the job."""
        claimed = self._claimed
        if claimed.schedule is None:
            return None
        instant = claimed.occurrence_at
        return JobOccurrence(schedule_name(claimed.schedule), None if instant is None else to_datetime(instant))

    @property
    def deadline(self) -> datetime | None:
        """When the job will exceed its timeout and be stopped; None without a timeout."""
        return None if self._deadline_at is None else to_datetime(self._deadline_at)

    @property
    def cancelled(self) -> bool:
        """Whether the job was asked to stop: it was cancelled, timed out, or its worker shuts down."""
        return self._stopped

    def check(self) -> None:
        """Raise `TaskStopped` when the job was asked to stop."""
        if self._stopped:
            raise TaskStopped

    # --- progress

    def progress(self, percent: float, step: str | None = None) -> None:
        """Report progress from 0 to 100, and the current activity. Within a step: the progress of the step."""
        self._measure().set(percent / 100, step)
        self._channel.note(self)

    def track(self, items: Iterable[T], step: str | None = None, total: int | None = None) -> Iterator[T]:
        """Iterate over items and report progress with rate and time left; stop when the job was asked to."""
        if total is None and isinstance(items, Sized):
            total = len(items)
        tracker = self._measure()
        tracker.begin_count(step, None if total is None else max(int(total), 0))
        self._channel.note(self)
        for done, item in enumerate(items):
            self.check()
            yield item
            tracker.count(done + 1)
            self._channel.note(self)

    @contextmanager
    def steps(self, *steps: str | tuple[str, float]) -> Iterator["Steps"]:
        """Name the steps of the job in advance, with weights if they differ: `("Download", 10)`."""
        if not 0 < len(steps) <= STEPS_MAX:
            raise InvalidTask(f"a job has from 1 to {STEPS_MAX} steps, not {len(steps)}")
        weighed = [step if isinstance(step, tuple) else (step, 1.0) for step in steps]
        if not all(math.isfinite(weight) and weight >= 0 for _, weight in weighed):
            raise InvalidTask("the weight of a step must be a number that is not negative")
        tracker = self._measure()
        tracker.begin_steps(weighed)
        self._channel.note(self)
        yield Steps(self, tracker)

    def log(self, text: object, stream: str = "log") -> None:
        """Add lines to the job's log, which people can follow live."""
        if self._logged > LOG_BYTES_MAX:
            return  # More is not stored. The supervisor counts the size of lines and marks where the log is full.
        kind = storable(str(stream), STEP_LENGTH_MAX)
        for line in str(text).splitlines() or [""]:
            shown = storable(line, LOG_LINE_LENGTH_MAX)
            self._lines.append((None, kind, shown))
            self._logged += len(shown) + 1
            if self._logged > LOG_BYTES_MAX:
                break
        self._channel.note(self)

    @property
    def metadata(self) -> "Metadata":
        """Facts about the job for people to see: JSON values by name."""
        if self._metadata is None:
            self._metadata = Metadata(self._claimed.metadata, lambda: self._channel.note(self))
        return self._metadata

    # --- store requests

    def once(self, name: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function unless an earlier attempt of this job has; in that case return the stored result.

        The result must be JSON. It is in the store before this returns. With an `async def` function, await it.
        """
        check_name(name, "the name of a step", STEP_LENGTH_MAX)
        if inspect.iscoroutinefunction(function):
            return self._once_async(name, function, args, kwargs)  # type: ignore[return-value]
        if name in self._kept:
            return msgspec.json.decode(self._kept[name])  # type: ignore[no-any-return]
        text = encode_result(result := function(*args, **kwargs), f"the result of {name!r}")
        self._ask("step", _step_body(name, text))
        self._kept[name] = text
        return result

    async def _once_async(
        self, name: str, function: Callable[..., Awaitable[T]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> T:
        if name in self._kept:
            return msgspec.json.decode(self._kept[name])  # type: ignore[no-any-return]
        text = encode_result(result := await function(*args, **kwargs), f"the result of {name!r}")
        await self._ask_async("step", _step_body(name, text))
        self._kept[name] = text
        return result

    # --- for the process that runs the task

    def stop(self) -> None:
        """Ask the task to stop; it notices at its next `check` or `track`."""
        self._stopped = True

    @property
    def waiting_lines(self) -> int:
        """How many log lines wait to be sent."""
        return len(self._lines)

    def take_report(self) -> Report | None:
        """Return what is new since the last call; None when nothing is."""
        progress, detail = self._tracker.read() if self._tracker else (None, None)
        # One by one: the task may add more in another thread meanwhile.
        lines = tuple([self._lines.popleft() for _ in range(len(self._lines))])
        metadata = self._metadata.take() if self._metadata is not None else None
        if progress == self._sent_progress:
            progress = None
        else:
            self._sent_progress = progress
        if detail == self._sent_detail:
            detail = None
        else:
            self._sent_detail = detail
        if progress is None and detail is None and metadata is None and not lines:
            return None
        return Report(
            job_id=self.job_id,
            attempt=self.attempt,
            progress=progress,
            detail=detail,
            metadata=metadata,
            lines=lines,
        )

    def _measure(self) -> ProgressTracker:
        if self._tracker is None:
            self._tracker = ProgressTracker(self._monotonic)
        return self._tracker


class Steps:
    """The named steps of a job: `with steps("Download"): …`."""

    def __init__(self, context: Context, tracker: ProgressTracker) -> None:
        self._context = context
        self._tracker = tracker

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Enter this step for the block; the step is done when the block ends without an exception."""
        self._context.check()
        self._tracker.enter_step(name)
        self._context._channel.note(self._context)
        yield
        self._tracker.leave_step()
        self._context._channel.note(self._context)


def encode_result(value: object, what: str = "the result") -> str:
    """Encode a result as JSON text of bounded size."""
    try:
        text = msgspec.json.encode(value).decode()
        check_finite(value, text, what)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidTask(f"{what} must be JSON: {error}") from None
    if len(text) > RESULT_BYTES_MAX:
        raise InvalidTask(f"{what} has {len(text):,} characters of JSON, at most {RESULT_BYTES_MAX:,} are kept")
    return text


def _step_body(name: str, result: str) -> str:
    return msgspec.json.encode((name, result)).decode()
