"""What is shown to everybody: secrets are masked by their names, and an edit of what was masked keeps them."""

from typing import Any

import pytest

from headway.instants import INSTANT_MAX, INSTANT_MIN, parse_instant
from headway.model import ScheduleSpec
from headway.scheduling.triggers import Cron, Every
from headway.shapes import masked, previews, unmasked
from headway.status.times import read_future

SECRETS = ("password", "PASSWORD", "db_password", "passwd", "token", "api_token", "client_secret", "Authorization")
KEYS = ("key", "api_key", "apikey", "private-key", "access.keys", "credentials")
PLAIN = ("keyboard", "monkey", "passenger", "user", "n")


def test_secrets_are_known_by_their_names() -> None:
    assert masked(dict.fromkeys((*SECRETS, *KEYS), "x")) == dict.fromkeys((*SECRETS, *KEYS), "***")
    assert masked(dict.fromkeys(PLAIN, "x")) == dict.fromkeys(PLAIN, "x")


def test_secrets_are_masked_however_deep_they_are() -> None:
    assert masked([{"a": [{"token": {"inner": 1}}]}]) == [{"a": [{"token": "***"}]}]
    assert masked({"token": None, "password": ""}) == {"token": None, "password": ""}  # There is nothing to hide.
    deep: Any = {"token": "x"}
    for _ in range(900):
        deep = {"a": deep}
    assert "x" not in str(masked(deep))


@pytest.mark.parametrize(
    ("written", "stored", "kept"),
    [
        ({"token": "***", "n": 2}, {"token": "x", "n": 1}, {"token": "x", "n": 2}),
        ({"token": "new"}, {"token": "x"}, {"token": "new"}),
        ({"token": "***"}, {}, {"token": "***"}),
        ({"n": "***"}, {"n": 1}, {"n": "***"}),  # Nobody has masked this.
        ({"a": [{"key": "***"}]}, {"a": [{"key": "x"}]}, {"a": [{"key": "x"}]}),
        (
            {"a": [{"key": "***"}, 1]},
            {"a": [{"key": "x"}]},
            {"a": [{"key": "***"}, 1]},
        ),  # Which one it is, is not sure.
        ({"a": {"key": "***"}}, {"a": 5}, {"a": {"key": "***"}}),
    ],
)
def test_an_edit_keeps_the_secrets_that_it_has_not_seen(written: Any, stored: Any, kept: Any) -> None:
    assert unmasked(written, stored) == kept


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/Lima"])
@pytest.mark.parametrize("edge", [INSTANT_MIN, INSTANT_MAX])
def test_previews_end_where_dates_end(zone: str, edge: int) -> None:
    for trigger in (Every("1h"), Cron("0 * * * *", zone)):
        previews(ScheduleSpec(task="t", trigger=trigger), edge, 5)


def test_a_rate_has_no_instants_after_the_last_year() -> None:
    assert Every("3650d").next_after(parse_instant("2199-12-01T00:00:00Z")) is None


def test_a_time_is_local_to_the_schedule() -> None:
    assert read_future("2027-01-31 06:00", 0, "until", "Europe/Berlin") == parse_instant("2027-01-31T05:00:00Z")
