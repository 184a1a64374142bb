"""From arguments to an outcome: which arguments fit, and what an exception means."""

import asyncio
import json
from typing import Any

import pytest

import headway
from headway import Cancel, Context, Headway, Retry
from headway.core.errors import LeaseLost
from headway.core.jobs import ERROR_BYTES_MAX, RESULT_BYTES_MAX
from headway.core.settings import Settings
from headway.tasks.context import TaskStopped
from headway.worker.attempt import Ended, error_json, resolve, run_async, run_sync
from headway.worker.ipc import CancelRaised, Done, Failed, Stopped, Unrunnable
from tests.unit.worker.test_context import Task as Running
from tests.unit.worker.test_ipc import claimed

app = Headway(settings=Settings(store="sqlite://"), name="unit")


@app.task
def add(one: int, two: int = 2) -> int:
    """Add two numbers."""
    return one + two


@app.task
def with_context(ctx: Context, **more: Any) -> list[Any]:
    """Return the job's id and the names of its arguments."""
    return [ctx.job_id, sorted(more)]


@app.task(retry=Retry(retry_on=(OSError,), give_up_on=ConnectionError))
def raising(what: str) -> Any:
    """Raise, or return something that cannot be serialised."""
    if what in RETURNED:
        return RETURNED[what]
    raise RAISED[what]


@app.task(name="raising_async")
async def raising_async(what: str) -> Any:
    """Raise in a coroutine."""
    await asyncio.sleep(0)
    return raising(what)


@app.task
def keeping(ctx: Context) -> None:
    """Ask the supervisor, which answers that the attempt is over."""
    ctx.once("step", lambda: 1)


@app.task(name="keeping_async")
async def keeping_async(ctx: Context) -> None:
    """Ask the supervisor from a coroutine."""
    await ctx.enqueue("note")


class Wordless(Exception):
    """An exception whose `__str__` raises."""

    def __str__(self) -> str:
        raise RuntimeError


class Noteless(Exception):
    """An exception whose `__notes__` raise, which breaks the traceback module."""

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise RuntimeError


class Leaving(Exception):
    """An exception that tries to exit the process when it is formatted."""

    def __str__(self) -> str:
        raise SystemExit(3)


class Shy(Cancel):
    """A Cancel whose `__str__` raises."""

    def __str__(self) -> str:
        raise RuntimeError


class Vague(type):
    """A metaclass whose `isinstance` check raises."""

    def __instancecheck__(cls, instance: object) -> bool:
        raise KeyboardInterrupt


class Incomparable(Exception, metaclass=Vague):
    """An exception class that cannot be compared with others."""


@app.task(retry=Retry(retry_on=(Incomparable,)))
def undecided() -> None:
    """Raise an exception that the retry policy cannot classify."""
    raise ValueError("x")


class JobFactory:
    """Creates no jobs."""

    def jobs_of(self, task: Any, args: Any, options: Any) -> list[Any]:
        return []


RETURNED = {"none": None, "text": "ö", "object": object(), "long": "x" * (RESULT_BYTES_MAX + 1)}
RAISED: dict[str, BaseException] = {
    "os": OSError("disk"),
    "connection": ConnectionResetError("peer"),
    "value": ValueError("x" * 100_000),
    "wordless": Wordless(),
    "noteless": Noteless(),
    "leaving": Leaving(),
    "half": type("Half", (Exception,), {"__module__": "\ud800"})(),
    "shy": Shy(),
    "retry": Retry(after="10m", reason="later"),
    "cancel": Cancel("no need"),
    "stopped": TaskStopped(),
    "cancelled": asyncio.CancelledError(),
    "lost": LeaseLost("over"),
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "generator": GeneratorExit(),
}


def _run(task: str, args: str, *, was_asked: bool = False, is_lost: bool = False) -> Ended:
    job = claimed(task=task, args=args)
    found = resolve(app.tasks, job)
    if isinstance(found, Unrunnable):
        return found
    running = Running(job_factory=JobFactory())
    running.paper.is_lost = is_lost
    context = running.ctx
    if found[0].is_async:
        return asyncio.run(run_async(*found, lambda: context, job, lambda _: was_asked))
    return run_sync(*found, lambda: context, job, lambda _: was_asked)


