"""The context: what a running task knows of its job, and how it says how far it is.

    async def report(ctx: Context, day: str) -> str:
        for row in ctx.track(rows, "Writing"):      # progress, rate and time left, as tqdm shows them
            ...

Calling these methods is cheap: they note what is new, and the child process sends it on a few times a second, the
latest value only. Two of them wait for the store: `once`, which returns when the result is kept, and `enqueue`. Both
are refused with `LeaseLost` when the attempt is over, so a stale attempt leaves nothing behind.
"""

import inspect
import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

import msgspec

from headway.core.clock import Clock
from headway.core.errors import InvalidTask, LeaseLost
from headway.core.instants import Instant, to_datetime
from headway.core.job_logs import LOG_BYTES_MAX, LOG_LINE_LENGTH_MAX
from headway.core.jobs import METADATA_BYTES_MAX, RESULT_BYTES_MAX, STEP_LENGTH_MAX, UNFINISHED_MAX, Claimed, Report
from headway.core.json_values import check_finite
from headway.core.schedule_names import schedule_name
from headway.core.validation import check_name, storable

T = TypeVar("T")

STEPS_MAX: Final = 200
ENQUEUE_BYTES_MAX: Final = 16 << 20  # Of jobs that go to the supervisor in one message.
LINES_WAITING_MAX: Final = 2_000  # Lines of one job that wait to be sent; the writer of more waits for the sender.


class TaskStopped(BaseException):
    """The job was asked to stop. Let it pass; `except Exception` does not catch it."""


class TaskChannel(Protocol):
    """The way out of the process that runs the task."""

    def note(self, context: "Context") -> None:
        """Send what is new in the context, soon."""
        ...

    def ask(self, context: "Context", question: str, body: str) -> str:
        """Ask the supervisor and wait for its answer; raise `LeaseLost` when the attempt is over."""
        ...

    async def ask_async(self, context: "Context", question: str, body: str) -> str:
        """Ask the supervisor and await its answer."""
        ...


class JobFactory(Protocol):
    """Makes jobs that the context enqueues: the app, from where the context stands."""

    def jobs_of(self, task: Any, args: Mapping[str, Any], options: Mapping[str, Any]) -> list[Any]:
        """Make the jobs, checked, not handed in."""
        ...

    def jobs_of_rows(self, task: Any, rows: Iterable[Mapping[str, Any]], options: Mapping[str, Any]) -> list[Any]:
        """Make a job of each row of arguments, checked, not handed in."""
        ...


@dataclass(frozen=True, slots=True)
class JobOccurrence:
    """The instant of a schedule that a job belongs to."""

    schedule: str
    instant: datetime | None


