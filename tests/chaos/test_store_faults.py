"""L5: restarts, a read-only phase and a locked table of the store; no scheduler is restarted, nothing is lost."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.arena import Arena, headway
from tests.chaos.ledger import check_audit, check_ledger, put_schedules, query, wait_until_decided
from tests.support.postgres import PostgresServer

RECOVERY_S_MAX = 30.0


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A server of this test's own, since it is going to suffer."""
    with PostgresServer() as own:
        yield own


@pytest.mark.postgres
@pytest.mark.timeout(240)
def test_schedulers_survive_what_happens_to_the_store(server: PostgresServer, tmp_path: Path) -> None:
    store = server.create_database()
    assert headway("migrate", store=store).returncode == 0
    put_schedules(store, tmp_path)
    arena = Arena(store, tmp_path, seed=0)
    began = time.monotonic()
    try:
        for _ in range(2):
            arena.start()
        time.sleep(3)
        for fault in (_restart, _read_only, _locked_table, _restart):
            fault(server, store)
            wait_until_decided(store, time.time_ns() // 1_000, RECOVERY_S_MAX)
        assert all(process.poll() is None for process in arena.processes)
    finally:
        arena.stop()
    check_ledger(store, time.monotonic() - began - 10)
    check_audit(store)


def _restart(server: PostgresServer, store: str) -> None:
    server.restart(mode="immediate")


def _read_only(server: PostgresServer, store: str) -> None:
    for value in ("on", "off"):
        query(server.url("postgres"), f"alter system set default_transaction_read_only = {value}")
        query(server.url("postgres"), "select pg_reload_conf()")
        time.sleep(4 if value == "on" else 0)


def _locked_table(server: PostgresServer, store: str) -> None:
    """Hold an exclusive lock for longer than a lease and than a statement's deadline."""
    query(store, "do $$ begin lock table headway_schedules; perform pg_sleep(12); end $$")
