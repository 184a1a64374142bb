"""The schema, step by step: numbered SQL files, each applied once, in one transaction with its mark.

A step begins with its mark, a row in `headway_schema`: of two programs that race, the second fails on it before it
touches anything else, and finds that the work is done.

A program works with exactly the version it was written for, or one newer (so that a rolling upgrade can migrate first);
anything else is refused in one clear sentence before it can do harm.
"""

from headway.core.errors import SchemaMismatch
from headway.store.statements import POSTGRES, SQLITE, Migration, migrations
from headway.store.transaction import Driver, call

_LOCK = "headway.migrate"


def steps_for(driver: Driver) -> tuple[Migration, ...]:
    """Return all steps in the driver's dialect."""
    return migrations(SQLITE if driver.dialect_name == "sqlite" else POSTGRES)


async def schema_version(driver: Driver) -> int:
    """Return the version of the database; 0 when it has no schema of ours."""
    try:
        rows = await driver.fetch(call("schema_version"))
    except SchemaMismatch:
        return 0
    return rows[0]["version"] or 0


async def check_schema(driver: Driver) -> None:
    """Refuse a database that this program was not written for."""
    present, wanted = await schema_version(driver), steps_for(driver)[-1].version
    if present == 0:
        raise SchemaMismatch("the database has no Headway schema yet; run `headway migrate`")
    if present < wanted:
        raise SchemaMismatch(f"the database has schema {present}, this program needs {wanted}; run `headway migrate`")
    if present > wanted + 1:
        raise SchemaMismatch(f"the database has schema {present}, this program knows {wanted}; upgrade the program")


async def migrate(driver: Driver) -> tuple[int, int]:
    """Bring the database to the present schema; return its version before and after. Safe to run by many at once."""
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
            raise  # Otherwise somebody else applied it while we waited for the lock.
