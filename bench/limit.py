"""The batch limit: what one client can do with a table that is nothing but a queue.

Claim 100 jobs, commit, complete the 100, commit, and so on until the table is empty. No lease, no fence, no result, no
body, one narrow table with one partial index. A worker that runs its jobs in other processes and keeps a record of
each does several times the work, so its result is given as a share of this limit.
"""

import contextlib
import sqlite3
import time
from typing import Final

import asyncpg

from bench.places import Place, database

BATCH: Final = 100
PAYLOAD: Final = "[1,0]"

TABLE_POSTGRES: Final = """
create table bare_queue (
  id bigint generated always as identity primary key,
  state smallint not null default 0,
  payload text not null,
  run_at timestamptz not null default now()
);
create index bare_queue_ready on bare_queue (id) where state = 0
"""
CLAIM_POSTGRES: Final = """
update bare_queue set state = 1
where id = any (array(select id from bare_queue where state = 0 order by id limit $1 for update skip locked))
returning id, payload
"""
COMPLETE_POSTGRES: Final = "update bare_queue set state = 2 where id = any ($1)"

TABLE_SQLITE: Final = """
create table bare_queue (id integer primary key, state integer not null default 0, payload text not null);
create index bare_queue_ready on bare_queue (id) where state = 0
"""
CLAIM_SQLITE: Final = """
update bare_queue set state = 1
where id in (select id from bare_queue where state = 0 order by id limit ?)
returning id, payload
"""
COMPLETE_SQLITE: Final = "update bare_queue set state = 2 where id = ?"


async def batch_limit(place: Place, count: int) -> float:
    """Return the jobs a second that one bare client claims and completes in batches."""
    async with database(place) as url:
        if place.name == "postgresql":
            return count / await _drain_postgres(url, count)
        return count / _drain_sqlite(url.removeprefix("sqlite:///"), count)


async def _drain_postgres(url: str, count: int) -> float:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(TABLE_POSTGRES)
        records = [(PAYLOAD,)] * count
        await connection.copy_records_to_table("bare_queue", records=records, columns=["payload"])
        await connection.execute("vacuum analyze bare_queue")
        claim = await connection.prepare(CLAIM_POSTGRES)
        complete = await connection.prepare(COMPLETE_POSTGRES)
        started = time.perf_counter()
        while rows := await claim.fetch(BATCH):
            await complete.fetch([row[0] for row in rows])
        return time.perf_counter() - started
    finally:
        await connection.close()


def _drain_sqlite(path: str, count: int) -> float:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.executescript(TABLE_SQLITE)
        connection.execute("begin immediate")
        connection.executemany("insert into bare_queue (payload) values (?)", [(PAYLOAD,)] * count)
        connection.execute("commit")
        started = time.perf_counter()
        while rows := connection.execute(CLAIM_SQLITE, (BATCH,)).fetchall():
            connection.execute("begin immediate")
            connection.executemany(COMPLETE_SQLITE, [(row[0],) for row in rows])
            connection.execute("commit")
        return time.perf_counter() - started
