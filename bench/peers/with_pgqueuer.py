# mypy: ignore-errors
# The library is installed only in the peers' environment, so mypy cannot check its types here.
"""PGQueuer on PostgreSQL with asyncpg: batches of 500, or of 10, the default."""

import logging
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import AsyncpgDriver, PgQueuer, Queries

from bench.peers.kit import POSTGRES, VARIANT, Awaited, hit

BATCH = 10 if "default" in VARIANT else 500


async def setup():
    """Create the schema."""
    connection = await asyncpg.connect(POSTGRES)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


@asynccontextmanager
async def producer():
    """Open a client."""
    connection = await asyncpg.connect(POSTGRES)
    queries = Queries(AsyncpgDriver(connection))

    async def one(key, sent_ns):
        await queries.enqueue("noop", b"%d %d" % (key, sent_ns))

    async def many(keys):
        await queries.enqueue(["noop"] * len(keys), [b"%d 0" % key for key in keys], [0] * len(keys))

    yield Awaited(one, many)
    await connection.close()


async def worker():
    """Run a worker with a small connection pool until killed."""
    logging.disable(logging.WARNING)
    pool = await asyncpg.create_pool(POSTGRES, min_size=2, max_size=8)
    queue = PgQueuer.from_asyncpg_pool(pool)

    @queue.entrypoint("noop")
    async def noop(job):
        hit(*map(int, job.payload.split()))

    await queue.run(batch_size=BATCH)
