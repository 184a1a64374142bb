"""Everything is killed repeatedly while clients enqueue: every acknowledged job ends once (S2, S4, S5, L3)."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.chaos.test_workers_store_faults import client
from tests.chaos.worker_arena import FULL, MANY_S_MAX, Worker, WorkerArena, everywhere, wait_for
from tests.support import evidence
from tests.support.postgres import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

ROUNDS = 5 if FULL else 1
FAULTS = ("worker", "worker", "child", "child", "all", "term", "freeze")
JOBS_MIN = 60 * ROUNDS
LEASE_S = 3.0  # It expires where a process was killed or frozen; on a slow machine at other times as well.
FLAGS = ("--poll", "0.3s", "--processes", "2", "--grace", "1s")
LEASES = ("--worker-lease", f"{LEASE_S}s", "--leader-lease", f"{LEASE_S}s")


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """Start a server for this test, which kills it."""
    with PostgresServer() as own:
        yield own


def test_mayhem(server: PostgresServer, tmp_path: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    evidence.note("seed", seed)
    stores = {"sqlite": f"sqlite:///{tmp_path}/headway.db", "postgres": server.create_database()}

    def play(arena: WorkerArena) -> None:
        _mayhem(arena, random.Random(seed), server if arena.store == stores["postgres"] else None)

    everywhere(play, stores, tmp_path)


def _mayhem(arena: WorkerArena, chance: random.Random, server: PostgresServer | None) -> None:
    nodes = [_start_one(arena) for _ in range(2)]
    with client(arena, "one", 0.02) as one, client(arena, "two", 0.02) as two:
        wait_for(lambda: one() and two(), "the clients to start")
        for number in range(ROUNDS):
            bag = chance.sample(FAULTS, len(FAULTS))  # Every kind comes once per round, in random order.
            _torment(arena, nodes, bag[:4], chance)
            if server is not None and number == 0:
                server.kill()
                server.start()
            _torment(arena, nodes, bag[4:], chance)
        wait_for(lambda: len(one()) + len(two()) > JOBS_MIN, "the clients to succeed", MANY_S_MAX, arena.describe)
    jobs = [*one(), *two()]
    assert len(set(jobs)) == len(jobs), "two keys, one job"
    assert arena.wait_final(jobs, MANY_S_MAX) == {"COMPLETED": len(jobs)}
    arena.check_ended_once(jobs)
    # Some of the last calls were committed but not acknowledged; their jobs end as well.
    unfinished = "select count(*) from headway_jobs where finished_at is null"
    wait_for(lambda: arena.sql(unfinished) == [(0,)], "all others to end", describe=arena.describe)
    keys = "select count(*), count(distinct key) from headway_jobs where key is not null"
    [(rows, distinct)] = arena.sql(keys)
    assert rows == distinct >= len(jobs)


def _start_one(arena: WorkerArena) -> Worker:
    return arena.start(*FLAGS, *LEASES, role="serve", is_ready=False)


def _torment(arena: WorkerArena, nodes: list[Worker], faults: Sequence[str], chance: random.Random) -> None:
    """Inject one fault after the other, and always restart."""
    for fault in faults:
        time.sleep(chance.uniform(0.3, 1.5))
        _strike(nodes, fault, chance)
        nodes[:] = [node for node in nodes if node.is_running()]
        nodes += [_start_one(arena) for _ in range(2 - len(nodes))]


def _strike(nodes: Sequence[Worker], fault: str, chance: random.Random) -> None:
    """Inject one fault."""
    victim = chance.choice(nodes)
    if fault == "child":
        family = sorted(victim.family())
        if family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(family), signal.SIGKILL)
    elif fault == "freeze":
        victim.signal(signal.SIGSTOP)
        time.sleep(LEASE_S + 0.5)
        victim.signal(signal.SIGCONT)
    else:
        struck = nodes if fault == "all" else [victim]
        for node in struck:
            node.signal(signal.SIGTERM if fault == "term" else signal.SIGKILL)
        for node in struck:
            node.wait()
