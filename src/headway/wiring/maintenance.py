"""Maintain a store: migrate its schema."""

from headway.core.settings import Settings
from headway.store import open_driver
from headway.store.migrations import migrate, schema_version


async def migrate_store(settings: Settings, node: str) -> tuple[int, int]:
    """Migrate a store to the schema of this program; return the versions before and after."""
    driver = open_driver(settings.store, node=node, synchronous=settings.sqlite_synchronous)
    try:
        before, after = await migrate(driver)
        assert await schema_version(driver) == after
    finally:
        await driver.close()
    return before, after
