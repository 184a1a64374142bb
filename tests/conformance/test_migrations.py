"""The schema: created once, even by concurrent processes, and rejected with one clear sentence if it does not fit."""

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from headway.core.clock import Clock
from headway.core.errors import SchemaMismatch
from headway.core.instants import HOUR, SECOND
from headway.core.lifecycle import Status, Succeeded, settle
from headway.core.ports import slot_of
from headway.core.schedules import ScheduleSpec
from headway.core.triggers import Every
from headway.scheduling.audit import audit
from headway.scheduling.planner import plan
from headway.store import Store, open_driver
from headway.store.migrations import check_schema, migrate, schema_version, steps_for
from headway.store.postgres import PostgresDriver
from headway.store.sqlite import SqliteDriver
from headway.store.transaction import Driver, call
from tests.conformance.arrange import EVERYTHING
from tests.support.postgres import PostgresServer
from tests.support.waiting import DEADLINE_S

CURRENT = 2


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/headway.db"
    address: str = request.getfixturevalue("postgres_url")
    return address


@pytest.fixture
async def driver(url: str) -> AsyncIterator[Driver]:
    driver = open_driver(url)
    yield driver
    await driver.close()


async def _write(driver: Driver, text: str) -> None:
    await driver.script([text], "test")


async def test_migrate_creates_the_current_schema_once(driver: Driver) -> None:
    assert await schema_version(driver) == 0
    with pytest.raises(SchemaMismatch, match="run `headway migrate`"):
        await check_schema(driver)
    latest = steps_for(driver)[-1].version
    assert await migrate(driver) == (0, latest)
    await check_schema(driver)
    assert await migrate(driver) == (latest, latest)
    assert await schema_version(driver) == latest >= CURRENT


async def test_older_and_newer_schema(driver: Driver) -> None:
    await migrate(driver)
    latest = steps_for(driver)[-1].version
    await _write(driver, f"insert into headway_schema (version, name) values ({latest + 1}, 'next')")
    await check_schema(driver)  # One newer is accepted: a rolling upgrade migrates first.
    assert await migrate(driver) == (latest + 1, latest + 1)
    await _write(driver, f"insert into headway_schema (version, name) values ({latest + 2}, 'after next')")
    with pytest.raises(SchemaMismatch, match=f"schema {latest + 2}.*knows {latest}; upgrade the program"):
        await check_schema(driver)
    await _write(driver, f"update headway_schema set version = version - {latest + 5}")
    with pytest.raises(SchemaMismatch, match=f"needs {latest}; run `headway migrate`|no Headway schema"):
        await check_schema(driver)


async def _version_1(driver: Driver) -> dict[Status, str]:
    """Create a database of version 1 with a job in every status, as that version wrote them; return their ids."""
    await driver.script(steps_for(driver)[0].statements, "test")
    ids = {status: f"job_{number}_{status}" for number, status in enumerate(Status)}
    for number, (status, job_id) in enumerate(ids.items()):
        finished = 350 if status.is_final else "null"
        await _write(
            driver,
            "insert into headway_jobs (id, tenant, task, queue, priority, status, run_at, attempt, failures,"
            " max_attempts, exclusive, version, lease_until, node, schedule, blocked_by, args, created_at, updated_at,"
            " ready_at, started_at, finished_at, progress, reason)"
            f" values ('{job_id}', 'default', 't', 'q{number}', 0, '{status}', 100, 2, 0, 9, 0, 5,"
            f" {450 if status is Status.RUNNING else 'null'}, 'n', 's', 'job_gone', '{{}}', 100, 350, 200, 300,"
            f" {finished}, 0, '')",
        )
        outcomes = [(1, "released")]
        if status.is_final or status is Status.RETRYING:
            outcomes.append((2, str(status).lower() if status.is_final else "failed"))
        for attempt, outcome in outcomes:
            await _attempt(driver, job_id, attempt, outcome)
    return ids


async def _attempt(driver: Driver, job_id: str, attempt: int, outcome: str) -> None:
    await _write(
        driver,
        "insert into headway_attempts (job_id, attempt, node, ready_at, started_at, ended_at, outcome, reason)"
        f" values ('{job_id}', {attempt}, 'n', 200, {100 + 100 * attempt}, {150 + 100 * attempt}, '{outcome}', '')",
    )


