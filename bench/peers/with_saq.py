# mypy: ignore-errors
# The library is in the peers' own environment, so that types cannot be checked here.
"""SAQ on Redis or PostgreSQL: ten jobs at once as it has by itself (more are no faster), finished jobs dropped."""

import logging
from contextlib import asynccontextmanager

from saq import Job, Queue, Worker

from bench.peers.kit import POSTGRES, REDIS, VARIANT, Awaited, hit, in_flight


def open_queue():
    """Make a queue on the store that is meant."""
    if "postgres" in VARIANT:
        return Queue.from_url(POSTGRES, min_size=4, max_size=20)
    return Queue.from_url(REDIS)


async def noop(_context, *, key, sent_ns):
    """Be a job that does next to nothing."""
    hit(key, sent_ns)


async def setup():
    """Make the schema, which connecting does."""
    queue = open_queue()
    await queue.connect()
    await queue.disconnect()


@asynccontextmanager
async def producer():
    """Open a client."""
    queue = open_queue()
    await queue.connect()

    async def one(key, sent_ns):
        await queue.enqueue(Job(function="noop", kwargs={"key": key, "sent_ns": sent_ns}, ttl=-1))

    yield Awaited(one, lambda keys: in_flight(one, keys))
    await queue.disconnect()


async def worker():
    """Work until killed."""
    logging.disable(logging.WARNING)
    queue = open_queue()
    await queue.connect()
    await Worker(queue, functions=[noop], concurrency=10, dequeue_timeout=1.0).start()
