"""The bare database: the cheapest way to write the same rows with its driver.

No checks, no fence, no wake-ups, no JSON, no thread: prepared values, the cheapest statement that takes them, commit.
PostgreSQL has two cheap ways to insert many rows, COPY and arrays with `unnest`; both are measured, and the faster one
is what Headway is compared with.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import asyncpg

Record = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of one table, with all of its columns."""

    table: str
    columns: tuple[str, ...]
    records: tuple[Record, ...]

    def column(self, name: str) -> int:
        """Return the index of a column."""
        return self.columns.index(name)

    def column_of(self, name: str) -> list[Any]:
        """Return the values of a column."""
        place = self.column(name)
        return [record[place] for record in self.records]

    def slice(self, start: int, stop: int) -> "Rows":
        """Return some of the rows."""
        return Rows(table=self.table, columns=self.columns, records=self.records[start:stop])


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows of one transaction of the scheduler: advanced schedules, decisions, jobs."""

    schedules: Rows
    occurrences: Rows
    jobs: Rows


class Bare(Protocol):
    """A bare connection for writing rows."""

    async def read(self, table: str, order: str) -> Rows:
        """Read a whole table."""
        ...

    async def execute(self, text: str) -> None:
        """Run any statement."""
        ...

    async def know(self, *tables: str) -> None:
        """Prepare inserts into the tables, before the time counts."""
        ...

    async def insert(self, rows: Rows, way: str) -> None:
        """Insert many rows in one transaction."""
        ...

    async def insert_one(self, rows: Rows) -> None:
        """Insert the rows one by one, each committed by itself, with one prepared statement."""
        ...

    async def decide(self, batch: Batch, way: str) -> None:
        """Update schedules, insert decisions and jobs, and commit."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...


ADVANCED = ("decided_through", "next_at", "pauses", "version", "updated_at")


def _picked(rows: Rows, names: Sequence[str]) -> list[Record]:
    places = [rows.column(name) for name in names]
    return [tuple(record[place] for place in places) for record in rows.records]


class BarePostgres:
    """asyncpg without Headway."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._types: dict[str, dict[str, str]] = {}

    @classmethod
    async def connect(cls, url: str) -> Self:
        """Connect with default settings."""
        return cls(await asyncpg.connect(url))

    async def read(self, table: str, order: str) -> Rows:
        """Read a whole table."""
        found = await self._connection.fetch(f"select * from {table} order by {order}")
        columns = tuple(found[0].keys()) if found else ()
        return Rows(table=table, columns=columns, records=tuple(tuple(row.values()) for row in found))

    async def execute(self, text: str) -> None:
        """Run any statement."""
        await self._connection.execute(text)

    async def know(self, *tables: str) -> None:
        """Learn the types of the columns."""
        for table in tables:
            found = await self._connection.fetch(
                "select column_name, data_type from information_schema.columns where table_name = $1", table
            )
            self._types[table] = {row["column_name"]: row["data_type"] for row in found}

    async def insert(self, rows: Rows, way: str) -> None:
        """Insert rows by COPY or from arrays; each is a transaction by itself."""
        if way == "copy":
            await self._connection.copy_records_to_table(rows.table, records=rows.records, columns=rows.columns)
        else:
            arrays = self._arrays(rows.table, rows.columns)
            await self._connection.execute(
                f"insert into {rows.table} ({', '.join(rows.columns)}) select * from {arrays}",
                *(list(values) for values in zip(*rows.records, strict=True)),
            )

    async def insert_one(self, rows: Rows) -> None:
        """Insert rows one by one by a prepared statement."""
        marks = ", ".join(f"${place}" for place in range(1, len(rows.columns) + 1))
        statement = await self._connection.prepare(
            f"insert into {rows.table} ({', '.join(rows.columns)}) values ({marks})"
        )
        for record in rows.records:
            await statement.fetch(*record)

    async def decide(self, batch: Batch, way: str) -> None:
        """Write what one transaction of the scheduler wrote."""
        names = ("name", *ADVANCED)
        arrays = self._arrays(batch.schedules.table, names)
        assignments = ", ".join(f"{name} = r.{name}" for name in ADVANCED)
        async with self._connection.transaction():
            await self._connection.execute(
                f"update headway_schedules as s set {assignments} from {arrays} as r({', '.join(names)})"
                " where s.name = r.name",
                *(list(values) for values in zip(*_picked(batch.schedules, names), strict=True)),
            )
            await self.insert(batch.occurrences, way)
            await self.insert(batch.jobs, way)

    async def close(self) -> None:
        """Disconnect."""
        await self._connection.close()

    def _arrays(self, table: str, columns: Sequence[str]) -> str:
        types = self._types[table]
        casts = ", ".join(f"${place}::{types[name]}[]" for place, name in enumerate(columns, 1))
        return f"unnest({casts})"


class BareSqlite:
    """sqlite3 on the calling thread."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")

    async def read(self, table: str, order: str) -> Rows:
        """Read a whole table."""
        found = self._connection.execute(f"select * from {table} order by {order}")
        columns = tuple(column[0] for column in found.description)
        return Rows(table=table, columns=columns, records=tuple(found.fetchall()))

    async def execute(self, text: str) -> None:
        """Run any statement."""
        self._connection.execute(text)

    async def know(self, *tables: str) -> None:
        """Do nothing: values carry their types."""

    async def insert(self, rows: Rows, way: str) -> None:
        """Insert rows in one transaction."""
        self._connection.execute("begin immediate")
        self._insert(rows)
        self._connection.execute("commit")

    async def insert_one(self, rows: Rows) -> None:
        """Insert rows one by one."""
        text = _insert_text(rows)
        for record in rows.records:
            self._connection.execute(text, record)

    async def decide(self, batch: Batch, way: str) -> None:
        """Write what one transaction of the scheduler wrote."""
        assignments = ", ".join(f"{name} = ?" for name in ADVANCED)
        self._connection.execute("begin immediate")
        self._connection.executemany(
            f"update headway_schedules set {assignments} where name = ?",
            _picked(batch.schedules, (*ADVANCED, "name")),
        )
        self._insert(batch.occurrences)
        self._insert(batch.jobs)
        self._connection.execute("commit")

    async def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _insert(self, rows: Rows) -> None:
        self._connection.executemany(_insert_text(rows), rows.records)


def _insert_text(rows: Rows) -> str:
    marks = ", ".join("?" for _ in rows.columns)
    return f"insert into {rows.table} ({', '.join(rows.columns)}) values ({marks})"
