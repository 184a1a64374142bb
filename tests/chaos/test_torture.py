"""A short torture test with every test run, a longer one of each engine with HEADWAY_CHAOS_FULL; and its tools.

A failure prints the options with which `python -m tests.chaos.torture --no-report …` repeats the plan.
"""

import os
import random
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.cluster import APP
from tests.chaos.ledger import query
from tests.chaos.limits import API, exceeded, overlapping, put_limits
from tests.chaos.plan import LINK_FAULTS, PROCESS_FAULTS
from tests.chaos.rigs import RIGS
from tests.chaos.torture import Torture, plan_for
from tests.chaos.verdict import judge, undone
from tests.chaos.worker_arena import FULL, WorkerArena
from tests.support import evidence
from tests.support.postgres import PostgresServer, database_name
from tests.support.proxy import BLACK_HOLE, CLEAR, DEAF, LOST_ANSWERS, MUTE, REFUSED, Link, Proxies, slow
from tests.support.server import ServerMissing
from tests.support.waiting import DEADLINE_S, wait_until

SECONDS = 60 if FULL else 8
NODES = 3 if FULL else 2
QUIET_S = 0.1


# --- a run


def play(engine: str, seed: int, folder: Path) -> None:
    """Torture an engine: every promise must hold, and the verdict must detect broken ones."""
    chance = random.Random(seed)
    mode, fallback = chance.choice(("leader", "leader", "lock")), chance.choice(("store", "store", "stop"))
    options = f"--engine {engine} --seed {seed} --minutes {SECONDS / 60:g} --nodes {NODES}"
    evidence.note("python -m tests.chaos.torture --no-report", f"{options} --mode {mode} --fallback {fallback}")
    plan = plan_for(engine, seed, SECONDS, NODES)
    try:
        with Torture(
            plan, folder, nodes=NODES, mode=mode, fallback=fallback, slack_s=DEADLINE_S, awaited=AWAITED
        ) as run:
            outcome = run.outcome
            assert not outcome.violations, "\n".join(outcome.violations)
            changes = outcome.faults.pop("limits: changed")
            assert sum(outcome.faults.values()) == len(plan.faults), (outcome.faults, plan.faults)
            assert changes
            check_verdict(run)
    except ServerMissing as missing:
        pytest.fail(f"missing: {missing}") if os.environ.get("CI") else pytest.skip(f"missing: {missing}")


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(FULL, reason="HEADWAY_CHAOS_FULL is set: each engine has its turn")
def test_short_torture(tmp_path: Path) -> None:
    """Use a different engine each time, or only the store."""
    seed = random.SystemRandom().getrandbits(31)
    play(random.Random(seed).choice(list(RIGS)), seed, tmp_path)


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not FULL, reason="HEADWAY_CHAOS_FULL is not set")
@pytest.mark.parametrize("engine", RIGS)
def test_torturing_each_engine(engine: str, tmp_path: Path) -> None:
    play(engine, random.SystemRandom().getrandbits(31), tmp_path)


# --- the verdict

# What the client waits for, so that the verdict has enough data, and the data can be falsified.
AWAITED = (
    "select 1 from headway_jobs where key = '0:0'",
    "select 1 from headway_jobs where key like '%:%' and finished_at is not null having count(*) > 8",
    "select 1 from headway_jobs where status = 'COMPLETED' and task = 'beat'",
    "select 1 from headway_steps",
    "select 1 from headway_attempts where outcome = 'failed' having count(distinct job_id) > 1",
    "select 1 from headway_log where stream = 'log'",
    "select 1 from headway_jobs where limit_key = 'account-0' and status = 'COMPLETED' having count(*) > 3",
)
LIES = (  # Falsifications of the database, and the beginning of the violation that each must cause.
    (
        """delete from headway_occurrences where (schedule, instant) in (
             select schedule, max(instant) from headway_occurrences group by schedule order by schedule limit 1)""",
        "S1: passed over",
    ),
    (
        """update headway_occurrences set token = 1000 + (select value from headway_counters where name = 'token')
             where decided_at = (select min(decided_at) from headway_occurrences where token > 0)""",
        "fencing: ",
    ),
    (
        """update headway_jobs set result = '"1/1"'
             where id = (select max(id) from headway_jobs where status = 'COMPLETED' and task = 'beat')""",
        "S3: the result",
    ),
    ("delete from headway_jobs where key = '0:0'", "S5: "),
    (
        """update headway_steps set result = '"0/0"' where job_id = (select min(job_id) from headway_steps)""",
        "S3: the step",
    ),
    (
        """update headway_attempts set ended_at = ended_at + 3600000000 where outcome = 'failed'""",
        "S3: attempts ",  # The first that ran may have a higher number.
    ),
    (
        """update headway_attempts set attempt = 7 where outcome = 'failed'
             and job_id = (select min(job_id) from headway_attempts where outcome = 'failed')""",
        "S4: ",
    ),
    ("update headway_log set line = 'x' where stream = 'log'", "S3: a line"),
    (
        """update headway_jobs set started_at = finished_at - 1, finished_at = finished_at + 3600000000
             where limit_key = 'account-0' and status = 'COMPLETED'""",
        "S8: account-0 allows",
    ),
)


