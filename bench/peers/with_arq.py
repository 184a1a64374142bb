# mypy: ignore-errors
# The library is in the peers' own environment, so that types cannot be checked here.
"""arq on Redis: ten jobs at once, as it has by itself (more were no faster); it looks every 10 ms, or every 500."""

import logging
from contextlib import asynccontextmanager

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from bench.peers.kit import REDIS, VARIANT, Awaited, hit, in_flight

settings = RedisSettings.from_dsn(REDIS)


async def noop(_context, key, sent_ns):
    """Be a job that does next to nothing."""
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
    """Work until killed, in the loop that the library makes."""
    logging.disable(logging.WARNING)
    delay_s = 0.5 if "default" in VARIANT else 0.01
    Worker([noop], redis_settings=settings, max_jobs=10, keep_result=0, poll_delay=delay_s).run()
