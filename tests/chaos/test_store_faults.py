"""L5: restarts, a read-only phase and a locked table of the store; no scheduler restarts, nothing is lost."""

import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.chaos.arena import Arena, migrate
from tests.chaos.ledger import INTERVAL, check_audit, check_ledger, put_schedules, query, wait_until_decided
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until

GIVEN_UP = "PostgreSQL did not answer in time"
LEASED_UNTIL = "select until from headway_leases where name = 'scheduler/0'"


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """Start a server for this test, which breaks it."""
    with PostgresServer() as own:
        yield own


@pytest.mark.postgres
@pytest.mark.timeout(600)
def test_schedulers_survive_store_faults(server: PostgresServer, tmp_path: Path) -> None:
    store = server.create_database()
    migrate(store)
    put_schedules(store)
    arena = Arena(store, tmp_path, seed=0)
    began = time.monotonic()
    try:
        for _ in range(2):
            arena.start()
        wait_until_decided(store, time.time_ns() // 1_000 + INTERVAL)
        server.restart(mode="immediate")
        wait_until_decided(store, time.time_ns() // 1_000)
        _set_read_only(server, "on")
        wait_until(lambda: query(store, LEASED_UNTIL) < [(time.time_ns() // 1_000,)], "the lease to expire")
        _set_read_only(server, "off")
        wait_until_decided(store, time.time_ns() // 1_000)
        with psycopg.connect(store) as locking:
            before = arena.said(GIVEN_UP)
            locking.execute("lock table headway_schedules")
            wait_until(lambda: arena.said(GIVEN_UP) > before, "a statement to time out on the lock")
        wait_until_decided(store, time.time_ns() // 1_000)
        server.restart(mode="immediate")
        seconds = time.monotonic() - began
        wait_until_decided(store, time.time_ns() // 1_000)
        assert all(process.poll() is None for process in arena.processes)
    finally:
        arena.stop()
    check_ledger(store, seconds)
    check_audit(store)


def _set_read_only(server: PostgresServer, value: str) -> None:
    query(server.url("postgres"), f"alter system set default_transaction_read_only = {value}")
    query(server.url("postgres"), "select pg_reload_conf()")
