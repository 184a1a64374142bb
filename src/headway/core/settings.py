"""Settings: defaults, then headway.toml, then HEADWAY_* in the environment, then flags. Later sources win.

An invalid value stops the start with one line that names the setting, its source and the allowed values.
"""

import ipaddress
import os
import re
import socket
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from headway.core.errors import DefinitionError, InvalidConfig
from headway.core.instants import DAY, SECOND, Duration, parse_duration
from headway.core.needs import UNITS, Amounts, read_amounts, read_labels, read_version

STORE_DEFAULT: Final = "sqlite:///headway.db"
FILE_DEFAULT: Final = "headway.toml"
HOST_DEFAULT: Final = "127.0.0.1"
PORT_DEFAULT: Final = 8480
SHARDS_MAX: Final = 256
SECRET_LENGTH_MIN: Final = 16
SECRET_LENGTH_MAX: Final = 512
_SECRET_LETTERS_MIN: Final = 8
_SECRET_REST_MIN: Final = 4
# Placeholders for secrets in examples and guides, which must be replaced.
_PLACEHOLDERS: Final = re.compile(
    r"chang(e|ing)?(it|me|this)|(replace|insert|fill|put|paste)(it|me|this|in|your|here)|placeholder|example|sample"
    r"|your(own)?(admin|api|secret|token|key|password)|(token|secret|key|value)(goes)?here|generatea|password|passw0rd|passwort|letmein|default"
)
_STOCK_WORDS: Final = re.compile(
    r"headway|administrator|admin|root|super|secret|token|api|key|auth|bearer|access|user|test|demo|dev|prod|staging"
    r"|local|host|random|characters?|string|value|very|my|the"
)
_SEQUENCES: Final = ("01234567890123456789abcdefghijklmnopqrstuvwxyz", "qwertyuiopasdfghjklzxcvbnm", "0987654321")
# In the file beside the settings; see `headway.tasks.definitions`.
DEFINITIONS: Final = ("name", "tasks", "schedules", "limits", "tenants")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings. Durations are microseconds."""

    store: str = STORE_DEFAULT
    app: str | None = None
    node: str = ""
    coordination: str = "store"
    coordination_mode: str = "leader"
    coordination_fallback: str = "store"
    redis: str | None = None
    transport: str = "store"
    scheduler_shards: int = 1
    leader_lease: Duration = 10 * SECOND
    worker_lease: Duration = 30 * SECOND
    poll: Duration = 1 * SECOND
    grace: Duration = 30 * SECOND
    concurrency: int = 100
    processes: int = 0
    queues: tuple[str, ...] = ()
    offer: Amounts | None = None  # What jobs with needs may use here, in thousandths.
    labels: dict[str, str] | None = None
    app_version: str | None = None
    child_max_jobs: int = 0
    child_max_memory: int = 0
    task_env: tuple[str, ...] = ()
    retention: Duration = 30 * DAY
    audit_enqueues: str = "off"
    audit_retention: Duration = 365 * DAY
    sqlite_synchronous: str = "full"
    host: str = HOST_DEFAULT
    port: int = PORT_DEFAULT
    token: str | None = field(default=None, repr=False)
    trusted_proxies: tuple[str, ...] = ()
    webhook_allow: tuple[str, ...] = ()
    tenant_requests: int = 1_000
    tenant_streams: int = 1_000
    tenant_jobs: int = 1_000_000
    tenant_schedules: int = 10_000

    @classmethod
    def load(
        cls,
        flags: Mapping[str, object] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        file: Path | None = None,
    ) -> "Settings":
        """Read every source in order; flags that are None are ignored."""
        environ = {**_also, **os.environ} if environ is None else environ
        values: dict[str, object] = {}
        sources: dict[str, str] = {}
        for source, given in (
            ("file", _from_file(file or Path(FILE_DEFAULT))),
            ("environment", _from_environ(environ)),
            ("flag", {name: value for name, value in (flags or {}).items() if value is not None}),
        ):
            for name, value in given.items():
                values[name] = value
                sources[name] = _label(source, name)
        read: dict[str, Any] = {name: _READERS[name](sources[name], value) for name, value in values.items()}
        if not read.get("node"):
            read["node"] = f"{socket.gethostname()}-{os.getpid()}"
        return cls(**read)


_also: dict[str, str] = {}


def read_also(variables: Mapping[str, str]) -> None:
    """Also read settings from variables that are no longer in the environment of this process."""
    _also.update(variables)


def mask_url(url: str) -> str:
    """Mask the credentials of a URL, for every place where people or logs can see it."""
    # Up to the last @: a password may contain one, or a slash. Rather mask too much than show a part of it.
    masked = re.sub(r"(?s)^([a-zA-Z][a-zA-Z0-9+.-]*://)?.*@", r"\1***@", url)
    return re.sub(r"(?i)((?:password|passwd|token|secret|key)=)[^&]*", r"\1***", masked)


def store_kind(url: str) -> str:
    """Return the kind of store that a URL names, which is all that a log needs."""
    return url.partition(":")[0]


def _label(source: str, name: str) -> str:
    labels = {"environment": f"HEADWAY_{name.upper()}", "file": f"{name} in {FILE_DEFAULT}"}
    return labels.get(source, "--" + name.replace("_", "-"))


def _from_environ(environ: Mapping[str, str]) -> dict[str, object]:
    names = {f"HEADWAY_{name.upper()}": name for name in _READERS}
    return {names[variable]: value for variable, value in environ.items() if variable in names and value}


def read_file(path: Path) -> dict[str, object]:
    """Read a file with settings and definitions; a missing file is empty."""
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text())
    except (ValueError, RecursionError, OSError) as error:  # Not TOML, not UTF-8, or a number or nesting beyond reason.
        raise InvalidConfig(f"{path} cannot be read: {error}") from None


def _from_file(path: Path) -> dict[str, object]:
    values = {name: value for name, value in read_file(path).items() if name not in DEFINITIONS}
    unknown = values.keys() - _READERS.keys()
    if unknown:
        raise InvalidConfig(f"{path} has an unknown setting {min(unknown)!r}; known are {', '.join(_READERS)}")
    return values


def _text(label: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InvalidConfig(f"{label} must be non-empty text")
    return value


def _store(label: str, value: object) -> str:
    text = _text(label, value)
    if not text.startswith(("sqlite://", "postgresql://", "postgres://")):
        raise InvalidConfig(f"{label} must start with sqlite:/// or postgresql://, not {mask_url(text)[:60]!r}")
    return text


def _engine(*schemes: str, is_store: bool = True) -> Callable[[str, object], str]:
    """Read the URL of a server beside the store, or `store` where the store can do its part alone."""

    def read(label: str, value: object) -> str:
        text = _text(label, value).strip()
        if is_store and text == "store":
            return text
        if text.partition("://")[0] not in schemes or "://" not in text:
            known = " or ".join([*(["store"] if is_store else []), *(f"{scheme}://…" for scheme in schemes)])
            raise InvalidConfig(f"{label} must be {known}, not {mask_url(text)[:60]!r}")
        return text

    return read


def _duration(low: Duration, high: Duration) -> Callable[[str, object], Duration]:
    def read(label: str, value: object) -> Duration:
        try:
            micros = parse_duration(value, what=label)  # type: ignore[arg-type]
        except DefinitionError as error:
            raise InvalidConfig(str(error)) from None
        if not low <= micros <= high:
            raise InvalidConfig(f"{label} must be from {low / SECOND:g}s to {high / SECOND:g}s, not {value!r}")
        return micros

    return read


def _choice(*options: str) -> Callable[[str, object], str]:
    def read(label: str, value: object) -> str:
        if value not in options:
            raise InvalidConfig(f"{label} must be {' or '.join(options)}, not {str(value)[:40]!r}")
        return str(value)

    return read


def _whole(low: int, high: int) -> Callable[[str, object], int]:
    def read(label: str, value: object) -> int:
        text = str(value)
        if not re.fullmatch("[0-9]{1,10}", text) or not low <= int(text) <= high:
            raise InvalidConfig(f"{label} must be a whole number from {low} to {high}, not {text[:40]!r}")
        return int(text)

    return read


def _names(label: str, value: object) -> tuple[str, ...]:
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise InvalidConfig(f"{label} must be names with commas between them")
    names = tuple(dict.fromkeys(name.strip() for name in given if name.strip()))
    return () if names == ("*",) else names


_HOST: Final = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-)){0,31}\.?")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_host_name(text: str) -> bool:
    """Return whether this can be a host name; a text that ends in a number is an address, and then a wrong one."""
    return bool(_HOST.fullmatch(text)) and not text.rstrip(".").rpartition(".")[2].isdecimal()


def _host(label: str, value: object) -> str:
    text = _text(label, value).strip()
    if not _is_address(text) and not _is_host_name(text):
        raise InvalidConfig(f"{label} must be an address or the name of a host, not {text[:60]!r}")
    return text


def read_secret(label: str, value: object) -> str:
    """Read a secret, which is never shown. Refuse placeholders of examples and guessable values."""
    text = value if isinstance(value, str) and value.isascii() and value.isprintable() and " " not in value else ""
    if not SECRET_LENGTH_MIN <= len(text) <= SECRET_LENGTH_MAX or _is_guessable(text):
        raise InvalidConfig(
            f"{label} must be an unguessable secret of at least {SECRET_LENGTH_MIN} characters without"
            " blanks, and not the placeholder of an example; `openssl rand -hex 32` makes one"
        )
    return text


def _is_guessable(text: str) -> bool:
    """Return whether a secret is a placeholder, or little more than stock words, repetitions and keyboard runs."""
    plain = re.sub("[^a-z0-9]", "", text.lower())
    if len(set(text)) < _SECRET_LETTERS_MIN or text in (text + text)[1:-1] or _PLACEHOLDERS.search(plain):
        return True
    rest = _STOCK_WORDS.sub(" ", plain)
    for run in _SEQUENCES:
        for start in range(len(run) - 3):
            rest = rest.replace(run[start : start + 4], " ")
    return len(rest.replace(" ", "")) < _SECRET_REST_MIN


def _variables(label: str, value: object) -> tuple[str, ...]:
    """Read names of Headway's own variables; others are not withheld from tasks."""
    names = _names(label, value)
    for name in names:
        if not re.fullmatch("HEADWAY_[A-Z_]{1,60}", name):
            raise InvalidConfig(
                f"{label} must be names such as HEADWAY_STORE, with commas between them, not {name[:60]!r}; tasks see"
                " other variables anyway"
            )
    return names


