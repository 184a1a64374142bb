"""Three schedulers, twenty schedules of two seconds, a minute of SIGKILL and SIGSTOP: every instant decided once.

The ledger is read with plain SQL and compared with arithmetic that shares no code with the product; then
`headway audit` has to come to the same verdict.
"""

import asyncio
import json
import random
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.arena import LEASE_S, Arena, headway

SCHEDULES = 20
INTERVAL = 2_000_000
SETTLE_S_MAX = LEASE_S + 15.0

LEDGER = "select schedule, instant, until, count, outcome, job_id from headway_occurrences order by schedule, instant"
CURSORS = """select s.name, s.decided_through, r.effective_at from headway_schedules s
  join headway_revisions r on r.schedule = s.name and r.revision = 1"""
LIVE_JOBS = "select schedule, count(*) from headway_jobs where exclusive = 1 and finished_at is null group by schedule"
JOBS = "select id, schedule, occurrence_at from headway_jobs where schedule is not null"


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("database", "mode", "seconds"),
    [
        pytest.param("sqlite", "leader", 60, id="sqlite-leader"),
        pytest.param("postgres", "leader", 60, id="postgres-leader", marks=pytest.mark.postgres),
        pytest.param("postgres", "lock", 25, id="postgres-lock", marks=pytest.mark.postgres),
    ],
)
def test_every_instant_is_decided_once(
    database: str, mode: str, seconds: float, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = f"sqlite:///{tmp_path}/headway.db" if database == "sqlite" else request.getfixturevalue("postgres_url")
    assert headway("migrate", store=store).returncode == 0
    _put_schedules(store, tmp_path)
    arena = Arena(store, tmp_path, seed=random.SystemRandom().getrandbits(32), mode=mode)
    print(f"seed {arena.seed}")
    try:
        for _ in range(3):
            arena.start()
        arena.torment(seconds)
        _wait_until_decided(store, time.time_ns() // 1_000)
    finally:
        arena.stop()
    assert arena.faults["killed"] >= 3, arena.faults
    assert arena.faults["frozen"] >= 3, arena.faults
    _check_ledger(store, seconds)
    _check_audit(store)


def _put_schedules(store: str, folder: Path) -> None:
    schedules = {
        f"beat-{index:02}": {
            "task": "beat",
            "trigger": {"kind": "every", "interval": "2s"},
            "overlap": ("allow", "skip", "queue", "replace")[index % 4],
        }
        for index in range(SCHEDULES)
    }
    file = folder / "schedules.json"
    file.write_text(json.dumps({"schedules": schedules}))
    applied = headway("schedules", "apply", "-f", str(file), store=store)
    assert applied.returncode == 0, applied.stderr


def _wait_until_decided(store: str, until: int) -> None:
    deadline = time.monotonic() + SETTLE_S_MAX
    while True:
        behind = [name for name, decided_through, _ in query(store, CURSORS) if decided_through < until]
        if not behind:
            return
        assert time.monotonic() < deadline, f"not decided {SETTLE_S_MAX:g} s after the last fault: {behind}"
        time.sleep(0.2)


def _check_ledger(store: str, seconds: float) -> None:
    jobs = {job_id: (schedule, instant) for job_id, schedule, instant in query(store, JOBS)}
    decided: dict[str, list[int]] = {}
    for schedule, instant, until, count, outcome, job_id in query(store, LEDGER):
        instants = list(range(instant, (until or instant) + 1, INTERVAL))
        assert len(instants) == count, (schedule, instant, until, count)
        decided.setdefault(schedule, []).extend(instants)
        assert (outcome == "fired") == (job_id is not None)
        assert job_id is None or jobs.pop(job_id) == (schedule, instant)
    assert not jobs, f"jobs without their occurrence: {jobs}"
    for name, decided_through, created_at in query(store, CURSORS):
        first = created_at // INTERVAL * INTERVAL + INTERVAL
        expected = Counter(range(first, decided_through + 1, INTERVAL))
        assert Counter(decided[name]) == expected
        assert len(expected) >= seconds / 2
    assert all(live <= 2 for _, live in query(store, LIVE_JOBS))  # One in front, one in line under overlap=queue.


def _check_audit(store: str) -> None:
    audit = headway("audit", "--json", store=store)
    report = json.loads(audit.stdout)
    assert (audit.returncode, report["ok"]) == (0, True), report
    assert report["schedules"] == SCHEDULES
    assert report["recorded"] == report["expected"] > 0


def query(store: str, sql: str) -> list[tuple[object, ...]]:
    """Read the database as anybody could."""
    if store.startswith("sqlite"):
        connection = sqlite3.connect(store.removeprefix("sqlite:///"), timeout=10)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()
    return asyncio.run(_query_postgres(store, sql))


async def _query_postgres(store: str, sql: str) -> list[tuple[object, ...]]:
    import asyncpg

    connection = await asyncpg.connect(store)
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()