class Context:
    """What a running task knows of its job. Made by the worker; do not make your own."""

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
        self._claimed = claimed
        self._channel = channel
        self._job_factory = job_factory
        self._kept = dict(kept or {})
        self._deadline_at = deadline_at
        self._monotonic = (clock or Clock()).monotonic
        self._stopped = False
        self.is_over = False  # Whether we were told that this attempt is no longer ours.
        self._metadata: Metadata | None = None
        self._tracker: _ProgressTracker | None = None
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
        """Which try at the job this is; the first is 1."""
        return self._claimed.attempt

    @property
    def token(self) -> int:
        """The fencing token: it only grows from attempt to attempt. Give it to whatever you write to, and let that
        refuse a smaller one than it has seen for this job."""
        return self._claimed.attempt

    @property
    def tenant(self) -> str:
        """Whose job it is."""
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
        """When the job will be stopped for taking too long; None when it may take any time."""
        return None if self._deadline_at is None else to_datetime(self._deadline_at)

    @property
    def cancelled(self) -> bool:
        """Whether the job was asked to stop: it was cancelled, is out of time, or its worker goes away."""
        return self._stopped

    def check(self) -> None:
        """Stop here when the job was asked to stop."""
        if self._stopped:
            raise TaskStopped

    # --- progress

    def progress(self, percent: float, step: str | None = None) -> None:
        """Say how far the job is, from 0 to 100, and what it is at. Within a step: how far the step is."""
        self._measure().set(percent / 100, step)
        self._channel.note(self)

    def track(self, items: Iterable[T], step: str | None = None, total: int | None = None) -> Iterator[T]:
        """Go through items and show how far it is, with rate and time left; stops when the job was asked to."""
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
        """Add lines to the log of the job, which people read live."""
        if self._logged > LOG_BYTES_MAX:
            return  # More is not kept anyway. The supervisor counts what a line costs, and says where it was full.
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

    # --- what waits for the store

    def once(self, name: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function unless an earlier attempt of this job has: then return the result it had.

        The result, which must be JSON, is in the store before this returns. With an `async def` function, await it.
        """
        check_name(name, "the name of a step", STEP_LENGTH_MAX)
        if inspect.iscoroutinefunction(function):
            return self._once_async(name, function, args, kwargs)  # type: ignore[return-value]
        if name in self._kept:
            return msgspec.json.decode(self._kept[name])  # type: ignore[no-any-return]
        text = encode_result(result := function(*args, **kwargs), f"the result of {name!r}")
        with self._hearing_the_end():
            self._channel.ask(self, "step", _step_body(name, text))
        self._kept[name] = text
        return result

    async def _once_async(
        self, name: str, function: Callable[..., Awaitable[T]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> T:
        if name in self._kept:
            return msgspec.json.decode(self._kept[name])  # type: ignore[no-any-return]
        text = encode_result(result := await function(*args, **kwargs), f"the result of {name!r}")
        with self._hearing_the_end():
            await self._channel.ask_async(self, "step", _step_body(name, text))
        self._kept[name] = text
        return result

    async def enqueue(self, task: Any, args: Mapping[str, Any] | None = None, **options: Any) -> str:
        """Enqueue a job of a task (or of the name of one) and return its id; refused when this attempt is over."""
        jobs = self._jobs(task, args, options)
        with self._hearing_the_end():
            return _ids(await self._channel.ask_async(self, "enqueue", jobs))[0]

    def enqueue_sync(self, task: Any, args: Mapping[str, Any] | None = None, **options: Any) -> str:
        """Enqueue a job of a task (or of the name of one) and return its id; refused when this attempt is over."""
        jobs = self._jobs(task, args, options)
        with self._hearing_the_end():
            return _ids(self._channel.ask(self, "enqueue", jobs))[0]

    async def enqueue_many(self, task: Any, rows: Iterable[Mapping[str, Any]], **options: Any) -> list[str]:
        """Enqueue a job per row of arguments, all or none, at most 10,000, and return their ids.

        Options may be templates over the arguments of the row, or functions of them; see `Task.enqueue_many`.
        """
        jobs = self._jobs_of_rows(task, rows, options)
        with self._hearing_the_end():
            return _ids(await self._channel.ask_async(self, "enqueue", jobs))

    def enqueue_many_sync(self, task: Any, rows: Iterable[Mapping[str, Any]], **options: Any) -> list[str]:
        """Enqueue a job per row of arguments, all or none, at most 10,000, and return their ids."""
        jobs = self._jobs_of_rows(task, rows, options)
        with self._hearing_the_end():
            return _ids(self._channel.ask(self, "enqueue", jobs))

    @contextmanager
    def _hearing_the_end(self) -> Iterator[None]:
        """Remember that the attempt is over when an answer says so; other leases may be lost without that."""
        try:
            yield
        except LeaseLost:
            self.is_over = True
            raise

    def _jobs(self, task: Any, args: Mapping[str, Any] | None, options: Mapping[str, Any]) -> str:
        return _jobs_text(
            self._required_job_factory.jobs_of(task, dict(args or {}), {"tenant": self.tenant, **options})
        )

    def _jobs_of_rows(self, task: Any, rows: Iterable[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
        mine = self.tenant.replace("{", "{{").replace("}", "}}")  # It is no template.
        return _jobs_text(self._required_job_factory.jobs_of_rows(task, rows, {"tenant": mine, **options}))

    @property
    def _required_job_factory(self) -> JobFactory:
        if self._job_factory is None:
            raise InvalidTask("this context belongs to no app and cannot enqueue")
        return self._job_factory

    # --- for the process that runs the task

    def stop(self) -> None:
        """Ask the task to stop; it notices at its next `check` or `track`."""
        self._stopped = True

    @property
    def waiting_lines(self) -> int:
        """How many log lines have not been taken yet."""
        return len(self._lines)

    def take_report(self) -> Report | None:
        """Return what is new since this was last called; None when nothing is."""
        progress, detail = self._tracker.read() if self._tracker else (None, None)
        # One by one, since the task may add more meanwhile: another thread than the task's calls this.
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

    def _measure(self) -> "_ProgressTracker":
        if self._tracker is None:
            self._tracker = _ProgressTracker(self._monotonic)
        return self._tracker


class Metadata(MutableMapping[str, Any]):
    """A dictionary whose changes reach the store."""

    def __init__(self, stored: str | None, changed: Callable[[], None]) -> None:
        self._values: dict[str, Any] = _read_object(stored)
        self._changed = changed
        self._text = ""  # As it was when it was last changed here: a value may be changed behind our back.
        self._is_new = False

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._keep({**self._values, check_name(name, "a name in metadata"): value})

    def __delitem__(self, name: str) -> None:
        values = self._values.copy()
        del values[name]
        self._keep(values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def take(self) -> str | None:
        """Return all of it as JSON when any of it is new."""
        if not self._is_new:
            return None
        self._is_new = False
        return self._text

    def _keep(self, values: dict[str, Any]) -> None:
        try:
            data = msgspec.json.encode(values)
            check_finite(values, data.decode(), "metadata")
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidTask(f"metadata must be JSON: {error}") from None
        if len(data) > METADATA_BYTES_MAX:
            raise InvalidTask(f"metadata must have at most {METADATA_BYTES_MAX} bytes as JSON, not {len(data)}")
        self._values, self._text = values, storable(data.decode(), 2 * METADATA_BYTES_MAX)
        self._is_new = True
        self._changed()


class Steps:
    """The named steps of a job: `with steps("Download"): …`."""

    def __init__(self, context: Context, tracker: "_ProgressTracker") -> None:
        self._context = context
        self._tracker = tracker

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Be at this step for the time of the block; the step is done when the block ends without an exception."""
        self._context.check()
        self._tracker.enter_step(name)
        self._context._channel.note(self._context)
        yield
        self._tracker.leave_step()
        self._context._channel.note(self._context)


class _ProgressTracker:
    """Turns what a task says into percent, step, rate and time left. It is written and read by different threads."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._began = monotonic()
        self._fraction = 0.0
        self._label: str | None = None
        self._done: int | None = None
        self._total: int | None = None
        self._count_began = self._began
        self._steps: list[tuple[str, float]] = []
        self._ended: dict[int, float] = {}
        self._at: int | None = None
        self._at_began = self._began
        self._moved_to: object = None  # How far it was when that was told last, and since when.
        self._moved_at = self._began
        self._lock = threading.Lock()

    def set(self, fraction: float, label: str | None) -> None:
        """Take a share of the whole, or of the step; what is not a number says nothing about it."""
        fraction = float(fraction)  # It may be a number of a library, which could not be sent.
        with self._lock:
            if not math.isnan(fraction):
                self._fraction = min(max(fraction, 0.0), 1.0)
            self._done = self._total = None
            if label is not None:
                self._label = storable(label, STEP_LENGTH_MAX)

    def begin_count(self, label: str | None, total: int | None) -> None:
        """Begin to count items."""
        with self._lock:
            self._fraction, self._done, self._total, self._count_began = 0.0, 0, total, self._monotonic()
            if label is not None:
                self._label = storable(label, STEP_LENGTH_MAX)

    def count(self, done: int) -> None:
        """So many items are done."""
        with self._lock:
            self._done = done
            if self._total:
                self._fraction = min(max(done / self._total, 0.0), 1.0)

    def begin_steps(self, steps: Sequence[tuple[str, float]]) -> None:
        """Know all steps in advance."""
        with self._lock:
            self._steps = [(storable(str(name), STEP_LENGTH_MAX), float(weight)) for name, weight in steps]
            self._ended, self._at, self._fraction = {}, None, 0.0

    def enter_step(self, name: str) -> None:
        """Be at a step; one that was not announced, or is done already, comes last."""
        name = storable(str(name), STEP_LENGTH_MAX)
        with self._lock:
            free = [at for at, (known, _) in enumerate(self._steps) if known == name and at not in self._ended]
            if not free and len(self._steps) < STEPS_MAX:
                self._steps.append((name, 1.0))
            self._at = free[0] if free else len(self._steps) - 1
            self._at_began = self._monotonic()
            self._fraction, self._done, self._total, self._label = 0.0, None, None, None

    def leave_step(self) -> None:
        """The step is done."""
        with self._lock:
            if self._at is not None:
                self._ended[self._at] = round(self._monotonic() - self._at_began, 3)
            self._at, self._fraction, self._done, self._total, self._label = None, 0.0, None, None, None

    def read(self) -> tuple[int, str]:
        """Return percent, and everything else as JSON."""
        with self._lock:
            return self._read()

    def _read(self) -> tuple[int, str]:
        whole = self._whole()
        detail: dict[str, Any] = {}
        step = self._label or (self._steps[self._at][0] if self._at is not None else None)
        if step is not None:
            detail["step"] = step
        if self._moved_to != (place := (whole, self._done, self._total)):
            self._moved_to, self._moved_at = place, self._monotonic()
        elapsed = self._moved_at - self._count_began
        if self._done is not None:
            detail["done"] = self._done
            if self._total is not None:
                detail["total"] = self._total
            if self._done and elapsed > 0:
                detail["rate"] = round(self._done / elapsed, 3)
        eta = self._time_left(whole, elapsed)
        if eta is not None and eta > (still := self._monotonic() - self._moved_at):
            detail["eta"] = round(eta - still, 1)
        if self._steps:
            detail["steps"] = [self._step_row(at) for at in range(len(self._steps))]
        percent = int(whole * 100 + 1e-9)  # 0.29 * 100 is a little less than 29.
        return min(percent, UNFINISHED_MAX), msgspec.json.encode(detail).decode()

    def _whole(self) -> float:
        if not self._steps:
            return self._fraction
        total = sum(weight for _, weight in self._steps) or 1.0
        done = sum(self._steps[at][1] for at in self._ended)
        here = self._steps[self._at][1] * self._fraction if self._at is not None else 0.0
        return min((done + here) / total, 1.0)

    def _time_left(self, whole: float, elapsed: float) -> float | None:
        """Return how long it would still have taken when it moved last; since then it stands still."""
        if not self._steps and self._done and self._total:
            return elapsed / self._done * (self._total - self._done)
        return (self._moved_at - self._began) / whole * (1 - whole) if whole > 0 else None

    def _step_row(self, at: int) -> tuple[str, str, float | None]:
        name = self._steps[at][0]
        if at in self._ended:
            return name, "done", self._ended[at]
        return (name, "running", None) if at == self._at else (name, "waiting", None)


def encode_result(value: object, what: str = "the result") -> str:
    """Write a result as JSON text; bounded."""
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


def _jobs_text(jobs: Sequence[Any]) -> str:
    text = msgspec.json.encode(jobs).decode()
    if len(text) > ENQUEUE_BYTES_MAX:
        raise InvalidTask(
            f"jobs enqueued at once must have at most {ENQUEUE_BYTES_MAX >> 20} MiB; enqueue them in parts"
        )
    return text


def _ids(answer: str) -> list[str]:
    return msgspec.json.decode(answer, type=list[str])


def _read_object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