def _allowed(label: str, value: object) -> tuple[str, ...]:
    """Read networks, such as 10.0.0.0/8, and names of hosts."""
    names = _names(label, value)
    for name in names:
        try:
            ipaddress.ip_network(name)
        except ValueError:
            if not _is_host_name(name):
                raise InvalidConfig(
                    f"{label} must be networks such as 10.0.0.0/8 or names of hosts, with commas between them,"
                    f" not {name[:60]!r}"
                ) from None
    return names


def _networks(label: str, value: object) -> tuple[str, ...]:
    """Read addresses and networks."""
    names = _names(label, value)
    for name in names:
        try:
            ipaddress.ip_network(name)
        except ValueError:
            raise InvalidConfig(
                f"{label} must be addresses or networks such as 10.0.0.0/8, with commas between them, not {name[:60]!r}"
            ) from None
    return names


_MEMORY: Final = re.compile(r"(\d{1,12})\s*([KMGT]?B?)", re.IGNORECASE)


def parse_memory(value: object) -> int | None:
    """Read a size such as `512MB`, or a number of bytes; None when it is neither."""
    match = _MEMORY.fullmatch(str(value).strip().replace("i", ""))
    return int(match[1]) * UNITS[match[2].upper()] if match else None


def _memory(label: str, value: object) -> int:
    size = parse_memory(value)
    if size is None:
        raise InvalidConfig(f'{label} must be a size such as "512MB", or 0 for no bound, not {str(value)[:40]!r}')
    return size


