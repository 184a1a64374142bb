"""Windows: which options ask for one, when it is open, and what is recorded of merged calls."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import DuplicateKey, InvalidTask
from headway.core.instants import MINUTE, SECOND
from headway.core.lifecycle import FINAL, Status
from headway.core.windows import (
    MERGED_BYTES_MAX,
    MERGES_RECORDED_MAX,
    OpenedWindow,
    Window,
    WindowKind,
    check_same,
    debounced_start,
    is_open,
    merged_event,
    window_of,
)
from headway.tasks.options import Options

SPANS = st.integers(1, 10**12)
KINDS: list[WindowKind] = ["debounce", "throttle", "unique"]


@given(
    key=st.none() | st.just("k"),
    debounce=st.none() | SPANS,
    max_wait=st.none() | SPANS,
    throttle=st.none() | SPANS,
    unique=st.none() | SPANS,
    has_start=st.booleans(),
)
def test_options_make_one_window_or_an_error(key: str | None, has_start: bool, **spans: int | None) -> None:
    chosen = [name for name in KINDS if spans[name] is not None]
    wait = spans["max_wait"]
    is_wrong = (
        len(chosen) > 1
        or (bool(chosen) and key is None)
        or (chosen == ["debounce"] and has_start)
        or (wait is not None and (spans["debounce"] is None or wait < spans["debounce"]))
    )
    if is_wrong:
        with pytest.raises(InvalidTask):
            window_of(key=key, has_start=has_start, **spans)
        return
    window = window_of(key=key, has_start=has_start, **spans)
    if not chosen:
        assert window is None
    else:
        assert window == Window(chosen[0], "k", spans[chosen[0]] or 0, wait)


@given(
    kind=st.sampled_from(KINDS),
    status=st.none() | st.sampled_from(Status),
    until=st.integers(0, 9),
    now=st.integers(0, 9),
)
def test_when_a_window_is_open(kind: WindowKind, status: Status | None, until: int, now: int) -> None:
    opened = OpenedWindow(kind, "t", "job_1", until)
    expected = {
        "debounce": status is Status.SCHEDULED,
        "throttle": status is not None and now < until,
        "unique": status is not None and status not in FINAL and now < until,
    }
    assert is_open(opened, status, now) is expected[kind]


@given(quiet=SPANS, more=st.none() | st.integers(0, 10**12), calls=st.lists(st.integers(0, 10**12), min_size=1))
def test_start_of_a_debounced_job(quiet: int, more: int | None, calls: list[int]) -> None:
    """Each call moves the start to its own quiet time, and never beyond the longest wait."""
    window = Window("debounce", "k", quiet, None if more is None else quiet + more)
    first, *_ = times = sorted(calls)
    for now in times:
        start = debounced_start(window, first, now)
        assert start <= now + quiet
        assert start == now + quiet if window.max_wait is None else start <= first + window.max_wait
        assert start in (now + quiet, first + (window.max_wait or 0))


def test_open_window_has_one_task_and_one_kind() -> None:
    opened = OpenedWindow("unique", "report", "job_1", MINUTE)
    check_same(Window("unique", "k", SECOND), "report", opened)
    for window, task in ((Window("unique", "k", SECOND), "other"), (Window("throttle", "k", SECOND), "report")):
        with pytest.raises(DuplicateKey, match="'k' is in use for unique of the task 'report' by job_1"):
            check_same(window, task, opened)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=3_000), lambda inner: st.lists(inner)
)


@given(args=st.dictionaries(st.text(max_size=5_000), JSON, max_size=30))
def test_recorded_arguments_are_bounded(args: dict[str, Any]) -> None:
    text = msgspec.json.encode(args).decode()
    data = json.loads(msgspec.json.encode(merged_event(text, 1)))
    size = len(text.encode())
    assert data["args"].items() <= args.items() if size > MERGED_BYTES_MAX else data["args"] == args
    assert ("omitted" in data) is (size > MERGED_BYTES_MAX)
    assert len(msgspec.json.encode(data["args"])) <= MERGED_BYTES_MAX
    assert len(msgspec.json.encode(data)) <= 3 * MERGED_BYTES_MAX
    if size > MERGED_BYTES_MAX:
        assert (data["bytes"], bool(data["omitted"])) == (size, True)


def test_deeply_nested_arguments_are_omitted() -> None:
    deep = '{"n":' + "[" * 5_000 + "]" * 5_000 + "}"
    assert merged_event(deep, 1) == {"number": 1, "args": {}, "omitted": ["…"], "bytes": len(deep)}


def test_last_recorded_event_says_so() -> None:
    assert "note" not in merged_event("{}", MERGES_RECORDED_MAX - 1)
    assert merged_event("{}", MERGES_RECORDED_MAX)["note"] == "later merged calls are not recorded"


def test_job_through_a_window_has_no_key_of_its_own() -> None:
    options = Options().changed({"key": "acct-{id}", "debounce": "30s", "max_wait": "5m"})
    job = options.for_args({"id": 7}).new_job("job_1", "sync", {"id": 7})
    assert (job.key, job.delay) == (None, 30 * SECOND)
    assert job.window == Window("debounce", "acct-7", 30 * SECOND, 5 * MINUTE)
    assert options.new_job("job_1", "sync", {}).window == Window("debounce", "acct-{id}", 30 * SECOND, 5 * MINUTE)
    delayed = Options().changed({"key": "k", "unique": "1h", "delay": "1m"}).new_job("job_1", "sync", {})
    assert (delayed.delay, delayed.key) == (MINUTE, None)
    for value, message in (({"id": None}, "text or a number"), ({"id": "x" * 600}, "at most 512"), ({}, "'id'")):
        with pytest.raises(InvalidTask, match=message):
            options.for_args(value)
    plain = Options().changed({"key": "acct-{id}"})
    assert plain.for_args({}) is plain
