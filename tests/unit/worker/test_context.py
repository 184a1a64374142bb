"""The context of a task: percent, steps, rate and remaining time; no duplicate reports, and nothing lost."""

import json
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from headway.core.clock import Clock
from headway.core.errors import InvalidTask, LeaseLost
from headway.core.job_logs import LOG_BYTES_MAX, LOG_LINE_LENGTH_MAX
from headway.core.jobs import METADATA_BYTES_MAX, RESULT_BYTES_MAX, Report
from headway.tasks.context import Context, TaskStopped, encode_result
from headway.tasks.progress import STEPS_MAX
from tests.unit.worker.test_ipc import claimed


class Paper:
    """A connection that only records messages, and answers as the test sets it."""

    def __init__(self) -> None:
        self.notes = 0
        self.asked: list[tuple[str, str]] = []
        self.is_lost = False

    def note(self, context: Context) -> None:
        self.notes += 1

    def ask(self, context: Context, question: str, body: str) -> str:
        if self.is_lost:
            raise LeaseLost("over")
        self.asked.append((question, body))
        return '["job_child"]'

    async def ask_async(self, context: Context, question: str, body: str) -> str:
        return self.ask(context, question, body)


class Task:
    """A context with its connection, and a clock that the test advances."""

    def __init__(self, **options: Any) -> None:
        self.now = 100.0
        self.paper = Paper()
        self.ctx = Context(
            claimed(**options.pop("job", {})), self.paper, clock=Clock(monotonic=lambda: self.now), **options
        )

    def report(self) -> Report:
        found = self.ctx.take_report()
        assert found is not None
        return found

    def detail(self) -> dict[str, Any]:
        text = self.report().detail
        assert text is not None
        found: dict[str, Any] = json.loads(text)
        return found


def test_percent_is_shown_as_reported() -> None:
    task = Task()
    for percent in range(1, 100):
        task.ctx.progress(percent)
        assert task.report().progress == percent


@pytest.mark.parametrize(("said", "shown"), [(100, 99), (99.99, 99), (250, 99), (-5, 0), (float("inf"), 99), (0.4, 0)])
def test_percent_is_bounded(said: float, shown: int) -> None:
    task = Task()
    task.ctx.progress(said)
    assert task.report().progress == shown


def test_values_that_are_not_numbers_are_ignored() -> None:
    task = Task()
    task.ctx.progress(40)
    task.ctx.progress(float("nan"), "still here")
    report = task.report()
    assert report.progress == 40
    assert "still here" in (report.detail or "")


def test_only_changes_are_reported() -> None:
    task = Task()
    assert task.ctx.take_report() is None
    task.ctx.progress(10, "first")
    task.ctx.progress(10, "first")
    assert task.report().progress == 10
    assert task.ctx.take_report() is None
    task.ctx.log("a\nb")
    report = task.report()
    assert (report.progress, report.detail, [line[2] for line in report.lines]) == (None, None, ["a", "b"])


def test_track_reports_count_rate_and_eta() -> None:
    task = Task()
    for number in task.ctx.track(range(10), "Writing"):
        task.now += 2
        if number == 4:
            break
    assert task.detail() == {"step": "Writing", "done": 4, "total": 10, "rate": 0.4, "eta": 15.0}
    list(task.ctx.track(iter("abc"), "Reading"))
    detail = task.detail()
    assert (detail["step"], detail["done"], "total" in detail) == ("Reading", 3, False)
    list(task.ctx.track([], "Nothing"))
    list(task.ctx.track([1], total=-3))
    assert task.detail() == {"step": "Nothing", "done": 1, "total": 0}


def test_stalled_task_reports_no_eta() -> None:
    task = Task()
    for number in task.ctx.track(range(100), "Writing"):
        task.now += 1
        if number == 97:
            break
    assert task.detail() == {"step": "Writing", "done": 97, "total": 100, "rate": 0.99, "eta": 3.0}
    task.now += 2
    task.ctx.log("waits for a lock")  # The new message is reported; the unchanged progress is not.
    assert task.detail() == {"step": "Writing", "done": 97, "total": 100, "rate": 0.99, "eta": 1.0}
    for _ in range(3):
        task.now += 100
        task.ctx.log("still waits")
        report = task.report()
        assert "eta" not in json.loads(report.detail or "{}")
    task.ctx.progress(99)
    assert 0 < task.detail()["eta"] < 10  # It moves again, and has an estimate again.


def test_track_stops_on_cancellation() -> None:
    task = Task()
    items = task.ctx.track(iter(int, 1))
    next(items)
    task.ctx.check()
    task.ctx.stop()
    assert task.ctx.cancelled
    with pytest.raises(TaskStopped):
        next(items)
    with pytest.raises(TaskStopped):
        task.ctx.check()


def test_steps_have_weights_and_durations() -> None:
    task = Task()
    with task.ctx.steps(("Load", 10), "Store") as step:
        with step("Load"):
            task.now += 3
            task.ctx.progress(50)
            assert task.report().progress == int(5 / 11 * 100)
        with step("Store"):
            report = task.report()
            assert report.progress == int(10 / 11 * 100)
            assert json.loads(report.detail or "")["steps"] == [["Load", "done", 3.0], ["Store", "running", None]]
        with step("Store"), pytest.raises(ZeroDivisionError):  # One more than announced; it is the last one.
            1 / 0  # noqa: B018
    assert [row[:2] for row in task.detail()["steps"]] == [["Load", "done"], ["Store", "done"], ["Store", "done"]]


