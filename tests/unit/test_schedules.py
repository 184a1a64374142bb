"""Schedule specs: one JSON form that round-trips, and one clear line for every invalid spec."""

import math
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import DefinitionError, InvalidSchedule, InvalidTask
from headway.core.instants import DAY, HOUR, MINUTE, SECOND, isoformat, parse_instant, quote
from headway.core.json_values import ARGS_BYTES_MAX, encode_args
from headway.core.lifecycle import Backoff, Status
from headway.core.occurrences import LiveJobs
from headway.core.schedules import Missed, Overlap, Pause, Rate, Schedule, ScheduleSpec
from headway.core.triggers import After, At, Cron, Every, Trigger
from headway.core.validation import NAME_LENGTH_MAX, TAGS_MAX, check_int, check_name, check_tags, read_status

EVERY = {"kind": "every", "interval": "1m"}
PLAIN = {"task": "work", "trigger": EVERY}

# Round trips ------------------------------------------------------------------------------------------------

names = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=30)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc\\u0", max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
durations = st.integers(0, 10 * DAY).map(lambda micros: timedelta(microseconds=micros))
instants = st.integers(parse_instant("2000-01-01"), parse_instant("2100-01-01"))
triggers: st.SearchStrategy[Trigger] = st.one_of(
    st.builds(Cron, st.sampled_from(["0 6 * * *", "@daily", "*/5 1-3 * * mon", "0 0 L * *"]),
              st.sampled_from(["UTC", "Europe/Berlin"]), st.sampled_from(["shift", "skip", "both"])),
    st.builds(Cron, st.just("0 6 * * *"), seconds=st.sampled_from(["*/10", "30"])),
    st.builds(Every, st.integers(1, 10**6), st.none() | instants),
    st.builds(After, st.integers(1, 10**6)),
    st.builds(lambda instant: At(isoformat(instant)), instants),
    st.just(At("2027-01-01T00:00:00", tz="Asia/Tokyo")),
)  # fmt: skip
options = st.fixed_dictionaries(
    {},
    optional={
        "args": st.dictionaries(names, json_values, max_size=4),
        "tenant": names,
        "queue": names,
        "priority": st.integers(-1_000, 1_000),
        "max_attempts": st.integers(1, 1_000),
        "backoff": st.sampled_from(["5s..5m", "1ms", "0s..1d", Backoff(first=1, most=SECOND)]),
        "tags": st.lists(names, max_size=4),
        "overlap": st.sampled_from([*Overlap, "queue"]),
        "queue_limit": st.integers(1, 1_000),
        "missed": st.sampled_from([*Missed, "all"]),
        "deadline": durations,
        "grace": durations,
        "catch_up_limit": st.integers(1, 10_000),
        "catch_up_rate": st.sampled_from(["10/m", "1/s", "1000000/h", Rate(7, MINUTE)]),
        "jitter": durations,
        "start": st.integers(0, parse_instant("2001-01-01")).map(isoformat),
        "end": st.integers(parse_instant("2002-01-01"), parse_instant("9000-01-01")).map(isoformat),
        "expect": durations,
    },
)


@given(triggers, names, options)
@settings(max_examples=100, deadline=None)
def test_spec_round_trips(trigger: Trigger, task: str, given_options: dict[str, Any]) -> None:
    spec = ScheduleSpec.build(task=task, trigger=trigger, **given_options)
    text = spec.to_json()
    assert ScheduleSpec.from_dict(spec.to_dict()) == spec
    assert ScheduleSpec.from_json(text) == spec
    assert ScheduleSpec.from_json(text).to_json() == text
    assert msgspec.json.decode(text) == msgspec.json.decode(msgspec.json.encode(spec.to_dict()))


