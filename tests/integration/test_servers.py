"""The private servers of the tests start, survive a crash, and leave nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.support import evidence
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer
from tests.support.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def stoppable_server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A server for this module. The shared one is requested only to skip where there is none."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def own_server(stoppable_server: PostgresServer) -> PostgresServer:
    """A running server that a test may stop."""
    if not stoppable_server.is_running():
        stoppable_server.start()
    return stoppable_server


async def test_each_test_gets_an_empty_database(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval("select count(*) from pg_tables where schemaname = 'public'") == 0
    await connection.close()


async def test_database_can_be_copied(postgres_server: PostgresServer, postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("create table trains as select 7 as platform")
    await connection.close()
    copy = await asyncpg.connect(url := postgres_server.create_database(template=postgres_url))
    assert await copy.fetchval("select platform from trains") == 7
    postgres_server.drop(url)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await copy.fetchval("select 1")


async def test_pgbouncer_connects_to_the_same_database(postgres_url: str, pgbouncer: PgBouncer) -> None:
    connection = await asyncpg.connect(pgbouncer.url(postgres_url), statement_cache_size=0)
    assert await connection.fetchval("select current_database()") == postgres_url.rpartition("/")[2]
    # Transactions share the server's connections, so one client sees two of them.
    other = await asyncpg.connect(pgbouncer.url(postgres_url), statement_cache_size=0)
    async with other.transaction():
        await other.execute("select 1")
        pids = {await connection.fetchval("select pg_backend_pid()")}
    pids |= {await connection.fetchval("select pg_backend_pid()") for _ in range(2)}
    assert len(pids) == 2
    await connection.close()
    await other.close()


@pytest.mark.parametrize("end", ["kill", "immediate", "fast"])
async def test_commits_survive_a_stop_of_the_server(own_server: PostgresServer, end: str) -> None:
    url, port = own_server.create_database(), own_server.port
    connection = await asyncpg.connect(url)
    await connection.execute("create table trains as select 7 as platform")
    if end == "kill":
        own_server.kill()
    else:
        own_server.stop("fast" if end == "fast" else "immediate")
    assert not own_server.is_running()
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connection.fetchval("select 1")
    own_server.start()
    assert own_server.port == port
    connection = await asyncpg.connect(url)
    assert await connection.fetchval("select platform from trains") == 7
    await connection.close()


ORPHANS = """\
import time
from tests.support.postgres import PostgresServer
from tests.support.pgbouncer import PgBouncer
postgres = PostgresServer()
postgres.start()
bouncer = PgBouncer(postgres)
bouncer.start()
print(postgres.pid, postgres.folder, bouncer.pid, bouncer.folder, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_servers_stop_with_the_tests(pgbouncer: PgBouncer, number: signal.Signals) -> None:
    with (
        evidence.log_file("the tests that end").open("wb") as log,
        subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, stderr=log, text=True) as tests,
    ):
        assert tests.stdout is not None
        left = [Path(f"/proc/{word}") if word.isdigit() else Path(word) for word in tests.stdout.readline().split()]
        assert len(left) == 4
        assert all(path.exists() for path in left)
        os.kill(tests.pid, number)
        tests.wait(DEADLINE_S)
    wait_until(lambda: not any(path.exists() for path in left), f"all of {left} to disappear")
