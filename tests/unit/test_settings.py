"""Settings: precedence of sources, one clear line for each wrong value, and no passwords in messages."""

import random
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import InvalidConfig
from headway.core.instants import DAY, MINUTE, SECOND
from headway.core.settings import STORE_DEFAULT, Settings, mask_url

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "headway.toml"


def test_defaults(file: Path) -> None:
    settings = Settings.load(environ={}, file=file)
    assert settings.store == STORE_DEFAULT
    assert (settings.leader_lease, settings.worker_lease, settings.poll) == (10 * SECOND, 30 * SECOND, SECOND)
    assert (settings.coordination, settings.coordination_mode, settings.scheduler_shards) == ("store", "leader", 1)
    assert settings.retention == 30 * DAY
    assert settings.node  # A recognisable name, made of host and process.


def test_precedence_of_sources(file: Path) -> None:
    file.write_text('poll = "2s"\nleader_lease = "20s"\nretention = "2d"\n')
    environ = {"HEADWAY_POLL": "3s", "HEADWAY_LEADER_LEASE": "30s", "PATH": "/bin", "HEADWAY_UNKNOWN": "x"}
    settings = Settings.load({"poll": "4s", "leader_lease": None}, environ=environ, file=file)
    assert settings.poll == 4 * SECOND  # Set by a flag,
    assert settings.leader_lease == 30 * SECOND  # by the environment where no flag is given,
    assert settings.retention == 2 * DAY  # by the file,
    assert settings.worker_lease == 30 * SECOND  # by the default.


def test_empty_variable_counts_as_unset(file: Path) -> None:
    assert Settings.load(environ={"HEADWAY_STORE": "", "HEADWAY_POLL": ""}, file=file).store == STORE_DEFAULT


def test_every_setting_can_be_set_in_every_source(file: Path) -> None:
    values = {
        "store": "postgresql://h/d",
        "app": "shop:app",
        "node": "blue-1",
        "coordination": "etcd://user:secret@a:2379,b:2379?prefix=x/",
        "coordination_mode": "lock",
        "coordination_fallback": "stop",
        "redis": "redis://c:6379/1",
        "transport": "amqp://d",
        "scheduler_shards": "8",
        "leader_lease": "5s",
        "worker_lease": "1m",
        "poll": "250ms",
        "grace": "10s",
        "concurrency": "50",
        "processes": "3",
        "queues": "media,default",
        "offer": "cpu=8,memory=32G",
        "labels": "zone=eu,disk=ssd",
        "app_version": "1.4.2",
        "child_max_jobs": "1000",
        "child_max_memory": "512MB",
        "task_env": "HEADWAY_STORE,HEADWAY_NODE",
        "retention": "7d",
        "audit_enqueues": "on",
        "audit_retention": "90d",
        "sqlite_synchronous": "normal",
        "host": "0.0.0.0",
        "port": "8081",
        "token": "hw_4f9ac2d07b16e835",
        "trusted_proxies": "10.0.0.0/8,192.0.2.1",
        "webhook_allow": "10.0.0.0/8,hooks.internal",
        "tenant_requests": "5",
        "tenant_streams": "6",
        "tenant_jobs": "7",
        "tenant_schedules": "8",
    }
    assert values.keys() == set(Settings.__dataclass_fields__)
    file.write_text("".join(f'{name} = "{value}"\n' for name, value in values.items()))
    from_file = Settings.load(environ={}, file=file)
    file.unlink()
    from_environ = Settings.load(
        environ={f"HEADWAY_{name.upper()}": value for name, value in values.items()}, file=file
    )
    from_flags = Settings.load(values, environ={}, file=file)
    assert from_file == from_environ == from_flags
    assert (from_flags.scheduler_shards, from_flags.worker_lease, from_flags.app) == (8, MINUTE, "shop:app")


