"""Schedule files for `headway schedules apply`: their contents, and error messages."""

from pathlib import Path

import pytest

from headway.cli.define import read_file
from headway.cli.session import Session
from headway.core.errors import InvalidSchedule
from headway.core.instants import HOUR, parse_instant
from headway.core.triggers import Cron, Every

TOML = """
[schedules.daily-report]
task = "report"
cron = "0 6 * * *"
tz = "Europe/Berlin"
args = { day = "yesterday" }
overlap = "queue"
deadline = "4h"
start = 2027-01-01T00:00:00Z

[schedules.beat]
task = "beat"
trigger = { kind = "every", interval = "2s" }
"""


def test_valid_file(tmp_path: Path) -> None:
    path = tmp_path / "schedules.toml"
    path.write_text(TOML)
    specs, _ = read_file(Session(), path)
    assert list(specs) == ["daily-report", "beat"]
    daily = specs["daily-report"]
    assert daily.trigger == Cron("0 6 * * *", "Europe/Berlin")
    assert (daily.args, daily.overlap, daily.deadline) == ('{"day":"yesterday"}', "queue", 4 * HOUR)
    assert daily.start == parse_instant("2027-01-01T00:00:00Z")
    assert specs["beat"].trigger == Every("2s")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "", "must have tables"),
        ("a.toml", "[schedules]", "must have tables"),
        ("a.toml", "schedules = 5", "must have tables"),
        ("a.toml", "[schedule.x]\ntask='t'", "not 'schedule'"),
        ("a.toml", "[schedules", "cannot be read"),
        ("a.toml", "[schedules]\nx = 5", "schedule 'x': must be a table"),
        ("a.toml", "[schedules.x]\nevery='1s'", "schedule 'x': task must be"),
        ("a.toml", "[schedules.x]\ntask='t'", "schedule 'x': say when"),
        ("a.toml", "[schedules.x]\ntask='t'\nevery='1s'\nbogus=1", "schedule 'x': unknown schedule option 'bogus'"),
        ("a.toml", "[schedules.x]\ntask='t'\nevery='1s'\ntrigger={kind='at'}", "trigger or every"),
        ("a.toml", "[schedules.x]\ntask='t'\ntrigger=5", "trigger must be an object"),
        ("a.toml", '[schedules."a\\u001bb"]\ntask="t"\nevery="1s"', "control characters"),
        ("a.json", "[]", "must be an object"),
        ("a.json", "{", "cannot be read"),
        ("a.json", "[" * 100_000, "cannot be read"),
    ],
)
def test_invalid_files_are_rejected(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InvalidSchedule, match=message):
        read_file(Session(), path)


def test_unreadable_file_fails_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidSchedule, match="cannot be read: No such file"):
        read_file(Session(), tmp_path / "none.toml")
    with pytest.raises(InvalidSchedule, match="cannot be read: Is a directory"):
        read_file(Session(), tmp_path)
