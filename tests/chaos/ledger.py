"""Invariants after the faults, read with plain SQL and checked with arithmetic that shares no code with the product."""

import asyncio
import sqlite3
from collections import Counter
from typing import Any

from headway.core.json_values import JsonObject
from headway.core.schedules import ScheduleSpec
from headway.scheduling.audit import audit
from headway.store import Store
from tests.chaos.arena import with_store
from tests.support.waiting import DEADLINE_S, wait_until

SCHEDULES = 20
INTERVAL = 2_000_000

LEDGER = "select schedule, instant, until, count, outcome, job_id, decided_at from headway_occurrences"
CURSORS = """select s.name, s.decided_through, r.effective_at from headway_schedules s
  join headway_revisions r on r.schedule = s.name and r.revision = 1"""
LIVE_JOBS = "select schedule, count(*) from headway_jobs where exclusive = 1 and finished_at is null group by schedule"
JOBS = "select id, schedule, occurrence_at from headway_jobs where schedule is not null"


def put_schedules(store: str) -> None:
    """Create twenty schedules of two seconds, with every overlap rule."""
    specs = {
        f"beat-{index:02}": ScheduleSpec.from_dict(
            {
                "task": "beat",
                "trigger": {"kind": "every", "interval": "2s"},
                "overlap": ("allow", "skip", "queue", "replace")[index % 4],
            }
        )
        for index in range(SCHEDULES)
    }

    async def put(opened: Store) -> None:
        for name, spec in specs.items():
            await opened.schedules.put(name, spec, owner="tests", author="tests")

    with_store(store, put)


def wait_until_decided(store: str, until: int) -> None:
    """Wait until every instant up to this time has its record."""

    def is_decided() -> bool:
        return not any(decided_through < until for _, decided_through, _ in query(store, CURSORS))

    wait_until(is_decided, f"all schedules to be decided until {until}", every_s=0.1)


def check_ledger(store: str, seconds: float) -> None:
    """Check that each instant has exactly one record, none is early, and each fired one has exactly its job."""
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
        assert len(expected) >= seconds // 2
    assert all(live <= 2 for _, live in query(store, LIVE_JOBS))  # One live, one queued under overlap=queue.


def check_audit(store: str) -> None:
    """Check that the product's own audit agrees."""

    async def ask(opened: Store) -> JsonObject:
        return (await audit(opened.ledger)).to_dict()

    report = with_store(store, ask)
    assert report["ok"], report
    assert report["schedules"] == SCHEDULES
    assert report["recorded"] == report["expected"] > 0


def query(store: str, sql: str) -> list[tuple[Any, ...]]:
    """Read the database with plain SQL."""
    if store.startswith("sqlite"):
        connection = sqlite3.connect(store.removeprefix("sqlite:///"), timeout=DEADLINE_S)
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
