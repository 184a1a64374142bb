"""The schema: made once, by however many at once, and refused in one clear sentence when it is not ours."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headway.clock import Clock
from headway.errors import SchemaMismatch
from headway.store import Store, open_driver
from headway.store.migrations import check_schema, migrate, schema_version, steps_for
from headway.store.transaction import Driver
from tests.support.postgres import PostgresServer

CURRENT = 1


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
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


async def test_from_nothing_to_the_present_and_no_further(driver: Driver) -> None:
    assert await schema_version(driver) == 0
    with pytest.raises(SchemaMismatch, match="run `headway migrate`"):
        await check_schema(driver)
    latest = steps_for(driver)[-1].version
    assert await migrate(driver) == (0, latest)
    await check_schema(driver)
    assert await migrate(driver) == (latest, latest)
    assert await schema_version(driver) == latest >= CURRENT


async def test_an_older_and_a_newer_schema(driver: Driver) -> None:
    await migrate(driver)
    latest = steps_for(driver)[-1].version
    await _write(driver, f"insert into headway_schema (version, name) values ({latest + 1}, 'next')")
    await check_schema(driver)  # One newer: a rolling upgrade migrates first.
    assert await migrate(driver) == (latest + 1, latest + 1)
    await _write(driver, f"insert into headway_schema (version, name) values ({latest + 2}, 'after next')")
    with pytest.raises(SchemaMismatch, match=f"schema {latest + 2}.*knows {latest}; upgrade the program"):
        await check_schema(driver)
    await _write(driver, f"update headway_schema set version = version - {latest + 5}")
    with pytest.raises(SchemaMismatch, match=f"needs {latest}; run `headway migrate`|no Headway schema"):
        await check_schema(driver)


async def test_a_step_that_fails_leaves_nothing(driver: Driver) -> None:
    steps = ["create table headway_first (n integer)", "create table headway_first (n integer)"]
    with pytest.raises(Exception, match="exists"):
        await driver.script(steps, "test")
    await _write(driver, "create table headway_first (n integer)")  # The first attempt left nothing behind.
    assert await migrate(driver) == (0, steps_for(driver)[-1].version)


async def test_many_migrate_at_once(url: str) -> None:
    drivers = [open_driver(url) for _ in range(5)]
    latest = steps_for(drivers[0])[-1].version
    answers = await asyncio.gather(*(migrate(driver) for driver in drivers))
    assert {after for _, after in answers} == {latest}
    for driver in drivers:
        await check_schema(driver)
        await driver.close()


PROCESS = """
import asyncio, sys
from headway.store import open_driver
from headway.store.migrations import check_schema, migrate

async def main():
    driver = open_driver(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    await migrate(driver)
    await check_schema(driver)
    await driver.close()

asyncio.run(main())
"""


async def test_processes_migrate_at_once(url: str) -> None:
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
        async with asyncio.timeout(60):
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
async def test_opening_a_server_without_a_schema_is_refused(postgres_server: PostgresServer, postgres_url: str) -> None:
    with pytest.raises(SchemaMismatch, match="no Headway schema yet; run `headway migrate`"):
        await Store.open(postgres_url, Clock())
    store = await Store.open(postgres_url, Clock(), checked=False)
    with pytest.raises(SchemaMismatch, match="headway migrate"):
        await store.queue.page()
    await migrate(store.driver)
    assert await store.queue.page() == []
    await store.close()