def test_steps_are_bounded_and_sane() -> None:
    task = Task()
    for wrong in ((), ["x"] * (STEPS_MAX + 1), [("x", float("nan"))], [("x", float("inf"))], [("x", -1)]):
        with pytest.raises(InvalidTask), task.ctx.steps(*wrong):
            pass
    with task.ctx.steps("only") as step:
        for number in range(STEPS_MAX + 50):
            with step(f"step {number}"):
                pass
    assert len(task.detail()["steps"]) == STEPS_MAX


def test_failed_step_is_not_done() -> None:
    task = Task()
    with task.ctx.steps("a") as step, pytest.raises(ValueError), step("a"):
        raise ValueError
    assert task.detail()["steps"] == [["a", "running", None]]


def test_log_lines_are_bounded_and_valid_text() -> None:
    task = Task()
    task.ctx.log("x" * (LOG_LINE_LENGTH_MAX + 100))
    task.ctx.log("nul \0 and half \ud800", "stderr")
    task.ctx.log("")
    task.ctx.log(object)
    lines = task.report().lines
    assert len(lines) == 4
    assert all(len(text) <= LOG_LINE_LENGTH_MAX + 20 for _, _, text in lines)
    assert lines[1][1:] == ("stderr", "nul ␀ and half ?")


def test_any_numbers_and_texts_can_be_sent() -> None:
    task = Task()
    task.ctx.progress(Decimal("12.5"))  # type: ignore[arg-type]
    assert task.report().progress == 12
    list(task.ctx.track([1], total=Decimal(4)))  # type: ignore[arg-type]
    assert task.detail()["total"] == 4
    task.ctx.log("x", "\ud800")
    assert task.report().lines == ((None, "?", "x"),)


def test_metadata_is_kept_and_bounded() -> None:
    task = Task(job={"metadata": '{"a":1}'})
    assert dict(task.ctx.metadata) == {"a": 1}
    task.ctx.metadata["b"] = [1, {"c": None}]
    assert json.loads(task.report().metadata or "") == {"a": 1, "b": [1, {"c": None}]}
    assert task.ctx.take_report() is None
    del task.ctx.metadata["a"]
    assert json.loads(task.report().metadata or "") == {"b": [1, {"c": None}]}
    for wrong in (object(), "x" * METADATA_BYTES_MAX):
        with pytest.raises(InvalidTask):
            task.ctx.metadata["c"] = wrong
    assert "c" not in task.ctx.metadata
    assert dict(Task(job={"metadata": "{{{"}).ctx.metadata) == {}


def test_metadata_is_copied_when_it_is_set() -> None:
    """Another thread sends it, and must not see later changes of a value."""
    task = Task()
    seen: list[object] = [1]
    task.ctx.metadata["seen"] = seen
    seen.append(object())
    assert json.loads(task.report().metadata or "") == {"seen": [1]}
    with pytest.raises(InvalidTask):
        task.ctx.metadata["more"] = 1
    seen.pop()
    task.ctx.metadata["more"] = 1
    assert json.loads(task.report().metadata or "") == {"seen": [1], "more": 1}


async def test_finished_steps_are_not_repeated() -> None:
    task = Task(kept={"old": '{"x":1}'})
    assert task.ctx.once("old", _never) == {"x": 1}

    async def compute(value: int) -> int:
        return value

    assert task.ctx.once("new", lambda: 5) == 5
    assert await task.ctx.once("async", compute, 6) == 6
    assert task.ctx.once("new", _never) == 5
    assert await task.ctx.once("async", compute, 99) == 6
    assert task.paper.asked == [("step", '["new","5"]'), ("step", '["async","6"]')]
    for wrong in (object(), "x" * (RESULT_BYTES_MAX + 1)):
        with pytest.raises(InvalidTask):
            task.ctx.once("wrong", lambda wrong=wrong: wrong)
    task.paper.is_lost = True
    with pytest.raises(LeaseLost):
        task.ctx.once("late", lambda: 1)
    assert len(task.paper.asked) == 2


def _never() -> object:
    raise AssertionError("a finished step was repeated")


@pytest.fixture
def restless() -> Iterator[None]:
    """Make threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_nothing_is_lost_between_threads() -> None:
    """The task writes while another thread sends: every line arrives once and in order, and so does the last value."""
    task = Task()
    reports: list[Report] = []
    done = threading.Event()

    def send() -> None:
        while not done.wait(0.0002):  # A busy loop would starve the writer.
            if (report := task.ctx.take_report()) is not None:
                reports.append(report)

    sender = threading.Thread(target=send)
    sender.start()
    with task.ctx.steps(*map(str, range(STEPS_MAX))) as step:
        for number in range(STEPS_MAX):
            with step(str(number)):
                for part in range(20):
                    task.ctx.log(f"{number} {part}")
                    task.ctx.progress(part)
    done.set()
    sender.join()
    if (last := task.ctx.take_report()) is not None:
        reports.append(last)
    lines = [line[2] for report in reports for line in report.lines]
    assert lines == [f"{number} {part}" for number in range(STEPS_MAX) for part in range(20)]
    assert [report.progress for report in reports if report.progress is not None][-1] == 99


@pytest.mark.parametrize("value", [float("nan"), {"rates": [1.5, float("-inf")]}])
def test_nan_and_infinity_are_rejected(value: object) -> None:
    """They would silently become null in the store."""
    with pytest.raises(InvalidTask, match="must be JSON, which has no"):
        encode_result(value)
    with pytest.raises(InvalidTask, match="must be JSON, which has no"):
        Task().ctx.metadata["found"] = value


def test_log_beyond_the_limit_is_not_sent() -> None:
    task = Task()
    task.ctx.log("y\n" * LOG_BYTES_MAX)  # In one call, which must not become an unbounded message.
    for _ in range(10):
        task.ctx.log("more")
    assert len(task.report().lines) == LOG_BYTES_MAX // 2 + 1
    assert task.ctx.take_report() is None