@given(triggers, options, st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_equal_specs_have_equal_json(trigger: Trigger, given_options: dict[str, Any], chance: Any) -> None:
    shuffled = list(given_options.items())
    chance.shuffle(shuffled)
    args = list(given_options.get("args", {}).items())
    chance.shuffle(args)
    other = {**dict(shuffled), **({"args": dict(args)} if args else {})}
    one, two = (ScheduleSpec.build(task="work", trigger=trigger, **chosen) for chosen in (given_options, other))
    assert (one == two, one.to_json()) == (True, two.to_json())


def test_defaults_are_not_written() -> None:
    spec = ScheduleSpec.build(
        task="work", trigger=Every("60s"), grace="60s", overlap="skip", args={}, tags=(), deadline=None, priority=0
    )
    assert spec.to_dict() == PLAIN
    assert spec.to_json() == '{"task":"work","trigger":{"interval":"1m","kind":"every"}}'
    assert spec == ScheduleSpec.from_dict(PLAIN)


def test_zero_differs_from_unset() -> None:
    spec = ScheduleSpec.build(task="work", trigger=Every("1m"), deadline=0, grace=0)
    assert (spec.deadline, spec.grace) == (0, 0)
    assert ScheduleSpec.from_json(spec.to_json()) == spec


def test_spec_is_built_from_human_readable_values() -> None:
    spec = ScheduleSpec.build(
        task="work",
        trigger=Cron("0 6 * * *"),
        deadline="4h",
        grace=90,
        jitter=timedelta(minutes=2),
        start="2027-01-01",
        end=datetime(2028, 1, 1),  # noqa: DTZ001 - without a zone it is UTC
        args='{"b": 1, "a": [2]}',
        catch_up_rate="10/m",
        overlap="queue",
    )
    assert (spec.deadline, spec.grace, spec.jitter) == (4 * HOUR, 90 * SECOND, 2 * MINUTE)
    assert (spec.start, spec.end) == (parse_instant("2027-01-01"), parse_instant("2028-01-01"))
    assert spec.args == '{"a":[2],"b":1}'
    assert spec.catch_up_rate == Rate(10, MINUTE)
    assert spec.exclusive
    assert not ScheduleSpec.build(task="work", trigger=Every("1m"), overlap="allow").exclusive


# Rejections -------------------------------------------------------------------------------------------------

WRONG: list[tuple[str, object, str]] = [
    ("args", [1], "args must be an object"),
    ("args", "[1]", "args must be an object"),
    ("args", "{", "args must be JSON"),
    ("args", '{"a":' * 100_000, "args must "),
    ("args", '{"a":' * 5_000, "args must be JSON"),
    ("args", {"a": object()}, "args must be JSON"),
    ("args", {1: 2}, "args must be JSON"),
    ("args", {"a": "\0"}, "args must not contain NUL"),
    ("args", {"\0": 1}, "args must not contain NUL"),
    ("args", {"a": "\\\0"}, "args must not contain NUL"),
    ("args", {"a": "\ud800"}, "args must be JSON"),
    ("args", "\ud800", "args must be JSON"),
    ("args", {"a": "x" * ARGS_BYTES_MAX}, f"args must have at most {ARGS_BYTES_MAX} bytes"),
    ("args", {"a": "é" * (ARGS_BYTES_MAX // 2)}, f"args must have at most {ARGS_BYTES_MAX} bytes"),
    ("args", " " * 10**7 + "{}", f"args must have at most {ARGS_BYTES_MAX} bytes"),
    ("tenant", "", "tenant must be non-empty text"),
    ("tenant", 5, "tenant must be non-empty text"),
    ("queue", "a\nb", "queue must not have control characters"),
    ("queue", "a\0b", "queue must not have control characters"),
    ("queue", "\ud800", "queue must not have control characters"),
    ("queue", "x" * (NAME_LENGTH_MAX + 1), f"queue must have at most {NAME_LENGTH_MAX} characters"),
    ("queue", "x" * 10**7, f"queue must have at most {NAME_LENGTH_MAX} characters"),
    ("priority", 1_001, "priority must be a whole number from -1000 to 1000"),
    ("priority", 10**5_000, "priority must be a whole number"),
    ("priority", "5", "priority must be a whole number"),
    ("priority", True, "priority must be a whole number"),
    ("priority", 1.0, "priority must be a whole number"),
    ("max_attempts", 0, "max_attempts must be a whole number from 1 to 1000"),
    ("backoff", "soon", "backoff must look like"),
    ("backoff", "5m..5s", "backoff must look like"),
    ("backoff", {}, "backoff must look like"),
    ("tags", "video", f"tags must be a list of at most {TAGS_MAX} texts"),
    ("tags", ["a"] * (TAGS_MAX + 1), f"tags must be a list of at most {TAGS_MAX} texts"),
    ("tags", [""], "tag must be non-empty text"),
    ("tags", [["a"]], "tag must be non-empty text"),
    ("overlap", "skp", "overlap must be one of skip, queue, allow, replace"),
    ("overlap", 1, "overlap must be one of"),
    ("queue_limit", 0, "queue_limit must be a whole number from 1 to 1000"),
    ("missed", "none", "missed must be one of latest, all, skip"),
    ("deadline", "4 hours", "deadline must look like"),
    ("deadline", -1, "deadline must be between 0 and"),
    ("deadline", "99999d", "deadline must be between 0 and"),
    ("grace", float("nan"), "grace must be a finite number"),
    ("grace", 10**5_000, "grace must be a finite number"),
    ("catch_up_limit", 10_001, "catch_up_limit must be a whole number from 1 to 10000"),
    ("catch_up_rate", "10", "catch_up_rate must look like"),
    ("catch_up_rate", "0/m", "catch_up_rate must look like"),
    ("catch_up_rate", "10/d", "catch_up_rate must look like"),
    ("catch_up_rate", "-1/m", "catch_up_rate must look like"),
    ("catch_up_rate", "1.5/m", "catch_up_rate must look like"),
    ("catch_up_rate", "٣/m", "catch_up_rate must look like"),
    ("catch_up_rate", "1000001/h", "catch_up_rate must look like"),
    ("catch_up_rate", "00000019999999999/m", "catch_up_rate must look like"),
    ("catch_up_rate", "0000001" + "9" * 5_000 + "/m", "catch_up_rate must look like"),
    ("catch_up_rate", 10, "catch_up_rate must look like"),
    ("catch_up_rate", 10**5_000, "catch_up_rate must look like"),
    ("jitter", "2", "jitter must look like"),
    ("start", "tomorrow", "start must look like"),
    ("start", 1_798_761_600, "start must be a datetime or ISO 8601 text"),
    ("start", "0001-01-01T00:00:00+14:00", "start must lie in the years"),
    ("end", "2027-02-30", "end must look like"),
    ("expect", [], "expect must look like"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG, ids=lambda value: quote(value)[:24])
def test_invalid_option_is_rejected_by_name(name: str, value: object, message: str) -> None:
    started = time.perf_counter()
    with pytest.raises(InvalidSchedule) as refused:
        ScheduleSpec.from_dict({**PLAIN, name: value})
    assert time.perf_counter() - started < 60  # Without its bound, one of these would take hours.
    assert str(refused.value).startswith(message)
    assert len(str(refused.value)) < 250
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "a schedule must be an object"),
        (None, "a schedule must be an object"),
        ({}, "a schedule needs a task"),
        ({"task": 5, "trigger": EVERY}, "a schedule needs a task"),
        ({"task": "work"}, "a schedule needs a trigger"),
        ({"task": "work", "trigger": "* * * * *"}, "a schedule needs a trigger"),
        ({"task": "work", "trigger": {}}, "trigger kind None is not known"),
        ({**PLAIN, "colour": "red"}, "unknown schedule option 'colour'; known are args, tenant"),
        ({**PLAIN, "cls": 1}, "unknown schedule option 'cls'"),
        ({**PLAIN, "self": 1}, "unknown schedule option 'self'"),
        ({**PLAIN, "x" * 10**6: 1}, "unknown schedule option 'xxx"),
        ({5: 1}, "the names of a schedule's options must be text"),
        ({**PLAIN, "start": "2027-01-02", "end": "2027-01-01"}, "start 2027-01-02T00:00:00Z must be before end"),
        ({**PLAIN, "start": "2027-01-02", "end": "2027-01-02"}, "start 2027-01-02T00:00:00Z must be before end"),
    ],
)
def test_invalid_specs_are_rejected(data: Any, message: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        ScheduleSpec.from_dict(data)
    assert str(refused.value).startswith(message)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("task", ["", " ", "a\0", "a\n", "x" * 201, 5, None])
def test_task_needs_a_name(task: Any) -> None:
    with pytest.raises(InvalidTask, match=r"^task must "):
        ScheduleSpec.build(task=task, trigger=Every("1m"))


@pytest.mark.parametrize("trigger", ["* * * * *", None, EVERY, 5])
def test_trigger_is_one_of_four_kinds(trigger: Any) -> None:
    with pytest.raises(InvalidSchedule, match=r"^trigger must be a Cron, Every, After or At, not "):
        ScheduleSpec.build(task="work", trigger=trigger)


@pytest.mark.parametrize("text", ["", "[", "[1]", "null", '"x"', "[" * 100_000, '{"a":' * 100_000, "\0", "{} {}"])
def test_invalid_stored_text_is_rejected(text: str) -> None:
    with pytest.raises(InvalidSchedule):
        ScheduleSpec.from_json(text)


@given(st.dictionaries(st.text(max_size=12) | st.sampled_from([name for name, _, _ in WRONG]), json_values, max_size=5))
@settings(max_examples=100, deadline=None)
def test_any_object_is_a_schedule_or_rejected(data: dict[str, Any]) -> None:
    try:
        spec = ScheduleSpec.from_dict({**data, **PLAIN})
    except DefinitionError:
        return
    assert ScheduleSpec.from_json(spec.to_json()) == spec


# Arguments --------------------------------------------------------------------------------------------------


@given(st.dictionaries(names, json_values, max_size=5))
@settings(max_examples=100, deadline=None)
def test_arguments_are_canonical(args: dict[str, Any]) -> None:
    text = encode_args(args)
    assert msgspec.json.decode(text) == args
    assert encode_args(text) == text
    assert encode_args(dict(reversed(args.items()))) == text


def test_escaped_backslash_is_not_a_nul() -> None:
    assert msgspec.json.decode(encode_args({"path": "\\u0000", "more": "\\\\u0000"})) == {
        "path": "\\u0000",
        "more": "\\\\u0000",
    }


def test_largest_arguments_fit() -> None:
    assert len(encode_args({"a": "x" * (ARGS_BYTES_MAX - 8)})) == ARGS_BYTES_MAX


def test_circular_arguments_are_rejected() -> None:
    circle: dict[str, Any] = {}
    circle["circle"] = circle
    with pytest.raises(InvalidTask, match="args must be JSON"):
        encode_args(circle)


@dataclass
class Measured:
    value: float


@pytest.mark.parametrize(
    ("args", "place"),
    [
        ({"ratio": math.nan}, "no nan at ratio;"),
        ({"a": None, "b": {"c": [1.5, -math.inf]}}, r"no -inf at b\.c\[1\];"),
        ({"a": (math.inf,)}, r"no inf at a\[0\];"),
        ({"a": Measured(math.nan)}, r"no nan at a\.value;"),
    ],
)
def test_nan_and_infinity_are_rejected_with_their_path(args: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidTask, match=f"args must be JSON, which has {place}"):
        encode_args(args)
    with pytest.raises(InvalidSchedule, match=place):
        ScheduleSpec.build(task="work", trigger=Every("1h"), args=args)


def test_null_is_not_taken_for_nan() -> None:
    nested: Any = None
    for _ in range(500):
        nested = [nested]
    for value in (None, "null", nested, 1.5, Measured(0.0), msgspec.Raw(b"null")):
        text = encode_args({"a": value})
        assert encode_args(text) == text


# Small values -----------------------------------------------------------------------------------------------


def test_names_numbers_and_tags_are_checked() -> None:
    assert check_name("größe 7", "queue") == "größe 7"
    assert check_int(5, "n", 1, 5) == 5
    assert check_tags(["a", "b"]) == ("a", "b")
    with pytest.raises(InvalidTask, match="key must have at most 3 characters, not 4"):
        check_name("abcd", "key", 3)
    assert read_status("failed") is Status.FAILED
    with pytest.raises(InvalidTask, match=r"status must be one of SCHEDULED, PENDING, .*, not 'NOPE'"):
        read_status("NOPE")


@given(st.integers(1, 1_000_000), st.sampled_from("smh"))
@settings(deadline=None)
def test_rate_round_trips(count: int, unit: str) -> None:
    rate = Rate.parse(f"{count}/{unit}")
    assert str(rate) == f"{count}/{unit}"
    assert rate.interval >= 1
    assert rate.interval * count <= rate.per


@pytest.mark.parametrize(("instant", "covered"), [(9, False), (10, False), (11, True), (20, True), (21, False)])
def test_pause_covers_instants_after_its_start(instant: int, covered: bool) -> None:
    assert Pause(since=10, until=20).covers(instant) == covered
    assert Pause(since=10).covers(instant) == (instant > 10)


def test_schedule_finds_its_open_pause() -> None:
    pause = Pause(since=10, until=20)
    schedule = Schedule(name="s", spec=ScheduleSpec.from_dict(PLAIN), pauses=(Pause(since=1, until=3), pause))
    assert [schedule.paused_at(now) for now in (5, 9, 10, 19, 20)] == [None, None, pause, pause, None]


def test_last_live_job_is_the_one_to_wait_for() -> None:
    assert LiveJobs().last is None
    assert LiveJobs(running=("a", "b")).last == "b"
    assert LiveJobs(running=("a",), waiting=("b", "c")).last == "c"
    assert LiveJobs(waiting=("b",)).last == "b"