async def test_migration_from_version_1_with_jobs(driver: Driver) -> None:
    ids = await _version_1(driver)
    assert await migrate(driver) == (1, steps_for(driver)[-1].version)
    await check_schema(driver)
    store = Store.on(driver, Clock())
    for status, job_id in ids.items():
        job = await store.jobs.get(job_id)
        assert (job.status, job.attempt, job.version, job.parked, job.metadata) == (status, 2, 5, None, None)
        attempts = await store.jobs.attempts(job_id)
        has_ended = status.is_final or status is Status.RETRYING
        assert [entry["attempt"] for entry in attempts] == ([1, 2] if has_ended else [1])
        events = [event["event"] for event in await store.jobs.events(job_id)]
        is_claimed = has_ended or status is Status.RUNNING
        assert events == [
            *("enqueued", "promoted", "claimed", "settled"),
            *(["claimed"] if is_claimed else []),
            *(["settled"] if has_ended else []),
        ]
    assert (await store.jobs.attempts(ids[Status.COMPLETED]))[1]["outcome"] == "completed"
    assert [job.id for job in await store.jobs.dead()] == [ids[Status.TIMED_OUT], ids[Status.FAILED]]
    # Everything continues.
    assert await store.housekeeping.expire(10) == [ids[Status.RUNNING]]
    assert await store.housekeeping.promote(10) == 4
    claimed = [
        job
        for queue in await store.work.ready_queues()
        for job in await store.work.claim(queue, node="n", lease=SECOND, limit=9)
    ]
    assert {job.id for job in claimed} == {job_id for status, job_id in ids.items() if not status.is_final}
    assert await store.work.settle([settle(job, Succeeded(), 0) for job in claimed]) == frozenset()
    # A process of version 1 that still runs writes a row for its success, which is shown only once.
    job_id = ids[Status.PENDING]
    await _attempt(driver, job_id, 3, "completed")
    assert [entry["attempt"] for entry in await store.jobs.attempts(job_id)] == [1, 3]
    assert await store.work.settle([settle(job, Succeeded(), 0) for job in claimed]) == frozenset()


async def test_failed_migration_leaves_nothing(driver: Driver) -> None:
    steps = ["create table headway_first (n integer)", "create table headway_first (n integer)"]
    with pytest.raises(Exception, match="exists"):
        await driver.script(steps, "test")
    await _write(driver, "create table headway_first (n integer)")  # The failed migration left nothing behind.
    assert await migrate(driver) == (0, steps_for(driver)[-1].version)


async def test_concurrent_migrations(url: str) -> None:
    drivers = [open_driver(url) for _ in range(5)]
    latest = steps_for(drivers[0])[-1].version
    answers = await asyncio.gather(*(migrate(driver) for driver in drivers))
    assert {after for _, after in answers} == {latest}
    for driver in drivers:
        await check_schema(driver)
        await driver.close()


PROCESS = """
import asyncio, sys
from headway.store import open_driver, sqlite
from headway.store.migrations import check_schema, migrate

sqlite.BUSY_S_MAX = sqlite.STATEMENT_S_MAX = 90.0

async def main():
    driver = open_driver(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    await migrate(driver)
    await check_schema(driver)
    await driver.close()

asyncio.run(main())
"""


async def test_concurrent_migrations_of_processes(url: str) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROCESS, url),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        for _ in range(3)
    ]
    try:
        async with asyncio.timeout(DEADLINE_S):
            for process in processes:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"ready\n"
            answers = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
    assert [process.returncode for process in processes] == [0, 0, 0], answers


async def test_opening_an_embedded_store_migrates_it(tmp_path: Path) -> None:
    store = await Store.open(f"sqlite:///{tmp_path}/headway.db", Clock())
    assert await schema_version(store.driver) >= CURRENT
    await store.close()


