"""Values of command-line options: arguments, times, triggers."""

import pytest

from headway.cli.parsing import read_args, read_future, read_past
from headway.core.errors import DefinitionError, InvalidSchedule, InvalidTask
from headway.core.instants import HOUR, parse_instant
from headway.core.triggers import After, At, Cron, Every
from headway.tasks.definitions import read_trigger

NOW = parse_instant("2027-01-01T12:00:00Z")


def test_arguments_are_json_or_else_text() -> None:
    pairs = ["n=20", "x=1.5", "ok=true", "nothing=null", "list=[1, 2]", "text=hello", "url=http://a/?b=c", "empty="]
    assert read_args(pairs, '{"n": 1, "kept": {"a": []}}') == {
        "n": 20,
        "kept": {"a": []},
        "x": 1.5,
        "ok": True,
        "nothing": None,
        "list": [1, 2],
        "text": "hello",
        "url": "http://a/?b=c",
        "empty": "",
    }


def test_values_that_are_not_json_are_text() -> None:
    assert read_args(["a=NaN", "b=Infinity", "c={", "d=" + "[" * 100_000], None) == {
        "a": "NaN",
        "b": "Infinity",
        "c": "{",
        "d": "[" * 100_000,
    }


@pytest.mark.parametrize("pair", ["novalue", "=5", " =5", ""])
def test_argument_without_a_name_is_rejected(pair: str) -> None:
    with pytest.raises(InvalidTask, match="-a must look like name=value"):
        read_args([pair], None)


@pytest.mark.parametrize("pairs", [["n=1", "n=2"], ["n=1", "m=0", " n =1"]])
def test_duplicate_argument_is_rejected(pairs: list[str]) -> None:
    with pytest.raises(InvalidTask, match="-a n=… is given twice"):
        read_args(pairs, None)


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "null", "[" * 100_000, '{"n": NaN}', '{"n": [-Infinity]}'])
def test_args_must_be_one_object(text: str) -> None:
    with pytest.raises(InvalidTask, match="--args must be"):
        read_args(None, text)


def test_times_are_absolute_or_relative() -> None:
    assert read_past("2h", NOW, "--since") == NOW - 2 * HOUR
    assert read_future("2h", NOW, "--until") == NOW + 2 * HOUR
    assert read_past("2027-01-01T11:00:00Z", NOW, "--since") == NOW - HOUR
    assert read_future("2027-01-01 14:00", NOW, "--until", "Europe/Berlin") == NOW + HOUR


@pytest.mark.parametrize("text", ["", "yesterday", "2h3", "-2h", "2027-13-01", "0001-01-01T00:00+14:00", "9" * 100])
def test_invalid_time_error_names_the_option(text: str) -> None:
    with pytest.raises(DefinitionError, match="--since must be a time"):
        read_past(text, NOW, "--since")


def test_triggers() -> None:
    assert read_trigger({"cron": "0 6 * * *", "tz": "Europe/Berlin", "dst": "skip"}) == Cron(
        "0 6 * * *", "Europe/Berlin", "skip"
    )
    assert read_trigger({"every": "30s"}) == Every("30s")
    assert read_trigger({"after": "10m"}) == After("10m")
    assert read_trigger({"at": "2027-01-01T00:00", "tz": "Asia/Tokyo"}) == At("2027-01-01T00:00", "Asia/Tokyo")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "say when in one way"),
        ({"cron": "@daily", "every": "1s"}, "not cron and every"),
        ({"every": "1s", "tz": "UTC"}, "tz does not belong to every"),
        ({"at": "2027-01-01", "dst": "skip"}, "dst does not belong to at"),
        ({"cron": "* * *"}, "cron"),
        ({"cron": "0 6 * * *", "tz": "../../etc/passwd"}, "not a known time zone"),
        ({"every": 0}, "interval"),
    ],
)
def test_invalid_triggers_are_rejected(given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidSchedule, match=message):
        read_trigger(given)
