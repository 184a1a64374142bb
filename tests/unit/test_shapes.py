"""Masking of secrets by their names, and edits that keep masked values."""

import json
from typing import Any

import pytest
from msgspec import UNSET

from headway.core.instants import INSTANT_MAX, INSTANT_MIN, parse_instant
from headway.core.jobs import Job
from headway.core.lifecycle import Status
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import Cron, Every
from headway.operations.schedule_instants import previews
from headway.operations.times import read_future
from headway.wire.jobs import change_of, job_of, listed
from headway.wire.masking import _NAMES_KEPT, _named, masked, unmasked

SECRETS = ("password", "PASSWORD", "db_password", "passwd", "token", "api_token", "client_secret", "Authorization")
KEYS = ("key", "api_key", "apikey", "private-key", "access.keys", "credentials")
OTHERS = (
    *(
        "privateKey",
        "accessKey",
        "APIKey",
        "APIkey",
        "AWSSecretAccessKey",
        "sshkey",
        "ssh_key_pem",
        "key2",
        "primary_key",
    ),
    *("password_old", "passwords", "db_password1", "DBpassword", "userPwd", "pwd", "user pw", "dbpass", "pass", "PASS"),
    *("passphrase", "passcode", "passkey", "auth", "x-auth", "oauth2", "authentication", "authToken", "accesstoken"),
    *("Set-Cookie", "cookies", "creds", "jwt", "token1", "secret_v2", "client.secret"),
)
PLAIN = (
    *(
        "keyboard",
        "keyword",
        "keywords",
        "monkey",
        "monkeyWrench",
        "turkey",
        "author",
        "authors",
        "authority",
        "user",
        "n",
    ),
    *("passenger", "passenger_id", "maxPassengers", "passage", "passive", "passed", "testsPassed", "passing", "passes"),
    *("bypass", "bypassCache", "compass", "compassion", "tokenizer", "tokenized", "secretary", "path", "", "_", "7"),
)


def test_secrets_are_masked_by_name() -> None:
    assert masked(dict.fromkeys((*SECRETS, *KEYS, *OTHERS), "x")) == dict.fromkeys((*SECRETS, *KEYS, *OTHERS), "***")
    assert masked(dict.fromkeys(PLAIN, "x")) == dict.fromkeys(PLAIN, "x")
    assert masked({"a" * 10_000 + "_password": "x", "b" * 10_000: "y"}) == {
        "a" * 10_000 + "_password": "***",
        "b" * 10_000: "y",
    }


def test_counts_are_not_secrets() -> None:
    """Show how many tokens a language model used: people need that number."""
    counts = {
        "max_tokens": 4096,
        "totalTokens": 1.5,
        "token_count": 3,
        "key_size": 2048,
        "keys": 2,
        "has_password": True,
    }
    assert masked(counts) == counts
    assert masked({"password": 1234, "token": 7, "tokens": "x", "keys": ["x"], "api_key_count": "x"}) == {
        "password": "***",
        "token": "***",
        "tokens": "***",
        "keys": "***",
        "api_key_count": "***",
    }
    assert unmasked({"max_tokens": 5}, {"max_tokens": 4}) == {"max_tokens": 5}


def test_cache_of_names_is_bounded() -> None:
    masked({f"name{number}": 1 for number in range(3 * _NAMES_KEPT)} | {"x" * 100: 1})
    kept = _named.cache_info()
    assert kept.maxsize is not None
    assert kept.currsize <= kept.maxsize == _NAMES_KEPT
    before = kept.misses
    masked({"y" * 100: 1})  # Long names are not cached.
    assert _named.cache_info().misses == before


def test_secrets_are_masked_at_any_depth() -> None:
    assert masked([{"a": [{"token": {"inner": 1}}]}]) == [{"a": [{"token": "***"}]}]
    assert masked({"token": None, "password": ""}) == {"token": None, "password": ""}  # Nothing to hide.
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
        ({"n": "***"}, {"n": 1}, {"n": "***"}),  # Not a masked value.
        ({"a": [{"key": "***"}]}, {"a": [{"key": "x"}]}, {"a": [{"key": "x"}]}),
        (
            {"a": [{"key": "***"}, 1]},
            {"a": [{"key": "x"}]},
            {"a": [{"key": "***"}, 1]},
        ),  # Ambiguous: the lists differ in length.
        ({"a": {"key": "***"}}, {"a": 5}, {"a": {"key": "***"}}),
    ],
)
def test_edit_keeps_masked_secrets(written: Any, stored: Any, kept: Any) -> None:
    assert unmasked(written, stored) == kept


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/Lima"])
@pytest.mark.parametrize("edge", [INSTANT_MIN, INSTANT_MAX])
def test_previews_work_at_the_bounds_of_dates(zone: str, edge: int) -> None:
    for trigger in (Every("1h"), Cron("0 * * * *", zone)):
        previews(ScheduleSpec(task="t", trigger=trigger), edge, 5)


def test_every_has_no_instants_after_the_last_year() -> None:
    assert Every("3650d").next_after(parse_instant("2199-12-01T00:00:00Z")) is None


def test_time_without_offset_is_local_to_the_schedule() -> None:
    assert read_future("2027-01-31 06:00", 0, "until", "Europe/Berlin") == parse_instant("2027-01-31T05:00:00Z")


def test_stream_events_have_the_step_but_not_large_metadata() -> None:
    facts = {"text": "x" * 5_000}
    running = Job(
        id="job_1",
        task="work",
        status=Status.RUNNING,
        tenant="default",
        queue="default",
        priority=0,
        args="{}",
        created_at=0,
        run_at=0,
        max_attempts=1,
        metadata=json.dumps(facts),
        detail=json.dumps({"step": "Load"}),
    )
    told = change_of(running, 0)
    assert (told.metadata, told.omitted) == ({"current_step": "Load"}, ["metadata"])
    assert job_of(running, 0).metadata == {**facts, "current_step": "Load"}
    assert job_of(running, 0).omitted is UNSET
    assert listed(running).omitted == ("metadata",)