WRONG = [
    ("store", "mysql://h/d"),
    ("store", "headway.db"),
    ("store", "   "),
    ("store", "sqlite:///a\nb"),
    ("app", " "),
    ("node", "a\x1b[31m"),
    ("coordination", "etcd"),
    ("coordination_mode", "leaders"),
    ("coordination_mode", "lock\nx"),
    ("scheduler_shards", "0"),
    ("scheduler_shards", "257"),
    ("scheduler_shards", "-1"),
    ("scheduler_shards", "1.5"),
    ("scheduler_shards", "٣"),
    ("scheduler_shards", "0000000019999"),
    ("scheduler_shards", "000000001" + "9" * 5_000),
    ("leader_lease", "1ms"),
    ("leader_lease", "2h"),
    ("leader_lease", "10"),
    ("worker_lease", "soon"),
    ("task_env", "PATH"),
    ("task_env", "HEADWAY_STORE;HEADWAY_TOKEN"),
    ("poll", "0s"),
    ("poll", "9" * 100_000),
    ("retention", "1s"),
    ("retention", "20000d"),
    ("audit_retention", "29d"),
    ("audit_enqueues", "maybe"),
    ("sqlite_synchronous", "off"),
    ("host", "127.0.0.1:80"),
    ("host", "10.0.0.256"),
    ("host", "http://here"),
    ("port", "65536"),
    ("port", "http"),
    ("token", "changeme"),
    ("token", "aaaaaaaaaaaaaaaaaaaaaaaa"),
    ("token", "with a blank 0123456789"),
    ("token", "0123456789abcdefé"),
    ("webhook_allow", "10.0.0.1/8"),
    ("webhook_allow", "10.0.0.0/33"),
    ("webhook_allow", "hooks.internal/path"),
    ("webhook_allow", "a b"),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda text: text[:20].strip())
@pytest.mark.parametrize("source", ["file", "environment", "flag"])
def test_invalid_value_is_rejected_with_one_line_that_names_its_source(
    source: str, name: str, value: str, file: Path
) -> None:
    flags, environ, label = dict[str, object](), dict[str, str](), ""
    if source == "file":
        escaped = value.replace("\n", "\\n").replace("\x1b", "\\u001b")
        file.write_text(f'{name} = "{escaped}"\n')
        label = f"{name} in headway.toml"
    elif source == "environment":
        environ, label = {f"HEADWAY_{name.upper()}": value}, f"HEADWAY_{name.upper()}"
    else:
        flags, label = {name: value}, "--" + name.replace("_", "-")
    with pytest.raises(InvalidConfig) as refused:
        Settings.load(flags, environ=environ, file=file)
    message = str(refused.value)
    assert message.startswith(f"{label} must ")
    assert message.isprintable()
    assert len(message) < 250


@pytest.mark.parametrize(
    "line",
    [
        "scheduler_shards = true",
        "scheduler_shards = 1.0",
        "poll = true",
        "poll = []",
        "store = 5",
        "node = {}",
        "app = []",
    ],
)
def test_value_of_a_wrong_type_is_rejected(line: str, file: Path) -> None:
    file.write_text(line)
    with pytest.raises(InvalidConfig, match=f"^{line.split()[0]} in headway.toml must "):
        Settings.load(environ={}, file=file)


