"""Invalid tasks and calls: rejected where they are written, with what to write instead."""

import math
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from itertools import count
from typing import Any, get_type_hints

import pytest

from headway import Context, Every, Headway, InvalidSchedule, InvalidTask, Retry
from headway.core.instants import SECOND
from headway.core.settings import Settings
from headway.tasks.options import TaskEnqueueOptions
from headway.testing import virtual


@pytest.fixture
def app() -> Headway:
    return Headway(settings=Settings(store="sqlite://"), name="t")


def note(n: float = 1.0) -> float:
    return n


# --- functions


def rows() -> Iterator[int]:
    yield 1


async def async_rows() -> AsyncIterator[int]:
    yield 1


def by_place(a: int, /, b: int) -> None: ...


def any_number(*args: int) -> None: ...


def any_number_with_context(ctx: Context, *args: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (5, "a task must be a function, not 5"),
        ("note", "a task must be a function, not 'note'"),
        (rows, "rows has a yield"),
        (async_rows, "async_rows has a yield"),
        (partial(rows), "has a yield"),
        (by_place, "by_place: the arguments of a job have names, and a: int cannot"),
        (any_number, "any_number: .* and .args: int cannot be given by name"),
        (any_number_with_context, "any_number_with_context: .* cannot be given by name"),
        (partial(note, n=2), "the name of a task must be non-empty text"),
        (dict.fromkeys, "cannot be given by name"),
        (min, "min cannot be a task"),
    ],
)
def test_function_that_no_job_can_call_is_rejected(app: Headway, function: Any, words: str) -> None:
    registrations: tuple[Callable[[Any], object], ...] = (app.task, app.task(queue="x"), app.cron("@daily"))
    for register in registrations:
        with pytest.raises(InvalidTask, match=words):
            register(function)
    assert app.tasks == {}
    assert app.declared == {}


def test_many_kinds_of_functions_are_tasks(app: Headway) -> None:
    def context_by_place(ctx: Context, /, a: int, *, b: int = 0, **more: int) -> None: ...

    assert app.task(context_by_place).bind((), {"a": 1, "c": 2}) == {"a": 1, "c": 2}
    assert app.task(name="half")(partial(note, n=0.5)).name == "half"


# --- their options


def test_the_typed_options_are_those_that_a_task_takes(app: Headway) -> None:
    with pytest.raises(InvalidTask, match="known are") as refused:
        app.task(note).options(colour="red")  # type: ignore[call-arg]
    known = str(refused.value).partition("known are ")[2].split(", ")
    assert {*known} == {*get_type_hints(TaskEnqueueOptions)}


def test_tags_may_be_any_iterable_of_texts(app: Headway) -> None:
    task = app.task(note)
    assert task.options(tags=(tag for tag in "ab")).defaults.tags == ("a", "b")
    wrong: Any
    for wrong in ("ab", {"a": 1}, b"ab", 7, (str(number) for number in count())):
        with pytest.raises(InvalidTask, match="tags must be a list"):
            task.options(tags=wrong)


@pytest.mark.parametrize("retry", [3, "3", {"max_attempts": 3}, Retry])
def test_retry_must_be_a_retry_policy(app: Headway, retry: Any) -> None:
    words = r"retry must be a policy such as Retry\(max_attempts=3\), not"
    with pytest.raises(InvalidTask, match=words):
        app.task(retry=retry)
    with pytest.raises(InvalidTask, match=words):
        app.command("a", ["ls"], retry=retry)
    with pytest.raises(InvalidTask, match=words):
        app.http("b", "https://example.org", retry=retry)


@pytest.mark.parametrize("value", ["no", 0, None])
def test_retry_timeouts_must_be_a_bool(value: Any) -> None:
    with pytest.raises(InvalidTask, match="retry_timeouts must be True or False"):
        Retry(retry_timeouts=value)


@pytest.mark.parametrize("name", ["", " ", 5])
def test_name_must_not_be_empty(app: Headway, name: Any) -> None:
    for register in (
        lambda: app.task(name=name)(note),
        lambda: app.command(name, ["ls"]),
        lambda: app.http(name, "https://example.org"),
    ):
        with pytest.raises(InvalidTask, match="the name of a task must be non-empty text"):
            register()
    assert app.tasks == {}


def test_schedule_needs_a_task(app: Headway) -> None:
    with pytest.raises(InvalidSchedule, match="a schedule runs a task or the name of one, not <function note"):
        app.schedule("often", note, Every("1h"))  # type: ignore[arg-type]


# --- calls


def test_invalid_calls_are_rejected(app: Headway) -> None:
    task = app.task(note)
    with virtual(app):
        job = task.enqueue_sync()
        wrong: Any
        for wrong in (5, None, job, b"job_1"):
            for call in (app.job_sync, app.cancel_sync, app.retry_sync):
                with pytest.raises(InvalidTask, match="a job is named by its id"):
                    call(wrong)
        for wrong in (-1, 0, "5", True, 1.5):
            for read in (app.jobs_sync, partial(app.occurrences_sync, "often")):
                with pytest.raises(InvalidTask, match="limit must be a whole number of at least 1"):
                    read(limit=wrong)
        with pytest.raises(InvalidTask, match="status must be one of SCHEDULED, PENDING"):
            app.jobs_sync(status="NOPE")
        assert [found.id for found in app.jobs_sync(status="pending", limit=1_000)] == [job.id]


def test_nan_and_infinity_are_rejected(app: Headway) -> None:
    task = app.task(note)
    with virtual(app) as world:
        for enqueue in (
            lambda: task.enqueue_sync(math.nan),
            lambda: task.enqueue_many_sync([{"n": 1.0}, {"n": math.inf}]),
            lambda: app.enqueue_sync("elsewhere", {"n": -math.inf}),
        ):
            with pytest.raises(InvalidTask, match=r"which has no (nan|inf|-inf) at n;"):
                enqueue()
        assert world.jobs() == []


def test_unknown_option_of_any_kind_of_task_is_rejected(app: Headway) -> None:
    options: dict[str, Any] = {"qeue": "media"}
    with pytest.raises(TypeError, match="no option 'qeue'; known are queue, priority, tenant, retry, timeout, expires"):
        app.task(**options)
    with pytest.raises(TypeError, match="no option 'qeue'"):
        app.command("list", ["ls"], **options)
    with pytest.raises(TypeError, match="no option 'qeue'"):
        app.http("ping", "https://example.org/", **options)
    assert app.tasks.keys().isdisjoint({"list", "ping"})


def test_http_timeout_defaults_to_thirty_seconds(app: Headway) -> None:
    assert app.http("ping", "https://example.org/").execution.timeout == 30 * SECOND
    assert app.http("pong", "https://example.org/", timeout="5s").execution.timeout == 5 * SECOND
    assert app.http("late", "https://example.org/", timeout=None).execution.timeout is None