@pytest.mark.postgres
async def test_opening_a_server_without_a_schema_is_rejected(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    with pytest.raises(SchemaMismatch, match="no Headway schema yet; run `headway migrate`"):
        await Store.open(postgres_url, Clock())
    store = await Store.open(postgres_url, Clock(), checked=False)
    with pytest.raises(SchemaMismatch, match="headway migrate"):
        await store.jobs.page()
    await migrate(store.driver)
    assert await store.jobs.page() == []
    await store.close()


# Names per tenant -------------------------------------------------------------------------------------------


async def _before_tenants(driver: Driver) -> None:
    """Create a populated database as it was when names were unique over all tenants."""
    for step in steps_for(driver):
        if step.name == "tenants":
            break
        await driver.script(step.statements, "test")
    store = Store.on(driver, Clock())
    now = (await driver.fetch(call("time")))[0]["now"]
    for key, tenant in OLD_SCHEDULES.items():
        spec = ScheduleSpec.build(task="t", trigger=Every("1h"), tenant=tenant, jitter="10m")
        definition = spec.to_json().replace("'", "''")
        await _write(
            driver,
            "insert into headway_schedules (name, owner, tenant, slot, revision, version, definition, trigger_text,"
            f" next_at, decided_through, pauses, created_at, updated_at) values ('{key}', '', '{tenant}',"
            f" {slot_of(key)}, 1, 1, '{definition}', 'every 1h', {now // HOUR * HOUR - HOUR},"
            f" {now // HOUR * HOUR - 2 * HOUR}, '[]', 0, 0)",
        )
        await _write(
            driver,
            "insert into headway_revisions (schedule, revision, effective_at, definition, author)"
            f" values ('{key}', 1, {now // HOUR * HOUR - 2 * HOUR}, '{definition}', 'ada')",
        )
    plans = [plan(schedule, now, live) for schedule, live in (await store.ledger.due(EVERYTHING, 10)).schedules]
    assert await store.ledger.fire(plans, None) == frozenset()


OLD_SCHEDULES = {"daily": "default", "report": "acme", "acme/report": "acme", "default/x": "globex"}
RECORDS = (
    "select * from headway_schedules order by name",
    "select * from headway_revisions order by schedule, revision",
    "select * from headway_occurrences order by schedule, instant",
    "select * from headway_jobs order by id",
)


async def _records(driver: Driver) -> list[list[dict[str, object]]]:
    return [[dict(row) for row in await _rows(driver, text)] for text in RECORDS]


async def _rows(driver: Driver, text: str) -> list[dict[str, object]]:
    if isinstance(driver, SqliteDriver):
        with closing(sqlite3.connect(driver.path)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(text)]
    assert isinstance(driver, PostgresDriver)
    raw = await driver.connect()
    try:
        return [dict(row) for row in await raw.fetch(text)]
    finally:
        await raw.close()


async def test_migration_to_tenants_keeps_every_record(driver: Driver) -> None:
    await _before_tenants(driver)
    before = await _records(driver)
    assert all(before)
    await migrate(driver)
    assert await _records(driver) == before  # Keys, slots, jitter, decisions and jobs are unchanged.
    store = Store.on(driver, Clock())
    schedules = store.schedules
    for key, tenant in OLD_SCHEDULES.items():
        found = await schedules.get(key, tenant=tenant)
        assert (found.key, found.name, found.tenant) == (key, key, tenant)
        [decided] = [entry for entry in await store.ledger.occurrences(found.key) if entry.job_id is not None]
        assert (decided.schedule, decided.tenant) == (key, tenant)
        assert [job.id for job in await store.jobs.page(schedule=key, tenant=tenant)] == [decided.job_id]
    assert (await audit(store.ledger)).ok
    views = {
        (row["tenant"], row["name"]) for row in await _rows(driver, "select tenant, name from headway_schedules_v")
    }
    assert views == {(tenant, key) for key, tenant in OLD_SCHEDULES.items()}
    # The name is free in other tenants, and still taken in its own.
    spec = ScheduleSpec.build(task="t", trigger=Every("1h"))
    for tenant in ("default", "globex"):
        assert await schedules.put("report", replace(spec, tenant=tenant)) == "created"
    assert await schedules.put("report", replace(spec, tenant="acme")) == "changed"
    keys = {tenant: (await schedules.get("report", tenant=tenant)).key for tenant in ("default", "acme", "globex")}
    assert keys["acme"] == "report"
    assert len(set(keys.values())) == 3
    # A process of the former version that still runs creates no second schedule of the same name.
    with pytest.raises(Exception, match=r"headway_schedules_name|UNIQUE|unique"):
        await _write(
            driver,
            "insert into headway_schedules (name, owner, tenant, slot, revision, version, definition, trigger_text,"
            " decided_through, pauses, created_at, updated_at) values ('of-globex', '', 'globex', 0, 1, 1, '{}', '',"
            " 0, '[]', 0, 0), ('globex' || '\x1f' || 'of-globex', '', 'globex', 0, 1, 1, '{}', '', 0, '[]', 0, 0)",
        )