def check_verdict(run: Torture) -> None:
    """Falsify everything at once: the verdict must report each falsification."""
    honest = run.evidence
    folder = honest.arena.folder / "lies"
    folder.mkdir()
    release(run.server, honest.arena.store)
    arena = WorkerArena(run.server.create_database(template=honest.arena.store), folder, APP)
    for lie, _ in LIES:
        arena.write(lie)
    begun = honest.arena.trace("begin")
    shutil.copy(honest.arena.trace_file, arena.trace_file)
    with arena.trace_file.open("a") as trace:
        trace.write(f"begin {' '.join(begun[0])}\n")
        trace.write(f"begin {begun[0][0]} 99 1 99\n")
    said = judge(replace(honest, arena=arena))
    expected = [sentence for _, sentence in LIES] + ["S1, by arithmetic: ", "S1, by audit: "]
    expected += [f"S3: attempt {begun[0][1]} of {begun[0][0]} was", f"S3: attempt 99 of {begun[0][0]} ran"]
    missed = [sentence for sentence in expected if not any(words.startswith(sentence) for words in said)]
    assert not missed, (missed, said)
    assert not undone(honest.arena, honest.quiet)
    arena.write("update headway_jobs set status = 'RETRYING', run_at = 1 where id = (select max(id) from headway_jobs)")
    assert "L2: not promoted" in undone(arena, honest.quiet)[0]


def release(server: PostgresServer, database: str) -> None:
    """End all connections to a database, so that it can be copied."""
    others = f"from pg_stat_activity where datname = '{database_name(database)}'"
    wait_until(
        lambda: not query(server.url(), f"select pid, pg_terminate_backend(pid) {others}"),
        "all connections to the database to end",
    )


@pytest.mark.postgres
def test_verdict_on_limits(postgres_url: str, tmp_path: Path) -> None:
    """From attempts, definitions and the lines of tasks alone: what is within the limits, and what exceeds them."""
    arena = WorkerArena.on(postgres_url, tmp_path, APP)
    put_limits(arena.store)
    names = [("account-1", number) for number in range(3)] + [("remote-api", number) for number in range(9)]
    for key, number in names:
        arena.write(
            f"""insert into headway_jobs (id, task, args, tenant, queue, priority, max_attempts, exclusive, status,
              run_at, attempt, failures, version, created_at, updated_at, progress, reason, limit_key, started_at,
              finished_at)
            select '{key}/{number}', 'breathe', 'null', 'default', 'default', 0, 1, 0, 'COMPLETED', 1, 1, 0, 1, 1, 1,
              100, '', '{key}', at + {number * 1_000_000}, at + {number * 1_000_000 + 900_000}
            from headway_limit_revisions where name = case when '{key}' = '{API}' then '{API}' else 'account-*' end"""
        )
    jobs = [f"account-1/{number}" for number in range(3)]
    in_turn = [[word, job, "1", "7", "1"] for job in jobs for word in ("begin", "end")]
    together = [[word, job, "1", "7", "1"] for word in ("begin", "end") for job in jobs]
    assert not [*exceeded(arena), *overlapping(arena, in_turn)]
    [said] = overlapping(arena, together)
    assert said.startswith("S8: account-1 allows 2 at a time, and 3 ran when attempt 1 of account-1/2 began")
    assert not [*overlapping(arena, [line for line in together if line[:2] != ["end", jobs[0]]])]  # It was killed.
    arena.write("update headway_jobs set finished_at = finished_at + 5000000 where limit_key = 'account-1'")
    [said] = exceeded(arena)
    assert said == "S8: account-1 allows 2 at a time, and attempt 1 of account-1/2 was number 3"
    arena.write(
        "update headway_jobs set started_at = (select max(started_at) from headway_jobs) where limit_key = 'remote-api'"
    )
    assert sum(one.startswith("S8: remote-api allows 8 starts") for one in exceeded(arena)) == 9


