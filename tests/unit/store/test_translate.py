"""Every database driver error becomes one of ours, by what to do about it: retry, give up, migrate."""

import inspect
import sqlite3
from collections.abc import Iterator

import asyncpg
import pytest
from asyncpg import exceptions

from headway.core.errors import SchemaMismatch, StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from headway.store import postgres, sqlite
from headway.store.transaction import ConstraintViolated

# SQLSTATE classes after which a retry may succeed: connection, resources, intervention, system, conflict.
TRY_AGAIN = ("08", "53", "57", "58", "25006", "25P03", "40", "55P03", "XX000", "26000", "42P05")


def _expected(state: str) -> type[StoreError]:
    if state == "53100":
        return StoreFull
    if state == "25006":
        return StoreReadOnly
    if state.startswith(TRY_AGAIN):
        return StoreUnavailable
    if state.startswith("23"):
        return ConstraintViolated
    return SchemaMismatch if state in ("42P01", "42703") else StoreError


def _server_errors() -> Iterator[type[asyncpg.PostgresError]]:
    for kind in vars(exceptions).values():
        if inspect.isclass(kind) and issubclass(kind, asyncpg.PostgresError) and getattr(kind, "sqlstate", None):
            yield kind


def test_every_server_error_is_translated() -> None:
    kinds = list(_server_errors())
    assert len(kinds) > 200
    for kind in kinds:
        error = kind("text of the server")
        if kind is asyncpg.InvalidCachedStatementError:
            continue
        translated = postgres.translate(error)
        assert type(translated) is _expected(error.sqlstate), (kind, error.sqlstate)
        assert "text of the server" in str(translated)


def test_stale_plan_after_a_migration_is_retryable() -> None:
    assert isinstance(postgres.translate(asyncpg.InvalidCachedStatementError("changed")), StoreUnavailable)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.InternalClientError("protocol"),
        ConnectionResetError("reset"),
        OSError("no route"),
        TimeoutError(),
    ],
)
def test_connection_errors_are_retryable(error: Exception) -> None:
    translated = postgres.translate(error)
    assert type(translated) is StoreUnavailable
    assert str(translated)


def test_invalid_arguments_are_not_retryable() -> None:
    kind = next(kind for kind in asyncpg.InterfaceError.__subclasses__() if kind.__name__ == "DataError")
    assert type(postgres.translate(kind("value out of int64 range"))) is StoreError


@pytest.mark.parametrize("error", [ValueError("mine"), KeyError("mine"), StoreFull(), KeyboardInterrupt()])
def test_other_errors_are_not_translated(error: BaseException) -> None:
    assert postgres.translate(error) is None


SQLITE_ERRORS: list[tuple[sqlite3.Error, type[StoreError]]] = [
    (sqlite3.IntegrityError("UNIQUE constraint failed: headway_jobs.id"), ConstraintViolated),
    (sqlite3.OperationalError("database is locked"), StoreUnavailable),
    (sqlite3.OperationalError("database table is locked"), StoreUnavailable),
    (sqlite3.OperationalError("disk I/O error"), StoreUnavailable),
    (sqlite3.OperationalError("unable to open database file"), StoreUnavailable),
    (sqlite3.OperationalError("attempt to write a readonly database"), StoreReadOnly),
    (sqlite3.OperationalError("interrupted"), StoreUnavailable),
    (sqlite3.OperationalError("database or disk is full"), StoreFull),
    (sqlite3.OperationalError("no such table: headway_jobs"), SchemaMismatch),
    (sqlite3.OperationalError("no such column: ends_at"), SchemaMismatch),
    (sqlite3.OperationalError("table headway_jobs has no column named x"), SchemaMismatch),
    (sqlite3.DatabaseError("file is not a database"), StoreError),
    (sqlite3.DatabaseError("database disk image is malformed"), StoreError),
    (sqlite3.ProgrammingError("Cannot operate on a closed database."), StoreUnavailable),
    (sqlite3.DataError("string or blob too big"), StoreError),
    (sqlite3.InternalError("anything"), StoreError),
]


@pytest.mark.parametrize(("error", "expected"), SQLITE_ERRORS, ids=lambda value: str(value))
def test_sqlite_errors_are_translated(error: sqlite3.Error, expected: type[StoreError]) -> None:
    translated = sqlite.translate(error)
    assert type(translated) is expected
    assert str(error) in str(translated)


def test_every_class_of_sqlite_errors_is_translated() -> None:
    kinds = [kind for kind in vars(sqlite3).values() if inspect.isclass(kind) and issubclass(kind, sqlite3.Error)]
    assert len(kinds) >= 8
    for kind in kinds:
        assert isinstance(sqlite.translate(kind("text")), StoreError)