@pytest.mark.parametrize(
    ("task", "args", "cause"),
    [
        ("ghost", "{}", "unknown task"),
        ("add", "{", "unreadable"),
        ("add", "[1]", "unreadable"),
        ("add", "", "unreadable"),
        ("add", "[" * 100_000, "unreadable"),
        ("add", "{}", "arguments"),
        ("add", '{"one":1,"three":3}', "arguments"),
    ],
)
def test_unrunnable_job_says_why(task: str, args: str, cause: str) -> None:
    ended = _run(task, args)
    assert isinstance(ended, Unrunnable)
    assert ended.cause == cause
    assert 0 < len(ended.reason) <= 520


def test_arguments_and_context_arrive() -> None:
    assert _run("add", '{"one":40}') == Done("job_1", 1, "42")
    assert _run("with_context", '{"x":1,"ctx2":2}') == Done("job_1", 1, '["job_1",["ctx2","x"]]')


@pytest.mark.parametrize("task", ["raising", "raising_async"])
def test_exceptions_become_outcomes(task: str) -> None:
    def run(what: str, *, was_asked: bool = False) -> Ended:
        return _run(task, json.dumps({"what": what}), was_asked=was_asked)

    assert run("none") == Done("job_1", 1, None)
    assert run("text") == Done("job_1", 1, '"ö"')
    assert run("cancel") == CancelRaised("job_1", 1, "no need")
    assert run("shy") == CancelRaised("job_1", 1, "(it cannot be shown: RuntimeError)")
    for what in ("stopped", "cancelled", "lost"):
        assert run(what, was_asked=True) == Stopped("job_1", 1)
        assert isinstance(run(what), Failed), "it was not asked to stop: retrying would never end"
    retry = run("retry")
    assert isinstance(retry, Failed)
    assert (retry.retryable, retry.retry_in) == (True, 600_000_000)
    is_picky = task == "raising"
    for what, retryable in {"os": True, "connection": not is_picky, "value": not is_picky}.items():
        failed = run(what)
        assert isinstance(failed, Failed)
        assert failed.retryable is retryable, what
    for what in ("object", "long"):
        failed = run(what)
        assert isinstance(failed, Failed)
        assert not failed.retryable, "repeating all the work would not help"


@pytest.mark.parametrize("task", ["keeping", "keeping_async"])
def test_task_with_a_lost_lease_is_stopped(task: str) -> None:
    assert _run(task, "{}", is_lost=True) == Stopped("job_1", 1)


@pytest.mark.parametrize("task", ["raising", "raising_async"])
@pytest.mark.parametrize("what", ["exit", "interrupt", "generator", "wordless", "noteless", "leaving", "half"])
def test_no_exception_escapes(task: str, what: str) -> None:
    ended = _run(task, json.dumps({"what": what}))
    assert isinstance(ended, Failed)
    assert json.loads(ended.error)["type"].rpartition(".")[2] == type(RAISED[what]).__name__


def test_unprintable_exceptions_are_reported_as_such() -> None:
    for what, field in (("wordless", "message"), ("noteless", "traceback"), ("leaving", "message")):
        ended = _run("raising", json.dumps({"what": what}))
        assert isinstance(ended, Failed)
        assert "cannot be shown" in json.loads(ended.error)[field]
    undecided = _run("undecided", "{}")
    assert isinstance(undecided, Failed)
    assert json.loads(undecided.error)["type"] == "ValueError"


def test_errors_are_bounded_and_keep_both_ends() -> None:
    def deep(levels: int) -> None:
        if levels == 0:
            raise ValueError("the cause\0 \ud800" + "x" * 100_000)
        deep(levels - 1)

    try:
        deep(400)
    except ValueError as caught:
        text = error_json(caught)
    assert len(text) < 2 * ERROR_BYTES_MAX
    error = json.loads(text)
    assert error["type"] == "ValueError"
    assert error["message"].startswith("the cause␀ ?")
    assert error["traceback"].startswith("Traceback")


@pytest.mark.parametrize("name", ["raising", "raising_async"])
def test_traceback_begins_with_the_task(name: str) -> None:
    ended = _run(name, '{"what":"os"}')
    assert isinstance(ended, Failed)
    lines = json.loads(ended.error)["traceback"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith(f"in {name}")


def test_headway_errors_have_their_public_names() -> None:
    for error, name in ((LeaseLost("gone"), "headway.LeaseLost"), (ValueError("no"), "ValueError")):
        assert json.loads(error_json(error))["type"] == name
        assert "." not in name or hasattr(headway, name.partition(".")[2])
