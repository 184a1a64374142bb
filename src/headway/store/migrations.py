"""Migrations: numbered SQL files, each applied once, in one transaction.

A migration first inserts its row into `headway_schema`. Of two processes that race, the second fails on that row before
it changes anything, and finds that the migration is done.

A program works with the version it was written for, or one newer, so that a rolling upgrade can migrate first. It
refuses any other version with an error that says what to do.
"""

from headway.core.errors import SchemaMismatch
from headway.store.statements import POSTGRES, SQLITE, Migration, migrations
from headway.store.transaction import Driver, call

_LOCK = "headway.migrate"


def steps_for(driver: Driver) -> tuple[Migration, ...]:
    """Return all migrations in the driver's dialect."""
    return migrations(SQLITE if driver.dialect_name == "sqlite" else POSTGRES)


async def schema_version(driver: Driver) -> int:
    """Return the schema version of the database; 0 when it has no Headway schema."""
    try:
        rows = await driver.fetch(call("schema_version"))
    except SchemaMismatch:
        return 0
    return rows[0]["version"] or 0


async def check_schema(driver: Driver) -> None:
    """Raise `SchemaMismatch` unless this program works with the schema of the database."""
    present, wanted = await schema_version(driver), steps_for(driver)[-1].version
    if present == 0:
        raise SchemaMismatch("the database has no Headway schema yet; run `headway migrate`")
    if present < wanted:
        raise SchemaMismatch(f"the database has schema {present}, this program needs {wanted}; run `headway migrate`")
    if present > wanted + 1:
        raise SchemaMismatch(f"the database has schema {present}, this program knows {wanted}; upgrade the program")


async def migrate(driver: Driver) -> tuple[int, int]:
    """Migrate to the current schema; return the version before and after. Safe to run concurrently."""
    steps = steps_for(driver)
    before = await schema_version(driver)
    for step in steps:
        if step.version > before:
            await _apply(driver, step)
    return before, max(before, steps[-1].version)


async def _apply(driver: Driver, step: Migration) -> None:
    try:
        await driver.script(step.statements, _LOCK)
    except Exception:
        if await schema_version(driver) < step.version:
            raise  # Otherwise another process applied it while we waited for the lock.
