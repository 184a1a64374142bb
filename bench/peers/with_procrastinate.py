# mypy: ignore-errors
# The library is installed only in the peers' environment, so mypy cannot check its types here.
"""Procrastinate on PostgreSQL: fifty concurrent jobs, notifications on, finished jobs kept, the default."""

import logging
from contextlib import asynccontextmanager

import procrastinate

from bench.peers.kit import POSTGRES, Awaited, hit

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=POSTGRES, min_size=4, max_size=20))


@app.task(name="noop", pass_context=False)
async def noop(key, sent_ns):
    """Record the start and do nothing else."""
    hit(key, sent_ns)


async def setup():
    """Create the schema."""
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


@asynccontextmanager
async def producer():
    """Open a client."""

    async def one(key, sent_ns):
        await noop.defer_async(key=key, sent_ns=sent_ns)

    async def many(keys):
        await noop.batch_defer_async(*({"key": key, "sent_ns": 0} for key in keys))

    async with app.open_async():
        yield Awaited(one, many)


async def worker():
    """Run a worker until killed."""
    logging.disable(logging.WARNING)
    async with app.open_async():
        await app.run_worker_async(concurrency=50, install_signal_handlers=False)
