"""Everything is killed, again and again, while clients enqueue: every acknowledged job ends once (S2, S4, S5, L3)."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.test_workers_store_faults import client
from tests.chaos.worker_arena import FULL, Worker, WorkerArena, everywhere, wait_for
from tests.support.postgres import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(300)]

SECONDS = 60 if FULL else 12
FLAGS = ("--worker-lease", "3s", "--leader-lease", "3s", "--poll", "0.3s", "--processes", "2", "--grace", "1s")


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A server of this test's own, since it is going to die."""
    with PostgresServer() as own:
        yield own


def test_mayhem(server: PostgresServer, tmp_path: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    stores = {"sqlite": f"sqlite:///{tmp_path}/headway.db", "postgres": server.create_database()}

    def play(arena: WorkerArena) -> None:
        _mayhem(arena, random.Random(seed), server if arena.store == stores["postgres"] else None)

    everywhere(play, stores, tmp_path)


def _mayhem(arena: WorkerArena, chance: random.Random, server: PostgresServer | None) -> None:
    def start_one() -> Worker:
        return arena.start(*FLAGS, role="serve", is_ready=False)

    nodes = [start_one() for _ in range(2)]
    crashes, all_fell = server is not None, False
    with client(arena, "one", 0.02) as one, client(arena, "two", 0.02) as two:
        wait_for(lambda: one() and two(), "the clients to get going", 30)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or not all_fell:
            time.sleep(chance.uniform(0.5, 2.5))
            fault = chance.choice(("worker", "worker", "child", "child", "all", "term", "freeze"))
            if not all_fell and time.monotonic() > end - SECONDS / 3:  # Chance alone would leave it out at times.
                fault = "all"
            all_fell |= fault == "all"
            nodes = _strike(arena, nodes, fault, chance)
            nodes += [start_one() for _ in range(2 - len(nodes))]
            if server is not None and crashes and time.monotonic() > end - SECONDS / 2:
                server.kill()
                server.start()
                crashes = False
        jobs = [*one(), *two()]
    assert len(jobs) > 5 * SECONDS, "the clients hardly got through"
    assert len(set(jobs)) == len(jobs), "two keys, one job"
    assert arena.wait_final(jobs, 60) == {"COMPLETED": len(jobs)}
    arena.check_ended_once(jobs)
    # Of the last calls, some were carried out and not answered any more; their jobs end, too.
    unfinished = "select count(*) from headway_jobs where finished_at is null"
    wait_for(lambda: arena.sql(unfinished) == [(0,)], "all others to end", 60)
    keys = "select count(*), count(distinct key) from headway_jobs where key is not null"
    [(rows, distinct)] = arena.sql(keys)
    assert rows == distinct >= len(jobs)


def _strike(arena: WorkerArena, nodes: list[Worker], fault: str, chance: random.Random) -> list[Worker]:
    """Do one bad thing; return the nodes that are left."""
    victim = chance.choice(nodes)
    if fault == "child":
        family = sorted(victim.family())
        if family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(family), signal.SIGKILL)
    elif fault == "freeze":
        victim.signal(signal.SIGSTOP)
        time.sleep(3.5)
        victim.signal(signal.SIGCONT)
    else:
        struck = nodes if fault == "all" else [victim]
        for node in struck:
            node.signal(signal.SIGTERM if fault == "term" else signal.SIGKILL)
        for node in struck:
            node.wait(20)
    return [node for node in nodes if node.process.poll() is None]
