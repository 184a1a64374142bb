# mypy: ignore-errors
# The library is installed only in the peers' environment, so mypy cannot check its types here.
"""arq on Redis: ten concurrent jobs, the default (more were no faster); polls every 10 ms, or every 500 ms."""

import logging
from contextlib import asynccontextmanager

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from bench.peers.kit import REDIS, VARIANT, Awaited, hit, in_flight

settings = RedisSettings.from_dsn(REDIS)


async def noop(_context, key, sent_ns):
    """Record the start and do nothing else."""
    hit(key, sent_ns)


@asynccontextmanager
async def producer():
    """Open a client."""
    pool = await create_pool(settings)

    async def one(key, sent_ns):
        await pool.enqueue_job("noop", key, sent_ns)

    yield Awaited(one, lambda keys: in_flight(one, keys))
    await pool.aclose()


def worker():
    """Run a worker until killed, in the event loop that the library creates."""
    logging.disable(logging.WARNING)
    delay_s = 0.5 if "default" in VARIANT else 0.01
    Worker([noop], redis_settings=settings, max_jobs=10, keep_result=0, poll_delay=delay_s).run()
