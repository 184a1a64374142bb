"""Headway on PostgreSQL or SQLite: one worker command, which starts a supervisor and its children."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from bench.peers.kit import POSTGRES, SQLITE, VARIANT, Awaited, become, hit
from headway import Headway
from headway.core.settings import Settings
from headway.store import open_driver
from headway.store.migrations import migrate

URL = f"sqlite:///{SQLITE}" if "sqlite" in VARIANT else POSTGRES

app = Headway(settings=Settings(store=URL, node="bench"), name="bench")


@app.task
async def noop(key: int, sent_ns: int) -> None:
    """Record the start and do nothing else."""
    hit(key, sent_ns)


async def setup() -> None:
    """Create the schema."""
    driver = open_driver(URL)
    try:
        await migrate(driver)
    finally:
        await driver.close()


@asynccontextmanager
async def producer() -> AsyncIterator[Awaited]:
    """Open a client."""

    async def one(key: int, sent_ns: int) -> None:
        await noop.enqueue(key=key, sent_ns=sent_ns)

    async def many(keys: Sequence[int]) -> None:
        await noop.enqueue_many([{"key": key, "sent_ns": 0} for key in keys])

    async with app:
        yield Awaited(one, many)


def worker() -> None:
    """Run a worker with the default settings until killed."""
    become("headway", "--store", URL, "worker", "--app", "bench.peers.with_headway:app")
