"""Describe a database: its kind, its version, and the settings that durability and wake-ups depend on."""

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headway.core.errors import StoreError, StoreUnavailable
from headway.store.sqlite import SqliteDriver
from headway.store.transaction import Driver
from headway.store.wrapping_driver import unwrapped

_SERVER_SETTINGS: Final = (
    "server_version",
    "synchronous_commit",
    "fsync",
    "full_page_writes",
    "default_transaction_read_only",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Kind, version and settings of a database."""

    kind: str
    version: str
    settings: dict[str, str] = field(default_factory=dict)


async def facts(driver: Driver) -> Facts:
    """Read kind, version and settings of a database."""
    driver = unwrapped(driver)
    if driver.dialect_name == "sqlite":
        return Facts(kind="sqlite", version=sqlite3.sqlite_version, settings=_file_settings(driver))
    return await _server_facts(driver)


def _file_settings(driver: Driver) -> dict[str, str]:
    # The journal mode belongs to the file; the synchronous mode belongs to a connection, and is our own setting.
    if not isinstance(driver, SqliteDriver) or driver.path == ":memory:":
        return {}
    try:
        connection = sqlite3.connect(f"{Path(driver.path).absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)
    except sqlite3.Error as error:
        raise StoreError(f"SQLite: {error}") from None
    try:
        return {"journal_mode": str(connection.execute("pragma journal_mode").fetchone()[0])}
    except sqlite3.Error as error:
        raise StoreError(f"SQLite: {error}") from None
    finally:
        connection.close()


async def _server_facts(driver: Driver) -> Facts:
    from headway.store.postgres import PROBE_S_MAX, PostgresDriver, translate

    assert isinstance(driver, PostgresDriver)
    connection = await driver.connect()
    try:
        async with connection.transaction():  # One transaction, so that a pooler keeps one server.
            columns = ", ".join(f"current_setting('{name}')" for name in _SERVER_SETTINGS)
            row = await connection.fetchrow(f"select {columns}", timeout=PROBE_S_MAX)
        is_encrypted = _has_tls(connection)
    except Exception as error:
        raise translate(error) or StoreUnavailable(str(error)) from error
    finally:
        connection.terminate()
    settings = dict(zip(_SERVER_SETTINGS, row, strict=True))
    version = settings.pop("server_version").split()[0]
    settings["encrypted"] = "on" if is_encrypted else "off"
    return Facts(kind="postgresql", version=version, settings=settings)


def _has_tls(connection: object) -> bool:
    """Return whether our connection is encrypted; a pooler may connect to the server without encryption."""
    transport = getattr(connection, "_transport", None)
    return transport is not None and transport.get_extra_info("ssl_object") is not None