@pytest.mark.parametrize(
    "text",
    ["poll = ", "= 1", "poll = 1\npoll = 2", "\0", "poll = " + "9" * 10_000, "poll = " + "[" * 100_000, "[[["],
)
def test_invalid_toml_error_names_the_file(text: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(InvalidConfig, match=r"headway\.toml cannot be read"):
        Settings.load(environ={}, file=file)


def test_binary_file_error_names_the_file(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidConfig, match=r"headway\.toml cannot be read"):
        Settings.load(environ={}, file=file)


def test_unknown_name_in_the_file_is_rejected_with_the_known_ones(file: Path) -> None:
    file.write_text('stroe = "sqlite:///x.db"\n')
    with pytest.raises(InvalidConfig, match="unknown setting 'stroe'; known are store, app, node"):
        Settings.load(environ={}, file=file)


def test_errors_never_show_a_password(file: Path) -> None:
    for url in ("mysql://ann:hunter2@h/d", "postgres:hunter2@h/d", "ann:hunter2@h", "mysql://h/d?password=hunter2"):
        with pytest.raises(InvalidConfig) as refused:
            Settings.load({"store": url}, environ={}, file=file)
        assert "hunter2" not in str(refused.value)


def test_token_is_never_shown(file: Path) -> None:
    assert "tell-nobody" not in repr(Settings.load({"token": "tell-nobody-0123456789"}, environ={}, file=file))
    with pytest.raises(InvalidConfig) as refused:
        Settings.load(environ={"HEADWAY_TOKEN": "tell-nobody"}, file=file)
    assert "tell-nobody" not in str(refused.value)


def tokens_of_the_examples() -> Iterator[str]:
    """Yield every token in the deployment examples and the docs."""
    for file in [*(ROOT / "deploy").rglob("*"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        if file.is_file():
            yield from re.findall(r"HEADWAY_TOKEN[=:][ \t]*[\"']?([^\s\"'#,|`]+)", file.read_text(errors="replace"))


def test_placeholder_and_guessable_tokens_are_rejected_with_the_cure(file: Path) -> None:
    weak = [
        "CHANGE-ME-to-32-random-characters",
        "changeme-changeme-changeme",
        "Change_This_Token_Now_1",
        "<your-token-goes-here>",
        "REPLACE_ME_WITH_A_TOKEN",
        "example-token-9f83hf81k",
        "Passw0rd-Passw0rd-1",
        "my-super-secret-token-1234",
        "headway-admin-token-secret",
        "0123456789abcdef0123456789abcdef",
        "abcdefghabcdefgh",
        "qwertyuiopasdfgh",
        "h4x" * 10,
        *tokens_of_the_examples(),
    ]
    for value in weak:
        with pytest.raises(InvalidConfig, match=r"^HEADWAY_TOKEN must .*`openssl rand -hex 32` makes one") as refused:
            Settings.load(environ={"HEADWAY_TOKEN": value}, file=file)
        assert value not in str(refused.value)


def test_random_tokens_are_accepted_and_an_empty_one_is_unset(file: Path) -> None:
    chance = random.Random(7)
    for length in (16, 24, 32, 64):
        for letters in ("0123456789abcdef", string.ascii_letters + string.digits + "-_"):
            for _ in range(50):
                value = "".join(chance.choices(letters, k=length))
                assert Settings.load(environ={"HEADWAY_TOKEN": value}, file=file).token == value
    assert Settings.load(environ={"HEADWAY_TOKEN": ""}, file=file).token is None


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql://ann:hunter2@h:5432/d", "postgresql://***@h:5432/d"),
        ("postgresql://ann@h/d", "postgresql://***@h/d"),
        ("postgresql://ann:hun@ter2@h/d", "postgresql://***@h/d"),
        ("postgresql://ann:hun/ter2@h/d", "postgresql://***@h/d"),
        ("postgresql://ann:hun?ter#2@h/d", "postgresql://***@h/d"),
        ("postgresql://h/d?user=ann&password=hunter2&x=1", "postgresql://h/d?user=ann&password=***&x=1"),
        ("postgresql://h/d?sslPassword=hunter2", "postgresql://h/d?sslPassword=***"),
        ("postgresql://h/d", "postgresql://h/d"),
        ("sqlite:////var/lib/headway.db", "sqlite:////var/lib/headway.db"),
        ("", ""),
    ],
)
def test_url_is_shown_without_its_credentials(url: str, masked: str) -> None:
    assert mask_url(url) == masked


@given(
    st.sampled_from(["postgresql", "redis", "etcd", "amqp+ssl"]),
    st.text("abcXYZ0-9", max_size=5),
    st.text(min_size=6, max_size=20).map(lambda text: f"Q{text}Q"),
    st.sampled_from(["h", "h:1/d", "h/d?x=1"]),
)
@settings(deadline=None)
def test_any_password_is_masked(scheme: str, user: str, password: str, rest: str) -> None:
    masked = mask_url(f"{scheme}://{user}:{password}@{rest}")
    assert masked == f"{scheme}://***@{rest}"