# --- the plan


def test_plan_is_determined_by_its_seed() -> None:
    def drawn(seed: int, seconds: float = 600) -> list[str]:
        plan = plan_for("redis", seed, seconds)
        assert all(fault.at_s + fault.lasts_s <= seconds for fault in plan.faults)
        return [f"{fault}" for fault in plan.faults]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)
    kinds = {fault.kind for fault in plan_for("redis", 7, 600).faults}
    assert kinds >= {*PROCESS_FAULTS, *LINK_FAULTS, *RIGS["redis"].faults, "postgresql crash"}


# --- the network


@contextmanager
def echo() -> Iterator[int]:
    """Run an echo server."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer(connection: socket.socket) -> None:
            with connection, suppress(ConnectionResetError):
                while chunk := connection.recv(1_000):
                    connection.sendall(chunk)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def connect(link: Link) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", link.port), timeout=DEADLINE_S)
    connection.settimeout(DEADLINE_S)
    return connection


def says_nothing(connection: socket.socket) -> bool:
    """Listen for a moment. On a very slow machine unexpected data may come later; then this checks less."""
    connection.settimeout(QUIET_S)
    try:
        connection.recv(100)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(DEADLINE_S)
    return False


@pytest.mark.parametrize("weather", [BLACK_HOLE, MUTE, DEAF], ids=["black hole", "mute", "deaf"])
def test_delayed_data_arrives_later(weather: object) -> None:
    with echo() as port, Proxies() as proxies:
        link = proxies.to(port)
        with connect(link) as before:
            before.sendall(b"one")
            assert before.recv(100) == b"one"
            link.set(weather)  # type: ignore[arg-type]
            before.sendall(b"two")
            assert says_nothing(before)
            with connect(link) as meanwhile:
                meanwhile.sendall(b"three")
                assert says_nothing(meanwhile)
                link.set(CLEAR)
                assert before.recv(100) == b"two"
                assert meanwhile.recv(100) == b"three"


def test_lost_responses_never_arrive() -> None:
    with echo() as port, Proxies() as proxies:
        link = proxies.to(port)
        with connect(link) as one, connect(link) as other:
            for connection in (one, other):
                connection.sendall(b"one")
                assert connection.recv(100) == b"one"
            link.set(LOST_ANSWERS)
            one.sendall(b"two")
            wait_until(lambda: link.torn == 1, "a response to be lost")
            assert says_nothing(one)
            link.set(CLEAR)
            with pytest.raises(ConnectionResetError):
                one.recv(100)
            other.sendall(b"three")  # It has lost nothing.
            assert other.recv(100) == b"three"


def test_refused_cut_and_slow() -> None:
    with echo() as port, Proxies() as proxies:
        link = proxies.to(port)
        with connect(link) as connection:
            connection.sendall(b"one")
            assert connection.recv(100) == b"one"
            link.cut()
            with pytest.raises(ConnectionResetError):
                connection.recv(100)
        link.set(REFUSED)
        with pytest.raises(ConnectionRefusedError):
            connect(link)
        link.set(slow(QUIET_S))
        with connect(link) as connection:
            began = time.monotonic()
            connection.sendall(b"one")
            assert connection.recv(100) == b"one"
            assert time.monotonic() - began > 1.9 * QUIET_S  # Once in each direction.
