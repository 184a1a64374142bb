"""Headway on PostgreSQL or SQLite: one worker command, which starts a supervisor and its children."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from bench.peers.kit import POSTGRES, SQLITE, VARIANT, Awaited, become, hit
from headway import Headway
from headway.core.settings import Settings
from headway.store import open_driver
from headway.store.migrations import migrate

URL = f"sqlite:///{SQLITE}" if "sqlite" in VARIANT else POSTGRES

app = Headway(settings=Settings(store=URL, node="bench"), name="bench")

# What jobs and limits the variants of the benchmark `limits` have; the plain one has none.
TENANTS: Final = 1_000
KEYS: Final = 10_000
LIMITS: Final[dict[str, dict[str, Any]]] = {
    "queue-limit": {"queue:default": {"concurrency": 500}},
    "keys": {"key-*": {"concurrency": 5}},
    "one-place": {"queue:default": {"concurrency": 1}},
}
JOBS: Final[dict[str, dict[str, Any]]] = {
    "tenant": {"tenant": "acme"},
    "tenants": {"tenant": lambda row: f"t{row['key'] % TENANTS}"},
    "keys": {"limit": lambda row: f"key-{row['key'] % KEYS}"},
}
KIND: Final = VARIANT.partition("+")[2]


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
    for name, limit in LIMITS.get(KIND, {}).items():
        app.limit(name, **limit)
    if LIMITS.get(KIND):
        await app.sync()


@asynccontextmanager
async def producer() -> AsyncIterator[Awaited]:
    """Open a client."""
    options = JOBS.get(KIND, {})
    single = noop if any(callable(value) for value in options.values()) else noop.options(**options)

    async def one(key: int, sent_ns: int) -> None:
        await single.enqueue(key=key, sent_ns=sent_ns)

    async def many(keys: Sequence[int]) -> None:
        await noop.enqueue_many([{"key": key, "sent_ns": 0} for key in keys], **options)

    async with app:
        yield Awaited(one, many)


def worker() -> None:
    """Run a worker with the default settings until killed."""
    become("headway", "--store", URL, "worker", "--app", "bench.peers.with_headway:app")
