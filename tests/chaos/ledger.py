"""What must hold afterwards, read from the database with plain SQL and with arithmetic that shares no code with it."""

import asyncio
import json
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos.arena import LEASE_S, headway

SCHEDULES = 20
INTERVAL = 2_000_000
SETTLE_S_MAX = LEASE_S + 15.0

LEDGER = "select schedule, instant, until, count, outcome, job_id, decided_at from headway_occurrences"
CURSORS = """select s.name, s.decided_through, r.effective_at from headway_schedules s
  join headway_revisions r on r.schedule = s.name and r.revision = 1"""
LIVE_JOBS = "select schedule, count(*) from headway_jobs where exclusive = 1 and finished_at is null group by schedule"
JOBS = "select id, schedule, occurrence_at from headway_jobs where schedule is not null"


def put_schedules(store: str, folder: Path) -> None:
    """Put twenty schedules of two seconds, under every overlap rule."""
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


def wait_until_decided(store: str, until: int, within_s: float = SETTLE_S_MAX) -> None:
    """Wait until every instant up to this time has its record."""
    deadline = time.monotonic() + within_s
    while True:
        behind = [name for name, decided_through, _ in query(store, CURSORS) if decided_through < until]
        if not behind:
            return
        assert time.monotonic() < deadline, f"not decided {within_s:g} s after the last fault: {behind}"
        time.sleep(0.2)


def check_ledger(store: str, seconds: float) -> None:
    """Check that each instant has exactly one record, none came early, and each fired one has exactly its job."""
    jobs = {job_id: (schedule, instant) for job_id, schedule, instant in query(store, JOBS)}
    decided: dict[str, list[int]] = {}
    for schedule, instant, until, count, outcome, job_id, decided_at in query(store, LEDGER):
        assert decided_at >= (until or instant), f"{schedule} was decided before its time"
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


def check_audit(store: str) -> None:
    """Check that the product's own audit comes to the same verdict."""
    audit = headway("audit", "--json", store=store)
    report = json.loads(audit.stdout)
    assert (audit.returncode, report["ok"]) == (0, True), report
    assert report["schedules"] == SCHEDULES
    assert report["recorded"] == report["expected"] > 0


def query(store: str, sql: str) -> list[tuple[Any, ...]]:
    """Read the database as anybody could."""
    if store.startswith("sqlite"):
        connection = sqlite3.connect(store.removeprefix("sqlite:///"), timeout=10)
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()
    return asyncio.run(_query_postgres(store, sql))


async def _query_postgres(store: str, sql: str) -> list[tuple[Any, ...]]:
    import asyncpg

    connection = await asyncpg.connect(store)
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()