def _checked(read: Callable[[object, str], object]) -> Callable[[str, object], object]:
    """Return a reader of a setting that has the checks of `headway.core.needs`."""

    def reader(label: str, value: object) -> object:
        try:
            return read(value, label)
        except DefinitionError as error:
            raise InvalidConfig(str(error)) from None

    return reader


_READERS: Final[dict[str, Callable[[str, object], object]]] = {
    "store": _store,
    "app": _text,
    "node": _text,
    "coordination": _engine("redis", "rediss", "etcd", "etcds", "zookeeper", "zookeepers", "consul", "consuls"),
    "coordination_mode": _choice("leader", "lock"),
    "coordination_fallback": _choice("store", "stop"),
    "redis": _engine("redis", "rediss", is_store=False),
    "transport": _engine("redis", "rediss", "amqp", "amqps"),
    "scheduler_shards": _whole(1, SHARDS_MAX),
    "leader_lease": _duration(SECOND, 3600 * SECOND),
    "worker_lease": _duration(SECOND, 3600 * SECOND),
    "poll": _duration(SECOND // 100, 60 * SECOND),
    "grace": _duration(0, 86_400 * SECOND),
    "concurrency": _whole(1, 100_000),
    "processes": _whole(0, 1_000),
    "queues": _names,
    "offer": _checked(read_amounts),
    "labels": _checked(read_labels),
    "app_version": _checked(read_version),
    "child_max_jobs": _whole(0, 1_000_000_000),
    "child_max_memory": _memory,
    "task_env": _variables,
    "retention": _duration(60 * SECOND, 3650 * DAY),
    "audit_enqueues": _choice("off", "on"),
    "audit_retention": _duration(30 * DAY, 3650 * DAY),  # The database deletes nothing younger than 29 days.
    "sqlite_synchronous": _choice("full", "normal"),
    "host": _host,
    "port": _whole(0, 65_535),
    "token": read_secret,
    "trusted_proxies": _networks,
    "webhook_allow": _allowed,
    "tenant_requests": _whole(0, 1_000_000),
    "tenant_streams": _whole(0, 1_000_000),
    "tenant_jobs": _whole(0, 1_000_000_000),
    "tenant_schedules": _whole(0, 10_000_000),
}
assert _READERS.keys() == {setting.name for setting in fields(Settings)}
