"""Enqueue inside the caller's own transaction: the job exists if and only if that transaction commits.

The same generator transactions run on the caller's connection: asyncpg, psycopg (sync or async), sqlite3, or SQLAlchemy
(connection or session, sync or async). This module neither begins nor commits. It refuses a connection without an open
transaction, because the job would then not depend on the caller's transaction. Errors of the caller's driver are not
translated.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from headway.core.errors import InvalidConfig, InvalidTask
from headway.store.statements import POSTGRES_FOREIGN, SQLITE_FOREIGN, Dialect, Statement, catalogue, positional
from headway.store.transaction import Begin, Rows, T, step_through, step_through_async

Execute: TypeAlias = Callable[[Statement, Mapping[str, object]], Rows]
ExecuteAsync: TypeAlias = Callable[[Statement, Mapping[str, object]], Awaitable[Rows]]


def run_inside(connection: Any, begin: Begin[T], store_dialect: str) -> T:
    """Run a transaction on the caller's blocking connection."""
    execute, dialect = _blocking(connection)
    statements = _statements(dialect, store_dialect)
    return step_through(begin, lambda call: execute(statements[call.statement], call.parameters))


async def run_inside_async(connection: Any, begin: Begin[T], store_dialect: str) -> T:
    """Run a transaction on the caller's connection, blocking or asynchronous."""
    if not is_async(connection):
        return run_inside(connection, begin, store_dialect)
    execute, dialect = await _awaiting(connection)
    statements = _statements(dialect, store_dialect)
    return await step_through_async(begin, lambda call: execute(statements[call.statement], call.parameters))


def is_async(connection: Any) -> bool:
    """Return whether the caller's connection is asynchronous."""
    kind = _kind(connection)
    return kind == "asyncpg" or (kind in ("psycopg", "sqlalchemy") and "Async" in type(connection).__name__)


def _kind(connection: Any) -> str:
    if isinstance(connection, sqlite3.Connection):
        return "sqlite3"
    for ancestor in type(connection).__mro__:
        package = ancestor.__module__.partition(".")[0]
        if package in ("asyncpg", "psycopg", "sqlalchemy"):
            return package
    raise InvalidConfig(
        "tx must be a connection of asyncpg, psycopg or sqlite3, or a connection or session of SQLAlchemy, "
        f"not {type(connection).__module__}.{type(connection).__qualname__}"
    )


def _statements(dialect: str, store_dialect: str) -> Mapping[str, Statement]:
    if dialect != store_dialect:
        raise InvalidConfig(f"tx is a connection to {dialect}, but this app's store is {store_dialect}")
    rendered: Dialect = POSTGRES_FOREIGN if dialect == "postgresql" else SQLITE_FOREIGN
    return catalogue(rendered)


def _require_transaction(is_open: bool, cure: str) -> None:
    if not is_open:
        raise InvalidTask(f"tx has no open transaction, so the job would not belong to one; {cure}")


def _require_psycopg_transaction(connection: Any) -> None:
    in_transaction = not connection.autocommit or connection.info.transaction_status.name == "INTRANS"
    _require_transaction(in_transaction, "open one with connection.transaction()")


def _blocking(connection: Any) -> tuple[Execute, str]:
    kind = _kind(connection)
    if is_async(connection):
        raise InvalidTask("tx is an asynchronous connection: await enqueue(...) instead of enqueue_sync(...)")
    if kind == "sqlite3":
        begins_by_itself = connection.isolation_level is not None
        _require_transaction(connection.in_transaction or begins_by_itself, 'execute("begin") first')
        return _sqlite3(connection), "sqlite"
    if kind == "psycopg":
        _require_psycopg_transaction(connection)
        return _psycopg(connection), "postgresql"
    bound = (
        connection.connection() if hasattr(connection, "connection") and callable(connection.connection) else connection
    )
    return _sqlalchemy(bound), bound.dialect.name


async def _awaiting(connection: Any) -> tuple[ExecuteAsync, str]:
    kind = _kind(connection)
    if kind == "asyncpg":
        _require_transaction(connection.is_in_transaction(), "open one with connection.transaction()")
        return _asyncpg(connection), "postgresql"
    if kind == "psycopg":
        _require_psycopg_transaction(connection)
        return _psycopg_async(connection), "postgresql"
    bound = await connection.connection() if type(connection).__name__.endswith("Session") else connection
    return _sqlalchemy_async(bound), bound.dialect.name


def _sqlite3(connection: sqlite3.Connection) -> Execute:
    def execute(statement: Statement, parameters: Mapping[str, object]) -> Rows:
        cursor = connection.cursor()
        cursor.row_factory = sqlite3.Row
        return cursor.execute(statement.text, parameters).fetchall()

    return execute


def _pyformat(statement: Statement) -> str:
    names = statement.parameters
    doubled = Statement(statement.name, statement.text.replace("%", "%%"), names, None)
    return positional(doubled, lambda index: f"%({names[index - 1]})s")


def _psycopg(connection: Any) -> Execute:
    from psycopg.rows import dict_row

    def execute(statement: Statement, parameters: Mapping[str, object]) -> Rows:
        with connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute(_pyformat(statement), parameters)
            return cursor.fetchall() if cursor.description else []

    return execute


def _psycopg_async(connection: Any) -> ExecuteAsync:
    from psycopg.rows import dict_row

    async def execute(statement: Statement, parameters: Mapping[str, object]) -> Rows:
        async with connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(_pyformat(statement), parameters)
            return await cursor.fetchall() if cursor.description else []

    return execute


def _asyncpg(connection: Any) -> ExecuteAsync:
    async def execute(statement: Statement, parameters: Mapping[str, object]) -> Rows:
        text = positional(statement, lambda index: f"${index}")
        rows: Rows = await connection.fetch(text, *(parameters[name] for name in statement.parameters))
        return rows

    return execute


def _sqlalchemy(connection: Any) -> Execute:
    from sqlalchemy import text

    def execute(statement: Statement, parameters: Mapping[str, object]) -> Rows:
        result = connection.execute(text(statement.text), dict(parameters))
        return list(result.mappings()) if result.returns_rows else []

    return execute


def _sqlalchemy_async(connection: Any) -> ExecuteAsync:
    from sqlalchemy import text

    async def execute(statement: Statement, parameters: Mapping[str, object]) -> Rows:
        result = await connection.execute(text(statement.text), dict(parameters))
        return list(result.mappings()) if result.returns_rows else []

    return execute
