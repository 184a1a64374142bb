"""One attempt at a job, from its arguments to its outcome: resolve → run → outcome.

The steps are the same for sync and async tasks, in a child process and in virtual time. The result is a message for the
supervisor, which decides what becomes of the job.
"""

import asyncio
import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from headway.core.errors import InvalidTask, LeaseLost
from headway.core.jobs import ERROR_BYTES_MAX, Claimed
from headway.core.validation import REASON_LENGTH_MAX, storable
from headway.tasks.context import Context, TaskStopped, encode_result
from headway.tasks.retry import Cancel, Retry
from headway.tasks.task import Task
from headway.worker import capture
from headway.worker.ipc import CancelRaised, Done, Failed, Stopped, Unrunnable

TasksByName: TypeAlias = Mapping[str, Task[..., Any]]
Ended: TypeAlias = Done | Failed | CancelRaised | Stopped | Unrunnable

MESSAGE_LENGTH_MAX: Final = 4_000


def resolve(registry: TasksByName, claimed: Claimed) -> tuple[Task[..., Any], dict[str, Any]] | Unrunnable:
    """Find the task and bind its arguments, or return why the job cannot run as it is."""
    task = registry.get(claimed.task)
    if task is None:
        return Unrunnable(claimed.job_id, claimed.attempt, f"no task here is named {claimed.task!r}", "unknown task")
    try:
        args = _decode_args(claimed.args)
        return task, task.bind((), args)
    except (msgspec.DecodeError, RecursionError) as error:
        return _unrunnable(claimed, f"its arguments cannot be read: {error}", "unreadable")
    except InvalidTask as error:
        return _unrunnable(claimed, str(error), "arguments")


_decode_args: Final = msgspec.json.Decoder(dict[str, Any]).decode


def _unrunnable(claimed: Claimed, reason: str, cause: str) -> Unrunnable:
    return Unrunnable(claimed.job_id, claimed.attempt, storable(reason, REASON_LENGTH_MAX), cause)


def run_sync(
    task: Task[..., Any],
    args: dict[str, Any],
    context: Callable[[], Context],
    claimed: Claimed,
    was_asked: Callable[[str], bool],
) -> Ended:
    """Run a `def` task to its end; `was_asked` returns whether a job has been asked to stop."""
    output = capture.begin(context)
    try:
        result = task.function(output.context(), **args) if task.wants_context else task.function(**args)
        return _done(claimed, result)
    except BaseException as error:  # noqa: BLE001 - whatever the task raises is its outcome
        return outcome_of(claimed, error, task.execution.retry, was_asked, output.made)
    finally:
        capture.end(output)


async def run_async(
    task: Task[..., Any],
    args: dict[str, Any],
    context: Callable[[], Context],
    claimed: Claimed,
    was_asked: Callable[[str], bool],
) -> Ended:
    """Run an `async def` task to its end; `was_asked` returns whether a job has been asked to stop."""
    output = capture.begin(context)
    try:
        coroutine: Coroutine[Any, Any, Any] = (
            task.function(output.context(), **args) if task.wants_context else task.function(**args)
        )
        return _done(claimed, await coroutine)
    except BaseException as error:  # noqa: BLE001 - whatever the task raises is its outcome
        return outcome_of(claimed, error, task.execution.retry, was_asked, output.made)
    finally:
        capture.end(output)


def _done(claimed: Claimed, result: object) -> Ended:
    if result is None:
        return Done(claimed.job_id, claimed.attempt, None)
    try:
        return Done(claimed.job_id, claimed.attempt, encode_result(result))
    except InvalidTask as error:  # Doing all the work again would not help.
        return Failed(claimed.job_id, claimed.attempt, error_json(error), retryable=False)


def outcome_of(
    claimed: Claimed,
    error: BaseException,
    retry: Retry | None,
    was_asked: Callable[[str], bool],
    context: Context | None = None,
) -> Ended:
    """Return what an exception means for the job. Never raise, whatever the exception does when it is inspected."""
    is_over = context is not None and context.is_over
    try:
        return _meaning_of(claimed, error, retry, is_over or was_asked(claimed.job_id))
    except BaseException as worse:  # noqa: BLE001 - a job without an outcome would be RUNNING for ever
        if isinstance(worse, TaskStopped) and was_asked(claimed.job_id):  # A signal arrived at this moment.
            return Stopped(claimed.job_id, claimed.attempt)
        return Failed(claimed.job_id, claimed.attempt, _unshown(error, worse))


def _meaning_of(claimed: Claimed, error: BaseException, retry: Retry | None, was_asked: bool) -> Ended:
    """Return what an exception means. A task that stops without being asked has failed: else it would run for ever."""
    job_id, attempt = claimed.job_id, claimed.attempt
    if isinstance(error, Cancel):
        return CancelRaised(job_id, attempt, storable(_shown(lambda: str(error)), REASON_LENGTH_MAX))
    if isinstance(error, Retry):
        return Failed(job_id, attempt, error_json(error), retry_in=error.after)
    # A lost lease may be that of a lock, which must not be retried at once and for ever.
    if was_asked and isinstance(error, TaskStopped | asyncio.CancelledError | LeaseLost):
        return Stopped(job_id, attempt)
    return Failed(job_id, attempt, error_json(error), retryable=retry is None or retry.retries(error))


def error_json(error: BaseException) -> str:
    """Encode an exception as JSON: its type, message and traceback, each bounded."""
    message = storable(_shown(lambda: str(error)), MESSAGE_LENGTH_MAX)
    trace = storable(_shown(lambda: _traceback(error)), ERROR_BYTES_MAX * 4)
    if len(trace) > ERROR_BYTES_MAX // 2:  # Keep both ends: where it began, and where it happened.
        keep = ERROR_BYTES_MAX // 4
        trace = f"{trace[:keep]}\n  … {len(trace) - 2 * keep:,} characters left out …\n{trace[-keep:]}"
    return msgspec.json.encode({"type": _name_of(error), "message": message, "traceback": trace}).decode()


def _traceback(error: BaseException) -> str:
    """Format the traceback of an exception without Headway's own frames that called the task."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def _unshown(error: BaseException, worse: BaseException) -> str:
    """Encode an exception that raises another one when it is inspected."""
    message = f"(it cannot be shown: {_name_of(worse)})"
    return msgspec.json.encode({"type": _name_of(error), "message": message, "traceback": ""}).decode()


def _name_of(error: BaseException) -> str:
    kind = type(error)
    if kind.__module__ in ("builtins", "__main__"):
        return storable(kind.__qualname__, MESSAGE_LENGTH_MAX)
    # Users know our own errors by their public name, whatever module they are in.
    module = "headway" if kind.__module__.startswith("headway.") else kind.__module__
    return storable(f"{module}.{kind.__qualname__}", MESSAGE_LENGTH_MAX)


def _shown(say: Callable[[], str]) -> str:
    """Call code of an exception, such as `__str__`, which may fail."""
    try:
        return say()
    except Exception as broken:  # noqa: BLE001 - whatever it is
        return f"(it cannot be shown: {type(broken).__name__})"
